"""What a framework adds to a step: the terms, the evaluator, exact plans, slack, and the file."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY, random_gradient_problem, random_step

from commsched.models import (
    AlphaBeta,
    Bucket,
    Chunk,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Hold,
    MostLaunches,
    PiecewiseLinear,
    Plan,
    PoolBytes,
    Problem,
    StepTable,
    evaluate,
)
from commsched.models.errors import (
    ExtrapolationWarning,
    InputError,
    NotApplicableError,
    PlanError,
    SolverError,
)
from commsched.models.overheads import Overheads, evaluate_overheads, play_overheads
from commsched.optimizer import optimize
from commsched.optimizer import overheads as module
from commsched.optimizer.overheads import optimize_overheads, why_not_planned
from commsched.optimizer.overheads_chain import Cut, OverheadChain
from commsched.optimizer.overheads_slack import with_slack
from commsched.problems.overheads_file import read_overheads, write_overheads

NS = Fraction(1, 1000)  # a nanosecond in microseconds
NAMES = ("issue_us", "hook_us", "fill_gb_s", "wake_us", "copy_gb_s", "gradient_us", "finish_us")


def up(value) -> int:
    """Return a Fraction rounded up."""
    return math.ceil(value)


def walk(ready, sizes, ends, cost, backward_end, terms) -> int:
    """Return when the step ends, by walking through backward: a second evaluator, from the words."""

    def fill(size):
        return 0 if terms.fill_gb_s is None else up(Fraction(size) / Fraction(str(terms.fill_gb_s)))

    def out(count, size):
        ns = count * Fraction(str(terms.gradient_us)) * 1000
        if terms.copy_gb_s is not None:
            ns += Fraction(size) / Fraction(str(terms.copy_gb_s))
        return up(ns)

    issue, hook, wake, finish = (
        up(Fraction(str(value)) * 1000)
        for value in (terms.issue_us, terms.hook_us, terms.wake_us, terms.finish_us)
    )
    now = before = sent = begin = free = filled = 0
    done = []
    for k, size in enumerate(sizes):
        now += ready[k] - before
        before = ready[k]
        if terms.filled:
            filled = max(filled, now + fill(size))
        else:
            now += fill(sent + size) - fill(sent)
            filled = now
        sent += size
        if k + 1 in ends:
            free = max(free, filled + issue) + cost.ns(sum(sizes[begin : k + 1]))
            done.append((free, begin, k + 1))
            now += hook
            begin, filled = k + 1, 0
    now += backward_end - before
    for end, i, j in done:
        now = max(now, end + wake) + out(j, sum(sizes[:j])) - out(i, sum(sizes[:i]))
    return now + finish


def random_terms(rng) -> Overheads:
    """Return terms of a few nanoseconds, some of them nothing."""

    def us(most):
        return rng.choice((0, rng.randint(0, most) / 1000))

    return Overheads(
        issue_us=us(20),
        hook_us=us(20),
        fill_gb_s=rng.choice((None, 1, 3)),
        filled=rng.random() < 0.5,
        wake_us=us(9),
        copy_gb_s=rng.choice((None, 0.5, 2, 3)),
        gradient_us=rng.choice((0, 0, 0.0025)),
        finish_us=us(9),
    )


def random_backward(rng, most=7):
    """Return ready times, sizes, a cost, the end of backward, and the problem of them."""
    ready, now = [], 0
    for _ in range(rng.randint(1, most)):
        now += rng.choice((0, rng.randint(0, 30)))
        ready.append(now)
    sizes = [rng.choice((0, rng.randint(1, 40))) for _ in ready]
    cost = rng.choice(
        (
            AlphaBeta(rng.randint(0, 20) / 1000, rng.choice((1, 0.7, 2))),
            StepTable([(1, 0.004), (20, 0.01), (300, 0.05)]),
            PiecewiseLinear([(1, 0.003), (30, 0.02), (300, 0.09)]),
        )
    )
    end = now + rng.choice((0, rng.randint(0, 50)))
    gradients = [Gradient(f"g{k}", *pair) for k, pair in enumerate(zip(sizes, ready, strict=True))]
    return ready, sizes, cost, end, GradientProblem(gradients, cost, backward_end_ns=end)


def cuts(count):
    """Yield the ends of every way to cut so many gradients."""
    for mask in range(2 ** (count - 1)):
        yield (*(k + 1 for k in range(count - 1) if mask >> k & 1), count)


def plan_of(problem, ends) -> Plan:
    """Return the plan of a cut."""
    names = [problem.names[k] for k in problem.ready_order]
    return Plan.of(names[i:j] for i, j in itertools.pairwise((0, *ends)))


# The evaluator


@pytest.mark.parametrize("seed", range(40))
def test_every_plan_ends_when_a_second_evaluator_says(seed):
    """All cuts of some backward passes, all terms at once."""
    rng = random.Random(seed)
    for _ in range(5):
        ready, sizes, cost, end, problem = random_backward(rng, most=6)
        terms = random_terms(rng)
        for ends in cuts(len(sizes)):
            timeline = play_overheads(problem, plan_of(problem, ends), terms)
            assert timeline.makespan_ns == walk(ready, sizes, ends, cost, end, terms)


@pytest.fixture
def three():
    """Six gradients, 10 us apart, of 1 to 6 KB, on a link of 1 us and 1 GB/s, in three launches."""
    problem = GradientProblem(
        [Gradient(f"g{k}", 1000 * (k + 1), 10_000 * (k + 1)) for k in range(6)],
        AlphaBeta(1, 1),
        backward_end_ns=70_000,
    )
    return problem, Plan.of([["g0", "g1"], ["g2", "g3", "g4"], ["g5"]])


@pytest.mark.parametrize(
    ("terms", "makespan", "work_end"),
    [
        ({}, 70_000, 70_000),
        ({"issue_us": 1}, 71_000, 70_000),  # the last launch is issued at 61 and takes 7
        ({"hook_us": 1}, 73_000, 73_000),  # three launches hold backward up
        ({"fill_gb_s": 1}, 75_000, 70_000),  # 5 us for g4, whose launch the last one waits for
        ({"fill_gb_s": 1, "filled": False}, 91_000, 91_000),  # 21 us in all, on the stream
        ({"wake_us": 0.5}, 70_500, 70_000),
        ({"copy_gb_s": 2}, 80_500, 70_000),  # 21 KB, after backward
        ({"gradient_us": 0.1}, 70_600, 70_000),
        ({"finish_us": 3}, 73_000, 70_000),
    ],
)
def test_each_term_does_what_it_says(three, terms, makespan, work_end):
    """By itself, counted by hand."""
    timeline = evaluate_overheads(*three, Overheads(**terms))
    assert (timeline.makespan_ns, timeline.work_end_ns) == (makespan, work_end)
    assert timeline.exposed_ns == makespan - 70_000
    assert timeline.waited_ns == makespan - work_end
    assert timeline.nominal.exposed_ns == 0
    assert timeline.compute_ns == 70_000
    assert [launch.names for launch in timeline.launches] == [b.names for b in three[1].buckets]
    assert timeline.busy[-1][1] <= work_end
    assert timeline.overheads.as_row() == terms


@pytest.mark.parametrize("seed", range(60))
def test_no_terms_change_nothing_and_terms_never_help(seed):
    """On steps of every kind: the derived step is then the step."""
    rng = random.Random(seed)
    problem = random_step(rng) if seed % 2 else random_gradient_problem(rng)
    plan = Plan.of([[name] for name in (problem.names[k] for k in problem.ready_order)])
    nominal = evaluate_quietly(problem, plan)
    nothing = play_overheads(problem, plan, Overheads())
    assert nothing.makespan_ns == nominal.makespan_ns
    assert nothing.tasks == nominal.tasks
    assert [(n.names, n.start_ns, n.end_ns) for n in nothing.launches] == [
        (n.names, n.start_ns, n.end_ns) for n in nominal.launches
    ]
    assert Overheads().nothing
    terms = random_terms(rng)
    assert play_overheads(problem, plan, terms).makespan_ns >= nominal.makespan_ns


def evaluate_quietly(problem, plan):
    """Evaluate without the warning about sizes."""
    return play_overheads(problem, plan, Overheads()).nominal


def test_in_a_step_that_goes_on_what_waits_waits_for_the_gradients():
    """The next forward starts when its gradient has been handed back, not at the very end."""
    problem = Problem(
        [
            Compute("bwd", 100),
            Collective("ar", 50, after=("bwd",)),
            Compute("fwd", 10, after=("ar",)),
        ],
        {("dp", "allreduce"): AlphaBeta(0, 1)},
    )
    terms = Overheads(issue_us=0.003, wake_us=0.002, copy_gb_s=5, hook_us=0.004, finish_us=0.001)
    timeline = evaluate_overheads(problem, Plan.of([["ar"]]), terms)
    assert timeline.launches[0].start_ns == 103
    assert timeline.ends_ns["fwd"] == 103 + 50 + 2 + 10 + 10
    assert timeline.makespan_ns == 176


def test_names_that_look_like_the_terms_do_no_harm():
    """A step may call its tasks what it likes."""
    problem = Problem(
        [
            Compute(":issue 0", 10, stream="::outs "),
            Collective(":wake 0", 50, after=(":issue 0",)),
        ],
        {("dp", "allreduce"): AlphaBeta(0, 1)},
    )
    timeline = evaluate_overheads(problem, Plan.of([[":wake 0"]]), Overheads(issue_us=0.001))
    assert timeline.makespan_ns == 61


def test_what_has_no_overheads_is_refused(three):
    """Chunks, pools of memory, and plans that do not fit."""
    problem, _ = three
    with pytest.raises(PlanError, match="is not in any bucket"):
        evaluate_overheads(problem, Plan.of([["g0"]]), Overheads())
    chunked = Plan((Bucket(("a",), chunks=(Chunk(0, 4),)), Bucket(("a",), chunks=(Chunk(4, 8),))))
    one = GradientProblem([Gradient("a", 8, 0)], AlphaBeta(0, 1))
    with pytest.raises(NotApplicableError, match="for collectives in chunks"):
        evaluate_overheads(one, chunked, Overheads())
    held = Problem(
        [Collective("a", 8, hold=Hold("m"))],
        {("dp", "allreduce"): AlphaBeta(0, 1)},
        limits=[PoolBytes("m", 8)],
    )
    with pytest.raises(NotApplicableError, match="a pool of memory is limited"):
        evaluate_overheads(held, Plan.of([["a"]]), Overheads())


def test_a_size_that_was_never_measured_is_said():
    """As evaluate does."""
    problem = GradientProblem([Gradient("a", 100, 0)], PiecewiseLinear([(1, 1), (10, 2)]))
    with pytest.warns(ExtrapolationWarning):
        evaluate_overheads(problem, Plan.of([["a"]]), Overheads())


# Exact plans


@pytest.mark.parametrize("seed", range(100))
def test_the_best_plan_is_the_best_of_all_cuts(seed):
    """Least step, then fewest launches; 2000 backward passes with random terms."""
    rng = random.Random(1000 + seed)
    for _ in range(20):
        ready, sizes, cost, end, problem = random_backward(rng)
        terms = random_terms(rng)
        best = min(
            (walk(ready, sizes, ends, cost, end, terms), len(ends)) for ends in cuts(len(sizes))
        )
        found = optimize_overheads(problem, terms)
        assert (found.makespan_ns, found.plan.launches) == best
        assert found.lower_bound_ns == best[0]
        assert found.status == "optimal"
        spare = optimize_overheads(problem, terms, slack=True)
        assert spare.makespan_ns == best[0]


def test_without_terms_it_is_the_nominal_optimum():
    """To the nanosecond on the evaluator's clock, for every sort of cost."""
    for seed in range(60):
        *_, problem = random_backward(random.Random(seed), most=12)
        found = optimize_overheads(problem, Overheads())
        nominal = optimize(problem)
        assert found.makespan_ns == nominal.makespan_ns
        assert found.plan.launches == nominal.plan.launches


def test_many_gradients_are_planned():
    """400 of them, with copies to hand back."""
    rng = random.Random(4)
    gradients = [Gradient(f"g{k}", rng.randint(0, 10**6), 10**6 * k) for k in range(400)]
    problem = GradientProblem(gradients, AlphaBeta(900, 1.35))
    terms = Overheads(
        issue_us=10, hook_us=25, fill_gb_s=7, copy_gb_s=3, gradient_us=1, finish_us=90
    )
    found = optimize_overheads(problem, terms)
    assert found.status == "optimal"
    for _ in range(30):
        ends = (*sorted(rng.sample(range(1, 400), rng.randint(0, 40))), 400)
        assert play_overheads(problem, plan_of(problem, ends), terms).makespan_ns >= (
            found.lower_bound_ns
        )


def test_other_steps_are_only_evaluated():
    """And the message says which they are."""
    cost = {("dp", "allreduce"): AlphaBeta(0, 1)}
    step = Problem([Compute("a", 5), Collective("b", 5, after=("a",))], cost)
    one = Gradient("a", 8, 0)
    cases = {
        "only a plain backward pass is planned": step,
        "plans are limited": GradientProblem([one], cost["dp", "allreduce"], limits=[MostLaunches(1)]),
        "several fusion keys": GradientProblem(
            [one, Gradient("b", 8, 0, "bfloat16")], cost["dp", "allreduce"]
        ),
        "more than 1000 gradients": GradientProblem(
            [Gradient(f"g{k}", 1, k) for k in range(1001)], cost["dp", "allreduce"]
        ),
    }  # fmt: skip
    for words, problem in cases.items():
        assert words in why_not_planned(problem)
        with pytest.raises(NotApplicableError, match=words):
            optimize_overheads(problem, Overheads())
    with pytest.raises(InputError, match="within: 2 must be from 0 to 1"):
        optimize_overheads(GradientProblem([one], AlphaBeta(0, 1)), Overheads(), within=2)


def test_a_recurrence_that_errs_is_found_out(monkeypatch):
    """The evaluator has the last word."""
    problem = GradientProblem([Gradient("a", 8, 0)], AlphaBeta(0, 1))
    monkeypatch.setattr(OverheadChain, "best", lambda self: Cut((1,), 7))
    with pytest.raises(
        SolverError, match="the evaluator gives 8 ns with overheads, the recurrence"
    ):
        optimize_overheads(problem, Overheads())


# Room to spare


def tied() -> GradientProblem:
    """Two launches are enough, with no time left over; three leave some. All end at 310."""
    return GradientProblem(
        [
            Gradient("a", 80, ready_ns=100),
            Gradient("b", 100, ready_ns=200),
            Gradient("c", 10, ready_ns=300),
        ],
        AlphaBeta(0, 1),
    )


def test_slack_is_taken_where_it_costs_nothing():
    """The plan with the fewest launches is late as soon as anything is; the other one is not."""
    problem = tied()
    fewest = optimize_overheads(problem, Overheads())
    spare = optimize_overheads(problem, Overheads(), slack=True)
    assert spare.makespan_ns == fewest.makespan_ns == 310
    assert fewest.plan.launches == 3
    crowded = GradientProblem(
        [Gradient("a", 40, 100), Gradient("b", 50, 200), Gradient("c", 10, 300)], AlphaBeta(0.01, 1)
    )
    few = optimize_overheads(crowded, Overheads())
    spare = optimize_overheads(crowded, Overheads(), slack=True)
    assert (few.plan.launches, spare.plan.launches) == (2, 3)
    assert few.makespan_ns == spare.makespan_ns == 320
    late = GradientProblem(
        [Gradient("a", 40, 100), Gradient("b", 50, 240), Gradient("c", 10, 300)], AlphaBeta(0.01, 1)
    )
    assert evaluate(late, few.plan).makespan_ns > evaluate(late, spare.plan).makespan_ns == 320


@pytest.mark.parametrize("seed", range(20))
def test_slack_never_costs_more_than_it_may_and_loses_less(seed):
    """Within its share of the step as planned; over the cases no worse than the best plan."""
    rng = random.Random(seed)
    *_, cost, end, problem = random_backward(rng, most=12)
    terms = random_terms(rng)
    best = optimize_overheads(problem, terms)
    cases = [
        GradientProblem(
            [Gradient(g.name, g.bytes, g.ready_ns + rng.randint(0, 20)) for g in problem.gradients],
            cost,
            backward_end_ns=end + 20,
        )
        for _ in range(3)
    ]
    spare = optimize_overheads(problem, terms, slack=True, within=0.05, cases=cases)
    assert best.makespan_ns <= spare.makespan_ns <= 1.05 * best.makespan_ns
    assert spare.lower_bound_ns == best.makespan_ns
    assert (spare.status == "optimal") == (spare.makespan_ns == best.makespan_ns)
    names = [problem.names[k] for k in problem.ready_order]
    chains = [module._chain(case, terms, names) for case in (problem, *cases)]
    some = with_slack(
        chains[0],
        chains[1:],
        Cut(tuple(itertools.accumulate(len(b.names) for b in best.plan.buckets)), best.makespan_ns),
        spare.makespan_ns,
    )
    ends = tuple(itertools.accumulate(len(b.names) for b in best.plan.buckets))
    assert sum(chain.makespan_ns(some.ends) for chain in chains) <= sum(
        chain.makespan_ns(ends) for chain in chains
    )


def test_cases_must_be_of_the_same_gradients():
    """And not too many of them."""
    problem = tied()
    other = GradientProblem([Gradient("a", 80, 100)], AlphaBeta(0, 1))
    step = Problem([Collective("a", 5)], {("dp", "allreduce"): AlphaBeta(0, 1)})
    for cases, words in (
        ([other], r"cases\[0\]: it has other gradients"),
        ([problem, step], r"cases\[1\]: it is no plain backward pass"),
        ([problem] * 65, "cases: 65 are given, at most 64"),
    ):
        with pytest.raises(InputError, match=words):
            optimize_overheads(problem, Overheads(), slack=True, cases=cases)


# The terms and their file


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"issue_us": -1}, "overheads: issue_us: -1 must be at least 0"),
        ({"hook_us": True}, "overheads: hook_us: True is a boolean"),
        ({"wake_us": float("nan")}, "overheads: wake_us: nan is not a finite number"),
        ({"finish_us": float("inf")}, "overheads: finish_us: inf is not a finite number"),
        ({"finish_us": 10**8}, "overheads: finish_us: 100000000 must be at most 10000000 us"),
        ({"gradient_us": "1"}, "overheads: gradient_us: '1' is not a number"),
        ({"fill_gb_s": 0}, r"overheads: fill_gb_s: 0 must be at least 0\.001 GB/s"),
        ({"copy_gb_s": -2}, "overheads: copy_gb_s: -2 must be at least"),
        ({"filled": 1}, "overheads: filled: 1 must be true or false"),
    ],
)
def test_terms_out_of_range_are_refused(fields, words):
    """By name."""
    with pytest.raises(InputError, match=words):
        Overheads(**fields)


FULL = {
    "issue_us": 12.5,
    "hook_us": 20,
    "fill_gb_s": 6.9,
    "filled": False,
    "wake_us": 45,
    "copy_gb_s": 3.25,
    "gradient_us": 1.5,
    "finish_us": 300,
}
HEAD = {"format": "commsched/overheads", "version": 1}


def test_a_file_survives_the_round_trip(tmp_path):
    """Every term, and its defaults stay out of it."""
    path = tmp_path / "o.json"
    path.write_text(json.dumps({**HEAD, "name": "mine", "source": "a run", **FULL}))
    terms = read_overheads(path)
    assert terms == Overheads(**FULL)
    again = tmp_path / "again.json"
    write_overheads(terms, again, name="mine", source="a run")
    assert json.loads(again.read_text()) == json.loads(path.read_text())
    assert read_overheads(again) == terms
    write_overheads(Overheads(), again)
    assert json.loads(again.read_text()) == HEAD
    assert read_overheads(again).nothing
    with pytest.raises(InputError, match=r"overheads: hook_us: .* has no exact decimal form"):
        write_overheads(Overheads(hook_us=Fraction(1, 3)), again)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("[]", "expected `object`"),
        ('{"format": "commsched/overheads", "version": 1', "is not valid JSON"),
        ('{"format": "commsched/costs", "version": 1}', "format is 'commsched/costs'"),
        ('{"format": "commsched/overheads", "version": 2}', "this program reads version 1"),
        (json.dumps({**HEAD, "hooks_us": 1}), "unknown field `hooks_us`"),
        (json.dumps({**HEAD, "hook_us": "1"}), "hook_us: expected `int | float`"),
        (json.dumps({**HEAD, "hook_us": True}), "hook_us: expected `int | float`"),
        (json.dumps({**HEAD, "hook_us": -1}), "hook_us: -1 must be at least 0"),
        (json.dumps({**HEAD, "copy_gb_s": 0}), "copy_gb_s: 0 must be at least 0.001 GB/s"),
        (json.dumps({**HEAD, "filled": 0}), "filled: expected `bool`"),
        (json.dumps({**HEAD, "hook_us": None}), "hook_us: expected `int | float`"),
        (json.dumps(HEAD)[:-1] + ',"finish_us": 1e999}', "finish_us: number out of range"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_line(tmp_path, text, words):
    """It names the file and the field."""
    path = tmp_path / "o.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_overheads(path)
    said = str(error.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert words in said


def test_a_file_without_end_is_not_read(tmp_path):
    """Only a megabyte is."""
    path = tmp_path / "o.json"
    path.write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(InputError, match="is larger than 1048576 bytes"):
        read_overheads(path)
    with pytest.raises(InputError, match="No such file"):
        read_overheads(tmp_path / "none.json")


@PROPERTY
@given(st.randoms(use_true_random=False))
def test_damaged_files_never_surprise(tmp_path_factory, rng):
    """Bytes flipped, cut, doubled, fields of other types: an error or valid terms."""
    row = {**HEAD, **FULL}
    for _ in range(rng.randint(0, 3)):
        row[rng.choice([*NAMES, "filled", "format", "version", "x"])] = rng.choice(
            [None, True, "1", [], {}, -1, 0, 1e308, -0.0, 2**63, 2**70, 1e-320, 0.1]
        )
    data = bytearray(json.dumps(row).encode())
    for _ in range(rng.randint(0, 3)):
        what, at = rng.randint(0, 2), rng.randrange(len(data))
        if what == 0:
            data[at] ^= 1 << rng.randint(0, 7)
        elif what == 1:
            del data[at : at + rng.randint(1, 20)]
        else:
            data[at:at] = data[at : at + rng.randint(1, 20)]
        if not data:
            break
    path = tmp_path_factory.mktemp("damaged") / "o.json"
    path.write_bytes(bytes(data))
    with contextlib.suppress(InputError):
        terms = read_overheads(path)
        problem = GradientProblem([Gradient("a", 8, 0)], AlphaBeta(0, 1))
        assert optimize_overheads(problem, terms).makespan_ns >= 8

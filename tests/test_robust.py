"""Robust plans against every in-order plan in every case."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    PROPERTY,
    random_affine,
    random_curve,
    random_gradient_problem,
    random_piecewise,
    random_step,
)

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    MostBucketBytes,
    MostLaunches,
    Plan,
    Problem,
    evaluate,
)
from commsched.models.coverage import is_in_order
from commsched.models.errors import DeadlockError, InputError, NotApplicableError
from commsched.optimizer import optimize
from commsched.optimizer import robust as module
from commsched.optimizer.neighbours import neighbours
from commsched.optimizer.robust import robust
from commsched.optimizer.robust_chain import RobustChain, UndecidedError


def cuts(items):
    """Yield every way to cut a sequence into contiguous parts."""
    for mask in range(2 ** (len(items) - 1)):
        ends = [k + 1 for k in range(len(items) - 1) if mask >> k & 1] + [len(items)]
        yield [tuple(items[i:j]) for i, j in itertools.pairwise([0, *ends])]


def plans_of(problem):
    """Yield every in-order plan of a step whose channels carry one fusion key each."""
    chains = [[problem.names[k] for k in chain] for chain in problem.chains.values()]
    for parts in itertools.product(*(list(cuts(chain)) for chain in chains)):
        yield Plan.of(names for part in parts for names in part)


def other_case(rng, problem, make=random_affine):
    """Return the same gradients with other ready times, in another order, and other costs."""
    gradients = [
        replace(g, ready_ns=max(0, g.ready_ns + rng.randint(-9, 9))) for g in problem.gradients
    ]
    rng.shuffle(gradients)
    end = max(g.ready_ns for g in gradients) + rng.choice((0, 0, 7))
    return GradientProblem(gradients, make(rng), backward_end_ns=end)


def one_key(problem):
    """Return the problem's copy in which all gradients may share a bucket."""
    (cost,) = problem.costs.values()
    gradients = [replace(g, dtype="float32", sparse=False) for g in problem.gradients]
    return GradientProblem(gradients, cost, backward_end_ns=problem.backward_end_ns)


def check(cases, result):
    """Check a result whose method is exact against every plan."""
    plans = list(plans_of(cases[0]))
    times = [[evaluate(case, plan).makespan_ns for case in cases] for plan in plans]
    best = [
        min(optimize(case).makespan_ns, *(row[k] for row in times)) for k, case in enumerate(cases)
    ]
    worst = min(max(ns - b for ns, b in zip(row, best, strict=True)) for row in times)
    assert result.worst.regret_ns == result.bound_ns == worst
    assert result.status == "optimal"
    assert is_in_order(cases[0], result.plan)
    for case, row, least in zip(cases, result.cases, best, strict=True):
        assert row.best_ns == least
        assert row.bound_ns <= least
        assert row.makespan_ns == evaluate(case, result.plan).makespan_ns
        assert row.nominal_ns == evaluate(case, result.nominal).makespan_ns
        assert row.regret_ns >= 0
    assert result.nominal_worst.nominal_regret_ns >= result.worst.regret_ns
    assert result.nominal == optimize(cases[0]).plan


def bent(rng):
    """Return a curve that bends, measured far enough."""
    return random_piecewise(rng, 72)


@pytest.mark.parametrize("make", [random_affine, bent])
@pytest.mark.parametrize("seed", range(3))
def test_equals_brute_force(make, seed):
    """The least worst regret, over every plan, of two to four cases."""
    rng = random.Random(f"{make.__name__} {seed}")
    above_zero = 0
    for _ in range(25):
        problem = one_key(random_gradient_problem(rng, 6, curve=make))
        cases = [problem, *(other_case(rng, problem, make) for _ in range(rng.randint(1, 3)))]
        result = robust(cases)
        check(cases, result)
        above_zero += result.bound_ns > 0
    assert above_zero


def test_several_channels_equal_brute_force():
    """The worst regret couples the channels; each must be in time by itself."""
    rng = random.Random(1)
    for _ in range(25):
        sizes = {name: [rng.randint(0, 9) for _ in range(3)] for name in ("dp", "tp")}

        def case(sizes=sizes):
            tasks = []
            for group, bytes_ in sizes.items():
                for k, size in enumerate(bytes_):
                    gate = f"{group} gate {k}"
                    tasks.append(Compute(gate, rng.randint(0, 9), stream=group))
                    tasks.append(Collective(f"{group}{k}", size, group=group, after=(gate,)))
            costs = {(group, "allreduce"): random_curve(rng, total=99) for group in sizes}
            return Problem(tasks, costs)

        cases = [case() for _ in range(3)]
        check(cases, robust(cases))


def test_one_case_is_the_optimum():
    """With one case nothing is regretted."""
    rng = random.Random(3)
    for _ in range(20):
        problem = random_step(rng, 4, settled=True)
        result = robust([problem])
        assert result.worst.regret_ns == 0
        assert evaluate(problem, result.plan).makespan_ns == optimize(problem).makespan_ns


def test_by_hand():
    """The doctest's step, with what every plan would be regretted."""
    gradients = [Gradient(name, 10, ready_ns=ns) for name, ns in (("c", 10), ("b", 20), ("a", 30))]
    cases = [GradientProblem(gradients, AlphaBeta(us, 1), name=f"{us} us") for us in (0.003, 0.02)]
    result = robust(cases)
    assert [bucket.names for bucket in result.plan.buckets] == [("c",), ("b", "a")]
    assert [(c.name, c.best_ns, c.makespan_ns, c.nominal_ns) for c in result.cases] == [
        ("0.003 us", 49, 53, 49),
        ("0.02 us", 80, 80, 100),
    ]
    assert result.worst.name == "0.003 us"
    assert result.nominal_worst.name == "0.02 us"


def larger(count, cases=3):
    """Return cases of a step with many gradients."""
    rng = random.Random(count)
    sizes = [rng.choice((4096, 2**16, 2**20, 2**22)) for _ in range(count)]
    found = []
    for number in range(cases):
        now, gradients = 0, []
        for k, size in enumerate(sizes):
            now += rng.randint(10_000_000 // count, 30_000_000 // count)
            gradients.append(Gradient(f"g{k}", size, now))
        cost = AlphaBeta((30, 60, 15, 30)[number], (40, 20, 60, 15)[number])
        found.append(GradientProblem(gradients, cost, name=f"case {number}"))
    return found


def test_larger_cases_are_proved():
    """Sixty gradients in four cases; the robust plan beats the nominal one where that suffers."""
    cases = larger(60, 4)
    result = robust(cases)
    assert result.status == "optimal"
    assert result.worst.regret_ns < result.nominal_worst.nominal_regret_ns
    for case, row in zip(cases, result.cases, strict=True):
        assert row.best_ns == optimize(case).makespan_ns
        assert row.makespan_ns == evaluate(case, result.plan).makespan_ns


def test_giving_up_keeps_a_bound_and_a_plan(monkeypatch):
    """Where too many vectors would be kept, the plan is feasible and the bound is still valid."""
    cases = larger(40, 3)
    proved = robust(cases)
    calls = []

    def ends(self, deadlines, until=None):
        calls.append(deadlines)
        if len(calls) > 2:
            raise UndecidedError
        return original(self, deadlines, until)

    original = RobustChain.ends
    monkeypatch.setattr(RobustChain, "ends", ends)
    monkeypatch.setattr(module, "MAX_TRIED", 200)
    result = robust(cases)
    assert result.bound_ns <= proved.bound_ns
    assert result.worst.regret_ns >= proved.worst.regret_ns
    assert (result.status == "optimal") == (result.bound_ns == result.worst.regret_ns)


def test_steps_where_tasks_wait_are_searched():
    """No proof is claimed; the plan is no worse than the nominal one, and runs everywhere."""
    rng = random.Random(5)
    seen = 0
    while seen < 6:
        problem = random_step(rng, 4)
        if problem.settled:
            continue
        seen += 1
        tasks = [
            replace(task, duration_ns=2 * task.duration_ns) if isinstance(task, Compute) else task
            for task in problem.tasks
        ]
        other = Problem(tasks, problem.costs, channels=problem.groups_of_channel)
        result = robust([problem, other], time_limit_s=5)
        assert result.method == "steps"
        assert "tasks wait" in result.reason
        for case, row in zip((problem, other), result.cases, strict=True):
            assert row.makespan_ns == evaluate(case, result.plan).makespan_ns
            assert row.regret_ns >= 0
            assert row.bound_ns <= row.best_ns <= row.makespan_ns
        if result.nominal_worst.nominal_regret_ns is not None:
            assert result.worst.regret_ns <= result.nominal_worst.nominal_regret_ns


def test_limits_of_every_case_are_kept():
    """A plan that breaks a limit of the second case does not count."""
    gradients = [Gradient(f"g{k}", 10, ready_ns=0) for k in range(4)]
    free = GradientProblem(gradients, AlphaBeta(0.01, 1))
    tight = free.with_limits([MostBucketBytes(20)])
    result = robust([free, tight])
    assert max(len(bucket.names) for bucket in result.plan.buckets) == 2
    assert result.nominal.launches == 1
    assert result.cases[1].nominal_ns is None
    assert result.nominal_worst is result.cases[1]


def test_refused():
    """Problems that are no cases of one step, and values that are none."""
    one = GradientProblem([Gradient("a", 8, ready_ns=3)], AlphaBeta(1, 1), name="one")
    with pytest.raises(InputError, match="no problem is given"):
        robust([])
    with pytest.raises(InputError, match="65 problems are given, at most 64"):
        robust([one] * 65)
    larger_ = GradientProblem([Gradient("a", 9, ready_ns=3)], AlphaBeta(1, 1), name="two")
    with pytest.raises(InputError, match=r"problem 2 \(two\): 'a' has 9 bytes, not 8"):
        robust([one, larger_])
    renamed = GradientProblem([Gradient("b", 8, ready_ns=3)], AlphaBeta(1, 1))
    with pytest.raises(InputError, match=r"problem 2 \(without a name\) .* it lacks 'a'"):
        robust([one, renamed])
    more = GradientProblem([*one.gradients, *renamed.gradients], AlphaBeta(1, 1))
    with pytest.raises(InputError, match="it has 'b', too"):
        robust([one, more])
    half = GradientProblem([Gradient("a", 8, 3, "float16")], AlphaBeta(1, 1))
    with pytest.raises(InputError, match="'a' is of another kind, group, dtype or device"):
        robust([one, half])
    with pytest.raises(InputError, match="time_limit_s: 0 must be above 0"):
        robust([one], time_limit_s=0)
    with pytest.raises(NotApplicableError, match="robust plans are of scope in-order, not any"):
        robust([one], scope="any")
    impossible = GradientProblem(
        [Gradient("a", 8, 3), Gradient("b", 8, 3)],
        AlphaBeta(1, 1),
        limits=[MostLaunches(1), MostBucketBytes(8)],
    )
    with pytest.raises(NotApplicableError, match="no plan is known that keeps its limits"):
        robust([impossible])


@PROPERTY
@given(st.randoms(use_true_random=False))
def test_more_cases_are_never_better(rng):
    """Another case can only raise the least worst regret; a case twice changes nothing."""
    problem = one_key(random_gradient_problem(rng, 5, curve=random_affine))
    cases = [problem, other_case(rng, problem), other_case(rng, problem)]
    two, three = robust(cases[:2]), robust(cases)
    assert two.bound_ns <= three.bound_ns
    assert robust([*cases, cases[1]]).bound_ns == three.bound_ns


def test_neighbours_are_plans_in_order():
    """Each is a plan of the step, none is the plan itself, and merging and splitting are there."""
    rng = random.Random(8)
    for _ in range(60):
        problem = random_step(rng, 5)
        plan = Plan.of([problem.names[k]] for k in problem.ready_order)
        for _ in range(2):
            found = list(neighbours(problem, plan))
            for other in found:
                assert is_in_order(problem, other)
                assert other != plan
            runs = []
            for other in found:
                try:
                    evaluate(problem, other)
                except DeadlockError:
                    continue
                runs.append(other)
            if not runs:
                break
            plan = rng.choice(runs)

"""Compute that communication slows: the evaluator, the exact search, and the fit."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import all_plans, price
from strategies import (
    PROPERTY,
    problems_with_plans,
    random_affine,
    random_gradient_problem,
    random_movable_step,
    random_problem,
    random_step,
    random_valid_chunk_plan,
    random_valid_plan,
)

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Hold,
    MostBucketBytes,
    PiecewiseLinear,
    Plan,
    PoolBytes,
    Problem,
    evaluate,
)
from commsched.models.errors import (
    DeadlockError,
    ExtrapolationWarning,
    InputError,
    NotApplicableError,
    PlanError,
)
from commsched.models.exposure import launch_exposures
from commsched.models.slowdown import Slowdown, evaluate_slowed, slowdown_of
from commsched.models.slowdown_fit import TimedTwice, fit_slowdown
from commsched.optimizer import optimize, slowed_chain
from commsched.optimizer import slowed as module
from commsched.optimizer.slowed import optimize_slowed

F = Fraction


class Job:
    """Something that runs: its queue, names, needs and the work that is left."""

    def __init__(self, queue, names, needs, work, not_before=0):
        self.queue, self.names, self.needs = queue, names, set(needs)
        self.left, self.not_before = F(work), not_before
        self.ready = self.start = self.end = None


def played(problem, plan, compute, launch):
    """Play a plan with remaining work that shrinks; share nothing with the package."""
    tasks = {task.name: task for task in problem.tasks}
    jobs = []
    for task in problem.tasks:
        if isinstance(task, Compute):
            jobs.append(Job(("s", task.stream), [task.name], task.after, task.duration_ns))
    for stream, names in plan.orders.items():
        mine = [job for job in jobs if job.queue == ("s", stream)]
        jobs = [job for job in jobs if job not in mine]
        jobs += sorted(mine, key=lambda job, names=names: names.index(job.names[0]))
    for bucket in plan.buckets:
        members = [tasks[name] for name in bucket.names]
        size = sum(
            member.bytes
            if not bucket.chunks or bucket.chunks[k] is None
            else bucket.chunks[k][1] - bucket.chunks[k][0]
            for k, member in enumerate(members)
        )
        first = members[0]
        length = price(problem.costs[first.group, first.kind], size)
        needs = {name for member in members for name in member.after}
        queue = ("c", problem.channels[first.group])
        jobs.append(Job(queue, list(bucket.names), needs, length, bucket.not_before_ns))
    now = F(0)
    while any(job.end is None for job in jobs):
        moved = True
        while moved:
            moved = False
            open_names = {name for job in jobs if job.end is None for name in job.names}
            for k, job in enumerate(jobs):
                if job.ready is None and not job.needs & open_names:
                    job.ready = now
                blocked = any(o.queue == job.queue and o.end is None for o in jobs[:k])
                free = job.not_before <= now and not blocked
                if job.start is None and job.ready is not None and free:
                    job.start = now
                    moved = True
                if job.start is not None and job.end is None and job.left == 0:
                    job.end = now
                    moved = True
                    break
        running = [job for job in jobs if job.start is not None and job.end is None]
        sorts = {job.queue[0] for job in running}
        speed = {
            "s": 1 / F(compute) if "c" in sorts else F(1),
            "c": 1 / F(launch) if "s" in sorts else F(1),
        }
        steps = [job.left / speed[job.queue[0]] for job in running]
        steps += [
            job.not_before - now for job in jobs if job.start is None and job.not_before > now
        ]
        if not steps:
            break
        step = min(steps)
        now += step
        for job in running:
            job.left -= step * speed[job.queue[0]]
    return jobs


def same(problem, plan, compute, launch):
    """Check the evaluator against the other one, place by place."""
    timeline = evaluate_slowed(problem, plan, Slowdown(compute, launch))
    jobs = played(problem, plan, compute, launch)
    assert timeline.exact_makespan_ns == max(job.end for job in jobs)
    assert timeline.makespan_ns == math.ceil(timeline.exact_makespan_ns)
    ours = sorted((n.names, n.ready_ns, n.start_ns, n.end_ns) for n in timeline.launches)
    theirs = sorted(
        (tuple(job.names), math.ceil(job.ready), math.ceil(job.start), math.ceil(job.end))
        for job in jobs
        if job.queue[0] == "c"
    )
    assert ours == theirs
    spans = {span.name: (span.start_ns, span.end_ns) for span in timeline.tasks}
    assert spans == {
        job.names[0]: (math.ceil(job.start), math.ceil(job.end))
        for job in jobs
        if job.queue[0] == "s"
    }
    return timeline


FACTORS = [(1, 1), (2, 1), (F(13, 10), 1), (F(5, 4), F(3, 2)), (3, 3), (1, 2)]


@pytest.mark.parametrize("factors", FACTORS)
def test_equals_another_simulation(factors):
    """Random steps, plans that are held back, and plans with chunks."""
    rng = random.Random(str(factors))
    for _ in range(120):
        problem = random_problem(rng, 5)
        make = random_valid_chunk_plan if rng.random() < 0.3 else random_valid_plan
        timeline = same(problem, make(rng, problem), *factors)
        assert timeline.makespan_ns >= timeline.nominal.makespan_ns


@pytest.mark.parametrize("seed", range(4))
def test_factor_1_is_the_evaluator(seed):
    """Everything that a timeline says is the same."""
    rng = random.Random(seed)
    for _ in range(150):
        problem = random_problem(rng, 5)
        make = random_valid_chunk_plan if rng.random() < 0.3 else random_valid_plan
        plan = make(rng, problem)
        plain, slowed = evaluate(problem, plan), evaluate_slowed(problem, plan, 1)
        assert slowed.exact_makespan_ns == plain.makespan_ns == slowed.makespan_ns
        assert (slowed.compute_ns, slowed.exposed_ns) == (plain.compute_ns, plain.exposed_ns)
        assert slowed.launches == plain.launches
        assert slowed.tasks == plain.tasks
        assert slowed.ends_ns == plain.ends_ns
        assert slowed.peak_bytes == plain.peak_bytes
        assert slowed.slowed_ns == 0
        if problem.gradients is None:
            assert slowed.busy == plain.busy
            assert launch_exposures(slowed) == launch_exposures(plain)


def test_movable_tasks_run_where_the_plan_puts_them():
    """Orders of streams count here, too."""
    rng = random.Random(4)
    seen = 0
    while seen < 15:
        problem = random_movable_step(rng)
        plans = []
        for plan in all_plans(problem, "in-order"):
            try:
                evaluate(problem, plan)
            except InputError:
                continue
            if plan.orders:
                plans.append(plan)
        if plans:
            seen += 1
            same(problem, rng.choice(plans), F(3, 2), 1)


def test_by_hand():
    """A launch from 10 to 110; compute does 50 of its 90 until then, and the rest alone."""
    problem = GradientProblem([Gradient("a", 100, 10)], AlphaBeta(0, 1), backward_end_ns=100)
    plan = Plan.of([["a"]])
    slowed = evaluate_slowed(problem, plan, 2)
    assert (slowed.makespan_ns, slowed.exposed_ns, slowed.slowed_ns) == (150, 50, 50)
    assert (slowed.nominal.makespan_ns, slowed.nominal.exposed_ns) == (110, 10)
    # The launch is slowed, too: 90 / 2 of compute in 100 take until 110 ... both at half speed.
    both = evaluate_slowed(problem, plan, Slowdown(2, 2))
    # At 190 compute has ended and 90 of 100 bytes are sent.
    assert both.launches[0].end_ns == 200
    assert both.makespan_ns == 200


def test_two_channels_slow_compute_once():
    """Two launches at once slow compute no more than one."""
    tasks = [
        Collective("x", 60, group="x"),
        Collective("y", 40, group="y"),
        Compute("c", 100),
    ]
    costs = {(g, "allreduce"): AlphaBeta(0, 1) for g in "xy"}
    timeline = evaluate_slowed(Problem(tasks, costs), Plan.of([["x"], ["y"]]), 2)
    assert timeline.makespan_ns == 60 + 70
    assert timeline.busy == [(0, 130)]


def test_rounding_is_up_and_only_at_the_end():
    """Thirds of nanoseconds do not add up to more."""
    gradients = [Gradient(f"g{k}", 1, ready_ns=2 * k + 1) for k in range(6)]
    problem = GradientProblem(gradients, AlphaBeta(0, 1), backward_end_ns=20)
    plan = Plan.of([g.name] for g in gradients)
    timeline = evaluate_slowed(problem, plan, 1.5)
    # Each of 6 ns of launches costs a third: 2 in all.
    assert timeline.exact_makespan_ns == 22
    assert timeline.slowed_ns == 2
    assert timeline.launches[1].start_ns == math.ceil(3 + F(1, 3))


def test_warns_and_refuses_as_the_evaluator_does():
    """Extrapolation, plans that do not fit, plans that wait for ever."""
    curve = PiecewiseLinear([(0, 1), (10, 2)])
    problem = GradientProblem([Gradient("a", 100, 10)], curve)
    with pytest.warns(ExtrapolationWarning, match="was measured up to 10 B"):
        evaluate_slowed(problem, Plan.of([["a"]]), 2)
    with pytest.raises(PlanError, match="'b' is no collective"):
        evaluate_slowed(problem, Plan.of([["b"]]), 2)
    tasks = [
        Collective("x", 1),
        Compute("c", 5, after=("x",)),
        Collective("y", 1, after=("c",)),
    ]
    chain = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0, 1)})
    with pytest.raises(DeadlockError):
        evaluate_slowed(chain, Plan.of([["y"], ["x"]]), 2)
    held = Problem(
        [Collective("x", 1, hold=Hold("p"))],
        {("dp", "allreduce"): AlphaBeta(0, 1)},
        limits=[PoolBytes("p", 5)],
    )
    with pytest.raises(NotApplicableError, match="pool of memory"):
        evaluate_slowed(held, Plan.of([["x"]]), 2)
    with pytest.raises(NotApplicableError, match="pool of memory"):
        optimize_slowed(held, 2)


@pytest.mark.parametrize("value", [0.5, 0, -1, 1001, float("nan"), float("inf"), True, "2"])
def test_factors_out_of_range_are_refused(value):
    """Slower than stopped, faster than alone, and what is no number."""
    with pytest.raises(InputError, match="slowdown: compute"):
        slowdown_of(value)
    with pytest.raises(InputError, match="slowdown: launch"):
        Slowdown(1, value)


@PROPERTY
@given(problems_with_plans(), st.sampled_from(FACTORS))
def test_slower_is_never_better(both, factors):
    """Each launch and task ends no earlier with a larger factor."""
    problem, plan = both
    compute, launch = factors
    one = evaluate_slowed(problem, plan, Slowdown(compute, launch))
    more = evaluate_slowed(problem, plan, Slowdown(compute * 2, launch))
    plain = evaluate(problem, plan)
    assert plain.makespan_ns <= one.exact_makespan_ns
    assert all(plain.ends_ns[name] <= end for name, end in one.ends_ns.items())
    assert plain.compute_ns == one.compute_ns == more.compute_ns


@pytest.mark.parametrize("factors", FACTORS)
def test_exact_search_equals_brute_force(factors):
    """One channel, any curves, several fusion keys: every in-order plan."""
    rng = random.Random(f"exact {factors}")
    gained = 0
    for _ in range(100):
        problem = random_gradient_problem(rng, 5)
        slowdown = Slowdown(*factors)
        best = min(
            evaluate_slowed(problem, plan, slowdown).exact_makespan_ns
            for plan in all_plans(problem, "in-order")
        )
        result = optimize_slowed(problem, slowdown)
        assert result.method == "labels"
        if factors == (3, 3):
            # Overlap does not pay: a plan that waits can be better than all that do not.
            assert result.bound.ns <= result.makespan_ns <= math.ceil(best)
            continue
        assert result.timeline.exact_makespan_ns == best
        assert result.status == "optimal"
        assert result.bound.ns == result.makespan_ns == math.ceil(best)
        assert result.gap == 0
        assert result.ignorant.plan == optimize(problem).plan
        assert result.gain_ns >= 0
        gained += result.gain_ns > 0
    assert gained or factors not in ((2, 1), (F(13, 10), 1))


@pytest.mark.parametrize("factors", [(2, 1), (F(5, 4), F(3, 2)), (2, 2), (1, 7)])
def test_holding_back_gains_nothing_where_overlap_pays(factors):
    """No plan that holds launches back ends before the best one, nor before the bound."""
    rng = random.Random(f"held {factors}")
    for _ in range(60):
        problem = random_gradient_problem(rng, 3, curve=random_affine)
        best = optimize_slowed(problem, Slowdown(*factors)).timeline.exact_makespan_ns
        for plan in all_plans(problem, "in-order"):
            held = Plan(
                tuple(replace(b, not_before_ns=rng.choice((0, 5, 20, 40))) for b in plan.buckets)
            )
            assert best <= evaluate_slowed(problem, held, Slowdown(*factors)).exact_makespan_ns


def test_holding_back_helps_where_overlap_does_not_pay():
    """Both at a third of their speed: one after the other is better, and a rule knows that plan."""
    problem = GradientProblem([Gradient("a", 60, 10)], AlphaBeta(0, 1), backward_end_ns=100)
    assert evaluate_slowed(problem, Plan.of([["a"]]), Slowdown(3, 3)).makespan_ns > 160
    result = optimize_slowed(problem, Slowdown(3, 3))
    assert (result.makespan_ns, result.bound.ns, str(result.status)) == (160, 160, "optimal")


def test_settled_steps_with_several_streams_are_exact():
    """All streams are slowed together, so their work is one clock."""
    rng = random.Random(11)
    seen = 0
    while seen < 25:
        problem = random_step(rng, 4, settled=True, curve=random_affine)
        if len(set(problem.channels.values())) > 1:
            continue
        seen += 1
        best = min(
            evaluate_slowed(problem, plan, 2).exact_makespan_ns
            for plan in all_plans(problem, "in-order")
        )
        assert optimize_slowed(problem, 2).timeline.exact_makespan_ns == best


def test_steps_where_tasks_wait_are_searched():
    """The plan is no worse than the ignorant one, and the bound holds for every plan."""
    rng = random.Random(6)
    seen = 0
    while seen < 10:
        problem = random_step(rng, 3)
        if problem.settled:
            continue
        seen += 1
        result = optimize_slowed(problem, 1.5, time_limit_s=5)
        assert result.method == "steps"
        assert result.gain_ns >= 0
        least = None
        for plan in all_plans(problem, "in-order"):
            try:
                ns = evaluate_slowed(problem, plan, 1.5).exact_makespan_ns
            except DeadlockError:
                continue
            least = ns if least is None else min(least, ns)
        assert result.bound.ns <= math.ceil(least) <= result.makespan_ns
        if result.status == "optimal":
            assert result.makespan_ns == math.ceil(least)


def larger(count, bandwidth=40):
    """Return a step with many gradients."""
    rng = random.Random(count)
    return GradientProblem(
        [
            Gradient(f"g{k}", rng.choice((4096, 2**16, 2**20, 2**22)), k * 20_000_000 // count)
            for k in range(count)
        ],
        AlphaBeta(30, bandwidth),
    )


def test_larger_steps_are_proved():
    """Sixty gradients; planning for the slowdown is worth something here."""
    result = optimize_slowed(larger(60, 20), 2)
    assert result.status == "optimal"
    assert result.gain_ns > 0
    assert result.timeline.exposed_ns > result.timeline.nominal.exposed_ns


def test_a_search_that_is_cut_short_keeps_a_bound(monkeypatch):
    """The bound is the load of the channel, and no plan is below it."""
    problem = larger(40, 20)
    proved = optimize_slowed(problem, 1.3)
    monkeypatch.setattr(slowed_chain, "MAX_STEPS", 1_000)
    short = optimize_slowed(problem, 1.3)
    assert short.bound.ns <= proved.makespan_ns <= short.makespan_ns
    assert short.status == "feasible"
    assert "too long to be finished" in short.reason
    assert short.gap < 0.05


@pytest.mark.parametrize("factors", FACTORS)
def test_the_load_bound_is_below_every_plan(factors, monkeypatch):
    """Also where it is all that is proved."""
    rng = random.Random(f"bound {factors}")
    monkeypatch.setattr(slowed_chain, "MAX_STEPS", 0)
    monkeypatch.setattr(module, "MAX_TRIED", 1)
    for _ in range(60):
        problem = random_gradient_problem(rng, 5)
        slowdown = Slowdown(*factors)
        best = min(
            evaluate_slowed(problem, plan, slowdown).exact_makespan_ns
            for plan in all_plans(problem, "in-order")
        )
        result = optimize_slowed(problem, slowdown)
        assert result.bound.ns <= math.ceil(best) <= result.makespan_ns


def test_limits_are_kept():
    """A plan that breaks one does not count, and nothing is proved that is not."""
    problem = larger(12).with_limits([MostBucketBytes(5 * 2**20)])
    result = optimize_slowed(problem, 2)
    assert not result.timeline.broken
    assert result.method == "steps"
    assert result.bound.ns <= result.makespan_ns


def test_optimize_slowed_refuses():
    """Time limits and results of another scope."""
    problem = larger(5)
    with pytest.raises(InputError, match="time_limit_s: 0 must be above 0"):
        optimize_slowed(problem, 2, time_limit_s=0)
    with pytest.raises(InputError, match="must be of scope in-order"):
        optimize_slowed(problem, 2, nominal=optimize(problem, scope="any"))
    with pytest.raises(InputError, match="slowdown: compute"):
        optimize_slowed(problem, 0.9)


def test_fit_gets_back_what_was_played():
    """Tasks that the evaluator slowed, fitted."""
    rng = random.Random(2)
    for factor in (F(1), F(13, 10), F(5, 2)):
        timed = []
        for k in range(20):
            alone = 20 * rng.randint(1, 50)
            share = rng.choice((0, alone // 2, alone))
            overlapped = share * factor
            took = alone - share + overlapped
            assert took.denominator == overlapped.denominator == 1
            timed.append(TimedTwice(f"t{k}", alone, int(took), int(overlapped)))
        fit = fit_slowdown(timed)
        assert fit.factor == fit.low == fit.high == factor
        assert fit.slowdown == Slowdown(factor)
        assert fit.tasks == sum(task.overlapped_ns > 0 for task in timed)
        assert fit.faster == 0


def test_fit_says_how_far_tasks_differ():
    """Quartiles by time; tasks that were faster count as noise, and the factor is at least 1."""
    fit = fit_slowdown(
        [
            TimedTwice("a", 100, 110, 110),
            TimedTwice("b", 100, 200, 200),
            TimedTwice("c", 100, 100, 0),
        ]
    )
    assert (fit.factor, fit.low, fit.high, fit.tasks) == (F(310, 200), F(11, 10), 2, 2)
    noise = fit_slowdown([TimedTwice("a", 100, 90, 90)])
    assert (noise.factor, noise.faster) == (1, 1)
    stuck = fit_slowdown([TimedTwice("a", 100, 300, 180), TimedTwice("b", 100, 120, 120)])
    assert stuck.high is None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TimedTwice("a", 10, 20, 21), "overlapped_ns 21 exceeds its length 20"),
        (TimedTwice("a", -1, 20, 1), "alone_ns: -1 must be at least 0"),
        (TimedTwice("a", 10, 1.5, 1), "took_ns: 1.5 must be a whole number"),
        (TimedTwice("a", 10, 20, True), "overlapped_ns: True is a boolean"),
        (TimedTwice("a", 10, 20, 0), "no task overlapped"),
        (TimedTwice("a", 0, 5000, 5000), "next to nothing done"),
    ],
)
def test_fit_refuses(task, message):
    """What is no time, and what nothing can be fitted to."""
    with pytest.raises(InputError, match=message):
        fit_slowdown([task])


def test_results_are_plain_enough_to_print():
    """Reprs are short: no plan or problem in them."""
    assert len(json.dumps(repr(optimize_slowed(larger(30), 1.2)))) < 500

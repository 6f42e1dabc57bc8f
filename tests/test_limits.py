"""Limits, memory and movable compute: the evaluator against the second one, and each limit."""

from __future__ import annotations

import random

import pytest
from oracles import Stuck, simulate
from strategies import random_chunk_plan, random_plan, random_step, random_valid_plan

from commsched.models import (
    Alike,
    AlphaBeta,
    Apart,
    BytesInFlight,
    Collective,
    Compute,
    CycleError,
    DeadlockError,
    Gradient,
    GradientProblem,
    Hold,
    InputError,
    LaunchesInFlight,
    LeastBucketBytes,
    MostBucketBytes,
    MostLaunches,
    Plan,
    PlanError,
    PoolBytes,
    Problem,
    Together,
    evaluate,
)
from commsched.models.limits import peak_of
from commsched.models.timeline import play

UNIT = AlphaBeta(0.002, 1)
"""Two nanoseconds and one for each byte."""


def gathered(limit: int | None = None, layers: int = 4) -> Problem:
    """Return layers that need their parameters gathered: 10 bytes each, 20 ns of compute each."""
    tasks: list[Compute | Collective] = []
    for k in range(layers):
        hold = Hold("gathered", "start", (f"f{k}",))
        tasks.append(Collective(f"g{k}", 10, "all_gather", hold=hold))
        tasks.append(Compute(f"f{k}", 20, after=(f"g{k}",)))
    limits = () if limit is None else (PoolBytes("gathered", limit),)
    return Problem(tasks, {("dp", "all_gather"): UNIT}, limits=limits)


def each(problem: Problem) -> Plan:
    return Plan.of([name] for name in problem.names)


def test_a_launch_waits_until_its_bytes_fit():
    """With room for one layer nothing overlaps; with room for two only the first is exposed."""
    assert evaluate(gathered(), each(gathered())).makespan_ns == 12 + 4 * 20
    for limit, makespan, peak in ((10, 4 * (12 + 20), 10), (20, 12 + 4 * 20, 20), (39, 92, 30)):
        timeline = evaluate(gathered(limit), each(gathered()))
        assert (timeline.makespan_ns, timeline.pool_peak("gathered")) == (makespan, peak)
        assert timeline.broken == ()


def test_memory_that_is_never_free_is_a_deadlock_that_says_so():
    with pytest.raises(DeadlockError, match="'g0' waits for memory for ever: it takes 10 bytes"):
        evaluate(gathered(9), each(gathered()))
    with pytest.raises(DeadlockError, match="takes 40 bytes of gathered, of which 0 are held"):
        evaluate(gathered(39), Plan.of([gathered().names]))


def test_memory_is_given_out_in_the_order_of_the_plan():
    """Two channels, one pool: who comes first in the plan starts first, ready or not."""
    tasks = [
        Compute("slow", 50),
        Collective("late", 10, "all_gather", "a", after=("slow",), hold=Hold("pool")),
        Collective("early", 10, "all_gather", "b", hold=Hold("pool")),
    ]
    costs = {("a", "all_gather"): UNIT, ("b", "all_gather"): UNIT}
    problem = Problem(tasks, costs, limits=[PoolBytes("pool", 10)])
    assert evaluate(problem, Plan.of([["late"], ["early"]])).makespan_ns == 50 + 12 + 12
    assert evaluate(problem, Plan.of([["early"], ["late"]])).makespan_ns == 50 + 12


def test_what_is_held_since_ready_cannot_be_put_off_and_breaks_the_limit():
    tasks = [
        Compute("b1", 1),
        Collective("r1", 10, "reduce_scatter", after=("b1",), hold=Hold("grads", "ready")),
        Compute("b0", 1),
        Collective("r0", 10, "reduce_scatter", after=("b0",), hold=Hold("grads", "ready")),
    ]
    problem = Problem(tasks, {("dp", "reduce_scatter"): UNIT}, limits=[PoolBytes("grads", 19)])
    timeline = evaluate(problem, each(problem))
    assert timeline.pool_peak("grads") == 20
    assert timeline.broken == (
        "pool-bytes grads: 20 B of grads are alive at once, 19 bytes may be",
    )


def memory_step(rng: random.Random) -> Problem:
    """Return a random step whose collectives hold memory of two pools, some of it limited."""
    step = random_step(rng, 5)
    names = [task.name for task in step.tasks]
    tasks: list[Compute | Collective] = []
    for task in step.tasks:
        if isinstance(task, Collective) and rng.random() < 0.8:
            until = tuple(rng.sample(names, min(len(names), rng.choice((0, 0, 1, 2)))))
            hold = Hold(rng.choice("pq"), rng.choice(("start", "start", "ready")), until)
            task = Collective(
                task.name, task.bytes, task.kind, task.group, task.dtype, task.after, hold=hold
            )
        if isinstance(task, Compute):
            movable = rng.random() < 0.4
            task = Compute(task.name, task.duration_ns, task.stream, task.after, movable)
        tasks.append(task)
    pools = {task.hold.pool for task in tasks if isinstance(task, Collective) and task.hold}
    limits = [PoolBytes(pool, rng.randint(8, 30)) for pool in sorted(pools) if rng.random() < 0.8]
    return Problem(tasks, step.costs, channels=step.groups_of_channel, limits=limits)


def random_orders(rng: random.Random, problem: Problem) -> dict[str, tuple[str, ...]]:
    """Return orders in which movable tasks are somewhere else."""
    orders: dict[str, tuple[str, ...]] = {}
    for stream in {task.stream for task in problem.tasks if isinstance(task, Compute)}:
        mine = [t for t in problem.tasks if isinstance(t, Compute) and t.stream == stream]
        names = [task.name for task in mine if not task.movable]
        for task in mine:
            if task.movable:
                names.insert(rng.randint(0, len(names)), task.name)
        orders[stream] = tuple(names)
    return orders


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("chunks", [False, True])
def test_equals_the_second_evaluator_under_memory_limits(moved, chunks):
    """Times, deadlocks and the peak of each pool, on random steps, plans and orders."""
    ran = stuck = 0
    for seed in range(700):
        rng = random.Random(seed)
        problem = memory_step(rng)
        plan = (random_chunk_plan if chunks else random_plan)(rng, problem)
        if rng.random() < 0.5 and not chunks:
            plan = random_valid_plan(rng, Problem(problem.tasks, problem.costs))
        if moved:
            plan = Plan(plan.buckets, random_orders(rng, problem))
        try:
            timeline = play(problem, plan)
        except DeadlockError:
            with pytest.raises(Stuck):
                simulate(problem, plan)
            stuck += 1
            continue
        except CycleError:  # the order contradicts the dependencies
            continue
        played = simulate(problem, plan)
        assert timeline.makespan_ns == played.makespan, seed
        assert timeline.exposed_ns == played.exposed, seed
        launches = sorted((n.names, n.ready_ns, n.start_ns, n.end_ns) for n in timeline.launches)
        assert launches == sorted(played.launches), seed
        spans = {span.name: (span.start_ns, span.end_ns) for span in timeline.tasks}
        assert spans == played.spans, seed
        for pool, limit in problem.limited_pools.items():
            if all(
                t.hold.since == "start"
                for t in problem.collectives
                if t.hold and t.hold.pool == pool
            ):
                assert timeline.pool_peak(pool) <= limit
        ran += 1
    assert ran > 150
    assert stuck > 20


def gradients(*limits) -> GradientProblem:
    given = [
        Gradient(name, size, ready)
        for name, size, ready in zip("dcba", (4, 3, 2, 1), (1, 2, 3, 4), strict=True)
    ]
    return GradientProblem(given, UNIT, limits=limits)


@pytest.mark.parametrize(
    ("limit", "good", "bad", "text"),
    [
        (MostBucketBytes(5), ["d", "c", "ba"], ["dc", "b", "a"], "the bucket of 'd' has 7 bytes"),
        (LeastBucketBytes(3), ["d", "cba"], ["dcb", "a"], "the bucket of 'a' has 1 bytes"),
        (MostLaunches(2), ["dc", "ba"], ["d", "c", "ba"], "3 launches, at most 2"),
        (LaunchesInFlight(2), ["dc", "ba"], ["d", "c", "b", "a"], "4 launches are in flight"),
        (Together(("d", "b")), ["dcb", "a"], ["dc", "ba"], "'b' is not in the bucket of 'd'"),
        (Apart(("d", "a")), ["dc", "ba"], ["dcba"], "'d' and 'a' share a bucket"),
        (Alike((("d", "c"), ("b", "a"))), ["dc", "ba"], ["d", "c", "ba"], "grouped differently"),
    ],
    ids=lambda value: value.label.split(" ", maxsplit=1)[0] if hasattr(value, "label") else None,
)
def test_each_limit_says_when_it_is_broken(limit, good, bad, text):
    problem = gradients(limit)
    assert evaluate(problem, Plan.of(map(list, good))).broken == ()
    (broken,) = evaluate(problem, Plan.of(map(list, bad))).broken
    assert broken.startswith(f"{limit.label}: ")
    assert text in broken


def test_bytes_in_flight_are_those_that_are_ready_and_not_sent():
    """d runs from 1 to 7; c, b and a become ready at 2, 3 and 4."""
    for most, holds in ((10, True), (9, False)):
        timeline = evaluate(gradients(BytesInFlight(most)), Plan.of(map(list, "dcba")))
        assert (timeline.broken == ()) == holds


def test_peaks_of_what_is_held():
    assert peak_of([]) == 0
    assert peak_of([(0, 5, 3), (5, 9, 4)]) == 4
    assert peak_of([(3, 3, 100)]) == 0


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ([MostLaunches(1), MostLaunches(2)], "limit most-launches: is given twice"),
        ([PoolBytes("gathered", 1)], "no collective holds memory of this pool"),
        ([Together(("d", "x"))], "'x' is no collective"),
        ([Alike((("d",), ("x",)))], "'x' is no collective"),
    ],
)
def test_limits_that_do_not_fit_the_problem_are_refused(limits, text):
    with pytest.raises(InputError, match=text):
        gradients(*limits)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MostLaunches(0), "must be a whole number from 1"),
        (lambda: MostLaunches(True), "must be a whole number from 1"),
        (lambda: MostBucketBytes(-1), "most-bucket-bytes: bytes"),
        (lambda: PoolBytes("", 1), "must have a name"),
        (lambda: Together(("a",)), "needs at least 2 names"),
        (lambda: Together("ab"), "must be a list of names"),
        (lambda: Apart(("a", "a")), "listed twice"),
        (lambda: Alike((("a",),)), "at least two rows of equal length"),
        (lambda: Alike((("a",), ("b", "c"))), "at least two rows of equal length"),
        (lambda: Alike((("a",), ("a",))), "occurs in two rows"),
        (lambda: Hold(""), "hold: pool"),
        (lambda: Hold("p", "end"), "neither 'start' nor 'ready'"),
    ],
)
def test_limits_and_holds_check_their_values(make, text):
    with pytest.raises(InputError, match=text):
        make()


def filler() -> Problem:
    """Return a stream on which a filler of 30 ns can run while the all-to-all is on its way."""
    return Problem(
        [
            Compute("first", 10),
            Collective("dispatch", 20, "all_to_all", after=("first",)),
            Compute("experts", 40, after=("dispatch",)),
            Compute("filler", 30, movable=True),
        ],
        {("dp", "all_to_all"): UNIT},
    )


def test_a_plan_may_move_a_filler_into_the_gap():
    problem, buckets = filler(), Plan.of([["dispatch"]]).buckets
    assert evaluate(problem, Plan(buckets)).makespan_ns == 10 + 22 + 40 + 30
    moved = Plan(buckets, {"gpu": ("first", "filler", "experts")})
    timeline = evaluate(problem, moved)
    assert (timeline.makespan_ns, timeline.exposed_ns) == (10 + 30 + 40, 0)
    assert [span.name for span in timeline.tasks] == ["first", "filler", "experts"]


@pytest.mark.parametrize(
    ("orders", "text"),
    [
        ({"cpu": ("first",)}, "no stream 'cpu'"),
        ({"gpu": ("first", "experts")}, "a task is missing"),
        ({"gpu": ("first", "filler", "experts", "x")}, "'x' does not belong there"),
        ({"gpu": ("experts", "first", "filler")}, "changes its place that is not movable"),
    ],
)
def test_orders_that_do_not_fit_are_refused(orders, text):
    with pytest.raises(PlanError, match=text):
        evaluate(filler(), Plan(Plan.of([["dispatch"]]).buckets, orders))

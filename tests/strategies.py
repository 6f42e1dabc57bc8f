"""Small random steps, cost curves and plans, from a seed or from hypothesis.

Every ``random_*`` function takes a ``random.Random``; the hypothesis strategies of the same
subject hand the same functions a ``Random`` whose choices hypothesis makes, records and shrinks.
Numbers are small integers, so that ties, equal ready times and zeros are common.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from oracles import Scope, Stuck, fusion, ready_order, simulate

from commsched.models import (
    Alike,
    AlphaBeta,
    Apart,
    Bucket,
    BusBandwidth,
    BytesInFlight,
    Chunk,
    Collective,
    Compute,
    CostCurve,
    Gradient,
    GradientProblem,
    Hold,
    Kind,
    LaunchesInFlight,
    LeastBucketBytes,
    Limit,
    MostBucketBytes,
    MostLaunches,
    PiecewiseLinear,
    Plan,
    PoolBytes,
    Problem,
    StepTable,
    Task,
    Together,
)

PROPERTY = settings(deadline=None, derandomize=True, database=None, max_examples=150)
"""Decorates property tests: the same examples on every machine, and no clock."""

# One GB/s is one byte a nanosecond and 0.001 us is one nanosecond.
ALPHAS_US = (0, 0.001, 0.003, 0.01, 0.0005, 0.0125)
BANDWIDTHS_GB_S = (1, 2, 0.5, 3, 0.3, 53.6870912)
EXOTIC_ALPHAS_US = (*ALPHAS_US, Fraction(1, 300), Decimal("0.0075"))
EXOTIC_BANDWIDTHS_GB_S = (*BANDWIDTHS_GB_S, Fraction(7, 3), Decimal("1.1"))
KINDS: tuple[Kind, ...] = ("allreduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def random_affine(rng: random.Random, *, exotic: bool = True) -> AlphaBeta:
    """Return a start-up latency (often 0 or a fraction of a ns) and a bandwidth.

    ``exotic`` allows Fraction and Decimal, which a problem file cannot hold.
    """
    return AlphaBeta(
        rng.choice(EXOTIC_ALPHAS_US if exotic else ALPHAS_US),
        rng.choice(EXOTIC_BANDWIDTHS_GB_S if exotic else BANDWIDTHS_GB_S),
    )


def random_bus_bandwidth(rng: random.Random, kind: Kind = "allreduce") -> BusBandwidth:
    """Return a curve given by bus bandwidth."""
    return BusBandwidth(rng.choice(ALPHAS_US), rng.choice(BANDWIDTHS_GB_S), rng.randint(2, 5), kind)


def random_rows(rng: random.Random, least: int, reach: int) -> list[tuple[int, float]]:
    """Return rows (bytes, us) in any order; times never fall, the last size is >= reach."""
    sizes = set(rng.sample(range(20), rng.randint(least - 1, least + 2)))
    sizes.add(max(reach, 20 + rng.randint(0, 5)))
    ns, rows = 0.0, []
    for size in sorted(sizes):
        ns += rng.choice((0, 1, 2, 0.5, 10))
        rows.append((size, ns / 1000))
    rng.shuffle(rows)
    return rows


def random_piecewise(rng: random.Random, reach: int = 0) -> PiecewiseLinear:
    """Return straight lines through two to four points, measured to ``reach`` bytes at least."""
    return PiecewiseLinear(random_rows(rng, 2, reach))


def random_table(rng: random.Random, reach: int = 0) -> StepTable:
    """Return a table of one to three rows, measured to ``reach`` bytes at least."""
    return StepTable(random_rows(rng, 1, reach))


def random_curve(
    rng: random.Random, kind: Kind = "allreduce", total: int = 0, *, exotic: bool = True
) -> CostCurve:
    """Return any cost curve that prices up to ``total`` bytes without an extrapolation warning."""
    make: Callable[[], CostCurve] = rng.choice(
        (
            lambda: random_affine(rng, exotic=exotic),
            lambda: random_bus_bandwidth(rng, kind),
            lambda: random_piecewise(rng, (total + 1) // 2),
            lambda: random_table(rng, (total + 1) // 2),
        )
    )
    return make()


def random_gradients(
    rng: random.Random, most: int = 6, *, dtypes: Sequence[str] = ("float32", "float16")
) -> list[Gradient]:
    """Return 1 to ``most`` gradients with ties, zero bytes and ready times in no order."""
    used = dtypes[: rng.randint(1, len(dtypes))]
    late = rng.choice((0, 3, 12, 40))
    return [
        Gradient(
            f"g{k}",
            rng.choice((0, 1, 2, 3, 5, 8, 12)),
            rng.randint(0, late),
            rng.choice(used),
            sparse=len(dtypes) > 1 and rng.random() < 0.05,
        )
        for k in range(rng.randint(1, most))
    ]


def random_gradient_problem(
    rng: random.Random,
    most: int = 6,
    *,
    dtypes: Sequence[str] = ("float32", "float16"),
    curve: Callable[[random.Random], CostCurve] | None = None,
    exotic: bool = True,
) -> GradientProblem:
    """Return a gradient problem; backward sometimes goes on after the last gradient.

    ``curve`` restricts the cost, for example to ``random_affine``.
    """
    gradients = random_gradients(rng, most, dtypes=dtypes)
    total = sum(gradient.bytes for gradient in gradients)
    cost = curve(rng) if curve else random_curve(rng, "allreduce", total, exotic=exotic)
    end = max(gradient.ready_ns for gradient in gradients) + rng.choice((0, 0, 1, 10))
    return GradientProblem(gradients, cost, name="random", backward_end_ns=end)


def random_step(
    rng: random.Random,
    most: int = 5,
    *,
    settled: bool = False,
    curve: Callable[[random.Random], CostCurve] | None = None,
    exotic: bool = True,
    kinds: Sequence[Kind] = KINDS,
) -> Problem:
    """Return a step: 1-2 streams, 1-3 groups on 1-3 channels, 1 to ``most`` collectives.

    Compute may wait for collectives (a next forward) and collectives for collectives, unless
    ``settled``. Collectives may be listed before what they wait for.
    """
    streams = ("gpu", "aux")[: rng.randint(1, 2)]
    groups = ("dp", "tp", "ep")[: rng.choice((1, 1, 2, 3))]
    kinds = rng.sample(kinds, rng.randint(1, min(2, len(kinds))))
    dtypes = ("float32", "bfloat16")[: rng.randint(1, 2)]
    collectives = rng.randint(1, most)
    kinds_of_task = ["collective"] * collectives + ["compute"] * rng.randint(0, most + 2)
    rng.shuffle(kinds_of_task)
    made: list[Task] = []
    for number, what in enumerate(kinds_of_task):
        allowed = [t.name for t in made if not (settled and isinstance(t, Collective))]
        after = tuple(rng.sample(allowed, min(len(allowed), rng.choice((0, 1, 1, 2, 3)))))
        if what == "compute":
            duration = rng.choice((0, 0, 1, 2, 3, 5, 8, 20))
            made.append(Compute(f"c{number}", duration, rng.choice(streams), after))
        else:
            size = rng.choice((0, 1, 2, 3, 5, 8, 12))
            key: tuple[Any, str, str] = (rng.choice(kinds), rng.choice(groups), rng.choice(dtypes))
            device, sparse = rng.choice(("", "", "", "cuda:1")), rng.random() < 0.1
            made.append(Collective(f"a{number}", size, *key, after, device, sparse))
    listed: list[Task] = [task for task in made if isinstance(task, Compute)]
    for task in made:
        if isinstance(task, Collective):
            listed.insert(rng.randint(0, len(listed)), task)
    total = sum(task.bytes for task in made if isinstance(task, Collective))
    used = sorted({(t.group, t.kind) for t in made if isinstance(t, Collective)})
    costs = {
        (group, kind): curve(rng) if curve else random_curve(rng, kind, total, exotic=exotic)
        for group, kind in used
    }
    return Problem(listed, costs, channels=_random_channels(rng, used), name="random step")


def _random_channels(
    rng: random.Random, used: Sequence[tuple[str, Kind]]
) -> dict[str, list[str]] | None:
    """Return None (a channel for each group) or a map in which groups may share a channel."""
    if rng.random() < 0.4:
        return None
    channels: dict[str, list[str]] = {}
    for group in sorted({group for group, _ in used}):
        channels.setdefault(rng.choice(("nic0", "nic1")), []).append(group)
    return channels


def random_limits(rng: random.Random, problem: Problem) -> list[Limit]:
    """Return one to three limits, which may contradict each other or the problem."""
    names, total = problem.names, max(1, sum(problem.bytes))
    makers: list[Callable[[], Limit]] = [
        lambda: MostBucketBytes(rng.randint(1, total)),
        lambda: LeastBucketBytes(rng.randint(0, total // 2)),
        lambda: MostLaunches(rng.randint(1, len(names))),
        lambda: BytesInFlight(rng.randint(1, total)),
        lambda: LaunchesInFlight(rng.randint(1, len(names))),
    ]
    if len(names) > 1:
        makers += [
            lambda: Together(tuple(rng.sample(names, 2))),
            lambda: Apart(tuple(rng.sample(names, 2))),
        ]
    if len(names) > 3:
        a, b, c, d = rng.sample(names, 4)
        makers.append(lambda: Alike(((a, b), (c, d))))
    return [make() for make in rng.sample(makers, rng.choice((1, 1, 2, 3)))]


def random_memory_step(rng: random.Random, most: int = 5) -> Problem:
    """Return a step whose collectives hold memory of a limited pool."""
    step = random_step(rng, most)
    names = [task.name for task in step.tasks]
    tasks: list[Task] = []
    for task in step.tasks:
        if isinstance(task, Collective) and rng.random() < 0.8:
            until = tuple(rng.sample(names, min(len(names), rng.choice((0, 0, 1, 2)))))
            task = replace(task, hold=Hold("pool", rng.choice(("start", "start", "ready")), until))
        tasks.append(task)
    holds = any(isinstance(task, Collective) and task.hold for task in tasks)
    limits = [PoolBytes("pool", rng.randint(8, 40))] if holds else []
    return Problem(tasks, step.costs, channels=step.groups_of_channel, limits=limits)


def random_movable_step(rng: random.Random, most: int = 3) -> Problem:
    """Return a step with few compute tasks, some of which may run elsewhere on their stream."""
    while True:
        step = random_step(rng, most)
        tasks = [
            replace(task, movable=rng.random() < 0.4) if isinstance(task, Compute) else task
            for task in step.tasks
        ]
        if sum(isinstance(task, Compute) for task in tasks) <= 5:
            return Problem(tasks, step.costs, channels=step.groups_of_channel)


def random_problem(rng: random.Random, most: int = 5) -> Problem:
    """Return a gradient problem or a step."""
    return rng.choice((random_gradient_problem, random_step))(rng, most)


def random_plan(rng: random.Random, problem: Problem, scope: Scope = "any") -> Plan:
    """Return a plan of a scope; in a general step it may deadlock.

    Some of its launches are held back by ``not_before_ns``.
    """
    chains: dict[tuple[str, ...], list[str]] = {}
    task_of = {task.name: task for task in problem.collectives}
    for name in ready_order(problem):
        task = task_of[name]
        chains.setdefault(fusion(task), []).append(name)
    fuse = rng.choice((0.0, 0.3, 0.5, 0.8, 1.0))
    queues: list[list[list[str]]] = []
    for names in chains.values():
        buckets: list[list[str]] = []
        for name in names:
            if not buckets or rng.random() >= fuse:
                buckets.append([name])
            else:
                index = -1 if scope == "in-order" else rng.randrange(len(buckets))
                buckets[index].append(name)
        queues.append(buckets)
    if scope == "in-order":
        order = [buckets.pop(0) for buckets in _random_turns(rng, queues)]
    else:
        order = [names for buckets in queues for names in buckets]
        rng.shuffle(order)
        for names in order:
            rng.shuffle(names)
    held = rng.choice((0.0, 0.0, 0.3))
    return Plan(
        tuple(
            Bucket(tuple(names), rng.randint(0, 50) if rng.random() < held else 0)
            for names in order
        )
    )


def _random_turns(rng: random.Random, queues: Sequence[list[list[str]]]) -> list[list[list[str]]]:
    turns = [queue for queue in queues for _ in queue]
    rng.shuffle(turns)
    return turns


def one_by_one(problem: Problem) -> Plan:
    """Return a plan without fusion in an order in which nothing can deadlock.

    It is found by placing tasks one after the other, and need not be the ready order.
    """
    placed: set[str] = set()
    order: list[str] = []
    left = list(problem.tasks)
    while left:
        for task in left:
            stream_mates = [
                other.name
                for other in problem.tasks[: problem.tasks.index(task)]
                if isinstance(task, Compute)
                and isinstance(other, Compute)
                and other.stream == task.stream
            ]
            if placed.issuperset(task.after) and placed.issuperset(stream_mates):
                placed.add(task.name)
                left.remove(task)
                if isinstance(task, Collective):
                    order.append(task.name)
                break
        else:
            raise AssertionError("the problem has a cycle")
    return Plan.of([name] for name in order)


def random_valid_plan(rng: random.Random, problem: Problem, scope: Scope = "any") -> Plan:
    """Return a random plan that does not deadlock; one launch a collective where luck fails."""
    for _ in range(10):
        plan = random_plan(rng, problem, scope)
        try:
            simulate(problem, plan)
        except Stuck:
            continue
        return plan
    return one_by_one(problem)


def random_parts(rng: random.Random, name: str, size: int) -> list[tuple[str, Chunk | None]]:
    """Return a collective whole, as one chunk that is all of it, or in up to four chunks."""
    inner = range(1, size)
    cuts = sorted(rng.sample(inner, min(len(inner), rng.choice((0, 0, 1, 2, 3)))))
    if not cuts and rng.random() < 0.6:
        return [(name, None)]
    return [(name, Chunk(*ends)) for ends in pairwise([0, *cuts, size])]


def random_chunk_plan(rng: random.Random, problem: Problem) -> Plan:
    """Return a plan that may split collectives into chunks; in a general step it may deadlock.

    Any parts of one fusion key may share a bucket, also several chunks of one collective.
    """
    fuse = rng.choice((0.0, 0.3, 0.6, 0.9))
    queues: dict[tuple[str, ...], list[list[tuple[str, Chunk | None]]]] = {}
    for task in problem.collectives:
        buckets = queues.setdefault(fusion(task), [])
        for part in random_parts(rng, task.name, task.bytes):
            if buckets and rng.random() < fuse:
                rng.choice(buckets).append(part)
            else:
                buckets.append([part])
    order = [bucket for buckets in queues.values() for bucket in buckets]
    rng.shuffle(order)
    return _of_parts(rng, order)


def _of_parts(rng: random.Random, order: Sequence[list[tuple[str, Chunk | None]]]) -> Plan:
    held = rng.choice((0.0, 0.0, 0.3))
    made = []
    for parts in order:
        rng.shuffle(parts)
        names, chunks = zip(*parts, strict=True)
        made.append(Bucket(names, rng.randint(0, 50) if rng.random() < held else 0, chunks))
    return Plan(tuple(made))


def random_valid_chunk_plan(rng: random.Random, problem: Problem) -> Plan:
    """Return a random plan with chunks that does not deadlock."""
    for _ in range(10):
        plan = random_chunk_plan(rng, problem)
        try:
            simulate(problem, plan)
        except Stuck:
            continue
        return plan
    size = dict(zip(problem.names, problem.bytes, strict=True))
    names = [bucket.names[0] for bucket in one_by_one(problem).buckets]
    return _of_parts(rng, [[p] for name in names for p in random_parts(rng, name, size[name])])


def _randoms() -> st.SearchStrategy[random.Random]:
    return st.randoms(use_true_random=False)


def curves(total: int = 0) -> st.SearchStrategy[CostCurve]:
    """Any cost curve (of an all-reduce)."""
    return _randoms().map(lambda rng: random_curve(rng, "allreduce", total))


def affine_curves() -> st.SearchStrategy[AlphaBeta]:
    """Latency plus bytes over bandwidth, zero and fractional latencies included."""
    return _randoms().map(random_affine)


def gradient_problems(most: int = 6, **kwargs: Any) -> st.SearchStrategy[GradientProblem]:
    """Gradient problems, see :func:`random_gradient_problem`."""
    return _randoms().map(lambda rng: random_gradient_problem(rng, most, **kwargs))


def steps(most: int = 5, **kwargs: Any) -> st.SearchStrategy[Problem]:
    """General steps, see :func:`random_step`."""
    return _randoms().map(lambda rng: random_step(rng, most, **kwargs))


def problems(most: int = 5) -> st.SearchStrategy[Problem]:
    """Gradient problems and general steps."""
    return st.one_of(gradient_problems(most), steps(most))


@st.composite
def problems_with_plans(
    draw: st.DrawFn, most: int = 5, *, valid: bool = True
) -> tuple[Problem, Plan]:
    """A problem and a plan of any scope for it; without ``valid`` the plan may deadlock."""
    problem = draw(problems(most))
    scope: Scope = draw(st.sampled_from(("in-order", "any")))
    make = random_valid_plan if valid else random_plan
    return problem, make(draw(_randoms()), problem, scope)

"""Oracles: a second evaluator and plain enumeration, written to share nothing with the package.

:func:`simulate` plays a step with a clock: at every event it starts whatever may start. It knows
no graph library, sorts nothing and prices launches by its own arithmetic, so that an error in
``commsched.models.evaluate`` and the same error here would be two mistakes. Slow on purpose.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

from commsched.models import (
    AlphaBeta,
    Bucket,
    BusBandwidth,
    Collective,
    Compute,
    CostCurve,
    PiecewiseLinear,
    Plan,
    PoolBytes,
    Problem,
    StepTable,
)

Scope = Literal["in-order", "fifo", "any"]

# What a rank of a ring sends for each byte of the operation (nccl-tests, doc/PERFORMANCE.md).
_WIRE = {
    "allreduce": lambda n: 2 * Fraction(n - 1, n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "all_gather": lambda n: Fraction(n - 1, n),
    "all_to_all": lambda n: Fraction(n - 1, n),
    "broadcast": lambda n: Fraction(1),
    "send_recv": lambda n: Fraction(1),
}


class Stuck(Exception):  # noqa: N818 - a state of the simulation, not an error of the tests
    """Nothing runs, nothing may start, and work is left."""


class PlayedLaunch(NamedTuple):
    """A launch of the simulation, times in nanoseconds."""

    names: tuple[str, ...]
    ready: int
    start: int
    end: int


@dataclass(frozen=True)
class Played:
    """What the simulation saw: launches in the plan's order, compute spans by name."""

    makespan: int
    exposed: int
    launches: tuple[PlayedLaunch, ...]
    spans: dict[str, tuple[int, int]]


@dataclass(eq=False)
class _Job:
    """A compute task or a launch: it waits for names, occupies a queue and releases names."""

    queue: tuple[str, str]
    names: tuple[str, ...]
    needs: set[str]
    length: int
    not_before: int = 0
    ready: int | None = None
    start: int | None = None
    end: int | None = None
    finished: bool = field(default=False)


class _Memory:
    """What is held of the limited pools, counted anew at every question."""

    def __init__(self, problem: Problem, launches: Sequence[_Job]) -> None:
        self.limits = {
            limit.pool: limit.bytes for limit in problem.limits if isinstance(limit, PoolBytes)
        }
        self.holders = {
            name: task
            for name, task in _collectives(problem).items()
            if task.hold is not None and task.hold.pool in self.limits
        }
        self.launches = launches

    def _born(self, task: Collective, done: set[str]) -> bool:
        if task.hold.since == "ready":
            return set(task.after) <= done
        return any(job.start is not None and task.name in job.names for job in self.launches)

    def alive(self, pool: str, done: set[str]) -> int:
        return sum(
            task.bytes
            for task in self.holders.values()
            if task.hold.pool == pool
            and self._born(task, done)
            and not ({task.name, *task.hold.until} <= done)
        )

    def takes(self, job: _Job) -> dict[str, int]:
        """Return what the start of a launch takes of each pool."""
        found: dict[str, int] = {}
        for name in set(job.names) & self.holders.keys():
            task = self.holders[name]
            earlier = self.launches[: self.launches.index(job)] if job in self.launches else []
            if task.hold.since == "start" and not any(name in other.names for other in earlier):
                found[task.hold.pool] = found.get(task.hold.pool, 0) + task.bytes
        return found

    def admits(self, job: _Job, done: set[str]) -> bool:
        takes = self.takes(job)
        for other in self.launches:
            if other is job:
                break
            if other.start is None and self.takes(other).keys() & takes.keys():
                return False
        return all(
            self.alive(pool, done) + size <= self.limits[pool] for pool, size in takes.items()
        )


def written(value: object) -> Fraction:
    """Return a number as it is written in decimal."""
    if isinstance(value, Fraction):
        return value
    return Fraction(Decimal(str(value)))


def exact_price(curve: CostCurve, size: int) -> Fraction:
    """Return what a launch costs in nanoseconds, unrounded, from the curve's own parameters.

    1 GB/s is one byte a nanosecond.
    """
    if isinstance(curve, AlphaBeta):
        return 1000 * written(curve.alpha_us) + size / written(curve.bandwidth_gb_s)
    if isinstance(curve, BusBandwidth):
        wire_bytes = size * _WIRE[curve.kind](curve.ranks)
        return 1000 * written(curve.alpha_us) + wire_bytes / written(curve.bus_bandwidth_gb_s)
    table = sorted((int(x), 1000 * written(us)) for x, us in curve.rows)
    if isinstance(curve, StepTable):
        for x, ns in table:
            if size <= x:
                return ns
        return table[-1][1] * size / table[-1][0]
    assert isinstance(curve, PiecewiseLinear)
    if size <= table[0][0]:
        return table[0][1]
    (x1, y1), (x2, y2) = table[-2:]
    for left, right in itertools.pairwise(table):
        if left[0] <= size <= right[0]:
            (x1, y1), (x2, y2) = left, right
    return y1 + (y2 - y1) * Fraction(size - x1, x2 - x1)


def price(curve: CostCurve, size: int) -> int:
    """Return what a launch costs, rounded up to a whole nanosecond."""
    return math.ceil(exact_price(curve, size))


def _play(jobs: Sequence[_Job], memory: _Memory | None = None) -> int:
    """Advance a clock until all jobs have ended, fill in their times and return the last end.

    Each queue runs its jobs one at a time in the order given, when there is memory for them.
    """
    queues: dict[tuple[str, str], list[_Job]] = {}
    for job in jobs:
        queues.setdefault(job.queue, []).append(job)
    done: set[str] = set()
    # A collective in chunks is carried by several launches and done when the last of them is.
    left = collections.Counter(name for job in jobs for name in set(job.names))
    running: list[_Job] = []
    clock = 0
    while True:
        # Everything that can happen at this instant; zero durations make it go round again.
        happened = True
        while happened:
            happened = False
            for job in [job for job in running if job.end == clock]:
                running.remove(job)
                job.finished = True
                for name in set(job.names):
                    left[name] -= 1
                    if not left[name]:
                        done.add(name)
                happened = True
            for job in jobs:
                if job.ready is None and job.needs <= done:
                    job.ready = clock
            for queue in queues.values():
                head = next((job for job in queue if not job.finished), None)
                if (
                    head is not None
                    and head.start is None
                    and head.ready is not None
                    and head.not_before <= clock
                    and (memory is None or memory.admits(head, done))
                ):
                    head.start = clock
                    head.end = clock + head.length
                    running.append(head)
                    happened = True
        if all(job.finished for job in jobs):
            return clock
        # The next instant at which anything can change.
        events = [job.end for job in running if job.end is not None]
        for queue in queues.values():
            head = next((job for job in queue if not job.finished), None)
            if head is not None and head.start is None and head.ready is not None:
                events += [head.not_before] if head.not_before > clock else []
        if not events:
            raise Stuck([job.names for job in jobs if not job.finished])
        clock = min(events)


def _compute_jobs(problem: Problem, plan: Plan | None = None) -> list[_Job]:
    jobs = [
        _Job(("stream", task.stream), (task.name,), set(task.after), task.duration_ns)
        for task in problem.tasks
        if isinstance(task, Compute)
    ]
    for stream, names in (plan.orders if plan else {}).items():
        mine = {job.names[0]: job for job in jobs if job.queue == ("stream", stream)}
        jobs = [job for job in jobs if job not in mine.values()] + [mine[name] for name in names]
    return jobs


def _collectives(problem: Problem) -> dict[str, Collective]:
    return {task.name: task for task in problem.tasks if isinstance(task, Collective)}


def free_communication(problem: Problem, plan: Plan | None = None) -> tuple[int, dict[str, int]]:
    """Return the makespan and each collective's ready time where collectives take no time."""
    jobs = _compute_jobs(problem, plan)
    free = {
        # A queue of its own for each collective: nothing holds it back.
        name: _Job(("free", name), (name,), set(task.after), 0)
        for name, task in _collectives(problem).items()
    }
    makespan = _play([*jobs, *free.values()])
    return makespan, {name: job.ready or 0 for name, job in free.items()}


Pricing = Callable[[CostCurve, int], int]


def _launch_jobs(problem: Problem, plan: Plan, pricing: Pricing) -> list[_Job]:
    collectives = _collectives(problem)
    jobs = []
    for bucket in plan.buckets:
        members = [collectives[name] for name in bucket.names]
        first = members[0]
        curve = problem.costs[first.group, first.kind]
        size = 0
        for number, member in enumerate(members):
            chunk = bucket.chunks[number] if bucket.chunks else None
            size += member.bytes if chunk is None else chunk[1] - chunk[0]
        jobs.append(
            _Job(
                queue=("channel", problem.channels[first.group]),
                names=tuple(bucket.names),
                needs={before for member in members for before in member.after},
                length=pricing(curve, size),
                not_before=bucket.not_before_ns,
            )
        )
    return jobs


def simulate(problem: Problem, plan: Plan) -> Played:
    """Play a valid plan and return what happened.

    Raises
    ------
    Stuck
        If launches wait for each other for ever.
    """
    compute = _compute_jobs(problem, plan)
    launches = _launch_jobs(problem, plan, price)
    makespan = _play([*compute, *launches], _Memory(problem, launches))
    return Played(
        makespan=makespan,
        exposed=makespan - free_communication(problem, plan)[0],
        launches=tuple(PlayedLaunch(j.names, j.ready, j.start, j.end) for j in launches),
        spans={job.names[0]: (job.start, job.end) for job in compute},
    )


def collectives_before(problem: Problem) -> dict[str, set[str]]:
    """Return for each task the collectives that it waits for, directly or not."""
    before = {task.name: set(task.after) for task in problem.tasks}
    last: dict[str, str] = {}
    for task in problem.tasks:
        if isinstance(task, Compute):
            before[task.name] |= {last[task.stream]} if task.stream in last else set()
            last[task.stream] = task.name
    collectives = _collectives(problem)
    result = {}
    for name in before:
        seen: set[str] = set()
        stack = list(before[name])
        while stack:
            other = stack.pop()
            if other not in seen:
                seen.add(other)
                stack.extend(before[other])
        result[name] = seen & collectives.keys()
    return result


def ready_order(problem: Problem) -> list[str]:
    """Return the collectives' names by ready time in the free step, ties by listing order.

    A collective that waits for another one comes after it, also where both are ready at once:
    otherwise no plan could launch them in this order.
    """
    ready = free_communication(problem)[1]
    before = collectives_before(problem)
    order: list[str] = []
    while len(order) < len(ready):
        free = [name for name in ready if name not in order and before[name] <= set(order)]
        order.append(min(free, key=ready.__getitem__))  # min() returns the first listed
    return order


def set_partitions(items: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield every way to split items into non-empty sets (Bell's number of them)."""
    if not items:
        yield []
        return
    *rest, last = items
    for partition in set_partitions(rest):
        for index in range(len(partition)):
            yield [*partition[:index], [*partition[index], last], *partition[index + 1 :]]
        yield [*partition, [last]]


def compositions(items: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield every way to cut a sequence into contiguous non-empty pieces."""
    inner = range(1, len(items))
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(inner, count) for count in range(len(items))
    ):
        ends = [0, *cuts, len(items)]
        yield [list(items[a:b]) for a, b in itertools.pairwise(ends)]


def interleavings(sequences: Sequence[Sequence[list[str]]]) -> Iterator[list[list[str]]]:
    """Yield every merge of sequences that keeps the order within each."""
    alive = [sequence for sequence in sequences if sequence]
    if not alive:
        yield []
        return
    for index, sequence in enumerate(alive):
        others = [*alive[:index], sequence[1:], *alive[index + 1 :]]
        for rest in interleavings(others):
            yield [sequence[0], *rest]


def fusion(task: Collective) -> tuple[str, ...]:
    """Return what collectives must share to travel together; a sparse one shares it with nobody."""
    alone = task.name if task.sparse else ""
    return (task.kind, task.group, task.dtype, task.device, alone)


def all_plans(problem: Problem, scope: Scope) -> Iterator[Plan]:
    """Yield every plan of a scope once, those that deadlock included.

    Channels do not wait for each other's launches, so each order within the channels stands for
    all the interleavings of the channels.
    """
    collectives = _collectives(problem)
    chains: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for name in ready_order(problem):
        task = collectives[name]
        chain = chains.setdefault(problem.channels[task.group], {})
        chain.setdefault(fusion(task), []).append(name)

    def orders(chain: dict[tuple[str, ...], list[str]]) -> Iterable[list[list[str]]]:
        split = compositions if scope == "in-order" else set_partitions
        for pieces in itertools.product(*(list(split(names)) for names in chain.values())):
            if scope == "in-order":
                yield from interleavings(pieces)
            else:
                buckets = [bucket for piece in pieces for bucket in piece]
                yield from map(list, itertools.permutations(buckets))

    pools = any(isinstance(limit, PoolBytes) for limit in problem.limits)
    for parts in itertools.product(*(list(orders(chain)) for chain in chains.values())):
        # Memory is given out in the order of the whole plan, so then the channels' merge counts.
        merged = interleavings(parts) if pools else [[n for part in parts for n in part]]
        for order in merged:
            for streams in stream_orders(problem):
                yield Plan(tuple(Bucket(tuple(names)) for names in order), streams)


def stream_orders(problem: Problem) -> list[dict[str, tuple[str, ...]]]:
    """Return every order of the streams that have movable tasks; one empty one without any."""
    choices: list[list[tuple[str, tuple[str, ...]]]] = []
    for stream in {t.stream for t in problem.tasks if isinstance(t, Compute) and t.movable}:
        mine = [t for t in problem.tasks if isinstance(t, Compute) and t.stream == stream]
        fixed = [t.name for t in mine if not t.movable]
        choices.append(
            [
                (stream, names)
                for names in itertools.permutations([t.name for t in mine])
                if [name for name in names if name in fixed] == fixed
            ]
        )
    return [dict(choice) for choice in itertools.product(*choices)]


def keeps_limits(problem: Problem, plan: Plan, launches: Sequence[_Job]) -> bool:
    """Return whether what was played respects the limits, apart from memory taken at a start."""
    size = {name: task.bytes for name, task in _collectives(problem).items()}
    bucket_of = {name: number for number, b in enumerate(plan.buckets) for name in b.names}
    total = [sum(size[name] for name in bucket.names) for bucket in plan.buckets]

    def most_at_once(weights: Sequence[int]) -> int:
        return max(
            sum(
                weight
                for weight, other in zip(weights, launches, strict=True)
                if other.ready <= job.ready < other.end
            )
            for job in launches
        )

    for limit in problem.limits:
        name = type(limit).__name__
        if name == "MostBucketBytes":
            holds = max(total) <= limit.bytes
        elif name == "LeastBucketBytes":
            holds = min(total) >= limit.bytes
        elif name == "MostLaunches":
            holds = len(total) <= limit.count
        elif name == "BytesInFlight":
            holds = most_at_once(total) <= limit.bytes
        elif name == "LaunchesInFlight":
            holds = most_at_once([1] * len(total)) <= limit.count
        elif name == "Together":
            holds = len({bucket_of[n] for n in limit.names}) == 1
        elif name == "Apart":
            holds = len({bucket_of[n] for n in limit.names}) == len(limit.names)
        elif name == "Alike":
            first = [bucket_of[n] for n in limit.rows[0]]
            holds = all(
                [a == b for a, b in itertools.combinations(first, 2)]
                == [bucket_of[a] == bucket_of[b] for a, b in itertools.combinations(row, 2)]
                for row in limit.rows
            )
        else:
            holds = True  # a pool: see pools_hold
        if not holds:
            return False
    return True


def first_come_first_served(launches: Sequence[_Job]) -> bool:
    """Return whether each channel's launches, in its order, were ready in that order."""
    queues: dict[tuple[str, str], list[int]] = {}
    for job in launches:
        queues.setdefault(job.queue, []).append(job.ready)
    return all(ready == sorted(ready) for ready in queues.values())


def pools_hold(problem: Problem, plan: Plan, jobs: Sequence[_Job]) -> bool:
    """Return whether no pool is ever fuller than its limit, whoever filled it."""
    end: dict[str, int] = {}
    start: dict[str, int] = {}
    for job in jobs:
        for name in job.names:
            end[name] = max(end.get(name, 0), job.end)
            start[name] = min(start.get(name, job.start), job.start)
    for limit in problem.limits:
        if not isinstance(limit, PoolBytes):
            continue
        held = []
        for task in _collectives(problem).values():
            if task.hold is None or task.hold.pool != limit.pool:
                continue
            ready = max((end[name] for name in task.after), default=0)
            since = start[task.name] if task.hold.since == "start" else ready
            held.append((since, max(end[n] for n in (task.name, *task.hold.until)), task.bytes))
        for since, until, _ in held:
            if until > since and limit.bytes < sum(b for s, e, b in held if s <= since < e):
                return False
    return True


class Best(NamedTuple):
    """The best makespan, the fewest launches that reach it, and how many plans were played."""

    makespan: int
    launches: int
    tried: int


def brute_force(problem: Problem, scope: Scope) -> Best:
    """Play every plan of a scope and return the best; plans that deadlock do not count.

    For up to about six collectives.

    Raises
    ------
    Stuck
        If every plan of the scope deadlocks or breaks a limit.
    """
    prices: dict[tuple[int, int], int] = {}

    def remembered(curve: CostCurve, size: int) -> int:
        key = (id(curve), size)
        if key not in prices:
            prices[key] = price(curve, size)
        return prices[key]

    best: tuple[int, int] | None = None
    tried = 0
    for plan in all_plans(problem, scope):
        compute = _compute_jobs(problem, plan)
        launches = _launch_jobs(problem, plan, remembered)
        try:
            makespan = _play([*compute, *launches], _Memory(problem, launches))
        except Stuck:
            continue
        if not keeps_limits(problem, plan, launches):
            continue
        if scope == "fifo" and not first_come_first_served(launches):
            continue
        if not pools_hold(problem, plan, [*compute, *launches]):
            continue
        tried += 1
        found = (makespan, plan.launches)
        if best is None or found < best:
            best = found
    if best is None:
        raise Stuck("no plan of the scope runs within the limits")
    return Best(*best, tried)

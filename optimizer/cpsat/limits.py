"""Limits inside the CP-SAT models, whichever way these represent buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any, Protocol

from commsched.models import (
    Alike,
    Apart,
    BytesInFlight,
    Collective,
    LaunchesInFlight,
    MostLaunches,
    PoolBytes,
    Problem,
    Together,
)
from commsched.optimizer.cpsat.base import StepModel


class Cover(Protocol):
    """What a representation of buckets offers to the limits."""

    step: StepModel

    def start_of(self, name: str) -> Any:
        """Return the start of the launch that carries a collective."""

    def done(self, name: str) -> Any:
        """Return the end of the launch that carries a collective."""

    def same(self, first: str, second: str) -> Any:
        """Return 1 if two collectives share a bucket, else 0, as a linear expression."""

    def launch_count(self) -> Any:
        """Return the number of launches as a linear expression."""

    def bucket_ready(self, name: str) -> Any:
        """Return when the bucket of a collective is ready: exactly, not at the earliest."""

    def flights(self) -> Sequence[tuple[Any, Any, Any]]:
        """Return (ready, end, present) of each possible launch."""


def counts_ready(problem: Problem) -> bool:
    """Return whether something is counted from a ready time on, so that delays would cheat."""
    held_since_ready = any(
        task.hold is not None
        and task.hold.since == "ready"
        and task.hold.pool in problem.limited_pools
        for task in problem.collectives
    )
    return held_since_ready or any(
        isinstance(limit, BytesInFlight | LaunchesInFlight) for limit in problem.limits
    )


def add_limits(cover: Cover) -> None:
    """Ensure that the buckets and times respect the problem's limits.

    Limits on the bytes of single buckets are the representation's own.
    """
    problem, cp = cover.step.problem, cover.step.cp
    for limit in problem.limits:
        if isinstance(limit, MostLaunches):
            cp.add(cover.launch_count() <= limit.count)
        elif isinstance(limit, PoolBytes):
            _add_pool(cover, limit)
        elif isinstance(limit, Together):
            for first, second in pairwise(limit.names):
                cp.add(_same(cover, first, second) == 1)
        elif isinstance(limit, Apart):
            for first, second in combinations(limit.names, 2):
                cp.add(_same(cover, first, second) == 0)
        elif isinstance(limit, Alike):
            for other in limit.rows[1:]:
                for k, m in combinations(range(len(other)), 2):
                    row = limit.rows[0]
                    cp.add(_same(cover, row[k], row[m]) == _same(cover, other[k], other[m]))
        elif isinstance(limit, BytesInFlight):
            intervals = [
                _interval(cover.step, cover.bucket_ready(name), cover.done(name), name)
                for name in problem.names
            ]
            cp.add_cumulative(intervals, problem.bytes, limit.bytes)
        elif isinstance(limit, LaunchesInFlight):
            flights = [
                cp.new_optional_interval_var(
                    ready, _length(cover.step, "flight"), end, present, "flight"
                )
                for ready, end, present in cover.flights()
            ]
            cp.add_cumulative(flights, [1] * len(flights), limit.count)


def ready_var(step: StepModel, name: str) -> Any:
    """Return when everything has ended that a collective waits for: exactly."""
    before = [step.end_of(other) for other in step.problem.graph.pred[name]]
    if all(isinstance(end, int) for end in before):
        return max(before, default=0)
    ready = step.time_var(0, f"ready {name}")
    step.cp.add_max_equality(ready, before)
    return ready


def _same(cover: Cover, first: str, second: str) -> Any:
    problem = cover.step.problem
    keys = [problem.keys[problem.index[name]] for name in (first, second)]
    return cover.same(first, second) if keys[0] == keys[1] else 0


def _add_pool(cover: Cover, limit: PoolBytes) -> None:
    intervals, sizes = [], []
    for task in cover.step.problem.collectives:
        if task.hold is not None and task.hold.pool == limit.pool:
            intervals.append(_held(cover, task))
            sizes.append(task.bytes)
    cover.step.cp.add_cumulative(intervals, sizes, limit.bytes)


def _held(cover: Cover, task: Collective) -> Any:
    """Return the interval in which a collective's memory is held."""
    step = cover.step
    hold = task.hold
    assert hold is not None
    since = cover.start_of(task.name) if hold.since == "start" else ready_var(step, task.name)
    freed = step.time_var(0, f"freed {task.name}")
    step.cp.add(freed >= cover.done(task.name))
    collectives = step.problem.index
    for name in hold.until:
        step.cp.add(freed >= (cover.done(name) if name in collectives else step.end_of(name)))
    return _interval(step, since, freed, task.name)


def _interval(step: StepModel, start: Any, end: Any, name: str) -> Any:
    return step.cp.new_interval_var(start, _length(step, name), end, f"held {name}")


def _length(step: StepModel, name: str) -> Any:
    return step.cp.new_int_var(0, step.horizon, f"length {name}")

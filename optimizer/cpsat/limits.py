"""Limits inside the CP-SAT models, whichever way these represent buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from ortools.sat.python import cp_model

from commsched.models import (
    Alike,
    Apart,
    BytesInFlight,
    Collective,
    Hold,
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

    def partners(self, name: str) -> Sequence[str]:
        """Return those later in its fusion key that may share a bucket with a collective."""

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
                _equal(cp, _same(cover, first, second), 1)
        elif isinstance(limit, Apart):
            for k, m in _possible_pairs(cover, [limit.names]):
                _equal(cp, _same(cover, limit.names[k], limit.names[m]), 0)
        elif isinstance(limit, Alike):
            for other in limit.rows[1:]:
                row = limit.rows[0]
                for k, m in _possible_pairs(cover, [row, other]):
                    _equal(cp, _same(cover, row[k], row[m]), _same(cover, other[k], other[m]))
        elif isinstance(limit, BytesInFlight):
            intervals = [
                _interval(cover.step, cover.bucket_ready(name), cover.done(name), name)
                for name in problem.names
            ]
            cover.step.add_cumulative(intervals, problem.bytes, limit.bytes)
        elif isinstance(limit, LaunchesInFlight):
            flights = [
                _interval(cover.step, ready, end, "flight", present)
                for ready, end, present in cover.flights()
            ]
            cover.step.add_cumulative(flights, [1] * len(flights), limit.count)


def ready_var(step: StepModel, name: str) -> Any:
    """Return when everything has ended that a collective waits for: exactly."""
    if name not in step.ready:
        before = [step.end_of(other) for other in step.problem.graph.pred[name]]
        if all(isinstance(end, int) for end in before):
            step.ready[name] = max(before, default=0)
        else:
            step.ready[name] = step.time_var(0, f"ready {name}")
            step.cp.add_max_equality(step.ready[name], before)
    return step.ready[name]


def _possible_pairs(cover: Cover, rows: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Return the pairs of places that may share a bucket in one of some rows."""
    found = set()
    for row in rows:
        place = {name: k for k, name in enumerate(row)}
        for k, name in enumerate(row):
            for m in sorted(place[other] for other in cover.partners(name) if other in place):
                found.add((min(k, m), max(k, m)))
    return sorted(found)


def _equal(cp: cp_model.CpModel, one: Any, two: Any) -> None:
    """Ensure that two expressions are equal, where that is not known: most pairs never share."""
    if isinstance(one, int) and isinstance(two, int):
        if one != two:
            cp.add_bool_or([])
    else:
        cp.add(one == two)


def _same(cover: Cover, first: str, second: str) -> Any:
    problem = cover.step.problem
    keys = [problem.keys[problem.index[name]] for name in (first, second)]
    return cover.same(first, second) if keys[0] == keys[1] else 0


def _add_pool(cover: Cover, limit: PoolBytes) -> None:
    """Ensure that the pool is never fuller than its limit, and has room for what starts.

    What holds memory for no time fills nothing, but a launch only starts if there is room for it,
    however short it holds it: that is counted in ticks.
    """
    step = cover.step
    intervals, at_starts, sizes = [], [], []
    for task in step.problem.collectives:
        hold = task.hold
        if hold is None or hold.pool != limit.pool:
            continue
        since, freed = _held(cover, task, hold)
        intervals.append(_interval(step, since, freed, task.name))
        sizes.append(task.bytes)
        if step.tick:
            lasts = None if hold.since == "start" else _lasts(step, since, freed)
            at_starts.append(_in_ticks(step, since, freed, task.name, lasts))
    step.add_cumulative(intervals, sizes, limit.bytes)
    if step.tick:
        step.add_cumulative(at_starts, sizes, limit.bytes)


def _held(cover: Cover, task: Collective, hold: Hold) -> tuple[Any, Any]:
    """Return from when until when a collective's memory is held."""
    step = cover.step
    since = cover.start_of(task.name) if hold.since == "start" else ready_var(step, task.name)
    freed = step.time_var(0, f"freed {task.name}")
    step.cp.add(freed >= cover.done(task.name))
    collectives = step.problem.index
    for name in hold.until:
        step.cp.add(freed >= (cover.done(name) if name in collectives else step.end_of(name)))
    return since, freed


def _lasts(step: StepModel, start: Any, end: Any) -> Any:
    """Return whether something lasts at least a nanosecond."""
    whole_ns = step.whole_ns(end, "to") - step.whole_ns(start, "from")
    lasts = step.cp.new_bool_var("lasts")
    step.cp.add(whole_ns >= 1).only_enforce_if(lasts)
    step.cp.add(whole_ns <= 0).only_enforce_if(~lasts)
    return lasts


def _interval(step: StepModel, start: Any, end: Any, name: str, present: Any = None) -> Any:
    """Return an interval in whole nanoseconds, which lasts none if it only lasts some ticks."""
    start, end = (step.whole_ns(time, f"{name} {n}") for n, time in (("from", start), ("to", end)))
    return _in_ticks(step, start, end, name, present)


def _in_ticks(step: StepModel, start: Any, end: Any, name: str, present: Any) -> Any:
    length = step.cp.new_int_var(0, step.horizon, f"length {name}")
    if present is None:
        return step.cp.new_interval_var(start, length, end, f"held {name}")
    return step.cp.new_optional_interval_var(start, length, end, present, f"held {name}")

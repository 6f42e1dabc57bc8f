"""Exposed and hidden communication: unions of intervals, and why a launch is exposed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from commsched.models.errors import InputError

if TYPE_CHECKING:
    from commsched.models.launch import Launch
    from commsched.models.timeline import Timeline

T = TypeVar("T", int, float)


def merge_intervals(intervals: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return the union of intervals as disjoint intervals in order; touching ones are joined.

    Raises
    ------
    InputError
        If an interval ends before it starts.

    Examples
    --------
    >>> merge_intervals([(3, 8), (1, 4), (8, 9), (20, 20)])
    [(1, 9)]
    """
    merged: list[tuple[T, T]] = []
    for start, end in sorted(intervals):
        if end < start:
            raise InputError(f"interval [{start}, {end}] ends before it starts")
        if end == start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def overlap(start: T, end: T, merged: Sequence[tuple[T, T]]) -> list[tuple[T, T]]:
    """Return the parts of [start, end] that lie in disjoint intervals.

    Examples
    --------
    >>> overlap(0, 12, [(-2, 5), (10, 20)])
    [(0, 5), (10, 12)]
    """
    return [
        (max(start, low), min(end, high))
        for low, high in merged
        if max(start, low) < min(end, high)
    ]


class Reason(StrEnum):
    """Why a launch is exposed.

    ``waits for gradient``: its last gradient came when no compute was left to hide behind.
    ``waits for channel``: it queued behind the launch before it.
    ``own length``: it started in time, but is longer than the compute that was left.
    ``held back``: the plan told it to wait.
    """

    HIDDEN = "hidden"
    GRADIENT = "waits for gradient"
    CHANNEL = "waits for channel"
    LENGTH = "own length"
    HELD = "held back"


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much of one launch is exposed, and why.

    Attributes
    ----------
    exposed_ns
        Time during which the launch runs while no stream computes.
    waited_ns
        Time from ready to start.
    reason
        What put it there.
    """

    exposed_ns: int
    waited_ns: int
    reason: Reason


def launch_exposures(timeline: Timeline) -> list[Exposure]:
    """Return the exposure of each launch of a timeline, in the order of its launches.

    On one channel after which nothing follows, the exposed times add up to the timeline's
    ``exposed_ns``. Where several channels run at once, or compute waits for launches, they need not.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
    >>> problem = GradientProblem(
    ...     [Gradient("b", 15, ready_ns=10), Gradient("a", 30, ready_ns=20)], AlphaBeta(0, 1))
    >>> [(e.exposed_ns, str(e.reason)) for e in launch_exposures(
    ...     evaluate(problem, Plan.of([["b"], ["a"]])))]
    [(5, 'own length'), (30, 'waits for channel')]
    """
    busy = timeline.busy
    free_from: dict[str, int] = {}
    exposures = []
    cursor = 0
    for launch in timeline.launches:
        while cursor < len(busy) and busy[cursor][1] <= launch.start_ns:
            cursor += 1
        hidden = 0
        for low, high in busy[cursor:]:
            if low >= launch.end_ns:
                break
            hidden += min(high, launch.end_ns) - max(low, launch.start_ns)
        exposed = launch.duration_ns - hidden
        waited = launch.start_ns - launch.ready_ns
        reason = Reason.HIDDEN
        if exposed:
            computing = cursor < len(busy) and busy[cursor][0] <= launch.start_ns
            reason = _reason(launch, free_from.get(launch.channel, 0), computing)
        free_from[launch.channel] = launch.end_ns
        exposures.append(Exposure(exposed, waited, reason))
    return exposures


def _reason(launch: Launch, channel_free_ns: int, computing: bool) -> Reason:
    if launch.start_ns > max(launch.ready_ns, channel_free_ns):
        return Reason.HELD
    if launch.start_ns > launch.ready_ns:
        return Reason.CHANNEL
    return Reason.LENGTH if computing else Reason.GRADIENT

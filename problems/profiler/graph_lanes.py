"""Lanes: what a stream, or the processor, did in a step, cut where communication touches it.

A lane is cut at *points*, where something begins to depend on it, and before *waits*, work that
something holds back. Between two cuts everything belongs together, the idle time too: no plan can
remove it. Only the idle time before a wait that the awaited explains is left out.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from commsched.problems.profiler.trace_kernels import Kernel

ROUNDING_NS = 1_000
"""Old traces have whole microseconds."""
_CHUNK = 4096


class Point(NamedTuple):
    """A time on a lane, in nanoseconds on the trace's clock: the work so far is meant."""

    lane: str
    time: int


Source = Point | int
"""What something waits for: the work of a lane up to a point, or a call by its number."""


class Lane:
    """The work of one stream.

    Parameters
    ----------
    key
        Its name in the trace.
    works
        What it ran.

    Attributes
    ----------
    works
        Rising by start.
    ends
        The latest end among the works up to each one.
    worked
        How long it works before each one: that one cannot start earlier in a step. One more
        entry has the work of the whole lane.
    """

    def __init__(self, key: str, works: Sequence[Kernel]) -> None:
        self.key = key
        self.works = sorted(works, key=lambda work: (work.start, work.end))
        self.starts = [work.start for work in self.works]
        self.ends = list(accumulate((work.end for work in self.works), max))
        reached = [self.starts[0] if works else 0, *self.ends]
        lengths = [
            max(0, work.end - max(work.start, before))
            for work, before in zip(self.works, reached, strict=False)
        ]
        self.worked = list(accumulate(lengths, initial=0))
        by_launch = sorted(range(len(self.works)), key=lambda k: (self.works[k].launched, k))
        self._launched = [self.works[k].launched for k in by_launch]
        self._by_launch = by_launch
        self._launches = np.array([work.launched for work in self.works], dtype=np.int64)
        self._latest = np.array([work.latest for work in self.works], dtype=np.int64)

    @property
    def busy(self) -> int:
        """How long it worked."""
        return self.worked[-1]

    def idle_before(self, k: int) -> int:
        """Return how long it was idle before a work; the first one has no idle time."""
        return max(0, self.starts[k] - self.ends[k - 1]) if k else 0

    def tightest(self, held: Sequence[int]) -> list[int]:
        """Return for each piece of the lane the work that was launched the latest before its start.

        If the lane gets faster, that work is the first that the processor holds back, and no
        later one of the piece is held back more.

        Parameters
        ----------
        held
            Where the pieces begin, rising. A first work that is the tightest is left out.
        """
        slack = np.array(self.starts, dtype=np.int64) - self._launches
        found = []
        for k, end in itertools.pairwise([*held, len(self.works)]):
            tight = k + int(np.argmin(slack[k:end]))
            if slack[tight] < slack[k]:
                found.append(tight)
        return found

    def last_launched(self, before: int) -> int | None:
        """Return the work that was launched last before a time."""
        at = bisect_left(self._launched, before)
        return self._by_launch[at - 1] if at else None

    def first_after(self, launched: int, start: int) -> int | None:
        """Return the first work that started not before ``start`` and was launched later.

        Parameters
        ----------
        launched, start
            The earliest launch and the earliest start.
        """
        at = bisect_left(self.starts, start)
        while at < len(self.works):
            late = np.flatnonzero(self._latest[at : at + _CHUNK] >= launched)
            if late.size:
                return at + int(late[0])
            at += _CHUNK
        return None

    def ended_by(self, time: int, launched: int) -> int | None:
        """Return the last work that had ended by a time, of those launched before ``launched``.

        Only the works shortly before that time are looked at.
        """
        at = bisect_right(self.ends, time)
        early = np.flatnonzero(self._launches[max(0, at - _CHUNK) : at] < launched)
        return max(0, at - _CHUNK) + int(early[-1]) if early.size else None


class Launches:
    """What each thread launched, over all streams.

    Parameters
    ----------
    lanes
        The streams by name.
    """

    def __init__(self, lanes: dict[str, Lane]) -> None:
        found: dict[str, list[tuple[int, int, int, Lane]]] = defaultdict(list)
        for order, lane in enumerate(lanes.values()):
            for k, work in enumerate(lane.works):
                found[work.tid].append((work.launched, order, k, lane))
        self._of = {tid: sorted(own, key=lambda item: item[:3]) for tid, own in found.items()}
        self._on: dict[tuple[str, str], list[tuple[int, int, int, Lane]]] = defaultdict(list)
        for tid, own in self._of.items():
            for item in own:
                self._on[tid, item[3].key].append(item)

    def before(self, tid: str, time: int) -> tuple[Lane, int] | None:
        """Return what a thread had launched last before a time."""
        own = self._of.get(tid, [])
        at = bisect_left(own, time, key=lambda item: item[0])
        return (own[at - 1][3], own[at - 1][2]) if at else None

    def after(
        self, tid: str, time: int, start: int | None, stream: str = ""
    ) -> tuple[Lane, int] | None:
        """Return what a thread launched first from a time on.

        Parameters
        ----------
        tid, time
            The thread and the time.
        start
            Works that started before do not count.
        stream
            Only on this stream; empty for any.
        """
        own = self._on.get((tid, stream), []) if stream else self._of.get(tid, [])
        at = bisect_left(own, time, key=lambda item: item[0])
        for _, _, k, lane in own[at : at + _CHUNK]:
            if start is None or lane.starts[k] >= start - ROUNDING_NS:
                return lane, k
        return None


@dataclass(slots=True)
class Segment:
    """A piece of a lane between two cuts; times on the trace's clock.

    Attributes
    ----------
    lane
        The lane's name in the trace.
    start, end
        Its recorded times, waiting apart.
    first, last
        The works in it: positions on the lane, the last one apart.
    sources
        What it waits for.
    idle
        How much of it the lane was idle.
    name
        The task's name.
    """

    lane: str
    start: int
    end: int
    first: int
    last: int
    sources: frozenset[Source]
    idle: int = 0
    name: str = ""


@dataclass(slots=True)
class Wiring:
    """Who waits for whom.

    Attributes
    ----------
    needs
        For each call what it waits for.
    waits
        (lane, position of the work) -> what it waits for.
    """

    needs: dict[int, set[Source]] = field(default_factory=lambda: defaultdict(set))
    waits: dict[tuple[str, int], set[Source]] = field(default_factory=lambda: defaultdict(set))

    def points(self) -> dict[str, set[int]]:
        """Return the points at which each lane is cut."""
        found: dict[str, set[int]] = defaultdict(set)
        for sources in (*self.needs.values(), *self.waits.values()):
            for source in sources:
                if isinstance(source, Point):
                    found[source.lane].add(source.time)
        return found


def cut_lane(
    lane: Lane,
    origin: int,
    points: set[int],
    waits: dict[int, set[Source]],
    end_of: Callable[[Source], int],
) -> list[Segment]:
    """Cut a lane into segments.

    Parameters
    ----------
    lane
        The lane.
    origin
        When the step starts; idle time before the first work belongs to that work.
    points
        Where something begins to depend on the lane.
    waits
        The works that wait, and for what.
    end_of
        When a source ended as recorded.
    """
    cuts = [(time, 0, -1) for time in points]
    cuts += [(lane.starts[k], 1, k) for k in waits]
    segments: list[Segment] = []
    pending: set[Source] = set()
    current, first = origin, 0

    def close(end: int, last: int) -> None:
        nonlocal first, pending
        if end > current or last > first:
            segments.append(
                Segment(lane.key, current, max(end, current), first, last, frozenset(pending))
            )
            pending, first = set(), last

    for time, _, k in sorted(cuts):
        if k < 0:
            close(time, bisect_left(lane.starts, time))
            current = max(current, time)
            continue
        before = max(current, lane.ends[k - 1] if k else current)
        close(before, k)
        awaited = max(map(end_of, waits[k]), default=before)
        current = max(before, min(awaited, time))
        pending |= waits[k]
    last_end = max(current, lane.ends[-1]) if lane.works else current
    close(last_end, len(lane.works))
    if pending:
        segments.append(
            Segment(lane.key, last_end, last_end, first, len(lane.works), frozenset(pending))
        )
    _measure_idle(lane, segments)
    return segments


def _measure_idle(lane: Lane, segments: Sequence[Segment]) -> None:
    for segment in segments:
        # The work before the segment may reach into it.
        reached = max(segment.start, lane.ends[segment.first - 1] if segment.first else 0)
        idle = 0
        for work in lane.works[segment.first : segment.last]:
            idle += max(0, min(work.start, segment.end) - reached)
            reached = max(reached, work.end)
        segment.idle = idle + max(0, segment.end - reached)

"""Timelines as rows of parts, for whatever draws them: streams that compute, then channels."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from commsched.models.exposure import merge_intervals, overlap
from commsched.models.launch import Launch, Span
from commsched.models.timeline import Timeline


class Part(NamedTuple):
    """Something that runs on a lane; ``kind`` (else empty), ``number`` and ``bytes`` are a launch's."""

    start_ns: int
    end_ns: int
    name: str
    kind: str = ""
    number: int = 0
    bytes: int = 0


class Lane(NamedTuple):
    """A stream or a channel; ``marks_ns`` are the ready times of a backward's gradients."""

    label: str
    parts: list[Part]
    marks_ns: list[int]
    launches: list[Launch]


def lanes_of(timeline: Timeline, most_marks: int = 0) -> list[Lane]:
    """Return a lane for each stream that computes, then one for each channel.

    Parameters
    ----------
    timeline
        What is to be drawn.
    most_marks
        A backward's ready times are given if there are fewer of them.
    """
    streams: dict[str, list[Span]] = {}
    for span in timeline.tasks:
        if span.end_ns > span.start_ns:
            streams.setdefault(span.stream, []).append(span)
    lanes = []
    backward = is_backward(timeline)
    for stream, spans in streams.items():
        parts = [Part(s.start_ns, s.end_ns, s.name) for s in spans]
        marks: list[int] = []
        if backward:
            whole = merge_intervals((part.start_ns, part.end_ns) for part in parts)
            marks = [part.end_ns for part in parts if len(parts) < most_marks]
            parts = [Part(start, end, "") for start, end in whole]
        lanes.append(Lane(stream, parts, marks, []))
    channels: dict[str, Lane] = {}
    for number, x in enumerate(timeline.launches, 1):
        lane = channels.setdefault(x.channel, Lane(f"channel {x.channel}", [], [], []))
        lane.parts.append(Part(x.start_ns, x.end_ns, f"#{number}", x.key.kind, number, x.bytes))
        lane.launches.append(x)
    return lanes + [channels[name] for name in sorted(channels)]


def is_backward(timeline: Timeline) -> bool:
    """Whether the compute is one backward pass, cut where its gradients are ready."""
    return all(
        span.stream == "backward" and span.name.startswith(("backward of ", "end of backward"))
        for span in timeline.tasks
    )


def exposed_parts(
    start_ns: int, end_ns: int, busy: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return when something runs while nothing computes.

    Parameters
    ----------
    start_ns, end_ns
        When it runs.
    busy
        When something computes: disjoint intervals in order.

    Examples
    --------
    >>> exposed_parts(0, 12, [(2, 5), (10, 20)])
    [(0, 2), (5, 10)]
    """
    first = max(0, bisect_right(busy, start_ns, key=lambda each: each[0]) - 1)
    last = bisect_right(busy, end_ns, key=lambda each: each[0])
    found, cursor = [], start_ns
    for low, high in [*overlap(start_ns, end_ns, busy[first:last]), (end_ns, end_ns)]:
        if low > cursor:
            found.append((cursor, low))
        cursor = high
    return found


def shown_from(timelines: Sequence[Timeline]) -> int:
    """Return where a common time axis should start.

    This is the step's start, or shortly before the first bucket is ready if more than half of the
    axis would show nothing but compute.
    """
    first = min(launch.ready_ns for each in timelines for launch in each.launches)
    last = max(each.makespan_ns for each in timelines)
    if not last / 2 < first < last:
        return 0
    return max(0, first - math.ceil((last - first) / 12))

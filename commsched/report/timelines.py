"""Timelines as plain data: rows of compute and of launches, times in nanoseconds, names in one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from commsched.models import Launch, Problem, Reason, Span, Timeline, launch_exposures
from commsched.models.exposure import merge_intervals
from commsched.models.overheads import OverheadTimeline
from commsched.models.slowdown import SlowedTimeline
from commsched.report import texts

MOST_ROWS = 24
"""So many streams and so many channels have a row; the others share one."""
REASONS = tuple(Reason)


class Names:
    """A table of names: each is written once, those of the collectives in ready order first.

    Members of one bucket are then mostly neighbours, and a run of them is two numbers.
    """

    def __init__(self, problem: Problem) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}
        for position in problem.ready_order:
            self.index(problem.names[position])

    def index(self, name: str) -> int:
        """Return a name's place in the table, which gets it if it is new."""
        place = self._index.setdefault(name, len(self.texts))
        if place == len(self.texts):
            self.texts.append(texts.name(name))
        return place

    def runs(self, names: Iterable[str]) -> list[int]:
        """Return names as runs of neighbours: first place, count, first place, count ..."""
        runs: list[int] = []
        for place in map(self.index, names):
            if runs and runs[-2] + runs[-1] == place:
                runs[-1] += 1
            else:
                runs += [place, 1]
        return runs


class Compute:
    """The compute rows of all timelines; those that are alike are written once."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.written: list[list[dict[str, Any]]] = []

    def add(self, timeline: Timeline) -> int:
        """Return the place of a timeline's compute rows."""
        rows = self._rows(timeline)
        if rows not in self.written:
            self.written.append(rows)
        return self.written.index(rows)

    def _rows(self, timeline: Timeline) -> list[dict[str, Any]]:
        problem = timeline.problem
        if problem.gradients is not None:
            # Backward is one piece; what is of interest in it is when gradients are ready.
            ready, end = [problem.ready_ns[k] for k in problem.ready_order], timeline.compute_ns
            if isinstance(timeline, SlowedTimeline):
                # Its tasks are the pieces of backward, one for each gradient and perhaps a rest.
                ready = sorted(span.end_ns for span in timeline.tasks)[: len(ready)]
                end = max(span.end_ns for span in timeline.tasks)
            spans = [(0, end)]
            if isinstance(timeline, OverheadTimeline):  # what it adds holds backward up
                ready = sorted(span.end_ns for span in timeline.tasks)[: len(ready)]
                spans = timeline.busy
            steps = [b - a for a, b in pairwise([0, *ready])]
            return [{"label": "backward", "spans": _alternating(spans), "marks": steps}]
        streams: dict[str, list[Span]] = {}
        for span in timeline.tasks:
            if span.end_ns > span.start_ns:
                streams.setdefault(span.stream, []).append(span)
        rows = [self._row(texts.name(label), spans) for label, spans in streams.items()]
        if len(rows) > MOST_ROWS:
            busiest = sorted(streams.values(), key=lambda spans: -_busy(spans))
            rest = [span for spans in busiest[MOST_ROWS - 1 :] for span in spans]
            rows = [self._row(texts.name(s[0].stream), s) for s in busiest[: MOST_ROWS - 1]]
            label = f"{len(streams) - MOST_ROWS + 1} more streams"
            merged = merge_intervals((span.start_ns, span.end_ns) for span in rest)
            rows.append({"label": label, "spans": _alternating(merged)})
        return rows

    def _row(self, label: str, spans: Sequence[Span]) -> dict[str, Any]:
        ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
        return {
            "label": label,
            "spans": _alternating((span.start_ns, span.end_ns) for span in ordered),
            "names": [self.names.index(span.name) for span in ordered],
        }


def _busy(spans: Iterable[Span]) -> int:
    return sum(span.end_ns - span.start_ns for span in spans)


def _alternating(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """Return starts and ends one after the other, each as what lies between it and the one before."""
    flat, last = [], 0
    for start, end in intervals:
        flat += [start - last, end - start]
        last = end
    return flat


def timeline_data(
    timeline: Timeline, title: str, note: str, names: Names, compute: Compute
) -> dict[str, Any]:
    """Return a timeline as the page's scripts draw it.

    Parameters
    ----------
    timeline
        What is drawn.
    title, note
        Stand above it.
    names, compute
        The tables that all timelines of a page share.
    """
    channels = sorted({launch.channel for launch in timeline.launches})
    labels = [f"channel {texts.name(channel)}" for channel in channels]
    row_of = {channel: min(k, MOST_ROWS - 1) for k, channel in enumerate(channels)}
    if len(labels) > MOST_ROWS:
        labels[MOST_ROWS - 1 :] = [f"{len(labels) - MOST_ROWS + 1} more channels"]
    kinds = sorted({(n.key.kind, n.key.group, n.key.dtype) for n in timeline.launches})
    kind_of = {kind: k for k, kind in enumerate(kinds)}
    exposures = launch_exposures(timeline)
    return {
        "title": texts.line(title),
        "note": texts.line(note),
        "makespan": timeline.makespan_ns,
        "exposed": timeline.exposed_ns,
        "compute": timeline.compute_ns,
        "slowed": isinstance(timeline, SlowedTimeline | OverheadTimeline),
        "rows": compute.add(timeline),
        "busy": _alternating(timeline.busy),
        "channels": labels,
        "kinds": [[texts.name(text) for text in kind] for kind in kinds],
        "launches": [
            [
                row_of[launch.channel],
                kind_of[launch.key.kind, launch.key.group, launch.key.dtype],
                launch.bytes,
                launch.ready_ns,
                launch.start_ns,
                launch.end_ns,
                exposure.exposed_ns,
                REASONS.index(exposure.reason),
                names.runs(launch.names),
                _parts(launch),
            ]
            for launch, exposure in zip(timeline.launches, exposures, strict=True)
        ],
    }


def _parts(launch: Launch) -> int:
    """Return how many members are chunks of collectives."""
    return sum(chunk is not None for chunk in launch.chunks)

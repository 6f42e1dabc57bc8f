"""A trace that ui.perfetto.dev and chrome://tracing open: the recorded and the planned step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from commsched.models import Compute, Timeline, launch_exposures
from commsched.models.launch import Launch
from commsched.models.units import us_from_ns
from commsched.problems import RecordedLaunch, Recording

PLANNED, RECORDED = "planned", "recorded"
Event = dict[str, Any]


def trace_bytes(timeline: Timeline, recorded: Recording | None = None) -> bytes:
    """Return the trace as JSON.

    Each step is a process, each stream and channel a thread. A launch is a slice with its bytes,
    members, ready and exposed time; an arrow leads to it from the task whose end made it ready.
    Times are microseconds from the step's start.

    Parameters
    ----------
    timeline
        The planned step.
    recorded
        The recording from which the problem comes, if there is one: its launches at the times at
        which they really ran.
    """
    events: list[Event] = []
    if recorded is not None and any(launch.start_ns is not None for launch in recorded.launches):
        events += _recorded(recorded, 1)
    events += _planned(timeline, 2)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _head(process: int, title: str, threads: Sequence[str]) -> Iterator[Event]:
    yield _meta(process, 0, "process_name", title)
    yield {**_meta(process, 0, "process_sort_index", ""), "args": {"sort_index": process}}
    for number, name in enumerate(threads, 1):
        yield _meta(process, number, "thread_name", name)
        yield {**_meta(process, number, "thread_sort_index", ""), "args": {"sort_index": number}}


def _meta(process: int, thread: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _slice(
    where: tuple[int, int], name: str, kind: str, span: tuple[int, int], args: Event
) -> Event:
    start, end = span
    return {
        "ph": "X",
        "pid": where[0],
        "tid": where[1],
        "name": name,
        "cat": kind,
        "ts": us_from_ns(start),
        "dur": us_from_ns(end - start),
        "args": args,
    }


def _title(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)}: {names[0]} .. {names[-1]}"


def _planned(timeline: Timeline, process: int) -> Iterator[Event]:
    spans = timeline.tasks
    streams = [f"stream {name}" for name in dict.fromkeys(span.stream for span in spans)]
    channels = [
        f"channel {name}" for name in dict.fromkeys(launch.channel for launch in timeline.launches)
    ]
    threads = {name: number for number, name in enumerate([*streams, *channels], 1)}
    yield from _head(process, PLANNED, [*streams, *channels])
    place: dict[str, tuple[int, int, int]] = {}  # thread, start and end of what a name ran in
    for span in spans:
        thread = threads[f"stream {span.stream}"]
        place[span.name] = (thread, span.start_ns, span.end_ns)
        yield _slice((process, thread), span.name, "compute", (span.start_ns, span.end_ns), {})
    for launch in timeline.launches:
        for name in launch.names:
            thread = threads[f"channel {launch.channel}"]
            place[name] = (thread, launch.start_ns, launch.end_ns)
    for number, (launch, exposure) in enumerate(
        zip(timeline.launches, launch_exposures(timeline), strict=True), 1
    ):
        where = (process, threads[f"channel {launch.channel}"])
        args: Event = {
            "launch": number,
            "bytes": launch.bytes,
            "group": launch.key.group,
            "dtype": launch.key.dtype,
            "ready_us": us_from_ns(launch.ready_ns),
            "exposed_us": us_from_ns(exposure.exposed_ns),
            "why_exposed": str(exposure.reason),
            "names": list(launch.names),
        }
        times = (launch.start_ns, launch.end_ns)
        yield _slice(where, _title(launch.names), launch.key.kind, times, args)
        cause = _cause(timeline, launch, place)
        if cause is not None:
            thread, start, _ = cause
            arrow = {"cat": "ready", "name": "ready", "id": number, "pid": process}
            yield {**arrow, "ph": "s", "tid": thread, "ts": us_from_ns(start)}
            yield {
                **arrow,
                "ph": "f",
                "bp": "e",
                "tid": where[1],
                "ts": us_from_ns(launch.start_ns),
            }


def _cause(
    timeline: Timeline, launch: Launch, place: dict[str, tuple[int, int, int]]
) -> tuple[int, int, int] | None:
    """Return where the task ran whose end made a launch ready."""
    graph = timeline.problem.graph
    before = [place[task] for name in launch.names for task in graph.pred[name] if task in place]
    return next((found for found in before if found[2] == launch.ready_ns), None)


def _recorded(recorded: Recording, process: int) -> Iterator[Event]:
    launches: list[RecordedLaunch] = list(recorded.launches)
    computes: list[tuple[str, str, int, int]] = []
    if hasattr(recorded, "backward_end_ns"):
        computes.append(("backward", "backward", 0, recorded.backward_end_ns))
    else:
        # Streams ran their tasks one after the other; how long they paused is not kept.
        now: dict[str, int] = {}
        for task in recorded.tasks:
            if isinstance(task, Compute):
                start = now.get(task.stream, 0)
                now[task.stream] = start + task.duration_ns
                computes.append((task.name, task.stream, start, now[task.stream]))
    streams = [f"stream {name}" for name in dict.fromkeys(stream for _, stream, _, _ in computes)]
    groups = [f"group {name}" for name in dict.fromkeys(launch.group for launch in launches)]
    threads = {name: number for number, name in enumerate([*streams, *groups], 1)}
    yield from _head(process, RECORDED, [*streams, *groups])
    for name, stream, start, end in computes:
        yield _slice((process, threads[f"stream {stream}"]), name, "compute", (start, end), {})
    for number, launch in enumerate(launches, 1):
        if launch.start_ns is None or launch.end_ns is None:
            continue
        args: Event = {
            "launch": number,
            "bytes": launch.bytes,
            "group": launch.group,
            "dtype": launch.dtype,
            "issued_us": us_from_ns(launch.issued_ns),
            "names": list(launch.names),
        }
        where = (process, threads[f"group {launch.group}"])
        title = _title(launch.names) if launch.names else launch.kind
        yield _slice(where, title, launch.kind, (launch.start_ns, launch.end_ns), args)

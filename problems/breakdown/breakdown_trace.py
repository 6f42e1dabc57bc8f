"""Reading what ran on each device out of a profiler trace, for the breakdown of its time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from commsched.models.errors import InputError
from commsched.problems.breakdown.breakdown import Activity, DeviceWork, Sort, StepWindow
from commsched.problems.breakdown.breakdown_cpu import CPU_NOTE, processor_activities
from commsched.problems.breakdown.breakdown_names import (
    RECORD,
    CommArguments,
    CommOps,
    comm_arguments,
    kernel_kind,
    message_bytes,
    named_kind,
)
from commsched.problems.profiler.chrome_trace import (
    ChromeTrace,
    Event,
    Op,
    read_chrome_trace,
    timed_op,
)
from commsched.problems.profiler.trace_events import collective_kind
from commsched.problems.profiler.trace_kernels import KERNEL_CATS, kernel_of, links_of
from commsched.problems.recorded import Check, ImportReport
from commsched.problems.sources.source import Source

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})")
_OPERATION_CATS = frozenset({"cpu_op", "operator", "user_annotation"})
_NEVER_USED = frozenset({"python_function", "gpu_user_annotation", "trace", "overhead"})
_MOST_NAMED = 200
"""No name of a collective's operation is longer."""
_ROUNDING_NS = 2000
"""Start and length in whole microseconds let a kernel seem to end so much after the next begins."""


@dataclass(slots=True)
class _Found:
    """The events of a trace that matter here."""

    kernels: list[tuple[Op, str, CommArguments]] = field(default_factory=list)
    calls: dict[int | str, Op] = field(default_factory=dict)
    comm: CommOps = field(default_factory=CommOps)
    steps: list[tuple[int, Op]] = field(default_factory=list)
    hip: bool = False
    collective_names: dict[str, bool] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)


def read_device_work(source: Source | Path, name: str = "") -> list[DeviceWork]:
    """Return what ran on each device of one rank, from a profiler trace.

    Parameters
    ----------
    source
        A Chrome trace of PyTorch's profiler.
    name
        What to call it in results; by default its name without folders.

    Raises
    ------
    InputError
        If it cannot be read, or holds neither work of a GPU nor collectives of gloo.
    """
    trace = read_chrome_trace(source, only_complete=True, without=_NEVER_USED)
    found = _sort(trace.events)
    if found.kernels:
        devices = _devices(found)
        notes: tuple[str, ...] = ()
    else:
        activities = processor_activities(_operations(trace.events), found.comm)
        if not activities:
            raise InputError(
                f"{source}: nothing to break down: the trace has no kernel of a GPU (profile "
                "with ProfilerActivity.CUDA) and no collective of gloo"
            )
        devices, notes = {"cpu": activities}, (CPU_NOTE,)
    name = name or source.name
    rank, steps = _rank(trace.metadata), _windows(found.steps)
    report = _report(trace, name, found, devices)
    return [
        DeviceWork(name, rank, device, activities, report, steps, notes)
        for device, activities in sorted(devices.items())
    ]


def _sort(events: Iterable[Event]) -> _Found:
    found = _Found()
    for event in events:
        if event.ph != "X" or not isinstance(event.name, str):
            continue
        cat = event.cat.lower() if isinstance(event.cat, str) else ""
        if cat in KERNEL_CATS:
            op = timed_op(event, found.dropped)
            if op is not None:
                found.kernels.append((op, cat, comm_arguments(event)))
        elif "runtime" in cat or "driver" in cat:
            found.hip |= event.name.startswith("hip")
            correlation = links_of(event).correlation
            if isinstance(correlation, int | str) and (op := timed_op(event, Counter())):
                found.calls.setdefault(correlation, op)
        elif cat in _OPERATION_CATS:
            _file(found, event)
    found.comm.sort()
    return found


def _file(found: _Found, event: Event) -> None:
    """Keep an event of the processor if it is a step or speaks of a collective."""
    step = _STEP.match(event.name)
    kind = None if step or len(event.name) > _MOST_NAMED else collective_kind(event.name)
    if step is None and kind is None and event.name != RECORD:
        return
    op = timed_op(event, Counter())
    if op is None:
        return
    if step is not None:
        found.steps.append((int(step[1]), op))
    else:
        found.comm.add(kind or "", op)


def _operations(events: Iterable[Event]) -> list[Op]:
    """Return the operations of the processor."""
    found = []
    for event in events:
        cat = event.cat.lower() if isinstance(event.cat, str) else ""
        if event.ph == "X" and isinstance(event.name, str) and cat in ("cpu_op", "operator"):
            op = timed_op(event, Counter())
            if op is not None and not _STEP.match(op.name):
                found.append(op)
    return found


def _rank(metadata: Mapping[str, object]) -> int | None:
    info = metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if type(rank) is int and 0 <= rank < 2**31 else None


def _windows(steps: list[tuple[int, Op]]) -> tuple[StepWindow, ...]:
    """Return the steps; rounded times may overlap, steps do not."""
    first: dict[int, Op] = {}
    for number, op in sorted(steps, key=lambda step: step[1].start):
        first.setdefault(number, op)
    starts = [op.start for op in list(first.values())[1:]]
    return tuple(
        StepWindow(number, op.start, min(op.end, after))
        for (number, op), after in zip(first.items(), [*starts, 2**63], strict=False)
    )


def _devices(found: _Found) -> dict[str, list[Activity]]:
    devices: dict[str, list[Activity]] = defaultdict(list)
    for op, cat, arguments in found.kernels:
        device = arguments.device if type(arguments.device) is int else op.event.pid
        devices[str(device).strip()[:40]].append(_activity(found, op, cat, arguments))
    if found.hip:
        for activities in devices.values():
            _cut_overruns(activities, found.dropped)
    return dict(devices)


def _activity(found: _Found, op: Op, cat: str, arguments: CommArguments) -> Activity:
    stream = arguments.stream if type(arguments.stream) is int else op.tid
    text = str(stream).removeprefix("stream").strip()[:40]
    correlation = arguments.correlation
    call = found.calls.get(correlation) if isinstance(correlation, int | str) else None
    activity = Activity(Sort.COPY, op.start, op.end, text, None if call is None else call.start)
    if "kernel" not in cat:
        return activity
    if op.name not in found.collective_names:
        found.collective_names[op.name] = kernel_of(op, cat)[0].is_collective
    if not found.collective_names[op.name]:
        activity.sort = Sort.COMPUTATION
        return activity
    activity.sort = Sort.COLLECTIVE
    activity.kind = named_kind(arguments)
    activity.bytes = message_bytes(activity.kind, arguments) if activity.kind else None
    if call is not None and (not activity.kind or activity.bytes is None):
        kind, size = found.comm.describe(call.tid, call.start)
        if activity.kind in ("", kind):
            activity.kind, activity.bytes = kind, size
    activity.kind = activity.kind or kernel_kind(op.name)
    return activity


def _cut_overruns(activities: list[Activity], dropped: Counter[str]) -> None:
    """End ROCm's kernels where the next one on their stream begins.

    A stream runs one kernel at a time, but ROCm has written kernels of seconds. CUDA's graphs
    let kernels of one stream really overlap, so there the times stay as they are.
    """
    lanes: dict[str, list[Activity]] = defaultdict(list)
    for activity in activities:
        lanes[activity.stream].append(activity)
    for lane in lanes.values():
        lane.sort(key=lambda activity: (activity.start, activity.end))
        for one, after in pairwise(lane):
            if one.end > after.start + _ROUNDING_NS:
                one.end = after.start
                dropped["ends of ROCm kernels after the next one on their stream (cut)"] += 1


def _report(
    trace: ChromeTrace, name: str, found: _Found, devices: Mapping[str, list[Activity]]
) -> ImportReport:
    every = [activity for activities in devices.values() for activity in activities]
    counts = Counter(activity.sort for activity in every)
    words = {
        Sort.COMPUTATION: "kernels" if found.kernels else "operations",
        Sort.COLLECTIVE: "collectives",
        Sort.COPY: "copies and memsets",
    }
    runs = [activity for activity in every if activity.sort is Sort.COLLECTIVE]
    assumptions = []
    if found.kernels and (silent := sum(activity.launched is None for activity in every)):
        assumptions.append(
            f"{silent} of {len(every)} kernels and copies have no recorded launch (most were "
            "launched before the recording began): they count, but belong to no step"
        )
    unsized = sum(run.bytes is None for run in runs)
    if unsized:
        assumptions.append(f"the sizes of {unsized} of {len(runs)} collectives are not recorded")
    checks = []
    if runs:
        known = sum(bool(run.kind) for run in runs)
        text = f"the kind of {known} of {len(runs)} collectives is known"
        checks.append(Check(text, known == len(runs)))
    if found.kernels and (over := sum(map(_overlapping, devices.values()))):
        checks.append(
            Check(f"{over} kernels end after the next one on their stream has begun", False)
        )
    return ImportReport(
        source=name,
        events_read=trace.events_read,
        kept={words[sort]: counts[sort] for sort in Sort if counts[sort]},
        dropped=dict(found.dropped + Counter(trace.repairs)),
        assumptions=tuple(assumptions),
        checks=tuple(checks),
    )


def _overlapping(activities: list[Activity]) -> int:
    """Count the activities that overlap the next one on their stream by more than rounding."""
    last: dict[str, int] = {}
    count = 0
    for one in sorted(activities, key=lambda activity: (activity.start, activity.end)):
        count += one.start + _ROUNDING_NS < last.get(one.stream, one.start)
        last[one.stream] = max(last.get(one.stream, one.end), one.end)
    return count

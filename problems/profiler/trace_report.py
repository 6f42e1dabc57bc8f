"""Turning a worked-out step into a :class:`RecordedStep` with a report that hides nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from commsched.models.errors import InputError
from commsched.models.step import Gradient
from commsched.problems.profiler.chrome_trace import ChromeTrace
from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_groups import find_groups
from commsched.problems.profiler.graph_messages import message_of_op
from commsched.problems.profiler.trace_draft import Draft, DraftLaunch
from commsched.problems.profiler.trace_events import TraceEvents
from commsched.problems.profiler.trace_launches import count_collectives
from commsched.problems.recorded import Check, ImportReport, RecordedLaunch, RecordedStep

_LOST = ("dropped", "cut off")
_ROUNDING_NS = 2000
"""Traces of 2021 to 2023 have whole microseconds."""
_SUFFIXES = (".gz", ".json", ".trace", ".pt")


def report_step(
    trace: ChromeTrace,
    events: TraceEvents,
    draft: Draft,
    drafts: Sequence[Draft],
    notes: Sequence[str],
) -> RecordedStep:
    """Return the chosen step.

    Parameters
    ----------
    trace, events
        The trace.
    draft
        The chosen step.
    drafts
        All steps that were worked out, to compare their launches.
    notes
        Sentences on the choice.
    """
    names = gradient_names(draft)
    try:
        gradients = tuple(
            Gradient(name, size.bytes, ready, size.dtype)
            for name, size, ready in zip(names, draft.sizes, draft.ready, strict=True)
        )
    except InputError as error:
        raise InputError(f"{trace.source}: {draft.one.name}: {error}") from None
    launches = tuple(
        RecordedLaunch(
            names=tuple(names[k] for k in launch.members),
            kind="allreduce",
            group=launch.launch.group,
            dtype=launch.dtype(draft.sizes),
            bytes=launch.bytes(draft.sizes),
            issued_ns=launch.launch.op.start - draft.origin,
            start_ns=None if launch.ran is None else launch.ran[0],
            end_ns=None if launch.ran is None else launch.ran[1],
            exact=launch.exact,
        )
        for launch in draft.launches
    )
    report = ImportReport(
        source=trace.source.name,
        events_read=trace.events_read,
        kept=_kept(events, draft, drafts),
        dropped=_dropped(trace, events, draft),
        assumptions=tuple(_assumptions(trace, events, draft, notes)),
        checks=tuple(_checks(trace, events, draft, drafts)),
    )
    return RecordedStep(
        name=f"{file_stem(trace.source.name)} {draft.one.name}",
        gradients=gradients,
        launches=launches,
        backward_end_ns=draft.backward_end,
        step_name=draft.one.name,
        report=report,
        ranks=_ranks(trace, draft),
        origin_ns=draft.origin,
    )


def _ranks(trace: ChromeTrace, draft: Draft) -> int | None:
    """Return the number of ranks of the launches' only group; None if that is not known."""
    calls = []
    for launch in draft.launches:
        call = Call("allreduce", launch.launch.op)
        for part in launch.launch.parts:
            call.message.learn(message_of_op(part))
        calls.append(call)
    found = find_groups(calls, trace.metadata).ranks
    return next(iter(found.values())) if len(found) == 1 else None


def gradient_names(draft: Draft) -> list[str]:
    """Return the gradients' names: number and shape."""
    width = max(3, len(str(len(draft.sizes) - 1)))
    return [
        f"grad{k:0{width}d} [{'x'.join(map(str, size.shape)) or 'scalar'}]"
        for k, size in enumerate(draft.sizes)
    ]


def file_stem(name: str) -> str:
    """Return a trace's name without what profilers append to it."""
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return stem or name


def _kept(events: TraceEvents, draft: Draft, drafts: Sequence[Draft]) -> dict[str, int]:
    kept = {
        "gradients": len(draft.sizes),
        "launches": len(draft.launches),
        "steps worked out": len(drafts),
        "steps in the trace": len(events.steps),
    }
    if draft.on_gpu:
        kept["kernels of the step"] = draft.kernels
    return kept


def _dropped(trace: ChromeTrace, events: TraceEvents, draft: Draft) -> dict[str, int]:
    dropped = Counter(events.dropped)
    dropped.update(draft.dropped)
    for place, count in draft.one.elsewhere.items():
        dropped[f"all-reduces {place}"] += count
    for kind, count in count_collectives(events, draft.one.start, draft.one.end).items():
        if kind != "allreduce":
            dropped[f"{kind} collectives"] += count
    dropped.update(not_read(trace))
    return {reason: count for reason, count in dropped.items() if count}


def _assumptions(
    trace: ChromeTrace, events: TraceEvents, draft: Draft, first: Sequence[str]
) -> list[str]:
    one = draft.one
    notes = list(first)
    if draft.on_gpu:
        notes.append(
            "time starts with the step's first kernel; a gradient is ready when the last kernel "
            "ends that backward launched before its hook"
        )
    else:
        notes.append("time starts with the step; a gradient is ready when its hook starts")
    notes += placed_kernels(events)
    if draft.shapes_from is not None:
        notes.append(
            f"the gradients' sizes are those of {draft.shapes_from.name}, in the same order"
        )
    notes.append(
        "no event names the members of a bucket: they are the gradients since the launch before "
        "whose bytes add up; two gradients of one size cannot be told apart"
    )
    for number, launch in enumerate(draft.launches):
        if not launch.exact:
            notes.append(_misfit(draft, number, launch))
    if draft.sent_as is not None:
        notes.append(f"a communication hook sent the gradients as {draft.sent_as}: sizes are so")
    scattered = sum(_is_scattered(launch.members) for launch in draft.launches)
    if scattered:
        notes.append(f"{scattered} launches hold gradients that do not follow each other")
    if any(not launch.in_hook for launch in draft.launches):
        late = sum(not launch.in_hook for launch in draft.launches)
        notes.append(
            f"{late} all-reduces were issued after the last gradient's hook began and were told "
            "apart by size"
        )
    others = count_collectives(events, one.hooks[0].start, one.to)
    others.pop("allreduce", None)
    if others:
        shown = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        notes.append(f"backward also ran {shown}, which the problem leaves out")
    backward = one.hooks[0].start
    earlier = bisect_left(events.hooks, backward, key=lambda hook: hook.start) - 1
    before = max(one.start, events.hooks[earlier].end if earlier >= 0 else one.start)
    if before > one.start and draft.passes_with_launches == 1:
        notes.append(
            "the step accumulates gradients: an earlier backward pass of it sends nothing, and its "
            "time comes before the gradients' ready times"
        )
    forwards = sum(before <= op.start < backward for op in events.forwards)
    if forwards > 1 and draft.passes_with_launches == 1:
        notes.append(f"{forwards} DistributedDataParallel modules take part")
    if any(not launch.launch.issued for launch in draft.launches):
        notes.append("the issue of the all-reduces was not recorded: gloo's own times stand for it")
    world = trace.metadata.get("distributedInfo")
    if isinstance(world, dict) and world.get("world_size") == 1:
        notes.append("one rank only: its all-reduces moved nothing between ranks")
    return [*notes, *mended(trace)]


def not_read(trace: ChromeTrace) -> dict[str, int]:
    """Return what was left out or lost while reading the file, by reason."""
    left_out = sum(trace.left_out.values())
    return {"no complete events (metadata, flows, marks)": left_out} | {
        what: count
        for what, count in trace.repairs.items()
        if what.endswith(_LOST[0]) or _LOST[1] in what
    }


def placed_kernels(events: TraceEvents) -> list[str]:
    """Return a sentence on the kernels whose launch is known only by the order on their stream."""
    if not events.placed:
        return []
    return [
        f"{events.placed} kernels of the trace have no recorded launch and ran between others of "
        "their stream: they are taken to be launched there"
    ]


def mended(trace: ChromeTrace) -> list[str]:
    """Return sentences on what was mended while reading the file."""
    lost = not_read(trace)
    return [
        f"mended while reading: {what} ({count})"
        for what, count in trace.repairs.items()
        if what not in lost
    ]


def _misfit(draft: Draft, number: int, launch: DraftLaunch) -> str:
    have = sum(draft.sizes[k].bytes for k in launch.members)
    if launch.launch.elements is None:
        return (
            f"launch {number}: its size was not recorded, {have} bytes are those of its gradients"
        )
    return (
        f"launch {number}: sent {launch.bytes(draft.sizes)} bytes, its gradients have {have}: "
        "parameters without a recorded gradient, padding, or members in another order"
    )


def _is_scattered(members: tuple[int, ...]) -> bool:
    return bool(members) and members[-1] - members[0] + 1 != len(members)


def _ready(draft: Draft, launch: DraftLaunch) -> bool:
    assert launch.ran is not None
    return draft.ready[launch.members[-1]] <= launch.ran[0] + _ROUNDING_NS


def _checks(
    trace: ChromeTrace, events: TraceEvents, draft: Draft, drafts: Sequence[Draft]
) -> list[Check]:
    launches = draft.launches
    count = len(launches)
    gradients = len(draft.sizes)
    exact = sum(launch.exact for launch in launches)
    timed = sum(launch.ran is not None for launch in launches)
    checks = [
        Check(f"buckets reproduced to the byte: {exact} of {count}", exact == count),
        Check(
            f"gradients that a launch holds: {gradients - draft.left} of {gradients}",
            draft.left == 0,
        ),
        Check(f"launches with recorded times: {timed} of {count}", timed == count),
        Check(
            f"ready times in the order of the hooks: {gradients - draft.raised} of {gradients}"
            + (f" ({draft.raised} raised to the one before)" if draft.raised else ""),
            draft.raised == 0,
        ),
    ]
    both = [launch for launch in launches if launch.members and launch.ran]
    in_time = sum(_ready(draft, launch) for launch in both)
    checks.append(
        Check(
            f"launches that ran after their gradients were ready: {in_time} of {len(both)}",
            in_time == len(both),
        )
    )
    shapes = {tuple(launch.bytes(d.sizes) for launch in d.launches) for d in drafts}
    if len(drafts) > 1:
        checks.append(Check(f"the same launches in all {len(drafts)} steps", len(shapes) == 1))
    groups = {launch.launch.group for launch in launches}
    checks.append(Check(f"one process group: {len(groups)} found", len(groups) == 1))
    if draft.passes_with_launches > 1:
        checks.append(
            Check(
                f"one backward pass with all-reduces in the step: {draft.passes_with_launches} "
                "found, the last of the longest ones was taken",
                passed=False,
            )
        )
    if draft.on_gpu:
        checks.append(
            Check(
                f"kernels that the step launched and that were not recorded: {draft.silent}",
                draft.silent == 0,
            )
        )
    elif events.launch_calls or any(launch.launch.on_gpu for launch in launches):
        checks.append(
            Check(
                "kernels of backward: none were recorded, so all times are the processor's and "
                "not the GPU's",
                passed=False,
            )
        )
    if trace.repairs:
        checks.append(Check(f"the file is intact: {sum(trace.repairs.values())} faults", False))
    return checks

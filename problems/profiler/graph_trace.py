"""Reading one step of a profiler trace as a general graph."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from commsched.models.errors import CycleError, DeadlockError, InputError
from commsched.models.units import format_ns
from commsched.problems.profiler.chrome_trace import ChromeTrace
from commsched.problems.profiler.graph_calls import Call, Calls, find_calls
from commsched.problems.profiler.graph_check import (
    channels_of,
    overlaps,
    replay,
    replay_check,
)
from commsched.problems.profiler.graph_cpu import CpuWiring
from commsched.problems.profiler.graph_events import GraphEvents, look_again
from commsched.problems.profiler.graph_gpu import GpuWiring
from commsched.problems.profiler.graph_groups import find_groups, shared_streams
from commsched.problems.profiler.graph_members import find_members
from commsched.problems.profiler.graph_names import Names
from commsched.problems.profiler.graph_tasks import StepTasks, build_tasks
from commsched.problems.profiler.graph_waits import EVIDENCE, find_waits
from commsched.problems.profiler.trace_draft import Draft
from commsched.problems.profiler.trace_events import TraceEvents
from commsched.problems.profiler.trace_gpu import StepKernels
from commsched.problems.profiler.trace_kernels import NO_LAUNCH
from commsched.problems.profiler.trace_report import file_stem, mended, not_read, placed_kernels
from commsched.problems.profiler.trace_steps import Window, step_windows
from commsched.problems.recorded import Check, ImportReport, RecordedGraph

_MAX_CALLS = 20_000


@dataclass(slots=True)
class _Step:
    """One step of the trace: its window, its collectives, and whether all of it was recorded."""

    window: Window
    calls: list[Call]

    @property
    def completeness(self) -> tuple[int, bool]:
        """How many collectives it has, and whether all have times; larger is better."""
        return len(self.calls), all(call.ran is not None for call in self.calls)


def read_graph(
    trace: ChromeTrace,
    events: TraceEvents,
    *,
    step: int | None = None,
    draft: Draft | None = None,
    why: str = "",
    notes: Sequence[str] = (),
) -> RecordedGraph:
    """Return one step of a trace as a graph.

    Parameters
    ----------
    trace, events
        The trace.
    step
        The N of ``ProfilerStep#N``; by default the step of median length among the complete ones.
    draft
        The step as a DDP step, if it is one: it says which step, and which gradients are in which
        bucket.
    why
        A sentence on the choice of that step.
    notes
        Sentences for the report.

    Raises
    ------
    InputError
        If the trace has no such step, or none with collectives that can be planned.
    """
    on_gpu = any(not kernel.is_collective for kernel in events.kernels)
    again = look_again(trace.events, moments=not on_gpu)
    found = find_calls(again, events.kernels)
    if not found.calls:
        raise InputError(f"{trace.source}: the trace has no collective; it has {contents(events)}")
    if not on_gpu and (events.launch_calls or not any(call.ran for call in found.calls)):
        raise InputError(
            f"{trace.source}: the trace has {len(found.calls)} collectives, but {_no_times(events)}"
        )
    steps = _steps(trace, events, found, step)
    chosen, reason = _choose(trace, steps, draft, asked=step is not None)
    window = chosen.window
    if draft is not None and not window.start <= draft.one.hooks[0].start < window.end:
        draft = None
    if len(chosen.calls) > _MAX_CALLS:
        raise InputError(
            f"{trace.source}: {chosen.window.name} has {len(chosen.calls)} collectives: too many "
            "for one step"
        )
    try:
        return _graph(
            _Context(trace, events, again, found), chosen, steps, draft, [why or reason, *notes]
        )
    except (CycleError, DeadlockError) as error:
        raise InputError(
            f"{trace.source}: {chosen.window.name}: the recorded times contradict each other: "
            f"{str(error)[:300]}"
        ) from None
    except InputError as error:
        text = str(error)
        if text.startswith(f"{trace.source}: "):
            raise
        raise InputError(f"{trace.source}: {chosen.window.name}: {text}") from None


def _no_times(events: TraceEvents) -> str:
    """Return why there is nothing to place a trace's collectives by."""
    if events.kernels:
        return "no computation beside them: there is nothing that they could overlap"
    untied = _untied(events)
    if untied:
        return (
            f"not when they ran: its {untied} kernels and copies do not say what launched them (no "
            "correlation with a call that was recorded)"
        )
    return "not when they ran: neither kernels of a GPU nor gloo's threads were recorded"


def _untied(events: TraceEvents) -> int:
    return sum(count for reason, count in events.dropped.items() if reason.endswith(NO_LAUNCH))


def contents(events: TraceEvents) -> str:
    """Return what a trace holds, for messages."""
    kernels = sum(not kernel.is_collective for kernel in events.kernels)
    untied = _untied(events)
    passes = max(1, len(events.steps))
    parts = [
        (len(events.hooks), f"{len(events.hooks)} gradients in {passes} steps"),
        (kernels, f"{kernels} kernels and copies"),
        (untied, f"{untied} kernels and copies whose launch was not recorded"),
        (len(events.evaluated), f"{len(events.evaluated)} functions of backward"),
    ]
    return ", ".join(text for count, text in parts if count) or "neither kernels nor gradients"


def _steps(trace: ChromeTrace, events: TraceEvents, found: Calls, step: int | None) -> list[_Step]:
    steps = []
    for window in step_windows(trace.source, events, step):
        first = bisect_left(found.calls, window.start, key=lambda call: call.issued)
        last = bisect_left(found.calls, window.end, key=lambda call: call.issued)
        steps.append(_Step(window, found.calls[first:last]))
    return steps


def _choose(
    trace: ChromeTrace, steps: Sequence[_Step], draft: Draft | None, *, asked: bool
) -> tuple[_Step, str]:
    """Return the step to take and a sentence about it."""
    with_calls = [one for one in steps if one.calls]
    if not with_calls:
        where = steps[0].window.name if asked else "no step"
        has = "has no collective" if asked else "of the trace has a collective"
        raise InputError(f"{trace.source}: {where} {has}")
    if draft is not None:
        for one in with_calls:
            if one.window.start <= draft.one.hooks[0].start < one.window.end:
                return one, f"the step is {one.window.name}"
    timed = [one for one in with_calls if one.completeness[1]] or with_calls
    most = max(len(one.calls) for one in timed)
    # A step that was cut off has fewer; steps may differ by a few, as with metrics now and then.
    complete = [one for one in timed if 10 * len(one.calls) >= 9 * most]
    complete.sort(key=lambda one: (one.window.end - one.window.start, one.window.start))
    chosen = complete[(len(complete) - 1) // 2]
    why = f"the step is {chosen.window.name}"
    if not asked and len(steps) > 1:
        why += f": the one of median length among {len(complete)} complete steps"
    return chosen, why


@dataclass(frozen=True, slots=True)
class _Context:
    trace: ChromeTrace
    events: TraceEvents
    again: GraphEvents
    found: Calls


def _graph(
    context: _Context,
    chosen: _Step,
    steps: Sequence[_Step],
    draft: Draft | None,
    notes: list[str],
) -> RecordedGraph:
    trace, events, again, found = context.trace, context.events, context.again, context.found
    window, calls = chosen.window, chosen.calls
    names = Names(events, again.annotations, window.start, window.end)
    labels = [names.around(call.op) for call in calls]
    groups = find_groups(found.calls, trace.metadata)
    waits = find_waits(events, again, found, calls, labels)
    kernels = StepKernels(events.kernels, window.start, window.end)
    wired: GpuWiring | CpuWiring
    if any(not kernel.is_collective for kernel in kernels.kernels):
        wired = GpuWiring(again, kernels.kernels, calls, waits)
    elif again.moments:
        wired = CpuWiring(again, window.start, window.end, calls, waits)
    else:
        raise InputError("the step launched no kernel but those of its collectives")
    members = {} if draft is None else find_members(draft, calls, wired)
    tasks = build_tasks(wired, calls, labels, groups, members, names)
    if not tasks.launches:
        raise InputError(
            f"no size was recorded of any of its {len(calls)} collectives (coalesced calls have "
            "none, others need record_shapes=True), so they cannot be priced"
        )
    shared, scattered = shared_streams(calls, groups)
    channels = channels_of(shared, tasks, groups)
    played = replay(tasks, channels)
    report = ImportReport(
        source=trace.source.name,
        events_read=trace.events_read,
        kept=_kept(context, tasks, wired, kernels),
        dropped=_dropped(context, tasks, draft),
        assumptions=(
            *notes,
            *groups.notes,
            *_assumptions(context, tasks, wired, calls),
            *_bucket_notes(draft, len(members)),
        ),
        checks=(
            *_checks(context, tasks, wired, chosen, steps),
            Check(
                f"groups that ran on several streams: {scattered}",
                scattered == 0,
            ),
            replay_check(tasks, played),
            *_file_checks(trace),
        ),
    )
    used = {launch.group for launch in tasks.launches}
    return RecordedGraph(
        name=f"{file_stem(trace.source.name)} {window.name}",
        tasks=tuple(tasks.tasks),
        launches=tuple(tasks.launches),
        step_name=window.name,
        report=report,
        channels=channels,
        ranks={group: size for group, size in groups.ranks.items() if group in used},
        end_ns=tasks.end,
        origin_ns=wired.origin,
    )


def _kept(
    context: _Context, tasks: StepTasks, wired: GpuWiring | CpuWiring, kernels: StepKernels
) -> dict[str, int]:
    kept = {
        "compute tasks": len(tasks.tasks) - sum(tasks.kinds.values()) - tasks.fixed,
        "compute streams": len(wired.lanes),
        "launches": len(tasks.launches),
    }
    kept |= {f"{kind} calls": count for kind, count in sorted(tasks.kinds.items())}
    kept["steps in the trace"] = len(context.events.steps)
    if isinstance(wired, GpuWiring):
        kept["kernels of the step"] = len(kernels.kernels)
    return kept


def _dropped(context: _Context, tasks: StepTasks, draft: Draft | None) -> dict[str, int]:
    dropped = Counter(context.events.dropped)
    dropped.pop("operations that say nothing of gradients or communication", None)
    dropped.update(context.found.dropped)
    dropped["collectives without size and times"] += tasks.lost
    dropped["annotations beyond the first ones"] += context.again.cut_annotations
    if draft is not None:
        dropped["parameters that got no gradient"] += draft.dropped[
            "parameters that got no gradient"
        ]
    dropped.update(not_read(context.trace))
    return {reason: count for reason, count in dropped.items() if count}


def _assumptions(
    context: _Context,
    tasks: StepTasks,
    wired: GpuWiring | CpuWiring,
    calls: Sequence[Call],
) -> list[str]:
    notes = []
    if isinstance(wired, GpuWiring):
        notes.append(
            "time starts with the step's first kernel; work belongs to the step that launched it"
        )
        notes.append(
            "a collective is ready when the work has ended that its thread had launched before it"
        )
        notes += placed_kernels(context.events)
    else:
        notes.append("time starts with the step; a collective is ready when it is issued")
    found = Counter(wired.why.values())
    shown = "; ".join(f"{found[why]}: {why}" for why in EVIDENCE if found[why])
    notes.append(f"how it is known what waits for a collective: {shown}")
    if tasks.idle:
        notes.append(
            f"{format_ns(tasks.idle)} in which the main compute stream was idle and no collective "
            "explains it (the processor was late) count as work: no plan removes them"
        )
    if tasks.fixed:
        notes.append(
            f"{tasks.fixed} collectives without a recorded size or kind are work of their own "
            "with their recorded times: no plan changes them"
        )
    reduces = sum(call.was_reduce for call in calls)
    if reduces:
        notes.append(f"{reduces} reduces to one rank are counted as broadcasts of the same bytes")
    one_sided = sum(call.kind == "all_to_all" and call.message.received is None for call in calls)
    if one_sided:
        notes.append(
            f"of {one_sided} all-to-alls only what this rank sends is recorded: it is taken to "
            "receive no more"
        )
    world = context.trace.metadata.get("distributedInfo")
    if isinstance(world, dict) and world.get("world_size") == 1:
        notes.append("one rank only: its collectives moved nothing between ranks")
    return [*notes, *mended(context.trace)]


def _bucket_notes(draft: Draft | None, buckets: int) -> list[str]:
    if draft is None:
        return []
    notes = [f"{buckets} launches are buckets of gradients, told apart by their sizes"]
    whole = len(draft.launches) - buckets
    if whole:
        notes.append(
            f"{whole} launches of gradients are collectives as a whole: the bytes of the gradients "
            "before them do not add up to theirs"
        )
    return notes


def _checks(
    context: _Context,
    tasks: StepTasks,
    wired: GpuWiring | CpuWiring,
    chosen: _Step,
    steps: Sequence[_Step],
) -> list[Check]:
    what = "kernels" if isinstance(wired, GpuWiring) else "runs on gloo's threads"
    total = tasks.total
    overlapping = overlaps(tasks)
    checks = [
        Check(f"collectives matched with {what}: {tasks.timed} of {total}", tasks.timed == total),
        Check(
            f"collectives whose size is recorded: {tasks.sized} of {total}", tasks.sized == total
        ),
        Check(
            f"launches that overlap another one of their group: {overlapping}"
            + (" (a plan runs them one by one)" if overlapping else ""),
            overlapping == 0,
        ),
    ]
    if len(steps) > 1:
        counts = {len(one.calls) for one in steps if one.calls}
        checks.append(Check("the same number of collectives in all steps", len(counts) == 1))
    if isinstance(wired, GpuWiring):
        silent = context.events.silent
        lost = bisect_left(silent, chosen.window.end) - bisect_left(silent, chosen.window.start)
        checks.append(
            Check(f"kernels that the step launched and that were not recorded: {lost}", lost == 0)
        )
    return checks


def _file_checks(trace: ChromeTrace) -> list[Check]:
    if not trace.repairs:
        return []
    return [Check(f"the file is intact: {sum(trace.repairs.values())} faults", False)]

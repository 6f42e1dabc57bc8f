"""Reading PyTorch profiler traces of DDP steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from commsched.models.errors import InputError
from commsched.problems.chrome_trace import ChromeTrace, Event, read_chrome_trace
from commsched.problems.recorded import RecordedStep
from commsched.problems.trace_draft import Draft, draft_step
from commsched.problems.trace_events import TraceEvents, sort_events
from commsched.problems.trace_launches import count_collectives, find_allreduces
from commsched.problems.trace_report import report_step
from commsched.problems.trace_sizes import SizeSource
from commsched.problems.trace_steps import BackwardPass, backward_passes

_MAX_WORK = 20_000_000
_SNIFFED_EVENTS = 20_000


def read_profiler_trace(
    path: str | Path, *, step: int | None = None, sizes: str | Path | None = None
) -> RecordedStep:
    """Read one DDP step out of a PyTorch profiler trace.

    The gradients are autograd's ``AccumulateGrad`` events. On a GPU a gradient is ready when the
    last kernel ends that backward had launched before, on a processor when its event starts.
    The launches are the all-reduces inside those events (DDP's hooks), with the times at which
    they ran. Time starts with the step's first kernel, or without a GPU with the step itself.

    Parameters
    ----------
    path
        The trace: Chrome-trace JSON, plain or gzip.
    step
        The N of ``ProfilerStep#N``; by default the step of median length among those whose
        gradients and all-reduces are complete.
    sizes
        A PyTorch execution trace of the same model. It gives the gradients' sizes where the
        profiler ran without ``record_shapes=True``.

    Raises
    ------
    InputError
        If a file cannot be read, the trace has no such step, is not of DDP, or lacks the sizes.
    """
    path = Path(path)
    trace = read_chrome_trace(path)
    events = sort_events(trace.events)
    _check_gradients(path, trace, events)
    launches = find_allreduces(events)
    steps = backward_passes(path, events, launches, step)
    passes = [one for one_step in steps for one in one_step]
    if not any(one.in_hooks or one.after for one in passes):
        raise _no_launches(path, events, passes, step)
    drafts = _drafts(path, events, steps, SizeSource(None if sizes is None else Path(sizes)))
    if not drafts:
        raise _no_launches(path, events, passes, step)
    chosen, why = _choose(drafts, asked=step is not None)
    notes = [why]
    if sizes is not None and chosen.shapes_from is None:
        notes.append(f"the trace has its own sizes: {Path(sizes).name} was not read")
    return report_step(trace, events, chosen, drafts, notes)


def is_profiler_trace(top: object) -> bool:
    """Return whether a file's content is a PyTorch profiler trace.

    Parameters
    ----------
    top
        The decoded top level of the JSON, or a loaded :class:`ChromeTrace`.
    """
    events: object = top
    if isinstance(top, ChromeTrace):
        events = top.events
    elif isinstance(top, Mapping):
        events = top.get("traceEvents")
    if not isinstance(events, Sequence) or isinstance(events, str | bytes):
        return False
    return any(_is_pytorch(event) for event in events[:_SNIFFED_EVENTS])


def _is_pytorch(event: object) -> bool:
    if isinstance(event, Event):
        name, cat = event.name, event.cat
    elif isinstance(event, Mapping):
        name, cat = event.get("name"), event.get("cat")
    else:
        return False
    if isinstance(cat, str) and cat.lower() in ("cpu_op", "cuda_runtime", "operator"):
        return True
    return isinstance(name, str) and name.startswith(("ProfilerStep#", "autograd::", "aten::"))


def _check_gradients(path: Path, trace: ChromeTrace, events: TraceEvents) -> None:
    if not trace.events:
        raise InputError(f"{path}: the trace has no events")
    if not events.hooks:
        raise InputError(
            f"{path}: the trace has no gradient (no torch::autograd::AccumulateGrad event), "
            f"so it holds no backward pass of DDP; it has {_contents(events)}"
        )
    if len(events.processes) > 1:
        raise InputError(
            f"{path}: the trace holds the gradients of {len(events.processes)} processes: "
            "name the trace of one rank"
        )


def _contents(events: TraceEvents) -> str:
    counts = {kind: n for kind, n in count_collectives(events).items() if n}
    on_gloo = len(events.gloo) + events.gloo_others
    if not counts and on_gloo:
        return f"{on_gloo} collectives on gloo's threads"
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "no collectives"


def _no_launches(
    path: Path, events: TraceEvents, passes: Sequence[BackwardPass], step: int | None
) -> InputError:
    """Say what the trace is, if it is not a trace of DDP."""
    where = "the trace" if step is None else f"step {step}"
    if not passes:
        return InputError(f"{path}: {where} has no gradient (no AccumulateGrad event)")
    gradients = max(len(one.hooks) for one in passes)
    begin = f"{path}: {where} is not of DDP: {gradients} gradients in a backward pass"
    places = Counter[str]()
    for one in passes:
        places.update(one.elsewhere)
        places["in a gradient's hook that hold none of them"] += len(one.in_hooks)
        places["after backward that hold none of them"] += len(one.after)
    if places.total():
        shown = ", ".join(f"{count} {place}" for place, count in places.items() if count)
        return InputError(
            f"{begin}, but the all-reduces are not those of DDP's buckets ({shown}): compiled or "
            "other communication, whose buckets the trace does not tell"
        )
    if count_collectives(events).get("reduce_scatter"):
        return InputError(
            f"{begin} without all-reduces; it has {_contents(events)}: sharded training "
            "(FSDP or ZeRO)"
        )
    return InputError(f"{begin}, but no all-reduce; it has {_contents(events)}")


def _drafts(
    path: Path, events: TraceEvents, steps: Sequence[Sequence[BackwardPass]], sizes: SizeSource
) -> list[Draft]:
    """Work out each step whose backward pass is complete; its last one, if there are several."""
    communicating = [[one for one in passes if one.in_hooks or one.after] for passes in steps]
    longest = max(len(one.hooks) for passes in communicating for one in passes)
    drafts = []
    for passes in communicating:
        for one in reversed(passes):
            if len(one.hooks) * (len(one.in_hooks) + len(one.after)) > _MAX_WORK:
                raise InputError(
                    f"{path}: {one.name} has {len(one.hooks)} gradients and "
                    f"{len(one.in_hooks) + len(one.after)} all-reduces: too many for one step"
                )
            if len(one.hooks) < longest:
                continue  # Cut off at the edge of the recording, or another module's.
            found = draft_step(path, events, one, sizes)
            if found is not None:
                found.passes_with_launches = len(passes)
                drafts.append(found)
                break
    return drafts


def _choose(drafts: Sequence[Draft], *, asked: bool) -> tuple[Draft, str]:
    """Return the step of median length among the best recorded ones, and a sentence about it."""
    best = max(draft.completeness for draft in drafts)
    complete = [draft for draft in drafts if draft.completeness == best]
    complete.sort(key=lambda draft: (draft.length, draft.one.start))
    chosen = complete[(len(complete) - 1) // 2]
    why = f"the step is {chosen.one.name}"
    if not asked and len(drafts) > 1:
        why += f": the one of median length among {len(complete)} complete steps"
    return chosen, why

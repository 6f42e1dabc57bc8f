"""Cutting a profiler trace into steps and backward passes, and all-reduces into those passes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from commsched.models.errors import InputError
from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_events import ACCUMULATE, TraceEvents
from commsched.problems.profiler.trace_launches import AllReduce
from commsched.problems.sources.source import Source

NOT_SENT = "gradients of micro-batches that were not sent (gradient accumulation)"


class Window(NamedTuple):
    """A step of the trace: its name, and from when to when the processor worked on it."""

    name: str
    start: int
    end: int


@dataclass(slots=True)
class BackwardPass:
    """One backward pass: its window, its gradients' hooks and its all-reduces.

    Attributes
    ----------
    name
        Which step of the trace this is.
    start, end
        The step's window, in nanoseconds on the trace's clock.
    hooks
        The AccumulateGrad events, one for each gradient.
    from_, to
        Autograd's events between these times belong to this pass.
    in_hooks
        The all-reduces that were issued inside a gradient's hook.
    after
        The all-reduces that were issued after the last hook began, outside of the hooks.
    elsewhere
        How many other all-reduces the window has, by where they are.
    not_sent
        How many gradients other backward passes of the step have that sent none.
    """

    name: str
    start: int
    end: int
    hooks: list[Op]
    from_: int
    to: int
    in_hooks: list[AllReduce] = field(default_factory=list)
    after: list[AllReduce] = field(default_factory=list)
    elsewhere: Counter[str] = field(default_factory=Counter)
    not_sent: Counter[str] = field(default_factory=Counter)

    @property
    def threads(self) -> set[str]:
        """The threads that ran the hooks."""
        return {hook.tid for hook in self.hooks}


def backward_passes(
    path: Path | Source, events: TraceEvents, launches: Sequence[AllReduce], step: int | None
) -> list[list[BackwardPass]]:
    """Return the backward passes of each step, those without all-reduces too.

    A ``ProfilerStep#N`` is a step. A trace without any is one step, unless a forward pass or the
    optimizer starts between two gradients: then each backward pass is taken as a step.

    Parameters
    ----------
    path
        The file, for messages.
    events, launches
        The trace.
    step
        Only this step; None for all.

    Raises
    ------
    InputError
        If the trace does not have the step.
    """
    marks = _outside(events.starts, events.hooks)
    steps = []
    for name, start, end in step_windows(path, events, step):
        steps.append(_passes(events, marks, name, start, end))
    if not events.steps and len(steps[0]) > 1:
        steps = [[one] for one in _as_steps(events, steps[0])]
    _assign(steps, events, launches)
    for passes in steps:
        quiet = sum(len(one.hooks) for one in passes if not (one.in_hooks or one.after))
        for one in passes:
            one.not_sent[NOT_SENT] = quiet
    return steps


def step_windows(path: Path | Source, events: TraceEvents, step: int | None) -> list[Window]:
    """Return the steps of a trace; the whole trace is one where none is marked.

    Parameters
    ----------
    path
        The file, for messages.
    events
        The trace.
    step
        Only this step; None for all.

    Raises
    ------
    InputError
        If the trace does not have the step.
    """
    if step is not None and step not in {number for number, _ in events.steps}:
        have = ", ".join(dict.fromkeys(str(number) for number, _ in events.steps))
        have = f"has {have[:200]}" if have else "has no ProfilerStep: it is one step as a whole"
        raise InputError(f"{path}: step {step} is not in the trace, which {have}")
    if not events.steps:
        return [Window("the whole trace", events.first, events.last + 1)]
    starts = [op.start for _, op in events.steps[1:]]
    return [
        # Rounded times may overlap; steps do not.
        Window(f"ProfilerStep#{number}", op.start, min(op.end, after))
        for (number, op), after in zip(events.steps, [*starts, 2**63], strict=True)
        if step is None or number == step
    ]


def _passes(
    events: TraceEvents, marks: Sequence[Op], name: str, start: int, end: int
) -> list[BackwardPass]:
    """Cut a window's gradients where a forward pass or the optimizer starts between two."""
    hooks = events.hooks[_first(events.hooks, start) : _first(events.hooks, end)]
    passes: list[BackwardPass] = []
    from_, first = start, 0
    while first < len(hooks):
        mark = _first(marks, hooks[first].start)
        to = min(marks[mark].start if mark < len(marks) else end, end)
        cut = max(_first(hooks, to), first + 1)
        passes.append(BackwardPass(name, start, end, hooks[first:cut], from_, to))
        from_, first = to, cut
    return passes


def _first(ops: Sequence[Op], time: int) -> int:
    return bisect_left(ops, time, key=lambda op: op.start)


def _outside(ops: Sequence[Op], hooks: Sequence[Op]) -> list[Op]:
    """Leave out what starts inside a hook, such as an optimizer that steps in backward."""
    kept = []
    for op in ops:
        at = bisect_right(hooks, op.start, key=lambda hook: hook.start) - 1
        if at < 0 or op.start > hooks[at].end:
            kept.append(op)
    return kept


def _as_steps(events: TraceEvents, passes: Sequence[BackwardPass]) -> list[BackwardPass]:
    """Give each backward pass of an unmarked trace a window of its own, from its forward pass."""
    steps = []
    for at, one in enumerate(passes):
        forward = _first(events.forwards, one.from_)
        start = one.from_
        if forward < len(events.forwards) and events.forwards[forward].start < one.hooks[0].start:
            start = events.forwards[forward].start
        name = f"backward pass {at + 1} of {len(passes)}"
        steps.append(BackwardPass(name, start, one.to, one.hooks, start, one.to))
    return steps


def _assign(
    steps: Sequence[Sequence[BackwardPass]], events: TraceEvents, launches: Sequence[AllReduce]
) -> None:
    """Give each all-reduce to the pass in whose window it was issued."""
    passes = [one for step in steps for one in step]
    if not passes:
        return
    hooks, functions = _by_thread(events.hooks), _by_thread([])
    if not events.has_outer:
        functions = _by_thread([op for op in events.evaluated if op.name != ACCUMULATE])
    for launch in launches:
        time, tid = launch.op.start, launch.op.tid
        at = bisect_right(passes, time, key=lambda one: one.from_) - 1
        if at < 0 or time >= passes[at].end:
            continue
        one = passes[at]
        place = _place(launch, one, hooks.get(tid, []), functions.get(tid, []), events.has_outer)
        if place == "hook":
            one.in_hooks.append(launch)
        elif place == "after":
            one.after.append(launch)
        else:
            one.elsewhere[place] += 1


def _by_thread(ops: Sequence[Op]) -> dict[str, list[Op]]:
    threads: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        threads[op.tid].append(op)
    return dict(threads)


def _place(
    launch: AllReduce,
    one: BackwardPass,
    hooks: Sequence[Op],
    functions: Sequence[Op],
    has_outer: bool,
) -> str:
    """Return where an all-reduce was issued: in a hook, after the last one, or elsewhere.

    ``hooks`` and ``functions`` are those of its thread.
    """
    time = launch.op.start
    if time < one.hooks[0].start:
        return "before the first gradient"
    if not launch.issued:
        return "hook"  # Old gloo traces only have gloo's own thread, some time after the hook.
    hook = _latest(hooks, time)
    if hook is not None and hook.start >= one.hooks[0].start:
        if has_outer and time <= hook.end:
            return "hook"
        function = _latest(functions, time)
        if not has_outer and (function is None or time > function.end):
            return "hook"  # DDP's hooks run after the only AccumulateGrad event of old traces.
    if time > one.hooks[-1].start:
        return "after"
    return "in backward outside the gradients' hooks"


def _latest(ops: Sequence[Op], time: int) -> Op | None:
    at = bisect_right(ops, time, key=lambda op: op.start) - 1
    return ops[at] if at >= 0 else None

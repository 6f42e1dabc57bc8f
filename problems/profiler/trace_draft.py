"""Working out one step of a profiler trace: sizes, ready times, and who was in which launch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commsched.models.errors import InputError
from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_buckets import (
    LaunchSize,
    Membership,
    find_members,
    match_after_backward,
    wire_dtype,
)
from commsched.problems.profiler.trace_dtypes import (
    TensorSize,
    dtype_name,
    is_floating,
    itemsize,
)
from commsched.problems.profiler.trace_events import TraceEvents
from commsched.problems.profiler.trace_gpu import StepKernels
from commsched.problems.profiler.trace_launches import AllReduce
from commsched.problems.profiler.trace_sizes import SizeSource, recorded_sizes
from commsched.problems.profiler.trace_steps import NOT_SENT, BackwardPass
from commsched.problems.sources.source import Source


@dataclass(slots=True)
class DraftLaunch:
    """A launch of the draft; times in nanoseconds from the draft's origin."""

    launch: AllReduce
    members: tuple[int, ...]
    exact: bool
    in_hook: bool
    ran: tuple[int, int] | None

    def bytes(self, sizes: Sequence[TensorSize]) -> int:
        """Return its size: as recorded, else that of its members."""
        if self.launch.elements is None:
            return sum(sizes[k].bytes for k in self.members)
        return self.launch.elements * itemsize(self.dtype(sizes))

    def dtype(self, sizes: Sequence[TensorSize]) -> str:
        """Return its type: as recorded, else that of its first member."""
        if self.launch.dtype is not None:
            return self.launch.dtype
        return sizes[self.members[0] if self.members else 0].dtype


@dataclass(slots=True)
class Draft:
    """One step, worked out; times in nanoseconds from its origin.

    Attributes
    ----------
    one
        The backward pass.
    sizes, ready
        Of the gradients, in the order of their hooks; sizes as they were sent.
    launches
        In the order of issue.
    origin
        Time zero on the trace's clock.
    on_gpu
        Whether the times are those of kernels.
    backward_end
        When backward's own work ended.
    left
        How many gradients are in no launch.
    raised
        How many ready times lay before that of a gradient before them, and were raised to it.
    sent_as
        The type in which a communication hook sent the gradients; None without one.
    kernels
        How many kernels the step launched.
    silent
        How many kernels it launched that were not recorded.
    shapes_from
        The execution trace that the sizes are from; None if the trace has its own.
    passes_with_launches
        How many backward passes with all-reduces the step has.
    hooks
        The hooks of the gradients, in the same order.
    dropped
        What was left out, by reason.
    """

    one: BackwardPass
    sizes: list[TensorSize]
    ready: list[int]
    launches: list[DraftLaunch]
    origin: int
    on_gpu: bool
    backward_end: int
    left: int
    raised: int
    sent_as: str | None
    kernels: int
    silent: int
    shapes_from: Path | None
    passes_with_launches: int = 1
    hooks: list[Op] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def completeness(self) -> tuple[bool, bool, bool, bool]:
        """How well the step was recorded; larger is better."""
        return (
            self.left == 0,
            all(launch.exact for launch in self.launches),
            self.silent == 0,
            all(launch.ran is not None for launch in self.launches),
        )

    @property
    def length(self) -> int:
        """The length of the step's window."""
        return self.one.end - self.one.start


def draft_step(
    path: Path | Source, events: TraceEvents, one: BackwardPass, source: SizeSource
) -> Draft | None:
    """Work out one backward pass; None if its all-reduces hold none of its gradients."""
    dropped = Counter(one.not_sent)
    recorded, shapes_from = recorded_sizes(path, events, one, source)
    hooks = [hook for hook, size in zip(one.hooks, recorded, strict=True) if size is not None]
    sizes = [size for size in recorded if size is not None]
    if not sizes:
        raise InputError(f"{path}: {one.name}: no gradient has a size, all are undefined")
    dropped["parameters that got no gradient"] += len(recorded) - len(sizes)
    kernels = StepKernels(events.kernels, one.start, one.end)
    launches = _carrying(one.in_hooks, kernels, dropped)
    known = _launch_sizes(launches, hooks)
    found, left = find_members(sizes, known)
    after, found_after = _after_backward(one, hooks, sizes, left, kernels, dropped)
    if found_after:
        left = []
    launches, found = launches + after, found + found_after
    if not any(membership.members for membership in found):
        return None
    sizes, hooks, found, left = _last_micro_batch(sizes, hooks, found, left, dropped)
    sent_as = wire_dtype(sizes, _launch_sizes(launches, hooks), found)
    own = {size.dtype for size in sizes}
    if sent_as is not None:
        sizes = [TensorSize(size.shape, sent_as) for size in sizes]
    on_gpu = kernels.has_compute_of({hook.tid for hook in hooks})
    origin = kernels.origin() if on_gpu else None
    zero = one.start if origin is None else origin
    ready, raised = _ready_times(hooks, kernels if on_gpu else None, zero)
    draft = Draft(
        one,
        sizes,
        ready,
        [
            DraftLaunch(
                launch,
                membership.members,
                # Elements that fit in a type which no gradient has are no bytes that fit.
                exact=membership.exact
                and (sent_as is not None or launch.dtype is None or launch.dtype in own),
                in_hook=at < len(launches) - len(after),
                ran=_ran(launch, kernels, zero),
            )
            for at, (launch, membership) in enumerate(zip(launches, found, strict=True))
        ],
        origin=zero,
        on_gpu=on_gpu,
        backward_end=_backward_end(events, one, hooks, kernels if on_gpu else None, zero),
        left=len(left),
        raised=raised,
        sent_as=sent_as,
        kernels=len(kernels.kernels),
        silent=bisect_left(events.silent, one.to) - bisect_left(events.silent, one.start),
        shapes_from=shapes_from,
        hooks=hooks,
        dropped=dropped,
    )
    draft.backward_end = max(draft.backward_end, 0)
    return draft


def _carrying(
    launches: Sequence[AllReduce], kernels: StepKernels, dropped: Counter[str]
) -> list[AllReduce]:
    """Leave out the all-reduces that can hold no gradient."""
    kept = []
    for launch in launches:
        if launch.elements is None:
            for kernel in kernels.of_launch(launch.op)[:1]:
                if type(kernel.elements) is int and kernel.elements >= 0:
                    launch.elements, launch.dtype = kernel.elements, dtype_name(kernel.dtype)
        if launch.elements == 0:
            dropped["empty all-reduces"] += 1
        elif launch.dtype is not None and not is_floating(launch.dtype):
            # With find_unused_parameters DDP sums a map of the parameters that were used.
            dropped["all-reduces of whole numbers"] += 1
        else:
            kept.append(launch)
    return kept


def _launch_sizes(launches: Sequence[AllReduce], hooks: Sequence[Op]) -> list[LaunchSize]:
    return [
        LaunchSize(
            bisect_right(hooks, launch.op.start, key=lambda hook: hook.start),
            launch.elements,
            launch.dtype,
            launch.issued,
            launch.shape,
        )
        for launch in launches
    ]


def _after_backward(
    one: BackwardPass,
    hooks: Sequence[Op],
    sizes: Sequence[TensorSize],
    left: Sequence[int],
    kernels: StepKernels,
    dropped: Counter[str],
) -> tuple[list[AllReduce], list[Membership]]:
    """Take the all-reduces after backward if they hold exactly what no hook launched."""
    launches = _carrying(one.after, kernels, dropped)
    matched = match_after_backward(sizes, left, _launch_sizes(launches, hooks)) if left else None
    pairs = [
        (launch, membership)
        for launch, membership in zip(launches, matched or [], strict=False)
        if membership.members
    ]
    dropped["all-reduces after backward without gradients"] += len(launches) - len(pairs)
    return [launch for launch, _ in pairs], [membership for _, membership in pairs]


def _last_micro_batch(
    sizes: list[TensorSize],
    hooks: list[Op],
    found: list[Membership],
    left: list[int],
    dropped: Counter[str],
) -> tuple[list[TensorSize], list[Op], list[Membership], list[int]]:
    """Drop the gradients of earlier micro-batches, which only the last one's launches sent.

    They are recognised by their sizes: those in no launch come first and are the launched ones
    over again.
    """
    sent = sorted(k for membership in found for k in membership.members)
    count = len(sent)
    if not left or not sent or len(left) % count or left != list(range(len(left))):
        return sizes, hooks, found, left
    if any(sizes[k] != sizes[sent[k % count]] for k in left):
        return sizes, hooks, found, left
    shift = len(left)
    dropped[NOT_SENT] += shift
    found = [Membership(tuple(k - shift for k in m.members), m.exact) for m in found]
    return sizes[shift:], hooks[shift:], found, []


def _ready_times(
    hooks: Sequence[Op], kernels: StepKernels | None, origin: int
) -> tuple[list[int], int]:
    """Return when each gradient was ready, never falling, and how many times were raised."""
    ready: list[int] = []
    raised = 0
    latest = 0
    for hook in hooks:
        time = hook.start if kernels is None else kernels.ready(hook)
        time = latest if time is None else time - origin
        raised += time < latest
        latest = max(latest, time)
        ready.append(latest)
    return ready, raised


def _ran(launch: AllReduce, kernels: StepKernels, origin: int) -> tuple[int, int] | None:
    own = kernels.of_launch(launch.op)
    if own:
        return min(k.start for k in own) - origin, max(k.end for k in own) - origin
    return None if launch.ran is None else (launch.ran[0] - origin, launch.ran[1] - origin)


def _backward_end(
    events: TraceEvents,
    one: BackwardPass,
    hooks: Sequence[Op],
    kernels: StepKernels | None,
    origin: int,
) -> int:
    threads = {hook.tid for hook in hooks}
    first = bisect_left(events.evaluated, one.from_, key=lambda op: op.start)
    last = bisect_left(events.evaluated, one.to, key=lambda op: op.start)
    own = [op for op in events.evaluated[first:last] if op.tid in threads]
    own += hooks
    from_, to = min(op.start for op in own), max(op.end for op in own)
    end = to if kernels is None else kernels.backward_end(threads, from_, to)
    return (to if end is None else end) - origin

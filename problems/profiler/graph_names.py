"""Names for people: what a stretch of a step is called by modules, FSDP, the optimizer and users."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_events import TraceEvents
from commsched.problems.profiler.trace_kernels import Kernel

_FSDP = re.compile(r"FSDP::([a-z_]+)(?: \((.*)\))?")
_MODULE = re.compile(r"nn\.Module: (.*)")
_MAX_NAME = 60
_MOST = 0.8


class Names:
    """The annotations of a step.

    Parameters
    ----------
    events
        The trace.
    annotations
        All its annotations, rising by start.
    start, end
        The step's window.
    """

    def __init__(
        self, events: TraceEvents, annotations: Sequence[Op], start: int, end: int
    ) -> None:
        first = bisect_left(annotations, start, key=lambda op: op.start)
        last = bisect_left(annotations, end, key=lambda op: op.start)
        self._own = annotations[first:last]
        spans = _backward(events, start, end) + _modules(self._own, end)
        for op in self._own:
            name = _shown(op.name)
            if name:
                spans.append((op.start, op.end, name))
        self._names = [name for _, _, name in spans]
        self._starts = np.array([span[0] for span in spans], dtype=np.int64)
        self._ends = np.array([span[1] for span in spans], dtype=np.int64)
        self._lanes: dict[str, tuple[list[Op], list[int]]] = {}
        for op in self._own:
            ops, starts = self._lanes.setdefault(op.tid, ([], []))
            ops.append(op)
            starts.append(op.start)

    def around(self, op: Op) -> str:
        """Return the innermost annotation around an event on its thread; empty without one."""
        ops, starts = self._lanes.get(op.tid, ([], []))
        at = bisect_left(starts, op.start + 1)
        for other in reversed(ops[max(0, at - 64) : at]):
            if other.end >= op.start and not other.name.startswith("nn.Module"):
                return other.name
        return ""

    def of(self, first: int, last: int) -> str:
        """Return the name of a stretch of the processor's time."""
        shared = np.minimum(self._ends, last) - np.maximum(self._starts, first)
        return self._shortest(shared, last - first, first)

    def of_works(self, works: Sequence[Kernel]) -> str:
        """Return the name of what launched most of some works, by their durations."""
        launched = np.array([work.launched for work in works], dtype=np.int64)
        lengths = np.array([max(1, work.end - work.start) for work in works], dtype=np.int64)
        order = np.argsort(launched, kind="stable")
        so_far = np.concatenate([[0], np.cumsum(lengths[order])])
        low = np.searchsorted(launched[order], self._starts)
        high = np.searchsorted(launched[order], self._ends, side="right")
        shared = np.where(high > low, so_far[high] - so_far[low], -1)
        return self._shortest(shared, int(so_far[-1]), int(launched[0]))

    def _shortest(self, shared: NDArray[np.int64], whole: int, first: int) -> str:
        """Return the shortest stretch that covers most of something, or its start."""
        inside = np.flatnonzero((shared >= _MOST * whole) & (shared >= 0))
        if not inside.size:
            inside = np.flatnonzero((self._starts <= first) & (self._ends >= first))
        if not inside.size:
            return "compute"
        lengths = self._ends[inside] - self._starts[inside]
        return self._names[int(inside[int(np.argmin(lengths))])]


def layer_of(label: str) -> str:
    """Return what a collective's annotation says of it.

    Examples
    --------
    >>> layer_of("FSDP::all_gather (blocks.3)"), layer_of("## alltoall_fwd ##"), layer_of("")
    ('blocks.3', 'alltoall_fwd', '')
    """
    match = _FSDP.fullmatch(label)
    if match:
        return (match[2] or "")[:_MAX_NAME]
    return _shown(label)


def _shown(name: str) -> str:
    """Return an annotation as a name; empty where it says nothing."""
    module = _MODULE.fullmatch(name)
    if module:
        return f"forward {module[1]}"[:_MAX_NAME]
    if name.startswith("Optimizer.step"):
        return "optimizer"
    if name.startswith("Optimizer."):
        return name.removeprefix("Optimizer.").partition("#")[0][:_MAX_NAME]
    if name.endswith("DataParallel.forward"):
        return "forward"
    if name.startswith(("FSDP::", "FullyShardedDataParallel.")):
        return ""
    if name.startswith("enumerate(DataLoader)"):
        return "data loader"
    return name.strip("# ")[:_MAX_NAME]


def _backward(events: TraceEvents, start: int, end: int) -> list[tuple[int, int, str]]:
    """Return the backward passes: autograd's functions between two forward passes or updates."""
    first = bisect_left(events.evaluated, start, key=lambda op: op.start)
    last = bisect_left(events.evaluated, end, key=lambda op: op.start)
    marks = sorted(op.start for op in events.starts)
    found: list[tuple[int, int, str]] = []
    until = start
    for op in events.evaluated[first:last]:
        if op.start < until and found:
            begin, reached, name = found[-1]
            found[-1] = begin, max(reached, op.end), name
            continue
        at = bisect_left(marks, op.start)
        until = marks[at] if at < len(marks) else end
        found.append((op.start, op.end, "backward"))
    return found


def _modules(annotations: Sequence[Op], end: int) -> list[tuple[int, int, str]]:
    """Return the forward and backward passes of FSDP's modules, from what it does around them."""
    open_: dict[tuple[str, str], int] = {}
    found: list[tuple[int, int, str]] = []
    for op in annotations:
        match = _FSDP.fullmatch(op.name)
        if match is None:
            continue
        what, layer = match[1], match[2] or ""
        if what in ("pre_forward", "pre_backward"):
            open_[what.removeprefix("pre_"), layer] = op.start
            continue
        phase = "forward" if what == "post_forward" else "backward"
        if what.startswith("post_") and (phase, layer) in open_:
            begin = open_[phase, layer] if phase == "backward" else open_.pop((phase, layer))
            found.append((begin, min(op.end, end), f"{phase} {layer}".strip()[:_MAX_NAME]))
    return found


class Unique:
    """Gives each name once: the second ``forward`` is ``forward #2``."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._used: set[str] = set()

    def name(self, wanted: str) -> str:
        """Return the name, or the name with a number.

        Examples
        --------
        >>> unique = Unique()
        >>> unique.name("backward"), unique.name("backward")
        ('backward', 'backward #2')
        """
        while True:
            self._counts[wanted] += 1
            count = self._counts[wanted]
            name = wanted if count == 1 else f"{wanted} #{count}"
            if name not in self._used:
                self._used.add(name)
                return name

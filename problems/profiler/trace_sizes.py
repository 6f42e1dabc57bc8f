"""The sizes of a step's gradients: from the trace's own shapes, else from an execution trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from commsched.models.errors import InputError
from commsched.problems.execution.execution_trace import read_gradient_sizes
from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_dtypes import TensorSize, dtype_name, tensor_sizes
from commsched.problems.profiler.trace_events import TraceEvents
from commsched.problems.profiler.trace_steps import BackwardPass
from commsched.problems.sources.source import Source


class SizeSource:
    """Where sizes come from that the profiler trace does not have; read at most once a length."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[int, tuple[TensorSize | None, ...]] = {}

    def sizes(self, count: int) -> Sequence[TensorSize | None]:
        """Return the sizes of a step with ``count`` gradients."""
        assert self.path is not None
        if count not in self._known:
            self._known[count] = read_gradient_sizes(self.path, count)
        return self._known[count]


def recorded_sizes(
    path: Path | Source, events: TraceEvents, one: BackwardPass, source: SizeSource
) -> tuple[Sequence[TensorSize | None], Path | None]:
    """Return each hook's gradient: its size, or None where no gradient arrived."""
    lanes: dict[str, list[Op]] = defaultdict(list)
    first = bisect_left(events.inner, one.hooks[0].start, key=lambda op: op.start)
    last = bisect_right(events.inner, max(h.end for h in one.hooks), key=lambda op: op.start)
    for op in events.inner[first:last]:
        lanes[op.tid].append(op)
    sizes: list[TensorSize | None] = []
    with_shapes = 0
    for hook in one.hooks:
        lane = lanes[hook.tid]
        at = bisect_left(lane, hook.start, key=lambda op: op.start)
        size = None
        if at < len(lane) and lane[at].start <= hook.end:
            arguments = lane[at].arguments
            with_shapes += "Input Dims" in arguments
            size = _gradient_size(path, one, len(sizes), arguments)
        sizes.append(size)
    if with_shapes:
        return sizes, None
    if source.path is None:
        raise InputError(
            f"{path}: the trace has no sizes of the gradients: record it with "
            "record_shapes=True, give a PyTorch execution trace of the same model (--sizes), or "
            "read the step as a graph (--graph), whose collectives are the buckets"
        )
    return source.sizes(len(one.hooks)), source.path


def _gradient_size(
    path: Path | Source, one: BackwardPass, number: int, arguments: dict[str, object]
) -> TensorSize | None:
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    found = tensor_sizes(dims, types)
    if found:
        return found[0]
    text = types[0] if isinstance(types, list) and types else ""
    if text and dtype_name(text) is None:
        raise InputError(
            f"{path}: {one.name}: gradient {number} has the unknown element type {text!r:.60}"
        )
    return None

"""What the collectives of a trace are: their kinds and sizes, from wherever the trace has them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from commsched.models.units import MAX_BYTES
from commsched.problems.profiler.chrome_trace import Event, Op
from commsched.problems.profiler.trace_dtypes import dtype_name, itemsize, tensor_sizes
from commsched.problems.profiler.trace_events import collective_kind

RECORD = "record_param_comms"
_MOST_DIMS = 64
_MOST_NESTED = 16
"""So many events at most are asked about one launch; three speak of it in real traces."""
_KERNEL_WORDS = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|send|recv|reduce)"
    r"|deep_?ep::.{0,80}?(?:dispatch|combine)",
    re.IGNORECASE,
)


class CommArguments(msgspec.Struct, gc=False):
    """What an event says of a collective, and of what ran on a GPU."""

    device: object = None
    stream: object = None
    correlation: object = None
    collective_name: object = msgspec.field(default=None, name="Collective name")
    elements_in: object = msgspec.field(default=None, name="In msg nelems")
    elements_out: object = msgspec.field(default=None, name="Out msg nelems")
    dtype: object = None
    dims: object = msgspec.field(default=None, name="Input Dims")
    types: object = msgspec.field(default=None, name="Input type")


_ARGUMENTS = msgspec.json.Decoder(CommArguments)


def comm_arguments(event: Event) -> CommArguments:
    """Return an event's arguments; none where they cannot be read."""
    raw = bytes(event.args)
    try:
        return _ARGUMENTS.decode(raw) if raw else CommArguments()
    except (ValueError, RecursionError):
        return CommArguments()


def named_kind(arguments: CommArguments) -> str:
    """Return the kind that an event's ``Collective name`` says; empty if it says none."""
    name = arguments.collective_name
    if not isinstance(name, str) or not name or name.lower() == "wait":
        return ""
    word = name[:40].lower()
    return collective_kind(f"nccl:{word}") or word.strip("_")


@lru_cache(maxsize=1024)
def kernel_kind(name: str) -> str:
    """Return the kind of a collective by its kernel's name; empty if that does not tell.

    Examples
    --------
    >>> kernel_kind("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'allreduce'
    >>> kernel_kind("ncclDevKernel_SendRecv"), kernel_kind("ncclDevKernel_Generic")
    ('send_recv', '')
    """
    match = _KERNEL_WORDS.search(name)
    if match is None or name.startswith("oneccl_reduce"):  # a part of several collectives
        return ""
    if match[1] is None:
        return "all_to_all"  # DeepEP's dispatch and combine move tokens between experts.
    word = match[1].lower().replace("_", "")
    return collective_kind(f"nccl:{word.replace('sendrecv', 'send')}") or word


def message_bytes(kind: str, arguments: CommArguments) -> int | None:
    """Return a collective's size from its message's elements; None if that was not recorded.

    The whole operation counts, as in nccl-tests: an all-gather's output, otherwise the input.
    """
    count = arguments.elements_out if kind == "all_gather" else arguments.elements_in
    dtype = dtype_name(arguments.dtype)
    if type(count) is not int or dtype is None:
        return None
    return _checked(count * itemsize(dtype))


def tensor_bytes(kind: str, name: str, arguments: CommArguments) -> int | None:
    """Return a collective's size from the tensors that its event lists; None if not recorded.

    ``c10d`` events list output and input, ``nccl:`` and ``gloo:`` events the input alone, which
    for an all-gather is only a shard.
    """
    if not isinstance(arguments.dims, list) or any(
        isinstance(shape, list) and len(shape) > _MOST_DIMS for shape in arguments.dims
    ):
        return None
    sizes = tensor_sizes(arguments.dims[:_MOST_DIMS], arguments.types)
    if not sizes or len({size.dtype for size in sizes}) != 1:
        return None
    sizes = [size for size in sizes if size.shape] or sizes[:1]
    listed = [size.bytes for size in sizes]
    if kind in ("all_gather", "reduce_scatter") and "c10d" in name:
        return _checked(max(listed)) if len(listed) >= 2 else None
    if kind == "all_gather":
        return None
    if kind == "all_to_all" and "c10d" in name:
        return _checked(listed[1]) if len(listed) >= 2 else None
    return _checked(sum(listed))


def _checked(size: int) -> int | None:
    return size if 0 <= size <= MAX_BYTES else None


@dataclass(slots=True)
class CommOps:
    """The processor's events that speak of collectives, to be asked by the time of a launch.

    Attributes
    ----------
    by_thread
        Thread -> (kind, event). The kind is empty for ``record_param_comms``, which says it in
        its arguments.
    """

    by_thread: dict[str, list[tuple[str, Op]]] = field(default_factory=lambda: defaultdict(list))
    _starts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, kind: str, op: Op) -> None:
        """Add an event."""
        self.by_thread[op.tid].append((kind, op))

    def sort(self) -> None:
        """Put the events in order, parents before their children; call it before asking."""
        for tid, ops in self.by_thread.items():
            ops.sort(key=lambda pair: (pair[1].start, -pair[1].end))
            self._starts[tid] = [op.start for _, op in ops]

    def describe(self, tid: str, time: int) -> tuple[str, int | None]:
        """Return the kind and the bytes of the collective that a thread launched at a time."""
        kind, size = "", None
        found = [(said, op, comm_arguments(op.event)) for said, op in self._around(tid, time)]
        for said, _, arguments in found:
            kind = kind or said or named_kind(arguments)
        for said, op, arguments in found:
            if size is not None or said not in ("", kind):
                continue
            size = message_bytes(kind, arguments)
            if size is None and said:
                size = tensor_bytes(kind, op.name, arguments)
        return kind, size

    def _around(self, tid: str, time: int) -> Iterator[tuple[str, Op]]:
        """Yield the events that enclose a time, the innermost first."""
        starts, ops = self._starts.get(tid, []), self.by_thread.get(tid, [])
        at = bisect_right(starts, time)
        for kind, op in reversed(ops[max(0, at - _MOST_NESTED) : at]):
            if op.end >= time:
                yield kind, op


def in_order(ops: Mapping[str, list[tuple[str, Op]]], prefix: str) -> list[tuple[str, Op]]:
    """Return the events whose name starts with a prefix, of all threads, by start."""
    found = [pair for pairs in ops.values() for pair in pairs if pair[1].name.startswith(prefix)]
    return sorted(found, key=lambda pair: (pair[1].start, pair[1].end))

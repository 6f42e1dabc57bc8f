"""Kernels of a profiler trace, tied to the calls that launched them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from commsched.problems.profiler.chrome_trace import Event, Op, timed_op

KERNEL_CATS = frozenset(
    {"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"}
)
"""The categories of what runs on a GPU, in lower case."""
NO_LAUNCH = "whose launch was not recorded"
_COLLECTIVE = (
    *("nccl", "rccl", "msccl", "oneccl", "hccl", "xccl", "mccl", "cncl", "hcom_"),
    *("deepep", "deep_ep", "ep::internode", "ep::intranode"),
    *("one_shot_all_reduce", "two_shot_all_reduce", "multimem_all", "multimem_one"),
)
"""Words in the names of kernels that communicate, in lower case."""
_OPERATION_CATS = frozenset({"cpu_op", "operator", "user_annotation"})


@dataclass(slots=True)
class Kernel:
    """Something that ran on a GPU; ``launched`` is when the thread ``tid`` launched it.

    ``elements`` and ``dtype`` are what a collective kernel says of its message; ``event`` is kept
    for those. ``stream`` is the device and the stream that ran it. ``latest`` is when it was
    launched at the latest: not before ``launched``, and later only where no launch was recorded.
    """

    name: str
    start: int
    end: int
    is_kernel: bool
    is_collective: bool
    launched: int = -1
    tid: str = ""
    elements: object = None
    dtype: object = None
    stream: str = ""
    event: Event | None = None
    latest: int = -1


class Links(msgspec.Struct, gc=False):
    """The arguments that tie a kernel to its launch."""

    correlation: object = None
    external_id: object = msgspec.field(default=None, name="External id")
    external_id_lower: object = msgspec.field(default=None, name="external id")
    collective_name: object = msgspec.field(default=None, name="Collective name")
    elements: object = msgspec.field(default=None, name="In msg nelems")
    dtype: object = None

    @property
    def operation(self) -> object:
        """The id of the operation that an event belongs to."""
        return self.external_id if self.external_id is not None else self.external_id_lower


_LINKS = msgspec.json.Decoder(Links)


def stream_key(device: object, stream: object) -> str:
    """Return the name under which a stream of a device is known here.

    Examples
    --------
    >>> stream_key(0, 7), stream_key("0", "stream 7")
    ('0/7', '0/7')
    """
    text = str(stream).strip().removeprefix("stream").strip()
    return f"{str(device).strip()[:40]}/{text[:40]}"


def links_of(event: Event) -> Links:
    """Return an event's links; none where its arguments cannot be read."""
    raw = bytes(event.args)
    try:
        return _LINKS.decode(raw) if raw else Links()
    except (ValueError, RecursionError):
        return Links()


@lru_cache(maxsize=8192)
def _communicates(name: str) -> bool:
    name = name.lower()
    return any(word in name for word in _COLLECTIVE)


class _Correlation(msgspec.Struct, gc=False):
    correlation: object = None


_CORRELATION = msgspec.json.Decoder(_Correlation)


def correlation_of(event: Event) -> object:
    """Return the number that ties a call to what it launched; None if it has none."""
    try:
        return _CORRELATION.decode(event.args).correlation
    except (ValueError, RecursionError):
        return None


def kernel_of(op: Op, cat: str) -> tuple[Kernel, Links]:
    """Return what ran on a GPU, and its links, from an event of one of ``KERNEL_CATS``."""
    links = links_of(op.event)
    is_collective = _communicates(op.name)
    kernel = Kernel(
        op.name,
        op.start,
        op.end,
        is_kernel="kernel" in cat,
        is_collective=is_collective,
        elements=links.elements,
        dtype=links.dtype,
        stream=stream_key(op.event.pid, op.tid),
        event=op.event if is_collective else None,
    )
    return kernel, links


def launched_kernels(
    kernels: Sequence[tuple[Kernel, Links]],
    calls: Mapping[object, Op],
    events: Sequence[Event],
    dropped: Counter[str],
) -> tuple[list[Kernel], int]:
    """Tie each kernel to its launch; those launched before the recording began have none.

    Returns the kernels whose launch is known, and how many of them were placed by the order on
    their stream, see :func:`_placed`.

    The correlation is tried first. ROCm wrote none for years, and a collective's launch may be
    a driver call that was not recorded: then the external id leads to the operation. Where there
    is a correlation it counts for collectives only, which say their name if the id is current.
    """
    known, lost = [], []
    ops: dict[object, Op] | None = None
    for kernel, links in kernels:
        call = calls.get(links.correlation) if isinstance(links.correlation, int | str) else None
        external_id = links.operation
        if (
            call is None
            and isinstance(external_id, int | str)
            and external_id not in (0, links.correlation)
            and (links.correlation is None or links.collective_name is not None)
        ):
            ops = _by_external_id(events) if ops is None else ops
            call = ops.get(external_id)
        if call is None:
            lost.append(kernel)
            continue
        kernel.launched, kernel.latest, kernel.tid = call.start, call.start, call.tid
        known.append(kernel)
    placed = _placed(known, lost)
    for kernel in lost:
        if kernel.launched < 0:
            what = "collective kernels" if kernel.is_collective else "kernels and copies"
            dropped[f"{what} {NO_LAUNCH}"] += 1
    return known + placed, len(placed)


def _placed(known: Sequence[Kernel], lost: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels without a launch that ran between two others of their stream.

    A stream runs its work in the order of launch, so they were launched between those two; CUDA
    graphs have such kernels. Collectives are left out: nothing says which ones they are.
    """
    streams: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in known:
        streams[kernel.stream].append(kernel)
    for own in streams.values():
        own.sort(key=lambda kernel: kernel.start)
    placed = []
    for kernel in lost:
        own = streams.get(kernel.stream, [])
        at = bisect_right(own, kernel.start, key=lambda other: other.start)
        if 0 < at < len(own) and not kernel.is_collective:
            kernel.launched, kernel.tid = own[at - 1].launched, own[at - 1].tid
            kernel.latest = max(kernel.launched, own[at].launched)
            placed.append(kernel)
    return placed


def _by_external_id(events: Sequence[Event]) -> dict[object, Op]:
    found: dict[object, Op] = {}
    for event in events:
        cat = event.cat.lower() if isinstance(event.cat, str) else ""
        if event.ph != "X" or cat not in _OPERATION_CATS or not isinstance(event.name, str):
            continue
        external_id = links_of(event).operation
        if isinstance(external_id, int | str):
            op = timed_op(event, Counter())
            if op is not None:
                found.setdefault(external_id, op)
    return found

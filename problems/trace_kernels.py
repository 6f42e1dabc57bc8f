"""Kernels of a profiler trace, tied to the calls that launched them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from commsched.problems.chrome_trace import Event, Op, timed_op

KERNEL_CATS = frozenset(
    {"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"}
)
"""The categories of what runs on a GPU, in lower case."""
_COLLECTIVE = re.compile(r"nccl|rccl|msccl|deep_?ep", re.IGNORECASE)
_OPERATION_CATS = frozenset({"cpu_op", "operator", "user_annotation"})


@dataclass(slots=True)
class Kernel:
    """Something that ran on a GPU; ``launched`` is when the thread ``tid`` launched it.

    ``elements`` and ``dtype`` are what a collective kernel says of its message.
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


def links_of(event: Event) -> Links:
    """Return an event's links; none where its arguments cannot be read."""
    raw = bytes(event.args)
    try:
        return _LINKS.decode(raw) if raw else Links()
    except (ValueError, RecursionError):
        return Links()


def kernel_of(op: Op, cat: str) -> tuple[Kernel, Links]:
    """Return what ran on a GPU, and its links, from an event of one of ``KERNEL_CATS``."""
    links = links_of(op.event)
    kernel = Kernel(
        op.name,
        op.start,
        op.end,
        is_kernel="kernel" in cat,
        is_collective=bool(_COLLECTIVE.search(op.name)),
        elements=links.elements,
        dtype=links.dtype,
    )
    return kernel, links


def launched_kernels(
    kernels: Sequence[tuple[Kernel, Links]],
    calls: Mapping[object, Op],
    events: Sequence[Event],
    dropped: Counter[str],
) -> list[Kernel]:
    """Tie each kernel to its launch; those launched before the recording began have none.

    The correlation is tried first. ROCm wrote none for years, and a collective's launch may be
    a driver call that was not recorded: then the external id leads to the operation. Where there
    is a correlation it counts for collectives only, which say their name if the id is current.
    """
    known = []
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
            what = "collective kernels" if kernel.is_collective else "kernels and copies"
            dropped[f"{what} whose launch was not recorded"] += 1
            continue
        kernel.launched, kernel.tid = call.start, call.tid
        known.append(kernel)
    return known


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

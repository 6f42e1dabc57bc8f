"""Nsight Systems exports (``nsys export --type sqlite``): what ran when, on which stream.

The export has no size of any collective: NCCL writes it into payloads of its NVTX ranges, which
``nsys export`` leaves out by default. So this gives times; sizes must come from elsewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from commsched.models.collectives import Kind
from commsched.models.errors import InputError
from commsched.models.units import MAX_NS
from commsched.problems.nsight.nsight_db import MAGIC, Row, SafeDatabase
from commsched.problems.profiler.trace_events import collective_kind
from commsched.problems.sources.source import Source

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_STREAM_WAIT = 2
"""CUPTI's number for a stream that waits for an event, which holds no processor up."""
_WORK = (KERNELS, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_COLUMNS = (
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "globalPid",
    "shortName",
    "demangledName",
)
_NEEDED = frozenset({"start", "end", "deviceId", "streamId"})
"""Columns without which nothing can be said of a kernel."""
_PROCESS_BITS = 24
"""The lower bits of ``globalTid`` and ``globalPid`` are the thread; the others say the process."""
_NCCL = re.compile(r"(?:nccl|rccl|msccl)[A-Za-z]*Kernel_?(\w*)|deep_?ep", re.IGNORECASE)
_API = re.compile(r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|AlltoAll|Send|Recv)")
_KINDS: Mapping[str, Kind] = {
    "allreduce": "allreduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "alltoall": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
}
MAX_KERNELS = 5_000_000
MAX_STRINGS = 2_000_000
_MAX_RANGES = 5_000_000
_MAX_NESTING = 64
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class NsightKernel:
    """Something that ran on a GPU.

    Attributes
    ----------
    name
        The kernel's short name; ``copy`` or ``set`` for what moved or filled memory.
    start, end
        When it ran, in nanoseconds since the session began.
    device, context, stream
        Where it ran.
    launched
        When the processor's call that launched it began; None if that was not recorded.
    thread
        The thread that launched it.
    is_kernel, is_collective
        What it is.
    kind
        A collective's kind, by the PyTorch or NCCL range that it was launched in, else by its
        name; None if neither says it: all-to-alls and other operations run as ``SendRecv``.
    """

    name: str
    start: int
    end: int
    device: int
    context: int
    stream: int
    launched: int | None
    thread: int | None
    is_kernel: bool
    is_collective: bool
    kind: Kind | None


@dataclass(frozen=True, slots=True)
class NsightExport:
    """An Nsight Systems export.

    Attributes
    ----------
    version
        The export's schema, such as ``3.25.0``; empty if it does not say.
    kernels
        What ran, by start.
    events_read
        How many rows were read.
    dropped
        Rows that were not used, by reason.
    synchronisations
        How often the processor waited for a GPU.
    """

    version: str
    kernels: tuple[NsightKernel, ...]
    events_read: int
    dropped: Mapping[str, int]
    synchronisations: int = 0


def recognises(start: bytes) -> bool:
    """Return whether a file is an SQLite database; which one, only its tables can say."""
    return start.startswith(MAGIC)


def read_nsight(source: Source) -> NsightExport:
    """Read what ran on the GPUs.

    Raises
    ------
    InputError
        If the file is no such export, damaged, or nothing ran on a GPU.
    """
    what = str(source)
    dropped: Counter[str] = Counter()
    with source.on_disk() as path, SafeDatabase(path, what) as database:
        if KERNELS not in database.tables:
            raise InputError(
                f"{what}: no table {KERNELS}: this is no Nsight Systems export with CUDA kernels "
                "(nsys profile --trace cuda,nvtx, then nsys export --type sqlite)"
            )
        missing = _NEEDED - database.tables[KERNELS]
        if missing:
            raise InputError(
                f"{what}: {KERNELS} has no {', '.join(sorted(missing))}: this is no whole export, or "
                "of a version of Nsight Systems that is not known"
            )
        names = {
            number: text[:_MAX_NAME]
            for number, text in database.rows("StringIds", ("id", "value"), MAX_STRINGS)
            if isinstance(number, int) and isinstance(text, str)
        }
        calls = _calls(database)
        ranges = _Ranges(database, names)
        kernels = [
            kernel
            for table in _WORK
            for row in database.rows(table, _COLUMNS, MAX_KERNELS)
            if (kernel := _kernel(table, row, names, calls, ranges, dropped)) is not None
        ]
        syncs = Counter(
            kind for (kind,) in database.rows(_SYNC, ("syncType",)) if isinstance(kind, int)
        )
        version = next(
            (
                str(value)
                for name, value in database.rows("META_DATA_EXPORT", ("name", "value"))
                if name == "EXPORT_SCHEMA_VERSION"
            ),
            "",
        )
    if not kernels:
        raise InputError(f"{what}: no kernel of a GPU was recorded")
    kernels.sort(key=lambda kernel: (kernel.start, kernel.end, kernel.device, kernel.stream))
    if max(kernel.end for kernel in kernels) - kernels[0].start > MAX_NS:
        raise InputError(f"{what}: the kernels' times span more than 13 days")
    return NsightExport(
        version[:40],
        tuple(kernels),
        len(kernels) + sum(dropped.values()),
        dict(dropped),
        sum(syncs.values()) - syncs[_STREAM_WAIT],
    )


def _calls(database: SafeDatabase) -> dict[tuple[int, int], tuple[int, int]]:
    """Return (thread, start) by process and correlation of each call that launched something."""
    wanted = {
        (process >> _PROCESS_BITS, correlation)
        for table in _WORK
        for correlation, process in database.rows(
            table, ("correlationId", "globalPid"), MAX_KERNELS
        )
        if isinstance(correlation, int) and isinstance(process, int)
    }
    found = {}
    for start, thread, correlation in database.rows(
        _RUNTIME, ("start", "globalTid", "correlationId")
    ):
        if isinstance(start, int) and isinstance(thread, int) and isinstance(correlation, int):
            key = (thread >> _PROCESS_BITS, correlation)
            if key in wanted:
                found[key] = (thread, start)
    return found


@dataclass(slots=True)
class _Range:
    """An NVTX range; ``rank`` says whose word counts, ``parent`` is the range around it."""

    start: int
    end: int
    rank: int
    kind: Kind
    parent: int = -1


class _Ranges:
    """The NVTX ranges that speak of collectives, by thread."""

    def __init__(self, database: SafeDatabase, names: Mapping[int, str]) -> None:
        self._found: dict[int, list[_Range]] = {}
        count = 0
        for start, end, text, number, thread in database.rows(
            "NVTX_EVENTS", ("start", "end", "text", "textId", "globalTid")
        ):
            name = text
            if not isinstance(text, str) and isinstance(number, int):
                name = names.get(number)
            if (
                isinstance(name, str)
                and isinstance(start, int)
                and isinstance(end, int)
                and isinstance(thread, int)
                and (said := _said(name)) is not None
            ):
                self._found.setdefault(thread, []).append(_Range(start, end, *said))
                count += 1
                if count > _MAX_RANGES:
                    raise InputError(
                        f"{database.what}: more than {_MAX_RANGES} ranges speak of collectives"
                    )
        for one in self._found.values():
            # Parents before their children: the longer of two that start together.
            one.sort(key=lambda found: (found.start, -found.end))
            stack: list[int] = []
            for k, found in enumerate(one):
                while stack and one[stack[-1]].end < found.end:
                    stack.pop()
                found.parent = stack[-1] if stack else -1
                stack.append(k)

    def kind(self, thread: int, time: int) -> Kind | None:
        """Return the kind that the ranges around a time say; PyTorch's count before NCCL's."""
        found = self._found.get(thread, [])
        at = bisect_right(found, time, key=lambda one: one.start) - 1
        best: _Range | None = None
        for _ in range(_MAX_NESTING):
            if at < 0:
                break
            one = found[at]
            if one.end >= time and (best is None or one.rank < best.rank):
                best = one
            at = one.parent
        return None if best is None else best.kind


def _said(name: str) -> tuple[int, Kind] | None:
    """Return the rank of a range's word, and the kind that it says."""
    torch = collective_kind(name.partition(",")[0][:_MAX_NAME])
    if torch is not None:
        return 0, torch
    api = _API.match(name)
    return (1, _KINDS[api[1].lower()]) if api else None


def _kernel(
    table: str,
    row: Row,
    names: Mapping[int, str],
    calls: Mapping[tuple[int, int], tuple[int, int]],
    ranges: _Ranges,
    dropped: Counter[str],
) -> NsightKernel | None:
    start, end, device, context, stream, correlation, process, short, long = row
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
        dropped["kernels and copies without usable times"] += 1
        return None
    if not isinstance(device, int) or not isinstance(stream, int):
        dropped["kernels and copies without a device or stream"] += 1
        return None
    call = None
    if isinstance(correlation, int) and isinstance(process, int):
        call = calls.get((process >> _PROCESS_BITS, correlation))
    is_kernel = table == KERNELS
    name = "copy" if table.endswith("MEMCPY") else "set"
    if is_kernel:
        found = [names.get(n) for n in (short, long) if isinstance(n, int)]
        name = next((text for text in found if text), "kernel")
    word = _NCCL.search(name) if is_kernel else None
    kind = None
    if word is not None:
        said = ranges.kind(*call) if call is not None else None
        kind = said or _KINDS.get((word[1] or "").partition("_")[0].lower())
    return NsightKernel(
        name,
        start,
        end,
        device,
        context if isinstance(context, int) else 0,
        stream,
        None if call is None else call[1],
        None if call is None else call[0],
        is_kernel,
        word is not None,
        kind,
    )

"""Sorting a profiler trace's events into what the readers ask for.

The names and categories of ten years of PyTorch, NVIDIA, ROCm and gloo meet here, and only here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from commsched.models.collectives import Kind
from commsched.problems.chrome_trace import MAX_EVENT_NS, Event, ns_from_trace_us

ACCUMULATE = "torch::autograd::AccumulateGrad"
EVALUATE = "autograd::engine::evaluate_function"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_C10D = re.compile(r"_?c10d(?:_functional)?::_?([a-z_0-9]+?)_?")
_ANNOTATION = re.compile(r"(?:gloo|nccl|rccl|xccl|ucc|mpi|hccl|oneccl):([a-z_]+)")
_KINDS: Mapping[str, Kind] = {
    "allreduce": "allreduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
}
_SUFFIXES = re.compile(r"(?:_coalesced|_base|_single|_into_tensor|_tensor|(?<=all)v)+\Z")
_KERNEL_CATS = {"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"}
_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|msccl|deep_?ep|mscclpp", re.IGNORECASE)
_OPERATION_CATS = {"cpu_op", "operator", "user_annotation"}
_IGNORED_CATS = {"python_function", "gpu_user_annotation", "trace", "overhead"}


@dataclass(slots=True)
class Op:
    """An event with times: ``start`` and ``end`` in nanoseconds on the trace's own clock."""

    name: str
    tid: str
    start: int
    end: int
    event: Event

    @property
    def arguments(self) -> dict[str, object]:
        """The event's arguments."""
        return self.event.arguments


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


class _Links(msgspec.Struct, gc=False):
    """The arguments that tie a kernel to its launch."""

    correlation: object = None
    external_id: object = msgspec.field(default=None, name="External id")
    external_id_lower: object = msgspec.field(default=None, name="external id")
    collective_name: object = msgspec.field(default=None, name="Collective name")
    elements: object = msgspec.field(default=None, name="In msg nelems")
    dtype: object = None


_LINKS = msgspec.json.Decoder(_Links)


@dataclass(slots=True)
class TraceEvents:
    """A profiler trace, sorted; every list rises by start.

    Attributes
    ----------
    steps
        (number, event) of each ``ProfilerStep#N``.
    hooks
        The outer AccumulateGrad events, which hold DDP's hooks; the inner ones in old traces.
    inner
        The inner AccumulateGrad events, which hold the shapes.
    evaluated
        Every function that autograd evaluated.
    allreduces
        Every event that speaks of an all-reduce, nested ones too; gloo's own threads apart.
    gloo
        The all-reduces on gloo's own threads.
    collectives
        How many operations of each kind the trace has.
    starts
        The starts of forward passes and of the optimizer, which end a backward pass.
    kernels
        What ran on the GPU and whose launch is known.
    has_outer
        Whether the trace has outer AccumulateGrad events (PyTorch 1.10 and later).
    dropped
        Events that were not used, by reason.
    """

    steps: list[tuple[int, Op]] = field(default_factory=list)
    hooks: list[Op] = field(default_factory=list)
    inner: list[Op] = field(default_factory=list)
    evaluated: list[Op] = field(default_factory=list)
    allreduces: list[Op] = field(default_factory=list)
    gloo: list[Op] = field(default_factory=list)
    collectives: list[tuple[Kind, Op]] = field(default_factory=list)
    starts: list[Op] = field(default_factory=list)
    forwards: list[Op] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    launch_calls: int = 0
    has_outer: bool = True
    first: int = 2**63
    last: int = -(2**63)
    processes: frozenset[str] = frozenset()
    dropped: Counter[str] = field(default_factory=Counter)


@lru_cache(maxsize=1024)
def collective_kind(name: str) -> Kind | None:
    """Return the kind of a collective by its name in a trace; None if it is none.

    Examples
    --------
    >>> collective_kind("c10d::_allgather_base_"), collective_kind("nccl:_reduce_scatter_base")
    ('all_gather', 'reduce_scatter')
    """
    match = _C10D.fullmatch(name) or _ANNOTATION.match(name)
    return _kind_of_word(match[1]) if match else None


def _kind_of_word(word: str) -> Kind | None:
    return _KINDS.get(_SUFFIXES.sub("", word.lower().strip("_")).replace("_", ""))


def sort_events(events: Sequence[Event]) -> TraceEvents:
    """Sort a trace's events; those that no reader asks for are counted and left."""
    found = TraceEvents()
    outer_name = f"{EVALUATE}: {ACCUMULATE}"
    kernels: list[tuple[Kernel, _Links]] = []
    calls: dict[object, Op] = {}
    outer: list[Op] = []
    pids: set[str] = set()
    for event in events:
        if event.ph != "X" or not isinstance(event.name, str):
            found.dropped["no complete events (metadata, flows, marks)"] += 1
            continue
        name = event.name
        cat = event.cat.lower() if isinstance(event.cat, str) else ""
        if cat in _IGNORED_CATS:
            found.dropped["Python functions, annotations on the GPU, the profiler's own"] += 1
            continue
        on_gpu = cat in _KERNEL_CATS
        is_call = "runtime" in cat or "driver" in cat
        sort = "" if on_gpu or is_call else _sort_of(name, outer_name)
        op = _timed(event, found.dropped)
        if op is None:
            continue
        if on_gpu:
            kernels.append(_kernel(op, cat))
            continue
        found.first = min(found.first, op.start)
        found.last = max(found.last, op.end)
        if is_call:
            correlation = _links(event).correlation
            if isinstance(correlation, int | str):
                calls.setdefault(correlation, op)
        elif sort:
            _file(found, outer, sort, op)
            if sort in ("outer", "inner"):
                pids.add(str(event.pid).strip())
        else:
            found.dropped["operations that say nothing of gradients or communication"] += 1
    found.launch_calls = len(calls)
    found.kernels = _launched(kernels, calls, events, found.dropped)
    found.has_outer = bool(outer)
    found.hooks = outer or found.inner
    found.processes = frozenset(pids)
    for ops in (
        found.hooks, found.inner, found.evaluated, found.allreduces, found.gloo, found.starts,
        found.forwards,
    ):  # fmt: skip
        # Parents before their children: the longer of two that start together.
        ops.sort(key=lambda op: (op.start, -op.end))
    found.steps.sort(key=lambda step: step[1].start)
    found.collectives.sort(key=lambda pair: (pair[1].start, -pair[1].end))
    found.kernels.sort(key=lambda kernel: (kernel.launched, kernel.start))
    return found


@lru_cache(maxsize=4096)
def _sort_of(name: str, outer_name: str) -> str:
    if name == ACCUMULATE:
        return "inner"
    if name.startswith(EVALUATE):
        return "outer" if name == outer_name else "evaluated"
    if name.startswith("ProfilerStep#"):
        return "step"
    if name == "record_param_comms" or collective_kind(name):
        return "collective"
    if name == "DistributedDataParallel.forward" or name.startswith("Optimizer."):
        return "start"
    # Before PyTorch 1.10 autograd's functions stand alone.
    return "evaluated" if name.endswith(("Backward", "Backward0", "Backward1")) else ""


def _file(found: TraceEvents, outer: list[Op], sort: str, op: Op) -> None:
    if sort == "inner":
        found.inner.append(op)
    elif sort == "outer":
        outer.append(op)
        found.evaluated.append(op)
    elif sort == "evaluated":
        found.evaluated.append(op)
    elif sort == "step":
        match = _STEP.fullmatch(op.name)
        if match:
            found.steps.append((int(match[1]), op))
    elif sort == "start":
        found.starts.append(op)
        if op.name.startswith("Distributed"):
            found.forwards.append(op)
    else:
        _file_collective(found, op)


def _file_collective(found: TraceEvents, op: Op) -> None:
    if op.name == "record_param_comms":
        kind = _kind_of_word(str(op.arguments.get("Collective name", "")))
    else:
        kind = collective_kind(op.name)
    if kind is None:
        return
    if op.name.startswith("gloo:"):
        # gloo names its reduce-scatter all_reduce too, so these never make a launch by themselves
        # where the operation that asked for them is recorded.
        if kind == "allreduce":
            found.gloo.append(op)
    else:
        found.collectives.append((kind, op))
        if kind == "allreduce":
            found.allreduces.append(op)


def _timed(event: Event, dropped: Counter[str]) -> Op | None:
    start, length = ns_from_trace_us(event.ts), ns_from_trace_us(event.dur)
    if start is None:
        dropped["events without a readable time"] += 1
        return None
    if length is None:
        dropped["events without a duration"] += 1
        return None
    if not 0 <= length <= MAX_EVENT_NS:
        dropped["events with an impossible duration"] += 1
        return None
    return Op(event.name, str(event.tid).strip(), start, start + length, event)


def _links(event: Event) -> _Links:
    raw = bytes(event.args)
    try:
        return _LINKS.decode(raw) if raw else _Links()
    except (ValueError, RecursionError):
        return _Links()


def _kernel(op: Op, cat: str) -> tuple[Kernel, _Links]:
    links = _links(op.event)
    kernel = Kernel(
        op.name,
        op.start,
        op.end,
        is_kernel="kernel" in cat,
        is_collective=bool(_COLLECTIVE_KERNEL.search(op.name)),
        elements=links.elements,
        dtype=links.dtype,
    )
    return kernel, links


def _launched(
    kernels: Sequence[tuple[Kernel, _Links]],
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
        external_id = (
            links.external_id if links.external_id is not None else links.external_id_lower
        )
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
        links = _links(event)
        external_id = (
            links.external_id if links.external_id is not None else links.external_id_lower
        )
        if isinstance(external_id, int | str):
            op = _timed(event, Counter())
            if op is not None:
                found.setdefault(external_id, op)
    return found

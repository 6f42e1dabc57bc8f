"""Sorting a profiler trace's events into what the readers ask for.

The names and categories of ten years of PyTorch, NVIDIA, ROCm and gloo meet here, and only here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from commsched.models.collectives import Kind
from commsched.problems.profiler.chrome_trace import Event, Op, times_of
from commsched.problems.profiler.trace_kernels import (
    KERNEL_CATS,
    Kernel,
    Links,
    correlation_of,
    kernel_of,
    launched_kernels,
)

ACCUMULATE = "torch::autograd::AccumulateGrad"
EVALUATE = "autograd::engine::evaluate_function"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_C10D = re.compile(r"_?c10d(?:_functional)?::_?([a-z_0-9]+?)_?")
_ANNOTATION = re.compile(r"(?:gloo|ucc|mpi|cncl|[a-z]{0,8}ccl):([a-z_]+)")
_KINDS: Mapping[str, Kind] = {
    "allreduce": "allreduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
}
_LONGEST_NAME = 200
_SUFFIXES = re.compile(r"(?:_coalesced|_base|_single|_into_tensor|_tensor|(?<=all)v)+\Z")
IGNORED_CATS = frozenset({"python_function", "gpu_user_annotation", "trace", "overhead"})
"""Categories, in lower case, of events that no reader asks for."""


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
    gloo_others
        How many other collectives gloo's threads ran.
    collectives
        (kind, event) of every event that speaks of a collective, nested ones too.
    starts
        The starts of forward passes and of the optimizer, which end a backward pass.
    forwards
        The starts of forward passes of DDP.
    kernels
        What ran on the GPU and whose launch is known.
    silent
        When kernels were launched that were not recorded.
    launch_calls
        How many calls of a GPU's runtime the trace has.
    placed
        How many kernels' launches are known only by the order on their stream.
    has_outer
        Whether the trace has outer AccumulateGrad events (PyTorch 1.10 and later).
    first, last
        From when to when the processor's events last, in nanoseconds on the trace's clock.
    processes
        The processes that have gradients.
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
    silent: list[int] = field(default_factory=list)
    gloo_others: int = 0
    launch_calls: int = 0
    placed: int = 0
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
    if len(name) > _LONGEST_NAME:
        return None
    match = _C10D.fullmatch(name) or _ANNOTATION.match(name)
    return kind_of_word(match[1]) if match else None


def kind_of_word(word: str) -> Kind | None:
    """Return the kind of a collective by the word for it in a trace; None if it is none.

    Examples
    --------
    >>> kind_of_word("_allgather_base"), kind_of_word("all_to_allv"), kind_of_word("barrier")
    ('all_gather', 'all_to_all', None)
    """
    return _KINDS.get(_SUFFIXES.sub("", word.lower().strip("_")).replace("_", ""))


def sort_events(events: Sequence[Event]) -> TraceEvents:
    """Sort a trace's events; those that no reader asks for are counted and left."""
    found = TraceEvents()
    outer_name = f"{EVALUATE}: {ACCUMULATE}"
    kernels: list[tuple[Kernel, Links]] = []
    calls: dict[object, Op] = {}
    outer: list[Op] = []
    functions: list[Op] = []
    pids: set[str] = set()
    first, last, others = found.first, found.last, 0
    for event in events:
        name, cat = event.name, event.cat
        if event.ph != "X" or not isinstance(name, str):
            found.dropped["no complete events (metadata, flows, marks)"] += 1
            continue
        place = _place_of(cat) if isinstance(cat, str) else ""
        if place == "ignored":
            found.dropped["Python functions, annotations on the GPU, the profiler's own"] += 1
            continue
        times = times_of(event, found.dropped)
        if times is None:
            continue
        start, end = times
        sort = "" if place else _sort_of(name, outer_name)
        if place != "gpu":
            first = start if start < first else first
            last = end if end > last else last
            if not place and not sort:
                others += 1  # Most events of most traces: no object is made of them.
                continue
        op = Op(name, str(event.tid).strip(), start, end, event)
        if place == "gpu":
            kernels.append(kernel_of(op, cat.lower()))
        elif place == "call":
            correlation = correlation_of(event)
            if isinstance(correlation, int | str):
                calls.setdefault(correlation, op)
        else:
            _file(found, outer, functions, sort, op)
            if sort in ("outer", "inner"):
                pids.add(str(event.pid).strip())
    found.first, found.last = first, last
    if others:
        found.dropped["operations that say nothing of gradients or communication"] += others
    found.launch_calls = len(calls)
    shown = {links.correlation for _, links in kernels if isinstance(links.correlation, int | str)}
    found.silent = sorted(
        call.start
        for correlation, call in calls.items()
        if "launch" in call.name.lower() and correlation not in shown
    )
    found.kernels, found.placed = launched_kernels(kernels, calls, events, found.dropped)
    found.has_outer = bool(outer)
    found.hooks = outer or list(found.inner)
    if not outer:
        found.evaluated = functions
    found.processes = frozenset(pids)
    for ops in (found.hooks, found.inner):
        ops.sort(key=lambda op: (op.start, op.end))
    for ops in (found.evaluated, found.allreduces, found.gloo, found.starts, found.forwards):
        # Parents before their children: the longer of two that start together.
        ops.sort(key=lambda op: (op.start, -op.end))
    found.steps.sort(key=lambda step: step[1].start)
    found.collectives.sort(key=lambda pair: (pair[1].start, -pair[1].end))
    found.kernels.sort(key=lambda kernel: (kernel.launched, kernel.start))
    return found


@lru_cache(maxsize=1024)
def _place_of(cat: str) -> str:
    """Return where events of a category belong; empty for operations of the processor."""
    lower = cat.lower()
    if lower in IGNORED_CATS:
        return "ignored"
    if lower in KERNEL_CATS:
        return "gpu"
    return "call" if "runtime" in lower or "driver" in lower else ""


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
    return "function" if name.endswith(("Backward", "Backward0", "Backward1")) else ""


def _file(found: TraceEvents, outer: list[Op], functions: list[Op], sort: str, op: Op) -> None:
    if sort == "inner":
        found.inner.append(op)
    elif sort == "outer":
        outer.append(op)
        found.evaluated.append(op)
    elif sort in ("evaluated", "function"):
        (found.evaluated if sort == "evaluated" else functions).append(op)
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
        kind = kind_of_word(str(op.arguments.get("Collective name", "")))
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
            found.gloo_others += 1
    else:
        found.collectives.append((kind, op))
        if kind == "allreduce":
            found.allreduces.append(op)

"""The all-reduces of a profiler trace: one launch each, with its size and its group."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.models.collectives import Kind
from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_dtypes import (
    dtype_name,
    list_elements,
    only_shape,
    tensor_sizes,
)
from commsched.problems.profiler.trace_events import TraceEvents

UNKNOWN_GROUP = "dp"
_ANY = -1


@dataclass(slots=True)
class AllReduce:
    """An all-reduce as it was issued.

    Attributes
    ----------
    op
        The outermost event that speaks of it.
    elements, dtype
        Its recorded size and type; None if not recorded.
    shape
        The dimensions of its only tensor; None if there are several or they were not recorded.
    group
        The process group's name.
    on_gpu
        Whether its backend moves tensors of a GPU.
    ran
        From when to when it ran where that is known without looking at kernels (gloo).
    issued
        Whether ``op`` is where it was issued. False in old gloo traces, which only have the
        event on gloo's own thread.
    """

    op: Op
    elements: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    group: str = UNKNOWN_GROUP
    on_gpu: bool = False
    ran: tuple[int, int] | None = None
    issued: bool = True
    parts: list[Op] = field(default_factory=list)


def find_allreduces(events: TraceEvents) -> list[AllReduce]:
    """Return the trace's all-reduces in the order in which they were issued.

    ``c10d::allreduce_``, ``record_param_comms`` and ``nccl:all_reduce`` are nested in each other;
    which of them are there, and which one has the size, depends on PyTorch's version. gloo's own
    events stand alone only in traces of old versions.
    """
    found = [AllReduce(ops[0], parts=ops) for ops in _nests(events.allreduces)]
    for launch in found:
        for part in launch.parts:
            _read_part(launch, part)
    if found or events.collectives:
        _match_gloo(found, events.gloo)
    elif not events.gloo_others:  # With them it may be sharded training: see the names above.
        found = [AllReduce(op, ran=(op.start, op.end), issued=False) for op in events.gloo]
        for launch in found:
            launch.elements, launch.dtype = _tensors(launch.op)
    found.sort(key=lambda launch: launch.op.start)
    return found


def count_collectives(
    events: TraceEvents, start: int | None = None, end: int | None = None
) -> dict[Kind, int]:
    """Return how many collectives of each kind were issued, in a window or in all.

    Nested events speak of the same collective, so the most frequent sort of name counts.
    """
    counts: dict[Kind, Counter[str]] = {}
    for kind, op in events.collectives:
        if (start is None or start <= op.start) and (end is None or op.start < end):
            prefix = op.name.partition(":")[0]
            counts.setdefault(kind, Counter())[prefix] += 1
    return {kind: max(by_prefix.values()) for kind, by_prefix in counts.items()}


def _nests(ops: Sequence[Op]) -> list[list[Op]]:
    """Group events that are nested in each other by time on the same thread."""
    nests: list[list[Op]] = []
    current: dict[str, list[Op]] = {}
    for op in sorted(ops, key=lambda op: (op.start, _depth(op.name))):
        nest = current.get(op.tid)
        # Whole microseconds may let a child start at its parent's end.
        if nest and op.start <= nest[0].end and _depth(op.name) > _depth(nest[0].name):
            nest.append(op)
        else:
            current[op.tid] = nest = [op]
            nests.append(nest)
    return nests


def _depth(name: str) -> int:
    if "c10d" in name:
        return 0 if "functional" in name else 1
    return 2 if name == "record_param_comms" else 3


def _read_part(launch: AllReduce, part: Op) -> None:
    arguments = part.arguments
    elements: int | None = None
    dtype: str | None = None
    if part.name == "record_param_comms":
        count = arguments.get("In msg nelems")
        if type(count) is int and count >= 0:
            elements, dtype = count, dtype_name(arguments.get("dtype"))
        for key in ("Process Group Name", "Process Group Description"):
            name = arguments.get(key)
            if isinstance(name, str) and name and name != "undefined":
                launch.group = name
    if elements is None:
        elements, dtype = _tensors(part)
    if elements is None:
        elements = list_elements(arguments.get("Input Dims"))
    if launch.elements is None:
        launch.elements = elements
    if launch.shape is None:
        launch.shape = only_shape(arguments.get("Input Dims"))
    if launch.dtype is None:
        launch.dtype = dtype
    launch.on_gpu |= part.name.partition(":")[0].endswith(("ccl", "cncl"))


def _tensors(op: Op) -> tuple[int | None, str | None]:
    """Return the elements and the type of the tensors that an event lists as its inputs."""
    arguments = op.arguments
    sizes = tensor_sizes(arguments.get("Input Dims"), arguments.get("Input type"))
    dtypes = {size.dtype for size in sizes}
    if len(dtypes) != 1:
        return None, None
    return sum(size.elements for size in sizes), dtypes.pop()


def _match_gloo(launches: Sequence[AllReduce], runs: Sequence[Op]) -> None:
    """Find when gloo's threads ran each all-reduce: they take them in the order of issue.

    Both lists rise by start, so a run that started before one launch is of no later launch.
    """
    sized = [(op, *_tensors(op)) for op in runs]
    queues: dict[int | None, deque[int]] = defaultdict(deque)
    for at, (_, elements, _) in enumerate(sized):
        queues[elements].append(at)
        if elements is not None:
            queues[_ANY].append(at)
    used: set[int] = set()
    for launch in launches:
        wanted = _ANY if launch.elements is None else launch.elements
        for queue in (queues[wanted], queues[None]):
            while queue and (queue[0] in used or sized[queue[0]][0].start < launch.op.start):
                queue.popleft()
            if queue:
                at = queue.popleft()
                used.add(at)
                op, elements, dtype = sized[at]
                launch.ran = (op.start, op.end)
                launch.dtype = launch.dtype or dtype
                launch.elements = elements if launch.elements is None else launch.elements
                break

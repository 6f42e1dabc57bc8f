"""The collectives of a profiler trace, of every kind: what was called, and when it ran."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.models.collectives import Kind
from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.graph_events import GraphEvents
from commsched.problems.profiler.graph_messages import Message, message_of_arguments, message_of_op
from commsched.problems.profiler.trace_events import collective_kind, kind_of_word
from commsched.problems.profiler.trace_kernels import Kernel

_ANY = -1
_REDUCE = re.compile(r"(?:c10d::_?|[a-z]+:_?)?reduce_?", re.IGNORECASE)
_KERNEL_KINDS: tuple[tuple[str, Kind], ...] = (
    ("allreduce", "allreduce"),
    ("all_reduce", "allreduce"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("reduce_scatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
)


@dataclass(slots=True)
class Call:
    """A collective as it was called.

    Attributes
    ----------
    kind
        Its kind; None if the trace does not tell it, or the planner knows no such kind.
    op
        The event that covers its issue; the kernel itself where there is no other.
    message
        What it moves and between whom.
    kernels
        What ran on the GPU for it.
    ran
        From when to when it ran, on the trace's clock; None if that was not recorded.
    stream
        The GPU's stream, or gloo's thread, that ran it.
    was_reduce
        Whether it is a reduce to one rank, which is counted as a broadcast.
    what
        How the trace calls it.
    """

    kind: Kind | None
    op: Op
    message: Message = field(default_factory=Message)
    kernels: list[Kernel] = field(default_factory=list)
    ran: tuple[int, int] | None = None
    stream: str = ""
    was_reduce: bool = False
    what: str = ""

    @property
    def issued(self) -> int:
        """When it was issued: its kernel's launch, else the start of its event."""
        return self.kernels[0].launched if self.kernels else self.op.start

    @property
    def is_issued(self) -> bool:
        """Whether its issue was recorded; the oldest traces only have gloo's own thread."""
        return not self.op.name.startswith("gloo:")


@dataclass(slots=True)
class Calls:
    """The collectives of a trace in the order of issue, and the waits for them.

    Attributes
    ----------
    calls
        The collectives.
    waits
        (wait, its message) in order: operations that made somebody wait for a collective.
    dropped
        What is no collective that counts, by reason.
    """

    calls: list[Call]
    waits: list[tuple[Op, Message]]
    dropped: Counter[str]


def find_calls(events: GraphEvents, kernels: Sequence[Kernel]) -> Calls:
    """Return the collectives of a trace.

    Parameters
    ----------
    events
        The second look at the trace.
    kernels
        All kernels whose launch is known, rising by launch.
    """
    dropped = Counter[str]()
    lanes: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.is_collective:
            lanes[kernel.tid].append(kernel)
    taken: set[int] = set()
    calls: list[Call] = []
    waits = [(op, message_of_op(op)) for op in events.waits]
    for nest in _nests(events.comms):
        call = _call_of(nest)
        _take_kernels(call, nest, lanes, taken)
        if call.kind is None and not call.kernels:
            if _is_wait(nest, events.event_waits):
                waits.append((nest[0], call.message))
            else:
                dropped["barriers and other calls that move no data"] += 1
            continue
        calls.append(call)
    for lane in lanes.values():
        for kernel in lane:
            if id(kernel) not in taken:
                calls.append(_call_of_kernel(kernel))
    calls.sort(key=lambda call: (call.issued, call.op.start))
    _share_kernels(calls)
    if calls:
        _match_runs(calls, events.runs)
    else:
        calls = [_call_of_run(op) for op in events.runs]
    kept = [call for call in calls if not _is_empty(call)]
    dropped["collectives of no bytes"] += len(calls) - len(kept)
    waits.sort(key=lambda pair: pair[0].start)
    return Calls(kept, waits, dropped)


def _is_empty(call: Call) -> bool:
    return call.message.sent == 0 and call.message.received in (0, None)


def _depth(name: str) -> int:
    if "functional" in name:
        return 0
    if "c10d" in name:
        return 1
    return 2 if name == "record_param_comms" else 3


def _nests(ops: Sequence[Op]) -> list[list[Op]]:
    """Group the events that speak of one collective: nested by time on one thread.

    A functional collective may call itself once more, below a wait for its input.
    """
    nests: list[list[Op]] = []
    current: dict[str, list[Op]] = {}
    for op in ops:
        nest = current.get(op.tid)
        depth = _depth(op.name)
        # Whole microseconds may let a child start at its parent's end.
        if nest and op.start <= nest[0].end and op.end <= nest[0].end + 1000:
            top = _depth(nest[0].name)
            if depth > top or (depth == top == 0 and op.end <= nest[0].end):
                nest.append(op)
                continue
        current[op.tid] = nest = [op]
        nests.append(nest)
    return nests


def _call_of(nest: Sequence[Op]) -> Call:
    # The innermost operation of PyTorch itself: what lies above may wait for its input first.
    op = max((op for op in nest if _depth(op.name) <= 1), key=lambda op: op.start, default=nest[0])
    call = Call(None, op, what=nest[0].name)
    for part in sorted(nest, key=_trust):
        call.message.learn(message_of_op(part))
        kind = _kind_of(part)
        if call.kind is None and kind is not None:
            call.kind = kind
        if call.kind is None and _is_reduce(part):
            call.kind, call.was_reduce = "broadcast", True
    if call.kind is None:
        words = [str(part.arguments.get("Collective name", "")) for part in nest]
        call.what = next((word for word in words if word), call.what)
    return call


def _trust(op: Op) -> int:
    """Order the parts of a nest by how exactly they know sizes."""
    return (3, 1, 0, 2)[_depth(op.name)]


def _kind_of(op: Op) -> Kind | None:
    if op.name == "record_param_comms":
        return kind_of_word(str(op.arguments.get("Collective name", "")))
    return collective_kind(op.name)


def _is_reduce(op: Op) -> bool:
    name = op.name
    if name == "record_param_comms":
        name = str(op.arguments.get("Collective name", ""))
    return bool(_REDUCE.fullmatch(name))


def _is_wait(nest: Sequence[Op], event_waits: Sequence[Op]) -> bool:
    """Return whether a call without a kernel is a wait for another one.

    New traces say so; in old ones it is a ``record_param_comms`` that only makes a stream wait.
    """
    if any(str(op.arguments.get("Collective name", "")) == "wait" for op in nest):
        return True
    if [op.name for op in nest] != ["record_param_comms"] or "Collective name" in nest[0].arguments:
        return False
    at = bisect_left(event_waits, nest[0].start, key=lambda op: op.start)
    return any(op.start <= nest[0].end and op.tid == nest[0].tid for op in event_waits[at : at + 4])


def _take_kernels(
    call: Call, nest: Sequence[Op], lanes: dict[str, list[Kernel]], taken: set[int]
) -> None:
    lane = lanes.get(nest[0].tid, [])
    first = bisect_left(lane, nest[0].start, key=lambda kernel: kernel.launched)
    last = bisect_right(lane, nest[0].end, key=lambda kernel: kernel.launched)
    own = [kernel for kernel in lane[first:last] if id(kernel) not in taken]
    taken.update(map(id, own))
    _give(call, own)


def _give(call: Call, kernels: list[Kernel]) -> None:
    if not kernels:
        return
    call.kernels = kernels
    call.ran = min(k.start for k in kernels), max(k.end for k in kernels)
    call.stream = kernels[0].stream
    for kernel in kernels:
        if kernel.event is not None:
            call.message.learn(message_of_arguments(kernel.event.arguments))


def _call_of_kernel(kernel: Kernel) -> Call:
    """Return the collective of a kernel that no event on the processor speaks of."""
    assert kernel.event is not None
    op = Op(kernel.name, kernel.tid, kernel.launched, kernel.launched, kernel.event)
    call = Call(kind_of_word(_name_in(kernel)), op, what=kernel.name[:60])
    if call.kind is None:
        name = kernel.name.lower()
        call.kind = next((kind for word, kind in _KERNEL_KINDS if word in name), None)
    _give(call, [kernel])
    return call


def _name_in(kernel: Kernel) -> str:
    return str(kernel.event.arguments.get("Collective name", "")) if kernel.event else ""


def _call_of_run(op: Op) -> Call:
    """Return the collective of an event on gloo's thread, all that its oldest traces have."""
    call = Call(collective_kind(op.name), op, what=op.name)
    call.message.learn(message_of_op(op))
    call.ran, call.stream = (op.start, op.end), op.tid
    return call


def _share_kernels(calls: Sequence[Call]) -> None:
    """Give the kernel of a coalesced launch to the calls that it was launched for.

    They come before it on the same thread and have no kernel of their own.
    """
    silent: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if not call.kernels:
            silent[call.op.tid].append(call)
            continue
        waiting = silent.pop(call.op.tid, [])
        if waiting and _is_unsized(call):
            for other in waiting:
                _give(other, call.kernels)
            call.kernels, call.ran = [], None
            call.message.sent = 0  # It stands for nothing any more.


def _is_unsized(call: Call) -> bool:
    return call.message.sent is None and call.message.received is None


def _match_runs(calls: Sequence[Call], runs: Sequence[Op]) -> None:
    """Find when gloo's threads ran each call: they take them in the order of issue.

    gloo calls its reduce-scatter all_reduce. Runs are told apart by kind and size; those of an
    unknown size fit any.
    """
    known = [(op, message_of_op(op)) for op in runs]
    queues: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for at, (op, message) in enumerate(known):
        word = _run_word(collective_kind(op.name))
        queues[word, _ANY].append(at)
        queues[word, -2 if message.sent is None else message.sent].append(at)
    used: set[int] = set()
    for call in calls:
        if call.ran is not None or call.kernels:
            continue
        word = _run_word(call.kind)
        size = _ANY if call.message.sent is None else call.message.sent
        for queue in (queues[word, size], queues[word, -2]):
            while queue and (queue[0] in used or known[queue[0]][0].start < call.op.start):
                queue.popleft()
            if queue:
                at = queue.popleft()
                used.add(at)
                op, message = known[at]
                call.ran, call.stream = (op.start, op.end), op.tid
                call.message.learn(message)
                break


def _run_word(kind: Kind | None) -> str:
    return "allreduce" if kind == "reduce_scatter" else kind or "other"

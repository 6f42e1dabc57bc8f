"""What a trace says of the waits for collectives, apart from times: who asked when, on which thread."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.graph_calls import Call, Calls
from commsched.problems.profiler.graph_events import GraphEvents
from commsched.problems.profiler.graph_messages import Message
from commsched.problems.profiler.trace_events import TraceEvents

_COPY_OUT = re.compile(r"FSDP::all_gather_copy_out(?: \((.*)\))?")
_SCATTER_WAIT = re.compile(r"FSDP::post_backward_rs_wait(?: \((.*)\))?")
_GATHER = re.compile(r"FSDP::all_gather(?: \((.*)\))?")

RECORDED = "the profiler recorded which stream waits"
ANNOTATED = "FSDP's annotations say what takes it"
WAITED = "a wait after it was recorded"
SYNCHRONOUS = "its thread made a stream wait right after it"
BLOCKED = "the processor was blocked until it ended"
STALLED = "a stream stood still until it ended"
GRADIENT = "a gradient: assumed, the first work after backward"
FIRST = "assumed, the first work that started after it had ended"
NOBODY = "nothing found: the end of the step waits"
EVIDENCE = (
    RECORDED,
    ANNOTATED,
    WAITED,
    SYNCHRONOUS,
    BLOCKED,
    STALLED,
    GRADIENT,
    FIRST,
    NOBODY,
)
"""How it can be known who waits for a collective, the best first."""

_MAX_GROUPS = 64

Asked = tuple[int, str]
"""When somebody asked to wait, on the trace's clock, and on which thread."""


class _Queue(NamedTuple):
    """Which collectives stand in one queue for their waits."""

    group: str
    functional: bool
    gradients: bool


@dataclass(slots=True)
class Waits:
    """The waits for a step's collectives, by the collective's number.

    Attributes
    ----------
    annotated
        Where FSDP's annotations say that something takes what the collective brought.
    waited
        Where a recorded operation waits for it.
    synchronous
        Where the thread that issued it made a stream wait right afterwards.
    gradients
        For gradients the end of the backward pass: nothing of that pass waits for them.
    """

    annotated: dict[int, Asked] = field(default_factory=dict)
    waited: dict[int, Asked] = field(default_factory=dict)
    synchronous: dict[int, Asked] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)


def find_waits(
    events: TraceEvents,
    again: GraphEvents,
    found: Calls,
    step: Sequence[Call],
    labels: Sequence[str],
) -> Waits:
    """Return what is said of the waits for a step's collectives.

    Parameters
    ----------
    events, again
        The trace.
    found
        All its collectives and waits.
    step
        The step's collectives in the order of issue.
    labels
        The annotation around each of them.
    """
    numbers = {id(call): number for number, call in enumerate(step)}
    waits = Waits(_annotated(again.annotations, step, labels))
    waits.gradients = _gradients(events, step)
    gradients = {id(step[number]) for number in waits.gradients}
    for call, asked in _served(found, gradients):
        if id(call) in numbers:
            waits.waited[numbers[id(call)]] = asked
    waits.synchronous = _synchronous(events, again, step)
    return waits


def _annotated(
    annotations: Sequence[Op], step: Sequence[Call], labels: Sequence[str]
) -> dict[int, Asked]:
    gathers: dict[str, list[int]] = defaultdict(list)
    scatters: list[int] = []
    found: dict[int, Asked] = {}
    by_start = sorted(range(len(step)), key=lambda number: step[number].op.start)
    at = 0
    for op in annotations:
        while at < len(by_start) and step[by_start[at]].op.start < op.start:
            number = by_start[at]
            layer = _GATHER.fullmatch(labels[number])
            if layer is not None and step[number].kind == "all_gather":
                gathers[layer[1] or ""].append(number)
            elif step[number].kind == "reduce_scatter":
                scatters.append(number)
            at += 1
        copied, waited = _COPY_OUT.fullmatch(op.name), _SCATTER_WAIT.fullmatch(op.name)
        if copied is not None and gathers.get(copied[1] or ""):
            found.setdefault(gathers[copied[1] or ""].pop(), (op.start, op.tid))
        elif waited is not None and scatters:
            found.setdefault(scatters.pop(), (op.start, op.tid))
    return found


def _served(found: Calls, gradients: Container[int]) -> list[tuple[Call, Asked]]:
    """Give each collective the recorded wait for it.

    That is the one with its number in the group. Without numbers gradients are waited for in the
    order of issue; for everything else the first wait counts that can be for it, so that no wait
    is missed.

    Parameters
    ----------
    found
        All collectives and waits of the trace.
    gradients
        The collectives of gradients, by identity.
    """
    queues: dict[_Queue, deque[Call]] = defaultdict(deque)
    numbered: dict[tuple[str, int], Call] = {}
    served: set[int] = set()
    pairs: list[tuple[Call, Asked]] = []
    calls = sorted(found.calls, key=lambda call: call.op.start)
    at = 0
    for op, message in found.waits:
        while at < len(calls) and calls[at].op.start < op.start:
            call = calls[at]
            is_functional = "functional" in call.what
            queues[_Queue(call.message.group, is_functional, id(call) in gradients)].append(call)
            if call.message.sequence is not None:
                numbered[call.message.group, call.message.sequence] = call
            at += 1
        matches: list[Call] = []
        if op.name.endswith("::wait_tensor"):
            for key in [key for key in queues if key.functional][:_MAX_GROUPS]:
                one = _oldest(queues[key], served, message, sized=True)
                if one is not None:
                    matches = [one]
                    break
        elif message.sequence is not None:
            one = numbered.get((message.group, message.sequence))
            matches = [] if one is None else [one]
        else:
            others = queues[_Queue(message.group, False, False)]
            matches = list(others)
            others.clear()
            if not matches:
                own = queues[_Queue(message.group, False, True)]
                one = _oldest(own, served, message, sized=False)
                matches = [] if one is None else [one]
        for match in matches:
            if id(match) not in served:
                served.add(id(match))
                pairs.append((match, (op.start, op.tid)))
    return pairs


def _oldest(queue: deque[Call], served: set[int], message: Message, *, sized: bool) -> Call | None:
    """Return the oldest call that nobody waited for; of those near it one of the same size."""
    while queue and id(queue[0]) in served:
        queue.popleft()
    if sized and message.sent is not None:
        for call in list(queue)[:64]:
            known = call.message
            sizes = {known.sent, known.received}
            if known.sent is not None and known.ranks and call.kind == "all_gather":
                sizes.add(known.sent * known.ranks)
            if message.sent in sizes and id(call) not in served:
                return call
        return None
    return queue[0] if queue else None


def _synchronous(events: TraceEvents, again: GraphEvents, step: Sequence[Call]) -> dict[int, Asked]:
    """Find the calls right after which their thread made a stream wait, before any other work."""
    launches: dict[str, list[int]] = defaultdict(list)
    for kernel in events.kernels:
        launches[kernel.tid].append(kernel.launched)
    asked: dict[str, list[Op]] = defaultdict(list)
    for op in again.event_waits:
        asked[op.tid].append(op)
    issues: dict[str, list[int]] = defaultdict(list)
    for op in again.comms:
        issues[op.tid].append(op.start)
    found: dict[int, Asked] = {}
    for number, call in enumerate(step):
        if not call.kernels:
            continue
        tid, end = call.op.tid, max(call.op.end, call.kernels[-1].launched)
        ops = asked[tid]
        at = bisect_left(ops, end, key=lambda op: op.start)
        if at < len(ops) and ops[at].start < min(
            _next(launches[tid], end), _next(issues[tid], end)
        ):
            found[number] = (ops[at].start, tid)
    return found


def _next(times: Sequence[int], after: int) -> int:
    at = bisect_right(times, after)
    return times[at] if at < len(times) else 2**63


def _gradients(events: TraceEvents, step: Sequence[Call]) -> dict[int, int]:
    """Return the collectives of gradients, with the end of the backward pass of each.

    They are the all-reduces and reduce-scatters that autograd's functions issued.
    """
    lanes: dict[str, list[Op]] = defaultdict(list)
    for op in events.evaluated:
        lanes[op.tid].append(op)
    marks = [op.start for op in events.starts]
    found: dict[int, int] = {}
    for number, call in enumerate(step):
        if call.kind not in ("allreduce", "reduce_scatter") and not call.was_reduce:
            continue
        time = call.op.start
        if not _inside(lanes, call.op.tid, time):
            continue
        after = _next(marks, time)
        last = bisect_left(events.evaluated, after, key=lambda op: op.start)
        tail = events.evaluated[max(0, last - 8) : last]
        found[number] = max([op.end for op in tail if op.end <= after] + [call.op.end])
    return found


def _inside(lanes: Mapping[str, Sequence[Op]], tid: str, time: int) -> bool:
    own = lanes.get(tid, ())
    at = bisect_right(own, time, key=lambda op: op.start)
    return any(op.end >= time for op in own[max(0, at - 4) : at])

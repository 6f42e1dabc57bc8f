"""What the general step graph needs of a profiler trace beyond what one DDP step needs.

A second look at the same events: every collective of any kind, the waits for them, the calls that
block the processor, and the annotations that give names.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from commsched.problems.profiler.chrome_trace import Event, Op, timed_op
from commsched.problems.profiler.trace_events import collective_kind
from commsched.problems.profiler.trace_kernels import links_of, stream_key

_PREFIXES = ("nccl:", "rccl:", "xccl:", "hccl:", "ucc:", "mpi:", "oneccl:")
_MARKED = ("FSDP::", "FullyShardedDataParallel.", "DistributedDataParallel.", "Optimizer.", "##")
_BLOCKING = ("Synchronize", "Memcpy")
_MODULE = "nn.Module: "
MAX_ANNOTATIONS = 200_000
"""More annotations than that are not read: they only give names."""


class StreamWait(NamedTuple):
    """A stream that waits for an event of another one, by the calls that asked for it.

    Attributes
    ----------
    stream, source
        The waiting stream and the one whose event it is.
    wait_call, record_call
        The correlations of the calls that made the stream wait and that recorded the event.
    """

    stream: str
    source: str
    wait_call: int
    record_call: int


@dataclass(slots=True)
class Moments:
    """When operations of one thread started and ended, in nanoseconds on the trace's clock.

    ``waits`` tells which of them are no work: they only name it, or may wait for a collective.
    """

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    waits: array[int] = field(default_factory=lambda: array("b"))


@dataclass(slots=True)
class GraphEvents:
    """The second look at a trace; every list rises by start.

    Attributes
    ----------
    comms
        Every event of the processor that speaks of communication, nested ones too.
    runs
        What gloo's own threads ran.
    waits
        The operations that wait for a collective, as ``wait`` of ``record_param_comms`` does.
    annotations
        What users, FSDP, the optimizer and modules call their work.
    event_waits
        The calls that make a stream wait for an event.
    blocking
        The calls that may block the processor until a stream has done its work.
    stream_waits
        Which stream waited for which event, where the profiler recorded it.
    calls
        The calls that record events or wait for them, by correlation.
    moments
        For each thread of the processor its operations; only read where there is no GPU.
    cut_annotations
        How many annotations were not kept.
    """

    comms: list[Op] = field(default_factory=list)
    runs: list[Op] = field(default_factory=list)
    waits: list[Op] = field(default_factory=list)
    annotations: list[Op] = field(default_factory=list)
    event_waits: list[Op] = field(default_factory=list)
    blocking: list[Op] = field(default_factory=list)
    stream_waits: list[StreamWait] = field(default_factory=list)
    calls: dict[int, Op] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    cut_annotations: int = 0


def look_again(events: Sequence[Event], *, moments: bool) -> GraphEvents:
    """Return what the graph needs.

    Parameters
    ----------
    events
        The trace's events.
    moments
        Whether the times of all operations of the processor are wanted.
    """
    found = GraphEvents()
    for event in events:
        if event.ph != "X" or not isinstance(event.name, str):
            continue
        cat = event.cat.lower() if isinstance(event.cat, str) else ""
        sort = _sort_of(event.name, cat)
        if sort == "sync":
            _file_stream_wait(found, event)
            continue
        if not sort and not (moments and cat in ("cpu_op", "operator", "user_annotation")):
            continue
        op = timed_op(event, Counter())
        if op is None:
            continue
        if sort:
            _file(found, sort, op)
        if moments and cat != "python_function" and sort != "run":
            lane = found.moments.setdefault(op.tid, Moments())
            lane.starts.append(op.start)
            lane.ends.append(op.end)
            lane.waits.append(sort in ("comm", "wait") or cat == "user_annotation")
    for ops in (
        found.comms,
        found.waits,
        found.annotations,
        found.event_waits,
        found.runs,
        found.blocking,
    ):
        ops.sort(key=lambda op: (op.start, -op.end))
    return found


@lru_cache(maxsize=8192)
def _sort_of(name: str, cat: str) -> str:
    """Return which sort of event this is; empty if the graph does not need it."""
    if "sync" in cat and "cuda" in cat:
        return "sync" if name == "Stream Wait Event" else ""
    if "runtime" in cat or "driver" in cat:
        if "StreamWaitEvent" in name:
            return "event wait"
        if "EventRecord" in name:
            return "event record"
        return "blocking" if any(word in name for word in _BLOCKING) else ""
    if cat == "python_function":
        return "annotation" if name.startswith(_MODULE) else ""
    if cat not in ("cpu_op", "operator", "user_annotation"):
        return ""
    if name.startswith("gloo:"):
        return "run"
    if name.endswith("::wait_tensor"):
        return "wait"
    if "functional::" in name and collective_kind(name) is None:
        return ""
    if name == "record_param_comms" or "c10d" in name or name.startswith(_PREFIXES):
        return "comm"
    if name.startswith("ProfilerStep#"):
        return ""
    return "annotation" if cat == "user_annotation" or name.startswith(_MARKED) else ""


def _file(found: GraphEvents, sort: str, op: Op) -> None:
    if sort == "comm":
        found.comms.append(op)
    elif sort == "run":
        found.runs.append(op)
    elif sort == "wait":
        found.waits.append(op)
    elif sort == "blocking":
        found.blocking.append(op)
    elif sort == "annotation":
        if len(found.annotations) < MAX_ANNOTATIONS:
            found.annotations.append(op)
        else:
            found.cut_annotations += 1
    else:
        correlation = links_of(op.event).correlation
        if sort == "event wait":
            found.event_waits.append(op)
        if type(correlation) is int:
            found.calls.setdefault(correlation, op)


def _file_stream_wait(found: GraphEvents, event: Event) -> None:
    arguments = event.arguments
    correlation = arguments.get("correlation")
    record = arguments.get("wait_on_cuda_event_record_corr_id")
    stream, source = arguments.get("stream", event.tid), arguments.get("wait_on_stream")
    if type(correlation) is int and type(record) is int and type(source) in (int, str):
        device = event.pid
        found.stream_waits.append(
            StreamWait(stream_key(device, stream), stream_key(device, source), correlation, record)
        )

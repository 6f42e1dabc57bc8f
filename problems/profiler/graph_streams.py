"""What each launch on a GPU waited for, where the profiler recorded the waits of the streams.

A stream that waits for an event waits for the last work before it on the event's stream, and for
all that that stream had been told to wait for since. So the launches, the recorded events and the
waits are replayed in the order in which the processor made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_events import GraphEvents
from commsched.problems.profiler.graph_lanes import Lane

_MAX_STREAMS = 256

Launched = tuple[str, int] | int
"""A work by its lane and position, or a call by its number."""


class _Action(NamedTuple):
    time: int
    order: int
    stream: str
    launched: Launched | None
    event: int


def stream_dependencies(
    events: GraphEvents,
    lanes: Mapping[str, Lane],
    calls: Sequence[Call],
    unknown: Mapping[int, str],
) -> Iterator[tuple[Launched, Launched]]:
    """Yield who had to wait for whom: the earlier launch and the later one.

    Parameters
    ----------
    events
        The second look at the trace.
    lanes
        The compute streams.
    calls
        The step's collectives in the order of issue.
    unknown
        The streams of events whose stream was not recorded, by the call that recorded them.
    """
    actions = _actions(events, lanes, calls, unknown)
    if len({action.stream for action in actions}) > _MAX_STREAMS:
        return
    last: dict[str, Launched] = {}
    # What a stream has to wait for: of each other stream the latest launch, for it holds the rest.
    pending: dict[str, dict[str, tuple[int, Launched]]] = {}
    recorded: dict[int, dict[str, tuple[int, Launched]]] = {}
    began: dict[str, int] = {}
    for action in actions:
        stream = action.stream
        waiting = pending.setdefault(stream, {})
        if action.launched is not None:
            for _, source in waiting.values():
                yield source, action.launched
            waiting.clear()
            last[stream], began[stream] = action.launched, action.time
        elif action.order == 0:
            known = dict(waiting)
            if stream in last:
                known[stream] = began[stream], last[stream]
            recorded[action.event] = known
        else:
            for other, found in recorded.get(action.event, {}).items():
                if other != stream and (other not in waiting or found[0] > waiting[other][0]):
                    waiting[other] = found


def _actions(
    events: GraphEvents,
    lanes: Mapping[str, Lane],
    calls: Sequence[Call],
    unknown: Mapping[int, str],
) -> list[_Action]:
    actions = [
        _Action(work.launched, 2, lane.key, (lane.key, k), 0)
        for lane in lanes.values()
        for k, work in enumerate(lane.works)
    ]
    actions += [
        _Action(call.issued, 2, call.stream, number, 0)
        for number, call in enumerate(calls)
        if call.kernels
    ]
    for wait in events.stream_waits:
        asked, record = events.calls.get(wait.wait_call), events.calls.get(wait.record_call)
        if asked is None or record is None:
            continue
        source = unknown.get(wait.record_call, wait.source)
        actions.append(_Action(record.start, 0, source, None, wait.record_call))
        actions.append(_Action(asked.start, 1, wait.stream, None, wait.record_call))
    return sorted(actions, key=lambda action: action[:2])

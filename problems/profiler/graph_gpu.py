"""Who waits for whom on a GPU, from the best evidence that a trace has.

Every dependency goes forward in the order in which the processor launched the work, and from an
end to a start that was not earlier, so the graph has no circle and the recorded step fits it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from commsched.models.errors import InputError
from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_events import GraphEvents
from commsched.problems.profiler.graph_host import HOST, LAUNCH_NS, Host
from commsched.problems.profiler.graph_lanes import (
    ROUNDING_NS,
    Lane,
    Launches,
    Point,
    Source,
    Wiring,
)
from commsched.problems.profiler.graph_streams import Launched, stream_dependencies
from commsched.problems.profiler.graph_waits import (
    ANNOTATED,
    FIRST,
    GRADIENT,
    NOBODY,
    RECORDED,
    STALLED,
    SYNCHRONOUS,
    WAITED,
    Waits,
)
from commsched.problems.profiler.trace_kernels import Kernel

_ASSUMED = (GRADIENT, FIRST, NOBODY)
_LATE_NS = 100_000
_MAX_STREAMS = 512
_NEAR = 64


class GpuWiring:
    """The dependencies of a step that ran on a GPU.

    Parameters
    ----------
    events
        The second look at the trace.
    kernels
        The kernels that the step launched, rising by launch.
    calls
        The step's collectives in the order of issue.
    waits
        What is known of the waits for collectives.

    Attributes
    ----------
    lanes
        The compute streams by name; ``main`` is the one that works most.
    lanes_cut
        All lanes that become tasks, the main one first; the processor only where it may hold
        something back.
    host
        The processor.
    wiring
        Who waits for whom.
    why
        For each call how it is known what waits for it.
    """

    def __init__(
        self, events: GraphEvents, kernels: Sequence[Kernel], calls: Sequence[Call], waits: Waits
    ) -> None:
        self.events = events
        self.calls = calls
        self.waits = waits
        self.why: dict[int, str] = {}
        self.wiring = Wiring()
        works: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in kernels:
            if not kernel.is_collective:
                works[kernel.stream].append(kernel)
        if len(works) > _MAX_STREAMS:
            raise InputError(f"the step uses {len(works)} streams: too many")
        self.lanes = {key: Lane(key, own) for key, own in works.items()}
        self.main = max(self.lanes.values(), key=lambda lane: (lane.busy, lane.key))
        self._threads = Launches(self.lanes)
        self.origin = min(
            [lane.starts[0] for lane in self.lanes.values()]
            + [call.ran[0] for call in calls if call.ran is not None]
        )
        self.host = Host(self.lanes.values(), calls, events.blocking, self.origin)
        self._issue: dict[str, list[int]] = defaultdict(list)
        for number, call in enumerate(calls):
            self._issue[call.op.tid].append(number)
        self._ready: set[int] = set()
        self._awaited: set[int] = set()
        self._read_stream_waits()
        for number, call in enumerate(calls):
            self._need(number, call)
        for number, call in enumerate(calls):
            self._await(number, call)
        self._find_stalls()
        self._follow_main()
        self.lanes_cut = sorted(self.lanes.values(), key=lambda lane: lane is not self.main)
        self._follow_host()

    def launched_before(self, tid: str, time: int) -> tuple[Lane, int] | None:
        """Return what a thread had launched last before a time: its lane and its position."""
        return self._threads.before(tid, time)

    # What a collective needs

    def _need(self, number: int, call: Call) -> None:
        """Make a call wait for the stream on which it was issued, and for its own stream."""
        needs = self.wiring.needs[number]
        ran = call.ran[0] if call.ran else None
        worked = 0
        own = self.lanes.get(call.stream)
        if own is not None and ran is not None:
            k = own.ended_by(ran + ROUNDING_NS, call.issued)
            if k is not None:
                needs.add(Point(own.key, own.ends[k]))
                worked = own.worked[k + 1]
        found = None if number in self._ready else self._issued_behind(call, ran)
        if found is not None:
            lane, k = found
            needs.add(Point(lane.key, lane.ends[k]))
            worked = max(worked, lane.worked[k + 1])
        needs |= self.host.launched(call.issued, ran, worked)

    def _issued_behind(self, call: Call, ran: int | None) -> tuple[Lane, int] | None:
        """Return the work that was on the current stream when a call was issued.

        That is what the thread launched last. Where that ended too late to have been waited for,
        the thread had changed to another stream.
        """
        last = self._threads.before(call.op.tid, call.issued)
        if last is not None and (ran is None or last[0].ends[last[1]] <= ran + ROUNDING_NS):
            return last
        best: tuple[Lane, int] | None = None
        for lane in self.lanes.values():
            k = lane.last_launched(call.issued)
            if k is None or (ran is not None and lane.ends[k] > ran + ROUNDING_NS):
                continue
            if best is None or lane.works[k].launched > best[0].works[best[1]].launched:
                best = lane, k
        return best

    # Who waits for a collective

    def _await(self, number: int, call: Call) -> None:
        end = call.ran[1] if call.ran else None
        own = self.lanes.get(call.stream)
        if own is not None and end is not None:
            self._hold(own, own.first_after(call.issued, end - ROUNDING_NS), number)
        if number in self._awaited:
            self.why[number] = RECORDED
            return
        at = self.waits.annotated.get(number)
        if at is not None and self._hold_next(at, number, end):
            self.why[number] = ANNOTATED
            return
        at = self.waits.waited.get(number)
        if at is not None and self._hold_next(at, number, end):
            self.why[number] = WAITED
            return
        at = self.waits.synchronous.get(number)
        if at is not None and self._hold_next(at, number, end):
            self.why[number] = SYNCHRONOUS
            return
        after = self.waits.gradients.get(number)
        start = call.issued if end is None else end - ROUNDING_NS
        if after is not None:
            k = self.main.first_after(after, start)
            self._hold(self.main, k, number)
            self.why[number] = GRADIENT if k is not None else NOBODY
            return
        lanes = {self.main.key: self.main}
        behind = self._issued_behind(call, None)
        if behind is not None:
            lanes[behind[0].key] = behind[0]
        held = [
            self._hold(lane, lane.first_after(call.issued, start), number)
            for lane in lanes.values()
        ]
        self.why[number] = FIRST if any(held) else NOBODY

    def _hold(self, lane: Lane, k: int | None, source: Source) -> bool:
        """Make a work wait."""
        if k is None:
            return False
        self.wiring.waits[lane.key, k].add(source)
        return True

    def _hold_next(self, at: tuple[int, str], number: int, end: int | None) -> bool:
        """Make what a thread launches next after a time wait for a call, the next call too."""
        time, tid = at
        issued = self._issue[tid]
        behind = bisect_left(issued, time, key=lambda n: self.calls[n].issued)
        found = self._threads.after(tid, time, end)
        if behind < len(issued):
            other = issued[behind]
            call = self.calls[other]
            first = found is None or call.issued < found[0].works[found[1]].launched
            if first and other > number and (end is None or call.ran is None or call.ran[0] >= end):
                self.wiring.needs[other].add(number)
        return found is not None and self._hold(found[0], found[1], number)

    # Recorded waits of streams

    def _read_stream_waits(self) -> None:
        """Take the waits of streams that the profiler recorded."""
        unknown: dict[int, str] = {}
        for wait in self.events.stream_waits:
            record = self.events.calls.get(wait.record_call)
            if wait.source.endswith("/-1") and record is not None:
                behind = self._threads.before(record.tid, record.start)
                if behind is not None:
                    unknown[wait.record_call] = behind[0].key
        found = stream_dependencies(self.events, self.lanes, self.calls, unknown)
        for source, target in found if self.events.stream_waits else ():
            self._connect(source, target)

    def _connect(self, source: Launched, target: Launched) -> None:
        """Make a call or a work wait for another one, if the times do not contradict it."""
        known: Source
        if isinstance(source, int):
            known, end = source, self._end_of(source)
        else:
            end = self.lanes[source[0]].ends[source[1]]
            known = Point(source[0], end)
        if isinstance(target, int):
            ran = self.calls[target].ran
            if source == target or (ran is not None and end > ran[0] + ROUNDING_NS):
                return
            self.wiring.needs[target].add(known)
            if isinstance(known, Point):
                self._ready.add(target)
            return
        lane, k = self.lanes[target[0]], target[1]
        if end > lane.starts[k] + ROUNDING_NS:
            return
        self._hold(lane, k, known)
        if isinstance(known, int):
            self._awaited.add(known)

    def _end_of(self, source: Source) -> int:
        if isinstance(source, Point):
            return source.time
        ran = self.calls[source].ran
        return self.calls[source].issued if ran is None else ran[1]

    # What the times show

    def _find_stalls(self) -> None:
        """Find what was launched in time and started right after something else ended."""
        ends = sorted(
            (call.ran[1], number) for number, call in enumerate(self.calls) if call.ran is not None
        )
        side = sorted(
            (end, lane.key, work.launched)
            for lane in self.lanes.values()
            if lane is not self.main
            for work, end in zip(lane.works, lane.ends, strict=True)
        )
        for lane in self.lanes.values():
            for k, work in enumerate(lane.works):
                known = [
                    self._end_of(source)
                    for source in self.wiring.waits.get((lane.key, k), ())
                    if isinstance(source, Point) or self.why[source] not in _ASSUMED
                ]
                idle_from = max([lane.ends[k - 1] if k else self.origin, *known])
                if not _stood_still(idle_from, work.latest, work.start):
                    continue
                number = self._just_ended(ends, idle_from, work.latest, work.start)
                if number is not None:
                    self._hold(lane, k, number)
                    if self.why[number] in _ASSUMED:
                        self.why[number] = STALLED
                elif lane is self.main:
                    low = max(idle_from, work.start - LAUNCH_NS)
                    at = bisect_left(side, (work.start + 1, "", 0)) - 1
                    if at >= 0 and side[at][0] >= low and side[at][2] < work.launched:
                        self._hold(lane, k, Point(side[at][1], side[at][0]))
        self._find_stalled_calls(ends)

    def _find_stalled_calls(self, ends: Sequence[tuple[int, int]]) -> None:
        """Find collectives that something of another stream held back."""
        free: dict[str, int] = {}
        for number, call in enumerate(self.calls):
            if call.ran is None:
                continue
            needs = map(self._end_of, self.wiring.needs[number])
            idle_from = max([*needs, free.get(call.stream, self.origin)])
            free[call.stream] = max(free.get(call.stream, self.origin), call.ran[1])
            if _stood_still(idle_from, call.issued, call.ran[0]):
                other = self._just_ended(ends, idle_from, call.issued, call.ran[0])
                if other is not None and other < number:
                    self.wiring.needs[number].add(other)
                    continue
                # Else it was behind work of another stream than the thread's last one.
                work = self._last_ended(idle_from, call.issued, call.ran[0])
                if work is not None:
                    self.wiring.needs[number].add(work)

    def _last_ended(self, idle_from: int, launched: int, start: int) -> Point | None:
        """Return the work that ended last before a start, of those launched before it."""
        points = []
        for lane in self.lanes.values():
            k = lane.ended_by(start, launched)
            if k is not None and lane.ends[k] > idle_from:
                points.append(Point(lane.key, lane.ends[k]))
        return max(points, key=lambda point: point.time, default=None)

    def _just_ended(
        self, ends: Sequence[tuple[int, int]], idle_from: int, launched: int, start: int
    ) -> int | None:
        """Return the collective that ended right before something started, launched before it."""
        low = max(idle_from, start - LAUNCH_NS)
        at = bisect_left(ends, (start + 1, -1))
        for end, number in reversed(ends[max(0, at - _NEAR) : at]):
            if end >= low and self.calls[number].issued <= launched:
                return number
        return None

    def _follow_host(self) -> None:
        """Make work wait for its launch where the processor may hold it back.

        That is where something else held it back, what a thread launched first after it had
        been blocked, and between two such works the one that was launched the latest before it
        started. All other idle time of a stream is its own.
        """
        for block in self.host.blocks:
            for lane in self.lanes.values():
                found = self._threads.after(block.tid, block.end, None, lane.key)
                if found is not None and lane.idle_before(found[1]):
                    self.wiring.waits[lane.key, found[1]] |= set()
        for lane in self.lanes.values():
            held = sorted(k for key, k in self.wiring.waits if key == lane.key)
            for k in [*held, *lane.tightest(held)]:
                work = lane.works[k]
                self.wiring.waits[lane.key, k] |= self.host.launched(
                    work.launched, work.start, lane.worked[k]
                )
        if HOST in self.wiring.points():
            self.lanes_cut.append(self.host.lane)
            for k, sources in self.host.waits.items():
                self.wiring.waits[HOST, k] |= sources

    def _follow_main(self) -> None:
        """Make each other stream go on from where the main one was when it began to work again.

        What makes a side stream wait is not recorded, so its idle time would count as work.
        Where the processor was late it waits for that alone.
        """
        for lane in self.lanes.values():
            if lane is self.main:
                continue
            for k, work in enumerate(lane.works):
                idle_from = lane.ends[k - 1] if k else self.origin
                if work.start - idle_from < LAUNCH_NS:
                    continue
                if work.launched > work.start - LAUNCH_NS:
                    if work.start - idle_from > _LATE_NS:
                        self.wiring.waits[lane.key, k] |= set()
                    continue
                j = self.main.ended_by(work.start, work.launched)
                if j is not None and self.main.ends[j] > idle_from:
                    self._hold(lane, k, Point(self.main.key, self.main.ends[j]))


def _stood_still(idle_from: int, launched: int, start: int) -> bool:
    """Return whether something could have started before it did: its stream was idle."""
    return start - idle_from >= ROUNDING_NS and launched <= start - LAUNCH_NS

"""The processor as a lane beside a GPU's streams: nothing runs before the processor launches it.

It is one lane however many threads launch work: forward, backward and the optimizer take turns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_lanes import Lane, Point, Source
from commsched.problems.profiler.trace_kernels import Kernel

HOST = "processor"
LAUNCH_NS = 20_000
"""A launch reaches an idle GPU, and a stream wakes up, within that time."""
_BLOCKED_NS = 20_000


class Block(NamedTuple):
    """When a thread was blocked, until when at least, and by what.

    It came back when the last of the sources had ended, but on another network another of them
    may be the last.
    """

    start: int
    until: int
    end: int
    tid: str
    sources: frozenset[Source]


class Host:
    """What the processor did while a step ran on the GPU.

    Parameters
    ----------
    lanes
        The compute streams.
    calls
        The step's collectives in the order of issue.
    blocking
        The calls that may have blocked the processor, rising by start.
    origin
        When the step starts on the GPU; what was launched before is there already.

    Attributes
    ----------
    lane
        The processor's work, in pieces that begin where it had been blocked.
    waits
        What it was blocked by before each piece.
    blocks
        When it was blocked.
    """

    def __init__(
        self, lanes: Iterable[Lane], calls: Sequence[Call], blocking: Sequence[Op], origin: int
    ) -> None:
        lanes = list(lanes)
        self.origin = origin
        launches = sorted(
            [work.launched for lane in lanes for work in lane.works]
            + [call.issued for call in calls]
        )
        arrivals = [
            min(work.launched + LAUNCH_NS, work.start) for lane in lanes for work in lane.works
        ]
        arrivals += [
            call.issued + LAUNCH_NS
            if call.ran is None
            else min(call.issued + LAUNCH_NS, call.ran[0])
            for call in calls
        ]
        self._last = max([*arrivals, origin])
        ends = sorted(
            (call.ran[1], number) for number, call in enumerate(calls) if call.ran is not None
        )
        self.blocks: list[Block] = []
        self.waits: dict[int, set[Source]] = {}
        works: list[Kernel] = []
        current = origin
        for op in blocking:
            block = _block(op, lanes, calls, ends)
            if block is None:
                continue
            at = bisect_right(launches, block.start)
            if at < len(launches) and launches[at] < block.until:
                continue  # Another thread went on.
            self.blocks.append(block)
            if block.until <= current or block.until >= self._last:
                continue
            if block.start > current or not works:
                works.append(_work(current, max(current, block.start)))
            self.waits.setdefault(len(works), set()).update(block.sources)
            current = block.until
        works.append(_work(current, self._last))
        self.lane = Lane(HOST, works)

    def launched(self, launched: int, start: int | None, worked: int) -> set[Source]:
        """Return what something waits for that was launched, or started, at a time.

        Nothing, if it was launched before the step began on the GPU, or before the GPU can get
        to it, however fast the network is.

        Parameters
        ----------
        launched, start
            When it was launched and when it started.
        worked
            How long the GPU works at least before it.
        """
        time = launched + LAUNCH_NS if start is None else min(launched + LAUNCH_NS, start)
        return {Point(HOST, time)} if time > self.origin + worked else set()


def _block(
    op: Op, lanes: Sequence[Lane], calls: Sequence[Call], ends: Sequence[tuple[int, int]]
) -> Block | None:
    """Return what a call was blocked by: what ended on each stream before it came back."""
    if op.end - op.start < _BLOCKED_NS:
        return None
    sources: set[Source] = set()
    until = op.start
    for lane in lanes:
        k = lane.ended_by(op.end, op.end)
        if k is not None and lane.ends[k] > op.start:
            sources.add(Point(lane.key, lane.ends[k]))
            until = max(until, lane.ends[k])
    at = bisect_right(ends, (op.end, len(calls))) - 1
    if at >= 0 and ends[at][0] > op.start and calls[ends[at][1]].issued < op.end:
        sources.add(ends[at][1])
        until = max(until, ends[at][0])
    return Block(op.start, until, op.end, op.tid, frozenset(sources)) if sources else None


def _work(start: int, end: int) -> Kernel:
    return Kernel(
        "",
        start,
        end,
        is_kernel=True,
        is_collective=False,
        launched=start,
        latest=start,
        stream=HOST,
    )

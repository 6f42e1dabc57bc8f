"""Who waits for whom where everything runs on the processor, as with gloo.

The processor is one lane. It is blocked where none of its operations began, ended or worked and a
collective ended meanwhile, shortly before it went on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from commsched.models.errors import InputError
from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_events import GraphEvents, Moments
from commsched.problems.profiler.graph_host import HOST
from commsched.problems.profiler.graph_lanes import Lane, Point, Wiring
from commsched.problems.profiler.graph_waits import (
    ANNOTATED,
    BLOCKED,
    FIRST,
    GRADIENT,
    NOBODY,
    WAITED,
    Waits,
)
from commsched.problems.profiler.trace_kernels import Kernel

_WAKE_NS = 300_000
_WAKE_SHARE = 0.1
"""A blocked thread goes on so soon after what it waited for: the larger of a time and a share."""


class Block(NamedTuple):
    """From when to when the processor was blocked, and by which calls."""

    start: int
    end: int
    calls: tuple[int, ...]


class CpuWiring:
    """The dependencies of a step that ran on the processor.

    Parameters
    ----------
    events
        The second look at the trace, with the moments of its operations.
    start, end
        The step's window on the trace's clock.
    calls
        The step's collectives in the order of issue.
    waits
        What is known of the waits for collectives.

    Attributes
    ----------
    lanes, main, lanes_cut, wiring, why
        As on a GPU; the only lane is the processor.

    Raises
    ------
    InputError
        If the processor did nothing in the window that was recorded.
    """

    def __init__(
        self, events: GraphEvents, start: int, end: int, calls: Sequence[Call], waits: Waits
    ) -> None:
        self.origin = start
        self.calls = calls
        self.why: dict[int, str] = {}
        self.wiring = Wiring()
        self._busy = _Busy(events, start, end, calls)
        if not self._busy.any_work:
            raise InputError(
                f"{len(calls)} collectives, and no work of the processor or of a GPU was recorded: "
                "nothing says when they are ready"
            )
        self.end = max(start, min(end, self._busy.last))
        blocks = self._blocks()
        held = self._held(blocks, waits)
        self.main = Lane(HOST, self._works(blocks, held))
        self.lanes = {HOST: self.main}
        self.lanes_cut = [self.main]
        for number, call in enumerate(calls):
            time = call.op.start
            if call.ran is not None:
                time = min(max(call.ran[0], call.op.start), max(call.op.end, call.op.start))
            if time > start:
                self.wiring.needs[number].add(Point(HOST, min(time, self.end)))

    def _blocks(self) -> list[Block]:
        """Return when the processor was blocked by collectives."""
        ends = sorted(
            (call.ran[1], number) for number, call in enumerate(self.calls) if call.ran is not None
        )
        blocks: list[Block] = []
        for start, end in self._busy.gaps():
            low, high = bisect_left(ends, (start, -1)), bisect_right(ends, (end, len(ends)))
            inside = [pair for pair in ends[low:high] if self.calls[pair[1]].op.start <= start]
            if not inside:
                continue
            last = inside[-1][0]
            if end - last <= max(_WAKE_NS, _WAKE_SHARE * (end - start)):
                blocks.append(Block(start, last, tuple(number for _, number in inside)))
                self.why.update((number, BLOCKED) for _, number in inside)
        return blocks

    def _held(self, blocks: Sequence[Block], waits: Waits) -> dict[int, set[int]]:
        """Return the times at which the processor waits, and for which calls."""
        held: dict[int, set[int]] = defaultdict(set)
        blocking: set[int] = set()
        for block in blocks:
            held[block.end].update(block.calls)
            blocking.update(block.calls)
        for number, call in enumerate(self.calls):
            if number in blocking:
                continue
            end = call.op.end if call.ran is None else call.ran[1]
            asked = waits.annotated.get(number)
            why = ANNOTATED
            if asked is None:
                asked, why = waits.waited.get(number), WAITED
            if asked is not None:
                time = asked[0]
            elif number in waits.gradients:
                time, why = waits.gradients[number], GRADIENT
            else:
                time, why = self._busy.next_after(end), FIRST
            time = max(time, end)
            at = bisect_right(blocks, time, key=lambda block: block.start) - 1
            if at >= 0 and time < blocks[at].end:
                time = blocks[at].end
            if time < self.end:
                held[time].add(number)
                self.why[number] = why
            else:
                self.why[number] = NOBODY
        return held

    def _works(self, blocks: Sequence[Block], held: dict[int, set[int]]) -> list[Kernel]:
        """Return the processor's work in pieces that begin where it waits for something."""
        pauses = {block.end: block.start for block in blocks}
        works: list[Kernel] = []
        current = self.origin
        for time in sorted(held):
            begin = pauses.get(time, time)
            if begin > current or not works:
                works.append(_work(current, max(begin, current)))
            current = max(time, current)
            self.wiring.waits[HOST, len(works)].update(held[time])
        works.append(_work(current, max(self.end, current)))
        return works


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


class _Busy:
    """When the threads that matter did something.

    An operation that holds no other one works from its start to its end; of all others only the
    start and the end show that the thread was awake.
    """

    def __init__(self, events: GraphEvents, start: int, end: int, calls: Sequence[Call]) -> None:
        parts = {tid: _window(moments, start, end) for tid, moments in events.moments.items()}
        main = max(parts, key=lambda tid: (len(parts[tid][0]), tid), default="")
        tids = {main, *(call.op.tid for call in calls if call.op.tid != call.stream)}
        begins, ends, busy = [], [], []
        for tid in sorted(tids & parts.keys()):
            first, last, waiting = parts[tid]
            holds = np.append(first[1:] < last[:-1], False) if len(first) else waiting
            works = ~holds & ~waiting
            busy.append(np.stack([first[works], last[works]]))
            begins += [first[works], first[~works], last[~works]]
            ends += [last[works], first[~works], last[~works]]
        self._starts = np.concatenate(begins) if begins else np.zeros(0, np.int64)
        reach = np.concatenate(ends) if ends else np.zeros(0, np.int64)
        order = np.argsort(self._starts, kind="stable")
        self._starts = self._starts[order]
        self._reach = np.maximum.accumulate(reach[order]) if len(reach) else reach
        self._works = np.sort(np.concatenate([part[0] for part in busy])) if busy else reach
        self.last = int(self._reach[-1]) if len(reach) else start

    @property
    def any_work(self) -> bool:
        """Whether any operation worked."""
        return len(self._works) > 0

    def gaps(self) -> list[tuple[int, int]]:
        """Return when nothing began, ended or worked."""
        at = np.flatnonzero(self._starts[1:] > self._reach[:-1])
        return list(zip(self._reach[at].tolist(), self._starts[at + 1].tolist(), strict=True))

    def next_after(self, time: int) -> int:
        """Return when something began or ended next; the time itself if nothing did."""
        at = int(np.searchsorted(self._starts, time))
        return int(self._starts[at]) if at < len(self._starts) else time


def _window(
    moments: Moments, start: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return start, end and kind of a thread's operations in a window, parents first."""
    first = np.array(moments.starts, dtype=np.int64)
    last = np.array(moments.ends, dtype=np.int64)
    waiting = np.array(moments.waits, dtype=np.bool_)
    inside = (first >= start) & (first < end)
    first, last, waiting = first[inside], last[inside], waiting[inside]
    order = np.lexsort((-last, first))
    return first[order], last[order], waiting[order]

"""Exact plans of scope ``any`` for a few collectives a channel, by the sets that have been sent.

As in :mod:`commsched.optimizer.deadlines` no collective waits for a collective, so a makespan M gives
each launch a deadline and channels do not influence each other. Let ``F(S)`` be the least time at which
just the set S can have been sent in time; the last launch carries some set B of one fusion key:

    F(S) = min over B in S of  max(F(S - B), ready(B)) + cost(B),  if that is at most M - tail(B).

An earlier end never hurts what follows, so M can be kept if and only if F of everything is finite. That
takes up to 3^n steps for n collectives, whatever the cost curves are. It starts from a known plan: M is
one nanosecond less than that plan needs, and a better plan found sets the next M.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from commsched.models.cost import CostCurve
from commsched.optimizer.prefix import price
from commsched.optimizer.reordering import Job

Array = NDArray[np.int64]

MAX_JOBS = 20
COUNTED_JOBS = 9
"""Up to so many collectives the launches are counted as well."""
_NEVER = 2**60


class Subsets:
    """One channel with at most :data:`MAX_JOBS` collectives.

    Parameters
    ----------
    jobs
        The collectives.
    curves
        What launches of each key cost.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> channel = Subsets([Job(0, 10, 0, 0), Job(5, 2, 9, 0)], [AlphaBeta(0.001, 1)])
    >>> channel.keeps(19, float("inf")), channel.keeps(18, float("inf"))
    ([[1], [0]], [])
    """

    def __init__(self, jobs: Sequence[Job], curves: Sequence[CostCurve]) -> None:
        count = self.count = len(jobs)
        self.full = (1 << count) - 1
        masks = np.arange(1 << count)
        size: Array = np.zeros(1 << count, dtype=np.int64)
        self.ready, self.tail = size.copy(), size.copy()
        keys = size.copy()
        for j, job in enumerate(jobs):
            has = (masks >> j) & 1 == 1
            size[has] += job.size
            keys[has] |= 1 << job.key
            self.ready[has] = np.maximum(self.ready[has], job.ready)
            self.tail[has] = np.maximum(self.tail[has], job.tail)
        self.cost: Array = np.full(1 << count, _NEVER, dtype=np.int64)
        for number, curve in enumerate(curves):
            mine = keys == 1 << number
            if mine.any():
                self.cost[mine] = price(curve, size[mine])
        # Launches that carry a set take at least so long together: one launch a key where costs
        # are affine, and nothing is known elsewhere.
        self.load: Array = np.zeros(1 << count, dtype=np.int64)
        for number, curve in enumerate(curves):
            of_key = masks & sum(1 << j for j, job in enumerate(jobs) if job.key == number)
            if curve.affine is not None:
                self.load += np.where(of_key > 0, self.cost[of_key], 0)
        arriving = sorted(range(count), key=lambda j: jobs[j].ready)
        self.ready_times = [jobs[j].ready for j in arriving]
        self.ready_by = list(accumulate((1 << j for j in arriving), initial=0))

    def keeps(self, makespan: int, until: float) -> list[list[int]] | None:
        """Return launches that keep a makespan, none if there are none, None if it takes too long."""
        latest = self._latest_starts(makespan)
        ends: Array = np.full(self.full + 1, _NEVER, dtype=np.int64)
        ends[0] = 0
        for sent in range(self.full):
            now = int(ends[sent])
            if now > latest[self.full ^ sent]:
                continue
            if sent % 64 == 0 and time.monotonic() > until:
                return None
            carried = self._launches(sent, int(latest[self.full ^ sent]))
            done = np.maximum(self.ready[carried], now) + self.cost[carried]
            in_time = done + self.tail[carried] <= makespan
            after = carried[in_time] | sent
            ends[after] = np.minimum(ends[after], done[in_time])
        if ends[self.full] >= _NEVER:
            return []
        return self._trace([ends], makespan)

    def fewest(self, makespan: int, until: float) -> list[list[int]] | None:
        """Return the fewest launches that keep a makespan that can be kept, None if that is long."""
        latest = self._latest_starts(makespan)
        first: Array = np.full(self.full + 1, _NEVER, dtype=np.int64)
        first[0] = 0
        levels = [first]
        while levels[-1][self.full] >= _NEVER:
            if time.monotonic() > until:
                return None
            ends: Array = np.full(self.full + 1, _NEVER, dtype=np.int64)
            before = levels[-1]
            for sent in np.flatnonzero(before < _NEVER).tolist():
                now = int(before[sent])
                if sent == self.full or now > latest[self.full ^ sent]:
                    continue
                carried = self._launches(sent, int(latest[self.full ^ sent]))
                done = np.maximum(self.ready[carried], now) + self.cost[carried]
                in_time = done + self.tail[carried] <= makespan
                after = carried[in_time] | sent
                ends[after] = np.minimum(ends[after], done[in_time])
            levels.append(ends)
        return self._trace(levels[::-1], makespan)

    def _latest_starts(self, makespan: int) -> Array:
        """Return by set the time after which its next launch can no longer start.

        Each member must still be sent in time, and so must all members with large tails together.
        """
        latest: Array = np.full(self.full + 1, _NEVER, dtype=np.int64)
        masks = np.arange(self.full + 1)
        for j in range(self.count):
            last = makespan - int(self.tail[1 << j]) - int(self.cost[1 << j])
            has = (masks >> j) & 1 == 1
            latest[has] = np.minimum(latest[has], last)
        single = self.tail[[1 << j for j in range(self.count)]]
        for tail in np.unique(single).tolist():
            late = sum(1 << j for j in range(self.count) if single[j] >= tail)
            some = masks & late > 0
            last = makespan - tail - self.load[masks & late]
            latest[some] = np.minimum(latest[some], last[some])
        return latest

    def _launches(self, sent: int, latest: int) -> Array:
        """Return the sets that can be sent next: of what is ready before it is too late."""
        there = self.ready_by[bisect_right(self.ready_times, latest)]
        return _parts((self.full ^ sent) & there)

    def _trace(self, tables: Sequence[Array], makespan: int) -> list[list[int]]:
        """Return launches, found from the end; with several tables each is for one launch less."""
        launches: list[list[int]] = []
        sent = self.full
        while sent:
            here = tables[min(len(launches), len(tables) - 1)]
            earlier = tables[min(len(launches) + 1, len(tables) - 1)]
            carried = _parts(sent)
            done = np.maximum(self.ready[carried], earlier[sent ^ carried]) + self.cost[carried]
            fits = (done == here[sent]) & (done + self.tail[carried] <= makespan)
            last = int(carried[np.flatnonzero(fits)[0]])
            launches.append([j for j in range(self.count) if last >> j & 1])
            sent ^= last
        return launches[::-1]


def _parts(whole: int) -> Array:
    """Return all subsets of a set but the empty one."""
    found: Array = np.zeros(1, dtype=np.int64)
    while whole:
        bit = whole & -whole
        found = np.concatenate([found, found | bit])
        whole ^= bit
    return found[1:]

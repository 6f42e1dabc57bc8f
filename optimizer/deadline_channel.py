"""One channel of the recurrence with deadlines: its tables, and the plans that they hold.

The recurrence and its proof are in :mod:`commsched.optimizer.deadlines`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from commsched.models import FusionKey, Problem
from commsched.optimizer.forbidden import Forbidden
from commsched.optimizer.prefix import Array, Chain, before_in, price

LAUNCH_WORK = 400_000_000
KEEP = 20_000_000
_SAFE = 2**61


class Channel:
    """One channel: its collectives by key, in ready order, each with what must follow it."""

    def __init__(self, problem: Problem, keys: Sequence[FusionKey], tail: dict[str, int]) -> None:
        self.positions = [problem.chains[key] for key in keys]
        self.chains = [
            Chain(
                [problem.ready_ns[p] for p in chain],
                [problem.bytes[p] for p in chain],
                problem.cost(key),
            )
            for key, chain in zip(keys, self.positions, strict=True)
        ]
        tails = [[tail[problem.names[p]] for p in chain] for chain in self.positions]
        longest = max(max(chain.ready_ns) for chain in self.chains) + max(map(max, tails))
        longest += sum(len(chain.sizes) * chain.cost.ns(sum(chain.sizes)) for chain in self.chains)
        self.never = longest + 1
        self.dtype: type = np.int64 if 2 * self.never < _SAFE else np.object_
        self.tails = [np.array(values, dtype=self.dtype) for values in tails]
        sent = [np.cumsum([0, *chain.sizes], dtype=object) for chain in self.chains]
        small = max(int(total[-1]) for total in sent) < _SAFE
        self.sent = [total.astype(np.int64) for total in sent] if small else sent
        self.shape = [len(chain.sizes) + 1 for chain in self.chains]
        self.forbidden = [Forbidden(problem, chain) for chain in self.positions]
        self._kept: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._keeps = sum(length**2 for length in self.shape) <= KEEP
        self.work = math.prod(self.shape) * sum(self.shape)
        self.lower_ns = 0
        self.found_ns = self.never
        self.buckets: list[tuple[int, int, int]] = []
        self.stuck = False  # whether no plan at all keeps the limits on buckets

    def launches(self, k: int, end: int) -> tuple[Array, Array]:
        """Return the cost and the tail of the launches of key k that end at ``end``, by begin.

        Those that are forbidden have a tail with which no makespan can be kept.
        """
        found = self._kept.get((k, end))
        if found is None:
            sent = self.sent[k]
            cost: Array = price(self.chains[k].cost, sent[end] - sent[:end]).astype(self.dtype)
            tail = np.ascontiguousarray(np.maximum.accumulate(self.tails[k][end - 1 :: -1])[::-1])
            # What is forbidden is never in time.
            tail[self.forbidden[k].begins(end)] = self.never + 1
            found = cost, tail
            if self._keeps:
                self._kept[k, end] = found
        return found

    def states(self) -> Iterator[tuple[int, ...]]:
        """Yield all prefixes, shorter ones first."""
        return np.ndindex(*self.shape)

    def minimise(self, lower_ns: int, until: float) -> None:
        """Find the least makespan, at least ``lower_ns``, that this channel can keep."""
        self.lower_ns = lower_ns
        self._decide(self.never)  # the plan that ends first
        self.stuck = not self.buckets
        if self.stuck:
            return
        if self.found_ns > self.lower_ns:
            self._decide(self.lower_ns)
        while self.lower_ns < self.found_ns and time.monotonic() < until:
            self._decide((self.lower_ns + self.found_ns) // 2)

    def _decide(self, makespan: int) -> None:
        """Decide whether a makespan can be kept, and move the bound or the plan accordingly."""
        never = self.never
        table: Array = np.full(self.shape, never, dtype=self.dtype)
        table[(0,) * len(self.shape)] = 0
        following = never
        for state in self.states():
            least = table[state]
            for k, chain in enumerate(self.chains):
                if not state[k]:
                    continue
                cost, tail = self.launches(k, state[k])
                done = np.maximum(table[before_in(state, k)], chain.ready_ns[state[k] - 1]) + cost
                need = done + tail
                late = need > makespan
                if late.any():
                    missed = need[late].min()
                    following = min(following, missed)
                    done[late] = never
                least = min(least, done.min())
            table[state] = least
        if int(table[tuple(length - 1 for length in self.shape)]) >= never:
            self.lower_ns = max(self.lower_ns, int(following))
            return
        self.buckets = self._trace(table, makespan)
        self.found_ns = max(self.lower_ns, self.makespan(self.buckets))

    def _trace(self, table: Array, makespan: int) -> list[tuple[int, int, int]]:
        """Return the buckets of a plan that attains the table, found from the end."""
        buckets: list[tuple[int, int, int]] = []
        state = [length - 1 for length in self.shape]
        while any(state):
            here = tuple(state)
            for k, chain in enumerate(self.chains):
                if not state[k]:
                    continue
                cost, tail = self.launches(k, state[k])
                done = np.maximum(table[before_in(here, k)], chain.ready_ns[state[k] - 1]) + cost
                hits = np.flatnonzero((done == table[here]) & (done + tail <= makespan))
                if len(hits):
                    buckets.append((k, int(hits[0]), state[k]))
                    state[k] = int(hits[0])
                    break
        return buckets[::-1]

    def makespan(self, buckets: Sequence[tuple[int, int, int]]) -> int:
        """Return the makespan that some buckets of this channel lead to."""
        now = latest = 0
        for k, begin, end in buckets:
            cost, tail = self.launches(k, end)
            now = max(now, self.chains[k].ready_ns[end - 1]) + int(cost[begin])
            latest = max(latest, now + int(tail[begin]))
        return latest

    def fewest_launches(self, makespan: int, until: float) -> list[tuple[int, int, int]] | None:
        """Return the plan with the fewest launches that keeps a makespan, or None if that is long.

        Each launch starts as early, and then carries as little, as the launches after it allow.
        """
        makespan = min(makespan, self.never)
        levels = self._latest_levels(makespan, until)
        return None if levels is None else self._forward(levels, makespan)

    def count(self, makespan: int, most: int, until: float) -> int | None:
        """Return how many launches keep a makespan, ``most + 1`` for more, None if that is long."""
        makespan = min(makespan, self.never)
        level = self._last_level(makespan)
        origin = (0,) * len(self.shape)
        number = 0
        while int(level[origin]) < 0 and number <= most:
            if number * self.work > LAUNCH_WORK or time.monotonic() > until:
                return None
            level = self._level_before(level, makespan)
            number += 1
        return number

    def _last_level(self, makespan: int) -> Array:
        level: Array = np.full(self.shape, -1, dtype=self.dtype)
        level[tuple(length - 1 for length in self.shape)] = makespan
        return level

    def _latest_levels(self, makespan: int, until: float) -> list[Array] | None:
        levels = [self._last_level(makespan)]
        origin = (0,) * len(self.shape)
        while int(levels[-1][origin]) < 0:
            if len(levels) * self.work > LAUNCH_WORK or time.monotonic() > until:
                return None
            levels.append(self._level_before(levels[-1], makespan))
        return levels

    def _level_before(self, after: Array, makespan: int) -> Array:
        before: Array = np.full(after.shape, -1, dtype=self.dtype)
        for state in self.states():
            if int(after[state]) < 0:
                continue
            for k, chain in enumerate(self.chains):
                if state[k]:
                    cost, tail = self.launches(k, state[k])
                    starts = np.minimum(after[state], makespan - tail) - cost
                    starts = np.where(starts >= chain.ready_ns[state[k] - 1], starts, -1)
                    line = before_in(state, k)
                    before[line] = np.maximum(before[line], starts)
        return before

    def _forward(self, levels: list[Array], makespan: int) -> list[tuple[int, int, int]]:
        buckets: list[tuple[int, int, int]] = []
        state, now = [0] * len(self.chains), 0
        for level in reversed(levels[:-1]):
            options = []
            for k, chain in enumerate(self.chains):
                begin = state[k]
                for end in range(begin + 1, len(chain.sizes) + 1):
                    state[k] = end
                    cost, tail = self.launches(k, end)
                    start = max(now, chain.ready_ns[end - 1])
                    done = start + int(cost[begin])
                    if done <= min(int(level[tuple(state)]), makespan - int(tail[begin])):
                        options.append((start, done, k, begin, end))
                        break
                state[k] = begin
            _, now, k, begin, end = min(options)
            state[k] = end
            buckets.append((k, begin, end))
        return buckets

"""The exact recurrence for collectives that later compute waits for, scope ``in-order``.

The class: no collective waits, directly or not, for a collective, so all ready times are fixed; but
compute may wait for collectives, as the next forward pass does. Only collectives of one channel
influence each other then. With ``tail_k`` the longest path of compute after collective k,

    makespan = max(compute alone, max over k of  end_k + tail_k),

because a path through the step meets at most one collective. A makespan M can be kept if and only if
each launch ends by the *deadline* ``M - tail_k`` of each of its members. Let ``F(p)`` be the least
time at which the prefix p (how many collectives of each key, in ready order) can have been sent in
time. The last launch ends the prefix of some key, so

    F(p) = min over keys k and q < p_k of  max(F(p with p_k = q), ready_k(p_k)) + cost_k(bytes q..p_k)

over the launches that end by their members' deadlines. An earlier end of what was sent before never
hurts what follows, so the least end of each prefix is all that a plan needs: M can be kept if and only
if everything has a finite F. The least M is found by bisection. A failed M also says the next one
that could succeed: below the least time by which a launch missed its deadline, nothing changes.

The fewest launches for the least M follow from ``D_r(p)``, the latest time at which the prefix p may be
done so that r more launches are enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commsched.models import Bucket, FusionKey, Plan, Problem
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.exact import keys_of_channel
from commsched.optimizer.prefix import Chain, price
from commsched.optimizer.recurrence import AffineChain
from commsched.optimizer.result import Bound, Scope

Array = NDArray[Any]  # int64 or, where that could overflow, Python's own whole numbers

MAX_WORK = 40_000_000
"""States times collectives, in one channel: seconds, not minutes."""
MAX_STATES = 20_000
LAUNCH_WORK = 400_000_000
KEEP = 20_000_000
_SAFE = 2**61


@dataclass(frozen=True)
class DeadlinePlan:
    """What the recurrence found.

    Attributes
    ----------
    plan, bound
        As in :class:`~commsched.optimizer.result.Result`.
    optimal
        Whether the plan's makespan is the bound; only a time limit can prevent it.
    fewest
        Whether no plan with this makespan has fewer launches.
    """

    plan: Plan
    bound: Bound
    optimal: bool
    fewest: bool


def why_no_deadlines(problem: Problem, scope: Scope) -> str | None:
    """Return why the recurrence with deadlines does not solve this problem, or None if it does."""
    if scope != "in-order":
        return f"the scope is {scope}"
    if problem.limits:
        return f"plans are limited ({problem.limits[0].label})"
    if problem.movable:
        return "compute tasks may move"
    if any(name in problem.waiting for name in problem.names):
        return "collectives wait for collectives"
    for channel, keys in keys_of_channel(problem).items():
        if too_many(problem, keys):
            return f"channel {channel!r} has too many collectives for the recurrence with deadlines"
    return None


def deadline_plan(
    problem: Problem, lower_ns: int = 0, until: float = math.inf, *, within: float = 0.0
) -> DeadlinePlan:
    """Return the best plan of a problem for which :func:`why_no_deadlines` returned None.

    Parameters
    ----------
    problem
        The step.
    lower_ns
        A proved lower bound on the makespan.
    until
        When to stop, on the clock of :func:`time.monotonic`; the plan is the best so far then.
    within
        By which share of the least makespan the plan may be longer if that saves launches.
    """
    _, tail = paths_ns(problem)
    keys = keys_of_channel(problem)
    searches = [_Channel(problem, of_channel, tail) for of_channel in keys.values()]
    lower_ns = max(lower_ns, problem.compute_ns)
    for search in searches:
        # No channel needs to be better than the worst one.
        search.minimise(lower_ns, until)
        lower_ns = max(lower_ns, search.lower_ns)
    makespan_ns = max(problem.compute_ns, *(search.found_ns for search in searches))
    optimal = makespan_ns <= lower_ns
    allowed_ns = makespan_ns + int(makespan_ns * within)
    fewest = optimal
    buckets: list[Bucket] = []
    for search in searches:
        cuts = search.fewest_launches(makespan_ns, until) if optimal else None
        if cuts is not None and within:
            fewer = search.fewest_launches(allowed_ns, until)
            cuts = fewer if fewer is not None and len(fewer) < len(cuts) else cuts
        fewest = fewest and cuts is not None
        for k, begin, end in search.buckets if cuts is None else cuts:
            names = [problem.names[p] for p in search.positions[k][begin:end]]
            buckets.append(Bucket(tuple(names)))
    proof = "recurrence with deadlines"
    return DeadlinePlan(Plan(tuple(buckets)), Bound(lower_ns, proof), optimal, fewest)


def fewest_launches(problem: Problem, makespan_ns: int, until: float = math.inf) -> Plan | None:
    """Return the plan of scope in-order with the fewest launches that keeps a makespan.

    None if that takes too long. With a single affine fusion key that nothing waits for the O(n)
    recurrence answers; there, launches are fewest up to rounding.

    Parameters
    ----------
    problem
        A problem for which :func:`why_no_deadlines` returned None, or one that is settled.
    makespan_ns
        At least the optimum.
    until
        When to stop, on the clock of :func:`time.monotonic`.
    """
    _, tail = paths_ns(problem)
    buckets: list[Bucket] = []
    for keys in keys_of_channel(problem).values():
        chains = [problem.chains[key] for key in keys]
        piece = problem.cost(keys[0]).affine
        cuts: list[tuple[int, int, int]] | None
        if problem.settled and len(keys) == 1 and piece is not None:
            ready, sizes = (
                [values[k] for k in chains[0]] for values in (problem.ready_ns, problem.bytes)
            )
            chain = AffineChain(ready, sizes, piece)
            ends = chain.fewest_launches(makespan_ns * piece.scale)
            room = (makespan_ns - len(ends)) * piece.scale
            if chain.rounded_end_ns(ends) > makespan_ns and room >= chain.earliest_end():
                ends = chain.fewest_launches(room)
            cuts = [(0, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        elif too_many(problem, keys):
            return None
        else:
            cuts = _Channel(problem, keys, tail).fewest_launches(makespan_ns, until)
        if cuts is None:
            return None
        buckets.extend(
            Bucket(tuple(problem.names[p] for p in chains[k][begin:end])) for k, begin, end in cuts
        )
    return Plan(tuple(buckets))


def too_many(problem: Problem, keys: Sequence[FusionKey]) -> bool:
    """Return whether a channel has too many collectives for the recurrence."""
    lengths = [len(problem.chains[key]) for key in keys]
    states = math.prod(length + 1 for length in lengths)
    return states > MAX_STATES or states * sum(lengths) > MAX_WORK


class _Channel:
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
        self._kept: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._keeps = sum(length**2 for length in self.shape) <= KEEP
        self.lower_ns = 0
        self.found_ns = self.never
        self.buckets: list[tuple[int, int, int]] = []

    def launches(self, k: int, end: int) -> tuple[Array, Array]:
        """Return the cost and the tail of the launches of key k that end at ``end``, by begin."""
        found = self._kept.get((k, end))
        if found is None:
            sent = self.sent[k]
            cost: Array = price(self.chains[k].cost, sent[end] - sent[:end]).astype(self.dtype)
            tail = np.maximum.accumulate(self.tails[k][end - 1 :: -1])[::-1]
            found = cost, np.ascontiguousarray(tail)
            if self._keeps:
                self._kept[k, end] = found
        return found

    def states(self) -> Iterator[tuple[int, ...]]:
        return np.ndindex(*self.shape)

    def minimise(self, lower_ns: int, until: float) -> None:
        """Find the least makespan, at least ``lower_ns``, that this channel can keep."""
        self.lower_ns = lower_ns
        self._decide(self.never)  # the plan that ends first
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
                done = np.maximum(table[_line(state, k)], chain.ready_ns[state[k] - 1]) + cost
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
        self.found_ns = max(self.lower_ns, self._makespan(self.buckets))

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
                done = np.maximum(table[_line(here, k)], chain.ready_ns[state[k] - 1]) + cost
                hits = np.flatnonzero((done == table[here]) & (done + tail <= makespan))
                if len(hits):
                    buckets.append((k, int(hits[0]), state[k]))
                    state[k] = int(hits[0])
                    break
        return buckets[::-1]

    def _makespan(self, buckets: Sequence[tuple[int, int, int]]) -> int:
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
        levels = self._latest_levels(makespan, until)
        return None if levels is None else self._forward(levels, makespan)

    def _latest_levels(self, makespan: int, until: float) -> list[Array] | None:
        level: Array = np.full(self.shape, -1, dtype=self.dtype)
        level[tuple(length - 1 for length in self.shape)] = makespan
        levels = [level]
        origin = (0,) * len(self.shape)
        work = math.prod(self.shape) * sum(self.shape)
        while int(levels[-1][origin]) < 0:
            if len(levels) * work > LAUNCH_WORK or time.monotonic() > until:
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
                    line = _line(state, k)
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


def _line(state: tuple[int, ...], k: int) -> tuple[int | slice, ...]:
    """Return the index of all states that differ from ``state`` by having sent less of chain k."""
    return (*state[:k], slice(0, state[k]), *state[k + 1 :])

"""The exact recurrence for any cost curves and several fusion keys on one channel.

A state says how many gradients of each key, in ready order, have been sent; ``F(state)`` is the
least time at which that can be done. The last launch ends the state's prefix of some key, so

    F(p) = min over keys k and q < p_k of  max(F(p with p_k = q), ready_k(p_k)) + cost_k(bytes q..p_k)

With one key these are the O(n^2) steps of the plain recurrence. Costs are the evaluator's own whole
nanoseconds, so the result is exact to the nanosecond for every non-decreasing curve.

The plan with the fewest launches is found by ``D_r(p)``, the latest time at which the prefix p may be
done so that r more launches still end by the deadline; the first r for which ``D_r(nothing sent)``
exists is the least number. The pass stops at a budget of work; then the launches are not minimal and
:class:`PrefixPlan` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commsched.models.cost import CostCurve, Piece

Array = NDArray[Any]  # int64 or, where that could overflow, Python's own whole numbers

MAX_STATES = 200_000
MAX_WORK = 2_000_000_000
LAUNCH_WORK = 400_000_000
_SAFE = 2**61


@dataclass(frozen=True)
class Chain:
    """The gradients of one fusion key in ready order, and what their launches cost."""

    ready_ns: Sequence[int]
    sizes: Sequence[int]
    cost: CostCurve


@dataclass(frozen=True)
class PrefixPlan:
    """What the prefix recurrence found.

    Attributes
    ----------
    end_ns
        The least end of all launches, exact for the rounded costs.
    buckets
        In launch order: chain number, first position, end position (exclusive).
    fewest
        Whether the number of launches is proved least.
    """

    end_ns: int
    buckets: list[tuple[int, int, int]]
    fewest: bool


def is_small_enough(lengths: Sequence[int]) -> bool:
    """Return whether the recurrence is quick enough for chains of these lengths."""
    states = math.prod(length + 1 for length in lengths)
    return states <= MAX_STATES and states * sum(lengths) <= MAX_WORK


def best_prefix_plan(chains: Sequence[Chain], deadline_ns: int = 0) -> PrefixPlan:
    """Return the best plan of one channel with fixed ready times, in scope ``in-order``.

    Parameters
    ----------
    chains
        One a fusion key, each with at least one gradient.
    deadline_ns
        Ending before it gains nothing (compute or another channel goes on until then): the
        launches are the fewest that end by the later of it and the optimum.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> best_prefix_plan([Chain([10, 20], [5, 5], AlphaBeta(0.003, 1))]).buckets
    [(0, 0, 1), (0, 1, 2)]
    """
    search = _Search(chains)
    earliest = search.earliest()
    optimum = search.end(earliest)
    levels = search.latest_levels(max(optimum, deadline_ns))
    if levels is None:
        return PrefixPlan(optimum, search.trace(earliest), fewest=False)
    return PrefixPlan(optimum, search.forward(levels), fewest=True)


def earliest_end(chains: Sequence[Chain]) -> int:
    """Return the least end of all launches, without a plan that attains it.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> earliest_end([Chain([10, 20], [5, 5], AlphaBeta(0.003, 1))])
    28
    """
    search = _Search(chains)
    return search.end(search.earliest())


def unrounded(chains: Sequence[Chain]) -> tuple[list[Chain], int]:
    """Return chains whose times are whole numbers without any rounding, and how many make 1 ns.

    Needs affine costs. What is found for them bounds the plans of scope ``any``, too, which rounding
    can help.
    """
    pieces = [piece for chain in chains for piece in chain.cost.pieces]
    scale = math.lcm(*(piece.scale for piece in pieces))
    scaled = [
        Chain([ready * scale for ready in chain.ready_ns], chain.sizes, _Scaled(piece, scale))
        for chain, piece in zip(chains, pieces, strict=True)
    ]
    return scaled, scale


class _Scaled(CostCurve):
    """An affine cost in units of ``1 / scale`` nanoseconds, in which nothing is rounded."""

    def __init__(self, piece: Piece, scale: int) -> None:
        times = scale // piece.scale
        self.one = Piece(0, piece.intercept * times, piece.slope * times, 1)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return (self.one,)


class _Search:
    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        self.sent = [np.cumsum([0, *chain.sizes], dtype=object) for chain in chains]
        latest = max(chain.ready_ns[-1] for chain in chains)
        longest = latest + sum(
            len(chain.sizes) * chain.cost.ns(int(sent[-1]))
            for chain, sent in zip(chains, self.sent, strict=True)
        )
        # Whole numbers of any size stay exact in object arrays, at a tenth of the speed.
        self.dtype: type = np.int64 if longest < _SAFE else np.object_
        self.never = -longest - 1
        self._costs: dict[tuple[int, int], Array] = {}
        self.keep_costs = sum(len(chain.sizes) ** 2 for chain in chains) <= 20_000_000
        if int(max(sent[-1] for sent in self.sent)) < _SAFE:
            self.sent = [sent.astype(np.int64) for sent in self.sent]

    def costs(self, number: int, end: int) -> Array:
        """Return the cost of the launches of one chain that end at ``end``, by their begin."""
        found = self._costs.get((number, end))
        if found is None:
            sent = self.sent[number]
            found = price(self.chains[number].cost, sent[end] - sent[:end]).astype(self.dtype)
            if self.keep_costs:
                self._costs[number, end] = found
        return found

    def states(self) -> Iterator[tuple[int, ...]]:
        return np.ndindex(*(len(chain.sizes) + 1 for chain in self.chains))

    def earliest(self) -> Array:
        """Return F for every state."""
        table: Array = np.zeros([len(chain.sizes) + 1 for chain in self.chains], dtype=self.dtype)
        for state in self.states():
            options = [
                int(
                    (
                        np.maximum(table[before_in(state, k)], chain.ready_ns[state[k] - 1])
                        + self.costs(k, state[k])
                    ).min()
                )
                for k, chain in enumerate(self.chains)
                if state[k]
            ]
            if options:
                table[state] = min(options)
        return table

    def end(self, table: Array) -> int:
        """Return F of the state in which everything has been sent."""
        return int(table[tuple(len(chain.sizes) for chain in self.chains)])

    def latest_levels(self, deadline: int) -> list[Array] | None:
        """Return D_0, D_1, ... up to the first level at which nothing needs to be sent yet."""
        shape = [len(chain.sizes) + 1 for chain in self.chains]
        level: Array = np.full(shape, self.never, dtype=self.dtype)
        level[tuple(length - 1 for length in shape)] = deadline
        levels = [level]
        origin = (0,) * len(shape)
        work = math.prod(shape) * sum(shape)
        while int(levels[-1][origin]) == self.never:
            if len(levels) * work > LAUNCH_WORK and len(levels) > 1:
                return None
            levels.append(self._level_before(levels[-1]))
        return levels

    def _level_before(self, after: Array) -> Array:
        before: Array = np.full(after.shape, self.never, dtype=self.dtype)
        for state in self.states():
            if int(after[state]) == self.never:
                continue
            for k, chain in enumerate(self.chains):
                if state[k]:
                    starts = int(after[state]) - self.costs(k, state[k])
                    starts = np.where(starts >= chain.ready_ns[state[k] - 1], starts, self.never)
                    line = before_in(state, k)
                    before[line] = np.maximum(before[line], starts)
        return before

    def forward(self, levels: list[Array]) -> list[tuple[int, int, int]]:
        """Return the buckets, each as early and then as small as the levels allow."""
        buckets: list[tuple[int, int, int]] = []
        state, now = [0] * len(self.chains), 0
        for level in reversed(levels[:-1]):
            options = []
            for k, chain in enumerate(self.chains):
                begin = state[k]
                for end in range(begin + 1, len(chain.sizes) + 1):
                    state[k] = end
                    start = max(now, chain.ready_ns[end - 1])
                    done = start + int(self.costs(k, end)[begin])
                    if done <= int(level[tuple(state)]):
                        options.append((start, done, k, begin, end))
                        break
                state[k] = begin
            _, now, k, begin, end = min(options)
            state[k] = end
            buckets.append((k, begin, end))
        return buckets

    def trace(self, table: Array) -> list[tuple[int, int, int]]:
        """Return the buckets of some plan that attains F, found from the end."""
        buckets: list[tuple[int, int, int]] = []
        state = [len(chain.sizes) for chain in self.chains]
        while any(state):
            here = tuple(state)
            for k, chain in enumerate(self.chains):
                if not state[k]:
                    continue
                before = np.maximum(table[before_in(here, k)], chain.ready_ns[state[k] - 1])
                hits = np.flatnonzero(before + self.costs(k, state[k]) == table[here])
                if len(hits):
                    buckets.append((k, int(hits[0]), state[k]))
                    state[k] = int(hits[0])
                    break
        return buckets[::-1]


def before_in(state: tuple[int, ...], k: int) -> tuple[int | slice, ...]:
    """Return the index of all states that differ from ``state`` by having sent less of chain k."""
    return (*state[:k], slice(0, state[k]), *state[k + 1 :])


def price(cost: CostCurve, sizes: Array) -> Array:
    """Return the cost of launches of many sizes, each as :meth:`CostCurve.ns` gives it."""
    pieces = cost.pieces
    largest = int(sizes.max())
    if any(abs(p.intercept) + p.slope * largest >= _SAFE or p.scale >= _SAFE for p in pieces):
        sizes = sizes.astype(object)
    which = (
        np.searchsorted([p.first_bytes for p in pieces], sizes.astype(np.int64), side="right") - 1
    )
    intercept, slope, scale = (
        np.array([getattr(p, name) for p in pieces], dtype=sizes.dtype)[which]
        for name in ("intercept", "slope", "scale")
    )
    priced: Array = -((-intercept - slope * sizes) // scale)
    return priced

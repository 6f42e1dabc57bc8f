"""Whether one plan of a channel is in time in several scenarios at once.

The scenarios have the same gradients in the same order, with ready times and costs of their own. What
the launches so far mean for those that follow is when the last of them ended in each scenario: as
many numbers as there are scenarios. A position keeps those vectors that no other is at least as early
as everywhere. A vector goes on only if in each scenario, taken alone, the rest can still be in time.
Times are the evaluator's whole nanoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commsched.models import CostCurve
from commsched.optimizer.prefix import price

Array = NDArray[np.int64]
MAX_VECTORS = 3_000
"""The most vectors that one position keeps; beyond that the search gives up."""
MAX_GRADIENTS = 600
"""The most gradients of a channel: all pairs are priced for all scenarios."""
NEVER = -(2**62)
ALWAYS = 2**62


class UndecidedError(Exception):
    """The search gave up."""


class RobustChain:
    """The gradients of one channel in all scenarios.

    Parameters
    ----------
    ready_ns
        By scenario: the ready time of each gradient in the common order, which they need not follow.
    sizes
        Bytes of each gradient.
    costs
        By scenario: what a launch costs.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> chain = RobustChain([[10, 20], [10, 10]], [5, 5], [AlphaBeta(0.003, 1)] * 2)
    >>> chain.earliest(), chain.ends([28, 26]), chain.ends([28, 23])
    ([28, 23], [1, 2], None)
    """

    def __init__(
        self,
        ready_ns: Sequence[Sequence[int]],
        sizes: Sequence[int],
        costs: Sequence[CostCurve],
    ) -> None:
        self.count, self.scenarios = len(sizes), len(costs)
        sent = np.array(list(accumulate(sizes, initial=0)), dtype=np.int64)
        # By begin: scenario and end (from begin + 1 on).
        self.ready: list[Array] = []
        self.length: list[Array] = []
        of_curve: dict[int, list[Array]] = {}
        for cost in costs:
            if id(cost) not in of_curve:
                of_curve[id(cost)] = [
                    price(cost, sent[begin + 1 :] - sent[begin]).astype(np.int64)
                    for begin in range(self.count)
                ]
        each = np.array(ready_ns, dtype=np.int64)
        for begin in range(self.count):
            self.ready.append(np.maximum.accumulate(each[:, begin:], axis=1))
            self.length.append(np.stack([of_curve[id(cost)][begin] for cost in costs]))

    def earliest(self) -> list[int]:
        """Return the least end in each scenario, taken alone."""
        ends = np.full((self.scenarios, self.count + 1), ALWAYS, dtype=np.int64)
        ends[:, 0] = 0
        for begin in range(self.count):
            here = np.maximum(ends[:, begin : begin + 1], self.ready[begin]) + self.length[begin]
            ends[:, begin + 1 :] = np.minimum(ends[:, begin + 1 :], here)
        return [int(end) for end in ends[:, -1]]

    def latest(self, deadlines: Sequence[int]) -> Array:
        """Return by when the first gradients must have been sent in each scenario, taken alone."""
        latest = np.full((self.scenarios, self.count + 1), NEVER, dtype=np.int64)
        latest[:, -1] = deadlines
        for begin in reversed(range(self.count)):
            starts = latest[:, begin + 1 :] - self.length[begin]
            starts = np.where(starts >= self.ready[begin], starts, NEVER)
            latest[:, begin] = starts.max(axis=1)
        return latest

    def ends(self, deadlines: Sequence[int], until: float | None = None) -> list[int] | None:
        """Return the bucket ends of a plan that meets all deadlines, or None if there is none.

        Parameters
        ----------
        deadlines
            One for each scenario.
        until
            The search gives up then, a time of ``time.monotonic``.

        Raises
        ------
        UndecidedError
            If the search gave up.
        """
        latest = self.latest(deadlines)
        if (latest[:, 0] < 0).any():
            return None
        # By position: vectors, and for each the position and the number of the vector before it.
        found: list[list[tuple[Array, int, Array]]] = [[] for _ in range(self.count + 1)]
        kept: list[tuple[Array, list[tuple[int, int]]]] = []
        found[0].append((np.zeros((1, self.scenarios), np.int64), 0, np.zeros(1, np.int64)))
        for begin in range(self.count + 1):
            vectors, before = _least(found[begin])
            found[begin] = []
            kept.append((vectors, before))
            if begin == self.count or not len(vectors):
                continue
            if len(vectors) > MAX_VECTORS or (until is not None and time.monotonic() > until):
                raise UndecidedError
            for offset in range(self.count - begin):
                end = begin + 1 + offset
                after = (
                    np.maximum(vectors, self.ready[begin][:, offset])
                    + (self.length[begin][:, offset])
                )
                in_time = (after <= latest[:, end]).all(axis=1)
                if in_time.any():
                    found[end].append((after[in_time], begin, np.flatnonzero(in_time)))
        return self._trace(kept)

    def _trace(self, kept: Sequence[tuple[Array, list[tuple[int, int]]]]) -> list[int] | None:
        if not len(kept[-1][0]):
            return None
        ends, position, number = [self.count], self.count, 0
        while True:
            position, number = kept[position][1][number]
            if not position:
                return ends[::-1]
            ends.append(position)


def _least(found: Sequence[tuple[Array, int, Array]]) -> tuple[Array, list[tuple[int, int]]]:
    """Return the vectors that no other is at least as early as everywhere, and where they are from."""
    if not found:
        return np.empty((0, 0), np.int64), []
    vectors = np.concatenate([part[0] for part in found])
    places = np.concatenate([np.full(len(part[2]), part[1], np.int64) for part in found])
    numbers = np.concatenate([part[2] for part in found])
    keys: list[Any] = [vectors[:, k] for k in reversed(range(vectors.shape[1]))]
    order = np.lexsort([*keys[:-1], vectors.sum(axis=1)]) if keys else np.arange(len(vectors))
    least = np.empty_like(vectors)
    chosen: list[int] = []
    for index in order:
        vector = vectors[index]
        # A vector with a smaller sum is never beaten by a later one.
        if not (least[: len(chosen)] <= vector).all(axis=1).any():
            least[len(chosen)] = vector
            chosen.append(int(index))
            if len(chosen) > MAX_VECTORS:
                raise UndecidedError
    return least[: len(chosen)], [(int(places[k]), int(numbers[k])) for k in chosen]

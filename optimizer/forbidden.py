"""Which buckets of neighbours the limits on single buckets forbid, whatever else a plan does."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commsched.models import Problem
from commsched.models.limits import Apart, LeastBucketBytes, MostBucketBytes, Together
from commsched.optimizer.grouping import bucket_bytes

LIMITS = (Apart, LeastBucketBytes, MostBucketBytes, Together)
"""The limits that say of a single bucket whether it may be."""
_SAFE = 2**61


class Forbidden:
    """The forbidden buckets among neighbours of one fusion key.

    Parameters
    ----------
    problem
        The step.
    chain
        The positions of the key's collectives, in ready order.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> some = [Gradient(name, 4, ready_ns=k) for k, name in enumerate("abcd")]
    >>> limits = [MostBucketBytes(8), Together(("a", "b"))]
    >>> problem = GradientProblem(some, AlphaBeta(1, 1), limits=limits)
    >>> forbidden = Forbidden(problem, problem.ready_order)
    >>> forbidden.begins(2), forbidden.begins(3)  # b needs a, and c has no room beside both
    (array([False,  True]), array([ True,  True, False]))
    """

    def __init__(self, problem: Problem, chain: Sequence[int]) -> None:
        self.limited = any(isinstance(limit, LIMITS) for limit in problem.limits)
        if not self.limited:
            return
        place = {problem.names[k]: number for number, k in enumerate(chain)}
        self.least, self.most = bucket_bytes(problem)
        sent = list(itertools.accumulate((problem.bytes[k] for k in chain), initial=0))
        self.sent: NDArray[Any] = np.array(sent, dtype=np.int64 if sent[-1] < _SAFE else np.object_)
        self.joined: list[tuple[int, int]] = []
        self.apart: list[list[int]] = []
        for limit in problem.limits:
            if not isinstance(limit, Together | Apart):
                continue
            places = sorted(place[name] for name in limit.names if name in place)
            if isinstance(limit, Apart):
                self.apart.append(places)
            elif places and len(places) < len(limit.names):
                self.joined.append(
                    (-1, len(chain))
                )  # the others have another key: no bucket will do
            elif places:
                self.joined.append((places[0], places[-1]))

    def begins(self, end: int) -> NDArray[np.bool_]:
        """Return for each begin whether no bucket may reach from it to ``end`` (exclusive)."""
        found = np.zeros(end, dtype=bool)
        if not self.limited:
            return found
        size = self.sent[end] - self.sent[:end]
        found |= (size < self.least) | (size > self.most)
        for first, last in self.joined:
            # No bucket begins or ends between two that share one.
            if first < end <= last:
                found[:] = True
            found[first + 1 : last + 1] = True
        for places in self.apart:
            inside = bisect_left(places, end)
            if inside > 1:
                found[: places[inside - 2] + 1] = True
        return found

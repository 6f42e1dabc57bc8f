"""A lower bound on the makespan from what can be sent early and what can be sent late at most.

Look at one channel and take times h and t. By time h at most ``G(h)`` of the work (the time that bytes
take, without start-ups) can have been done, and in the last t before the end of the step at most
``H(t)``. The rest lies between, together with the start-ups of at least one launch for the collectives
with head >= h and tail >= t, if there are any, all of whose launches lie between entirely. If h + t is
not beyond the end of the step, because there are such collectives or another bound says so,

    makespan >= h + t + work - G(h) - H(t) + (a start-up if there are such collectives, else less one).

If there are none, one launch may be under way at both moments. Seen from either side its start-up
comes first, so its work is counted as if it had two, and one is given back.

For G let collectives be divisible. Then a launch that takes all the work that is there at its start is
at least as good as one that takes less, so the work done is a prefix in the order of heads and

    f(j) = min over i < j of  max(f(i), head_j) + start-up + work i..j

is the least time at which the first j can be done; the launch under way at time h follows one of these
prefixes. H is G for the step seen backwards: tails are its heads. So both waiting for work and paying
start-ups for starting early are counted, at either side. Steps without the collectives of small
heads or tails are bounded as well, which bounds the whole.

Costs are replaced by one minorant (see ``CostCurve.minorants``) a fusion key, and the start-up by the
least one of a channel's keys. Everything is computed in floating point and rounded to the safe side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from commsched.models import FusionKey, Problem
from commsched.models.cost import Piece
from commsched.optimizer.grouping import channel_positions
from commsched.optimizer.result import Bound

Floats = NDArray[np.float64]

MAX_SUBSETS = 24
MAX_TIMES = 48
"""How many subsets of a channel's collectives, and how many times h and t, are looked at."""
WORK = 60_000_000
_MARGIN = 1e-12


def two_sided_bound(
    problem: Problem,
    head: dict[str, int],
    tail: dict[str, int],
    lower_ns: int,
    until: float = math.inf,
) -> Bound:
    """Return a bound that is at least ``lower_ns``, which must be one.

    Parameters
    ----------
    problem
        The step.
    head, tail
        What :func:`commsched.optimizer.bounds.paths_ns` says, or anything better.
    lower_ns
        A proved bound.
    until
        When to stop looking, on the clock of :func:`time.monotonic`.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective, Compute
    >>> from commsched.optimizer.bounds import paths_ns
    >>> step = Problem(
    ...     [Compute("b2", 10), Collective("x2", 40, after=("b2",)),
    ...      Compute("b1", 10), Collective("x1", 10, after=("b1",)),
    ...      Compute("f1", 50, after=("x1",)), Compute("f2", 10, after=("x2",))],
    ...     {("dp", "allreduce"): AlphaBeta(0.02, 1)})
    >>> two_sided_bound(step, *paths_ns(step), 0)
    Bound(ns=120, proof='start-ups and waiting at both sides')
    """
    best = float(lower_ns)
    for positions in channel_positions(problem):
        heads = np.array([head[problem.names[k]] for k in positions], dtype=np.float64)
        tails = np.array([tail[problem.names[k]] for k in positions], dtype=np.float64)
        for startup, work in start_ups_and_work(problem, positions):
            best = max(best, _channel(heads, tails, work, startup, best, until))
    bound_ns = math.ceil(best - 1e-3) if best > lower_ns else lower_ns
    return Bound(max(lower_ns, bound_ns), "start-ups and waiting at both sides")


def start_ups_and_work(problem: Problem, positions: Sequence[int]) -> list[tuple[float, Floats]]:
    """Return start-ups and the work of each collective, for some choices of minorants."""
    total: dict[FusionKey, int] = {}
    count: dict[FusionKey, int] = {}
    for k in positions:
        key = problem.keys[k]
        total[key] = total.get(key, 0) + problem.bytes[k]
        count[key] = count.get(key, 0) + 1
    found = []
    for divisor in (1, 4, 16):
        line: dict[FusionKey, Piece] = {}
        for key, size in total.items():
            share = size // min(divisor, count[key])
            line[key] = max(problem.cost(key).minorants, key=lambda p, s=share: p.exact_ns(s))  # type: ignore[misc]
        startup = min(piece.intercept / piece.scale for piece in line.values())
        work = [
            problem.bytes[k] * (line[problem.keys[k]].slope / line[problem.keys[k]].scale)
            for k in positions
        ]
        found.append((startup, np.array(work)))
        if all(len(problem.cost(key).minorants) == 1 for key in total):
            break
    return found


def _channel(
    heads: Floats, tails: Floats, work: Floats, startup: float, known: float, until: float
) -> float:
    """Return the best bound over some subsets: all, those with large tails, with large heads."""
    best, found = 0.0, _Best(0.0, 0.0, 0.0)
    chosen = heads >= 0
    subsets = max(1, min(MAX_SUBSETS, WORK // (len(heads) ** 2 * MAX_TIMES)))
    for values in (tails, heads):
        for least in _some(values, subsets):
            if best and time.monotonic() > until:
                break
            kept = values >= least
            early, late = _some(heads[kept], MAX_TIMES), _some(tails[kept], MAX_TIMES)
            bound = _subset(heads[kept], tails[kept], work[kept], startup, known, early, late)
            if bound.ns > best:
                best, found, chosen = bound.ns, bound, kept
    if len(heads) > MAX_TIMES:
        # Look more closely around the best pair of times.
        early = _near(heads[chosen], found.early)
        late = _near(tails[chosen], found.late)
        one = heads[chosen], tails[chosen], work[chosen]
        best = max(best, _subset(*one, startup, known, early, late).ns)
    return best * (1 - _MARGIN)


def _some(values: Floats, most: int) -> Floats:
    distinct = np.unique(values)
    step = max(1.0, len(distinct) / most)
    chosen: Floats = distinct[(np.arange(math.ceil(len(distinct) / step)) * step).astype(int)]
    return chosen


def _near(values: Floats, value: float) -> Floats:
    distinct = np.unique(values)
    place = int(np.searchsorted(distinct, value))
    return distinct[max(0, place - MAX_TIMES // 2) : place + MAX_TIMES // 2]


class _Best(NamedTuple):
    """A bound with the times before and after which work was counted."""

    ns: float
    early: float
    late: float


def _subset(
    heads: Floats,
    tails: Floats,
    work: Floats,
    startup: float,
    known: float,
    early: Floats,
    late: Floats,
) -> _Best:
    done_early = most_done(heads, work, startup, early)
    done_late = most_done(tails, work, startup, late)
    # For a time h the largest tail of the collectives with head >= h: those with larger tails
    # need no launch in between.
    order = np.argsort(heads)
    following = np.maximum.accumulate(tails[order][::-1])[::-1]
    largest = following[np.searchsorted(heads[order], early)]
    some = late[None, :] <= largest[:, None]
    apart = some | (early[:, None] + late[None, :] <= known)
    between = (early - done_early)[:, None] + (late - done_late)[None, :]
    bound = np.where(apart, between + np.where(some, startup, -startup), -np.inf)
    row, column = np.unravel_index(int(bound.argmax()), bound.shape)
    total = float(bound[row, column]) + float(work.sum())
    return _Best(total, float(early[row]), float(late[column]))


def most_done(ready: Floats, work: Floats, startup: float, times: Floats) -> Floats:
    """Return the most work that can have been done by each of some times.

    Examples
    --------
    >>> most_done(np.array([0.0, 5.0]), np.array([4.0, 4.0]), 1.0, np.array([3.0, 7.0, 20.0]))
    array([2., 5., 8.])
    """
    order = np.argsort(ready, kind="stable")
    ready, work = ready[order], work[order]
    sent = np.concatenate([[0.0], np.cumsum(work)])
    count = len(ready)
    done_at = np.zeros(count + 1)
    most = np.zeros(len(times))
    for j in range(1, count + 1):
        start, done = _done(done_at, ready, sent, startup, j)
        done_at[j] = done.min()
        # What the launch of (i, j) has done by each time, on top of the i before it.
        if j == count or ready[j] > ready[j - 1]:
            partly = np.minimum(times[:, None] - start[None, :], sent[j] - sent[:j])
            total = np.maximum(partly, 0.0) + sent[:j]
            reached = np.where(partly >= 0, total, 0.0).max(axis=1)
            most = np.maximum(most, reached)
    return most


def all_done(ready: Floats, work: Floats, startup: float) -> float:
    """Return the earliest moment by which all work can have been done.

    Examples
    --------
    >>> all_done(np.array([0.0, 5.0]), np.array([4.0, 4.0]), 1.0)
    10.0
    """
    order = np.argsort(ready, kind="stable")
    ready, work = ready[order], work[order]
    sent = np.concatenate([[0.0], np.cumsum(work)])
    done_at = np.zeros(len(ready) + 1)
    for j in range(1, len(ready) + 1):
        done_at[j] = _done(done_at, ready, sent, startup, j)[1].min()
    return float(done_at[-1])


def _done(
    done_at: Floats, ready: Floats, sent: Floats, startup: float, j: int
) -> tuple[Floats, Floats]:
    """Return when launches of i..j can have begun to move bytes and can be done, for all i < j."""
    start = np.maximum(done_at[:j], ready[j - 1]) + startup
    return start, start + sent[j] - sent[:j]

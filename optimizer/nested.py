"""Nested windows: what backward and the next forward pass make of a channel, and a bound from that.

The gradient that is ready first is needed last, so the windows in which collectives can be sent lie
within each other: with 0 the innermost one, ``ready_0 >= ready_1 >= ...`` and ``tail_0 >= tail_1
>= ...``. Let a launch of work w (what its bytes take) last ``startup + w``.

*Form of the best plans.* Call the launch with the innermost collective the *centre*. Launches before
it end before it starts, so no deadline matters to them; those after it start when everything is
ready. Moving a collective into an earlier launch of those before, or a later one of those after, that
holds one from further inside is therefore allowed, and makes no launch behind it end later (none
before it start earlier). So each side may take its collectives from outside to inside unmixed.

*Value.* Let ``F(A)`` be the least end of the launches A before the centre and ``F(B)`` the same for
those after it, seen backwards, with tails for ready times. The centre carries all other work, so

    makespan = startup + all work + f(A) + f(B),   f(A) = max(F(A), ready_0) - work(A),

f(B) alike with tail_0: what waiting and start-ups cost before and after. As F(A) is a longest path,

    f(A) + work(A) = max(ready_0, max over launches l of  ready_l + startup * n_l + work from l on)

with n_l the launches from l on.

*Bound.* Cut all collectives at one, j, into those from j on outwards and the rest. Let l be the first
launch of A (or else the centre, with n = 0) whose innermost collective a is not among those from j on
outwards. Then ``ready_a + startup * n_l - f(A)`` is at most the work before l, all of which lies
from j on outwards; B alike with a launch of innermost collective b. Both share what there is, so

    f(A) + f(B) >= ready_a + tail_b + startup * (n_A + n_B) - work from j on outwards

for every j, and with j outside of everything for the outermost launches. The best choice of where
launches begin is a recurrence over (j, a, b), and bounds every plan.

Where windows are not nested, they are widened until they are; several fusion keys count as one with
the least start-up, and other costs are replaced by minorants (``CostCurve.minorants``). All of that
only lowers the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from commsched.models import Problem
from commsched.models.cost import CostCurve, Piece
from commsched.optimizer.grouping import channel_positions
from commsched.optimizer.reordering import Job
from commsched.optimizer.result import Bound

Ints = NDArray[np.int64]

MAX_GROUPS = 200
"""Collectives are put into at most so many groups for the bound, which takes the cube of that."""
_SAFE = 2**57
_FINE = 1024


@dataclass(frozen=True)
class Nested:
    """The collectives of one channel from the innermost window to the outermost one.

    Attributes
    ----------
    jobs
        Their positions in what :func:`nested` was given.
    ready, tail, work
        By collective, in units; both times never increase.
    startup, total
        A launch's start-up and the work of all collectives, also of those left out.
    scale
        Units a nanosecond.
    left_out
        The work of small collectives that were left out; see :meth:`without_small`.
    exact
        Whether windows, costs and keys were taken as they are.
    """

    jobs: tuple[int, ...]
    ready: Ints
    tail: Ints
    work: Ints
    startup: int
    total: int
    scale: int
    left_out: int
    exact: bool

    @cached_property
    def outside(self) -> Ints:
        """Work of the collectives from each position on outwards, with a 0 at the end."""
        return np.concatenate([np.cumsum(self.work[::-1])[::-1], [0]]).astype(np.int64)

    def makespan_ns(self, value: int) -> int:
        """Return f(A) + f(B) in units as a makespan in nanoseconds, rounded up."""
        return -(-(self.startup + self.total + value) // self.scale)

    def value(self, makespan_ns: int) -> int:
        """Return the value of a makespan."""
        return makespan_ns * self.scale - self.startup - self.total

    def without_small(self, share: float) -> Nested:
        """Leave out the smallest collectives that make up to a share of all work.

        They may all go into the centre, so plans keep their value. Sent elsewhere, each lowers the
        value by no more than its work: bounds must be lowered by :attr:`left_out`.
        """
        order = np.argsort(self.work, kind="stable")
        order = order[order > 0]
        small = order[np.cumsum(self.work[order]) <= share * self.total]
        kept = np.ones(len(self.work), dtype=bool)
        kept[small] = False
        return replace(
            self,
            jobs=tuple(job for job, keep in zip(self.jobs, kept.tolist(), strict=True) if keep),
            ready=self.ready[kept],
            tail=self.tail[kept],
            work=self.work[kept],
            left_out=self.left_out + int(self.work[small].sum()),
        )


def nested(jobs: Sequence[Job], curves: Sequence[CostCurve]) -> list[Nested]:
    """Return the windows of one channel: one for each choice of minorants that is worth a look.

    Parameters
    ----------
    jobs
        The collectives, with heads for ready times where these are not fixed.
    curves
        What launches of each key cost.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> (windows,) = nested([Job(5, 4, 9, 0), Job(0, 2, 3, 0)], [AlphaBeta(0.001, 1)])
    >>> windows.jobs, windows.work.tolist(), windows.startup, windows.exact
    ((0, 1), [4, 2], 1, True)
    """
    size: dict[int, int] = {}
    count: dict[int, int] = {}
    for job in jobs:
        size[job.key] = size.get(job.key, 0) + job.size
        count[job.key] = count.get(job.key, 0) + 1
    order = sorted(
        range(len(jobs)), key=lambda j: (-jobs[j].ready, -jobs[j].tail, -jobs[j].size, j)
    )
    longest = max(job.ready for job in jobs) + max(job.tail for job in jobs)
    single = len(size) == 1 and all(curves[key].affine is not None for key in size)
    found = []
    for divisor in (1,) if all(len(curves[k].minorants) == 1 for k in size) else (1, 4, 16):
        line: dict[int, Piece] = {}
        for key, total in size.items():
            share = total // min(divisor, count[key])
            line[key] = max(curves[key].minorants, key=lambda p, s=share: p.exact_ns(s))  # type: ignore[misc]
        scale = math.lcm(*(piece.scale for piece in line.values()))
        most = sum(line[k].exact_ns(s) + count[k] * line[k].exact_ns(0) for k, s in size.items())
        whole = (longest + most) * scale < _SAFE
        if not whole:
            scale = _FINE
        ready = np.array([jobs[j].ready for j in order], dtype=np.int64) * scale
        tail = np.array([jobs[j].tail for j in order], dtype=np.int64) * scale
        widened = np.minimum.accumulate(tail)
        work = [
            jobs[j].size * line[jobs[j].key].slope * scale // line[jobs[j].key].scale for j in order
        ]
        found.append(
            Nested(
                jobs=tuple(order),
                ready=ready,
                tail=widened,
                work=np.array(work, dtype=np.int64),
                startup=min(piece.intercept * scale // piece.scale for piece in line.values()),
                total=sum(work),
                scale=scale,
                left_out=0,
                exact=bool((widened == tail).all()) and single,
            )
        )
    return found


class Divisible:
    """The bound for divisible collectives, for the whole and for every part that is still to come.

    Parameters
    ----------
    windows
        What is bounded.
    most
        How many groups collectives are put into; a group has the widest window of its members.
    """

    def __init__(self, windows: Nested, most: int = MAX_GROUPS) -> None:
        self.windows = windows
        self.group = group_of(windows, most)
        """The group of each collective; the innermost one is a group of its own."""
        last = np.flatnonzero(np.diff(self.group, append=self.group[-1] + 1))
        self.last: list[int] = last.tolist()
        """The outermost collective of each group."""
        self._ready, self._tail = windows.ready[last], windows.tail[last]
        self._outside = windows.outside[last + 1]
        self._tables = self._solve()

    def _solve(self) -> list[Ints]:
        """Return for each group g, by (a, b), what must come after it: see the module."""
        count = len(self.last)
        tables: list[Ints] = [np.zeros((0, 0), dtype=np.int64)] * count
        tables[-1] = self._ready[:, None] + self._tail[None, :]
        for g in range(count - 2, -1, -1):
            table = self._entering(tables[g + 1], g + 1)[:-1, :-1]
            needed = self._ready[: g + 1, None] + self._tail[None, : g + 1] - self._outside[g]
            tables[g] = np.maximum(table, needed)
        return tables

    def _entering(self, table: Ints, group: int) -> Ints:
        """Return the table before a group, whose members may begin a launch of either side."""
        startup = self.windows.startup
        best = np.minimum(table, startup + table[group][None, :])
        best = np.minimum(best, startup + table[:, group][:, None])
        entering: Ints = np.minimum(best, 2 * startup + table[group, group])
        return entering

    def after(self, position: int) -> Ints:
        """Return, by groups (a, b), a bound on f(A) + f(B) less the start-ups of both sides so far.

        Parameters
        ----------
        position
            Everything up to this collective is decided; a and b are the groups of the innermost
            collectives of the outermost launches of either side.
        """
        group = int(self.group[position])
        if position == self.last[group]:
            return self._tables[group]
        return self._entering(self._tables[group], group)

    @property
    def value(self) -> int:
        """The bound on f(A) + f(B)."""
        windows = self.windows
        centre = int(windows.ready[0] + windows.tail[0] - windows.outside[1])
        return max(centre, int(self._tables[0][0, 0])) - windows.left_out


def group_of(windows: Nested, most: int) -> Ints:
    """Return a group for each collective: neighbours, with equal shares of time and work."""
    count = len(windows.work)
    if count <= most:
        return np.arange(count)
    apart = np.zeros(count)
    for values in (windows.ready, windows.tail, windows.outside[:-1]):
        span = int(values[0] - values[-1])
        if span:
            apart += (values[0] - values) / span
    apart /= max(1e-9, float(apart[-1]))
    # The innermost one is apart: it is in the centre.
    inner = 1 + np.floor(apart * (most - 2)).astype(np.int64)
    inner[0] = 0
    return np.unique(inner, return_inverse=True)[1].astype(np.int64)


def nested_bound(
    problem: Problem, head: dict[str, int], tail: dict[str, int], lower_ns: int
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

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective, Compute
    >>> from commsched.optimizer.bounds import paths_ns
    >>> step = Problem(
    ...     [Compute("b2", 10), Collective("x2", 40, after=("b2",)),
    ...      Compute("b1", 10), Collective("x1", 10, after=("b1",)),
    ...      Compute("f1", 50, after=("x1",)), Compute("f2", 10, after=("x2",))],
    ...     {("dp", "allreduce"): AlphaBeta(0.02, 1)})
    >>> nested_bound(step, *paths_ns(step), 0)
    Bound(ns=120, proof='nested windows')
    """
    best = lower_ns
    for positions in channel_positions(problem):
        keys = list(dict.fromkeys(problem.keys[k] for k in positions))
        number = {key: place for place, key in enumerate(keys)}
        names = [problem.names[k] for k in positions]
        jobs = [
            Job(head[name], problem.bytes[k], tail[name], number[problem.keys[k]])
            for name, k in zip(names, positions, strict=True)
        ]
        for windows in nested(jobs, [problem.cost(key) for key in keys]):
            best = max(best, windows.makespan_ns(Divisible(windows).value))
    return Bound(best, "nested windows")

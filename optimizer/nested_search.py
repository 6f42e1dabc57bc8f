"""The best plan of one channel with nested windows: each collective goes to a side or to the centre.

See :mod:`commsched.optimizer.nested` for the form of the best plans, f and the bound. Collectives are
decided from inside to outside. With a the innermost collective of the outermost launch of a side, k
the launches of that side and h what f is so far less ``startup * k``,

    *add* it to that launch:        h becomes max(h - work, ready_a)
    *begin* a launch with it:       h becomes max(h - work - startup, ready), and a is it

and ``f = h + startup * k`` is what that side costs if nothing more joins. Before any launch a is the
centre. Adding is useless if h is ready_a already. Beginning a launch is useless if f does not sink,
and if the work still fits into the one before (``h - work >= ready_a``): then add it, and begin with
the next one instead. So a state is (h, a) of both sides and the number of launches; one is dominated
by another with no larger h, no a further inside and no more launches. What can still be gained is
bounded by the work left and by :class:`~commsched.optimizer.nested.Divisible`.

Of more states than are kept those with the least bounds stay; the least bound among those dropped is
one on the makespan. Small collectives are left out at first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commsched.optimizer.nested import Divisible, Ints, Nested

STATES_A_SECOND = 500_000
"""States looked at for each second of a limit: fewer than most machines manage, so that they agree."""
FIRST_KEPT, MORE, MOST_KEPT = 500, 8, 256_000
MEMORY = 20_000_000
"""Decisions kept to find the launches again: states kept times collectives."""
SMALL_SHARE, MANY = 0.001, 40
"""What is left out at first, if there are more collectives than this."""
_NEVER = 2**62
_DOMINATING = 60
_A, _B = 0, 2
_LAUNCHES = 4


@dataclass(frozen=True)
class Sides:
    """What a search found.

    Attributes
    ----------
    value, bound
        The least f(A) + f(B) found, and a bound on it, in units.
    launches
        What is launched, in order, as positions in what
        :func:`commsched.optimizer.nested.nested` was given; None if nothing beat the limit.
    complete
        Whether no state was dropped: value and bound then differ by what was left out.
    """

    value: int
    bound: int
    launches: list[list[int]] | None
    complete: bool


@dataclass
class _Step:
    """Where the states after one collective come from, and how it was decided."""

    parent: NDArray[np.int32]
    choice: NDArray[np.int8]


class NestedSearch:
    """The search on one channel.

    Parameters
    ----------
    windows
        The channel.

    Attributes
    ----------
    value, bound
        The least f(A) + f(B) known, which a caller may lower, and a bound on it, in units.
    launches
        As in :class:`Sides`.
    states
        How many states were looked at.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> from commsched.optimizer.nested import nested
    >>> from commsched.optimizer.reordering import Job
    >>> jobs = [Job(20, 10, 60, 0), Job(10, 40, 10, 0)]
    >>> (windows,) = nested(jobs, [AlphaBeta(0.02, 1)])
    >>> search = NestedSearch(windows)
    >>> search.run(10_000)
    >>> windows.makespan_ns(search.value), windows.makespan_ns(search.bound), search.launches
    (120, 120, [[0], [1]])
    """

    def __init__(self, windows: Nested) -> None:
        self.windows = windows
        everything = Divisible(windows)
        self.bound = everything.value
        self.value = _NEVER
        self.launches: list[list[int]] | None = None
        self.states = 0
        self._divisible = {0.0: everything}

    def run(self, states: int, enough: int = -_NEVER, until: float = float("inf")) -> None:
        """Search until value and bound meet.

        Parameters
        ----------
        states
            How many states to look at.
        enough
            A value, in units, below which nothing needs to be found or proved.
        until
            When to stop, on the clock of :func:`time.monotonic`.
        """
        kept = FIRST_KEPT
        share = SMALL_SHARE if len(self.windows.jobs) > MANY else 0.0
        until_states = self.states + states
        while self.value > max(self.bound, enough) and self.states < until_states:
            if kept > min(MOST_KEPT, MEMORY // len(self.windows.jobs)):
                break
            found = self._run(share, kept, self.value, until, until_states)
            if found is None:
                break
            if found.launches is not None and found.value < self.value:
                self.value, self.launches = found.value, found.launches
            self.bound = max(self.bound, min(found.bound, self.value))
            if not found.complete:
                kept *= MORE
            elif share:
                share = share / MORE if share > SMALL_SHARE / MORE**2 else 0.0

    def fewest(self, value: int, states: int, until: float) -> list[list[int]] | None:
        """Return the fewest launches with at most some value, None if it takes too many states."""
        kept = min(MOST_KEPT, MEMORY // len(self.windows.jobs))
        limit = self.states + states
        found = self._run(0.0, kept, value + 1, until, limit, fewest=True)
        return found.launches if found is not None and found.complete else None

    def _run(
        self,
        share: float,
        kept: int,
        limit: int,
        until: float,
        until_states: int,
        *,
        fewest: bool = False,
    ) -> Sides | None:
        """Look for values below a limit; None if the time or the states are over."""
        if share not in self._divisible:
            self._divisible[share] = Divisible(self.windows.without_small(share))
        divisible = self._divisible[share]
        windows = divisible.windows
        startup, outside = windows.startup, windows.outside
        first = [int(windows.ready[0]), 0, int(windows.tail[0]), 0, 0]
        states: Ints = np.array([first], dtype=np.int64)
        steps: list[_Step] = []
        best, dropped, launches = limit, _NEVER, _NEVER
        found: tuple[int, int, int] | None = None
        if first[_A] + first[_B] < limit:
            best = limit if fewest else first[_A] + first[_B]
            found, launches = (-1, 0, 0), 0
        for position in range(1, len(windows.work)):
            states, parent, choice = _decide(windows, states, position)
            self.states += len(states)
            value = states[:, _A] + states[:, _B] + startup * states[:, _LAUNCHES]
            if fewest:
                counted = np.where(value < limit, states[:, _LAUNCHES], _NEVER)
                place = int(counted.argmin())
                if counted[place] < launches:
                    launches = int(counted[place])
                    best, found = limit, (position, int(parent[place]), int(choice[place]))
            else:
                place = int(value.argmin())
                if value[place] < best:
                    best = int(value[place])
                    found = position, int(parent[place]), int(choice[place])
            bound = _bound(divisible, states, position, int(outside[position + 1]))
            here = bound < best
            if fewest:
                here &= states[:, _LAUNCHES] < launches
            chosen = np.flatnonzero(here)
            if not len(chosen):
                break
            chosen = chosen[undominated(states[chosen], bound[chosen])]
            if len(chosen) > kept:
                order = np.lexsort((value[chosen], bound[chosen]))
                dropped = min(dropped, int(bound[chosen[order[kept]]]))
                chosen = chosen[order[:kept]]
            states = states[chosen]
            steps.append(_Step(parent[chosen].astype(np.int32), choice[chosen].astype(np.int8)))
            if self.states > until_states or time.monotonic() > until:
                return None
        return Sides(
            best,
            min(best, dropped) - windows.left_out,
            None if found is None else self._launches(windows, steps, found),
            dropped == _NEVER,
        )

    def _launches(
        self, windows: Nested, steps: list[_Step], found: tuple[int, int, int]
    ) -> list[list[int]]:
        """Return what is launched, in order."""
        position, state, choice = found
        choices: list[int] = []
        while position > 0:
            choices.append(choice)
            position -= 1
            if position > 0:
                step = steps[position - 1]
                choice, state = int(step.choice[state]), int(step.parent[state])
        sides: tuple[list[list[int]], list[list[int]]] = ([], [])
        for place, chosen in enumerate(reversed(choices), start=1):
            if chosen:
                side = sides[(chosen - 1) // 2]
                if chosen % 2 == 0:
                    side.append([])
                side[-1].append(windows.jobs[place])
        sent = {job for side in sides for launch in side for job in launch}
        centre = [job for job in self.windows.jobs if job not in sent]
        return [*reversed(sides[0]), centre, *sides[1]]


def _decide(windows: Nested, states: Ints, position: int) -> tuple[Ints, Ints, Ints]:
    """Return the states after a collective, the ones they come from and how it was decided.

    Choices are 0 for the centre, 1 and 2 for adding to and beginning a launch before it, 3 and 4 for
    those after it.
    """
    work, startup = int(windows.work[position]), windows.startup
    results = [states]
    parents = [np.arange(len(states))]
    choices = [np.zeros(len(states), dtype=np.int64)]
    for side, times, add in ((_A, windows.ready, 1), (_B, windows.tail, 3)):
        height = states[:, side]
        begins = times[states[:, side + 1]]
        chosen = np.flatnonzero(height > begins)
        added = states[chosen]
        added[:, side] = np.maximum(height[chosen] - work, begins[chosen])
        results.append(added)
        parents.append(chosen)
        choices.append(np.full(len(chosen), add))
        chosen = np.flatnonzero(
            (height - work < begins) & (int(times[position]) + startup < height)
        )
        begun = states[chosen]
        begun[:, side] = np.maximum(height[chosen] - work - startup, int(times[position]))
        begun[:, side + 1] = position
        begun[:, _LAUNCHES] += 1
        results.append(begun)
        parents.append(chosen)
        choices.append(np.full(len(chosen), add + 1))
    return np.concatenate(results), np.concatenate(parents), np.concatenate(choices)


def _bound(divisible: Divisible, states: Ints, position: int, left: int) -> Ints:
    """Return for each state a bound on the value of every plan that comes of it."""
    group = divisible.group
    table = divisible.after(position)
    later = table[group[states[:, _A + 1]], group[states[:, _B + 1]]]
    now = states[:, _A] + states[:, _B] - left
    bound: Ints = np.maximum(now, later) + divisible.windows.startup * states[:, _LAUNCHES]
    return bound


def undominated(states: Ints, bound: Ints) -> Ints:
    """Return the positions of states without most of those that another one dominates."""
    order = np.lexsort(
        (states[:, _B], states[:, _A], states[:, _LAUNCHES], states[:, _B + 1], states[:, _A + 1])
    )
    of = states[order]
    alike = [_A + 1, _B + 1, _LAUNCHES]
    differs = np.concatenate([[True], (of[1:][:, alike] != of[:-1][:, alike]).any(axis=1)])
    number = np.cumsum(differs) - 1
    rank = np.unique(of[:, _B], return_inverse=True)[1].astype(np.int64)
    # Later groups have smaller numbers, so the least rank so far is one of the same group.
    rank -= number * (int(rank.max()) + 1)
    least = np.minimum.accumulate(rank)
    left: Ints = order[np.concatenate([[True], rank[1:] < least[:-1]])]
    if len(left) <= _DOMINATING:
        return left
    keep = np.ones(len(left), dtype=bool)
    alive, others = np.arange(len(left)), states[left]
    for best in np.argsort(bound[left], kind="stable")[:_DOMINATING].tolist():
        if not keep[best]:
            continue
        one = states[left[best]]
        worse = (
            (others[:, _A] >= one[_A])
            & (others[:, _B] >= one[_B])
            & (others[:, _A + 1] <= one[_A + 1])
            & (others[:, _B + 1] <= one[_B + 1])
            & (others[:, _LAUNCHES] >= one[_LAUNCHES])
        )
        keep[alive[worse]] = False
        keep[best] = True
        if worse.sum() > len(others) // 8:
            alive = alive[keep[alive]]
            others = states[left[alive]]
    kept: Ints = left[keep]
    return kept

"""Local search over buckets and launch orders of one channel whose ready times are fixed.

Each collective has a ready time, a size and a *tail*, the longest path after it; a launch counts as
late as its end plus the largest tail of its members, and the latest launch is to be made earlier. What
makes it late is its *block*: the launches before it that run without a pause, back to one that starts
just when it is ready. So only moves that change a block can help, and only those are tried: a member
leaves a launch of the block (for another one, or for a launch of its own), two neighbours merge, a
launch is split, or a launch moves. Worse plans are taken while a threshold, which falls to nothing
again and again, allows it. The number of moves decides when it ends, so that the same seed gives the
same plan on every machine that is not slower than its clock allows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Cost = Callable[[int, int], int]
"""Key number and bytes -> nanoseconds."""

CYCLE = 4000
"""Moves from one warm start to the next."""
_BLINK = 64


class Job(NamedTuple):
    """A collective: when it is ready, its bytes, its tail, and the number of its fusion key."""

    ready: int
    size: int
    tail: int
    key: int


class _Launch:
    """Some jobs of one key in one launch."""

    __slots__ = ("jobs", "key", "length", "ready", "size", "tail")

    def __init__(self, jobs: list[int], all_jobs: Sequence[Job], cost: Cost) -> None:
        self.jobs = jobs
        self.ready = max([all_jobs[j].ready for j in jobs])
        self.tail = max([all_jobs[j].tail for j in jobs])
        self.size = sum([all_jobs[j].size for j in jobs])
        self.key = all_jobs[jobs[0]].key
        self.length = cost(self.key, self.size)


class Improvement(NamedTuple):
    """What a search ended with: how late the latest launch is, the launches, and moves tried."""

    latest: int
    launches: list[list[int]]
    moves: int


def improve(
    jobs: Sequence[Job],
    launches: Sequence[Sequence[int]],
    cost: Cost,
    *,
    target: int,
    moves: int,
    seed: int,
    until: float,
) -> Improvement:
    """Return the best order of launches found.

    Parameters
    ----------
    jobs
        The collectives.
    launches
        Where to begin: lists of positions in ``jobs``, each of one key, in launch order.
    cost
        What a launch lasts.
    target
        The search ends when no launch is later than that.
    moves
        How many moves to try at most.
    seed
        For the choice of moves.
    until
        When to stop whatever the moves, on the clock of :func:`time.monotonic`.

    Examples
    --------
    >>> jobs = [Job(0, 10, 0, 0), Job(5, 2, 9, 0)]
    >>> found = improve(jobs, [[0], [1]], lambda key, size: 1 + size,
    ...                 target=0, moves=100, seed=0, until=float("inf"))
    >>> found.latest, found.launches
    (19, [[1], [0]])
    """
    return _Search(jobs, launches, cost, seed).run(target, moves, until)


class _Change(NamedTuple):
    """Another order of launches: the first place that differs, and how many at the end do not."""

    order: list[_Launch]
    first: int
    rest: int


class _Search:
    """The state of a search: an order of launches with its times."""

    def __init__(
        self, jobs: Sequence[Job], launches: Sequence[Sequence[int]], cost: Cost, seed: int
    ) -> None:
        self.jobs, self.cost = jobs, cost
        self.random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self._take([self._launch(list(members)) for members in launches])
        self.best, self.best_order = self.latest, self.order

    def _launch(self, members: list[int]) -> _Launch:
        return _Launch(members, self.jobs, self.cost)

    def _take(self, order: list[_Launch]) -> None:
        """Make an order the current one: starts, and how late the first and the last ones are."""
        self.order = order
        now = latest = 0
        self.starts: list[int] = []
        self.before: list[tuple[int, int]] = []  # end and lateness of the launches before
        for launch in order:
            self.before.append((now, latest))
            if launch.ready > now:
                now = launch.ready
            self.starts.append(now)
            now += launch.length
            if now + launch.tail > latest:
                latest = now + launch.tail
        self.before.append((now, latest))
        self.latest = latest
        self.after = [0] * (len(order) + 1)  # lateness of the launches from a place on
        for place in range(len(order) - 1, -1, -1):
            late = self.starts[place] + order[place].length + order[place].tail
            self.after[place] = max(late, self.after[place + 1])

    def _play(self, change: _Change, limit: float) -> int | None:
        """Return how late the latest launch is after a change, or None if beyond a limit.

        What comes before the change is known, and once a launch after it starts when it did, so
        is the rest.
        """
        order, first, rest = change
        now, latest = self.before[first]
        same = len(order) - rest
        for place in range(first, same):
            launch = order[place]
            if launch.ready > now:
                now = launch.ready
            now += launch.length
            if now + launch.tail > latest:
                latest = now + launch.tail
                if latest > limit:
                    return None
        starts, shift = self.starts, len(self.order) - len(order)
        for place in range(same, len(order)):
            launch = order[place]
            if launch.ready > now:
                now = launch.ready
            if now == starts[place + shift]:
                latest = max(latest, self.after[place + shift])
                break
            now += launch.length
            if now + launch.tail > latest:
                latest = now + launch.tail
                if latest > limit:
                    return None
        return latest if latest <= limit else None

    def run(self, target: int, moves: int, until: float) -> Improvement:
        """Make the latest launch earlier."""
        warmest = max(1.0, 0.02 * (self.latest - max(job.tail for job in self.jobs)))
        self._merge_all(self.latest, until)
        self._remember()
        tried = 0
        while tried < moves and self.best > target:
            if tried % _BLINK == 0 and time.monotonic() > until:
                break
            tried += 1
            phase = tried % CYCLE / CYCLE
            if tried % CYCLE == 0 and self.random.random() < 0.5:
                self._take(self.best_order)
            change = self._move()
            if change is None:
                continue
            limit = self.latest + warmest * (1 - phase) ** 3 * self.random.random()
            if self._play(change, limit) is not None:
                self._take(change.order)
                self._remember()
        return Improvement(self.best, [launch.jobs for launch in self.best_order], tried)

    def _remember(self) -> None:
        if (self.latest, len(self.order)) < (self.best, len(self.best_order)):
            self.best, self.best_order = self.latest, self.order

    def reduce(self, limit: int, moves: int, until: float) -> list[list[int]]:
        """Return fewer launches within a limit."""
        self._merge_all(limit, until)
        for tried in range(moves):
            if len(self.order) == 1 or (tried % _BLINK == 0 and time.monotonic() > until):
                break
            place = int(self.random.random() * len(self.order))
            drawn = self.random.random()
            if drawn < 0.6:
                change = self._shift_members(place, place)
            elif drawn < 0.8:
                change = self._merge(place)
            else:
                change = self._shift_launch(place)
            if change is not None and self._play(change, limit) is not None:
                self._take(change.order)
        return [launch.jobs for launch in self.order]

    def _merge_all(self, limit: int, until: float) -> None:
        """Merge neighbours, from the first on, as long as no launch is too late."""
        place = 0
        while place + 1 < len(self.order) and time.monotonic() < until:
            change = self._merge(place)
            if change is not None and self._play(change, limit) is not None:
                self._take(change.order)
            else:
                place += 1

    def _block(self) -> tuple[int, int]:
        """Return the first and last launch of a block that makes the step as late as it is."""
        order, starts = self.order, self.starts
        last = 0
        while starts[last] + order[last].length + order[last].tail != self.latest:
            last += 1
        first = last
        while starts[first] > order[first].ready:
            first -= 1
        return first, last

    def _move(self) -> _Change | None:
        """Return a change, or None if the move that was drawn is none."""
        chance = self.random.random
        first, last = self._block()
        place = first + int(chance() * (last - first + 1))
        if chance() < 0.15:
            place = int(chance() * len(self.order))
        drawn = chance()
        if drawn < 0.5:
            return self._shift_members(place, last)
        if drawn < 0.65:
            return self._merge(place)
        if drawn < 0.85:
            return self._split(place)
        return self._shift_launch(place)

    def _chosen(self, launch: _Launch) -> list[int]:
        """Draw some members: one, the least urgent ones, the last ready ones, or random ones."""
        jobs, members = self.jobs, launch.jobs
        drawn = self.random.random()
        if drawn < 0.4 or len(members) < 3:
            return [members[int(self.random.random() * len(members))]]
        count = 1 + int(self.random.random() ** 2 * (len(members) - 1))
        if drawn < 0.65:
            return sorted(members, key=lambda j: (jobs[j].tail, j))[:count]
        if drawn < 0.85:
            return sorted(members, key=lambda j: (-jobs[j].ready, j))[:count]
        return self.random.sample(members, count)

    def _shift_members(self, place: int, last: int) -> _Change | None:
        """Move some members of a launch to another one of their key."""
        order = self.order
        launch = order[place]
        chosen = self._chosen(launch)
        if self.random.random() < 0.5:
            other = last + 1 + int(self.random.random() ** 2 * (len(order) - last - 1))
        else:
            other = int(self.random.random() * len(order))
        if other == place or other >= len(order) or order[other].key != launch.key:
            return None
        rest = [j for j in launch.jobs if j not in chosen]
        found = order.copy()
        found[other] = self._launch(order[other].jobs + chosen)
        if rest:
            found[place] = self._launch(rest)
        else:
            del found[place]
        return _Change(found, min(place, other), len(order) - 1 - max(place, other))

    def _merge(self, place: int) -> _Change | None:
        """Merge a launch with the one after it."""
        order = self.order
        if place + 1 >= len(order) or order[place].key != order[place + 1].key:
            return None
        merged = self._launch(order[place].jobs + order[place + 1].jobs)
        found = [*order[:place], merged, *order[place + 2 :]]
        return _Change(found, place, len(order) - place - 2)

    def _split(self, place: int) -> _Change | None:
        """Give some members of a launch a launch of their own, anywhere."""
        order = self.order
        launch = order[place]
        if len(launch.jobs) < 2:
            return None
        chosen = self._chosen(launch)
        rest = [j for j in launch.jobs if j not in chosen]
        if not rest:
            return None
        found = order.copy()
        found[place] = self._launch(rest)
        drawn = self.random.random()
        where = place + 1 if drawn < 0.4 else place if drawn < 0.6 else None
        if where is None:
            where = int(self.random.random() * (len(order) + 1))
        found.insert(where, self._launch(chosen))
        first = min(place, where)
        return _Change(found, first, len(found) - 1 - max(place + 1, where))

    def _shift_launch(self, place: int) -> _Change | None:
        found = self.order.copy()
        launch = found.pop(place)
        if self.random.random() < 0.5:
            where = place + (1 if self.random.random() < 0.5 else -1)
        else:
            where = int(self.random.random() * (len(found) + 1))
        if not 0 <= where <= len(found) or where == place:
            return None
        found.insert(where, launch)
        return _Change(found, min(place, where), len(found) - 1 - max(place, where))


def reduce_launches(
    jobs: Sequence[Job],
    launches: Sequence[Sequence[int]],
    cost: Cost,
    *,
    limit: int,
    moves: int,
    seed: int,
    until: float,
) -> list[list[int]]:
    """Return fewer launches of which none is later than a limit, as far as they are found.

    Neighbours that may merge do, and the moves between go anywhere within the limit.

    Parameters
    ----------
    jobs, launches, cost, moves, seed, until
        As for :func:`improve`.
    limit
        No launch may be later than that; those given are not.

    Examples
    --------
    >>> jobs = [Job(0, 10, 0, 0), Job(5, 2, 0, 0)]
    >>> reduce_launches(jobs, [[0], [1]], lambda key, size: 1 + size,
    ...                 limit=18, moves=0, seed=0, until=float("inf"))
    [[0, 1]]
    """
    search = _Search(jobs, launches, cost, seed)
    return search.reduce(limit, moves, until)

"""Scope ``any`` where ready times are fixed: urgent first, then local search, then fewer launches.

As for the recurrence with deadlines (see :mod:`commsched.optimizer.deadlines`) no collective waits for
a collective, so channels do not influence each other and

    makespan = max(compute alone, max over collectives k of  end_k + tail_k).

Each channel starts from the best of several orders. *Urgent first*: whenever the channel is free, the
ready collective with the largest tail is launched, with the next most urgent ones of its key up to
some length; all lengths in a geometric series are tried. And whatever the incumbent does.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from functools import cached_property

from commsched.models import Bucket, Plan, Problem
from commsched.models.cost import CostCurve
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.exact import keys_of_channel
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.nested import nested
from commsched.optimizer.nested_search import NestedSearch
from commsched.optimizer.reordering import Cost, Job, improve, reduce_launches
from commsched.optimizer.result import Bound
from commsched.optimizer.search_options import MOST_S
from commsched.optimizer.subsets import COUNTED_JOBS, MAX_JOBS, Subsets

MOVES_A_SECOND = 20_000
"""Moves for each second of the limit: fewer than most machines manage, so that they agree."""
ROUNDS = 6
RATIO = 1.5


def why_no_priorities(problem: Problem) -> str | None:
    """Return why this search does not apply, or None if it does."""
    if problem.limits:
        return f"plans are limited ({problem.limits[0].label})"
    if problem.movable:
        return "compute tasks may move"
    if any(name in problem.waiting for name in problem.names):
        return "collectives wait for collectives"
    return None


class PrioritySearch:
    """The search on every channel of a problem for which :func:`why_no_priorities` returned None."""

    def __init__(self, incumbent: Incumbent, seed: int) -> None:
        self.incumbent, self.seed = incumbent, seed
        problem = self.problem = incumbent.problem
        _, tail = paths_ns(problem)
        self.channels = [
            _Channel(problem, keys, tail, seed) for keys in keys_of_channel(problem).values()
        ]

    def _begin(self) -> None:
        """Start from the best plan known by now."""
        known = self.incumbent
        assert known.plan is not None
        for channel in self.channels:
            channel.begin(known.plan)
        self._offer()

    def by_windows(self, states: int, until: float) -> int:
        """Send each collective before, with or after the innermost one, and raise the bound.

        See :mod:`commsched.optimizer.nested_search`, which is exact if it ends.

        Parameters
        ----------
        states
            How many states to look at.
        until
            When to stop, on the clock of :func:`time.monotonic`.

        Returns
        -------
        int
            How many states were looked at.
        """
        self._begin()
        known, used = self.incumbent, 0
        floor = max(self.problem.compute_ns, known.bound.ns)
        for channel in sorted(self.channels, key=lambda c: -c.latest):
            bound = 0
            for search in channel.sides:
                if channel.latest <= floor:
                    break
                windows, before = search.windows, search.states
                search.value = min(search.value, windows.value(channel.latest))
                search.run(states - used, windows.value(floor), until)
                used += search.states - before
                bound = max(bound, windows.makespan_ns(search.bound))
                if search.launches is not None:
                    launches = channel.of_one_key(search.launches)
                    latest = channel.lateness(launches)
                    if latest < channel.latest:
                        channel.latest, channel.order = latest, launches
            floor = max(floor, bound)
        self._offer("nested windows")
        known.raise_bound(Bound(floor, "nested windows"))
        return used

    def run(self, until: float, most: int | None = None) -> int:
        """Improve the incumbent until a moment, or its bound; return how many moves were tried.

        Parameters
        ----------
        until
            On the clock of :func:`time.monotonic`.
        most
            How many moves to try at most, if that is fewer than the time allows.
        """
        self._begin()
        incumbent = self.incumbent
        budget = int(min(MOST_S, max(0.0, until - time.monotonic())) * MOVES_A_SECOND)
        if most is not None:
            budget = min(budget, most)
        moves = 0
        # Short rounds first, so that a step that is soon solved is not searched for long.
        for number in range(ROUNDS):
            share = budget * 2**number // (2**ROUNDS - 1)
            for channel in sorted(self.channels, key=lambda c: -c.latest):
                target = max(incumbent.bound.ns, self.problem.compute_ns)
                if channel.latest <= target:
                    continue
                moves += channel.search(target, share, number, until)
            self._offer()
            if incumbent.proved or time.monotonic() > until:
                break
        return moves

    def prove(self, until: float) -> bool:
        """Find the optimum by enumeration where channels are small; return whether that was done.

        The bound is then the makespan, and launches are fewest where ``fewest`` says so.
        """
        known, floor = self.incumbent, self.problem.compute_ns
        if max(len(channel.jobs) for channel in self.channels) > MAX_JOBS:
            return False
        for channel in self.channels:
            channel.subsets = Subsets(channel.jobs, channel.curves)
            while channel.latest > max(floor, known.bound.ns):
                better = channel.subsets.keeps(channel.latest - 1, until)
                if better is None:
                    return False
                if not better:
                    break
                channel.latest, channel.order = channel.lateness(better), better
                self._offer()
            floor = max(floor, channel.latest)
        makespan_ns = known.makespan_ns
        assert makespan_ns is not None
        known.raise_bound(Bound(min(makespan_ns, max(floor, known.bound.ns)), "enumeration"))
        return True

    def fewest_launches(self, makespan_ns: int, until: float) -> bool:
        """Take the fewest launches that keep a makespan after :meth:`prove`, if that is quick."""
        for channel in self.channels:
            if len(channel.jobs) > COUNTED_JOBS or channel.subsets is None:
                return False
            least_ns = self.incumbent.makespan_ns or 0
            order = channel.subsets.fewest(least_ns, until)
            if order is not None and makespan_ns > least_ns:
                fewer = channel.subsets.fewest(makespan_ns, until)
                order = fewer if fewer is None or len(fewer) < len(order) else order
            if order is None:
                return False
            channel.order = order
        self.incumbent.replace(self._plan(), self.incumbent.method)
        return True

    def fewest_by_windows(self, makespan_ns: int, states: int, until: float) -> bool:
        """Take the fewest launches that keep a makespan, up to rounding, after :meth:`by_windows`.

        Returns
        -------
        bool
            Whether that was possible with so many states looked at.
        """
        least_ns = self.incumbent.makespan_ns or 0
        orders = []
        for channel in self.channels:
            search = channel.sides[0]
            if not search.windows.exact:
                return False
            value = search.windows.value(makespan_ns)
            if makespan_ns == least_ns and channel.latest == least_ns:
                # The value that was proved, which no rounding has raised.
                value = min(value, search.value)
            used = search.states
            found = search.fewest(value, states, until)
            states -= search.states - used
            if found is None or channel.lateness(found) > makespan_ns:
                return False
            orders.append(found)
        for channel, order in zip(self.channels, orders, strict=True):
            channel.order = order
        self.incumbent.replace(self._plan(), self.incumbent.method)
        return True

    def fewer_launches(self, makespan_ns: int, moves: int, until: float) -> bool:
        """Offer a plan with fewer launches that keeps a makespan; return whether there was one."""
        for channel in self.channels:
            order = channel.order if channel.order else []
            channel.order = reduce_launches(
                channel.jobs,
                order,
                channel.cost,
                limit=makespan_ns,
                moves=moves // len(self.channels),
                seed=self.seed,
                until=until,
            )
        plan = self._plan()
        known = self.incumbent.plan
        if known is not None and plan.launches < known.launches:
            self.incumbent.replace(plan, "local search")
            return True
        return False

    def _offer(self, method: str = "local search") -> None:
        self.incumbent.offer(self._plan(), method)

    def _plan(self) -> Plan:
        names = self.problem.names
        return Plan(
            tuple(
                Bucket(tuple(names[channel.positions[j]] for j in sorted(launch)))
                for channel in self.channels
                for launch in channel.order
            )
        )


class _Channel:
    def __init__(
        self, problem: Problem, keys: Sequence[object], tail: dict[str, int], seed: int
    ) -> None:
        self.curves: list[CostCurve] = []
        self.positions: list[int] = []
        self.jobs: list[Job] = []
        self.seed = seed
        numbers = {key: number for number, key in enumerate(keys)}
        self.curves = [problem.cost(key) for key in keys]  # type: ignore[arg-type]
        for k in problem.ready_order:
            if problem.keys[k] in numbers:
                self.positions.append(k)
                number = numbers[problem.keys[k]]
                name = problem.names[k]
                self.jobs.append(Job(problem.ready_ns[k], problem.bytes[k], tail[name], number))
        self.place = {problem.names[k]: j for j, k in enumerate(self.positions)}
        self._prices: dict[tuple[int, int], int] = {}
        self.order: list[list[int]] = []
        self.starts: list[tuple[int, list[list[int]]]] = []
        self.latest = 0
        self.subsets: Subsets | None = None

    @cached_property
    def sides(self) -> list[NestedSearch]:
        """The searches by sides; their tables take a while, and local search needs none."""
        return [NestedSearch(windows) for windows in nested(self.jobs, self.curves)]

    def cost(self, key: int, size: int) -> int:
        """Return what a launch lasts."""
        found = self._prices.get((key, size))
        if found is None:
            if len(self._prices) > 1_000_000:
                self._prices.clear()
            found = self._prices[key, size] = self.curves[key].ns(size)
        return found

    def of_one_key(self, launches: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return launches with those that mix keys split."""
        found: list[list[int]] = []
        for launch in launches:
            of_key: dict[int, list[int]] = {}
            for job in launch:
                of_key.setdefault(self.jobs[job].key, []).append(job)
            found.extend(of_key.values())
        return found

    def begin(self, known: Plan) -> None:
        """Choose the orders to start from, best first."""
        place = self.place
        mine = [
            [place[name] for name in bucket.names]
            for bucket in known.buckets
            if bucket.names[0] in place
        ]
        starts = [(self.lateness(mine), mine)]
        longest = float(max(self.cost(k, sum(j.size for j in self.jobs)) for k in self._keys()))
        least = max(1, min(self.cost(job.key, job.size) for job in self.jobs))
        while longest > least / RATIO:
            order = urgent_first(self.jobs, self.cost, longest)
            starts.append((self.lateness(order), order))
            longest /= RATIO
        starts.sort(key=lambda found: (found[0], len(found[1])))
        self.starts = starts
        self.latest, self.order = starts[0]

    def _keys(self) -> set[int]:
        return {job.key for job in self.jobs}

    def lateness(self, order: Sequence[Sequence[int]]) -> int:
        """Return how late the latest launch of an order is."""
        now = latest = 0
        for launch in order:
            members = [self.jobs[j] for j in launch]
            now = max(now, max(job.ready for job in members))
            now += self.cost(members[0].key, sum(job.size for job in members))
            latest = max(latest, now + max(job.tail for job in members))
        return latest

    def search(self, target: int, moves: int, number: int, until: float) -> int:
        """Search from the best order, every other time from another start; return moves tried."""
        order = self.order
        if number % 2 and number // 2 + 1 < len(self.starts):
            order = self.starts[number // 2 + 1][1]
        found = improve(
            self.jobs,
            order,
            self.cost,
            target=target,
            moves=moves,
            seed=self.seed + number,
            until=until,
        )
        if (found.latest, len(found.launches)) < (self.latest, len(self.order)):
            self.latest, self.order = found.latest, found.launches
        return found.moves


def urgent_first(jobs: Sequence[Job], cost: Cost, longest: float) -> list[list[int]]:
    """Return launches of at most some length, always of the most urgent collectives that are ready.

    A collective that is longer by itself gets a launch of its own.

    Examples
    --------
    >>> jobs = [Job(0, 9, 1, 0), Job(0, 5, 2, 0), Job(3, 5, 9, 0)]
    >>> urgent_first(jobs, lambda key, size: size + 1, 100)
    [[1, 0], [2]]
    >>> urgent_first(jobs, lambda key, size: size + 1, 10)
    [[1], [2], [0]]
    """
    arriving = sorted(range(len(jobs)), key=lambda j: (jobs[j].ready, j))
    waiting: list[tuple[int, int, int]] = []
    launches: list[list[int]] = []
    now = arrived = 0
    while arrived < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[arriving[arrived]].ready)
        while arrived < len(jobs) and jobs[arriving[arrived]].ready <= now:
            j = arriving[arrived]
            heapq.heappush(waiting, (-jobs[j].tail, -jobs[j].ready, j))
            arrived += 1
        first = heapq.heappop(waiting)
        key, launch, size = jobs[first[2]].key, [first[2]], jobs[first[2]].size
        others = []
        while waiting:
            following = heapq.heappop(waiting)
            job = jobs[following[2]]
            if job.key != key:
                others.append(following)
                continue
            if cost(key, size + job.size) > longest:
                others.append(following)
                break
            launch.append(following[2])
            size += job.size
        for other in others:
            heapq.heappush(waiting, other)
        launches.append(launch)
        now += cost(key, size)
    return launches

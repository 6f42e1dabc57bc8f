"""Buckets of neighbours in ready order, the same in all rows that limits group alike; then local search.

First every fusion key is cut into pieces of about equal bytes, from one to as many as it has
collectives. Then the best grouping is changed, always at a bucket that the makespan hangs on: a cut is
made, taken away or moved. Launches go in the order in which their last members are ready; every plan is
evaluated on the step, with its limits. That takes no solver and works at any size.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

from commsched.models import Alike, Apart, Bucket, Plan, Problem, Together
from commsched.optimizer.critical import critical
from commsched.optimizer.grouping import bucket_bytes, conflicts
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.starting import in_scope

NODES_A_SECOND = 30_000
"""Tasks and collectives that are run for each second of the limit: fewer than most machines manage,
so that they agree."""
FINENESS = 8
"""So many numbers of pieces are tried while they double."""
PATIENCE = 400
"""After so many changes in a row that brought nothing the search ends."""


class Pieces:
    """The groupings of a step whose buckets are neighbours in ready order.

    Parameters
    ----------
    known
        What is offered the plans; limits and scope are its problem's and its own.
    seed
        Of the local search.
    """

    def __init__(self, known: Incumbent, seed: int = 0) -> None:
        self.known, self.seed = known, seed
        problem = self.problem = known.problem
        self.layer = layers(problem)
        self.alone = {
            name for limit in problem.limits if isinstance(limit, Apart) for name in limit.names
        }
        self.rank = {problem.names[k]: rank for rank, k in enumerate(problem.ready_order)}
        self.most = bucket_bytes(problem)[1]
        self.chains = [
            ([problem.names[k] for k in chain], conflicts(problem, chain))
            for chain in problem.chains.values()
        ]
        self.size = dict(zip(problem.names, problem.bytes, strict=True))
        self.rows: list[list[str]] = []
        seen: set[str] = set()
        for names, _ in self.chains:
            row = [self.layer[name] for name in names]
            self.rows.append([layer for layer in dict.fromkeys(row) if layer not in seen])
            seen.update(row)
        self.row_of = {layer: row for row in self.rows for layer in row}
        self.place = {layer: p for row in self.rows for p, layer in enumerate(row)}
        self.tried = 0
        self._best: tuple[int, int] | None = None
        self._critical = problem.names

    def run(self, until: float, most: int) -> int:
        """Search until a moment, or as many nodes have been run; return how many plans were tried.

        Parameters
        ----------
        until
            On the clock of :func:`time.monotonic`.
        most
            How many nodes, tasks and collectives, are run at most.
        """
        plans = max(1, most // len(self.problem.tasks))
        cuts = self._scan(until, plans)
        idle = 0
        rng = random.Random(self.seed)  # noqa: S311
        while self._goes_on(until, plans) and idle < PATIENCE:
            changed = self._changed(cuts, rng)
            idle += 1
            if changed != cuts and self._try(changed):
                cuts, idle = changed, 0
        return self.tried

    def _goes_on(self, until: float, plans: int) -> bool:
        return self.tried < plans and not self.known.met and time.monotonic() < until

    def _scan(self, until: float, plans: int) -> set[str]:
        """Try equal pieces; return where the best of these groupings begins a piece."""
        best: set[str] = set(self.layer.values())
        longest = max(map(len, self.rows))
        self._try(best)
        seen = {frozenset(best)}
        if self.known.plan is not None and self._goes_on(until, plans):
            begins = {self.layer[names[0]] for names in self._buckets(self.known.plan)}
            best = begins if self._try(begins) else best
        for step in range(FINENESS * longest.bit_length() + 1):
            count = round(2 ** (step / FINENESS))
            if not self._goes_on(until, plans) or count > 2 * longest:
                break
            cuts = self._equal(count)
            if frozenset(cuts) not in seen:
                seen.add(frozenset(cuts))
                best = cuts if self._try(cuts) else best
        return best

    def _buckets(self, plan: Plan) -> Iterable[Sequence[str]]:
        for bucket in plan.buckets:
            yield sorted(bucket.names, key=self.rank.__getitem__)

    def _equal(self, count: int) -> set[str]:
        cuts = set()
        for row in self.rows:
            total = max(1, sum(self.size[layer] for layer in row))
            sent, last = 0, -1
            for layer in row:
                sent += self.size[layer]
                piece = max(0, sent * count - 1) // total
                if piece != last:
                    cuts.add(layer)
                last = piece
        return cuts

    def _changed(self, cuts: set[str], rng: random.Random) -> set[str]:
        """Change a grouping near a collective that the makespan hangs on."""
        layer = self.layer[rng.choice(self._critical)]
        row = self.row_of[layer]
        inside = [p for p in range(1, len(row)) if row[p] in cuts]
        here = self.place[layer]
        near = sorted(inside, key=lambda p: abs(p - here))[:3]
        what = rng.random()
        if not near or what < 0.3:
            # Cut the piece somewhere.
            begin = max((p for p in inside if p <= here), default=0)
            end = min((p for p in inside if p > here), default=len(row))
            return cuts | {row[rng.randrange(begin, end)]}
        cut = rng.choice(near)
        fewer = cuts - {row[cut]}
        if what < 0.55:
            return fewer
        reach = max(1, len(row) // 8)
        to = cut + rng.choice((-1, 1)) * rng.choice((1, 1, 2, 3, rng.randint(1, reach)))
        return fewer | {row[min(max(to, 1), len(row) - 1)]}

    def _try(self, cuts: set[str]) -> bool:
        """Offer a grouping; return whether it is as good as the best of them so far."""
        self.tried += 1
        plan = self.plan(cuts)
        trial = Incumbent(self.problem, self.known.scope)
        if not in_scope(self.problem, plan, self.known.scope) or not trial.offer(plan, "pieces"):
            return False
        assert trial.timeline is not None
        found = trial.timeline.makespan_ns, plan.launches
        if self._best is not None and found > self._best:
            return False
        self._best = found
        self._critical = sorted(critical(trial.timeline)) or self.problem.names
        self.known.offer(plan, "pieces")
        return True

    def plan(self, cuts: set[str]) -> Plan:
        """Return the plan whose pieces begin at some layers, and where it must be cut anyway."""
        number: dict[str, int] = {}
        for row in self.rows:
            piece = len(number)
            for place, layer in enumerate(row):
                if place == 0 or layer in cuts:
                    piece = len(number)
                number[layer] = piece
        buckets: list[list[str]] = []
        for names, apart in self.chains:
            size = mask = 0
            for place, name in enumerate(names):
                joins = bool(place) and not apart[place] & mask
                joins = joins and size + self.size[name] <= self.most
                joins = joins and name not in self.alone and buckets[-1][-1] not in self.alone
                if joins and number[self.layer[name]] == number[self.layer[names[place - 1]]]:
                    buckets[-1].append(name)
                else:
                    buckets.append([name])
                    size = mask = 0
                size += self.size[name]
                mask |= 1 << place
        buckets.sort(key=lambda names: self.rank[names[-1]])
        return Plan(tuple(Bucket(tuple(names)) for names in buckets))


def layers(problem: Problem) -> dict[str, str]:
    """Return for each collective one that stands for all that limits group like it.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective
    >>> problem = Problem(
    ...     [Collective(name, 1) for name in "abcd"], {("dp", "allreduce"): AlphaBeta(1, 1)},
    ...     limits=[Alike((("a", "b"), ("c", "d")))])
    >>> layers(problem)
    {'a': 'a', 'b': 'b', 'c': 'a', 'd': 'b'}
    """
    parent = {name: name for name in problem.names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for limit in problem.limits:
        groups: Iterable[Sequence[str]] = ()
        if isinstance(limit, Alike):
            groups = zip(*limit.rows, strict=True)
        elif isinstance(limit, Together):
            groups = [limit.names]
        for names in groups:
            for one, two in pairwise(names):
                parent[root(two)] = root(one)
    return {name: root(name) for name in problem.names}

"""Local search over launches and orders of a whole step: collectives wait for compute and it for them.

What makes a step late is its *critical path*: from its end back through what ended just when the next
one started, be that the launch before it on its channel, the task before it on its stream or
something that it waits for. Only what changes the path can help, so moves begin at it: a launch goes
before the one that its channel ran before it, or further; that one goes behind; a launch is split,
gives members away, or takes in one of its key nearby; a movable task leaves the path for a place behind
it, or fills a pause. Worse plans are taken while a threshold, which falls to nothing again and again,
allows it.

A move is played by :class:`~commsched.optimizer.order_step.OrderStep`, which ends as soon as something
is later than what surely follows it allows (see :mod:`commsched.optimizer.ancestor_bound`). Under limits
on memory or on what is in flight, whatever passes that is played by the evaluator before it is taken,
and every plan that is offered is. The number of moves decides when the search ends, so that the same
seed gives the same plan on every machine that is not slower than its clock allows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from commsched.models import Problem
from commsched.models.errors import DeadlockError
from commsched.models.limits import Alike, Apart, MostBucketBytes
from commsched.models.timeline import play
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.order_step import Item, OrderStep, Rows
from commsched.optimizer.search_options import MOST_S

ITEMS_A_SECOND = 1_000_000
"""Tasks and launches played for each second of the limit: fewer than most machines manage."""
CYCLE = 3000
"""Moves from one warm start to the next."""
FARTHEST = 12
"""How far a launch moves at most; most moves are shorter."""
MAX_TASKS = 6000
RATIO = 2.0
_BLINK = 32
_TIMED = (MostBucketBytes, Apart, Alike)


def why_no_order_search(problem: Problem, scope: str) -> str | None:
    """Return why this search does not apply, or None if it does."""
    if scope != "any":
        return f"scope {scope} fixes orders"
    if len(problem.tasks) > MAX_TASKS:
        return f"more than {MAX_TASKS} tasks"
    return None


class OrderSearch:
    """The search on a problem for which :func:`why_no_order_search` returned None.

    Parameters
    ----------
    incumbent
        What is improved; it must have a plan.
    tail
        What surely passes after the end of each task
        (:func:`commsched.optimizer.ancestor_bound.ancestor_bound`).
    seed
        For the choice of moves.
    """

    def __init__(self, incumbent: Incumbent, tail: dict[str, int], seed: int) -> None:
        self.incumbent = incumbent
        self.step = OrderStep(incumbent.problem, tail)
        self.random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self.checked = any(not isinstance(limit, _TIMED) for limit in incumbent.problem.limits)

    def run(self, until: float, most: int | None = None, patience: int | None = None) -> int:
        """Improve the incumbent until a moment, or its bound; return how many moves were tried.

        Parameters
        ----------
        until
            On the clock of :func:`time.monotonic`.
        most
            How many moves to try at most, if that is fewer than the time allows.
        patience
            After how many moves without a better plan to stop.
        """
        budget = int(
            min(MOST_S, max(0.0, until - time.monotonic()))
            * ITEMS_A_SECOND
            / len(self.step.problem.tasks)
        )
        if most is not None:
            budget = min(budget, most)
        tried = 0
        for start in self._starts(until):
            if self._take(start, float("inf")):
                self._offer()
        if not self._restart():
            return tried
        warmest, improved, best = 0.01 * self.latest, 0, self.incumbent.makespan_ns
        while tried < budget and not self.incumbent.proved:
            if self.incumbent.makespan_ns != best:
                improved, best = tried, self.incumbent.makespan_ns
            if patience is not None and tried - improved > patience:
                break
            if tried % _BLINK == 0 and time.monotonic() > until:
                break
            tried += 1
            phase = tried % CYCLE / CYCLE
            if tried % CYCLE == 0:
                self._offer()
                if self.random.random() < 0.5 and not self._restart():
                    break
            rows = self._move()
            if rows is None:
                continue
            limit = self.latest + warmest * (1 - phase) ** 3 * self.random.random()
            if self._take(rows, limit) and self._better():
                self._offer()
        return tried

    def _starts(self, until: float) -> Iterator[Rows]:
        """Yield orders in which what is most urgent goes first, with small and large launches."""
        plan = self.incumbent.plan
        assert plan is not None
        known = [item for row in self.step.rows(plan) for item in row if item.key is not None]
        yield self.step.dispatch(known)
        single = [self.step.launch([self.step.number[n]]) for n in self.step.problem.names]
        if self.step.family.cell:
            # Units of equal numbers of neighbours.
            count = 1
            while count <= len(self.step.family.columns) and time.monotonic() < until:
                yield self.step.dispatch(self._units(count))
                count = count + 1 if count < 4 else count * 3 // 2
            return
        yield self.step.dispatch(single)
        longest = float(sum(item.length for item in single))
        while longest > min(item.length for item in single) and time.monotonic() < until:
            yield self.step.dispatch(single, longest)
            longest /= RATIO

    def _units(self, count: int) -> list[Item]:
        family = self.step.family
        place = {column: k // count for k, column in enumerate(family.columns)}
        found: dict[object, list[int]] = {}
        launches: list[Item] = []
        for name in self.step.problem.names:
            k = self.step.number[name]
            if k not in family.cell:
                launches.append(self.step.launch([k]))
                continue
            row, column = family.cell[k]
            unit = (row, place[column], self.step.keys[k], tuple(self.step.apart[k]))
            found.setdefault(unit, []).append(k)
        return launches + [self.step.launch(tasks) for tasks in found.values()]

    def _restart(self) -> bool:
        """Go back to the best plan known; return False if it cannot be played here."""
        plan = self.incumbent.plan
        assert plan is not None
        return self._take(self.step.rows(plan), float("inf"))

    def _better(self) -> bool:
        best, plan = self.incumbent.makespan_ns, self.incumbent.plan
        assert best is not None
        assert plan is not None
        return (self.latest, self._launches()) < (best, plan.launches)

    def _launches(self) -> int:
        return sum(item.key is not None for row in self.rows for item in row)

    def _offer(self) -> None:
        if self._better():
            self.incumbent.offer(self.step.plan(self.rows, self.end), "local search")

    def _take(self, rows: Rows, limit: float) -> bool:
        """Make rows the current ones, if they end within a limit and keep the problem's limits."""
        end = self.step.play(rows, limit)
        if end is None:
            return False
        if self.checked:
            try:
                timeline = play(self.step.problem, self.step.plan(rows, end))
            except DeadlockError:
                return False
            if timeline.broken or timeline.makespan_ns > limit:
                return False
            end = [timeline.ends_ns[task.name] for task in self.step.tasks]
        self.rows, self.end, self.latest = rows, end, max(end)
        self.place = {id(item): (m, k) for m, row in enumerate(rows) for k, item in enumerate(row)}
        self.item_of = {k: item for row in rows for item in row for k in item.tasks}
        self.path = self._critical()
        return True

    def _critical(self) -> list[Item]:
        """Return what lies on a critical path and moves, or starts when a pause of its stream ends."""
        end = self.end
        last = max(range(len(end)), key=end.__getitem__)
        item: Item | None = self.item_of[last]
        path: list[Item] = []
        steps = 0
        while item is not None and steps <= len(end):
            start = end[item.tasks[0]] - item.length
            machine, place = self.place[id(item)]
            earlier = self.rows[machine][place - 1] if place else None
            if item.movable or start > (end[earlier.tasks[0]] if earlier else 0):
                path.append(item)
            steps += 1
            if start <= 0:
                break
            reasons = [self.item_of[p] for p in item.before if end[p] == start]
            if earlier is not None and end[earlier.tasks[0]] == start:
                reasons.append(earlier)
            if not reasons and self.checked:
                # It waited for memory, which something that ended just then gave back.
                reasons = [self.item_of[k] for k, ns in enumerate(end) if ns == start][:1]
            item = reasons[int(self.random.random() * len(reasons))] if reasons else None
        return path

    def _move(self) -> Rows | None:
        """Return rows with one change, or None if what was drawn cannot be done."""
        if not self.path:
            return None
        item = self.path[int(self.random.random() * len(self.path))]
        machine, place = self.place[id(item)]
        if item.key is None:
            return self._move_compute(item, machine, place)
        drawn = self.random.random()
        if drawn < 0.4:
            return self._shift(machine, place, place - self._far())
        if drawn < 0.55:
            # Something before it goes behind it instead.
            other = place - self._far()
            return self._shift(machine, other, place) if other >= 0 else None
        if drawn < 0.7:
            return self._split(item)
        if drawn < 0.85 or any(k in self.step.family.cell for k in item.tasks):
            return self._merge(item, machine, place)
        return self._give(item, machine, place)

    def _far(self) -> int:
        distance = 1
        while distance < FARTHEST and self.random.random() < 0.5:
            distance += 1 if distance < 3 else 2
        return distance

    def _shift(self, machine: int, place: int, where: int) -> Rows | None:
        row = self.rows[machine]
        if not 0 <= where < len(row) or where == place:
            return None
        changed = row.copy()
        changed.insert(where, changed.pop(place))
        return self._with({machine: changed})

    def _with(self, changed: dict[int, list[Item]]) -> Rows:
        return [changed.get(machine, row) for machine, row in enumerate(self.rows)]

    def _move_compute(self, item: Item, machine: int, place: int) -> Rows | None:
        """Move a movable task behind, or one of those that follow into the pause before it."""
        row = self.rows[machine]
        if item.movable:
            far = self._far()
            return self._shift(
                machine, place, place + (far if self.random.random() < 0.7 else -far)
            )
        movable = [k for k in range(place + 1, min(len(row), place + 60)) if row[k].movable]
        if not movable:
            return None
        return self._shift(machine, movable[int(self.random.random() * len(movable))], place)

    def _chosen(self, item: Item) -> list[int]:
        """Return some members of a launch: those that are ready late, that are urgent, or any."""
        drawn = self.random.random()
        members = list(item.tasks)
        if drawn < 0.4:
            ends = {k: max((self.end[p] for p in self.step.before[k]), default=0) for k in members}
            members.sort(key=lambda k: -ends[k])
        elif drawn < 0.8:
            members.sort(key=lambda k: -self.step.tail[k])
        else:
            self.random.shuffle(members)
        return members[: 1 + int(self.random.random() * (len(members) - 1))]

    def _split(self, item: Item) -> Rows | None:
        """Give some members of a launch a launch of their own, right before or after the rest."""
        if len(item.tasks) < 2:
            return None
        leaving = self.step.family.closure(self._chosen(item))
        # Rows that are cut alike may share launches.
        parts: dict[int, list[int]] = {}
        for k in leaving:
            parts.setdefault(self.item_of[k].tasks[0], []).append(k)
        changed: dict[int, list[Item]] = {}
        for tasks in parts.values():
            whole = self.item_of[tasks[0]]
            rest = [k for k in whole.tasks if k not in tasks]
            if not rest:
                return None
            pair = [self.step.launch(tasks), self.step.launch(rest)]
            pair.sort(key=lambda launch: -launch.tail)
            row = changed.setdefault(whole.machine, self.rows[whole.machine].copy())
            place = row.index(whole)
            row[place : place + 1] = pair
        return self._with(changed)

    def _neighbour(self, item: Item, machine: int, place: int) -> Item | None:
        row = self.rows[machine]
        step = 1 if self.random.random() < 0.5 else -1
        wanted = self._far()
        kin = self.step.family.row(item.tasks[0])
        for k in range(place + step, place + step * 4 * FARTHEST, step):
            if not 0 <= k < len(row):
                return None
            if row[k].key == item.key and self.step.family.row(row[k].tasks[0]) == kin:
                wanted -= 1
                if not wanted:
                    return row[k]
        return None

    def _merge(self, item: Item, machine: int, place: int) -> Rows | None:
        """Make one launch of two, at the place of either."""
        other = self._neighbour(item, machine, place)
        if other is None:
            return None
        changed: dict[int, list[Item]] = {}
        for group in self._fused_too(item, other):
            fused = group[0]
            for one in group[1:]:
                if not self.step.may_fuse(fused, one):
                    return None
                fused = self.step.launch((*fused.tasks, *one.tasks))
            row = changed.setdefault(fused.machine, self.rows[fused.machine].copy())
            stays = group[int(self.random.random() * len(group))]
            row[row.index(stays)] = fused
            for one in group:
                if one is not stays:
                    row.remove(one)
        return self._with(changed)

    def _fused_too(self, item: Item, other: Item) -> list[list[Item]]:
        """Return which launches become one if two do: in every row that is cut alike the same ones."""
        groups: list[list[Item]] = [[item, other]]
        for tasks in self.step.family.columns_of([*item.tasks, *other.tasks]).values():
            found = list({i.tasks: i for k in tasks for i in (self.item_of[k],)}.values())
            # Rows may share launches.
            for group in [g for g in groups if any(i in g for i in found)]:
                groups.remove(group)
                found += [i for i in group if i not in found]
            groups.append(found)
        return [group for group in groups if len(group) > 1]

    def _give(self, item: Item, machine: int, place: int) -> Rows | None:
        """Give some members of a launch to another launch of its key nearby."""
        other = self._neighbour(item, machine, place)
        if other is None or len(item.tasks) < 2:
            return None
        chosen = self._chosen(item)
        if not self.step.may_fuse(self.step.launch(chosen), other):
            return None
        row = self.rows[machine].copy()
        rest: Sequence[int] = [k for k in item.tasks if k not in chosen]
        row[place] = self.step.launch(rest)
        row[row.index(other)] = self.step.launch((*other.tasks, *chosen))
        return self._with({machine: row})

"""A step as numbers, for searches that play it thousands of times: what runs where, and how long.

A *row* is what one machine runs, in order: the launches of a channel or the tasks of a stream. With a
row for each machine a step has one timeline, the one of :func:`commsched.models.timeline.play` without
limited memory, which can only be later. :meth:`OrderStep.play` finds it in one pass over the rows and
gives up as soon as something is so late that what must follow it ends beyond a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from commsched.models import Bucket, Compute, FusionKey, Plan, Problem
from commsched.models.limits import Alike, Apart, MostBucketBytes


@dataclass(eq=False, slots=True)
class Item:
    """A launch, or a compute task.

    Attributes
    ----------
    tasks
        Numbers of the tasks that end with it.
    before
        Numbers of the tasks that it waits for, beside its machine.
    machine, length, tail
        Where it runs, for how long, and what surely follows.
    key, size
        A launch's fusion key and bytes; None and 0 for compute.
    movable
        Whether a plan may move it: launches and movable tasks.
    """

    tasks: tuple[int, ...]
    before: tuple[int, ...]
    machine: int
    length: int
    tail: int
    key: FusionKey | None
    size: int
    movable: bool


Rows = list[list[Item]]


class OrderStep:
    """A problem as numbers.

    Parameters
    ----------
    problem
        The step.
    tail
        What surely passes after the end of each task.
    """

    def __init__(self, problem: Problem, tail: dict[str, int]) -> None:
        self.problem = problem
        self.tasks = problem.tasks
        self.number = {task.name: k for k, task in enumerate(problem.tasks)}
        self.keys = [None if isinstance(t, Compute) else t.key for t in problem.tasks]
        self.sizes = [0 if isinstance(t, Compute) else t.bytes for t in problem.tasks]
        self.tail = [tail[task.name] for task in problem.tasks]
        self.before = [tuple(self.number[n] for n in task.after) for task in problem.tasks]
        fixed = problem.fixed_graph
        self.fixed_before = [
            tuple(self.number[n] for n in fixed.pred[task.name]) for task in problem.tasks
        ]
        machines: dict[tuple[str, str], int] = {}
        self.machine = [
            machines.setdefault(
                ("stream", task.stream)
                if isinstance(task, Compute)
                else ("channel", problem.channel(task.key)),
                len(machines),
            )
            for task in problem.tasks
        ]
        self.machines = len(machines)
        self.streams = [name if kind == "stream" else "" for kind, name in machines]
        self._prices: dict[tuple[FusionKey, int], int] = {}
        self._launches: dict[tuple[int, ...], Item] = {}
        self.compute = {
            k: self._compute(k, task)
            for k, task in enumerate(problem.tasks)
            if isinstance(task, Compute)
        }
        self.most_bytes = min(
            (n.bytes for n in problem.limits if isinstance(n, MostBucketBytes)), default=None
        )
        self.apart: list[list[int]] = [[] for _ in problem.tasks]
        for label, limit in enumerate(problem.limits):
            if isinstance(limit, Apart):
                for name in limit.names:
                    self.apart[self.number[name]].append(label)
        self.family = _Family(problem, self.number)

    def _compute(self, k: int, task: Compute) -> Item:
        before, machine = self.before[k], self.machine[k]
        return Item((k,), before, machine, task.duration_ns, self.tail[k], None, 0, task.movable)

    def launch(self, tasks: Sequence[int]) -> Item:
        """Return the launch of some collectives of one key."""
        members = tuple(sorted(tasks))
        found = self._launches.get(members)
        if found is not None:
            return found
        key = self.keys[members[0]]
        assert key is not None
        size = sum(self.sizes[k] for k in members)
        length = self._prices.get((key, size))
        if length is None:
            length = self._prices[key, size] = self.problem.cost(key).ns(size)
        before = tuple(dict.fromkeys(p for k in members for p in self.before[k]))
        tail = max(self.tail[k] for k in members)
        found = Item(members, before, self.machine[members[0]], length, tail, key, size, True)
        if len(self._launches) < 200_000:
            self._launches[members] = found
        return found

    def may_fuse(self, first: Item, second: Item) -> bool:
        """Return whether limits and keys allow two launches to be one."""
        if first.key is None or first.key != second.key:
            return False
        if self.most_bytes is not None and first.size + second.size > self.most_bytes:
            return False
        labels = {label for k in first.tasks for label in self.apart[k]}
        return not any(label in labels for k in second.tasks for label in self.apart[k])

    def rows(self, plan: Plan) -> Rows:
        """Return what the machines run under a plan."""
        rows: Rows = [[] for _ in range(self.machines)]
        for bucket in plan.buckets:
            item = self.launch([self.number[name] for name in bucket.names])
            rows[item.machine].append(item)
        for machine, stream in enumerate(self.streams):
            if stream in plan.orders:
                rows[machine] = [self.compute[self.number[n]] for n in plan.orders[stream]]
            elif stream:
                rows[machine] = [i for i in self.compute.values() if i.machine == machine]
        return rows

    def plan(self, rows: Rows, end: Sequence[int]) -> Plan:
        """Return the plan that rows are, its launches in order of their starts."""
        launches = [
            (end[item.tasks[0]] - item.length, machine, place, item)
            for machine, row in enumerate(rows)
            for place, item in enumerate(row)
            if item.key is not None
        ]
        launches.sort(key=lambda found: found[:3])
        names = [task.name for task in self.tasks]
        listed = self.rows(Plan(()))
        orders = {
            stream: tuple(names[item.tasks[0]] for item in rows[machine])
            for machine, stream in enumerate(self.streams)
            if stream and rows[machine] != listed[machine]
        }
        buckets = tuple(Bucket(tuple(names[k] for k in item.tasks)) for *_, item in launches)
        return Plan(buckets, orders)

    def play(self, rows: Rows, limit: float) -> list[int] | None:
        """Return when each task ends, or None if that is beyond a limit or never."""
        end = [-1] * len(self.tasks)
        next_place, free = [0] * len(rows), [0] * len(rows)
        moved = True
        while moved:
            moved = False
            for machine, row in enumerate(rows):
                place = first = next_place[machine]
                now = free[machine]
                for place in range(first, len(row)):
                    item = row[place]
                    start = now
                    for p in item.before:
                        other = end[p]
                        if other > start:
                            start = other
                        elif other < 0:
                            break
                    else:
                        now = start + item.length
                        if now + item.tail > limit:
                            return None
                        for k in item.tasks:
                            end[k] = now
                        continue
                    break
                else:
                    place = len(row)
                if place > first:
                    moved = True
                    next_place[machine], free[machine] = place, now
        if any(place < len(row) for place, row in zip(next_place, rows, strict=True)):
            return None
        if min(end, default=0) < 0:  # dispatched launches that wait for themselves never came
            return None
        return end

    def dispatch(self, launches: Sequence[Item], longest: float = 0.0) -> Rows:
        """Return rows in which every machine always runs what has the longest tail of what is ready.

        Parameters
        ----------
        launches
            How collectives are fused to begin with.
        longest
            A launch takes others of its key that are ready along, up to so many nanoseconds.
        """
        items = [*launches, *self.compute.values()]
        missing: list[int] = []
        behind: dict[int, list[int]] = {}
        for number, item in enumerate(items):
            waits = {p for k in item.tasks for p in self.fixed_before[k]}
            missing.append(len(waits))
            for p in waits:
                behind.setdefault(p, []).append(number)
        rows: Rows = [[] for _ in range(self.machines)]
        ready: list[list[tuple[int, int]]] = [[] for _ in range(self.machines)]
        running = [False] * self.machines
        events: list[tuple[int, int, tuple[int, ...]]] = []

        def arrive(number: int) -> None:
            heapq.heappush(ready[items[number].machine], (-items[number].tail, number))

        for number, count in enumerate(missing):
            if not count:
                arrive(number)
        now = 0
        while True:
            for machine in range(self.machines):
                if running[machine] or not ready[machine]:
                    continue
                item = items[heapq.heappop(ready[machine])[1]]
                if item.key is not None and longest:
                    item = self._taken_along(item, ready[machine], items, longest)
                rows[machine].append(item)
                running[machine] = True
                heapq.heappush(events, (now + item.length, machine, item.tasks))
            if not events:
                return rows
            now = events[0][0]
            while events and events[0][0] == now:
                _, machine, tasks = heapq.heappop(events)
                running[machine] = False
                for k in tasks:
                    for number in behind.get(k, ()):
                        missing[number] -= 1
                        if not missing[number]:
                            arrive(number)

    def _taken_along(
        self, item: Item, ready: list[tuple[int, int]], items: Sequence[Item], longest: float
    ) -> Item:
        others = []
        while ready:
            entry = heapq.heappop(ready)
            other = items[entry[1]]
            if not self.may_fuse(item, other):
                others.append(entry)
                continue
            fused = self.launch((*item.tasks, *other.tasks))
            if fused.length > longest:
                others.append(entry)
                break
            item = fused
        for entry in others:
            heapq.heappush(ready, entry)
        return item


class _Family:
    """Collectives that limits :class:`~commsched.models.Alike` tie together, as a table.

    Attributes
    ----------
    cell
        Row and column of a task, by its number.
    at
        The task in a row and a column.
    rows
        For each row those of its family, itself included.
    """

    def __init__(self, problem: Problem, number: dict[str, int]) -> None:
        limits = [limit for limit in problem.limits if isinstance(limit, Alike)]
        row_of, column_of = _Sets(), _Sets()
        for limit in limits:
            for row in limit.rows:
                for name in row:
                    row_of.join(row[0], name)
            for column in zip(*limit.rows, strict=True):
                for name in column:
                    column_of.join(column[0], name)
        names = list(dict.fromkeys(name for limit in limits for name in limit.names))
        self.cell = {number[n]: (row_of.root(n), column_of.root(n)) for n in names}
        self.at = {cell: k for k, cell in self.cell.items()}
        linked = _Sets()
        for limit in limits:
            for row in limit.rows:
                linked.join(row_of.root(limit.rows[0][0]), row_of.root(row[0]))
        roots = dict.fromkeys(row for row, _ in self.cell.values())
        self.rows = {
            row: [other for other in roots if linked.root(other) == linked.root(row)]
            for row in roots
        }
        self.columns = list(dict.fromkeys(column for _, column in self.cell.values()))

    def row(self, task: int) -> str | None:
        """Return the row of a task, or None if no limit ties it to others."""
        return self.cell[task][0] if task in self.cell else None

    def columns_of(self, tasks: Sequence[int]) -> dict[str, list[int]]:
        """Return for each row of the families of some tasks what lies in these tasks' columns."""
        columns: dict[str, dict[str, None]] = {}
        for k in tasks:
            if k in self.cell:
                row, column = self.cell[k]
                for other in self.rows[row]:
                    columns.setdefault(other, {})[column] = None
        return {
            row: [self.at[row, column] for column in some if (row, column) in self.at]
            for row, some in columns.items()
        }

    def closure(self, tasks: Sequence[int]) -> list[int]:
        """Return some tasks with all that other rows have in their columns."""
        found = [k for k in tasks if k not in self.cell]
        return found + [k for some in self.columns_of(tasks).values() for k in some]


class _Sets:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self.parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        """Return who stands for the set of a name."""
        while (parent := self.parent.setdefault(name, name)) != name:
            self.parent[name] = self.parent[parent]
            name = parent
        return name

    def join(self, first: str, second: str) -> None:
        """Make one set of two."""
        self.parent[self.root(second)] = self.root(first)

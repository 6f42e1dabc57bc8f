"""Walks through a step that find before when no task can start, from paths and from load.

The proof is in :mod:`commsched.optimizer.ancestor_bound`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from commsched.models import Collective, Compute, Problem
from commsched.models.limits import Apart, MostBucketBytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Times = dict[str, int]

MAX_APART = 16
"""Of how many limits that keep collectives apart the members of one key are counted."""


class _Fusible:
    """The collectives of one fusion key, among the columns of a machine."""

    def __init__(self, problem: Problem, names: Sequence[str], key: object) -> None:
        tasks = {task.name: task for task in problem.collectives}
        mine = [name in tasks and tasks[name].key == key for name in names]
        self.mine = np.array(mine)
        self.sizes = np.array(
            [tasks[name].bytes if own else 0 for name, own in zip(names, mine, strict=True)],
            dtype=np.float64,
        )
        curve = problem.cost(key)  # type: ignore[arg-type]
        self.lines = [(p.intercept / p.scale, p.slope / p.scale) for p in curve.minorants]
        self.most_bytes = min(
            (limit.bytes for limit in problem.limits if isinstance(limit, MostBucketBytes)),
            default=0,
        )
        chosen = {name for name, own in zip(names, mine, strict=True) if own}
        apart = [
            np.array([name in chosen & set(limit.names) for name in names])
            for limit in problem.limits
            if isinstance(limit, Apart) and len(chosen & set(limit.names)) > 1
        ]
        self.apart = sorted(apart, key=lambda row: -int(row.sum()))[:MAX_APART]

    def load(self, order: Ints, chain: Floats) -> Floats:
        """Return what launches take at least that carry the first 1, 2, ... columns of an order."""
        mine = self.mine[order]
        sent = np.cumsum(self.sizes[order])
        launches = np.maximum.accumulate(np.where(mine, chain, 0.0))
        for row in self.apart:
            launches = np.maximum(launches, np.cumsum(row[order]))
        if self.most_bytes:
            launches = np.maximum(launches, np.ceil(sent / self.most_bytes))
        found: Floats = self.lines[0][0] * launches + self.lines[0][1] * sent
        for startup, slope in self.lines[1:]:
            found = np.maximum(found, startup * launches + slope * sent)
        return found


class _Machine:
    """What runs one at a time: the launches of a channel, or the tasks of a stream."""

    def __init__(self, problem: Problem, names: Sequence[str], columns: Sequence[int]) -> None:
        self.columns = np.array(columns)
        tasks = {task.name: task for task in problem.tasks}
        fusible: dict[object, int] = {}
        for name in names:
            task = tasks[name]
            if isinstance(task, Collective):
                fusible[task.key] = fusible.get(task.key, 0) + 1
        self.keys = [_Fusible(problem, names, key) for key, count in fusible.items() if count > 1]
        alone: list[float] = []
        for name in names:
            task = tasks[name]
            if isinstance(task, Compute):
                alone.append(task.duration_ns)
            else:
                single = fusible[task.key] == 1
                alone.append(float(problem.cost(task.key).exact_ns(task.bytes)) if single else 0.0)
        self.alone = np.array(alone, dtype=np.float64)

    def least(self, chosen: Ints, head: Floats, distance: Floats, chain: Floats) -> float:
        """Return before when nothing starts that waits for the chosen ones.

        Parameters
        ----------
        chosen
            Places among the columns of this machine.
        head, distance, chain
            Of the chosen: their heads, the paths from them, and how many of their key are on one.
        """
        # Of equal heads those nearer come first, so that a chain is complete with its first member.
        order = np.lexsort((distance, -head))
        places = chosen[order]
        load = np.cumsum(self.alone[places])
        for key in self.keys:
            load = load + key.load(places, chain[order])
        return float((head[order] + load + np.minimum.accumulate(distance[order])).max())


class Loads:
    """The machines of a step and the columns for what they run.

    Attributes
    ----------
    column
        The column of each collective, and of each task of a stream with movable tasks.
    cells
        How large tables of tasks by columns are.
    """

    def __init__(self, problem: Problem) -> None:
        names: list[str] = []
        found: dict[tuple[str, str], list[int]] = {}
        moves = {t.stream for t in problem.tasks if isinstance(t, Compute) and t.movable}
        self.keys: list[object] = []
        for task in problem.tasks:
            if isinstance(task, Compute):
                if task.stream not in moves:
                    continue
                machine = ("stream", task.stream)
                self.keys.append(task.name)
            else:
                machine = ("channel", problem.channel(task.key))
                self.keys.append(task.key)
            found.setdefault(machine, []).append(len(names))
            names.append(task.name)
        self.names = names
        self.column = {name: k for k, name in enumerate(names)}
        self.cells = len(names) * len(problem.tasks)
        self.machines = [
            _Machine(problem, [names[k] for k in columns], columns) for columns in found.values()
        ]


class Walk:
    """The walk through the step from one end.

    Parameters
    ----------
    problem, loads
        The step and its machines.
    backwards
        Whether it begins at the end, so that heads are tails.

    Attributes
    ----------
    order, number
        The tasks' names as they are met, and their places.
    length
        How long each takes, a collective by itself.
    distance
        By place and column: the longest path from what the column stands for to the task, -1 without.
    """

    def __init__(self, problem: Problem, loads: Loads, *, backwards: bool = False) -> None:
        self.problem, self.loads, self.backwards = problem, loads, backwards
        graph = problem.fixed_graph
        order = list(nx.topological_sort(graph))
        self.order = order[::-1] if backwards else order
        self.number = {name: k for k, name in enumerate(self.order)}
        near = graph.succ if backwards else graph.pred
        self.before = [[self.number[p] for p in near[name]] for name in self.order]
        self.length: list[int] = []
        for name in self.order:
            task = graph.nodes[name]["task"]
            alone = isinstance(task, Compute)
            self.length.append(task.duration_ns if alone else problem.cost(task.key).ns(task.bytes))
        self.column = [loads.column.get(name, -1) for name in self.order]
        self._measure()

    def _measure(self) -> None:
        """Find the longest path from each column to each task, and the most of its key on one."""
        shape = len(self.order), len(self.loads.names)
        self.distance = np.full(shape, -1, dtype=np.int64)
        self.chain = np.zeros(shape, dtype=np.int16)
        numbers: dict[object, int] = {}
        keys = np.array([numbers.setdefault(key, len(numbers)) for key in self.loads.keys])
        for task, before in enumerate(self.before):
            distance, chain = self.distance[task], self.chain[task]
            for p in before:
                there = self.distance[p]
                np.maximum(distance, np.where(there >= 0, there + self.length[p], -1), out=distance)
                column = self.column[p]
                if column < 0:
                    np.maximum(chain, self.chain[p], out=chain)
                    continue
                alike = (there >= 0) & (keys == keys[column])
                np.maximum(chain, self.chain[p] + alike, out=chain)
                distance[column] = max(distance[column], 0)
                chain[column] = max(chain[column], 1)

    def run(self, head: Times, until: float) -> None:
        """Raise the heads (tails, if backwards) as far as this walk proves it."""
        heads = np.zeros(len(self.loads.names))
        for task, name in enumerate(self.order):
            before = self.before[task]
            least = head[name]
            for p in before:
                least = max(least, head[self.order[p]] + self.length[p])
            # What only waits for a task that waits for the same is pushed by that one.
            if (len(before) > 1 or (before and self.column[before[0]] >= 0)) and (
                task % 64 or time.monotonic() < until
            ):
                least = max(least, self._by_load(task, heads))
            head[name] = least
            if self.column[task] >= 0:
                heads[self.column[task]] = least

    def _by_load(self, task: int, heads: Floats) -> int:
        best = 0.0
        for machine in self.loads.machines:
            distance = self.distance[task, machine.columns]
            chosen = np.flatnonzero(distance >= 0)
            if len(chosen) < 2:
                continue
            columns = machine.columns[chosen]
            found = machine.least(
                chosen,
                heads[columns],
                distance[chosen].astype(np.float64),
                self.chain[task, columns].astype(np.float64),
            )
            best = max(best, found)
        return safely(best)


def safely(value: float) -> int:
    """Return a whole number of nanoseconds that a bound in floating point surely reaches."""
    return max(0, math.ceil(value - 1e-3 - 1e-12 * value))

"""The least makespan of a step of a few tasks, by enumeration: any buckets, orders and moves.

Whatever a plan does, its tasks and launches can be listed by their starts, each after all that it waits
for. So all schedules are met by adding, again and again, a task or a launch of some collectives of one
key to the end of its machine, at the earliest time. Of two ways to have added the same tasks the one
that is nowhere later (machines, tasks that something still waits for, the end) is as good.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from commsched.models import Compute, FusionKey, Problem

MAX_TASKS = 14
MAX_WORK = 20_000
"""How many states may be made and compared before that is too much."""
_State = tuple[int, ...]


def least_makespan(
    problem: Problem,
    head: Mapping[str, int] | None = None,
    tail: Mapping[str, int] | None = None,
) -> int | None:
    """Return the least makespan of any plan without limits, or None if there is too much to look at.

    Parameters
    ----------
    problem
        The step.
    head, tail
        Before when tasks do not start, and what passes after their ends; nothing if not given.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective, Compute
    >>> step = Problem(
    ...     [Compute("router", 10), Collective("x", 10, after=("router",)),
    ...      Compute("shared", 25, after=("router",), movable=True), Compute("experts", 5, after=("x",)),
    ...      Collective("y", 10, after=("experts",))],
    ...     {("dp", "allreduce"): AlphaBeta(0, 1)})
    >>> least_makespan(step)  # the shared expert hides one of the two
    50
    """
    if len(problem.tasks) > MAX_TASKS:
        return None
    return _Enumeration(problem, head or {}, tail or {}).run()


class _Enumeration:
    def __init__(self, problem: Problem, head: Mapping[str, int], tail: Mapping[str, int]) -> None:
        self.problem = problem
        self.head = [head.get(task.name, 0) for task in problem.tasks]
        self.tail = [tail.get(task.name, 0) for task in problem.tasks]
        number = {task.name: k for k, task in enumerate(problem.tasks)}
        graph = problem.fixed_graph
        self.before = [[number[n] for n in graph.pred[t.name]] for t in problem.tasks]
        self.behind = [sum(1 << number[n] for n in graph.succ[t.name]) for t in problem.tasks]
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

    def run(self) -> int | None:
        """Return the least makespan."""
        count = len(self.problem.tasks)
        levels: list[dict[int, list[_State]]] = [{} for _ in range(count + 1)]
        # Of each machine when it is free, of each task when it ended if that matters, and the end.
        levels[0][0] = [(0,) * (self.machines + count + 1)]
        work = 0
        for level in range(count):
            for done, some in levels[level].items():
                for added in self._choices(done):
                    mask = done | sum(1 << k for k in added)
                    found = levels[level + len(added)].setdefault(mask, [])
                    for state in some:
                        work += 1 + len(found)
                        if work > MAX_WORK:
                            return None
                        _keep(found, self._after(state, added, mask))
        return min(state[-1] for state in levels[count][(1 << count) - 1])

    def _choices(self, done: int) -> Iterator[tuple[int, ...]]:
        """Yield what may start next: a task, or some collectives of one key."""
        fusible: dict[FusionKey, list[int]] = {}
        for k, task in enumerate(self.problem.tasks):
            if done >> k & 1 or not all(done >> p & 1 for p in self.before[k]):
                continue
            if isinstance(task, Compute):
                yield (k,)
            else:
                fusible.setdefault(task.key, []).append(k)
        for tasks in fusible.values():
            for count in range(1, len(tasks) + 1):
                yield from itertools.combinations(tasks, count)

    def _after(self, state: _State, added: tuple[int, ...], done: int) -> _State:
        ends = list(state)
        machine, offset = self.machine[added[0]], self.machines
        waits = (ends[offset + p] for k in added for p in self.before[k])
        start = max(ends[machine], *(self.head[k] for k in added), *waits)
        task = self.problem.tasks[added[0]]
        if isinstance(task, Compute):
            end = start + task.duration_ns
        else:
            size = sum(
                self.problem.bytes[self.problem.index[self.problem.tasks[k].name]] for k in added
            )
            end = start + self.problem.cost(task.key).ns(size)
        ends[machine] = end
        ends[-1] = max(ends[-1], end + max(self.tail[k] for k in added))
        for k in added:
            ends[offset + k] = end
        for k, behind in enumerate(self.behind):
            if behind & ~done == 0:
                ends[offset + k] = 0
        return tuple(ends)


def _keep(found: list[_State], state: _State) -> None:
    """Add a state to those of which none is nowhere later than another."""
    for other in found:
        if all(a <= b for a, b in zip(other, state, strict=True)):
            return
    found[:] = [s for s in found if any(a > b for a, b in zip(state, s, strict=True))]
    found.append(state)

"""The pauses of a stream, and the movable compute that can fill them.

Between two of its fixed tasks a stream pauses at least as long as what leads from one to the other
elsewhere: an all-to-all between the router and the experts, the gathers before a layer. Movable tasks
(shared experts, gradients of parameters) fill these pauses, but a task runs as a whole: one of 9.6 ms
in a pause of 5.4 ms fills all of it and makes the stream 4.2 ms late. How pauses are best filled is a
packing problem, which :mod:`commsched.optimizer.pause_search` solves; this module says what it is given.

**Lags.** The longest path from the end of one task of the stream to the start of another whose inner
tasks are all elsewhere, every collective counting a launch of its own, passes between the two under
every plan. *Pause* k is what lies between fixed tasks k - 1 and k, the last one what comes after all.

**Windows.** A movable task runs in some pause: after the last fixed task that it waits for, before the
first one that waits for it.

**Kinds.** Movable tasks of equal length, window, lags and tail are alike: only how many of them a
pause takes matters. Layers are often alike, but measured times never are. So with more than
:data:`MAX_LENGTHS` lengths these are rounded, which still gives bounds. *Down*: with shorter tasks a
step takes no longer. *Up*: with tasks longer by d in total, a step takes at most d longer, since by
induction no task starts later by more than what the ones before it were lengthened. Tails are
rounded down.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from commsched.models import Compute, Problem

MAX_LENGTHS = 6
"""More lengths of movable tasks than that are rounded."""
MAX_TAILS = 3
MAX_LAGS = 500_000
"""More paths between tasks of a stream are not looked at."""
Rounding = Literal["exact", "up", "down"]


@dataclass(frozen=True)
class Filler:
    """A kind of movable task.

    Attributes
    ----------
    length
        How long each takes, rounded.
    late
        The last pause in which it may run.
    lags
        What passes after its end before fixed tasks start: their numbers, and the least time.
    tail
        What passes after its end at least until the end of the step.
    members
        The tasks' names and the first pauses in which they may run, in order of these.
    """

    length: int
    late: int
    lags: tuple[tuple[int, int], ...]
    tail: int
    members: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Stream:
    """A stream as fixed tasks, pauses and fillers.

    Attributes
    ----------
    fixed
        The names of fixed tasks in order; their numbers are their places here.
    length, head, tail
        Of the fixed tasks.
    lags
        For each fixed task what passes after its end at least before later ones start.
    fillers
        The kinds of movable tasks.
    extra
        By how much movable tasks were lengthened in total.
    """

    fixed: tuple[str, ...]
    length: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    lags: tuple[tuple[tuple[int, int], ...], ...]
    fillers: tuple[Filler, ...]
    extra: int


def streams(
    problem: Problem, head: Mapping[str, int], tail: Mapping[str, int]
) -> dict[str, list[Stream]]:
    """Return the streams with movable and fixed tasks; two forms of each whose times are rounded.

    Parameters
    ----------
    problem
        The step.
    head, tail
        What surely passes before and after each task
        (:func:`commsched.optimizer.ancestor_bound.ancestor_bound`).

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective
    >>> step = Problem(
    ...     [Compute("router", 10), Collective("x", 20, after=("router",)),
    ...      Compute("shared", 25, after=("router",), movable=True),
    ...      Compute("experts", 5, after=("x",))],
    ...     {("dp", "allreduce"): AlphaBeta(0, 1)})
    >>> [stream] = streams(step, dict.fromkeys(step.graph, 0), dict.fromkeys(step.graph, 0))["gpu"]
    >>> stream.fixed, stream.lags
    (('router', 'experts'), (((1, 20),), ()))
    >>> stream.fillers
    (Filler(length=25, late=2, lags=(), tail=0, members=((1, 'shared'),)),)
    """
    moving = {t.stream for t in problem.tasks if isinstance(t, Compute) and t.movable}
    found: dict[str, list[Stream]] = {}
    for name in sorted(moving):
        tasks = [t for t in problem.tasks if isinstance(t, Compute) and t.stream == name]
        if all(task.movable for task in tasks):
            continue
        reader = _Reader(problem, tasks)
        if not reader.complete:
            continue
        lengths = {task.duration_ns for task in tasks if task.movable}
        forms: tuple[Rounding, ...] = ("exact",)
        if len(lengths) > MAX_LENGTHS:
            forms = ("up", "down")
        found[name] = [reader.stream(head, tail, rounding) for rounding in forms]
    return found


def rounded(values: Sequence[int], most: int, rounding: Rounding) -> dict[int, int]:
    """Return each of some values rounded up or down to one of the largest or least of few ranges.

    Ranges are parted where the next value is larger by the largest factors.

    Examples
    --------
    >>> rounded([10, 11, 50, 52], 2, "up")
    {10: 11, 11: 11, 50: 52, 52: 52}
    >>> rounded([10, 11, 50, 52], 2, "down")
    {10: 10, 11: 10, 50: 50, 52: 50}
    """
    some = sorted(set(values))
    if rounding == "exact" or len(some) <= most:
        return {value: value for value in some}
    steps = sorted(range(1, len(some)), key=lambda k: -some[k] / max(1, some[k - 1]))
    cuts = sorted(steps[: most - 1])
    if rounding == "up":
        edges = [some[k - 1] for k in cuts] + [some[-1]]
        return {value: edges[bisect_left(edges, value)] for value in some}
    edges = [some[0]] + [some[k] for k in cuts]
    return {value: edges[bisect_right(edges, value) - 1] for value in some}


class _Reader:
    """What of a step matters to one of its streams."""

    def __init__(self, problem: Problem, tasks: Sequence[Compute]) -> None:
        self.tasks = tasks
        self.fixed = [task.name for task in tasks if not task.movable]
        self.number = {name: k for k, name in enumerate(self.fixed)}
        self.graph = problem.fixed_graph
        order = list(nx.topological_sort(self.graph))
        self.complete = self._measure(problem, order)
        if self.complete:
            self._windows(order)

    def _measure(self, problem: Problem, order: Sequence[str]) -> bool:
        """Find the lags; return False if there are too many."""
        mine = {task.name for task in self.tasks}
        # For what is elsewhere: from which tasks of the stream it is reached, and how long after.
        since: dict[str, dict[str, int]] = {}
        self.lag: dict[str, dict[str, int]] = {name: {} for name in mine}
        entries = 0
        for name in order:
            reached: dict[str, int] = {}
            for p in self.graph.pred[name]:
                if p in mine:
                    reached.setdefault(p, 0)
                    continue
                task = self.graph.nodes[p]["task"]
                alone = isinstance(task, Compute)
                length = task.duration_ns if alone else problem.cost(task.key).ns(task.bytes)
                for start, ns in since[p].items():
                    reached[start] = max(reached.get(start, 0), ns + length)
            entries += len(reached)
            if entries > MAX_LAGS:
                return False
            if name in mine:
                for start, ns in reached.items():
                    if ns:
                        self.lag[start][name] = ns
            else:
                since[name] = reached
        return True

    def _windows(self, order: Sequence[str]) -> None:
        """Find the first and the last pause of each task: those of fixed ones lie around them."""
        count = len(self.fixed)
        first: dict[str, int] = {}
        for name in order:
            least = max((first[p] for p in self.graph.pred[name]), default=0)
            first[name] = self.number.get(name, -1) + 1 if name in self.number else least
        last: dict[str, int] = {}
        for name in reversed(order):
            most = min((last[s] for s in self.graph.succ[name]), default=count)
            last[name] = self.number.get(name, most)
        self.first, self.last = first, last

    def stream(
        self, head: Mapping[str, int], tail: Mapping[str, int], rounding: Rounding
    ) -> Stream:
        """Return the stream in one form."""
        movable = [task for task in self.tasks if task.movable]
        lengths = rounded([task.duration_ns for task in movable], MAX_LENGTHS, rounding)
        tails = rounded([tail[task.name] for task in movable], MAX_TAILS, "down")
        kinds: dict[tuple[int, int, tuple[tuple[int, int], ...], int], list[tuple[int, str]]] = {}
        extra = 0
        for task in movable:
            length = lengths[task.duration_ns]
            extra += max(0, length - task.duration_ns)
            kind = (length, self.last[task.name], self._lags(task.name), tails[tail[task.name]])
            kinds.setdefault(kind, []).append((self.first[task.name], task.name))
        fillers = [Filler(*kind, tuple(sorted(members))) for kind, members in kinds.items()]
        durations = {task.name: task.duration_ns for task in self.tasks}
        return Stream(
            tuple(self.fixed),
            tuple(durations[name] for name in self.fixed),
            tuple(head[name] for name in self.fixed),
            tuple(tail[name] for name in self.fixed),
            tuple(self._lags(name) for name in self.fixed),
            tuple(sorted(fillers, key=lambda f: (f.late, -f.length, -f.tail, f.members))),
            extra,
        )

    def _lags(self, name: str) -> tuple[tuple[int, int], ...]:
        found = (
            (self.number[other], ns) for other, ns in self.lag[name].items() if other in self.number
        )
        return tuple(sorted(found))

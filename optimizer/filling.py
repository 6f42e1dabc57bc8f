"""Plans and a bound from filling the pauses of streams with movable compute.

:mod:`commsched.optimizer.pause_search` fills the pauses of one stream and knows nothing of channels but
paths. Its orders become plans with the launches of the best plan known, and in scope ``any`` also with
launches in the order of what is most urgent once the stream's order is fixed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import networkx as nx

from commsched.models import Compute, Plan, Problem, Task
from commsched.models.errors import CycleError
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.order_step import OrderStep
from commsched.optimizer.pause_search import PauseSearch
from commsched.optimizer.pauses import streams
from commsched.optimizer.result import Bound
from commsched.optimizer.starting import in_scope

PROOF = "pauses filled"
METHOD = "filling of pauses"
WIDTHS = (8, 32, 128, 512)
"""How many states are kept, one search after another."""
MAX_FIXED = 1000
"""Longer streams are bounded within a search only, which has a time limit."""
FILLINGS_A_SECOND = 20_000
"""Fillings for each second of the limit: fewer than most machines manage."""


def pause_bound(
    problem: Problem, head: Mapping[str, int], tail: Mapping[str, int], lower_ns: int = 0
) -> Bound:
    """Return a bound from filling pauses, or ``lower_ns`` if that is no less.

    Parameters
    ----------
    problem
        The step.
    head, tail
        What surely passes before and after each task.
    lower_ns
        A proved bound.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective
    >>> step = Problem(
    ...     [Compute("router", 10), Collective("x", 20, after=("router",)),
    ...      Compute("shared", 25, after=("router",), movable=True),
    ...      Compute("experts", 5, after=("x",)), Collective("y", 20, after=("experts",))],
    ...     {("dp", "allreduce"): AlphaBeta(0, 1)})
    >>> pause_bound(step, *paths_ns(step))
    Bound(ns=60, proof='pauses filled')
    """
    best = lower_ns
    for forms in streams(problem, head, tail).values():
        for stream in forms:
            if len(stream.fixed) > MAX_FIXED:
                continue
            best = max(best, PauseSearch(stream).run(1 << 62, WIDTHS[0], float("inf")).bound)
    return Bound(best, PROOF)


class Filling:
    """The search on a step, from both ends of its incumbent.

    Parameters
    ----------
    incumbent
        What is improved; it must have a plan.
    head, tail
        What surely passes before and after each task.
    """

    def __init__(
        self, incumbent: Incumbent, head: Mapping[str, int], tail: Mapping[str, int]
    ) -> None:
        self.incumbent, self.problem = incumbent, incumbent.problem
        self.searches = {
            name: [PauseSearch(stream) for stream in forms]
            for name, forms in streams(self.problem, head, tail).items()
        }

    def run(self, until: float, most: int) -> int:
        """Search wider and wider until a moment; return how many fillings were looked at.

        Parameters
        ----------
        until
            On the clock of :func:`time.monotonic`.
        most
            After how many fillings nothing more is begun.
        """
        looked = 0
        left = [(name, search) for name, forms in self.searches.items() for search in forms]
        for width in WIDTHS:
            again = []
            for name, search in left:
                known = self.incumbent
                assert known.makespan_ns is not None
                if looked >= most or known.proved or time.monotonic() > until:
                    return looked
                found = search.run(known.makespan_ns, width, until)
                looked += found.fillings
                known.raise_bound(Bound(found.bound, PROOF))
                for order in found.orders:
                    if not known.proved and time.monotonic() < until:
                        self._offer(name, order)
                if not found.complete:
                    again.append((name, search))
            left = again
        return looked

    def _offer(self, stream: str, order: tuple[str, ...]) -> None:
        known = self.incumbent
        for plan in self._plans(stream, order):
            if in_scope(self.problem, plan, known.scope):
                known.offer(plan, METHOD)

    def _plans(self, stream: str, order: tuple[str, ...]) -> Iterator[Plan]:
        plan = self.incumbent.plan
        assert plan is not None
        order = self._repaired(order)
        listed = tuple(t.name for t in self._of(stream))
        orders = {name: other for name, other in plan.orders.items() if name != stream}
        if order != listed:
            orders[stream] = order
        yield replace(plan, orders=orders)
        if self.incumbent.scope != "any":
            return
        try:
            fixed = self._fixed(stream, order)
        except CycleError:
            return
        step = OrderStep(fixed, paths_ns(fixed)[1])
        known = [item for row in step.rows(Plan(plan.buckets)) for item in row if item.key]
        for launches in (known, [step.launch([step.number[n]]) for n in fixed.names]):
            rows = step.dispatch(launches)
            end = step.play(rows, float("inf"))
            if end is not None:
                made = step.plan(rows, end)
                others = {name: o for name, o in made.orders.items() if name != stream}
                mine = {stream: order} if order != listed else {}
                yield Plan(made.buckets, {**others, **mine})

    def _of(self, stream: str) -> list[Compute]:
        return [t for t in self.problem.tasks if isinstance(t, Compute) and t.stream == stream]

    def _repaired(self, order: tuple[str, ...]) -> tuple[str, ...]:
        """Return an order in which movable tasks that wait for each other follow each other."""
        place = {name: k for k, name in enumerate(order)}
        graph = self.problem.fixed_graph
        found = nx.lexicographical_topological_sort(graph, key=lambda name: place.get(name, -1))
        return tuple(name for name in found if name in place)

    def _fixed(self, stream: str, order: tuple[str, ...]) -> Problem:
        """Return the step in which a stream has an order that no plan changes."""
        task_of = {task.name: task for task in self._of(stream)}
        following = iter(order)
        tasks: list[Task] = [
            replace(task_of[next(following)], movable=False) if task.name in task_of else task
            for task in self.problem.tasks
        ]
        problem = self.problem
        return Problem(
            tasks,
            problem.costs,
            channels=problem.groups_of_channel,
            name=problem.name,
            limits=problem.limits,
        )

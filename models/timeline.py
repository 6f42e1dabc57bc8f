"""The evaluator: the only clock of the package.

:func:`evaluate` runs a plan on a problem under the model's fixed semantics and returns the
:class:`Timeline`. Every number that anybody sees comes from here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NoReturn

import networkx as nx

from commsched.models.admission import run_admitted
from commsched.models.coverage import Members, fit
from commsched.models.errors import DeadlockError, ExtrapolationWarning
from commsched.models.exposure import merge_intervals
from commsched.models.given import given
from commsched.models.launch import Launch, Span, launch_of
from commsched.models.limits import peak_of
from commsched.models.plan import Plan
from commsched.models.problem import Problem
from commsched.models.reorder import reordered
from commsched.models.step import Compute
from commsched.models.units import format_bytes


class Timeline:
    """What a plan does to a step.

    Attributes
    ----------
    problem, plan
        What was evaluated.
    launches
        In order of start (ties in the plan's order).
    makespan_ns
        When the last task ends, in nanoseconds.
    compute_ns
        The makespan of the same step, its tasks in the plan's order, with every collective
        taking no time.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        launches: tuple[Launch, ...],
        delayed_ns: Mapping[str, int],
        run: Problem | None = None,
    ) -> None:
        self.problem = problem
        self._run = run or problem
        self.plan = plan
        self._delayed_ns = delayed_ns
        self.launches = launches
        self.compute_ns = self._run.compute_ns
        ends = chain((launch.end_ns for launch in launches), delayed_ns.values())
        # Every task ends no earlier than in the nominal step, so the settled ones need no look.
        self.makespan_ns = max(self.compute_ns, *ends)

    @property
    def exposed_ns(self) -> int:
        """Communication that is paid in step time: makespan less ``compute_ns``."""
        return self.makespan_ns - self.compute_ns

    @cached_property
    def tasks(self) -> tuple[Span, ...]:
        """The compute tasks, those of one stream in the order in which it ran them."""
        end_ns = {**self._run.nominal.end_ns, **self._delayed_ns}
        return tuple(
            Span(task.name, task.stream, end_ns[task.name] - task.duration_ns, end_ns[task.name])
            for task in self._run.tasks
            if isinstance(task, Compute)
        )

    @cached_property
    def ends_ns(self) -> Mapping[str, int]:
        """When each compute task and each collective ended, by name."""
        ends = {span.name: span.end_ns for span in self.tasks}
        for launch in self.launches:
            for name in launch.names:
                ends[name] = max(ends.get(name, 0), launch.end_ns)
        return ends

    def pool_peak(self, pool: str) -> int:
        """Return the most bytes of a pool that are alive at once (see ``Hold``)."""
        start_of: dict[str, int] = {}
        for launch in self.launches:
            for name in launch.names:
                start_of[name] = min(start_of.get(name, launch.start_ns), launch.start_ns)
        held = []
        for task in self.problem.collectives:
            if task.hold is None or task.hold.pool != pool:
                continue
            since = start_of[task.name]
            if task.hold.since == "ready":
                since = max((self.ends_ns[name] for name in task.after), default=0)
            until = max(self.ends_ns[name] for name in (*task.hold.until, task.name))
            held.append((since, until, task.bytes))
        return peak_of(held)

    @cached_property
    def broken(self) -> tuple[str, ...]:
        """The problem's limits that the plan breaks, each with what is wrong."""
        found = ((limit.label, limit.broken(self)) for limit in self.problem.limits)
        return tuple(f"{label}: {text}" for label, text in found if text is not None)

    @cached_property
    def busy(self) -> list[tuple[int, int]]:
        """The disjoint intervals in which at least one stream computes, in order."""
        if self.problem.gradients is not None:
            return [(0, self.compute_ns)] if self.compute_ns else []
        return merge_intervals((span.start_ns, span.end_ns) for span in self.tasks)

    @property
    def communication_ns(self) -> int:
        """The launches' lengths added up."""
        return sum(launch.duration_ns for launch in self.launches)

    @cached_property
    def extrapolated(self) -> Launch | None:
        """The first launch that is more than twice as large as any measured size, or None."""
        limits = {
            key: 2 * limit
            for key in self.problem.chains
            if (limit := self.problem.cost(key).measured_to) is not None
        }
        if not limits:
            return None
        return next((n for n in self.launches if n.bytes > limits.get(n.key, n.bytes)), None)

    @cached_property
    def peak_bytes(self) -> int:
        """The most bytes that are in flight at once.

        A bucket is in flight from the moment when it is ready until its launch ends.
        """
        return peak_of((n.ready_ns, n.end_ns, n.bytes) for n in self.launches)


Node = int | str
"""A bucket's number, or the name of a compute task that waits."""


def evaluate(problem: Problem, plan: Plan) -> Timeline:
    """Run a plan on a problem.

    A launch is ready when everything that its members wait for has ended; it starts at the
    latest of its ready time, its ``not_before_ns`` and the end of the launch before it on its
    channel, and runs for the cost of its bytes, rounded up to a whole nanosecond.

    Parameters
    ----------
    problem
        The step.
    plan
        Covers every collective of the problem exactly once.

    Returns
    -------
    Timeline
        The launches and tasks as they ran.

    Raises
    ------
    PlanError
        If a collective is missing, unknown or in two buckets, or a bucket mixes fusion keys.
    DeadlockError
        If fusion or launch order makes launches wait for each other; it carries the path.

    Warns
    -----
    ExtrapolationWarning
        If a launch is more than twice as large as the largest measured size of its cost.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 1000, ready_ns=10), Gradient("a", 3000, ready_ns=20)], AlphaBeta(0, 1))
    >>> timeline = evaluate(problem, Plan.of([["b"], ["a"]]))
    >>> timeline.makespan_ns, timeline.exposed_ns, timeline.launches[1].start_ns
    (4010, 3990, 1010)
    """
    timeline = play(given(problem, Problem, "problem"), given(plan, Plan, "plan"))
    if (launch := timeline.extrapolated) is not None:
        limit = problem.cost(launch.key).measured_to
        warnings.warn(
            f"a launch of {format_bytes(launch.bytes)} is priced by the line through the last "
            f"points: {launch.key.kind} in group {launch.key.group!r} was measured up to "
            f"{format_bytes(limit or 0)}",
            ExtrapolationWarning,
            stacklevel=2,
        )
    return timeline


def play(problem: Problem, plan: Plan) -> Timeline:
    """Do what :func:`evaluate` does, without its warning: for candidates that nobody sees.

    Raises
    ------
    PlanError, DeadlockError
        As for :func:`evaluate`.
    """
    run = reordered(problem, plan.orders) if plan.orders else problem
    members = fit(run, plan)
    delayed: Mapping[str, int] = {}
    if run.limited_pools:
        launches, delayed = run_admitted(run, plan, members)
    elif run.settled:
        launches = _run_settled(run, plan, members)
    else:
        launches, delayed = _run(run, plan, members)
    launches.sort(key=lambda launch: launch.start_ns)
    return Timeline(problem, plan, tuple(launches), delayed, run)


def _run_settled(problem: Problem, plan: Plan, members: Members) -> list[Launch]:
    """Run a plan where nothing waits for a collective: each channel is one pass."""
    ready_of = problem.ready_ns.__getitem__
    free: dict[str, int] = {}
    launches = []
    for bucket, positions, size in zip(plan.buckets, *members, strict=True):
        key = problem.keys[positions[0]]
        channel = problem.channel(key)
        ready = max(map(ready_of, positions))
        start = max(ready, bucket.not_before_ns, free.get(channel, 0))
        free[channel] = end = start + problem.cost(key).ns(size)
        launches.append(launch_of(bucket, key, channel, size, (ready, start, end)))
    return launches


def _run(problem: Problem, plan: Plan, members: Members) -> tuple[list[Launch], dict[str, int]]:
    """Run a plan in general: longest paths over launches and the tasks that wait for them.

    The nodes are bucket numbers and the names of waiting compute tasks; every other task runs at
    its nominal time.
    """
    graph = problem.graph
    buckets_of: dict[str, list[int]] = {}
    for number, positions in enumerate(members.positions):
        for k in positions:
            buckets_of.setdefault(problem.names[k], []).append(number)
    nominal, waiting = problem.nominal.end_ns, problem.waiting
    pred = graph.pred
    before: dict[Node, list[Node]] = {number: [] for number in range(len(members.positions))}
    earliest: dict[Node, int] = {}

    def depend(node: Node, name: str) -> None:
        found = before[node]
        settled = 0
        for other in pred[name]:
            if other in buckets_of:
                found.extend(buckets_of[other])
            elif other in waiting:
                found.append(other)
            else:
                settled = max(settled, nominal[other])
        earliest[node] = max(earliest.get(node, 0), settled)

    for name in waiting:
        if name not in buckets_of:
            before[name] = []
            depend(name, name)
    for number, positions in enumerate(members.positions):
        for k in positions:
            depend(number, problem.names[k])
    channels = [problem.channel(problem.keys[positions[0]]) for positions in members.positions]
    previous: dict[Node, int] = {}
    last: dict[str, int] = {}
    for number, channel in enumerate(channels):
        if channel in last:
            previous[number] = last[channel]
        last[channel] = number
    end: dict[Node, int] = {}
    launches: dict[int, Launch] = {}
    for node in _in_order(before, previous, plan):
        ready = max((end[other] for other in before[node]), default=0)
        ready = max(ready, earliest.get(node, 0))
        if isinstance(node, str):
            end[node] = ready + graph.nodes[node]["task"].duration_ns
            continue
        bucket, size = plan.buckets[node], members.sizes[node]
        key = problem.keys[members.positions[node][0]]
        free = end[previous[node]] if node in previous else 0
        start = max(ready, bucket.not_before_ns, free)
        end[node] = start + problem.cost(key).ns(size)
        launches[node] = launch_of(bucket, key, channels[node], size, (ready, start, end[node]))
    tasks = {node: ns for node, ns in end.items() if isinstance(node, str)}
    return [launches[number] for number in range(len(plan.buckets))], tasks


def _in_order(
    before: Mapping[Node, Sequence[Node]], previous: Mapping[Node, int], plan: Plan
) -> list[Node]:
    """Return the nodes so that each comes after what it waits for and its channel's launch before."""
    left: dict[Node, int] = {}
    behind: dict[Node, list[Node]] = {node: [] for node in before}
    for node, others in before.items():
        left[node] = len(others) + (node in previous)
        for other in others:
            behind[other].append(node)
        if node in previous:
            behind[previous[node]].append(node)
    order = [node for node, count in left.items() if not count]
    for node in order:  # grows while it is walked through
        for other in behind[node]:
            left[other] -= 1
            if not left[other]:
                order.append(other)
    if len(order) < len(before):
        waits: nx.DiGraph = nx.DiGraph(
            [(other, node) for other, nodes in behind.items() for node in nodes]
        )
        _raise_deadlock(waits, plan)
    return order


def _raise_deadlock(waits: nx.DiGraph, plan: Plan) -> NoReturn:
    cycle = [edge[0] for edge in nx.find_cycle(waits)]
    path = [
        f"[{', '.join(plan.buckets[node].names)}]" if isinstance(node, int) else node
        for node in [*cycle, cycle[0]]
    ]
    raise DeadlockError(f"plan: launches wait for each other for ever: {' -> '.join(path)}", path)

"""Running a plan where compute is slower while communication runs.

A collective's kernels take processors and memory bandwidth from compute. While at least one launch
runs, on whatever channel, every compute task runs at ``1 / compute`` of its speed; if ``launch`` is
stated, a launch likewise runs at ``1 / launch`` of its speed while some compute task runs. All else
is as in :mod:`commsched.models.timeline`, whose whole nanoseconds a launch costs here, too. Places
in between are fractions; only what is reported is rounded up to whole nanoseconds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from commsched.models.admission import refuse_pools
from commsched.models.coverage import Members, fit
from commsched.models.errors import InputError
from commsched.models.exposure import merge_intervals
from commsched.models.launch import Launch, Span, launch_of
from commsched.models.plan import Plan
from commsched.models.problem import Problem
from commsched.models.reorder import reordered
from commsched.models.step import Compute
from commsched.models.timeline import Timeline, evaluate, play
from commsched.models.units import Number, exact, shown

MAX_FACTOR = 1000


@dataclass(frozen=True)
class Slowdown:
    """How much longer compute and launches take while the other runs.

    Parameters
    ----------
    compute
        Compute takes so many times as long while at least one launch runs, from 1 to 1000.
    launch
        Launches take so many times as long while at least one compute task runs, likewise.

    Raises
    ------
    InputError
        If a factor is no number or out of range.

    Examples
    --------
    >>> Slowdown(1.3).factors
    (Fraction(13, 10), Fraction(1, 1))
    """

    compute: Number
    launch: Number = 1

    def __post_init__(self) -> None:
        for value, what in ((self.compute, "compute"), (self.launch, "launch")):
            if not 1 <= exact(value, f"slowdown: {what}") <= MAX_FACTOR:
                raise InputError(f"slowdown: {what}: {shown(value)} must be from 1 to {MAX_FACTOR}")

    @cached_property
    def factors(self) -> tuple[Fraction, Fraction]:
        """The factors of compute and of launches, exactly."""
        return exact(self.compute, "compute"), exact(self.launch, "launch")


class SlowedTimeline(Timeline):
    """What a plan does to a step under a slowdown.

    Every attribute means what it means in :class:`~commsched.models.timeline.Timeline`:
    ``compute_ns`` is the step with every collective taking no time, so nothing slows it, and
    ``exposed_ns`` is what communication adds to that, by being waited for or by slowing compute.

    Attributes
    ----------
    slowdown
        The factors.
    nominal
        The same plan without a slowdown.
    exact_makespan_ns
        The makespan before it is rounded up.
    """

    def __init__(
        self,
        nominal: Timeline,
        run: Problem,
        slowdown: Slowdown,
        launches: tuple[Launch, ...],
        spans: Mapping[str, tuple[Fraction, Fraction]],
        exact_makespan_ns: Fraction,
    ) -> None:
        ends = {name: math.ceil(end) for name, (_, end) in spans.items()}
        super().__init__(nominal.problem, nominal.plan, launches, ends, run)
        self.slowdown, self.nominal, self._spans = slowdown, nominal, spans
        self.exact_makespan_ns = exact_makespan_ns

    @cached_property
    def tasks(self) -> tuple[Span, ...]:
        """The compute tasks, those of one stream in the order in which it ran them."""
        return tuple(
            Span(task.name, task.stream, *map(math.ceil, self._spans[task.name]))
            for task in self._run.tasks
            if isinstance(task, Compute)
        )

    @cached_property
    def busy(self) -> list[tuple[int, int]]:
        """The disjoint intervals in which at least one stream computes, in order."""
        return merge_intervals((span.start_ns, span.end_ns) for span in self.tasks)

    @property
    def slowed_ns(self) -> int:
        """How much longer the compute tasks took than alone, added up."""
        took = sum((end - start for start, end in self._spans.values()), Fraction(0))
        alone = sum(task.duration_ns for task in self._run.tasks if isinstance(task, Compute))
        return math.ceil(took - alone)


def evaluate_slowed(problem: Problem, plan: Plan, slowdown: Slowdown | Number) -> SlowedTimeline:
    """Run a plan on a problem in which compute is slower while communication runs.

    With factors of 1 this is exactly :func:`~commsched.models.timeline.evaluate`. No plan is better
    under a slowdown than without: what waits for what is fixed by the problem and the plan, and
    everything takes at least as long.

    Parameters
    ----------
    problem
        The step.
    plan
        Covers every collective of the problem exactly once.
    slowdown
        The factors, or only that of compute.

    Raises
    ------
    InputError
        If the factor is out of range.
    PlanError, DeadlockError
        As for :func:`~commsched.models.timeline.evaluate`, whose warning is given, too.
    NotApplicableError
        If memory is limited: a launch then waits for room, which other speeds give at other times.

    Examples
    --------
    The launch runs from 10 to 110. Compute does 50 of its 90 ns until then and the rest alone:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("a", 100, ready_ns=10)], AlphaBeta(0, 1), backward_end_ns=100)
    >>> timeline = evaluate_slowed(problem, Plan.of([["a"]]), 2)
    >>> timeline.makespan_ns, timeline.exposed_ns, timeline.nominal.exposed_ns
    (150, 50, 10)
    """
    timeline = play_slowed(problem, plan, slowdown_of(slowdown))
    if timeline.extrapolated is not None:
        evaluate(problem, plan)  # it has the words for that warning
    return timeline


def slowdown_of(value: Slowdown | Number) -> Slowdown:
    """Return a slowdown that is given as such or as the factor of compute alone.

    Raises
    ------
    InputError
        If the factor is out of range.
    """
    return value if isinstance(value, Slowdown) else Slowdown(value)


def play_slowed(problem: Problem, plan: Plan, slowdown: Slowdown) -> SlowedTimeline:
    """Do what :func:`evaluate_slowed` does, without a warning: for candidates that nobody sees.

    Raises
    ------
    PlanError, DeadlockError, NotApplicableError
        As for :func:`evaluate_slowed`.
    """
    refuse_pools(problem, "a slowdown is")
    nominal = play(problem, plan)  # refuses what does not fit, and what waits for ever
    run = reordered(problem, plan.orders) if plan.orders else problem
    simulation = _Simulation(run, plan, fit(run, plan), slowdown)
    return SlowedTimeline(nominal, run, slowdown, *simulation.outcome())


Node = int | str
"""A bucket's number, or the name of a compute task."""


class _Clock:
    """How far the work of all running tasks of one sort has come; they share their speed."""

    def __init__(self) -> None:
        self.done = Fraction(0)
        self.ends: list[tuple[Fraction, int, Node]] = []

    def add(self, number: int, node: Node, work: int) -> None:
        heappush(self.ends, (self.done + work, number, node))

    @property
    def left(self) -> Fraction:
        """The work until the next task ends."""
        return self.ends[0][0] - self.done

    def ended(self) -> Iterable[Node]:
        while self.ends and self.ends[0][0] == self.done:
            yield heappop(self.ends)[2]


class _Outcome(NamedTuple):
    launches: tuple[Launch, ...]
    spans: Mapping[str, tuple[Fraction, Fraction]]
    exact_makespan_ns: Fraction


class _Simulation:
    """Plays a plan from event to event."""

    def __init__(self, run: Problem, plan: Plan, members: Members, slowdown: Slowdown) -> None:
        self.run, self.plan, self.members = run, plan, members
        self.compute_factor, self.launch_factor = slowdown.factors
        self.now = Fraction(0)
        self.compute, self.launches = _Clock(), _Clock()
        self.held: list[tuple[int, int]] = []
        self.ready: dict[int, Fraction] = {}
        self.start: dict[Node, Fraction] = {}
        self.end: dict[Node, Fraction] = {}
        self._wire()

    def _wire(self) -> None:
        """Set up who waits for whom; the task before on a stream or channel is waited for, too."""
        graph = self.run.graph
        # What a launch waits for beside its channel tells when it is ready.
        self.waits: Counter[Node] = Counter()
        self.before: Counter[Node] = Counter()
        self.behind: dict[Node, list[tuple[Node, bool]]] = defaultdict(list)
        carriers: dict[str, list[int]] = defaultdict(list)
        self.key = [self.run.keys[positions[0]] for positions in self.members.positions]
        for number, positions in enumerate(self.members.positions):
            for k in positions:
                carriers[self.run.names[k]].append(number)

        def wait(node: Node, name: str) -> None:
            sources: list[Node] = list(carriers[name]) if name in carriers else [name]
            for source in sources:
                self.behind[source].append((node, True))
                self.before[node] += 1
                self.waits[node] += 1

        self.tasks = [task for task in self.run.tasks if isinstance(task, Compute)]
        for task in self.tasks:
            for name in graph.pred[task.name]:
                wait(task.name, name)
        last: dict[str, int] = {}
        for number, positions in enumerate(self.members.positions):
            for k in positions:
                for name in graph.pred[self.run.names[k]]:
                    wait(number, name)
            channel = self.run.channel(self.key[number])
            if channel in last:
                self.behind[last[channel]].append((number, False))
                self.before[number] += 1
            last[channel] = number
        self.work: dict[Node, int] = {task.name: task.duration_ns for task in self.tasks}
        for number, size in enumerate(self.members.sizes):
            self.work[number] = self.run.cost(self.key[number]).ns(size)

    def outcome(self) -> _Outcome:
        """Play to the end."""
        buckets = range(len(self.plan.buckets))
        for number in buckets:
            if not self.waits[number]:
                self.ready[number] = self.now
        for node in [*buckets, *self.work]:
            if not self.before[node] and node not in self.start:
                self._begin(node)
        while self.compute.ends or self.launches.ends or self.held:
            self._advance()
        launches = [self._launch(number) for number in buckets]
        launches.sort(key=lambda launch: launch.start_ns)
        names = [task.name for task in self.tasks]
        spans = {name: (self.start[name], self.end[name]) for name in names}
        return _Outcome(tuple(launches), spans, max(self.end.values()))

    def _launch(self, number: int) -> Launch:
        bucket, key = self.plan.buckets[number], self.key[number]
        ready, start, end = (
            math.ceil(times[number]) for times in (self.ready, self.start, self.end)
        )
        size = self.members.sizes[number]
        return launch_of(bucket, key, self.run.channel(key), size, (ready, start, end))

    def _advance(self) -> None:
        """Go to the next event and do all that happens there."""
        slow = self.compute_factor if self.launches.ends else Fraction(1)
        slow_launches = self.launch_factor if self.compute.ends else Fraction(1)
        steps = []
        if self.compute.ends:
            steps.append(self.compute.left * slow)
        if self.launches.ends:
            steps.append(self.launches.left * slow_launches)
        if self.held:
            steps.append(self.held[0][0] - self.now)
        step = min(steps)
        self.now += step
        if self.compute.ends:
            self.compute.done += step / slow
        if self.launches.ends:
            self.launches.done += step / slow_launches
        while self.held and self.held[0][0] <= self.now:
            self._run(heappop(self.held)[1])
        for clock in (self.compute, self.launches):
            for node in clock.ended():
                self._finish(node)

    def _begin(self, node: Node) -> None:
        """Start what nothing but its own time to wait holds back."""
        if isinstance(node, int) and self.plan.buckets[node].not_before_ns > self.now:
            self.start[node] = self.now  # replaced when it runs
            heappush(self.held, (self.plan.buckets[node].not_before_ns, node))
            return
        self._run(node)

    def _run(self, node: Node) -> None:
        self.start[node] = self.now
        work = self.work[node]
        if not work:
            self._finish(node)
            return
        clock = self.launches if isinstance(node, int) else self.compute
        clock.add(len(self.start), node, work)

    def _finish(self, node: Node) -> None:
        """End a task and all that takes no time after it."""
        ending = [node]
        while ending:
            done = ending.pop()
            self.end[done] = self.now
            for behind, counts in self.behind[done]:
                self.before[behind] -= 1
                self.waits[behind] -= counts
                if counts and not self.waits[behind] and isinstance(behind, int):
                    self.ready[behind] = self.now
                if self.before[behind]:
                    continue
                held = isinstance(behind, int) and (
                    self.plan.buckets[behind].not_before_ns > self.now
                )
                if held or self.work[behind]:
                    self._begin(behind)
                else:
                    self.start[behind] = self.now
                    ending.append(behind)

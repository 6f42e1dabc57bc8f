"""What both CP-SAT models share: compute tasks, the makespan, and time scaling.

Time is scaled only where something may take no time at all: then one tick is added to every
length and a nanosecond is one tick more than there are lengths, so that ticks can never add up to a
nanosecond. Without it, launches of zero length could wait for each other in a circle inside the
model, which the evaluator rightly refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ortools.sat.python import cp_model

from commsched.models import (
    Compute,
    CostCurve,
    FusionKey,
    Plan,
    Problem,
)
from commsched.models.errors import NotApplicableError, SolverError
from commsched.models.timeline import play
from commsched.optimizer.bounds import paths_ns

MAX_HORIZON = 2**60
MAX_MOVABLE_PAIRS = 20_000


@dataclass
class StepModel:
    """The part of the model that does not depend on how buckets are represented.

    Attributes
    ----------
    problem
        The step.
    horizon_ns
        Makespan of the best known plan, or of any plan at all where none is known; the model
        looks for plans that are no worse.
    lower_ns
        A proved lower bound on the makespan.
    cuts
        Whether CP-SAT may add cuts to its linear relaxations (see :meth:`add_cumulative`).
    """

    problem: Problem
    horizon_ns: int
    lower_ns: int
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    cuts: bool = True
    hints: list[tuple[Any, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        self.tick = int(
            any(problem.cost(problem.keys[k]).ns(size) == 0 for k, size in enumerate(problem.bytes))
            or (problem.movable and any(duration_ns == 0 for duration_ns in _durations(problem)))
        )
        self.scale = 2 * len(problem.tasks) + 1 if self.tick else 1
        self.horizon = (self.horizon_ns + 1) * self.scale - 1
        if self.horizon > MAX_HORIZON:
            raise SolverError(f"the horizon of {self.horizon} ticks is too long for CP-SAT")
        self.head, self.tail = paths_ns(self.problem)
        self.makespan = self.cp.new_int_var(
            min(self.lower_ns * self.scale, self.horizon), self.horizon, "makespan"
        )
        self.ends: dict[str, Any] = {}
        self.ready: dict[str, Any] = {}
        self.first: dict[tuple[str, str], Any] = {}
        self._add_compute()

    def add_cumulative(
        self, intervals: Sequence[Any], demands: Sequence[int], capacity: int
    ) -> None:
        """Ensure that what intervals demand is at no time more than a capacity.

        OR-Tools 9.15 can end the whole process with a failed check in a cut that it derives from such
        a constraint ("Check failed: threshold > 0"), so models with one do without cuts.
        """
        self.cp.add_cumulative(intervals, demands, capacity)
        self.cuts = False

    def length(self, ns: int) -> int:
        """Return a length in the model's ticks."""
        return ns * self.scale + self.tick

    def time_var(self, earliest_ns: int, name: str) -> cp_model.IntVar:
        """Return a variable for a point in time."""
        return self.cp.new_int_var(min(earliest_ns * self.scale, self.horizon), self.horizon, name)

    def _add_compute(self) -> None:
        """Ensure that a task whose time is open starts after the one before it on its stream.

        On a stream with movable tasks these may run anywhere between the others.
        """
        problem = self.problem
        computes = [task for task in problem.tasks if isinstance(task, Compute)]
        mixed = {task.stream for task in computes if task.movable}
        self._open = [task for task in computes if mixed or task.name in problem.waiting]
        for task in self._open:
            end_ns = self.head[task.name] + task.duration_ns
            end = self.ends[task.name] = self.time_var(end_ns, f"end {task.name}")
            self.cp.add(self.makespan >= end + self.tail[task.name] * self.scale)
        intervals: dict[str, list[Any]] = {stream: [] for stream in mixed}
        last: dict[str, str] = {}
        self._before: dict[str, list[str]] = {}
        for task in computes:
            before = [] if task.movable or task.stream not in last else [last[task.stream]]
            if not task.movable:
                last[task.stream] = task.name
            if task.name in self.ends:
                self._before[task.name] = [*before, *task.after]
            if task.stream in mixed:
                length = self.length(task.duration_ns)
                start = self.ends[task.name] - length
                intervals[task.stream].append(
                    self.cp.new_fixed_size_interval_var(start, length, f"run {task.name}")
                )
        for found in intervals.values():
            self.cp.add_no_overlap(found)

    def add_dependencies(self, *, at_once: bool = False) -> None:
        """Ensure that tasks start after what they wait for, once all ends are known.

        Parameters
        ----------
        at_once
            Whether they must start as soon as they can, which the evaluator lets them do. That
            only matters where something is counted from a ready time on.

        Raises
        ------
        NotApplicableError
            If that is asked for and too many tasks may move.
        """
        free = self._stream_free() if at_once else {}
        for task in self._open:
            start = self.ends[task.name] - self.length(task.duration_ns)
            before = self._before[task.name]
            if at_once:
                ends = [*(self.end_of(name) for name in before), *free.get(task.name, [])]
                self.cp.add_max_equality(start, ends or [0])
            else:
                for name in before:
                    self.after(start, name)

    def _stream_free(self) -> dict[str, list[Any]]:
        """Return the ends of what runs earlier on a task's stream, by task, where tasks may move.

        The latest of them is when the stream is free for the task: the end of the task that runs
        just before it, whichever that is. What runs later counts 0.
        """
        found: dict[str, list[Any]] = {}
        for pair in movable_pairs(self._open):
            first = self.cp.new_bool_var(f"{pair[0].name} before {pair[1].name}")
            self.first[pair[0].name, pair[1].name] = first
            for (one, two), literal in ((pair, first), (pair[::-1], ~first)):
                end, start = self.ends[one.name], self.ends[two.name] - self.length(two.duration_ns)
                self.cp.add(end <= start).only_enforce_if(literal)
                counted = self.time_var(0, "")
                self.cp.add(counted == end).only_enforce_if(literal)
                self.cp.add(counted == 0).only_enforce_if(~literal)
                found.setdefault(two.name, []).append(counted)
        return found

    def end_of(self, name: str) -> Any:
        """Return when a task or collective ends: a variable, or a constant that no plan changes."""
        if name in self.ends:
            return self.ends[name]
        return self.problem.nominal.end_ns[name] * self.scale

    def whole_ns(self, time: Any, name: str) -> Any:
        """Return a time in whole nanoseconds where ticks are finer, else the time itself.

        What is held or in flight for no time counts nothing, but it lasts some ticks.
        """
        if not self.tick or isinstance(time, int):
            return time // self.scale if self.tick else time
        found = self.cp.new_int_var(0, self.horizon_ns, f"{name} in ns")
        self.cp.add_division_equality(found, time, self.scale)
        return found

    def orders(self, solver: cp_model.CpSolver) -> dict[str, tuple[str, ...]]:
        """Return the order of the tasks on every stream that has movable ones."""
        found: dict[str, list[tuple[int, int, str]]] = {}
        mixed = {task.stream for task in self._open if task.movable}
        for place, task in enumerate(self._open):
            if task.stream in mixed:
                end = solver.value(self.ends[task.name])
                found.setdefault(task.stream, []).append((end, place, task.name))
        return {
            stream: tuple(name for _, _, name in sorted(rows)) for stream, rows in found.items()
        }

    def one_at_a_time(self, intervals: Mapping[FusionKey, Sequence[Any]]) -> None:
        """Ensure that launches on one channel do not overlap."""
        by_channel: dict[str, list[Any]] = {}
        for key, found in intervals.items():
            by_channel.setdefault(self.problem.channel(key), []).extend(found)
        for shared in by_channel.values():
            self.cp.add_no_overlap(shared)

    def after(self, start: Any, before: str, when: Any = None) -> None:
        """Ensure that ``start`` is not before the end of the task ``before``."""
        constraint = self.cp.add(start >= self.end_of(before))
        if when is not None:
            constraint.only_enforce_if(when)

    def ticks(self, plan: Plan) -> dict[str, tuple[int, int]]:
        """Return when each task starts and ends under a plan, in the model's ticks."""
        problem = self.problem
        if self.tick:
            problem = Problem(
                [
                    replace(task, duration_ns=self.length(task.duration_ns))
                    if isinstance(task, Compute)
                    else task
                    for task in problem.tasks
                ],
                {pair: _Ticked(curve, self) for pair, curve in problem.costs.items()},
                channels=problem.groups_of_channel,
                limits=problem.limits,
            )
            held = [replace(b, not_before_ns=b.not_before_ns * self.scale) for b in plan.buckets]
            plan = Plan(tuple(held), plan.orders)
        timeline = play(problem, plan)
        times = {span.name: (span.start_ns, span.end_ns) for span in timeline.tasks}
        for launch in timeline.launches:
            times.update(dict.fromkeys(launch.names, (launch.start_ns, launch.end_ns)))
        return times

    def hint(self, variable: Any, value: int) -> None:
        """Propose a value for a variable."""
        self.hints.append((variable, value))

    def hint_compute(self, ends: dict[str, int]) -> None:
        """Propose the ends of the waiting tasks."""
        for task in self._open:
            self.hint(self.ends[task.name], ends[task.name])
        for (one, two), first in self.first.items():
            self.hint(first, int(ends[one] < ends[two]))


class _Ticked(CostCurve):
    """A curve in a model's ticks, so that the evaluator can time a hint in them."""

    def __init__(self, curve: CostCurve, step: StepModel) -> None:
        self.curve, self.step = curve, step

    def ns(self, size: int) -> int:
        return self.step.length(self.curve.ns(size))


def movable_pairs(tasks: Sequence[Compute]) -> list[tuple[Compute, Compute]]:
    """Return the pairs of tasks on one stream whose order a plan decides.

    Raises
    ------
    NotApplicableError
        If there are too many of them.
    """
    movable = [task for task in tasks if task.movable]
    number = {task.name: k for k, task in enumerate(tasks)}
    pairs = [
        (one, two)
        for one in movable
        for two in tasks
        if one.stream == two.stream
        and (number[one.name] < number[two.name] or (one is not two and not two.movable))
    ]
    if len(pairs) > MAX_MOVABLE_PAIRS:
        raise NotApplicableError(
            f"cpsat: with limits that count from ready times on, {len(pairs)} pairs of movable "
            f"tasks and others are more than {MAX_MOVABLE_PAIRS}"
        )
    return pairs


def _durations(problem: Problem) -> list[int]:
    return [task.duration_ns for task in problem.tasks if isinstance(task, Compute)]


def longest_ns(problem: Problem) -> int:
    """Return a makespan that no plan exceeds which holds nothing back without need.

    At every moment something runs then; a channel runs at most one launch a collective, none of
    which is longer than that of all bytes of its fusion key.
    """
    total = sum(_durations(problem))
    for key, chain in problem.chains.items():
        total += len(chain) * problem.cost(key).ns(sum(problem.bytes[k] for k in chain))
    return total


def chain_label(key: FusionKey, place: int) -> str:
    """Return a short name for the model's log."""
    return f"{key.group}/{key.kind}/{key.dtype}[{place}]"

"""What both CP-SAT models share: compute tasks, the makespan, time scaling, the solve loop.

Time is scaled only where something may take no time at all: then one tick is added to every
length and a nanosecond is one tick more than there are lengths, so that ticks can never add up to a
nanosecond. Without it, launches of zero length could wait for each other in a circle inside the
model, which the evaluator rightly refuses.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import networkx as nx
from ortools.sat.python import cp_model

from commsched.models import Compute, CostCurve, FusionKey, Plan, Problem
from commsched.models.errors import SolverError
from commsched.models.timeline import play
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.result import Bound

MAX_HORIZON = 2**60


@dataclass(frozen=True)
class Budget:
    """What a solve may use; the defaults are fixed so that machines agree."""

    time_limit_s: float = 60.0
    workers: int = 8
    seed: int = 0


@dataclass
class StepModel:
    """The part of the model that does not depend on how buckets are represented.

    Attributes
    ----------
    problem
        The step.
    horizon_ns
        Makespan of the best known plan; the model looks for plans that are no worse.
    lower_ns
        A proved lower bound on the makespan.
    """

    problem: Problem
    horizon_ns: int
    lower_ns: int
    cp: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    hints: list[tuple[Any, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        problem = self.problem
        self.tick = int(
            any(problem.cost(problem.keys[k]).ns(size) == 0 for k, size in enumerate(problem.bytes))
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
        self._add_compute()

    def length(self, ns: int) -> int:
        """Return a length in the model's ticks."""
        return ns * self.scale + self.tick

    def time_var(self, earliest_ns: int, name: str) -> cp_model.IntVar:
        """Return a variable for a point in time."""
        return self.cp.new_int_var(min(earliest_ns * self.scale, self.horizon), self.horizon, name)

    def _add_compute(self) -> None:
        """Ensure that a waiting task starts after the one before it on its stream."""
        problem = self.problem
        last_on_stream: dict[str, str] = {}
        self._waiting: list[Compute] = []
        for task in problem.tasks:
            if not isinstance(task, Compute):
                continue
            if task.name in problem.waiting:
                end_ns = self.head[task.name] + task.duration_ns
                end = self.time_var(end_ns, f"end {task.name}")
                self.ends[task.name] = end
                self._waiting.append(task)
                start = end - self.length(task.duration_ns)
                self.cp.add(self.makespan >= end)
                before = last_on_stream.get(task.stream)
                if before is not None:
                    self.after(start, before)
            last_on_stream[task.stream] = task.name

    def add_dependencies(self) -> None:
        """Ensure that waiting tasks start after what they wait for, once all ends are known."""
        for task in self._waiting:
            start = self.ends[task.name] - self.length(task.duration_ns)
            for before in task.after:
                self.after(start, before)

    def one_at_a_time(self, intervals: Mapping[FusionKey, Sequence[Any]]) -> None:
        """Ensure that launches on one channel do not overlap."""
        by_channel: dict[str, list[Any]] = {}
        for key, found in intervals.items():
            by_channel.setdefault(self.problem.channel(key), []).extend(found)
        for shared in by_channel.values():
            self.cp.add_no_overlap(shared)

    def after(self, start: Any, before: str, when: Any = None) -> None:
        """Ensure that ``start`` is not before the end of the task ``before``."""
        if before in self.ends:
            constraint = self.cp.add(start >= self.ends[before])
        else:
            constraint = self.cp.add(start >= self.problem.nominal.end_ns[before] * self.scale)
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
            )
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
        for task in self._waiting:
            self.hint(self.ends[task.name], ends[task.name])


class _Ticked(CostCurve):
    """A curve in a model's ticks, so that the evaluator can time a hint in them."""

    def __init__(self, curve: CostCurve, step: StepModel) -> None:
        self.curve, self.step = curve, step

    def ns(self, size: int) -> int:
        return self.step.length(self.curve.ns(size))


class BucketModel(Protocol):
    """A representation of buckets on top of a :class:`StepModel`."""

    step: StepModel

    @property
    def exact(self) -> bool:
        """Whether the model's durations are the evaluator's, else up to a nanosecond less."""

    def launch_count(self) -> Any:
        """Return the number of launches as a linear expression."""

    def starts(self) -> Sequence[Any]:
        """Return the start variables of which the sum is to be small."""

    def extract(self, solver: cp_model.CpSolver) -> Plan:
        """Return the plan of a solution."""


@dataclass(frozen=True)
class Outcome:
    """What CP-SAT found: the best plan or None, and the proved bound on the makespan."""

    plan: Plan | None
    objective_ns: int | None
    bound: Bound
    fewest: bool


def solve(model: BucketModel, budget: Budget) -> Outcome:
    """Minimise the makespan, then the launches, then the sum of starts, within one time limit.

    Raises
    ------
    SolverError
        If CP-SAT refuses the model, or finds it infeasible although the hinted plan exists.
    """
    step = model.step
    started = time.monotonic()
    deadline = started + budget.time_limit_s
    _set_hints(step.cp, step.hints)
    step.cp.minimize(step.makespan)
    solver, status = _run(step.cp, budget, deadline)
    bound_ns = max(step.lower_ns, int(solver.best_objective_bound) // step.scale)
    bound = Bound(min(bound_ns, step.horizon_ns), "CP-SAT")
    if status == cp_model.UNKNOWN:
        return Outcome(None, None, bound, fewest=False)
    plan = model.extract(solver)
    objective_ns = solver.value(step.makespan) // step.scale
    if status != cp_model.OPTIMAL:
        return Outcome(plan, objective_ns, bound, fewest=False)
    bound = Bound(objective_ns, "CP-SAT")
    # The makespan is what people wait for: the rest may take as long again, and two seconds.
    now = time.monotonic()
    deadline = min(deadline, now + (now - started) + 2)
    step.cp.add(step.makespan <= (objective_ns + 1) * step.scale - 1)
    fewest = False
    for objective in (model.launch_count(), sum(model.starts())):
        if time.monotonic() >= deadline:
            break
        _hint_solution(step.cp, solver)
        step.cp.minimize(objective)
        solver, status = _run(step.cp, budget, deadline)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        plan = model.extract(solver)
        if status != cp_model.OPTIMAL:
            break
        if not fewest:
            fewest = True
            step.cp.add(objective <= int(solver.objective_value))
    return Outcome(plan, objective_ns, bound, fewest)


def _run(cp: cp_model.CpModel, budget: Budget, deadline: float) -> tuple[cp_model.CpSolver, Any]:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, deadline - time.monotonic())
    solver.parameters.num_workers = budget.workers
    solver.parameters.random_seed = budget.seed
    status = solver.solve(cp)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"CP-SAT refuses the model: {cp.validate()}")
    if status == cp_model.INFEASIBLE:
        raise SolverError("CP-SAT finds the model infeasible although a plan is known")
    return solver, status


def _set_hints(cp: cp_model.CpModel, hints: Sequence[tuple[Any, int]]) -> None:
    cp.clear_hints()  # type: ignore[no-untyped-call]
    for variable, value in hints:
        cp.add_hint(variable, value)


def _hint_solution(cp: cp_model.CpModel, solver: cp_model.CpSolver) -> None:
    variables = [cp.get_int_var_from_proto_index(k) for k in range(len(cp.proto.variables))]
    _set_hints(cp, [(variable, solver.value(variable)) for variable in variables])


def ordered(launches: Sequence[tuple[int, int, tuple[str, ...]]]) -> Plan:
    """Return the plan of launches given as (start, end, names), ordered by start."""
    return Plan.of(names for _, _, names in sorted(launches))


def conflicts(problem: Problem, chain: Sequence[int]) -> set[tuple[int, int]]:
    """Return pairs of places in a chain of which one collective waits for the other.

    They can never share a bucket.
    """
    place = {problem.names[k]: number for number, k in enumerate(chain)}
    pairs = set()
    for name, number in place.items():
        if name in problem.waiting:
            for ancestor in nx.ancestors(problem.graph, name):
                if ancestor in place:
                    pairs.add((min(number, place[ancestor]), max(number, place[ancestor])))
    return pairs


def chain_label(key: FusionKey, place: int) -> str:
    """Return a short name for the model's log."""
    return f"{key.group}/{key.kind}/{key.dtype}[{place}]"

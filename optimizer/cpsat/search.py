"""Solving a CP-SAT model: least makespan, then fewest launches, then the least sum of starts.

The sum is over collectives in scope ``in-order`` and over launches elsewhere. It is a tie-break that
is cheap here, not the one of the recurrence, which compares starts in launch order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ortools.sat.python import cp_model

from commsched.models import Bucket, Plan
from commsched.models.coverage import is_fifo
from commsched.models.errors import DeadlockError, SolverError
from commsched.models.timeline import play
from commsched.optimizer.cpsat.base import StepModel
from commsched.optimizer.cpsat.run import WORK_A_SECOND, Budget, Statistics, Watched
from commsched.optimizer.result import Bound

MOST_TO_COMPLETE = 1.0
"""CP-SAT's deterministic time for completing a hint."""


class BucketModel(Protocol):
    """A representation of buckets on top of a :class:`StepModel`."""

    step: StepModel

    @property
    def fifo(self) -> bool:
        """Whether a plan only counts if it runs, without being held back, first come first served."""

    @property
    def exact(self) -> bool:
        """Whether the model's durations are the evaluator's, else up to a nanosecond less."""

    def launch_count(self) -> Any:
        """Return the number of launches as a linear expression."""

    def starts(self) -> Sequence[Any]:
        """Return the start variables of which the sum is to be small."""

    def launches(self, solver: cp_model.CpSolver) -> list[tuple[int, int, tuple[str, ...]]]:
        """Return a solution's launches as (start, end, names), in ticks."""


@dataclass(frozen=True)
class Outcome:
    """What CP-SAT found.

    Attributes
    ----------
    plan
        The best plan; None if none was found.
    objective_ns
        Its makespan is at most that; it is just that unless a longer one is allowed for fewer
        launches.
    bound
        Proved lower bound on the makespan.
    fewest
        Whether no plan with this makespan has fewer launches.
    infeasible
        Whether it is proved that no plan keeps the limits.
    interrupted
        Whether Ctrl-C ended it.
    statistics
        Runs, conflicts, branches, seconds and deterministic time, added up.
    """

    plan: Plan | None
    objective_ns: int | None
    bound: Bound
    fewest: bool
    infeasible: bool = False
    interrupted: bool = False
    statistics: Mapping[str, float | int] = field(default_factory=dict)


def solve(model: BucketModel, budget: Budget) -> Outcome:
    """Minimise the makespan, then the launches, then the sum of starts, within one time limit.

    Raises
    ------
    SolverError
        If CP-SAT refuses the model, or finds it infeasible although a plan was hinted.
    """
    return _Solve(model, budget).run()


class _Solve:
    def __init__(self, model: BucketModel, budget: Budget) -> None:
        self.model, self.step, self.budget = model, model.step, budget
        self.started = time.monotonic()
        self.deadline = self.started + budget.time_limit_s
        self.statistics = Statistics()

    def run(self) -> Outcome:
        step, budget = self.step, self.budget
        hint_all(step, self.deadline)
        step.cp.minimize(step.makespan)
        first = Watched(step, budget, self.deadline, self.statistics, self._told())
        if first.status == cp_model.INFEASIBLE:
            if step.hints:
                raise SolverError("CP-SAT finds the model infeasible although a plan is known")
            return self._outcome(None, None, Bound(step.lower_ns, ""), infeasible=True)
        bound_ns = max(step.lower_ns, int(first.solver.best_objective_bound) // step.scale)
        bound = Bound(min(bound_ns, step.horizon_ns), "CP-SAT")
        interrupted = first.interrupted is not None
        if first.status == cp_model.UNKNOWN:
            return self._outcome(None, None, bound, interrupted=interrupted)
        plan = extract(self.model, first.solver)
        objective_ns = first.solver.value(step.makespan) // step.scale
        if first.status != cp_model.OPTIMAL or interrupted:
            return self._outcome(plan, objective_ns, bound, interrupted=interrupted)
        return self._refine(plan, objective_ns, first.solver)

    def _refine(self, plan: Plan | None, objective_ns: int, solver: cp_model.CpSolver) -> Outcome:
        """Look for the fewest launches, then the least sum of starts, within what is allowed."""
        step, bound = self.step, Bound(objective_ns, "CP-SAT")
        # The makespan is what people wait for: the rest may take as long again, and two seconds.
        now = time.monotonic()
        deadline, work = self.deadline, None
        if self.budget.work is None:
            deadline = min(deadline, now + (now - self.started) + 2)
        else:
            work = self.statistics.work + 2 * WORK_A_SECOND
        allowed_ns = objective_ns + int(objective_ns * self.budget.within)
        step.cp.add(step.makespan <= (allowed_ns + 1) * step.scale - 1)
        counted = fewest = interrupted = False
        objectives = [self.model.launch_count(), sum(self.model.starts())]
        if self.budget.within:
            objectives.insert(1, step.makespan)
        for objective in objectives:
            if time.monotonic() >= deadline:
                self.statistics.add(clock_cuts=1)
                break
            _hint_solution(step.cp, solver)
            step.cp.minimize(objective)
            found = Watched(step, self.budget, deadline, self.statistics, work=work)
            if found.status == cp_model.INFEASIBLE:
                raise SolverError("CP-SAT finds the model infeasible although a plan is known")
            if found.status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                break
            solver = found.solver
            taken = extract(self.model, solver)
            plan = taken or plan
            interrupted = found.interrupted is not None
            counted = counted or found.status == cp_model.OPTIMAL
            fewest = fewest or (counted and taken is not None)
            if found.status != cp_model.OPTIMAL or interrupted:
                break
            step.cp.add(objective <= int(solver.objective_value))
        return self._outcome(plan, allowed_ns, bound, fewest=fewest, interrupted=interrupted)

    def _outcome(
        self,
        plan: Plan | None,
        objective_ns: int | None,
        bound: Bound,
        *,
        fewest: bool = False,
        infeasible: bool = False,
        interrupted: bool = False,
    ) -> Outcome:
        values = dict(self.statistics.values)
        return Outcome(plan, objective_ns, bound, fewest, infeasible, interrupted, values)

    def _told(self) -> Any:
        report, scale = self.budget.progress, self.step.scale
        if report is None:
            return None
        return lambda objective, bound: report(
            None if objective is None else objective // scale, bound // scale
        )


def extract(model: BucketModel, solver: cp_model.CpSolver) -> Plan | None:
    """Return the plan of a solution; None if the model allows more than its scope and this is more.

    Where the evaluator, which starts everything as soon as it can, would then break a limit that
    the solution keeps, the plan holds its launches back as the solution does.
    """
    step = model.step
    launches = sorted(model.launches(solver))
    orders = step.orders(solver)
    plan = Plan(tuple(Bucket(names) for _, _, names in launches), orders)
    if not step.problem.limits:
        return plan
    try:
        timeline = play(step.problem, plan)
    except DeadlockError:
        timeline = None
    if timeline is not None and not timeline.broken:
        allowed_ns = solver.value(step.makespan) // step.scale
        allowed_ns += 0 if model.exact else plan.launches
        if not model.fifo or (is_fifo(timeline) and timeline.makespan_ns <= allowed_ns):
            return plan
    if model.fifo:
        return None
    held = [Bucket(names, start // step.scale) for start, _, names in launches]
    return Plan(tuple(held), orders)


def hint_all(step: StepModel, deadline: float) -> None:
    """Propose the known plan, with the values that follow for all other variables.

    CP-SAT takes a complete hint as its first solution at once; what it has to complete by itself
    may take it long.
    """
    cp = step.cp
    set_hints(cp, step.hints)
    if not step.hints or len({variable.index for variable, _ in step.hints}) == len(
        cp.proto.variables
    ):
        return
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_deterministic_time = MOST_TO_COMPLETE
    solver.parameters.max_time_in_seconds = max(0.01, (deadline - time.monotonic()) / 4)
    if solver.solve(cp) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        _hint_solution(cp, solver)


def set_hints(cp: cp_model.CpModel, hints: Sequence[tuple[Any, int]]) -> None:
    """Propose values for variables, and none for others."""
    cp.clear_hints()  # type: ignore[no-untyped-call]
    for variable, value in hints:
        cp.add_hint(variable, value)


def _hint_solution(cp: cp_model.CpModel, solver: cp_model.CpSolver) -> None:
    variables = [cp.get_int_var_from_proto_index(k) for k in range(len(cp.proto.variables))]
    set_hints(cp, [(variable, solver.value(variable)) for variable in variables])

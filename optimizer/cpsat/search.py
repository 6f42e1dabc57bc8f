"""Solving a CP-SAT model: least makespan, then fewest launches, then earliest starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ortools.sat.python import cp_model

from commsched.models import Bucket, Plan
from commsched.models.errors import DeadlockError, SolverError
from commsched.models.timeline import play
from commsched.optimizer.cpsat.base import StepModel
from commsched.optimizer.result import Bound


@dataclass(frozen=True)
class Budget:
    """What a solve may use; the defaults are fixed so that machines agree."""

    time_limit_s: float = 60.0
    workers: int = 8
    seed: int = 0


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
        Its makespan.
    bound
        Proved lower bound on the makespan.
    fewest
        Whether no plan with this makespan has fewer launches.
    infeasible
        Whether it is proved that no plan keeps the limits.
    """

    plan: Plan | None
    objective_ns: int | None
    bound: Bound
    fewest: bool
    infeasible: bool = False


def solve(model: BucketModel, budget: Budget) -> Outcome:
    """Minimise the makespan, then the launches, then the sum of starts, within one time limit.

    Raises
    ------
    SolverError
        If CP-SAT refuses the model, or finds it infeasible although a plan was hinted.
    """
    step = model.step
    started = time.monotonic()
    deadline = started + budget.time_limit_s
    _set_hints(step.cp, step.hints)
    step.cp.minimize(step.makespan)
    solver, status = _run(step.cp, budget, deadline, known=bool(step.hints))
    if status == cp_model.INFEASIBLE:
        return Outcome(None, None, Bound(step.lower_ns, ""), fewest=False, infeasible=True)
    bound_ns = max(step.lower_ns, int(solver.best_objective_bound) // step.scale)
    bound = Bound(min(bound_ns, step.horizon_ns), "CP-SAT")
    if status == cp_model.UNKNOWN:
        return Outcome(None, None, bound, fewest=False)
    plan = extract(model, solver)
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
        plan = extract(model, solver)
        if status != cp_model.OPTIMAL:
            break
        if not fewest:
            fewest = True
            step.cp.add(objective <= int(solver.objective_value))
    return Outcome(plan, objective_ns, bound, fewest)


def extract(model: BucketModel, solver: cp_model.CpSolver) -> Plan:
    """Return the plan of a solution.

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
        if not play(step.problem, plan).broken:
            return plan
    except DeadlockError:
        pass
    held = [Bucket(names, start // step.scale) for start, _, names in launches]
    return Plan(tuple(held), orders)


def _run(
    cp: cp_model.CpModel, budget: Budget, deadline: float, *, known: bool = True
) -> tuple[cp_model.CpSolver, Any]:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, deadline - time.monotonic())
    solver.parameters.num_workers = budget.workers
    solver.parameters.random_seed = budget.seed
    status = solver.solve(cp)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"CP-SAT refuses the model: {cp.validate()}")
    if status == cp_model.INFEASIBLE and known:
        raise SolverError("CP-SAT finds the model infeasible although a plan is known")
    return solver, status


def _set_hints(cp: cp_model.CpModel, hints: Sequence[tuple[Any, int]]) -> None:
    cp.clear_hints()  # type: ignore[no-untyped-call]
    for variable, value in hints:
        cp.add_hint(variable, value)


def _hint_solution(cp: cp_model.CpModel, solver: cp_model.CpSolver) -> None:
    variables = [cp.get_int_var_from_proto_index(k) for k in range(len(cp.proto.variables))]
    _set_hints(cp, [(variable, solver.value(variable)) for variable in variables])

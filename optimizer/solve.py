"""The front door of the optimizer: classify the problem, take the method that fits, prove."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from commsched.models import Compute, Plan, Problem, Task, evaluate
from commsched.models.errors import DeadlockError, InputError, NotApplicableError, SolverError
from commsched.models.timeline import play
from commsched.models.units import exact
from commsched.optimizer.bounds import closed_form_bound
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.result import (
    Bound,
    Result,
    Scope,
    Status,
    check_scope,
    proved_status,
)
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.no_overlap import no_overlap
from commsched.optimizer.rules.one import one_bucket

Method = Literal["auto", "recurrence", "cpsat"]
METHODS: tuple[Method, ...] = ("auto", "recurrence", "cpsat")
TIME_LIMIT_S = 60.0
WORKERS = 8


def optimize(
    problem: Problem,
    *,
    scope: str = "in-order",
    method: str = "auto",
    time_limit_s: float = TIME_LIMIT_S,
    workers: int = WORKERS,
    seed: int = 0,
) -> Result:
    """Find the plan with the least makespan, then the fewest launches, then the earliest starts.

    Parameters
    ----------
    problem
        The step.
    scope
        ``"in-order"`` (buckets contiguous in ready order, what DDP can run) or ``"any"``.
    method
        ``"auto"`` takes an exact recurrence where the problem's class allows it and CP-SAT elsewhere;
        ``"recurrence"`` and ``"cpsat"`` insist.
    time_limit_s
        Seconds for CP-SAT; the recurrences need no limit.
    workers, seed
        CP-SAT's search threads and random seed; fixed by default so that machines agree.

    Returns
    -------
    Result
        The plan with its status, lower bound, gap, method and reason.

    Raises
    ------
    InputError
        If an option is not valid.
    NotApplicableError
        If the method that was insisted on cannot solve this problem.
    SolverError
        If a solver contradicts the evaluator: a bug of ours.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 5000, ready_ns=10), Gradient("a", 5000, ready_ns=20)], AlphaBeta(3, 1))
    >>> result = optimize(problem)
    >>> result.makespan_ns, result.plan.launches, str(result.status), result.method
    (13020, 1, 'optimal', 'recurrence')
    """
    started = time.perf_counter()
    checked_scope = check_scope(scope)
    if method not in METHODS:
        raise InputError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    _check_budget(time_limit_s, workers, seed)
    if method != "cpsat":
        why_not = why_not_exact(problem, checked_scope)
        if why_not is None:
            return _by_recurrence(problem, checked_scope, started)
        if method == "recurrence":
            raise NotApplicableError(f"method recurrence cannot prove this problem: {why_not}")
    else:
        why_not = "asked for"
    return _by_search(
        problem, checked_scope, method, why_not, started, float(time_limit_s), workers, seed
    )


def _check_budget(time_limit_s: float, workers: int, seed: int) -> None:
    if exact(time_limit_s, "time_limit_s") <= 0:
        raise InputError(f"time_limit_s: {time_limit_s} must be above 0")
    if type(workers) is not int or not 1 <= workers <= 1000:
        raise InputError(f"workers: {workers!r} must be a whole number from 1 to 1000")
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed!r} must be a whole number from 0 to {2**31 - 1}")


def _by_recurrence(problem: Problem, scope: Scope, started: float) -> Result:
    found = exact_plan(problem, scope)
    timeline = evaluate(problem, found.plan)
    status = proved_status(timeline, found.bound)
    if status is not Status.OPTIMAL and scope == "any":
        found = exact_plan(problem, scope, whole_ns=False)
        timeline = evaluate(problem, found.plan)
        status = proved_status(timeline, found.bound)
    if status is not Status.OPTIMAL:
        raise SolverError(
            f"the {found.method} promised {found.bound.ns} ns, "
            f"the evaluator gives {timeline.makespan_ns} ns"
        )
    affine = [problem.cost(key).affine for key in problem.chains]
    reason = f"nothing waits for a collective, so the {found.method} is exact"
    if None not in affine:
        reason += "; costs are affine, so no plan of scope any is better"
    rounds = any(piece is None or piece.scale > 1 for piece in affine)
    if not found.fewest:
        reason += "; the number of launches is not proved least"
    elif rounds and (scope == "any" or found.linear):
        reason += "; the number of launches is least up to rounding"
    wall_s = time.perf_counter() - started
    return Result(
        problem, scope, status, found.plan, found.bound, "recurrence", reason, wall_s, timeline
    )


def _by_search(
    problem: Problem,
    scope: Scope,
    method: str,
    why: str,
    started: float,
    time_limit_s: float,
    workers: int,
    seed: int,
) -> Result:
    bound = closed_form_bound(problem)
    found = best_known(problem)
    name, known = found if found is not None else ("", None)
    timeline = None if known is None else play(problem, known)

    def result(status: Status, bound: Bound, method: str, reason: str) -> Result:
        wall_s = time.perf_counter() - started
        return Result(problem, scope, status, known, bound, method, reason, wall_s)

    def status_now(bound: Bound) -> Status:
        return Status.UNKNOWN if timeline is None else proved_status(timeline, bound)

    if method == "auto" and status_now(bound) is Status.OPTIMAL:
        reason = (
            f"{why}, but a simple rule already meets the bound; "
            "the number of launches is not proved least"
        )
        return result(Status.OPTIMAL, bound, f"rule {name}", reason)
    try:
        # Imported here: loading OR-Tools takes half a second that most calls do not need.
        from commsched.optimizer.cpsat import AnyOrderModel, Budget, InOrderModel, solve

        model: AnyOrderModel | InOrderModel = (
            InOrderModel(problem, known, bound.ns)
            if scope == "in-order"
            else AnyOrderModel(problem, known, bound.ns)
        )
    except NotApplicableError as error:
        if method == "cpsat":
            raise
        way = f"rule {name}" if known is not None else "cpsat"
        return result(status_now(bound), bound, way, f"{why}; {error}")
    outcome = solve(model, Budget(time_limit_s, workers, seed))
    if outcome.infeasible:
        return result(Status.INFEASIBLE, bound, "cpsat", f"{why}; no plan keeps the limits")
    if outcome.bound.ns > bound.ns:
        bound = outcome.bound
    reason = why
    if outcome.plan is not None and outcome.objective_ns is not None:
        planned = play(problem, outcome.plan)
        allowed = outcome.objective_ns + (0 if model.exact else outcome.plan.launches)
        if planned.makespan_ns > allowed:
            raise SolverError(
                f"CP-SAT promised {outcome.objective_ns} ns, "
                f"the evaluator gives {planned.makespan_ns} ns"
            )
        if planned.broken:
            raise SolverError(f"CP-SAT's plan breaks a limit: {planned.broken[0]}")
        if timeline is None or planned.makespan_ns <= timeline.makespan_ns:
            known, timeline = outcome.plan, planned
    status = status_now(bound)
    if status is not Status.OPTIMAL:
        reason += f"; stopped at the limit of {time_limit_s:g} s"
    elif not outcome.fewest:
        reason += "; the number of launches is not proved least"
    return result(status, bound, "cpsat", reason)


def best_known(problem: Problem) -> tuple[str, Plan] | None:
    """Return the simple rule's name and plan with the least makespan, then fewest launches.

    Also tried is the plan that the recurrence would give if ready times were fixed. One launch for
    each collective in ready order always works, so there is always a plan, unless limits forbid
    all of these: then None.
    """
    candidates: list[tuple[int, int, str, Plan]] = []
    for name, make in KNOWN:
        try:
            plan = make(problem)
            timeline = play(problem, plan)
        except (NotApplicableError, DeadlockError):
            continue
        if not timeline.broken:
            candidates.append((timeline.makespan_ns, plan.launches, name, plan))
    if not candidates:
        return None
    _, _, name, plan = min(candidates, key=lambda candidate: candidate[:2])
    return name, plan


def _as_if_settled(problem: Problem) -> Plan:
    """Return the best in-order plan for the nominal ready times, which may move."""
    if problem.settled:
        if why_not_exact(problem, "in-order") is not None:
            raise NotApplicableError("no recurrence for this class")
        return exact_plan(problem).plan
    taken = {task.name for task in problem.tasks}
    tasks: list[Task] = []
    for position in problem.ready_order:
        gate = f"ready {position}"
        if gate in taken:
            raise NotApplicableError("names clash")
        tasks.append(Compute(gate, problem.ready_ns[position], stream=gate))
        tasks.append(replace(problem.collectives[position], after=(gate,), hold=None))
    relaxed = Problem(tasks, problem.costs, channels=problem.groups_of_channel)
    if why_not_exact(relaxed, "in-order") is not None:
        raise NotApplicableError("no recurrence for this class")
    return exact_plan(relaxed).plan


KNOWN: tuple[tuple[str, Callable[[Problem], Plan]], ...] = (
    ("ddp", ddp),
    ("one-each", one_each),
    ("one-bucket", one_bucket),
    ("no-overlap", no_overlap),
    ("fixed ready times", _as_if_settled),
)
"""What a search starts from: quick rules, each of scope in-order and without chunks."""

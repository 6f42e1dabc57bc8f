"""The front door of the optimizer: classify the problem, take the method that fits, prove."""

from __future__ import annotations

import time
from typing import Literal

from commsched.models import Problem, evaluate
from commsched.models.errors import InputError, NotApplicableError, SolverError
from commsched.models.given import given
from commsched.models.timeline import play
from commsched.models.units import exact
from commsched.optimizer.deadlines import fewest_launches, why_no_deadlines
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.incumbent import Progress
from commsched.optimizer.result import Result, Scope, Status, check_scope, proved_status
from commsched.optimizer.search import Search
from commsched.optimizer.search_options import Options

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
    within: float = 0.0,
    progress: Progress | None = None,
    log: bool = False,
    repeatable: bool = False,
) -> Result:
    """Find the plan with the least makespan, then the fewest launches, then early starts.

    What is proved of the makespan is the bound and the status; whether the launches are proved
    fewest, the reason says. Early starts break ties and are no claim. In launch order the first
    start that differs decides: that is what the recurrence for steps in which nothing waits for a
    collective chooses. CP-SAT takes the least sum of starts, over collectives in scope ``in-order``
    and over launches elsewhere, as far as time allows, which may be another plan. Rules, local
    search and the search of nested windows do not look at starts.

    Ctrl-C ends the search, not the call: the result is the best plan so far with its bound, and its
    reason says so.

    Parameters
    ----------
    problem
        The step.
    scope
        ``"in-order"`` (buckets contiguous in ready order, what DDP can run), ``"fifo"`` (any buckets,
        launched in the order in which they become ready) or ``"any"``.
    method
        ``"auto"`` takes an exact recurrence where the problem's class allows it, and elsewhere
        searches until plan and bound meet; ``"recurrence"`` and ``"cpsat"`` insist.
    time_limit_s
        Seconds for the search; where nothing waits for a collective, no limit is needed.
    workers, seed
        CP-SAT's search threads and the random seed; fixed by default so that machines agree.
    within
        By which share of the least makespan the plan may be longer if that saves launches: 0.01 asks
        for few launches within 1%. The bound remains one on the least makespan.
    progress
        Called with the seconds since the start, the best makespan (None without a plan) and the
        bound, both in nanoseconds, when one of them improves; always in the caller's thread.
    log
        Whether CP-SAT's log goes to standard error.
    repeatable
        Whether the search ends by counted work, so that the same seed and number of workers give the
        same plan on every machine. That takes longer for the same quality; the time limit still
        holds, and the reason says if it cut anything.

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
    given(problem, Problem, "problem")
    checked_scope = check_scope(scope)
    if method not in METHODS:
        raise InputError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    _check_budget(time_limit_s, workers, seed, within)
    if method != "cpsat":
        why_not = why_not_exact(problem, checked_scope)
        if why_not is None:
            return _by_recurrence(problem, checked_scope, started, within)
        if method == "recurrence" and why_no_deadlines(problem, checked_scope) is not None:
            raise NotApplicableError(f"method recurrence cannot prove this problem: {why_not}")
    else:
        why_not = "asked for"
    options = Options(float(time_limit_s), workers, seed, log, float(within), progress, repeatable)
    return Search(problem, checked_scope, method, why_not, options).run()


def _check_budget(time_limit_s: float, workers: int, seed: int, within: float) -> None:
    if exact(time_limit_s, "time_limit_s") <= 0:
        raise InputError(f"time_limit_s: {time_limit_s} must be above 0")
    if type(workers) is not int or not 1 <= workers <= 1000:
        raise InputError(f"workers: {workers!r} must be a whole number from 1 to 1000")
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed!r} must be a whole number from 0 to {2**31 - 1}")
    if not 0 <= exact(within, "within") <= 1:
        raise InputError(f"within: {within} must be from 0 to 1")


def _by_recurrence(problem: Problem, scope: Scope, started: float, within: float) -> Result:
    found = exact_plan(problem, scope)
    timeline = evaluate(problem, found.plan)
    status = proved_status(timeline, found.bound)
    if status is not Status.OPTIMAL and scope != "in-order":
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
    elif rounds and (scope != "in-order" or found.linear):
        reason += "; the number of launches is least up to rounding"
    plan = found.plan
    if within:
        least_ns = timeline.makespan_ns
        allowed_ns = least_ns + int(least_ns * within)
        fewer = fewest_launches(problem, allowed_ns)
        # Costs that are no whole nanoseconds may pass what is allowed by rounding.
        fewer = fewer if fewer is not None and fewer.launches < plan.launches else plan
        if play(problem, fewer).makespan_ns <= allowed_ns:
            plan = fewer
        timeline = play(problem, plan)
        status = proved_status(timeline, found.bound)
        reason += f"; the fewest launches within {within:.2%} of the least makespan, {least_ns} ns"
    wall_s = time.perf_counter() - started
    return Result(problem, scope, status, plan, found.bound, "recurrence", reason, wall_s, timeline)

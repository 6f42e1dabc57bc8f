"""One plan for several cases: those that the user names, or the costs as wrong as their fit is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from commsched.cases import Case
from commsched.export import Export, export
from commsched.models import CostCurve, Problem
from commsched.models.errors import CommschedError, InputError, NotApplicableError
from commsched.models.timeline import play
from commsched.models.units import exact
from commsched.optimizer import Result, optimize
from commsched.optimizer.exact import why_not_exact
from commsched.optimizer.robust import RobustResult, robust
from commsched.problems import Network
from commsched.report.scaled import ScaledCost, repriced

MOST_SEARCHED = 200
"""Up to so many collectives a robust plan is found without being asked for: some seconds."""
MOST_REGRETS = 4_000
"""Up to so many, the regret of the best plan is computed."""


@dataclass(frozen=True)
class SafetyRow:
    """A case, and by how much plans are longer than what is best there, in nanoseconds.

    Attributes
    ----------
    title
        The case.
    best_ns
        The step with the plan that is best there.
    nominal_ns
        The regret of the plan that is best for the step as it is; None if it cannot run.
    robust_ns
        The regret of the robust plan; None if none was looked for.
    """

    title: str
    best_ns: int
    nominal_ns: int | None
    robust_ns: int | None


@dataclass(frozen=True)
class Safety:
    """What is known of plans in several cases.

    Attributes
    ----------
    named
        Whether the user named the cases; else they are the error of the costs' fit.
    error
        The largest relative error that the costs state; None if they state none.
    rows
        The cases, the step as it is first; empty if nothing is known.
    found
        The robust plan with what is proved; None if none was looked for.
    settings
        The framework's settings for the robust plan; None if there are none.
    why_not
        Why something is missing; else empty.
    """

    named: bool
    error: float | None
    rows: tuple[SafetyRow, ...]
    found: RobustResult | None
    settings: Export | None
    why_not: str

    @property
    def helps(self) -> bool:
        """Whether the robust plan's worst regret is smaller than the nominal one's."""
        if self.found is None:
            return False
        worst = self.found.nominal_worst.nominal_regret_ns
        return worst is None or self.found.worst.regret_ns < worst


def safety(
    result: Result,
    file: str,
    others: Sequence[Case],
    network: Network | None,
    framework: str,
    *,
    time_limit_s: float,
    tell: Callable[[str], None] = lambda text: None,
) -> Safety:
    """Return what the best plan and a robust one cost in several cases.

    Parameters
    ----------
    result
        A result with a plan.
    file
        What the user calls the step.
    others
        The other cases; without any, the costs are varied by the error that they state.
    network
        Where the costs come from, if they are not the step's own.
    framework
        Whose settings to give for the robust plan.
    time_limit_s
        Seconds for each search.
    tell
        Called with what is being done.
    """
    problem = result.problem
    error, cases = None, list(others)
    if not cases:
        errors = fit_errors(problem, network)
        error = max(errors.values(), default=None)
        if error is None:
            return Safety(False, None, (), None, None, "")
        cases = _fit_cases(problem, errors, error)
        why_not = _why_no_search(result)
        if why_not:
            return _nominal_only(result, file, cases, error, why_not)
    nominal = result if result.scope == "in-order" else None
    problems = [problem, *(case.problem for case in cases)]
    try:
        found = robust(
            problems,
            nominal=nominal,
            time_limit_s=time_limit_s,
            progress=lambda done, total, now: tell(now),
        )
    except NotApplicableError as failure:
        return Safety(bool(others), error, (), None, None, str(failure))
    rows = tuple(
        SafetyRow(title, case.best_ns, case.nominal_regret_ns, case.regret_ns)
        for title, case in zip([file, *(case.title for case in cases)], found.cases, strict=True)
    )
    why_not = ""
    if nominal is None:
        why_not = "robust plans are of scope in-order; the plan beside it is the best of that scope"
    settings = None
    if found.plan != found.nominal:
        try:
            settings = export(problem, found.plan, framework)
        except CommschedError as failure:
            why_not = str(failure)
    return Safety(bool(others), error, rows, found, settings, why_not)


def fit_errors(problem: Problem, network: Network | None) -> dict[CostCurve, float]:
    """Return the largest relative error of each of a step's costs, where the cost file states one.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> from commsched.problems import NetworkCurve
    >>> cost = AlphaBeta(8, 50)
    >>> problem = GradientProblem([Gradient("a", 4096, ready_ns=10)], cost)
    >>> fit_errors(problem, Network((NetworkCurve(cost, max_error=0.05),)))
    {AlphaBeta(alpha_us=8, bandwidth_gb_s=50): 0.05}
    """
    found: dict[CostCurve, float] = {}
    used = set(problem.costs.values())
    for curve in () if network is None else network.curves:
        error = curve.max_error if curve.max_error is not None else curve.mean_error
        if error and curve.cost in used:
            found[curve.cost] = max(error, found.get(curve.cost, 0.0))
    return found


def _fit_cases(problem: Problem, errors: dict[CostCurve, float], error: float) -> list[Case]:
    """Return the step with all launches as much faster, and slower, as their fit may be wrong."""
    cases = []
    for sign, word in ((-1, "faster"), (1, "slower")):
        costs = {
            key: _times(cost, 1 + sign * exact(errors.get(cost, 0), "error"))
            for key, cost in problem.costs.items()
        }
        if sign < 0 and error >= 1:
            continue  # a launch would take no time, or less
        same = len(set(errors.values())) == 1 and len(errors) == len(set(problem.costs.values()))
        title = f"every launch {'' if same else 'up to '}{100 * error:.3g}% {word}"
        try:
            cases.append(Case(title, repriced(problem, costs)))
        except InputError:
            continue  # times beyond what a problem may hold
    return cases


def _times(cost: CostCurve, factor: Fraction) -> CostCurve:
    return cost if factor == 1 or factor <= 0 else ScaledCost(cost, factor, 1 / factor)


def _why_no_search(result: Result) -> str:
    """Return why no robust plan is looked for unless the user asks; empty if one is."""
    why_not = why_not_exact(result.problem, result.scope)
    if result.scope != "in-order":
        return "robust plans are of scope in-order"
    if why_not is not None:
        return f"a robust plan needs a search: {why_not}"
    if len(result.problem.names) > MOST_SEARCHED:
        return f"a robust plan is searched up to {MOST_SEARCHED} collectives unless cases are named"
    return ""


def _nominal_only(
    result: Result, file: str, cases: Sequence[Case], error: float, why_not: str
) -> Safety:
    """Return the regret of the best plan alone, where a recurrence says what is best."""
    problem, plan = result.problem, result.plan
    assert plan is not None
    unknown = why_not_exact(problem, result.scope)
    if unknown is not None or len(problem.names) > MOST_REGRETS:
        reason = f"not computed beyond {MOST_REGRETS:,} collectives"
        if unknown is not None:
            reason = f"what is best with other costs needs a search: {unknown}"
        return Safety(False, error, (), None, None, reason)
    rows = [SafetyRow(file, result.makespan_ns, 0, None)]
    for case in cases:
        best = optimize(case.problem, scope=result.scope, method="recurrence").makespan_ns
        kept = play(case.problem, plan).makespan_ns
        rows.append(SafetyRow(case.title, min(best, kept), max(0, kept - best), None))
    return Safety(False, error, tuple(rows), None, None, why_not)

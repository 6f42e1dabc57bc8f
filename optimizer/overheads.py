"""Plans for a step under DDP in which the framework's overheads count, and plans with room to spare.

For a plain backward pass of one fusion key the best plan of scope ``in-order`` is found and proved
(:mod:`commsched.optimizer.overheads_chain`). Every other step can only be evaluated with overheads
(:func:`~commsched.models.overheads.evaluate_overheads`).

Of the plans that are as good within a tolerance, the one that late gradients and launches harm least can
be taken (:mod:`commsched.optimizer.overheads_slack`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise

from commsched.models import Plan, Problem
from commsched.models.errors import InputError, NotApplicableError, SolverError
from commsched.models.overheads import Overheads, OverheadTimeline, play_overheads
from commsched.models.units import Number, exact
from commsched.optimizer.overheads_chain import MAX_GRADIENTS, OverheadChain
from commsched.optimizer.overheads_slack import LATE, STRETCHES, with_slack
from commsched.optimizer.result import Status

MAX_CASES = 64
WITHIN = Fraction(1, 1000)
"""What ``tune`` and the command line take for as good: a thousandth of the step."""


@dataclass(frozen=True)
class OverheadResult:
    """The outcome of :func:`optimize_overheads`.

    Attributes
    ----------
    problem, overheads
        What was solved.
    plan
        The plan.
    lower_bound_ns
        No plan of scope ``in-order`` ends the step earlier with these overheads.
    status
        ``optimal`` if the plan meets the bound, ``feasible`` if slack was preferred to that.
    method, reason
        What found the plan, and what is proved, in a sentence.
    wall_s
        Seconds that it took.
    """

    problem: Problem = field(repr=False)
    overheads: Overheads
    plan: Plan = field(repr=False)
    lower_bound_ns: int
    status: Status
    method: str
    reason: str
    wall_s: float

    @cached_property
    def timeline(self) -> OverheadTimeline:
        """The plan evaluated, with overheads; its ``nominal`` is without."""
        return play_overheads(self.problem, self.plan, self.overheads)

    @property
    def makespan_ns(self) -> int:
        """When the step ends, with overheads."""
        return self.timeline.makespan_ns

    @property
    def exposed_ns(self) -> int:
        """What communication and overheads add to the step."""
        return self.timeline.exposed_ns


def why_not_planned(problem: Problem) -> str | None:
    """Return why a step cannot be planned under overheads, only evaluated; None if it can."""
    if problem.gradients is None:
        return "only a plain backward pass is planned under overheads; other steps can be evaluated"
    if problem.limits:
        return f"plans are limited ({problem.limits[0].label})"
    if len(problem.chains) > 1:
        return "the gradients have several fusion keys"
    if len(problem.names) > MAX_GRADIENTS:
        return f"there are more than {MAX_GRADIENTS} gradients"
    return None


def optimize_overheads(
    problem: Problem,
    overheads: Overheads,
    *,
    slack: bool = False,
    within: Number = 0,
    cases: Sequence[Problem] = (),
) -> OverheadResult:
    """Find the best plan of a plain backward pass with what the framework adds.

    Parameters
    ----------
    problem
        Gradients of one fusion key, as ``gradient_problem`` or a reader makes it.
    overheads
        The terms; with none at all this is the nominal problem.
    slack
        Whether a plan with room to spare is preferred to one with few launches, where both are as good.
    within
        With ``slack``, how much longer than the best step one may be to count as good, as a share of
        it: 0.001. By default not at all.
    cases
        With ``slack``, steps of the same gradients as they were captured, which count beside the cases
        that are made up.

    Returns
    -------
    OverheadResult
        Without ``slack`` the least step, then the fewest launches, then the earliest end of the last.

    Raises
    ------
    InputError
        If ``within`` is no number from 0 to 1, or a case has other gradients.
    NotApplicableError
        If the step is another one; the message says what it is.

    Examples
    --------
    Without overheads two launches are best; they cost a hook each, which is more than what they gain:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 5, ready_ns=10), Gradient("a", 5, ready_ns=20)], AlphaBeta(0.003, 1))
    >>> optimize_overheads(problem, Overheads()).plan.launches
    2
    >>> found = optimize_overheads(problem, Overheads(hook_us=0.006))
    >>> found.plan.launches, found.exposed_ns, str(found.status)
    (1, 13, 'optimal')
    """
    start = time.perf_counter()
    share = exact(within, "within")
    if not 0 <= share <= 1:
        raise InputError(f"within: {within} must be from 0 to 1")
    why_not = why_not_planned(problem)
    if why_not is not None:
        raise NotApplicableError(why_not)
    _check_cases(problem, cases)
    names = [problem.names[k] for k in problem.ready_order]
    chain = _chain(problem, overheads, names)
    best = cut = chain.best()
    method, reason = "launch recurrence", "exact for every number of launches"
    if slack:
        others = [_chain(problem, overheads, names, stretch=stretch) for stretch in STRETCHES]
        late = (int(share * problem.compute_ns) for share in LATE)
        others += [_chain(problem, overheads, names, late_ns=ns) for ns in late]
        others += [_chain(problem, Overheads(), names)]  # what is hidden behind copies counts, too
        others += [_chain(case, overheads, names) for case in cases]
        cut = with_slack(chain, others, best, int((1 + share) * best.makespan_ns))
        method = "launch recurrence and slack"
        reason = (
            "the bound is exact; of the plans that were tried late launches harm this one least"
        )
    plan = Plan.of(names[begin:end] for begin, end in pairwise((0, *cut.ends)))
    result = OverheadResult(
        problem,
        overheads,
        plan,
        best.makespan_ns,
        Status.OPTIMAL if cut.makespan_ns == best.makespan_ns else Status.FEASIBLE,
        method,
        reason,
        time.perf_counter() - start,
    )
    if result.makespan_ns != cut.makespan_ns:
        raise SolverError(
            f"the evaluator gives {result.makespan_ns} ns with overheads, the recurrence "
            f"{cut.makespan_ns} ns"
        )
    return result


def _chain(
    problem: Problem,
    overheads: Overheads,
    order: Sequence[str],
    *,
    stretch: Fraction = Fraction(1),
    late_ns: int = 0,
) -> OverheadChain:
    places = [problem.index[name] for name in order]
    return OverheadChain(
        list(accumulate((problem.ready_ns[k] for k in places), max)),
        [problem.bytes[k] for k in places],
        problem.cost(problem.keys[0]),
        problem.compute_ns,
        overheads,
        stretch=stretch,
        late_ns=late_ns,
    )


def _check_cases(problem: Problem, cases: Sequence[Problem]) -> None:
    if len(cases) > MAX_CASES:
        raise InputError(f"cases: {len(cases)} are given, at most {MAX_CASES} can be")
    for number, case in enumerate(cases):
        if case.gradients is None or len(case.chains) > 1:
            raise InputError(f"cases[{number}]: it is no plain backward pass of one fusion key")
        if sorted(zip(case.names, case.bytes, strict=True)) != sorted(
            zip(problem.names, problem.bytes, strict=True)
        ):
            raise InputError(f"cases[{number}]: it has other gradients than the problem")

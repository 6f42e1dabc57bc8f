"""The plan that is least wrong in the worst of several cases.

The cases are the same collectives with other ready times or costs: other cost curves, recorded steps
or ranks. All ranks must run one plan, and it must be chosen before one knows. What a plan is judged by
is its largest *regret*: by how much it is longer in some case than what would have been best there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from commsched.models import Bucket, Plan, Problem
from commsched.models.coverage import is_in_order
from commsched.models.errors import (
    InputError,
    NotApplicableError,
    PlanError,
)
from commsched.models.timeline import play
from commsched.models.units import exact
from commsched.optimizer.neighbours import neighbours
from commsched.optimizer.registry import RULES
from commsched.optimizer.result import Result, Status
from commsched.optimizer.robust_cases import CaseRegret, check_cases
from commsched.optimizer.robust_chain import MAX_GRADIENTS, RobustChain, UndecidedError
from commsched.optimizer.solve import TIME_LIMIT_S, optimize

MAX_TRIED = 2_000
"""The most plans that the search by steps looks at."""


@dataclass(frozen=True)
class RobustResult:
    """The outcome of :func:`robust`.

    Attributes
    ----------
    plan
        The plan with the least known worst regret.
    nominal
        The best plan of the first case alone.
    cases
        What both do in each case, in the order in which the problems were given.
    bound_ns
        No plan of scope ``in-order`` has a smaller worst regret.
    status
        ``optimal`` if the plan meets the bound, else ``feasible``.
    method, reason
        What found the plan, and what is proved, in a sentence.
    """

    plan: Plan = field(repr=False)
    nominal: Plan = field(repr=False)
    cases: tuple[CaseRegret, ...]
    bound_ns: int
    status: Status
    method: str
    reason: str

    @property
    def worst(self) -> CaseRegret:
        """The case in which the robust plan is regretted most."""
        return max(self.cases, key=lambda case: case.regret_ns)

    @property
    def nominal_worst(self) -> CaseRegret:
        """The case in which the nominal plan is regretted most; one in which it fails comes first."""

        def regret(case: CaseRegret) -> float:
            return math.inf if case.nominal_regret_ns is None else case.nominal_regret_ns

        return max(self.cases, key=regret)


def robust(
    problems: Sequence[Problem],
    *,
    scope: str = "in-order",
    nominal: Result | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Callable[[int, int, str], None] | None = None,
) -> RobustResult:
    """Find the plan with the least worst regret over several cases.

    Parameters
    ----------
    problems
        The cases, the nominal one first: the same collectives (name, bytes, fusion key, channel)
        with ready times, costs and compute of their own.
    scope
        Only ``"in-order"``: buckets are contiguous in the ready order of the first case.
    nominal
        The result of the first case alone in scope ``in-order``, if it is already known.
    time_limit_s
        Seconds for the best plan of each case where that needs a search, and for the robust plan.
    progress
        Called with how many cases are planned for, of how many, and what comes next.

    Returns
    -------
    RobustResult
        Exact where in every case nothing waits for a collective and each channel carries one fusion
        key of moderate length. The number of launches is not proved least.

    Raises
    ------
    InputError
        If the problems are not cases of one step, or an option is not valid.
    NotApplicableError
        If the scope is another one, or no plan is known that keeps the limits of all cases.

    Examples
    --------
    With a small start-up three launches are best (49 ns), with a large one they take 100 ns and one
    80. To launch the first alone and the others together takes 53 and 80:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [
    ...     Gradient("c", 10, ready_ns=10), Gradient("b", 10, ready_ns=20),
    ...     Gradient("a", 10, ready_ns=30)]
    >>> cases = [GradientProblem(gradients, AlphaBeta(us, 1)) for us in (0.003, 0.02)]
    >>> found = robust(cases)
    >>> found.worst.regret_ns, found.bound_ns, str(found.status)
    (4, 4, 'optimal')
    >>> found.nominal_worst.nominal_regret_ns
    20
    """
    if scope != "in-order":
        raise NotApplicableError(f"robust plans are of scope in-order, not {scope}")
    limit_s = exact(time_limit_s, "time_limit_s")
    if limit_s <= 0:
        raise InputError(f"time_limit_s: {time_limit_s} must be above 0")
    cases = tuple(problems)
    check_cases(cases)
    if nominal is not None and nominal.scope != "in-order":
        raise InputError("nominal: the result must be of scope in-order")
    results = []
    for number, case in enumerate(cases):
        if progress is not None:
            progress(number, len(cases), f"the best plan of {case.name or 'a case'}")
        known = nominal if number == 0 else None
        results.append(known or optimize(case, time_limit_s=time_limit_s))
    if progress is not None:
        progress(len(cases), len(cases), "the robust plan")
    search = _Search(cases, results, time.monotonic() + float(limit_s))
    why_not = _why_not_exact(cases)
    bound_ns = 0
    if why_not is None:
        bound_ns, proved = search.decide()
        method = "vectors"
        reason = "nothing waits for a collective, so the search is exact"
        if not proved:
            search.improve()
            reason += "; it was cut short"
    else:
        search.improve()
        method = "steps"
        reason = f"{why_not}; the best of {search.tried} plans, not proved best"
    search.merge()
    found = search.found()
    worst = max(case.regret_ns for case in found)
    status = Status.OPTIMAL if worst <= bound_ns else Status.FEASIBLE
    if not all(result.status is Status.OPTIMAL for result in results):
        status = Status.FEASIBLE
        reason += "; what is best in each case is not proved either"
    return RobustResult(
        search.plan, search.nominal, found, min(bound_ns, worst), status, method, reason
    )


def _why_not_exact(cases: Sequence[Problem]) -> str | None:
    for case in cases:
        if case.limits:
            return f"plans are limited ({case.limits[0].label})"
        if case.movable:
            return "compute tasks may move"
        if not case.settled:
            return "tasks wait for collectives"
    chains = cases[0].chains
    if len({cases[0].channel(key) for key in chains}) < len(chains):
        return "several fusion keys share a channel"
    if max(map(len, chains.values())) > MAX_GRADIENTS:
        return f"a channel has more than {MAX_GRADIENTS} collectives"
    return None


class _Search:
    """The best plan so far, and what is best in each case."""

    def __init__(
        self, cases: Sequence[Problem], results: Sequence[Result], deadline: float
    ) -> None:
        self.cases, self.results, self.deadline = cases, results, deadline
        self.tried = 0
        if any(result.plan is None for result in results):
            raise NotApplicableError("robust: for some case no plan is known that keeps its limits")
        self.best = [result.makespan_ns for result in results]
        self.nominal = next(result.plan for result in results if result.plan is not None)
        self.plan = self.nominal
        self.makespans = self._makespans(self.nominal)
        for plan in self._known():
            self.offer(plan)
        if None in self.makespans:
            raise NotApplicableError("robust: no plan is known that every case can run")

    def _known(self) -> Iterator[Plan]:
        """Yield the best plans of the cases and what the rules make of them, where in order."""
        first = self.cases[0]
        for result in self.results:
            if result.plan is not None and is_in_order(first, result.plan):
                yield result.plan
        for case in self.cases:
            for rule in RULES:
                try:
                    plan = rule.make(case)
                except (NotApplicableError, PlanError):
                    continue
                if is_in_order(first, plan):
                    yield plan

    def _makespans(self, plan: Plan) -> list[int | None]:
        """Return the plan's makespan in each case; None where it cannot run or breaks a limit."""
        self.tried += 1
        found: list[int | None] = []
        for case in self.cases:
            try:
                timeline = play(case, plan)
            except InputError:  # it waits for ever, or orders other tasks
                found.append(None)
                continue
            found.append(None if timeline.broken else timeline.makespan_ns)
        return found

    def _worst(self, makespans: Sequence[int | None]) -> float:
        """Return the worst regret of a plan."""
        return max(
            math.inf if ns is None else ns - best
            for ns, best in zip(makespans, self.best, strict=True)
        )

    def offer(self, plan: Plan, *, even: bool = False) -> bool:
        """Take a plan if it is better than the best one; return whether it is.

        ``even`` takes one that is as good, too.
        """
        makespans = self._makespans(plan)
        for number, ns in enumerate(makespans):
            if ns is not None:
                self.best[number] = min(self.best[number], ns)
        mine, theirs = self._worst(self.makespans), self._worst(makespans)
        if theirs > mine or (theirs == mine and not even):
            return False
        self.plan, self.makespans = plan, makespans
        return True

    def decide(self) -> tuple[int, bool]:
        """Find the plan with the least worst regret by deciding which regrets can be kept.

        Returns
        -------
        tuple of int and bool
            A proved bound on the worst regret, and whether the plan meets it.
        """
        first = self.cases[0]
        chains = list(first.chains.values())
        channels = []
        for key, chain in first.chains.items():
            names = [first.names[k] for k in chain]
            ready = [[case.ready_ns[case.index[name]] for name in names] for case in self.cases]
            sizes = [first.bytes[k] for k in chain]
            channels.append(RobustChain(ready, sizes, [case.cost(key) for case in self.cases]))
        ends = zip(*(channel.earliest() for channel in channels), strict=True)
        for number, (case, least) in enumerate(zip(self.cases, ends, strict=True)):
            self.best[number] = min(self.best[number], max(case.compute_ns, *least))
        low, high = 0, int(self._worst(self.makespans))
        proved = True
        while low < high:
            # One plan that is best everywhere is common enough to be looked for first.
            middle = (low + high) // 2 if low else 0
            deadlines = [best + middle for best in self.best]
            buckets: list[Bucket] = []
            try:
                for channel, chain in zip(channels, chains, strict=True):
                    cuts = channel.ends(deadlines, self.deadline)
                    if cuts is None:
                        break
                    names = [first.names[k] for k in chain]
                    buckets += [
                        Bucket(tuple(names[i:j])) for i, j in zip([0, *cuts], cuts, strict=False)
                    ]
                else:
                    self.offer(Plan(tuple(buckets)))
                    high = int(self._worst(self.makespans))
                    continue
                low = middle + 1
            except UndecidedError:
                high, proved = middle, False
        return low, proved

    def improve(self) -> None:
        """Merge, split and move boundaries as long as that helps."""
        better = True
        while better and not self._spent():
            better = False
            for plan in neighbours(self.cases[0], self.plan):
                if self._spent():
                    return
                better = self.offer(plan) or better

    def merge(self) -> None:
        """Merge neighbours wherever that makes nothing worse: fewer launches."""
        place = 0
        while place + 1 < len(self.plan.buckets) and not self._spent():
            first, second = self.plan.buckets[place : place + 2]
            merged = Bucket((*first.names, *second.names), first.not_before_ns)
            buckets = (*self.plan.buckets[:place], merged, *self.plan.buckets[place + 2 :])
            case = self.cases[0]
            same = case.keys[case.index[first.names[0]]] == case.keys[case.index[second.names[0]]]
            if not (same and self.offer(Plan(buckets, self.plan.orders), even=True)):
                place += 1

    def _spent(self) -> bool:
        return self.tried >= MAX_TRIED or time.monotonic() > self.deadline

    def found(self) -> tuple[CaseRegret, ...]:
        """Return what the plan and the nominal one do in each case."""
        nominal = self._makespans(self.nominal)
        rows = []
        for number, (case, result) in enumerate(zip(self.cases, self.results, strict=True)):
            best, ns = self.best[number], self.makespans[number]
            assert ns is not None
            bound_ns = min(result.bound.ns, best)
            rows.append(CaseRegret(case.name, best, bound_ns, ns, nominal[number]))
        return tuple(rows)

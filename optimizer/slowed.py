"""Plans for a step in which compute is slower while communication runs.

Where nothing waits for a collective and all of them share a channel, the best plan of scope
``in-order`` is found and proved (:mod:`commsched.optimizer.slowed_chain`), unless there are so many
collectives that the search is cut short; a bound is proved then, too. Elsewhere the best of many
candidates is taken and improved step by step; what is proved then is the bound of the step without a
slowdown. It holds because for a plan nothing but durations changes, and none gets shorter.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from commsched.models import Bucket, Plan, Problem
from commsched.models.admission import refuse_pools
from commsched.models.coverage import is_in_order
from commsched.models.errors import (
    DeadlockError,
    InputError,
    NotApplicableError,
    PlanError,
    SolverError,
)
from commsched.models.slowdown import Slowdown, SlowedTimeline, play_slowed, slowdown_of
from commsched.models.units import Number, exact
from commsched.optimizer.neighbours import neighbours
from commsched.optimizer.prefix import Chain
from commsched.optimizer.registry import RULES
from commsched.optimizer.result import Bound, Result, Status, gap
from commsched.optimizer.slowed_chain import best_slowed_plan, overlap_pays
from commsched.optimizer.solve import TIME_LIMIT_S, optimize

MAX_TRIED = 4_000
"""The most plans that the search by steps looks at."""


@dataclass(frozen=True)
class SlowedResult:
    """The best plan found under a slowdown.

    Attributes
    ----------
    timeline
        The plan as it runs under the slowdown, and in ``timeline.nominal`` without.
    ignorant
        The best plan for the step without a slowdown, as it runs under one: what it costs not to
        plan for it is the difference of the two.
    bound
        No plan of scope ``in-order`` has a smaller makespan under the slowdown.
    status
        ``optimal`` if the plan meets the bound, else ``feasible``.
    method, reason
        What found the plan, and what is proved, in a sentence.
    """

    timeline: SlowedTimeline = field(repr=False)
    ignorant: SlowedTimeline = field(repr=False)
    bound: Bound
    status: Status
    method: str
    reason: str

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.timeline.plan

    @property
    def makespan_ns(self) -> int:
        """The step's length under the slowdown, in nanoseconds."""
        return self.timeline.makespan_ns

    @property
    def gain_ns(self) -> int:
        """How much shorter the step is than with the plan that ignores the slowdown."""
        return self.ignorant.makespan_ns - self.timeline.makespan_ns

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan; 0 when the makespan is 0."""
        return gap(self.makespan_ns, self.bound.ns)


def optimize_slowed(
    problem: Problem,
    slowdown: Slowdown | Number,
    *,
    nominal: Result | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> SlowedResult:
    """Find a plan of scope ``in-order`` for a step in which communication slows compute.

    Parameters
    ----------
    problem
        The step.
    slowdown
        The factors, or only that of compute.
    nominal
        The result without a slowdown in scope ``in-order``, if it is already known.
    time_limit_s
        Seconds for the search without a slowdown, and again for the search by steps.

    Returns
    -------
    SlowedResult
        The plan with its bound and status. The number of launches is not proved least.

    Raises
    ------
    InputError
        If a factor or the time limit is out of range.
    NotApplicableError
        If a pool of memory is limited, or no plan is known that keeps the limits.

    Examples
    --------
    Fewer bytes are sent while compute runs, for that slows it down more than it hides:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 5, ready_ns=10), Gradient("a", 5, ready_ns=20)], AlphaBeta(0.004, 1))
    >>> [optimize_slowed(problem, factor).plan.launches for factor in (1, 3)]
    [2, 1]
    """
    slowdown = slowdown_of(slowdown)
    limit_s = exact(time_limit_s, "time_limit_s")
    if limit_s <= 0:
        raise InputError(f"time_limit_s: {time_limit_s} must be above 0")
    refuse_pools(problem, "a slowdown is")
    if nominal is None:
        nominal = optimize(problem, time_limit_s=time_limit_s)
    elif nominal.scope != "in-order":
        raise InputError("nominal: the result must be of scope in-order")
    if nominal.plan is None:
        raise NotApplicableError(f"no plan without a slowdown is known: {nominal.status}")
    ignorant = play_slowed(problem, nominal.plan, slowdown)
    search = _Steps(problem, slowdown, ignorant, time.monotonic() + float(limit_s))
    search.try_rules()
    why_not = _why_not_exact(problem)
    if why_not is None:
        return _on_one_channel(problem, slowdown, search, ignorant, nominal)
    search.improve()
    search.merge()
    bound = Bound(nominal.bound.ns, f"{nominal.bound.proof}, without the slowdown")
    proved = search.best.makespan_ns <= bound.ns
    return SlowedResult(
        search.best,
        ignorant,
        bound,
        Status.OPTIMAL if proved else Status.FEASIBLE,
        "steps",
        f"{why_not}; the best of {search.tried} plans, and a bound that ignores the slowdown",
    )


def _why_not_exact(problem: Problem) -> str | None:
    if problem.limits:
        return f"plans are limited ({problem.limits[0].label})"
    if problem.movable:
        return "compute tasks may move"
    if not problem.settled:
        return "tasks wait for collectives"
    if len({problem.channel(key) for key in problem.chains}) > 1:
        return "there are several channels"
    return None


def _on_one_channel(
    problem: Problem,
    slowdown: Slowdown,
    search: _Steps,
    ignorant: SlowedTimeline,
    nominal: Result,
) -> SlowedResult:
    keys = list(problem.chains)
    chains = [
        Chain(
            [problem.ready_ns[k] for k in problem.chains[key]],
            [problem.bytes[k] for k in problem.chains[key]],
            problem.cost(key),
        )
        for key in keys
    ]
    known_ns = search.best.exact_makespan_ns
    found = best_slowed_plan(chains, slowdown, problem.compute_ns, known_ns)
    if found.buckets is not None:
        names = problem.names
        search.best = best = play_slowed(
            problem,
            Plan.of(
                [names[k] for k in problem.chains[keys[number]][begin:end]]
                for number, begin, end in found.buckets
            ),
            slowdown,
        )
        if best.exact_makespan_ns != found.end_ns:
            raise SolverError(
                f"the search promised {found.end_ns} ns, "
                f"the evaluator gives {best.exact_makespan_ns} ns"
            )
    search.merge()
    best = search.best
    reason = "nothing waits for a collective and there is one channel"
    if found.bound_ns == found.end_ns:
        bound = Bound(math.ceil(found.bound_ns), "exact search under the slowdown")
        reason += ", so the search is exact; the number of launches is not proved least"
    else:
        bound = Bound(math.ceil(found.bound_ns), "channel load under the slowdown")
        reason += (
            ", but the search was too long to be finished"
            if overlap_pays(slowdown)
            else ", but launches and compute at once get less done than one of them alone, so that "
            "plans that hold launches back count, and not all of these were searched"
        )
    if nominal.bound.ns > bound.ns:
        bound = Bound(nominal.bound.ns, f"{nominal.bound.proof}, without the slowdown")
    proved = best.makespan_ns <= bound.ns
    status = Status.OPTIMAL if proved else Status.FEASIBLE
    return SlowedResult(best, ignorant, bound, status, "labels", reason)


class _Steps:
    """The best plan so far; it is improved one step after the other."""

    def __init__(
        self, problem: Problem, slowdown: Slowdown, best: SlowedTimeline, deadline: float
    ) -> None:
        self.problem, self.slowdown, self.deadline = problem, slowdown, deadline
        self.best = best
        self.tried = 1

    def spent(self) -> bool:
        """Return whether the time or the number of plans is used up."""
        return self.tried >= MAX_TRIED or time.monotonic() > self.deadline

    def offer(self, plan: Plan) -> bool:
        """Take a plan if it is better than the best one; return whether it is."""
        self.tried += 1
        try:
            timeline = play_slowed(self.problem, plan, self.slowdown)
        except DeadlockError:
            return False
        if self._rank(timeline) >= self._rank(self.best) or timeline.broken:
            return False
        self.best = timeline
        return True

    @staticmethod
    def _rank(timeline: SlowedTimeline) -> tuple[object, int]:
        return timeline.exact_makespan_ns, timeline.plan.launches

    def try_rules(self) -> None:
        """Offer what the simple rules make of the step, where that is in order."""
        for rule in RULES:
            if self.spent():
                return
            try:
                plan = rule.make(self.problem)
                if is_in_order(self.problem, plan):
                    self.offer(plan)
            except (NotApplicableError, PlanError):
                continue

    def merge(self) -> None:
        """Merge neighbours wherever that makes the step no longer: fewer launches."""
        place = 0
        while place + 1 < len(self.best.plan.buckets) and not self.spent():
            buckets = self.best.plan.buckets
            first, second = buckets[place : place + 2]
            merged = Bucket((*first.names, *second.names), first.not_before_ns)
            try:
                better = self.offer(
                    Plan((*buckets[:place], merged, *buckets[place + 2 :]), self.best.plan.orders)
                )
            except PlanError:  # they have different fusion keys
                better = False
            place += not better

    def improve(self) -> None:
        """Merge, split and move boundaries as long as that helps."""
        better = True
        while better and not self.spent():
            better = False
            for plan in neighbours(self.problem, self.best.plan):
                if self.spent():
                    return
                better = self.offer(plan) or better

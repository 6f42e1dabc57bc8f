"""The search for steps that no recurrence closes: rules, bounds, local search, then CP-SAT.

Everything feeds one :class:`~commsched.optimizer.incumbent.Incumbent`, and as soon as its plan meets its
bound the search ends. docs/search.md says what each part brings.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from commsched.models import Problem
from commsched.models.errors import NotApplicableError, SolverError
from commsched.models.timeline import play
from commsched.optimizer.bounds import closed_form_bound, paths_ns
from commsched.optimizer.deadlines import deadline_plan, why_no_deadlines
from commsched.optimizer.exact import MAX_WHOLE_NS
from commsched.optimizer.incumbent import Incumbent, Progress
from commsched.optimizer.launch_bound import launch_bound
from commsched.optimizer.priorities import PrioritySearch, why_no_priorities
from commsched.optimizer.result import Bound, Result, Scope, Status
from commsched.optimizer.starting import in_scope, start
from commsched.optimizer.subsets import MAX_JOBS
from commsched.optimizer.two_sided import two_sided_bound

RULES_SHARE = 0.15
"""Share of the time limit after which no further rule is tried."""
LOCAL_SHARE = 0.5
"""Share of the time limit after which local search leaves the rest to CP-SAT."""
MOVES_A_PAIR = 300
"""Before CP-SAT proves it, no more moves than that for each pair of collectives."""
MOST_AFTER_LOCAL = 100
"""Where local search applies, CP-SAT only follows it for up to so many collectives."""
REDUCING_MOVES = 20_000
PARTS = frozenset(
    {
        "cpsat",
        "deadlines",
        "launches",
        "priorities",
        "rules",
        "subsets",
        "two-sided",
        "windows",
    }
)
"""What a search is made of; benchmarks leave parts out to see what they bring."""


@dataclass(frozen=True)
class Options:
    """What a search may use.

    Attributes
    ----------
    time_limit_s, workers, seed, log, within, progress
        As for :func:`commsched.optimize`.
    parts
        Some of :data:`PARTS`.
    """

    time_limit_s: float
    workers: int
    seed: int
    log: bool = False
    within: float = 0.0
    progress: Progress | None = None
    parts: frozenset[str] = field(default=PARTS)


class Search:
    """The search on one problem.

    Parameters
    ----------
    problem, scope
        What is searched.
    method
        ``"cpsat"`` insists on CP-SAT; else whatever proves first.
    why
        Why no recurrence was enough, for people.
    options
        What it may use.
    """

    def __init__(
        self, problem: Problem, scope: Scope, method: str, why: str, options: Options
    ) -> None:
        self.problem, self.scope, self.method, self.options = problem, scope, method, options
        self.known = Incumbent(problem, scope, options.time_limit_s, options.progress)
        self.reason = why
        self.fewest = False
        self.infeasible = False
        self.interrupted = False
        self.statistics: dict[str, float | int] = {}
        self.least_ns: int | None = None

    def run(self) -> Result:
        """Search until something is proved, the time is over or Ctrl-C is pressed."""
        try:
            self._search()
        except KeyboardInterrupt:
            self.interrupted = True
            if self.known.plan is None:
                # Always there without limits, and at once.
                self.known.progress = None
                start(self.known, 0.0, quick=True)
        return self._result()

    def _has(self, part: str) -> bool:
        return part in self.options.parts

    def _until(self, share: float) -> float:
        return self.known.started + share * self.options.time_limit_s

    def _search(self) -> None:
        problem, known = self.problem, self.known
        known.raise_bound(closed_form_bound(problem))
        insists = self.method == "cpsat"
        exact = self._has("deadlines") and why_no_deadlines(problem, "in-order") is None
        start(known, self._until(RULES_SHARE), quick=True)
        if exact and not insists and self._by_deadlines():
            return
        if self._done() and not insists:
            self._met(known.method)
            return
        if self._has("rules") and not (exact and self.scope == "in-order"):
            start(known, self._until(RULES_SHARE))
        self._raise_bounds()
        if self._done() and not insists:
            self._met(known.method)
            return
        orders = self.scope == "any" and self._has("priorities") and not insists
        if orders and why_no_priorities(problem) is None:
            follows = self._has("cpsat") and len(problem.names) <= MOST_AFTER_LOCAL
            self._by_priorities(follows=follows)
            if self._done() or not follows:
                return
        if self._has("cpsat") and (known.left_s > 0 or known.plan is None or insists):
            self._by_cpsat()

    def _done(self) -> bool:
        """Return whether the plan is proved, and in small steps without any rounding."""
        return self.known.met or (self.known.proved and len(self.problem.names) > MAX_WHOLE_NS)

    def _met(self, method: str) -> None:
        what = "a simple rule" if method.startswith("rule ") else f"the {method}"
        self.reason += f", but {what} already meets the bound"

    def _by_deadlines(self) -> bool:
        """Take the best plan of scope in-order; return whether that ends the search."""
        known, in_order = self.known, self.scope == "in-order"
        within = self.options.within if in_order else 0.0
        until = known.until if in_order else self._until(LOCAL_SHARE / 2)
        found = deadline_plan(self.problem, known.bound.ns, until, within=within)
        if in_order:
            known.raise_bound(found.bound)
            if found.optimal:
                # Its launches are fewest and its starts earliest, also where a rule is as early.
                self.least_ns = found.bound.ns
                known.replace(found.plan, "recurrence")
                self.fewest = found.fewest
                self.reason = (
                    "no collective waits for a collective, so the recurrence with deadlines "
                    "is exact"
                )
                return True
        if in_scope(self.problem, found.plan, self.scope):
            known.offer(found.plan, "recurrence")
        return False

    def _raise_bounds(self) -> None:
        problem, known = self.problem, self.known
        head, tail = paths_ns(problem)
        if self._has("launches") and not known.met and known.left_s > 0:
            known.raise_bound(launch_bound(problem, head, tail, known.bound.ns))
        if self._has("two-sided") and not known.met and known.left_s > 0:
            until = self._until(2 * RULES_SHARE)
            known.raise_bound(two_sided_bound(problem, head, tail, known.bound.ns, until))

    def _by_priorities(self, *, follows: bool) -> None:
        known, options = self.known, self.options
        search = PrioritySearch(known, options.seed)
        until = self._until(LOCAL_SHARE if follows else 0.95)
        few = len(self.problem.names) <= MAX_JOBS and self._has("subsets")
        most = (1 if few else MOVES_A_PAIR) * len(self.problem.names) ** 2 if follows else None
        self.statistics["moves"] = search.run(until, most)
        makespan_ns = known.makespan_ns
        if known.met:
            self._met("local search")
        elif self._has("subsets") and search.prove(self._until(0.95)):
            self.reason += ", but all sets of collectives can be enumerated"
            makespan_ns = known.makespan_ns
        assert makespan_ns is not None
        self.least_ns = makespan_ns
        allowed_ns = makespan_ns + int(makespan_ns * options.within) * known.proved
        if known.proved and search.fewest_launches(allowed_ns, known.until):
            self.fewest = True
            return
        moves = min(REDUCING_MOVES, MOVES_A_PAIR * len(self.problem.names) ** 2)
        search.fewer_launches(allowed_ns, moves, max(known.until, time.monotonic() + 0.02))

    def _by_cpsat(self) -> None:
        # Imported here: loading OR-Tools takes half a second that most calls do not need.
        from commsched.optimizer.cpsat import AnyOrderModel, Budget, InOrderModel, solve
        from commsched.optimizer.cpsat.windows import improve_by_windows

        problem, known, options = self.problem, self.known, self.options
        budget = Budget(
            max(0.01, known.left_s),
            options.workers,
            options.seed,
            options.log,
            options.within,
            known.report if options.progress else None,
        )
        model: InOrderModel | AnyOrderModel
        try:
            if self.scope == "in-order":
                model = InOrderModel(problem, known.plan, known.bound.ns)
            else:
                fifo = self.scope == "fifo"
                model = AnyOrderModel(problem, known.plan, known.bound.ns, fifo=fifo)
        except NotApplicableError as error:
            if self.method == "cpsat":
                raise
            self.reason += f"; {error}"
            if known.plan is not None and self._has("windows") and self.scope != "fifo":
                self.interrupted = improve_by_windows(known, budget, self.statistics)
            return

        outcome = solve(model, budget)
        self.statistics.update(outcome.statistics)
        self.interrupted = outcome.interrupted
        if outcome.infeasible:
            self.infeasible = True
            return
        known.raise_bound(outcome.bound)
        if outcome.plan is None or outcome.objective_ns is None:
            return
        planned = play(problem, outcome.plan)
        allowed = outcome.objective_ns + (0 if model.exact else outcome.plan.launches)
        if planned.makespan_ns > allowed:
            raise SolverError(
                f"CP-SAT promised {outcome.objective_ns} ns, "
                f"the evaluator gives {planned.makespan_ns} ns"
            )
        if planned.broken:
            raise SolverError(f"CP-SAT's plan breaks a limit: {planned.broken[0]}")
        if known.timeline is None or planned.makespan_ns <= allowed:
            best = known.makespan_ns
            if best is None or planned.makespan_ns <= best + int(best * options.within):
                known.replace(outcome.plan, "cpsat")
                self.fewest = outcome.fewest
                self.least_ns = outcome.bound.ns

    def _result(self) -> Result:
        known, options = self.known, self.options
        status = known.status
        reason, method = self.reason, known.method or "cpsat"
        if self.infeasible and known.plan is None:
            status, reason = Status.INFEASIBLE, f"{reason}; no plan keeps the limits"
        if options.within and self.least_ns is not None:
            reason += f"; few launches within {options.within:.2%} of {self.least_ns} ns"
        if self.interrupted:
            reason += "; interrupted"
        elif status in (Status.FEASIBLE, Status.UNKNOWN) and known.left_s <= 0:
            reason += f"; stopped at the limit of {options.time_limit_s:g} s"
        if known.plan is not None and not self.fewest:
            reason += "; the number of launches is not proved least"
        return Result(
            self.problem,
            self.scope,
            status,
            known.plan,
            known.bound,
            method,
            reason,
            time.monotonic() - known.started,
            known.timeline,
            self.statistics,
        )


def bound_of(problem: Problem) -> Bound:
    """Return the best bound that needs no search, for every plan of every scope."""
    bound = closed_form_bound(problem)
    head, tail = paths_ns(problem)
    for better in (launch_bound, two_sided_bound):
        found = better(problem, head, tail, bound.ns)
        if found.ns > bound.ns:
            bound = found
    return bound

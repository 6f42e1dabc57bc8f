"""The search for steps that no recurrence closes: rules, bounds, local search, then CP-SAT.

Everything feeds one :class:`~commsched.optimizer.incumbent.Incumbent`, and as soon as its plan meets its
bound the search ends. docs/search.md says what each part brings.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from commsched.models import Problem
from commsched.models.errors import NotApplicableError, SolverError
from commsched.models.timeline import play
from commsched.optimizer.ancestor_bound import ancestor_bound
from commsched.optimizer.bounds import closed_form_bound, paths_ns
from commsched.optimizer.deadlines import deadline_plan, why_no_deadlines
from commsched.optimizer.exact import MAX_WHOLE_NS
from commsched.optimizer.few_critical import few_critical_bound
from commsched.optimizer.fifo_bound import fifo_bound
from commsched.optimizer.filling import FILLINGS_A_SECOND, Filling, pause_bound
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.launch_bound import launch_bound
from commsched.optimizer.nested import nested_bound
from commsched.optimizer.nested_search import STATES_A_SECOND
from commsched.optimizer.order_search import ITEMS_A_SECOND, OrderSearch, why_no_order_search
from commsched.optimizer.pieces import NODES_A_SECOND, Pieces
from commsched.optimizer.priorities import (
    MOVES_A_SECOND,
    PrioritySearch,
    why_no_priorities,
)
from commsched.optimizer.result import Bound, Result, Scope, Status
from commsched.optimizer.search_options import (
    CPSAT_SHARE,
    FEW,
    LOCAL_SHARE,
    MOST_AFTER_LOCAL,
    MOST_S,
    MOVES_A_PAIR,
    ORDERS_SHARE,
    PATIENCE_A_PAIR,
    PAUSES_SHARE,
    PIECES_SHARE,
    REDUCING_MOVES,
    RULES_SHARE,
    WHOLE_NS_JOBS,
    WINDOWS_SHARE,
    Options,
)
from commsched.optimizer.starting import in_scope, start
from commsched.optimizer.subsets import MAX_JOBS
from commsched.optimizer.two_sided import two_sided_bound


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
        if self.options.repeatable:
            return self.known.until  # counted work ends what the clock would end otherwise
        return self.known.started + share * self.options.time_limit_s

    def _for(self, share: float) -> float:
        """Return when a share of the limit from now on is over."""
        if self.options.repeatable:
            return self.known.until
        return min(self.known.until, time.monotonic() + share * self.options.time_limit_s)

    def _counted(self, share: float, a_second: float) -> int:
        """Return how much a share of the limit is enough for, so that machines agree."""
        return int(min(MOST_S, share * self.options.time_limit_s) * a_second)

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
        head, tail = paths_ns(problem)
        if self._has("nested"):
            known.raise_bound(nested_bound(problem, head, tail, known.bound.ns))
        orders = self.scope == "any" and not insists and why_no_priorities(problem) is None
        if orders and self._has("nested") and not self._done() and self._by_windows():
            return
        if self._has("rules") and not (exact and self.scope == "in-order"):
            nodes = self._counted(RULES_SHARE, NODES_A_SECOND) // len(problem.tasks)
            most = max(1, nodes) if self.options.repeatable else None
            start(known, self._for(RULES_SHARE), most=most)
        head, tail = self._raise_bounds(head, tail)
        if self.scope == "fifo" and not known.met:
            known.raise_bound(fifo_bound(problem, known.bound.ns))
        if self._has("pauses") and problem.movable and not known.met and not insists:
            self._by_pauses(head, tail)
        if self._done() and not insists:
            self._met(known.method)
            return
        if orders and self._has("priorities"):
            follows = self._has("cpsat") and len(problem.names) <= MOST_AFTER_LOCAL
            self._by_priorities(follows=follows)
            if self._done() or not follows:
                return
        elif not insists and not (exact and self.scope == "in-order") and self._by_moves(tail):
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
            if found.infeasible:
                self.infeasible = True
                return True
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
        if found.plan.buckets and in_scope(self.problem, found.plan, self.scope):
            known.offer(found.plan, "recurrence")
        return False

    def _raise_bounds(
        self, head: dict[str, int], tail: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Raise the bound; return what surely passes before and after each task."""
        problem, known = self.problem, self.known
        if self._has("ancestors") and not known.met and known.left_s > 0:
            sides = ancestor_bound(problem, known.bound.ns, self._for(RULES_SHARE))
            known.raise_bound(sides.bound)
            head, tail = sides.head, sides.tail
        if self._has("chains") and not known.met and known.left_s > 0:
            until = self._for(RULES_SHARE)
            known.raise_bound(few_critical_bound(problem, head, tail, known.bound.ns, until))
        if self._has("launches") and not known.met and known.left_s > 0:
            known.raise_bound(launch_bound(problem, head, tail, known.bound.ns))
        if self._has("two-sided") and not known.met and known.left_s > 0:
            until = self._for(RULES_SHARE)
            known.raise_bound(two_sided_bound(problem, head, tail, known.bound.ns, until))
        return head, tail

    def _by_pauses(self, head: dict[str, int], tail: dict[str, int]) -> None:
        """Fill pauses of streams with movable compute."""
        if self.known.plan is not None:
            most = self._counted(PAUSES_SHARE, FILLINGS_A_SECOND)
            found = Filling(self.known, head, tail).run(self._for(PAUSES_SHARE), most)
            self.statistics["fillings"] = found

    def _by_moves(self, tail: dict[str, int]) -> bool:
        """Group neighbours, then change launches and orders; return whether that ends the search."""
        problem, known = self.problem, self.known
        large = len(problem.names) > MOST_AFTER_LOCAL
        if self._has("pieces") and len(problem.names) > FEW:
            share = PIECES_SHARE * (2 if large else 1)
            most = self._counted(share, NODES_A_SECOND)
            found = Pieces(known, self.options.seed).run(self._for(share), most)
            self.statistics["groupings"] = found
            if self._done():
                self._met("search of groupings")
                return True
        follows = self._has("cpsat") and not large
        orders = self._has("orders") and why_no_order_search(problem, self.scope) is None
        if orders and known.plan is not None:
            share = ORDERS_SHARE if follows else 1.0
            search = OrderSearch(known, tail, self.options.seed)
            self.statistics["moves"] = search.run(
                self._for(share) if follows else self._until(0.95),
                most=self._counted(share, ITEMS_A_SECOND / len(problem.tasks)),
                patience=PATIENCE_A_PAIR * len(problem.names) ** 2 if follows else None,
            )
            if self._done():
                self._met("local search")
                return True
            return not follows
        return False

    def _by_priorities(self, *, follows: bool) -> None:
        known, options = self.known, self.options
        search = PrioritySearch(known, options.seed)
        share = LOCAL_SHARE if follows else 0.95
        until = self._until(share)
        few = len(self.problem.names) <= MAX_JOBS and self._has("subsets")
        most = (1 if few else MOVES_A_PAIR) * len(self.problem.names) ** 2 if follows else None
        counted = self._counted(share, MOVES_A_SECOND)
        most = counted if most is None else min(most, counted)
        self.statistics["moves"] = search.run(until, most)
        if known.met:
            self._met("local search")
        elif self._has("subsets") and search.prove(self._until(0.95)):
            self.reason += ", but all sets of collectives can be enumerated"
        self._reduce(search, lambda ns: search.fewest_launches(ns, known.until))

    def _by_windows(self) -> bool:
        """Search nested windows; return whether that ends the search."""
        known, options = self.known, self.options
        search = PrioritySearch(known, options.seed)
        states = self._counted(WINDOWS_SHARE, STATES_A_SECOND)
        self.statistics["states"] = search.by_windows(states, self._until(WINDOWS_SHARE))
        few = len(self.problem.names) <= WHOLE_NS_JOBS
        if not known.proved or (few and not known.met):
            return False
        self._met("search of nested windows")
        self._reduce(search, lambda ns: search.fewest_by_windows(ns, states, known.until))
        if self.fewest:
            self.reason += "; the number of launches is least up to rounding"
        return True

    def _reduce(self, search: PrioritySearch, fewest: Callable[[int], bool]) -> None:
        """Save launches: the fewest if that is quick, else fewer."""
        known = self.known
        makespan_ns = known.makespan_ns
        assert makespan_ns is not None
        self.least_ns = makespan_ns
        allowed_ns = makespan_ns + int(makespan_ns * self.options.within) * known.proved
        if known.proved and fewest(allowed_ns):
            self.fewest = True
            return
        moves = min(REDUCING_MOVES, MOVES_A_PAIR * len(self.problem.names) ** 2)
        search.fewer_launches(allowed_ns, moves, max(known.until, time.monotonic() + 0.02))

    def _by_cpsat(self) -> None:
        # Imported here: loading OR-Tools takes half a second that most calls do not need.
        from commsched.optimizer.cpsat import AnyOrderModel, Budget, InOrderModel, solve
        from commsched.optimizer.cpsat.run import WORK_A_SECOND

        problem, known, options = self.problem, self.known, self.options
        budget = Budget(
            max(0.01, known.left_s),
            options.workers,
            options.seed,
            options.log,
            options.within,
            known.report if options.progress else None,
            CPSAT_SHARE * options.time_limit_s * WORK_A_SECOND if options.repeatable else None,
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
        if options.repeatable:
            cuts = self.statistics.get("clock_cuts", 0) + (known.left_s <= 0)
            self.statistics["clock_cuts"] = cuts
            again = "the same seed and workers give this plan again"
            if cuts or self.interrupted:
                again = "the clock cut the search short, so another run may find another plan"
            reason += f"; {again}"
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
    head, tail, found = ancestor_bound(problem, bound.ns)
    if found.ns > bound.ns:
        bound = found
    for better in (few_critical_bound, pause_bound, nested_bound, launch_bound, two_sided_bound):
        found = better(problem, head, tail, bound.ns)
        if found.ns > bound.ns:
            bound = found
    return bound

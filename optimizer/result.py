"""What a search returns: a plan, and exactly how much was proved about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

from commsched.models import Plan, Problem, Timeline, evaluate
from commsched.models.errors import InputError, SolverError
from commsched.models.given import given

Scope = Literal["in-order", "fifo", "any"]
"""Which plans count.

``in-order``: within a fusion key, buckets are contiguous in ready order and are launched in that
order (what DDP can run); launches of different keys may interleave freely. ``fifo``: every partition,
but a channel runs its launches in the order in which they become ready, as a queue does. ``any``:
every partition, every order.
"""
SCOPES: tuple[Scope, ...] = ("in-order", "fifo", "any")


def check_scope(scope: str) -> Scope:
    """Return ``scope`` if it is one.

    Raises
    ------
    InputError
        If it is not.
    """
    for known in SCOPES:
        if scope == known:
            return known
    raise InputError(f"scope: {scope!r} is not one of {', '.join(SCOPES)}")


class Status(StrEnum):
    """What is known about the plan in a :class:`Result`.

    ``optimal``: no plan of the scope is better (see :attr:`Result.slack_ns`). ``feasible``: a
    plan and a bound, with a gap between them. ``infeasible``: proved that there is no plan.
    ``unknown``: the limit was reached without a plan.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Bound:
    """A proved lower bound on the makespan.

    Attributes
    ----------
    ns
        No plan of the scope has a smaller makespan, in nanoseconds.
    proof
        How it was proved, in a few words.
    """

    ns: int
    proof: str


@dataclass(frozen=True)
class Result:
    """The outcome of :func:`commsched.optimize`.

    Attributes
    ----------
    problem
        The problem that was solved.
    scope
        Which plans were searched.
    status
        What is proved; see :class:`Status`.
    plan
        The best plan found, or None. Of plans with its makespan and its launches it is one that starts
        early; see :func:`commsched.optimize` for what each method looks at.
    bound
        The best lower bound and its proof.
    method
        What found the plan: ``recurrence``, ``nested windows``, ``local search``, ``pieces``,
        ``cpsat``, or ``rule NAME`` when a simple rule met the bound or nothing better was found.
    reason
        Why that method was taken and what else was proved, in a sentence.
    wall_s
        Seconds that the search took.
    evaluated
        The plan's timeline where it is already known; else it is evaluated when asked for.
    statistics
        What the search did: moves of the local search, runs, conflicts and branches of CP-SAT.
    """

    problem: Problem = field(repr=False)
    scope: Scope
    status: Status
    plan: Plan | None = field(repr=False)
    bound: Bound
    method: str
    reason: str
    wall_s: float
    evaluated: Timeline | None = field(default=None, repr=False, compare=False)
    statistics: Mapping[str, float | int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        given(self.problem, Problem, "result: problem")
        given(self.bound, Bound, "result: bound")
        if (self.plan is None) != (self.status in (Status.INFEASIBLE, Status.UNKNOWN)):
            raise SolverError(f"status {self.status} contradicts the plan")
        if self.plan is not None and self.makespan_ns < self.bound.ns:
            raise SolverError(
                f"the evaluator gives {self.makespan_ns} ns, below the proved bound "
                f"{self.bound.ns} ns ({self.bound.proof})"
            )

    @cached_property
    def timeline(self) -> Timeline:
        """The plan evaluated.

        Raises
        ------
        SolverError
            If there is no plan.
        """
        if self.plan is None:
            raise SolverError(f"there is no plan to evaluate: the status is {self.status}")
        return self.evaluated or evaluate(self.problem, self.plan)

    @property
    def makespan_ns(self) -> int:
        """When the last task ends under the plan, in nanoseconds."""
        return self.timeline.makespan_ns

    @property
    def exposed_ns(self) -> int:
        """Exposed communication under the plan, in nanoseconds."""
        return self.timeline.exposed_ns

    @property
    def lower_bound_ns(self) -> int:
        """No plan of the scope has a smaller makespan, in nanoseconds."""
        return self.bound.ns

    @property
    def slack_ns(self) -> int:
        """Makespan less bound, in nanoseconds.

        Launches are rounded up to whole nanoseconds and bounds are not, so an optimal plan may
        exceed its bound by up to one nanosecond for each launch; see :func:`proved_status`.
        """
        return self.makespan_ns - self.bound.ns

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan; 0 when the makespan is 0, 1 when there is no plan."""
        return 1.0 if self.plan is None else gap(self.makespan_ns, self.bound.ns)


def gap(makespan_ns: int, bound_ns: int) -> float:
    """Return (makespan - bound) / makespan, and 0 when the makespan is 0.

    Examples
    --------
    >>> gap(200, 150), gap(0, 0)
    (0.25, 0.0)
    """
    return (makespan_ns - bound_ns) / makespan_ns if makespan_ns else 0.0


def proved_status(timeline: Timeline, bound: Bound) -> Status:
    """Return ``optimal`` if a plan exceeds a proved bound by no more than rounding can explain.

    Bounds are computed on unrounded costs, so that is less than a nanosecond for each launch that
    does not last a whole number of nanoseconds.
    """
    over_ns = timeline.makespan_ns - bound.ns
    if over_ns:
        cost = timeline.problem.cost
        over_ns -= sum(
            cost(launch.key).exact_ns(launch.bytes) != launch.duration_ns
            for launch in timeline.launches
        )
    return Status.OPTIMAL if over_ns <= 0 else Status.FEASIBLE

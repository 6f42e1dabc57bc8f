"""What the step would take on other networks and processors, computed in advance for some factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from commsched.models import Plan, Problem
from commsched.models.errors import InputError, PlanError
from commsched.models.timeline import play
from commsched.optimizer import Result, Row, closed_form_bound, optimize
from commsched.optimizer.exact import why_not_exact
from commsched.report.scaled import scaled

FACTORS = tuple(Fraction(n, d) for n, d in ((1, 4), (1, 2), (3, 4), (1, 1), (3, 2), (2, 1), (4, 1)))
COARSE = tuple(Fraction(n, d) for n, d in ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1)))
WORK = 300_000
"""About so many collectives are planned or evaluated: a few seconds."""
GENERAL = 10
"""Evaluating a step in which something waits for collectives costs so much more, a task."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan's step, in nanoseconds."""

    makespan_ns: int
    exposed_ns: int


@dataclass(frozen=True)
class Point:
    """The step at one choice of factors.

    Attributes
    ----------
    place
        The index of each factor in :attr:`WhatIf.factors`: start-up, bandwidth, compute speed.
    compute_ns
        What compute alone takes.
    best, launches
        The optimum; None if no recurrence finds it.
    bound_ns
        No plan has a smaller makespan.
    kept
        What the plans of :attr:`WhatIf.titles` do there, unchanged; None for one that cannot run.
    """

    place: tuple[int, int, int]
    compute_ns: int
    best: Outcome | None
    launches: int | None
    bound_ns: int
    kept: tuple[Outcome | None, ...]


@dataclass(frozen=True)
class WhatIf:
    """The step at some choices of factors.

    Attributes
    ----------
    factors
        The values that each of the three factors takes.
    titles
        Names of the plans that are kept everywhere.
    points
        The choices that were computed.
    combined
        Whether that is all combinations; else only one factor differs from 1.
    optimal
        Whether the optimum is known everywhere.
    notes
        What is left out, and why.
    """

    factors: tuple[Fraction, ...]
    titles: tuple[str, ...]
    points: tuple[Point, ...]
    combined: bool
    optimal: bool
    notes: tuple[str, ...]


def what_if(result: Result, rows: Sequence[tuple[str, Row]]) -> WhatIf:
    """Return what plans and, where a recurrence finds it, the optimum do at other factors.

    Parameters
    ----------
    result
        A result with a plan.
    rows
        The plans that are kept, with the titles for them.
    """
    problem = result.problem
    why_not = why_not_exact(problem, result.scope)
    notes = []
    if why_not is not None:
        notes.append(
            "The optimum of other networks is not shown, for each needs a search of its own: "
            f"{why_not}. The plans are evaluated there, beside a proved lower bound."
        )
    kept: list[tuple[str, Plan]] = []
    for title, row in rows:
        if any(bucket.not_before_ns for bucket in row.plan.buckets):
            notes.append(f"Not shown: {title}, which holds launches back by a clock.")
        else:
            kept.append((title, row.plan))
    factors, combined = _grid(problem, why_not is None)
    points = []
    for place in _places(factors, combined):
        found = _point(result, place, factors, [plan for _, plan in kept], why_not is None)
        if found is not None:
            points.append(found)
    if not factors:
        notes.append("Not computed: the step has too many tasks for that.")
    elif not combined:
        notes.append("One factor at a time: all combinations would take too long for this step.")
    titles = tuple(title for title, _ in kept)
    return WhatIf(factors, titles, tuple(points), combined, why_not is None, tuple(notes))


def _grid(problem: Problem, exact: bool) -> tuple[tuple[Fraction, ...], bool]:
    """Return the factors that a few seconds are enough for, and whether in all combinations.

    It depends on the step's size alone, never on the machine.
    """
    count = len(problem.names)
    work = count
    curved = any(problem.cost(key).affine is None for key in problem.chains)
    if exact and (curved or len(problem.chains) > 1):
        work += count * count // 20
    elif not exact:
        work = len(problem.tasks) * GENERAL if not problem.settled else 4 * count
    for factors in (FACTORS, COARSE):
        if work * len(factors) ** 3 <= WORK:
            return factors, True
    for factors in (FACTORS, COARSE):
        if work * 3 * len(factors) <= 2 * WORK:
            return factors, False
    return (), False


def _places(factors: Sequence[Fraction], combined: bool) -> Iterable[tuple[int, int, int]]:
    every = range(len(factors))
    for place in product(every, every, every):
        if combined or sum(factors[k] != 1 for k in place) <= 1:
            yield place


def _point(
    result: Result,
    place: tuple[int, int, int],
    factors: Sequence[Fraction],
    plans: Sequence[Plan],
    exact: bool,
) -> Point | None:
    """Return a point, or None if its times are out of bounds."""
    alpha, bandwidth, speed = (factors[k] for k in place)
    nominal = alpha == bandwidth == speed == 1
    try:
        problem = result.problem if nominal else scaled(result.problem, alpha, bandwidth, speed)
    except InputError:
        return None
    kept = tuple(_outcome(problem, plan) for plan in plans)
    if not exact:
        bound = result.bound if nominal else closed_form_bound(problem)
        return Point(place, problem.compute_ns, None, None, bound.ns, kept)
    found = result if nominal else optimize(problem, scope=result.scope, method="recurrence")
    assert found.plan is not None
    best = Outcome(found.makespan_ns, found.exposed_ns)
    return Point(place, problem.compute_ns, best, found.plan.launches, found.bound.ns, kept)


def _outcome(problem: Problem, plan: Plan) -> Outcome | None:
    try:
        timeline = play(problem, plan)
    except PlanError:
        return None
    if timeline.broken:
        return None
    return Outcome(timeline.makespan_ns, timeline.exposed_ns)

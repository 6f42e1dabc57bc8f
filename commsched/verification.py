"""Checking a plan file against its problem, without a solver."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from commsched.documents import settings_document, timeline_document
from commsched.models import Problem, Timeline, evaluate
from commsched.models.coverage import is_fifo, is_in_order
from commsched.models.errors import PlanError, printable
from commsched.models.units import NS_PER_US, exact_at_least_zero, format_ns, us_from_ns
from commsched.optimizer.deadlines import deadline_plan, why_no_deadlines
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.fifo_bound import fifo_bound
from commsched.optimizer.result import Bound, Status, gap, proved_status
from commsched.optimizer.search import bound_of
from commsched.problems import plan_of, problem_digest
from commsched.problems.schema import PlanFile

WORDS = frozenset({"problem", "method", "reason", "verdict", "bound_proof"})
"""What a plan file says in words; it is not checked."""
OTHERS = ("limit_prices", "overheads", "slowdown")
"""What it says of other plans and under other assumptions; it is not computed anew."""
FROM_BOUND = ("lower_bound_us", "status", "gap", "slack_us")
"""What it says of all plans: the bound, and what follows from it."""

MOST_WORDS = 60
"""Up to so many letters of a file's own words are repeated."""


@dataclass(frozen=True)
class Verified:
    """What was checked of a plan file, and what it claims besides.

    Attributes
    ----------
    checks
        What was checked and holds, a sentence each.
    notes
        What the file states and nobody checked, a sentence each.
    bound_proved
        Whether the stated bound, and with it the status and the gap, was proved anew. None if the
        file states none.
    """

    checks: list[str]
    notes: list[str]
    bound_proved: bool | None


@dataclass(frozen=True)
class _Stated:
    """The bound that a file states, and what can be proved of it here."""

    claimed: Bound
    proved: bool
    text: str


def verify(problem: Problem, file: PlanFile, path: str | Path) -> Verified:
    """Check that a plan is for this problem, runs, and does what its file claims.

    Every number about the plan is computed anew. A claimed bound is proved anew where that needs no
    solver; where it does, it is not checked, and neither is ``optimal``, which follows from it.

    Parameters
    ----------
    problem
        The problem.
    file
        The plan file.
    path
        Its name, for messages.

    Returns
    -------
    Verified
        What was checked and what was not.

    Raises
    ------
    PlanError
        At the first thing that does not hold.
    """
    digest = problem_digest(problem)
    if file.problem_digest != digest:
        raise PlanError(
            f"{path}: problem_digest: is for another problem: {file.problem_digest[:19]}..., "
            f"the problem's is {digest[:19]}..."
        )
    plan = plan_of(file, path)
    try:
        timeline = evaluate(problem, plan)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    if timeline.broken:
        raise PlanError(f"{path}: breaks a limit: {timeline.broken[0]}")
    if plan.splits and file.lower_bound_us is not UNSET:
        raise PlanError(
            f"{path}: lower_bound_us bounds plans that keep collectives whole; this one splits them"
        )
    if file.scope == "in-order" and not is_in_order(problem, plan):
        what = "splits collectives" if plan.splits else "is not contiguous in ready order"
        raise PlanError(f"{path}: scope is 'in-order', but the plan {what}")
    if file.scope == "fifo" and not is_fifo(timeline):
        raise PlanError(
            f"{path}: scope is 'fifo', but a launch runs before one that was ready first"
        )
    bound = _check_bound(problem, file, timeline, path)
    expected = timeline_document(problem, timeline) | settings_document(problem, plan)
    if bound is not None:
        expected |= {
            "status": str(proved_status(timeline, bound.claimed)),
            "gap": gap(timeline.makespan_ns, bound.claimed.ns),
            "slack_us": us_from_ns(timeline.makespan_ns - bound.claimed.ns),
            "lower_bound_us": file.lower_bound_us,
        }
    stated = {
        name: value
        for name, value in msgspec.to_builtins(file).items()
        if name not in WORDS | {*OTHERS, "format", "version", "scope"}
    }
    count = 0
    for place, claimed, value in _leaves(stated, expected):
        if claimed != value or isinstance(claimed, bool) != isinstance(value, bool):
            shown = "nothing" if value is UNSET else repr(value)
            raise PlanError(f"{path}: {place} is {claimed!r}, but comes out as {shown}")
        count += bound is None or bound.proved or place not in FROM_BOUND
    checks = [
        "the digest is that of the problem",
        f"every collective is launched exactly once: {len(timeline.launches)} launches, "
        f"exposed {format_ns(timeline.exposed_ns)}, step {format_ns(timeline.makespan_ns)}",
        f"all {count} values that the file states of the plan come out the same",
    ]
    others = [name for name in OTHERS if getattr(file, name) is not UNSET]
    notes = [f"not checked: {', '.join(others)}: of other plans or times"] if others else []
    if bound is None:
        notes.append("the file states no lower bound, so nothing of how good the plan is")
    elif bound.proved:
        checks.append(bound.text)
    else:
        follows = [name for name in FROM_BOUND[1:] if getattr(file, name) is not UNSET]
        also = f", nor {', '.join(follows)}, which follow from it" if follows else ""
        notes.append(f"not checked: lower_bound_us {file.lower_bound_us!r}{also}: {bound.text}")
    return Verified(checks, notes, None if bound is None else bound.proved)


def _leaves(stated: Any, expected: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the place, the stated value and the expected value of everything that is stated."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        for name, value in stated.items():
            inner = f"{place}.{name}" if place else name
            yield from _leaves(value, expected.get(name, UNSET), inner)
    elif (
        isinstance(stated, list | tuple)
        and isinstance(expected, list)
        and len(stated) == len(expected)
    ):
        for number, (value, other) in enumerate(zip(stated, expected, strict=True)):
            yield from _leaves(value, other, f"{place}[{number}]")
    else:
        yield place, stated, expected


def _check_bound(
    problem: Problem, file: PlanFile, timeline: Timeline, path: str | Path
) -> _Stated | None:
    if file.lower_bound_us is UNSET:
        for name in ("status", "gap", "slack_us"):
            if getattr(file, name) is not UNSET:
                raise PlanError(f"{path}: {name} is stated without a lower_bound_us")
        return None
    stated_us = exact_at_least_zero(file.lower_bound_us, f"{path}: lower_bound_us")
    claimed = Bound(math.ceil(stated_us * NS_PER_US), "the file")
    if claimed.ns > timeline.makespan_ns:
        raise PlanError(
            f"{path}: lower_bound_us is {file.lower_bound_us!r}, above the makespan "
            f"{us_from_ns(timeline.makespan_ns)!r}"
        )
    exact = True
    if why_not_exact(problem, file.scope) is None:
        bound = exact_plan(problem, file.scope).bound
    elif why_no_deadlines(problem, file.scope) is None:
        bound = deadline_plan(problem).bound
    else:
        exact, bound = False, bound_of(problem)
        if file.scope == "fifo":
            raised = fifo_bound(problem, bound.ns)
            bound = raised if raised.ns > bound.ns else bound
    if exact and claimed.ns > bound.ns:
        raise PlanError(
            f"{path}: lower_bound_us is {file.lower_bound_us!r}, but only "
            f"{us_from_ns(bound.ns)!r} can be proved ({bound.proof})"
        )
    if claimed.ns <= bound.ns:
        text = f"the lower bound is proved anew ({bound.proof})"
        if proved_status(timeline, claimed) is Status.OPTIMAL:
            text += ": the plan is optimal"
        return _Stated(claimed, True, text)
    source = "nothing says what"
    if isinstance(file.bound_proof, str):
        source = f"the file says {printable(file.bound_proof[:MOST_WORDS])!r}"
    return _Stated(
        claimed,
        False,
        f"{source} proved it; what needs no solver was computed anew and proves only "
        f"{us_from_ns(bound.ns)!r} ({bound.proof}), so another plan may be up to "
        f"{format_ns(timeline.makespan_ns - bound.ns)} better",
    )

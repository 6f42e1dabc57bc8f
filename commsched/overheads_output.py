"""What ``--overheads FILE`` adds to a command: the plan that it is about, figures with and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commsched.export import ddp_settings
from commsched.export.ddp import MIN_TORCH
from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.overheads import Overheads, OverheadTimeline, play_overheads
from commsched.models.units import format_ns, us_from_ns
from commsched.optimizer import Result, Row
from commsched.optimizer.overheads import WITHIN, optimize_overheads, why_not_planned
from commsched.optimizer.result import proved_status
from commsched.output import print_buckets


@dataclass(frozen=True)
class UnderOverheads:
    """A result whose plan is the best one with overheads, where such a plan can be found.

    Attributes
    ----------
    result
        The plan; its figures are those without overheads.
    nominal
        The best plan without overheads.
    timeline
        The plan with overheads.
    lower_bound_ns
        No plan of scope ``in-order`` ends the step earlier with them; None if nothing is proved.
    words
        How the plan was found.
    """

    result: Result
    nominal: Plan
    timeline: OverheadTimeline
    lower_bound_ns: int | None
    words: str


def under_overheads(result: Result, overheads: Overheads) -> UnderOverheads:
    """Plan again with overheads; where that cannot be, the plan stays and is only evaluated.

    Raises
    ------
    NotApplicableError
        If the plan cannot even be evaluated with overheads.
    """
    plan = result.plan
    assert plan is not None
    why_not = why_not_planned(result.problem)
    if why_not is None and result.scope != "in-order":
        why_not = f"the scope is {result.scope}"
    if why_not is not None:
        timeline = play_overheads(result.problem, plan, overheads)
        words = f"planned without overheads and then evaluated with them: {why_not}"
        return UnderOverheads(result, plan, timeline, None, words)
    found = optimize_overheads(result.problem, overheads, slack=True, within=WITHIN)
    status = proved_status(found.timeline.nominal, result.bound)
    replaced = Result(
        result.problem,
        result.scope,
        status,
        found.plan,
        result.bound,
        f"{found.method} with overheads",
        "its status here is that without overheads",
        result.wall_s + found.wall_s,
    )
    least = found.lower_bound_ns - found.timeline.compute_ns
    words = (
        f"{found.status} with overheads: by {found.method}; {found.reason}; no plan has less than "
        f"{format_ns(least)} exposed with them"
    )
    return UnderOverheads(replaced, plan, found.timeline, found.lower_bound_ns, words)


def overheads_document(timeline: OverheadTimeline) -> dict[str, Any]:
    """Return what a plan does with overheads, and the terms."""
    return {
        "terms": {
            name: value if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
            for name, value in timeline.overheads.as_row().items()
        },
        "makespan_us": us_from_ns(timeline.makespan_ns),
        "exposed_us": us_from_ns(timeline.exposed_ns),
        "work_end_us": us_from_ns(timeline.work_end_ns),
        "exposed_without_us": us_from_ns(timeline.nominal.exposed_ns),
    }


def planned_document(found: UnderOverheads) -> dict[str, Any]:
    """Return :func:`overheads_document` of a plan that was searched, with what is proved."""
    document = {**overheads_document(found.timeline), "reason": found.words}
    if found.lower_bound_ns is not None:
        document["lower_bound_us"] = us_from_ns(found.lower_bound_ns)
    return document


def print_overheads(
    console: Console, problem: Problem, rows: Sequence[tuple[str, Plan]], overheads: Overheads
) -> None:
    """Print plans with their exposed time without and with overheads, and the terms."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for title in ("exposed without", "exposed with", "step with", "launches"):
        table.add_column(title, justify="right")
    for title, plan in rows:
        try:
            timeline = play_overheads(problem, plan, overheads)
        except NotApplicableError:  # a rule's plan in chunks, say
            continue
        table.add_row(
            Text(title),
            format_ns(timeline.nominal.exposed_ns),
            format_ns(timeline.exposed_ns),
            format_ns(timeline.makespan_ns, 5),
            str(plan.launches),
        )
    console.print(table)
    terms = ", ".join(f"{name} {value}" for name, value in overheads.as_row().items())
    console.print(Text(f"overheads: {terms or 'none'}"))


def print_planned(console: Console, found: UnderOverheads, rows: Sequence[Row]) -> None:
    """Print what overheads do to the plan, to others, and to the best plan without them."""
    plan = found.result.plan
    assert plan is not None
    plans = [(row.title, row.plan) for row in rows]
    if found.nominal != plan:
        plans.append(("best plan without overheads", found.nominal))
    plans.append(("this plan", plan))
    print_overheads(console, found.result.problem, plans, found.timeline.overheads)
    console.print(Text(found.words))
    console.print()
    print_buckets(console, found.timeline)
    if found.result.problem.gradients is None:
        return
    try:
        line = ddp_settings(found.result.problem, plan).line
    except NotApplicableError as error:
        console.print(Text(f"PyTorch DDP cannot run this plan exactly: {error}"))
        return
    console.print()
    console.print(Text(f"PyTorch DDP (torch >= {MIN_TORCH}), this plan to the byte:"))
    console.print(Text(f"  {line}"), soft_wrap=True)

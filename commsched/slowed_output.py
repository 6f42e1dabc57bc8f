"""What ``--slowdown`` adds to a command: exposed time with and without it, and the plan made for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.slowdown import play_slowed
from commsched.models.units import format_ns, us_from_ns
from commsched.optimizer import Result
from commsched.optimizer.slowed import SlowedResult, optimize_slowed
from commsched.slowing import KnownSlowdown

Plans = Sequence[tuple[str, str, Plan]]
"""Title, setting and plan of each row."""


def for_slowdown(result: Result, known: KnownSlowdown, time_limit_s: float) -> SlowedResult:
    """Return the best plan under a slowdown, or the best one found in some seconds.

    Raises
    ------
    NotApplicableError
        If a slowdown is not defined for this step.
    """
    return optimize_slowed(
        result.problem, known.slowdown, nominal=result, time_limit_s=time_limit_s
    )


def slowed_document(
    problem: Problem, plans: Plans, known: KnownSlowdown, made: SlowedResult | None = None
) -> dict[str, Any]:
    """Return the factors, and for each plan its times with and without them.

    Raises
    ------
    NotApplicableError
        If a slowdown is not defined for this step.
    """
    compute, launch = known.slowdown.factors
    document: dict[str, Any] = {
        "compute": float(compute),
        "launch": float(launch),
        "source": known.source,
    }
    if made is not None:
        plans = [*plans, ("planned for it", "", made.plan)]
        document["status"] = str(made.status)
    rows = []
    for title, setting, plan in plans:
        timeline = play_slowed(problem, plan, known.slowdown)
        rows.append(
            {
                "title": title,
                "setting": setting,
                "exposed_without_us": us_from_ns(timeline.nominal.exposed_ns),
                "exposed_us": us_from_ns(timeline.exposed_ns),
                "makespan_us": us_from_ns(timeline.makespan_ns),
                "launches": plan.launches,
            }
        )
    document["rows"] = rows
    return document


def print_slowed(
    console: Console,
    problem: Problem,
    plans: Plans,
    known: KnownSlowdown,
    made: SlowedResult | None = None,
) -> None:
    """Print what :func:`slowed_document` returns; where it is not defined, say so."""
    compute, launch = known.slowdown.factors
    beside = f"compute takes {float(compute):g} times as long beside a launch"
    if launch != 1:
        beside += f" and launches {float(launch):g} times beside compute"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("slowed", overflow="fold")
    table.add_column("setting", overflow="fold")
    for title in ("exposed without", "exposed with", "step with", "launches"):
        table.add_column(title, justify="right")
    if made is not None:
        plans = [*plans, ("planned for it", str(made.status), made.plan)]
    for title, setting, plan in plans:
        try:
            timeline = play_slowed(problem, plan, known.slowdown)
        except NotApplicableError as error:
            console.print(Text(f"slowdown: {error}"))
            return
        table.add_row(
            Text(title),
            Text(setting),
            format_ns(timeline.nominal.exposed_ns),
            format_ns(timeline.exposed_ns),
            format_ns(timeline.makespan_ns, 5),
            str(plan.launches),
        )
    console.print(table)
    console.print(Text(f"slowdown: {beside} ({known.source})"))
    console.print()

"""What a command compares the best plan with: what runs today."""

from __future__ import annotations

from pathlib import Path

from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError, PlanError
from commsched.models.timeline import play
from commsched.optimizer import Comparison, Row, rule, verdict
from commsched.problems import Loaded

TODAY = ("ddp", "fsdp2")
"""The rules that say what runs today where no recording does: the first that applies."""


def today(loaded: Loaded, best_ns: int) -> Row | None:
    """Return what runs today: the recorded buckets where there are some, else a default.

    Its timeline may break a limit of the problem (see ``Timeline.broken``).

    Parameters
    ----------
    loaded
        The problem and where it comes from.
    best_ns
        The makespan of the best plan that is known, or 0.
    """
    problem = loaded.problem
    if loaded.recorded is not None and (recorded := loaded.recorded.plan) is not None:
        try:
            return row_of(problem, "recorded", "the recorded buckets", "", recorded, best_ns)
        except PlanError:
            pass  # the recorded order cannot be that of launches
    sharded = any(key.kind in ("all_gather", "reduce_scatter") for key in problem.chains)
    for name in TODAY:
        known = rule(name)
        if name == "ddp" and sharded:
            continue  # it could bucket the all-reduces, but does not run such a step
        try:
            plan = known.make(problem)
            return row_of(problem, name, known.title, known.setting, plan, best_ns)
        except (NotApplicableError, PlanError):
            continue
    return None


def today_row(comparison: Comparison, loaded: Loaded) -> Row | None:
    """Return what runs today, as the comparison's row where it has one; None if it breaks a limit."""
    found = today(loaded, comparison.result.makespan_ns)
    if found is None or found.timeline.broken:
        return None
    return next((row for row in comparison.rows if row.name == found.name), found)


def row_of(problem: Problem, name: str, title: str, setting: str, plan: Plan, best_ns: int) -> Row:
    """Return a plan as a row of a comparison.

    Raises
    ------
    PlanError
        If the plan does not fit the problem or never ends.
    """
    timeline = play(problem, plan)
    over = timeline.makespan_ns - best_ns
    return Row(name, title, setting, plan, timeline, 0 if -plan.launches <= over < 0 else over)


def best_cap_row(comparison: Comparison) -> Row | None:
    """Return what DDP does with its best cap, if that was looked for."""
    return next((row for row in comparison.rows if row.name == "ddp-best"), None)


def tuned_row(comparison: Comparison, today: Row | None) -> Row | None:
    """Return the best setting of the framework that runs today, or of any where it has none."""
    found = [row for row in comparison.rows if row.name in comparison.best_settings]
    framework = "ddp" if today is None or today.name == "recorded" else today.name
    own = [row for row in found if row.name.startswith(f"{framework}-")]
    return min(own or found, key=lambda row: (row.timeline.makespan_ns, row.launches), default=None)


def draw_plan(path: Path, comparison: Comparison, today: Row | None) -> None:
    """Draw the timelines of what runs today and of the best plan."""
    from commsched.picture import Panel, draw

    best = comparison.optimal
    rows = [row for row in (today, best) if row is not None]
    draw(
        [Panel.of(row.title, row.timeline) for row in rows],
        path,
        title=comparison.result.problem.name or "unnamed problem",
        subtitle=verdict(comparison.result, today),
    )


def draw_comparison_page(path: Path, comparison: Comparison, sentence: str) -> None:
    """Draw exposed time over the cap, with every rule."""
    from commsched.cap_picture import draw_comparison

    title = comparison.result.problem.name or "unnamed problem"
    draw_comparison(comparison, path, title=title, subtitle=sentence)

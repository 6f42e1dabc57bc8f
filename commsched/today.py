"""What a command compares the best plan with: what runs today."""

from __future__ import annotations

from pathlib import Path

from commsched.models import evaluate
from commsched.models.errors import DeadlockError
from commsched.optimizer import Comparison, Row, verdict
from commsched.problems import Loaded

TODAY = ("ddp", "fsdp2")
"""The rules that say what runs today where no recording does: the first that applies."""


def today_row(comparison: Comparison, loaded: Loaded) -> Row | None:
    """Return what runs today: the recorded buckets where there are some, else a default."""
    problem = comparison.result.problem
    if loaded.recorded is not None and (recorded := loaded.recorded.plan) is not None:
        try:
            timeline = evaluate(problem, recorded)
        except DeadlockError:
            pass
        else:
            if timeline.broken:
                return None
            over = max(0, timeline.makespan_ns - comparison.result.makespan_ns)
            return Row("recorded", "the recorded buckets", "", recorded, timeline, over)
    return next((row for name in TODAY for row in comparison.rows if row.name == name), None)


def best_cap_row(comparison: Comparison) -> Row | None:
    """Return what DDP does with its best cap, if that was looked for."""
    return next((row for row in comparison.rows if row.name == "ddp-best"), None)


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

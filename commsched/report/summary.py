"""What ``commsched report`` says itself: some lines for people, one object for scripts."""

from __future__ import annotations

from typing import Any

from commsched.models.slowdown import SlowedTimeline
from commsched.models.units import format_ns, us_from_ns
from commsched.overheads_output import planned_document
from commsched.report.beyond import safety_lead
from commsched.report.contents import Contents
from commsched.report.overheads import WithOverheads
from commsched.report.slowed import factor_text


def summary_lines(contents: Contents) -> list[str]:
    """Return the verdict, and what was asked for beside it."""
    lines = [f"verdict: {contents.verdict}"]
    if contents.slowed is not None and contents.slowed.stated:
        for row in contents.slowed.rows:
            kept = row.kept
            lines.append(
                f"with {factor_text(row.slowdown)} the best plan exposes "
                f"{format_ns(kept.exposed_ns)}, without {format_ns(kept.nominal.exposed_ns)}"
            )
    if contents.overheads is not None:
        lines.append(_overheads_line(contents.overheads))
    if contents.safety is not None and contents.safety.named:
        lead = safety_lead(contents.safety)
        lines.append(f"{lead[0].lower()}{lead[1:].rstrip('.')}")
    return lines


def summary_document(contents: Contents) -> dict[str, Any]:
    """Return the same as plain data, times in microseconds."""
    found: dict[str, Any] = {
        "status": str(contents.result.status),
        "verdict": contents.verdict,
    }
    if contents.slowed is not None:
        found["slowdown"] = {
            "source": contents.slowed.source or "what if",
            "why_not": contents.slowed.why_not or None,
            "rows": [
                {
                    "compute": float(row.slowdown.factors[0]),
                    "launch": float(row.slowdown.factors[1]),
                    "today": None if row.today is None else _slowed(row.today),
                    "plan": _slowed(row.kept),
                    "planned_for_it": None if row.best is None else _slowed(row.best.timeline),
                    "plan_changes": row.changes,
                }
                for row in contents.slowed.rows
            ],
        }
    if contents.overheads is not None:
        found["overheads"] = _overheads(contents.overheads)
    if contents.safety is not None:
        safety = contents.safety
        found["robust"] = {
            "named": safety.named,
            "fit_error": safety.error,
            "why_not": safety.why_not or None,
            "status": None if safety.found is None else str(safety.found.status),
            "buckets": None
            if safety.found is None
            else [list(bucket.names) for bucket in safety.found.plan.buckets],
            "cases": [
                {
                    "case": row.title,
                    "best_us": us_from_ns(row.best_ns),
                    "nominal_regret_us": _us(row.nominal_ns),
                    "robust_regret_us": _us(row.robust_ns),
                }
                for row in safety.rows
            ],
        }
    return found


def _overheads_line(found: WithOverheads) -> str:
    if found.kept is None:
        return f"with overheads nothing can be said: {found.why_not}"
    kept = found.kept
    return (
        f"with overheads the best plan exposes {format_ns(kept.exposed_ns)}, "
        f"without {format_ns(kept.nominal.exposed_ns)}"
    )


def _overheads(found: WithOverheads) -> dict[str, Any]:
    made: dict[str, Any] = {"source": found.known.source, "why_not": found.why_not or None}
    if found.found is not None:
        made.update(planned_document(found.found))
        plan = found.found.result.plan
        made["buckets"] = None if plan is None else [list(one.names) for one in plan.buckets]
    made["rows"] = [
        {
            "title": title,
            "makespan_us": us_from_ns(timeline.makespan_ns),
            "exposed_us": us_from_ns(timeline.exposed_ns),
            "exposed_without_us": us_from_ns(timeline.nominal.exposed_ns),
            "launches": timeline.plan.launches,
        }
        for title, timeline in found.rows
    ]
    return made


def _us(ns: int | None) -> float | None:
    return None if ns is None else us_from_ns(ns)


def _slowed(timeline: SlowedTimeline) -> dict[str, Any]:
    return {
        "makespan_us": us_from_ns(timeline.makespan_ns),
        "exposed_us": us_from_ns(timeline.exposed_ns),
        "exposed_without_us": us_from_ns(timeline.nominal.exposed_ns),
        "launches": timeline.plan.launches,
    }

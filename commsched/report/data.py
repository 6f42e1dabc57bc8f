"""The plain data of a report: what the page's scripts draw. Times are nanoseconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from commsched.models import Problem, Timeline
from commsched.models.units import us_from_ns
from commsched.optimizer import Comparison, Row
from commsched.optimizer.sensitivity import Regret, Segment, Sensitivity, Span
from commsched.report import texts
from commsched.report.contents import Contents
from commsched.report.curve import (
    MOST_OTHER_RANGES,
    MOST_RANGES,
    Curve,
    mean_size,
    seen_apart,
    thinned,
)
from commsched.report.overheads import terms_text
from commsched.report.slowed import factor_text
from commsched.report.stability import Stability
from commsched.report.timelines import REASONS, Compute, Names, timeline_data
from commsched.report.what_if import Outcome, Point, WhatIf

FORMAT, VERSION = "commsched/report", 1
MOST_SEGMENTS = 400
"""A regret curve with more bends is thinned out for the picture."""


def report_data(contents: Contents) -> dict[str, Any]:
    """Return everything that the page's scripts draw."""
    result = contents.result
    names = Names(result.problem)
    compute = Compute(names)
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "status": str(result.status),
        "gradients": result.problem.gradients is not None,
        "reasons": [str(reason) for reason in REASONS],
        "timelines": [
            timeline_data(timeline, title, note, names, compute)
            for title, note, timeline in shown_timelines(contents)
        ],
        "compute": compute.written,
        "names": names.texts,
        "chart": None,
        "what_if": None,
        "stability": None,
    }
    if contents.comparison is not None:
        curves = [contents.curve] if contents.curve is not None else []
        document["chart"] = chart_data(contents.comparison, [*curves, *contents.other_curves])
    if contents.what_if is not None and contents.what_if.points:
        document["what_if"] = what_if_data(contents.what_if, result.problem)
    if contents.stability is not None:
        document["stability"] = stability_data(contents.stability)
    return document


def shown_timelines(contents: Contents) -> list[tuple[str, str, Timeline]]:
    """Return the timelines with a title and a note.

    These are today's, the framework's best, the optimum, and that or another plan under the slowdown
    if the user states one; likewise with overheads.
    """
    rows: list[tuple[str, str, Row]] = []
    now, used = contents.today, contents.framework
    if now is not None:
        title = f"{'Today' if now.name == 'recorded' else 'By default'}: {now.title}"
        broken = now.timeline.broken
        rows.append((title, f"breaks a limit: {broken[0]}" if broken else now.setting, now))
    if contents.comparison is not None:
        best = contents.comparison.optimal
        if used is not None and used.row is not None:
            same = [title for title, _, row in rows if row.plan == used.row.plan]
            if not same and used.row.plan != best.plan:
                rows.append((f"Best setting: {used.row.title}", used.row.setting, used.row))
        title = best.title[0].upper() + best.title[1:]
        exact = used is not None and used.export is not None and used.export.exact
        rows.append((title, f"{used.title} can run it" if exact and used is not None else "", best))
    shown: list[tuple[str, str, Timeline]] = [
        (title, note, row.timeline) for title, note, row in rows
    ]
    if contents.slowed is not None and contents.slowed.stated:
        for each in contents.slowed.rows:
            timeline = each.kept
            title = "The best plan, slowed"
            if each.best is not None and each.changes:
                timeline, title = each.best.timeline, "A plan for the slowdown"
            shown.append((title, factor_text(each.slowdown), timeline))
    added = contents.overheads
    if added is not None and added.rows:
        titles = {"the best plan": "The best plan, with overheads"}
        title, last = added.rows[-1]
        shown.append(
            (titles.get(title, "A plan for the overheads"), terms_text(last.overheads), last)
        )
    return shown


def chart_data(comparison: Comparison, curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the exposed time over every rule's cap, with every rule, the optimum and the bound."""
    best = comparison.optimal
    numbered = enumerate((best, *comparison.rows))
    return {
        "best": best.timeline.exposed_ns,
        "best_title": best.title,
        "bound": max(0, comparison.lower_bound_ns - best.timeline.compute_ns),
        "rows": [
            {
                "number": number,
                "name": row.name,
                "title": texts.line(row.title),
                "setting": texts.line(row.setting),
                "exposed": row.timeline.exposed_ns,
                "launches": row.launches,
                "size": mean_size(row),
            }
            for number, row in numbered
        ],
        "limited": bool(comparison.result.problem.limits),
        "curves": curves_data(curves),
    }


def curves_data(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return what each cap of each rule gives; rules that do the same share one curve."""
    found: list[dict[str, Any]] = []
    shown: list[Curve] = []
    for curve in curves:
        twin = next((k for k, other in enumerate(shown) if _alike(curve, other)), None)
        if twin is not None:
            found[twin]["names"].append(curve.name)
            found[twin]["titles"].append(curve.title)
            continue
        most = MOST_OTHER_RANGES if shown else MOST_RANGES
        shown.append(curve)
        found.append(
            {
                "names": [curve.name],
                "titles": [curve.title],
                "in_bytes": curve.in_bytes,
                "unit": curve.unit_bytes,
                "cuts": curve.cuts,
                "sampled": curve.sampled,
                "plans": len(curve.ranges),
                "best": [curve.best.low, curve.best.high, curve.best.exposed_ns],
                "best_text": curve.best_text,
                "equal": seen_apart(curve.equal_elsewhere),
                "flat": seen_apart(curve.flat_spans),
                "flat_text": curve.flat_text,
                "ranges": [
                    [r.low, r.high, r.exposed_ns, r.launches] for r in thinned(curve.ranges, most)
                ],
            }
        )
    return found


def _alike(one: Curve, other: Curve) -> bool:
    return (one.in_bytes, one.cuts, one.ranges) == (other.in_bytes, other.cuts, other.ranges)


def what_if_data(found: WhatIf, problem: Problem) -> dict[str, Any]:
    """Return the computed points; a plan's values are its step and its exposed time."""
    return {
        "factors": [float(factor) for factor in found.factors],
        "labels": [_ratio(factor) for factor in found.factors],
        "titles": [texts.line(title) for title in found.titles],
        "combined": found.combined,
        "optimal": found.optimal,
        "network": network_values(problem),
        "points": [_point(point) for point in found.points],
    }


def _point(point: Point) -> list[Any]:
    return [
        list(point.place),
        point.compute_ns,
        point.bound_ns,
        _outcome(point.best),
        point.launches,
        [_outcome(one) for one in point.kept],
    ]


def _outcome(outcome: Outcome | None) -> list[int] | None:
    return None if outcome is None else [outcome.makespan_ns, outcome.exposed_ns]


def _ratio(factor: Fraction) -> str:
    """Return a factor as people write it.

    Examples
    --------
    >>> _ratio(Fraction(3, 4)), _ratio(Fraction(2))
    ('3/4', '2')
    """
    return str(factor)


def network_values(problem: Problem) -> dict[str, float] | None:
    """Return start-up and bandwidth where the step has one straight cost; else None."""
    pieces = {problem.cost(key).affine for key in problem.chains}
    piece = pieces.pop()
    if piece is None or pieces or not piece.slope:
        return None
    return {
        "alpha_us": us_from_ns(1) * piece.intercept / piece.scale,
        "bandwidth_gb_s": piece.scale / piece.slope,
    }


def stability_data(found: Stability) -> dict[str, Any]:
    """Return ranges of factors, and what it costs to keep the plan where it is not optimal."""
    return {str(knob): _knob(each) for knob, each in found.knobs.items()}


def _knob(found: Sensitivity) -> dict[str, Any]:
    return {
        "searched": _span(found.searched),
        "optimal": _span(found.optimal),
        "good": _span(found.good),
        "complete": found.complete,
        "regrets": _thinned([_regret(each) for each in found.regrets]) if found.complete else [],
        "segments": _thinned([_segment(each) for each in found.segments]),
    }


def _span(span: Span | None) -> list[float] | None:
    return None if span is None else [float(span.low), float(span.high)]


def _regret(regret: Regret) -> list[float]:
    return [float(regret.factor), float(regret.ns), regret.share]


def _segment(segment: Segment) -> list[float]:
    return [float(segment.low), float(segment.high), segment.launches]


def _thinned(rows: list[list[float]]) -> list[list[float]]:
    """Return about so many rows as a picture can show, the first and the last among them."""
    every = -(-len(rows) // MOST_SEGMENTS) or 1
    kept = rows[::every]
    return kept if not rows or kept[-1] is rows[-1] else [*kept, rows[-1]]

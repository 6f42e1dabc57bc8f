"""What ``commsched sensitivity`` prints: tables for people, one object for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commsched.models import Problem
from commsched.models.errors import printable
from commsched.models.units import NS_PER_US, format_ns, us_from_ns
from commsched.optimizer import Result
from commsched.optimizer.comparison import percent
from commsched.optimizer.hiding import Hiding
from commsched.optimizer.parametric import Knob
from commsched.optimizer.robust import RobustResult
from commsched.optimizer.sensitivity import Regret, Sensitivity, Span
from commsched.optimizer.slowed import SlowedResult
from commsched.problems import problem_digest

TITLES = {
    Knob.ALPHA: "start-up latency",
    Knob.BANDWIDTH: "bandwidth",
    Knob.COMPUTE: "compute speed",
}


def nominal_value(problem: Problem, knob: Knob) -> tuple[float, str] | None:
    """Return what a factor of 1 stands for where all launches cost the same straight line."""
    pieces = {problem.cost(key).affine for key in problem.chains}
    piece = pieces.pop()
    if pieces or piece is None or knob is Knob.COMPUTE:
        return None
    if knob is Knob.ALPHA:
        return piece.intercept / piece.scale / NS_PER_US, "us"
    return (piece.scale / piece.slope, "GB/s") if piece.slope else None


def print_knobs(console: Console, problem: Problem, knobs: Sequence[Sensitivity]) -> None:
    """Print a row for each knob: where the plan is optimal, where it is good, its worst regret."""
    searched = knobs[0].searched
    console.print(
        f"the best plan has {knobs[0].plan.launches} launches; factors from "
        f"{_factor(searched.low)} to {_factor(searched.high)} were looked at, all else unchanged"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what changes")
    table.add_column("now", justify="right")
    table.add_column("the plan is best")
    table.add_column(f"costs at most {float(100 * knobs[0].within):g}%")
    table.add_column("plans", justify="right")
    table.add_column("worst: it costs", justify="right")
    table.add_column("at", justify="right")
    for found in knobs:
        value = nominal_value(problem, found.knob)
        worst = found.worst_share
        table.add_row(
            TITLES[found.knob],
            "" if value is None else f"{value[0]:.3g} {value[1]}",
            _range(found.optimal, found.searched),
            _range(found.good, found.searched),
            f"{len(found.segments)}" + ("" if found.complete else "+"),
            "unknown" if worst is None else _cost(worst),
            "" if worst is None or not worst.ns else _factor(worst.factor),
        )
    console.print(table)


def _cost(regret: Regret) -> str:
    whole = round(regret.optimum_ns)
    share = f" {percent(round(regret.ns), whole)}" if whole else ""
    return f"{format_ns(round(regret.ns))}{share}"


def _range(span: Span | None, searched: Span) -> str:
    if span is None:
        return "nowhere"
    low = "" if span.low == searched.low else _factor(span.low, down=False)
    high = "" if span.high == searched.high else _factor(span.high)
    if not low and not high:
        return "everywhere"
    if not low:
        return f"up to {high}"
    return f"from {low}" if not high else f"{low} to {high}"


def _factor(value: Fraction, *, down: bool = True) -> str:
    """Return a factor with four figures, rounded so that a range gets no wider."""
    digits = max(0, 4 - len(str(int(value)))) if value >= 1 else 4
    unit = 10**digits
    whole = value * unit // 1 if down else -(-value * unit // 1)
    return f"{int(whole) / unit:.6g}x"


def print_hiding(console: Console, hiding: Hiding) -> None:
    """Print from which bandwidth on communication hides."""
    share = f"{float(100 * hiding.share):g}%"
    if hiding.factor is None:
        text = (
            f"no bandwidth hides communication up to {share} of the step: start-up latencies and "
            f"ready times leave {format_ns(round(hiding.least_exposed_ns))} exposed"
        )
    elif not hiding.factor:
        text = f"communication is hidden up to {share} of the step at any bandwidth"
    else:
        value = (
            "" if hiding.bandwidth_gb_s is None else f" ({float(hiding.bandwidth_gb_s):.4g} GB/s)"
        )
        text = (
            f"communication hides up to {share} of the step from "
            f"{_factor(hiding.factor, down=False)} the bandwidth on{value}"
        )
    console.print(text)


def print_slowed(console: Console, slowed: SlowedResult, source: str) -> None:
    """Print exposed time with and without a slowdown, and what planning for it gains."""
    compute, launch = slowed.timeline.slowdown.factors
    also = f", launches {float(launch):g}x as long beside compute" if launch != 1 else ""
    console.print(
        Text(f"compute takes {float(compute):g}x as long beside launches{also}", style="bold")
    )
    if source != "stated":
        console.print(source, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("plan", "launches", "exposed", "exposed without slowdown", "step"):
        table.add_column(title, justify="left" if title == "plan" else "right")
    for title, timeline in (
        ("best without slowdown", slowed.ignorant),
        ("best with it" if slowed.status == "optimal" else "best found with it", slowed.timeline),
    ):
        table.add_row(
            title,
            str(timeline.plan.launches),
            format_ns(timeline.exposed_ns),
            format_ns(timeline.nominal.exposed_ns),
            format_ns(timeline.makespan_ns),
        )
    console.print(table)
    bound = f"{format_ns(slowed.bound.ns, 4)}, from: {slowed.bound.proof}"
    console.print(f"{slowed.status}; no step is shorter than {bound}; {slowed.reason}")


def print_robust(console: Console, safe: RobustResult, names: Sequence[str]) -> None:
    """Print what the robust and the nominal plan do in each case."""
    console.print(Text(f"one plan for {len(safe.cases)} cases", style="bold"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case")
    for title in ("best", "nominal plan over it", "robust plan over it"):
        table.add_column(title, justify="right")
    for name, case in zip(names, safe.cases, strict=True):
        nominal = case.nominal_regret_ns
        table.add_row(
            Text(printable(name)),
            format_ns(case.best_ns),
            "cannot run" if nominal is None else format_ns(nominal),
            format_ns(case.regret_ns),
        )
    console.print(table)
    launches = f"the robust plan has {safe.plan.launches} launches, the nominal one "
    console.print(f"{launches}{safe.nominal.launches}")
    bound = "" if safe.status == "optimal" else f"; no plan stays below {format_ns(safe.bound_ns)}"
    console.print(f"{safe.status}: {safe.reason}{bound}")


def nominal_document(problem: Problem, result: Result) -> dict[str, Any]:
    """Return what is known before other numbers are looked at: all that there is without a plan."""
    return {
        "problem": problem.name,
        "problem_digest": problem_digest(problem),
        "status": str(result.status),
        "lower_bound_us": us_from_ns(result.lower_bound_ns),
        "launches": None if result.plan is None else result.plan.launches,
        "knobs": {},
    }


def document(
    problem: Problem,
    result: Result,
    knobs: Sequence[Sensitivity],
    hiding: Hiding | None,
    slowed: SlowedResult | None,
    source: str,
    safe: RobustResult | None,
    names: Sequence[str],
    why_not: str,
) -> dict[str, Any]:
    """Return everything as plain data; factors are of the nominal values, times in microseconds."""
    found = nominal_document(problem, result)
    found["knobs"] = {str(knob.knob): _knob_document(problem, knob) for knob in knobs}
    if why_not:
        found["why_not"] = why_not
    if hiding is not None:
        found["hiding"] = {
            "percent": float(100 * hiding.share),
            "factor": _number(hiding.factor),
            "bandwidth_gb_s": _number(hiding.bandwidth_gb_s),
            "launches": None if hiding.plan is None else hiding.plan.launches,
            "least_exposed_us": float(hiding.least_exposed_ns) / NS_PER_US,
        }
    if slowed is not None:
        compute, launch = slowed.timeline.slowdown.factors
        found["slowdown"] = {
            "compute": float(compute),
            "launch": float(launch),
            "source": source,
            "status": str(slowed.status),
            "method": slowed.method,
            "reason": slowed.reason,
            "lower_bound_us": us_from_ns(slowed.bound.ns),
            "gap": slowed.gap,
            "nominal_plan": _slowed_document(slowed, ignorant=True),
            "plan": _slowed_document(slowed, ignorant=False),
        }
    if safe is not None:
        found["robust"] = {
            "status": str(safe.status),
            "method": safe.method,
            "reason": safe.reason,
            "worst_regret_us": us_from_ns(safe.worst.regret_ns),
            "bound_us": us_from_ns(safe.bound_ns),
            "buckets": [list(bucket.names) for bucket in safe.plan.buckets],
            "cases": [
                {
                    "case": title,
                    "name": case.name,
                    "best_us": us_from_ns(case.best_ns),
                    "lower_bound_us": us_from_ns(case.bound_ns),
                    "makespan_us": us_from_ns(case.makespan_ns),
                    "nominal_us": None if case.nominal_ns is None else us_from_ns(case.nominal_ns),
                }
                for title, case in zip(names, safe.cases, strict=True)
            ],
        }
    return found


def _knob_document(problem: Problem, found: Sensitivity) -> dict[str, Any]:
    value = nominal_value(problem, found.knob)
    return {
        "nominal": None if value is None else {"value": value[0], "unit": value[1]},
        "searched": _span_document(found.searched),
        "optimal": _span_document(found.optimal),
        "rounding_us": float(found.rounding_ns) / NS_PER_US,
        "within_percent": float(100 * found.within),
        "within": _span_document(found.good),
        "complete": found.complete,
        "segments": [
            {"low": float(s.low), "high": float(s.high), "launches": s.launches}
            for s in found.segments
        ],
        "regrets": [_regret_document(regret) for regret in found.regrets],
        "worst": None if found.worst is None else _regret_document(found.worst),
        "worst_percent": None if found.worst_share is None else _regret_document(found.worst_share),
    }


def _span_document(span: Span | None) -> dict[str, float] | None:
    return None if span is None else {"low": float(span.low), "high": float(span.high)}


def _regret_document(regret: Regret) -> dict[str, float]:
    return {
        "factor": float(regret.factor),
        "makespan_us": float(regret.makespan_ns) / NS_PER_US,
        "optimum_us": float(regret.optimum_ns) / NS_PER_US,
        "regret_us": float(regret.ns) / NS_PER_US,
        "regret_percent": 100 * regret.share,
    }


def _slowed_document(slowed: SlowedResult, *, ignorant: bool) -> dict[str, Any]:
    timeline = slowed.ignorant if ignorant else slowed.timeline
    return {
        "makespan_us": us_from_ns(timeline.makespan_ns),
        "exposed_us": us_from_ns(timeline.exposed_ns),
        "exposed_without_us": us_from_ns(timeline.nominal.exposed_ns),
        "compute_us": us_from_ns(timeline.compute_ns),
        "buckets": [list(bucket.names) for bucket in timeline.plan.buckets],
    }


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)

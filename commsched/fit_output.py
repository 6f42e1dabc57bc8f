"""What ``commsched fit`` says: tables for people, one JSON object for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commsched.fit_tables import Fitted, Tables
from commsched.models import AlphaBeta
from commsched.models.errors import printable
from commsched.models.fit import Fit
from commsched.models.fit_quality import RangeError, error_ranges, half_bandwidth_bytes
from commsched.models.units import format_bytes
from commsched.problems.cost_rows import row_from_curve


def fit_document(tables: Tables) -> dict[str, Any]:
    """Return all that was found, as JSON can hold it."""
    return {
        "tables": [_table_document(one) for one in tables.fitted],
        "left_out": [{"table": title, "reason": why} for title, why in tables.left_out],
        "logs": [
            {
                "source": log.source,
                "rows_read": log.report.events_read,
                "rows_kept": log.report.kept["rows"],
                "dropped": dict(log.report.dropped),
                "assumptions": list(log.report.assumptions),
                "checks": [
                    {"text": check.text, "passed": check.passed} for check in log.report.checks
                ],
            }
            for log in tables.logs
        ],
    }


def _table_document(one: Fitted) -> dict[str, Any]:
    table, fall = one.table, one.fall
    return {
        "source": one.log.source,
        "lines": list(one.lines),
        "operation": table.operation,
        "kind": table.kind,
        "ranks": table.ranks,
        "nodes": table.nodes,
        "group": table.group,
        "dtype": table.dtype,
        "sizes_are_per_rank": table.per_rank,
        "tool": table.tool,
        "version": table.version,
        "date": table.date,
        "rows": len(one.points),
        "sizes": one.line.sizes,
        "points": [list(point) for point in one.points],
        "line": _fit_document(one.line),
        "pieces": None if one.curve is None else _fit_document(one.curve),
        "raw": None if one.raw is None else _fit_document(one.raw),
        "refused": one.refused,
        "fall": None
        if fall is None
        else {
            "bytes": fall.bytes,
            "us": fall.us,
            "larger_bytes": fall.larger_bytes,
            "less_us": fall.less_us,
            "least_error": fall.least_error,
        },
    }


def _fit_document(fit: Fit) -> dict[str, Any]:
    row = row_from_curve(fit.curve, "fit")
    cost: dict[str, Any] = {"points": row.points} if row.points else {}
    if isinstance(fit.curve, AlphaBeta):
        cost = {"alpha_us": row.alpha_us, "bandwidth_gb_s": row.bandwidth_gb_s}
    return {
        "cost": cost,
        "mean_error": fit.mean_error,
        "max_error": fit.max_error,
        "worst_bytes": fit.worst_bytes,
        "pieces": fit.pieces,
        "half_bandwidth_bytes": half_bandwidth_bytes(fit.curve),
        "ranges": [
            {
                "first_bytes": each.first_bytes,
                "end_bytes": each.end_bytes,
                "sizes": each.sizes,
                "mean_error": each.mean_error,
                "max_error": each.max_error,
            }
            for each in error_ranges(fit)
        ],
        "notes": list(fit.notes),
    }


def print_fits(console: Console, tables: Tables) -> None:
    """Print each table's fits, their errors by range of sizes, and what was not used."""
    for one in tables.fitted:
        _print_table(console, one)
        console.print()
    for title, why in tables.left_out:
        console.print(_line(f"left out: {title}: {why}"))
    for log in tables.logs:
        name = Path(log.source).name
        dropped = ", ".join(f"{count} x {what}" for what, count in log.report.dropped.items())
        if dropped:
            console.print(_line(f"{name}: rows not used: {dropped}"))
        for note in log.report.assumptions:
            console.print(_line(f"{name}: {note}", "dim"))
        for check in log.report.checks:
            if not check.passed:
                console.print(_line(f"DOUBT {name}: {check.text}", "bold yellow"))


def _print_table(console: Console, one: Fitted) -> None:
    first, last = one.line.errors[0][0], one.line.errors[-1][0]
    console.print(_line(one.title, "bold"))
    tool = one.table.version or one.table.tool
    part = " of one rank's part" if one.table.per_rank else ""
    console.print(
        _line(
            f"  {one.line.sizes} sizes{part} from {format_bytes(first)} to {format_bytes(last)}, "
            f"by {tool}" + (f", {one.table.date}" if one.table.date else "")
        )
    )
    curve = one.line.curve
    assert isinstance(curve, AlphaBeta)
    console.print(
        _line(
            f"  line: {float(curve.alpha_us):.4g} us + bytes over "
            f"{float(curve.bandwidth_gb_s):.4g} GB/s, {_quality(one.line)}"
        )
    )
    if one.curve is None:
        console.print(_line(f"  pieces: none: {one.refused}", "bold yellow"))
    else:
        pieces = f"{one.curve.pieces} piece{'s' * (one.curve.pieces != 1)}"
        console.print(_line(f"  {pieces}: {_quality(one.curve)}"))
    if one.fall is not None and one.curve is not None:
        how = "repaired" if one.curve.notes != one.line.notes else "smoothed within the error"
        console.print(_line(f"  {one.fall}: {how}"))
    notes = [*one.line.notes, *(one.curve.notes if one.curve else ())]
    if len(one.lines) > 1:
        notes.append(f"{len(one.lines)} runs of the log are put together")
    for note in dict.fromkeys(notes):
        console.print(_line(f"  {note}", "dim"))
    console.print(_ranges(one))


def _quality(fit: Fit) -> str:
    half = half_bandwidth_bytes(fit.curve)
    text = f"off by {_percent(fit.mean_error)}, at most {_percent(fit.max_error)} (at "
    text += f"{format_bytes(fit.worst_bytes)})"
    if half is None:
        return text
    if not isinstance(fit.curve, AlphaBeta) and half == fit.errors[0][0]:
        return f"{text}, more than half of its bandwidth at every size"
    return f"{text}, half of its bandwidth at {format_bytes(half)}"


def _ranges(one: Fitted) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("  sizes from")
    for name in ("to below", "points", "line off by", "at most", "pieces off by", "at most"):
        table.add_column(name, justify="right")
    lines = error_ranges(one.line)
    curves: tuple[RangeError | None, ...] = (None,) * len(lines)
    if one.curve is not None:
        curves = error_ranges(one.curve)
    for line, curve in zip(lines, curves, strict=True):
        table.add_row(
            f"  {_short(line.first_bytes)}",
            _short(line.end_bytes),
            str(line.sizes),
            _percent(line.mean_error),
            _percent(line.max_error),
            "-" if curve is None else _percent(curve.mean_error),
            "-" if curve is None else _percent(curve.max_error),
        )
    return table


def _short(size: int) -> str:
    return format_bytes(size).replace(".00 ", " ")


def _percent(error: float) -> str:
    return f"{100 * error:.1f}%" if error < 9.995 else f"{100 * error:.0f}%"


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)

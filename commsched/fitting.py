"""``commsched fit LOG...``: cost curves from benchmark logs, with how far they are off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commsched.models import AlphaBeta
from commsched.models.errors import InputError, printable
from commsched.models.fit import Fit, fit_alpha_beta, fit_piecewise
from commsched.models.units import format_bytes
from commsched.output import make_console
from commsched.problems import write_costs
from commsched.problems.bench_logs import BenchmarkLog, BenchmarkTable, read_benchmark_log
from commsched.problems.cost_rows import row_from_curve
from commsched.process import print_json


class Fitted(NamedTuple):
    """A measured table with one line and a curve of pieces through it."""

    log: BenchmarkLog
    table: BenchmarkTable
    line: Fit
    curve: Fit


def fit_command(
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG...", help="nccl-tests, rccl-tests or OSU logs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write the all-reduce's curve as a cost file."
        ),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", help="Take tables of so many ranks, or of unknown.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Take the in-place times, as DDP reduces.")
    ] = False,
    min_bytes: Annotated[int, typer.Option("--min-bytes", help="Leave out smaller sizes.")] = 1,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Leave out larger sizes.")
    ] = None,
    max_error: Annotated[
        float, typer.Option("--max-error", help="Relative error that the pieces may have.")
    ] = 0.05,
    one_line: Annotated[
        bool, typer.Option("--line", help="Write one alpha-beta line instead of pieces.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Fit cost curves to benchmark logs, and say how far they are off."""
    found = [
        fitted
        for path in logs
        for fitted in _fit_log(path, ranks, in_place, min_bytes, max_bytes, max_error)
    ]
    if not found:
        raise InputError("fit: no table has two sizes left with these options")
    if out is not None:
        fitted = _the_allreduce(found)
        curve = (fitted.line if one_line else fitted.curve).curve
        write_costs(curve, out, f"{Path(fitted.log.source).name}: {fitted.table.title}")
    if as_json:
        print_json({"tables": [_document(fitted) for fitted in found]})
        return
    _print(make_console(), found)
    if out is not None:
        typer.echo(f"written to {out}")


def _fit_log(
    path: Path,
    ranks: int | None,
    in_place: bool,
    min_bytes: int,
    max_bytes: int | None,
    max_error: float,
) -> list[Fitted]:
    log = read_benchmark_log(path, ranks=ranks)
    fits = []
    for table in log.tables:
        if ranks is not None and table.ranks not in (None, ranks):
            continue
        points = [
            (size, us)
            for size, us in (table.in_place if in_place else table.points)
            if size >= min_bytes and (max_bytes is None or size <= max_bytes)
        ]
        if len({size for size, _ in points}) >= 2:
            line, curve = fit_alpha_beta(points), fit_piecewise(points, max_error)
            fits.append(Fitted(log, table, line, curve))
    return fits


def _the_allreduce(found: list[Fitted]) -> Fitted:
    reduces = [fitted for fitted in found if fitted.table.kind == "allreduce"]
    if len(reduces) != 1:
        have = "; ".join(f"{Path(f.log.source).name}: {f.table.title}" for f in found)
        raise InputError(
            f"--out: needs exactly one all-reduce table, {len(reduces)} are there ({have}); "
            "name one log, or --ranks"
        )
    return reduces[0]


def _document(fitted: Fitted) -> dict[str, Any]:
    table = fitted.table
    return {
        "source": fitted.log.source,
        "operation": table.operation,
        "kind": table.kind,
        "ranks": table.ranks,
        "tool": table.tool,
        "rows": len(table.points),
        "line": _fit_document(fitted.line),
        "pieces": _fit_document(fitted.curve),
        "dropped": dict(fitted.log.report.dropped),
        "checks": [
            {"text": check.text, "passed": check.passed} for check in fitted.log.report.checks
        ],
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
        "notes": list(fit.notes),
    }


def _print(console: Console, found: list[Fitted]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("log", "operation"):
        table.add_column(name)
    for name in (
        "ranks",
        "rows",
        "alpha",
        "bandwidth",
        "line off by",
        "pieces",
        "off by",
        "worst at",
    ):
        table.add_column(name, justify="right")
    for log, measured, line, curve in found:
        row = line.curve
        assert isinstance(row, AlphaBeta)
        table.add_row(
            Text(printable(Path(log.source).name)),
            Text(printable(measured.operation or "unknown")),
            "?" if measured.ranks is None else str(measured.ranks),
            str(len(measured.points)),
            f"{float(row.alpha_us):.1f} us",
            f"{float(row.bandwidth_gb_s):.4g} GB/s",
            f"{100 * line.mean_error:.1f}%, at most {100 * line.max_error:.0f}%",
            str(curve.pieces),
            f"{100 * curve.mean_error:.1f}%, at most {100 * curve.max_error:.0f}%",
            format_bytes(curve.worst_bytes),
        )
    console.print(table)
    for fitted in found:
        for note in dict.fromkeys((*fitted.line.notes, *fitted.curve.notes)):
            console.print(Text(printable(f"{Path(fitted.log.source).name}: {note}"), style="dim"))
    for log in {id(fitted.log): fitted.log for fitted in found}.values():
        dropped = ", ".join(f"{count} {what}" for what, count in log.report.dropped.items())
        if dropped:
            console.print(Text(printable(f"{Path(log.source).name}: not used: {dropped}")))
        for check in log.report.checks:
            if not check.passed:
                console.print(Text(printable(f"DOUBT {check.text}"), style="bold yellow"))

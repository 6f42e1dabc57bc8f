"""Fitting the tables of benchmark logs: which tables count, and what is made of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from commsched.models.collectives import Kind
from commsched.models.errors import InputError, printable
from commsched.models.fit import (
    Fall,
    FallingTimesError,
    Fit,
    fit_alpha_beta,
    fit_piecewise,
    raw_curve,
    worst_fall,
)
from commsched.problems import is_recording, read_recording
from commsched.problems.bench.bench_launches import tables_of_launches
from commsched.problems.bench.bench_logs import read_benchmark_log
from commsched.problems.bench.bench_result import BenchmarkLog, BenchmarkTable, Point
from commsched.problems.network import Network, NetworkCurve

Form = Literal["pieces", "line", "raw"]
"""What is written of a table: few straight pieces, one line, or all its points."""

REMEDIES = {
    "pieces": "--repair raises times that fall, --line fits one line, a larger --max-error forgives, "
    "--min-bytes leaves sizes out",
    "raw": "--repair raises times that fall, --line fits one line, --min-bytes leaves sizes out",
}
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user asks of the tables.

    Attributes
    ----------
    ranks
        Only tables of so many ranks, or of an unknown number, which then is this.
    kind
        The kind of tables that leave it open.
    in_place
        Whether to take in-place times.
    min_bytes, max_bytes
        Sizes beyond are left out.
    max_error
        Relative error that pieces may have.
    repair
        Whether to raise times that fall with size.
    form
        What is written.
    """

    ranks: int | None = None
    kind: Kind | None = None
    in_place: bool = False
    min_bytes: int = 1
    max_bytes: int | None = None
    max_error: float = 0.05
    repair: bool = False
    form: Form = "pieces"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A measured table, with what was fitted to it.

    Attributes
    ----------
    log
        Where it comes from.
    table
        The table; that of several runs of one log if they were put together.
    lines
        The lines of these runs' headers.
    points
        The points that count.
    line
        A latency and a bandwidth.
    curve
        Few straight pieces; None if times fall too much.
    raw
        All points; None if times fall at all, unless repaired.
    fall
        The worst pair of sizes of which the larger took less time, as measured.
    refused
        Why there is no curve; empty if there is one.
    """

    log: BenchmarkLog
    table: BenchmarkTable
    lines: tuple[int, ...]
    points: tuple[Point, ...]
    line: Fit
    curve: Fit | None
    raw: Fit | None
    fall: Fall | None
    refused: str

    @property
    def title(self) -> str:
        """The file's name and the table in a few words."""
        return printable(f"{Path(self.log.source).name}: {self.table.title}")

    def form(self, form: Form) -> Fit:
        """Return the fit that is to be written.

        Raises
        ------
        InputError
            If times fall with size so much that there is none; the message says what helps.
        """
        fit = {"pieces": self.curve, "line": self.line, "raw": self.raw}[form]
        if fit is None:
            why = self.refused if form == "pieces" else f"{self.fall}: a cost must not fall"
            raise InputError(f"{self.title}: {why}; {REMEDIES[form]}")
        return fit


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables that were asked for.

    Attributes
    ----------
    fitted
        Those with at least two sizes.
    left_out
        Title of each other one, with the reason.
    logs
        The logs.
    """

    fitted: tuple[Fitted, ...]
    left_out: tuple[tuple[str, str], ...]
    logs: tuple[BenchmarkLog, ...]


def fit_logs(paths: Sequence[Path], choice: Choice) -> Tables:
    """Read logs and fit their tables.

    Runs of the same operation over the same ranks and nodes in one log, by the same tool with the same
    type of elements, are repeated measurements and put together: of each size the median
    counts.

    Raises
    ------
    InputError
        If a log cannot be read, or nothing is left to be fitted.
    """
    fitted: list[Fitted] = []
    left_out: list[tuple[str, str]] = []
    logs = []
    for path in paths:
        log = _read(path, choice)
        logs.append(log)
        for table, lines in _put_together(log.tables):
            title = printable(f"{Path(log.source).name}: {table.title}")
            points = table.in_place if choice.in_place else table.points
            points = tuple(
                (size, us)
                for size, us in points
                if size >= choice.min_bytes
                and (choice.max_bytes is None or size <= choice.max_bytes)
            )
            if choice.ranks is not None and table.ranks not in (None, choice.ranks):
                left_out.append((title, f"--ranks is {choice.ranks}"))
            elif choice.in_place and not table.in_place:
                left_out.append((title, "has no in-place times"))
            elif len({size for size, _ in points}) < 2:
                left_out.append((title, "has fewer than two sizes"))
            else:
                fitted.append(_fit(log, table, lines, points, choice))
    if not fitted:
        reasons = "; ".join(f"{title}: {reason}" for title, reason in left_out[:4])
        raise InputError(f"fit: no table can be fitted: {reasons}")
    return Tables(tuple(fitted), tuple(left_out), tuple(logs))


def _read(path: Path, choice: Choice) -> BenchmarkLog:
    """Return what a log has measured, or what the traces of all ranks of a job show."""
    if not is_recording(path):
        return read_benchmark_log(path, ranks=choice.ranks, kind=choice.kind)
    recording = read_recording(path)
    if recording.report.kept.get("ranks", 1) < 2:
        raise InputError(
            f"{path}: a collective's time on one rank includes waiting for the slowest one: give "
            "the traces of all ranks, as a folder or an archive"
        )
    ranks = {group: n for (group, _), n in recording.needs.items() if n is not None}
    log = tables_of_launches(recording.launches, str(path), ranks=ranks)
    failed = [check for check in recording.report.checks if not check.passed]
    report = replace(log.report, checks=(*log.report.checks, *failed))
    return replace(log, report=report)


def _put_together(
    tables: Sequence[BenchmarkTable],
) -> list[tuple[BenchmarkTable, tuple[int, ...]]]:
    found: dict[object, tuple[BenchmarkTable, tuple[int, ...]]] = {}
    for number, table in enumerate(tables):
        key: object = replace(table, points=(), in_place=(), line=0, date="")
        if table.operation is None:
            key = number
        if key in found:
            first, lines = found[key]
            table = replace(
                first,
                points=first.points + table.points,
                in_place=first.in_place + table.in_place,
                date=first.date or table.date,
            )
            found[key] = table, (*lines, tables[number].line)
        else:
            found[key] = table, (table.line,)
    return list(found.values())


def _fit(
    log: BenchmarkLog,
    table: BenchmarkTable,
    lines: tuple[int, ...],
    points: tuple[Point, ...],
    choice: Choice,
) -> Fitted:
    fall = worst_fall(points)
    curve, raw, refused = None, None, ""
    try:
        curve = fit_piecewise(points, choice.max_error, repair=choice.repair)
    except FallingTimesError as error:
        refused = str(error)
    if fall is None or choice.repair:
        raw = raw_curve(points, repair=choice.repair)
    line = fit_alpha_beta(points)
    return Fitted(log, table, lines, points, line, curve, raw, fall, refused)


def network_of_tables(tables: Tables, form: Form) -> tuple[Network, tuple[tuple[str, str], ...]]:
    """Return the curves of all tables that a step can use, and the others with the reason.

    Parameters
    ----------
    tables
        What was fitted.
    form
        What is taken of each table.

    Raises
    ------
    InputError
        If two tables are for the same kind, ranks, nodes and group, sizes are those of one rank's
        part, times fall with size, or no table can be used.
    """
    curves: dict[object, tuple[NetworkCurve, Fitted]] = {}
    skipped: list[tuple[str, str]] = []
    for one in tables.fitted:
        table = one.table
        if table.kind is None:
            why = "is no collective that steps launch"
            if table.operation is None:
                why = "its operation is not known: --kind names it"
            skipped.append((one.title, why))
            continue
        if table.ranks == 1:
            skipped.append((one.title, "one rank alone sends nothing"))
            continue
        if table.per_rank:
            raise InputError(
                f"{one.title}: its sizes are one rank's part; --ranks gives those of the whole "
                "operation"
            )
        fit = one.form(form)
        curve = NetworkCurve(
            fit.curve,
            table.kind,
            table.ranks,
            table.nodes,
            table.group,
            source=_source(one),
            date=table.date,
            tool=table.version or table.tool,
            mean_error=fit.mean_error,
            max_error=fit.max_error,
        )
        if curve.key in curves:
            raise InputError(
                f"two tables are for {curve.title}: {curves[curve.key][1].title}; {one.title}: give "
                "one of them"
            )
        curves[curve.key] = curve, one
    if not curves:
        reasons = "; ".join(f"{title}: {why}" for title, why in skipped[:4])
        raise InputError(f"nothing can be written: {reasons}")
    names = dict.fromkeys(Path(one.log.source).name for _, one in curves.values())
    name = printable(", ".join(names))
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 3]}..."
    return Network(tuple(curve for curve, _ in curves.values()), name), tuple(skipped)


def _source(one: Fitted) -> str:
    name = printable(Path(one.log.source).name)
    if not any(one.lines):
        return name
    lines = ", ".join(map(str, one.lines[:8]))
    return f"{name}, line{'s' * (len(one.lines) > 1)} {lines}"

"""Reading nccl-tests, rccl-tests, nccom-test and OSU line by line, all in one log if need be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from commsched.models.errors import InputError
from commsched.problems.bench.bench_kinds import operation_named, operations_in
from commsched.problems.bench.bench_nccl import Run, check_results, nccl_table
from commsched.problems.bench.bench_result import BenchmarkTable, Findings, Point
from commsched.problems.bench.bench_tables import (
    NCCL,
    Columns,
    Row,
    columns_of,
    looks_like_row,
    osu_row,
    parse_row,
    time_unit,
)

_STARTING = re.compile(r"Collective test starting:\s*(\w{1,40})")
_SECTION = re.compile(r"#\s*(?:nThreads?\b|Using devices|Collective test (?:starting|concluded))")
_END = re.compile(r"#\s*(?:Out of bounds values|Avg bus bandwidth)")
_FAILED = re.compile(r"\bTest (?:(?:CUDA|HIP|NCCL|RCCL) )?failure\b")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18}) FAILED")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[T_ ]\d\d:\d\d:\d\d\S{0,12}$")
_OSU = re.compile(
    r"#\s*OSU \S{1,20} (?:(.{0,60}?) )?(Latency|Bandwidth|Bi-Directional.*|Multiple.*) Test\b"
    r"(?:\s*v(\S{1,12}))?"
)
_OSU_HEAD = re.compile(r"#\s*Size\s+(?:Avg )?Latency ?\(us\)", re.IGNORECASE)
_OSU_BESIDE = re.compile(r"#\s*Size\s+Overall\(us\)\s+Compute\(us\)")
_OSU_TYPE = re.compile(r"#\s*Datatype:\s*(?:MPI_)?(\w{1,32})")
_OSU_PER_RANK = ("all_gather", "all_to_all")


@dataclass
class _Open:
    """The table that is being read."""

    line: int
    columns: Columns | None
    operation: str | None = None
    dtype: str = "?"
    version: str = ""
    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    dates: set[str] = field(default_factory=set)


class TextReader:
    """Reads a log line by line and keeps what its tables need."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.open: _Open | None = None
        self.run = Run()
        self.osu_operation: str | None = None
        self.osu_type, self.osu_version = "?", "OSU"

    def take(self, number: int, text: str, line: str) -> None:
        """Read one line, without prefixes and as it is.

        Raises
        ------
        InputError
            If it says that results were wrong, or there are too many rows or tables.
        """
        if self.open is not None and looks_like_row(text):
            self._row(self.open, number, text)
            return
        columns = columns_of(text)
        if columns is not None:
            self._begin(_Open(number, columns))
        elif self.open is not None and _FAILED.search(text):
            self.found.notes.append(f"line {number}: the run failed: later sizes are missing")
        elif text.startswith(("#", "(")):
            self._comment(number, text)
        elif "ccl" in text or "CCL" in text or "nccom" in text:
            self.run.read(text)
        if ("_perf" in text and "Collective test" not in text) or "nccom-test" in text:
            self.run.mentioned |= operations_in(text)

    def _row(self, table: _Open, number: int, text: str) -> None:
        self.found.row()
        if table.columns is None:
            point = osu_row(text, f"{self.found.source}: line {number}")
            if isinstance(point, str):
                self.found.dropped[point] += 1
            else:
                table.points.append(point)
            return
        row = parse_row(text, table.columns)
        if isinstance(row, str):
            self.found.dropped[row] += 1
            return
        check_results(row, f"{self.found.source}: line {number}")
        if match := _STAMP.search(text):
            table.dates.add(match[1])
        table.rows.append(row)

    def _comment(self, number: int, text: str) -> None:
        if match := _OUT_OF_BOUNDS.match(text):
            raise InputError(
                f"{self.found.source}: line {number}: {match[1]} values are out of bounds: the "
                "times of a run with wrong results are not used"
            )
        if self.run.read(text):
            return
        if _END.match(text):
            self.close(whole=True)
        elif _SECTION.match(text):
            self._section(text)
        elif match := _OSU.match(text):
            self.close()
            name = match[1] or ""
            if match[2] != "Latency":
                self.found.unusable.append("holds OSU bandwidths, a table of latencies is needed")
            # A test of latency without a name sends from one rank to another.
            self.osu_operation = operation_named(name) or name or "send_recv"
            self.osu_type, self.osu_version = "?", f"OSU {match[3]}" if match[3] else "OSU"
        elif match := _OSU_TYPE.match(text):
            self.osu_type = match[1].lower()
        elif _OSU_HEAD.match(text):
            self._begin(_Open(number, None, self.osu_operation, self.osu_type, self.osu_version))
        elif _OSU_BESIDE.match(text):
            self.close()
            self.found.unusable.append(
                "holds OSU times of non-blocking collectives beside computation, a table of latencies "
                "is needed"
            )
        elif self.open is not None and self.open.columns is not None:
            unit = time_unit(text)
            if unit is not None and not self.open.rows:
                self.open.columns = replace(self.open.columns, unit=unit)

    def _section(self, text: str) -> None:
        self.close()
        self.found.unusable.append("a run of nccl-tests that failed or was cut: it has no table")
        if "concluded" not in text:
            self.run.fresh()
        if "starting" in text or "concluded" in text:
            match = _STARTING.search(text)
            name = match[1].removesuffix("_perf") if match else ""
            self.run.started = operation_named(name) or name or None

    def _begin(self, table: _Open) -> None:
        self.close()
        self.open = table

    def close(self, *, whole: bool = False) -> None:
        """End the table that is being read, if there is one; ``whole`` if its last lines are there."""
        table, self.open = self.open, None
        if table is None:
            return
        if table.columns is not None and table.rows:
            if not whole and table.columns.tool == NCCL:
                self.found.notes.append(
                    f"line {table.line}: the table has no last lines: the run failed, or the log "
                    "is an excerpt"
                )
            self.found.add(
                nccl_table(
                    table.rows,
                    table.columns,
                    self.run,
                    self.found,
                    line=table.line,
                    dates=table.dates,
                )
            )
        else:
            if not table.points and table.columns is not None:
                self.found.unusable.append("its tables have no usable row (no rows at all)")
            self.found.add(self._osu_table(table))

    def _osu_table(self, table: _Open) -> BenchmarkTable:
        operation, points, ranks = table.operation, table.points, self.found.ranks
        if operation == "send_recv":
            ranks = 2
        if operation is None and self.found.kind is not None:
            operation = self.found.kind
            self.found.notes.append(f"line {table.line}: taken for {operation}, as was asked for")
        parts = operation in _OSU_PER_RANK
        if parts and ranks is None and points:
            self.found.notes.append(
                f"line {table.line}: OSU's sizes of an {operation} are one rank's part: "
                "give the number of ranks to have those of the whole operation"
            )
        elif parts and ranks is not None:
            points = [(size * ranks, time) for size, time in points]
        return BenchmarkTable(
            operation,
            tuple(points),
            "OSU",
            table.line,
            ranks=ranks,
            dtype=table.dtype,
            per_rank=parts and ranks is None,
            version=table.version,
        )

"""Reading logs of communication benchmarks: nccl-tests, rccl-tests and OSU latencies."""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from commsched.models.collectives import Kind, check_ranks
from commsched.models.errors import InputError
from commsched.models.units import MIB
from commsched.problems.bench_kinds import (
    choose_operation,
    kind_of,
    operation_named,
    operations_in,
    operations_of_file,
    possible_operations,
    ranks_listed,
    ratio_of,
)
from commsched.problems.bench_tables import (
    MAX_LINE,
    Columns,
    Row,
    columns_of,
    looks_like_row,
    osu_row,
    parse_row,
    time_unit,
    unprefixed,
)
from commsched.problems.files import read_bytes
from commsched.problems.recorded import Check, ImportReport
from commsched.problems.trace_bytes import read_trace_bytes

MAX_LOG_BYTES = 64 * MIB
"""The longest log that is read, decompressed."""
MAX_LINES = 4_000_000
MAX_ROWS = 200_000
MAX_TABLES = 2_000
_MAX_RANK_LINES = 2**20

Point = tuple[int, float]
"""Bytes and microseconds."""

_RANK = re.compile(r"#\s*Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,8})\s)?")
_STARTING = re.compile(r"Collective test starting:\s*(\w{1,40})")
_SECTION = re.compile(r"#\s*(?:nThreads?\b|Using devices|Collective test (?:starting|concluded))")
_END = re.compile(r"#\s*(?:Out of bounds values|Avg bus bandwidth)")
_OSU = re.compile(r"#\s*OSU \S{1,20} (?:(.{0,60}?) )?(Latency|Bandwidth|Bi-Directional.*) Test\b")
_OSU_HEAD = re.compile(r"#\s*Size\s+(?:Avg )?Latency ?\(us\)", re.IGNORECASE)
_OSU_TYPE = re.compile(r"#\s*Datatype:\s*(?:MPI_)?(\w{1,32})")
_OSU_PER_RANK = ("all_gather", "all_to_all")


@dataclass(frozen=True, slots=True)
class BenchmarkTable:
    """One table of measured times.

    Attributes
    ----------
    kind
        The collective's kind; None if it is none of ours (a reduce) or not known.
    operation
        The operation's name, ours where we have one; None if it is not known.
    ranks
        Ranks in the group; None if the log does not say.
    dtype
        The type of the elements as printed, ``several`` if they differ, ``?`` if the log does
        not say.
    points
        ``(bytes, microseconds)`` out of place, in the log's order, repeated sizes included.
        Bytes are those of the whole operation unless ``per_rank`` says otherwise.
    in_place
        The same in place, where that was measured.
    per_rank
        Whether the sizes are those of one rank's part, for want of the number of ranks to
        multiply them by (OSU's all-gather and all-to-all).
    tool
        ``nccl-tests`` (rccl-tests prints the same) or ``OSU``.
    line
        The number of the header's line in the log.
    """

    kind: Kind | None
    operation: str | None
    ranks: int | None
    dtype: str
    points: tuple[Point, ...]
    in_place: tuple[Point, ...]
    per_rank: bool
    tool: str
    line: int

    @property
    def title(self) -> str:
        """The table in a few words."""
        ranks = "unknown number of" if self.ranks is None else self.ranks
        return f"{self.operation or 'unknown operation'}, {ranks} ranks, line {self.line}"


@dataclass(frozen=True, slots=True)
class BenchmarkLog:
    """What a benchmark's log holds.

    Attributes
    ----------
    source
        The file's name.
    tables
        The tables with at least one usable row, in the log's order.
    report
        What was read, kept, dropped and assumed; ``events_read`` counts rows.
    """

    source: str
    tables: tuple[BenchmarkTable, ...]
    report: ImportReport


def read_benchmark_log(path: str | Path, *, ranks: int | None = None) -> BenchmarkLog:
    """Read the tables of nccl-tests, rccl-tests and OSU latency tests out of a log.

    Tables are recognised by their headers, whatever launchers put before the lines. Rows with
    size 0 and damaged rows are dropped and counted.

    Parameters
    ----------
    path
        The log: text, plain or gzip; ``-`` means standard input.
    ranks
        Number of ranks of the tables that do not say it themselves (OSU never does).

    Raises
    ------
    InputError
        If the file cannot be read or holds no such table; the message says what it has instead.

    Examples
    --------
    >>> import tempfile
    >>> text = '''# OSU MPI Allreduce Latency Test v7.4
    ... # Size       Avg Latency(us)
    ... 4                       2.50
    ... 1048576               104.30'''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "osu.txt").write_text(text)
    ...     log = read_benchmark_log(Path(folder, "osu.txt"))
    >>> log.tables[0].kind, log.tables[0].points
    ('allreduce', ((4, 2.5), (1048576, 104.3)))
    """
    if ranks is not None:
        ranks = check_ranks(ranks)
    data = (
        read_bytes(path, MAX_LOG_BYTES)
        if str(path) == "-"
        else read_trace_bytes(
            Path(path), max_text_bytes=MAX_LOG_BYTES, max_file_bytes=MAX_LOG_BYTES
        )
    )
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    reader = _Reader(str(path), ranks)
    for number, line in enumerate(_lines(data), 1):
        reader.take(number, line)
    return reader.finish()


def _lines(data: bytes) -> Iterator[str]:
    for line in io.BytesIO(data.removeprefix(codecs.BOM_UTF8)):
        yield line.decode("utf-8", errors="replace") if len(line) <= MAX_LINE else ""


@dataclass
class _Open:
    """The table that is being read."""

    line: int
    columns: Columns | None
    operation: str | None = None
    dtype: str = "?"
    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)


class _Reader:
    """Reads a log line by line and keeps what its tables need."""

    def __init__(self, source: str, ranks: int | None) -> None:
        self.source = source
        self.given_ranks = ranks
        self.tables: list[BenchmarkTable] = []
        self.dropped: Counter[str] = Counter()
        self.rows_read = self.lines = self.wrong = self.headers = 0
        self.notes: list[str] = []
        self.checks: list[Check] = []
        self.open: _Open | None = None
        self.started: str | None = None
        self.mentioned: set[str] = set()
        self.ranks: set[tuple[int, int]] = set()
        self.osu_operation: str | None = None
        self.osu_type = "?"
        self.skipped: str | None = None

    def take(self, number: int, line: str) -> None:
        """Read one line."""
        if number > MAX_LINES:
            raise InputError(f"{self.source}: more than {MAX_LINES} lines")
        self.lines = number
        text = unprefixed(line)
        if not text:
            return
        if self.open is not None and looks_like_row(text):
            self._row(self.open, text)
            return
        columns = columns_of(text)
        if columns is not None:
            self._begin(_Open(number, columns))
        elif text.startswith(("#", "(")):
            self._comment(number, text)
        if "_perf" in text and "Collective test" not in text:
            self.mentioned |= operations_in(text)

    def _row(self, table: _Open, text: str) -> None:
        self.rows_read += 1
        if self.rows_read > MAX_ROWS:
            raise InputError(f"{self.source}: more than {MAX_ROWS} rows")
        if table.columns is None:
            point = osu_row(text)
            if isinstance(point, str):
                self.dropped[point] += 1
            else:
                table.points.append(point)
            return
        row = parse_row(text, table.columns)
        if isinstance(row, str):
            self.dropped[row] += 1
            return
        self.wrong += row.out_of_place.wrong
        table.rows.append(row)

    def _comment(self, number: int, text: str) -> None:
        if match := _RANK.match(text):
            if len(self.ranks) < _MAX_RANK_LINES:
                self.ranks.add((int(match.group(2) or 0), int(match.group(1))))
        elif _END.match(text):
            self._close()
        elif _SECTION.match(text):
            self._close()
            if "concluded" not in text:
                self.ranks.clear()
            if "starting" in text or "concluded" in text:
                match = _STARTING.search(text)
                name = match.group(1).removesuffix("_perf") if match else ""
                self.started = operation_named(name) or name or None
        elif match := _OSU.match(text):
            self._close()
            name = match.group(1) or ""
            self.skipped = None if match.group(2) == "Latency" else "bandwidths"
            # A test of latency without a name sends from one rank to another.
            self.osu_operation = operation_named(name) or name or "send_recv"
            self.osu_type = "?"
        elif match := _OSU_TYPE.match(text):
            self.osu_type = match.group(1).lower()
        elif _OSU_HEAD.match(text):
            self._begin(_Open(number, None, self.osu_operation, self.osu_type))
        elif self.open is not None and self.open.columns is not None:
            unit = time_unit(text)
            if unit is not None and not self.open.rows:
                self.open.columns = replace(self.open.columns, unit=unit)

    def _begin(self, table: _Open) -> None:
        self._close()
        self.headers += 1
        if self.headers > MAX_TABLES:
            raise InputError(f"{self.source}: more than {MAX_TABLES} tables")
        self.open = table

    def _close(self) -> None:
        table, self.open = self.open, None
        if table is None:
            return
        if table.columns is not None and table.rows:
            self.tables.append(self._nccl_table(table, table.columns))
        elif table.points:
            self.tables.append(self._osu_table(table))
        else:
            self.notes.append(f"the table at line {table.line} has no usable row: left out")

    def _osu_table(self, table: _Open) -> BenchmarkTable:
        kind = kind_of(table.operation)
        points, ranks = table.points, self.given_ranks
        per_rank = kind in _OSU_PER_RANK and ranks is None
        if per_rank:
            self.notes.append(
                f"line {table.line}: OSU's sizes of an {table.operation} are one rank's part: "
                "give the number of ranks to have those of the whole operation"
            )
        elif kind in _OSU_PER_RANK and ranks is not None:
            points = [(size * ranks, time) for size, time in points]
        return BenchmarkTable(
            kind,
            table.operation,
            ranks,
            table.dtype,
            tuple(points),
            (),
            per_rank,
            "OSU",
            table.line,
        )

    def _nccl_table(self, table: _Open, columns: Columns) -> BenchmarkTable:
        where = f"line {table.line}"
        ratio = ratio_of(table.rows)
        counted, remark = ranks_listed(self.ranks)
        if remark is not None:
            self.notes.append(f"{where}: {remark}")
        possible = possible_operations(table.rows, columns.head, ratio, counted)
        operation = self.started
        if operation is None:
            hints = (
                (self.mentioned, "a command in the log"),
                (operations_of_file(self.source), "the file's name"),
            )
            operation, how = choose_operation(possible, hints)
            if how is not None:
                self.notes.append(f"{where}: {how}")
        elif counted != 1:
            text = f"{where}: the columns and bandwidths are those of {operation}"
            self.checks.append(Check(text, operation in possible))
        ranks = counted
        if ratio is not None and operation is not None:
            by_ratio = ratio.ranks(operation)
            if counted is None:
                ranks = by_ratio
                if by_ratio is not None:
                    self.notes.append(f"{where}: {by_ratio} ranks, from busbw / algbw")
            elif counted > 1 and by_ratio not in (None, counted):
                ranks = by_ratio
                self.checks.append(
                    Check(f"{where}: {counted} ranks are listed, busbw is of {by_ratio}", False)
                )
        if ranks is None and self.given_ranks is not None:
            ranks = self.given_ranks
        rows = table.rows
        return BenchmarkTable(
            kind_of(operation),
            operation,
            ranks,
            self._dtype(where, rows),
            tuple((row.size, row.out_of_place.time_us) for row in rows),
            tuple((row.size, row.in_place.time_us) for row in rows if row.in_place is not None),
            False,
            "nccl-tests",
            table.line,
        )

    def _dtype(self, where: str, rows: list[Row]) -> str:
        if any((row.dtype, row.redop) != (rows[0].dtype, rows[0].redop) for row in rows):
            self.notes.append(f"{where}: the table mixes types or reductions")
        return rows[0].dtype if all(row.dtype == rows[0].dtype for row in rows) else "several"

    def finish(self) -> BenchmarkLog:
        """Return the log, or refuse one without a table."""
        self._close()
        if not self.tables:
            raise InputError(f"{self.source}: {self._why_none()}")
        kept = sum(len(table.points) for table in self.tables)
        if any(table.tool == "nccl-tests" for table in self.tables):
            self.checks.append(Check(f"{self.wrong} rows had wrong results", self.wrong == 0))
        report = ImportReport(
            source=self.source,
            events_read=self.rows_read,
            kept={"tables": len(self.tables), "rows": kept},
            dropped=dict(self.dropped),
            assumptions=tuple(self.notes),
            checks=tuple(self.checks),
        )
        return BenchmarkLog(self.source, tuple(self.tables), report)

    def _why_none(self) -> str:
        if self.headers:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in self.dropped.items())
            return f"its tables have no usable row ({reasons or 'no rows at all'})"
        if self.skipped is not None:
            return f"holds OSU {self.skipped}, a table of latencies is needed"
        return (
            f"no table of nccl-tests, rccl-tests or OSU latencies in its {self.lines} lines "
            "(their text output is read, not JSON)"
        )

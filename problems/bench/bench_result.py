"""What comes out of a benchmark's log: tables of measured times, and a report."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from commsched.models.collectives import KINDS, Kind
from commsched.models.errors import InputError
from commsched.models.units import MAX_BYTES, MAX_NS, NS_PER_US
from commsched.problems.recorded import Check, ImportReport

MAX_ROWS = 200_000
MAX_TABLES = 2_000

NO_BYTES: Final = "size 0"
TOO_LARGE: Final = "a size or time beyond the limit"
NO_TIME: Final = "no time"
WRONG_COLUMNS: Final = "wrong number of columns"
DAMAGED: Final = "a damaged number or name"
SPLICED: Final = "other output spliced into the row"
DISAGREE: Final = "time and algbw disagree"

NCCL_TEXT = re.compile(r"NCCL (?:INFO|WARN|TRACE|ABORT)|UCX +(?:WARN|INFO|ERROR)")

Point = tuple[int, float]
"""Bytes and microseconds."""


@dataclass(frozen=True, slots=True)
class BenchmarkTable:
    """One table of measured times.

    Attributes
    ----------
    operation
        The operation's name, ours where we have one; None if it is not known.
    points
        ``(bytes, microseconds)`` out of place, in the log's order, repeated sizes included.
        Bytes are those of the whole operation unless ``per_rank`` says otherwise.
    tool
        The benchmark: ``nccl-tests`` (rccl-tests prints the same), ``OSU``, ``perftest``, ...
    line
        The number of the header's line in the log; 0 if there are no lines.
    ranks
        Ranks in the group; None if the log does not say.
    nodes
        Hosts that the ranks run on; None if the log does not say.
    dtype
        The type of the elements as printed, ``several`` if they differ, ``?`` if the log does
        not say.
    in_place
        The points in place, where that was measured.
    per_rank
        Whether the sizes are those of one rank's part, for want of the number of ranks to
        multiply them by.
    group
        The process group, where a recording names it.
    version
        The benchmark with its version and that of its library, as far as the log says.
    date
        The day of the measurement (``2025-01-31``), only where the log itself says it.
    """

    operation: str | None
    points: tuple[Point, ...]
    tool: str
    line: int
    ranks: int | None = None
    nodes: int | None = None
    dtype: str = "?"
    in_place: tuple[Point, ...] = ()
    per_rank: bool = False
    group: str = ""
    version: str = ""
    date: str = ""

    @property
    def kind(self) -> Kind | None:
        """The collective's kind; None if it is none of ours (a reduce) or not known."""
        return next((kind for kind in KINDS if kind == self.operation), None)

    @property
    def title(self) -> str:
        """The table in a few words."""
        parts = [self.operation or "unknown operation"]
        parts.append("unknown number of ranks" if self.ranks is None else f"{self.ranks} ranks")
        if self.nodes is not None:
            parts.append(f"{self.nodes} node{'s' * (self.nodes != 1)}")
        if self.group:
            parts.append(f"group {self.group}")
        if self.line:
            parts.append(f"line {self.line}")
        return ", ".join(parts)


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


@dataclass
class Findings:
    """What a reader has found so far, for all readers of one log.

    Attributes
    ----------
    source
        The log's name.
    ranks, kind
        What the user says of tables that do not say it.
    tables, rows, dropped, notes, checks
        Tables, number of rows read, rows not used by reason, sentences, checks.
    headers
        Number of tables, left out ones included.
    unusable
        What the log has instead of a table, if somebody knows; the last one is told.
    """

    source: str
    ranks: int | None = None
    kind: Kind | None = None
    tables: list[BenchmarkTable] = field(default_factory=list)
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    headers: int = 0
    unusable: deque[str] = field(default_factory=lambda: deque(maxlen=1))

    def row(self) -> None:
        """Count a row.

        Raises
        ------
        InputError
            If there are too many.
        """
        self.rows += 1
        if self.rows > MAX_ROWS:
            raise InputError(f"{self.source}: more than {MAX_ROWS} rows")

    def header(self) -> None:
        """Count a table, whether it is used or not.

        Raises
        ------
        InputError
            If there are too many.
        """
        self.headers += 1
        if self.headers > MAX_TABLES:
            raise InputError(f"{self.source}: more than {MAX_TABLES} tables")

    def add(self, table: BenchmarkTable) -> None:
        """Add a table; one without a point is left out and noted.

        Raises
        ------
        InputError
            If there are too many.
        """
        self.header()
        if table.points:
            self.tables.append(table)
        else:
            self.notes.append(f"the table at line {table.line} has no usable row: left out")

    def log(self) -> BenchmarkLog:
        """Return the log.

        Raises
        ------
        InputError
            If there is no table.
        """
        if not self.tables:
            if self.dropped:
                reasons = ", ".join(f"{count} x {why}" for why, count in self.dropped.items())
                raise InputError(f"{self.source}: its tables have no usable row ({reasons})")
            why = self.unusable[-1] if self.unusable else "no table of a benchmark that is known"
            raise InputError(f"{self.source}: {why}")
        tables = sorted(self.tables, key=lambda table: table.line)
        kept = sum(len(table.points) for table in tables)
        report = ImportReport(
            source=self.source,
            events_read=self.rows,
            kept={"tables": len(tables), "rows": kept},
            dropped=dict(self.dropped),
            assumptions=tuple(dict.fromkeys(self.notes)),
            checks=tuple(self.checks),
        )
        return BenchmarkLog(self.source, tuple(tables), report)


def point(size: int, us: float) -> Point | str:
    """Return a point, or why it is none.

    Examples
    --------
    >>> point(8, 2.5), point(0, 2.5)
    ((8, 2.5), 'size 0')
    """
    if size <= 0:
        return NO_BYTES
    if us <= 0:
        return NO_TIME
    if size > MAX_BYTES or us * NS_PER_US > MAX_NS:
        return TOO_LARGE
    return size, us


def spread(values: Iterable[str]) -> str:
    """Return what all values are, ``several`` if they differ, ``?`` if there is none.

    Examples
    --------
    >>> spread(["half", "half"]), spread(["half", "float"]), spread([])
    ('half', 'several', '?')
    """
    found = set(values)
    return found.pop() if len(found) == 1 else "several" if found else "?"

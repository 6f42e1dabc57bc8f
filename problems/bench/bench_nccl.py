"""Tables of nccl-tests, rccl-tests and Neuron's nccom-test out of their rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from commsched.models.errors import InputError
from commsched.problems.bench.bench_kinds import (
    Counted,
    Listed,
    choose_operation,
    operations_of_file,
    possible_operations,
    ranks_listed,
    ratio_of,
)
from commsched.problems.bench.bench_result import BenchmarkTable, Findings, spread
from commsched.problems.bench.bench_tables import Columns, Row
from commsched.problems.recorded import Check

_MAX_RANK_LINES = 2**18
_RANK = re.compile(
    r"#\s*Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,8})\s)?"
    r"(?:\s*Pid\s+\d{1,10}\s+on\s+(\S{1,255})\s+device\s+(\d{1,6})\s)?"
)
_VERSION = re.compile(r"# nccl-tests version (\S{1,40}).{0,80}?nccl-library=(\d{1,9})")
_RCCL = re.compile(r"rccl-tests: Version (\S{1,80})")
_LIBRARY = re.compile(r"\b([RN]CCL) version\s*:?\s*(\d[\w.+-]{1,40})")
_NCCOM = re.compile(r"\bnccom-test\b(.{0,400})")
_NCCOM_RANKS = re.compile(r"\s(?:-r|--nworkers)[ =](\d{1,7})\b")
_NCCOM_NODES = re.compile(r"\s(?:-N|--nnodes)[ =](\d{1,7})\b")


@dataclass
class Run:
    """What a log says of the run before its table.

    Attributes
    ----------
    started
        The operation that the benchmark says it runs.
    mentioned
        Operations of commands in the log.
    listed
        The ranks that it lists; :meth:`counted` is what they add up to.
    stated
        Ranks and nodes that something else than a list says.
    tool, library
        The benchmark and its library, with their versions.
    """

    started: str | None = None
    mentioned: set[str] = field(default_factory=set)
    listed: list[Listed] = field(default_factory=list)
    stated: Counted = field(default_factory=Counted)
    tool: str = ""
    library: str = ""
    _known: tuple[int, Counted] | None = None

    def counted(self) -> Counted:
        """Return the ranks and nodes of one group."""
        if not self.listed:
            return self.stated
        if self._known is None or self._known[0] != len(self.listed):
            self._known = len(self.listed), ranks_listed(self.listed)
        return self._known[1]

    def fresh(self) -> None:
        """Forget the ranks: another run begins."""
        self.listed, self._known = [], None

    def read(self, text: str) -> bool:
        """Take what a line says of the run; return whether it is such a line."""
        if match := _RANK.match(text):
            if len(self.listed) < _MAX_RANK_LINES:
                rank, group, host, device = match.groups()
                self.listed.append(Listed(int(group or 0), int(rank), host or "", device or ""))
            return True
        if match := _VERSION.match(text):
            self.tool, self.library = f"nccl-tests {match[1]}", f"NCCL {nccl_version(match[2])}"
            return True
        if match := _RCCL.search(text):
            self.tool = f"rccl-tests {match[1]}"
        elif match := _LIBRARY.search(text):
            self.library = f"{match[1]} {match[2]}"
        elif match := _NCCOM.search(text):
            ranks, nodes = _NCCOM_RANKS.search(match[1]), _NCCOM_NODES.search(match[1])
            if ranks is not None and int(ranks[1]) > 1:
                self.stated = Counted(int(ranks[1]), int(nodes[1]) if nodes else None)
        return False

    @property
    def version(self) -> str:
        """The benchmark and the library with their versions; empty if neither is known."""
        return ", ".join(part for part in (self.tool, self.library) if part)


def nccl_version(code: str) -> str:
    """Return NCCL's version as people write it, from the number that stands for it.

    Examples
    --------
    >>> nccl_version("22902"), nccl_version("2708"), nccl_version("7")
    ('2.29.2', '2.7.8', '7')
    """
    number = int(code)
    if number < 1000:
        return code
    if number < 10000:  # up to 2.8
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def check_results(row: Row, where: str) -> None:
    """Refuse a row of wrong results: times of a run that does not work say nothing.

    Raises
    ------
    InputError
        If some results were wrong.
    """
    for side in (row.out_of_place, row.in_place):
        if side is not None and side.wrong:
            raise InputError(
                f"{where}: results at {row.size} bytes are wrong (#wrong is {side.wrong}): "
                "the times of such a run are not used"
            )


def nccl_table(
    rows: Sequence[Row],
    columns: Columns,
    run: Run,
    found: Findings,
    *,
    line: int,
    dates: Collection[str] = (),
) -> BenchmarkTable:
    """Return the table of rows of one run; notes and checks go to the findings.

    Parameters
    ----------
    rows
        At least one.
    columns
        Their columns.
    run
        What is known of the run.
    found
        The log's findings; what the user says of the log counts where the log says nothing.
    line
        The header's line; 0 if there are no lines.
    dates
        The days on which rows were measured.

    Raises
    ------
    InputError
        If the user names a kind that the table cannot be of.
    """
    where = f"line {line}" if line else "the table"
    ratio = ratio_of(rows)
    counted = run.counted()
    found.notes += [f"{where}: {remark}" for remark in counted.remarks]
    possible = possible_operations(rows, columns, ratio, counted.ranks)
    operation = _operation(possible, run, counted, found, where)
    ranks, nodes = counted.ranks, counted.nodes
    by_ratio = None if ratio is None or operation is None else ratio.ranks(operation)
    if ranks is None and by_ratio is not None:
        ranks = by_ratio
        found.notes.append(f"{where}: {by_ratio} ranks, from busbw / algbw")
    elif ranks is not None and ranks > 1 and by_ratio not in (None, ranks):
        text = f"{where}: {ranks} ranks are listed, busbw is of {by_ratio}"
        found.checks.append(Check(text, False))
        ranks, nodes = by_ratio, None
    checked = sum(row.out_of_place.checked for row in rows)
    if checked:
        text = f"{where}: results of {checked} of {len(rows)} rows were checked, none was wrong"
        found.checks.append(Check(text, True))
    else:
        found.notes.append(f"{where}: the benchmark did not check its results")
    kinds = {(row.dtype, row.redop) for row in rows}
    if len(kinds) > 1:
        found.notes.append(f"{where}: the table mixes types or reductions")
    return BenchmarkTable(
        operation,
        tuple((row.size, row.out_of_place.time_us) for row in rows),
        columns.tool,
        line,
        ranks=found.ranks if ranks is None else ranks,
        nodes=nodes,
        dtype=spread(row.dtype for row in rows),
        in_place=tuple((row.size, row.in_place.time_us) for row in rows if row.in_place),
        version=run.version,
        date=min(dates, default=""),
    )


def _operation(
    possible: set[str], run: Run, counted: Counted, found: Findings, where: str
) -> str | None:
    if run.started is not None:
        if counted.ranks != 1:
            text = f"{where}: the columns and bandwidths are those of {run.started}"
            found.checks.append(Check(text, run.started in possible))
        return run.started
    hints = (
        (run.mentioned, "a command in the log"),
        (operations_of_file(found.source), "the file's name"),
    )
    operation, how = choose_operation(possible, hints)
    if found.kind is not None and (operation is None or how is not None):
        # A name in the log that leaves no doubt is not overruled, a guess is.
        if found.kind not in possible:
            fit = ", ".join(sorted(possible)) or "no operation that is known"
            raise InputError(
                f"{found.source}: {where}: is no {found.kind}: its columns and bandwidths fit {fit}"
            )
        operation, how = found.kind, f"taken for {found.kind}, as was asked for"
    if how is not None:
        found.notes.append(f"{where}: {how}")
    return operation

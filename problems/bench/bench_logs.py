"""Reading logs of communication benchmarks, of whatever tool: the tables are found by content."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from commsched.models.collectives import Kind, check_kind, check_ranks
from commsched.models.errors import InputError
from commsched.models.units import MIB
from commsched.problems.bench.bench_deepspeed import DEEPSPEED_MARKS, DeepSpeedReader
from commsched.problems.bench.bench_json import read_json_report
from commsched.problems.bench.bench_lines import Unprefixer
from commsched.problems.bench.bench_param import PARAM_MARK, ParamReader
from commsched.problems.bench.bench_perftest import PERFTEST_MARK, PerftestReader
from commsched.problems.bench.bench_result import BenchmarkLog, BenchmarkTable, Findings
from commsched.problems.bench.bench_tables import MAX_LINE
from commsched.problems.bench.bench_text import TextReader
from commsched.problems.files import read_bytes
from commsched.problems.sources.trace_bytes import read_trace_bytes

__all__ = ["BenchmarkLog", "BenchmarkTable", "read_benchmark_log"]

MAX_LOG_BYTES = 64 * MIB
"""The longest log that is read, decompressed."""
MAX_LINES = 4_000_000

KINDS_OF_LOGS = (
    "nccl-tests, rccl-tests, nccom-test, OSU latencies, perftest, DeepSpeed's comms log or PARAM"
)


class LineReader(Protocol):
    """What reads one tool's tables out of a log's lines."""

    def take(self, number: int, text: str, line: str) -> None:
        """Read one line, without prefixes and as it is."""

    def close(self) -> None:
        """End the table that is being read."""


_READERS: tuple[tuple[tuple[bytes, ...], Callable[[Findings], LineReader]], ...] = (
    ((b"algbw", b"OSU", b"Latency", b"# nThread"), TextReader),
    ((PERFTEST_MARK, b"# bytes"), PerftestReader),
    (DEEPSPEED_MARKS, DeepSpeedReader),
    ((PARAM_MARK,), ParamReader),
)
"""Each with words of which its logs have at least one."""


def read_benchmark_log(
    path: str | Path, *, ranks: int | None = None, kind: Kind | None = None
) -> BenchmarkLog:
    """Read the tables of communication benchmarks out of a log.

    nccl-tests and rccl-tests (text and ``-J`` JSON), Neuron's nccom-test, OSU latencies,
    perftest, DeepSpeed's comms log and PARAM are recognised by what they print, whatever launchers put
    before the lines; one log may hold tables of several. Rows with size 0 and damaged rows are
    dropped and counted.

    Parameters
    ----------
    path
        The log: text, plain or gzip; ``-`` means standard input.
    ranks
        Number of ranks of the tables that do not say it themselves (OSU never does).
    kind
        The kind of the tables that leave it open (an all-gather and an all-to-all that were not
        checked look the same).

    Raises
    ------
    InputError
        If the file cannot be read, holds no such table, or the results of a run were wrong.

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
    found = Findings(
        str(path),
        None if ranks is None else check_ranks(ranks),
        None if kind is None else check_kind(kind, "kind"),
    )
    data = (
        read_bytes(path, MAX_LOG_BYTES)
        if str(path) == "-"
        else read_trace_bytes(
            Path(path), max_text_bytes=MAX_LOG_BYTES, max_file_bytes=MAX_LOG_BYTES
        )
    )
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.lstrip()[:1] == b"{":
        read_json_report(data, found)
        return found.log()
    readers = [make(found) for marks, make in _READERS if any(mark in data for mark in marks)]
    number, prefixes = 0, Unprefixer()
    for number, line in enumerate(_lines(data), 1):
        if number > MAX_LINES:
            raise InputError(f"{path}: more than {MAX_LINES} lines")
        text = prefixes.text(line) if readers else ""
        if text:
            for reader in readers:
                reader.take(number, text, line)
    for reader in readers:
        reader.close()
    if not found.tables and not found.dropped and not found.unusable:
        raise InputError(f"{path}: no table of {KINDS_OF_LOGS} in its {number} lines")
    return found.log()


def _lines(data: bytes) -> Iterator[str]:
    if b"\r" in data:  # also of a terminal's record, and alone
        data = re.sub(rb"\r{1,8}\n|\r", b"\n", data)
    for line in io.BytesIO(data):
        yield line.decode("utf-8", errors="replace") if len(line) <= MAX_LINE else ""

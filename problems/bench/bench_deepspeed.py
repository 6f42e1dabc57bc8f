"""DeepSpeed's comms log: a line for each launch, the summary, and the one with stragglers.

Times are those of one rank and include waiting for the slowest one, except in the breakdown with the
straggler effect, which takes the minimum over the ranks: where there is one, it alone counts. Else the
lines of single launches count, else the last summary (summaries add up). Sizes are printed with
two decimals of a power of 1024, times in steps of 10 us.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from commsched.problems.bench.bench_kinds import Ratio, ratio_between
from commsched.problems.bench.bench_result import (
    DAMAGED,
    BenchmarkTable,
    Findings,
    Point,
    point,
)

DEEPSPEED_MARKS = (b"comm op:", b"Comm. Op")

_KINDS = {
    "all_reduce": "allreduce",
    "inference_all_reduce": "allreduce",
    "all_reduce_coalesced": "allreduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_gather_base": "all_gather",
    "allgather_fn": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_fn": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
    "isend": "send_recv",
    "irecv": "send_recv",
}
_OTHERS = {
    *("reduce", "gather", "scatter", "barrier", "broadcast_object_list", "batch_isend_irecv"),
    *("log_summary_barrier", "monitored_barrier"),
}
_ROOTED = ("broadcast", "send_recv", *_OTHERS)
_NAME = re.compile(r"(?<![\w.-])_?([a-z_]{4,30})(?: \| \[Caller Func: [^\]]{0,80}\])?\s*$")
_SIZE = r"(\d{1,6}(?:\.\d{1,2})?) ?(B|KB|MB|GB|TB)\b"
_LAUNCH = re.compile(
    r"comm op: _?([a-z_]{1,40})(?: \| \[Caller Func: [^\]]{0,80}\])? \| time \(ms\): "
    rf"(\d{{1,9}}(?:\.\d{{1,6}})?) \| msg size: {_SIZE} \| algbw \(Gbps\): "
    r"(\d{1,9}(?:\.\d{1,4})?)\s+\| busbw \(Gbps\): (\d{1,9}(?:\.\d{1,4})?)"
)
_ROW = re.compile(rf"(?:^|\s){_SIZE}\s+(\d{{1,12}})((?:\s+\d{{1,12}}(?:\.\d{{1,6}})?){{4}})\s*$")
_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_DATE = re.compile(r"\[(\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d,\d{3}\]")
_HALF_STEP = 0.005 + 1e-9


@dataclass
class _Part:
    """The launches in one of the three forms, by operation."""

    line: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    rates: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    rows: int = 0
    coarse: int = 0


class DeepSpeedReader:
    """Reads a comms log of DeepSpeed line by line."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.launches, self.summary, self.stragglers = _Part(), _Part(), _Part()
        self.inside: _Part | None = None
        self.operation = ""
        self.dates: set[str] = set()
        self.summaries = 0

    def take(self, number: int, text: str, line: str) -> None:
        """Read one line, without prefixes and as it is."""
        if "comm op:" in line:
            self._launch(number, line)
        elif "Comm. Op" in line:
            self._head(number, line)
        elif self.inside is not None:
            if match := _ROW.search(line.rstrip()):
                self._row(self.inside, number, match)
            elif match := _NAME.search(line):
                name = match[1]
                self.operation = name if name in _KINDS or name in _OTHERS else ""

    def _launch(self, number: int, line: str) -> None:
        self.found.row()
        match = _LAUNCH.match(line, line.index("comm op:"))
        if match is None:
            self.found.dropped[DAMAGED] += 1
            return
        name, ms, size, unit, algbw, busbw = match.groups()
        if date := _DATE.search(line):
            self.dates.add(date[1])
        self._add(self.launches, number, name, _bytes(size, unit), float(ms))
        self.launches.rates.setdefault(name, []).append((float(algbw), float(busbw)))

    def _head(self, number: int, line: str) -> None:
        self.operation = ""
        if "Avg straggler" in line:
            self.stragglers = self.inside = _Part(number)
        elif "Avg Latency" in line:
            self.summaries += 1
            self.summary = self.inside = _Part(number)
        else:
            self.inside = None

    def _row(self, part: _Part, number: int, match: re.Match[str]) -> None:
        self.found.row()
        if not self.operation:
            self.found.dropped["a row below no operation"] += 1
            return
        size = _bytes(match[1], match[2])
        _, second, third, fourth = (float(word) for word in match[4].split())
        if part is self.stragglers:
            self._add(part, number, self.operation, size, third)
        else:  # total latency, average latency and the two throughputs
            self._add(part, number, self.operation, size, second)
            part.rates.setdefault(self.operation, []).append((third, fourth))

    def _add(self, part: _Part, number: int, name: str, size: int, ms: float) -> None:
        made = point(size, round(ms * 1000, 3))
        if isinstance(made, str):
            self.found.dropped[made] += 1
            return
        part.rows += 1
        part.coarse += ms < 0.1
        part.lines.setdefault(name, number)
        part.points.setdefault(name, []).append(made)

    def close(self) -> None:
        """Add the tables, one for each operation."""
        self.inside = None
        parts = [part for part in (self.stragglers, self.launches, self.summary) if part.rows]
        if not parts:
            self.found.unusable.append("holds no usable line of DeepSpeed's comms log")
            return
        chosen = parts[0]
        unused = sum(part.rows for part in parts[1:])
        if unused:
            self.found.dropped["the same launches in another form"] += unused
        if self.summaries > 1:
            self.found.notes.append(f"of {self.summaries} summaries the last counts")
        if chosen is not self.stragglers:
            self.found.notes.append(
                "times are those of one rank and include waiting for the slowest rank: "
                "log_summary(show_straggler=True) prints the minimum over the ranks"
            )
        self.found.notes.append(
            "sizes are rounded to two decimals of a power of 1024, times to 10 us: "
            f"{chosen.coarse} of {chosen.rows} rows are below 100 us, rounding moves them by 5% "
            "or more"
        )
        ranks = self._ranks(parts)
        merged: dict[str, str] = {}
        for name in sorted(chosen.points, key=lambda name: chosen.lines[name]):
            operation = _KINDS.get(name, name)
            if operation in merged:
                self.found.notes.append(
                    f"{name} and {merged[operation]} are both of kind {operation}"
                )
            merged.setdefault(operation, name)
            self.found.add(self._table(chosen, name, operation, ranks))

    def _table(self, part: _Part, name: str, operation: str, ranks: int | None) -> BenchmarkTable:
        points, line = part.points[name], part.lines[name]
        per_rank = operation == "all_gather" and ranks is None
        if operation == "all_gather":
            self.found.notes.append(
                f"line {line}: DeepSpeed logs the size of one rank's part of an {name}"
                + (": give the number of ranks" if ranks is None else f", times {ranks} ranks")
            )
            points = [(size * (ranks or 1), us) for size, us in points]
        return BenchmarkTable(
            operation,
            tuple(points),
            "DeepSpeed",
            line,
            ranks=2 if operation == "send_recv" else ranks,
            per_rank=per_rank,
            version="DeepSpeed comms log",
            date=min(self.dates, default=""),
        )

    def _ranks(self, parts: list[_Part]) -> int | None:
        """Return the ranks of the job: busbw / algbw is (n-1)/n, whatever the version's factors."""
        ratios: list[Ratio] = []
        for part in parts:
            pairs = [
                pair
                for name, rates in part.rates.items()
                if _KINDS.get(name, name) not in _ROOTED
                for pair in rates
            ]
            if (ratio := ratio_between(pairs, _HALF_STEP)) is not None:
                ratios.append(ratio)
        for ratio in ratios:
            ranks = ratio.ranks("all_gather")
            if ranks is not None:
                self.found.notes.append(
                    f"{ranks} ranks, from busbw / algbw: those of the whole job"
                )
                return ranks
        return self.found.ranks


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])

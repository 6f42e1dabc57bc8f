"""PARAM's communication benchmarks (``comms.py``): lines ``COMMS-RES-all_reduce-float32 ...``.

The time is the median over the ranks of each rank's average, as PARAM's own bandwidths use it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from commsched.problems.bench.bench_kinds import operation_named, ratio_between
from commsched.problems.bench.bench_result import (
    DAMAGED,
    DISAGREE,
    WRONG_COLUMNS,
    BenchmarkTable,
    Findings,
    Point,
    point,
    spread,
)

PARAM_MARK = b"COMMS-RES"

_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")
_NAME = re.compile(r"COMMS-RES(-[\w.-]{1,120}+)?\s")
_PARTS = re.compile(r"-(QUANT-)?([a-z0-9_]{1,40})-(\w{1,32})")
_WORLD = re.compile(r"'world_size': (\d{1,8})\b")
_LOCAL = re.compile(r"'local_size': (\d{1,8})\b")
_TIMES = ("Latency(us):p50", "pingLatency(us):p50")
_SUFFIX = re.compile(r"_(?:base|single|v)$|(?<=all_to_all)v$")
_HALF_STEP = 0.0005 + 1e-9
_BYTES = {"float32": 4, "int32": 4, "float16": 2, "half": 2, "bfloat16": 2, "float64": 8, "long": 8}


@dataclass
class _Open:
    """The rows of one collective."""

    line: int
    points: list[Point] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    whole: bool = True


class ParamReader:
    """Reads the tables of PARAM's communication benchmarks."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.world: int | None = None
        self.local: int | None = None
        self.names: list[str] = []
        self.head = 0
        self.open: dict[str, _Open] = {}

    def take(self, number: int, text: str, line: str) -> None:
        """Read one line, without prefixes and as it is."""
        if "world_size" in line and (match := _WORLD.search(line)):
            self.world = int(match[1])
            local = _LOCAL.search(line)
            self.local = int(local[1]) if local else None
        begin = line.find("COMMS-RES")
        match = _NAME.match(line, begin) if begin >= 0 else None
        if match is None:
            return
        rest = line[match.end() :]
        if "size (B)" in rest:
            self.close()
            words = re.sub(r"\b(total-)?size \(B\)", r"\1size", rest).split()
            self.names, self.head = words, number
        else:
            self._row(match[1] or "", rest.split())

    def _row(self, name: str, words: list[str]) -> None:
        self.found.row()
        parts = _PARTS.match(name)
        if parts is None or parts[1]:
            self.found.dropped["quantised" if parts else DAMAGED] += 1
            return
        if "nElementsPairPerRank" in self.names:
            self.found.dropped["two collectives at once"] += 1
            return
        if not self.names or len(words) < len(self.names) - 1:
            self.found.dropped[WRONG_COLUMNS] += 1
            return
        values = dict(zip(self.names, words, strict=False))
        time = next((values[name] for name in _TIMES if name in values), None)
        if "size" not in values or time is None:
            self.found.dropped[WRONG_COLUMNS] += 1
            return
        if not all(_NUMBER.fullmatch(word) for word in values.values()) or "." in values["size"]:
            self.found.dropped[DAMAGED] += 1
            return
        made = point(int(values["size"]), float(time))
        if isinstance(made, str):
            self.found.dropped[made] += 1
            return
        size, us = made
        algbw, busbw = (float(values.get(f"{name}(GB/s)", "0")) for name in ("AlgBW", "BusBW"))
        if algbw and abs(size / us / 1e3 - algbw) > 0.02 * algbw + 0.05 / us * algbw + 0.001:
            self.found.dropped[DISAGREE] += 1
            return
        table = self.open.setdefault(parts[2], _Open(self.head))
        table.points.append(made)
        table.dtypes.append(parts[3])
        table.rates.append((algbw, busbw))
        elements = values.get("nElementsPerRank", "")
        width = _BYTES.get(parts[3])
        if width is not None and elements.isdecimal() and self.world:
            table.whole &= int(elements) * width * self.world == size

    def close(self) -> None:
        """End the tables that are being read."""
        opened, self.open = self.open, {}
        for name, table in opened.items():
            plain = "send_recv" if name == "pt2pt" else _SUFFIX.sub("", name)
            operation = operation_named(plain) or name
            ratio = ratio_between(table.rates, _HALF_STEP)
            ranks = self.world
            if ranks is None and ratio is not None:
                ranks = ratio.ranks(operation)
                if ranks is not None:
                    self.found.notes.append(f"line {table.line}: {ranks} ranks, from BusBW / AlgBW")
            nodes = None
            if self.world and self.local and self.world % self.local == 0:
                nodes = self.world // self.local
            if operation in ("all_gather", "reduce_scatter", "all_to_all") and not (
                table.whole and self.world
            ):
                self.found.notes.append(
                    f"line {table.line}: sizes of the {operation} count as the whole operation's, as "
                    "PARAM's AlgBW counts them"
                )
            if operation == "send_recv":
                ranks = 2
            self.found.add(
                BenchmarkTable(
                    operation,
                    tuple(table.points),
                    "PARAM",
                    table.line,
                    ranks=self.found.ranks if ranks is None else ranks,
                    nodes=nodes,
                    dtype=spread(table.dtypes),
                    version="PARAM comms",
                )
            )

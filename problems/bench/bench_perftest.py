"""perftest (``ib_write_lat``, ``ib_write_bw``, ``ib_send_*``, ``ib_read_*``): one rank to another.

A latency test sends one message at a time: its typical time is that of a launch. A bandwidth test
keeps many in flight, so bytes over bandwidth is the time that a message adds to a full queue,
without the start-up latency; the report says so. perftest's ``MB/sec`` are 2**20 bytes a second,
as its manual says and its message rates show.
"""

from __future__ import annotations

import re

from commsched.models.units import MIB
from commsched.problems.bench.bench_result import (
    DAMAGED,
    DISAGREE,
    WRONG_COLUMNS,
    BenchmarkTable,
    Findings,
    Point,
    point,
)

PERFTEST_MARK = b"#bytes"

_TEST = re.compile(r"\b(RDMA_Write|RDMA_Read|Send|Atomic\w*|Raw\w*)\b[\w ]{0,30}?(BW|Latency) Test")
_BOTH_WAYS = re.compile(r"\bBidirectional\b|\bBi-directional\b", re.IGNORECASE)
_HEAD = re.compile(r"#\s?bytes\s+#\s?iterations\b")
_BANDWIDTH = re.compile(r"BW[ _]average\[(MB|MiB|Gb)/sec\]")
_UNITS = {"MB": float(MIB), "MiB": float(MIB), "Gb": 1e9 / 8}
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_SIZE = re.compile(r"\d{1,18}")
_TIMES = ("t_typical[usec]", "t_avg[usec]")
_RATE = "MsgRate[Mpps]"


class PerftestReader:
    """Reads tables of perftest out of a log's lines."""

    def __init__(self, found: Findings) -> None:
        self.found = found
        self.test, self.both_ways = "", False
        self.names: list[str] = []
        self.line = 0
        self.points: list[Point] = []

    def take(self, number: int, text: str, line: str) -> None:
        """Read one line, without prefixes and as it is."""
        if _HEAD.match(text):
            self._head(number, text)
        elif match := _TEST.search(text):
            self.close()
            self.test = f"{match[1]} {match[2]}"
            self.both_ways = _BOTH_WAYS.search(text) is not None
        elif self.names and text.startswith("---"):
            self.close()
        elif self.names and text[:1].isdigit():
            self._row(text)

    def _head(self, number: int, text: str) -> None:
        if not self.points:  # server and client may both print one
            self.close()
        match = _BANDWIDTH.search(text)
        plain = re.sub(r"BW (peak|average)", r"BW_\1", text.partition("99%")[0])
        names = re.sub(r"#\s", "#", plain).split()
        if self.both_ways:
            self.found.unusable.append("holds perftest runs in both directions at once only")
            self.found.header()
            self.found.notes.append(f"line {number}: both directions at once: left out")
            names = []
        elif match is None and not any(name in names for name in _TIMES):
            self.found.unusable.append("holds a perftest table without a time or an average")
            names = []
        if names != self.names:
            self.close()
            self.names, self.line = names, number

    def _row(self, text: str) -> None:
        self.found.row()
        words = text.split()
        if len(words) < min(len(self.names), 4):
            self.found.dropped[WRONG_COLUMNS] += 1
            return
        values = dict(zip(self.names, words, strict=False))
        if not _SIZE.fullmatch(words[0]) or not all(
            _NUMBER.fullmatch(word) for word in values.values()
        ):
            self.found.dropped[DAMAGED] += 1
            return
        us = self._time(values, int(words[0]))
        made = us if isinstance(us, str) else point(int(words[0]), us)
        if isinstance(made, str):
            self.found.dropped[made] += 1
        else:
            self.points.append(made)

    def _time(self, values: dict[str, str], size: int) -> float | str:
        for name in _TIMES:
            if name in values:
                return float(values[name])
        name = next((name for name in values if name.startswith("BW_average")), "")
        if not name:
            return WRONG_COLUMNS
        bandwidth = float(values[name]) * _UNITS[name.partition("[")[2].partition("/")[0]]
        rate = float(values.get(_RATE, "0")) * 1e6
        # Both are printed with few digits.
        if rate > 1e4 and bandwidth > 0 and abs(rate * size / bandwidth - 1) > 0.02:
            return DISAGREE
        return round(size / bandwidth * 1e6, 6) if bandwidth > 0 else 0.0

    def close(self) -> None:
        """End the table that is being read, if there is one."""
        names, points = self.names, tuple(self.points)
        self.names, self.points = [], []
        if not names:
            return
        queued = not any(name in names for name in _TIMES)
        if queued and points:
            self.found.notes.append(
                f"line {self.line}: a bandwidth test keeps many messages in flight: bytes over "
                "bandwidth has no start-up latency, which a latency test (ib_write_lat) has"
            )
        version = f"perftest {self.test}".strip()
        self.found.add(
            BenchmarkTable("send_recv", points, "perftest", self.line, ranks=2, version=version)
        )

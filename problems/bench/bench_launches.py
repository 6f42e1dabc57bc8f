"""Recorded launches as a table of times, as if they were a benchmark's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commsched.models.units import NS_PER_US
from commsched.problems.bench.bench_result import (
    NO_BYTES,
    BenchmarkLog,
    BenchmarkTable,
    Findings,
    Point,
    point,
    spread,
)
from commsched.problems.recorded import RecordedLaunch


@dataclass
class _Some:
    points: list[Point] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)


def tables_of_launches(
    launches: Sequence[RecordedLaunch],
    source: str,
    *,
    ranks: Mapping[str, int] | None = None,
    nodes: Mapping[str, int] | None = None,
    date: str = "",
) -> BenchmarkLog:
    """Return a table of each kind and group, with the time of each launch.

    On one rank a launch's time includes waiting for the slowest rank, so only launches merged over
    the ranks say what the network costs: ``start_ns`` the latest start and ``end_ns`` the earliest
    end. Merged like this a launch may end before it starts, where clocks differ; it is dropped.

    Parameters
    ----------
    launches
        Merged over the ranks of their groups.
    source
        The recording's name.
    ranks, nodes
        Number of ranks and nodes of each group, where known.
    date
        The day of the recording, if it says so.

    Raises
    ------
    InputError
        If no launch has a time.

    Examples
    --------
    >>> launch = RecordedLaunch(("a",), "allreduce", "dp", "float", 4096, 0, 1000, 3500, True)
    >>> tables_of_launches([launch], "trace", ranks={"dp": 8}).tables[0].points
    ((4096, 2.5),)
    """
    found = Findings(source)
    tables: dict[tuple[str, str], _Some] = {}
    for launch in launches:
        found.row()
        if launch.start_ns is None or launch.end_ns is None:
            found.dropped["no recorded time"] += 1
        elif launch.bytes <= 0:
            found.dropped[NO_BYTES] += 1
        elif launch.end_ns <= launch.start_ns:
            found.dropped["the first rank ends before the last one starts"] += 1
        else:
            made = point(launch.bytes, (launch.end_ns - launch.start_ns) / NS_PER_US)
            if isinstance(made, str):
                found.dropped[made] += 1
                continue
            some = tables.setdefault((launch.kind, launch.group), _Some())
            some.points.append(made)
            some.dtypes.append(launch.dtype)
    for (kind, group), some in tables.items():
        found.add(
            BenchmarkTable(
                kind,
                tuple(some.points),
                "recording",
                0,
                ranks=(ranks or {}).get(group),
                nodes=(nodes or {}).get(group),
                dtype=spread(some.dtypes),
                group=group,
                date=date,
            )
        )
    if not launches:
        found.unusable.append("no launch is recorded")
    return found.log()

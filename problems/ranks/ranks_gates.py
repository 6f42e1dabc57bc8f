"""Who makes the others wait: a collective's own time, and the rank that gates each launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from commsched.models.units import format_bytes, format_ns
from commsched.problems.ranks.ranks_input import RankRecording
from commsched.problems.ranks.ranks_match import WAITING, Matched
from commsched.problems.recorded import RecordedLaunch

MOST_LINES = 12
"""How many launches the report names one by one."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Which rank a launch waited for.

    Attributes
    ----------
    launch
        What was launched, for people.
    rank
        The rank that was last; None if all were last together.
    lead_ns
        How long after the median rank it was, in nanoseconds; of two ranks, after the other.
    spread_ns
        How long after the first rank it was, in nanoseconds.
    ranks
        How many ranks launched it.
    """

    launch: str
    rank: int | None
    lead_ns: int
    spread_ns: int
    ranks: int


def gate(launch: RecordedLaunch, number: int, when: Mapping[int, int]) -> Gate:
    """Return which rank gates a launch.

    Parameters
    ----------
    launch
        The launch.
    number
        Its position in the step.
    when
        The rank's number -> when it was ready, on the common clock; ties are for the lowest.
    """
    last = max(when.values())
    median, first = median_low(when.values()), min(when.values())
    rank = min(rank for rank, time in when.items() if time == last)
    title = f"launch {number} ({launch.kind}, {format_bytes(launch.bytes)})"
    return Gate(title, rank if last > first else None, last - median, last - first, len(when))


def gate_lines(gates: Sequence[Gate], what: str) -> list[str]:
    """Return who gates what: a line for each of the worst launches, then a summary.

    Parameters
    ----------
    gates
        One for each launch, in their order.
    what
        What made the rank the last one: ``its gradients were ready last``.
    """
    if not gates:
        return []
    worst = sorted(range(len(gates)), key=lambda k: (-gates[k].lead_ns, k))[:MOST_LINES]
    lines = [_line(gates[k]) for k in sorted(worst)]
    if len(gates) > MOST_LINES:
        lines.append(f"the other {len(gates) - MOST_LINES} launches wait less than these")
    count = Counter(one.rank for one in gates)
    table = [f"rank {rank} {n}" for rank, n in _by_count(count)]
    shown = ", ".join(table[:MOST_LINES]) + (", ..." if len(table) > MOST_LINES else "")
    lines.append(
        f"launches that each rank gates ({what}), of {len(gates)}: {shown or 'none'}"
        + (f"; {count[None]} wait for no rank" if count[None] else "")
    )
    spreads = [one.spread_ns for one in gates]
    lines.append(
        f"from the first rank to the last: {format_ns(median_low(spreads))} in the median launch, "
        f"{format_ns(max(spreads))} at most"
    )
    return lines


def _line(one: Gate) -> str:
    if one.rank is None:
        return f"{one.launch}: all ranks at the same time"
    other = "the other" if one.ranks == 2 else "the median rank"
    return f"{one.launch}: rank {one.rank} gates it, {format_ns(one.lead_ns)} after {other}"


def _by_count(count: Counter[int | None]) -> list[tuple[int, int]]:
    ranks = [(rank, n) for rank, n in count.items() if rank is not None]
    return sorted(ranks, key=lambda entry: (-entry[1], entry[0]))


def spans(
    found: Sequence[Matched], ranks: Sequence[RankRecording]
) -> list[dict[int, tuple[int, int]]]:
    """Return when each waiting collective ran, by the rank's index, on each rank's own time."""
    index = {one.number: k for k, one in enumerate(ranks)}
    return [
        {
            index[rank]: (launch.start_ns, launch.end_ns)
            for rank, launch in matched.launches.items()
            if launch.start_ns is not None and launch.end_ns is not None
        }
        for matched in found
        if matched.kind in WAITING
    ]


@dataclass(frozen=True, slots=True)
class Run:
    """When a collective ran by itself, once all its ranks had begun it.

    Attributes
    ----------
    start_ns, end_ns
        On the common clock; None if no rank recorded it.
    by_overlap
        Whether the time is the one in which all ranks were in it, and not the shortest rank's.
    ranks
        How many ranks recorded when it ran.
    """

    start_ns: int | None
    end_ns: int | None
    by_overlap: bool
    ranks: int


def own_run(matched: Matched, zeros: Mapping[int, int]) -> Run:
    """Return when a collective ran by itself: from its last start to its first end.

    Where no such time is left (a broadcast, whose root need not wait, or clocks that do not
    agree) it lasts as long as on the rank where it was shortest, which may include waiting.
    """
    runs = [
        (launch.start_ns + zeros[rank], launch.end_ns + zeros[rank])
        for rank, launch in matched.launches.items()
        if launch.start_ns is not None and launch.end_ns is not None
    ]
    if not runs:
        return Run(None, None, False, 0)
    start, end = max(a for a, _ in runs), min(b for _, b in runs)
    if start < end:
        return Run(start, end, True, len(runs))
    return Run(start, start + max(0, min(b - a for a, b in runs)), False, len(runs))


def merge_launch(
    matched: Matched, names: tuple[str, ...], zeros: Mapping[int, int]
) -> RecordedLaunch:
    """Return one launch for those of all ranks.

    It is issued when the last rank has issued it and runs for its own time; an all-to-all has
    the bytes of its busiest rank.
    """
    launches = matched.launches
    first = next(iter(launches.values()))
    run = own_run(matched, zeros)
    return RecordedLaunch(
        names=names,
        kind=first.kind,
        group=first.group,
        dtype=first.dtype,
        bytes=max(launch.bytes for launch in launches.values()),
        issued_ns=max(launch.issued_ns + zeros[rank] for rank, launch in launches.items()),
        start_ns=run.start_ns,
        end_ns=run.end_ns,
        exact=all(launch.exact for launch in launches.values()),
    )

"""Putting the ranks of a job on one clock.

Ranks of one host share a clock; those of several hosts may not, and some recordings have none.
The recorded clocks are kept wherever they can be right: a collective that makes its ranks wait
for each other cannot end anywhere before it has begun everywhere. Where they cannot, the ends of
the collectives, which all ranks see at nearly the same time, tell how far the clocks are apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from commsched.models.units import MAX_NS

_FAR = 2**60
_MAX_WORK = 3 * 10**8
"""Ranks x ranks x collectives (or ranks) beyond which overlaps are not enforced one by one."""

Spans = Sequence[Mapping[int, tuple[int, int]]]
"""For each collective, when it ran on each rank (by the rank's index), on that rank's own time."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Where each rank's time zero lies on the common clock.

    Attributes
    ----------
    zeros_ns
        For each rank, in nanoseconds from the earliest of them.
    estimated
        Whether the recorded clocks were not used.
    reason
        Why not; empty if they were used.
    overlapping, collectives
        How many collectives' runs overlap on all their ranks, and of how many.
    scatter_ns
        By how much the ends of a collective differ between ranks, at most in half of them.
    unlinked
        Indices of the ranks that no collective places: by the recorded clock where there is one
        that can be, else their steps are taken to start with the first rank's.
    """

    zeros_ns: tuple[int, ...]
    estimated: bool
    reason: str
    overlapping: int
    collectives: int
    scatter_ns: int
    unlinked: tuple[int, ...] = ()


def align(origins_ns: Sequence[int | None], spans: Spans, lengths_ns: Sequence[int]) -> Clock:
    """Return the common clock of ranks.

    Recorded clocks are used if the runs of every collective overlap on its ranks. Else each
    rank's offset is the median difference of the collectives' ends to those of a rank that it
    shares collectives with, moved as little as makes all runs overlap if that can be had. A
    constant that is added to all times of a rank does not change the estimate.

    Parameters
    ----------
    origins_ns
        For each rank, its time zero on the recorded clock, in nanoseconds; None if unknown.
    spans
        Only of collectives that make all their ranks wait for each other.
    lengths_ns
        How long each rank's step is; only for steps without such collectives, which must overlap.

    Examples
    --------
    The second rank's clock is 1000 ns ahead: its collective seems to begin after the other's end.

    >>> spans = [{0: (10, 60), 1: (40, 60)}, {0: (170, 190), 1: (100, 190)}]
    >>> align([0, 1000], spans, [200, 200]).zeros_ns
    (0, 0)
    """
    spans = [_sane(span) for span in spans]
    spans = [span for span in spans if len(span) > 1]
    recorded = _recorded(origins_ns)
    if len(origins_ns) == 1:
        return Clock((0,), False, "", 0, 0, 0)
    if recorded is not None and not spans:
        if max(recorded) <= min(a + b for a, b in zip(recorded, lengths_ns, strict=True)):
            return _clock(recorded, spans, "", ())
        reason = "on the recorded clocks the ranks' steps do not overlap"
        return _clock([0] * len(recorded), spans, reason, range(1, len(recorded)))
    if recorded is not None:
        overlapping = _overlapping(recorded, spans)
        if overlapping == len(spans):
            return _clock(recorded, spans, "", ())
    targets, unlinked = _medians(len(origins_ns), spans, recorded)
    zeros = _overlap_all(targets, spans)
    if recorded is None:
        return _clock(zeros, spans, "the recordings have no common clock", unlinked)
    if max(recorded) < MAX_NS and _overlapping(zeros, spans) <= overlapping:
        # No offsets explain it better, so it is not the clocks that are at fault.
        return _clock(recorded, spans, "", ())
    reason = (
        f"on the recorded clocks {len(spans) - overlapping} of {len(spans)} collectives would "
        "end on a rank before they begin on another"
    )
    return _clock(zeros, spans, reason, unlinked)


def _clock(zeros: Sequence[int], spans: Spans, reason: str, unlinked: Sequence[int]) -> Clock:
    earliest = min(zeros)
    ends = [[end + zeros[rank] for rank, (_, end) in span.items()] for span in spans]
    return Clock(
        tuple(zero - earliest for zero in zeros),
        bool(reason),
        reason,
        _overlapping(zeros, spans),
        len(spans),
        median_low([max(end) - min(end) for end in ends]) if ends else 0,
        tuple(unlinked),
    )


def _recorded(origins_ns: Sequence[int | None]) -> list[int] | None:
    known = [origin for origin in origins_ns if origin is not None]
    if len(known) < len(origins_ns):
        return None
    return [origin - min(known) for origin in known]


def _sane(span: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Leave out times that no step can have, so that 64 bits hold every sum."""
    return {r: (a, b) for r, (a, b) in span.items() if -MAX_NS <= a <= b <= MAX_NS}


def _overlapping(zeros: Sequence[int], spans: Spans) -> int:
    return sum(
        max(start + zeros[rank] for rank, (start, _) in span.items())
        < min(end + zeros[rank] for rank, (_, end) in span.items())
        for span in spans
    )


def _medians(
    count: int, spans: Spans, recorded: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Place each rank by the median difference of ends to a rank that is placed already.

    Ranks are taken in the order of how many collectives they share with a placed one.
    """
    if count * count * len(spans) <= _MAX_WORK:
        taking = np.zeros((count, len(spans)), dtype=np.float32)
        for k, span in enumerate(spans):
            taking[list(span), k] = 1
        shared = (taking @ taking.T).astype(np.int64)
    else:  # Too many: only collectives with the first rank count.
        shared = np.zeros((count, count), dtype=np.int64)
        for span in spans:
            if 0 in span:
                shared[0, list(span)] += 1
    zeros: list[int | None] = [None] * count
    zeros[0] = 0
    best, via = shared[0].copy(), np.zeros(count, dtype=np.int64)
    best[0] = -1
    of_rank: list[list[int]] = [[] for _ in range(count)]
    for k, span in enumerate(spans):
        for rank in span:
            of_rank[rank].append(k)
    for _ in range(count - 1):
        rank = int(np.argmax(best))
        if best[rank] <= 0:
            break
        other = int(via[rank])
        placed = zeros[other]
        assert placed is not None
        ends = [spans[k][other][1] - spans[k][rank][1] for k in of_rank[rank] if other in spans[k]]
        zeros[rank] = min(max(placed + median_low(ends), -4 * MAX_NS), 4 * MAX_NS)
        better = shared[rank] > best
        better &= best >= 0
        best[better], via[better] = shared[rank][better], rank
        best[rank] = -1
    unlinked = [rank for rank, zero in enumerate(zeros) if zero is None]
    base = 0 if recorded is None else recorded[0]
    for rank in unlinked:
        zeros[rank] = 0 if recorded is None else min(recorded[rank] - base, MAX_NS)
    return [zero for zero in zeros if zero is not None], unlinked


def _overlap_all(targets: Sequence[int], spans: Spans) -> list[int]:
    """Move offsets as little as makes every collective overlap; return them as they are if none do.

    The conditions are differences: rank i must begin before rank j ends, for each collective.
    The largest solution below the targets and the smallest one above them are shortest paths,
    and for whole numbers their rounded-down mean is a solution too.
    """
    count = len(targets)
    if _overlapping(targets, spans) == len(spans):
        return list(targets)
    if count * count * max(count, len(spans)) > _MAX_WORK:
        return list(targets)
    room = _room(count, targets, spans)
    for middle in range(count):
        np.minimum(room, room[:, middle, None] + room[None, middle, :], out=room)
        np.minimum(room, _FAR, out=room)
        np.maximum(room, -_FAR, out=room)
        if (np.diagonal(room) < 0).any():
            return list(targets)
    # Relative to the targets: offset i minus offset j is at most room[i, j].
    below = room.min(axis=1)
    above = (-room).max(axis=0)
    moved = (below + above) // 2
    return [target + int(move) for target, move in zip(targets, moved, strict=True)]


def _room(count: int, targets: Sequence[int], spans: Spans) -> NDArray[np.int64]:
    """Return by how much each rank may at most be moved later than each other one."""
    room = np.full((count, count), _FAR, dtype=np.int64)
    for span in spans:
        ranks = np.array(list(span))
        starts = np.array([span[r][0] + targets[r] for r in span], dtype=np.int64)
        ends = np.array([span[r][1] + targets[r] for r in span], dtype=np.int64)
        grid = np.ix_(ranks, ranks)
        room[grid] = np.minimum(room[grid], ends[None, :] - starts[:, None] - 1)
    np.fill_diagonal(room, 0)
    return room

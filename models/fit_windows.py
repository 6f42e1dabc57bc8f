"""The fewest straight pieces that pass through windows, proved: a search over sets of values.

Every measured size has a window of allowed values. A curve has corners at some of the sizes and
passes through every window. Which values can a curve have at a size, with so many pieces? The
answer is a union of intervals, and it can be computed from size to size without rounding a choice:
that makes the number of pieces exact (up to the floating-point rounding of the windows' ends).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_SLACK = 1e-9
"""Windows are this much wider, relatively, than asked: floating-point numbers round."""
_MAX_SWEEPS = 200
_SETTLED = 1e-7

Interval = tuple[float, float]
Corner = tuple[float, float]
"""Values at a piece's start and at its end: a corner of the region of possible pieces."""


class _Way(NamedTuple):
    """Values that are reached at a size by a piece that starts in an interval of another."""

    low: float
    high: float
    start: int
    interval: Interval


def corners_within(
    sizes: Sequence[int], times: Sequence[float], bound: float
) -> list[tuple[int, float]]:
    """Return the corners of a non-falling curve with the fewest pieces through all windows.

    The window of size ``m`` is ``times[m] * (1 - bound) .. times[m] * (1 + bound)``.

    Let ``R(k, j)`` be the values at size ``j`` of all non-falling curves over the sizes up to
    ``j`` with at most ``k`` pieces, corners at sizes, inside all windows so far. ``R(0, 0)`` is the
    first window. The last piece of such a curve starts at some size ``i < j`` with a value in
    ``R(k - 1, i)`` and a slope of at least 0, and every curve up to ``i`` can be continued by every
    piece that starts at its value. For an interval of ``R(k - 1, i)`` the pairs (value, slope)
    that pass the windows of ``i + 1 .. j`` are a convex region, a half-plane of the pair for each
    end of a window, so the values at ``j`` are an interval, and ``R(k, j)`` is the union of these
    intervals over all ``i``. Hence the least ``k`` for which ``R(k, last)`` is not empty is the
    least number of pieces of any such curve. It is found by computing the sets for
    k = 1, 2, ...; the curve is read off backwards.

    Parameters
    ----------
    sizes
        At least two, in increasing order.
    times
        Microseconds, above 0.
    bound
        The relative error, from 0 to below 1. With it there must be a curve at all:
        no time may exceed a later one by more than the windows allow.

    Returns
    -------
    list[tuple[int, float]]
        Number of the size and value in microseconds of each corner.

    Examples
    --------
    >>> [k for k, _ in corners_within([1, 2, 3, 4], [10.0, 10.0, 20.0, 30.0], 0.01)]
    [0, 1, 3]
    """
    low = [time * (1 - bound) * (1 - _SLACK) for time in times]
    high = [time * (1 + bound) * (1 + _SLACK) for time in times]
    last = len(sizes) - 1
    reached: list[list[Interval]] = [[] for _ in sizes]
    reached[0] = [(low[0], high[0])]
    changed = {0: reached[0]}
    ways: list[list[_Way]] = [[] for _ in sizes]  # in order of the number of pieces
    while not reached[last]:
        found: dict[int, list[_Way]] = {}
        for i, intervals in changed.items():
            for interval in intervals:
                for j, region in _regions(sizes, low, high, i, interval):
                    ends = [value for _, value in region]
                    found.setdefault(j, []).append(_Way(min(ends), max(ends), i, interval))
        changed = {}
        for j, some in found.items():
            ways[j] += some
            union = _union([*reached[j], *((way.low, way.high) for way in some)])
            if union != reached[j]:
                reached[j] = changed[j] = union
    corners = _walk_back(sizes, times, low, high, reached[last], ways)
    return _polished(sizes, times, low, high, corners)


def _regions(
    sizes: Sequence[int],
    low: Sequence[float],
    high: Sequence[float],
    start: int,
    interval: Interval,
) -> Iterator[tuple[int, list[Corner]]]:
    """Give, for each later size that a piece can end at, the pairs of first and last value.

    The last value rather than the slope: where sizes lie ten orders of magnitude apart, a slope
    would have to be known to more digits than a floating-point number has.
    """
    a, b = interval
    region: list[Corner] = []
    for j in range(start + 1, len(sizes)):
        if j == start + 1:
            region = [(a, low[j]), (b, low[j]), (b, high[j]), (a, high[j])]
            region = _cut(region, [end - begin for begin, end in region])
        else:
            longer = (sizes[j] - sizes[start]) / (sizes[j - 1] - sizes[start])
            region = [(begin, begin + (end - begin) * longer) for begin, end in region]
            for limit, sign in ((low[j], 1.0), (high[j], -1.0)):
                region = _cut(region, [sign * (end - limit) for _, end in region], limit)
        if not region:
            return
        yield j, region


def _cut(region: list[Corner], sides: list[float], limit: float | None = None) -> list[Corner]:
    """Return the part of a convex region where the sides are at least 0.

    ``limit`` is the last value where a side is 0; without rounding it is there anyway.
    """
    if all(side >= 0 for side in sides):
        return region
    kept: list[Corner] = []
    for k, (corner, side) in enumerate(zip(region, sides, strict=True)):
        previous, other = region[k - 1], sides[k - 1]
        if (side >= 0) != (other >= 0):
            share = other / (other - side)
            begin = previous[0] + share * (corner[0] - previous[0])
            end = previous[1] + share * (corner[1] - previous[1])
            kept.append((begin, end if limit is None else limit))
        if side >= 0:
            kept.append(corner)
    return kept


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for a, b in sorted(intervals):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        else:
            merged.append((a, b))
    return merged


def _walk_back(
    sizes: Sequence[int],
    times: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    reached: list[Interval],
    ways: list[list[_Way]],
) -> list[tuple[int, float]]:
    """Return corners of a curve that the search has found.

    The ways to a size are in order of pieces, and all that lead to a value with the fewest pieces
    were found in one round: the first that holds a value is among the shortest.
    """
    j = len(sizes) - 1
    value = _nearest(times[j], reached)
    corners = [(j, value)]
    while j:
        way = next(way for way in ways[j] if way.low <= value <= way.high)
        region = next(r for k, r in _regions(sizes, low, high, way.start, way.interval) if k == j)
        first, last = _slice(region, value)
        a, b = way.interval
        j, value = way.start, min(max(times[way.start], first, a), last, b)
        corners.append((j, value))
    return corners[::-1]


def _slice(region: list[Corner], value: float) -> Interval:
    """Return the least and the largest first value of a region where its last value is this."""
    found = [begin for begin, end in region if end == value]
    for k, (begin, end) in enumerate(region):
        other_begin, other_end = region[k - 1]
        if (end < value) != (other_end < value):
            share = (value - other_end) / (end - other_end)
            found.append(other_begin + share * (begin - other_begin))
    return min(found), max(found)


def _nearest(value: float, intervals: list[Interval]) -> float:
    options = [min(max(value, a), b) for a, b in intervals]
    return min(options, key=lambda option: abs(option - value))


def _polished(
    sizes: Sequence[int],
    times: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    corners: list[tuple[int, float]],
) -> list[tuple[int, float]]:
    """Return the same corners with values that make squared relative errors smaller.

    One corner after the other takes the best value that it can have while the others stay.
    """
    places = [k for k, _ in corners]
    values = np.array([value for _, value in corners])
    x, t = np.array(sizes, dtype=float), np.array(times)
    bottom, top = np.array(low), np.array(high)
    for _ in range(_MAX_SWEEPS):
        moved = 0.0
        for c, place in enumerate(places):
            least = values[c - 1] if c else 0.0
            most = values[c + 1] if c + 1 < len(places) else float("inf")
            parts = []
            for other in (c - 1, c + 1):
                if not 0 <= other < len(places):
                    continue
                first, last = sorted((place, places[other]))
                # The place itself is counted once, the other corner not at all.
                m = np.arange(first + (other < c or c > 0), last + (other < c))
                if not len(m):
                    continue
                share = 1 - np.abs(x[m] - x[place]) / abs(x[places[other]] - x[place])
                rest = (1 - share) * values[other]
                parts.append((share, rest, t[m]))
                least = max(least, float(np.max((bottom[m] - rest) / share)))
                most = min(most, float(np.min((top[m] - rest) / share)))
            if least > most:
                continue
            # d/dv of sum ((share v + rest) / t - 1)^2 is 0
            up = sum(float(np.sum(s / tt * (1 - r / tt))) for s, r, tt in parts)
            down = sum(float(np.sum((s / tt) ** 2)) for s, _, tt in parts)
            value = min(max(up / down, least), most)
            moved = max(moved, abs(value / values[c] - 1))
            values[c] = value
        if moved < _SETTLED:
            break
    return [(place, float(value)) for place, value in zip(places, values, strict=True)]

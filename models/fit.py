"""Cost curves from measured times, with how far they are from what was measured.

Errors are relative, ``|curve - measured| / measured``, for a step has launches of a few kilobytes
and of many megabytes, and plain least squares would look at the large ones only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from heapq import merge

import numpy as np
import numpy.typing as npt

from commsched.models.cost import AlphaBeta, CostCurve, PiecewiseLinear
from commsched.models.errors import InputError
from commsched.models.units import Number, check_bytes, exact, ns_from_us

MAX_SIZES = 2_000
"""The most different sizes that a curve is fitted to."""

_FLAT_GB_S = 1_000_000
"""Stands for "no cost per byte": a gigabyte takes a microsecond."""
_SHIFT = 128
_TOLERANCE = 1e-9
_SHOWN_POOLS = 4

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost curve and how well it says what was measured.

    Attributes
    ----------
    curve
        The curve.
    mean_error, max_error
        Relative error over the measured sizes, each size once with the median of its times;
        0.05 is 5 %.
    worst_bytes
        The size with the largest error (the smallest of several).
    pieces
        Straight pieces between the smallest and the largest measured size.
    sizes
        How many different sizes were measured.
    notes
        Sentences on what was merged, pooled or could not be reached.
    """

    curve: CostCurve
    mean_error: float
    max_error: float
    worst_bytes: int
    pieces: int
    sizes: int
    notes: tuple[str, ...]


def fit_alpha_beta(points: Iterable[tuple[int, Number]]) -> Fit:
    """Fit a start-up latency and a bandwidth by least squares of the relative error.

    The sum of ``((alpha + beta * bytes) / time - 1) ** 2`` over the measured sizes is as small as
    it can be with ``alpha >= 0`` and ``beta > 0``. It is solved in integers; then alpha is rounded
    to nanoseconds and the bandwidth to six digits. The errors are those of the rounded curve.

    Parameters
    ----------
    points
        Pairs of bytes and microseconds, at least two different sizes; of a size that is repeated
        the median counts.

    Raises
    ------
    InputError
        If there are too few or too many sizes, or a value is out of range.

    Examples
    --------
    >>> fit = fit_alpha_beta([(1_000_000, 130), (2_000_000, 230), (8_000_000, 830)])
    >>> fit.curve, fit.max_error
    (AlphaBeta(alpha_us=30.0, bandwidth_gb_s=10.0), 0.0)
    """
    sizes, times, notes = _merged(points)
    # Residual k is alpha * u + beta * v - 1 with u = 1 / time and v = bytes / time, in units
    # of 2 ** -_SHIFT.
    inverse = [(time.denominator << _SHIFT) // time.numerator for time in times]
    scaled = [size * u for size, u in zip(sizes, inverse, strict=True)]
    uu = sum(u * u for u in inverse)
    uv = sum(u * v for u, v in zip(inverse, scaled, strict=True))
    vv = sum(v * v for v in scaled)
    u1, v1 = sum(inverse) << _SHIFT, sum(scaled) << _SHIFT
    determinant = uu * vv - uv * uv
    alpha = Fraction(u1 * vv - v1 * uv, determinant)
    beta = Fraction(v1 * uu - u1 * uv, determinant)
    if alpha < 0:
        alpha, beta = Fraction(0), Fraction(v1, vv)
    if beta <= 0:
        alpha, beta = Fraction(u1, uu), Fraction(1, _FLAT_GB_S * 1000)
        notes.append(
            "time does not grow with size: the bandwidth stands for no cost per byte, "
            "measure larger sizes"
        )
    curve = AlphaBeta(float(round(alpha, 3)), _six_digits(1 / (beta * 1000)))
    return _judged(curve, 1, sizes, times, notes)


def fit_piecewise(points: Iterable[tuple[int, Number]], max_error: float = 0.05) -> Fit:
    """Fit straight pieces through measured points: as few as keep the relative error.

    Times that fall with size are pooled first, for the cost of a launch must not fall: isotonic
    regression with the least sum of ``|log(pooled / measured)|``, each size weighted with the
    number of its measurements, so that one outlier (a first launch that was not warm) does not
    spoil its neighbours. Then, of all curves whose corners are (pooled) points and that are
    within ``max_error`` of every (pooled) point, one with the fewest pieces is taken, and among
    those one with the least sum of squared relative errors. Where pooling moved a point the
    error against the measurement can be larger; ``Fit.max_error`` says what it really is.

    Parameters
    ----------
    points
        Pairs of bytes and microseconds, at least two different sizes; of a size that is repeated
        the median counts.
    max_error
        The largest relative error, from 0 to below 1.

    Raises
    ------
    InputError
        If there are too few or too many sizes, or a value is out of range.

    Examples
    --------
    >>> fit = fit_piecewise([(1000, 10), (2000, 10.1), (4000, 20), (8000, 40), (16000, 80)])
    >>> fit.curve.rows, fit.pieces
    (((1000, 10.0), (2000, 10.1), (16000, 80.0)), 2)
    """
    bound = exact(max_error, "max_error")
    if not 0 <= bound < 1:
        raise InputError(f"max_error: {max_error} must be at least 0 and below 1")
    given = [(size, time) for size, time in points]
    sizes, times, notes = _merged(given)
    counts: dict[int, int] = {}
    for size, _ in given:
        counts[int(size)] = counts.get(int(size), 0) + 1
    pooled = _pooled(sizes, times, [counts[size] for size in sizes], notes)
    x = np.array(sizes, dtype=np.float64)
    y = np.array([float(time) for time in pooled])
    corners = _fewest(x, y, float(bound))
    curve = PiecewiseLinear(tuple((sizes[k], float(pooled[k])) for k in corners))
    fit = _judged(curve, len(corners) - 1, sizes, times, notes)
    if fit.max_error <= bound + _TOLERANCE:
        return fit
    note = f"an error of {float(bound):.1%} cannot be kept where times fall with size"
    return replace(fit, notes=(*fit.notes, note))


def _merged(points: Iterable[tuple[int, Number]]) -> tuple[list[int], list[Fraction], list[str]]:
    """Return sizes in order, the median time of each in microseconds, and notes."""
    measured: dict[int, list[Fraction]] = {}
    for number, (size, us) in enumerate(points):
        size = check_bytes(size, f"point {number}: bytes")
        ns_from_us(us, f"point {number}: us")
        time = exact(us, f"point {number}: us")
        if time == 0:
            raise InputError(f"point {number}: the time of {size} bytes is 0 us")
        measured.setdefault(size, []).append(time)
        if len(measured) > MAX_SIZES:
            raise InputError(f"points: more than {MAX_SIZES} different sizes")
    if len(measured) < 2:
        raise InputError(f"points: {len(measured)} different sizes, at least 2 needed")
    sizes = sorted(measured)
    repeated = sum(len(times) > 1 for times in measured.values())
    notes = [f"{repeated} sizes were measured repeatedly: the median counts"] if repeated else []
    return sizes, [statistics.median(measured[size]) for size in sizes], notes


def _pooled(
    sizes: Sequence[int], times: Sequence[Fraction], counts: Sequence[int], notes: list[str]
) -> list[Fraction]:
    """Return times that do not fall; neighbours that did share their median."""
    blocks: list[tuple[float, list[tuple[float, int]]]] = []  # median, sorted times with counts
    for time, count in zip(times, counts, strict=True):
        members = [(float(time), count)]
        while blocks and blocks[-1][0] > _median(members):
            members = list(merge(blocks.pop()[1], members))
        blocks.append((_median(members), members))
    result: list[Fraction] = []
    pools = []
    for median, members in blocks:
        width = len(members)
        first, last = len(result), len(result) + width - 1
        if width == 1:
            result.append(times[first])
            continue
        us = _three_decimals(median)
        part = times[first : last + 1]
        pools.append(
            f"{sizes[first]} to {sizes[last]} bytes: {width} times that fall with size, "
            f"{float(min(part)):g} to {float(max(part)):g} us, count as {float(us):g} us"
        )
        result += [us] * width
    notes += pools[:_SHOWN_POOLS]
    if len(pools) > _SHOWN_POOLS:
        notes.append(f"{len(pools) - _SHOWN_POOLS} more ranges of falling times are pooled")
    # Rounding may have put a median a hair beyond its neighbour.
    for k in range(1, len(result)):
        result[k] = max(result[k], result[k - 1])
    return result


def _median(members: Sequence[tuple[float, int]]) -> float:
    """Return the median of sorted times with counts; between two, their geometric mean."""
    half = sum(count for _, count in members) / 2
    seen = 0
    for k, (time, count) in enumerate(members):
        seen += count
        if seen > half:
            return time
        if seen == half:
            return math.sqrt(time * members[k + 1][0])
    raise AssertionError("unreachable")


def _fewest(x: FloatArray, y: FloatArray, bound: float) -> list[int]:
    """Return the corners of a curve with the fewest pieces within the bound."""
    count = len(x)
    pieces = [0] + [count] * (count - 1)
    before: list[list[int]] = [[] for _ in range(count)]
    for i in range(count - 1):
        # A piece from i to j keeps the bound at k if its slope is in k's interval.
        run = x[i + 1 :] - x[i]
        slopes = (y[i + 1 :] - y[i]) / run
        slack = (bound + _TOLERANCE) * y[i + 1 :] / run
        low = np.maximum.accumulate(slopes - slack)
        high = np.minimum.accumulate(slopes + slack)
        for j in (np.flatnonzero((low <= slopes) & (slopes <= high)) + i + 1).tolist():
            if pieces[i] + 1 < pieces[j]:
                pieces[j] = pieces[i] + 1
                before[j] = [i]
            elif pieces[i] + 1 == pieces[j]:
                before[j].append(i)
    squares = [0.0] * count
    best = [0] * count
    for j in range(1, count):
        squares[j], best[j] = min((squares[i] + _squares(x, y, i, j), i) for i in before[j])
    corners = [count - 1]
    while corners[-1] != 0:
        corners.append(best[corners[-1]])
    return corners[::-1]


def _squares(x: FloatArray, y: FloatArray, i: int, j: int) -> float:
    """Return the sum of squared relative errors between the corners of a piece."""
    line = y[i] + (y[j] - y[i]) / (x[j] - x[i]) * (x[i + 1 : j] - x[i])
    error = line / y[i + 1 : j] - 1
    return float(error @ error)


def _judged(
    curve: CostCurve,
    pieces: int,
    sizes: Sequence[int],
    times: Sequence[Fraction],
    notes: Sequence[str],
) -> Fit:
    errors = [
        abs(curve.exact_ns(size) / (time * 1000) - 1)
        for size, time in zip(sizes, times, strict=True)
    ]
    worst = max(range(len(errors)), key=lambda k: errors[k])
    return Fit(
        curve=curve,
        mean_error=math.fsum(map(float, errors)) / len(errors),
        max_error=float(errors[worst]),
        worst_bytes=sizes[worst],
        pieces=pieces,
        sizes=len(sizes),
        notes=tuple(notes),
    )


def _three_decimals(us: float) -> Fraction:
    return Fraction(max(1, round(us * 1000)), 1000)


def _six_digits(value: Fraction) -> float:
    return float(f"{Decimal(value.numerator) / Decimal(value.denominator):.5e}")

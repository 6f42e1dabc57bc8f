"""Cost curves from measured times, with how far they are from what was measured.

Errors are relative, ``|curve - measured| / measured``, for a step has launches of a few kilobytes
and of many megabytes, and plain least squares would look at the large ones only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate

from commsched.models.cost import AlphaBeta, CostCurve, PiecewiseLinear
from commsched.models.errors import InputError
from commsched.models.fit_windows import corners_within
from commsched.models.units import Number, check_bytes, exact, ns_from_us

MAX_SIZES = 1_000
"""The most different sizes that a curve is fitted to."""

FLAT_GB_S = 1_000_000
"""Stands for "no cost per byte": a gigabyte takes a microsecond."""
_SHIFT = 128
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost curve and how well it says what was measured.

    Attributes
    ----------
    curve
        The curve.
    mean_error, max_error
        Relative error over the measured sizes, each size once with the median of its times;
        0.05 is 5 %. Repaired times count as measured, not as repaired.
    worst_bytes
        The size with the largest error (the smallest of several).
    pieces
        Straight pieces between the smallest and the largest measured size.
    sizes
        How many different sizes were measured.
    errors
        ``(bytes, relative error)`` of each measured size, in order of size.
    notes
        Sentences on what was merged or repaired.
    """

    curve: CostCurve
    mean_error: float
    max_error: float
    worst_bytes: int
    pieces: int
    sizes: int
    errors: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fall:
    """Two measured sizes of which the larger one took less time.

    Attributes
    ----------
    bytes, us
        The smaller size and its time in microseconds.
    larger_bytes, less_us
        The larger size and its time.
    """

    bytes: int
    us: float
    larger_bytes: int
    less_us: float

    @property
    def least_error(self) -> float:
        """The least relative error at which a curve that does not fall passes both."""
        return (self.us - self.less_us) / (self.us + self.less_us)

    def __str__(self) -> str:
        return (
            f"times fall from {self.us:g} us at {self.bytes} bytes to {self.less_us:g} us at "
            f"{self.larger_bytes} bytes"
        )


class FallingTimesError(InputError):
    """No curve that does not fall is near enough to the measured times.

    Attributes
    ----------
    fall
        The pair of sizes that rules it out.
    """

    def __init__(self, message: str, fall: Fall) -> None:
        super().__init__(message)
        self.fall = fall


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
    sizes, times, notes = medians(points)
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
        alpha, beta = Fraction(u1, uu), Fraction(1, FLAT_GB_S * 1000)
        notes.append(
            "time does not grow with size: the bandwidth stands for no cost per byte, "
            "measure larger sizes"
        )
    curve = AlphaBeta(float(round(alpha, 3)), _digits(1 / (beta * 1000), 6))
    return _judged(curve, 1, sizes, times, notes)


def fit_piecewise(
    points: Iterable[tuple[int, Number]], max_error: float = 0.05, *, repair: bool = False
) -> Fit:
    """Fit straight pieces within a relative error of every measured point: as few as there can be.

    Of all curves that never fall, have their corners at measured sizes (the first and the last
    are among them) and are within ``max_error`` of the time of every measured size, one with the
    fewest pieces is taken; :func:`~commsched.models.fit_windows.corners_within` proves that there
    is none with fewer. Values at the corners are free within the error, so they need not be
    measured times. With the corners chosen, squared relative errors are made smaller without
    leaving the bound; that this is the least possible is not claimed. Values are then rounded to
    eight digits, which may add 1e-7 to an error.

    A curve may smooth out times that fall with size only as far as the error allows. Where two
    sizes rule that out, times must be repaired first, and only on request: each becomes the largest
    up to its size. The errors are always those against the times that were measured.

    Parameters
    ----------
    points
        Pairs of bytes and microseconds, at least two different sizes; of a size that is repeated
        the median counts.
    max_error
        The largest relative error, from 0 to below 1.
    repair
        Whether to raise times that fall.

    Raises
    ------
    FallingTimesError
        If times fall by more than the error allows and are not to be repaired.
    InputError
        If there are too few or too many sizes, or a value is out of range.

    Examples
    --------
    >>> fit = fit_piecewise([(1000, 10), (2000, 10.1), (4000, 20), (8000, 40), (16000, 80)], 0.02)
    >>> [size for size, _ in fit.curve.rows], fit.pieces, fit.max_error < 0.02
    ([1000, 2000, 16000], 2, True)
    """
    bound = exact(max_error, "max_error")
    if not 0 <= bound < 1:
        raise InputError(f"max_error: {max_error} must be at least 0 and below 1")
    sizes, times, notes = medians(points)
    fall = worst_fall(zip(sizes, times, strict=True))
    targets = _repaired(sizes, times, notes) if repair else times
    if not repair and fall is not None and fall.least_error > float(bound) + _TOLERANCE:
        raise FallingTimesError(
            f"{fall}: no curve that does not fall is within {float(bound):.3g} of both", fall
        )
    corners = corners_within(sizes, [float(time) for time in targets], float(bound))
    rows = [(sizes[k], _digits(Fraction(us), 8)) for k, us in corners]
    return _judged(PiecewiseLinear(tuple(rows)), len(rows) - 1, sizes, times, notes)


def raw_curve(points: Iterable[tuple[int, Number]], *, repair: bool = False) -> Fit:
    """Return the curve through all measured points, of a repeated size the median.

    Parameters
    ----------
    points
        As for :func:`fit_piecewise`.
    repair
        Whether to raise times that fall.

    Raises
    ------
    FallingTimesError
        If times fall at all and are not to be repaired.
    InputError
        If there are too few or too many sizes, or a value is out of range.

    Examples
    --------
    >>> raw_curve([(8, 10), (16, 9), (32, 11)], repair=True).curve.rows
    ((8, 10.0), (16, 10.0), (32, 11.0))
    """
    sizes, times, notes = medians(points)
    fall = worst_fall(zip(sizes, times, strict=True))
    if fall is not None and not repair:
        raise FallingTimesError(f"{fall}: a cost must not fall", fall)
    targets = _repaired(sizes, times, notes) if repair else times
    rows = [(size, _digits(us, 15)) for size, us in zip(sizes, targets, strict=True)]
    return _judged(PiecewiseLinear(tuple(rows)), len(rows) - 1, sizes, times, notes)


def worst_fall(points: Iterable[tuple[int, Number]]) -> Fall | None:
    """Return the pair of sizes with the largest ratio of the smaller's time to the larger's.

    Parameters
    ----------
    points
        Bytes and microseconds; of a size that is repeated the median counts.

    Returns
    -------
    Fall | None
        None if times never fall. A curve that does not fall and is within a relative error of
        every point exists exactly if that error is at least the pair's ``least_error``: the
        largest lower end of a window so far is such a curve.

    Examples
    --------
    >>> print(worst_fall([(8, 10), (16, 12), (32, 9), (64, 40)]))
    times fall from 12 us at 16 bytes to 9 us at 32 bytes
    """
    sizes, times, _ = medians(points)
    worst: tuple[Fraction, int, int] | None = None
    top = 0
    for k, time in enumerate(times):
        if time > times[top]:
            top = k
        elif time < times[top] and (worst is None or times[top] / time > worst[0]):
            worst = times[top] / time, top, k
    if worst is None:
        return None
    _, i, j = worst
    return Fall(sizes[i], float(times[i]), sizes[j], float(times[j]))


def medians(points: Iterable[tuple[int, Number]]) -> tuple[list[int], list[Fraction], list[str]]:
    """Return sizes in order, the median time of each in microseconds, and notes.

    Raises
    ------
    InputError
        If there are too few or too many sizes, or a value is out of range.

    Examples
    --------
    >>> medians([(16, 3), (8, 1), (16, 9), (16, 4)])[:2]
    ([8, 16], [Fraction(1, 1), Fraction(4, 1)])
    """
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


def _repaired(sizes: Sequence[int], times: Sequence[Fraction], notes: list[str]) -> list[Fraction]:
    """Return the running maximum of times, and note how many it raises and which the most."""
    raised = list(accumulate(times, max))
    changed = [k for k, time in enumerate(times) if raised[k] != time]
    if changed:
        most = max(changed, key=lambda k: raised[k] / times[k])
        notes.append(
            f"repaired: {len(changed)} of {len(sizes)} times that fall are raised to the largest "
            f"before them, most of all {sizes[most]} bytes from {float(times[most]):g} to "
            f"{float(raised[most]):g} us"
        )
    return raised


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
        errors=tuple(zip(sizes, map(float, errors), strict=True)),
        notes=tuple(notes),
    )


def _digits(value: Fraction, count: int) -> float:
    return float(f"{Decimal(value.numerator) / Decimal(value.denominator):.{count - 1}e}")

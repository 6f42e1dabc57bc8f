"""What a launch costs: time as a non-decreasing function of bytes.

Every curve is a list of affine pieces with integer coefficients, so a cost is exact, and one
implementation prices all of them. :meth:`CostCurve.ns` rounds a launch *up* to a whole
nanosecond; :meth:`CostCurve.exact_ns` does not round and is what bounds are computed on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from operator import index

from commsched.models.collectives import Kind, bus_factor, check_kind, check_ranks
from commsched.models.errors import InputError
from commsched.models.given import items_of
from commsched.models.units import (
    NS_PER_US,
    Number,
    check_bytes,
    exact,
    ns_from_us,
    shown,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One affine piece: ``(intercept + slope * bytes) / scale`` nanoseconds from ``first_bytes`` on.

    Attributes
    ----------
    first_bytes
        The smallest size, in bytes, to which the piece applies; it ends where the next begins.
    intercept, slope, scale
        Integers; ``slope >= 0`` and ``scale > 0``. The intercept may be negative.
    """

    first_bytes: int
    intercept: int
    slope: int
    scale: int

    def ns(self, size: int) -> int:
        """Return the time for ``size`` bytes (an int), rounded up to a whole nanosecond."""
        return -((-self.intercept - self.slope * size) // self.scale)

    def exact_ns(self, size: int) -> Fraction:
        """Return the time for ``size`` bytes, unrounded."""
        return Fraction(self.intercept + self.slope * size, self.scale)


class CostCurve:
    """A launch's time as a non-decreasing function of its bytes.

    Subclasses hold what the user wrote and say in ``pieces`` what it means.
    """

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The affine pieces in order of size; the first begins at 0 bytes."""
        raise NotImplementedError

    @property
    def measured_to(self) -> int | None:
        """The largest measured size in bytes, or None where the curve is a formula."""
        return None

    @property
    def affine(self) -> Piece | None:
        """The only piece of an affine curve, else None."""
        return self.pieces[0] if len(self.pieces) == 1 else None

    @cached_property
    def _starts(self) -> list[int]:
        return [piece.first_bytes for piece in self.pieces]

    def piece(self, size: int) -> Piece:
        """Return the piece that prices ``size`` bytes."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        return self.pieces[bisect_right(self._starts, size) - 1]

    def ns(self, size: int) -> int:
        """Return the time of one launch of ``size`` bytes in nanoseconds, rounded up.

        Examples
        --------
        >>> AlphaBeta(8, 53.6870912).ns(33554432)
        633000
        """
        size = index(size)  # a numpy integer would overflow
        return self.piece(size).ns(size)

    def exact_ns(self, size: int) -> Fraction:
        """Return the time of one launch of ``size`` bytes in nanoseconds, unrounded."""
        size = index(size)
        return self.piece(size).exact_ns(size)

    @cached_property
    def minorants(self) -> tuple[Piece, ...]:
        """Affine curves with an intercept of at least 0 that nowhere exceed this one.

        Whatever way a total of S bytes is cut into one or more launches, the launches together
        take at least ``max(line.exact_ns(S) for line in minorants)``: each pays the slope for its
        own bytes and at least one pays the intercept. Lower bounds rest on this.
        """
        if self.affine is not None:
            return self.pieces
        corners: list[tuple[int, Fraction]] = []
        for number, piece in enumerate(self.pieces):
            ends = [piece.first_bytes]
            if number + 1 < len(self.pieces):
                # Sizes are whole bytes, so a piece ends a byte before the next one begins.
                ends.append(self.pieces[number + 1].first_bytes - 1)
            corners.extend((end, piece.exact_ns(end)) for end in ends)
        last = Fraction(self.pieces[-1].slope, self.pieces[-1].scale)
        hull = _lower_hull(corners)
        slopes = {(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(hull)}
        lines = [
            _affine(intercept, slope)
            for slope in sorted(slope for slope in slopes | {last, Fraction(0)} if slope <= last)
            if (intercept := min(y - slope * x for x, y in hull)) >= 0
        ]
        through_origin = min([last, *(y / x for x, y in hull if x > 0)])
        return (*lines, _affine(Fraction(0), through_origin))

    def at_least_ns(self, total: int) -> Fraction:
        """Return a lower bound on the time of any launches that carry ``total`` bytes together."""
        return max(line.exact_ns(total) for line in self.minorants)


@dataclass(frozen=True)
class AlphaBeta(CostCurve):
    """Start-up latency plus bytes over algorithm bandwidth.

    Parameters
    ----------
    alpha_us
        Start-up latency of a launch in microseconds, at least 0.
    bandwidth_gb_s
        Algorithm bandwidth (bytes / time) in GB/s, 1 GB = 1e9 bytes, above 0.

    Raises
    ------
    InputError
        If a value is no finite number or out of range.

    Examples
    --------
    >>> AlphaBeta(alpha_us=30, bandwidth_gb_s=10).ns(1_000_000)
    130000
    """

    alpha_us: Number
    bandwidth_gb_s: Number

    def __post_init__(self) -> None:
        ns_from_us(self.alpha_us, "alpha_us")
        _check_bandwidth(self.bandwidth_gb_s, "bandwidth_gb_s")

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The one affine piece."""
        alpha = exact(self.alpha_us, "alpha_us") * NS_PER_US
        return (_affine(alpha, 1 / exact(self.bandwidth_gb_s, "bandwidth_gb_s")),)


@dataclass(frozen=True)
class BusBandwidth(CostCurve):
    """Start-up latency plus bytes over the algorithm bandwidth that a bus bandwidth gives.

    nccl-tests: ``busbw = algbw * factor``; the factor is ``2 (n-1) / n`` for an all-reduce,
    ``(n-1) / n`` for an all-gather, a reduce-scatter and an all-to-all, else 1.

    Parameters
    ----------
    alpha_us
        Start-up latency of a launch in microseconds, at least 0.
    bus_bandwidth_gb_s
        Bus bandwidth in GB/s, above 0.
    ranks
        Ranks in the group, at least 2.
    kind
        The collective's kind.
    algorithm
        Only ``"ring"``, the algorithm for which the factor is the wire's load.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> BusBandwidth(10, 150, ranks=4, kind="allreduce").ns(1_000_000)
    20000
    """

    alpha_us: Number
    bus_bandwidth_gb_s: Number
    ranks: int
    kind: Kind
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        ns_from_us(self.alpha_us, "alpha_us")
        _check_bandwidth(self.bus_bandwidth_gb_s, "bus_bandwidth_gb_s")
        object.__setattr__(self, "ranks", check_ranks(self.ranks))
        check_kind(self.kind, "kind")
        if self.algorithm != "ring":
            raise InputError(f"algorithm: {self.algorithm!r} is unknown, only 'ring' is")

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The one affine piece."""
        alpha = exact(self.alpha_us, "alpha_us") * NS_PER_US
        bandwidth = exact(self.bus_bandwidth_gb_s, "bus_bandwidth_gb_s")
        return (_affine(alpha, bus_factor(self.kind, self.ranks) / bandwidth),)


@dataclass(frozen=True)
class _Measured(CostCurve):
    """What the curves share that are given as rows of (bytes, microseconds)."""

    rows: tuple[tuple[int, Number], ...]

    def _check(self, what: str, least: int) -> None:
        rows = []
        for number, row in enumerate(items_of(self.rows, what, object)):
            if isinstance(row, str) or not isinstance(row, Iterable) or len(pair := [*row]) != 2:
                raise InputError(f"{what}: row {number} is {row!r:.60}, not bytes and microseconds")
            size = check_bytes(pair[0], f"{what}: row {number}: bytes")
            ns_from_us(pair[1], f"{what}: us at {size} bytes")
            rows.append((size, pair[1]))
        object.__setattr__(self, "rows", tuple(rows))
        if len(rows) < least:
            raise InputError(f"{what}: {len(rows)} given, at least {least} needed")
        ordered = sorted(rows, key=lambda row: row[0])
        for (size, us), (next_size, next_us) in pairwise(ordered):
            if size == next_size:
                raise InputError(f"{what}: {size} bytes is listed twice")
            if exact(next_us, what) < exact(us, what):
                raise InputError(
                    f"{what}: the cost decreases from {us} us at {size} bytes "
                    f"to {next_us} us at {next_size} bytes; it must not"
                )
        if ordered[-1][0] == 0:
            raise InputError(f"{what}: a size above 0 bytes is needed")

    @cached_property
    def _sorted(self) -> list[tuple[int, Fraction]]:
        return sorted((int(size), exact(us, "us") * NS_PER_US) for size, us in self.rows)

    @property
    def measured_to(self) -> int | None:
        """The largest measured size in bytes."""
        return self._sorted[-1][0]


@dataclass(frozen=True)
class PiecewiseLinear(_Measured):
    """Straight lines through measured points.

    Below the first point the time is that of the first point; beyond the last the last line
    goes on (beyond twice the largest size the evaluator warns).

    Parameters
    ----------
    rows
        At least two points ``(bytes, microseconds)`` with different sizes and times that do not
        decrease with size.

    Raises
    ------
    InputError
        If a row is invalid or the time decreases; the message names the pair.

    Examples
    --------
    >>> curve = PiecewiseLinear([(1000, 10), (3000, 14)])
    >>> curve.ns(500), curve.ns(2000), curve.ns(5000)
    (10000, 12000, 18000)
    """

    def __post_init__(self) -> None:
        self._check("points", least=2)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """A flat piece up to the first point, then one piece for each pair of points."""
        points = self._sorted
        pieces = [] if points[0][0] == 0 else [_affine(points[0][1], Fraction(0))]
        for (x1, y1), (x2, y2) in pairwise(points):
            slope = (y2 - y1) / (x2 - x1)
            pieces.append(_affine(y1 - slope * x1, slope, first_bytes=x1))
        return tuple(pieces)


@dataclass(frozen=True)
class StepTable(_Measured):
    """A table: a launch costs what the smallest listed size that holds it costs.

    This is how padded or quantised transfers behave; it jumps. Beyond the last row time grows
    in proportion to bytes from the last row.

    Parameters
    ----------
    rows
        At least one row ``(bytes, microseconds)``, times not decreasing with size.

    Raises
    ------
    InputError
        If a row is invalid or the time decreases; the message names the pair.

    Examples
    --------
    >>> table = StepTable([(1000, 10), (4000, 25)])
    >>> table.ns(1000), table.ns(1001), table.ns(8000)
    (10000, 25000, 50000)
    """

    def __post_init__(self) -> None:
        self._check("table", least=1)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """One flat piece a row, then one in proportion to bytes."""
        rows = self._sorted
        starts = [0, *(size + 1 for size, _ in rows)]
        pieces = [
            _affine(ns, Fraction(0), first_bytes=start)
            for start, (_, ns) in zip(starts, rows, strict=False)
        ]
        size, ns = rows[-1]
        pieces.append(_affine(Fraction(0), ns / size, first_bytes=starts[-1]))
        return tuple(pieces)


def _lower_hull(points: list[tuple[int, Fraction]]) -> list[tuple[int, Fraction]]:
    """Return the lower convex hull of points, from left to right (monotone chain)."""
    hull: list[tuple[int, Fraction]] = []
    for x, y in sorted(points):
        if hull and hull[-1][0] == x:
            continue
        while len(hull) >= 2:
            (x1, y1), (x2, y2) = hull[-2:]
            if (y2 - y1) * (x - x1) < (y - y1) * (x2 - x1):
                break
            hull.pop()
        hull.append((x, y))
    return hull


def _check_bandwidth(value: object, what: str) -> None:
    if exact(value, what) <= 0:
        raise InputError(f"{what}: {shown(value)} must be above 0")


def _affine(intercept: Fraction, slope: Fraction, first_bytes: int = 0) -> Piece:
    scale = math.lcm(intercept.denominator, slope.denominator)
    return Piece(first_bytes, int(intercept * scale), int(slope * scale), scale)

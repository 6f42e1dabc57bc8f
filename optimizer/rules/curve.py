"""Latency and bandwidth of a cost curve, for the rules that put them into a formula."""

from __future__ import annotations

from fractions import Fraction

from commsched.models.cost import CostCurve
from commsched.models.errors import NotApplicableError


def latency_ns(curve: CostCurve) -> Fraction:
    """Return what a launch of 0 bytes takes, in nanoseconds, unrounded.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> latency_ns(AlphaBeta(alpha_us=30, bandwidth_gb_s=10))
    Fraction(30000, 1)
    """
    return curve.exact_ns(0)


def bandwidth_bytes_per_ns(curve: CostCurve) -> Fraction:
    """Return the bandwidth at large sizes: the inverse slope of the curve's last piece.

    One byte a nanosecond is 1 GB/s (1 GB = 1e9 bytes).

    Raises
    ------
    NotApplicableError
        If the last piece is flat.

    Examples
    --------
    >>> from commsched.models import PiecewiseLinear
    >>> bandwidth_bytes_per_ns(PiecewiseLinear([(0, 1), (1000, 9), (3000, 10)]))
    Fraction(2, 1)
    """
    last = curve.pieces[-1]
    if last.slope == 0:
        raise NotApplicableError("the rule needs a bandwidth, and the cost does not grow with size")
    return Fraction(last.scale, last.slope)

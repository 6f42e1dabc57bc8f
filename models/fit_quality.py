"""How good a fit is over which sizes, and from which size on bandwidth counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from commsched.models.cost import AlphaBeta, CostCurve, PiecewiseLinear
from commsched.models.fit import FLAT_GB_S, Fit
from commsched.models.units import exact

RANGE_FACTOR = 4
"""Ranges of sizes go from one power of 4 to the next."""


@dataclass(frozen=True, slots=True)
class RangeError:
    """Relative errors of a fit over a range of sizes.

    Attributes
    ----------
    first_bytes, end_bytes
        Sizes from the first to below the end.
    sizes
        How many were measured there.
    mean_error, max_error
        Over these.
    """

    first_bytes: int
    end_bytes: int
    sizes: int
    mean_error: float
    max_error: float


def error_ranges(fit: Fit) -> tuple[RangeError, ...]:
    """Return the fit's errors by range of sizes, ranges without a measured size left out.

    Examples
    --------
    >>> from commsched.models.fit import fit_alpha_beta
    >>> fit = fit_alpha_beta([(1000, 10), (2000, 20), (5000, 50)])
    >>> [(each.first_bytes, each.sizes, each.max_error) for each in error_ranges(fit)]
    [(256, 1, 0.0), (1024, 1, 0.0), (4096, 1, 0.0)]
    """
    found: dict[int, list[float]] = {}
    for size, error in fit.errors:
        first = 0
        if size:
            first = 1 << (size.bit_length() - 1) // 2 * 2
        found.setdefault(first, []).append(error)
    return tuple(
        RangeError(
            first,
            first * RANGE_FACTOR or 1,
            len(errors),
            sum(errors) / len(errors),
            max(errors),
        )
        for first, errors in sorted(found.items())
    )


def half_bandwidth_bytes(curve: CostCurve) -> int | None:
    """Return the size from which on a launch has half of the best bandwidth: Hockney's n1/2.

    For a latency and a bandwidth it is their product. For a curve of straight pieces it is the least
    size at which bytes over time is half of what it is at best between the first corner and the
    last; it is the first corner's size if it is more than half there already. Bandwidth beyond what was
    measured does not count.

    Returns
    -------
    int | None
        None for another curve, or where a bandwidth stands for no cost per byte.

    Examples
    --------
    >>> half_bandwidth_bytes(AlphaBeta(30, 10))
    300000
    >>> half_bandwidth_bytes(PiecewiseLinear([(1000, 10), (100_000, 11), (1_000_000, 100)]))
    52606
    """
    if isinstance(curve, AlphaBeta):
        alpha, bandwidth = exact(curve.alpha_us, "alpha_us"), exact(curve.bandwidth_gb_s, "gb_s")
        return None if bandwidth >= FLAT_GB_S else round(alpha * bandwidth * 1000)
    if isinstance(curve, PiecewiseLinear):
        return _of_corners(sorted((int(size), exact(us, "us")) for size, us in curve.rows))
    return None


def _of_corners(corners: Sequence[tuple[int, Fraction]]) -> int:
    # Bytes over time is monotone on a straight piece, so its best is at a corner.
    half = max(size / us for size, us in corners if us) / 2
    before = corners[0]
    for size, us in corners:
        if size >= half * us:
            if size == before[0]:
                return size
            slope = (us - before[1]) / (size - before[0])
            start = before[1] - slope * before[0]
            return round(half * start / (1 - half * slope))
        before = size, us
    raise AssertionError("the best corner has more than half of its own bandwidth")

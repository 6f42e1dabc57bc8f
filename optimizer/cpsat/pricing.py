"""Prices in whole 64-bit numbers: what CP-SAT can add up."""

from __future__ import annotations

import math

from commsched.models.cost import Piece
from commsched.models.errors import NotApplicableError

_SAFE = 2**61


def safe_piece(piece: Piece, unit: int, largest: int, longest_ns: int) -> tuple[Piece, bool]:
    """Return a piece for sizes counted in ``unit`` bytes whose products fit in 64 bits.

    Where the exact coefficients are too large they are rounded *down*, so that the model's bound
    stays valid, by at most half a nanosecond in all.

    Parameters
    ----------
    piece
        The exact piece.
    unit, largest
        Bytes of a unit, and the most units that a bucket can carry.
    longest_ns
        The longest duration that the model allows.

    Returns
    -------
    tuple
        The piece, and whether it is exact.

    Raises
    ------
    NotApplicableError
        If it is impossible.
    """
    intercept, slope, scale = piece.intercept, piece.slope * unit, piece.scale
    divisor = math.gcd(intercept, slope, scale)
    intercept, slope, scale = intercept // divisor, slope // divisor, scale // divisor
    if max(abs(intercept) + slope * largest, scale * longest_ns) < _SAFE:
        return Piece(piece.first_bytes, intercept, slope, scale), True
    wanted = 2 * (largest + 2)
    rounded = Piece(piece.first_bytes, intercept * wanted // scale, slope * wanted // scale, wanted)
    if max(abs(rounded.intercept) + rounded.slope * largest, wanted * longest_ns) >= _SAFE:
        raise NotApplicableError(
            "cpsat: sizes and times are too far apart for whole 64-bit numbers in scope any"
        )
    return rounded, False

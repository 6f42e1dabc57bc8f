"""Ranges of a knob's values for people, and the value of a range that is easiest to type."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from commsched.models.units import MIB, format_bytes


def handy_mib(low: int, high: int | None) -> float:
    """Return the number with the fewest digits among the caps of a range of bytes, in MiB.

    torch and others multiply it by 2**20 and round down; the result lies in the range.

    Examples
    --------
    >>> handy_mib(67108865, 100663296), handy_mib(1048577, 1100000)
    (70.0, 1.01)
    """
    high = 2 * low + MIB if high is None else high
    for exponent in range(6, -7, -1):
        step = Fraction(10) ** exponent
        first = math.ceil(Fraction(low, MIB) / step) * step
        if first * MIB <= high and int(float(first) * MIB) >= low:
            return float(first)
    return high / MIB


def handy_number(low: int, high: int | None) -> int:
    """Return the whole number with the most trailing zeros in a range.

    Examples
    --------
    >>> handy_number(1234, 5678), handy_number(17, 19), handy_number(30, None)
    (2000, 17, 100)
    """
    high = 10 * low if high is None else high
    for exponent in range(len(str(high)), -1, -1):
        step = int(10**exponent)
        first = -(-low // step) * step
        if first <= high:
            return first
    return low


def bytes_range(low: int, high: int | None) -> str:
    """Return a range of bytes for people.

    Examples
    --------
    >>> bytes_range(2**20, 2**22), bytes_range(1, 2**22), bytes_range(2**20, None)
    ('from 1.00 MiB to 4.00 MiB', 'up to 4.00 MiB', '1.00 MiB or more')
    """
    return _range(low, high, format_bytes)


def number_range(low: int, high: int | None) -> str:
    """Return a range of numbers for people.

    Examples
    --------
    >>> number_range(1000, 2000000), number_range(1, None)
    ('from 1,000 to 2,000,000', 'any')
    """
    return _range(low, high, "{:,}".format)


def _range(low: int, high: int | None, show: Callable[[int], str]) -> str:
    if high is None:
        return f"{show(low)} or more" if low > 1 else "any"
    if low <= 1:
        return f"up to {show(high)}"
    return f"from {show(low)} to {show(high)}"

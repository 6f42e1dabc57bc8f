"""Ranges of a knob's values for people, and the value of a range that is easiest to type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    for exponent in range(6, -10, -1):
        step = Fraction(10) ** exponent
        first = math.ceil(Fraction(low, MIB) / step) * step
        if first * MIB <= high and int(float(first) * MIB) >= low:
            return float(first)
    return high / MIB


def mib_text(mib: float) -> str:
    """Return a number of MiB to paste, with all its digits: a byte less can be another plan.

    Examples
    --------
    >>> mib_text(25.0), mib_text(95.36743927001953)
    ('25', '95.36743927001953')
    """
    return str(int(mib)) if mib == int(mib) else repr(mib)


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


def handy_threshold(low: int, high: int | None) -> int:
    """Return a number of bytes of a range that Horovod takes as it is, as far as there is one.

    It rounds its threshold up to a multiple of 512 bytes times the ranks of a node.

    Examples
    --------
    >>> handy_threshold(2561, 5119), handy_threshold(10, 20), handy_threshold(2**20 + 1, None)
    (4096, 10, 2097152)
    """
    for unit in (MIB, 65536, 4096, 512):
        value = -(-low // unit) * unit
        if high is None or value <= high:
            return value
    return handy_number(low, high)


Span = tuple[int, int | None]
"""The first and the last value of a range; None is no end."""


def bytes_range(low: int, high: int | None, inner: Span | None = None) -> str:
    """Return a range of bytes for people, rounded inwards: whatever value it shows lies in it.

    It is not rounded so far that it leaves out the range ``inner``.

    Examples
    --------
    >>> bytes_range(2**20, 2**22), bytes_range(1, 2**22), bytes_range(2**20, None)
    ('from 1.00 MiB to 4.00 MiB', 'up to 4.00 MiB', '1.00 MiB or more')
    >>> bytes_range(2**20 + 1, 2**20 + 4096), bytes_range(2**20 + 1, 2**20 + 1)
    ('from 1.001 MiB to 1.003 MiB', '1,048,577 B')
    >>> bytes_range(1, 102190000), bytes_range(1, 102190000, (102180000, 102189900))
    ('up to 97.45 MiB', 'up to 97.4559 MiB')
    """
    if high is not None and low == high > 1:
        return f"{low:,} B"
    inner_low, inner_high = inner or (low, high)

    def show(size: int) -> str:
        if size == low:
            return _inwards(size, low, inner_high if inner_low == low else inner_low, math.ceil)
        return _inwards(
            size, inner_low if inner_high in (high, None) else inner_high, high, math.floor
        )

    return _range(low, high, show)


def _inwards(size: int, low: int, high: int | None, to_whole: Callable[[Fraction], int]) -> str:
    """Return a size as the number with the fewest digits, from two on, that stays in a range."""
    unit = format_bytes(size).split()[1]
    unit_bytes = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    for digits in range(2, 7 if unit_bytes > 1 else 0):
        shown = Fraction(to_whole(Fraction(size * 10**digits, unit_bytes)), 10**digits)
        if low <= shown * unit_bytes and (high is None or shown * unit_bytes <= high):
            return f"{float(shown):.{digits}f} {unit}"
    return f"{size:,} B"


def number_range(low: int, high: int | None, _: object = None) -> str:
    """Return a range of numbers for people; nothing is rounded.

    Examples
    --------
    >>> number_range(1000, 2000000), number_range(1, None), number_range(17, 17)
    ('from 1,000 to 2,000,000', 'any', '17')
    """
    return _range(low, high, "{:,}".format)


def ranges_text(
    show: Callable[..., str],
    around: Span,
    elsewhere: Sequence[Span],
    inner: Span | None = None,
) -> str:
    """Return a range of values for people, and that there are others apart from it.

    Examples
    --------
    >>> ranges_text(number_range, (10, 20), [])
    'from 10 to 20'
    >>> ranges_text(number_range, (10, 20), [(31, 40)])
    'from 10 to 20 (and from 31 to 40)'
    >>> ranges_text(number_range, (10, 20), [(31, 40), (51, None)])
    'from 10 to 20 (and in 2 other ranges: 31 or more)'
    """
    text = show(*around, inner)
    if not elsewhere:
        return text
    also = show(elsewhere[0][0], elsewhere[-1][1])
    if len(elsewhere) > 1:
        also = f"in {len(elsewhere)} other ranges: {also}"
    return f"{text} (and {also})"


def _range(low: int, high: int | None, show: Callable[[int], str]) -> str:
    if high is None:
        return f"{show(low)} or more" if low > 1 else "any"
    if low <= 1:
        return f"up to {show(high)}"
    if low == high:
        return show(low)
    return f"from {show(low)} to {show(high)}"

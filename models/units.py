"""Units: whole nanoseconds and whole bytes inside, names with units at the border.

Decimal input stays exact: ``0.1`` means one tenth, not the nearest binary float, so the same
file gives the same nanoseconds on every machine.
"""

from __future__ import annotations

import math
import numbers
from decimal import Decimal
from fractions import Fraction

from commsched.models.errors import InputError

MIB = 1024 * 1024
GIB = 1024 * 1024 * 1024
NS_PER_US = 1_000
NS_PER_MS = 1_000_000

MAX_BYTES = 2**50
"""The most bytes that one collective may have (1 PiB); sums and products then stay exact."""
MAX_NS = 2**50
"""The longest time that input may name, in nanoseconds (about 13 days)."""

MAX_COUNT = 2**50
"""The largest number of things that input may name."""

MAX_DIGITS = 400
"""Numbers that would need more digits than that are refused before they are expanded."""

Number = int | float | Decimal | Fraction


def exact(value: object, what: str) -> Fraction:
    """Return a number exactly as it was written in decimal.

    Parameters
    ----------
    value
        An int, a float (taken as its shortest decimal), a Decimal or a Fraction.
    what
        What the value is, for the message.

    Raises
    ------
    InputError
        If it is a bool, NaN, infinite, or no number.

    Examples
    --------
    >>> exact(0.1, "alpha_us")
    Fraction(1, 10)
    """
    if isinstance(value, bool):
        raise InputError(f"{what}: {value} is a boolean, a number is needed")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, numbers.Integral):
        return Fraction(int(value))
    if isinstance(value, float | Decimal):
        if (isinstance(value, Decimal) and value.is_nan()) or not math.isfinite(value):
            raise InputError(f"{what}: {value} is not a finite number")
        if isinstance(value, float):
            return Fraction(str(float(value)))
        if abs(value.adjusted()) > MAX_DIGITS:
            raise InputError(f"{what}: {value} has more than {MAX_DIGITS} digits")
        return Fraction(value)
    if isinstance(value, numbers.Real):  # a number of numpy's, of another length than float
        return exact(Decimal(str(value)), what)
    raise InputError(f"{what}: {value!r:.100} is not a number")


def exact_at_least_zero(value: object, what: str) -> Fraction:
    """Return :func:`exact` of a value that must not be negative."""
    result = exact(value, what)
    if result < 0:
        raise InputError(f"{what}: {shown(value)} must be at least 0")
    return result


def shown(value: object) -> str:
    """Return a value for a message; a number of absurd length is described instead.

    Examples
    --------
    >>> shown(12), shown(10**5000)
    ('12', 'a number of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 4 * MAX_DIGITS:
        return f"a number of {value.bit_length()} bits"
    return f"{value!s:.100}"


def ns_from_us(value: object, what: str) -> int:
    """Return microseconds as whole nanoseconds, rounded up.

    Raises
    ------
    InputError
        If the value is no finite number, negative, or beyond ``MAX_NS``.

    Examples
    --------
    >>> ns_from_us(2.5, "ready_us"), ns_from_us(0.0001, "ready_us")
    (2500, 1)
    """
    ns = math.ceil(exact_at_least_zero(value, what) * NS_PER_US)
    if ns > MAX_NS:
        raise InputError(
            f"{what}: {shown(value)} must be at most {MAX_NS // NS_PER_US} us (13 days)"
        )
    return ns


def us_from_ns(ns: int) -> float:
    """Return whole nanoseconds as microseconds; the float prints all three decimals.

    Examples
    --------
    >>> us_from_ns(2501)
    2.501
    """
    return ns / NS_PER_US


def check_bytes(value: object, what: str) -> int:
    """Return a size that is a whole number of bytes from 0 to ``MAX_BYTES``.

    Raises
    ------
    InputError
        If it is not.

    Examples
    --------
    >>> check_bytes(4096, "gradient 'fc' bytes")
    4096
    """
    return _whole(value, what, MAX_BYTES, f"{MAX_BYTES} bytes (1 PiB)")


def check_ns(value: object, what: str) -> int:
    """Return a time that is a whole number of nanoseconds from 0 to ``MAX_NS``.

    Raises
    ------
    InputError
        If it is not.
    """
    return _whole(value, what, MAX_NS, f"{MAX_NS} ns (13 days)")


def _whole(value: object, what: str, limit: int, limit_text: str) -> int:
    if type(value) is not int:
        number = exact(value, what)
        if number.denominator != 1:
            raise InputError(f"{what}: {value} must be a whole number")
        value = int(number)
    if value < 0:
        raise InputError(f"{what}: {shown(value)} must be at least 0")
    if value > limit:
        raise InputError(f"{what}: {shown(value)} must be at most {limit_text}")
    return value


def format_bytes(count: int) -> str:
    """Return a size for people, in binary units that say so.

    Examples
    --------
    >>> format_bytes(8196000), format_bytes(512)
    ('7.82 MiB', '512 B')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1023.995 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_ns(ns: int, figures: int = 3) -> str:
    """Return a time for people, in ns, us, ms or s, with at least so many figures.

    Examples
    --------
    >>> format_ns(950), format_ns(12_345), format_ns(3_141_593), format_ns(12), format_ns(0)
    ('0.95 us', '12.3 us', '3.14 ms', '12 ns', '0 us')
    """
    if ns == 0:
        return "0 us"
    if abs(ns) < 100:
        return f"{ns} ns"
    value, unit = ns / NS_PER_US, "us"
    if abs(value) >= 999.5:
        value, unit = value / 1000, "ms"
    if abs(value) >= 9999.5:
        value, unit = value / 1000, "s"
    digits = max(0, figures - 1 - max(0, math.floor(math.log10(abs(value)))))
    return f"{value:.{digits}f} {unit}"

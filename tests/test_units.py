"""Units: exact decimals, whole nanoseconds and bytes, and numbers for people."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY

from commsched.models import InputError
from commsched.models.units import (
    MAX_BYTES,
    MAX_NS,
    check_bytes,
    check_ns,
    exact,
    exact_at_least_zero,
    format_bytes,
    format_ns,
    ns_from_us,
    us_from_ns,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, Fraction(0)),
        (-7, Fraction(-7)),
        (0.1, Fraction(1, 10)),
        (1e-9, Fraction(1, 10**9)),
        (1e22, Fraction(10**22)),
        (-0.0, Fraction(0)),
        (5e-324, Fraction(5, 10**324)),
        (Decimal("0.1"), Fraction(1, 10)),
        (Decimal("1E+3"), Fraction(1000)),
        (Fraction(1, 3), Fraction(1, 3)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        (np.longdouble(2), Fraction(2)),
        (np.int64(2**62), Fraction(2**62)),
        (np.uint8(255), Fraction(255)),
        (2**200, Fraction(2**200)),
    ],
)
def test_exact(value, expected):
    """A number is taken as it is written in decimal."""
    result = exact(value, "x")
    assert result == expected
    assert type(result) is Fraction


@pytest.mark.parametrize(
    "bad",
    [
        True,
        False,
        np.bool_(True),
        math.nan,
        math.inf,
        -math.inf,
        np.float64("nan"),
        np.float64("inf"),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        "1",
        b"1",
        None,
        1j,
        [],
        {},
        object(),
    ],
)
@pytest.mark.parametrize("check", [exact, exact_at_least_zero, ns_from_us, check_bytes, check_ns])
def test_what_is_no_number_is_refused(check, bad):
    """Booleans, NaN, infinity and what is no number are refused; the message names the item."""
    with pytest.raises(InputError, match="size of 'fc'"):
        check(bad, "size of 'fc'")


@pytest.mark.parametrize("bad", [-1, -0.001, Decimal(-1), Fraction(-1, 3), np.int64(-1)])
@pytest.mark.parametrize("check", [exact_at_least_zero, ns_from_us])
def test_negative_numbers_are_refused(check, bad):
    """A negative number is refused and the message says so."""
    with pytest.raises(InputError, match=r"x: -.* must be at least 0"):
        check(bad, "x")


@pytest.mark.parametrize(
    ("us", "ns"),
    [
        (0, 0),
        (1, 1000),
        (2.5, 2500),
        (0.001, 1),
        (0.0001, 1),
        (0.0011, 2),
        (1e-300, 1),
        (0.1, 100),
        (0.3, 300),
        (1.1, 1100),
        (4.35, 4350),
        (Fraction(1, 3), 334),
        (Decimal("0.0005"), 1),
        (np.float64(2.001), 2001),
    ],
)
def test_microseconds_round_up(us, ns):
    """A time from outside is rounded up to a whole nanosecond, in decimal."""
    assert ns_from_us(us, "x") == ns
    assert type(ns_from_us(us, "x")) is int


@PROPERTY
@given(st.integers(0, MAX_NS))
def test_three_decimals_survive(ns):
    """Nanoseconds that go out as microseconds come back the same."""
    us = us_from_ns(ns)
    assert ns_from_us(us, "x") == ns
    assert ns_from_us(Decimal(repr(us)), "x") == ns


def test_the_longest_time():
    """The limit is inside and one nanosecond more is not."""
    assert ns_from_us(Fraction(MAX_NS, 1000), "x") == MAX_NS
    with pytest.raises(InputError, match=r"at most .* us"):
        ns_from_us(Fraction(MAX_NS + 1, 1000), "x")
    with pytest.raises(InputError):
        ns_from_us(10**400, "x")
    with pytest.raises(InputError):
        ns_from_us(1e308, "x")


@pytest.mark.parametrize(("check", "limit"), [(check_bytes, MAX_BYTES), (check_ns, MAX_NS)])
def test_whole_numbers(check, limit):
    """Whole numbers from 0 to the limit pass, whatever type holds them, and come out as ints."""
    for value in (0, 7, 7.0, limit, float(limit), Decimal(7), Fraction(7), np.int64(7), -0.0):
        result = check(value, "x")
        assert result == value
        assert type(result) is int
    for bad in (-1, np.int64(-1), -0.5):
        with pytest.raises(InputError, match=f"x: {bad} must be"):
            check(bad, "x")
    for bad in (0.5, Decimal("7.1"), Fraction(1, 3)):
        with pytest.raises(InputError, match="must be a whole number"):
            check(bad, "x")
    for bad in (limit + 1, 2.0**60, 1e300, 10**400, 2**63):
        with pytest.raises(InputError, match="must be at most"):
            check(bad, "x")


@pytest.mark.parametrize("check", [check_bytes, check_ns, ns_from_us])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_too_long_to_print_are_refused(check, sign):
    """An integer that Python will not print is refused like any other that is too large."""
    with pytest.raises(InputError):
        check(sign * 10**5000, "x")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (8_196_000, "7.82 MiB"),
        (25 * 2**20, "25.00 MiB"),
        (2**30, "1.00 GiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_format_bytes(count, text):
    """Sizes for people are in binary units that say so."""
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 us"),
        (1, "1 ns"),
        (99, "99 ns"),
        (950, "0.95 us"),
        (1000, "1.00 us"),
        (12_345, "12.3 us"),
        (123_456, "123 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (3_141_593, "3.14 ms"),
        (9_999_000_000, "9999 ms"),
        (10_000_000_000, "10.0 s"),
        (-1500, "-1.50 us"),
        (-5, "-5 ns"),
    ],
)
def test_format_ns(ns, text):
    """Times for people have three or four figures."""
    assert format_ns(ns) == text


@PROPERTY
@given(st.integers(1, 2**50))
def test_a_formatted_time_is_near_and_never_zero(ns):
    """What people read is within half a percent, and a time above 0 does not read as 0."""
    number, unit = format_ns(ns).split()
    read = float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert read > 0
    assert abs(read - ns) <= max(5, 0.0051 * ns)

"""Cost curves: exact, rounded up, monotone, bounded from below, and strict about their input."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import exact_price, price
from strategies import KINDS, PROPERTY, curves, random_bus_bandwidth, random_curve, random_table

from commsched.models import (
    AlphaBeta,
    BusBandwidth,
    CostCurve,
    InputError,
    PiecewiseLinear,
    StepTable,
)

MAX_NS = 2**50


@PROPERTY
@given(curves(), st.integers(0, 60))
def test_prices_equal_independent_arithmetic(curve, size):
    """Unrounded cost and cost rounded up agree with the oracle's arithmetic."""
    assert curve.exact_ns(size) == exact_price(curve, size)
    assert curve.ns(size) == price(curve, size)
    assert type(curve.ns(size)) is int


@PROPERTY
@given(curves(), st.integers(0, 2**60))
def test_rounds_up_to_a_whole_nanosecond(curve, size):
    """The rounded cost is the least whole number that is not below the exact one."""
    assert 0 <= curve.ns(size) - curve.exact_ns(size) < 1
    assert curve.exact_ns(size) == exact_price(curve, size)


@PROPERTY
@given(curves(), st.lists(st.integers(0, 70), min_size=2).map(sorted))
def test_never_decreases_with_size(curve, sizes):
    """More bytes never cost less."""
    prices = [curve.exact_ns(size) for size in sizes]
    assert prices == sorted(prices)
    rounded = [curve.ns(size) for size in sizes]
    assert rounded == sorted(rounded)


@PROPERTY
@given(curves())
def test_pieces_are_well_formed(curve):
    """Pieces start at 0 bytes, go up, and never fall."""
    starts = [piece.first_bytes for piece in curve.pieces]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    for piece in curve.pieces:
        assert piece.slope >= 0
        assert piece.scale > 0
    assert (curve.affine is None) == (len(curve.pieces) > 1)


@PROPERTY
@given(curves(), st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_launches_together_cost_at_least_the_bound(curve, parts):
    """However a total is cut into launches, they cost at least what the bound says."""
    total = sum(curve.exact_ns(size) for size in parts)
    assert total >= curve.at_least_ns(sum(parts))


@PROPERTY
@given(curves(), st.integers(0, 200))
def test_minorants_never_exceed_the_curve(curve, size):
    """Each minorant starts at 0 or above and lies on or under the curve."""
    for line in curve.minorants:
        assert line.intercept >= 0
        assert line.exact_ns(size) <= curve.exact_ns(size)


@PROPERTY
@given(curves(), st.integers(0, 60))
def test_the_bound_is_at_least_the_start_up(curve, total):
    """No launch is cheaper than an empty one, so the bound is at least that."""
    assert curve.at_least_ns(total) >= curve.exact_ns(0)


def partitions(total, most):
    """Yield the ways to write a total as a sum of positive parts up to ``most``."""
    if total == 0:
        yield []
    for part in range(min(total, most), 0, -1):
        for rest in partitions(total - part, part):
            yield [part, *rest]


def test_the_bound_against_every_way_to_cut():
    """For small totals: no way to cut costs less than the bound; one affine launch attains it."""
    for seed in range(60):
        curve = random_curve(random.Random(seed))
        for total in range(1, 13):
            cheapest = min(
                sum(curve.exact_ns(part) for part in parts) for parts in partitions(total, total)
            )
            assert curve.at_least_ns(total) <= cheapest
            if curve.affine:
                assert curve.at_least_ns(total) == curve.exact_ns(total) == cheapest


def test_the_bound_of_a_padded_table_is_close():
    """Padding to 100 bytes for 1 us a launch: k full launches cost k us, the bound hardly less."""
    table = StepTable([(100, 1)])
    for launches in (1, 2, 7):
        assert table.at_least_ns(100 * launches) >= launches * 1000 * Fraction(99, 100)
        assert table.at_least_ns(100 * launches) <= launches * table.exact_ns(100)


def test_worked_examples():
    """Values worked out by hand."""
    # 32 MiB over 50 GiB/s (53.6870912 GB/s) is 0.625 ms; plus 8 us.
    assert AlphaBeta(8, 53.6870912).ns(2**25) == 633_000
    assert AlphaBeta(0, 3).ns(1) == 1  # a third of a nanosecond, rounded up
    assert AlphaBeta(0, 3).exact_ns(1) == Fraction(1, 3)
    # Bus bandwidth 150 GB/s on 4 ranks: the factor 3/2 gives 100 GB/s of algorithm bandwidth.
    assert BusBandwidth(10, 150, 4, "allreduce").ns(10**6) == 20_000
    assert BusBandwidth(10, 150, 4, "all_gather").ns(10**6) == 15_000
    assert BusBandwidth(10, 100, 4, "broadcast").ns(10**6) == 20_000
    lines = PiecewiseLinear([(1000, 10), (3000, 14), (5000, 30)])
    sizes = (0, 1000, 2000, 3000, 4000, 5000, 6000)
    assert [lines.ns(x) for x in sizes] == [10_000, 10_000, 12_000, 14_000, 22_000, 30_000, 38_000]
    table = StepTable([(1000, 10), (4000, 25)])
    sizes = (0, 1000, 1001, 4000, 4001, 8000)
    assert [table.ns(x) for x in sizes] == [10_000, 10_000, 25_000, 25_000, 25_007, 50_000]


def test_two_ranks_make_bus_and_algorithm_bandwidth_equal():
    """A ring all-reduce on two ranks sends what it reduces."""
    for size in (0, 1, 999, 2**30):
        assert BusBandwidth(3, 7, 2, "allreduce").ns(size) == AlphaBeta(3, 7).ns(size)


def test_the_order_of_rows_does_not_matter():
    """Rows may be given in any order."""
    rows = [(1, 1), (5, 2), (9, 7), (30, 7)]
    shuffled = [rows[2], rows[0], rows[3], rows[1]]
    for make in (PiecewiseLinear, StepTable):
        for size in range(70):
            assert make(rows).ns(size) == make(shuffled).ns(size)


def test_affine_and_measured():
    """Which curves are affine, and up to where they were measured."""
    assert AlphaBeta(1, 1).affine is not None
    assert AlphaBeta(1, 1).measured_to is None
    assert BusBandwidth(1, 1, 4, "allreduce").affine is not None
    two_points = PiecewiseLinear([(0, 1), (10, 3)])
    assert two_points.affine is not None
    assert two_points.measured_to == 10
    assert PiecewiseLinear([(1, 1), (10, 3)]).affine is None
    assert StepTable([(7, 1), (3, 1)]).measured_to == 7


def test_a_row_at_zero_bytes():
    """A measured point at 0 bytes is the start-up latency."""
    assert PiecewiseLinear([(0, 5), (10, 6)]).ns(0) == 5000
    assert PiecewiseLinear([(0, 5), (10, 6)]).ns(5) == 5500
    assert StepTable([(0, 5), (10, 6)]).ns(0) == 5000
    assert StepTable([(0, 5), (10, 6)]).ns(1) == 6000


def test_zero_cost():
    """No latency and no time for bytes is allowed in measured curves."""
    assert StepTable([(10, 0)]).ns(1000) == 0
    assert PiecewiseLinear([(1, 0), (10, 0)]).ns(1000) == 0
    assert AlphaBeta(0, 1).ns(0) == 0


@pytest.mark.parametrize("tenth", [0.1, Decimal("0.1"), Fraction(1, 10), np.float64(0.1)])
def test_decimals_are_exact(tenth):
    """A tenth of a microsecond is a hundred nanoseconds, not the nearest binary fraction."""
    assert AlphaBeta(tenth, 1).exact_ns(0) == 100
    assert AlphaBeta(0, tenth).exact_ns(1) == 10
    assert BusBandwidth(0, tenth, 2, "allreduce").exact_ns(1) == 10
    assert StepTable([(1, tenth)]).exact_ns(1) == 100
    assert PiecewiseLinear([(1, tenth), (2, 1)]).exact_ns(1) == 100


def test_a_float_is_its_shortest_decimal():
    """0.1 + 0.2 is what Python prints, 0.30000000000000004, to the last digit."""
    assert AlphaBeta(0.1 + 0.2, 1).exact_ns(0) == Fraction("300.00000000000004")
    assert AlphaBeta(0.1 + 0.2, 1).ns(0) == 301
    assert AlphaBeta(0.3, 1).ns(0) == 300


def test_huge_sizes_are_exact():
    """An exbibyte in one launch, to the nanosecond."""
    size = 2**60
    assert AlphaBeta(0, 1).ns(size) == size
    assert AlphaBeta(0.001, 3).ns(size) == 1 + math.ceil(Fraction(size, 3))
    assert StepTable([(1, 0.003)]).ns(size) == 3 * size
    assert PiecewiseLinear([(0, 0), (7, 0.001)]).ns(size) == -(-size // 7)


@pytest.mark.parametrize("number", [np.int64, np.uint64, np.int32])
def test_numpy_sizes_cost_what_ints_cost(number):
    """A size from a numpy array is priced without overflow."""
    size = 2**30 if number is np.int32 else 2**49
    for curve in (AlphaBeta(8, 53.6870912), StepTable([(1000, 3.7)])):
        assert int(curve.ns(number(size))) == curve.ns(size)


def test_numpy_numbers_in_curves():
    """Parameters and rows may come from numpy."""
    assert AlphaBeta(np.float64(8), np.int64(2)).ns(10) == 8005
    rows = np.array([[1000, 10.0], [3000, 14.0]])
    assert PiecewiseLinear(rows).ns(2000) == 12_000
    assert StepTable(np.array([[1000, 10], [3000, 14]])).ns(2000) == 14_000


BAD_NUMBERS = [True, False, math.nan, math.inf, -math.inf, "1", None, 1j, [1], Decimal("NaN")]


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, -1, -0.001, 1e30, np.nan, np.bool_(True)])
def test_bad_latencies_are_refused(bad):
    """A latency is a finite number from 0 to 13 days, in every curve that has one."""
    with pytest.raises(InputError, match="alpha_us"):
        AlphaBeta(bad, 1)
    with pytest.raises(InputError, match="alpha_us"):
        BusBandwidth(bad, 1, 4, "allreduce")


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, 0, 0.0, -1])
def test_bad_bandwidths_are_refused(bad):
    """A bandwidth is a finite number above 0."""
    with pytest.raises(InputError, match="bandwidth_gb_s"):
        AlphaBeta(1, bad)
    with pytest.raises(InputError, match="bus_bandwidth_gb_s"):
        BusBandwidth(1, bad, 4, "allreduce")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 1}, "ranks: 1 "),
        ({"ranks": 0}, "ranks: 0 "),
        ({"ranks": 2**24 + 1}, "ranks: 16777217 "),
        ({"ranks": 4.5}, "ranks: 4.5 "),
        ({"ranks": True}, "ranks: True "),
        ({"kind": "all-reduce"}, "kind: 'all-reduce' is not one of allreduce"),
        ({"kind": None}, "kind: None"),
        ({"algorithm": "tree"}, "algorithm: 'tree'"),
    ],
)
def test_bad_bus_bandwidths_are_refused(arguments, message):
    """Ranks, kind and algorithm are checked."""
    good = {"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": 4, "kind": "allreduce"}
    with pytest.raises(InputError, match=message):
        BusBandwidth(**{**good, **arguments})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1000, 5), (2000, 4)], "decreases from 5 us at 1000 bytes to 4 us at 2000 bytes"),
        ([(2000, 4), (1000, 5)], "decreases from 5 us at 1000 bytes to 4 us at 2000 bytes"),
        ([(1, 2), (3, 4), (3, 4)], "3 bytes is listed twice"),
        ([(1, 2), (3, -4)], "us at 3 bytes: -4 must be at least 0"),
        ([(1, 2), (3, math.nan)], "us at 3 bytes: nan"),
        ([(1, 2), (3, math.inf)], "us at 3 bytes: inf"),
        ([(1, 2), (3, True)], "us at 3 bytes: True"),
        ([(1, 2), (3, "4")], "us at 3 bytes: '4'"),
        ([(1, 2), (3, None)], "us at 3 bytes: None"),
        ([(1, 2), (3, 1e30)], "us at 3 bytes: 1e\\+30 must be at most .* us \\(13 days"),
        ([(1, 2), (-3, 4)], "bytes: -3 must be at least 0"),
        ([(1, 2), (2.5, 4)], "bytes: 2.5 must be a whole number"),
        ([(1, 2), (True, 4)], "bytes: True"),
        ([(1, 2), ("3", 4)], "bytes: '3'"),
        ([(1, 2), (2**50 + 1, 4)], "bytes: 1125899906842625 must be at most"),
        ([], "0 given"),
    ],
)
def test_bad_rows_are_refused(rows, message):
    """A bad row is refused, and the message names the pair."""
    with pytest.raises(InputError, match=f"points: .*{message}|points: {message}"):
        PiecewiseLinear(rows)
    with pytest.raises(InputError, match=f"table: .*{message}|table: {message}"):
        StepTable(rows)


def test_too_few_rows_are_refused():
    """Lines need two points; a table needs one row above 0 bytes."""
    with pytest.raises(InputError, match="points: 1 given, at least 2 needed"):
        PiecewiseLinear([(1, 1)])
    with pytest.raises(InputError, match="a size above 0 bytes is needed"):
        StepTable([(0, 1)])


@pytest.mark.parametrize("make", [PiecewiseLinear, StepTable])
@pytest.mark.parametrize(
    "rows", [[(1, 2, 3), (4, 5, 6)], [(1,), (2,)], [1, 2], [(5, None), (5, 1)]]
)
def test_rows_that_are_no_pairs_are_refused(make, rows):
    """Rows that are no pairs are bad input like any other."""
    with pytest.raises(InputError):
        make(rows)


def test_equal_times_are_allowed():
    """A flat stretch does not decrease."""
    assert PiecewiseLinear([(1, 5), (9, 5)]).ns(100) == 5000
    assert StepTable([(1, 5), (9, 5)]).ns(9) == 5000


def test_the_longest_latency_is_allowed():
    """The limit itself is inside."""
    limit = Fraction(MAX_NS, 1000)
    assert AlphaBeta(limit, 1).ns(0) == MAX_NS
    with pytest.raises(InputError):
        AlphaBeta(limit + Fraction(1, 1000), 1)


def test_curves_survive_pickle():
    """A curve can be sent to another process, before and after use."""
    for seed in range(20):
        curve = random_curve(random.Random(seed))
        for _ in range(2):
            copy = pickle.loads(pickle.dumps(curve))
            assert [copy.ns(x) for x in range(40)] == [curve.ns(x) for x in range(40)]


def test_reprs_say_what_was_written():
    """A curve prints as the call that makes it."""
    assert repr(AlphaBeta(8, 53.6870912)) == "AlphaBeta(alpha_us=8, bandwidth_gb_s=53.6870912)"
    assert repr(StepTable([(1, 0.5)])) == "StepTable(rows=((1, 0.5),))"
    assert repr(PiecewiseLinear([(2, 1), (1, 0)])) == "PiecewiseLinear(rows=((2, 1), (1, 0)))"


def test_a_curve_without_pieces_is_abstract():
    """The base class prices nothing."""
    with pytest.raises(NotImplementedError):
        CostCurve().ns(1)


def test_bus_bandwidth_of_every_kind():
    """The factor of each kind is the one that the oracle knows."""
    rng = random.Random(0)
    for kind in (*KINDS, "send_recv"):
        for _ in range(20):
            curve = random_bus_bandwidth(rng, kind)
            assert curve.ns(12345) == price(curve, 12345)


def test_tables_jump():
    """One byte beyond a row costs the next row."""
    for seed in range(30):
        table = random_table(random.Random(seed))
        rows = sorted(table.rows)
        for (size, _), (_, next_us) in itertools.pairwise(rows):
            assert table.exact_ns(size + 1) == Fraction(str(next_us)) * 1000

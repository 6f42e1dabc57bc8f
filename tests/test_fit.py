"""Fitting cost curves: known lines come back, errors are what they claim, and few pieces do."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import shared_data
from strategies import PROPERTY

from commsched.models import AlphaBeta, InputError, PiecewiseLinear, StepTable
from commsched.models.fit import (
    MAX_SIZES,
    FallingTimesError,
    Fit,
    fit_alpha_beta,
    fit_piecewise,
    raw_curve,
    worst_fall,
)
from commsched.models.fit_quality import error_ranges, half_bandwidth_bytes
from commsched.problems.bench.bench_logs import read_benchmark_log
from commsched.problems.cost_rows import row_from_curve

MIB = 1024 * 1024
SIZES = [2**k for k in range(3, 34)]

measurements = st.lists(
    st.tuples(
        st.integers(1, 2**34), st.decimals("0.01", "1e7", places=2, allow_nan=False).map(float)
    ),
    min_size=2,
    max_size=14,
).filter(lambda points: len({size for size, _ in points}) > 1)


def medians(points) -> dict[int, Fraction]:
    times: dict[int, list[Fraction]] = {}
    for size, us in points:
        times.setdefault(size, []).append(Fraction(str(us)))
    return {size: statistics.median(sorted(some)) for size, some in sorted(times.items())}


def errors_of(fit: Fit, points) -> dict[int, float]:
    """Return the relative errors by size, computed here."""
    return {
        size: abs(float(fit.curve.exact_ns(size)) / 1000 / float(us) - 1)
        for size, us in medians(points).items()
    }


def check_errors(fit: Fit, points) -> None:
    errors = errors_of(fit, points)
    assert fit.sizes == len(errors)
    assert fit.max_error == pytest.approx(max(errors.values()), rel=1e-9, abs=1e-12)
    assert fit.mean_error == pytest.approx(statistics.fmean(errors.values()), rel=1e-9, abs=1e-12)
    assert errors[fit.worst_bytes] == pytest.approx(fit.max_error, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("alpha", [0, 0.5, 8, 71.25, 1234.567])
@pytest.mark.parametrize("bandwidth", [0.56, 10, 124, 53.6871, 999])
def test_known_lines_come_back_exactly(alpha, bandwidth):
    """From exact times, in any order and repeated."""
    line = AlphaBeta(alpha, bandwidth)
    points = [(size, line.exact_ns(size) / 1000) for size in SIZES]
    random.Random(0).shuffle(points)
    fit = fit_alpha_beta(points + points[:5])
    assert (fit.curve, fit.max_error, fit.mean_error) == (line, 0, 0)
    assert (fit.pieces, fit.sizes) == (1, len(SIZES))
    assert fit.notes == ("5 sizes were measured repeatedly: the median counts",)


@pytest.mark.parametrize("alpha", [5, 40.2])
@pytest.mark.parametrize("bandwidth", [3.28, 124])
def test_known_lines_come_back_from_printed_times(alpha, bandwidth):
    """Two decimals in the log cost next to nothing."""
    line = AlphaBeta(alpha, bandwidth)
    fit = fit_alpha_beta([(size, round(line.ns(size) / 1000, 2)) for size in SIZES])
    assert fit.curve.alpha_us == pytest.approx(alpha, rel=1e-3)
    assert fit.curve.bandwidth_gb_s == pytest.approx(bandwidth, rel=1e-3)
    assert fit.max_error < 2e-3


@PROPERTY
@given(measurements)
def test_the_line_is_the_least_squares_one(points):
    """No line near it has a smaller sum of squared relative errors; errors are as claimed."""
    fit = fit_alpha_beta(points)
    check_errors(fit, points)
    curve = fit.curve
    assert isinstance(curve, AlphaBeta)
    assert curve.alpha_us >= 0
    assert curve.bandwidth_gb_s > 0
    if any("does not grow" in note for note in fit.notes):
        return
    times = medians(points)
    x = np.array([*times], dtype=float)
    t = np.array([float(us) for us in times.values()])
    # In the variables alpha and beta the sum is convex: a local minimum is the global one.
    scale = t.min()

    def squares(alpha: float, beta: float) -> float:
        return float(np.sum(((alpha + beta * x) / t - 1) ** 2))

    alpha, beta = float(curve.alpha_us), 1e-3 / float(curve.bandwidth_gb_s)
    here = squares(alpha, beta)
    # Alpha is rounded to nanoseconds, the bandwidth to six digits.
    slack = len(x) * (1e-3 / scale + 1e-5 + (1e-3 / scale) ** 2 * 4) * (1 + here)
    for da, db in itertools.product((-0.02, 0, 0.02), (-0.02, 0, 0.02)):
        assert squares(max(0.0, alpha + da * max(alpha, scale)), beta * (1 + db)) >= here - slack


def test_negative_alpha_is_refused():
    """Times that grow faster than bytes give alpha 0 and the best bandwidth for that."""
    points = [(1000, 1), (2000, 3), (4000, 7)]
    fit = fit_alpha_beta(points)
    x, t = np.array([1000.0, 2000, 4000]), np.array([1.0, 3, 7])
    beta = np.sum(x / t) / np.sum((x / t) ** 2)
    assert fit.curve.alpha_us == 0
    assert fit.curve.bandwidth_gb_s == pytest.approx(1e-3 / beta, rel=1e-5)
    check_errors(fit, points)


@pytest.mark.parametrize("times", [(30, 30, 30), (32, 31, 30)])
def test_times_that_do_not_grow(times):
    """A flat table has a latency and says that its bandwidth stands for nothing."""
    points = list(zip((8, 1024, 65536), times, strict=True))
    fit = fit_alpha_beta(points)
    assert fit.curve.alpha_us == pytest.approx(statistics.fmean(times), rel=0.01)
    assert fit.curve.ns(65536) - fit.curve.ns(8) < 100
    assert any("does not grow" in note for note in fit.notes)
    check_errors(fit, points)


def feasible(rows, count: int) -> bool:
    """Return whether all ``coefficients . values >= bound`` can hold, by Fourier and Motzkin."""
    rows = set(rows)
    for k in range(count):
        above = [row for row in rows if row[0][k] > 0]
        below = [row for row in rows if row[0][k] < 0]
        rest = {row for row in rows if row[0][k] == 0}
        for (a, bound_a), (b, bound_b) in itertools.product(above, below):
            mixed = tuple(-b[k] * x + a[k] * y for x, y in zip(a, b, strict=True))
            bound = -b[k] * bound_a + a[k] * bound_b
            scale = next((abs(x) for x in mixed if x), None)
            if scale is None:
                if bound > 0:
                    return False
                continue
            rest.add((tuple(x / scale for x in mixed), bound / scale))
        rows = rest
    return all(bound <= 0 for _, bound in rows)


def fewest_by_all_corners(x: list[int], y: list[Fraction], bound: Fraction) -> int | None:
    """Return the least number of pieces by trying all sets of corners, with exact arithmetic."""
    for count in range(len(x) - 1):
        for some in itertools.combinations(range(1, len(x) - 1), count):
            corners = [0, *some, len(x) - 1]
            rows = []
            for p, (i, j) in enumerate(itertools.pairwise(corners)):
                for m in range(i, j + 1):
                    share = Fraction(x[m] - x[i], x[j] - x[i])
                    value = [Fraction(0)] * len(corners)
                    value[p], value[p + 1] = 1 - share, share
                    rows.append((tuple(value), y[m] * (1 - bound)))
                    rows.append((tuple(-v for v in value), -y[m] * (1 + bound)))
                rise = [Fraction(0)] * len(corners)
                rise[p], rise[p + 1] = Fraction(-1), Fraction(1)
                rows.append((tuple(rise), Fraction(0)))
            if feasible(rows, len(corners)):
                return count + 1
    return None


@pytest.mark.parametrize("seed", range(150))
def test_as_few_pieces_as_any_curve_within_the_error(seed):
    """The search against all sets of corners with free values, on times that may fall."""
    source = random.Random(seed)
    count = source.randrange(2, 8)
    x = sorted(source.sample(range(1, 60), count))
    y = [Fraction(us) for us in sorted(source.choices(range(1, 40), k=count))]
    if seed % 3 == 0:
        y = [Fraction(source.randrange(5, 30) + size) for size in x]
    bound = source.choice([0, 0.05, 0.1, 0.25, 0.4])
    expected = fewest_by_all_corners(x, y, Fraction(str(bound)))
    if expected is None:
        with pytest.raises(FallingTimesError):
            fit_piecewise(zip(x, y, strict=True), bound)
        return
    fit = fit_piecewise(zip(x, y, strict=True), bound)
    assert fit.pieces == expected
    assert fit.max_error <= bound + 1e-7
    assert not fit.notes


@PROPERTY
@given(measurements, st.sampled_from([0, 0.01, 0.05, 0.3]), st.booleans())
def test_piecewise_curves_are_monotone_and_honest(points, bound, repair):
    """Never falling, at measured sizes, within the error or refused, errors as claimed."""
    fall = worst_fall(points)
    least = 0.0 if fall is None else fall.least_error
    if least > bound + 1e-8 and not repair:
        with pytest.raises(FallingTimesError) as caught:
            fit_piecewise(points, bound)
        assert caught.value.fall == fall
        assert str(fall.bytes) in str(caught.value)
        return
    fit = fit_piecewise(points, bound, repair=repair)
    check_errors(fit, points)
    curve = fit.curve
    assert isinstance(curve, PiecewiseLinear)
    sizes = [size for size, _ in curve.rows]
    times = [us for _, us in curve.rows]
    assert times == sorted(times)
    assert set(sizes) <= {size for size, _ in points}
    assert (sizes[0], sizes[-1]) == (min(medians(points)), max(medians(points)))
    assert fit.pieces == len(sizes) - 1
    assert any("repaired" in note for note in fit.notes) == (repair and fall is not None)
    raised = dict(
        zip(medians(points), itertools.accumulate(medians(points).values(), max), strict=True)
    )
    for size, us in (raised if repair else medians(points)).items():
        assert abs(float(curve.exact_ns(size) / 1000 / us) - 1) <= bound + 1e-7
    row_from_curve(curve, "fit")  # it can be written to a file


def test_the_worst_fall_is_that_of_all_pairs():
    """Against all pairs; and just at its error there is a curve, just below it there is none."""
    for seed in range(60):
        source = random.Random(seed)
        points = [(8 * k + 8, source.randrange(1, 30)) for k in range(source.randrange(2, 9))]
        ratios = {
            (a, b): Fraction(s, t) for (a, s), (b, t) in itertools.combinations(points, 2) if s > t
        }
        fall = worst_fall(points)
        if not ratios:
            assert fall is None
            continue
        worst = max(ratios.values())
        assert ratios[fall.bytes, fall.larger_bytes] == worst
        assert fall.least_error == pytest.approx(float((worst - 1) / (worst + 1)))
        fit = fit_piecewise(points, fall.least_error + 1e-6)
        assert fit.max_error == pytest.approx(fall.least_error, abs=1e-5)
        with pytest.raises(FallingTimesError, match="no curve that does not fall is within"):
            fit_piecewise(points, fall.least_error - 1e-6)


def test_a_line_needs_one_piece_and_a_cliff_two_more():
    """Shapes that are known."""
    line = AlphaBeta(20, 100)
    points = [(size, line.exact_ns(size) / 1000) for size in SIZES]
    assert fit_piecewise(points, 0).pieces == 1
    cliff = [(size, us if size < MIB else us + 200) for size, us in points]
    fit = fit_piecewise(cliff, 0)
    assert fit.pieces == 3
    assert fit.max_error < 1e-6
    assert [size for size, _ in fit.curve.rows] == [8, MIB // 2, MIB, SIZES[-1]]


FALLING = [(1024, 1242.3), (2048, 205), (4096, 201), (8192, 203), (16384, 206), (1048576, 300)]


def test_times_that_fall_are_refused_repaired_or_smoothed():
    """A first launch that was not warm: refused with its pair; raised on request; or left out."""
    with pytest.raises(FallingTimesError) as caught:
        fit_piecewise(FALLING)
    assert str(caught.value) == (
        "times fall from 1242.3 us at 1024 bytes to 201 us at 4096 bytes: no curve that does not "
        "fall is within 0.05 of both"
    )
    repaired = fit_piecewise(FALLING, repair=True)
    check_errors(repaired, FALLING)
    assert repaired.max_error == pytest.approx(1242.3 / 201 - 1, rel=0.06)
    assert repaired.notes == (
        "repaired: 5 of 6 times that fall are raised to the largest before them, most of all 4096 "
        "bytes from 201 to 1242.3 us",
    )
    smoothed = fit_piecewise(FALLING[1:], 0.02)
    assert smoothed.max_error <= 0.02 + 1e-8
    assert not smoothed.notes


def test_the_raw_table():
    """All medians, exactly; times that fall are refused, or raised on request."""
    points = [(8, 10), (16, 12), (16, 14), (16, 13), (32, Fraction(40, 3))]
    fit = raw_curve(points)
    assert fit.curve.rows == ((8, 10.0), (16, 13.0), (32, 13.3333333333333))
    assert (fit.pieces, fit.sizes) == (2, 3)
    assert fit.max_error < 1e-14
    with pytest.raises(FallingTimesError, match=r"205 us at 2048 bytes to 201 us.* must not fall"):
        raw_curve(FALLING[1:])
    fit = raw_curve(FALLING[1:], repair=True)
    assert [us for _, us in fit.curve.rows] == [205, 205, 205, 206, 300]
    check_errors(fit, FALLING[1:])


def test_many_sizes_take_no_time():
    """The most sizes that are allowed, noisy and with many corners."""
    source = random.Random(0)
    points = [(1000 * k, 10 + k * (1 + 0.02 * source.random())) for k in range(1, MAX_SIZES + 1)]
    start = time.perf_counter()
    fit = fit_piecewise(points, 0.002, repair=True)
    assert time.perf_counter() - start < 30
    assert fit.pieces > 20


def test_half_of_the_bandwidth():
    """Alpha times bandwidth for a line; for a curve where bytes over time is half of its best."""
    assert half_bandwidth_bytes(AlphaBeta(8, 50)) == 400_000
    assert half_bandwidth_bytes(AlphaBeta(8, 1_000_000)) is None
    curve = PiecewiseLinear([(8, 10), (10_000, 20), (1_000_000, 120), (2_000_000, 400)])
    half = half_bandwidth_bytes(curve)
    best = max(size / float(curve.exact_ns(size)) for size in range(1000, 2_000_000, 1000))
    assert half / float(curve.exact_ns(half)) == pytest.approx(best / 2, rel=1e-3)
    assert half_bandwidth_bytes(PiecewiseLinear([(1 << 20, 10), (1 << 30, 10_000)])) == 1 << 20
    assert half_bandwidth_bytes(StepTable([(8, 1)])) is None


def test_errors_by_range_of_sizes():
    """From one power of 4 to the next; together they are all sizes and the whole error."""
    points = [(0, 4), (1, 5), (3, 5), (4, 6), (15, 5), (16, 5), (2**40, 2**30)]
    fit = fit_alpha_beta(points)
    ranges = error_ranges(fit)
    assert [(one.first_bytes, one.end_bytes, one.sizes) for one in ranges] == [
        (0, 1, 1),
        (1, 4, 2),
        (4, 16, 2),
        (16, 64, 1),
        (2**40, 2**42, 1),
    ]
    assert max(one.max_error for one in ranges) == fit.max_error
    total = sum(one.mean_error * one.sizes for one in ranges)
    assert total / fit.sizes == pytest.approx(fit.mean_error)
    for one in ranges:
        inside = [
            e
            for size, e in errors_of(fit, points).items()
            if one.first_bytes <= size < one.end_bytes
        ]
        assert one.max_error == pytest.approx(max(inside), abs=1e-12)


def test_repeated_sizes_count_once_by_their_median():
    """One slow run of three does not matter."""
    points = [(1000, 10), (1000, 500), (1000, 11), (2000, 21)]
    for fit in (fit_alpha_beta(points), fit_piecewise(points), raw_curve(points)):
        assert fit.sizes == 2
        assert fit.curve.ns(1000) == pytest.approx(11000, abs=1)
        assert fit.notes[0] == "1 sizes were measured repeatedly: the median counts"


@pytest.mark.parametrize("function", [fit_alpha_beta, fit_piecewise, raw_curve, worst_fall])
@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "0 different sizes, at least 2"),
        ([(8, 1), (8, 2)], "1 different sizes, at least 2"),
        ([(8, 1), (16, 0)], "point 1: the time of 16 bytes is 0 us"),
        ([(8, 1), (-1, 2)], "point 1: bytes: -1 must be at least 0"),
        ([(8, 1), (16, -2)], "point 1: us: -2 must be at least 0"),
        ([(8, 1), (16, float("nan"))], "point 1: us: nan is not a finite number"),
        ([(8, 1), (16.5, 2)], "point 1: bytes: 16.5 must be a whole number"),
        ([(8, 1), (16, "2")], "point 1: us: '2' is not a number"),
        ([(8, 1), (16, 1e300)], "point 1: us: 1e.300 must be at most"),
        ([(k, 1) for k in range(MAX_SIZES + 1)], f"more than {MAX_SIZES} different sizes"),
    ],
)
def test_bad_points_are_refused(function, points, message):
    """One line that names the point."""
    with pytest.raises(InputError, match=message):
        function(points)


@pytest.mark.parametrize("bound", [-0.1, 1, 5, float("nan"), float("inf"), True, "0.05"])
def test_bad_bounds_are_refused(bound):
    """The bound is a part of 1."""
    with pytest.raises(InputError, match="max_error"):
        fit_piecewise([(8, 1), (16, 2)], bound)


def test_extremes():
    """Huge, tiny, size 0, numpy numbers, decimals, and as many sizes as are allowed."""
    fit = fit_alpha_beta([(0, Decimal("0.001")), (np.int64(2**50), np.float64(1e9))])
    check_errors(fit, [(0, 0.001), (2**50, 1e9)])
    for points in (
        [(0, 0.001), (2**50, 2**50 / 1000)],
        [(2**50 - 1, 5), (2**50, 6)],
        [(8, Fraction(1, 3)), (16, Fraction(2, 3))],
    ):
        for fit in (fit_alpha_beta(points), fit_piecewise(points)):
            assert fit.max_error >= 0
            fit.curve.ns(2**40)
            row_from_curve(fit.curve, "fit")
    falling = [(1, 1e9), (2, 1e-3)]
    assert fit_piecewise(falling, repair=True).max_error == pytest.approx(1e12, rel=0.06)
    many = fit_piecewise([(1000 * k, 10 + k) for k in range(1, MAX_SIZES + 1)], 0)
    assert many.pieces == 1


PUBLISHED = [
    # Fitted from 1 MiB to 1 GiB: alpha in us, picoseconds per byte, largest error.
    ("echo/nccl_8.log", 71, 7.83, 0.140),
    ("echo/nccl_16.log", 86, 15.0, 0.079),
    ("echo/nccl_64.log", 159, 16.4, 0.144),
    ("echo/nccl_128.log", 183, 17.4, 0.135),
]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "alpha", "picoseconds", "error"), PUBLISHED)
def test_real_scaling_over_one_mebibyte(name, alpha, picoseconds, error):
    """A100 clusters: alpha grows with the ranks, one line is within 8 to 14 %."""
    (table,) = read_benchmark_log(shared_data(name)).tables
    points = [point for point in table.points if MIB <= point[0] <= 1024 * MIB]
    fit = fit_alpha_beta(points)
    assert fit.curve.alpha_us == pytest.approx(alpha, abs=0.5)
    assert 1000 / fit.curve.bandwidth_gb_s == pytest.approx(picoseconds, abs=0.05)
    assert fit.max_error == pytest.approx(error, abs=0.001)
    check_errors(fit, points)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "mean", "bound"),
    [("echo/nccl_16.log", 0.17, 0.05), ("aws/nccl-tests_readme_1.txt", 0.22, 0.11)],
)
def test_one_line_over_all_sizes_is_not_good_enough(name, mean, bound):
    """Over all sizes a line is off by more than 10 % in the mean; pieces are not."""
    (table,) = read_benchmark_log(shared_data(name)).tables
    line, pieces = fit_alpha_beta(table.points), fit_piecewise(table.points, bound)
    assert line.mean_error == pytest.approx(mean, abs=0.03)
    assert line.max_error > 0.3
    assert pieces.mean_error < line.mean_error / 2
    assert pieces.pieces <= 6


CLEAN = {
    "echo/nccl_8.log": [4],
    "echo/nccl_16.log": [6],
    "superbench/nccl_allgather.log": [5],
    "superbench/nccl_allreduce.log": [3],
    "superbench/nccl_broadcast.log": [3],
    "deepops/slurm_0.txt": [5],
    "abci/vnode_04.nccl": [5],
    "abci/vnode_04.mpi": [4],
    "abci/vnode_16.mpi": [7],
    "nccl-tests-cluster/single_N1_G8.log": [1, 1, 1, 1, 3],
    "nccl-tests-cluster/multi_N10_G8.log": [2, 3, 4, 1, 1],
}


@pytest.mark.shared
@pytest.mark.parametrize("name", CLEAN)
def test_real_tables_within_five_percent(name):
    """A handful of pieces describes tables that do not fall by more than noise, without repair."""
    tables = read_benchmark_log(shared_data(name)).tables
    fits = [fit_piecewise(table.points) for table in tables]
    for table, fit in zip(tables, fits, strict=True):
        check_errors(fit, table.points)
        assert fit.max_error <= 0.05 + 1e-7
        assert fit.mean_error < 0.03
    assert [fit.pieces for fit in fits] == CLEAN[name]


FALLS = {
    "deepops/roce_1.txt": (8, 2193.5, 16, 84.54),
    "echo/nccl_64.log": (1024, 314.8, 4096, 76.87),
    "aws/aws_batch_0.txt": (32, 22.25, 64, 14.48),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", FALLS)
def test_real_tables_that_fall_are_refused(name):
    """First launches that were not warm, 88, 130 and 580 us in turn: the worst pair is named."""
    (table,) = read_benchmark_log(shared_data(name)).tables
    with pytest.raises(FallingTimesError) as caught:
        fit_piecewise(table.points)
    fall = caught.value.fall
    assert (fall.bytes, fall.us, fall.larger_bytes, fall.less_us) == FALLS[name]
    check_errors(fit_piecewise(table.points, repair=True), table.points)

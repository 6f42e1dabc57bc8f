"""Fitting cost curves: known lines come back, errors are what they claim, and few pieces do."""

from __future__ import annotations

import itertools
import random
import statistics
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import shared_data
from strategies import PROPERTY

from commsched.models import AlphaBeta, InputError, PiecewiseLinear
from commsched.models.fit import MAX_SIZES, Fit, fit_alpha_beta, fit_piecewise
from commsched.problems.bench_logs import read_benchmark_log
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


def grid_fewest(x: list[int], y: list[Fraction], bound: Fraction) -> int:
    """Return the least number of pieces by trying all sets of corners."""
    inner = range(1, len(x) - 1)
    for count in range(len(x) - 1):
        for some in itertools.combinations(inner, count):
            corners = [0, *some, len(x) - 1]
            curve = PiecewiseLinear([(x[k], y[k]) for k in corners])
            if all(
                abs(curve.exact_ns(size) / 1000 / us - 1) <= bound
                for size, us in zip(x, y, strict=True)
            ):
                return count + 1
    return len(x) - 1


@pytest.mark.parametrize("seed", range(60))
def test_as_few_pieces_as_any_choice_of_corners(seed):
    """Dynamic programming against all sets of corners, on times that do not fall."""
    source = random.Random(seed)
    count = source.randrange(2, 9)
    x = sorted(source.sample(range(1, 60), count))
    y = [Fraction(us) for us in sorted(source.choices(range(1, 40), k=count))]
    bound = source.choice([0, 0.05, 0.1, 0.25, 0.5])
    fit = fit_piecewise(zip(x, y, strict=True), bound)
    assert fit.pieces == grid_fewest(x, y, Fraction(str(bound)))
    assert fit.max_error <= bound + 1e-8
    assert not fit.notes


@PROPERTY
@given(measurements, st.sampled_from([0, 0.01, 0.05, 0.3]))
def test_piecewise_curves_are_monotone_and_honest(points, bound):
    """Never falling, at measured sizes, errors as claimed, and beyond the bound only with a note."""
    fit = fit_piecewise(points, bound)
    check_errors(fit, points)
    curve = fit.curve
    assert isinstance(curve, PiecewiseLinear)
    sizes = [size for size, _ in curve.rows]
    times = [us for _, us in curve.rows]
    assert times == sorted(times)
    assert set(sizes) <= {size for size, _ in points}
    assert (sizes[0], sizes[-1]) == (min(medians(points)), max(medians(points)))
    assert fit.pieces == len(sizes) - 1
    falls = list(medians(points).values()) != sorted(medians(points).values())
    assert any("fall with size" in note for note in fit.notes) == falls
    if not falls:
        assert fit.max_error <= bound + 1e-8
    assert (fit.max_error > bound + 1e-8) <= any("cannot be kept" in note for note in fit.notes)
    row_from_curve(curve, "fit")  # it can be written to a file


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


def test_an_outlier_spoils_itself_only():
    """A first launch that was not warm is pooled; the others keep their times."""
    points = [(1024, 1242.3), (2048, 205), (4096, 201), (8192, 203), (16384, 206), (MIB, 300)]
    fit = fit_piecewise(points)
    errors = errors_of(fit, points)
    assert fit.worst_bytes == 1024
    assert fit.max_error > 0.5
    assert all(error < 0.05 for size, error in errors.items() if size != 1024)
    assert any(note.startswith("1024 to 8192 bytes: 4 times") for note in fit.notes)
    assert any("5.0% cannot be kept" in note for note in fit.notes)


def test_pools_minimise_the_sum_of_logarithmic_errors():
    """Against all monotone curves whose values are measured times (an optimum is among them)."""
    for seed in range(40):
        source = random.Random(seed)
        times = [source.choice([1.0, 2.0, 4.0, 8.0, 16.0]) for _ in range(5)]
        fit = fit_piecewise([(1000 + k, us) for k, us in enumerate(times)], 0)

        def cost(values, times=times) -> float:
            ratios = np.log(np.array(values, dtype=float) / np.array(times))
            return float(np.abs(ratios).sum())

        best = min(
            cost(values)
            for values in itertools.product(sorted(set(times)), repeat=5)
            if list(values) == sorted(values)
        )
        found = [float(fit.curve.exact_ns(1000 + k)) / 1000 for k in range(5)]
        assert cost(found) == pytest.approx(best, abs=2e-3)


def test_many_pools_are_counted_not_listed():
    """The notes stay short."""
    points = [(1000 * k, 10 * k - 19 * (k % 2)) for k in range(10, 60)]
    notes = fit_piecewise(points).notes
    assert sum("count as" in note for note in notes) == 4
    assert any("more ranges of falling times" in note for note in notes)


def test_repeated_sizes_count_once_by_their_median():
    """One slow run of three does not matter."""
    points = [(1000, 10), (1000, 500), (1000, 11), (2000, 21)]
    for fit in (fit_alpha_beta(points), fit_piecewise(points)):
        assert fit.sizes == 2
        assert fit.curve.ns(1000) == 11000
        assert fit.notes[0] == "1 sizes were measured repeatedly: the median counts"


@pytest.mark.parametrize("function", [fit_alpha_beta, fit_piecewise])
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
        [(1, 1e9), (2, 1e-3)],
        [(2**50 - 1, 5), (2**50, 6)],
        [(8, Fraction(1, 3)), (16, Fraction(2, 3))],
    ):
        for fit in (fit_alpha_beta(points), fit_piecewise(points)):
            assert fit.max_error >= 0
            fit.curve.ns(2**40)
            row_from_curve(fit.curve, "fit")
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
    ("name", "mean"), [("echo/nccl_16.log", 0.17), ("echo/nccl_128.log", 0.21)]
)
def test_one_line_over_all_sizes_is_not_good_enough(name, mean):
    """From 1 KiB on a line is off by about 20 % in the mean; pieces are not."""
    (table,) = read_benchmark_log(shared_data(name)).tables
    line, pieces = fit_alpha_beta(table.points), fit_piecewise(table.points)
    assert line.mean_error == pytest.approx(mean, abs=0.02)
    assert line.max_error > 0.35
    assert pieces.mean_error < line.mean_error / 2
    assert pieces.pieces <= 8


CLEAN = {
    "echo/nccl_8.log": 6,
    "echo/nccl_16.log": 7,
    "superbench/nccl_allgather.log": 8,
    "superbench/nccl_allreduce.log": 7,
    "superbench/nccl_broadcast.log": 5,
    "deepops/slurm_0.txt": 7,
    "abci/vnode_04.nccl": 8,
    "abci/vnode_04.mpi": 7,
    "nccl-tests-cluster/single_N1_G8.log": 4,
    "nccl-tests-cluster/multi_N10_G8.log": 5,
}


@pytest.mark.shared
@pytest.mark.parametrize("name", CLEAN)
def test_real_tables_within_five_percent(name):
    """A handful of pieces describes tables that do not fall by more than noise."""
    for table in read_benchmark_log(shared_data(name)).tables:
        fit = fit_piecewise(table.points)
        check_errors(fit, table.points)
        assert fit.max_error <= 0.05
        assert fit.pieces <= CLEAN[name]
        assert fit.mean_error < 0.025


@pytest.mark.shared
def test_a_table_of_noise_says_so():
    """88, 130 and 580 us in turn: no curve fits, and the result says how bad it is."""
    (table,) = read_benchmark_log(shared_data("deepops/roce_1.txt")).tables
    fit = fit_piecewise(table.points)
    check_errors(fit, table.points)
    assert fit.max_error > 0.9
    assert any("cannot be kept" in note for note in fit.notes)

"""The rules of compilers (Inductor, SimpleFSDP, DeepCompile) and the square-root formula."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    PROPERTY,
    problems,
    random_affine,
    random_gradient_problem,
    random_piecewise,
    random_step,
)

from commsched.models import (
    AlphaBeta,
    BusBandwidth,
    Collective,
    Compute,
    DeadlockError,
    Gradient,
    GradientProblem,
    InputError,
    NotApplicableError,
    PiecewiseLinear,
    Problem,
    evaluate,
)
from commsched.models.knob import Knob
from commsched.models.timeline import play
from commsched.models.units import MIB
from commsched.optimizer.rules.curve import bandwidth_bytes_per_ns, latency_ns
from commsched.optimizer.rules.deepcompile import deep_compile
from commsched.optimizer.rules.inductor import (
    PROFILES,
    inductor,
    inductor_profile_cap,
    inductor_saturation,
    saturation_bytes,
    saturation_cap,
)
from commsched.optimizer.rules.simplefsdp import simple_fsdp
from commsched.optimizer.rules.square_root import square_root, square_root_bytes
from commsched.optimizer.tuning import setting_ranges, tune

RULES = {
    "inductor": lambda problem: inductor(problem, 7),
    "saturation": lambda problem: inductor_saturation(problem, low=1, high=12),
    "simple-fsdp": simple_fsdp,
    "deep-compile": deep_compile,
    "square-root": square_root,
}


def chain(sizes, curve=None, step_ns=1, dtypes=None):
    """Return gradients g0, g1, ... ready in this order, ``step_ns`` apart."""
    dtypes = dtypes or ["float32"] * len(sizes)
    gradients = [
        Gradient(f"g{k}", size, step_ns * (k + 1), dtypes[k]) for k, size in enumerate(sizes)
    ]
    return GradientProblem(gradients, curve or AlphaBeta(0.01, 1))


def of(plan):
    """Return the buckets' members in launch order, joined by spaces."""
    return [" ".join(bucket.names) for bucket in plan.buckets]


# ---- Inductor


def test_inductor_caps_the_sum_and_lets_one_exceed_it():
    """At most the cap, the cap itself is allowed, and an oversized collective goes alone."""
    assert of(inductor(chain([3, 3, 1, 9, 2, 4]), 6)) == ["g0 g1", "g2", "g3", "g4 g5"]
    assert of(inductor(chain([0, 7, 0]), 6)) == ["g0", "g1", "g2"]
    assert of(inductor(chain([2000 * MIB - 1, 1, 1]))) == ["g0 g1", "g2"]


def test_inductor_run_ends_at_another_dtype():
    """Only neighbours of one group and dtype share a bucket."""
    problem = chain([1] * 5, dtypes=["float32", "float32", "bfloat16", "float32", "float32"])
    assert of(inductor(problem, 100)) == ["g0 g1", "g2", "g3 g4"]


def step_of(*collectives, computes=6):
    """Return a step of a backward chain c0, c1, ... and these collectives."""
    return Problem(
        [*(Compute(f"c{k}", 10) for k in range(computes)), *collectives],
        {(c.group, c.kind): AlphaBeta(0.01, 1) for c in collectives},
    )


def test_inductor_run_goes_on_across_another_kind_but_not_another_group():
    """A pass sees one kind only; another group of that kind ends the run."""
    sums = [Collective(f"r{k}", 1, "allreduce", after=(f"c{k}",)) for k in (0, 2, 4)]
    other = Collective("s", 1, "reduce_scatter", after=("c1",))
    assert of(inductor(step_of(*sums, other), 100)) == ["s", "r0 r2 r4"]
    other = Collective("s", 1, "allreduce", group="tp", after=("c1",))
    assert of(inductor(step_of(*sums, other), 100)) == ["r0", "s", "r2 r4"]


def test_inductor_never_buckets_an_all_to_all():
    """There is no pass for it."""
    both = [Collective(f"a{k}", 1, "all_to_all", after=(f"c{k}",)) for k in (0, 1)]
    assert of(inductor(step_of(*both), 100)) == ["a0", "a1"]


def test_inductor_leaves_out_what_waits_for_the_bucket():
    """A collective behind a member is launched alone, after it; later ones still join."""
    problem = Problem(
        [
            Compute("c0", 5),
            Collective("a", 1, after=("c0",)),
            Compute("next", 1, stream="other", after=("a",)),
            Collective("b", 1, after=("next",)),
            Compute("c1", 5),
            Collective("c", 1, after=("c1",)),
        ],
        {("dp", "allreduce"): AlphaBeta(0.01, 1)},
    )
    assert [problem.names[k] for k in problem.ready_order] == ["a", "b", "c"]
    plan = inductor(problem, 100)
    assert of(plan) == ["a c", "b"]
    assert evaluate(problem, plan).launches[1].start_ns == 10 + 12 + 1


def literal_inductor(sizes, keys, cap):
    """Return buckets by the pass's two loops: runs first, then the cap in each run."""
    runs: list[list[int]] = []
    for k, key in enumerate(keys):
        if runs and keys[runs[-1][0]] == key:
            runs[-1].append(k)
        else:
            runs.append([k])
    buckets = []
    for run in runs:
        bucket: list[int] = []
        for k in run:
            if bucket and sum(sizes[j] for j in bucket) + sizes[k] > cap:
                buckets.append(bucket)
                bucket = []
            bucket.append(k)
        buckets.append(bucket)
    return buckets


@pytest.mark.parametrize("seed", range(3))
def test_inductor_equals_two_literal_loops(seed):
    """Random chains of two dtypes."""
    rng = random.Random(seed)
    for _ in range(300):
        count = rng.randint(1, 12)
        sizes = [rng.choice([0, 1, 2, 5, 9]) for _ in range(count)]
        dtypes = [rng.choice(["float32", "float32", "float16"]) for _ in range(count)]
        cap = rng.randint(1, 15)
        expected = [" ".join(f"g{k}" for k in b) for b in literal_inductor(sizes, dtypes, cap)]
        assert of(inductor(chain(sizes, dtypes=dtypes), cap)) == expected


@PROPERTY
@given(problems(), st.integers(1, 40))
def test_a_knob_gives_the_same_plan_as_its_number(problem, cap):
    """Recording comparisons changes nothing."""
    assert inductor(problem, Knob(cap)) == inductor(problem, cap)


@PROPERTY
@given(problems())
def test_setting_ranges_of_inductor_equal_trying_every_cap(problem):
    """Every plan that a cap gives is visited, for exactly its caps."""
    found = list(setting_ranges(lambda knob: inductor(problem, knob)))
    assert found[0].low == 1
    assert found[-1].high is None
    for entry, following in pairwise(found):
        assert following.low == (entry.high or 0) + 1
    for cap in range(1, sum(problem.bytes) + 3):
        plans = [r.made for r in found if r.low <= cap and (r.high is None or cap <= r.high)]
        assert plans == [inductor(problem, cap)]


def test_the_best_cap_of_inductor_beats_every_tried_one():
    """The tuner's least makespan is the least over all caps."""
    rng = random.Random(5)
    for _ in range(60):
        problem = random_gradient_problem(rng, 7)
        least = min(
            play(problem, inductor(problem, cap)).makespan_ns
            for cap in range(1, sum(problem.bytes) + 2)
        )
        assert tune(problem, inductor).best.makespan_ns == least


# ---- The saturation cap


def test_affine_curve_saturates_at_nine_alpha_over_beta():
    """Exactly 9 * alpha / beta at 90%, by the evaluator's own curve."""
    rng = random.Random(3)
    for _ in range(100):
        curve = random_affine(rng)
        piece = curve.affine
        exactly = 9 * Fraction(piece.intercept, piece.slope)
        assert saturation_cap(curve, low=0, high=10**12) == int(exactly)
        if exactly:
            ideal = exactly / bandwidth_bytes_per_ns(curve)
            assert ideal / (ideal + latency_ns(curve)) == Fraction(9, 10)


def test_saturation_cap_is_clamped_to_the_configured_range():
    """10 MiB and 500 MiB are Inductor's ends."""
    assert saturation_cap(AlphaBeta(0, 1)) == 10 * MIB
    assert saturation_cap(AlphaBeta(1000, 100)) == 500 * MIB
    assert saturation_cap(AlphaBeta(50, 40)) == 18_000_000
    assert saturation_cap(AlphaBeta(50, 40), 0.5, low=0) == 2_000_000


def test_saturation_takes_latency_and_bandwidth_from_a_measured_curve():
    """The time of the smallest size, and the last slope."""
    curve = PiecewiseLinear([(1000, 20), (1_000_000, 40), (101_000_000, 1040)])
    assert (latency_ns(curve), bandwidth_bytes_per_ns(curve)) == (20_000, 100)
    assert saturation_cap(curve) == 9 * 20_000 * 100


def test_saturation_uses_one_cap_that_of_the_first_all_gather():
    """As Inductor does, also for the other kinds."""
    gathers = [Collective(f"w{k}", 4, "all_gather") for k in range(2)]
    grads = [Collective(f"r{k}", 4, "reduce_scatter", after=("c0",)) for k in range(4)]
    problem = Problem(
        [Compute("c0", 9), *gathers, *grads],
        {("dp", "all_gather"): AlphaBeta(0.001, 1), ("dp", "reduce_scatter"): AlphaBeta(9, 1)},
    )
    assert of(inductor_saturation(problem, low=1)) == ["w0 w1", "r0 r1", "r2 r3"]


@pytest.mark.parametrize(
    ("profile", "ranks", "mib"),
    [
        ("NVLINK_H100", 8, 89.6),
        ("NVLINK_A100", 8, 61.4),
        ("NVLINK_B200", 8, 113.3),
        ("IB_NDR", 16, 100.0),
        ("IB_NDR", 64, 148.4),
        ("IB_NDR", 256, 500.0),
        ("IB_HDR", 64, 86.1),
        ("PCIE", 8, 37.3),
    ],
)
def test_caps_that_inductor_s_table_gives(profile, ranks, mib):
    """Golden caps of the all-gather, from bandwidth, base and hop latency and ranks."""
    assert round(inductor_profile_cap(profile, ranks) / MIB, 1) == mib
    assert inductor_profile_cap(profile, ranks, "reduce_scatter") == inductor_profile_cap(
        profile, ranks
    )


def test_table_by_hand():
    """The unclamped size of 256 ranks on NDR, and the double steps of an all-reduce."""
    assert round(saturation_bytes(30 + 255 * 12, 22) / MIB) == 583
    assert inductor_profile_cap("NVLINK_V100", 4, "allreduce") == 9 * (10 + 6 * 50) * 14 * 1000
    assert inductor_profile_cap("PCIE", 2) == 10 * MIB
    assert len(PROFILES) == 7


def test_wrong_arguments_of_the_saturation_cap():
    """Messages name what is wrong."""
    for efficiency in (0, 1, 1.5, -0.1):
        with pytest.raises(InputError, match="efficiency"):
            saturation_bytes(1, 1, efficiency)
    with pytest.raises(InputError, match="profile"):
        inductor_profile_cap("TOKENRING", 8)
    with pytest.raises(InputError, match="kind"):
        inductor_profile_cap("PCIE", 8, "broadcast")
    with pytest.raises(InputError):
        inductor_profile_cap("PCIE", 1)
    with pytest.raises(NotApplicableError, match="grow"):
        inductor_saturation(chain([1, 2], PiecewiseLinear([(1, 5), (9, 5)])))


# ---- DeepCompile


def test_deep_compile_by_hand():
    """T = 500 + bytes; from the back: 1.2 * 600 > 700, 1.2 * 1500 > 1700, 1.2 * 1700 < 2700."""
    problem = chain([1000, 1000, 100, 100], AlphaBeta(0.5, 1))
    assert of(deep_compile(problem)) == ["g0", "g1 g2 g3"]
    assert of(deep_compile(problem, factor=2)) == ["g0 g1 g2 g3"]
    assert of(deep_compile(problem, factor=1)) == ["g0", "g1", "g2", "g3"]


def test_deep_compile_walks_backwards():
    """A symmetric list is not cut symmetrically: the last two go together."""
    curve = AlphaBeta(0.1, 1)  # 1.2 * 150 > 170, and 1.2 * 170 < 220
    assert of(deep_compile(chain([50, 20, 50], curve))) == ["g0", "g1 g2"]


def test_deep_compile_is_strict_and_stays_below_the_limit():
    """Equal times do not fuse, and a sum equal to the limit does not either."""
    free = AlphaBeta(0, 1)  # fused time is the sum: 1.2 * 10 against 12
    assert of(deep_compile(chain([2, 10], free))) == ["g0", "g1"]
    assert of(deep_compile(chain([1, 10], free))) == ["g0 g1"]
    slow = AlphaBeta(10**7, 1)
    assert of(deep_compile(chain([5 * 10**8, 5 * 10**8], slow))) == ["g0", "g1"]
    assert of(deep_compile(chain([5 * 10**8 - 1, 5 * 10**8], slow))) == ["g0 g1"]
    assert of(deep_compile(chain([3, 3], slow), max_bytes=7)) == ["g0 g1"]


def literal_deep_compile(sizes, cost):
    """Return buckets by the pass's loop over the reversed list."""
    groups, current = [], []
    for k in reversed(range(len(sizes))):
        held = sum(sizes[j] for j in current)
        both = held + sizes[k]
        fuse = Fraction(12, 10) * max(cost(held), cost(sizes[k])) > cost(both) and both < 10**9
        if current and not fuse:
            groups.append(current)
            current = []
        current.append(k)
    return [sorted(group) for group in [*groups, current]][::-1]


@pytest.mark.parametrize("seed", range(3))
def test_deep_compile_equals_a_literal_loop(seed):
    """Random chains under affine and piecewise costs."""
    rng = random.Random(seed)
    for _ in range(300):
        sizes = [rng.choice([0, 1, 2, 5, 9, 40]) for _ in range(rng.randint(1, 12))]
        curve = rng.choice([random_affine, random_piecewise])(rng)
        expected = [
            " ".join(f"g{k}" for k in b) for b in literal_deep_compile(sizes, curve.exact_ns)
        ]
        assert of(deep_compile(chain(sizes, curve))) == expected


# ---- SimpleFSDP


def test_simple_fsdp_closes_before_compute_runs_out():
    """T = 15 + bytes; a fifth of the bytes is 12, and 100 ns remain after g4."""
    problem = chain([10] * 6, AlphaBeta(0.015, 1), step_ns=100)
    assert of(simple_fsdp(problem)) == ["g0 g1", "g2 g3", "g4", "g5"]
    assert of(simple_fsdp(problem, compute_ahead=1)) == ["g0 g1", "g2 g3", "g4 g5"]
    assert of(simple_fsdp(problem, calibrated_share=1)) == ["g0 g1 g2 g3", "g4", "g5"]


def test_simple_fsdp_closes_where_the_last_reduction_outlasts_the_step():
    """A slow first bucket (by size) makes the following layers close at once, unless relaxed.

    T = 90 + bytes. The first closes before g1 (1000 > 20%) with 1090 ns, while the step is 1000 ns.
    """
    problem = GradientProblem(
        [Gradient(f"g{k}", 1000 if k == 0 else 1, ready_ns=1000 * (k + 1)) for k in range(5)],
        AlphaBeta(0.09, 1),
        backward_end_ns=50_000,
    )
    # Before g2 the step is 1000 ns < 1090: g1 closes with 91 ns, and the rest is hidden.
    assert of(simple_fsdp(problem)) == ["g0", "g1", "g2 g3 g4"]
    assert of(simple_fsdp(problem, relax_ratio=0.09)) == ["g0", "g1 g2 g3 g4"]
    assert of(simple_fsdp(problem, relax_ratio=0.0899)) == ["g0", "g1", "g2 g3 g4"]


def literal_simple_fsdp(sizes, layers, end, cost):
    """Return buckets by the pass's loop for one key, with every quantity by its name there."""
    limit = max(Fraction(sum(sizes), 5), min(sizes))
    plan, rs = [], []
    info = {"last_rs": 0, "comp": 0, "rs_size": 0, "next_comp": 0}
    now = k = 0
    for ready, count in layers:
        if info["comp"] < info["last_rs"] or limit < info["rs_size"]:
            if rs:
                info["last_rs"] = cost(sum(sizes[j] for j in rs))
                plan.append(rs)
                rs = []
            info["comp"], info["next_comp"] = info["next_comp"], 0
        info["next_comp"] += ready - now
        now = ready
        for _ in range(count):
            rs.append(k)
            k += 1
            info["rs_size"] = sum(sizes[j] for j in rs)
            if end - ready < 5 * cost(info["rs_size"]):
                info["last_rs"] = cost(info["rs_size"])
                plan.append(rs)
                rs = []
    return [*plan, rs] if rs else plan


@pytest.mark.parametrize("seed", range(3))
def test_simple_fsdp_equals_a_literal_loop(seed):
    """Random layers of one or two gradients."""
    rng = random.Random(seed)
    for _ in range(400):
        layers, ready = [], 0
        for _ in range(rng.randint(1, 10)):
            ready += rng.choice([1, 5, 20, 60])
            layers.append((ready, rng.choice([1, 1, 2])))
        times = [ready for ready, count in layers for _ in range(count)]
        sizes = [rng.choice([0, 1, 2, 5, 9, 40]) for _ in times]
        curve = random_affine(rng)
        end = ready + rng.choice([0, 30, 300])
        gradients = [
            Gradient(f"g{k}", size, time)
            for k, (size, time) in enumerate(zip(sizes, times, strict=True))
        ]
        problem = GradientProblem(gradients, curve, backward_end_ns=end)
        expected = literal_simple_fsdp(sizes, layers, end, curve.exact_ns)
        assert of(simple_fsdp(problem)) == [" ".join(f"g{k}" for k in b) for b in expected]


def test_simple_fsdp_sends_the_keys_of_a_bucket_in_a_launch_each():
    """Dtypes close together."""
    problem = chain([1] * 4, AlphaBeta(1, 1), dtypes=["float32", "float16"] * 2)
    assert of(simple_fsdp(problem, compute_ahead=0, calibrated_share=9)) == ["g0 g2", "g1 g3"]


def test_simple_fsdp_declines_what_it_does_not_know():
    """Other kinds, and steps in which something waits."""
    gather = Problem([Collective("w", 1, "all_gather")], {("dp", "all_gather"): AlphaBeta(1, 1)})
    with pytest.raises(NotApplicableError, match="all_gather"):
        simple_fsdp(gather)
    waiting = Problem(
        [Collective("x", 1), Compute("f", 1, after=("x",))], {("dp", "allreduce"): AlphaBeta(1, 1)}
    )
    with pytest.raises(NotApplicableError, match="waits"):
        simple_fsdp(waiting)
    with pytest.raises(InputError, match="relax_ratio"):
        simple_fsdp(chain([1]), relax_ratio=-1)


# ---- The square root


def test_square_root_by_hand():
    """sqrt(1000 bytes * 1 byte/ns * 250 ns) = 500 bytes, reached or passed."""
    curve = AlphaBeta(0.25, 1)
    assert of(square_root(chain([250] * 4, curve))) == ["g0 g1", "g2 g3"]
    assert of(square_root(chain([499, 1, 500], curve))) == ["g0 g1", "g2"]
    assert of(square_root(chain([499, 2, 499], curve))) == ["g0 g1", "g2"]
    assert of(square_root(chain([100, 899, 1], curve))) == ["g0 g1", "g2"]


def test_square_root_without_latency_launches_each_alone():
    """Its bucket is then empty."""
    assert of(square_root(chain([3, 0, 2], AlphaBeta(0, 1)))) == ["g0", "g1", "g2"]


def test_square_root_counts_each_dtype_by_itself():
    """The total is the chain's, not the step's."""
    problem = chain([100] * 4, AlphaBeta(0.05, 1), dtypes=["float32", "float16"] * 2)
    assert square_root_bytes(200, Fraction(50), Fraction(1)) == 100
    assert of(square_root(problem)) == ["g0", "g1", "g2", "g3"]


def test_square_root_rounds_up():
    """The least whole number of bytes that is not below the root."""
    for total in range(1, 200):
        cap = square_root_bytes(total, Fraction(7, 2), Fraction(2, 3))
        assert (cap - 1) ** 2 < total * Fraction(7, 3) <= cap**2
        assert cap == pytest.approx(sqrt(total * 7 / 3), abs=1)


def test_square_root_needs_a_bandwidth():
    """A flat curve has none."""
    with pytest.raises(NotApplicableError, match="bandwidth"):
        square_root(chain([1, 2], PiecewiseLinear([(1, 5), (9, 5)])))


# ---- All of them


@PROPERTY
@given(problems(), st.sampled_from(sorted(RULES)))
def test_every_rule_covers_every_byte_once_and_is_deterministic(problem, name):
    """A rule either declines, or makes a plan that the evaluator accepts, the same each time."""
    rule = RULES[name]
    try:
        plan = rule(problem)
    except NotApplicableError:
        return
    assert rule(problem) == plan
    assert sorted(n for b in plan.buckets for n in b.names) == sorted(problem.names)
    try:
        timeline = play(problem, plan)
    except DeadlockError:
        assert not problem.settled
        return
    assert sum(launch.bytes for launch in timeline.launches) == sum(problem.bytes)


@pytest.mark.parametrize("seed", range(4))
def test_inductor_never_deadlocks(seed):
    """Leaving out what waits and keeping dependencies in launch order is enough."""
    rng = random.Random(seed)
    for _ in range(500):
        problem = random_step(rng, 8)
        play(problem, inductor(problem, rng.choice([1, 5, 10, 1000])))


def test_bus_bandwidth_is_turned_into_algorithm_bandwidth():
    """2 (n-1) / n of an all-reduce of 4 ranks."""
    assert bandwidth_bytes_per_ns(BusBandwidth(10, 150, 4, "allreduce")) == 100

"""The evaluator against a second one, its refusals and warnings, and worked examples."""

from __future__ import annotations

import itertools
import random
import warnings

import numpy as np
import pytest
from hypothesis import given
from oracles import Stuck, all_plans, brute_force, exact_price, ready_order, simulate
from strategies import (
    PROPERTY,
    one_by_one,
    problems_with_plans,
    random_affine,
    random_gradient_problem,
    random_plan,
    random_step,
    random_valid_plan,
)

from commsched.models import (
    AlphaBeta,
    Bucket,
    Collective,
    Compute,
    DeadlockError,
    ExtrapolationWarning,
    Gradient,
    GradientProblem,
    InputError,
    PiecewiseLinear,
    Plan,
    PlanError,
    Problem,
    StepTable,
    evaluate,
    launch_exposures,
)
from commsched.models.timeline import play

ALLREDUCE = ("dp", "allreduce")


def assert_same(problem, plan):
    """Compare everything that both evaluators say; return whether the plan ran at all."""
    try:
        played = simulate(problem, plan)
    except Stuck:
        with pytest.raises(DeadlockError) as caught:
            evaluate(problem, plan)
        assert_waits(problem, plan, caught.value.path)
        return False
    timeline = evaluate(problem, plan)
    assert timeline.makespan_ns == played.makespan
    assert timeline.exposed_ns == played.exposed
    assert timeline.compute_ns == played.makespan - played.exposed
    in_start_order = sorted(played.launches, key=lambda launch: launch.start)
    ran = [(x.names, x.ready_ns, x.start_ns, x.end_ns) for x in timeline.launches]
    assert ran == [tuple(launch) for launch in in_start_order]
    spans = {span.name: (span.start_ns, span.end_ns) for span in timeline.tasks}
    assert spans == played.spans
    assert list(spans) == [task.name for task in problem.tasks if isinstance(task, Compute)]
    tasks = {task.name: task for task in problem.tasks}
    for launch in timeline.launches:
        assert launch.bytes == sum(tasks[name].bytes for name in launch.names)
        assert {tasks[name].key for name in launch.names} == {launch.key}
        assert launch.channel == problem.channels[launch.key.group]
        assert launch.duration_ns == launch.end_ns - launch.start_ns
    assert timeline.communication_ns == sum(x.end - x.start for x in played.launches)
    assert timeline.peak_bytes == naive_peak(timeline.launches)
    return True


def naive_peak(launches):
    """Return the most bytes between ready (included) and end (excluded) at any ready time."""
    return max(
        sum(x.bytes for x in launches if x.ready_ns <= at.ready_ns < x.end_ns) for at in launches
    )


def assert_waits(problem, plan, path):
    """Check that a deadlock's path is a circle in which each element waits for the one before."""
    assert len(path) >= 2
    assert path[0] == path[-1]
    tasks = {task.name: task for task in problem.tasks}
    bucket_of = {f"[{', '.join(bucket.names)}]": bucket for bucket in plan.buckets}
    for before, after in itertools.pairwise(path):
        finishing = set(bucket_of[before].names) if before in bucket_of else {before}
        waiting = bucket_of[after].names if after in bucket_of else (after,)
        needed = {name for member in waiting for name in tasks[member].after}
        if after in bucket_of:
            channel = problem.channels[tasks[waiting[0]].group]
            queue = [
                bucket
                for bucket in plan.buckets
                if problem.channels[tasks[bucket.names[0]].group] == channel
            ]
            position = queue.index(bucket_of[after])
            if position:
                needed |= set(queue[position - 1].names)
        else:
            stream = [
                task.name
                for task in problem.tasks
                if isinstance(task, Compute) and task.stream == tasks[after].stream
            ]
            position = stream.index(after)
            needed |= set(stream[position - 1 : position])
        assert finishing & needed, f"{after} does not wait for {before}"


def gradient_problem(rng):
    """Return a gradient problem of up to eight gradients."""
    return random_gradient_problem(rng, 8)


def settled_step(rng):
    """Return a step in which nothing waits for a collective."""
    return random_step(rng, 6, settled=True)


def general_step(rng):
    """Return any step."""
    return random_step(rng, 6)


@pytest.mark.parametrize("family", [gradient_problem, settled_step, general_step])
def test_equals_the_second_evaluator(family):
    """On thousands of random problems and plans both evaluators agree on everything."""
    ran = 0
    for seed in range(1500):
        rng = random.Random(seed)
        problem = family(rng)
        plan = random_plan(rng, problem, rng.choice(("in-order", "any")))
        ran += assert_same(problem, plan)
    assert ran > 700
    if family is general_step:
        assert ran < 1400  # deadlocks are among the cases


@PROPERTY
@given(problems_with_plans(valid=False))
def test_equals_the_second_evaluator_shrinking(case):
    """The same comparison, with examples that hypothesis shrinks."""
    assert_same(*case)


def test_every_plan_of_small_steps():
    """Enumerated plans run or deadlock alike, in both scopes."""
    for seed in range(60):
        problem = random_step(random.Random(seed), 3)
        for scope in ("in-order", "any"):
            for plan in all_plans(problem, scope):
                assert_same(problem, plan)


def test_a_random_valid_plan_runs():
    """The generator of valid plans keeps its word; one launch a collective always runs."""
    for seed in range(200):
        rng = random.Random(seed)
        problem = random_step(rng, 5)
        assert assert_same(problem, random_valid_plan(rng, problem))
        assert assert_same(problem, one_by_one(problem))


def two_layers():
    """Return the step of the general problem file in the design."""
    return Problem(
        [
            Compute("bwd2", 120_000),
            Collective("ar2", 4_194_304, after=("bwd2",)),
            Compute("bwd1", 90_000, after=("bwd2",)),
            Collective("ar1", 1_048_576, after=("bwd1",)),
            Compute("fwd1", 40_000, after=("ar1",)),
            Compute("fwd2", 60_000, after=("fwd1", "ar2")),
        ],
        {ALLREDUCE: AlphaBeta(alpha_us=30, bandwidth_gb_s=10)},
        channels={"nic": ["dp"]},
        name="two layers and the next forward",
    )


# By hand, in us. One stream: bwd2 0-120, bwd1 120-210, then fwd1 (40) and fwd2 (60), so without
# communication the step takes 310. A launch takes 30 + bytes / 10 GB/s:
#   ar2         30 + 419.4304 = 449.4304 -> 449.431 (rounded up to a ns)
#   ar1         30 + 104.8576 = 134.8576 -> 134.858
#   ar2 + ar1   30 + 524.288  = 554.288
# ar2 first:  ar2 120-569.431, ar1 569.431-704.289, fwd1 -744.289, fwd2 -804.289
# ar1 first:  ar1 210-344.858, ar2 344.858-794.289, fwd1 344.858-384.858,
#             fwd2 when ar2 ends: 794.289-854.289
# fused:      ready 210, -764.288, fwd1 -804.288, fwd2 -864.288
@pytest.mark.parametrize(
    ("buckets", "launches", "fwd2", "exposed"),
    [
        (
            [["ar2"], ["ar1"]],
            [(120_000, 120_000, 569_431), (210_000, 569_431, 704_289)],
            804_289,
            494_289,
        ),
        (
            [["ar1"], ["ar2"]],
            [(210_000, 210_000, 344_858), (120_000, 344_858, 794_289)],
            854_289,
            544_289,
        ),
        ([["ar2", "ar1"]], [(210_000, 210_000, 764_288)], 864_288, 554_288),
    ],
)
def test_two_layers_and_the_next_forward(buckets, launches, fwd2, exposed):
    """The design's example, worked out by hand above."""
    problem = two_layers()
    timeline = evaluate(problem, Plan.of(buckets))
    assert timeline.compute_ns == 310_000
    assert [(x.ready_ns, x.start_ns, x.end_ns) for x in timeline.launches] == launches
    assert timeline.tasks[-1].end_ns == timeline.makespan_ns == fwd2
    assert timeline.exposed_ns == exposed
    assert {launch.channel for launch in timeline.launches} == {"nic"}
    assert_same(problem, Plan.of(buckets))


def test_two_layers_best():
    """Of the three plans of the design's example, ar2 before ar1 is the best."""
    assert brute_force(two_layers(), "any") == (804_289, 2, 3)
    assert brute_force(two_layers(), "in-order") == (804_289, 2, 2)


def test_two_layers_timeline_details():
    """Where the stream stands still while it waits, and what is in flight."""
    timeline = evaluate(two_layers(), Plan.of([["ar2"], ["ar1"]]))
    assert timeline.busy == [(0, 210_000), (704_289, 804_289)]
    assert timeline.communication_ns == 449_431 + 134_858
    assert timeline.peak_bytes == 5_242_880  # ar1 is ready while ar2 runs
    assert [(span.name, span.stream) for span in timeline.tasks] == [
        ("bwd2", "gpu"),
        ("bwd1", "gpu"),
        ("fwd1", "gpu"),
        ("fwd2", "gpu"),
    ]


def test_not_before_holds_a_launch_back():
    """A launch waits for its time, and those behind it on the channel wait with it."""
    problem = GradientProblem(
        [Gradient("b", 10, ready_ns=5), Gradient("a", 1, ready_ns=6)], AlphaBeta(0, 1)
    )
    timeline = evaluate(problem, Plan((Bucket(("b",), not_before_ns=100), Bucket(("a",)))))
    assert [(x.ready_ns, x.start_ns, x.end_ns) for x in timeline.launches] == [
        (5, 100, 110),
        (6, 110, 111),
    ]


def test_groups_that_share_a_channel_queue():
    """Two groups run at once on channels of their own and one after the other on a shared one."""
    tasks = [Collective("a", 10, group="x"), Collective("b", 10, group="y")]
    costs = {("x", "allreduce"): AlphaBeta(0, 1), ("y", "allreduce"): AlphaBeta(0, 2)}
    plan = Plan.of([["a"], ["b"]])
    assert evaluate(Problem(tasks, costs), plan).makespan_ns == 10
    shared = Problem(tasks, costs, channels={"nic": ["x", "y"]})
    assert evaluate(shared, plan).makespan_ns == 15


def test_launches_that_start_together_keep_the_plans_order():
    """Ties in start are listed as in the plan, whatever their names."""
    problem = GradientProblem([Gradient(n, 0, 7) for n in "cab"], AlphaBeta(0, 1))
    timeline = evaluate(problem, Plan.of([["b"], ["c"], ["a"]]))
    assert [launch.names for launch in timeline.launches] == [("b",), ("c",), ("a",)]
    assert timeline.makespan_ns == 7
    assert timeline.peak_bytes == 0


def test_the_order_of_members_in_a_bucket_changes_nothing():
    """A bucket is a set; the timeline names its members as the plan does."""
    problem = two_layers()
    one, other = Plan.of([["ar2", "ar1"]]), Plan.of([["ar1", "ar2"]])
    assert evaluate(problem, one).makespan_ns == evaluate(problem, other).makespan_ns
    assert evaluate(problem, other).launches[0].names == ("ar1", "ar2")


def test_weird_names():
    """Names are opaque: digits, blanks, arrows, brackets and other scripts."""
    names = ["0", "1", " ", "a -> b", "[x, y]", "\n", "梯度", "e\u0301", "é", "backward of 0"]
    problem = GradientProblem(
        [Gradient(n, k + 1, 3 * k) for k, n in enumerate(names)], AlphaBeta(0.002, 1)
    )
    assert assert_same(problem, Plan.of([n] for n in names))
    assert assert_same(problem, Plan.of([names[::2], names[1::2]]))
    step = Problem(
        [Compute("0", 4), Collective("1", 2, after=("0",)), Compute("2", 3, after=("1",))],
        {ALLREDUCE: AlphaBeta(0, 1)},
    )
    assert assert_same(step, Plan.of([["1"]]))


def test_the_largest_values():
    """A step at the limits of bytes and time is exact."""
    top = 2**50
    problem = GradientProblem(
        [Gradient(f"g{k}", top, top) for k in range(5)], AlphaBeta(1e9, 53.6870912)
    )
    plan = Plan.of([["g0", "g1", "g2"], ["g3"], ["g4"]])
    assert assert_same(problem, plan)
    curve = problem.costs[ALLREDUCE]
    assert evaluate(problem, plan).launches[0].duration_ns >= exact_price(curve, 3 * top)


def test_numpy_numbers_price_exactly():
    """Sizes and durations taken from numpy arrays give the same times as Python's ints."""
    curve = AlphaBeta(8, 53.6870912)

    def makespan(number):
        step = Problem(
            [Compute("c", number(2**40)), Collective("a", number(2**49), after=("c",))],
            {ALLREDUCE: curve},
        )
        timeline = evaluate(step, Plan((Bucket(("a",), number(2**41)),)))
        assert type(timeline.makespan_ns) is int
        return timeline.makespan_ns

    assert makespan(np.int64) == makespan(int) == makespan(float)


def test_numpy_sizes_with_a_fitted_bandwidth():
    """A bandwidth with all the digits of a fit has large coefficients: no overflow at 32 MiB."""
    curve = AlphaBeta(8.123456, 53.68709123456789)
    step = Problem([Collective("a", np.int64(2**25))], {ALLREDUCE: curve})
    assert evaluate(step, Plan.of([["a"]])).makespan_ns == curve.ns(2**25) == 633_124


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([["b"]], "'a' is not in any bucket"),
        ([], "'b' is not in any bucket"),
        ([["b", "a"], ["c"], ["a"]], "'a' is launched twice"),
        ([["b", "b"], ["a"], ["c"]], "'b' is launched twice"),
        ([["b"], ["a"], ["c"], ["nobody"]], "'nobody' is no collective"),
        ([["b"], ["a"], ["c", "bwd"]], "'bwd' is no collective"),
        ([["b", "c"], ["a"]], "allreduce/dp/float16 with allreduce/dp/float32"),
        ([["b"], ["a", "c"]], "allreduce/dp/float16 with allreduce/dp/float32"),
    ],
)
def test_plan_errors(buckets, message):
    """A plan that does not fit is refused, and the message names the collective."""
    tasks = [
        Compute("bwd", 5),
        Collective("b", 1, after=("bwd",)),
        Collective("a", 1, after=("bwd",)),
        Collective("c", 1, dtype="float16", after=("bwd",)),
    ]
    problem = Problem(tasks, {ALLREDUCE: AlphaBeta(1, 1)})
    with pytest.raises(PlanError, match=message) as caught:
        evaluate(problem, Plan.of(buckets))
    assert not isinstance(caught.value, DeadlockError)


@pytest.mark.parametrize("field", ["kind", "group", "dtype"])
def test_every_part_of_the_fusion_key_counts(field):
    """Collectives that differ in kind, group or dtype do not share a bucket."""
    other = {"kind": "broadcast", "group": "tp", "dtype": "float16"}
    tasks = [Collective("a", 1), Collective("b", 1, **{field: other[field]})]
    costs = {
        (group, kind): AlphaBeta(1, 1)
        for group in ("dp", "tp")
        for kind in ("allreduce", "broadcast")
    }
    problem = Problem(tasks, costs)
    evaluate(problem, Plan.of([["a"], ["b"]]))
    with pytest.raises(PlanError, match="must agree"):
        evaluate(problem, Plan.of([["a", "b"]]))


@pytest.mark.parametrize(
    ("buckets", "circle"),
    [
        ([["first", "second"]], {"[first, second]"}),  # fused with what it waits for
        ([["second"], ["first"]], {"[second]", "[first]", "between"}),  # against the order
    ],
)
def test_deadlock_names_the_circle(buckets, circle):
    """The path of a deadlock is closed and holds the launches and tasks of the circle."""
    problem = Problem(
        [
            Collective("first", 1),
            Compute("between", 5, after=("first",)),
            Collective("second", 1, after=("between",)),
        ],
        {ALLREDUCE: AlphaBeta(1, 1)},
    )
    with pytest.raises(DeadlockError, match="wait for each other for ever") as caught:
        evaluate(problem, Plan.of(buckets))
    path = caught.value.path
    assert path[0] == path[-1]
    assert set(path) == circle | ({"between"} if len(buckets) == 1 else set())
    assert_waits(problem, Plan.of(buckets), path)
    with pytest.raises(Stuck):
        simulate(problem, Plan.of(buckets))


def test_deadlock_of_a_collective_that_waits_for_its_bucket_mate():
    """Two collectives, one directly after the other, cannot be one launch."""
    problem = Problem(
        [Collective("a", 1), Collective("b", 1, after=("a",))], {ALLREDUCE: AlphaBeta(1, 1)}
    )
    with pytest.raises(DeadlockError) as caught:
        evaluate(problem, Plan.of([["a", "b"]]))
    assert caught.value.path == ("[a, b]", "[a, b]")


def test_deadlock_across_channels():
    """Two channels whose heads wait for what stands second on the other."""
    tasks = [
        Collective("x1", 1, group="x"),
        Collective("y1", 1, group="y"),
        Collective("x2", 1, group="x", after=("y1",)),
        Collective("y2", 1, group="y", after=("x1",)),
    ]
    costs = {("x", "allreduce"): AlphaBeta(1, 1), ("y", "allreduce"): AlphaBeta(1, 1)}
    problem = Problem(tasks, costs)
    assert assert_same(problem, Plan.of([["x1"], ["x2"], ["y1"], ["y2"]]))
    assert not assert_same(problem, Plan.of([["x2"], ["x1"], ["y2"], ["y1"]]))


def test_exposures_add_up_on_settled_one_channel_problems():
    """The launches' exposed times are the step's, where no launch is held back."""
    for seed in range(500):
        rng = random.Random(seed)
        problem = random_gradient_problem(rng, 6) if seed % 2 else random_step(rng, 5, settled=True)
        if len(set(problem.channels.values())) > 1:
            continue
        plan = random_plan(rng, problem)
        plan = Plan.of(bucket.names for bucket in plan.buckets)
        timeline = evaluate(problem, plan)
        assert sum(x.exposed_ns for x in launch_exposures(timeline)) == timeline.exposed_ns


def test_extrapolation_warns_beyond_twice_the_largest_size():
    """Twice the largest measured size is priced in silence, one byte more with a warning."""
    for curve in (PiecewiseLinear([(10, 1), (100, 2)]), StepTable([(100, 2)])):
        silent = GradientProblem([Gradient("a", 100, 0), Gradient("b", 100, 0)], curve)
        loud = GradientProblem([Gradient("a", 100, 0), Gradient("b", 101, 0)], curve)
        evaluate(silent, Plan.of([["a", "b"]]))
        evaluate(loud, Plan.of([["a"], ["b"]]))
        with pytest.warns(ExtrapolationWarning, match="measured up to 100 B") as caught:
            evaluate(loud, Plan.of([["a", "b"]]))
        assert len(caught) == 1
        assert caught[0].filename == __file__


def test_extrapolation_warns_once_an_evaluation():
    """Many launches beyond the measured sizes give one warning."""
    curve = StepTable([(1, 2)])
    problem = GradientProblem([Gradient(f"g{k}", 100, k) for k in range(5)], curve)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(problem, Plan.of([f"g{k}"] for k in range(5)))
    assert [warning.category for warning in caught] == [ExtrapolationWarning]


def test_play_is_evaluate_without_the_warning():
    """Candidates that nobody sees are played in silence, and the timeline still knows."""
    curve = StepTable([(10, 2)])
    problem = GradientProblem([Gradient(n, size, 0) for n, size in (("a", 20), ("b", 1))], curve)
    assert play(problem, Plan.of([["a"], ["b"]])).extrapolated is None
    far = play(problem, Plan.of([["a", "b"]]))
    assert far.extrapolated == far.launches[0]
    with pytest.warns(ExtrapolationWarning):
        assert evaluate(problem, far.plan).launches == far.launches
    assert far.problem is problem
    assert play(two_layers(), Plan.of([["ar2", "ar1"]])).extrapolated is None


def test_evaluating_changes_nothing():
    """Evaluating another plan in between leaves a result as it was."""
    problem = two_layers()
    first = Plan.of([["ar2"], ["ar1"]])
    before = evaluate(problem, first)
    evaluate(problem, Plan.of([["ar2", "ar1"]]))
    with pytest.raises(PlanError):
        evaluate(problem, Plan.of([["ar2"]]))
    again = evaluate(problem, first)
    assert (before.launches, before.tasks) == (again.launches, again.tasks)


def test_input_errors_are_value_errors():
    """Whoever catches ValueError catches a plan that does not fit."""
    assert issubclass(DeadlockError, PlanError)
    assert issubclass(PlanError, InputError)
    assert issubclass(InputError, ValueError)


# The oracles themselves.


def test_the_oracle_enumerates_every_plan_once():
    """As many plans as Fubini numbers and powers of two say, and none twice."""
    for count, ordered_partitions in enumerate((1, 3, 13, 75, 541), start=1):
        problem = GradientProblem([Gradient(f"g{k}", 1, k) for k in range(count)], AlphaBeta(0, 1))
        for scope, expected in (("any", ordered_partitions), ("in-order", 2 ** (count - 1))):
            plans = {
                tuple(frozenset(bucket.names) for bucket in plan.buckets)
                for plan in all_plans(problem, scope)
            }
            assert len(plans) == expected == sum(1 for _ in all_plans(problem, scope))


def test_the_oracle_interleaves_keys_on_one_channel():
    """Two chains of two: four pairs of cuts and their merges, 6 + 3 + 3 + 2."""
    problem = GradientProblem(
        [Gradient(f"g{k}", 1, k, "float16" if k % 2 else "float32") for k in range(4)],
        AlphaBeta(0, 1),
    )
    assert sum(1 for _ in all_plans(problem, "in-order")) == 6 + 3 + 3 + 2
    # any: with both dtypes cut, 4! orders; with one fused, 3! twice; with both fused, 2!
    assert sum(1 for _ in all_plans(problem, "any")) == 24 + 6 + 6 + 2


def test_in_order_is_enough_for_affine_costs():
    """One channel, affine cost: nothing ends before the best contiguous plan, rounding aside."""
    for seed in range(60):
        rng = random.Random(seed)
        problem = random_gradient_problem(rng, 4, dtypes=("float32",), curve=random_affine)
        narrow, wide = brute_force(problem, "in-order"), brute_force(problem, "any")
        assert wide.makespan <= narrow.makespan <= wide.makespan + wide.launches


def test_the_oracle_equals_the_exact_recurrence():
    """In-order plans of one chain: f(j) = min over i of max(f(i), ready j) + T(i..j)."""
    for seed in range(150):
        problem = random_gradient_problem(random.Random(seed), 6, dtypes=("float32",))
        size = dict(zip(problem.names, problem.bytes, strict=True))
        ready = dict(zip(problem.names, problem.ready_ns, strict=True))
        order = ready_order(problem)
        curve = problem.costs[ALLREDUCE]
        end = [0]
        for j in range(1, len(order) + 1):
            end.append(
                min(
                    max(end[i], ready[order[j - 1]]) + curve.ns(sum(size[n] for n in order[i:j]))
                    for i in range(j)
                )
            )
        makespan = max(end[-1], problem.backward_end_ns)
        assert brute_force(problem, "in-order").makespan == makespan

"""Unions of intervals, overlaps, and why launches are exposed, against counts on a grid."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY, problems_with_plans, random_gradient_problem, random_plan

from commsched.models import (
    AlphaBeta,
    Bucket,
    Collective,
    Compute,
    Exposure,
    Gradient,
    GradientProblem,
    InputError,
    Plan,
    Problem,
    Reason,
    evaluate,
    launch_exposures,
    merge_intervals,
    overlap,
)

intervals = st.lists(
    st.tuples(st.integers(-5, 25), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


def cells(parts):
    """Return the unit cells [k, k + 1] that the parts cover."""
    return {cell for start, end in parts for cell in range(start, end)}


@PROPERTY
@given(intervals)
def test_merge_equals_a_grid(parts):
    """The union covers the same unit cells, in order, disjoint, without touching or empty parts."""
    merged = merge_intervals(parts)
    assert cells(merged) == cells(parts)
    assert all(start < end for start, end in merged)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))
    assert merge_intervals(merged) == merged
    assert merge_intervals(reversed(parts)) == merged


@PROPERTY
@given(intervals, st.integers(-8, 30), st.integers(0, 20))
def test_overlap_equals_a_grid(parts, start, length):
    """The overlap covers the cells that are in both."""
    merged = merge_intervals(parts)
    common = overlap(start, start + length, merged)
    assert cells(common) == cells(parts) & set(range(start, start + length))
    assert common == merge_intervals(common)


@pytest.mark.parametrize(
    ("parts", "merged"),
    [
        ([], []),
        ([(3, 3)], []),
        ([(1, 2), (2, 3)], [(1, 3)]),
        ([(1, 9), (2, 3)], [(1, 9)]),
        ([(5, 6), (1, 2)], [(1, 2), (5, 6)]),
        ([(0.5, 0.75), (0.75, 1.0)], [(0.5, 1.0)]),
        ([(2**60, 2**60 + 1), (0, 2**60)], [(0, 2**60 + 1)]),
    ],
)
def test_merge_examples(parts, merged):
    """Empty, touching, nested, unordered, fractional and huge intervals."""
    assert merge_intervals(parts) == merged


def test_an_interval_that_ends_before_it_starts_is_refused():
    """The message names the interval."""
    with pytest.raises(InputError, match=r"\[4, 1\] ends before it starts"):
        merge_intervals([(0, 9), (4, 1)])


@PROPERTY
@given(problems_with_plans())
def test_exposures_equal_a_grid(case):
    """Each launch's exposed time is its unit cells in which no compute task runs."""
    timeline = evaluate(*case)
    busy = cells((span.start_ns, span.end_ns) for span in timeline.tasks)
    assert cells(timeline.busy) == busy
    found = launch_exposures(timeline)
    assert len(found) == len(timeline.launches)
    for launch, exposure in zip(timeline.launches, found, strict=True):
        alone = set(range(launch.start_ns, launch.end_ns)) - busy
        assert exposure.exposed_ns == len(alone)
        assert exposure.waited_ns == launch.start_ns - launch.ready_ns
        assert (exposure.reason is Reason.HIDDEN) == (not alone)


@PROPERTY
@given(problems_with_plans())
def test_reasons(case):
    """The reason of an exposed launch follows from its times and the launch before it."""
    timeline = evaluate(*case)
    free = {}
    for launch, exposure in zip(timeline.launches, launch_exposures(timeline), strict=True):
        channel_free = free.get(launch.channel, 0)
        free[launch.channel] = launch.end_ns
        could_start = max(launch.ready_ns, channel_free)
        computing = any(s.start_ns <= launch.start_ns < s.end_ns for s in timeline.tasks)
        if exposure.reason is Reason.HIDDEN:
            assert exposure.exposed_ns == 0
        elif exposure.reason is Reason.HELD:
            assert launch.start_ns > could_start
        elif exposure.reason is Reason.CHANNEL:
            assert launch.ready_ns < launch.start_ns == channel_free
        else:
            assert launch.start_ns == launch.ready_ns >= channel_free
            assert computing == (exposure.reason is Reason.LENGTH)


def test_exposed_and_idle_time_after_compute_make_the_exposed_time():
    """One channel, launches held back at will: exposed = launches after compute + idle between."""
    for seed in range(300):
        rng = random.Random(seed)
        problem = random_gradient_problem(rng, 6)
        timeline = evaluate(problem, random_plan(rng, problem))
        tail = set(range(timeline.compute_ns, timeline.makespan_ns))
        idle = tail - cells((x.start_ns, x.end_ns) for x in timeline.launches)
        exposed = sum(x.exposed_ns for x in launch_exposures(timeline))
        assert timeline.exposed_ns == exposed + len(idle)


def test_every_reason_by_hand():
    """One launch of each kind; backward ends at 20, a byte takes a nanosecond."""
    problem = GradientProblem(
        [
            Gradient("hidden", 5, ready_ns=1),
            Gradient("long", 10, ready_ns=15),
            Gradient("queued", 3, ready_ns=19),
            Gradient("late", 4, ready_ns=40),
            Gradient("held", 2, ready_ns=40),
        ],
        AlphaBeta(0, 1),
        backward_end_ns=40,
    )
    step = Problem(
        [
            Compute("bwd", 20),
            Collective("hidden", 5),
            Collective("long", 15, after=("hidden",)),
            Collective("queued", 3),
            Collective("late", 4, after=("pause",)),
            Collective("held", 2),
            Compute("pause", 5, after=("queued",)),
        ],
        {("dp", "allreduce"): AlphaBeta(0, 1)},
    )
    plan = Plan(
        (
            Bucket(("hidden",)),
            Bucket(("long",), not_before_ns=10),
            Bucket(("queued",)),
            Bucket(("late",)),
            Bucket(("held",), not_before_ns=50),
        )
    )
    # hidden 0-5, long 10-25 (held back, 5 of it exposed), queued 25-28, pause 28-33,
    # late 33-37 (starts when pause has ended), held 50-52
    assert launch_exposures(evaluate(step, plan)) == [
        Exposure(0, 0, Reason.HIDDEN),
        Exposure(5, 5, Reason.HELD),
        Exposure(3, 25, Reason.CHANNEL),
        Exposure(4, 0, Reason.GRADIENT),
        Exposure(2, 50, Reason.HELD),
    ]
    # hidden 1-6, long 15-25, queued 25-28, late 40-44, held 44-46; backward runs until 40
    one_by_one = Plan.of([name] for name in problem.names)
    assert [x.reason for x in launch_exposures(evaluate(problem, one_by_one))] == [
        Reason.HIDDEN,
        Reason.HIDDEN,
        Reason.HIDDEN,
        Reason.GRADIENT,
        Reason.CHANNEL,
    ]
    long = GradientProblem([Gradient("a", 9, 5)], AlphaBeta(0, 1), backward_end_ns=10)
    assert launch_exposures(evaluate(long, Plan.of([["a"]]))) == [Exposure(4, 0, Reason.LENGTH)]


def test_reasons_read_as_text():
    """A reason prints as words."""
    assert [str(reason) for reason in Reason] == [
        "hidden",
        "waits for gradient",
        "waits for channel",
        "own length",
        "held back",
    ]


def test_launches_without_time_are_hidden():
    """A launch that takes no time exposes nothing, wherever it stands."""
    problem = GradientProblem([Gradient("a", 0, 5), Gradient("b", 0, 5)], AlphaBeta(0, 1))
    timeline = evaluate(problem, Plan.of([["a"], ["b"]]))
    assert launch_exposures(timeline) == [Exposure(0, 0, Reason.HIDDEN)] * 2


def test_no_compute_at_all():
    """Without compute everything is exposed."""
    problem = Problem([Collective("a", 7)], {("dp", "allreduce"): AlphaBeta(0, 1)})
    timeline = evaluate(problem, Plan.of([["a"]]))
    assert timeline.busy == []
    assert launch_exposures(timeline) == [Exposure(7, 0, Reason.GRADIENT)]
    gradients = GradientProblem([Gradient("a", 7, 0)], AlphaBeta(0, 1))
    assert evaluate(gradients, Plan.of([["a"]])).busy == []

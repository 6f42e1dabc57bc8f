"""Collectives in chunks: the evaluator against a second one, refusals, and what splitting gives."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from oracles import Stuck, simulate
from strategies import (
    PROPERTY,
    problems,
    random_affine,
    random_chunk_plan,
    random_gradient_problem,
    random_plan,
    random_step,
    random_valid_chunk_plan,
)

from commsched.models import (
    AlphaBeta,
    Bucket,
    Chunk,
    Collective,
    CommschedError,
    Compute,
    DeadlockError,
    Gradient,
    GradientProblem,
    InputError,
    Plan,
    PlanError,
    Problem,
    evaluate,
)
from commsched.optimizer import optimize

ALLREDUCE = ("dp", "allreduce")


def part_bytes(problem, name, chunk):
    """Return the bytes of a member of a bucket."""
    return problem.bytes[problem.index[name]] if chunk is None else chunk.end - chunk.begin


def assert_same(problem, plan):
    """Compare everything that both evaluators say; return whether the plan ran at all."""
    try:
        played = simulate(problem, plan)
    except Stuck:
        with pytest.raises(DeadlockError):
            evaluate(problem, plan)
        return False
    timeline = evaluate(problem, plan)
    assert (timeline.makespan_ns, timeline.exposed_ns) == (played.makespan, played.exposed)
    order = sorted(range(plan.launches), key=lambda k: played.launches[k].start)
    ran = [(x.names, x.ready_ns, x.start_ns, x.end_ns) for x in timeline.launches]
    assert ran == [tuple(played.launches[k]) for k in order]
    assert {s.name: (s.start_ns, s.end_ns) for s in timeline.tasks} == played.spans
    for launch, k in zip(timeline.launches, order, strict=True):
        bucket = plan.buckets[k]
        assert (launch.chunks, launch.not_before_ns) == (bucket.chunks, bucket.not_before_ns)
        chunks = bucket.chunks or [None] * len(bucket.names)
        members = zip(bucket.names, chunks, strict=True)
        assert launch.bytes == sum(part_bytes(problem, *member) for member in members)
    assert sum(launch.bytes for launch in timeline.launches) == sum(problem.bytes)
    return True


@pytest.mark.parametrize(
    "family",
    [
        lambda rng: random_gradient_problem(rng, 6),
        lambda rng: random_step(rng, 5, settled=True),
        lambda rng: random_step(rng, 5),
    ],
    ids=["gradients", "settled", "general"],
)
def test_equals_the_second_evaluator(family):
    """On thousands of random problems and plans with chunks both evaluators agree."""
    ran = split = shared = alone = 0
    for seed in range(2000):
        rng = random.Random(seed)
        problem = family(rng)
        plan = random_chunk_plan(rng, problem)
        ran += assert_same(problem, plan)
        split += plan.splits
        for bucket in plan.buckets:
            real = [chunk for chunk in bucket.chunks if chunk]
            shared += len(set(bucket.names)) > 1 and len(real) > 1
            alone += bool(real) and None in bucket.chunks
    assert ran > 500
    assert split > 1000
    assert min(shared, alone) > 200


def test_a_random_valid_plan_with_chunks_runs():
    """The generator keeps its word also where the next forward waits for chunks."""
    for seed in range(500):
        rng = random.Random(seed)
        problem = random_step(rng, 5)
        assert assert_same(problem, random_valid_chunk_plan(rng, problem))


@PROPERTY
@given(problems())
def test_equals_the_second_evaluator_shrinking(problem):
    """The same comparison, with problems that hypothesis shrinks."""
    for seed in range(5):
        assert_same(problem, random_chunk_plan(random.Random(seed), problem))


def test_whole_members_may_be_written_as_chunks():
    """A chunk that is all of a collective changes no time."""
    for seed in range(500):
        rng = random.Random(seed)
        problem = random_step(rng, 5)
        plan = random_plan(rng, problem)
        size = dict(zip(problem.names, problem.bytes, strict=True))
        written = Plan(
            tuple(
                Bucket(b.names, b.not_before_ns, tuple(Chunk(0, size[name]) for name in b.names))
                for b in plan.buckets
            )
        )
        try:
            timeline = evaluate(problem, plan)
        except DeadlockError:
            with pytest.raises(DeadlockError):
                evaluate(problem, written)
            continue
        other = evaluate(problem, written)
        assert other.makespan_ns == timeline.makespan_ns
        assert other.tasks == timeline.tasks
        assert [(x.start_ns, x.end_ns, x.bytes) for x in other.launches] == [
            (x.start_ns, x.end_ns, x.bytes) for x in timeline.launches
        ]


def test_splitting_never_helps_a_settled_channel_with_an_affine_cost():
    """No plan with chunks beats the bound that holds for plans of whole gradients."""
    tight = 0
    for seed in range(600):
        rng = random.Random(seed)
        problem = random_gradient_problem(rng, 6, dtypes=("float32",), curve=random_affine)
        result = optimize(problem)
        assert result.status == "optimal"
        for _ in range(5):
            makespan = evaluate(problem, random_chunk_plan(rng, problem)).makespan_ns
            assert makespan >= result.lower_bound_ns
            tight += makespan == result.lower_bound_ns
    assert tight > 100


def test_splitting_helps_where_something_waits():
    """A next forward starts sooner if an urgent gradient goes between two chunks of a large one.

    By hand, a byte a ns and no start-up: ``late`` is ready at 0 and takes 100, ``early`` at 10 and
    takes 10; forward 1 (100 ns) needs ``early``, forward 2 (10 ns) needs both.
    Whole, late first: early 100-110, forward 1 -210, forward 2 -220. Early first: early 10-20,
    forward 1 -120, late 20-120, forward 2 -130. In two chunks of 10 and 90: late 0-10, early 10-20,
    late 20-110, forward 1 20-120, forward 2 -130; with forward 1 of 50: 120 instead of 130.
    """

    def step(forward):
        return Problem(
            [
                Collective("late", 100),
                Compute("backward", 10),
                Collective("early", 10, after=("backward",)),
                Compute("forward 1", forward, after=("early",)),
                Compute("forward 2", 10, after=("late",)),
            ],
            {ALLREDUCE: AlphaBeta(0, 1)},
        )

    split = Plan(
        (
            Bucket(("late",), chunks=(Chunk(0, 10),)),
            Bucket(("early",)),
            Bucket(("late",), chunks=(Chunk(10, 100),)),
        )
    )
    late, early = Plan.of([["late"], ["early"]]), Plan.of([["early"], ["late"]])
    assert [evaluate(step(100), plan).makespan_ns for plan in (late, early, split)] == [
        220,
        130,
        130,
    ]
    assert [evaluate(step(50), plan).makespan_ns for plan in (late, early, split)] == [
        170,
        130,
        120,
    ]
    assert optimize(step(50), scope="any").timeline.makespan_ns == 130


def step_of_errors():
    """Return a step with collectives of two dtypes and one without bytes."""
    return Problem(
        [
            Compute("bwd", 5),
            Collective("a", 10, after=("bwd",)),
            Collective("b", 4, after=("bwd",)),
            Collective("half", 6, dtype="float16", after=("bwd",)),
            Collective("none", 0, after=("bwd",)),
        ],
        {ALLREDUCE: AlphaBeta(1, 1)},
    )


WHOLE = (("b", None), ("half", None), ("none", None))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("a", 0, 6), ("a", 5, 10)], "bytes 5 to 6 of 'a' are launched twice"),
        ([("a", 0, 10), ("a", 2, 3)], "bytes 2 to 3 of 'a' are launched twice"),
        ([("a", 0, 5), ("a", 0, 5), ("a", 5, 10)], "bytes 0 to 5 of 'a' are launched twice"),
        ([("a", None), ("a", 0, 5)], "bytes 0 to 5 of 'a' are launched twice"),
        ([("a", None), ("a", None), ("b", 0, 4)], "bytes 0 to 10 of 'a' are launched twice"),
        ([("a", 0, 4), ("a", 6, 10)], "bytes 4 to 6 of 'a' are not in any bucket"),
        ([("a", 3, 10)], "bytes 0 to 3 of 'a' are not in any bucket"),
        ([("a", 0, 9)], "bytes 9 to 10 of 'a' are not in any bucket"),
        ([("a", 0, 11)], "a chunk of 'a' ends at byte 11 of 10"),
        ([("a", 0, 10), ("a", 10, 12)], "a chunk of 'a' ends at byte 12 of 10"),
        ([("a", 0, 10), ("a", 20, 30)], "a chunk of 'a' ends at byte 30 of 10"),
        ([("a", 0, 10), ("a", 4, 4)], "a chunk of 'a' is empty: bytes 4 to 4"),
        ([("a", 0, 4), ("a", 4, 4), ("a", 4, 10)], "a chunk of 'a' is empty: bytes 4 to 4"),
        ([("a", 0, 0), ("a", 0, 10)], "a chunk of 'a' is empty: bytes 0 to 0"),
        ([("b", 0, 4)], "'a' is not in any bucket"),
        ([("a", 0, 10), ("none", 0, 0)], "'none' is launched twice"),
        ([("a", 0, 10), ("none", 0, 1)], "a chunk of 'none' ends at byte 1 of 0"),
        ([("a", 0, 10), ("nobody", 0, 1)], "'nobody' is no collective"),
        ([("a", 0, 10), ("bwd", 0, 1)], "'bwd' is no collective"),
    ],
)
def test_plan_errors(parts, message):
    """Every byte is in exactly one launch; the message names the collective and the bytes."""
    rest = [part for part in WHOLE if part[0] != "b" or all(name != "b" for name, *_ in parts)]
    buckets = [
        Bucket((name,), chunks=() if chunk == [None] else (Chunk(*chunk),))
        for name, *chunk in [*parts, *rest]
    ]
    assert any(bucket.chunks for bucket in buckets)
    with pytest.raises(PlanError, match=message) as caught:
        evaluate(step_of_errors(), Plan(tuple(buckets)))
    assert not isinstance(caught.value, DeadlockError)
    assert "\n" not in str(caught.value)


def test_chunks_of_different_keys_do_not_share_a_bucket():
    """Mixed types are refused in chunks too."""
    plan = Plan(
        (
            Bucket(("a", "half"), chunks=(Chunk(0, 5), None)),
            Bucket(("a",), chunks=(Chunk(5, 10),)),
            Bucket(("b", "none")),
        )
    )
    with pytest.raises(PlanError, match="must agree"):
        evaluate(step_of_errors(), plan)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ((None, None), "bucket of 'a': 2 chunks for 1 members"),
        ((Chunk(0, 1), Chunk(1, 2)), "bucket of 'a': 2 chunks for 1 members"),
        ((Chunk(-1, 5),), "chunk of 'a': begin: -1"),
        ((Chunk(0, -5),), "chunk of 'a': end: -5"),
        ((Chunk(5, 4),), "chunk of 'a': ends at 4, before its begin 5"),
        ((Chunk(float("nan"), 4),), "chunk of 'a': begin: nan"),
        ((Chunk(0, float("inf")),), "chunk of 'a': end: inf"),
        ((Chunk(0.5, 4),), "chunk of 'a': begin: 0.5"),
        ((Chunk(False, 4),), "chunk of 'a': begin: False"),
        ((Chunk(0, True),), "chunk of 'a': end: True"),
        ((Chunk("0", 4),), "chunk of 'a': begin: '0'"),
        ((Chunk(0, None),), "chunk of 'a': end: None"),
        ((Chunk(0, 2**50 + 1),), "chunk of 'a': end"),
        (((0,),), "chunk of 'a': .* must be a begin and an end"),
        (((0, 1, 2),), "chunk of 'a': .* must be a begin and an end"),
        ((7,), "chunk of 'a': 7 must be a begin and an end"),
        (("07",), "chunk of 'a': '07' must be a begin and an end"),
        ("x", "bucket of 'a': chunks 'x' must be a list"),
        (3, "bucket of 'a': chunks 3 must be a list"),
        (None, "bucket of 'a': chunks None must be a list"),
    ],
)
def test_bad_chunks_are_refused(chunks, message):
    """What is no list of chunks, one a member, in whole bytes, is refused in one line."""
    with pytest.raises(InputError, match=message) as caught:
        Bucket(("a",), chunks=chunks)
    assert isinstance(caught.value, CommschedError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [int, float, np.int64])
def test_chunks_are_kept_as_ints(number):
    """Whatever number type holds them, a bucket holds ints and can be compared and hashed."""
    bucket = Bucket(["a", "b"], chunks=[(number(0), number(4)), None])
    assert bucket == Bucket(("a", "b"), 0, (Chunk(0, 4), None))
    assert hash(bucket) == hash(Bucket(("a", "b"), 0, (Chunk(0, 4), None)))
    assert type(bucket.chunks[0].end) is int
    assert Bucket(("a",), chunks=[]) == Bucket(("a",), chunks=(None,)) == Bucket(("a",))


def test_a_collective_is_done_when_its_last_chunk_is():
    """By hand: chunks on either side of another launch, and a task that waits for both."""
    problem = Problem(
        [
            Collective("a", 10),
            Collective("b", 4),
            Compute("after a", 3, after=("a",)),
            Compute("after b", 1, stream="other", after=("b",)),
        ],
        {ALLREDUCE: AlphaBeta(0.001, 1)},
    )
    plan = Plan(
        (
            Bucket(("a",), chunks=(Chunk(4, 10),)),  # 0-7
            Bucket(("b",)),  # 7-12
            Bucket(("a",), chunks=(Chunk(0, 4),)),  # 12-17
        )
    )
    timeline = evaluate(problem, plan)
    assert [(x.start_ns, x.end_ns) for x in timeline.launches] == [(0, 7), (7, 12), (12, 17)]
    assert [(x.start_ns, x.end_ns) for x in timeline.tasks] == [(17, 20), (12, 13)]


def test_a_chunk_cannot_share_a_launch_with_what_waits_for_its_collective():
    """The launch would wait for itself."""
    problem = Problem(
        [Collective("a", 10), Collective("b", 4, after=("a",))], {ALLREDUCE: AlphaBeta(1, 1)}
    )
    plan = Plan(
        (
            Bucket(("a", "b"), chunks=(Chunk(0, 5), None)),
            Bucket(("a",), chunks=(Chunk(5, 10),)),
        )
    )
    with pytest.raises(DeadlockError, match="for ever"):
        evaluate(problem, plan)
    with pytest.raises(Stuck):
        simulate(problem, plan)


def test_one_bucket_may_hold_several_chunks_of_one_collective():
    """Two chunks of one gradient in one launch pay one start-up."""
    problem = GradientProblem([Gradient("a", 10, 5)], AlphaBeta(0.003, 1))
    plan = Plan((Bucket(("a", "a"), chunks=(Chunk(5, 10), Chunk(0, 5))),))
    assert evaluate(problem, plan).makespan_ns == 5 + 3 + 10
    assert assert_same(problem, plan)

"""All-reduces on two levels: by hand, pipelining, groups, holds and limits, all plans tried."""

from __future__ import annotations

import random

import pytest
from step_maker import check_optimum, check_step, random_cost, random_profile
from strategies import random_valid_plan

from commsched.models import (
    Alike,
    AlphaBeta,
    Apart,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Hold,
    InputError,
    MostBucketBytes,
    Plan,
    PoolBytes,
    Problem,
    Together,
    evaluate,
)
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layer_models import estimated_profile
from commsched.problems.steps.two_level import two_level

UNIT = AlphaBeta(0.002, 1)
"""Two nanoseconds and one for each byte."""
INSIDE = {"reduce_scatter": UNIT, "all_gather": UNIT}
FLAT = GradientProblem([Gradient("a", 40, 0), Gradient("b", 40, 0)], UNIT, name="two")


def launched(problem: Problem, *buckets: str) -> Plan:
    """Return the plan that takes each bucket through the three parts."""
    parts = ("reduce-scatter", "across", "all-gather")
    return Plan.of([f"{n} {part}" for n in bucket] for part in parts for bucket in buckets)


def test_one_bucket_and_two_by_hand():
    """Two: inside 0-42, 42-84; across (10 bytes) 42-54, 84-96; gathered 84-126, 126-168."""
    problem = two_level(FLAT, INSIDE, UNIT, local_ranks=4)
    assert problem.name == "two, on two levels"
    assert [(t.kind, t.group, t.bytes) for t in problem.collectives[:3]] == [
        ("reduce_scatter", "dp inside", 40),
        ("allreduce", "dp across", 10),
        ("all_gather", "dp inside", 40),
    ]
    timeline = evaluate(problem, launched(problem, "a", "b"))
    starts = {launch.names[0]: launch.start_ns for launch in timeline.launches}
    assert starts["a across"] == 42
    # The second bucket is inside the node while the first is across.
    assert starts["b reduce-scatter"] == 42
    assert starts["a all-gather"] == 84
    assert timeline.makespan_ns == 168
    # One: inside 82, across 22, inside 82.
    assert evaluate(problem, launched(problem, "ab")).makespan_ns == 82 + 22 + 82
    check_step(problem, launched(problem, "ab"))


def test_buckets_are_alike_unless_they_need_not_be():
    problem = two_level(FLAT, INSIDE, UNIT, local_ranks=4)
    (alike,) = problem.limits
    assert isinstance(alike, Alike)
    assert alike.rows[1] == ("a across", "b across")
    mixed = Plan.of(
        [["a reduce-scatter"], ["b reduce-scatter"], ["a across", "b across"],
         ["a all-gather", "b all-gather"]]
    )  # fmt: skip
    assert "grouped differently" in evaluate(problem, mixed).broken[0]
    free = two_level(FLAT, INSIDE, UNIT, local_ranks=4, alike=False)
    assert free.limits == ()
    # Inside 0-84, across 84-106, inside 106-188.
    assert evaluate(free, mixed).makespan_ns == 188
    assert check_optimum(free, "in-order") <= check_optimum(problem, "in-order")


def test_bytes_of_a_rank_are_rounded_up():
    odd = GradientProblem([Gradient("a", 41, 0)], UNIT)
    problem = two_level(odd, INSIDE, UNIT, local_ranks=8)
    assert problem.bytes == [41, 6, 41]


def test_the_next_forward_waits_for_the_last_part():
    profile = random_profile(random.Random(1), 3, bare=False)
    flat = ddp_step(profile, UNIT)
    problem = two_level(flat, INSIDE, UNIT, local_ranks=2)
    by_name = {task.name: task for task in problem.tasks}
    assert by_name["forward L1"].after == ("L1 all-gather",)
    assert by_name["L1 reduce-scatter"].after == ("backward L1",)
    assert problem.compute_ns == flat.compute_ns


def test_groups_channels_and_other_kinds_stay_apart_as_they_were():
    tasks = [
        Compute("b", 10),
        Collective("x", 8, group="g1", after=("b",)),
        Collective("y", 8, group="g2", after=("b",)),
        Collective("z", 8, "all_gather", "g1", after=("x",)),
    ]
    costs = {("g1", "allreduce"): UNIT, ("g2", "allreduce"): UNIT, ("g1", "all_gather"): UNIT}
    flat = Problem(tasks, costs, channels={"nic": ["g1", "g2"]})
    problem = two_level(flat, INSIDE, UNIT, local_ranks=2)
    assert problem.channels == {
        "g1": "nic", "g1 inside": "nic inside", "g2 inside": "nic inside",
        "g1 across": "nic across", "g2 across": "nic across",
    }  # fmt: skip
    assert problem.tasks[-1].after == ("x all-gather",)
    assert problem.limits == ()
    check_step(problem)


def test_memory_is_held_from_the_first_part_to_the_last():
    hold = Hold("grads", "ready", ("use",))
    tasks = [
        Compute("b", 10),
        Collective("x", 8, after=("b",), hold=hold),
        Compute("use", 5, after=("x",)),
    ]
    flat = Problem(tasks, {("dp", "allreduce"): UNIT}, limits=[PoolBytes("grads", 8)])
    problem = two_level(flat, INSIDE, UNIT, local_ranks=2)
    assert problem.collectives[0].hold == Hold("grads", "ready", ("use", "x all-gather"))
    assert [task.hold for task in problem.collectives[1:]] == [None, None]
    timeline = evaluate(problem, Plan.of([n] for n in problem.names))
    assert (timeline.pool_peak("grads"), timeline.broken) == (8, ())
    reader = Problem(
        [Collective("x", 8), Collective("y", 8, "all_gather", hold=Hold("p", until=("x",)))],
        {("dp", "allreduce"): UNIT, ("dp", "all_gather"): UNIT},
    )
    held = two_level(reader, INSIDE, UNIT, local_ranks=2)
    assert held.collectives[-1].hold.until == ("x all-gather",)


def test_limits_on_names_hold_on_each_level():
    limits = [Together(("a", "b"))]
    problem = two_level(FLAT.with_limits(limits), INSIDE, UNIT, local_ranks=2, alike=False)
    assert [limit.names for limit in problem.limits] == [
        ("a reduce-scatter", "b reduce-scatter"), ("a across", "b across"),
        ("a all-gather", "b all-gather"),
    ]  # fmt: skip
    apart = two_level(FLAT.with_limits([Apart(("a", "b"))]), INSIDE, UNIT, local_ranks=2)
    assert sum(isinstance(limit, Apart) for limit in apart.limits) == 3
    with pytest.raises(InputError, match="limit most-bucket-bytes has no meaning there"):
        two_level(FLAT.with_limits([MostBucketBytes(50)]), INSIDE, UNIT, local_ranks=2)


def test_two_types_are_alike_each_for_itself_and_sparse_ones_travel_alone():
    gradients = [
        Gradient("a", 4, 0), Gradient("b", 4, 1), Gradient("c", 2, 2, "float16"),
        Gradient("d", 2, 3, "float16"), Gradient("e", 2, 4, sparse=True),
    ]  # fmt: skip
    problem = two_level(GradientProblem(gradients, UNIT), INSIDE, UNIT, local_ranks=2)
    assert [limit.rows[1] for limit in problem.limits] == [
        ("a across", "b across"), ("c across", "d across")
    ]  # fmt: skip
    assert all(task.sparse for task in problem.collectives if task.name.startswith("e "))


@pytest.mark.parametrize("alike", [True, False])
def test_the_optimum_is_that_of_all_plans(alike):
    for seed in range(8):
        rng = random.Random(seed)
        flat = ddp_step(random_profile(rng, 2, bare=False), UNIT, next_forward=rng.random() < 0.5)
        inside = {"reduce_scatter": random_cost(rng), "all_gather": random_cost(rng)}
        problem = two_level(flat, inside, random_cost(rng), local_ranks=2, alike=alike)
        check_step(problem, random_valid_plan(rng, problem, "in-order"))
        check_optimum(problem, "in-order")


def test_llama_by_block():
    profile = estimated_profile("llama3-8b", samples=4096, tflops=300, dtype="bfloat16", by="block")
    flat = ddp_step(profile, AlphaBeta(30, 100))
    problem = two_level(flat, INSIDE, UNIT, local_ranks=8)
    assert len(problem.names) == 3 * 291


def test_what_is_refused():
    with pytest.raises(InputError, match="local_ranks: 1 must be a whole number from 2"):
        two_level(FLAT, INSIDE, UNIT, local_ranks=1)
    with pytest.raises(InputError, match="a cost curve for all_gather is missing"):
        two_level(FLAT, {"reduce_scatter": UNIT}, UNIT, local_ranks=2)
    with pytest.raises(InputError, match="across: 3 is not a cost curve"):
        two_level(FLAT, INSIDE, 3, local_ranks=2)
    none = Problem([Collective("x", 1, "all_gather")], {("dp", "all_gather"): UNIT})
    with pytest.raises(InputError, match="the step has no all-reduce"):
        two_level(none, INSIDE, UNIT, local_ranks=2)

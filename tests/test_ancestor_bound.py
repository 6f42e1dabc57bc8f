"""The load of ancestors: below every plan, better than other bounds, and enumerated small steps."""

from __future__ import annotations

import math
import os
import random
import time

import pytest
from oracles import Stuck, brute_force
from step_maker import SIZES, TIMES, random_cost, random_profile, sharded_costs
from strategies import random_problem
from test_search import sharded

from commsched.models import (
    AlphaBeta,
    Apart,
    Collective,
    Compute,
    MostBucketBytes,
    Plan,
    Problem,
    evaluate,
)
from commsched.optimizer.ancestor_bound import ancestor_bound
from commsched.optimizer.ancestor_walk import safely
from commsched.optimizer.bounds import closed_form_bound, paths_ns
from commsched.optimizer.launch_bound import launch_bound
from commsched.optimizer.small_steps import MAX_TASKS, least_makespan
from commsched.optimizer.two_sided import two_sided_bound
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.experts import Experts
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile
from commsched.problems.steps.moe_step import moe_step

REPEAT = int(os.environ.get("COMMSCHED_SEEDS", "1"))
FREE = AlphaBeta(0, 1)


def other_bounds(problem: Problem) -> int:
    """Return the best of the bounds that know longest paths only."""
    head, tail = paths_ns(problem)
    best = closed_form_bound(problem).ns
    best = launch_bound(problem, head, tail, best).ns
    return two_sided_bound(problem, head, tail, best).ns


def random_sharded(rng: random.Random) -> Problem:
    problem = fsdp_step(
        random_profile(rng, 2),
        sharded_costs(rng),
        communicators=rng.choice((1, 2)),
        units=rng.choice(("decided", "layers")),
        reshard_after_forward=rng.choice((True, False, "all-but-last")),
        prefetch=rng.choice((None, 0, 1)),
        scatter_buffers=rng.choice((None, 1)),
    )
    if rng.random() < 0.3:
        problem = problem.with_limits([*problem.limits, MostBucketBytes(rng.choice((8, 10)))])
    return problem


def random_experts(rng: random.Random) -> Problem:
    backward = rng.choice(TIMES)
    experts = Experts(
        rng.choice(TIMES),
        backward,
        rng.choice(SIZES),
        shared_forward_ns=rng.choice((0, 3)),
        shared_backward_ns=rng.choice((0, 3)),
        weight_gradient_ns=backward // 2,
    )
    profile = random_profile(rng, 1, bare=False)
    return moe_step(profile, experts, {"all_to_all": random_cost(rng)})


def check(problem: Problem) -> bool:
    """The bound holds against all plans, also for what other bounds make of heads and tails."""
    try:
        best = brute_force(problem, "any").makespan
    except Stuck:
        return False
    sides = ancestor_bound(problem)
    assert sides.bound.ns <= best
    lower = launch_bound(problem, sides.head, sides.tail, sides.bound.ns).ns
    assert lower <= best
    assert two_sided_bound(problem, sides.head, sides.tail, lower).ns <= best
    head, tail = paths_ns(problem)
    assert all(sides.head[name] >= ns for name, ns in head.items())
    assert all(sides.tail[name] >= ns for name, ns in tail.items())
    return sides.bound.ns > other_bounds(problem)


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("make", [random_sharded, random_experts, random_problem])
def test_no_plan_is_better(make, block):
    better = played = 0
    for seed in range(30 * REPEAT * block, 30 * REPEAT * (block + 1)):
        rng = random.Random(seed)
        problem = make(rng, 4) if make is random_problem else make(rng)
        # Orders of movable tasks multiply what is to be tried.
        if len(problem.names) <= 4 and len(problem.tasks) <= 10:
            better += check(problem)
            played += 1
    assert played > 5
    assert better or make is random_problem


def test_heads_and_tails_are_those_of_some_plan_or_less():
    """Nothing starts before its head or ends with less than its tail to go, in random plans."""
    for seed in range(40):
        rng = random.Random(seed)
        problem = sharded(rng.randint(2, 6), seed)
        sides = ancestor_bound(problem)
        order = problem.names.copy()
        rng.shuffle(order)
        order.sort(key=lambda name: problem.ready_ns[problem.index[name]])
        timeline = evaluate(problem, Plan.of([name] for name in order))
        for task in problem.tasks:
            end = timeline.ends_ns[task.name]
            length = (
                task.duration_ns
                if isinstance(task, Compute)
                else problem.cost(task.key).ns(task.bytes)
            )
            assert sides.head[task.name] <= end - length
            assert sides.tail[task.name] <= timeline.makespan_ns - end


def test_gathers_before_a_layer_all_count():
    """40 + 40 before c runs, 10, and 40 + 40 after it: a path sees 40, a channel's load no compute."""
    tasks = [
        Collective("a", 40, "all_gather"),
        Collective("b", 40, "all_gather"),
        Compute("c", 10, after=("a", "b")),
        Collective("x", 40, "reduce_scatter", after=("c",)),
        Collective("y", 40, "reduce_scatter", after=("c",)),
    ]
    problem = Problem(tasks, {("dp", "all_gather"): FREE, ("dp", "reduce_scatter"): FREE})
    assert other_bounds(problem) == 160
    sides = ancestor_bound(problem)
    assert (sides.head["c"], sides.tail["c"], sides.bound.ns) == (80, 80, 170)
    assert brute_force(problem, "any").makespan == 170


def test_collectives_that_wait_for_each_other_need_launches_of_their_own():
    """x -> c -> y -> d, and z before d: at least two start-ups before d, three if kept apart."""
    cost = {("dp", "allreduce"): AlphaBeta(0.01, 1)}
    tasks = [
        Collective("x", 20),
        Compute("c", 0, after=("x",)),
        Collective("y", 20, after=("c",)),
        Collective("z", 20),
        Compute("d", 5, after=("y", "z")),
    ]
    free = Problem(tasks, cost)
    assert ancestor_bound(free).head["d"] == 20 + 60
    apart = free.with_limits([Apart(("x", "y", "z"))])
    assert ancestor_bound(apart).head["d"] == 30 + 60
    small = free.with_limits([MostBucketBytes(20)])
    assert ancestor_bound(small).head["d"] == 30 + 60
    assert brute_force(free, "any").makespan == 85
    assert brute_force(apart, "any").makespan == brute_force(small, "any").makespan == 95


def test_the_load_of_a_stream_whose_tasks_move():
    """Both fillers and the last task of a stream wait for one gather."""
    tasks = [
        Collective("x", 20),
        Compute("a", 30, after=("x",), movable=True),
        Compute("b", 30, after=("x",), movable=True),
        Compute("c", 10, after=("a", "b")),
        Collective("y", 20, after=("c",)),
    ]
    problem = Problem(tasks, {("dp", "allreduce"): FREE})
    assert ancestor_bound(problem).bound.ns == 20 + 70 + 20
    assert closed_form_bound(problem).ns < 110


def test_a_filler_that_hides_one_of_two_all_to_alls():
    """Parts of a few tasks are enumerated: the shared expert cannot hide both ways."""
    profile = LayerProfile(tuple(Layer(f"L{k}", 10, 20) for k in range(3)))
    experts = Experts(50, 100, 100, shared_forward_ns=200, shared_backward_ns=400)
    problem = moe_step(profile, experts, {"all_to_all": FREE})
    sides = ancestor_bound(problem)
    # Each layer: its own 10, the shared expert 200, the experts 50 and one of the ways, 100.
    assert sides.head["forward L2"] == 2 * (10 + 200 + 50 + 100)
    assert other_bounds(problem) < sides.bound.ns


def test_only_compute_waits_is_left_to_others():
    profile = LayerProfile((Layer("a", 10, 20, 30), Layer("b", 10, 20, 30)))
    problem = ddp_step(profile, FREE)
    sides = ancestor_bound(problem, 7)
    assert sides.bound.ns == 7
    assert (sides.head, sides.tail) == paths_ns(problem)


def test_large_steps_and_no_time_give_longest_paths():
    problem = sharded(1000)
    begun = time.monotonic()
    sides = ancestor_bound(problem, 5)
    assert time.monotonic() - begun < 30
    assert sides.head == paths_ns(problem)[0]
    small = sharded(4)
    assert ancestor_bound(small, 5, until=time.monotonic() - 1).bound.ns == 5
    assert ancestor_bound(small, 5, until=math.inf).bound.ns > 5


def test_bounds_in_floating_point_are_rounded_to_the_safe_side():
    assert safely(3.0) == 3
    assert safely(3.0005) == 3
    assert safely(3.4) == 4
    assert safely(1e15) < 10**15
    assert safely(-5.0) == 0


@pytest.mark.parametrize("block", range(3))
def test_enumeration_of_small_steps_equals_brute_force(block):
    many = 0
    for seed in range(1000 + 40 * REPEAT * block, 1000 + 40 * REPEAT * (block + 1)):
        rng = random.Random(seed)
        problem = random_experts(rng) if seed % 2 else random_problem(rng, 4)
        problem = problem.with_limits([])
        if len(problem.names) > 4 or len(problem.tasks) > 10:
            continue
        found = least_makespan(problem)
        if found is not None:
            assert found == brute_force(problem, "any").makespan, seed
            many += 1
    assert many > 20


def test_enumeration_gives_up_on_large_steps():
    chain = [Compute(f"c{k}", 1) for k in range(MAX_TASKS)]
    problem = Problem([*chain, Collective("x", 1)], {("dp", "allreduce"): FREE})
    assert least_makespan(problem) is None
    wide = [Collective(f"x{k}", k) for k in range(MAX_TASKS)]
    assert least_makespan(Problem(wide, {("dp", "allreduce"): FREE})) is None

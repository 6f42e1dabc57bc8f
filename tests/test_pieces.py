"""Groupings of neighbours in ready order, the same in all rows that limits group alike."""

from __future__ import annotations

import random
import time

import pytest
from oracles import Stuck, brute_force, simulate
from strategies import random_limits, random_step

from commsched.models import (
    Alike,
    AlphaBeta,
    Apart,
    Collective,
    Compute,
    MostBucketBytes,
    Plan,
    PoolBytes,
    Problem,
    evaluate,
)
from commsched.models.coverage import is_in_order
from commsched.optimizer.critical import critical
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.pieces import Pieces, layers
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile

COSTS = {"all_gather": AlphaBeta(20, 25), "reduce_scatter": AlphaBeta(20, 25)}


def sharded(count: int, **options: object) -> Problem:
    rng = random.Random(count)
    layers_ = [
        Layer(f"y{k}", rng.randint(20, 60) * 1000, rng.randint(40, 120) * 1000, rng.randint(1, 900))
        for k in range(count)
    ]
    layers_ = [
        Layer(y.name, y.forward_ns, y.backward_ns, y.parameter_bytes * 4000) for y in layers_
    ]
    return fsdp_step(LayerProfile(tuple(layers_)), COSTS, **options)


def searched(problem: Problem, scope: str = "in-order", seed: int = 0, most: int = 200_000):
    known = Incumbent(problem, scope)
    tried = Pieces(known, seed).run(time.monotonic() + 60, most)
    return known, tried


@pytest.mark.parametrize("options", [{}, {"communicators": 2, "gathered_limit_bytes": 9_000_000}])
def test_sharded_steps_are_grouped_alike_and_better_than_one_launch_each(options):
    problem = sharded(40, **options)
    known, _ = searched(problem)
    each = evaluate(problem, Plan.of([name] for name in order_of(problem)))
    assert known.timeline.broken == ()
    assert is_in_order(problem, known.plan)
    assert known.plan.launches < len(problem.names)
    assert known.makespan_ns < each.makespan_ns
    assert simulate(problem, known.plan).makespan == known.makespan_ns


def order_of(problem: Problem) -> list[str]:
    return [problem.names[k] for k in problem.ready_order]


def test_the_same_seed_gives_the_same_plan():
    problem = sharded(25)
    (first, tried), (second, again) = searched(problem), searched(problem)
    assert (first.plan, tried) == (second.plan, again)
    assert tried > 50


def test_no_more_plans_are_tried_than_were_asked_for():
    problem = sharded(25)
    assert searched(problem, most=5 * len(problem.tasks))[1] == 5
    assert searched(problem, most=0)[1] == 1


def test_plans_keep_every_limit_and_are_not_better_than_the_best():
    found = 0
    for seed in range(150):
        rng = random.Random(seed)
        step = random_step(rng, 4)
        problem = step.with_limits(random_limits(rng, step)) if seed % 3 else step
        known, _ = searched(problem, most=400)
        try:
            best = brute_force(problem, "in-order")
        except Stuck:
            assert known.plan is None, seed
            continue
        if known.plan is not None:
            found += 1
            assert known.timeline.broken == (), seed
            assert is_in_order(problem, known.plan), seed
            assert known.makespan_ns >= best.makespan, seed
    assert found > 60


def test_what_must_be_apart_or_would_be_too_large_is_cut():
    problem = Problem(
        [Collective(name, 10) for name in "abcd"],
        {("dp", "allreduce"): AlphaBeta(1, 1)},
        limits=[Apart(("a", "b")), MostBucketBytes(20)],
    )
    known, _ = searched(problem)
    assert known.timeline.broken == ()
    assert [b.names for b in known.plan.buckets] == [("a",), ("b",), ("c", "d")]


def test_rows_that_limits_link_are_one_layer():
    names = ["a", "b", "c", "d", "e", "f", "g"]
    problem = Problem(
        [Collective(name, 1) for name in names],
        {("dp", "allreduce"): AlphaBeta(1, 1)},
        limits=[Alike((("a", "b"), ("c", "d"))), Alike((("c", "d"), ("e", "f")))],
    )
    found = layers(problem)
    assert len({found[name] for name in "ace"}) == len({found[name] for name in "bdf"}) == 1
    assert len(set(found.values())) == 3


def test_the_critical_path_goes_through_compute_and_memory():
    """A launch that waits for room hangs on what frees it."""
    from commsched.models import Hold

    tasks = [
        Collective("one", 10, "all_gather", hold=Hold("p", "start", ("use one",))),
        Collective("two", 10, "all_gather", hold=Hold("p", "start", ("use two",))),
        Collective("side", 1, "all_gather", group="tp"),
        Compute("use one", 50, after=("one",)),
        Compute("use two", 50, after=("two",)),
    ]
    cost = AlphaBeta(0.005, 1)
    problem = Problem(
        tasks,
        {("dp", "all_gather"): cost, ("tp", "all_gather"): cost},
        limits=[PoolBytes("p", 10)],
    )
    timeline = evaluate(problem, Plan.of([["one"], ["two"], ["side"]]))
    assert timeline.makespan_ns == 15 + 50 + 15 + 50
    assert critical(timeline) == {"one", "two"}

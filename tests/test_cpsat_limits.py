"""CP-SAT under limits, limited memory and movable compute, against plain enumeration."""

from __future__ import annotations

import random

import pytest
from oracles import Stuck, brute_force
from strategies import (
    random_gradient_problem,
    random_limits,
    random_memory_step,
    random_movable_step,
    random_step,
)

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    LeastBucketBytes,
    MostBucketBytes,
    Problem,
)
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize


def limited_step(rng: random.Random) -> Problem:
    step = random_step(rng, 4)
    return step.with_limits(random_limits(rng, step))


def limited_gradients(rng: random.Random) -> Problem:
    problem = random_gradient_problem(rng, 5)
    return problem.with_limits(random_limits(rng, problem))


@pytest.mark.parametrize("scope", ["in-order", "any"])
@pytest.mark.parametrize(
    ("make", "count", "both"),
    [
        (limited_step, 120, True),
        (limited_gradients, 120, True),
        (lambda rng: random_memory_step(rng, 4), 120, False),
        (random_movable_step, 120, False),
    ],
    ids=["limited steps", "limited gradients", "memory", "movable compute"],
)
def test_the_best_plan_within_the_limits_or_proof_that_there_is_none(make, count, both, scope):
    """Makespans equal those of every plan tried; infeasible is said exactly where none runs."""
    seen = set()
    for seed in range(count):
        problem = make(random.Random(seed))
        result = optimize(problem, scope=scope, time_limit_s=60, workers=2)
        seen.add(result.status)
        try:
            best = brute_force(problem, scope)
        except Stuck:
            assert result.status == Status.INFEASIBLE, seed
            continue
        assert result.status == Status.OPTIMAL, seed
        timeline = play(problem, result.plan)
        assert timeline.broken == (), seed
        rounding = timeline.makespan_ns - result.bound.ns
        assert best.makespan <= timeline.makespan_ns <= best.makespan + rounding, seed
        assert result.bound.ns <= best.makespan, seed
    assert Status.OPTIMAL in seen
    assert Status.INFEASIBLE in seen or not both


def test_limits_that_exclude_each_other_have_no_plan():
    gradients = [Gradient("b", 10, 0), Gradient("a", 10, 5)]
    limits = [MostBucketBytes(15), LeastBucketBytes(15)]
    problem = GradientProblem(gradients, AlphaBeta(1, 1), limits=limits)
    for scope in ("in-order", "any"):
        result = optimize(problem, scope=scope)
        assert (result.status, result.plan) == (Status.INFEASIBLE, None)
        assert "no plan keeps the limits" in result.reason


def test_a_filler_runs_while_the_all_to_all_is_on_its_way():
    tasks = [
        Compute("first", 10),
        Collective("dispatch", 20, "all_to_all", after=("first",)),
        Compute("experts", 40, after=("dispatch",)),
        Compute("filler", 30, movable=True),
    ]
    problem = Problem(tasks, {("dp", "all_to_all"): AlphaBeta(0.002, 1)})
    result = optimize(problem)
    assert (result.status, result.makespan_ns) == (Status.OPTIMAL, 10 + 30 + 40)
    assert result.plan.orders == {"gpu": ("first", "filler", "experts")}

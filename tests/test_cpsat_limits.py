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
    Hold,
    LeastBucketBytes,
    MostBucketBytes,
    NotApplicableError,
    PoolBytes,
    Problem,
)
from commsched.models.coverage import is_fifo
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


@pytest.mark.parametrize("make", [random_step, random_gradient_problem])
def test_first_come_first_served_against_every_plan(make):
    """Scope fifo: every partition, and launches in the order in which they are ready."""
    methods = set()
    for seed in range(120):
        problem = make(random.Random(seed), 4)
        result = optimize(problem, scope="fifo", time_limit_s=60, workers=2)
        best = brute_force(problem, "fifo")
        methods.add(result.method)
        assert result.status == Status.OPTIMAL, seed
        timeline = play(problem, result.plan)
        assert is_fifo(timeline), seed
        rounding = timeline.makespan_ns - result.bound.ns
        assert best.makespan <= timeline.makespan_ns <= best.makespan + rounding, seed
        assert result.bound.ns <= best.makespan, seed
    assert "cpsat" in methods


def test_scopes_are_nested_and_differ():
    """An urgent collective that is ready late may overtake in scope any, and not in scope fifo."""
    tasks = [
        Compute("b1", 10),
        Collective("large", 100, after=("b1",)),
        Collective("middle", 100, after=("b1",)),
        Compute("b0", 5),
        Collective("urgent", 10, after=("b0",)),
        Compute("next", 200, after=("urgent",)),
    ]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.002, 1)})
    ends = {s: optimize(problem, scope=s).makespan_ns for s in ("in-order", "fifo", "any")}
    # The channel waits for the urgent one; the large ones hide behind what waits for it.
    assert ends["any"] == 15 + 12 + 202
    assert ends["fifo"] == ends["in-order"] > ends["any"]


def test_first_come_first_served_does_not_go_with_limited_memory():
    tasks = [Collective("a", 1, hold=Hold("p")), Compute("c", 1, after=("a",))]
    costs = {("dp", "allreduce"): AlphaBeta(1, 1)}
    problem = Problem(tasks, costs, limits=[PoolBytes("p", 5)])
    with pytest.raises(NotApplicableError, match="fifo and limited pools"):
        optimize(problem, scope="fifo", method="cpsat")


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

"""Limits on buckets and on the number of launches, where the recurrence with deadlines is exact."""

from __future__ import annotations

import math
import random
import time

import pytest
from oracles import Stuck, brute_force
from strategies import random_gradient_problem, random_limits
from test_search import only_compute_waits

from commsched.models import AlphaBeta, Gradient, GradientProblem, MostLaunches, Together
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize
from commsched.optimizer.deadlines import LIMITS, deadline_plan, why_no_deadlines

BLOCKS = 4


def limited(seed: int):
    """Return a plain backward pass, or one with the next forward pass, under limits of the class."""
    rng = random.Random(seed)
    problem = random_gradient_problem(rng, 5) if seed % 2 else only_compute_waits(rng)
    limits = [n for n in random_limits(rng, problem) if isinstance(n, (*LIMITS, MostLaunches))]
    return problem.with_limits(limits) if limits else None


@pytest.mark.parametrize("block", range(BLOCKS))
def test_limited_plans_equal_brute_force(block):
    """Makespan, launches and infeasibility, without any solver."""
    seen = {Status.OPTIMAL: 0, Status.INFEASIBLE: 0}
    for seed in range(300 * block, 300 * (block + 1)):
        problem = limited(seed)
        if problem is None:
            continue
        assert why_no_deadlines(problem, "in-order") is None
        result = optimize(problem)
        assert "conflicts" not in result.statistics  # CP-SAT had nothing to do
        seen[result.status] += 1
        try:
            best = brute_force(problem, "in-order")
        except Stuck:
            assert result.status is Status.INFEASIBLE, seed
            continue
        assert result.status is Status.OPTIMAL, seed
        assert (result.makespan_ns, result.plan.launches) == best[:2], seed
        assert result.bound.ns == best.makespan, seed
        assert play(problem, result.plan).broken == ()
    assert min(seen.values()) > 20


def test_out_of_time_leaves_a_bound_and_no_plan_that_breaks_a_limit():
    played = 0
    for seed in range(200):
        problem = limited(seed)
        if problem is None:
            continue
        found = deadline_plan(problem, until=time.monotonic() - 1)
        try:
            best = brute_force(problem, "in-order").makespan
        except Stuck:
            assert not found.plan.buckets
            continue
        assert found.bound.ns <= best, seed
        assert not found.infeasible
        if found.plan.buckets:
            assert play(problem, found.plan).broken == (), seed
            played += 1
    assert played > 10


def test_many_gradients_in_few_launches_are_proved_at_once():
    """149 gradients in three launches took CP-SAT more than a minute."""
    rng = random.Random(0)
    gradients = [
        Gradient(f"g{k}", rng.randint(1, 60) * 10_000, ready_ns=200_000 * k) for k in range(149)
    ]
    cost = AlphaBeta(400, 2)
    free = optimize(GradientProblem(gradients, cost))
    for count in (1, 2, 3, 10):
        result = optimize(GradientProblem(gradients, cost, limits=[MostLaunches(count)]))
        assert result.status is Status.OPTIMAL
        assert result.plan.launches <= count
        assert result.makespan_ns >= free.makespan_ns
    assert free.plan.launches > 10


def test_members_of_two_keys_can_never_be_together():
    gradients = [Gradient("a", 4, 0), Gradient("b", 4, 1, dtype="float16")]
    problem = GradientProblem(gradients, AlphaBeta(1, 1), limits=[Together(("a", "b"))])
    assert deadline_plan(problem).infeasible
    assert optimize(problem).status is Status.INFEASIBLE


def test_within_keeps_the_limits():
    for seed in range(120):
        problem = limited(seed)
        if problem is None or deadline_plan(problem).infeasible:
            continue
        found = deadline_plan(problem, until=math.inf, within=0.2)
        timeline = play(problem, found.plan)
        assert timeline.broken == ()
        assert timeline.makespan_ns <= found.bound.ns * 1.2 + 1

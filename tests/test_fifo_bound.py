"""The bound of scope fifo, against every plan and on steps of hundreds of gradients."""

from __future__ import annotations

import random

from oracles import Stuck, brute_force
from strategies import random_gradient_problem, random_step

from commsched.models import AlphaBeta, Collective, Compute, Problem
from commsched.optimizer import optimize
from commsched.optimizer.fifo_bound import fifo_bound
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layers import Layer, LayerProfile


def test_no_plan_is_below_the_bound():
    tight = 0
    for seed in range(400):
        rng = random.Random(seed)
        problem = random_step(rng, 4, settled=True) if seed % 2 else random_gradient_problem(rng, 5)
        try:
            best = brute_force(problem, "fifo").makespan
        except Stuck:
            continue
        bound = fifo_bound(problem, 0).ns
        assert bound <= best, seed
        tight += bound >= best - len(problem.names)
    assert tight > 100


def test_the_next_forward_is_closed_at_any_size():
    """Hundreds of gradients: the best plan of scope in-order is as early as the bound."""
    rng = random.Random(5)
    profile = LayerProfile(
        tuple(
            Layer(f"y{k}", rng.randint(20, 90) * 1000, 120_000, rng.randint(1, 60) * 100_000)
            for k in range(300)
        )
    )
    problem = ddp_step(profile, AlphaBeta(20, 25))
    in_order = optimize(problem, scope="in-order")
    bound = fifo_bound(problem, 0).ns
    assert in_order.makespan_ns - len(problem.names) <= bound <= in_order.makespan_ns


def test_only_one_of_those_that_are_ready_last_must_be_last():
    tasks = [
        Compute("b", 10),
        Collective("x", 40, after=("b",)),
        Collective("y", 40, after=("b",)),
        Compute("f", 30, after=("x",)),
    ]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.01, 1)})
    assert fifo_bound(problem, 0).ns <= brute_force(problem, "fifo").makespan == 10 + 50 + 50


def test_it_says_nothing_where_collectives_wait_for_collectives():
    tasks = [Collective("x", 40), Compute("c", 10, after=("x",)), Collective("y", 5, after=("c",))]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.01, 1)})
    assert fifo_bound(problem, 7).ns == 7

"""The search over general orders: small optima, limits, fillers, repeatable, and its own clock."""

from __future__ import annotations

import math
import random
import time

import pytest
from oracles import brute_force, simulate
from step_maker import random_profile, sharded_costs
from strategies import random_gradient_problem, random_problem, random_valid_plan
from test_ancestor_bound import random_experts
from test_search import sharded

from commsched.models import (
    Alike,
    AlphaBeta,
    Apart,
    BytesInFlight,
    LaunchesInFlight,
    MostLaunches,
    Problem,
)
from commsched.models.errors import DeadlockError
from commsched.models.timeline import play
from commsched.optimizer.ancestor_bound import ancestor_bound
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.order_search import MAX_TASKS, OrderSearch, why_no_order_search
from commsched.optimizer.order_step import OrderStep
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.one import one_bucket
from commsched.optimizer.starting import start
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile


def searched(problem: Problem, moves: int, seed: int = 0) -> Incumbent:
    """Return what so many moves find, from the quick rules."""
    known = Incumbent(problem, "any")
    start(known, 0.0, quick=True)
    assert known.plan is not None
    sides = ancestor_bound(problem)
    known.raise_bound(sides.bound)
    OrderSearch(known, sides.tail, seed).run(math.inf, moves)
    return known


def test_its_clock_is_the_evaluators():
    """Every random plan of random steps takes as long, or waits for ever in both."""
    stuck = 0
    for seed in range(200):
        rng = random.Random(seed)
        problem = random_problem(rng, 6)
        if problem.limits:
            problem = problem.with_limits([])
        plan = random_valid_plan(rng, problem)
        if plan.splits or any(bucket.not_before_ns for bucket in plan.buckets):
            continue
        step = OrderStep(problem, paths_ns(problem)[1])
        rows = step.rows(plan)
        end = step.play(rows, math.inf)
        try:
            timeline = play(problem, plan)
        except DeadlockError:
            assert end is None
            stuck += 1
            continue
        assert end is not None
        assert {t.name: end[k] for k, t in enumerate(problem.tasks)} == dict(timeline.ends_ns)
        assert step.play(rows, timeline.makespan_ns) is not None
        assert step.play(rows, timeline.makespan_ns - 1) is None
        again = play(problem, step.plan(rows, end))
        assert again.makespan_ns == timeline.makespan_ns
    assert stuck < 200


@pytest.mark.parametrize("block", range(3))
def test_small_steps_end_at_the_optimum(block):
    """Almost always: it proves nothing, but never claims less than is possible."""
    optimal = played = 0
    for seed in range(25 * block, 25 * (block + 1)):
        rng = random.Random(seed)
        if seed % 2:
            problem = random_experts(rng)
        else:
            problem = fsdp_step(random_profile(rng, 2), sharded_costs(rng))
        if len(problem.names) > 4 or len(problem.tasks) > 10:
            continue
        best = brute_force(problem, "any").makespan
        known = searched(problem, 1500)
        assert known.makespan_ns == simulate(problem, known.plan).makespan >= best
        played += 1
        optimal += known.makespan_ns == best
    assert played > 3
    assert optimal >= 0.9 * played


def test_it_is_better_than_rules_and_within_a_per_cent_of_the_bound():
    problem = sharded(8)
    known = Incumbent(problem, "any")
    start(known, math.inf)
    rule_ns = known.makespan_ns
    found = searched(problem, 20_000)
    assert found.makespan_ns < 0.97 * rule_ns
    assert found.makespan_ns < 1.01 * found.bound.ns
    assert found.method == "local search"


def test_the_same_seed_gives_the_same_plan():
    problem = sharded(5)
    plans = [searched(problem, 3000, seed).plan for seed in (1, 1, 2)]
    assert plans[0] == plans[1]
    ends = [play(problem, plan).makespan_ns for plan in plans]
    assert max(ends) < 1.05 * min(ends)


LIMITS = {
    "units": {},
    "layers": {"units": "layers"},
    "kept": {"reshard_after_forward": "all-but-last", "root": ("L0",)},
    "memory": {"gathered_limit_bytes": 250_000},
    "two": {"communicators": 2, "micro_batches": 2},
    "replicas": {"hybrid_shard": 2},
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_sharded_steps_are_kept(name):
    """Whatever the options of the builder, what is found keeps its limits and is no worse."""
    rng = random.Random(7)
    profile = LayerProfile(
        tuple(
            Layer(f"L{k}", rng.randint(5, 40) * 1000, rng.randint(10, 80) * 1000, 100_000)
            for k in range(6)
        )
    )
    costs = {"all_gather": AlphaBeta(10, 10), "reduce_scatter": AlphaBeta(10, 10)}
    if name == "replicas":
        costs["allreduce"] = AlphaBeta(10, 5)
    problem = fsdp_step(profile, costs, **LIMITS[name])
    first = play(problem, one_each(problem)).makespan_ns
    known = searched(problem, 2000)
    timeline = play(problem, known.plan)
    assert timeline.broken == ()
    assert timeline.makespan_ns == known.makespan_ns
    assert known.bound.ns <= known.makespan_ns <= first
    if name in ("kept", "two"):
        assert known.makespan_ns < first


@pytest.mark.parametrize("block", range(3))
def test_rows_cut_alike_may_share_launches(block):
    """Rows of one key, of several keys, and with members that must be apart."""
    together = 0
    for seed in range(40 * block, 40 * (block + 1)):
        rng = random.Random(seed)
        problem = random_gradient_problem(rng, 5)
        if len(problem.names) < 4:
            continue
        a, b, c, d = rng.sample(problem.names, 4)
        limits = [Alike(((a, b), (c, d)))] + ([Apart((a, b))] if rng.random() < 0.3 else [])
        problem = problem.with_limits(limits)
        known = Incumbent(problem, "any")
        known.offer(one_bucket(problem), "one bucket")
        known.offer(one_each(problem), "one each")
        together += any(len(bucket.names) > 3 for bucket in known.plan.buckets)
        OrderSearch(known, paths_ns(problem)[1], seed).run(math.inf, 500)
        assert known.makespan_ns >= brute_force(problem, "any").makespan, seed
    assert together > 0


@pytest.mark.parametrize("limit", [MostLaunches(12), LaunchesInFlight(4), BytesInFlight(7_000_000)])
def test_other_limits_are_checked_by_the_evaluator(limit):
    problem = sharded(4)
    free = searched(problem, 1000)
    problem = problem.with_limits([limit])
    known = Incumbent(problem, "any")
    known.offer(one_each(problem), "one each")
    before = known.makespan_ns
    OrderSearch(known, ancestor_bound(problem).tail, 0).run(math.inf, 1000)
    assert free.makespan_ns <= known.makespan_ns < before
    assert play(problem, known.plan).broken == ()


def test_it_stops_at_the_bound_and_at_the_time_limit():
    problem = sharded(3)
    known = searched(problem, 0)
    sides = ancestor_bound(problem)
    assert OrderSearch(known, sides.tail, 0).run(time.monotonic() - 1) == 0
    known.bound = type(known.bound)(known.makespan_ns, "made up")
    assert OrderSearch(known, sides.tail, 0).run(math.inf, 1000) == 0


def test_where_it_does_not_apply():
    problem = sharded(2)
    assert why_no_order_search(problem, "any") is None
    assert why_no_order_search(problem, "in-order") == "scope in-order fixes orders"
    assert "tasks" in why_no_order_search(sharded(MAX_TASKS // 5 + 1), "any")

"""The prefix recurrence (any curve, several keys on one channel) against every plan."""

from __future__ import annotations

import random

import pytest
from oracles import brute_force
from strategies import random_curve

from commsched.models import AlphaBeta, Collective, Compute, PiecewiseLinear, Problem, StepTable
from commsched.models.timeline import play
from commsched.optimizer import prefix
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.prefix import Chain, best_prefix_plan, price, unrounded


def settled_problem(rng: random.Random, keys: int, most: int) -> Problem:
    """Return collectives of several dtypes on one channel with fixed ready times."""
    tasks: list[Compute | Collective] = []
    for k in range(keys):
        for n in range(rng.randint(1, most)):
            gate = f"gate{k}.{n}"
            tasks.append(Compute(gate, rng.randint(0, 30), stream=gate))
            tasks.append(Collective(f"c{k}.{n}", rng.randint(0, 12), dtype=f"t{k}", after=(gate,)))
    return Problem(tasks, {("dp", "allreduce"): random_curve(rng, "allreduce")})


@pytest.mark.parametrize(("keys", "most"), [(1, 6), (2, 3), (3, 2)])
def test_prefix_recurrence_equals_brute_force(keys, most):
    """Makespan and launches are those of the best of all in-order plans and interleavings."""
    for seed in range(120):
        problem = settled_problem(random.Random(seed), keys, most)
        best = brute_force(problem, "in-order")
        found = exact_plan(problem)
        timeline = play(problem, found.plan)
        assert timeline.makespan_ns == best.makespan
        assert found.plan.launches == best.launches
        assert found.bound.ns == best.makespan


def test_the_bound_for_scope_any_is_below_every_plan():
    """Rounding can help a plan that is not in order, and the bound allows for it."""
    checked = 0
    for seed in range(200):
        rng = random.Random(seed)
        problem = settled_problem(rng, rng.randint(1, 2), 3)
        if why_not_exact(problem, "any") is None:
            checked += 1
            assert exact_plan(problem, "any").bound.ns <= brute_force(problem, "any").makespan
    assert checked > 50


def test_prices_of_many_sizes_are_those_of_the_curve():
    """Pricing an array gives what the curve gives, also beyond 64 bits."""
    import numpy as np

    curves = [
        AlphaBeta(3.7, 53.6870912),
        AlphaBeta(1, 1e-9),
        PiecewiseLinear([(10, 1.5), (1000, 2.25), (10**9, 7777.125)]),
        StepTable([(5, 1), (70, 2.5), (4000, 9)]),
    ]
    for curve in curves:
        for top in (80, 10**6, 2**45):
            sizes = np.array([0, 1, 5, 6, 10, 69, 70, 71, top // 3, top], dtype=np.int64)
            assert list(price(curve, sizes)) == [curve.ns(int(size)) for size in sizes]


def test_times_beyond_64_bits_stay_exact():
    """A network so slow that times overflow 64 bits still gets the exact optimum."""
    curve = AlphaBeta(1, 1e-12)
    chain = Chain([5, 6], [2**40, 2**40], curve)
    found = best_prefix_plan([chain])
    assert found.end_ns == min(6 + curve.ns(2**41), max(5 + curve.ns(2**40), 6) + curve.ns(2**40))
    scaled, scale = unrounded([chain])
    assert best_prefix_plan(scaled).end_ns <= found.end_ns * scale


def test_without_budget_the_plan_is_still_optimal_but_not_minimal(monkeypatch):
    """When the second pass is cut short, the makespan holds and the result says what is missing."""
    monkeypatch.setattr(prefix, "LAUNCH_WORK", 0)
    curve = PiecewiseLinear([(1, 0.002), (50, 0.051)])
    chain = Chain([0, 5, 9, 30, 31, 32], [9, 9, 9, 9, 9, 1], curve)
    short = best_prefix_plan([chain])
    monkeypatch.undo()
    full = best_prefix_plan([chain])
    assert short.end_ns == full.end_ns
    assert not short.fewest
    assert full.fewest
    assert len(full.buckets) <= len(short.buckets)
    now = 0
    for _, begin, end in short.buckets:
        now = max(now, chain.ready_ns[end - 1]) + curve.ns(sum(chain.sizes[begin:end]))
    assert now == short.end_ns

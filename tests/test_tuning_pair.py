"""DDP's first cap and cap together, against trying every pair."""

from __future__ import annotations

import random

import pytest
from test_tuning import random_gradients

from commsched.models import AlphaBeta, Gradient, GradientProblem, NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer import ddp, tune, tuning_pair
from commsched.optimizer.tuning_pair import tune_first_and_cap


@pytest.mark.parametrize("seed", range(4))
def test_the_best_pair_equals_trying_every_pair(seed):
    """Least makespan, then fewest launches, and the ranges all give that plan."""
    rng = random.Random(seed)
    for _ in range(25):
        problem = random_gradients(rng, 6)
        top = sum(problem.bytes) + 2
        best = min(
            (play(problem, plan).makespan_ns, plan.launches)
            for first in range(1, top)
            for cap in range(1, top)
            for plan in [ddp(problem, [first, cap])]
        )
        found = tune_first_and_cap(problem)
        assert (found.makespan_ns, found.plan.launches) == best
        low, high = found.cap.low, found.cap.high or top
        for first in {found.first.low, found.first.high or top}:
            for cap in {low, high}:
                assert ddp(problem, [first, cap]) == found.plan
        assert low == 1 or ddp(problem, [found.first.low, low - 1]) != found.plan
        assert high >= top or ddp(problem, [found.first.low, high + 1]) != found.plan


def test_a_large_first_bucket_leaves_small_caps_worth_a_look():
    """Many gradients ready at once, few late ones, and start-ups that allow only a few launches.

    All have 10 bytes, so the multiples of 10 give every plan.
    """
    for seed in range(12):
        rng = random.Random(seed)
        ready = [0] * rng.randint(20, 40) + [100 + rng.randint(0, 20), 200 + rng.randint(0, 20)]
        gradients = [Gradient(f"g{k}", 10, at) for k, at in enumerate(ready)]
        problem = GradientProblem(gradients, AlphaBeta(0.08, 10))
        caps = range(10, 10 * len(ready) + 1, 10)
        best = min(
            (play(problem, plan).makespan_ns, plan.launches)
            for first in caps
            for cap in caps
            for plan in [ddp(problem, [first, cap])]
        )
        found = tune_first_and_cap(problem)
        assert (found.makespan_ns, found.plan.launches) == best


def test_a_pair_is_never_worse_than_one_cap_and_can_be_better():
    """Two knobs reach at least what one reaches; bad first buckets are skipped by proof."""
    better = 0
    for seed in range(6):
        rng = random.Random(seed)
        sizes = [rng.choice([1024, 262144, 2359296, 8388608]) for _ in range(60)]
        gradients = [
            Gradient(f"g{k}", size, rng.randint(0, 6_000_000)) for k, size in enumerate(sizes)
        ]
        problem = GradientProblem(gradients, AlphaBeta(80, 25))
        single = tune(problem, lambda problem, cap: ddp(problem, [cap])).best.makespan_ns
        pair = tune_first_and_cap(problem)
        assert pair.makespan_ns <= single
        assert pair.skipped > 0
        better += pair.makespan_ns < single
    assert better > 0


def test_too_many_pairs_are_refused(monkeypatch):
    """Beyond the limit the search says so before it begins."""
    monkeypatch.setattr(tuning_pair, "MAX_VISITS", 3)
    problem = GradientProblem([Gradient(f"g{k}", k, k) for k in range(5)], AlphaBeta(0, 1))
    with pytest.raises(NotApplicableError, match="too many to visit"):
        tune_first_and_cap(problem)

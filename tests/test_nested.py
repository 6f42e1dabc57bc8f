"""Nested windows: the search by sides against all plans, and bounds that no plan may break."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from commsched.models import AlphaBeta, Collective, Compute, Problem
from commsched.models.cost import CostCurve, PiecewiseLinear
from commsched.models.timeline import play
from commsched.optimizer import optimize
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.nested import Divisible, Nested, group_of, nested, nested_bound
from commsched.optimizer.nested_search import NestedSearch
from commsched.optimizer.reordering import Job
from commsched.optimizer.subsets import Subsets
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layers import Layer, LayerProfile

FOREVER = float("inf")


def latest(jobs: Sequence[Job], launches: Sequence[Sequence[int]], curve: CostCurve) -> int:
    """Return how late the latest launch is, counted anew."""
    now = worst = 0
    for launch in launches:
        now = max(now, max(jobs[j].ready for j in launch))
        now += curve.ns(sum(jobs[j].size for j in launch))
        worst = max(worst, now + max(jobs[j].tail for j in launch))
    return worst


def optimum(jobs: Sequence[Job], curve: CostCurve) -> tuple[int, Subsets]:
    """Return the least makespan of all partitions and orders, by the enumeration of sets."""
    sets = Subsets(jobs, [curve])
    best = latest(jobs, [list(range(len(jobs)))], curve)
    while better := sets.keeps(best - 1, FOREVER):
        best = latest(jobs, better, curve)
    return best, sets


def random_jobs(rng: random.Random, most: int, *, are_nested: bool = True) -> list[Job]:
    """Return a channel's collectives in any order."""
    count, span = rng.randint(1, most), rng.choice([5, 20, 60])
    ready = sorted((rng.randint(0, span) for _ in range(count)), reverse=True)
    tail = sorted((rng.randint(0, span) for _ in range(count)), reverse=True)
    if not are_nested:
        rng.shuffle(tail)
    sizes = [rng.choice([0, 1, 2, 5, 20, rng.randint(0, 15)]) for _ in range(count)]
    jobs = [Job(r, s, t, 0) for r, s, t in zip(ready, sizes, tail, strict=True)]
    rng.shuffle(jobs)
    return jobs


def one(jobs: Sequence[Job], curve: CostCurve) -> Nested:
    """Return the only windows that an affine cost has."""
    (windows,) = nested(jobs, [curve])
    return windows


@pytest.mark.parametrize("seed", range(8))
def test_the_search_by_sides_equals_the_enumeration_of_sets(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(120):
        jobs = random_jobs(rng, 7)
        curve = AlphaBeta(rng.choice([0, 1, 2, 5, 10, 30]) / 1000, 1)
        best, sets = optimum(jobs, curve)
        windows = one(jobs, curve)
        assert windows.exact
        search = NestedSearch(windows)
        search.run(10**6)
        assert search.launches is not None
        assert sorted(j for launch in search.launches for j in launch) == list(range(len(jobs)))
        assert latest(jobs, search.launches, curve) == best
        assert windows.makespan_ns(search.value) == windows.makespan_ns(search.bound) == best
        for allowed in (best, best + rng.randint(1, 12)):
            few = search.fewest(windows.value(allowed), 10**6, FOREVER)
            least = sets.fewest(allowed, FOREVER)
            assert few is not None
            assert least is not None
            assert len(few) == len(least)
            assert latest(jobs, few, curve) <= allowed


@pytest.mark.parametrize("seed", range(8))
def test_no_bound_is_above_the_optimum_whatever_the_windows_groups_and_states(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(80):
        jobs = random_jobs(rng, 7, are_nested=rng.random() < 0.5)
        curve: CostCurve = AlphaBeta(rng.choice([0, 1, 5, 30]) / 1000, rng.choice([1, 0.3, 7]))
        if rng.random() < 0.3:
            curve = PiecewiseLinear([(1, 0.005), (8, 0.006), (20, 0.03), (60, 0.05)])
        best, _ = optimum(jobs, curve)
        for windows in nested(jobs, [curve]):
            for groups in (2, 3, 5, 200):
                assert windows.makespan_ns(Divisible(windows, groups).value) <= best
            small = windows.without_small(rng.choice([0.1, 0.3]))
            assert windows.makespan_ns(Divisible(small).value) <= best
            search = NestedSearch(windows)
            for states in (1, 30, 10**6):
                search.run(states)
                assert windows.makespan_ns(search.bound) <= best
                if search.launches is not None:
                    assert latest(jobs, search.launches, curve) >= best


@pytest.mark.parametrize("kept", [1, 3, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_states_and_collectives_that_are_left_out_lower_the_bound(kept: int, share: float) -> None:
    rng = random.Random(kept)
    dropped = 0
    for _ in range(60):
        jobs = random_jobs(rng, 8)
        curve = AlphaBeta(rng.choice([1, 3, 8]) / 1000, 1)
        best, _ = optimum(jobs, curve)
        windows = one(jobs, curve)
        found = NestedSearch(windows)._run(share, kept, 2**60, FOREVER, 10**9)
        assert found is not None
        assert found.launches is not None
        assert windows.makespan_ns(found.bound) <= best
        value = windows.value(latest(jobs, found.launches, curve))
        assert value <= found.value, "what was left out goes into the centre at no cost"
        dropped += not found.complete
    assert (dropped > 0) == (kept < 1000)


def test_groups_are_neighbours_and_the_innermost_one_is_alone() -> None:
    rng = random.Random(3)
    jobs = [Job(1000 - k, rng.randint(1, 9), 500 - k // 2, 0) for k in range(300)]
    group = group_of(one(jobs, AlphaBeta(1, 1)), 40)
    assert group[0] == 0
    assert group[1] == 1
    assert group[-1] < 40
    assert set(group[1:] - group[:-1]) <= {0, 1}


def test_the_bound_is_valid_on_steps_in_which_collectives_wait_for_collectives() -> None:
    rng = random.Random(5)
    for _ in range(150):
        tasks: list[Compute | Collective] = []
        names: list[str] = []
        for k in range(rng.randint(2, 9)):
            after = tuple(rng.sample(names, rng.randint(0, min(2, len(names)))))
            if rng.random() < 0.5:
                tasks.append(Compute(f"t{k}", rng.randint(0, 20), after=after))
            else:
                tasks.append(Collective(f"t{k}", rng.randint(1, 20), after=after))
            names.append(f"t{k}")
        if not any(isinstance(task, Collective) for task in tasks):
            continue
        problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.004, 1)})
        result = optimize(problem, scope="any", time_limit_s=5, workers=1)
        assert result.status == "optimal"
        assert nested_bound(problem, *paths_ns(problem), 0).ns <= result.makespan_ns


def test_forty_gradients_with_the_next_forward_pass_are_proved_with_the_fewest_launches() -> None:
    rng = random.Random(7)
    layers = [
        Layer(f"l{k}", rng.randint(50, 90) * 1000, rng.randint(100, 200) * 1000, size * 100_000)
        for k, size in enumerate(rng.randint(1, 200) for _ in range(40))
    ]
    problem = ddp_step(LayerProfile(layers), AlphaBeta(30, 60))
    result = optimize(problem, scope="any", time_limit_s=60, workers=1)
    assert result.status == "optimal"
    assert "least up to rounding" in result.reason
    assert result.statistics["states"] < 60 * 500_000
    in_order = optimize(problem, scope="in-order")
    assert play(problem, result.plan).makespan_ns < in_order.makespan_ns

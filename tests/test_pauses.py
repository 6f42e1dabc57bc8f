"""Filling pauses of streams with movable compute: the bound, the fillings, the plans."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from dataclasses import replace

import pytest
from oracles import Stuck, brute_force, simulate, stream_orders
from strategies import random_movable_step

from commsched.models import AlphaBeta, Collective, Compute, Plan, Problem
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize
from commsched.optimizer import pause_search as module
from commsched.optimizer import pauses as forms
from commsched.optimizer.ancestor_bound import ancestor_bound
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.filling import Filling, pause_bound
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.pause_search import PauseSearch
from commsched.optimizer.pauses import Filler, Stream, rounded, streams
from commsched.optimizer.starting import start
from commsched.problems.steps.experts import estimated_experts
from commsched.problems.steps.layers import LayerProfile
from commsched.problems.steps.moe_step import moe_step

FAR = 1 << 60
BLOCKS = 4


def random_stream(rng: random.Random) -> Stream:
    """Return a stream of few tasks that no step need have."""
    count = rng.randint(1, 4)
    fillers = []
    for number in range(rng.randint(1, 3)):
        late = rng.randint(0, count)
        members = sorted((rng.randint(0, late), f"m{number}{k}") for k in range(rng.randint(1, 2)))
        lags = tuple(
            (to, rng.randint(1, 9))
            for to in range(late, count)
            if late < count and rng.random() < 0.4
        )
        fillers.append(
            Filler(rng.choice((0, 2, 3, 7)), late, lags, rng.choice((0, 2, 8)), tuple(members))
        )
    return Stream(
        tuple(f"f{k}" for k in range(count)),
        tuple(rng.choice((0, 1, 4)) for _ in range(count)),
        tuple(sorted(rng.randint(0, 20) for _ in range(count))),
        tuple(sorted((rng.randint(0, 12) for _ in range(count)), reverse=True)),
        tuple(
            tuple((to, rng.randint(1, 9)) for to in range(k + 1, count) if rng.random() < 0.6)
            for k in range(count)
        ),
        tuple(sorted(fillers, key=lambda f: (f.late, -f.length, -f.tail, f.members))),
        0,
    )


def least_end(stream: Stream) -> int:
    """Try every pause for every movable task; within the last one every order."""
    count = len(stream.fixed)
    movable = [(early, f) for f in stream.fillers for early, _ in f.members]
    best = FAR
    for chosen in itertools.product(*(range(early, f.late + 1) for early, f in movable)):
        now = end = 0
        begins: list[int] = []
        demands = [0] * count
        for k in range(count):
            here = [f for (_, f), pause in zip(movable, chosen, strict=True) if pause == k]
            for f in here:
                end = max(end, now + f.length + f.tail)
                for to, ns in f.lags:
                    demands[to] = max(demands[to], now + f.length + ns)
            begins.append(max(demands[k], stream.head[k], now + sum(f.length for f in here)))
            now = begins[-1] + stream.length[k]
            end = max(end, now + stream.tail[k])
            for to, ns in stream.lags[k]:
                demands[to] = max(demands[to], now + ns)
        last = [f for (_, f), pause in zip(movable, chosen, strict=True) if pause == count]
        for order in itertools.permutations(last):
            at, latest = now, end
            for f in order:
                at += f.length
                latest = max(latest, at + f.tail)
            best = min(best, latest)
    return best


@pytest.mark.parametrize("block", range(BLOCKS))
def test_fillings_left_out_are_no_better(block):
    """With room for all states the search equals the enumeration of all fillings, without it a bound."""
    cut = 0
    for seed in range(400 * block, 400 * (block + 1)):
        stream = random_stream(random.Random(seed))
        search = PauseSearch(stream)
        best = least_end(stream)
        found = search.run(FAR, 10_000, math.inf)
        assert (found.bound, found.complete) == (best, True), seed
        # A known plan that is as good or better leaves nothing to be found.
        assert search.run(best, 10_000, math.inf).bound == best, seed
        assert search.run(best + 1, 10_000, math.inf).bound == best, seed
        assert search.run(best - 1, 10_000, math.inf).bound == best - 1, seed
        for width in (1, 2):
            narrow = search.run(FAR, width, math.inf)
            assert narrow.bound <= best, seed
            cut += not narrow.complete
        for order in found.orders:
            check_order(stream, order)
    assert cut > 20


def check_order(stream: Stream, order: tuple[str, ...]) -> None:
    """All tasks are there once, fixed ones in their order, movable ones in their windows."""
    place = {name: k for k, name in enumerate(order)}
    movable = [(early, name, f.late) for f in stream.fillers for early, name in f.members]
    assert sorted(order) == sorted([*stream.fixed, *(name for _, name, _ in movable)])
    assert [name for name in order if name in stream.fixed] == list(stream.fixed)
    for early, name, late in movable:
        pause = sum(place[fixed] < place[name] for fixed in stream.fixed)
        assert early <= pause <= late


def test_out_of_time_and_too_many_fillings_leave_a_bound(monkeypatch):
    cut = 0
    for seed in range(200):
        stream = random_stream(random.Random(seed))
        best = least_end(stream)
        over = PauseSearch(stream).run(FAR, 100, -math.inf)
        assert over.bound <= best
        assert (over.complete, over.orders) == (False, [])
        with monkeypatch.context() as patch:
            patch.setattr(module, "MOST_FILLINGS", 1)
            few = PauseSearch(stream).run(FAR, 100, math.inf)
        assert few.bound <= best, seed
        cut += not few.complete
    assert cut > 10


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("most_lengths", [1, 6])
def test_no_plan_is_better(block, most_lengths, monkeypatch):
    """All plans of small steps, with lengths as they are and rounded up and down."""
    monkeypatch.setattr(forms, "MAX_LENGTHS", most_lengths)
    monkeypatch.setattr(forms, "MAX_TAILS", 1 + block % 2)
    better = played = 0
    for seed in range(3000 + 300 * block, 3000 + 300 * (block + 1)):
        problem = random_movable_step(random.Random(seed))
        if not problem.movable or len(problem.tasks) > 8:
            continue
        try:
            best = brute_force(problem, "any").makespan
        except Stuck:
            continue
        for head, tail in (paths_ns(problem), ancestor_bound(problem)[:2]):
            bound = pause_bound(problem, head, tail).ns
            assert bound <= best, seed
        played += 1
        better += bound == best
    assert played > 10
    assert better > 0


def chain(rng: random.Random, layers: int) -> Problem:
    """Return router, all-to-all, experts, again and again; what fills the pauses has no equal."""
    tasks: list[Compute | Collective] = []
    before: tuple[str, ...] = ()
    for k in range(layers):
        tasks.append(Compute(f"a{k}", rng.randint(1, 5), after=before))
        tasks.append(Collective(f"x{k}", rng.randint(5, 15), after=(f"a{k}",)))
        before = (f"x{k}",)
        if rng.random() < 0.8:
            tasks.append(Compute(f"w{k}", rng.randint(1, 20), after=(f"a{k}",), movable=True))
    tasks.append(Compute("end", 1, after=before))
    return Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.001, 1)})


def test_all_to_alls_on_a_chain_are_closed():
    """Nothing can be fused and nothing reordered: only how pauses are filled is open."""
    for seed in range(40):
        rng = random.Random(seed)
        problem = chain(rng, 3)
        if not problem.movable:
            continue
        alone = Plan.of([name] for name in problem.names)
        best = FAR
        for orders in stream_orders(problem):
            with contextlib.suppress(Stuck):
                best = min(best, simulate(problem, replace(alone, orders=orders)).makespan)
        assert pause_bound(problem, *paths_ns(problem)).ns == best, seed
        known = Incumbent(problem, "any")
        start(known, 0.0, quick=True)
        Filling(known, *paths_ns(problem)).run(math.inf, 1 << 40)
        assert known.makespan_ns == known.bound.ns == best, seed


@pytest.mark.parametrize("scope", ["in-order", "fifo", "any"])
def test_plans_belong_to_the_scope(scope):
    """In scopes that fix the order of launches they keep it, and limits are kept in all."""
    for seed in range(60):
        problem = random_movable_step(random.Random(seed))
        known = Incumbent(problem, scope)
        start(known, 0.0, quick=True)
        if not problem.movable or known.plan is None:
            continue
        before = known.makespan_ns
        Filling(known, *paths_ns(problem)).run(math.inf, 10_000)
        assert known.makespan_ns <= before
        result = optimize(problem, scope=scope, time_limit_s=20)
        assert result.bound.ns <= known.makespan_ns
        assert known.bound.ns <= result.timeline.makespan_ns


def mixtral(layers: int, noise: float, gb_s: float) -> Problem:
    """Return a model with experts whose layers are alike, or have times of their own."""
    profile, experts = estimated_experts("mixtral-8x7b", samples=4096, tflops=300)
    rng = random.Random(0)

    def some(ns: int) -> int:
        return round(ns * (1 + noise * rng.random()))

    kept = tuple(
        replace(y, forward_ns=some(y.forward_ns), backward_ns=some(y.backward_ns))
        for y in profile.layers
        if y.name in list(experts)[:layers]
    )
    of_layer = {
        y.name: replace(
            experts[y.name],
            backward_ns=some(2 * experts[y.name].forward_ns),
            weight_gradient_ns=some(experts[y.name].forward_ns),
        )
        for y in kept
    }
    return moe_step(LayerProfile(kept), of_layer, {"all_to_all": AlphaBeta(50, gb_s)})


def test_a_model_with_experts_is_proved():
    """All-to-alls that are much shorter than what fills them, in 16 layers."""
    result = optimize(mixtral(16, 0.0, 12.5), scope="any", time_limit_s=60)
    assert result.status is Status.OPTIMAL
    assert result.bound.proof == "pauses filled"


@pytest.mark.parametrize("gb_s", [12.5, 25, 100])
def test_measured_times_are_never_alike(gb_s):
    """With 3% of noise in every time there are 32 kinds, and the bound still says more."""
    problem = mixtral(16, 0.03, gb_s)
    result = optimize(problem, scope="any", time_limit_s=20)
    assert result.gap < 0.01
    head, tail, before = ancestor_bound(problem)
    assert result.bound.ns >= pause_bound(problem, head, tail, before.ns).ns
    assert play(problem, result.plan).makespan_ns == result.timeline.makespan_ns


@pytest.mark.parametrize("rounding", ["up", "down"])
def test_rounding_keeps_to_its_side(rounding):
    rng = random.Random(1)
    for _ in range(200):
        values = [rng.randint(0, 50) for _ in range(rng.randint(1, 12))]
        most = rng.randint(1, 5)
        found = rounded(values, most, rounding)
        assert set(found) == set(values)
        assert len(set(found.values())) <= most
        assert set(found.values()) <= set(values)
        for value, other in found.items():
            assert other >= value if rounding == "up" else other <= value


def test_streams_without_pauses_are_left_alone():
    """No movable task, only movable ones, or more paths than are looked at."""
    cost = {("dp", "allreduce"): AlphaBeta(0, 1)}
    still = Problem([Compute("a", 1), Collective("x", 1, after=("a",))], cost)
    moving = Problem([Compute("a", 1, movable=True), Collective("x", 1, after=("a",))], cost)
    for problem in (still, moving):
        assert streams(problem, *paths_ns(problem)) == {}
        assert pause_bound(problem, *paths_ns(problem), 7).ns == 7
        known = Incumbent(problem, "any")
        known.offer(Plan.of([["x"]]), "one")
        assert Filling(known, *paths_ns(problem)).run(math.inf, 100) == 0


def test_too_many_paths_are_not_looked_at(monkeypatch):
    problem = chain(random.Random(3), 5)
    assert streams(problem, *paths_ns(problem))
    monkeypatch.setattr(forms, "MAX_LAGS", 3)
    assert streams(problem, *paths_ns(problem)) == {}

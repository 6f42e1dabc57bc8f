"""The search for whole steps: exact classes, bounds, local search, and what callers can watch."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import textwrap

import pytest
from oracles import brute_force
from strategies import random_problem, random_step
from test_optimize import next_forward

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    DeadlockError,
    Gradient,
    GradientProblem,
    NotApplicableError,
    PiecewiseLinear,
    Plan,
    Problem,
)
from commsched.models.timeline import play
from commsched.optimizer import RULES, Status, closed_form_bound, optimize
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.deadlines import deadline_plan, fewest_launches, why_no_deadlines
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.launch_bound import launch_bound
from commsched.optimizer.priorities import PrioritySearch
from commsched.optimizer.search import bound_of
from commsched.optimizer.starting import in_scope, start
from commsched.optimizer.two_sided import two_sided_bound
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile

# More seeds: COMMSCHED_SEEDS=20 runs twenty times as many.
TIMES = int(os.environ.get("COMMSCHED_SEEDS", "1"))


def only_compute_waits(rng: random.Random, most: int = 5) -> Problem:
    """Return a random step in which no collective waits for a collective."""
    step = random_step(rng, most)
    tasks = [
        dataclasses.replace(
            task,
            after=tuple(n for n in task.after if n not in step.waiting and n not in step.index),
        )
        if isinstance(task, Collective)
        else task
        for task in step.tasks
    ]
    return Problem(tasks, step.costs, channels=step.groups_of_channel)


def sharded(layers: int, seed: int = 0) -> Problem:
    """Return gathers that forward and backward wait for, and scatters of the gradients."""
    rng = random.Random(seed)
    sizes = [rng.randint(5, 30) * 100_000 for _ in range(layers)]
    tasks: list[Compute | Collective] = []
    for k, size in enumerate(sizes):
        tasks.append(Collective(f"g{k}", size, "all_gather"))
        tasks.append(Compute(f"f{k}", rng.randint(20, 60) * 1000, after=(f"g{k}",)))
    for k in reversed(range(layers)):
        tasks.append(Collective(f"r{k}", sizes[k], "all_gather", after=(f"f{layers - 1}",)))
        tasks.append(Compute(f"b{k}", rng.randint(40, 120) * 1000, after=(f"r{k}",)))
        tasks.append(Collective(f"s{k}", sizes[k], "reduce_scatter", after=(f"b{k}",)))
    cost = AlphaBeta(15, 20)
    return Problem(tasks, {("dp", "all_gather"): cost, ("dp", "reduce_scatter"): cost})


@pytest.mark.parametrize("block", range(4))
def test_deadlines_equal_brute_force(block):
    """In order, where only compute waits: makespan, launches and bound are those of all plans."""
    several = 0
    for seed in range(100 * TIMES * block, 100 * TIMES * (block + 1)):
        problem = only_compute_waits(random.Random(seed))
        assert why_no_deadlines(problem, "in-order") is None
        found = deadline_plan(problem)
        best = brute_force(problem, "in-order")
        assert play(problem, found.plan).makespan_ns == found.bound.ns == best.makespan, seed
        assert (found.optimal, found.fewest, found.plan.launches) == (True, True, best.launches)
        several += len(problem.chains) > 1
    assert several > 10


@pytest.mark.parametrize("block", range(4))
def test_enumeration_equals_brute_force(block):
    """Any order, where only compute waits: without CP-SAT, for every cost curve."""
    methods = set()
    for seed in range(5000 + 60 * TIMES * block, 5000 + 60 * TIMES * (block + 1)):
        problem = only_compute_waits(random.Random(seed))
        known = Incumbent(problem, "any")
        start(known, 0.0, quick=True)
        search = PrioritySearch(known, 0)
        search.run(known.until, 50)
        assert search.prove(known.until)
        best = brute_force(problem, "any")
        assert known.makespan_ns == known.bound.ns == best.makespan, seed
        assert search.fewest_launches(best.makespan, known.until)
        assert (known.makespan_ns, known.plan.launches) == best[:2], seed
        methods.add(known.method)
    assert "local search" in methods


@pytest.mark.parametrize("block", range(4))
def test_bounds_are_below_every_plan(block):
    """Launches needed and both sides: no plan of any step is better than they say."""
    useful = {"launches": 0, "sides": 0}
    for seed in range(150 * TIMES * block, 150 * TIMES * (block + 1)):
        problem = random_problem(random.Random(seed), 5)
        best = brute_force(problem, "any").makespan
        plain = closed_form_bound(problem).ns
        head, tail = paths_ns(problem)
        for lower in (0, plain):
            launches = launch_bound(problem, head, tail, lower).ns
            sides = two_sided_bound(problem, head, tail, lower).ns
            assert max(launches, sides) <= best, seed
        assert plain <= bound_of(problem).ns <= best
        useful["launches"] += launches > plain
        useful["sides"] += sides > plain
    assert min(useful.values()) > 0


def test_next_forward_of_two_thousand_gradients_is_closed_in_order():
    """The class that DDP runs needs no solver at any size that occurs."""
    problem = next_forward(600, seed=2)
    result = optimize(problem)
    assert (result.status, result.method) == (Status.OPTIMAL, "recurrence")
    assert "recurrence with deadlines" in result.reason


@pytest.mark.parametrize("time_limit_s", [0.01, 0.1, 1])
def test_no_rule_is_better_at_any_limit(time_limit_s):
    """However short the limit: no rule of the scope that runs whole tensors is better."""
    layers = [Layer(f"l{k}", 40_000 + 900 * k, 90_000, 900_000 + 70_000 * k) for k in range(20)]
    costs = {"all_gather": AlphaBeta(15, 20), "reduce_scatter": AlphaBeta(15, 20)}
    limited = fsdp_step(LayerProfile(layers), costs, gathered_limit_bytes=6_000_000)
    for problem in (next_forward(40, 3), next_forward(120, 4), sharded(6), limited):
        for scope in ("in-order", "any"):
            result = optimize(problem, scope=scope, time_limit_s=time_limit_s, workers=2)
            compared = 0
            for rule in RULES:
                try:
                    plan = rule.make(problem)
                    rule_ns = play(problem, plan).makespan_ns
                except (NotApplicableError, DeadlockError):
                    continue
                if in_scope(problem, plan, scope) and not play(problem, plan).broken:
                    assert result.makespan_ns <= rule_ns, rule.name
                    compared += 1
            assert compared or problem.limits


def test_local_search_closes_what_in_order_leaves_open():
    """Scope any, 80 gradients: within a per cent of the bound in two seconds."""
    problem = next_forward(80, seed=5)
    in_order = optimize(problem)
    result = optimize(problem, scope="any", time_limit_s=2, workers=2)
    assert result.makespan_ns < in_order.makespan_ns
    assert result.gap < 0.01


def test_few_launches_within_a_share_of_the_makespan():
    """within=0.02: no more launches than without, and at most 2% longer; the reason says so."""
    settled = GradientProblem(
        [Gradient(f"g{k}", 1000, k * 3000) for k in range(30)], AlphaBeta(0.5, 2)
    )
    forward = next_forward(14, seed=1)
    for problem, scope in (
        (settled, "in-order"),
        (settled, "any"),
        (forward, "in-order"),
        (forward, "any"),
        (sharded(3), "in-order"),
    ):
        best = optimize(problem, scope=scope, time_limit_s=20, workers=2)
        few = optimize(problem, scope=scope, within=0.02, time_limit_s=20, workers=2)
        assert best.status is Status.OPTIMAL
        assert few.plan.launches <= best.plan.launches
        assert best.makespan_ns <= few.makespan_ns <= best.makespan_ns * 1.02
        assert few.lower_bound_ns <= best.makespan_ns
        assert "launches within 2.00%" in few.reason
    assert optimize(settled, within=0.1).plan.launches < optimize(settled).plan.launches


def test_within_is_exact_in_order():
    """The fewest launches of all plans that are at most so much longer."""
    for seed in range(60):
        problem = only_compute_waits(random.Random(seed), 5)
        best = brute_force(problem, "in-order").makespan
        allowed = best + int(best * 0.3)
        plan = fewest_launches(problem, allowed)
        assert play(problem, plan).makespan_ns <= allowed
        assert plan.launches <= deadline_plan(problem).plan.launches
        assert plan.launches == optimize(problem, within=0.3).plan.launches


def test_progress_is_told_and_only_ever_gets_better():
    """Times ascend, makespans fall, bounds rise, and the last word is the result."""
    told: list[tuple[float, int | None, int]] = []
    problem = sharded(5)
    result = optimize(problem, time_limit_s=20, workers=2, progress=lambda *now: told.append(now))
    assert [now[0] for now in told] == sorted(now[0] for now in told)
    makespans = [now[1] for now in told if now[1] is not None]
    assert makespans == sorted(makespans, reverse=True)
    assert [now[2] for now in told] == sorted(now[2] for now in told)
    assert makespans[-1] == result.makespan_ns
    assert told[-1][2] <= result.lower_bound_ns


def test_interrupting_keeps_the_best_plan_and_its_bound():
    """Ctrl-C, wherever it comes, ends the search and not the call."""
    for calls in range(1, 8):
        count = 0

        def stop(*_now: object, calls: int = calls) -> None:
            nonlocal count
            count += 1
            if count == calls:
                raise KeyboardInterrupt

        problem = sharded(12, seed=1)
        result = optimize(problem, time_limit_s=3, workers=2, progress=stop)
        assert 0 <= result.lower_bound_ns <= result.makespan_ns
        if count >= calls:
            assert "interrupted" in result.reason


def test_an_error_in_progress_is_the_callers_own():
    """What else a progress function raises comes out of the call."""

    def fail(*_now: object) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        optimize(next_forward(4), scope="any", progress=fail)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a process")
def test_sigint_during_cpsat_returns_a_result():
    """A real signal while CP-SAT runs: the process prints the plan's state and ends well."""
    script = textwrap.dedent(
        """
        import os, signal, sys, warnings
        sys.path.insert(0, sys.argv[1])
        from test_search import sharded
        from commsched.optimizer import optimize
        told = []
        def progress(seconds, makespan_ns, bound_ns):
            if "ortools" in sys.modules and not told:
                told.append(1)
                os.kill(os.getpid(), signal.SIGINT)
        result = optimize(sharded(16, seed=3), time_limit_s=60, workers=2, progress=progress)
        print(len(told), "interrupted" in result.reason, result.makespan_ns >= result.lower_bound_ns,
              result.wall_s < 50)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["1", "True", "True", "True"], done.stderr
    assert done.returncode == 0


def test_statistics_and_log_of_cpsat(capfd):
    """The result counts what CP-SAT did; its log goes to standard error and nowhere else."""
    result = optimize(sharded(4), method="cpsat", time_limit_s=20, workers=1, log=True)
    assert result.statistics["runs"] >= 1
    assert result.statistics["branches"] >= 0
    assert result.statistics["solver_s"] > 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "CpSolverResponse" in err or "CP-SAT" in err


def test_the_same_seed_gives_the_same_plan():
    """Local search ends by moves, so two runs agree; also where nothing is proved."""
    problem = next_forward(60, seed=8)
    plans = [
        PrioritySearchRun(problem).plan,
        PrioritySearchRun(problem).plan,
    ]
    assert plans[0] == plans[1]


class PrioritySearchRun:
    """Local search alone, with a fixed number of moves."""

    def __init__(self, problem: Problem) -> None:
        known = Incumbent(problem, "any")
        start(known, 0.0, quick=True)
        search = PrioritySearch(known, seed=3)
        known.until = known.started + 100
        search.run(known.until, 3000)
        self.plan: Plan = known.plan


def test_groupings_improve_what_is_too_large_for_one_model(monkeypatch):
    """Beyond the size of one model neighbours are grouped; the plan is never worse than a rule's."""
    monkeypatch.setattr("commsched.optimizer.model_size.MAX_PAIRS", 50)
    problem = sharded(12, seed=2)
    for scope in ("in-order", "any"):
        known = Incumbent(problem, scope)
        start(known, known.until)
        result = optimize(problem, scope=scope, time_limit_s=6, workers=2)
        assert result.makespan_ns <= known.makespan_ns
        assert in_scope(problem, result.plan, scope)
        assert result.makespan_ns < known.makespan_ns or result.status is Status.OPTIMAL


def test_a_curve_with_a_jump_is_enumerated():
    """No solver is loaded for a handful of collectives, whatever the curve."""
    gradients = [Gradient(f"g{k}", 3 + k % 4, k) for k in range(8)]
    problem = GradientProblem(gradients, PiecewiseLinear([(9, 0.004), (10, 0.020), (40, 0.025)]))
    result = optimize(problem, scope="any", workers=1)
    assert result.status is Status.OPTIMAL
    assert result.method != "cpsat"


def test_one_launch_under_way_at_both_moments_is_counted_once():
    """The bound of both sides must not count the start-up of one launch on either side."""
    problem = Problem(
        [
            Compute("b", 50),
            Collective("x", 100),
            Collective("y", 1, after=("b",)),
            Compute("f", 40, after=("x",)),
        ],
        {("dp", "allreduce"): AlphaBeta(0.01, 1)},
    )
    best = optimize(problem, scope="any")
    assert best.makespan_ns == 150
    assert two_sided_bound(problem, *paths_ns(problem), 150).ns <= 150

"""CP-SAT under limits, limited memory and movable compute, against plain enumeration."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from oracles import Stuck, brute_force
from ortools.sat.python import cp_model
from strategies import (
    random_gradient_problem,
    random_limits,
    random_memory_step,
    random_movable_step,
    random_step,
)

from commsched.models import (
    AlphaBeta,
    BytesInFlight,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Hold,
    LaunchesInFlight,
    LeastBucketBytes,
    MostBucketBytes,
    Plan,
    PoolBytes,
    Problem,
    StepTable,
)
from commsched.models.coverage import is_fifo
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize
from commsched.optimizer.cpsat import AnyOrderModel
from commsched.optimizer.cpsat.search import extract, hint_all


def limited_step(rng: random.Random) -> Problem:
    step = random_step(rng, 4)
    return step.with_limits(random_limits(rng, step))


def limited_gradients(rng: random.Random) -> Problem:
    problem = random_gradient_problem(rng, 5)
    return problem.with_limits(random_limits(rng, problem))


def movable_and_counted(rng: random.Random) -> Problem:
    """Return a step with movable tasks in which something is counted from a ready time on."""
    step = random_movable_step(rng, 3)
    names = [task.name for task in step.tasks]
    tasks, holds = [], False
    for task in step.tasks:
        if isinstance(task, Collective) and rng.random() < 0.8:
            until = tuple(rng.sample(names, min(len(names), rng.choice((0, 0, 1, 2)))))
            task = replace(task, hold=Hold("pool", rng.choice(("ready", "ready", "start")), until))
            holds = True
        tasks.append(task)
    limits = [PoolBytes("pool", rng.randint(8, 40))] if holds and rng.random() < 0.6 else []
    if not limits or rng.random() < 0.5:
        most = max(1, sum(step.bytes))
        limits.append(
            rng.choice((BytesInFlight(rng.randint(most // 3, most)), LaunchesInFlight(2)))
        )
    return Problem(tasks, step.costs, channels=step.groups_of_channel, limits=limits)


@pytest.mark.parametrize("scope", ["in-order", "any"])
@pytest.mark.parametrize(
    ("make", "count", "both"),
    [
        (limited_step, 120, True),
        (limited_gradients, 120, True),
        (lambda rng: random_memory_step(rng, 4), 120, False),
        (random_movable_step, 120, False),
        (movable_and_counted, 150, True),
    ],
    ids=[
        "limited steps",
        "limited gradients",
        "memory",
        "movable compute",
        "movable compute and what is counted from a ready time on",
    ],
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


def test_first_come_first_served_with_limits_and_memory():
    """Scope fifo under limits: the best of every plan that runs without being held back."""
    seen = set()
    for seed in range(150):
        rng = random.Random(seed)
        problem = random_memory_step(rng, 4) if seed % 2 else limited_step(rng)
        result = optimize(problem, scope="fifo", method="cpsat", time_limit_s=60, workers=2)
        seen.add(result.status)
        try:
            best = brute_force(problem, "fifo")
        except Stuck:
            assert result.status == Status.INFEASIBLE, seed
            continue
        assert result.status == Status.OPTIMAL, seed
        timeline = play(problem, result.plan)
        assert is_fifo(timeline), seed
        assert timeline.broken == (), seed
        assert not any(bucket.not_before_ns for bucket in result.plan.buckets), seed
        rounding = timeline.makespan_ns - result.bound.ns
        assert best.makespan <= timeline.makespan_ns <= best.makespan + rounding, seed
        assert result.bound.ns <= best.makespan, seed
    assert seen == {Status.OPTIMAL, Status.INFEASIBLE}


def test_a_large_first_come_first_served_step_fits_into_the_model():
    """Where ready times are fixed the order of launches is known: no pairs, so hundreds fit."""
    cost = {("dp", "allreduce"): AlphaBeta(20, 25)}
    tasks: list[Compute | Collective] = []
    for k in range(100):
        tasks += [
            Compute(f"b{k}", 40_000),
            Collective(f"g{k}", 1_000_000, after=(f"b{k}",)),
            Compute(f"f{k}", 10_000, "next", after=(f"g{k}",)),
        ]
    problem = Problem(tasks, cost)
    known = Plan.of([name] for name in problem.names)
    model = AnyOrderModel(problem, known, 0, fifo=True)
    hint_all(model.step, time.monotonic() + 60)
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model.step.cp) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    plan = extract(model, solver)
    assert is_fifo(play(problem, plan))
    assert play(problem, plan).makespan_ns == play(problem, known).makespan_ns


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


@pytest.mark.parametrize("scope", ["in-order", "fifo", "any"])
def test_what_is_held_for_no_time_counts_nothing(scope):
    """A launch that takes no time fills no pool and is not in flight, whatever its size."""
    tasks = [
        Collective("free", 8, "broadcast", hold=Hold("pool", "ready")),
        Collective("paid", 1, "allreduce", after=("free",), hold=Hold("pool", "ready")),
    ]
    costs = {
        ("dp", "broadcast"): StepTable([(8, 0.0), (20, 0.0)]),
        ("dp", "allreduce"): AlphaBeta(0.01, 1),
    }
    problem = Problem(
        tasks,
        costs,
        limits=[PoolBytes("pool", 7), LaunchesInFlight(1)],
    )
    result = optimize(problem, scope=scope, method="cpsat", workers=1)
    assert (result.status, result.makespan_ns) == (Status.OPTIMAL, 11)


@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_no_launch_is_stretched_to_put_off_what_waits_for_it(scope):
    """What waits for a launch takes memory when that ends, as the evaluator has it and no later."""
    problem = random_memory_step(random.Random(408), 4)
    result = optimize(problem, scope=scope, method="cpsat", workers=2)
    assert (result.status, play(problem, result.plan).broken) == (Status.OPTIMAL, ())

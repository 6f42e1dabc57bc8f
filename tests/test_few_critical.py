"""The bound from a few chains of collectives by themselves, and the enumeration that it uses."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from oracles import Stuck, brute_force
from strategies import random_problem

from commsched.models import AlphaBeta, Collective, Compute, Problem
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize
from commsched.optimizer.ancestor_bound import ancestor_bound
from commsched.optimizer.bounds import closed_form_bound, paths_ns
from commsched.optimizer.few_critical import few_critical_bound
from commsched.optimizer.small_steps import least_makespan
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layers import Layer, LayerProfile
from commsched.problems.steps.two_level import two_level

BLOCKS = 4


def stages(rng: random.Random, count: int = 2) -> Problem:
    """Return gradients that are reduced in stages on channels that they share."""
    groups = ("inside", "across")
    tasks: list[Compute | Collective] = []
    last = []
    for k in range(count):
        tasks.append(Compute(f"b{k}", rng.randint(0, 4)))
        before = f"b{k}"
        for number, group in enumerate(rng.choice((groups, ("inside", "across", "inside")))):
            name = f"c{k}{number}"
            tasks.append(Collective(name, rng.randint(1, 9), group=group, after=(before,)))
            before = name
        last.append(before)
    tasks += [Compute(f"f{k}", rng.randint(0, 6), after=(last[k],)) for k in reversed(range(count))]
    kinds = {task.group for task in tasks if isinstance(task, Collective)}
    cost = AlphaBeta(rng.choice((0, 0.002, 0.02)), 1)
    return Problem(tasks, {(group, "allreduce"): cost for group in sorted(kinds)})


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("make", [stages, lambda rng: random_problem(rng, 5)])
def test_no_plan_is_better(block, make):
    played = said = 0
    for seed in range(40 * block, 40 * (block + 1)):
        problem = make(random.Random(seed))
        if len(problem.names) > 6:
            continue
        try:
            best = brute_force(problem, "any").makespan
        except Stuck:
            continue
        head, tail, _ = ancestor_bound(problem)
        for sides in (paths_ns(problem), (head, tail)):
            bound = few_critical_bound(problem, *sides).ns
            assert bound <= best, seed
        played += 1
        said += bound > closed_form_bound(problem).ns
    assert played > 20
    assert said > 0 or make is not stages


def with_ends(problem: Problem, head: dict[str, int], tail: dict[str, int]) -> Problem:
    """Return the step in which heads and tails are tasks, each on a stream of its own."""
    tasks: list[Compute | Collective] = [
        Compute(f"head {name}", ns, stream=f"head {name}") for name, ns in head.items()
    ]
    for task in problem.tasks:
        tasks.append(replace(task, after=(*task.after, f"head {task.name}")))
        name = f"tail {task.name}"
        tasks.append(Compute(name, tail[task.name], stream=name, after=(task.name,)))
    return Problem(tasks, problem.costs, channels=problem.groups_of_channel)


def test_heads_and_tails_of_the_enumeration_are_tasks_without_a_machine():
    looked = 0
    for seed in range(150):
        rng = random.Random(seed)
        problem = random_problem(rng, 3)
        problem = problem.with_limits([])
        if len(problem.tasks) > 6:
            continue
        head = {task.name: rng.randint(0, 12) for task in problem.tasks}
        tail = {task.name: rng.randint(0, 12) for task in problem.tasks}
        try:
            best = brute_force(with_ends(problem, head, tail), "any").makespan
        except Stuck:
            continue
        assert least_makespan(problem, head, tail) == best, seed
        looked += 1
    assert looked > 30


@pytest.mark.parametrize("gb_s", [12.5, 25, 100])
def test_two_levels_are_proved(gb_s):
    """The gradient that is ready last and needed first, and its neighbour, decide the step."""
    layers = [Layer(f"h{k}", 300_000, 600_000, 28_000_000) for k in range(12)]
    profile = LayerProfile((Layer("embedding", 100, 100, 150_000_000), *layers))
    across = AlphaBeta(20, gb_s)
    inside = {"reduce_scatter": AlphaBeta(10, 200), "all_gather": AlphaBeta(10, 200)}
    problem = two_level(ddp_step(profile, across), inside, across, local_ranks=8)
    result = optimize(problem, scope="any", time_limit_s=30)
    assert result.status is Status.OPTIMAL
    assert play(problem, result.plan).makespan_ns == result.timeline.makespan_ns


def test_no_chains_no_bound():
    cost = {("dp", "allreduce"): AlphaBeta(0.001, 1)}
    alone = Problem([Collective("a", 4), Collective("b", 6)], cost)
    assert few_critical_bound(alone, {}, {}, 3).ns == 3
    after = [Collective(f"c{k}", 4, after=(f"c{k - 1}",) if k else ()) for k in range(9)]
    long = Problem([*after, Collective("x", 1), Collective("y", 1, after=("x",))], cost)
    assert few_critical_bound(long, {}, {}, 3).ns == 3


def test_out_of_time_keeps_what_is_known():
    problem = stages(random.Random(1), 3)
    assert few_critical_bound(problem, {}, {}, 5, -1.0).ns == 5

"""Small random layers and costs for the builders of whole steps, and checks that all share."""

from __future__ import annotations

import random

from oracles import brute_force, simulate

from commsched.models import AlphaBeta, CostCurve, Kind, Plan, Problem, evaluate
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize
from commsched.optimizer.bounds import closed_form_bound
from commsched.optimizer.rules.each import one_each
from commsched.problems import problem_to_bytes
from commsched.problems.problem_file import problem_from_bytes
from commsched.problems.steps.layers import Layer, LayerProfile, Tensor

SIZES = (1, 2, 3, 5, 8)
TIMES = (0, 1, 4, 9, 20)


def random_profile(
    rng: random.Random, count: int, *, tensors: bool = False, bare: bool = True
) -> LayerProfile:
    """Return layers of small whole numbers; some have no parameters if ``bare`` allows it."""
    layers = []
    for k in range(count):
        size = 0 if bare and k and rng.random() < 0.2 else rng.choice(SIZES)
        backward = rng.choice(TIMES)
        split: tuple[Tensor, ...] = ()
        if tensors and size > 1 and rng.random() < 0.5:
            split = (Tensor(f"L{k}.w", size - 1), Tensor(f"L{k}.b", 1))
        layers.append(
            Layer(
                f"L{k}",
                rng.choice(TIMES),
                backward,
                size,
                weight_gradient_ns=rng.choice((None, backward // 2, backward)),
                tensors=split,
            )
        )
    return LayerProfile(tuple(layers), "random")


def random_cost(rng: random.Random) -> CostCurve:
    """Return a start-up of a few ns and a byte or two a ns."""
    return AlphaBeta(rng.choice((0, 0.002, 0.006)), rng.choice((1, 2, 0.5)))


def sharded_costs(rng: random.Random) -> dict[Kind, CostCurve]:
    return {"all_gather": random_cost(rng), "reduce_scatter": random_cost(rng)}


def each(problem: Problem) -> Plan:
    """Return one launch for each collective as listed."""
    return Plan.of([name] for name in problem.names)


def check_step(problem: Problem, *plans: Plan) -> None:
    """Two evaluators agree on the plans and on one launch each; no bound exceeds a makespan.

    And the problem file holds all of the step.
    """
    again = problem_from_bytes(problem_to_bytes(problem), "step.json")
    assert (again.tasks, again.limits, again.channels) == (
        problem.tasks,
        problem.limits,
        problem.channels,
    )
    for plan in (one_each(problem), *plans):
        timeline = evaluate(problem, plan)
        played = simulate(problem, plan)
        assert (timeline.makespan_ns, timeline.exposed_ns) == (played.makespan, played.exposed)
        assert closed_form_bound(problem).ns <= timeline.makespan_ns


def check_optimum(problem: Problem, scope: str) -> int:
    """The optimizer's makespan is the best of all plans; return it."""
    result = optimize(problem, scope=scope, time_limit_s=60, workers=2)
    assert result.status == Status.OPTIMAL
    timeline = play(problem, result.plan)
    assert timeline.broken == ()
    best = brute_force(problem, scope)
    rounding = timeline.makespan_ns - result.bound.ns
    assert result.bound.ns <= best.makespan <= timeline.makespan_ns <= best.makespan + rounding
    return best.makespan

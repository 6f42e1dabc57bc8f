"""CP-SAT by counted work: the same seed and number of workers give the same plan again."""

from __future__ import annotations

import random
import time

import pytest
from ortools.sat.python import cp_model

from commsched.models import AlphaBeta, Problem, evaluate
from commsched.optimizer.bounds import closed_form_bound
from commsched.optimizer.cpsat import AnyOrderModel, Budget, InOrderModel, solve
from commsched.optimizer.cpsat.search import hint_all
from commsched.optimizer.starting import best_known
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile

COSTS = {"all_gather": AlphaBeta(20, 25), "reduce_scatter": AlphaBeta(20, 25)}


def step(count: int, **options: object) -> Problem:
    rng = random.Random(1)
    found = [
        Layer(f"y{k}", rng.randint(20, 60) * 1000, 90_000, rng.randint(100, 900) * 4000)
        for k in range(count)
    ]
    return fsdp_step(LayerProfile(tuple(found)), COSTS, **options)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("build", [InOrderModel, AnyOrderModel])
def test_counted_work_repeats_exactly(build, workers):
    """Stopped by its work and not by the clock, a run ends with the plan it ended with before."""
    problem = step(12)
    _, known = best_known(problem)
    outcomes = [
        solve(
            build(problem, known, closed_form_bound(problem).ns),
            Budget(120, workers=workers, seed=3, work=0.05),
        )
        for _ in range(2)
    ]
    first, second = outcomes
    assert first.plan == second.plan
    assert first.bound == second.bound
    counted = ("runs", "conflicts", "branches", "deterministic_time", "clock_cuts")
    assert [first.statistics[c] for c in counted] == [second.statistics[c] for c in counted]
    assert first.statistics["clock_cuts"] == 0


def test_a_run_that_the_clock_ended_says_so():
    problem = step(24)
    _, known = best_known(problem)
    model = InOrderModel(problem, known, closed_form_bound(problem).ns)
    cut = solve(model, Budget(0.3, workers=2, work=1e6))
    assert cut.statistics["clock_cuts"] == 1


@pytest.mark.parametrize("limited", [False, True])
def test_hints_are_completed_where_limits_need_more_variables(limited):
    """Every variable has a value, and with these values the known plan is a solution."""
    options = {"communicators": 2, "gathered_limit_bytes": 9_000_000} if limited else {}
    problem = step(12, **options)
    _, known = best_known(problem)
    model = InOrderModel(problem, known, 0)
    hint_all(model.step, time.monotonic() + 60)
    hint = model.step.cp.proto.solution_hint
    assert sorted(hint.vars) == list(range(len(model.step.cp.proto.variables)))
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model.step.cp) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    makespan_ns = evaluate(problem, known).makespan_ns
    assert solver.value(model.step.makespan) // model.step.scale == makespan_ns

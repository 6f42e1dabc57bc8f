"""Every framework on every kind of step and plan: a true export, or one clear line."""

from __future__ import annotations

import random

import pytest
from export_cases import check_export
from strategies import (
    random_gradient_problem,
    random_limits,
    random_memory_step,
    random_movable_step,
    random_step,
    random_valid_chunk_plan,
    random_valid_plan,
)

from commsched.export import EXPORTERS, Export, ExportOptions, export
from commsched.export.xla import combine
from commsched.models import (
    AlphaBeta,
    Gradient,
    GradientProblem,
    InputError,
    NotApplicableError,
    Plan,
    Problem,
    evaluate,
)
from commsched.optimizer import rule

OPTIONS = (
    ExportOptions(),
    ExportOptions("2.11.0", zero_stage=1, ranks=4),
    ExportOptions("1.0", zero_stage=3, distributed_optimizer=True),
)


def any_problem(rng: random.Random) -> Problem:
    """Return a step of some kind, sometimes with limits."""
    make = rng.choice(
        (random_gradient_problem, random_step, random_memory_step, random_movable_step)
    )
    problem = make(rng)
    if rng.random() < 0.2:
        problem = problem.with_limits([*problem.limits, *random_limits(rng, problem)])
    return problem


@pytest.mark.parametrize("framework", [*EXPORTERS])
def test_any_plan_is_exported_truly_or_refused(framework):
    """Random steps with several kinds, groups, limits, chunks, holds: nothing else is raised."""
    rng = random.Random(sum(map(ord, framework)))
    done = refused = 0
    for _ in range(250):
        problem = any_problem(rng)
        make = random_valid_chunk_plan if rng.random() < 0.15 else random_valid_plan
        plan = make(rng, problem)
        try:
            found = export(problem, plan, framework, rng.choice(OPTIONS))
        except (NotApplicableError, InputError) as error:
            text = str(error)
            assert text.isprintable(), text
            refused += 1
            continue
        done += 1
        assert isinstance(found, Export)
        assert not plan.splits
        check_export(problem, plan, found)
        assert not evaluate(problem, found.projected).broken
    assert refused > 10
    assert done > (0 if framework == "fsdp2" else 10)


@pytest.mark.parametrize(
    "framework", ["ddp", "horovod", "megatron", "deepspeed", "xla", "inductor"]
)
def test_many_gradients_get_the_best_of_many_values(framework):
    """Looking at every plan would take minutes; it is said that it was not done."""
    gradients = [
        Gradient(f"g {k}", 4 * 1000 * (1 + k % 7), 20_000 * k, ("float32", "float16")[k % 2])
        for k in range(700)
    ]
    problem = GradientProblem(gradients, AlphaBeta(20, 5))
    names = [[g.name for g in gradients if g.dtype == t] for t in ("float32", "float16")]
    plan = Plan.of(part for some in names for part in (some[:100], some[100:]))
    plan = Plan(tuple(sorted(plan.buckets, key=lambda b: int(b.names[-1].split()[1]))))
    found = export(problem, plan, framework)
    check_export(problem, plan, found)
    if not found.exact:
        assert any("were tried it is the best" in text for text in found.cannot)
    default = rule(framework).make(problem) if framework != "xla" else combine(problem, 2**62)
    after = evaluate(problem, found.projected).makespan_ns
    assert after <= evaluate(problem, default).makespan_ns


@pytest.mark.parametrize("framework", [*EXPORTERS])
def test_the_same_plan_gives_the_same_export(framework):
    """Nothing depends on hashing or on the clock."""
    rng = random.Random(3)
    for _ in range(20):
        problem = random_gradient_problem(rng)
        plan = random_valid_plan(rng, problem)
        results = []
        for _ in range(2):
            try:
                results.append(export(problem, plan, framework))
            except (NotApplicableError, InputError) as error:
                results.append(str(error))
        assert results[0] == results[1]

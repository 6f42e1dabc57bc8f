"""Plans as DeepSpeed's JSON."""

from __future__ import annotations

import json
import random

import pytest
from export_cases import (
    FOUR,
    THREE_BUCKETS,
    buckets_of,
    check_export,
    random_partition,
    random_step,
)

from commsched.export import ExportOptions, export
from commsched.models import (
    AlphaBeta,
    Gradient,
    GradientProblem,
    InputError,
    NotApplicableError,
    Plan,
    evaluate,
)
from commsched.optimizer import rule
from commsched.optimizer.rules.deepspeed import deepspeed


def size_of(found) -> int:
    """Return the exported number of elements."""
    return found.settings["zero_optimization"]["reduce_bucket_size"]


def test_the_four_gradients_give_a_fragment():
    """The golden text of a small plan; it is JSON, and the text is the settings."""
    found = export(FOUR, Plan.of([["head.weight"], list(FOUR.names[1:])]), "deepspeed")
    assert found.text.splitlines() == [
        "{",
        '  "zero_optimization": {',
        '    "stage": 2,',
        '    "overlap_comm": true,',
        '    "contiguous_gradients": true,',
        '    "reduce_bucket_size": 393472',
        "  }",
        "}",
    ]
    assert json.loads(found.text) == found.settings
    assert found.exact
    assert found.lost_ns > 0  # the launch waits for the gradient that no longer fits


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_the_number_is_as_good_as_the_best(stage, seed):
    """Over random steps; the projection is the rule on the exported number."""
    rng = random.Random(10 * stage + seed)
    for _ in range(40):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        plan = random_partition(rng, problem)
        found = export(problem, plan, "deepspeed", ExportOptions(zero_stage=stage))
        assert found.projected == deepspeed(problem, size_of(found))
        best = rule("deepspeed").knobs[0].best(problem).tuning.best
        assert evaluate(problem, found.projected).makespan_ns == best.makespan_ns
        assert found.settings["zero_optimization"]["stage"] == stage
        assert any("stage3_prefetch" in text for text in found.cannot) is (stage == 3)
        check_export(problem, plan, found)


def test_a_plan_of_its_own_rule_comes_back():
    """Buckets of the rule itself are found again wherever they are the best ones."""
    gradients = [Gradient(f"l.{k}", 4000, 10_000 * k) for k in range(9)]
    problem = GradientProblem(gradients, AlphaBeta(5, 1))
    plan = rule("deepspeed").knobs[0].best(problem).plan
    found = export(problem, plan, "deepspeed")
    assert found.exact
    assert buckets_of(found.projected) == buckets_of(plan)
    assert found.lost_ns == 0


def test_refusals():
    """Stage 0 has no key, held launches of another rule are not its own, unknown stages."""
    with pytest.raises(NotApplicableError, match="stage 0"):
        export(FOUR, THREE_BUCKETS, "deepspeed", ExportOptions(zero_stage=0))
    for stage in (4, True, "2", -1):
        with pytest.raises(InputError, match="zero_stage"):
            ExportOptions(zero_stage=stage)
    held = Plan.of([[name] for name in FOUR.names], not_before_ns=50_000_000)
    with pytest.raises(NotApplicableError, match="holds launches back"):
        export(FOUR, held, "deepspeed")
    strange = GradientProblem([Gradient("a.w", 8, 1, "float4")], AlphaBeta(1, 1))
    with pytest.raises(NotApplicableError, match="the type 'float4' is unknown"):
        export(strange, Plan.of([["a.w"]]), "deepspeed")

"""Plans as settings of Horovod."""

from __future__ import annotations

import ast
import random
from dataclasses import replace

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
    NotApplicableError,
    Plan,
    evaluate,
)
from commsched.optimizer.rules.horovod import horovod, horovod_groups
from commsched.optimizer.tuning import tune

MIB = 2**20
CYCLES_NS = (1_000_000, 500_000, 200_000, 100_000)


def environment(found) -> tuple[int, int]:
    """Return the exported threshold in bytes and cycle time in nanoseconds."""
    values = found.settings["environment"]
    return (
        int(values["HOROVOD_FUSION_THRESHOLD"]),
        round(float(values["HOROVOD_CYCLE_TIME"]) * 1_000_000),
    )


def test_the_four_gradients_give_groups():
    """The golden text of a small plan; it is Python."""
    found = export(FOUR, THREE_BUCKETS, "horovod")
    assert found.text == "\n".join(
        [
            "import os",
            "",
            'os.environ["HOROVOD_CYCLE_TIME"] = "1"',
            'os.environ["HOROVOD_DISABLE_GROUP_FUSION"] = "1"',
            'os.environ["HOROVOD_FUSION_THRESHOLD"] = "134217728"',
            "",
            "GROUPS = [",
            '    ["head.weight"],',
            '    ["body.1.weight", "body.0.bias"],',
            '    ["body.0.weight"],',
            "]",
            "named = dict(model.named_parameters())",
            "optimizer = hvd.DistributedOptimizer(",
            "    optimizer,",
            "    named_parameters=model.named_parameters(),",
            "    groups=[[named[name] for name in names] for names in GROUPS],",
            ")",
        ]
    )
    ast.parse(found.text)
    assert found.exact


@pytest.mark.parametrize("seed", range(4))
def test_every_partition_is_exact_and_projected_by_the_rule(seed):
    """Several dtypes, buckets with gaps: groups say it all; only the cycle may cost time."""
    rng = random.Random(seed)
    for _ in range(75):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        plan = random_partition(rng, problem)
        found = export(problem, plan, "horovod")
        threshold, cycle_ns = environment(found)
        assert found.projected == horovod_groups(
            problem, found.settings["groups"], threshold=threshold, cycle_ns=cycle_ns
        )
        assert sorted(map(sorted, buckets_of(found.projected))) == sorted(
            map(sorted, buckets_of(plan))
        )
        assert found.exact
        check_export(problem, plan, found)


def test_a_group_above_the_default_threshold_raises_it():
    """Else Horovod would cut the group, also with group fusion switched off."""
    gradients = [Gradient(f"l.{k}", 100 * MIB, k) for k in range(2)]
    problem = GradientProblem(gradients, AlphaBeta(10, 100))
    plan = Plan.of([["l.0", "l.1"]])
    found = export(problem, plan, "horovod")
    threshold, _ = environment(found)
    assert threshold == 201 * MIB  # 200 MiB, and what CUDA builds pad each tensor by
    assert found.exact
    assert horovod_groups(problem, [["l.0", "l.1"]]).launches == 2


def test_a_shorter_cycle_is_taken_where_it_gains():
    """The default of 1 ms makes a short step wait."""
    gradients = [Gradient(f"l.{k}", 1000, 100_000 * k + 1) for k in range(4)]
    problem = GradientProblem(gradients, AlphaBeta(1, 1))
    plan = Plan.of([[f"l.{k}"] for k in range(4)])
    found = export(problem, plan, "horovod")
    assert environment(found)[1] == 100_000
    assert found.lost_ns == 99_999
    assert found.exact


@pytest.mark.parametrize("old", [False, True])
def test_without_groups_the_best_threshold_is_taken(old):
    """Names that are no parameters, or a Horovod that has no groups."""
    rng = random.Random(7)
    for _ in range(40):
        problem = random_step(rng)
        if not old:
            problem = GradientProblem(
                [replace(g, name=f"grad{k} [3x4]") for k, g in enumerate(problem.gradients)],
                problem.cost(problem.keys[0]),
                backward_end_ns=problem.compute_ns,
            )
        plan = random_partition(rng, problem)
        options = ExportOptions("0.21.2" if old else "")
        found = export(problem, plan, "horovod", options)
        threshold, cycle_ns = environment(found)
        assert found.projected == horovod(problem, threshold, cycle_ns=cycle_ns)
        best = min(
            tune(problem, lambda p, t, c=c: horovod(p, t, cycle_ns=c)).best.makespan_ns
            for c in CYCLES_NS
        )
        assert evaluate(problem, found.projected).makespan_ns == best
        assert ("0.21.2" if old else "is none") in found.cannot[0]
        ast.parse(found.text)
        check_export(problem, plan, found)


def test_the_threshold_survives_rounding_up():
    """Horovod rounds up to a multiple of 512 bytes times the ranks of a node."""
    gradients = [Gradient(f"g {k}", 3 * MIB, 10_000_000 * (k // 4)) for k in range(8)]
    problem = GradientProblem(gradients, AlphaBeta(100, 1))
    found = export(problem, Plan.of([[g.name for g in gradients]]), "horovod")
    threshold, _ = environment(found)
    assert threshold % (512 * 8) == 0


def test_a_plan_of_horovods_own_rule_comes_back():
    """Its launches are held back until the loop wakes, which is no obstacle here."""
    gradients = [Gradient(f"l.{k}", 1000, 400_000 * k) for k in range(6)]
    problem = GradientProblem(gradients, AlphaBeta(10, 1))
    plan = horovod(problem)
    assert any(bucket.not_before_ns for bucket in plan.buckets)
    found = export(problem, plan, "horovod")
    assert found.exact
    assert found.lost_ns <= 0


def test_refusals():
    """Sparse gradients; a plan file alone without parameter names is tested with the command."""
    problem = GradientProblem(
        [Gradient("a.w", 8, 1, sparse=True), Gradient("b.w", 8, 2)], AlphaBeta(1, 1)
    )
    with pytest.raises(NotApplicableError, match=r"sparse gradient 'a\.w'"):
        export(problem, Plan.of([["a.w"], ["b.w"]]), "horovod")

"""Plans as settings of Megatron-core."""

from __future__ import annotations

import ast
import math
import random
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace

import pytest
from export_cases import (
    FOUR,
    buckets_of,
    check_export,
    random_in_order,
    random_partition,
    random_step,
)

from commsched.export import ExportOptions, export
from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    NotApplicableError,
    Plan,
    Problem,
    evaluate,
)
from commsched.optimizer import rule
from commsched.optimizer.rules.megatron import megatron


def test_one_number_where_one_is_enough():
    """The golden text of a plan that a bucket size gives."""
    plan = Plan.of([["head.weight"], ["body.1.weight", "body.0.bias", "body.0.weight"]])
    found = export(FOUR, plan, "megatron")
    assert found.text == "--overlap-grad-reduce --ddp-bucket-size 786432"
    assert (found.exact, found.lost_ns, found.cannot) == (True, 0, ())


@pytest.mark.parametrize("aligned", [False, True])
def test_every_plan_that_a_bucket_size_gives_is_found_again(aligned):
    """Whatever the size was, the export names one that does the same."""
    rng = random.Random(int(aligned))
    for _ in range(150):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        plan = megatron(problem, rng.randint(1, 120), distributed_optimizer=aligned)
        found = export(problem, plan, "megatron", ExportOptions(distributed_optimizer=aligned))
        assert found.exact
        size = found.settings["ddp_bucket_size"]
        assert buckets_of(megatron(problem, size, distributed_optimizer=aligned)) == buckets_of(
            plan
        )
        check_export(problem, plan, found)


def test_any_partition_is_a_layout():
    """Also with several dtypes and buckets that are not contiguous."""
    rng = random.Random(3)
    layouts = 0
    for _ in range(150):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        plan = random_partition(rng, problem)
        found = export(problem, plan, "megatron")
        assert found.exact
        assert found.lost_ns == 0
        check_export(problem, plan, found)
        if "buckets" in found.settings:
            layouts += 1
            ast.parse(found.text)
            rows = [set(row) for rows in found.settings["buckets"].values() for row in rows]
            assert sorted(map(sorted, rows)) == sorted(map(sorted, buckets_of(plan)))
    assert layouts > 50


def test_without_parameter_names_the_best_number_is_taken():
    """As good as the tuning's."""
    rng = random.Random(4)
    for _ in range(60):
        problem = random_step(rng)
        problem = GradientProblem(
            [replace(g, name=f"{k}: grad") for k, g in enumerate(problem.gradients)],
            problem.cost(problem.keys[0]),
            backward_end_ns=problem.compute_ns,
        )
        plan = random_in_order(rng, problem)
        found = export(problem, plan, "megatron")
        check_export(problem, plan, found)
        assert found.projected == megatron(problem, found.settings["ddp_bucket_size"])
        if not found.exact:
            best = rule("megatron").knobs[0].best(problem).tuning.best
            assert evaluate(problem, found.projected).makespan_ns == best.makespan_ns
            assert "is none" in found.cannot[0]


@dataclass(eq=False)
class Parameter:
    """What the exported function asks a parameter for."""

    count: int
    dtype: str
    requires_grad: bool = True

    def numel(self) -> int:
        return self.count


@dataclass
class PerBufferParamLayout:
    """As in megatron/core/optimizer/param_layout.py."""

    param_index_map: dict = field(default_factory=dict)
    bucket_indices: list = field(default_factory=list)
    per_bucket_numel_unpadded: list = field(default_factory=list)
    param_indices: list = field(default_factory=list)


@dataclass(frozen=True)
class BufferKey:
    """As in megatron/core/optimizer/param_layout.py."""

    param_dtype: str
    grad_dtype: str
    is_expert_parallel: bool


@dataclass
class FullParamLayout:
    """As in megatron/core/optimizer/param_layout.py."""

    layouts: dict


@pytest.fixture
def layout_of(monkeypatch):
    """Run an exported text against stand-ins for torch and Megatron-core."""
    stand_in = ModuleType("megatron.core.optimizer.param_layout")
    stand_in.BufferKey = BufferKey
    stand_in.FullParamLayout = FullParamLayout
    stand_in.PerBufferParamLayout = PerBufferParamLayout
    for name in ("megatron", "megatron.core", "megatron.core.optimizer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(float32="fp32", float16="fp16"))

    def run(text, parameters, *arguments):
        names: dict = {}
        exec(compile(text, "export", "exec"), names)
        model = SimpleNamespace(named_parameters=lambda: iter(parameters.items()))
        return names["full_param_layout"](model, *arguments)

    return run


def test_the_exported_function_lays_the_parameters_out(layout_of):
    """Starts at multiples of 64 and padded ends with the distributed optimizer, none without."""
    plan = Plan.of([["head.weight", "body.1.weight"], ["body.0.bias"], ["body.0.weight"]])
    found = export(FOUR, plan, "megatron")
    assert found.settings["buckets"] == {"float32": [list(b.names) for b in plan.buckets]}
    parameters = {g.name: Parameter(g.bytes // 4, "bf16") for g in reversed(FOUR.gradients)}
    full = layout_of(found.text, parameters, 3)
    ((key, layout),) = full.layouts.items()
    assert key == BufferKey("bf16", "fp32", False)
    head, one, bias, zero = (parameters[g.name] for g in FOUR.gradients)
    sizes = [1048576, 256, 131072]
    assert layout.per_bucket_numel_unpadded == sizes
    assert layout.bucket_indices == [
        (0, 1048576),
        (1048576, 1048832),
        (1048832, 1179904),
    ]
    assert layout.param_index_map == {
        head: (0, 786432, 0),
        one: (786432, 1048576, 0),
        bias: (1048576, 1048832, 1),
        zero: (1048832, 1179904, 2),
    }
    assert layout.param_indices == [3, 2, 1, 0]
    padded = layout_of(found.text, parameters, 3, True).layouts[key]
    for (begin, end), size in zip(padded.bucket_indices, sizes, strict=True):
        assert begin % math.lcm(3, 128) == 0
        assert end % math.lcm(3, 128) == 0
        assert end - begin >= size
    assert all(start % 64 == 0 for start, _, _ in padded.param_index_map.values())
    with pytest.raises(ValueError, match="other parameters"):
        layout_of(found.text, {"x": Parameter(1, "bf16")}, 3)


def test_reduce_scatters_mean_the_distributed_optimizer():
    """Then parameters are aligned, and the flag is exported."""
    tasks = [
        Compute("c", 10),
        *(Collective(f"l.{k}", 4 * 100, "reduce_scatter", after=("c",)) for k in range(4)),
    ]
    problem = Problem(tasks, {("dp", "reduce_scatter"): AlphaBeta(1, 1)})
    plan = Plan.of([["l.0", "l.1"], ["l.2", "l.3"]])
    found = export(problem, plan, "megatron")
    assert found.text == ("--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 228")
    assert found.exact


def test_refusals():
    """Sparse gradients and several devices."""
    sparse = GradientProblem([Gradient("a.w", 8, 1, sparse=True)], AlphaBeta(1, 1))
    with pytest.raises(NotApplicableError, match="sparse"):
        export(sparse, Plan.of([["a.w"]]), "megatron")
    spread = GradientProblem([Gradient("a.w", 8, 1, device="cuda:1")], AlphaBeta(1, 1))
    with pytest.raises(NotApplicableError, match="one device"):
        export(spread, Plan.of([["a.w"]]), "megatron")

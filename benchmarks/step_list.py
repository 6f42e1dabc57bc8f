"""The steps of benchmarks/whole_step.py: of every kind, from models whose tensors are exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from commsched.models import AlphaBeta, CostCurve, Kind, Plan, Problem
from commsched.optimizer.result import Scope
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.fsdp_default import fsdp_default
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.experts import Experts, estimated_experts
from commsched.problems.steps.fsdp_step import FSDP2_PREFETCH, fsdp_step
from commsched.problems.steps.layer_models import estimated_profile
from commsched.problems.steps.layers import Layer, LayerProfile
from commsched.problems.steps.moe_step import moe_step
from commsched.problems.steps.two_level import two_level

NETWORKS = {
    "100 GB/s, 10 us": AlphaBeta(10, 100),
    "25 GB/s, 20 us": AlphaBeta(20, 25),
    "12.5 GB/s, 50 us": AlphaBeta(50, 12.5),
}
NVLINK: dict[Kind, CostCurve] = {
    "reduce_scatter": AlphaBeta(10, 200),
    "all_gather": AlphaBeta(10, 200),
}
MODELS = (
    # model, by, layers merged into so many, samples, TFLOP/s, element type
    ("vgg16", "module", 8, 8, 50, "float32"),
    ("vgg16", "module", 0, 8, 50, "float32"),
    ("gpt2", "block", 0, 1024, 50, "float32"),
    ("resnet50", "block", 0, 8, 50, "float32"),
    ("bert-large", "block", 0, 2048, 80, "float32"),
    ("llama3-8b", "block", 0, 4096, 300, "bfloat16"),
    ("gnmt", "tensor", 0, 2048, 50, "float32"),
    ("gpt2", "tensor", 0, 1024, 50, "float32"),
    ("resnet50", "tensor", 0, 16, 50, "float32"),
    ("llama3-8b", "tensor", 0, 4096, 300, "bfloat16"),
    ("densenet121", "tensor", 0, 32, 50, "float32"),
    ("bert-large", "tensor", 0, 2048, 80, "float32"),
)
BOTH: tuple[Scope, ...] = ("in-order", "any")
ANY: tuple[Scope, ...] = ("any",)


@dataclass(frozen=True)
class Row:
    """A step of the list.

    Attributes
    ----------
    kind
        What sort of step it is.
    name, network
        The model with what is special, and the network.
    problem
        The step.
    scopes
        The scopes in which it is planned.
    default
        What a framework does without any setting: the problem with its own rules, and its plan.
    """

    kind: str
    name: str
    network: str
    problem: Problem
    scopes: tuple[Scope, ...]
    default: tuple[Problem, Callable[[Problem], Plan]]


def steps() -> Iterator[Row]:
    """Yield the list."""
    yield from _data_parallel()
    for network, cost in NETWORKS.items():
        yield from _sharded(network, cost)
        yield from _experts(network, cost)
        yield from _two_levels(network, cost)
        yield from _chunks(network, cost)


def layers(
    model: str, by: str, merged: int, samples: int, tflops: float, dtype: str
) -> LayerProfile:
    """Return a model's layers; one gradient each unless they are tensors."""
    profile = estimated_profile(model, samples=samples, tflops=tflops, dtype=dtype, by=by)  # type: ignore[arg-type]
    if by != "tensor":
        profile = without_tensors(profile)
    return profile.merged(-(-len(profile.layers) // merged)) if merged else profile


def without_tensors(profile: LayerProfile) -> LayerProfile:
    """Return the layers with one gradient each."""
    found = [
        Layer(y.name, y.forward_ns, y.backward_ns, y.parameter_bytes, y.dtype)
        for y in profile.layers
    ]
    return replace(profile, layers=tuple(found))


def made_up(count: int) -> LayerProfile:
    """Return many layers of random times and sizes."""
    rng = random.Random(0)
    return LayerProfile(
        tuple(
            Layer(
                f"layer{k}",
                rng.randint(20, 100) * 1000,
                rng.randint(50, 200) * 1000,
                rng.randint(1, 60) * 100_000,
            )
            for k in range(count)
        )
    )


def _data_parallel() -> Iterator[Row]:
    """Backward, an all-reduce for each gradient, the next forward."""
    for model, by, merged, samples, tflops, dtype in MODELS:
        profile = layers(model, by, merged, samples, tflops, dtype)
        for network, cost in NETWORKS.items():
            problem = ddp_step(profile, cost)
            name = f"{model}, {by}s in {merged} parts" if merged else f"{model}, {by}s"
            yield Row("DDP", name, network, problem, BOTH, (problem, ddp))
    problem = ddp_step(made_up(2000), AlphaBeta(20, 25))
    yield Row("DDP", "made up", "25 GB/s, 20 us", problem, BOTH, (problem, ddp))


def _sharded(network: str, cost: CostCurve) -> Iterator[Row]:
    """Gathers and scatters: one or two communicators, limited memory, micro-batches, replicas."""
    costs: dict[Kind, CostCurve] = {"all_gather": cost, "reduce_scatter": cost}
    vgg = layers("vgg16", "module", 4, 16, 50, "float32")
    gpt2 = layers("gpt2", "block", 0, 2048, 50, "float32")
    bert = layers("bert-large", "block", 0, 4096, 80, "float32")
    llama = layers("llama3-8b", "block", 0, 8192, 300, "bfloat16")
    larger = layers("llama3-70b", "block", 0, 2048, 300, "bfloat16")
    block = max(layer.parameter_bytes for layer in llama.layers)
    replicas: dict[Kind, CostCurve] = {**costs, "allreduce": cost}
    settings: tuple[tuple[str, LayerProfile, dict[Kind, CostCurve], dict[str, object]], ...] = (
        ("vgg16, 4 parts", vgg, costs, {}),
        ("gpt2, blocks", gpt2, costs, {}),
        ("gpt2, blocks, 2 communicators", gpt2, costs, {"communicators": 2}),
        ("gpt2, blocks, 2 micro-batches", gpt2, costs, {"micro_batches": 2}),
        ("bert-large, blocks", bert, costs, {}),
        ("llama3-8b, blocks", llama, costs, {}),
        ("llama3-8b, blocks, 2 communicators", llama, costs, {"communicators": 2}),
        ("llama3-8b, blocks, limited memory", llama, costs, {"gathered_limit_bytes": 3 * block}),
        ("llama3-8b, blocks, 2 replicas", llama, replicas, {"hybrid_shard": 8}),
        ("llama3-70b, blocks", larger, costs, {}),
    )
    for name, profile, prices, options in settings:
        problem = fsdp_step(profile, prices, **options)  # type: ignore[arg-type]
        own = {key: value for key, value in options.items() if key != "gathered_limit_bytes"}
        today = fsdp_step(
            profile,
            prices,
            units="layers",
            prefetch=FSDP2_PREFETCH,
            scatter_buffers=1,
            **own,  # type: ignore[arg-type]
        )
        kind = "HSDP" if "hybrid_shard" in options else "FSDP"
        rule = one_each if "hybrid_shard" in options else fsdp_default
        yield Row(kind, name, network, problem, ANY, (today, rule))


def _experts(network: str, cost: CostCurve) -> Iterator[Row]:
    """All-to-alls around experts, fillers that may move, gradients on the same NIC or not."""
    profile, experts = estimated_experts("mixtral-8x7b", samples=4096, tflops=300)
    dense, shared = estimated_experts("mixtral-8x7b", samples=4096, tflops=300, shared=True)
    costs: dict[Kind, CostCurve] = {"all_to_all": cost}
    both: dict[Kind, CostCurve] = {"all_to_all": cost, "allreduce": cost}
    settings: tuple[
        tuple[str, LayerProfile, dict[str, Experts], dict[Kind, CostCurve], int, bool], ...
    ] = (
        ("mixtral-8x7b, 4 layers, 4 chunks", *_first(profile, experts, 4), both, 4, True),
        ("mixtral-8x7b", profile, experts, costs, 1, False),
        ("mixtral-8x7b, shared expert", dense, shared, both, 1, True),
        ("mixtral-8x7b, shared expert, 2 chunks", dense, shared, both, 2, False),
    )
    for name, layered, of_layer, prices, chunks, one_nic in settings:
        problem = moe_step(
            layered, of_layer, prices, chunks=chunks, chunk_overhead_ns=20_000, one_nic=one_nic
        )
        yield Row("experts", name, network, problem, ANY, (problem, one_each))


def _first(
    profile: LayerProfile, experts: dict[str, Experts], count: int
) -> tuple[LayerProfile, dict[str, Experts]]:
    """Return the first layers with experts only."""
    names = list(experts)[:count]
    kept = tuple(layer for layer in profile.layers if layer.name in names)
    return replace(profile, layers=kept), {name: experts[name] for name in names}


def _two_levels(network: str, cost: CostCurve) -> Iterator[Row]:
    """All-reduces as reduce-scatter, all-reduce across nodes and all-gather."""
    for model, samples, tflops, dtype in (
        ("gpt2", 1024, 50, "float32"),
        ("llama3-8b", 4096, 300, "bfloat16"),
    ):
        flat = ddp_step(layers(model, "block", 0, samples, tflops, dtype), cost)
        problem = two_level(flat, NVLINK, cost, local_ranks=8)
        yield Row("two levels", f"{model}, blocks", network, problem, ANY, (problem, one_each))


def _chunks(network: str, cost: CostCurve) -> Iterator[Row]:
    """Tensors in chunks, which buckets may fuse again."""
    for model, samples, tflops, dtype, size in (
        ("vgg16", 8, 50, "float32", 32_000_000),
        ("bert-large", 2048, 80, "float32", 16_000_000),
    ):
        by = "module" if model == "vgg16" else "block"
        profile = layers(model, by, 0, samples, tflops, dtype)
        problem = ddp_step(profile, cost, chunk_bytes=size)
        name = f"{model}, chunks of {size // 1_000_000} MB"
        yield Row("chunks", name, network, problem, BOTH, (ddp_step(profile, cost), ddp))

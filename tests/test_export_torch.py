"""Exports against torch itself: FSDP2's snippet runs, and issues what was planned."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp_group  # noqa: E402

from commsched.export import export  # noqa: E402
from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan  # noqa: E402
from commsched.optimizer import optimize  # noqa: E402
from commsched.optimizer.rules.fsdp_default import fsdp_default  # noqa: E402
from commsched.problems.steps.fsdp_step import fsdp_step  # noqa: E402
from commsched.problems.steps.layers import Layer, LayerProfile  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    # torch's own: it warns of what its own modules still use.
    pytest.mark.filterwarnings("default"),
]
COSTS = {"all_gather": AlphaBeta(0.5, 4), "reduce_scatter": AlphaBeta(0.5, 4)}
WIDTH = 6


@pytest.fixture(scope="module")
def mesh():
    """One of two ranks whose collectives do nothing: what is issued is the same."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


class Tower(nn.Module):
    """Layers one after the other, run by calling each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def wrapped(text, model, mesh):
    """Run an exported snippet on a model; return it, and the parameters' names."""
    names = {id(p): name for name, p in model.named_parameters()}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    scope: dict = {}
    exec(compile(text, "export", "exec"), scope)
    scope["apply_plan"](model, mesh=mesh)
    assert set(before) == set(dict(model.named_parameters()))
    return names


def issued(monkeypatch, model, x) -> list[tuple[str, tuple[str, ...]]]:
    """Run a step and return what FSDP2 issues: gathers and scatters of which parameters."""
    log: list[tuple[str, tuple[str, ...]]] = []

    def names_of(params) -> tuple[str, ...]:
        return tuple(sorted(param._param_fqn for param in params))

    gather, scatter = fsdp_group.foreach_all_gather, fsdp_group.foreach_reduce

    def log_gather(params, *arguments, **options):
        log.append(("gather", names_of(params)))
        return gather(params, *arguments, **options)

    def log_scatter(params, *arguments, **options):
        log.append(("scatter", names_of(params)))
        return scatter(params, *arguments, **options)

    # The first step may warm up what later ones keep.
    model(x).sum().backward()
    monkeypatch.setattr(fsdp_group, "foreach_all_gather", log_gather)
    monkeypatch.setattr(fsdp_group, "foreach_reduce", log_scatter)
    model(x).sum().backward()
    monkeypatch.undo()
    return log


def planned(plan: Plan, root: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the same of a plan for a sharded step."""
    rows = []
    for bucket in plan.buckets:
        kind = "scatter" if bucket.names[0].startswith("scatter") else "gather"
        layers = [name.removeprefix(f"{kind} ").removesuffix(" again") for name in bucket.names]
        layers = [*root] if layers == ["root"] else layers
        rows.append((kind, tuple(sorted(f"{n}.{p}" for n in layers for p in ("bias", "weight")))))
    return rows


def sharded(rng: random.Random, count: int, **options):
    """Return a sharded step of a tower."""
    size = 4 * (WIDTH * WIDTH + WIDTH)
    layers = tuple(
        Layer(f"layers.{k}", rng.randint(100, 900), rng.randint(200, 1900), size)
        for k in range(count)
    )
    return fsdp_step(LayerProfile(layers), COSTS, **options)


@pytest.mark.parametrize("seed", range(16))
def test_fsdp2_issues_what_the_projection_says(seed, mesh, monkeypatch):
    """Groups, prefetch lists and flags in the real FSDP2: gathers and scatters in planned order."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    reshard = rng.choice((True, True, False, "all-but-last"))
    root = rng.choice(((), ("layers.0",), ("layers.0", f"layers.{count - 1}")))
    root = root if count > 2 else ()
    problem = sharded(
        rng,
        count,
        root=root,
        reshard_after_forward=reshard,
        prefetch=rng.choice((None, None, 1)),
    )
    if seed % 3:
        plan = optimize(problem, scope="any", time_limit_s=5, workers=1).plan
    else:
        plan = fsdp_default(problem)
    found = export(problem, plan, "fsdp2")
    model = Tower(count)
    wrapped(found.text, model, mesh)
    x = torch.randn(3, WIDTH, requires_grad=True)
    assert issued(monkeypatch, model, x) == planned(found.projected, root)


@pytest.mark.parametrize("seed", range(6))
def test_fsdp2_groups_are_the_buckets_of_a_gradient_plan(seed, mesh, monkeypatch):
    """Each reduce-scatter holds what one bucket of the plan holds, in its order."""
    rng = random.Random(100 + seed)
    count = rng.randint(2, 6)
    order = [f"layers.{k}.{p}" for k in reversed(range(count)) for p in ("weight", "bias")]
    sizes = {"weight": 4 * WIDTH * WIDTH, "bias": 4 * WIDTH}
    problem = GradientProblem(
        [Gradient(n, sizes[n.rpartition(".")[2]], k // 2) for k, n in enumerate(order)],
        AlphaBeta(1, 1),
    )
    cuts = [0, *sorted(rng.sample(range(1, count), rng.randint(0, count - 1))), count]
    plan = Plan.of(order[2 * a : 2 * b] for a, b in pairwise(cuts))
    found = export(problem, plan, "fsdp2")
    assert found.exact
    model = Tower(count)
    wrapped(found.text, model, mesh)
    x = torch.randn(3, WIDTH, requires_grad=True)
    scatters = [names for kind, names in issued(monkeypatch, model, x) if kind == "scatter"]
    assert scatters == [tuple(sorted(bucket.names)) for bucket in plan.buckets]


def test_ddp_caps_survive_torchs_own_conversion():
    """int(cap * 2**20) is the bucket's bytes, for sizes up to a tebibyte."""
    rng = random.Random(0)
    for _ in range(10000):
        size = rng.randint(1, 2 ** rng.randint(1, 40))
        assert int((size / 2**20) * 1048576) == size

"""What two ranks run for the tests of running plans: real DDP and FSDP2 over gloo.

``torch_ranks.run_ranks(folder, script)`` starts this file twice. Each case is a function that takes
the rank and returns something that pickle can carry.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import re
import sys
import tempfile
import time
import traceback
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import commsched
from commsched.export import ExportOptions, export
from commsched.models import AlphaBeta, Plan, evaluate
from commsched.models.errors import CommschedError
from commsched.models.overheads import Overheads
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile
from commsched.torch import (
    EmulatedLink,
    capture,
    check,
    ddp_kwargs,
    fully_shard_plan,
    measure_overheads,
    tune,
)
from commsched.torch.buckets import read_ddp_log

CASES: dict = {}
RANKS = 2
MODELS = 60
COST = AlphaBeta(alpha_us=30, bandwidth_gb_s=1)
ROWS = torch.ones(4, 32)


def case(function):
    """Register a case."""
    CASES[function.__name__] = function
    return function


def said(call) -> str:
    """Return the class and the message of what a call raises."""
    try:
        call()
    except CommschedError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def training(model, batch=ROWS, **kwargs):
    """Return a DDP model and its training step."""
    ddp = DistributedDataParallel(model, **kwargs)
    return ddp, stepping(ddp, batch)


def stepping(model, batch=ROWS):
    """Return a model's training step, which returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def mlp(layers=5, width=32):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


class Random(nn.Module):
    """Layers that are used in any order, some twice, some shared, some frozen, some in bfloat16."""

    def __init__(self, seed):
        super().__init__()
        rng = random.Random(seed)
        count = rng.randint(2, 9)
        low = rng.random() < 0.25
        self.layers = nn.ModuleList()
        for _ in range(count):
            layer = nn.Linear(32, 32, bias=rng.random() < 0.7)
            if low and rng.random() < 0.4:
                layer.to(torch.bfloat16)
            if rng.random() < 0.15:
                layer.requires_grad_(False)
            self.layers.append(layer)
        self.layers[-1].requires_grad_(True)
        if rng.random() < 0.3:  # a weight that two layers share
            one, other = self.layers[0], self.layers[-1]
            if one.weight.dtype == other.weight.dtype:
                other.weight = one.weight
        if rng.random() < 0.3:
            self.extra = nn.Linear(32, 32)  # never used, and ignored by DDP
            self._ddp_params_and_buffers_to_ignore = ["extra.weight", "extra.bias"]
        self.order = rng.sample(range(count), count)
        if rng.random() < 0.3:
            self.order.append(self.order[0])

    def forward(self, x):
        for k in self.order:
            x = self.layers[k](x.to(self.layers[k].weight.dtype)) + x
        return x


@case
def round_trips(rank):
    """For each random model: plan, settings, a new DDP, and what it formed."""
    found = []
    for seed in range(MODELS):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        first, step = training(Random(seed), static_graph=seed % 4 == 0)
        recorded = capture(first, step, steps=1, warmup=3)
        problem = recorded.problem(AlphaBeta(rng.choice((1, 50, 1000)), rng.choice((0.01, 1))))
        if len(problem.chains) == 1 and seed % 2:
            plan = cut(problem, rng)
            kwargs = ddp_kwargs(plan, problem)
        else:
            plan = commsched.optimize(problem, time_limit_s=2, workers=1).plan
            nearest = export(problem, plan, "ddp", ExportOptions(version=torch.__version__))
            plan, kwargs = nearest.projected, dict(nearest.settings)
        environment = kwargs.pop("environment", {})
        os.environ.update(environment)
        torch.manual_seed(seed)
        second, step = training(Random(seed), static_graph=seed % 4 == 0, **kwargs)
        for _ in range(3):
            step()
        for name in environment:
            del os.environ[name]
        log = read_ddp_log(second)
        words = said(lambda: check(second, plan, problem))  # noqa: B023  (called at once)
        found.append(
            {
                "said": words,
                "log": log,
                "plan": plan,
                "bytes": dict(zip(problem.names, problem.bytes, strict=True)),
                "dtypes": len(problem.chains),
                "kwargs": kwargs,
            }
        )
    return found


def cut(problem, rng):
    """Return a plan of random buckets in ready order, the same on each rank."""
    names = [problem.names[k] for k in problem.ready_order]
    size = dict(zip(problem.names, problem.bytes, strict=True))
    ends = [k for k in range(1, len(names)) if rng.random() < 0.4]
    bounds = [0, *ends, len(names)]
    buckets = [names[a:b] for a, b in pairwise(bounds)]
    assert all(sum(size[name] for name in bucket) for bucket in buckets)
    return Plan.of(buckets)


def planned(model, buckets):
    """Return a problem of a model's parameters in reverse order, and a plan of so many each."""
    named = list(model.named_parameters())[::-1]
    problem = commsched.gradient_problem(
        [commsched.Gradient(n, p.numel() * 4, 1000 * k) for k, (n, p) in enumerate(named)], COST
    )
    names = [name for name, _ in named]
    cuts = [sum(buckets[:k]) for k in range(len(buckets) + 1)]
    return problem, Plan.of(names[a:b] for a, b in pairwise(cuts))


@case
def checks(rank):
    """What check says of buckets that are not as planned, on this rank or on one rank only."""
    model = mlp()
    problem, plan = planned(model, [2, 2, 4, 2])
    other = planned(model, [2, 4, 2, 2])[1]
    fewer = planned(model, [2, 2, 6])[1]
    alien = commsched.gradient_problem(
        [commsched.Gradient(f"grad{k}", 4, k) for k in range(10)], COST
    )
    ddp, step = training(model, **ddp_kwargs(plan, problem))
    found = {"early": said(lambda: check(ddp, plan, problem))}
    step()
    step()
    ddp_again, step_again = training(mlp(), find_unused_parameters=True)
    step_again()
    step_again()
    larger = commsched.gradient_problem(
        [commsched.Gradient(g.name, g.bytes + 4, g.ready_ns) for g in problem.gradients], COST
    )
    low = commsched.gradient_problem(
        [commsched.Gradient(g.name, g.bytes, g.ready_ns, "bfloat16") for g in problem.gradients],
        COST,
    )
    mine = plan if rank == 0 else other
    return found | {
        "right": check(ddp, plan, problem),
        "other": said(lambda: check(ddp, other, problem)),
        "fewer": said(lambda: check(ddp, fewer, problem)),
        "more": said(lambda: check(ddp, planned(model, [2, 2, 4, 1, 1])[1], problem)),
        "larger": said(lambda: check(ddp, plan, larger)),
        "dtype": said(lambda: check(ddp, plan, low)),
        "names": said(lambda: check(ddp, Plan.of([alien.names]), alien)),
        "unused": said(lambda: check(ddp_again, plan, problem)),
        "rank 1 only": said(lambda: check(ddp, mine, problem)),
        "rank 1's argument": said(lambda: check(ddp, plan, problem if rank == 0 else None)),
        "no ddp": said(lambda: check(model, plan, problem)),
    }


@case
def user_story(rank):
    """Tune, wrap, train, check: a plain model, then the same model as DDP runs it today."""
    torch.manual_seed(7)
    model = mlp(8, 96)
    rows = torch.ones(16, 96) * (1 + rank)
    before = [p.detach().clone() for p in model.parameters()]
    tuned = tune(model, stepping(model, rows), steps=3, warmup=1)
    kept = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    ddp = DistributedDataParallel(model, **tuned.kwargs)
    step = stepping(ddp, rows)
    for _ in range(3):
        step()
    formed = check(ddp, tuned)
    again = tune(ddp, step, cost=AlphaBeta(2000, 0.01), steps=3, warmup=0, name="again")
    return {"tuned": tuned, "kept": kept, "formed": formed, "again": again}


@case
def tuned_otherwise(rank):
    """Nothing counts but the network, or overheads that are given."""
    model = mlp(8)
    cost = AlphaBeta(500, 1)
    bare = tune(
        model, stepping(model), cost=cost, overheads=Overheads(), spare=False, steps=2, warmup=1
    )
    given = Overheads(hook_us=5000, finish_us=7)
    other = tune(
        model, stepping(model), cost=cost, overheads=given, spare=False, views=True, steps=2
    )
    return {"bare": bare, "given": other}


@case
def overheads(rank):
    """What DDP adds, with and without the copies back."""
    model = mlp(8)
    before = [p.detach().clone() for p in model.parameters()]
    found = {
        "copies": measure_overheads(model, steps=4),
        "views": measure_overheads(model, views=True, steps=4),
        "steps": said(lambda: measure_overheads(model, steps=2)),
        "frozen": said(lambda: measure_overheads(mlp(1).requires_grad_(False))),
        "differ": said(
            lambda: tune(
                model, stepping(model), cost=COST, overheads=Overheads(hook_us=rank), steps=1
            )
        ),
    }
    found["kept"] = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return found


@case
def other_costs(rank):
    """Each rank gives another cost, or rank 0 gives what cannot be planned."""
    model = mlp(2)
    step = stepping(model)
    return {
        "cost": said(lambda: tune(model, step, cost=AlphaBeta(10 + rank, 1), steps=1)),
        "limit": said(lambda: tune(model, step, cost=COST, steps=1, time_limit_s=-1)),
    }


@case
def several_dtypes(rank):
    """No list of caps gives the best plan; what DDP runs instead is what it said it would."""
    model = nn.Sequential(mlp(3), Low(32), mlp(3))
    tuned = tune(model, stepping(model), cost=AlphaBeta(300, 0.1), steps=2, time_limit_s=5)
    os.environ.update(tuned.environment)
    ddp, step = training(model, **tuned.kwargs)
    for _ in range(3):
        step()
    for name in tuned.environment:
        del os.environ[name]
    return {"tuned": tuned, "said": said(lambda: check(ddp, tuned)), "log": read_ddp_log(ddp)}


class Low(nn.Module):
    """Two layers in bfloat16."""

    def __init__(self, width):
        super().__init__()
        self.layers = mlp(2, width).to(torch.bfloat16)

    def forward(self, x):
        return self.layers(x.to(torch.bfloat16)).float()


@case
def link_of_one(rank):
    """A rank by itself: a plan of four buckets on a link on which each takes tens of ms."""
    alone = [dist.new_group([r]) for r in range(RANKS)][rank]
    model = mlp(6, 64)  # 6 x 16,640 bytes
    problem, plan = planned(model, [2, 4, 4, 2])
    kwargs = ddp_kwargs(plan, problem)
    ddp, step = training(model, torch.ones(4, 64), process_group=alone, **kwargs)
    found = {}
    with EmulatedLink(20_000, 0.002, group=alone) as link:
        link.attach(ddp)
        for _ in range(3):
            link.clear()
            before = time.perf_counter_ns()
            step()
            after = time.perf_counter_ns()
        found["launches"], found["step"] = link.launches, (before, after)
        formed = check(ddp, plan, problem)
        found["bytes"] = [bucket.bytes for bucket in formed.buckets]
        found["durations"] = [link.cost.ns(bucket.bytes) for bucket in formed.buckets]
        recorded = capture(ddp, step, steps=2, warmup=0)
        found["recorded"] = recorded
        found["predicted"] = evaluate(recorded.problem(link.cost), recorded.plan)
    found["closed"] = said(step)
    found["attach"] = said(lambda: EmulatedLink(1, 1, group=alone).attach(model))
    return found


@case
def link_of_two(rank):
    """Rank 1 begins its backward 60 ms later; gradients are averaged."""
    model = mlp(3, 32)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.006)
    rows = torch.ones(4, 32) * (1 + rank)
    with EmulatedLink(10_000, 1) as link:
        link.attach(ddp)
        for _ in range(3):
            link.clear()
            model.zero_grad()
            dist.barrier()
            loss = ddp(rows).square().mean()
            time.sleep(0.06 * rank)
            began = time.perf_counter_ns()
            loss.backward()
        launches = link.launches
    gradients = [p.grad.clone() for p in model.parameters()]
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for other in range(RANKS):
        model.zero_grad()
        model(torch.ones(4, 32) * (1 + other)).square().mean().backward()
        for total, p in zip(expected, model.parameters(), strict=True):
            total += p.grad / RANKS
    same = all(torch.allclose(a, b) for a, b in zip(gradients, expected, strict=True))
    return {"launches": launches, "same": same, "began": began}


class Blocks(nn.Module):
    """An embedding and blocks, and a head that the model itself holds."""

    def __init__(self, count=6):
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(count)])
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).relu()
        return x * self.scale


def sharded_problem(model, **options):
    """Return the sharded step of a model's layers; the scale is in no layer."""
    layers = [
        Layer(name, 1_000_000, 2_000_000, sum(p.numel() * 4 for p in module.parameters()))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    scale = Layer("scale", 1000, 2000, 64 * 4)
    costs = {"all_gather": AlphaBeta(500, 0.1), "reduce_scatter": AlphaBeta(500, 0.1)}
    return fsdp_step(LayerProfile((*layers, scale)), costs, root=["scale"], **options)


def planned_once(problem):
    """Return the first rank's result on every rank: a time limit may give each another one."""
    first = dist.get_rank() == 0
    result = [commsched.optimize(problem, time_limit_s=1.5, workers=1) if first else None]
    dist.broadcast_object_list(result)
    return result[0]


def annotations(step) -> list[str]:
    """Return FSDP's annotations in a step, in the order in which they begin."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        step()
    events = [event for event in profile.events() if event.name.startswith("FSDP::")]
    return [e.name for e in sorted(events, key=lambda e: e.time_range.start)]


@case
def sharded(rank):
    """A plan's groups and prefetch lists on a model: the losses are the same, the order as planned."""
    mesh = init_device_mesh("cpu", (RANKS,))
    found = {}
    for name, options in {
        "near": {"prefetch": 1},
        "far": {"prefetch": 3},
        "kept": {"prefetch": 2, "reshard_after_forward": False},
        "layers": {"units": "layers", "prefetch": 2},
        "two": {"prefetch": 2, "communicators": 2},
    }.items():
        torch.manual_seed(3)
        reference = Blocks()
        torch.manual_seed(3)
        model = Blocks()
        problem = sharded_problem(model, **options)
        result = planned_once(problem)
        expected = export(problem, result.plan, "fsdp2")
        groups = fully_shard_plan(model, expected if name == "near" else result, mesh=mesh)
        step, same = stepping(model), stepping(reference)
        losses = [(step(), same()) for _ in range(3)]
        found[name] = {
            "losses": losses,
            "groups": (groups.groups, groups.kept, groups.forward, groups.backward),
            "settings": expected.settings,
            "projected": expected.projected,
            "cannot": expected.cannot,
            "annotations": annotations(step),
        }
    return found


@case
def sharding_refused(rank):
    """What does not fit the model; it stays as it was."""
    model = Blocks(2)
    problem = sharded_problem(model)
    plan = planned_once(problem).plan
    alien = sharded_problem(Blocks(3))
    larger = Blocks(2)
    larger.blocks[1] = nn.Linear(64, 64, bias=False)
    more = Blocks(2)
    more.other = nn.Linear(4, 4)
    gradients, buckets = planned(mlp(2, 8), [2, 2])
    found = {
        "no problem": said(lambda: fully_shard_plan(model, plan)),
        "no plan": said(lambda: fully_shard_plan(model, 3)),
        "no model": said(lambda: fully_shard_plan(3, plan, problem)),
        "other framework": said(lambda: fully_shard_plan(model, export(gradients, buckets, "ddp"))),
        "reshard": said(lambda: fully_shard_plan(model, plan, problem, reshard_after_forward=True)),
        "missing": said(lambda: fully_shard_plan(model, plan_of_layers(alien), alien)),
        "size": said(lambda: fully_shard_plan(larger, plan, problem)),
        "root": said(lambda: fully_shard_plan(more, plan, problem)),
        "ranks differ": said(
            lambda: fully_shard_plan(model, (plan_of_layers, plan_of_pairs)[rank](problem), problem)
        ),
        "one rank": said(lambda: fully_shard_plan(model, plan, None if rank else problem)),
        "left over": said(lambda: fully_shard_plan(mlp(3, 8), buckets, gradients)),
    }
    found["untouched"] = [
        type(module).__name__ for one in (model, larger, more) for module in one.modules()
    ]
    whole = mlp(2, 8)
    found["gradients"] = fully_shard_plan(
        whole, buckets, gradients, mesh=init_device_mesh("cpu", (RANKS,))
    ).groups
    return found


def plan_of_layers(problem):
    return Plan.of([name] for name in problem.names)


def plan_of_pairs(problem):
    """Return the plan that has the two blocks in one group."""
    rows: dict[str, list[str]] = {}
    for name in problem.names:
        rows.setdefault(re.sub(r"blocks\.\d", "blocks", name), []).append(name)
    return Plan.of(rows.values())


@case
def documented(rank):
    """The Python of docs/run.md, as it stands there."""
    page = (Path(__file__).parents[1] / "docs" / "run.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {"model": mlp(), "batch": ROWS}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the page writes files
        for block in blocks:
            exec(compile(block, "docs/run.md", "exec"), names)
        os.chdir(here)
    return len(blocks)


def dying(rank):
    """Rank 1 is gone in the middle of a step; rank 0 says what it got to know, and when."""
    ddp = DistributedDataParallel(mlp(3))
    rows = torch.ones(4, 32)
    link = EmulatedLink(1000, 1)
    link.attach(ddp)
    for _ in range(2):
        ddp(rows).sum().backward()
    loss = ddp(rows).sum()
    if rank == 1:
        os._exit(0)
    began = time.perf_counter()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error), time.perf_counter() - began
    return "", 0.0


def raising(rank):
    """Rank 1's step raises in tune."""
    model = mlp(2)
    step = stepping(model)
    if rank == 1:

        def step():
            raise ZeroDivisionError("the step's own")

    began = time.perf_counter()
    try:
        tune(model, step, steps=1)
    except ZeroDivisionError:
        os._exit(0)
    except RuntimeError as error:
        return str(error), time.perf_counter() - began
    return "", 0.0


FAILING = {"dying": dying, "raising": raising}


def main(folder: Path, rank: int, cases) -> None:
    """Run cases on this rank."""
    faulthandler.dump_traceback_later(200, exit=True)  # rather than waiting for ever
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
    )
    found = {}
    for name, function in cases.items():
        torch.manual_seed(0)
        began = time.perf_counter()
        found[name] = function(rank)
        sys.stderr.write(f"{name}: {time.perf_counter() - began:.1f} s\n")
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(found))
    if not cases.keys() & FAILING.keys():
        dist.barrier()


if __name__ == "__main__":
    status = 1
    try:
        wanted = sys.argv[3:] or list(CASES)
        known = CASES | FAILING
        main(Path(sys.argv[1]), int(sys.argv[2]), {name: known[name] for name in wanted})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Without the interpreter's end, at which gloo's threads may still run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

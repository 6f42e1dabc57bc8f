"""What two ranks run for the tests of ``commsched.torch``: real DDP over gloo, in two processes.

``run_ranks(folder)`` starts them and returns what each has found; the processes run this file.
Each case is a function that takes the rank and returns something that pickle can carry.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

CASES: dict = {}
RANKS = 2


def run_ranks(folder: Path, script: str = __file__) -> list[dict]:
    """Run a script's cases on two ranks; return what each rank found, by case."""
    command = [sys.executable, "-W", "error", script, str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(RANKS)
    ]
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=300)[0])
    finally:
        for process in processes:
            process.kill()
            process.communicate()  # it waits, and closes the pipe
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(said)
    return [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in range(RANKS)]


def case(function):
    """Register a case."""
    CASES[function.__name__] = function
    return function


def main(folder: Path, rank: int) -> None:
    """Run every case on this rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
    )
    found = {}
    for name, function in CASES.items():
        torch.manual_seed(0)
        found[name] = function(rank)
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    def torch_state() -> list:
        return [
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            dist.is_initialized(),
            torch.get_rng_state().tolist(),
        ]

    STATE = torch_state()

    from commsched.models.errors import InputError
    from commsched.torch import capture, measure_costs
    from commsched.torch.buckets import read_ddp_log

    IMPORTING = {"same": torch_state() == STATE, "loaded": sorted(sys.modules)}

    def count_hooks(model) -> int:
        return sum(
            len(getattr(p, name, None) or ())
            for p in model.parameters()
            for name in ("_post_accumulate_grad_hooks", "_backward_hooks")
        )

    def training(model, batch, *, passes=1, **kwargs):
        """Return a DDP model and its training step."""
        ddp = DistributedDataParallel(model, **kwargs)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)

        def step():
            optimizer.zero_grad()
            for _ in range(passes - 1):
                with ddp.no_sync():
                    ddp(batch).float().square().mean().backward()
            ddp(batch).float().square().mean().backward()
            optimizer.step()

        return ddp, step

    def captured(model, batch, *, passes=1, hook=None, arguments=None, **kwargs) -> dict:
        """Capture a model under DDP and return everything that the tests look at."""
        ddp, step = training(model, batch, passes=passes, **kwargs)
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        before = count_hooks(ddp)
        recorded = capture(ddp, step, **(arguments or {"steps": 3, "warmup": 2}))
        return {
            "recorded": recorded,
            "log": dict(ddp._get_ddp_logging_data()),
            "parameters": [
                (name, p.numel() * p.element_size())
                for name, p in model.named_parameters()
                if p.requires_grad
            ],
            "hooks": (before, count_hooks(ddp)),
            "weights": [p.detach().double().sum().item() for p in model.parameters()],
        }

    def mlp(width=64, layers=5):
        return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])

    def burn(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    class Burn(torch.autograd.Function):
        """Passes everything on; its backward takes a while."""

        @staticmethod
        def forward(ctx, x, seconds):
            ctx.seconds = seconds
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            burn(ctx.seconds)
            return gradient, None

    class Slow(nn.Module):
        """A layer after which a rank takes a while in backward."""

        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds

        def forward(self, x):
            return Burn.apply(x, self.seconds)

    class Block(nn.Module):
        """A transformer's block."""

        def __init__(self, width, inner):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
            x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        """Embeddings, blocks, and a head; the head's weight may be the embedding's."""

        def __init__(self, *, tied=False, sparse=False, reentrant=None, width=32):
            super().__init__()
            self.embedding = nn.Embedding(100, width, sparse=sparse)
            self.blocks = nn.ModuleList([Block(width, 64) for _ in range(3)])
            self.head = nn.Linear(width, 100, bias=False)
            self.reentrant = reentrant
            if tied:
                self.head.weight = self.embedding.weight

        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                if self.reentrant is None:
                    x = block(x)
                else:
                    x = checkpoint(block, x, use_reentrant=self.reentrant)
            return self.head(x)

    class Mixed(nn.Module):
        """Half of it in bfloat16."""

        def __init__(self):
            super().__init__()
            self.low = mlp(layers=3).to(torch.bfloat16)
            self.high = mlp(layers=2)

        def forward(self, x):
            return self.high(self.low(x.to(torch.bfloat16)).float())

    class Partly(nn.Module):
        """Has a part that is used on some ranks only, or on none."""

        def __init__(self, *, use):
            super().__init__()
            self.first, self.extra, self.last = (nn.Linear(64, 64) for _ in range(3))
            self.use = use

        def forward(self, x):
            x = self.first(x)
            return self.last(self.extra(x) if self.use else x)

    TOKENS = torch.arange(64).reshape(4, 16)
    ROWS = torch.ones(8, 64)
    SMALL = {"bucket_cap_mb": 0.03}

    @case
    def importing(rank):
        """What importing the package changed in torch, and what was loaded then."""
        return IMPORTING

    @case
    def plain_mlp(rank):
        return captured(mlp(), ROWS, **SMALL)

    @case
    def convolutions(rank):
        layers = []
        for _ in range(4):
            layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
        return captured(model, torch.ones(2, 8, 8, 8), bucket_cap_mb=0.005)

    @case
    def tied(rank):
        return captured(Transformer(tied=True), TOKENS, **SMALL)

    @case
    def sparse(rank):
        model = Transformer(sparse=True)
        return captured(model, TOKENS, **SMALL)

    @case
    def frozen(rank):
        model = Transformer()
        model.blocks[0].requires_grad_(False)
        model.embedding.requires_grad_(False)
        return captured(model, TOKENS, **SMALL)

    @case
    def mixed(rank):
        return captured(Mixed(), ROWS, bucket_cap_mb=0.02)

    @case
    def checkpointed(rank):
        return captured(Transformer(reentrant=False), TOKENS, **SMALL)

    @case
    def checkpointed_reentrant(rank):
        return captured(Transformer(reentrant=True), TOKENS, **SMALL)

    @case
    def accumulated(rank):
        """Three passes, each of which takes 10 ms before its first gradient."""
        model = nn.Sequential(*mlp(), Slow(0.01))
        return captured(model, ROWS, passes=3, **SMALL)

    @case
    def views_and_static_graph(rank):
        return captured(mlp(), ROWS, gradient_as_bucket_view=True, static_graph=True, **SMALL)

    @case
    def caps_list(rank):
        return captured(mlp(), ROWS, bucket_cap_mb_list=[0.02, 0.04])

    @case
    def unused(rank):
        return captured(Partly(use=False), ROWS, find_unused_parameters=True, **SMALL)

    @case
    def find_unused(rank):
        return captured(Partly(use=True), ROWS, find_unused_parameters=True, **SMALL)

    @case
    def unused_on_one_rank(rank):
        return captured(Partly(use=rank == 0), ROWS, find_unused_parameters=True, **SMALL)

    @case
    def ignored(rank):
        model = mlp()
        model._ddp_params_and_buffers_to_ignore = ["1.weight", "1.bias"]
        return captured(model, ROWS, **SMALL)

    @case
    def python_reducer(rank):
        """The mark that torch.compile's reducer leaves, without compiling."""
        ddp, step = training(mlp(), ROWS, **SMALL)
        step()
        ddp._use_python_reducer = True
        return read_ddp_log(ddp)

    @case
    def all_ignored(rank):
        """One parameter was ignored from the start, the other is frozen later."""
        model = mlp(layers=1)
        model._ddp_params_and_buffers_to_ignore = ["0.bias"]
        ddp = DistributedDataParallel(model)
        model[0].weight.requires_grad_(False)
        return refusal(ddp, lambda: model(ROWS).mean().backward(), warmup=0)

    @case
    def early(rank):
        """For each number of steps before: captured, and what DDP says two steps later."""
        found = {}
        for static_graph in (False, True):
            for before in range(4):
                ddp, step = training(mlp(), ROWS, static_graph=static_graph, **SMALL)
                recorded = capture(ddp, step, steps=1, warmup=before)
                longer = capture(ddp, step, steps=2, warmup=0) if before == 0 else None
                for _ in range(3):
                    step()
                log = dict(ddp._get_ddp_logging_data())
                found[static_graph, before] = (recorded, longer, log)
        return found

    @case
    def compressed(rank):
        return captured(mlp(), ROWS, hook=fp16_compress_hook, **SMALL)

    @case
    def changed_after_wrapping(rank):
        model = mlp()
        ddp, step = training(model, ROWS, static_graph=True, **SMALL)
        step()
        model[0].requires_grad_(False)
        return capture(ddp, step, steps=1, warmup=0)

    @case
    def slow_rank(rank):
        """Rank 1 takes 50 ms longer between the last layer and the one before."""
        model = nn.Sequential(nn.Linear(64, 64), Slow(0.05 * rank), nn.Linear(64, 64))
        return captured(model, ROWS)

    @case
    def work_after_the_last_gradient(rank):
        """Backward goes on for 20 ms; the wire takes 180 ms more."""
        late = []

        def wire(state, bucket):
            future = torch.futures.Future()
            buffer = bucket.buffer()
            timer = threading.Timer(0.2, lambda: future.set_result(buffer))
            late.append(timer)
            timer.start()
            return future

        batch = ROWS.clone().requires_grad_()
        model = nn.Sequential(Slow(0.02), nn.Linear(64, 64))
        found = captured(model, batch, hook=wire, arguments={"steps": 2, "warmup": 1})
        for timer in late:
            timer.join()
        return found

    @case
    def without_ddp(rank):
        """The ranks' own models, with a step of another length on each."""
        model = mlp()

        def step():
            burn(0.01 * rank)
            model.zero_grad()
            model(ROWS).square().mean().backward()

        return capture(model, step, steps=2, warmup=1, name="plain")

    @case
    def silent(rank):
        """Each rank has other data, so that they would drift apart."""
        model = mlp()
        ddp, step = training(model, ROWS * (1 + rank), **SMALL)
        before = [p.detach().clone() for p in model.parameters()]
        recorded = capture(ddp, step, steps=2, warmup=2, communicate=False)
        kept = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        syncs = ddp.require_backward_grad_sync
        step()
        weights = [p.detach().double().sum().item() for p in model.parameters()]
        return {"recorded": recorded, "kept": kept, "syncs": syncs, "weights": weights}

    @case
    def silent_static_graph(rank):
        ddp, step = training(mlp(), ROWS, static_graph=True, **SMALL)
        said = refusal(ddp, step, communicate=False)
        step()
        return said, capture(ddp, step, steps=1, warmup=0, communicate=False)

    @case
    def raising(rank):
        """The third step raises, on both ranks, before it communicates."""
        ddp, step = training(mlp(), ROWS, **SMALL)
        calls = []

        def failing():
            calls.append(1)
            if len(calls) == 3:
                raise ZeroDivisionError("the step's own")
            step()

        before = count_hooks(ddp)
        try:
            capture(ddp, failing, steps=3, warmup=1)
        except ZeroDivisionError as error:
            said = str(error)
        after = count_hooks(ddp)
        again = capture(ddp, step, steps=2, warmup=0)
        return {"said": said, "hooks": (before, after, count_hooks(ddp)), "again": again}

    @case
    def different_models(rank):
        model = mlp(layers=2 + rank)
        return refusal(model, lambda: model(ROWS).mean().backward())

    @case
    def different_sizes(rank):
        model = nn.Linear(64, 8 + rank)
        return refusal(model, lambda: model(ROWS).mean().backward())

    @case
    def sharded(rank):
        model = mlp(layers=2)
        fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,)))
        return refusal(model, lambda: model(ROWS).mean().backward(), warmup=0)

    def refusal(model, step, **kwargs) -> str:
        try:
            capture(model, step, steps=1, **kwargs)
        except InputError as error:
            return str(error)
        return "not refused"

    @case
    def costs(rank):
        return measure_costs([4096, 1 << 20, 65536, 4096], repeats=3)

    @case
    def costs_refused(rank):
        """What is out of range, and a group of one rank or of the others only."""
        alone = [dist.new_group([r]) for r in range(RANKS)]
        calls = {
            "one size": lambda: measure_costs([4096, 4096]),
            "not whole": lambda: measure_costs([4096, 4098]),
            "empty": lambda: measure_costs([0, 4]),
            "repeats": lambda: measure_costs(repeats=0),
            "one rank": lambda: measure_costs(group=alone[rank]),
            "other rank": lambda: measure_costs(group=alone[1 - rank]),
        }
        said = {}
        for name, call in calls.items():
            try:
                call()
            except InputError as error:
                said[name] = str(error)
        return said

    status = 1
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Without the interpreter's end, at which gloo's threads may still run.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

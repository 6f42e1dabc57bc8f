"""Record the project's bundled real input: DDP training steps on two CPU ranks.

Needs only PyTorch. From the root of the repository::

    python benchmarks/record_ddp_trace.py

Two gloo ranks on the loopback interface train a small decoder-only transformer with
DistributedDataParallel and its default bucket caps. Four files are written to ``--out``:

* ``transformer_ddp_gloo_rank0.json.gz`` and ``..._rank1.json.gz``: torch.profiler traces of
  the profiled steps, trimmed to the events which describe gradients and communication;
* ``transformer_ddp_gloo_logging.json``: DDP's own account of its buckets, the list of
  parameters, and the raw all-reduce measurements;
* ``gloo_loopback_costs.json``: the measured time of one all-reduce against its size.
"""

import argparse
import gzip
import json
import os
import platform
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WORLD_SIZE = 2
STEM = "transformer_ddp_gloo"
COSTS_FILE = "gloo_loopback_costs.json"

# 149 parameters, 61.9 MB of float32: the default caps (1 MiB, then 25 MiB) give four buckets.
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 320, 5, 1024
BATCH, SEQUENCE = 4, 64

MEASURED_BYTES = [2**power for power in range(12, 27)]  # 4 KiB to 64 MiB
MEASURE_WARM_UPS = 3

TOP_LEVEL_KEYS = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
)
METADATA_NAMES = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
KEPT_NAMES = ("torch::autograd::AccumulateGrad", "record_param_comms")
KEPT_PREFIXES = (
    "ProfilerStep#",
    "autograd::engine::evaluate_function: ",
    "c10d::",
    "gloo:",
    "nccl:",
    "DistributedDataParallel.forward",
    "Optimizer.step",
)
DROPPED_ARGS = ("Input Strides", "Ev Idx")
# Other keys of DDP's logging data hold addresses and settings of the machine.
LOGGING_KEYS = re.compile(
    r"bucket|parameter|grad_ready|world_size|rank|iteration|dtypes|_time$"
    r"|backend_name|module_name|gloo_num_threads"
)


@dataclass(frozen=True)
class Config:
    """The command line."""

    out: Path
    warm_up_steps: int
    profiled_steps: int
    repetitions: int
    seed: int


class Block(nn.Module):
    """A pre-norm transformer block: causal self-attention, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return out


class DecoderLM(nn.Module):
    """A decoder-only language model with learned positions and an untied head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(SEQUENCE, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, length, vocabulary)."""
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def trim(trace: dict[str, Any]) -> dict[str, Any]:
    """Keep the events and keys which a reader of DDP traces needs, and nothing private."""
    events = []
    for event in trace["traceEvents"]:
        name = event["name"]
        if event["ph"] == "X" and (name in KEPT_NAMES or name.startswith(KEPT_PREFIXES)):
            args = {k: v for k, v in event.get("args", {}).items() if k not in DROPPED_ARGS}
            events.append({**event, "args": args})
    processes = {event["pid"] for event in events}
    metadata = [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["name"] in METADATA_NAMES and event["pid"] in processes
    ]
    kept = {key: trace[key] for key in TOP_LEVEL_KEYS if key in trace}
    return {**kept, "traceEvents": metadata + events}


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it: it is whole or absent."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def readable(document: dict[str, Any]) -> bytes:
    """JSON with one item of each outer dictionary or list a line."""
    entries = []
    for key, value in document.items():
        if isinstance(value, dict):
            lines = [f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
            text = "{\n" + ",\n".join(lines) + "\n }"
        elif isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        else:
            text = json.dumps(value)
        entries.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(entries) + "\n}\n").encode()


def isotonic(values: Sequence[float]) -> list[float]:
    """Least-squares non-decreasing fit by pooling adjacent violators."""
    pools: list[tuple[float, int]] = []  # (mean, number of values)
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            last_mean, last_count = pools.pop()
            mean = (mean * count + last_mean * last_count) / (count + last_count)
            count += last_count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def cost_points(raw: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Turn the raw medians into [bytes, us] points of a non-decreasing curve.

    Measured medians may fall where the size grows. Such stretches are made flat by isotonic
    regression, and the inner points of a flat stretch, which a straight line between its ends
    gives back, are left out. The raw measurements are kept in the logging file.
    """
    times = [round(time_us, 1) for time_us in isotonic([row["median_us"] for row in raw])]
    return [
        [row["bytes"], times[i]]
        for i, row in enumerate(raw)
        if not (0 < i < len(raw) - 1 and times[i - 1] == times[i] == times[i + 1])
    ]


def measure_all_reduce(repetitions: int) -> list[dict[str, Any]]:
    """Time dist.all_reduce for each size.

    Ranks leave the barrier at different moments, and the early one also waits for the late one.
    The minimum over the ranks is therefore nearest to the time of the operation itself. Sizes
    take turns, so that a disturbance falls on one repetition of several sizes and not on all of
    one size; in falling order, so that no small size meets caches which the largest has emptied.
    """
    data = torch.zeros(max(MEASURED_BYTES) // 4)
    times = torch.zeros(MEASURE_WARM_UPS + repetitions, len(MEASURED_BYTES), dtype=torch.float64)
    for row in times:
        for column in reversed(range(len(MEASURED_BYTES))):
            part = data[: MEASURED_BYTES[column] // 4]
            dist.barrier()
            start = time.perf_counter_ns()
            dist.all_reduce(part)
            row[column] = (time.perf_counter_ns() - start) / 1000
    dist.all_reduce(times, op=dist.ReduceOp.MIN)
    rows: list[dict[str, Any]] = []
    for column, size in enumerate(MEASURED_BYTES):
        us = [round(value, 1) for value in times[MEASURE_WARM_UPS:, column].tolist()]
        rows.append({"bytes": size, "median_us": statistics.median(us), "us": us})
    return rows


def train_and_record(config: Config, rank: int, ddp: DistributedDataParallel) -> None:
    """Do the warm-up and the profiled steps, and write this rank's trimmed trace."""

    def write_trace(profiler: profile) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(encoding="utf-8"))
        text = json.dumps(trim(trace), separators=(",", ":"))
        packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
        write_bytes(config.out / f"{STEM}_rank{rank}.json.gz", packed)

    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(config.seed + 1 + rank)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(
            wait=config.warm_up_steps - 1, warmup=1, active=config.profiled_steps, repeat=1
        ),
        on_trace_ready=write_trace,
        record_shapes=True,
    ) as profiler:
        for _ in range(config.warm_up_steps + config.profiled_steps):
            tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
            logits = ddp(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()


def write_tables(config: Config, ddp: DistributedDataParallel, raw: list[dict[str, Any]]) -> None:
    """Write the logging file and the cost file."""
    logged = ddp._get_ddp_logging_data()  # noqa: SLF001 (there is no public way)
    logging = {
        "recorded_with": {"torch": torch.__version__, "python": platform.python_version()},
        "ddp_logging_data": {k: v for k, v in logged.items() if LOGGING_KEYS.search(k)},
        "params": [
            [name, list(param.shape), str(param.dtype)]
            for name, param in ddp.module.named_parameters()
        ],
        "all_reduce_raw": raw,
    }
    costs = {
        "format": "commsched/costs",
        "version": 1,
        "name": f"gloo all-reduce over loopback, {WORLD_SIZE} CPU ranks",
        "allreduce": {"points": cost_points(raw)},
    }
    write_bytes(config.out / f"{STEM}_logging.json", readable(logging))
    write_bytes(config.out / COSTS_FILE, readable(costs))


def run_rank(rank: int, config: Config, port: int) -> None:
    """Do all the work of one rank."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    # Grow the heap to 1 GiB now, and touch it: see main.
    heap = [torch.ones(2**22) for _ in range(64)]
    del heap
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD_SIZE
    )
    try:
        raw = measure_all_reduce(config.repetitions)
        ddp = DistributedDataParallel(DecoderLM())
        train_and_record(config, rank, ddp)
        if rank == 0:
            write_tables(config, ddp, raw)
    finally:
        dist.destroy_process_group()


def free_port() -> int:
    """Ask the system for a port which nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def parse_args() -> Config:
    """Read and check the command line."""
    default_out = Path(__file__).resolve().parent.parent / "problems" / "data"
    parser = argparse.ArgumentParser(
        description="Record a trimmed DDP trace, DDP's bucket data and an all-reduce cost curve.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", default=default_out, help="folder for the files")
    add("--warm-up-steps", type=int, default=6, help="steps before the profiled ones, >= 3")
    add("--profiled-steps", type=int, default=3, help="steps in the trace, >= 1")
    add("--repetitions", type=int, default=51, help="timed all-reduces of each size, >= 15")
    add("--seed", type=int, default=0, help="seed of the weights and the tokens, >= 0")
    config = Config(**vars(parser.parse_args()))
    least = {"warm_up_steps": 3, "profiled_steps": 1, "repetitions": 15, "seed": 0}
    for name, minimum in least.items():
        if getattr(config, name) < minimum:
            parser.error(f"--{name.replace('_', '-')} must be at least {minimum}")
    return config


def main() -> None:
    """Run both ranks and list the files."""
    config = parse_args()
    config.out.mkdir(parents=True, exist_ok=True)
    # For the ranks. The profiler keeps small blocks of memory, so the heap is split and grows in
    # the profiled steps; the page faults would take as long as forward itself. Let glibc keep
    # what run_rank touches in advance, and take tensors up to 32 MiB from there.
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**32))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**25))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    mp.spawn(run_rank, args=(config, free_port()), nprocs=WORLD_SIZE)
    ranks = [f"{STEM}_rank{rank}.json.gz" for rank in range(WORLD_SIZE)]
    for name in (*ranks, f"{STEM}_logging.json", COSTS_FILE):
        print(f"{(config.out / name).stat().st_size:>9} B  {name}")


if __name__ == "__main__":
    main()

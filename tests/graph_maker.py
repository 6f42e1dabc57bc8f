"""A small GPU with streams: runs a program, writes the trace a profiler would, and knows the truth.

A collective of ``n`` bytes takes ``n / bandwidth`` nanoseconds, so the program can be run again
with another network and its length compared with what a plan read from the trace predicts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LAUNCH_NS = 5_000
"""How long a launch takes to reach the GPU."""
CPU, GPU = 4000, 0
MAIN, COMM = 7, 20

RPC = {
    "allreduce": ("allreduce", "nccl:all_reduce", "c10d::allreduce_"),
    "all_gather": ("_allgather_base", "nccl:_all_gather_base", "c10d::_allgather_base_"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "nccl:_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
    ),
    "all_to_all": ("all_to_allv", "nccl:all_to_all", "c10d::alltoall_base_"),
    "broadcast": ("broadcast", "nccl:broadcast", "c10d::broadcast_"),
}


@dataclass(frozen=True)
class Shown:
    """What the profiler records.

    ``sync_rows`` the waits of streams, ``event_calls`` the calls that ask for them, ``waits`` the
    process group's own, ``annotations`` FSDP's, ``names`` the collective's arguments.
    """

    sync_rows: bool = True
    event_calls: bool = True
    waits: bool = True
    annotations: bool = True
    names: bool = True


ALL = Shown()


@dataclass
class Mark:
    """An event that a stream has recorded."""

    time: int
    stream: int
    correlation: int


@dataclass
class Gpu:
    """Runs a program; time is in nanoseconds."""

    bandwidth: float = 1.0
    shown: Shown = ALL
    ranks: int = 4
    now: int = 1_000_000
    tid: int = 4000
    free: dict[int, int] = field(default_factory=dict)
    events: list[dict] = field(default_factory=list)
    first: int | None = None
    last: int = 0
    made: int = 0

    def add(self, name, start, end, *, cat="cpu_op", pid=CPU, tid=None, **args):
        self.events.append({
            "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": self.tid if tid is None else tid,
            "ts": start / 1000, "dur": (end - start) / 1000, "args": args,
        })  # fmt: skip

    def call(self, name, length=1_000, **args):
        """Call the GPU's runtime; return the correlation."""
        self.made += 1
        self.add(
            name, self.now, self.now + length, cat="cuda_runtime", correlation=self.made, **args
        )
        self.now += length
        return self.made

    def host(self, us):
        """Let the processor do something else."""
        self.now += round(us * 1000)

    def run(self, name, stream, length, launch="cudaLaunchKernel", **args):
        """Launch a kernel; return when it ends."""
        called = self.now
        correlation = self.call(launch, 2_000)
        start = max(self.free.get(stream, 0), called + LAUNCH_NS)
        end = start + round(length)
        self.free[stream] = end
        self.first = start if self.first is None else min(self.first, start)
        self.last = max(self.last, end)
        self.add(name, start, end, cat="kernel", pid=GPU, tid=stream, stream=stream,
                 correlation=correlation, **args)  # fmt: skip
        return end

    def kernel(self, us, stream=MAIN, name="gemm"):
        with self.op("aten::mm"):
            self.run(name, stream, us * 1000)

    def record(self, stream) -> Mark:
        correlation = 0
        if self.shown.event_calls:
            correlation = self.call("cudaEventRecord")
        return Mark(self.free.get(stream, 0), stream, correlation)

    def wait(self, stream, mark: Mark):
        called = self.now
        if self.shown.event_calls:
            correlation = self.call("cudaStreamWaitEvent")
            if self.shown.sync_rows:
                self.add("Stream Wait Event", called, called + 1, cat="cuda_sync", pid=GPU, tid=stream,
                         stream=stream, correlation=correlation, wait_on_stream=mark.stream,
                         wait_on_cuda_event_record_corr_id=mark.correlation)  # fmt: skip
        self.free[stream] = max(self.free.get(stream, 0), mark.time)

    def wait_stream(self, stream, other):
        self.wait(stream, self.record(other))

    @contextlib.contextmanager
    def op(self, name, cat="cpu_op", **args) -> Iterator[None]:
        start = self.now
        self.now += 500
        yield
        self.now += 500
        self.add(name, start, self.now, cat=cat, **args)

    @contextlib.contextmanager
    def note(self, name) -> Iterator[None]:
        """Annotate what happens inside."""
        if name.startswith("FSDP") and not self.shown.annotations:
            yield
            return
        with self.op(name, cat="user_annotation"):
            yield

    def collective(
        self,
        kind,
        size,
        *,
        stream=COMM,
        current=MAIN,
        sync=False,
        group="default_pg",
        dtype="Float",
    ) -> Mark:
        """Issue a collective of so many bytes; return the event of its end."""
        rpc, note, op = RPC[kind]
        elements, share = size // 4, size // 4 // self.ranks
        sent = share if kind == "all_gather" else elements
        received = share if kind == "reduce_scatter" else elements
        args = {}
        if self.shown.names:
            args = {"Collective name": rpc, "In msg nelems": sent, "Out msg nelems": received,
                    "Group size": self.ranks, "dtype": dtype, "Process Group Name": group,
                    "Process Group Description": group}  # fmt: skip
        dims = {"Input Dims": [[received], [sent]], "Input type": ["float", "float"]}
        if op.endswith(("allreduce_", "broadcast_")):
            dims = {"Input Dims": [[[sent]]], "Input type": ["TensorList"]}
        with self.op(op, **dims), self.op("record_param_comms", **args):
            mark = self.record(current)
            with self.op(
                note, cat="user_annotation", **{"Input Dims": [[sent]], "Input type": ["float"]}
            ):
                self.wait(stream, mark)
                self.run(f"ncclDevKernel_{kind}(args)", stream, size / self.bandwidth,
                         "cudaLaunchKernelExC", **args)  # fmt: skip
                end = self.record(stream)
        if sync:
            self.wait_work(end, current, group)
        return end

    def wait_work(self, end: Mark, current=MAIN, group="default_pg"):
        """Wait for a collective on the current stream, as ``work.wait()`` does."""
        if self.shown.waits:
            args = (
                {"Collective name": "wait", "Process Group Name": group} if self.shown.names else {}
            )
            with self.op("record_param_comms", **args):
                self.wait(current, end)
        else:
            self.wait(current, end)

    def synchronize(self, stream):
        """Block the processor until a stream has done its work."""
        called = self.now
        self.made += 1
        self.now = max(self.now, self.free.get(stream, 0)) + 2_000
        self.add(
            "cudaStreamSynchronize", called, self.now, cat="cuda_runtime", correlation=self.made
        )

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Run on the thread of backward, which starts and ends with the block."""
        before, self.tid = self.tid, 4007
        yield
        self.tid = before

    @contextlib.contextmanager
    def step(self, number=3) -> Iterator[None]:
        start = self.now
        self.now += 2_000
        yield
        self.now += 2_000
        self.add(f"ProfilerStep#{number}", start, self.now, cat="user_annotation")

    @property
    def length(self) -> int:
        """How long the GPU worked, from its first kernel to its last."""
        return self.last - (self.first or 0)

    def top(self) -> dict:
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": self.ranks},
            "traceEvents": self.events,
        }

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.top()))
        return path

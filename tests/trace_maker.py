"""Makes small profiler traces of DDP steps whose right answer is known.

The styles are those that PyTorch has written over the years; times are whole nanoseconds here
and are turned into the microseconds of the style at the very end.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

AG = "torch::autograd::AccumulateGrad"
OUTER = f"autograd::engine::evaluate_function: {AG}"
TYPES = {
    # dtype: (Input type, dtype of record_param_comms, bytes of an element)
    "float32": ("float", "Float", 4),
    "float16": ("c10::Half", "Half", 2),
    "bfloat16": ("c10::BFloat16", "BFloat16", 2),
    "float64": ("double", "Double", 8),
}
BASE_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Style:
    """How a profiler writes.

    ``gpu`` is "nccl-new" (2.19 and later), "nccl-old", "rocm", "rocm-old" (no correlation) or ""
    for gloo on the processor. ``sizes`` says where a launch's size stands: "comms"
    (record_param_comms), "c10d", "annotation" or "kernel".
    """

    gpu: str = "nccl-new"
    sizes: str = "comms"
    relative: bool = True
    marks: bool = True
    shapes: bool = True
    outer: bool = True
    c10d: bool = True
    string_tids: bool = False
    capitals: bool = False
    with_stack: bool = False


NEW = Style()
OLD = Style("nccl-old", "annotation", relative=False)
ROCM = Style("rocm")
ROCM_OLD = Style("rocm-old", "annotation", relative=False)
GLOO = Style("", "c10d")
GLOO_OLD = Style("", "annotation", relative=False, c10d=False)
OLDEST = Style(
    "nccl-old", "annotation", relative=False, outer=False, c10d=False, string_tids=True,
    capitals=True,
)  # fmt: skip
STYLES = {
    "new": NEW,
    "old": OLD,
    "rocm": ROCM,
    "rocm-old": ROCM_OLD,
    "gloo": GLOO,
    "gloo-old": GLOO_OLD,
    "oldest": OLDEST,
    "kernel-sizes": Style("nccl-new", "kernel"),
    "c10d-sizes": Style("nccl-new", "c10d"),
    "no-marks": Style(marks=False),
    "stack": Style(with_stack=True),
}


@dataclass
class Truth:
    """What a step of the trace really did; times in ns from the step's origin."""

    bytes: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    buckets: list[list[int]] = field(default_factory=list)
    launches: list[tuple[int, int, int]] = field(default_factory=list)  # issued, start, end
    backward_end: int = 0


@dataclass
class Maker:
    """Collects the events of a trace."""

    style: Style = NEW
    events: list[dict] = field(default_factory=list)
    now: int = 1_000_000
    next_id: int = 1
    gpu_free: int = 0
    comm_free: int = 0
    main: int = 4000
    backward: int = 4000
    gloo: int = 4009

    def __post_init__(self):
        if self.style.gpu:
            self.backward = 4007
        self.gpu_free = self.now + 500_000

    def us(self, ns):
        return ns / 1000 if self.style.relative else BASE_US + ns // 1000

    def add(self, name, start, end, *, tid, cat="cpu_op", args=None, pid=4000):
        style = self.style
        if style.capitals:
            cat = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel",
                   "cuda_runtime": "Runtime"}[cat]  # fmt: skip
        if style.string_tids:
            tid = f"stream {tid}" if cat == "Kernel" else str(tid)
        length = (end - start) / 1000 if style.relative else (end - start) // 1000
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": self.us(start),
                "dur": length,
                "args": args or {},
            }
        )

    def op(self, name, start, end, *, tid, dims=None, types=None, cat="cpu_op", **args):
        self.next_id += 1
        full = {"External id": self.next_id, "Record function id": 0, **args}
        if dims is not None and self.style.shapes:
            full |= {"Input Dims": dims, "Input type": types}
        self.add(name, start, end, tid=tid, cat=cat, args=full)
        return self.next_id

    def kernel(self, name, call, start, end, *, tid, op_id, stream=7, **args):
        """Add a kernel and, as far as the style has one, the call that launched it."""
        self.next_id += 1
        links = {"External id": op_id, "correlation": 900_000 + self.next_id}
        if self.style.gpu == "nccl-old":
            links["External id"] = links["correlation"]
        if self.style.gpu == "rocm-old":
            del links["correlation"]
        else:
            launch = "hipExtModuleLaunchKernel" if "rocm" in self.style.gpu else "cudaLaunchKernel"
            self.add(launch, call, call + 2000, tid=tid, cat="cuda_runtime",
                     args={"correlation": links["correlation"]})  # fmt: skip
        self.add(name, start, end, tid=stream, cat="kernel", pid=0,
                 args=links | {"stream": stream} | args)  # fmt: skip

    def compute(self, name, call, length, *, tid, op_id):
        """Run a kernel on the compute stream; return when it ends."""
        start = max(self.gpu_free, call + 5000)
        self.gpu_free = start + length
        self.kernel(name, call, start, start + length, tid=tid, op_id=op_id)
        return self.gpu_free

    def all_reduce(self, at, elements, dtype, ready, length=None):
        """Issue an all-reduce at a time inside a hook; return when it runs."""
        style = self.style
        text, comms, size = TYPES[dtype]
        duration = length or 20_000 + elements * size // 100 * 1000
        start = max(self.comm_free, ready + 3000, at + 9000)
        self.comm_free = start + duration
        end = self.comm_free
        if style.c10d:
            dims = [[[elements]], [], []] if style.sizes == "c10d" else [[], [], []]
            self.op("c10d::allreduce_", at, at + 12_000, tid=self.backward, dims=dims,
                    types=["TensorList", "", ""])  # fmt: skip
        message = {"Collective name": "allreduce", "dtype": comms, "In msg nelems": elements,
                   "Out msg nelems": elements, "Group size": 2, "Process Group Name": "0",
                   "Process Group Description": "default_pg"}  # fmt: skip
        op_id = 0
        if style.gpu and style.c10d:
            shown = message if style.sizes == "comms" else {}
            op_id = self.op(
                "record_param_comms", at + 1000, at + 11_000, tid=self.backward, **shown
            )
        dims = [[elements]] if style.sizes in ("annotation", "c10d") else None
        if not style.gpu:
            tid = self.gloo
            self.op("gloo:all_reduce", start, end, tid=tid, dims=[[elements]], types=[text],
                    cat="user_annotation")  # fmt: skip
            return start, end
        note = self.op("nccl:all_reduce", at + 2000, at + 10_000, tid=self.backward, dims=dims,
                       types=[text], cat="user_annotation")  # fmt: skip
        name = {
            "nccl-new": f"ncclDevKernel_AllReduce_Sum_{'f32' if size == 4 else 'bf16'}_RING_LL(a)",
            "nccl-old": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        }.get(style.gpu, "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)")
        args = message if style.sizes in ("comms", "kernel") else {}
        self.kernel(name, at + 4000, start, end, tid=self.backward, op_id=op_id or note, stream=20,
                    **args)  # fmt: skip
        return start, end

    def step(
        self,
        shapes: Sequence[Sequence[int]],
        ends: Sequence[int],
        *,
        dtypes: Sequence[str] | None = None,
        number: int = 3,
        length: int = 60_000,
        sent_as: str | None = None,
        launch: bool = True,
        loss_average: bool = False,
    ) -> Truth:
        """Add a step with these gradients in ready order, cut into buckets at these ends."""
        style, truth = self.style, Truth()
        dtypes = list(dtypes or ["float32"] * len(shapes))
        begin = self.now
        self.gpu_free = max(self.gpu_free, begin + 300_000)
        forward = self.op("aten::linear", begin + 20_000, begin + 60_000, tid=self.main)
        if style.c10d:
            self.op("DistributedDataParallel.forward", begin + 10_000, begin + 70_000,
                    tid=self.main, cat="user_annotation")  # fmt: skip
        origin = begin
        if style.gpu:
            origin = max(self.gpu_free, begin + 35_000)
            self.compute("ampere_sgemm", begin + 30_000, 40_000, tid=self.main, op_id=forward)
        at, last = begin + 100_000, 0
        for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            text = TYPES[dtype][0]
            name = "MmBackward0" if style.outer else "MmBackward"
            prefix = "autograd::engine::evaluate_function: " if style.outer else ""
            work = self.op(prefix + name, at, at + 8000, tid=self.backward)
            at += 10_000
            ready = at
            if style.gpu:
                ready = self.compute("ampere_sgemm", at - 8000, length, tid=self.backward,
                                     op_id=work)  # fmt: skip
            hook_end = at + 40_000
            if style.outer:
                self.op(OUTER, at, hook_end, tid=self.backward)
            self.op(AG, at + (1000 if style.outer else 0), at + 4000, tid=self.backward,
                    dims=[list(shape)], types=[text])  # fmt: skip
            if style.with_stack:
                self.add("torch/nn/modules/module.py(1): hook", at + 1000, at + 39_000,
                         tid=self.backward, cat="python_function")  # fmt: skip
            if style.gpu and style.outer:
                copy = self.op("torch::distributed::reducer::mul_out", at + 5000, at + 9000,
                               tid=self.backward)  # fmt: skip
                last = self.compute("vectorized_elementwise", at + 6000, 1000, tid=self.backward,
                                    op_id=copy)  # fmt: skip
            elif style.gpu:
                last = ready
            else:
                last = hook_end
            truth.bytes.append(prod(shape) * TYPES[sent_as or dtype][2])
            truth.dtypes.append(sent_as or dtype)
            truth.ready.append(ready - origin)
            if launch and k + 1 in ends:
                first = max((end for end in ends if end <= k), default=0)
                members = list(range(first, k + 1))
                elements = sum(prod(shapes[m]) for m in members)
                issued = at + 12_000
                start, end = self.all_reduce(issued, elements, sent_as or dtype, max(ready, last))
                truth.buckets.append(members)
                seen = issued if style.c10d or style.gpu else start
                if style.gpu and not style.c10d:
                    seen = issued + 2000
                truth.launches.append((seen - origin, start - origin, end - origin))
            at = hook_end + 2000
        truth.backward_end = last - origin
        if loss_average:
            self.all_reduce(at + 5000, 1, "float32", last)
            at += 40_000
        # DDP waits for the all-reduces, then copies; that is no backward work.
        if style.gpu:
            self.gpu_free = max(self.gpu_free, self.comm_free)
            self.compute("copy_bucket_to_grad", at, 5000, tid=self.backward, op_id=0)
        finish = max(at, self.comm_free if not style.gpu else 0) + 20_000
        self.op("Optimizer.step#SGD.step", finish, finish + 30_000, tid=self.main,
                cat="user_annotation")  # fmt: skip
        finish += 50_000
        if style.marks:
            self.op(f"ProfilerStep#{number}", begin, finish, tid=self.main, cat="user_annotation")
            # The same name on the GPU, with other times, must not count.
            if not style.capitals:
                self.add(f"ProfilerStep#{number}", origin, origin + 5000, tid=7,
                         cat="gpu_user_annotation")  # fmt: skip
        self.now = finish + 10_000
        return truth

    def top(self) -> dict:
        """Return the top level of the JSON."""
        meta = [{"ph": "M", "name": "process_name", "pid": 4000, "tid": 0, "args": {"name": "py"}}]
        return {
            "schemaVersion": 1,
            "deviceProperties": [],
            "distributedInfo": {"backend": "nccl" if self.style.gpu else "gloo", "world_size": 2},
            "traceEvents": meta + self.events,
            "traceName": "a]b.json",
        }


def write_trace(path: Path, top: object, *, compress: bool = False) -> Path:
    """Write a trace the way the profiler does, gzip or not; the name says nothing of it."""
    data = json.dumps(top, indent=1).encode()
    path.write_bytes(gzip.compress(data) if compress else data)
    return path

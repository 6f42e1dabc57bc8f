"""Reading PyTorch execution traces on their own: sizes, order and launches, but no times."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest
from shared_files import SHARED, shared_data

from commsched.models import InputError, Plan
from commsched.problems.execution.execution_collectives import read_collectives
from commsched.problems.execution.execution_steps import READER
from commsched.problems.execution.execution_trace import ACCUMULATE
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedStep
from commsched.problems.sources.source import Source

ROOT = "[pytorch|profiler|execution_trace|thread]"


class Trace:
    """Writes an execution trace in either schema."""

    def __init__(self, schema: str = "1.1.0-chakra.0.0.4") -> None:
        self.schema = schema
        self.flat = schema == "1.0.1"
        self.nodes: list[dict] = []
        self.add(ROOT)

    def add(self, name, parent=1, shapes=(), types=(), values=(), outputs=((), ()), **attributes):
        number = len(self.nodes) + 1
        shapes, types, values = list(shapes), list(types), list(values)
        node = {"id": number, "name": name}
        if self.flat:
            node |= {"parent": parent, "inputs": values}
            node |= {"input_shapes": shapes, "input_types": types}
            node |= {"output_shapes": list(outputs[0]), "output_types": list(outputs[1])}
        else:
            node["ctrl_deps"] = parent
            node["inputs"] = {"values": values, "shapes": shapes, "types": types}
            node["outputs"] = {"shapes": list(outputs[0]), "types": list(outputs[1])}
            node["attrs"] = [{"name": k, "value": v} for k, v in attributes.items()]
        self.nodes.append(node)
        return number

    def gradient(self, shape, dtype="float"):
        outer = self.add(f"autograd::engine::evaluate_function: {ACCUMULATE}")
        self.add(ACCUMULATE, outer, [shape], [f"Tensor({dtype})"])
        return outer

    def allreduce(self, elements, parent=1, dtype="float", group="0", ranks=8):
        of_list = [[[elements]]], [f"GenericList[Tensor({dtype})]"]
        outer = self.add("c10d::allreduce_", parent, *of_list)
        middle = self.add(
            "record_param_comms",
            outer,
            *of_list,
            [[], 5, [group, "pg"], 0, "allreduce", [], []],
            collective_name="allreduce",
            dtype="Float",
            in_msg_nelems=elements,
            out_msg_nelems=elements,
            pg_name=group,
            pg_size=ranks,
        )
        self.add("nccl:all_reduce", middle, [[elements]], [f"Tensor({dtype})"])
        self.add("record_param_comms", outer, values=[5, 0, 0, "wait", [], []])

    def step(self, number=None):
        if number is not None:
            self.add(f"ProfilerStep#{number}")
        self.add("DistributedDataParallel.forward")
        self.gradient([10])
        last = self.gradient([4, 5])
        self.allreduce(30, last)
        last = self.gradient([])
        self.allreduce(1, last)
        self.add("Optimizer.step#SGD.step")

    def data(self) -> bytes:
        return json.dumps({"schema": self.schema, "pid": 1, "nodes": self.nodes}).encode()


def write(folder: Path, data: bytes) -> Source:
    path = folder / "rank0.et.json"
    path.write_bytes(data)
    return Source(path)


def get(source: Source, **options) -> RecordedStep:
    assert READER.recognises(source.start())
    found = READER.read([source], ReadOptions(**options))
    assert isinstance(found, RecordedStep)
    return found


def refused(source: Source, **options) -> str:
    with pytest.raises(InputError) as caught:
        READER.read([source], ReadOptions(**options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("schema", ["1.0.1", "1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
def test_gradients_are_spread_evenly_over_the_stated_time(tmp_path, schema):
    """Sizes and launches are recorded, times are estimated, and every output says so."""
    trace = Trace(schema)
    trace.step()
    step = get(write(tmp_path, trace.data()), backward_us=900)
    assert [(g.bytes, g.ready_ns) for g in step.gradients] == [
        (40, 300_000),
        (80, 600_000),
        (4, 900_000),
    ]
    names = [g.name for g in step.gradients]
    assert names == ["grad000 [10]", "grad001 [4x5]", "grad002 [scalar]"]
    assert step.plan == Plan.of([names[:2], names[2:]])
    assert [(x.bytes, x.issued_ns, x.start_ns) for x in step.launches] == [
        (120, 600_000, None),
        (4, 900_000, None),
    ]
    assert step.backward_end_ns == 900_000
    assert "estimated" in step.name
    assert step.report.assumptions[0].startswith("estimated")
    assert all(check.passed for check in step.report.checks)
    assert step.ranks == (None if schema == "1.0.1" else 8)
    assert step.launches[0].group == ("dp" if schema == "1.0.1" else "0")


def test_without_a_time_it_says_what_it_has_and_lacks(tmp_path):
    """One line, with both ways out."""
    trace = Trace()
    trace.step()
    message = refused(write(tmp_path, trace.data()))
    assert "3 gradients and 2 all-reduces but no times" in message
    assert "--sizes THIS" in message
    assert "--backward-us" in message
    for value in (0, -1.0, float("nan"), float("inf"), 1e300):
        assert "backward_us" in refused(write(tmp_path, trace.data()), backward_us=value)


def test_steps(tmp_path):
    """The last step or the one that is asked for; differing steps are a failed check."""
    trace = Trace()
    trace.step(7)
    trace.step(8)
    source = write(tmp_path, trace.data())
    assert get(source, backward_us=1).step_name == "ProfilerStep#8"
    assert get(source, backward_us=1, step=7).step_name == "ProfilerStep#7"
    assert "step 9 is not there or has no gradient (there: 7, 8)" in refused(source, step=9)
    trace.add("ProfilerStep#9")
    trace.gradient([1000])
    step = get(write(tmp_path, trace.data()), backward_us=1)
    failed = [check.text for check in step.report.checks if not check.passed]
    assert failed == ["1 of 3 steps have the same gradients"]


def test_launches_that_do_not_fit(tmp_path):
    """Wrong bytes, another type, no gradient before it: the plan is not claimed."""
    trace = Trace()
    trace.gradient([10])
    trace.allreduce(11)
    trace.allreduce(3)
    step = get(write(tmp_path, trace.data()), backward_us=10)
    assert [(x.bytes, x.exact) for x in step.launches] == [(44, False)]
    assert step.plan is None
    assert step.report.dropped == {"all-reduces with no gradient before them": 1}
    assert [check.passed for check in step.report.checks] == [False]


def test_other_collectives_and_undefined_gradients_are_counted(tmp_path):
    """What cannot be placed in time is dropped by reason."""
    trace = Trace()
    trace.add(ACCUMULATE, 1, [[]], ["Tensor(nullptr (uninitialized))"])
    trace.gradient([2])
    two = [[64], [8]], ["Tensor(float)", "Tensor(float)"]
    trace.add("c10d::_allgather_base_", 1, *two)
    report = get(write(tmp_path, trace.data()), backward_us=10).report
    assert report.dropped == {
        "gradients that were not defined": 1,
        "all_gather collectives, whose place in time is not known": 1,
    }


def test_sizes_of_each_kind(tmp_path):
    """The larger of input and output is the total over the ranks."""
    trace = Trace()
    two = ["Tensor(float)", "Tensor(float)"]
    trace.add("c10d::_allgather_base_", 1, [[64], [8]], two)
    trace.add("c10d::_reduce_scatter_base_", 1, [[8], [64]], two)
    trace.add("c10d::alltoall_base_", 1, [[24], [24]], ["Tensor(long int)"] * 2)
    half = "Tensor(c10::Half)"
    lists = [f"GenericList[GenericList[{half},{half}]]", f"GenericList[{half}]"]
    trace.add("c10d::allgather_", 1, [[[[1], [1]]], [[1]]], lists)
    trace.add("c10d::broadcast_", 1, [[[3], [4]]], ["GenericList[Tensor(int),Tensor(int)]"])
    trace.add("c10d::allreduce_", 1, [[]], ["GenericList[]"])
    trace.add("c10d::barrier", 1)
    trace.add("gloo:all_reduce", 1, [[99]], ["Tensor(float)"])
    found = read_collectives(write(tmp_path, trace.data()).path)
    assert [(one.kind, one.bytes, one.dtype) for one in found] == [
        ("all_gather", 256, "float32"),
        ("reduce_scatter", 256, "float32"),
        ("all_to_all", 192, "int64"),
        ("all_gather", 4, "float16"),
        ("broadcast", 28, "int32"),
        ("allreduce", None, None),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"schema": "1.0.1", "nodes": []}', "no gradient"),
        (b'{"schema": "1.0.1", "nodes": [', "no execution trace"),
        (b'{"schema": "1.0.1", "nodes": [3, {"id": []}]}', "no gradient"),
        (b'{"schema": 1, "nodes": []}', "needs a schema"),
        (b"[" * 100_000, "no execution trace"),
    ],
)
def test_refusals(tmp_path, data, words):
    """One line each."""
    assert words in refused(write(tmp_path, data), backward_us=5)


def test_a_gradient_without_shapes_is_refused(tmp_path):
    """Sizes are what an execution trace is for."""
    trace = Trace()
    trace.add(ACCUMULATE, 1, [[2]], ["Tensor(quaternion)"])
    assert "no readable shape and type" in refused(write(tmp_path, trace.data()))
    trace = Trace()
    trace.gradient([2**50])
    assert "at most" in refused(write(tmp_path, trace.data()), backward_us=1)


def test_parents_in_a_circle_or_very_deep_do_no_harm(tmp_path):
    """Whatever the parents say, reading ends."""
    trace = Trace()
    for k in range(5000):
        trace.add("c10d::allreduce_" if k % 2 else "x", len(trace.nodes), [[3]], ["Tensor(float)"])
    trace.nodes[0]["ctrl_deps"] = 4000
    assert read_collectives(write(tmp_path, trace.data()).path)


def mutations(top: dict, count: int):
    """Yield the trace with fields removed and types changed."""
    rng = random.Random(3)
    strange = (None, True, -1, 2**70, 0.5, "", "x", [], [[]], {}, [None], {"values": 3})
    text = json.dumps(top)
    for _ in range(count):
        changed = json.loads(text)
        for _ in range(rng.randint(1, 3)):
            node = rng.choice(changed["nodes"])
            place = node
            if rng.random() < 0.5:
                inner = [v for v in node.values() if isinstance(v, dict)]
                place = rng.choice(inner) if inner else node
            key = rng.choice(list(place)) if place else "id"
            if rng.random() < 0.3:
                place.pop(key, None)
            else:
                place[key] = rng.choice(strange)
        yield json.dumps(changed).encode()


@pytest.mark.parametrize("schema", ["1.0.1", "1.1.0"])
def test_nothing_but_a_refusal_for_changed_fields(tmp_path, schema):
    """Fields removed, types changed, bytes flipped and cut."""
    trace = Trace(schema)
    trace.step(1)
    trace.step(2)
    rng = random.Random(11)
    data = trace.data()
    flipped = []
    for _ in range(300):
        changed = bytearray(data)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        flipped.append(
            bytes(changed[: rng.randrange(1, len(changed))] if rng.random() < 0.2 else changed)
        )
    for changed in [*mutations(json.loads(data), 400), *flipped]:
        source = write(tmp_path, changed)
        READER.recognises(source.start())
        try:
            step = READER.read([source], ReadOptions(backward_us=50))
        except InputError:
            continue
        assert isinstance(step, RecordedStep)
        assert step.gradients


# --- other people's traces ---------------------------------------------------------------------


def unpacked(tmp_path: Path, archive: str, name: str) -> Source:
    with tarfile.open(fileobj=io.BytesIO(shared_data(archive).read_bytes())) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return write(tmp_path, file.read())


@pytest.mark.shared
def test_resnet50(tmp_path):
    """161 gradients a step; five of five buckets are exact in each of three steps."""
    source = Source(shared_data("param/resnet_2gpu_et_1.1.0.json.gz"))
    for number in (4, 5, 6, None):
        step = get(source, backward_us=100_000, step=number)
        assert len(step.gradients) == 161
        assert [x.bytes // 4 for x in step.launches] == [
            2049000,
            7875584,
            6563840,
            6637568,
            2431040,
        ]
        assert step.plan is not None
        assert step.ranks == 2
        assert step.report.dropped == {"broadcast collectives, whose place in time is not known": 2}
    kinds = [one.kind for one in read_collectives(source.path)]
    assert (kinds.count("allreduce"), kinds.count("broadcast")) == (15, 6)


@pytest.mark.shared
@pytest.mark.parametrize("rank", [0, 1])
def test_gloo_ddp(rank):
    """Seven of seven buckets, as DDP's own log says; gloo's own events are not counted twice."""
    log = json.loads(
        shared_data(f"local-torch-2.14.1/ddp_logging_data_rank{rank}.json").read_text()
    )
    sizes = [int(x) for x in log["ddp_logging_data"]["rebuilt_bucket_sizes"].split(",")]
    path = shared_data(f"local-torch-2.14.1/ddp_gloo_et_rank{rank}.json.gz")
    step = get(Source(path), backward_us=1000)
    assert [x.bytes for x in step.launches] == sizes
    assert step.plan is not None
    assert len(read_collectives(path)) == 14


@pytest.mark.shared
@pytest.mark.parametrize("rank", range(8))
def test_dlrm(tmp_path, rank):
    """Eight ranks of schema 1.0.1: the sizes that the profiler recorded of the same run."""
    source = unpacked(
        tmp_path, "param/dlrm_pytorch_et.tar.gz", f"dlrm_pytorch_et/dlrm_eg_{rank}.json"
    )
    found = read_collectives(source.path)
    assert [one.bytes // 4 for one in found if one.kind == "allreduce"] == [394241, 112, 226960]
    assert sum(one.kind == "all_to_all" for one in found) == 5
    step = get(source, backward_us=500)
    # Two DDP modules take turns, so not every bucket is a run of gradients.
    assert [x.exact for x in step.launches] == [True, False, False]
    assert step.plan is None
    assert step.report.dropped["all_to_all collectives, whose place in time is not known"] == 5


@pytest.mark.shared
def test_all_gathers_only(tmp_path):
    """A trace without gradients has no step, but the sizes of its ten all-gathers."""
    source = unpacked(tmp_path, "chakra/1.0.2-chakra.0.0.4.tgz", "1.0.2-chakra.0.0.4.json")
    assert "no gradient" in refused(source, backward_us=1)
    found = read_collectives(source.path)
    assert [(one.kind, one.bytes) for one in found] == [("all_gather", 8)] * 10


@pytest.mark.shared
def test_no_other_real_file_is_taken_for_an_execution_trace():
    """Only those that are one."""
    shared_data("INDEX.md")
    taken = set()
    for path in sorted((SHARED / "data").rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if READER.recognises(data[: 1 << 20]):
            taken.add(path.name)
    assert taken == {
        "resnet_2gpu_et_1.1.0.json.gz",
        "ddp_gloo_et_rank0.json.gz",
        "ddp_gloo_et_rank1.json.gz",
    }

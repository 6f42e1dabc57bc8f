"""Where a device's time went: against counting every nanosecond, and facts of real traces."""

from __future__ import annotations

import gzip
import json
import random
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import shared_data

from commsched.models.errors import InputError
from commsched.problems.breakdown.breakdown import Activity, Sort, break_down, collective_runs
from commsched.problems.breakdown.breakdown_trace import read_device_work
from commsched.problems.sources.source import Source

ACTIVITIES = st.lists(
    st.builds(
        lambda sort, start, length, stream: Activity(sort, start, start + length, stream),
        st.sampled_from(Sort),
        st.integers(-20, 60),
        st.integers(0, 25),
        st.sampled_from(["7", "40"]),
    ),
    min_size=1,
    max_size=12,
)


def moments(activities, sort):
    """Return every nanosecond in which something of a sort ran."""
    return {t for one in activities if one.sort is sort for t in range(one.start, one.end)}


@given(ACTIVITIES)
def test_every_nanosecond_counts_once(activities):
    """Unions, priorities and exposed times equal those of counting nanosecond by nanosecond."""
    computing, communicating, copying = (moments(activities, sort) for sort in Sort)
    found = break_down(activities)
    assert found.start_ns == min(one.start for one in activities)
    assert found.span_ns == max(one.end for one in activities) - found.start_ns
    assert found.computation_ns == len(computing)
    assert found.communication_ns == len(communicating)
    assert found.overlap_ns == len(communicating & computing)
    assert found.exposed_ns == len(communicating - computing)
    assert found.memory_ns == len(copying)
    assert found.copies_ns == len(copying - computing - communicating)
    assert found.idle_ns == found.span_ns - len(computing | communicating | copying)
    for run in collective_runs(activities):
        own = set(range(run.activity.start, run.activity.end))
        assert run.exposed_ns == len(own - computing)


def test_nothing_and_nonsense_are_refused():
    """No activity has no breakdown, and time does not run backwards."""
    with pytest.raises(InputError, match="nothing ran"):
        break_down([])
    with pytest.raises(InputError, match="ends before it starts"):
        break_down([Activity(Sort.COPY, 5, 4)])


def gpu(name, ts, dur, *, stream=7, correlation=None, cat="kernel", device=0, **args):
    """Return an event of a GPU."""
    args |= {"stream": stream, "device": device}
    if correlation is not None:
        args["correlation"] = correlation
    return event(name, ts, dur, cat=cat, pid=device, tid=stream, **args)


def event(name, ts, dur, *, cat="cpu_op", pid=1, tid=100, **args):
    """Return a complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def write(path, events, **top):
    """Write a trace; return its path."""
    path.write_text(json.dumps({**top, "traceEvents": events}))
    return path


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def two_steps():
    """Return two steps of a kernel and an all-reduce each, after a kernel of an earlier step."""
    events = [gpu("gemm", 0, 30, correlation=1)]
    for number, start in ((4, 100), (5, 200)):
        comm = {"Collective name": "allreduce", "In msg nelems": 256, "dtype": "Half"}
        events += [
            event(f"ProfilerStep#{number}", start, 90, cat="user_annotation"),
            # The GPU's mark of the step lies elsewhere and must not count.
            event(f"ProfilerStep#{number}", start + 60, 500, cat="gpu_user_annotation"),
            event("cudaLaunchKernel", start + 1, 2, cat="cuda_runtime", correlation=start),
            event("cudaLaunchKernel", start + 80, 2, cat="cuda_runtime", correlation=start + 1),
            gpu("gemm", start + 50, 60, correlation=start),
            gpu(REDUCE, start + 90, 40, stream=40, correlation=start + 1, **comm),
        ]
    return events


def test_a_step_is_what_it_launched(tmp_path):
    """Kernels belong to the step that launched them, and those without a launch to none."""
    (work,) = read_device_work(write(tmp_path / "t.json", two_steps()))
    assert [step.number for step in work.steps] == [4, 5]
    assert work.not_launched == 1
    assert "1 of 5 kernels" in work.report.assumptions[0]
    whole = break_down(work.activities)
    assert (whole.span_ns, whole.computation_ns, whole.exposed_ns) == (330_000, 150_000, 40_000)
    by_number = dict(work.by_step())
    for number in (4, 5):
        step = work.of_step(number)
        assert step == by_number[number]
        found = break_down(step.activities)
        assert (found.span_ns, found.computation_ns) == (80_000, 60_000)
        assert (found.overlap_ns, found.exposed_ns, found.idle_ns) == (20_000, 20_000, 0)
        (run,) = collective_runs(step.activities)
        assert (run.activity.kind, run.activity.bytes, run.exposed_ns) == ("allreduce", 512, 20_000)
    assert len(work.launched_only().activities) == 4
    with pytest.raises(InputError, match="step 6 is not in the recording, which has 4, 5"):
        work.of_step(6)


def test_nothing_launched_is_said(tmp_path):
    """A trace without launches has no steps to choose from."""
    (work,) = read_device_work(write(tmp_path / "t.json", [gpu("gemm", 0, 5)]))
    with pytest.raises(InputError, match="no ProfilerStep"):
        work.of_step(1)
    with pytest.raises(InputError, match="no launch was recorded"):
        work.launched_only()
    steps = [event("ProfilerStep#1", 0, 9, cat="user_annotation"), gpu("gemm", 0, 5)]
    (work,) = read_device_work(write(tmp_path / "t.json", steps))
    for ask in (lambda: work.of_step(1), work.by_step):
        with pytest.raises(InputError, match="nothing ran on device 0"):
            ask()


@pytest.mark.parametrize(
    ("ops", "kind", "size"),
    [
        (["c10d::allreduce_", "nccl:all_reduce"], "allreduce", 400),
        (["c10d::_allgather_base_"], "all_gather", 3200),
        (["nccl:_all_gather_base"], "all_gather", None),
        (["c10d::_reduce_scatter_base_"], "reduce_scatter", 3200),
        (["nccl:_reduce_scatter_base"], "reduce_scatter", 400),
        (["c10d::alltoall_base_"], "all_to_all", 400),
        (["record_param_comms"], "all_gather", 1600),
        ([], "send_recv", None),
    ],
)
def test_old_traces_say_the_kind_at_the_launch(tmp_path, ops, kind, size):
    """The kernel is called SendRecv; what it is, and how big, the launching thread says."""
    args = {
        "c10d::allreduce_": {"Input Dims": [[], []], "Input type": ["TensorList", ""]},
        "c10d::_allgather_base_": {"Input Dims": [[800], [100], []], "Input type": ["float"] * 3},
        "c10d::_reduce_scatter_base_": {"Input Dims": [[100], [800]], "Input type": ["float"] * 2},
        "c10d::alltoall_base_": {"Input Dims": [[120], [100]], "Input type": ["float", "float"]},
        "record_param_comms": {
            "Collective name": "_allgather_base", "In msg nelems": 100, "Out msg nelems": 400,
            "dtype": "Float",
        },
    }  # fmt: skip
    one = {"Input Dims": [[100]], "Input type": ["float"]}
    events = [
        event(name, 10 + depth, 50 - 2 * depth, **args.get(name, one))
        for depth, name in enumerate(ops)
    ]
    events += [
        event("c10d::broadcast_", 0, 5, **one),  # Over before.
        event("c10d::broadcast_", 20, 30, tid=101, **one),  # Another thread's.
        event("cudaLaunchKernelExC", 30, 2, cat="cuda_runtime", correlation=8),
        gpu("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 90, 9, stream=84, correlation=8),
    ]
    (work,) = read_device_work(write(tmp_path / "t.json", events))
    (run,) = collective_runs(work.activities)
    assert (run.activity.kind, run.activity.bytes, run.activity.stream) == (kind, size, "84")
    assert any("sizes of 1 of 1" in text for text in work.report.assumptions) == (size is None)


def test_sorts_of_what_runs_on_a_gpu(tmp_path):
    """The category says what a copy is, the name what communicates; waiting is nothing at all."""
    events = [
        gpu("Memcpy DtoD (Device -> Device)", 0, 10, cat="gpu_memcpy"),
        gpu("Memset (Device)", 20, 10, cat="gpu_memset"),
        gpu("void MemcpyLike<float>()", 40, 10),
        gpu("Stream Wait Event", 60, 900, cat="cuda_sync"),
        gpu("void deep_ep::internode::dispatch<8>", 80, 10, stream=9),
        gpu("ncclDevKernel_Generic_4", 100, 10, stream=9),
        gpu("ncclSymkDevKernel_ReduceScatter_LD", 120, 10, stream=9),
    ]
    (work,) = read_device_work(write(tmp_path / "t.json", events))
    found = break_down(work.activities)
    assert (found.copies_ns, found.computation_ns, found.communication_ns) == (
        20_000, 10_000, 30_000,
    )  # fmt: skip
    kinds = [run.activity.kind for run in collective_runs(work.activities)]
    assert kinds == ["all_to_all", "", "reduce_scatter"]
    assert [check.text for check in work.report.checks] == [
        "the kind of 2 of 3 collectives is known"
    ]


def test_impossible_durations_are_dropped_and_counted(tmp_path):
    """Negative, missing, and 236 years: none of them counts, all of them are reported."""
    bad = [gpu("gemm", 10, dur) for dur in (-1, None, 7_447_698_000_000_000)]
    (work,) = read_device_work(write(tmp_path / "t.json", [gpu("gemm", 0, 5), *bad]))
    assert break_down(work.activities).span_ns == 5000
    assert sum(work.report.dropped.values()) == 3
    assert all("duration" in reason for reason in work.report.dropped)


@pytest.mark.parametrize("call", ["hipLaunchKernel", "cudaLaunchKernel"])
def test_overruns_are_cut_on_rocm_only(tmp_path, call):
    """ROCm's kernels end where the next one on their stream begins; CUDA's only raise a doubt."""
    events = [
        event(call, 0, 1, cat="cuda_runtime", correlation=1),
        gpu("fmha", 0, 1_600_000, correlation=1),
        gpu("gemm", 50, 10, correlation=2),
        gpu("Memcpy HtoD (Host -> Device)", 61, 10, stream=9, cat="gpu_memcpy"),
    ]
    (work,) = read_device_work(write(tmp_path / "t.json", events))
    found = break_down(work.activities)
    if call.startswith("hip"):
        assert (found.computation_ns, found.span_ns) == (60_000, 71_000)
        assert list(work.report.dropped.values()) == [1]
        assert not work.report.checks
    else:
        assert found.computation_ns == 1_600_000_000
        assert [check.passed for check in work.report.checks] == [False]


def test_devices_are_kept_apart(tmp_path):
    """What one GPU computes hides nothing on the other."""
    events = [gpu("gemm", 0, 10), gpu(REDUCE, 0, 10, stream=40, device=1)]
    path = write(tmp_path / "t.json", events, distributedInfo={"rank": 3})
    works = read_device_work(Source(path))
    assert [(work.rank, work.device) for work in works] == [(3, "0"), (3, "1")]
    assert [break_down(work.activities).exposed_ns for work in works] == [0, 10_000]


def test_gloo_without_gpu(tmp_path):
    """Innermost operations compute; waiting inside an outer one does not, nor what c10d does."""
    dims = {"Input Dims": [[800], [100]], "Input type": ["float", "float"]}
    events = [
        event("autograd::engine::evaluate_function: X", 0, 100),  # Waits from 10 to 90 inside.
        event("aten::mm", 0, 10),
        event("aten::mm", 90, 10),
        event("c10d::_reduce_scatter_base_", 10, 6, **(dims | {"Input Dims": [[100], [800]]})),
        event("aten::view", 12, 2),
        event("gloo:all_reduce", 15, 50, cat="user_annotation", tid=200,
              **{"Input Dims": [[800]], "Input type": ["float"]}),
        event("aten::copy_", 20, 5, tid=200),  # gloo's own.
        event("aten::add", 40, 10, tid=101),
    ]  # fmt: skip
    (work,) = read_device_work(write(tmp_path / "t.json", events))
    assert work.device == "cpu"
    assert "no GPU" in work.notes[0]
    found = break_down(work.activities)
    assert (found.computation_ns, found.communication_ns) == (30_000, 50_000)
    assert (found.overlap_ns, found.idle_ns) == (10_000, 30_000)
    (run,) = collective_runs(work.activities)
    # gloo calls its reduce-scatter all_reduce; the operation knows better.
    assert (run.activity.kind, run.activity.bytes) == ("reduce_scatter", 3200)
    assert run.activity.launched == 10_000


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no kernel of a GPU"),
        ([event("aten::mm", 0, 5)], "no kernel of a GPU"),
        ([event("nccl:all_reduce", 0, 5)], "no kernel of a GPU"),
        ([{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}], "no kernel of a GPU"),
    ],
)
def test_nothing_to_break_down(tmp_path, events, message):
    """One line says what is missing."""
    with pytest.raises(InputError, match=message):
        read_device_work(write(tmp_path / "t.json", events))


@pytest.mark.shared
def test_nccl_data():
    """ResNet50 on 2 A100: 5 all-reduces of known sizes and 2 broadcasts in each of 3 steps."""
    (work,) = read_device_work(shared_data("hta/nccl_data.json.gz"))
    assert (work.rank, work.device) == (0, "0")
    assert work.report.kept == {"kernels": 2679, "collectives": 21, "copies and memsets": 1074}
    assert work.not_launched == 0
    elements = [2049000, 7875584, 6563840, 6637568, 2431040]
    for number in (4, 5, 6):
        runs = collective_runs(work.of_step(number).activities)
        reduces = [run.activity.bytes for run in runs if run.activity.kind == "allreduce"]
        assert reduces == [4 * count for count in elements]
        assert [run.activity.kind for run in runs].count("broadcast") == 2
        assert {run.activity.stream for run in runs} == {"40"}


@pytest.mark.shared
def test_negative_queue():
    """A DLRM's kinds on three streams are all known by the launching operations."""
    (work,) = read_device_work(shared_data("hta/negative_queue_rank0_of16.json.gz"))
    runs = collective_runs(work.activities)
    kinds = [run.activity.kind for run in runs if run.activity.launched is not None]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    # 10 of the 55 all-to-alls wrote no kernel: nothing was sent.
    assert counts == {"all_to_all": 45, "reduce_scatter": 10, "all_gather": 10, "allreduce": 10}
    assert {run.activity.stream for run in runs} == {"84", "285", "363"}
    gathers = {run.activity.bytes for run in runs if run.activity.kind == "all_gather"}
    assert gathers == {65536 * 384 * 4, 65536 * 64 * 4}


@pytest.mark.shared
def test_rocm_kinds_come_from_the_launch():
    """RCCL's kernels are all called Generic: 12 have a launch and with it kind and size."""
    (work,) = read_device_work(shared_data("tracelens/mi300_resnet_ddp_act_checkpoint.json.gz"))
    runs = collective_runs(work.activities)
    assert len(runs) == 17
    assert sum(not run.activity.kind for run in runs) == 5
    for number in (15, 16, 17):
        own = [run.activity for run in collective_runs(work.of_step(number).activities)]
        sizes = [one.bytes for one in own if one.kind == "allreduce"]
        assert sizes == [2 * 2873320, 2 * 8816192]


@pytest.mark.shared
def test_oldest_format():
    """2021: capital categories and streams called "stream 7"."""
    path = shared_data("kineto-tb/resnet50_torch1.9_worker0.pt.trace.json.gz")
    (work,) = read_device_work(path)
    assert {one.stream for one in work.activities} == {"7"}
    assert work.report.kept == {"kernels": 8868, "copies and memsets": 390}
    assert [step.number for step in work.steps] == [5, 6, 7, 8, 9, 10]


@pytest.mark.shared
def test_eight_ranks_of_an_archive():
    """The members of a tar are read in place; each all-to-all is as long as the slowest makes it."""
    path = shared_data("param/dlrm_kineto.tar.gz")
    with tarfile.open(path) as archive:
        names = [m.name for m in archive if m.name.endswith(".json") and "/._" not in m.name]
    works = [work for name in names for work in read_device_work(Source(path, name))]
    assert sorted(work.rank for work in works) == list(range(8))
    for work in works:
        kinds = [run.activity.kind for run in collective_runs(work.activities)]
        assert (kinds.count("all_to_all"), kinds.count("allreduce")) == (5, 3)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("ddp_gloo_rank0", {"allreduce": 14}),
        ("fsdp2_gloo_rank1", {"all_gather": 13, "reduce_scatter": 7}),
        ("moe_a2a_gloo_rank0", {"all_to_all": 3, "allreduce": 4}),
    ],
)
def test_gloo_traces(name, kinds):
    """Kinds as the operations say them, each run behind its operation, sizes of all."""
    (work,) = read_device_work(shared_data(f"local-torch-2.14.1/{name}.pt.trace.json.gz"))
    runs = [run.activity for run in collective_runs(work.activities)]
    assert {kind: sum(run.kind == kind for run in runs) for kind in kinds} == kinds
    assert len(runs) == sum(kinds.values())
    assert all(run.bytes and run.launched is not None and run.launched < run.start for run in runs)
    found = break_down(work.activities)
    parts = found.computation_ns + found.exposed_ns + found.copies_ns + found.idle_ns
    assert parts == found.span_ns
    assert 0 < found.computation_ns < found.span_ns


def test_names_without_end_take_no_time(tmp_path):
    """Names of a megabyte, made to be slow to match, are read like others."""
    events = [
        event("nccl:" + "_base" * 200_000 + "x", 0, 5),
        event("ProfilerStep#" + "1" * 1_000_000, 0, 5),
        gpu("deep_ep::" * 100_000, 0, 5),
        gpu(REDUCE, 10, 5, **{"Collective name": "_base" * 200_000 + "x", "dtype": "Float"}),
    ]
    (work,) = read_device_work(write(tmp_path / "t.json", events))
    assert len(collective_runs(work.activities)) == 2


def mutations(text, number):
    """Yield damaged copies of a trace's text: bytes changed, cut, fields gone, types changed."""
    rng = random.Random(number)
    for _ in range(number):
        data = bytearray(text)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.choice(b'0{}[]",:-.eE\x00\xff9nN')
        yield bytes(data)
        yield bytes(data[: rng.randrange(1, len(data))])
    values = [None, True, -1, 1e300, 2**70, "x", [], {}, [[]] * 3, "ProfilerStep#1"]
    for _ in range(number):
        top = json.loads(text)
        for one in rng.sample(top["traceEvents"], min(6, len(top["traceEvents"]))):
            where = one.get("args") if one.get("args") and rng.random() < 0.5 else one
            key = rng.choice(list(where))
            if rng.random() < 0.3:
                del where[key]
            else:
                where[key] = rng.choice(values)
        yield json.dumps(top).encode()


def assert_survives(path, text, number):
    """Read damaged copies: a refusal in one line, or figures that add up."""
    for data in mutations(text, number):
        path.write_bytes(data)
        try:
            works = read_device_work(path)
        except InputError:
            continue
        for work in works:
            found = break_down(work.activities)
            assert found.idle_ns >= 0
            assert found.span_ns == (
                found.computation_ns + found.exposed_ns + found.copies_ns + found.idle_ns
            )
            for run in collective_runs(work.activities):
                assert 0 <= run.exposed_ns <= run.activity.end - run.activity.start


def test_damaged_traces(tmp_path):
    """Nothing but InputError leaves the reader."""
    text = json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": two_steps()}).encode()
    assert_survives(tmp_path / "t.json", text, 150)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "hta/with_gpu_user_annotation.json.gz",
        "hta/amd_mi250_minitoy_ROCm6_2.json.gz",
        "hta/large_integer_rank70.pt.trace.json.gz",
        "local-torch-2.14.1/moe_a2a_gloo_rank0.pt.trace.json.gz",
    ],
)
def test_damaged_real_traces(tmp_path, name):
    """The same for real ones."""
    text = gzip.decompress(shared_data(name).read_bytes())
    assert_survives(tmp_path / "t.json", text, 12)

"""Reading real profiler traces: the bundled ones, and those of other people's runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from shared_files import SHARED, shared_data
from trace_checks import failed, refused

from commsched.models import InputError
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.recorded import RecordedStep

RESNET50 = [2049000, 7875584, 6563840, 6637568, 2431040]
"""Elements of the buckets, as NCCL's own arguments say."""
BUNDLED = Path(__file__).resolve().parents[1] / "problems" / "data"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_bundled_recording_gives_ddps_own_buckets(rank):
    """The trace in the project says what DDP's own log says."""
    path = BUNDLED / f"transformer_ddp_gloo_rank{rank}.json.gz"
    log = json.loads((BUNDLED / "transformer_ddp_gloo_logging.json").read_text())
    check_against_log(read_profiler_trace(path), log)


def check_against_log(step: RecordedStep, log: dict) -> None:
    data = log["ddp_logging_data"]
    expected = [int(size) for size in data["rebuilt_bucket_sizes"].split(",")]
    assert [launch.bytes for launch in step.launches] == expected
    assert all(launch.exact for launch in step.launches)
    # The log names the members of each bucket, so their shapes can be compared one by one.
    order = [
        [int(k) for k in bucket.split()]
        for bucket in data["rebuilt_per_bucket_param_indices"].split(",")
    ]
    shapes = [["x".join(map(str, log["params"][k][1])) for k in bucket] for bucket in order]
    assert [
        sorted(name.split("[")[1].rstrip("]") for name in launch.names) for launch in step.launches
    ] == [sorted(bucket) for bucket in shapes]
    assert step.plan is not None
    assert not failed(step)
    assert step.gradients[-1].ready_ns <= step.backward_end_ns


@pytest.mark.shared
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [3, 4, None])
def test_gloo_ddp_equals_ddps_own_log(rank, number):
    """Seven of seven buckets on both ranks, in both steps."""
    log = json.loads(
        shared_data(f"local-torch-2.14.1/ddp_logging_data_rank{rank}.json").read_text()
    )
    path = shared_data(f"local-torch-2.14.1/ddp_gloo_rank{rank}.pt.trace.json.gz")
    step = read_profiler_trace(path, step=number)
    assert len(step.launches) == 7
    assert len(step.gradients) == 41
    check_against_log(step, log)


@pytest.mark.shared
def test_rocm_resnet18_has_two_buckets_of_bfloat16():
    """The gradients are bfloat16, and time is the GPU's, which lags by a whole step."""
    path = shared_data("tracelens/mi300_resnet_ddp_act_checkpoint.json.gz")
    for number in (15, 16, 17):
        step = read_profiler_trace(path, step=number)
        assert [launch.bytes for launch in step.launches] == [2 * 2873320, 2 * 8816192]
        assert {g.dtype for g in step.gradients} == {"bfloat16"}
        assert step.ranks == 8
        assert len(step.gradients) == 62
        assert not failed(step)
        assert step.plan is not None
        # Communication dominates here: backward ends long before the last launch does.
        assert step.backward_end_ns < 8_000_000 < 18_000_000 < step.launches[-1].end_ns
    assert read_profiler_trace(path).step_name == "ProfilerStep#16"
    assert "which has 15, 16, 17" in refused(path, step=4)


@pytest.mark.shared
def test_resnet50_with_sizes_from_an_execution_trace():
    """All 161 gradients and five buckets, to the element."""
    path = shared_data("hta/nccl_data.json.gz")
    assert "record_shapes=True" in refused(path)
    sizes = shared_data("param/resnet_2gpu_et_1.1.0.json.gz")
    step = read_profiler_trace(path, sizes=sizes)
    assert [launch.bytes for launch in step.launches] == [4 * n for n in RESNET50]
    assert len(step.gradients) == 161
    assert sum(g.bytes for g in step.gradients) == 4 * 25557032
    assert step.ranks == 2
    assert step.plan is not None
    assert not failed(step)


@pytest.mark.shared
def test_one_rank_has_buckets_but_no_kernels():
    """World size one: the all-reduces are there, nothing ran for them."""
    path = shared_data("hta/ns_resolution_rank0_of1.pt.trace.json.gz")
    sizes = shared_data("param/resnet_2gpu_et_1.1.0.json.gz")
    step = read_profiler_trace(path, sizes=sizes)
    assert [launch.bytes for launch in step.launches] == [4 * n for n in RESNET50]
    assert failed(step) == ["launches with recorded times: 0 of 5"]
    assert any("one rank only" in note for note in step.report.assumptions)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf/granite-3b-code_config.json", "no traceEvents"),
        ("nccl-tests-cluster/single_N1_G8.log", "this is no trace"),
        ("param/resnet_2gpu_et_1.1.0.json.gz", "no traceEvents"),
        ("param/dlrm_kineto.tar.gz", "tar archive"),
    ],
)
def test_real_files_that_are_no_traces_are_refused(name, said):
    """Each in one line that says what it is."""
    assert said in refused(shared_data(name))


@pytest.mark.shared
def test_every_real_file_gives_a_step_or_one_clear_line():
    """No other exception, whatever the file is."""
    if not SHARED.is_dir():
        pytest.skip("../shared is not there")
    paths = [path for path in sorted((SHARED / "data").rglob("*")) if path.is_file()]
    assert len(paths) > 20
    for path in paths:
        if path.is_file():
            message = ""
            try:
                read_profiler_trace(path)
            except InputError as error:
                message = str(error)
            assert not message or message.startswith(f"{path}: ")
            assert "\n" not in message


@pytest.mark.shared
def test_a_real_trace_cut_in_the_middle_gives_the_steps_before_the_cut(tmp_path):
    """Kineto writes the events in no order of time, so the report must say what is missing."""
    path = shared_data("local-torch-2.14.1/ddp_gloo_rank0.pt.trace.json.gz")
    text = gzip.decompress(path.read_bytes())
    top = msgspec.json.decode(text)
    top["traceEvents"].sort(key=lambda event: event.get("ts", 0))
    whole = json.dumps(top).encode()
    cut = tmp_path / "t"
    cut.write_bytes(whole[: len(whole) * 7 // 10])
    step = read_profiler_trace(cut)
    assert step.step_name == "ProfilerStep#3"
    assert len(step.gradients) == 41
    assert [check.text for check in step.report.checks if not check.passed] == [
        "the file is intact: 2 faults"
    ]

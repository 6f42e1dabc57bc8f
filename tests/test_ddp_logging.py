"""DDP's logging data: exact buckets, estimated ready times, and what is refused."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
from shared_files import shared_data

from commsched.models import AlphaBeta, InputError
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedStep
from commsched.problems.sources.source import Source
from commsched.problems.workloads.ddp_logging import READER

COST = {("dp", "allreduce"): AlphaBeta(30, 10)}
BUNDLED = Path(__file__).parents[1] / "problems" / "data" / "transformer_ddp_gloo_logging.json"
DATA = {
    "ddp_logging_data": {
        "bucket_sizes": "4000",
        "module_name": "Net",
        "world_size": 4,
        "iteration": 3,
        "num_parameter_tensors": 4,
        "total_parameter_size_bytes": 4000,
        "rebuilt_bucket_sizes": "1000, 3000",
        "rebuilt_per_bucket_param_indices": "3 1, 2 0",
        "prev_iteration_grad_ready_order_indices": "1, 3, 2, 0",
        "forward_compute_time": 1000,
        "backward_compute_time": 2000,
        "backward_compute_time_start": 50_000,
        "backward_comm_time_start": 50_800,
    },
    "params": [
        ["a", [500], "torch.float32"],
        ["b", [10, 20], "torch.float32"],
        ["c", [250], "torch.float32"],
        ["d", [50], "torch.float32"],
    ],
}


def data(**changes):
    """Return the data with changed fields; None takes one away."""
    made = copy.deepcopy(DATA)
    for key, value in changes.items():
        where = made if key == "params" else made["ddp_logging_data"]
        where.pop(key, None) if value is None else where.update({key: value})
    return made


def read(path, content=None, **options) -> RecordedStep:
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return READER.read([Source(path)], ReadOptions(**options))


def outcome(path, content) -> RecordedStep | str:
    """Return what is read, or the message of the refusal."""
    try:
        return read(path, content)
    except InputError as error:
        return str(error)


def test_buckets_are_exact_and_times_spread_between_the_logged_ones(tmp_path):
    """800 ns to the first launch over the first bucket's bytes, 1200 ns over the others."""
    step = read(tmp_path / "d.json", DATA)
    assert [(g.name, g.bytes, g.ready_ns) for g in step.gradients] == [
        ("b", 800, 1640),
        ("d", 200, 1800),
        ("c", 1000, 2200),
        ("a", 2000, 3000),
    ]
    assert [
        (launch.names, launch.bytes, launch.issued_ns, launch.exact) for launch in step.launches
    ] == [
        (("d", "b"), 1000, 1800, True),
        (("c", "a"), 3000, 3000, True),
    ]
    assert [bucket.names for bucket in step.plan.buckets] == [("d", "b"), ("c", "a")]
    assert (step.name, step.ranks, step.step_name) == ("Net (DDP logging data)", 4, "iteration 3")
    assert step.backward_end_ns == 3000
    assert "estimate" in step.report.assumptions[0]
    assert any("0.80 us after backward began" in note for note in step.report.assumptions)
    assert all(check.passed for check in step.report.checks)


def test_without_the_first_launch_everything_is_spread_by_bytes(tmp_path):
    """2000 ns over 4000 bytes; averages stand in for the last iteration's times."""
    step = read(tmp_path / "d.json", data(backward_comm_time_start=None))
    assert [g.ready_ns for g in step.gradients] == [1400, 1500, 2000, 3000]
    late = read(tmp_path / "d.json", data(backward_comm_time_start=99_000))
    assert late.gradients == step.gradients
    mean = data(
        backward_compute_time=0, avg_backward_compute_time=4000, avg_forward_compute_time=100
    )
    assert [g.ready_ns for g in read(tmp_path / "d.json", mean).gradients] == [
        900,
        1100,
        2100,
        4100,
    ]


def test_a_given_length_replaces_the_logged_ones(tmp_path):
    """Time then starts with backward."""
    step = read(tmp_path / "d.json", data(backward_compute_time=None), backward_us=8)
    assert [g.ready_ns for g in step.gradients] == [1600, 2000, 4000, 8000]
    assert any("given length" in note for note in step.report.assumptions)


def test_doubts_are_reported(tmp_path):
    """Other sizes than the parameters', no ready order, a communication hook, mixed types."""
    step = read(tmp_path / "d.json", data(rebuilt_bucket_sizes="1000, 3001"))
    assert [check.passed for check in step.report.checks] == [False, True]
    assert step.plan is None
    step = read(tmp_path / "d.json", data(rebuilt_bucket_sizes=None))
    assert [check.passed for check in step.report.checks] == [False, True]
    step = read(tmp_path / "d.json", data(total_parameter_size_bytes=1))
    assert [check.passed for check in step.report.checks] == [True, False]
    step = read(tmp_path / "d.json", data(prev_iteration_grad_ready_order_indices="1, 3"))
    assert [g.name for g in step.gradients] == ["d", "b", "c", "a"]
    assert any("order within buckets" in note for note in step.report.assumptions)
    step = read(tmp_path / "d.json", data(comm_hook="fp16_compress_hook"))
    assert any("fp16_compress_hook" in note for note in step.report.assumptions)
    rows = copy.deepcopy(DATA["params"])
    rows[3] = ["d", [100], "torch.bfloat16"]
    step = read(tmp_path / "d.json", data(params=rows))
    assert any("bfloat16, float32" in note for note in step.report.assumptions)


def test_errors_and_single_ranks_are_told(tmp_path):
    """A run that failed is a doubt; one rank has nobody to reduce with."""
    step = read(tmp_path / "d", data(has_error=1, error="bad\nday"))
    said = [check.text for check in step.report.checks if not check.passed]
    assert any("DDP logged" in text and "bad" in text and "\n" not in text for text in said)
    step = read(tmp_path / "d", data(world_size=1))
    assert any("one rank only" in note for note in step.report.assumptions)


@pytest.mark.shared
@pytest.mark.parametrize("rank", [0, 1])
def test_real_data(rank):
    """Seven buckets of 41 parameters to the byte, as INDEX.md says; sizes from the shapes."""
    path = shared_data(f"local-torch-2.14.1/ddp_logging_data_rank{rank}.json")
    assert READER.recognises(path.read_bytes())
    top = json.loads(path.read_text())
    logged = top["ddp_logging_data"]
    step = read(path)
    assert len(step.gradients) == 41
    assert [launch.bytes for launch in step.launches] == [
        int(size) for size in logged["rebuilt_bucket_sizes"].split(",")
    ]
    assert all(launch.exact for launch in step.launches)
    assert step.plan is not None
    assert sum(g.bytes for g in step.gradients) == 16_731_968
    order = [int(k) for k in logged["prev_iteration_grad_ready_order_indices"].split(",")]
    assert [g.name for g in step.gradients] == [top["params"][k][0] for k in order]
    assert step.backward_end_ns == (
        logged["forward_compute_time"] + logged["backward_compute_time"]
    )
    first = logged["backward_comm_time_start"] - logged["forward_compute_time_start"]
    assert step.launches[0].issued_ns == first
    assert step.ranks == 2
    assert all(check.passed for check in step.report.checks)
    step.with_costs(COST)


def test_bundled_data():
    """The bundled decoder: four buckets of 149 parameters to the byte."""
    step = read(BUNDLED)
    assert (len(step.gradients), len(step.launches)) == (149, 4)
    assert all(check.passed for check in step.report.checks)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": None}, "the parameters' shapes are missing; add them"),
        ({"params": []}, "params must be a list"),
        ({"params": [["a", [1]]] * 4}, "number 0: .* must be .name, shape, type."),
        ({"params": [["a", [-1], "torch.float32"]] * 4}, "is no shape and type"),
        ({"params": [["a", [1], "torch.float33"]] * 4}, "is no shape and type"),
        ({"params": [["a", [2**49], "torch.float32"]] * 4}, "more than 1 PiB"),
        ({"params": [["a", [1], "torch.float32"]] * 4}, "a name is listed twice"),
        ({"params": DATA["params"][:3]}, "params has 3 entries, DDP logged 4"),
        ({"rebuilt_per_bucket_param_indices": None}, "not rebuilt yet"),
        ({"rebuilt_per_bucket_param_indices": ""}, "not rebuilt yet"),
        ({"rebuilt_per_bucket_param_indices": "3 1, 2 9"}, "'9' is no number of one of 4"),
        ({"rebuilt_per_bucket_param_indices": "3 1, 2 x"}, "'x' is no number"),
        ({"rebuilt_per_bucket_param_indices": "3 1, 2 1"}, "in two buckets"),
        ({"rebuilt_per_bucket_param_indices": "3 1, 2 0,"}, "a bucket is empty"),
        ({"rebuilt_per_bucket_param_indices": "3 1, 2"}, "names 3 of 4 parameters"),
        ({"rebuilt_bucket_sizes": "1000, x"}, "'x' is no whole number"),
        ({"backward_compute_time": None}, "no backward_compute_time"),
        ({"backward_compute_time": -1}, "no backward_compute_time"),
        ({"backward_compute_time": 1.5}, "no backward_compute_time"),
        ({"bucket_sizes": None}, "no logging data of DDP"),
    ],
)
def test_data_that_do_not_make_a_step_are_refused(tmp_path, changes, message):
    """One line that names the file and what is missing."""
    path = tmp_path / "d.json"
    with pytest.raises(InputError, match=message) as error:
        read(path, data(**changes))
    assert str(error.value).startswith(str(path))


def test_other_files_are_refused_and_not_recognised(tmp_path):
    """No JSON, no object; traces and our own files never count."""
    path = tmp_path / "d.json"
    for content in (b"[1]", b"{", b"null", b'{"a": NaN}'):
        with pytest.raises(InputError, match="JSON"):
            read(path, content)
        assert not READER.recognises(content)
    whole = json.dumps(DATA)
    bare = json.dumps(DATA["ddp_logging_data"])
    assert READER.recognises(whole.encode())
    assert READER.recognises(bare.encode())
    with pytest.raises(InputError, match="shapes are missing"):
        read(path, bare.encode())
    assert not READER.recognises(whole.encode()[:-2])
    assert not READER.recognises(('{"traceEvents": [],' + whole[1:]).encode())
    assert not READER.recognises(('{"format": "commsched/problem",' + whole[1:]).encode())


def test_damage_never_escapes(tmp_path):
    """Changed types, lost fields and flipped bytes give a valid step or a refusal."""
    path = tmp_path / "d.json"
    rng = random.Random(11)
    values = [None, True, -1, 0, 2**70, 1e300, "", "1,,2", "²", [], [[]], {}, "\ud800"]
    for number in range(500):
        made = data()
        if number % 2:
            inner = made["ddp_logging_data"]
            for _ in range(rng.randint(1, 3)):
                inner[rng.choice(list(inner))] = rng.choice(values)
            if rng.random() < 0.3:
                made["params"][rng.randrange(4)][rng.randrange(3)] = rng.choice(values)
            text = json.dumps(made).encode()
        else:
            raw = bytearray(json.dumps(made).encode())
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(raw))
                raw[at : at + rng.randint(0, 2)] = bytes([rng.randrange(256)])
            text = bytes(raw)
        READER.recognises(text)
        step = outcome(path, text)
        if isinstance(step, str):
            assert "\n" not in step
        else:
            step.with_costs(COST)


@pytest.mark.shared
def test_damaged_real_files_never_escape(tmp_path):
    """Flipped bytes and cuts of real data."""
    rng = random.Random(23)
    for name in ("local-torch-2.14.1/ddp_logging_data_rank0.json",):
        whole = shared_data(name).read_bytes()
        for _ in range(120):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 4)] = bytes([rng.randrange(256)])
            if rng.random() < 0.2:
                del data[rng.randrange(1, len(data)) :]
            path = tmp_path / "damaged"
            path.write_bytes(data)
            step = outcome(path, None)
            if isinstance(step, str):
                assert "\n" not in step
            else:
                step.with_costs(COST)

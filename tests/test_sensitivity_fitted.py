"""The slowdown that is fitted to two recordings, one of them without communication."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from shared_files import shared_data
from test_sensitivity_cli import ROOT, refusal, run, run_json

from commsched.models import InputError
from commsched.models.slowdown_fit import TimedTwice
from commsched.problems.breakdown.timed_twice import timed_twice
from commsched.slowing import known_slowdown

STEP = ROOT / "examples" / "four_layers.json"


def kernel(name, start, length, stream=7, device=0):
    """A kernel, in whole nanoseconds."""
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": 1000 + start / 1000,
        "dur": length / 1000,
        "args": {"device": device, "stream": stream},
    }


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def write(path, events):
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture
def pair(tmp_path):
    """Two products beside a launch at 1.5 times their length, one after it at its own."""
    alone = [kernel("mm", 0, 1000), kernel("mm", 1000, 1000), kernel("norm", 2000, 400)]
    beside = [
        kernel("mm", 0, 1500),
        kernel("mm", 1500, 1500),
        kernel("norm", 3000, 400),
        kernel("bucket copy", 3400, 100),
        kernel(REDUCE, 0, 3000, stream=20),
    ]
    return write(tmp_path / "beside.json", beside), write(tmp_path / "alone.json", alone)


def test_kernels_are_paired(pair):
    found = timed_twice(*pair)
    assert sorted(found.tasks) == [
        TimedTwice("mm", 1000, 1500, 1500),
        TimedTwice("mm", 1000, 1500, 1500),
        TimedTwice("norm", 400, 400, 0),
    ]
    assert found.left_out == 1


def test_the_factor_reaches_the_commands(pair):
    beside, alone = pair
    known = known_slowdown(str(beside), None, 1, str(alone))
    assert known.slowdown.factors == (1.5, 1)
    assert known.source == (
        "fitted to 2 of 3 kernels that ran beside communication, half of that time in kernels with "
        "factors from 1.5 to 1.5; 1 kernels are not in both recordings"
    )


def test_part_of_a_kernel_beside_launches(tmp_path):
    """Overlaps are measured over all launches of the device, and only there."""
    alone = [kernel("mm", 0, 100_000), kernel("mm", 0, 100_000, device=1)]
    launches = [(10_000, 20_000), (15_000, 20_000), (90_000, 60_000)]
    beside = [kernel("mm", 0, 120_000), kernel("mm", 0, 100_000, device=1)]
    beside += [kernel(REDUCE, start, length, stream=20) for start, length in launches]
    found = timed_twice(
        write(tmp_path / "beside.json", beside), write(tmp_path / "alone.json", alone)
    )
    assert [task.overlapped_ns for task in found.tasks] == [25_000 + 30_000, 0]


def test_overlaps_agree_with_counting(tmp_path):
    rng = random.Random(4)
    beside, alone, ran, busy = [], [], [], set()
    for _ in range(12):
        start, length = rng.randint(0, 400), rng.randint(1, 60)
        beside.append(kernel(REDUCE, start, length, stream=rng.choice((20, 21))))
        busy |= set(range(start, start + length))
    now = 0
    for _ in range(25):
        length = rng.randint(1, 40)
        ran.append((now, now + length))
        beside.append(kernel("mm", now, length))
        alone.append(kernel("mm", now, length))
        now += length + rng.randint(0, 5)
    rng.shuffle(beside)
    found = timed_twice(
        write(tmp_path / "beside.json", beside), write(tmp_path / "alone.json", alone)
    )
    counted = [sum(t in busy for t in range(start, end)) for start, end in ran]
    assert [task.overlapped_ns for task in found.tasks] == counted


def test_what_cannot_be_fitted_is_refused(pair, tmp_path):
    beside, alone = pair

    def said(one, other):
        with pytest.raises(InputError) as caught:
            known_slowdown(str(one), None, 1, str(other))
        return str(caught.value)

    assert "has 1 collectives" in said(beside, beside)
    assert "has no collective of a GPU" in said(alone, alone)
    other = write(tmp_path / "other.json", [kernel("conv", 0, 1000)])
    assert "is not the same work" in said(beside, other)
    assert "only 0% is in kernels" in said(beside, other)
    bare = write(tmp_path / "bare.json", [kernel("mm", 0, 10), kernel("mm", 10, 10)])
    late = [kernel("mm", 0, 10), kernel("mm", 10, 10), kernel(REDUCE, 500, 10, stream=20)]
    late = write(tmp_path / "late.json", late)
    assert "no task overlapped communication" in said(late, bare)
    empty = write(tmp_path / "empty.json", [{**kernel("aten::mm", 0, 10), "cat": "cpu_op"}])
    assert "has no kernel of a GPU" in said(beside, empty)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.json", "b.json"):
        (folder / name).write_bytes(alone.read_bytes())
    assert "holds 2 files" in said(beside, folder)
    assert "standard input cannot be read twice" in said("-", alone)
    assert "nothing" in said(beside, tmp_path / "nothing")


@pytest.mark.shared
def test_a_real_trace_and_itself_without_its_collectives(tmp_path):
    """Every kernel took as long as itself, so nothing was slowed; the time that overlaps is real."""
    path = shared_data("hta/negative_queue_rank0_of16.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel" and e.get("ph") == "X"]
    nccl = [event for event in kernels if "nccl" in event["name"].lower()]
    assert nccl
    assert len(nccl) < len(kernels)
    other = write(
        tmp_path / "alone.json",
        [e for e in kernels if "nccl" not in e["name"].lower()],
    )
    found = timed_twice(path, other)
    assert found.left_out == 0
    assert len(found.tasks) == len(kernels) - len(nccl)
    assert all(task.alone_ns == task.took_ns for task in found.tasks)
    assert any(task.overlapped_ns for task in found.tasks)
    assert known_slowdown(str(path), None, 1, str(other)).slowdown.factors == (1, 1)


def test_damaged_traces_are_refused_or_read(pair, tmp_path):
    """Whatever is cut, flipped or of another type: an InputError or a result."""
    beside, alone = pair
    data, rng = beside.read_bytes(), random.Random(9)
    for k in range(150):
        hurt = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            hurt[rng.randrange(len(hurt))] = rng.randrange(256)
        hurt = hurt[: rng.randrange(len(hurt))] if k % 5 == 0 else hurt
        path = tmp_path / "hurt.json"
        path.write_bytes(gzip.compress(bytes(hurt)) if k % 2 else bytes(hurt))
        for order in ((path, alone), (beside, path)):
            try:
                known_slowdown(str(order[0]), None, 1, str(order[1]))
            except InputError:
                continue


def test_options_that_exclude_each_other(pair):
    beside, alone = pair
    both = ("--slowdown", "1.2", "--slowdown-alone", alone)
    assert "is stated already" in refusal(STEP, *both)
    # The problem file holds no kernels.
    assert "four_layers.json" in refusal(STEP, "--slowdown-alone", alone)
    assert beside.exists()


def test_a_stated_factor_says_so():
    document = run_json(STEP, "--slowdown", "1.5", "--factor", "1")
    assert document["slowdown"]["source"] == "stated"
    code, out, _ = run(STEP, "--slowdown", "1.5", "--factor", "1")
    assert code == 0
    assert "fitted" not in out
    # A range of one place has one best plan there.
    for knob in document["knobs"].values():
        assert len(knob["segments"]) == 1
        assert knob["complete"] is True
        assert knob["worst"]["regret_us"] == 0

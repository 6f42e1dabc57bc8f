"""PipeDream's layer profiles: order, ready times, sizes, and what is refused."""

from __future__ import annotations

import gzip
import random
import re

import pytest
from shared_files import shared_data

from commsched.models import AlphaBeta, InputError
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedStep
from commsched.problems.sources.source import Source
from commsched.problems.workloads.pipedream_profile import READER

COST = {("dp", "allreduce"): AlphaBeta(30, 10)}
# In the file's order, which is not the order of execution.
DIAMOND = """\
node3 -- Conv2d(4, 8, kernel_size=(3, 3), stride=(1, 1)) -- forward_compute_time=2.000, \
backward_compute_time=4.000, activation_size=10.0, parameter_size=1184.000
node1 -- Input -- forward_compute_time=0.000, backward_compute_time=0.000, \
activation_size=0.0, parameter_size=0.000
node4 -- Add -- forward_compute_time=0.500, backward_compute_time=0.250, activation_size=1.0, \
parameter_size=0.000
node2 -- Linear(in_features=10, out_features=5, bias=True) -- forward_compute_time=1.000, \
backward_compute_time=3.001, activation_size=[1.0; 2.0], parameter_size=220.000 -- stage_id=0
\tnode1 -- node2
\tnode1 -- node3
\tnode2 -- node4
\tnode3 -- node4
"""


def read(path, text=None) -> RecordedStep:
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return READER.read([Source(path)], ReadOptions())


def outcome(path) -> RecordedStep | str:
    """Return what is read, or the message of the refusal."""
    try:
        return read(path)
    except InputError as error:
        return str(error)


def test_backward_runs_the_layers_in_reverse_after_the_forward_pass(tmp_path):
    """3.5 ms of forward; Add, then node3 (4.25), then node2 (7.251); sizes as listed."""
    step = read(tmp_path / "g.txt", DIAMOND)
    assert [(g.name, g.bytes, g.ready_ns) for g in step.gradients] == [
        ("node3 Conv2d", 1184, 7_750_000),
        ("node2 Linear", 220, 10_751_000),
    ]
    assert step.backward_end_ns == 10_751_000
    assert (step.launches, step.plan) == ((), None)
    assert any("branches at 1 nodes" in note for note in step.report.assumptions)
    assert any("3.50 ms" in note for note in step.report.assumptions)
    assert all(check.passed for check in step.report.checks)
    assert step.report.dropped["layers without parameters (their time is kept)"] == 2
    assert step.with_costs(COST).backward_end_ns == 10_751_000


def test_what_follows_the_last_gradient_is_kept(tmp_path):
    """Backward of layers without parameters runs on after the last gradient."""
    text = DIAMOND.replace(
        "node1 -- Input -- forward_compute_time=0.000, backward_compute_time=0.000",
        "node1 -- Input -- forward_compute_time=0.000, backward_compute_time=1.000",
    )
    step = read(tmp_path / "g.txt", text)
    assert step.backward_end_ns == step.gradients[-1].ready_ns + 1_000_000


def test_the_order_of_lines_changes_nothing(tmp_path):
    """Topological order, the lowest number first, wherever a node is listed."""
    lines = DIAMOND.splitlines()
    expected = read(tmp_path / "a.txt", DIAMOND).gradients
    for seed in range(20):
        random.Random(seed).shuffle(lines)
        assert read(tmp_path / "b.txt", "\n".join(lines)).gradients == expected


def test_numbers_are_compared_as_numbers_and_edges_decide(tmp_path):
    """node10 comes after node9; an edge to a lower number is followed and doubted."""
    row = (
        "node{} -- Linear(in_features=1, out_features=1, bias=False) -- forward_compute_time=1, "
        "backward_compute_time=1, activation_size=0, parameter_size=4"
    )
    text = "\n".join(row.format(n) for n in (10, 9, 2)) + "\n\tnode10 -- node2"
    step = read(tmp_path / "g.txt", text)
    assert [g.name.split()[0] for g in step.gradients] == ["node2", "node10", "node9"]
    assert [check.passed for check in step.report.checks] == [True, False]


def test_half_precision_is_told_from_the_descriptions(tmp_path):
    """Half the bytes that float32 has in every layer whose size the description gives."""
    text = DIAMOND.replace("=1184.000", "=592.000").replace("=220.000", "=110.000")
    step = read(tmp_path / "g.txt", text)
    assert {g.dtype for g in step.gradients} == {"float16"}
    odd = read(tmp_path / "h.txt", DIAMOND.replace("=1184.000", "=1188.000"))
    assert not odd.report.checks[0].passed


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "layers", "edges", "gradients", "total"),
    [("vgg16", 41, 41, 16, 553_430_176), ("resnet50", 177, 193, 107, 102_228_128)],
)
def test_real_profiles(name, layers, edges, gradients, total):
    """Totals as published; times and edges against a count of the file's own lines."""
    path = shared_data(f"pipedream/{name}.graph.txt")
    step = read(path)
    text = path.read_text()
    assert READER.recognises(path.read_bytes())
    assert step.report.kept == {"layers": layers, "edges": edges, "gradients": gradients}
    assert sum(g.bytes for g in step.gradients) == total
    times = re.findall(r"(?:forward|backward)_compute_time=(\d+)\.(\d{3})", text)
    assert len(times) == 2 * layers
    assert step.backward_end_ns == sum(int(ms + us) * 1000 for ms, us in times)
    ready = [g.ready_ns for g in step.gradients]
    assert ready == sorted(ready)
    assert all(check.passed for check in step.report.checks)
    assert {g.dtype for g in step.gradients} == {"float32"}
    assert len(step.with_costs(COST).collectives) == gradients


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("parameter_size=1184.000", "parameter_size=-4", "must be a number of at least 0"),
        ("parameter_size=1184.000", "parameter_size=4.5", "must be a whole number"),
        ("parameter_size=1184.000", "parameter_size=1e30", "1 PiB"),
        ("parameter_size=1184.000", "parameter_sise=1", "parameter_size is missing"),
        ("backward_compute_time=4.000", "backward_compute_time=nan", "must be a number"),
        ("backward_compute_time=4.000", "backward_compute_time=inf", "must be a number"),
        ("backward_compute_time=4.000", "backward_compute_time=9e20", "longer than 13 days"),
        ("backward_compute_time=4.000", "backward_compute_time=1.125899906e9", "together"),
        ("\tnode3 -- node4", "\tnode3 -- node7", "node7 is not listed"),
        ("\tnode3 -- node4", "\tnode4 -- node1", "circle"),
        ("\tnode3 -- node4", "\tnode3 -- node3", "circle"),
        ("\tnode3 -- node4", "what is this", "line 8: 'what is this'"),
        ("node3 -- Conv2d", "node4 -- Conv2d", "node4 is listed twice"),
    ],
)
def test_malformed_profiles_are_refused(tmp_path, old, new, message):
    """One line that names the file and the place."""
    path = tmp_path / "g.txt"
    with pytest.raises(InputError, match=message) as error:
        read(path, DIAMOND.replace(old, new))
    assert str(error.value).startswith(str(path))


def test_profiles_without_anything_to_do_are_refused(tmp_path):
    """No node, no parameters, two files, an empty file."""
    path = tmp_path / "g.txt"
    with pytest.raises(InputError, match="no layer has parameters"):
        read(path, re.sub(r"parameter_size=[\d.]+", "parameter_size=0", DIAMOND))
    with pytest.raises(InputError, match="no node"):
        read(path, "\n\n")
    with pytest.raises(InputError, match="empty"):
        read(path, "")
    with pytest.raises(InputError, match="one at a time"):
        READER.read([Source(path), Source(path)], ReadOptions())


def test_gzip_and_bad_text_are_read(tmp_path):
    """Content decides, and a replaced byte is reported."""
    path = tmp_path / "g.bin"
    assert read(path, gzip.compress(DIAMOND.encode())).gradients
    step = read(path, DIAMOND.encode().replace(b"-- Add --", b"-- A\xff\xfed --"))
    assert any("bad UTF-8" in note for note in step.report.assumptions)


def test_only_profiles_are_recognised():
    """A node with times on the first line that holds anything."""
    assert READER.recognises(b"\n" + DIAMOND.encode())
    for text in (b"", b"\0" * 9, b"node1 -- node2\n", b'{"traceEvents": []}', b"DATA\n1\n"):
        assert not READER.recognises(text)
    assert not READER.recognises(b"node1 -- node3\n" + DIAMOND.encode())


def test_damage_never_escapes(tmp_path):
    """Flipped bytes, cuts and lost pieces give a valid step or a refusal."""
    path = tmp_path / "g.txt"
    rng = random.Random(5)
    for _ in range(400):
        data = bytearray(DIAMOND.encode())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            change = rng.randrange(3)
            if change == 0:
                data[at] = rng.randrange(256)
            elif change == 1:
                del data[at : at + rng.randint(1, 30)]
            else:
                data[at:at] = rng.choice([b"-", b"9" * 40, b"\n", b"=", b"node1", "²".encode()])
            if not data:
                break
        path.write_bytes(bytes(data) or b" ")
        READER.recognises(bytes(data))
        step = outcome(path)
        if isinstance(step, str):
            assert "\n" not in step
        else:
            step.with_costs(COST)


@pytest.mark.shared
def test_damaged_real_files_never_escape(tmp_path):
    """Flipped bytes and cuts of real profiles."""
    rng = random.Random(23)
    for name in ("pipedream/vgg16.graph.txt", "pipedream/resnet50.graph.txt"):
        whole = shared_data(name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 4)] = bytes([rng.randrange(256)])
            if rng.random() < 0.2:
                del data[rng.randrange(1, len(data)) :]
            path = tmp_path / "damaged"
            path.write_bytes(data)
            step = outcome(path)
            if isinstance(step, str):
                assert "\n" not in step
            else:
                step.with_costs(COST)

"""The problem file: what is written is what is meant, to the nanosecond, whoever wrote it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY, gradient_problems, steps

import commsched
from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    InputError,
    Problem,
)
from commsched.problems import problem_digest, problem_to_bytes, read_network, write_problem
from commsched.problems.problem_file import problem_from_bytes

SIMPLE = {
    "format": "commsched/problem",
    "version": 1,
    "name": "four layers",
    "gradients": [
        {"name": "L4", "bytes": 33554432, "ready_us": 2000, "dtype": "float32"},
        {"name": "L3", "bytes": 1048576, "ready_us": 2500.5, "dtype": "float32"},
        {"name": "L2", "bytes": 2097152, "ready_us": 4000.001, "dtype": "bfloat16"},
        {"name": "L1", "bytes": 4096, "ready_us": 4000.001, "dtype": "float32"},
    ],
    "costs": {"allreduce": {"alpha_us": 8, "bandwidth_gb_s": 53.6870912}},
}
GENERAL = {
    "format": "commsched/problem",
    "version": 1,
    "name": "two layers and the next forward",
    "tasks": [
        {"name": "bwd2", "type": "compute", "duration_us": 120, "stream": "gpu", "after": []},
        {
            "name": "ar2",
            "type": "collective",
            "kind": "allreduce",
            "bytes": 4194304,
            "group": "dp",
            "dtype": "float32",
            "after": ["bwd2"],
        },
        {"name": "bwd1", "type": "compute", "duration_us": 90, "stream": "gpu", "after": ["bwd2"]},
        {
            "name": "ar1",
            "type": "collective",
            "kind": "allreduce",
            "bytes": 1048576,
            "group": "dp",
            "dtype": "float32",
            "after": ["bwd1"],
        },
        {"name": "fwd1", "type": "compute", "duration_us": 40, "stream": "gpu", "after": ["ar1"]},
        {
            "name": "fwd2",
            "type": "compute",
            "duration_us": 60,
            "stream": "gpu",
            "after": ["fwd1", "ar2"],
        },
    ],
    "costs": {"dp": {"allreduce": {"alpha_us": 30, "bandwidth_gb_s": 10}}},
    "channels": {"nic": ["dp"]},
}


def changed(document, *path_and_value):
    """Return a copy of a document with one value replaced (an Ellipsis removes it)."""
    *path, last, value = path_and_value
    document = copy.deepcopy(document)
    place = document
    for key in path:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


def parse(document) -> Problem:
    """Return the problem of a document, which may be JSON text already."""
    text = document if isinstance(document, str) else json.dumps(document)
    return problem_from_bytes(text.encode(), "problem.json")


def digest(document) -> str:
    """Return the digest of a document's problem."""
    return problem_digest(parse(document))


def test_the_simplest_form_reads_to_the_nanosecond(tmp_path):
    """The example that people write by hand: names, bytes, times, dtypes and the cost."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(SIMPLE), encoding="utf-8")
    problem = commsched.read(path)
    assert problem.name == "four layers"
    assert problem.gradients == (
        Gradient("L4", 33554432, 2_000_000, "float32"),
        Gradient("L3", 1048576, 2_500_500, "float32"),
        Gradient("L2", 2097152, 4_000_001, "bfloat16"),
        Gradient("L1", 4096, 4_000_001, "float32"),
    )
    assert problem.compute_ns == 4_000_001
    assert problem.cost(problem.keys[0]).ns(33554432) == 8_000 + 625_000


def test_the_general_form_reads_to_the_nanosecond(tmp_path):
    """The general example: tasks in their order, costs by group and kind, channels."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(GENERAL), encoding="utf-8")
    problem = commsched.read(str(path))
    assert problem.name == "two layers and the next forward"
    assert problem.tasks == (
        Compute("bwd2", 120_000, "gpu", ()),
        Collective("ar2", 4194304, "allreduce", "dp", "float32", ("bwd2",)),
        Compute("bwd1", 90_000, "gpu", ("bwd2",)),
        Collective("ar1", 1048576, "allreduce", "dp", "float32", ("bwd1",)),
        Compute("fwd1", 40_000, "gpu", ("ar1",)),
        Compute("fwd2", 60_000, "gpu", ("fwd1", "ar2")),
    )
    assert dict(problem.channels) == {"dp": "nic"}
    assert problem.compute_ns == 310_000
    assert problem.ready_ns == [120_000, 210_000]
    assert problem.costs["dp", "allreduce"].ns(1_000_000) == 130_000


def test_what_may_be_left_out():
    """Defaults: float32, stream gpu, nothing before, no title, a channel for each group."""
    simple = {k: v for k, v in SIMPLE.items() if k != "name"}
    simple["gradients"] = [{"name": "a", "bytes": 1, "ready_us": 3}]
    problem = parse(simple)
    assert problem.name == ""
    assert problem.gradients == (Gradient("a", 1, 3000, "float32"),)
    assert problem.compute_ns == 3000
    general = {k: v for k, v in GENERAL.items() if k not in ("name", "channels")}
    general["tasks"] = [
        {"name": "c", "type": "compute", "duration_us": 1},
        {"name": "a", "type": "collective", "kind": "allreduce", "bytes": 1, "group": "dp"},
    ]
    problem = parse(general)
    assert problem.name == ""
    assert problem.tasks == (
        Compute("c", 1000, "gpu", ()),
        Collective("a", 1, "allreduce", "dp", "float32", ()),
    )
    assert dict(problem.channels) == {"dp": "dp"}


def test_devices_and_sparse_gradients():
    """Both forms say where a tensor lives and whether it must travel alone."""
    simple = changed(SIMPLE, "gradients", 0, "device", "cuda:1")
    simple = changed(simple, "gradients", 1, "sparse", True)
    assert parse(simple).gradients[:2] == (
        Gradient("L4", 33554432, 2_000_000, device="cuda:1"),
        Gradient("L3", 1048576, 2_500_500, sparse=True),
    )
    general = changed(GENERAL, "tasks", 1, "device", "cuda:1")
    general = changed(general, "tasks", 3, "sparse", True)
    found = parse(general).collectives
    assert [(task.device, task.sparse) for task in found] == [("cuda:1", False), ("", True)]
    for problem in (parse(simple), parse(general)):
        assert_same(problem_from_bytes(problem_to_bytes(problem), "again"), problem)
        assert len(problem.chains) > 1


def test_backward_may_end_after_the_last_gradient():
    """``backward_end_us`` is when compute ends, not before the last ready time."""
    assert parse({**SIMPLE, "backward_end_us": 5000.25}).compute_ns == 5_000_250
    assert parse({**SIMPLE, "backward_end_us": 4000.001}).compute_ns == 4_000_001


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2000", 2_000_000),
        ("2000.0", 2_000_000),
        ("2e3", 2_000_000),
        ("2E+3", 2_000_000),
        ("0.1", 100),
        ("0.001", 1),
        ("0.0001", 1),  # rounded up
        ("1.0001", 1001),
        ("4.35", 4350),  # 4.35 * 1000 is 4350.0000000000005 in binary floats
        ("1.005", 1005),
        ("0", 0),
        ("-0.0", 0),
        ("1025899906842.623", 1025899906842623),
    ],
)
def test_times_are_taken_as_written_in_decimal(text, ns):
    """A time in microseconds is exact in decimal and rounded up to a whole nanosecond."""
    document = json.dumps(changed(SIMPLE, "gradients", 0, "ready_us", "@")).replace('"@"', text)
    assert parse(document).ready_ns[0] == ns
    document = json.dumps(changed(GENERAL, "tasks", 0, "duration_us", "@")).replace('"@"', text)
    assert parse(document).tasks[0].duration_ns == ns


def test_sizes_up_to_the_limit_are_exact():
    """Sizes are whole bytes up to 1 PiB, which no float touches on the way."""
    for size in (0, 1, 2**50 - 1, 2**50):
        assert parse(changed(SIMPLE, "gradients", 0, "bytes", size)).bytes[0] == size


@pytest.mark.parametrize(
    ("kind", "row", "prices"),
    [
        ("allreduce", {"alpha_us": 30, "bandwidth_gb_s": 10}, {0: 30_000, 1_000_000: 130_000}),
        ("allreduce", {"alpha_us": 0, "bandwidth_gb_s": 3}, {1: 1, 3: 1, 4: 2}),
        (
            "allreduce",
            {"alpha_us": 10, "bus_bandwidth_gb_s": 150, "ranks": 4},
            {0: 10_000, 1_000_000: 20_000},
        ),
        (
            "all_gather",
            {"alpha_us": 10, "bus_bandwidth_gb_s": 150, "ranks": 4, "algorithm": "ring"},
            {0: 10_000, 1_000_000: 15_000},
        ),
        (
            "broadcast",
            {"alpha_us": 10, "bus_bandwidth_gb_s": 100, "ranks": 4},
            {1_000_000: 20_000},
        ),
        (
            "allreduce",
            {"points": [[1000, 10], [3000, 14]]},
            {0: 10_000, 500: 10_000, 1000: 10_000, 2000: 12_000, 3000: 14_000, 5000: 18_000},
        ),
        ("allreduce", {"points": [[3000, 14.0], [1000, 10]]}, {2000: 12_000}),
        (
            "allreduce",
            {"table": [[1000, 10], [4000, 25]]},
            {0: 10_000, 1000: 10_000, 1001: 25_000, 4000: 25_000, 8000: 50_000},
        ),
    ],
)
def test_every_form_of_a_cost(kind, row, prices):
    """Alpha-beta, bus bandwidth, points and table cost what they say, in nanoseconds."""
    general = changed(GENERAL, "costs", "dp", {kind: row})
    for number in (1, 3):
        general["tasks"][number]["kind"] = kind
    curve = parse(general).costs["dp", kind]
    assert {size: curve.ns(size) for size in prices} == prices
    if kind == "allreduce":
        curve = parse(changed(SIMPLE, "costs", "allreduce", row)).costs["dp", "allreduce"]
        assert {size: curve.ns(size) for size in prices} == prices


def test_a_cost_file_and_a_cost_in_code_replace_the_cost_of_gradients(tmp_path):
    """A problem of gradients can be read with another network's cost."""
    costs = tmp_path / "costs.json"
    row = {"points": [[1000, 10], [3000, 14]]}
    costs.write_text(json.dumps({"format": "commsched/costs", "version": 1, "allreduce": row}))
    curve = read_network(costs).curves[0].cost
    assert curve.ns(2000) == 12_000
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({**SIMPLE, "backward_end_us": 4500}))
    problem = commsched.read(path, cost=curve)
    assert problem.cost(problem.keys[0]).ns(2000) == 12_000
    assert problem.compute_ns == 4_500_000
    path.write_text(json.dumps(GENERAL))
    problem = commsched.read(path, cost=curve)
    assert {problem.cost(key).ns(2000) for key in problem.keys} == {12_000}


def test_standard_input_is_a_problem(monkeypatch):
    """``-`` reads standard input."""
    data = io.BytesIO(json.dumps(SIMPLE).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data))
    assert problem_digest(commsched.read("-")) == digest(SIMPLE)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_a_pipe_is_read_like_a_file():
    """What a shell passes for ``<(...)`` can be read only once, and that is enough."""
    reader, writer = os.pipe()
    try:
        os.write(writer, json.dumps(SIMPLE).encode())
        os.close(writer)
        assert problem_digest(commsched.read(f"/dev/fd/{reader}")) == digest(SIMPLE)
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["ph", "traceEvents", "tasks", "gradients", "-", "é中", "a\nb"])
def test_a_gradient_may_have_any_name(tmp_path, name):
    """Names are data: none makes a problem file look like another kind of file."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(changed(SIMPLE, "gradients", 0, "name", name)), encoding="utf-8")
    problem = commsched.read(path)
    assert problem.names[0] == name
    assert commsched.optimize(problem).plan is not None


@pytest.mark.parametrize("name", ["problem.txt", "trace.json.gz", "no suffix", "problem.pt.trace"])
def test_the_kind_of_a_file_is_found_by_its_content(tmp_path, name):
    """A file's name does not matter."""
    path = tmp_path / name
    path.write_text(json.dumps(SIMPLE))
    assert problem_digest(commsched.read(path)) == digest(SIMPLE)


def assert_same(again: Problem, problem: Problem) -> None:
    """Two problems agree in everything that a plan can depend on, and in the title."""
    assert type(again) is type(problem)
    assert again.name == problem.name
    assert again.tasks == problem.tasks
    assert again.gradients == problem.gradients
    assert dict(again.channels) == dict(problem.channels)
    assert again.compute_ns == problem.compute_ns
    assert again.ready_ns == problem.ready_ns
    assert again.ready_order == problem.ready_order
    assert set(again.costs) == set(problem.costs)
    for key, curve in problem.costs.items():
        assert again.costs[key].pieces == curve.pieces
        assert again.costs[key].measured_to == curve.measured_to
    assert problem_digest(again) == problem_digest(problem)


@PROPERTY
@given(
    st.one_of(gradient_problems(6, exotic=False), steps(6, exotic=False), steps(4, exotic=False))
)
def test_writing_and_reading_gives_the_same_problem(problem):
    """Both forms, with channels, next forwards and a backward that goes on: nothing is lost."""
    data = problem_to_bytes(problem)
    again = problem_from_bytes(data, "again")
    assert_same(again, problem)
    assert problem_to_bytes(again) == data


@PROPERTY
@given(
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable() or "\n" in text),
)
def test_the_largest_times_and_any_text_survive_a_round_trip(ready, length, size, name):
    """Every nanosecond and byte of the allowed range, and names in any script, come back."""
    cost = AlphaBeta(1, 1000)
    first = GradientProblem([Gradient(name, size, ready)], cost, name=name)
    second = Problem(
        [Compute(name, length, name), Collective("a" + name, size, "allreduce", name, name)],
        {(name, "allreduce"): cost},
        channels={"x" + name: [name]},
        name=name,
    )
    for problem in (first, second):
        assert_same(problem_from_bytes(problem_to_bytes(problem), "again"), problem)


def test_a_written_problem_is_plain_json_that_anybody_can_read(tmp_path):
    """The file has the fields that the format fixes, whole numbers where they are whole."""
    path = tmp_path / "out.json"
    write_problem(parse({**SIMPLE, "backward_end_us": 5000}), path)
    assert json.loads(path.read_text(encoding="utf-8")) == {**SIMPLE, "backward_end_us": 5000}
    write_problem(parse(GENERAL), path)
    assert json.loads(path.read_text(encoding="utf-8")) == GENERAL


def test_equal_problems_are_written_alike():
    """Whether a default was spelled out or left out, in a file or in code, does not matter."""
    cost = AlphaBeta(8, 50)
    row = {"name": "a", "bytes": 4096, "ready_us": 1}
    document = {**SIMPLE, "costs": {"allreduce": {"alpha_us": 8, "bandwidth_gb_s": 50}}}
    written = {
        problem_to_bytes(problem)
        for problem in (
            parse({**document, "gradients": [row]}),
            parse({**document, "gradients": [{**row, "dtype": "float32"}]}),
            parse({**document, "gradients": [{**row, "device": "", "sparse": False}]}),
            GradientProblem([Gradient("a", 4096, 1000)], cost, name="four layers"),
            GradientProblem([Gradient("a", 4096, 1000, "float32")], cost, name="four layers"),
        )
    }
    assert len(written) == 1


def test_exact_numbers_are_written_only_if_a_file_can_hold_them():
    """A Decimal is written as it is; one third of a microsecond has no decimal form."""
    gradients = [Gradient("a", 4096, 1000)]
    problem = GradientProblem(gradients, AlphaBeta(Decimal("0.0075"), Fraction(1, 4)))
    row = json.loads(problem_to_bytes(problem))["costs"]["allreduce"]
    assert row == {"alpha_us": 0.0075, "bandwidth_gb_s": 0.25}
    with pytest.raises(InputError, match=r"costs\.allreduce: .*exact decimal"):
        problem_to_bytes(GradientProblem(gradients, AlphaBeta(Fraction(1, 3), 1)))


def reordered(value):
    """Return JSON data with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [reordered(item) for item in value]
    return value


SAME_SIMPLE = {
    "whitespace": json.dumps(SIMPLE, indent=7),
    "no whitespace": json.dumps(SIMPLE, separators=(",", ":")),
    "key order": json.dumps(reordered(SIMPLE)),
    "2000.0": json.dumps(SIMPLE).replace(" 2000,", " 2000.0,"),
    "2e3": json.dumps(SIMPLE).replace(" 2000,", " 2e3,"),
    "8.000": json.dumps(SIMPLE).replace('"alpha_us": 8', '"alpha_us": 8.000'),
    "escapes": json.dumps(SIMPLE).replace('"L4"', '"\\u004c\\u0034"'),
    "title": {**SIMPLE, "name": "another title"},
    "no title": changed(SIMPLE, "name", ...),
    "default dtype": changed(SIMPLE, "gradients", 0, "dtype", ...),
    "default device": changed(SIMPLE, "gradients", 0, "device", ""),
    "not sparse": changed(SIMPLE, "gradients", 0, "sparse", False),
    "backward ends with the last gradient": {**SIMPLE, "backward_end_us": 4000.001},
    "bus bandwidth of two ranks": changed(
        SIMPLE,
        "costs",
        "allreduce",
        {"alpha_us": 8, "bus_bandwidth_gb_s": 53.6870912, "ranks": 2},
    ),
    "points on the same line": changed(
        SIMPLE, "costs", "allreduce", {"points": [[0, 8], [33554432, 633]]}
    ),
}


@pytest.mark.parametrize("what", SAME_SIMPLE)
def test_digest_of_gradients_does_not_depend_on(what):
    """How a problem is written does not change which problem it is."""
    assert digest(SAME_SIMPLE[what]) == digest(SIMPLE)


SAME_GENERAL = {
    "whitespace": json.dumps(GENERAL, indent=3),
    "key order": json.dumps(reordered(GENERAL)),
    "120.0": json.dumps(GENERAL).replace(": 120,", ": 120.0,"),
    "1.2e2": json.dumps(GENERAL).replace(": 120,", ": 1.2e2,"),
    "title": {**GENERAL, "name": ""},
    "order of after": changed(GENERAL, "tasks", 5, "after", ["ar2", "fwd1"]),
    "after twice": changed(GENERAL, "tasks", 5, "after", ["fwd1", "ar2", "fwd1"]),
    "default device": changed(GENERAL, "tasks", 1, "device", ""),
    "not sparse": changed(GENERAL, "tasks", 1, "sparse", False),
    "default stream": changed(GENERAL, "tasks", 0, "stream", ...),
    "default after": changed(GENERAL, "tasks", 0, "after", ...),
    "a cost that nothing uses": changed(
        GENERAL, "costs", "dp", "all_gather", {"alpha_us": 1, "bandwidth_gb_s": 1}
    ),
    "a group that nothing uses": changed(
        GENERAL, "costs", "tp", {"allreduce": {"alpha_us": 1, "bandwidth_gb_s": 1}}
    ),
    "points on the same line": changed(
        GENERAL, "costs", "dp", "allreduce", {"points": [[0, 30], [10000, 31]]}
    ),
}


@pytest.mark.parametrize("what", SAME_GENERAL)
def test_digest_of_a_step_does_not_depend_on(what):
    """How a step is written does not change which step it is."""
    assert digest(SAME_GENERAL[what]) == digest(GENERAL)


def test_digest_takes_costs_as_functions():
    """A point in the middle of a straight line adds nothing."""
    line = {"points": [[1000, 10], [3000, 14]]}
    same = {"points": [[1000, 10], [2000, 12], [3000, 14]]}
    backwards = {"points": [[3000, 14], [1000, 10]]}
    digests = {
        digest(changed(SIMPLE, "costs", "allreduce", row)) for row in (line, backwards, same)
    }
    assert len(digests) == 1


def test_channels_that_say_the_default_say_nothing():
    """A channel with its only group's name is what a group has anyway."""
    without = changed(GENERAL, "channels", ...)
    assert digest({**without, "channels": {"dp": ["dp"]}}) == digest(without)
    assert digest({**without, "channels": {}}) == digest(without)


def swapped(document, field, i, j):
    """Return a copy of a document with two rows of a list exchanged."""
    document = copy.deepcopy(document)
    rows = document[field]
    rows[i], rows[j] = rows[j], rows[i]
    return document


OTHER_SIMPLE = {
    "bytes": changed(SIMPLE, "gradients", 0, "bytes", 33554433),
    "ready": changed(SIMPLE, "gradients", 0, "ready_us", 2000.001),
    "dtype": changed(SIMPLE, "gradients", 0, "dtype", "float16"),
    "device": changed(SIMPLE, "gradients", 0, "device", "cuda:1"),
    "sparse": changed(SIMPLE, "gradients", 0, "sparse", True),
    "sparse on a device": changed(
        changed(SIMPLE, "gradients", 0, "sparse", True), "gradients", 0, "device", "cuda:1"
    ),
    "name": changed(SIMPLE, "gradients", 0, "name", "L5"),
    "order": swapped(SIMPLE, "gradients", 2, 3),
    "order without a tie": swapped(SIMPLE, "gradients", 0, 1),
    "one more": {
        **SIMPLE,
        "gradients": [*SIMPLE["gradients"], {"name": "L0", "bytes": 0, "ready_us": 0}],
    },
    "one less": {**SIMPLE, "gradients": SIMPLE["gradients"][:3]},
    "alpha": changed(SIMPLE, "costs", "allreduce", "alpha_us", 8.000001),
    "bandwidth": changed(SIMPLE, "costs", "allreduce", "bandwidth_gb_s", 53.687),
    "points": changed(SIMPLE, "costs", "allreduce", {"points": [[0, 8], [9, 8.1], [99, 9]]}),
    "point": changed(SIMPLE, "costs", "allreduce", {"points": [[0, 8], [9, 8.2], [99, 9]]}),
    "table": changed(SIMPLE, "costs", "allreduce", {"table": [[9, 8.1], [99, 9]]}),
    "backward_end": {**SIMPLE, "backward_end_us": 4000.002},
}
OTHER_GENERAL = {
    "bytes": changed(GENERAL, "tasks", 1, "bytes", 4194305),
    "dtype": changed(GENERAL, "tasks", 1, "dtype", "float16"),
    "device": changed(GENERAL, "tasks", 1, "device", "cuda:1"),
    "sparse": changed(GENERAL, "tasks", 1, "sparse", True),
    "duration": changed(GENERAL, "tasks", 0, "duration_us", 120.001),
    "stream": changed(GENERAL, "tasks", 0, "stream", "aux"),
    "after": changed(GENERAL, "tasks", 5, "after", ["fwd1"]),
    "after of a collective": changed(GENERAL, "tasks", 1, "after", []),
    "redundant after": changed(GENERAL, "tasks", 2, "after", []),
    "order": swapped(GENERAL, "tasks", 0, 1),
    "order of collectives": swapped(GENERAL, "tasks", 1, 3),
    "name": changed(changed(GENERAL, "tasks", 5, "name", "fwd3"), "name", "other"),
    "channel": {**GENERAL, "channels": {"nic2": ["dp"]}},
    "no channel": changed(GENERAL, "channels", ...),
    "alpha": changed(GENERAL, "costs", "dp", "allreduce", "alpha_us", 30.001),
    "bandwidth": changed(GENERAL, "costs", "dp", "allreduce", "bandwidth_gb_s", 10.001),
    "kind": json.loads(json.dumps(GENERAL).replace('"allreduce"', '"all_gather"')),
    "group": json.loads(json.dumps(GENERAL).replace('"dp"', '"tp"')),
}


@pytest.mark.parametrize("base", ["simple", "general"])
def test_digest_changes_with_any_single_value(base):
    """Whatever a plan's effect or fit can depend on changes the digest, each in its own way."""
    others = OTHER_SIMPLE if base == "simple" else OTHER_GENERAL
    by_digest = {digest(SIMPLE if base == "simple" else GENERAL): "the problem itself"}
    for what, document in others.items():
        found = digest(document)
        assert found not in by_digest, f"{what} gives the digest of {by_digest[found]}"
        by_digest[found] = what


def test_groups_on_one_channel_are_another_problem():
    """Whether two groups share a channel decides what a plan does."""
    two = json.loads(json.dumps(GENERAL))
    two["tasks"][3]["group"] = "tp"
    two["costs"]["tp"] = two["costs"]["dp"]
    digests = {
        digest({**two, "channels": channels})
        for channels in (
            {},
            {"nic": ["dp", "tp"]},
            {"dp": ["dp", "tp"]},
            {"dp": ["tp"], "tp": ["dp"]},
        )
    }
    assert len(digests) == 4
    assert digest({**two, "channels": {"nic": ["tp", "dp"]}}) in digests


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {**SIMPLE, "gradients": SIMPLE["gradients"][:3]},
            "sha256:514eb558811b04279b2113ff12904491175e11657d1085069b40f818da02778d",
        ),
        (GENERAL, "sha256:1ca12efbd2c2258bc4ea0cd90c1e21222a1bd39daee4b1435371fc20e98b174f"),
    ],
    ids=["gradients", "tasks"],
)
def test_digests_stay_the_same_from_release_to_release(document, expected):
    """Plan files name problems by these digests and outlive the program that wrote them."""
    assert digest(document) == expected


WRITE_WITH_A_FULL_DISK = """
import resource, signal, sys
import commsched
problem = commsched.read(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    commsched.write_problem(problem, sys.argv[2])
except commsched.InputError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    """When the disk is full half-way, the file is still the old one, and no remains are left."""
    source = tmp_path / "problem.json"
    source.write_text(json.dumps(SIMPLE))
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / "old.json"
    target.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", WRITE_WITH_A_FULL_DISK, str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(target) in done.stderr
    assert target.read_text() == "old"
    assert os.listdir(folder) == ["old.json"]


@pytest.mark.parametrize("name", ["missing/out.json", "folder", "x" * 5000])
def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path, name):
    """A missing folder, a folder, a name too long: an InputError that names the place."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as caught:
        write_problem(parse(SIMPLE), tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name)[:400])
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == []


@pytest.mark.parametrize("length", [1, 100, 240, 255])
def test_names_as_long_as_the_file_system_allows_can_be_written(tmp_path, length):
    """A safe write needs no longer name than the file has."""
    write_problem(parse(SIMPLE), tmp_path / ("x" * length))
    assert os.listdir(tmp_path) == ["x" * length]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """Writing over a longer file leaves nothing of it, and others may read the new one."""
    path = tmp_path / "problem.json"
    path.write_text(" " * 100_000)
    write_problem(parse(SIMPLE), path)
    assert problem_digest(commsched.read(path)) == digest(SIMPLE)
    plain = tmp_path / "plain"
    plain.write_text("made by open()")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_ordinary_files_are_replaced(tmp_path):
    """A pipe or device (think of /dev/stdout) is written to or refused, never replaced."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(InputError):
            write_problem(parse(SIMPLE), path)
        assert path.is_fifo()
    finally:
        os.close(reader)


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_a_link_stays_a_link(tmp_path):
    """Writing through a link changes the file that it names."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_problem(parse(SIMPLE), link)
    assert link.is_symlink()
    assert problem_digest(commsched.read(real)) == digest(SIMPLE)
    assert sorted(os.listdir(tmp_path)) == ["link.json", "real.json"]


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "", "no/such/file"])
def test_a_path_that_is_none_is_an_input_error(tmp_path, monkeypatch, name):
    """Whatever is wrong with a path, reading raises the error that callers catch."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        commsched.read(name)


@pytest.mark.parametrize(
    "document",
    [
        changed(changed(GENERAL, "tasks", 5, "after", ["x\ny"]), "tasks", 5, "name", "x\ny"),
        changed(GENERAL, "tasks", 1, "a\nb", 1),
        changed(GENERAL, "tasks", 1, "name", "bwd2"),
        {**GENERAL, "channels": {"n\nic": ["no\nne"]}},
    ],
    ids=["cycle", "unknown field", "twice", "channel"],
)
def test_an_error_is_one_line_whatever_the_names(document):
    """A caller who logs the message gets one line, also where a name holds a line break."""
    with pytest.raises(InputError) as caught:
        parse(document)
    assert str(caught.value).startswith("problem.json: ")
    assert str(caught.value).splitlines() == [str(caught.value)]


@pytest.mark.parametrize("text", ["\ud800", "na\udcffme"])
def test_a_name_that_utf8_cannot_hold_is_an_input_error(text):
    """Half a surrogate pair can come from a trace or from the name of a file."""
    cost = AlphaBeta(1, 1)
    problems = [
        GradientProblem([Gradient(text, 4, 0)], cost),
        GradientProblem([Gradient("a", 4, 0, dtype=text)], cost),
        GradientProblem([Gradient("a", 4, 0, device=text)], cost),
        Problem([Collective("a", 4, group=text)], {(text, "allreduce"): cost}),
    ]
    for problem in problems:
        assert problem_digest(problem).startswith("sha256:")
        with pytest.raises(InputError, match="cannot be written as UTF-8"):
            problem_to_bytes(problem)


@pytest.mark.parametrize("title", [3, None, b"step"])
def test_a_title_that_is_no_text_is_refused(title):
    """It would be written to a file that nobody can read."""
    with pytest.raises(InputError, match=r"name: .* must be a text"):
        GradientProblem([Gradient("a", 4, 0)], AlphaBeta(1, 1), name=title)
    with pytest.raises(InputError, match=r"name: .* must be a text"):
        Problem([Collective("a", 4)], {("dp", "allreduce"): AlphaBeta(1, 1)}, name=title)


def test_a_cost_too_large_for_a_file_is_an_input_error():
    """A fraction may be larger than any float."""
    cost = AlphaBeta(0, Fraction(10**400 + 1, 3))
    with pytest.raises(InputError, match="too large to be written"):
        problem_to_bytes(GradientProblem([Gradient("a", 4, 0)], cost))


@pytest.mark.parametrize("ranks", [{"tp": 4}, {"dp": 4, "": 2}, {"dpp": -4}])
def test_ranks_of_a_group_without_collectives_are_refused(ranks):
    """A group's name that is mistyped would leave the right one unknown."""
    with pytest.raises(InputError, match=r"p\.json: ranks: group .* has no collective"):
        problem_from_bytes(json.dumps({**GENERAL, "ranks": ranks}).encode(), "p.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_named(number):
    """Python writes these without a word; the place alone would say little."""
    text = json.dumps(SIMPLE).replace("2500.5", number).encode()
    place = text.index(number.removeprefix("-").encode())
    with pytest.raises(InputError) as caught:
        problem_from_bytes(text, "p.json")
    assert f"(byte {place}): {number.removeprefix('-')} is no number" in str(caught.value)

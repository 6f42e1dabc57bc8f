"""Bad input: exit code 2 and one line that names the file, the item and the rule. Nothing else."""

from __future__ import annotations

import copy
import json

import pytest
from cli_runner import run

import commsched

GRADIENTS = {
    "format": "commsched/problem",
    "version": 1,
    "name": "two layers",
    "gradients": [
        {"name": "L2", "bytes": 4194304, "ready_us": 2000, "dtype": "float32"},
        {"name": "L1", "bytes": 1048576, "ready_us": 2500, "dtype": "float32"},
    ],
    "costs": {"allreduce": {"alpha_us": 8, "bandwidth_gb_s": 50}},
}
STEP = {
    "format": "commsched/problem",
    "version": 1,
    "name": "a step",
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
        {"name": "bwd1", "type": "compute", "duration_us": 90, "stream": "gpu", "after": []},
        {
            "name": "rs1",
            "type": "collective",
            "kind": "reduce_scatter",
            "bytes": 1048576,
            "group": "tp",
            "dtype": "float32",
            "after": ["bwd1"],
        },
        {"name": "fwd1", "type": "compute", "duration_us": 40, "stream": "gpu", "after": ["rs1"]},
    ],
    "costs": {
        "dp": {"allreduce": {"alpha_us": 30, "bandwidth_gb_s": 10}},
        "tp": {"reduce_scatter": {"alpha_us": 30, "bandwidth_gb_s": 10}},
    },
    "channels": {"nic": ["dp"]},
}
RANKS = 4


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


def written(document, *path_and_text):
    """Return a document's JSON with one value replaced by JSON text, valid or not."""
    *path, text = path_and_text
    return json.dumps(changed(document, *path, "@@")).replace('"@@"', text)


@pytest.fixture
def refusal(tmp_path):
    """Return a function that runs a command which must be refused, and returns its one line."""

    def refused(*arguments):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), (code, out[:200], err[:500])
        assert err.startswith("commsched: ")
        assert err.endswith("\n")
        assert len(err.splitlines()) == 1, err
        assert len(err) < 1000
        assert err[:-1].isprintable(), err
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert after == before
        return err

    return refused


@pytest.fixture
def file_refusal(tmp_path, refusal):
    """Return a function that writes content to a problem file, which must be refused by name."""

    def refused(content, *flags, command="plan"):
        path = tmp_path / "problem.json"
        if not isinstance(content, bytes):
            text = content if isinstance(content, str) else json.dumps(content)
            content = text.encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        old = tmp_path / "old.json"
        old.write_text("old")
        if command == "plan":
            flags = (*flags, "--json", "--out", old)
        line = refusal(command, path, *flags)
        assert f"{path}: " in line
        return line

    return refused


NO_JSON = {
    "empty": b"",
    "white space": b" \n\t \n",
    "truncated": json.dumps(GRADIENTS)[:150].encode(),
    "one bracket short": json.dumps(GRADIENTS)[:-1].encode(),
    "binary": bytes(range(256)) * 20,
    "zeros": b"\0" * 1000,
    "gzip magic only": b"\x1f\x8b",
    "gzip that is none": b"\x1f\x8b\x08\x00 this is no gzip",
    "UTF-16": json.dumps(GRADIENTS).encode("utf-16"),
    "invalid UTF-8": json.dumps(GRADIENTS).encode().replace(b"two layers", b"\xff\xfe"),
    "lone surrogate": json.dumps(changed(GRADIENTS, "name", "\ud800")).encode(),
    "two objects": json.dumps(GRADIENTS).encode() * 2,
    "something behind": json.dumps(GRADIENTS).encode() + b" x",
    "Python": repr(GRADIENTS).encode(),
    "a comment": b"// problem\n" + json.dumps(GRADIENTS).encode(),
    "trailing comma": json.dumps(GRADIENTS)[:-1].encode() + b",}",
    "XML": b"<problem/>",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "nested format": b'{"format":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested gradients": b'{"format": "commsched/problem", "version": 1, "gradients":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
    "nested unknown field": json.dumps(GRADIENTS)[:-1].encode()
    + b', "x":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
    "list": b"[]",
    "number": b"1",
    "string": b'"commsched/problem"',
    "null": b"null",
}


@pytest.mark.parametrize("what", NO_JSON)
def test_a_file_that_is_no_json_object(file_refusal, what):
    """Whatever the bytes are, one line names the file."""
    file_refusal(NO_JSON[what])


@pytest.mark.parametrize("command", ["plan", "compare"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps(STEP)[:99].encode()])
def test_every_command_refuses_alike(file_refusal, command, content):
    """``compare`` reads the same files as ``plan``."""
    file_refusal(content, command=command)


@pytest.mark.parametrize("junk", [b"\0", b"a", b" ", b"[", b'"'])
def test_fifty_megabytes_of_junk(file_refusal, junk):
    """A large file that is no problem is refused as quickly and shortly as a small one."""
    file_refusal(junk * 50_000_000)


@pytest.mark.parametrize("key", ["format", "version", "name"])
def test_fifty_megabytes_in_one_value(file_refusal, key):
    """A value of any length does not end up in the message."""
    document = changed(GRADIENTS, key, "@@")
    document["gradients"] = 5
    file_refusal(json.dumps(document).replace("@@", "a" * 50_000_000))


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_places_that_are_no_file(tmp_path, refusal, command):
    """A missing file, a folder, a name too long, no name at all."""
    for path in (tmp_path / "missing.json", tmp_path, "x" * 5000):
        arguments = (command, path)
        if path == "x" * 5000:
            code, out, err = run(*arguments)
            assert (code, out, err.count("\n")) == (2, "", 1)
        else:
            assert f"{path}: " in refusal(*arguments)
    refusal(command, "")


@pytest.mark.parametrize("command", ["verify", "evaluate"])
def test_problems_and_plans_are_refused_by_their_own_names(tmp_path, refusal, command):
    """With two files on the command line, the line names the bad one."""
    good, bad, plan = (tmp_path / name for name in ("good.json", "bad.json", "plan.json"))
    good.write_text(json.dumps(GRADIENTS))
    assert run("plan", good, "--out", plan)[0] == 0

    def ordered(problem, planned):
        return (planned, problem) if command == "verify" else (problem, planned)

    for content in (b"", b"{", b"\0\1", b"[" * 100_000, b"{}", json.dumps(STEP)[:-9].encode()):
        bad.write_bytes(content)
        assert f"{bad}: " in refusal(command, *ordered(good, bad))
        assert f"{bad}: " in refusal(command, *ordered(bad, plan))
    bad.write_text(json.dumps(GRADIENTS))
    assert f"{bad}: format" in refusal(command, *ordered(good, bad))
    assert f"{plan}: format" in refusal(command, *ordered(plan, plan))
    missing = tmp_path / "missing.json"
    assert f"{missing}: " in refusal(command, *ordered(good, missing))
    assert f"{tmp_path}: " in refusal(command, *ordered(good, tmp_path))


@pytest.mark.parametrize("text", ['"x"', "1", "null", '"commsched/plan"', "true", "[]", '""'])
def test_another_format(file_refusal, text):
    """The line shows what the file says and what was expected."""
    line = file_refusal(written(GRADIENTS, "format", text))
    assert "format" in line
    assert "commsched/problem" in line
    assert "format" in file_refusal(changed(GRADIENTS, "format", ...))


@pytest.mark.parametrize(
    "text", ["0", "2", "-1", "1.0", "1.5", '"1"', "true", "null", "[1]", "1e0", "1" + "0" * 400]
)
def test_another_version(file_refusal, text):
    """Version 1 is the integer 1 and nothing that resembles it."""
    line = file_refusal(written(STEP, "version", text))
    assert "version" in line
    assert "version" in file_refusal(changed(STEP, "version", ...))


UNKNOWN_FIELDS = [
    (GRADIENTS, ("colour",), ""),
    (GRADIENTS, ("channels",), ""),
    (GRADIENTS, ("gradients", 1, "colour"), "gradients[1]"),
    (GRADIENTS, ("gradients", 1, "after"), "gradients[1]"),
    (GRADIENTS, ("costs", "allreduce", "colour"), "costs"),
    (STEP, ("colour",), ""),
    (STEP, ("backward_end_us",), ""),
    (STEP, ("tasks", 0, "colour"), "tasks[0]"),
    (STEP, ("tasks", 0, "bytes"), "tasks[0]"),
    (STEP, ("tasks", 1, "colour"), "tasks[1]"),
    (STEP, ("tasks", 1, "duration_us"), "tasks[1]"),
    (STEP, ("costs", "dp", "allreduce", "colour"), "costs"),
]


@pytest.mark.parametrize(("document", "path", "place"), UNKNOWN_FIELDS)
def test_an_unknown_field_is_named(file_refusal, document, path, place):
    """At each level of both forms the line names the field and where it is."""
    line = file_refusal(changed(document, *path, 1))
    assert path[-1] in line
    assert place in line


@pytest.mark.parametrize(
    ("document", "path"),
    [
        *((GRADIENTS, ("gradients", 1, name)) for name in ("name", "bytes", "ready_us")),
        (GRADIENTS, ("costs",)),
        *((STEP, ("tasks", 0, name)) for name in ("name", "type", "duration_us")),
        *((STEP, ("tasks", 1, name)) for name in ("name", "type", "kind", "bytes", "group")),
        (STEP, ("costs",)),
    ],
)
def test_a_missing_field_is_named(file_refusal, document, path):
    """What has no default must be there; the line names it and the row."""
    line = file_refusal(changed(document, *path, ...))
    assert path[-1] in line
    if len(path) > 1:
        assert f"{path[0]}[{path[1]}]" in line


def test_both_forms_at_once_or_neither(file_refusal):
    """A problem has gradients or tasks."""
    for document in (
        {**GRADIENTS, "tasks": STEP["tasks"]},
        {**STEP, "gradients": []},
        changed(GRADIENTS, "gradients", ...),
        changed(STEP, "tasks", ...),
    ):
        line = file_refusal(document)
        assert "'gradients'" in line
        assert "'tasks'" in line


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (changed(GRADIENTS, "gradients", []), "no gradient"),
        (changed(STEP, "tasks", []), "no collective"),
        (changed(STEP, "tasks", STEP["tasks"][:1]), "no collective"),
        (changed(GRADIENTS, "gradients", {}), "gradients"),
        (changed(STEP, "tasks", None), "tasks"),
        (changed(STEP, "tasks", [[]]), "tasks[0]"),
        (changed(STEP, "tasks", 0, "type", "send"), "tasks[0]"),
        (changed(STEP, "tasks", 0, "type", 1), "tasks[0]"),
    ],
)
def test_nothing_to_plan(file_refusal, document, named):
    """Empty problems and rows that are none."""
    assert named in file_refusal(document)


HUGE = "1" + "0" * 400
WRONG_NUMBERS = [
    "-1",
    "-0.001",
    "NaN",
    "Infinity",
    "-Infinity",
    "true",
    "false",
    '"5"',
    '""',
    "null",
    "[]",
    "{}",
    "1e400",
    "-1e400",
    HUGE,
    "-" + HUGE,
    "1" + "0" * 5000,
    "0x10",
    "1_000",
    "01",
    "+1",
    ".5",
]
SIZES = [
    (GRADIENTS, ("gradients", 1, "bytes"), ("L1", "gradients[1]")),
    (STEP, ("tasks", 1, "bytes"), ("ar2", "tasks[1]")),
]
TIMES = [
    (GRADIENTS, ("gradients", 1, "ready_us"), ("L1", "gradients[1]")),
    (STEP, ("tasks", 0, "duration_us"), ("bwd2", "tasks[0]")),
]
JSON_TEXTS = ("NaN", "Infinity", "-Infinity", "0x10", "1_000", "01", "+1", ".5")


@pytest.mark.parametrize("text", WRONG_NUMBERS, ids=lambda text: text[:12])
@pytest.mark.parametrize(("document", "path", "items"), [*SIZES, *TIMES])
def test_a_wrong_number_is_named(file_refusal, text, document, path, items):
    """Sizes and times are finite numbers of at least 0, not text or booleans; the row is named."""
    line = file_refusal(written(document, *path, text))
    if text not in JSON_TEXTS:
        assert path[-1] in line
        assert any(item in line for item in items)


@pytest.mark.parametrize("text", ["1.5", "4096.5", "1e-3", str(2**50 + 1), str(2**60), str(2**64)])
@pytest.mark.parametrize(("document", "path", "items"), SIZES)
def test_a_wrong_size_is_named(file_refusal, text, document, path, items):
    """Bytes are whole and at most 1 PiB."""
    line = file_refusal(written(document, *path, text))
    assert "bytes" in line
    assert any(item in line for item in items)


@pytest.mark.parametrize("text", ["1125899906842.625", "1125899906843", "1e30", "1e308"])
@pytest.mark.parametrize(("document", "path", "items"), TIMES)
def test_a_time_beyond_the_limit_is_named(file_refusal, text, document, path, items):
    """Thirteen days are enough for a step."""
    line = file_refusal(written(document, *path, text))
    assert path[-1] in line
    assert any(item in line for item in items)


@pytest.mark.parametrize("text", ["-1", "true", "null", '"5"', "1e30", "2499.999", "0"])
def test_a_wrong_end_of_backward_is_named(file_refusal, text):
    """Backward ends when or after the last gradient is ready; the line speaks of microseconds."""
    line = file_refusal(written(GRADIENTS, "backward_end_us", text))
    assert "backward_end_us" in line
    if text in ("2499.999", "0"):
        assert "2500" in line


COST_NUMBERS = [
    ("alpha_us", "bandwidth_gb_s", {}),
    ("bandwidth_gb_s", "alpha_us", {}),
    ("alpha_us", "bus_bandwidth_gb_s", {"ranks": RANKS}),
    ("bus_bandwidth_gb_s", "alpha_us", {"ranks": RANKS}),
]


@pytest.mark.parametrize(
    ("field", "other", "more", "text"),
    [
        (*numbers, text)
        for numbers in COST_NUMBERS
        for text in WRONG_NUMBERS
        if numbers[0] == "alpha_us" or text != HUGE  # see the test of absurd bandwidths
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_number_in_a_cost_is_named(file_refusal, field, other, more, text):
    """Latencies and bandwidths are finite numbers, not negative; field and cost are named."""
    cost = {field: "@@", other: 1, **more}
    text_of = json.dumps(changed(GRADIENTS, "costs", "allreduce", cost)).replace('"@@"', text)
    line = file_refusal(text_of)
    if text not in JSON_TEXTS:
        assert field in line
        assert "costs" in line


@pytest.mark.parametrize("field", ["bandwidth_gb_s", "bus_bandwidth_gb_s"])
@pytest.mark.parametrize("text", ["0", "0.0", "-0.0", "-1", "1e-400"])
def test_a_bandwidth_of_nothing(file_refusal, field, text):
    """A bandwidth is above 0."""
    cost = {"alpha_us": 1, field: "@@", **({"ranks": RANKS} if "bus" in field else {})}
    document = changed(GRADIENTS, "costs", "allreduce", cost)
    line = file_refusal(json.dumps(document).replace('"@@"', text))
    assert f"costs.allreduce: {field}" in line
    assert "above 0" in line


@pytest.mark.parametrize("field", ["bandwidth_gb_s", "bus_bandwidth_gb_s"])
@pytest.mark.parametrize(
    "text", ["5e-324", "1e-308", "1e-200", "1e-30", "1e30", "1e300", "1e308", HUGE]
)
@pytest.mark.parametrize("form", ["gradients", "tasks"])
def test_an_absurd_bandwidth_is_refused_or_planned(tmp_path, field, text, form):
    """A bandwidth beyond all reason gives a plan or one line, and never a traceback."""
    cost = {"alpha_us": 1, field: "@@", **({"ranks": RANKS} if "bus" in field else {})}
    document = changed(GRADIENTS, "costs", "allreduce", cost)
    if form == "tasks":
        document = changed(STEP, "costs", "dp", "allreduce", cost)
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document).replace('"@@"', text))
    for command in ("plan", "compare"):
        code, out, err = run(command, path, "--json", "--time-limit", "2")
        if code == 0:
            assert json.loads(out)["lower_bound_us"] >= 0
        else:
            assert (code, out) == (2, "")
            assert err.count("\n") == 1
            assert f"{path}: " in err


COSTS = [
    ({}, "nothing"),
    ({"alpha_us": 1}, "alpha_us"),
    ({"bandwidth_gb_s": 1}, "bandwidth_gb_s"),
    ({"alpha_us": 1, "bandwidth_gb_s": 1, "bus_bandwidth_gb_s": 1}, "bus_bandwidth_gb_s"),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1}, "ranks"),
    ({"alpha_us": 1, "bandwidth_gb_s": 1, "ranks": 2}, "ranks"),
    ({"alpha_us": 1, "bandwidth_gb_s": 1, "algorithm": "ring"}, "algorithm"),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": 1}, "ranks: 1 "),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": 0}, "ranks: 0 "),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": -2}, "ranks: -2 "),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": 2.5}, "ranks"),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": True}, "ranks"),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": 10**400}, "ranks"),
    ({"alpha_us": 1, "bus_bandwidth_gb_s": 1, "ranks": 2, "algorithm": "tree"}, "'tree'"),
    ({"alpha_us": 1e300, "bus_bandwidth_gb_s": 1, "ranks": 2}, "alpha_us"),
    ({"points": [[1, 2], [2, 3]], "table": [[1, 2]]}, "points, table"),
    ({"points": []}, "points: 0 "),
    ({"points": [[1000, 10]]}, "points: 1 "),
    ({"points": [[1000, 10], [1000, 11]]}, "1000 bytes is listed twice"),
    ({"points": [[1000, 10], [1000, 10]]}, "1000 bytes is listed twice"),
    ({"points": [[1000, 10], [3000, 9.5]]}, "from 10 us at 1000 bytes to 9.5 us at 3000 bytes"),
    ({"points": [[3000, 9.5], [1000, 10]]}, "from 10 us at 1000 bytes to 9.5 us at 3000 bytes"),
    ({"points": [[1, 1], [2, 2], [3, 1], [4, 5]]}, "from 2 us at 2 bytes to 1 us at 3 bytes"),
    ({"points": [[1000, 10], [3000]]}, "points[1]"),
    ({"points": [[1000, 10], [3000, 11, 12]]}, "points[1]"),
    ({"points": [[1000, 10], {"bytes": 3000}]}, "points[1]"),
    ({"points": [[1000, 10], [3000, -1]]}, "3000 bytes: -1"),
    ({"points": [[1000, 10], [3000, True]]}, "points[1][1]"),
    ({"points": [[1000, 10], [3000, "11"]]}, "points[1][1]"),
    ({"points": [[1000, 10], [3000, None]]}, "points[1][1]"),
    ({"points": [[1000, 10], [3000.5, 11]]}, "points[1][0]"),
    ({"points": [[1000, 10], [-1, 11]]}, "-1"),
    ({"points": [[1000, 10], [2**60, 11]]}, str(2**60)),
    ({"points": [[1000, 10], [3000, 1e30]]}, "3000 bytes"),
    ({"points": 5}, "points"),
    ({"points": None}, "points"),
    ({"table": []}, "table: 0 "),
    ({"table": [[0, 1]]}, "above 0 bytes"),
    ({"table": [[1000, 10], [3000, 9]]}, "from 10 us at 1000 bytes to 9 us at 3000 bytes"),
    ({"table": [[1000, 10], [1000, 10]]}, "1000 bytes is listed twice"),
    ([], "costs"),
    (5, "costs"),
]


@pytest.mark.parametrize(("cost", "named"), COSTS)
@pytest.mark.parametrize("form", ["gradients", "tasks", "flag"])
def test_a_cost_that_is_none(tmp_path, file_refusal, refusal, cost, named, form):
    """In both forms and in a cost file: the line says what is wrong with the cost, and where."""
    if form == "flag":
        path, costs = tmp_path / "problem.json", tmp_path / "costs.json"
        path.write_text(json.dumps(GRADIENTS))
        costs.write_text(json.dumps({"format": "commsched/costs", "version": 1, "allreduce": cost}))
        line = refusal("plan", path, "--costs", costs)
        assert f"{costs}: allreduce" in line
    elif form == "tasks":
        line = file_refusal(changed(STEP, "costs", "dp", "allreduce", cost))
        assert "costs" in line
    else:
        line = file_refusal(changed(GRADIENTS, "costs", "allreduce", cost))
        assert "costs" in line
    assert named in line


@pytest.mark.parametrize("cost", [5, {"alpha_us": "1", "bandwidth_gb_s": 1}, {"colour": 1}])
def test_a_cost_of_the_wrong_type_is_named_by_group_and_kind(file_refusal, cost):
    """Among several costs, the line says which one is at fault."""
    line = file_refusal(changed(STEP, "costs", "tp", "reduce_scatter", cost))
    assert "tp" in line
    assert "reduce_scatter" in line


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (changed(GRADIENTS, "costs", {}), "allreduce"),
        (changed(GRADIENTS, "costs", "all_gather", {"alpha_us": 1, "bandwidth_gb_s": 1}), "gather"),
        (changed(GRADIENTS, "costs", {"dp": GRADIENTS["costs"]}), "costs"),
        (changed(GRADIENTS, "costs", []), "costs"),
        (changed(STEP, "costs", {}), "ar2"),
        (changed(STEP, "costs", GRADIENTS["costs"]), "costs"),
        (changed(STEP, "costs", "tp", {}), "rs1"),
        (changed(STEP, "tasks", 1, "group", "pp"), "ar2"),
        (changed(STEP, "tasks", 1, "kind", "all_gather"), "all_gather"),
        (changed(STEP, "tasks", 1, "kind", "all-reduce"), "'all-reduce'"),
        (changed(STEP, "tasks", 1, "kind", "ALLREDUCE"), "'ALLREDUCE'"),
        (changed(STEP, "tasks", 1, "kind", ""), "kind"),
        (changed(STEP, "tasks", 1, "kind", None), "tasks[1].kind"),
        (
            changed(STEP, "costs", "dp", "all_reduce", {"alpha_us": 1, "bandwidth_gb_s": 1}),
            "'all_reduce'",
        ),
    ],
)
def test_costs_that_do_not_fit_the_tasks(file_refusal, document, named):
    """A kind without a cost and a kind that is none: the line names task or kind."""
    assert named in file_refusal(document)


@pytest.mark.parametrize(
    ("channels", "named"),
    [
        ({"nic": ["dp", "pp"]}, "'pp'"),
        ({"nic": ["pp"]}, "'pp'"),
        ({"nic": ["dp"], "nvlink": ["dp"]}, "'dp'"),
        ({"nic": ["dp", "dp"]}, "'dp'"),
        ({"tp": ["dp"]}, "'tp'"),
        ({"nic": "dp"}, "channels"),
        ({"nic": [1]}, "channels"),
        ([["dp"]], "channels"),
        (None, "channels"),
    ],
)
def test_channels_that_do_not_fit_the_groups(file_refusal, channels, named):
    """Unknown groups, a group on two channels, a channel that takes another group's name."""
    line = file_refusal(changed(STEP, "channels", channels))
    assert "channel" in line
    assert named in line


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (changed(GRADIENTS, "gradients", 1, "name", "L2"), "'L2'"),
        (changed(STEP, "tasks", 1, "name", "bwd2"), "'bwd2'"),
        (changed(STEP, "tasks", 2, "name", "bwd2"), "'bwd2'"),
        (changed(STEP, "tasks", 1, "after", ["bwd3"]), "'bwd3'"),
        (changed(STEP, "tasks", 0, "after", [""]), "''"),
        (changed(STEP, "tasks", 0, "after", "bwd1"), "tasks[0].after"),
        (changed(STEP, "tasks", 0, "after", [1]), "tasks[0].after[0]"),
        (changed(STEP, "tasks", 0, "after", None), "tasks[0].after"),
        (changed(STEP, "tasks", 0, "stream", 1), "tasks[0].stream"),
        (changed(GRADIENTS, "gradients", 0, "dtype", 32), "gradients[0].dtype"),
        (changed(GRADIENTS, "gradients", 0, "dtype", ""), "dtype"),
        (changed(GRADIENTS, "gradients", 0, "device", 1), "gradients[0].device"),
        (changed(GRADIENTS, "gradients", 0, "sparse", 1), "gradients[0].sparse"),
        (changed(STEP, "tasks", 1, "device", None), "tasks[1].device"),
        (changed(STEP, "tasks", 1, "sparse", "yes"), "tasks[1].sparse"),
        (changed(GRADIENTS, "name", 5), "name"),
    ],
)
def test_names_that_do_not_fit(file_refusal, document, named):
    """Names used twice, unknown predecessors, names that are no text."""
    assert named in file_refusal(document)


@pytest.mark.parametrize(
    ("document", "circle"),
    [
        (changed(STEP, "tasks", 1, "after", ["ar2"]), "ar2 -> ar2"),
        (changed(STEP, "tasks", 0, "after", ["bwd2"]), "bwd2 -> bwd2"),
        (changed(STEP, "tasks", 1, "after", ["rs1"]), ""),
        # A stream runs its tasks in listing order: waiting for a later one is a circle, too.
        (changed(STEP, "tasks", 0, "after", ["bwd1"]), "bwd2 -> bwd1 -> bwd2"),
        (changed(STEP, "tasks", 2, "after", ["rs1"]), ""),
    ],
)
def test_a_circle_is_printed(file_refusal, document, circle):
    """Tasks that wait for each other, by ``after`` or by the order of a stream: the path is shown."""
    if document == changed(STEP, "tasks", 1, "after", ["rs1"]):
        document = changed(document, "tasks", 3, "after", ["ar2"])
    line = file_refusal(document)
    assert "circle" in line
    assert circle in line
    path = line.strip().rpartition(": ")[2].split(" -> ")
    assert len(path) >= 2
    assert path[0] == path[-1]


NAMES = ["", "a\nb", "a\r\nb", "a\0b", "\x1b[31m", "a\u2028b", "\x85", "é", "層", "x" * 100_000]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:12])
def test_names_of_any_kind_do_not_break_the_line(file_refusal, name):
    """A name with line breaks, control characters or of any length leaves one readable line."""
    file_refusal(changed(GRADIENTS, "format", name))
    file_refusal(changed(GRADIENTS, "gradients", 0, name or "?", 1))
    file_refusal(changed(changed(STEP, "tasks", 0, "name", name), "tasks", 2, "name", name))
    file_refusal(changed(STEP, "tasks", 0, "after", [name]))
    file_refusal(changed(STEP, "tasks", 1, "kind", name))
    file_refusal(changed(STEP, "tasks", 1, "group", name))
    file_refusal(changed(STEP, "channels", {"nic": [name]}))
    file_refusal(changed(STEP, "costs", "dp", {name: {"alpha_us": 1, "bandwidth_gb_s": 1}}))
    circle = changed(changed(STEP, "tasks", 4, "name", name), "tasks", 4, "after", [name])
    file_refusal(circle)


@pytest.mark.parametrize("name", [name for name in NAMES if name], ids=lambda n: repr(n)[:12])
def test_names_of_any_kind_can_be_planned(tmp_path, name):
    """The same names in a good file: they are data, and come back as they are in the JSON."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(changed(GRADIENTS, "gradients", 0, "name", name)))
    code, out, err = run("plan", path, "--json")
    assert (code, err) == (0, "")
    assert name in [member for b in json.loads(out)["buckets"] for member in b["names"]]
    for command in ("plan", "compare"):
        code, out, err = run(command, path)
        assert (code, err) == (0, "")


def test_an_empty_name_is_refused(file_refusal):
    """Gradients and tasks have names."""
    assert "''" in file_refusal(changed(GRADIENTS, "gradients", 0, "name", ""))
    assert "''" in file_refusal(changed(STEP, "tasks", 4, "name", ""))


FLAGS = [
    (["--alpha-us", "1"], "--bandwidth-gb-s"),
    (["--bandwidth-gb-s", "1"], "--alpha-us"),
    (["--costs", "COSTS", "--alpha-us", "1"], "--costs"),
    (["--costs", "COSTS", "--bandwidth-gb-s", "1"], "--costs"),
    (["--costs", "COSTS", "--alpha-us", "1", "--bandwidth-gb-s", "1"], "--costs"),
    (["--costs", "MISSING"], "missing.json"),
    (["--costs", "FOLDER"], "Is a directory"),
    (["--costs", "PROBLEM"], "format"),
    (["--step", "1"], "step"),
    (["--sizes", "PROBLEM"], "sizes"),
    (["--alpha-us", "nan", "--bandwidth-gb-s", "1"], "alpha"),
    (["--alpha-us", "inf", "--bandwidth-gb-s", "1"], "alpha"),
    (["--alpha-us", "-1", "--bandwidth-gb-s", "1"], "alpha"),
    (["--alpha-us", "1e30", "--bandwidth-gb-s", "1"], "alpha"),
    (["--alpha-us", "", "--bandwidth-gb-s", "1"], "alpha"),
    (["--alpha-us", "1", "--bandwidth-gb-s", "nan"], "bandwidth"),
    (["--alpha-us", "1", "--bandwidth-gb-s", "inf"], "bandwidth"),
    (["--alpha-us", "1", "--bandwidth-gb-s", "-inf"], "bandwidth"),
    (["--alpha-us", "1", "--bandwidth-gb-s", "0"], "bandwidth"),
    (["--alpha-us", "1", "--bandwidth-gb-s", "-5"], "bandwidth"),
    (["--alpha-us", "1", "--bandwidth-gb-s", "fast"], "bandwidth"),
    (["--scope", "IN-ORDER"], "scope"),
    (["--scope", ""], "scope"),
    (["--scope", "a\nb\x1b"], "scope"),
    (["--method", "magic"], "method"),
    (["--method", "a\nb\x1b"], "method"),
    (["--out", "MISSING/plan.json"], "missing.json"),
    (["--out", "FOLDER"], "folder"),
    (["--out", ""], "is empty"),
    (["--out", "x" * 5000], "name too long"),
    (["--out", "PROBLEM/plan.json"], "problem.json"),
    (["--picture", "FOLDER/picture.pdf"], ".png or .svg"),
    (["--picture", "FOLDER/picture"], ".png or .svg"),
    (["--picture", "FOLDER"], ".png or .svg"),
    (["--picture", "MISSING/picture.png"], "missing.json"),
]


@pytest.mark.parametrize(("flags", "named"), FLAGS)
def test_flags_that_make_no_sense(tmp_path, refusal, flags, named):
    """Each wrong flag or combination is refused by name, before anything is written."""
    problem, costs = tmp_path / "problem.json", tmp_path / "costs.json"
    problem.write_text(json.dumps(GRADIENTS))
    row = {"alpha_us": 1, "bandwidth_gb_s": 1}
    costs.write_text(json.dumps({"format": "commsched/costs", "version": 1, "allreduce": row}))
    places = {
        "COSTS": str(costs),
        "PROBLEM": str(problem),
        "FOLDER": str(tmp_path),
        "MISSING": str(tmp_path / "missing.json"),
    }
    arguments = []
    for flag in flags:
        word, slash, rest = flag.partition("/")
        arguments.append(places.get(word, word) + slash + rest)
    if "x" * 5000 in flags:
        code, out, err = run("plan", problem, *arguments, "--json")
        assert (code, out, err.count("\n")) == (2, "", 1)
        return
    assert named in refusal("plan", problem, *arguments, "--json")


@pytest.mark.parametrize(
    "flags",
    [
        ["--time-limit", "nan"],
        ["--time-limit", "inf"],
        ["--time-limit", "0"],
        ["--time-limit", "-1"],
        ["--workers", "0"],
        ["--workers", "-1"],
        ["--workers", "1000000000000"],
        ["--seed", "-1"],
        ["--seed", str(2**40)],
    ],
)
@pytest.mark.parametrize("form", ["gradients", "tasks"])
def test_limits_that_make_no_sense(tmp_path, refusal, flags, form):
    """A wrong limit is refused for every problem, also where the method happens to need none."""
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps(GRADIENTS if form == "gradients" else STEP))
    line = refusal("plan", problem, *flags)
    assert flags[0].removeprefix("--").replace("-", "_") in line.replace("-", "_")


def test_a_cost_file_must_have_every_kind_of_a_step(tmp_path, refusal):
    """The curve of one kind does not stand for another."""
    problem, costs = tmp_path / "problem.json", tmp_path / "costs.json"
    problem.write_text(json.dumps(STEP))
    allreduce = {"alpha_us": 1, "bandwidth_gb_s": 1}
    document = {"format": "commsched/costs", "version": 1, "allreduce": allreduce}
    costs.write_text(json.dumps(document))
    line = refusal("plan", problem, "--costs", costs)
    assert f"{problem}: has reduce_scatter in group 'tp'" in line


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"format": "commsched/problem", "version": 1, "allreduce": {}}, "format"),
        ({"format": "commsched/costs", "version": 2, "allreduce": {}}, "version"),
        ({"format": "commsched/costs", "version": 1}, "allreduce"),
        ({"format": "commsched/costs", "version": 1, "allgather": {}}, "allgather"),
        ([], "object"),
        ({}, "format"),
    ],
)
def test_a_cost_file_that_is_none(tmp_path, refusal, document, named):
    """The line names the cost file and not the problem."""
    problem, costs = tmp_path / "problem.json", tmp_path / "costs.json"
    problem.write_text(json.dumps(GRADIENTS))
    costs.write_text(json.dumps(document))
    line = refusal("plan", problem, "--costs", costs)
    assert f"{costs}: " in line
    assert named in line
    for content in (b"", b"{", b"\0", b"[" * 100_000):
        costs.write_bytes(content)
        assert f"{costs}: " in refusal("compare", problem, "--costs", costs)


@pytest.mark.parametrize(
    "content", ['{"traceEvents": []}', '[{"ph": "X"}]', '{"traceEvents": 5}', '{"traceEvents": [']
)
def test_a_trace_that_holds_no_step(file_refusal, content):
    """A trace without gradients is refused by name, with and without a cost."""
    file_refusal(content)
    file_refusal(content, "--alpha-us", "1", "--bandwidth-gb-s", "1")


def test_the_library_raises_what_the_command_line_prints(tmp_path):
    """``commsched.read`` raises an InputError, which is a ValueError, with the same line."""
    path = tmp_path / "problem.json"
    for document in (
        {},
        changed(GRADIENTS, "gradients", 0, "bytes", -1),
        changed(STEP, "tasks", 0, "after", ["bwd1"]),
    ):
        path.write_text(json.dumps(document))
        with pytest.raises(commsched.InputError) as caught:
            commsched.read(path)
        assert isinstance(caught.value, ValueError)
        assert run("plan", path)[2] == f"commsched: {caught.value}\n"

"""The command line as scripts and people use it: exit codes, JSON on standard output, messages."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import refusal, run, run_json
from shared_files import shared_data

import commsched
import commsched.planning
from commsched.models import Plan, evaluate
from commsched.models.units import MIB
from commsched.optimizer import RULES, Bound, Result, Status, ddp
from commsched.problems import load, problem_digest, read_network

DATA = Path(commsched.__file__).resolve().parent / "problems" / "data"
TRACE = DATA / "transformer_ddp_gloo_rank0.json.gz"
COSTS = DATA / "gloo_loopback_costs.json"
LOGGING = DATA / "transformer_ddp_gloo_logging.json"

GRADIENTS = {
    "format": "commsched/problem",
    "version": 1,
    "name": "four layers",
    "gradients": [
        {"name": "L4", "bytes": 33554432, "ready_us": 2000},
        {"name": "L3", "bytes": 1048577, "ready_us": 2500.5},
        {"name": "L2", "bytes": 1048576, "ready_us": 4000},
        {"name": "L1", "bytes": 4099, "ready_us": 4100},
    ],
    "costs": {"allreduce": {"alpha_us": 8, "bandwidth_gb_s": 53.6870912}},
}
STEP = {
    "format": "commsched/problem",
    "version": 1,
    "name": "a step on two channels",
    "tasks": [
        {"name": "bwd2", "type": "compute", "duration_us": 120},
        {
            "name": "ar2",
            "type": "collective",
            "kind": "allreduce",
            "bytes": 4194304,
            "group": "dp",
            "after": ["bwd2"],
        },
        {
            "name": "rs2",
            "type": "collective",
            "kind": "reduce_scatter",
            "bytes": 4000000,
            "group": "tp",
            "after": ["bwd2"],
        },
        {"name": "bwd1", "type": "compute", "duration_us": 90},
        {
            "name": "ar1",
            "type": "collective",
            "kind": "allreduce",
            "bytes": 1048576,
            "group": "dp",
            "after": ["bwd1"],
        },
        {"name": "fwd1", "type": "compute", "duration_us": 40, "after": ["ar1"]},
        {"name": "fwd2", "type": "compute", "duration_us": 60, "after": ["ar2", "rs2"]},
    ],
    "costs": {
        "dp": {"allreduce": {"alpha_us": 30, "bandwidth_gb_s": 10}},
        "tp": {"reduce_scatter": {"alpha_us": 5, "bus_bandwidth_gb_s": 20, "ranks": 4}},
    },
    "channels": {"nic": ["dp"], "nvlink": ["tp"]},
}
CURVED = {
    **GRADIENTS,
    "costs": {"allreduce": {"table": [[1048576, 40], [4194304, 90], [67108864, 900]]}},
}
PROBLEMS = {"gradients": GRADIENTS, "step": STEP, "curved": CURVED}

PLAN_KEYS = {
    "status",
    "method",
    "scope",
    "exposed_us",
    "makespan_us",
    "compute_us",
    "lower_bound_us",
    "gap",
    "launches",
    "buckets",
    "problem_digest",
}
BUCKET_KEYS = {"names", "kind", "group", "bytes", "ready_us", "start_us", "end_us", "channel"}
ROW_KEYS = {"name", "setting", "exposed_us", "makespan_us", "launches", "over_optimal_us"}


def start(*arguments, stdin=None, **environment):
    """Run ``python -m commsched`` in a process of its own; outputs are bytes."""
    return subprocess.run(
        [sys.executable, "-m", "commsched", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def paths(tmp_path):
    """Return the problems' files by name."""
    for name, document in PROBLEMS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return {name: tmp_path / f"{name}.json" for name in PROBLEMS}


@pytest.mark.parametrize("scope", ["in-order", "any"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_plan_json_is_what_the_library_returns(paths, name, scope):
    """All the keys that scripts rely on, with the values of ``commsched.optimize``."""
    document = run_json("plan", paths[name], "--scope", scope)
    problem = commsched.read(paths[name])
    result = commsched.optimize(problem, scope=scope)
    timeline = evaluate(problem, result.plan)
    assert document.keys() >= PLAN_KEYS
    assert document["status"] == str(result.status) == "optimal"
    assert document["method"] == result.method
    assert document["scope"] == scope
    assert document["exposed_us"] == timeline.exposed_ns / 1000
    assert document["makespan_us"] == timeline.makespan_ns / 1000
    assert document["compute_us"] == timeline.compute_ns / 1000
    assert document["lower_bound_us"] == result.lower_bound_ns / 1000
    assert document["launches"] == result.plan.launches == len(document["buckets"])
    assert document["problem_digest"] == problem_digest(problem)
    for bucket, launch in zip(document["buckets"], timeline.launches, strict=True):
        assert bucket.keys() >= BUCKET_KEYS
        assert tuple(bucket["names"]) == launch.names
        assert (bucket["kind"], bucket["group"]) == (launch.key.kind, launch.key.group)
        assert (bucket["bytes"], bucket["channel"]) == (launch.bytes, launch.channel)
        assert bucket["ready_us"] == launch.ready_ns / 1000
        assert bucket["start_us"] == launch.start_ns / 1000
        assert bucket["end_us"] == launch.end_ns / 1000


@pytest.mark.parametrize("name", PROBLEMS)
def test_plan_json_is_consistent_in_itself(paths, name):
    """Bound below makespan, the gap by its formula, buckets in launch order on every channel."""
    document = run_json("plan", paths[name])
    makespan, bound = document["makespan_us"], document["lower_bound_us"]
    assert bound <= makespan
    assert document["gap"] == pytest.approx((makespan - bound) / makespan, abs=1e-12)
    assert document["exposed_us"] == pytest.approx(makespan - document["compute_us"], abs=1e-6)
    buckets = document["buckets"]
    assert [b["start_us"] for b in buckets] == sorted(b["start_us"] for b in buckets)
    free = {}
    for bucket in buckets:
        assert bucket["start_us"] >= max(bucket["ready_us"], free.get(bucket["channel"], 0))
        free[bucket["channel"]] = bucket["end_us"]
    members = [member for bucket in buckets for member in bucket["names"]]
    assert sorted(members) == sorted(commsched.read(paths[name]).names)


def test_a_gap_is_stated_by_its_formula(paths, monkeypatch):
    """gap = (makespan - bound) / makespan, also when it is not 0."""
    problem = commsched.read(paths["gradients"])
    plan = Plan.of([["L4", "L3", "L2", "L1"]])
    makespan_ns = evaluate(problem, plan).makespan_ns
    bound = Bound(makespan_ns - makespan_ns // 4, "a test")
    result = Result(problem, "in-order", Status.FEASIBLE, plan, bound, "cpsat", "a test", 0.0)
    monkeypatch.setattr(commsched.planning, "optimize", lambda *_, **__: result)
    document = run_json("plan", paths["gradients"])
    assert document["status"] == "feasible"
    assert document["gap"] == pytest.approx(0.25, abs=1e-6)
    code, out, _ = run("plan", paths["gradients"])
    assert code == 0
    assert "25.00%" in out


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_compare_json_ranks_every_rule(paths, name, scope):
    """Rows best first, each with its distance from the optimum; every rule is there or explained."""
    document = run_json("compare", paths[name], "--scope", scope)
    problem = commsched.read(paths[name])
    result = commsched.optimize(problem, scope=scope)
    assert document["lower_bound_us"] == result.lower_bound_ns / 1000
    optimal, rows = document["optimal"], document["rows"]
    assert optimal["makespan_us"] == result.makespan_ns / 1000
    assert optimal["over_optimal_us"] == 0
    assert [row["makespan_us"] for row in rows] == sorted(row["makespan_us"] for row in rows)
    for row in [optimal, *rows]:
        assert row.keys() >= ROW_KEYS
        assert row["makespan_us"] >= document["lower_bound_us"]
        assert row["over_optimal_us"] == pytest.approx(
            max(0, row["makespan_us"] - optimal["makespan_us"]), abs=1e-6
        )
        assert row["exposed_us"] == pytest.approx(
            row["makespan_us"] - problem.compute_ns / 1000, abs=1e-6
        )
    there = {row["name"] for row in rows} | {row["name"] for row in document["skipped"]}
    every = {rule.name for rule in RULES}
    left_out = {row["name"] for row in document["skipped"]}
    for rule in RULES:
        every |= {f"{rule.name}-{k.suffix}" for k in rule.knobs if rule.name not in left_out}
    assert there == every
    for rule in RULES:
        for row in rows:
            if row["name"] == rule.name:
                assert (
                    row["makespan_us"] == evaluate(problem, rule.make(problem)).makespan_ns / 1000
                )


@pytest.mark.parametrize("name", PROBLEMS)
def test_evaluate_json_agrees_with_plan(paths, tmp_path, name):
    """A written plan evaluates to the numbers that were printed with it."""
    written = tmp_path / "plan.json"
    planned = run_json("plan", paths[name], "--out", written)
    document = run_json("evaluate", paths[name], written)
    for key in ("makespan_us", "exposed_us", "compute_us", "launches", "buckets"):
        assert document[key] == planned[key]


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_people_read_says_the_same(paths, tmp_path, name):
    """Without ``--json``: the members, the bound, the verdict and the status are there."""
    written = tmp_path / "plan.json"
    document = run_json("plan", paths[name], "--out", written)
    code, out, err = run("plan", paths[name])
    assert (code, err) == (0, "")
    assert document["problem"] in out
    assert "lower bound" in out
    assert f"{document['status']}: " in out
    text = " ".join(out.split())
    assert f"verdict: {document['verdict']}" in text
    for bucket in document["buckets"]:
        assert bucket["names"][0] in out
        assert bucket["names"][-1] in out
    for arguments in (("compare", paths[name]), ("evaluate", paths[name], written)):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert document["problem"] in out
    code, out, err = run("verify", written, paths[name])
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert (len(lines), [line[:4] for line in lines]) == (4, ["ok: "] * 4)


def test_names_with_markup_are_printed_as_they_are(tmp_path):
    """Brackets and colons in a name are text, and no colour, link or picture."""
    names = ["[red]x[/red]", "[/]", ":smile:", "a\\[b"]
    path = tmp_path / "problem.json"
    document = json.loads(json.dumps(GRADIENTS))
    document["name"] = "[bold]title[/bold] :smile:"
    for row, name in zip(document["gradients"], names, strict=True):
        row["name"] = name
    path.write_text(json.dumps(document))
    written = tmp_path / "plan.json"
    buckets = [bucket["names"] for bucket in run_json("plan", path, "-o", written)["buckets"]]
    for arguments in (("plan", path), ("evaluate", path, written)):
        code, out, _ = run(*arguments)
        assert code == 0
        assert document["name"] in out
        for bucket in buckets:
            assert bucket[0] in out
            assert bucket[-1] in out


def test_escape_sequences_in_names_do_not_reach_the_terminal(tmp_path):
    """A name from a file cannot clear the screen or move the cursor."""
    path = tmp_path / "problem.json"
    document = json.loads(json.dumps(GRADIENTS))
    document["name"] = "title \x1b[2J\x07"
    document["gradients"][0]["name"] = "L4 \x1b[31m\x08"
    path.write_text(json.dumps(document))
    for command in ("plan", "compare"):
        code, out, err = run(command, path)
        assert (code, err) == (0, "")
        assert not set(out) & {"\x1b", "\x07", "\x08"}


def test_escape_sequences_in_file_names_do_not_reach_the_terminal(tmp_path):
    """A recording's title is the name of its file."""
    bundled = Path(commsched.__file__).parent / "problems/data/transformer_ddp_gloo_rank0.json.gz"
    trace = tmp_path / "a\nb\x1b[31m\x07.json.gz"
    trace.write_bytes(bundled.read_bytes())
    network = ("--alpha-us", "8", "--bandwidth-gb-s", "20")
    commands = [("plan", trace, *network), ("compare", trace, *network)]
    for command in [*commands, ("import", trace, "-o", tmp_path / "out\x1b[2J.json")]:
        code, out, err = run(*command)
        assert code == 0
        assert not set(out + err) & {"\x1b", "\x07"}


def test_json_is_all_that_json_prints(paths):
    """In a process of its own: one JSON object on standard output, nothing on standard error."""
    done = start("plan", paths["step"], "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert document == run_json("plan", paths["step"])
    assert done.stdout.endswith(b"}\n")


def test_two_runs_print_the_same_bytes(paths):
    """Nothing depends on the clock, on the hash seed or on the run: not for the solver either."""
    for name in ("step", "gradients"):
        first = start("plan", paths[name], "--json", PYTHONHASHSEED="1")
        second = start("plan", paths[name], "--json", PYTHONHASHSEED="2")
        assert first.returncode == second.returncode == 0
        assert first.stdout == second.stdout
        assert first.stdout


def test_warnings_go_to_standard_error_once(paths):
    """A cost asked for beyond its measured range: the JSON is unharmed, one line warns."""
    document = json.loads(json.dumps(GRADIENTS))
    document["costs"]["allreduce"] = {"points": [[1000, 1], [1000000, 10]]}
    paths["curved"].write_text(json.dumps(document))
    for command in ("plan", "compare"):
        done = start(command, paths["curved"], "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout)["status"] == "optimal"
        lines = done.stderr.decode().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("commsched: warning: ")
        assert "measured" in lines[0]


def test_standard_input(paths, monkeypatch):
    """``-`` reads the problem from standard input."""
    expected = run_json("plan", paths["gradients"])
    data = json.dumps(GRADIENTS).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert run_json("plan", "-") == expected
    done = start("compare", "-", "--json", stdin=data)
    assert done.returncode == 0
    assert json.loads(done.stdout)["problem_digest"] == expected["problem_digest"]


def test_a_bad_problem_on_standard_input_is_exit_code_2():
    """A process of its own: code 2, one line, no traceback, nothing on standard output."""
    done = start("plan", "-", "--json", stdin=b"{")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"commsched: -: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("status", "code"), [(Status.INFEASIBLE, 3), (Status.UNKNOWN, 4)])
def test_exit_codes_without_a_plan(paths, monkeypatch, status, code):
    """3 where there is no plan, 4 where the limit was reached; a line says so, JSON stays JSON."""

    def nothing(problem, **_):
        return Result(problem, "in-order", status, None, Bound(7000, "a test"), "cpsat", "why", 1.0)

    monkeypatch.setattr(commsched.planning, "optimize", nothing)
    found, out, err = run("plan", paths["gradients"], "--json")
    assert found == code
    document = json.loads(out)
    assert document["status"] == str(status)
    assert document["lower_bound_us"] == 7.0
    assert "buckets" not in document
    assert err.count("\n") == 1
    assert str(status) in err
    found, out, err = run("plan", paths["gradients"])
    assert (found, out) == (code, "")
    assert err.count("\n") == 1


def test_the_methods_agree_and_say_who_they_are(paths):
    """``--method`` insists: the same makespan from the recurrence and from CP-SAT."""
    by_recurrence = run_json("plan", paths["gradients"], "--method", "recurrence")
    by_cpsat = run_json("plan", paths["gradients"], "--method", "cpsat", "--workers", "1")
    assert by_recurrence["method"] == "recurrence"
    assert by_cpsat["method"] == "cpsat"
    assert by_cpsat["status"] == by_recurrence["status"] == "optimal"
    assert abs(by_cpsat["makespan_us"] - by_recurrence["makespan_us"]) <= 0.004


def test_a_method_that_does_not_apply_is_refused(paths):
    """The recurrence proves nothing under a limit on what is in flight; the line says why."""
    line = refusal(
        "plan", paths["step"], "--method", "recurrence", "--limit", "launches-in-flight=1"
    )
    assert "recurrence" in line
    assert "launches-in-flight" in line
    assert "recurrence" in refusal(
        "plan", paths["curved"], "--scope", "any", "--method", "recurrence"
    )


def test_scope_any_is_never_worse(paths):
    """More plans count in scope ``any``: not a longer step, nor more launches in the same time."""
    for name, path in paths.items():
        in_order = run_json("plan", path)
        free = run_json("plan", path, "--scope", "any")
        least = (in_order["makespan_us"] + 0.001 * in_order["launches"], in_order["launches"])
        assert (free["makespan_us"], free["launches"]) <= least, name


def test_scope_any_is_never_worse_when_time_runs_out():
    """What scope ``in-order`` finds without searching is a plan of scope ``any``, too."""
    in_order = run_json("plan", TRACE, "--costs", COSTS)
    free = run_json("plan", TRACE, "--costs", COSTS, "--scope", "any", "--time-limit", "0.5")
    least = (in_order["makespan_us"] + 0.001 * in_order["launches"], in_order["launches"])
    assert (free["makespan_us"], free["launches"]) <= least


@pytest.mark.parametrize("arguments", [["--alpha-us", "20", "--bandwidth-gb-s", "5"], ["--costs"]])
def test_the_networks_cost_can_be_given(paths, tmp_path, arguments):
    """``--alpha-us`` with ``--bandwidth-gb-s``, or a cost file, replace the file's own cost."""
    costs = tmp_path / "costs.json"
    row = {"alpha_us": 20, "bandwidth_gb_s": 5}
    costs.write_text(json.dumps({"format": "commsched/costs", "version": 1, "allreduce": row}))
    if arguments == ["--costs"]:
        arguments = ["--costs", costs]
    problem = commsched.read(paths["gradients"], cost=commsched.AlphaBeta(20, 5))
    written = tmp_path / "plan.json"
    document = run_json("plan", paths["gradients"], *arguments, "-o", written)
    assert document["problem_digest"] == problem_digest(problem)
    assert document["makespan_us"] == commsched.optimize(problem).makespan_ns / 1000
    assert run_json("verify", written, paths["gradients"], *arguments)["verified"] is True
    assert (
        run_json("compare", paths["gradients"], *arguments)["optimal"]["makespan_us"]
        == (document["makespan_us"])
    )
    assert "another problem" in refusal("verify", written, paths["gradients"])


def test_out_writes_the_plan_and_prints_the_tables(paths, tmp_path):
    """``--out`` writes what ``--json`` would print, over an existing file, and nothing else."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "plan.json").write_text("x" * 100_000)
    code, out, _ = run("plan", paths["gradients"], "--out", folder / "plan.json")
    assert code == 0
    assert "verdict: " in out
    assert json.loads((folder / "plan.json").read_bytes()) == run_json("plan", paths["gradients"])
    assert os.listdir(folder) == ["plan.json"]


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_picture_draws(paths, tmp_path, suffix, begins):
    """``--picture`` writes a PNG or an SVG beside the usual output."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"picture{suffix}"
    code, out, err = run("plan", paths["step"], "--picture", picture, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == run_json("plan", paths["step"])
    data = picture.read_bytes()
    assert data.startswith(begins)
    if suffix == ".svg":
        assert STEP["name"] in data.decode()


def test_a_command_that_is_refused_leaves_no_file_behind(paths, tmp_path):
    """If the picture cannot be drawn, the plan is not written either: exit code 2 means nothing."""
    for picture in ("picture.pdf", "missing/picture.png"):
        out = tmp_path / "plan.json"
        refusal("plan", paths["gradients"], "--out", out, "--picture", tmp_path / picture)
        assert not out.exists()


def test_version_help_and_no_arguments():
    """``--version`` prints it, no arguments print the help; neither fails."""
    assert run("--version") == (0, f"commsched {commsched.__version__}\n", "")
    code, out, err = run()
    assert (code, err) == (0, "")
    for command in ("plan", "compare", "evaluate", "verify"):
        assert command in out
        code, help_text, err = run(command, "--help")
        assert (code, err) == (0, "")
        assert "--json" in help_text
    for flag in ("--scope", "--method", "--time-limit", "--workers", "--seed", "--alpha-us"):
        assert flag in run("plan", "--help")[1]
    done = start("--version")
    assert done.stdout.decode().split() == ["commsched", commsched.__version__]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--bogus"], "--bogus"),
        (["bogus"], "bogus"),
        ([""], "command"),
        (["plan"], "FILE"),
        (["plan", "FILE", "--bogus"], "--bogus"),
        (["plan", "FILE", "extra"], "extra"),
        (["plan", "FILE", "--scope"], "--scope"),
        (["plan", "FILE", "--scope", "all"], "scope"),
        (["plan", "FILE", "--method", "magic"], "method"),
        (["plan", "FILE", "--workers", "two"], "--workers"),
        (["plan", "FILE", "--seed", "0.5"], "--seed"),
        (["plan", "FILE", "--step", "x"], "--step"),
        (["compare"], "FILE"),
        (["evaluate", "FILE"], "PLAN"),
        (["verify"], "PLAN"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(paths, arguments, named):
    """An unknown command, flag or value is named; there is no usage text and no traceback."""
    path = str(paths["gradients"])
    assert named in refusal(*(path if word == "FILE" else word for word in arguments))


def pasted(text: str) -> list[int]:
    """Return the caps in bytes of the line to paste, as torch computes them."""
    (numbers,) = re.findall(r"model, bucket_cap_mb_list=\[([^\]]*)\]", text)
    return [int(float(number) * 1024 * 1024) for number in numbers.split(",")]


def test_the_pasted_line_gives_the_plan_to_the_byte(paths):
    """DDP's rule, run on the printed caps, forms exactly the buckets of the plan."""
    document = run_json("plan", paths["gradients"])
    code, out, _ = run("plan", paths["gradients"])
    assert code == 0
    problem = commsched.read(paths["gradients"])
    formed = evaluate(problem, ddp(problem, pasted(out)))
    assert [b.bytes for b in formed.launches] == [b["bytes"] for b in document["buckets"]]
    assert [list(b.names) for b in formed.launches] == [b["names"] for b in document["buckets"]]
    caps = document["settings"]["ddp"]["bucket_cap_mb_list"]
    assert [int(cap * MIB) for cap in caps] == pasted(out)


def test_a_plan_that_ddp_cannot_run_has_no_line_to_paste(paths):
    """Two dtypes: the tables say why there is no setting, and the JSON has none."""
    document = json.loads(json.dumps(GRADIENTS))
    document["gradients"][1]["dtype"] = "float16"
    paths["gradients"].write_text(json.dumps(document))
    assert "settings" not in run_json("plan", paths["gradients"])
    code, out, _ = run("plan", paths["gradients"])
    assert code == 0
    assert "DistributedDataParallel(" not in out
    assert "cannot" in out


@pytest.fixture(scope="module")
def recorded_bytes():
    """Return the sizes of the buckets that DDP itself said it had, in bytes."""
    logging = json.loads(LOGGING.read_text(encoding="utf-8"))["ddp_logging_data"]
    return [int(size) for size in logging["rebuilt_bucket_sizes"].split(",")]


def test_the_bundled_trace_holds_the_buckets_that_ddp_logged(recorded_bytes):
    """The recorded launches, and DDP's rule on the recorded gradients, match DDP's own account."""
    loaded = load(TRACE, cost=read_network(COSTS))
    assert [launch.bytes for launch in loaded.recorded.launches] == recorded_bytes
    by_rule = evaluate(loaded.problem, ddp(loaded.problem))
    assert [launch.bytes for launch in by_rule.launches] == recorded_bytes
    assert loaded.recorded.plan == by_rule.plan


@pytest.mark.parametrize(
    "network", [["--costs", COSTS], ["--alpha-us", "300", "--bandwidth-gb-s", "1.3"]]
)
def test_planning_the_bundled_trace(tmp_path, recorded_bytes, network):
    """A real trace from the file to the pasted line: today's buckets, the optimum, the setting."""
    written = tmp_path / "plan.json"
    document = run_json("plan", TRACE, *network, "--out", written)
    assert document["status"] == "optimal"
    assert document["lower_bound_us"] <= document["makespan_us"]
    assert sum(bucket["bytes"] for bucket in document["buckets"]) == sum(recorded_bytes)
    code, out, err = run("plan", TRACE, *network)
    assert (code, err) == (0, "")
    (today,) = [line for line in out.splitlines() if line.startswith("the recorded buckets")]
    assert f" {len(recorded_bytes)} " in today
    problem = load(
        TRACE,
        cost=read_network(COSTS) if network[0] == "--costs" else commsched.AlphaBeta(300, 1.3),
    ).problem
    formed = evaluate(problem, ddp(problem, pasted(out)))
    assert [launch.bytes for launch in formed.launches] == [
        bucket["bytes"] for bucket in document["buckets"]
    ]
    assert formed.makespan_ns / 1000 == document["makespan_us"]
    rows = {row["name"]: row for row in run_json("compare", TRACE, *network)["rows"]}
    assert rows["ddp"]["launches"] == len(recorded_bytes)
    assert rows["ddp"]["makespan_us"] >= document["makespan_us"]
    assert run_json("verify", written, TRACE, *network)["verified"] is True


def test_a_trace_needs_a_cost_and_a_step_that_exists():
    """The line says which flags are missing, or which steps there are."""
    line = refusal("plan", TRACE)
    assert "--alpha-us" in line
    assert "--costs" in line
    line = refusal("plan", TRACE, "--costs", COSTS, "--step", "99")
    assert "99" in line
    assert "7" in line
    assert run_json("plan", TRACE, "--costs", COSTS, "--step", "8")["problem"].endswith("#8")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_output_encoding_will_do(paths, tmp_path, encoding):
    """Names in any script are printed where standard output is not UTF-8; JSON is UTF-8 or ASCII."""
    document = json.loads(json.dumps(GRADIENTS))
    document["name"] = "слои"
    document["gradients"][0]["name"] = "層4"
    paths["gradients"].write_text(json.dumps(document), encoding="utf-8")
    done = start("plan", paths["gradients"], "--json", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["buckets"][0]["names"][0] == "層4"
    done = start("plan", paths["gradients"], PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"verdict" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_full_disk_is_one_line_and_no_traceback(paths, arguments):
    """When standard output cannot be written, the exit code says so and no traceback is shown."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "commsched", "plan", str(paths["gradients"]), *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode not in (0, 3, 4)
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_early_is_no_error_worth_a_message(paths):
    """``commsched plan ... | head`` prints no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "commsched", "plan", str(paths["gradients"]), "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""


def test_import_writes_the_problem_that_plan_reads_from_the_trace(tmp_path):
    """A trace and the problem file made of it give the same plan; the report says what was read."""
    written = tmp_path / "step.json"
    code, out, err = run("import", TRACE, "--costs", COSTS, "-o", written, "--strict")
    assert (code, err) == (0, "")
    assert "buckets reproduced to the byte: 4 of 4" in out
    planned, traced = run_json("plan", written), run_json("plan", TRACE, "--costs", COSTS)
    # Only the trace tells what ran; the verdict on the problem speaks of DDP's default instead.
    assert "recorded" in traced.pop("verdict")
    assert "PyTorch DDP" in planned.pop("verdict")
    assert planned == traced
    document = run_json("import", TRACE, "--costs", COSTS, "-o", written)
    assert document["gradients"] == 149
    assert all(check["passed"] for check in document["checks"])
    assert sum(len(launch["names"]) for launch in document["launches"]) == 149


def test_import_refuses_what_is_no_recording(paths, tmp_path):
    """A problem file needs no import, and nothing is written."""
    out = tmp_path / "out.json"
    assert "no recording" in refusal("import", paths["gradients"], "-o", out)
    assert not out.exists()


def test_an_import_without_a_network_gets_its_costs_when_it_is_planned(tmp_path):
    """The file then has no costs, and says so to whoever asks for a plan without giving them."""
    written = tmp_path / "step.json"
    code, out, err = run("import", TRACE, "-o", written)
    assert (code, err) == (0, "")
    assert "the file has no costs" in out
    assert "has no costs, gradients need that of allreduce" in refusal("plan", written)
    planned = run_json("plan", written, "--costs", COSTS)
    traced = run_json("plan", TRACE, "--costs", COSTS)
    assert planned["problem_digest"] == traced["problem_digest"]
    assert planned["makespan_us"] == traced["makespan_us"]


@pytest.mark.shared
def test_a_strict_import_refuses_doubts(tmp_path):
    """A trace that contradicts the model is imported with a doubt, and not with ``--strict``."""
    trace = shared_data("local-torch-2.14.1/ddp_gloo_rank0.pt.trace.json.gz")
    network = ["--graph", "--alpha-us", "30", "--bandwidth-gb-s", "50"]
    out = tmp_path / "out.json"
    assert "overlap another one" in refusal("import", trace, *network, "-o", out, "--strict")
    assert not out.exists()
    code, text, _ = run("import", trace, *network, "-o", out)
    assert code == 0
    assert "DOUBT" in text
    assert out.exists()

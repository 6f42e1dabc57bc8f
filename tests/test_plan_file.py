"""The plan file: what ``plan --json`` prints can be checked by anybody, and no number can be forged."""

from __future__ import annotations

import copy
import io
import json
import random
import sys
from types import SimpleNamespace

import pytest
from cli_runner import refusal, run, run_json
from strategies import random_gradient_problem, random_step, random_valid_plan

import commsched
from commsched.models import AlphaBeta, Gradient, PiecewiseLinear, evaluate
from commsched.optimizer import one_bucket
from commsched.problems import plan_of, problem_digest, read_plan, write_problem
from commsched.problems.problem_file import problem_from_bytes

GRADIENTS = {
    "format": "commsched/problem",
    "version": 1,
    "name": "four layers",
    "gradients": [
        {"name": "L4", "bytes": 33554432, "ready_us": 2000},
        {"name": "L3", "bytes": 1048576, "ready_us": 2500.5},
        {"name": "L2", "bytes": 1048576, "ready_us": 4000},
        {"name": "L1", "bytes": 4096, "ready_us": 4100},
    ],
    "costs": {"allreduce": {"alpha_us": 8, "bandwidth_gb_s": 53.6870912}},
}
STEP = {
    "format": "commsched/problem",
    "version": 1,
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
        {"name": "fwd2", "type": "compute", "duration_us": 60, "after": ["ar2"]},
    ],
    "costs": {"dp": {"allreduce": {"alpha_us": 30, "bandwidth_gb_s": 10}}},
    "channels": {"nic": ["dp"]},
}
PROBLEMS = {"gradients": GRADIENTS, "step": STEP}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """For each problem, its file, its plan's file and its plan as JSON data."""
    found = {}
    for name, problem in PROBLEMS.items():
        folder = tmp_path_factory.mktemp(name)
        path = folder / "problem.json"
        path.write_text(json.dumps(problem))
        code, out, _ = run("plan", path, "--json")
        assert code == 0
        found[name] = SimpleNamespace(problem=path, document=json.loads(out))
    return found


@pytest.fixture
def verdict(files, tmp_path):
    """Return a function that writes a plan's JSON data and returns what ``verify`` says of it."""

    def verify(document, problem="gradients", command="verify"):
        path = tmp_path / "plan.json"
        text = document if isinstance(document, str) else json.dumps(document)
        path.write_text(text, encoding="utf-8")
        paths = (path, files[problem].problem)
        return refusal(command, *(paths if command == "verify" else paths[::-1]))

    return verify


@pytest.fixture
def accepted(files, tmp_path):
    """Return a function that writes a plan's JSON data, which ``verify`` must accept."""

    def verify(document, problem="gradients"):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        code, out, err = run("verify", path, files[problem].problem)
        assert (code, err) == (0, ""), err
        return out

    return verify


def minimal(files, problem="gradients", buckets=None, **claims):
    """Return a plan file with nothing but what it needs, and some claims."""
    document = files[problem].document
    if buckets is None:
        buckets = [bucket["names"] for bucket in document["buckets"]]
    return {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": document["problem_digest"],
        "buckets": [{"names": names} for names in buckets],
        **claims,
    }


def tampered(document, path, change):
    """Return a copy of a document with one leaf passed through ``change``."""
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change(place[path[-1]])
    return document


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_what_plan_prints_verify_accepts(tmp_path, files, problem, scope):
    """The JSON of ``plan`` and what ``--out`` writes are one valid plan file."""
    written = tmp_path / "written.json"
    code, out, _ = run("plan", files[problem].problem, "--scope", scope, "--json", "--out", written)
    assert code == 0
    assert written.read_text(encoding="utf-8") == out
    code, out, err = run("verify", written, files[problem].problem)
    assert (code, err) == (0, "")
    ok, notes = said(out)
    proved = (problem, scope) != ("step", "any")  # that one took a search, which verify does not do
    assert (len(ok), len(notes)) == ((4, 0) if proved else (3, 1))
    code, out, err = run("verify", written, files[problem].problem, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["verified"] is True


@pytest.mark.parametrize("block", range(4))
def test_every_plan_of_a_random_problem_verifies(tmp_path, block):
    """Curves of every form, several channels and dtypes, next forwards: the plan holds."""
    path, written = tmp_path / "problem.json", tmp_path / "plan.json"
    for seed in range(10 * block, 10 * block + 10):
        rng = random.Random(seed)
        make = rng.choice((random_gradient_problem, random_step))
        problem = make(rng, 5, exotic=False)
        write_problem(problem, path)
        code, out, _ = run(
            "plan", path, "--scope", rng.choice(("in-order", "any")), "--json", "-o", written
        )
        assert code == 0
        code, _, err = run("verify", written, path)
        assert (code, err) == (0, ""), seed
        timeline = evaluate(problem, plan_of(read_plan(written)))
        assert timeline.makespan_ns == round(json.loads(out)["makespan_us"] * 1000)


def test_a_plan_that_is_held_back_survives_the_file(files, tmp_path):
    """``not_before_us`` is part of the plan."""
    document = minimal(files)
    document["buckets"][-1]["not_before_us"] = 5000.25
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    code, out, _ = run("evaluate", files["gradients"].problem, path, "--json")
    assert code == 0
    assert json.loads(out)["buckets"][-1]["start_us"] == 5000.25
    assert json.loads(out)["buckets"][-1]["not_before_us"] == 5000.25


SPLIT = [
    {"names": ["L4"], "chunks": [[0, 10_000_000]]},
    {"names": ["L4", "L3"], "chunks": [[10_000_000, 33554432], None]},
    {"names": ["L1", "L2"], "not_before_us": 5000},
]


def test_a_plan_that_splits_collectives_survives_the_file(files, tmp_path, accepted):
    """``chunks`` are part of the plan: bytes from and up to, or null for a whole member."""
    document = {**minimal(files), "scope": "any", "buckets": SPLIT}
    accepted(document)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    code, out, _ = run("evaluate", files["gradients"].problem, path, "--json")
    assert code == 0
    buckets = json.loads(out)["buckets"]
    assert [bucket.get("chunks") for bucket in buckets] == [b.get("chunks") for b in SPLIT]
    assert [bucket["bytes"] for bucket in buckets] == [10_000_000, 24_603_008, 1_052_672]
    accepted({**document, **json.loads(out)})


@pytest.mark.parametrize("command", ["verify", "evaluate"])
@pytest.mark.parametrize(
    ("bucket", "chunks"),
    [
        (0, [[0, 9_999_999]]),
        (0, [[0, 10_000_001]]),
        (0, [[1, 10_000_000]]),
        (0, [[-1, 10_000_000]]),
        (0, [[10_000_000, 0]]),
        (0, [None]),
        (0, [[0, 10_000_000], None]),
        (0, [[0, 10_000_000.5]]),
        (0, [[False, 10_000_000]]),
        (0, [[0, 10_000_000, 1]]),
        (0, [["0", 10_000_000]]),
        (0, [0, 10_000_000]),
        (0, None),
        (1, [[10_000_000, 33554433], None]),
        (1, [[10_000_000, 2**60], None]),
        (1, [[10_000_000, 33554432]]),
        (1, [[10_000_000, 33554432], [0, 1]]),
        (2, [[0, 4096], [0, 1048575]]),
    ],
)
def test_chunks_cover_every_byte_once(files, verdict, command, bucket, chunks):
    """Bytes that are missing, sent twice or not there, and chunks that are none, are refused."""
    document = {**minimal(files), "scope": "any", "buckets": copy.deepcopy(SPLIT)}
    document["buckets"][bucket]["chunks"] = chunks
    assert "plan.json: " in verdict(document, command=command)


def test_a_plan_that_splits_is_not_in_order(files, verdict):
    """Scope ``in-order`` knows no chunks."""
    assert "scope" in verdict({**minimal(files), "scope": "in-order", "buckets": SPLIT})


def test_a_plan_that_splits_collectives_states_no_bound(tmp_path):
    """Two halves can cost less than the whole, and bounds are of plans that keep it whole."""
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    write_problem(
        commsched.gradient_problem(
            [Gradient("a", 2000, 1000)], commsched.StepTable([(1000, 10), (2000, 25)])
        ),
        problem,
    )
    head = {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": problem_digest(commsched.read(problem)),
        "scope": "any",
    }
    halves = [{"names": ["a"], "chunks": [chunk]} for chunk in ([0, 1000], [1000, 2000])]
    plan.write_text(json.dumps({**head, "buckets": halves}))
    assert run("verify", plan, problem)[0] == 0
    code, out, _ = run("evaluate", problem, plan, "--json")
    assert (code, json.loads(out)["makespan_us"]) == (0, 21)
    plan.write_text(json.dumps({**head, "buckets": halves, "lower_bound_us": 20}))
    assert "splits" in refusal("verify", plan, problem)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_plan_file_needs_only_format_version_digest_and_buckets(files, accepted, problem):
    """Everything else in a plan file may be left out."""
    accepted(minimal(files, problem), problem)


@pytest.mark.parametrize("field", ["format", "version", "problem_digest", "buckets"])
def test_a_plan_file_needs_each_of_the_four(files, verdict, field):
    """A plan file without one of them is refused, and the field is named."""
    document = minimal(files)
    del document[field]
    assert field in verdict(document)


def test_any_optional_field_may_be_left_out(files, accepted):
    """A claim that is not made is not checked, whichever it is."""
    full = files["gradients"].document
    for field in set(full) - {"format", "version", "problem_digest", "buckets", "lower_bound_us"}:
        accepted({key: value for key, value in full.items() if key != field})
    for field in set(full["buckets"][0]) - {"names"}:
        document = copy.deepcopy(full)
        del document["buckets"][0][field]
        accepted(document)


NUMBERS = [
    ("gap",),
    ("slack_us",),
    ("exposed_us",),
    ("makespan_us",),
    ("compute_us",),
    ("communication_us",),
    ("peak_bytes",),
    ("launches",),
    *(("buckets", 0, name) for name in ("bytes", "ready_us", "start_us", "end_us", "exposed_us")),
    *(("buckets", 1, name) for name in ("bytes", "ready_us", "start_us", "end_us", "exposed_us")),
    ("settings", "ddp", "bucket_cap_mb_list", 0),
]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_a_tampered_number_is_refused_by_name(files, verdict, problem, path):
    """Each number, made a little larger or smaller, is refused, and the field is named."""
    document = files[problem].document
    name = [part for part in path if isinstance(part, str)][-1]
    for change in (lambda x: x + 1, lambda x: x - 0.5 * (x != int(x)) - 1, lambda x: x * 2 + 7):
        line = verdict(tampered(document, path, change), problem)
        assert "plan.json: " in line
        assert name in line


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_minus_one_is_a_number_like_any_other(files, verdict, path):
    """No value means "not stated": who states nothing leaves the field out."""
    name = [part for part in path if isinstance(part, str)][-1]
    assert name in verdict(tampered(files["gradients"].document, path, lambda _: -1))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("ns", [-1_000_000, -1, 1, 1_000_000])
def test_a_tampered_bound_is_refused(files, verdict, problem, ns):
    """A bound above the makespan is false, one below it contradicts the gap or the status."""
    document = files[problem].document
    line = verdict(tampered(document, ("lower_bound_us",), lambda us: us + ns / 1000), problem)
    assert "plan.json: " in line
    assert any(field in line for field in ("lower_bound_us", "status", "gap", "slack_us"))


@pytest.mark.parametrize("us", ["1e308", "-1e308", "1e300", "9007199254740993000"])
def test_an_absurd_bound_is_refused(files, verdict, us):
    """A bound beyond all numbers that the program counts with is refused like any other."""
    document = json.dumps({**files["gradients"].document, "lower_bound_us": "@"})
    verdict(document.replace('"@"', us))


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", ["kind", "group", "dtype", "channel"])
def test_a_tampered_word_is_refused_by_name(files, verdict, problem, name):
    """A bucket's kind, group, dtype and channel are checked, too."""
    document = files[problem].document
    line = verdict(tampered(document, ("buckets", 1, name), lambda _: "other"), problem)
    assert f"plan.json: buckets[1].{name}" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [("makespan_us", "27"), ("makespan_us", None), ("launches", True), ("launches", 1.5)],
)
def test_a_claim_of_another_type_is_refused_by_name(files, verdict, field, value):
    """A number is a number."""
    assert f"plan.json: {field}" in verdict({**files["gradients"].document, field: value})


def test_true_is_no_cap(tmp_path):
    """Settings are data of any kind, and true is one in Python, but not in a file."""
    problem, path = tmp_path / "problem.json", tmp_path / "plan.json"
    row = {"name": "a", "bytes": 2**20, "ready_us": 1}
    cost = {"alpha_us": 1, "bandwidth_gb_s": 1}
    form = {"format": "commsched/problem", "version": 1, "gradients": [row]}
    problem.write_text(json.dumps({**form, "costs": {"allreduce": cost}}))
    run("plan", problem, "-o", path)
    place = ("settings", "ddp", "bucket_cap_mb_list", 0)
    path.write_text(json.dumps(tampered(json.loads(path.read_text()), place, lambda _: True)))
    code, out, err = run("verify", path, problem)
    assert (code, out) == (2, "")
    assert "bucket_cap_mb_list" in err


def test_another_problems_plan_is_refused(files, verdict):
    """The digest names the problem; a plan for a step that differs in a nanosecond is refused."""
    other = json.loads(json.dumps(GRADIENTS).replace("2500.5", "2500.501"))
    digest = problem_digest(problem_from_bytes(json.dumps(other).encode(), "other"))
    line = verdict({**files["gradients"].document, "problem_digest": digest})
    assert "plan.json: " in line
    assert "another problem" in line
    assert digest[:15] in line
    for wrong in ("", "sha256:", files["step"].document["problem_digest"].upper()):
        assert "digest" in verdict(minimal(files, problem_digest=wrong))


def test_evaluate_runs_another_problems_plan_with_a_warning(files, tmp_path):
    """To see what a plan does elsewhere is allowed, if the names fit; the warning is on stderr."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(minimal(files, problem_digest="sha256:0")))
    code, out, err = run("evaluate", files["gradients"].problem, path, "--json")
    assert code == 0
    assert json.loads(out)["launches"] == len(files["gradients"].document["buckets"])
    assert err.count("\n") == 1
    assert "plan.json was made for another problem" in err


WRONG_BUCKETS = [
    ([["L4", "L3"], ["L1"]], "L2"),
    ([["L4", "L3"], ["L2", "L1"], ["L4"]], "L4"),
    ([["L4", "L3"], ["L2", "L2", "L1"]], "L2"),
    ([["L4", "L3"], ["L2", "L1", "L0"]], "L0"),
    ([["L4", "L3"], ["L2", "L1", ""]], "''"),
    ([["L4", "L3"], [], ["L2", "L1"]], "buckets[1]"),
    ([], "no buckets"),
]


@pytest.mark.parametrize("command", ["verify", "evaluate"])
@pytest.mark.parametrize(("buckets", "named"), WRONG_BUCKETS)
def test_wrong_members_are_refused_by_name(files, verdict, command, buckets, named):
    """A collective that is missing, launched twice or unknown, and empty buckets and plans."""
    assert named in verdict(minimal(files, buckets=buckets), command=command)


@pytest.mark.parametrize("command", ["verify", "evaluate"])
@pytest.mark.parametrize(("buckets", "_named"), WRONG_BUCKETS[:4])
def test_wrong_members_are_refused_with_the_files_name(files, verdict, command, buckets, _named):
    """The line says which of the two files is at fault."""
    assert "plan.json" in verdict(minimal(files, buckets=buckets), command=command)


def test_fusing_what_must_not_be_fused_is_refused(tmp_path):
    """Members of different dtypes share no bucket; the line names both keys."""
    mixed = json.loads(json.dumps(GRADIENTS))
    mixed["gradients"][1]["dtype"] = "bfloat16"
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(mixed))
    document = {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": problem_digest(commsched.read(problem)),
        "buckets": [{"names": ["L4", "L3"]}, {"names": ["L2", "L1"]}],
    }
    plan.write_text(json.dumps(document))
    line = refusal("verify", plan, problem)
    assert "L4" in line
    assert "bfloat16" in line
    assert "float32" in line


@pytest.mark.parametrize("buckets", [[["b"], ["a"]], [["a", "b"]]])
def test_a_plan_that_deadlocks_is_refused_with_the_circle(tmp_path, buckets):
    """Order or fusion that makes launches wait for each other is refused, the path is shown."""
    step = {
        "format": "commsched/problem",
        "version": 1,
        "tasks": [
            {"name": "a", "type": "collective", "kind": "allreduce", "bytes": 1, "group": "dp"},
            {"name": "c", "type": "compute", "duration_us": 1, "after": ["a"]},
            {
                "name": "b",
                "type": "collective",
                "kind": "allreduce",
                "bytes": 1,
                "group": "dp",
                "after": ["c"],
            },
        ],
        "costs": {"dp": {"allreduce": {"alpha_us": 1, "bandwidth_gb_s": 1}}},
    }
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(step))
    document = {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": problem_digest(commsched.read(problem)),
        "buckets": [{"names": names} for names in buckets],
    }
    plan.write_text(json.dumps(document))
    for arguments in (("verify", plan, problem), ("evaluate", problem, plan)):
        assert " -> c -> " in refusal(*arguments)


@pytest.mark.parametrize("value", [-1, 1e30, float("nan"), "5", None, True])
def test_an_impossible_time_to_hold_back_is_refused(files, verdict, value):
    """``not_before_us`` is a time like any other, and the line names file and field."""
    document = minimal(files)
    document["buckets"][1]["not_before_us"] = value
    line = verdict(document)
    assert "plan.json: " in line
    assert value != value or "not_before_us" in line  # NaN is no JSON


@pytest.mark.parametrize("scope", ["all", "", "IN-ORDER"])
def test_an_unknown_scope_is_refused(files, verdict, scope):
    """A plan's scope is one that exists; the line names the file."""
    line = verdict({**files["gradients"].document, "scope": scope})
    assert "plan.json: scope" in line


@pytest.mark.parametrize("status", ["optimum", "OPTIMAL", "infeasible", "unknown"])
def test_a_status_that_a_plan_cannot_have_is_refused(files, verdict, status):
    """With a plan the status is ``optimal`` or ``feasible``."""
    line = verdict({**files["gradients"].document, "status": status})
    assert "plan.json: status" in line


@pytest.mark.parametrize("buckets", [[["L3"], ["L4", "L2", "L1"]], [["L2", "L1"], ["L4", "L3"]]])
def test_a_plan_outside_of_the_scope_that_it_claims_is_refused(files, verdict, accepted, buckets):
    """``in-order`` says: contiguous in ready order and launched in it. Scope ``any`` allows all."""
    accepted(minimal(files, buckets=buckets, scope="any"))
    assert "scope" in verdict(minimal(files, buckets=buckets, scope="in-order"))


def test_optimal_is_a_claim_that_needs_its_bound(files, verdict):
    """A plan that says it is optimal is not accepted when nothing supports it."""
    worse = [["L4", "L3", "L2", "L1"]]
    assert "status" in verdict(minimal(files, buckets=worse, status="optimal"))
    best_us = files["gradients"].document["makespan_us"]
    claims = {"status": "optimal", "lower_bound_us": best_us}
    assert "status" in verdict(minimal(files, buckets=worse, **claims))


def worse_plan_and_optimum(tmp_path, gradients, cost, scope):
    """Write a problem and return it, a plan with a single bucket, its time and the best, in ns."""
    problem = commsched.gradient_problem(gradients, cost)
    path = tmp_path / "problem.json"
    write_problem(problem, path)
    plan = one_bucket(problem)
    best = commsched.optimize(problem, scope=scope, method="recurrence")
    document = {
        "format": "commsched/plan",
        "version": 1,
        "scope": scope,
        "problem_digest": problem_digest(problem),
        "buckets": [{"names": list(bucket.names)} for bucket in plan.buckets],
    }
    return path, document, evaluate(problem, plan).makespan_ns, best.makespan_ns


RECURRENCES = [
    (60, AlphaBeta(8, 3), "in-order"),  # the O(n) recurrence
    (60, AlphaBeta(8, 3), "any"),
    (6, AlphaBeta(8, 3), "in-order"),  # in whole nanoseconds
    (6, AlphaBeta(8, 3), "any"),
    (12, PiecewiseLinear([(1000, 10), (100_000, 40), (900_000, 100)]), "in-order"),
]


@pytest.mark.parametrize(("count", "cost", "scope"), RECURRENCES)
def test_a_bound_claimed_too_high_is_refused(tmp_path, count, cost, scope):
    """If a better plan exists than the bound allows, the recurrence finds it and says so."""
    gradients = [Gradient(f"g{k}", 10_000 + 17 * k, 9_000 * k) for k in range(count)]
    path, document, makespan_ns, best_ns = worse_plan_and_optimum(tmp_path, gradients, cost, scope)
    assert makespan_ns > best_ns + 2
    plan = tmp_path / "plan.json"
    for claimed_ns in (makespan_ns, (makespan_ns + best_ns) // 2, best_ns + 2):
        for status in ("optimal", "feasible"):
            claims = {"lower_bound_us": claimed_ns / 1000, "status": status}
            plan.write_text(json.dumps({**document, **claims}))
            line = refusal("verify", plan, path)
            assert "plan.json: " in line
            assert "lower_bound_us" in line or "status" in line
    for claimed_ns in (0, best_ns // 2, best_ns - count):
        plan.write_text(json.dumps({**document, "lower_bound_us": claimed_ns / 1000}))
        code, out, err = run("verify", plan, path)
        assert (code, err) == (0, "")
        assert "lower bound" in out


@pytest.mark.parametrize(("count", "cost", "scope"), RECURRENCES)
def test_a_bound_above_an_existing_plan_is_false_by_any_amount(tmp_path, count, cost, scope):
    """A bound one nanosecond above the makespan of a known plan is no bound."""
    gradients = [Gradient(f"g{k}", 10_000 + 17 * k, 9_000 * k) for k in range(count)]
    path, document, _, best_ns = worse_plan_and_optimum(tmp_path, gradients, cost, scope)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({**document, "lower_bound_us": (best_ns + 1) / 1000}))
    assert "lower_bound_us" in refusal("verify", plan, path)


@pytest.mark.parametrize("seed", range(20))
def test_the_file_of_any_plan_verifies_and_no_time_of_it_can_be_changed(tmp_path, seed):
    """What ``evaluate`` says of a plan makes a plan file that ``verify`` accepts, but not forged."""
    rng = random.Random(seed)
    problem = rng.choice((random_gradient_problem, random_step))(rng, 5, exotic=False)
    plan = random_valid_plan(rng, problem)
    path, written = tmp_path / "problem.json", tmp_path / "plan.json"
    write_problem(problem, path)
    head = {
        "format": "commsched/plan",
        "version": 1,
        "scope": "any",
        "problem_digest": problem_digest(problem),
    }
    buckets = [
        {"names": list(bucket.names), "not_before_us": bucket.not_before_ns / 1000}
        for bucket in plan.buckets
    ]
    written.write_text(json.dumps({**head, "buckets": buckets}))
    code, out, _ = run("evaluate", path, written, "--json")
    assert code == 0
    document = {**head, **json.loads(out)}
    written.write_text(json.dumps(document))
    assert run("verify", written, path)[0] == 0
    number = rng.randrange(len(document["buckets"]))
    field = rng.choice(("ready_us", "start_us", "end_us", "bytes"))
    forged = tampered(document, ("buckets", number, field), lambda x: x + rng.choice((1, 0.5, 7)))
    written.write_text(json.dumps(forged))
    assert f"buckets[{number}].{field}" in refusal("verify", written, path)


@pytest.mark.parametrize(
    ("ready_us", "size", "bandwidth"),
    [(1e12, 5 * 10**11, 2e-3), (4000, 10**12, 1e-3), (4000, 33554432, 7e-10), (4000, 1, 1e-12)],
)
def test_a_very_long_step_verifies(tmp_path, ready_us, size, bandwidth):
    """A step that ``plan`` accepts has a plan that ``verify`` accepts, however long it is."""
    slow = json.loads(json.dumps(GRADIENTS))
    slow["gradients"][3].update(ready_us=ready_us, bytes=size)
    slow["costs"]["allreduce"]["bandwidth_gb_s"] = bandwidth
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(slow))
    code, _, err = run("plan", problem, "--json", "--out", plan)
    if code == 0:
        code, _, err = run("verify", plan, problem)
        assert (code, err) == (0, "")
    else:
        assert code == 2
        assert err.count("\n") == 1


@pytest.mark.parametrize("path", [("colour",), ("buckets", 1, "not_befor_us")])
def test_an_unknown_field_is_refused_by_name(files, verdict, path):
    """A misspelled field does not silently mean nothing."""
    document = copy.deepcopy(files["gradients"].document)
    place = document["buckets"][1] if len(path) > 1 else document
    place[path[-1]] = 5000
    assert path[-1] in verdict(document)


def test_numbers_may_be_written_in_any_way(files, accepted):
    """4100 and 4100.0 and 4.1e3 are one number in a plan file, too."""
    text = json.dumps(files["gradients"].document)
    assert text.count("4100.0") > 1
    for spelling in ("4100", "4.1e3", "4100.000"):
        accepted(json.loads(text.replace("4100.0", spelling)))


def test_a_plan_can_come_from_standard_input(files, monkeypatch):
    """``-`` is a plan on standard input."""
    data = json.dumps(files["gradients"].document).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert run("verify", "-", files["gradients"].problem)[0] == 0


def test_verify_needs_no_solver_and_says_what_it_did_not_check(files, tmp_path, monkeypatch):
    """A plan that CP-SAT found is checked without it; what was not proved is no line with ok."""
    path, limit = tmp_path / "plan.json", ["--limit", "launches-in-flight=1"]
    code, _, _ = run("plan", files["step"].problem, *limit, "-o", path)
    document = json.loads(path.read_text())
    assert (code, document["method"], document["status"]) == (0, "cpsat", "optimal")
    monkeypatch.setitem(sys.modules, "commsched.optimizer.cpsat", None)
    monkeypatch.setitem(sys.modules, "ortools", None)
    code, out, err = run("verify", path, files["step"].problem, *limit)
    assert (code, err) == (0, "")
    ok, notes = said(out)
    assert not any("bound" in line or "optimal" in line or "limit_prices" in line for line in ok)
    assert [line.split(":")[1] for line in notes] == [" not checked", " not checked"]
    assert "limit_prices" in notes[0]
    bound = document["lower_bound_us"]
    assert f"lower_bound_us {bound!r}, nor status, gap, slack_us, which follow" in notes[1]
    assert run_json("verify", path, files["step"].problem, *limit)["bound_proved"] is False


def said(out):
    """Return the lines of ``verify`` that say ok and those that are notes; there are no others."""
    lines = out.splitlines()
    ok = [line for line in lines if line.startswith("ok: ")]
    notes = [line for line in lines if line.startswith("note: ")]
    assert len(ok) + len(notes) == len(lines)
    assert ok
    return ok, notes


def raised(seed):
    """Return a step and a plan file whose bound is raised to its makespan, with what follows."""
    rng = random.Random(seed)
    problem = random_step(rng, 6, exotic=False)
    timeline = evaluate(problem, random_valid_plan(rng, problem))
    makespan_us = timeline.makespan_ns / 1000
    document = {
        "format": "commsched/plan",
        "version": 1,
        "scope": "any",
        "problem_digest": problem_digest(problem),
        "buckets": [{"names": list(bucket.names)} for bucket in timeline.plan.buckets],
        "lower_bound_us": makespan_us,
        "status": "optimal",
        "gap": 0.0,
        "slack_us": 0.0,
        "bound_proof": "x\nok: the lower bound is proved anew: the plan is optimal",
    }
    return problem, document


def test_a_raised_bound_is_never_among_what_was_checked(tmp_path):
    """Whoever raises a bound to the makespan is refused or told apart, whatever the file says."""
    path, written = tmp_path / "problem.json", tmp_path / "plan.json"
    seen = {"refused": 0, "note": 0}
    for seed in range(60):
        problem, document = raised(seed)
        best = commsched.optimize(problem, scope="any", time_limit_s=10)
        makespan_ns = round(document["lower_bound_us"] * 1000)
        if best.makespan_ns >= makespan_ns - len(document["buckets"]):
            continue
        write_problem(problem, path)
        written.write_text(json.dumps(document))
        code, out, err = run("verify", written, path)
        if code:
            assert "lower_bound_us" in err or "buckets" in err
            seen["refused"] += 1
            continue
        ok, notes = said(out)
        assert not any("bound" in line or "optimal" in line for line in ok), out
        assert any("lower_bound_us" in line and "proves only" in line for line in notes)
        found = run_json("verify", written, path)
        assert found["bound_proved"] is False
        assert not any("bound" in line for line in found["checks"])
        seen["note"] += 1
    assert min(seen.values()) > 0, seen


def test_what_needs_no_solver_is_proved_anew_beyond_the_recurrences(tmp_path):
    """A bound that simple proofs reach is checked also where no recurrence solves the problem."""
    problem = STEP | {"tasks": [{**row, "movable": True} if row["name"] == "fwd2" else row
                                for row in STEP["tasks"]]}  # fmt: skip
    path, written = tmp_path / "problem.json", tmp_path / "plan.json"
    path.write_text(json.dumps(problem))
    assert run("plan", path, "-o", written)[0] == 0
    document = json.loads(written.read_text())
    document["lower_bound_us"] = document["compute_us"]
    for name in ("status", "gap", "slack_us"):
        del document[name]
    written.write_text(json.dumps(document))
    assert run_json("verify", written, path)["bound_proved"] is True


def test_without_a_bound_nothing_is_said_of_how_good_a_plan_is(files, accepted):
    """A plan file may state no bound; that is a note, too."""
    ok, notes = said(accepted(minimal(files)))
    assert not any("bound" in line for line in ok)
    assert notes == ["note: the file states no lower bound, so nothing of how good the plan is"]

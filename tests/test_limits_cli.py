"""Limits as a user gives them: in the problem file and with ``--limit``."""

from __future__ import annotations

import json

import pytest
from cli_runner import refusal, run, run_json

import commsched
from commsched.models import InputError, MostBucketBytes, PoolBytes, Together
from commsched.models.limits import LaunchesInFlight, MostLaunches
from commsched.optimizer import Result, Status
from commsched.optimizer.result import Bound
from commsched.problems import limits_of_texts, problem_digest, write_problem

STEP = {
    "format": "commsched/problem",
    "version": 1,
    "name": "two sharded layers",
    "tasks": [
        {"name": "g0", "type": "collective", "kind": "all_gather", "bytes": 4000, "group": "dp",
         "hold": {"pool": "gathered", "until": ["f0"]}},
        {"name": "f0", "type": "compute", "duration_us": 20, "after": ["g0"]},
        {"name": "g1", "type": "collective", "kind": "all_gather", "bytes": 4000, "group": "dp",
         "hold": {"pool": "gathered", "since": "start", "until": ["f1"]}},
        {"name": "f1", "type": "compute", "duration_us": 20, "after": ["g1"]},
        {"name": "filler", "type": "compute", "duration_us": 1, "movable": True},
    ],
    "costs": {"dp": {"all_gather": {"alpha_us": 1, "bandwidth_gb_s": 1}}},
}  # fmt: skip


@pytest.fixture
def step(tmp_path):
    path = tmp_path / "step.json"
    path.write_text(json.dumps(STEP))
    return path


@pytest.mark.parametrize("command", ["plan", "compare", "sensitivity"])
def test_every_command_that_plans_says_that_there_is_no_plan(tmp_path, command):
    """Exit code 3 and one line that names the limits; never an internal error."""
    path = tmp_path / "problem.json"
    rows = [{"name": name, "bytes": 9, "ready_us": 1} for name in "ab"]
    form = {"format": "commsched/problem", "version": 1, "gradients": rows}
    cost = {"alpha_us": 1, "bandwidth_gb_s": 1}
    path.write_text(json.dumps({**form, "costs": {"allreduce": cost}}))
    limits = ["--limit", "most-launches=1", "--limit", "apart=a,b"]
    line = "commsched: infeasible: no plan keeps together: most-launches; apart a, b\n"
    assert run(command, path, *limits) == (3, "", line)
    code, out, err = run(command, path, *limits, "--json")
    assert (code, err) == (3, line)
    document = json.loads(out)
    assert document["conflict"] == ["most-launches", "apart a, b"]
    assert document["status"] == "infeasible"
    assert document["lower_bound_us"] > 0
    # The object is the command's own, with nothing in it, and no other command's.
    full = set(run_json(command, path))
    assert set(document) - {"conflict"} <= full
    empty = {"compare": {"rows": [], "optimal": None}, "sensitivity": {"knobs": {}}}
    for field, value in empty.get(command, {}).items():
        assert document[field] == value
    if command == "compare":
        assert set(document) - {"conflict"} == full
    with pytest.raises(commsched.CommschedError, match="no plan to compare with: infeasible"):
        commsched.compare(commsched.read(path).with_limits(limits_of_texts(limits[1::2])))


@pytest.mark.parametrize("command", ["plan", "compare", "sensitivity"])
def test_a_limit_reached_prints_the_commands_own_object(tmp_path, monkeypatch, command):
    """Exit code 4: the bound that was proved is told in the same shape."""
    path = tmp_path / "problem.json"
    rows = [{"name": name, "bytes": 9, "ready_us": 1} for name in "ab"]
    form = {"format": "commsched/problem", "version": 1, "gradients": rows}
    path.write_text(
        json.dumps({**form, "costs": {"allreduce": {"alpha_us": 1, "bandwidth_gb_s": 1}}})
    )

    def nothing(problem, **options):
        bound = Bound(7000, "a test")
        return Result(problem, "in-order", Status.UNKNOWN, None, bound, "cpsat", "too short", 0.1)

    module = {"plan": "planning", "compare": "comparing", "sensitivity": "sensitivity"}[command]
    full = set(run_json(command, path))
    monkeypatch.setattr(f"commsched.{module}.optimize", nothing)
    code, out, err = run(command, path, "--json")
    assert (code, err) == (4, "commsched: unknown: too short\n")
    document = json.loads(out)
    assert (document["status"], document["lower_bound_us"]) == ("unknown", 7)
    assert document["conflict"] is None
    assert set(document) - {"conflict"} <= full
    assert ("format" in document) == (command == "plan")


def test_limits_on_the_command_line_and_in_the_file_are_the_same(step, tmp_path):
    """They make the same problem, the same plan, and a plan file that verifies with either."""
    in_file = tmp_path / "limited.json"
    limits = [{"type": "pool-bytes", "pool": "gathered", "bytes": 4000}]
    in_file.write_text(json.dumps({**STEP, "limits": limits}))
    flags = ["--limit", "pool-bytes:gathered=4000"]
    by_flag, by_file = run_json("plan", step, *flags), run_json("plan", in_file)
    assert by_flag == by_file
    # Only the filler can run while a gather does, and only if it moves.
    assert by_flag["makespan_us"] == 5 + 20 + 5 + 20
    assert by_flag["orders"]["gpu"].index("filler") < 2
    (price,) = by_flag["limit_prices"]
    # Without it the second gather hides, and the filler still fills the wait for the first.
    assert price == {"limit": "pool-bytes gathered", "least_us": 5, "most_us": 5}
    plan = tmp_path / "plan.json"
    assert run("plan", step, *flags, "-o", plan)[0] == 0
    assert run("verify", plan, in_file)[0] == 0
    assert run("verify", plan, step, *flags)[0] == 0
    assert "problem_digest" in refusal("verify", plan, step)


def test_a_problem_with_limits_is_written_and_read_back(step, tmp_path):
    problem = commsched.read(step).with_limits(
        limits_of_texts(["pool-bytes:gathered=1GiB", "together=g0,g1", "most-launches=2"])
    )
    path = tmp_path / "written.json"
    write_problem(problem, path)
    again = commsched.read(path)
    assert again.limits == problem.limits
    assert again.tasks == problem.tasks
    assert problem_digest(again) == problem_digest(problem)
    assert problem_digest(again) != problem_digest(commsched.read(step))


def test_limits_that_no_plan_keeps_are_named(step):
    """Exit code 3 and a smallest set of limits that exclude each other."""
    flags = ["--limit", "together=g0,g1", "--limit", "most-launches=2"]
    flags += ["--limit", "most-bucket-bytes=7999"]
    code, out, err = run("plan", step, *flags)
    assert (code, out) == (3, "")
    assert err.strip().endswith("no plan keeps together: together g0, g1; most-bucket-bytes")
    code, out, _ = run("plan", step, *flags, "--json")
    assert code == 3
    assert json.loads(out)["conflict"] == ["together g0, g1", "most-bucket-bytes"]


def test_a_plan_that_breaks_a_limit_does_not_verify(step, tmp_path):
    plan = tmp_path / "plan.json"
    document = run_json("plan", step)
    limited = ["--limit", "pool-bytes:gathered=3999"]
    problem = commsched.read(step).with_limits(limits_of_texts(["most-launches=1"]))
    document["problem_digest"] = problem_digest(problem)
    plan.write_text(json.dumps(document))
    assert "breaks a limit: most-launches: 2 launches" in refusal(
        "verify", plan, step, "--limit", "most-launches=1"
    )
    code, _, err = run("plan", step, *limited)
    assert code == 3
    assert "pool-bytes gathered" in err


def test_rules_that_break_a_limit_are_left_out_of_the_comparison(tmp_path):
    path = tmp_path / "step.json"
    gradients = [{"name": n, "bytes": 1000, "ready_us": k} for k, n in enumerate("dcba")]
    costs = {"allreduce": {"alpha_us": 1, "bandwidth_gb_s": 1}}
    path.write_text(
        json.dumps(
            {"format": "commsched/problem", "version": 1, "gradients": gradients, "costs": costs}
        )
    )
    document = run_json("compare", path, "--limit", "most-bucket-bytes=1000")
    assert all(row["launches"] == 4 for row in document["rows"])
    skipped = {row["name"]: row["reason"] for row in document["skipped"]}
    assert "breaks a limit: most-bucket-bytes" in skipped["one-bucket"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("most-bucket-bytes=25MiB", MostBucketBytes(25 * 2**20)),
        ("most-bucket-bytes = 1.5KB", MostBucketBytes(1500)),
        ("pool-bytes:a b=7", PoolBytes("a b", 7)),
        ("together=x, y", Together(("x", "y"))),
    ],
)
def test_limits_in_words(text, limit):
    assert limits_of_texts([text]) == (limit,)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "must be KIND=VALUE"),
        ("most-bucket-bytes", "must be KIND=VALUE"),
        ("alike=a,b", "must be KIND=VALUE"),
        ("cap=1", "must be KIND=VALUE"),
        ("pool-bytes=1", "a pool is named"),
        ("most-launches:x=1", "a pool is named"),
        ("most-launches=1.5", "must be a whole number"),
        ("most-launches=0", "must be a whole number from 1"),
        ("most-bucket-bytes=-1", "is no size"),
        ("most-bucket-bytes=1XB", "is no size"),
        ("most-bucket-bytes=1e9", "is no size"),
        ("most-bucket-bytes=0.0001KB", "no whole number of bytes"),
        ("most-bucket-bytes=9999999GiB", "bytes"),
        ("together=x", "at least 2 names"),
    ],
)
def test_words_that_are_no_limit_are_refused(text, what):
    with pytest.raises(InputError, match=what):
        limits_of_texts([text])


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"type": "cap", "bytes": 1}, "is not one of"),
        ({"type": "most-launches", "bytes": 1}, "needs count, bytes is given"),
        ({"type": "most-launches"}, "needs count, nothing is given"),
        ({"type": "most-launches", "count": "1"}, "limits[0].count"),
        ({"type": "pool-bytes", "bytes": 1}, "needs bytes and pool"),
        ({"type": "alike", "rows": [["g0"], ["g0"]]}, "occurs in two rows"),
        ({"type": "together", "names": ["g0", "x"]}, "'x' is no collective"),
        ({"type": "together", "names": ["g0", "g1"], "cap": 1}, "cap"),
    ],
)
def test_rows_that_are_no_limit_are_refused(tmp_path, row, what):
    path = tmp_path / "step.json"
    path.write_text(json.dumps({**STEP, "limits": [row]}))
    line = refusal("plan", path)
    assert str(path) in line
    assert what in line


HUGE = [2**50, 2**50 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**21, 10**399, 10**5000]
KINDS_OF_NUMBERS = [
    "most-bucket-bytes",
    "least-bucket-bytes",
    "bytes-in-flight",
    "pool-bytes:gathered",
    "most-launches",
    "launches-in-flight",
]


@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
@pytest.mark.parametrize("where", ["option", "file"])
def test_absurdly_large_limits_bind_nothing_or_are_refused(step, tmp_path, kind, where):
    """Up to 2^50 CP-SAT plans as without the limit; beyond, one line names it and its number."""
    free = run_json("plan", step, "--method", "cpsat")
    for value in HUGE:
        name, _, pool = kind.partition(":")
        command = ["plan", step, "--method", "cpsat"]
        if where == "option":
            command += ["--limit", f"{kind}={'1' + '0' * 5000 if value == 10**5000 else value}"]
        elif value == 10**5000:
            continue  # no number that JSON's readers take
        else:
            number = "count" if name in ("most-launches", "launches-in-flight") else "bytes"
            row = {"type": name, number: value, **({"pool": pool} if pool else {})}
            path = tmp_path / "limited.json"
            path.write_text(json.dumps({**STEP, "limits": [row]}))
            command[1] = path
        if value > 2**50:
            line = refusal(*command)
            assert name in line
            assert len(line) < 700
            assert str(2**50) in line or value == 10**5000 or value.bit_length() > 1000
        elif name == "least-bucket-bytes":
            code, out, err = run(*command)
            assert (code, out) == (3, "")
            assert "no plan keeps: least-bucket-bytes" in err
        else:
            found = run_json(*command)
            assert found["status"] == "optimal"
            assert found["makespan_us"] == free["makespan_us"]


@pytest.mark.parametrize("kind", [MostLaunches, LaunchesInFlight])
def test_counts_out_of_range_from_the_library(kind):
    """Also a number too long to be printed."""
    for count in (2**50 + 1, 10**5000, 0, -1, True, 1.0, "3", None):
        with pytest.raises(InputError, match=r"^limit [a-z-]+: .{1,100} must be a whole number"):
            kind(count)
    assert kind(2**50).count == 2**50


def test_the_largest_sizes_and_limits_together(tmp_path):
    """Bytes times nanoseconds are beyond 2^63; what a solver counts in does not overflow."""
    tasks = []
    for k in range(6):
        tasks += [
            {"name": f"b{k}", "type": "compute", "duration_us": 100},
            {"name": f"a{k}", "type": "collective", "kind": "allreduce", "bytes": 2**47,
             "group": "dp", "after": [f"b{k}"], "hold": {"pool": "p"}},
        ]  # fmt: skip
    costs = {"dp": {"allreduce": {"alpha_us": 30, "bandwidth_gb_s": 10**6}}}
    path = tmp_path / "large.json"
    path.write_text(json.dumps({**STEP, "tasks": tasks, "costs": costs}))
    command = ["plan", path, "--method", "cpsat"]
    free = run_json(*command)
    assert free["status"] == "optimal"
    for kind in ("most-bucket-bytes", "bytes-in-flight", "pool-bytes:p"):
        found = run_json(*command, "--limit", f"{kind}={2**50}")
        assert (found["status"], found["makespan_us"]) == ("optimal", free["makespan_us"])
    # Two are in flight at once, whatever the plan: the second is ready long before the first ends.
    code, out, err = run(*command, "--limit", f"bytes-in-flight={2**48 - 1}")
    assert (code, out) == (3, "")
    assert "bytes-in-flight" in err

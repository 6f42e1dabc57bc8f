"""``commsched sensitivity``: its table, its one JSON object, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
import typer

from commsched import AlphaBeta, Gradient, Plan, evaluate, gradient_problem, read, write_problem
from commsched.optimizer import optimize
from commsched.optimizer.hiding import hiding_bandwidth
from commsched.optimizer.robust import robust
from commsched.optimizer.sensitivity import sensitivity
from commsched.optimizer.slowed import optimize_slowed
from commsched.process import run as run_app
from commsched.sensitivity import sensitivity_command

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "four_layers.json"
DATA = ROOT / "problems" / "data"


def run(*arguments):
    """Run the command alone; return exit code, output and error output."""
    app = typer.Typer(add_completion=False)
    app.command("sensitivity")(sensitivity_command)
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as caught,
    ):
        run_app(app, [str(argument) for argument in arguments])
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return caught.value.code, printed, said


def run_json(*arguments):
    """Run with ``--json``; return the only thing that it prints."""
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def refusal(*arguments):
    """Run, expect exit code 2 and one line; return it."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def cases(tmp_path):
    """Two steps with the same gradients, the second with slower launches."""
    paths = []
    gradients = [Gradient(n, 10_000, ns) for n, ns in (("c", 10_000), ("b", 20_000), ("a", 30_000))]
    for number, us in enumerate((3, 20)):
        problem = gradient_problem(gradients, AlphaBeta(us, 1), name=f"case {number}")
        paths.append(tmp_path / f"{number}.json")
        write_problem(problem, paths[-1])
    return paths


def test_json_is_what_the_library_says():
    """Ranges, regrets and the hiding bandwidth of the example."""
    problem = read(EXAMPLE)
    plan = optimize(problem).plan
    document = run_json(EXAMPLE)
    assert document["launches"] == plan.launches
    assert "slowdown" not in document
    assert "robust" not in document
    for knob in ("alpha", "bandwidth", "compute"):
        found = sensitivity(problem, knob, plan)
        told = document["knobs"][knob]
        assert told["optimal"] == {
            "low": float(found.optimal.low),
            "high": float(found.optimal.high),
        }
        assert told["within"]["high"] == float(found.good.high)
        assert told["complete"]
        assert [s["launches"] for s in told["segments"]] == [s.launches for s in found.segments]
        assert len(told["regrets"]) == len(found.regrets)
        assert told["worst"]["regret_us"] == float(found.worst.ns) / 1000
    assert document["knobs"]["alpha"]["nominal"] == {"value": 8, "unit": "us"}
    assert document["knobs"]["bandwidth"]["nominal"]["value"] == pytest.approx(53.6870912)
    hidden = hiding_bandwidth(problem)
    assert document["hiding"]["bandwidth_gb_s"] == float(hidden.bandwidth_gb_s)


def test_options_reach_the_library():
    """Another range, another share, another target."""
    problem = read(EXAMPLE)
    document = run_json(EXAMPLE, "--factor", "2", "--within", "5", "--hide", "3")
    found = sensitivity(problem, "bandwidth", low=0.5, high=2, within=0.05)
    assert document["knobs"]["bandwidth"]["searched"] == {"low": 0.5, "high": 2}
    assert document["knobs"]["bandwidth"]["within"]["low"] == float(found.good.low)
    assert document["hiding"]["factor"] == float(hiding_bandwidth(problem, 0.03).factor)


def test_slowdown_and_robust_plans(cases):
    """The plans that are told are the library's, and their buckets are plans."""
    first, second = cases
    document = run_json(first, "--slowdown", "1.5", "--robust", second)
    problems = [read(path) for path in cases]
    slowed = optimize_slowed(problems[0], 1.5)
    assert document["slowdown"]["plan"]["makespan_us"] == slowed.makespan_ns / 1000
    assert document["slowdown"]["nominal_plan"]["exposed_without_us"] == (
        slowed.ignorant.nominal.exposed_ns / 1000
    )
    assert document["slowdown"]["status"] == "optimal"
    safe = robust(problems)
    assert document["robust"]["worst_regret_us"] == safe.worst.regret_ns / 1000
    plan = Plan.of(document["robust"]["buckets"])
    for problem, case in zip(problems, document["robust"]["cases"], strict=True):
        assert evaluate(problem, plan).makespan_ns / 1000 == case["makespan_us"]
        assert case["name"] == problem.name


def test_people_read_a_table(cases):
    """Every part is there, and numbers have units."""
    first, second = cases
    code, out, err = run(
        first, "--slowdown", "1.5", "--launch-slowdown", "1.2", "--robust", second, "--hide", "30"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    (latency,) = [line for line in lines if line.startswith("start-up latency")]
    assert "3 us" in latency
    assert any(line.startswith("compute speed") for line in lines)
    assert any("communication hides up to 30%" in line for line in lines)
    assert "compute takes 1.5x as long beside launches, launches 1.2x as long beside compute" in out
    assert "one plan for 2 cases" in out
    assert "cannot run" not in out


def test_a_recording_with_other_ranks_and_costs(tmp_path):
    """Ranks and cost files are cases; a recording is read once for all costs."""
    costs = DATA / "gloo_loopback_costs.json"
    rank0, rank1 = (DATA / f"transformer_ddp_gloo_rank{k}.json.gz" for k in (0, 1))
    document = run_json(
        rank0, "--costs", costs, "--robust", rank1, "--robust-costs", costs, "--factor", "1.05"
    )
    assert len(document["robust"]["cases"]) == 3
    first, second, third = document["robust"]["cases"]
    assert [case.pop("case") for case in (first, second, third)] == [
        str(rank0),
        str(rank1),
        f"{rank0} with {costs}",
    ]
    assert first == third
    assert first != second


def test_a_step_of_another_class_is_told_so():
    """Alone it is refused; a slowdown can still be looked at."""
    step = ROOT / "examples" / "next_forward.json"
    assert "exact only where ready times are fixed: tasks wait" in refusal(step)
    document = run_json(step, "--slowdown", "1.2")
    assert document["knobs"] == {}
    assert "tasks wait" in document["why_not"]
    code, out, _ = run(step, "--slowdown", "1.2")
    assert code == 0
    assert "tasks wait" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--factor", "0.5"), "--factor: 0.5 must be at least 1"),
        (("--factor", "nan"), "--factor: nan is not a finite number"),
        (("--within", "-1"), "within: -1/100 must be at least 0"),
        (("--hide", "100"), "share: 1 must be at least 0 and below 1"),
        (("--slowdown", "0.5"), "slowdown: compute: 0.5 must be from 1 to 1000"),
        (("--launch-slowdown", "2"), "--launch-slowdown goes with --slowdown"),
        (("--robust", "no such file"), "no such file"),
        (("--time-limit", "0"), "time_limit_s: 0.0 must be above 0"),
    ],
)
def test_refused(arguments, message):
    """One line that names the option."""
    assert message in refusal(EXAMPLE, *arguments)


def test_another_step_is_no_case(cases):
    """Cases must be the same gradients."""
    assert "is not the first one's step: it lacks 'L4'" in refusal(EXAMPLE, "--robust", cases[0])

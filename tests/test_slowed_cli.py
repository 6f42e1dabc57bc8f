"""``plan``, ``compare`` and ``evaluate`` with a slowdown of compute beside communication."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refusal, run

from commsched.models import AlphaBeta, Gradient, GradientProblem
from commsched.models.slowdown import Slowdown, play_slowed
from commsched.models.units import us_from_ns
from commsched.optimizer import optimize
from commsched.problems import read_problem, write_problem
from commsched.problems.plan_file import plan_of, read_plan


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return a problem file of a step whose launches overlap with backward."""
    gradients = [Gradient(f"g{k}", 400_000, ready_ns=200_000 * (k + 1)) for k in range(12)]
    path = tmp_path / "step.json"
    write_problem(GradientProblem(gradients, AlphaBeta(50, 4)), path)
    return path


def printed(*arguments: object) -> str:
    """Run a command that succeeds; return its output."""
    code, out, err = run(*arguments)
    assert code == 0, err
    return str(out)


def document_of(*arguments: object) -> dict[str, Any]:
    """Run a command that succeeds with ``--json``."""
    found: dict[str, Any] = json.loads(printed(*arguments, "--json"))
    return found


def test_plan_shows_exposed_time_with_and_without_and_the_plan_made_for_it(step: Path) -> None:
    assert "slowdown" not in document_of("plan", step)
    document = document_of("plan", step, "--slowdown", "1.5")
    rows = {row["title"]: row for row in document["slowdown"]["rows"]}
    best = optimize(read_problem(step))
    assert best.plan is not None
    slowed = play_slowed(best.problem, best.plan, Slowdown(1.5))
    assert rows["this plan"]["exposed_without_us"] == us_from_ns(best.exposed_ns)
    assert rows["this plan"]["exposed_us"] == us_from_ns(slowed.exposed_ns)
    assert rows["this plan"]["exposed_us"] > rows["this plan"]["exposed_without_us"]
    assert rows["planned for it"]["makespan_us"] <= rows["this plan"]["makespan_us"]
    text = printed("plan", step, "--slowdown", "1.5")
    assert "planned for it" in text
    assert "compute takes 1.5 times as long beside a launch (stated)" in text


def test_compare_shows_every_rule_with_and_without(step: Path) -> None:
    options = ("--slowdown", "1.3", "--launch-slowdown", "1.1")
    document = document_of("compare", step, *options)
    assert document["slowdown"]["launch"] == 1.1
    assert len(document["slowdown"]["rows"]) == len(document["rows"]) + 1
    for row in document["slowdown"]["rows"]:
        assert row["exposed_us"] >= row["exposed_without_us"]
    assert "and launches 1.1 times beside compute" in printed("compare", step, *options)


def test_evaluate_shows_the_plan_with_and_without(step: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    printed("plan", step, "--out", out)
    arguments = ("evaluate", step, out, "--slowdown", "1.25")
    (row,) = document_of(*arguments)["slowdown"]["rows"]
    slowed = play_slowed(read_problem(step), plan_of(read_plan(out)), Slowdown(1.25))
    assert row["makespan_us"] == us_from_ns(slowed.makespan_ns)
    assert "this plan" in printed(*arguments)


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_what_is_wrong_with_a_slowdown_is_one_line(step: Path, command: str) -> None:
    assert "slowdown" in refusal(command, step, "--slowdown", "0.5")
    assert "--slowdown-alone" in refusal(command, step, "--launch-slowdown", "2")
    refusal(command, step, "--slowdown-alone", step)
    assert "absent.json" in refusal(command, step, "--slowdown-alone", "absent.json")

"""What runs today: one way to say so for every command."""

from __future__ import annotations

from dataclasses import replace

from test_report import EXAMPLES, gradients, hostile_recording

from commsched.models import AlphaBeta, Plan
from commsched.optimizer import compare, optimize
from commsched.problems import Loaded, limits_of_texts, load
from commsched.today import today, today_row


def test_the_row_of_a_comparison_is_the_comparison_s_own():
    problem = gradients(12)
    comparison = compare(problem)
    row = today_row(comparison, Loaded(problem))
    assert row is comparison.row("ddp")
    best_ns = comparison.result.makespan_ns
    found = today(Loaded(problem), best_ns)
    assert (found.name, found.plan, found.over_optimal_ns) == (
        row.name,
        row.plan,
        row.over_optimal_ns,
    )


def test_a_recording_says_what_runs():
    recorded = hostile_recording()
    problem = recorded.problem(AlphaBeta(3, 1))
    comparison = compare(problem)
    row = today_row(comparison, Loaded(problem, recorded))
    assert (row.name, row.plan) == ("recorded", recorded.plan)
    assert row.over_optimal_ns == row.timeline.makespan_ns - comparison.result.makespan_ns


def test_what_breaks_a_limit_is_known_and_is_no_row():
    problem = gradients(12).with_limits(limits_of_texts(["most-bucket-bytes=5MiB"]))
    comparison = compare(problem)
    assert today(Loaded(problem), 0).timeline.broken
    assert today_row(comparison, Loaded(problem)) is None


def test_where_ddp_does_not_apply():
    loaded = load(EXAMPLES / "next_forward.json")
    comparison = compare(loaded.problem)
    row = today_row(comparison, loaded)
    first = next(r for r in comparison.rows if r.name in ("ddp", "fsdp2"))
    assert row is first


def test_recorded_launches_that_can_never_run_are_passed_over():
    recorded = hostile_recording()
    problem = recorded.problem(AlphaBeta(3, 1))

    class Odd:
        plan = Plan.of([["nothing of this step"]])

    found = today(Loaded(problem, Odd()), 0)
    assert found.name == "ddp"
    assert today(replace(Loaded(problem), recorded=None), optimize(problem).makespan_ns) is not None

"""Comparison and verdict: what they say must follow from the timelines."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from cli_runner import refusal, run
from hypothesis import given
from strategies import PROPERTY, problems

import commsched
from commsched.models import AlphaBeta, Collective, Compute, Gradient, GradientProblem, Problem
from commsched.models.coverage import is_in_order
from commsched.models.errors import MissingExtraError
from commsched.optimizer import Bound, Result, Status, compare, verdict
from commsched.problems.problem_file import write_problem


def some_gradients(alpha_us: float = 80, count: int = 40) -> GradientProblem:
    """Return gradients on a network where DDP's default is not optimal."""
    return GradientProblem(
        [Gradient(f"g{k}", 2**20, 300_000 * (k + 1)) for k in range(count)], AlphaBeta(alpha_us, 5)
    )


def test_rows_are_sorted_and_measured_from_the_optimum():
    """Best first; the distance from the optimum is that of the makespans."""
    comparison = compare(some_gradients())
    spans = [row.timeline.makespan_ns for row in comparison.rows]
    assert spans == sorted(spans)
    assert {"ddp", "ddp-best", "one-each", "one-bucket", "no-overlap"} <= {
        row.name for row in comparison.rows
    }
    best = comparison.optimal.timeline.makespan_ns
    for row in comparison.rows:
        assert row.over_optimal_ns == row.timeline.makespan_ns - best
    assert comparison.lower_bound_ns == best
    assert comparison.row("ddp").over_optimal_ns > 0
    with pytest.raises(KeyError):
        comparison.row("nobody")


@PROPERTY
@given(problems())
def test_any_step_can_be_compared(problem):
    """Rules that do not apply are left out with a reason; no rule of the scope beats the optimum."""
    comparison = compare(problem)
    names = {row.name for row in comparison.rows} | {name for name, _ in comparison.skipped}
    assert {"ddp", "one-each", "one-bucket", "no-overlap"} <= names
    for row in comparison.rows:
        # Only a plan outside of the optimum's scope can be better than it.
        assert row.over_optimal_ns >= 0 or not is_in_order(problem, row.plan)
    assert all(reason for _, reason in comparison.skipped)
    assert verdict(comparison.result, None)


def test_verdicts():
    """Nothing to gain, not worth it, and worth it, with the figures."""
    comparison = compare(some_gradients())
    text = verdict(comparison.result, comparison.row("ddp"))
    assert text.startswith("at most ")
    assert "the best plan gains" in text
    same = compare(some_gradients(count=1))
    assert "nothing to gain" in verdict(same.result, same.row("ddp"))
    long = GradientProblem(
        [Gradient("a", 2**20, 10**9), Gradient("b", 2**20, 10**9 + 1000)], AlphaBeta(80, 5)
    )
    slight = compare(long)
    assert "not worth it" in verdict(slight.result, slight.row("one-each"))


def test_a_verdict_on_an_unproved_plan_keeps_the_two_figures_apart():
    """What could be gained at most comes from the bound, what is gained from the plan."""
    problem = some_gradients()
    proved = compare(problem)
    plan = proved.row("ddp-best").plan
    result = Result(
        problem, "in-order", Status.FEASIBLE, plan, Bound(problem.compute_ns, "compute"), "x", "", 0
    )
    text = verdict(result, proved.row("no-overlap"))
    most = proved.row("no-overlap").timeline.makespan_ns - problem.compute_ns
    gained = proved.row("no-overlap").timeline.makespan_ns - result.makespan_ns
    from commsched.models.units import format_ns

    assert format_ns(most) in text
    assert format_ns(gained) in text


def test_the_call_that_a_planner_makes():
    """Plain data in, plain data out: the library call of the README."""
    problem = commsched.gradient_problem(
        [
            commsched.Gradient("fc.weight", bytes=8_192_000, ready_ns=1_000_000),
            commsched.Gradient("conv1.weight", bytes=37_632, ready_ns=9_000_000),
        ],
        commsched.AlphaBeta(alpha_us=30, bandwidth_gb_s=12),
    )
    result = commsched.optimize(problem)
    assert result.status == "optimal"
    assert result.makespan_ns == 9_000_000 + 30_000 + 3136
    assert result.lower_bound_ns == result.makespan_ns
    assert result.gap == 0
    assert [bucket.names for bucket in result.plan.buckets] == [("fc.weight",), ("conv1.weight",)]
    timeline = commsched.evaluate(problem, result.plan)
    assert (timeline.exposed_ns, timeline.compute_ns) == (33_136, 9_000_000)


def test_a_general_step_is_compared_too():
    """A next forward pass: rules that have no meaning there are left out, with the reason."""
    problem = Problem(
        [Compute("b", 5), Collective("x", 9, after=("b",)), Compute("f", 5, after=("x",))],
        {("dp", "allreduce"): AlphaBeta(0.001, 1)},
    )
    comparison = compare(problem)
    assert ("no-overlap", "no overlap: part of the compute waits for communication") in (
        comparison.skipped
    )


def test_a_rule_outside_of_the_scope_is_marked(tmp_path):
    """What is better because it reorders launches has a note, and is worse than scope any's best."""
    tasks = [Compute("b2", 10), Collective("x2", 4000, after=("b2",))]
    tasks += [Compute("b1", 10, after=("b2",)), Collective("x1", 4000, after=("b1",))]
    tasks += [Compute("b0", 10, after=("b1",)), Collective("x0", 4000, after=("b0",))]
    tasks += [Compute("f0", 4000, after=("x0",)), Compute("f1", 4000, after=("f0", "x1"))]
    tasks += [Compute("f2", 4000, after=("f1", "x2"))]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.001, 1)})
    comparison = compare(problem)
    better = [row for row in comparison.rows if row.over_optimal_ns < 0]
    assert better
    assert not any(is_in_order(problem, row.plan) for row in better)
    path = tmp_path / "step.json"
    write_problem(problem, path)
    code, out, _ = run("compare", path)
    assert code == 0
    assert f"{better[0].title} +" in out
    assert "+ not a plan of scope in-order" in out
    code, out, _ = run("compare", path, "--scope", "any")
    assert "+ " not in out


def test_a_rule_whose_launches_wait_for_each_other_is_left_out_in_a_few_words():
    """The path of a deadlock may name every collective of the step."""
    tasks = []
    for k in range(40):
        before = (f"c{k - 1}",) if k else ()
        tasks += [Collective(f"x{k}", 9, after=before), Compute(f"c{k}", 5, after=(f"x{k}",))]
    comparison = compare(Problem(tasks, {("dp", "allreduce"): AlphaBeta(0.001, 1)}))
    assert dict(comparison.skipped)["one-bucket"] == "its launches wait for each other"


def test_the_table_as_plain_data():
    """Lower bound, optimum, rules: the same numbers as records, CSV and a data frame."""
    comparison = compare(some_gradients(count=12))
    records = comparison.records()
    assert [record["name"] for record in records[:2]] == ["lower-bound", "optimal"]
    assert records[0]["makespan_us"] == comparison.lower_bound_ns / 1000
    assert [record["name"] for record in records[2:]] == [row.name for row in comparison.rows]
    for record, row in zip(records[2:], comparison.rows, strict=True):
        assert record["exposed_us"] == row.timeline.exposed_ns / 1000
        assert record["over_optimal_us"] == row.over_optimal_ns / 1000
        share = 100 * row.over_optimal_ns / comparison.result.makespan_ns
        assert record["over_optimal_percent"] == pytest.approx(share)
    pandas = pytest.importorskip("pandas")
    frame = comparison.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["name"]) == [record["name"] for record in records]


def test_percent_is_of_the_optimum():
    """A rule whose step takes ten times as long is 900% over the optimum, not 90%."""
    gradients = [Gradient(f"g{k}", 4, k) for k in range(10)]
    comparison = compare(GradientProblem(gradients, AlphaBeta(1000, 1)), rules=["one-each"])
    (row,) = comparison.rows
    assert row.timeline.makespan_ns > 9 * comparison.result.makespan_ns
    share = 100 * (row.timeline.makespan_ns / comparison.result.makespan_ns - 1)
    assert row.record()["over_optimal_percent"] == pytest.approx(share)
    assert row.optimal_ns == comparison.result.makespan_ns


def test_without_pandas_the_error_says_how_to_get_it(monkeypatch):
    """The frame is an extra."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        compare(some_gradients(count=2)).to_pandas()


def test_csv_is_the_table():
    """``compare --csv`` prints exactly the records; it excludes ``--json``."""
    path = Path(__file__).resolve().parents[1] / "examples" / "four_layers.json"
    code, out, err = run("compare", path, "--csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(out.splitlines()))
    records = compare(commsched.read(path)).records()
    assert [row["name"] for row in rows] == [record["name"] for record in records]
    assert [float(row["makespan_us"]) for row in rows] == [r["makespan_us"] for r in records]
    assert "--json" in refusal("compare", path, "--csv", "--json")


def test_best_settings_say_the_price_of_one_knob():
    """For each knob: the best range, the flat region, and how far its step is from the optimum."""
    comparison = compare(some_gradients(count=60))
    for name in ("ddp-best", "horovod-best", "deepspeed-best", "megatron-best"):
        found = comparison.best_settings[name]
        row = comparison.row(name)
        low, high = found.tuning.flat
        assert low <= found.tuning.best.low
        assert high is None or (found.tuning.best.high or 0) <= high
        assert row.timeline.makespan_ns == found.tuning.best.makespan_ns
        assert row.over_optimal_ns >= 0
        assert (
            row.timeline.makespan_ns
            <= comparison.row(name.removesuffix("-best")).timeline.makespan_ns
        )
    pair, single = comparison.row("ddp-best-pair"), comparison.row("ddp-best")
    assert pair.timeline.makespan_ns <= single.timeline.makespan_ns

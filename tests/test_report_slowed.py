"""The report under a slowdown: exposed time with and without, stated or as a what-if."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from test_report import EXAMPLES, Page, check_alone, command, contents_of, gradients

from commsched.models import AlphaBeta, Collective, Compute, Hold, Problem, evaluate
from commsched.models.slowdown import Slowdown, evaluate_slowed
from commsched.models.units import format_ns
from commsched.optimizer import optimize
from commsched.optimizer.slowed import optimize_slowed
from commsched.problems import limits_of_texts, load, write_problem
from commsched.report import page_bytes
from commsched.report import slowed as slowed_module
from commsched.report.slowed import FACTORS
from commsched.slowing import KnownSlowdown


def section(page_or_bytes):
    """The section's text."""
    data = page_or_bytes
    text = data.decode()
    start = text.index('<section id="slowed"')
    return Page(text[start : text.index("</section>", start)].encode()).text


def test_without_a_factor_there_is_a_what_if():
    problem = gradients(20)
    found = contents_of(problem)
    assert not found.slowed.stated
    assert [row.slowdown.factors[0] for row in found.slowed.rows] == [
        Slowdown(factor).factors[0] for factor in FACTORS
    ]
    for row, factor in zip(found.slowed.rows, FACTORS, strict=True):
        kept = evaluate_slowed(problem, found.result.plan, factor)
        assert row.kept.exposed_ns == kept.exposed_ns
        assert row.kept.nominal.exposed_ns == found.result.exposed_ns
        assert row.today.exposed_ns == evaluate_slowed(problem, found.today.plan, factor).exposed_ns
        assert row.best.makespan_ns == optimize_slowed(problem, factor).makespan_ns
        gain = kept.makespan_ns - row.best.makespan_ns
        assert row.changes is (gain > max(kept.plan.launches, row.best.plan.launches))
    text = section(page_bytes(found))
    assert "is not known for this step" in text
    assert text.count("(what if)") == 3
    for row in found.slowed.rows:
        assert format_ns(row.kept.exposed_ns) in text
        assert format_ns(row.best.timeline.exposed_ns) in text
        if row.changes:
            assert f"which gains {format_ns(row.best.gain_ns)}" in text
    assert any(row.changes for row in found.slowed.rows)
    # The numbers elsewhere stay those without a slowdown.
    data = Page(page_bytes(found)).data
    assert not any(shown["slowed"] for shown in data["timelines"])


def test_a_stated_factor():
    problem = gradients(20)
    slowdown = Slowdown(1.3, 1.1)
    found = contents_of(problem, slowdown=KnownSlowdown(slowdown))
    (row,) = found.slowed.rows
    best = optimize_slowed(problem, slowdown)
    assert row.best.makespan_ns == best.makespan_ns
    page = check_alone(page_bytes(found))
    text = section(page_bytes(found))
    kept = evaluate_slowed(problem, found.result.plan, slowdown)
    assert (
        f"the best plan exposes {format_ns(kept.exposed_ns)} instead of "
        f"{format_ns(found.result.exposed_ns)}" in text
    )
    assert "what if" not in text
    assert best.bound.proof in text
    # And at the very top.
    top = page_bytes(found).decode()
    top = top[: top.index('id="settings"')]
    assert f"{format_ns(kept.exposed_ns)} exposed, {format_ns(found.result.exposed_ns)}" in top
    shown = page.data["timelines"][-1]
    assert shown["slowed"] is True
    drawn = row.best.timeline if row.changes else row.kept
    assert [launch[4:6] for launch in shown["launches"]] == [
        [launch.start_ns, launch.end_ns] for launch in drawn.launches
    ]
    assert (shown["makespan"], shown["exposed"]) == (drawn.makespan_ns, drawn.exposed_ns)
    (backward,) = page.data["compute"][shown["rows"]]
    spans = {span.name: span for span in drawn.tasks}
    assert list(accumulate(backward["spans"])) == [0, max(s.end_ns for s in spans.values())]
    ready = sorted(spans[f"backward of {name}"].end_ns for name in problem.names)
    assert list(accumulate(backward["marks"])) == ready
    assert ready != sorted(problem.ready_ns)


def test_the_plan_stays_where_it_is_best():
    """One gradient: there is only one plan."""
    found = contents_of(gradients(1), slowdown=KnownSlowdown(Slowdown(1.5)))
    (row,) = found.slowed.rows
    assert row.changes is False
    assert "stays" in section(page_bytes(found))
    data = Page(page_bytes(found)).data
    assert data["timelines"][-1]["title"] == "The best plan, slowed"


def test_a_step_whose_tasks_wait():
    """What-ifs are evaluated and no plan is searched; a stated factor searches."""
    problem = load(EXAMPLES / "next_forward.json").problem
    found = contents_of(problem)
    assert all(row.best is None and row.changes is None for row in found.slowed.rows)
    assert "--slowdown FACTOR searches one" in found.slowed.why_not
    assert "a plan for it needs a search: tasks wait" in found.slowed.why_not.lower()
    stated = contents_of(problem, slowdown=KnownSlowdown(Slowdown(1.2)))
    (row,) = stated.slowed.rows
    assert row.best is not None
    assert stated.slowed.why_not == ""
    page = check_alone(page_bytes(stated))
    shown = page.data["timelines"][-1]
    edges = {
        (row["label"], page.data["names"][name]): (start, end)
        for row in page.data["compute"][shown["rows"]]
        for name, start, end in zip(
            row["names"],
            list(accumulate(row["spans"]))[::2],
            list(accumulate(row["spans"]))[1::2],
            strict=True,
        )
    }
    drawn = row.best.timeline if row.changes else row.kept
    assert edges == {
        (span.stream, span.name): (span.start_ns, span.end_ns)
        for span in drawn.tasks
        if span.end_ns > span.start_ns
    }


def test_other_scopes_and_large_steps_are_only_evaluated(monkeypatch):
    problem = gradients(6)
    found = contents_of(
        problem, result=optimize(problem, scope="any"), slowdown=KnownSlowdown(Slowdown(1.2))
    )
    assert found.slowed.rows[0].best is None
    assert "of scope in-order, not any" in section(page_bytes(found))
    monkeypatch.setattr(slowed_module, "MOST_SEARCHED", 5)
    some = contents_of(problem)
    assert len(some.slowed.rows) == 3
    assert all(row.best is None for row in some.slowed.rows)
    assert "up to 5 collectives" in section(page_bytes(some))
    monkeypatch.setattr(slowed_module, "MOST_PLAYED", 5)
    assert contents_of(problem).slowed.rows == ()
    assert (
        contents_of(problem, slowdown=KnownSlowdown(Slowdown(1.2))).slowed.rows[0].best is not None
    )


def test_where_memory_is_limited_nothing_is_said():
    tasks = [
        Compute("f", 100),
        Collective("g", 4096, "all_gather", after=(), hold=Hold("mem", "start", ("f",))),
        Compute("b", 100, after=("g",)),
    ]
    problem = Problem(
        tasks,
        {("dp", "all_gather"): AlphaBeta(1, 1)},
        limits=limits_of_texts(["pool-bytes:mem=1MiB"]),
    )
    found = contents_of(problem)
    assert found.slowed.rows == ()
    assert "A pool of memory is limited" in section(page_bytes(found))


def test_the_command_tells_both(tmp_path):
    step, out = tmp_path / "step.json", tmp_path / "page.html"
    problem = gradients(6)
    write_problem(problem, step)
    code, printed, _ = command(step, "-o", out, "--slowdown", "1.3")
    assert code == 0
    plan = optimize(problem).plan
    slow, fast = evaluate_slowed(problem, plan, 1.3), evaluate(problem, plan)
    line = printed.splitlines()[1]
    assert format_ns(slow.exposed_ns) in line
    assert f"without {format_ns(fast.exposed_ns)}" in line
    code, printed, _ = command(step, "-o", out, "--slowdown", "1.3", "--json")
    document = json.loads(printed)["slowdown"]
    assert document["source"] == "stated"
    (row,) = document["rows"]
    assert row["compute"] == 1.3
    assert row["plan"]["exposed_us"] == slow.exposed_ns / 1000
    assert row["plan"]["exposed_without_us"] == fast.exposed_ns / 1000
    assert row["planned_for_it"]["makespan_us"] <= row["plan"]["makespan_us"]
    code, printed, _ = command(step, "-o", out, "--json")
    assert [row["compute"] for row in json.loads(printed)["slowdown"]["rows"]] == list(FACTORS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slowdown", "0.9"], "slowdown: compute: 0.9 must be from 1 to 1000"),
        (["--slowdown", "nan"], "slowdown: compute: nan is not a finite number"),
        (["--launch-slowdown", "2"], "--launch-slowdown goes with --slowdown"),
    ],
)
def test_refusals(tmp_path, arguments, message):
    step, out = tmp_path / "step.json", tmp_path / "page.html"
    write_problem(gradients(3), step)
    code, printed, said = command(step, "-o", out, *arguments)
    assert (code, printed) == (2, "")
    assert message in said
    assert not out.exists()

"""The report with what the framework itself adds: as plan shows it, and nowhere else on the page."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest
from test_report import EXAMPLES, Page, check_alone, command, contents_of, gradients

from commsched.models import AlphaBeta, Collective, Compute, Hold, Problem, evaluate
from commsched.models.overheads import Overheads, play_overheads
from commsched.models.units import format_ns
from commsched.optimizer import optimize
from commsched.optimizer.overheads import optimize_overheads
from commsched.problems import limits_of_texts, load, write_problem
from commsched.problems.overheads_file import write_overheads
from commsched.report import KnownOverheads, page_bytes

TERMS = Overheads(issue_us=10, hook_us=90, wake_us=50, copy_gb_s=2, finish_us=300)


def known(terms=TERMS):
    return KnownOverheads(terms, "terms.json")


def section(data):
    """The section's text."""
    text = data.decode()
    start = text.index('<section id="overheads"')
    return Page(text[start : text.index("</section>", start)].encode()).text


def test_without_the_option_the_page_says_what_is_left_out():
    """And nothing else of it is on the page."""
    found = contents_of(gradients(6))
    assert found.overheads is None
    data = page_bytes(found)
    assert "--overheads FILE" in section(data)
    assert "With overheads" not in Page(data).text
    assert not any(shown["slowed"] for shown in Page(data).data["timelines"])


def test_the_numbers_are_those_of_the_evaluator_and_the_plan_that_of_plan():
    """In the section, at the top and in the timeline; the rest of the page stays without."""
    problem = gradients(20)
    found = contents_of(problem, overheads=known())
    bare = contents_of(problem)
    best = optimize_overheads(problem, TERMS, slack=True, within=0.001)
    data = page_bytes(found)
    page, text = check_alone(data), section(data)
    kept = play_overheads(problem, found.result.plan, TERMS)
    assert kept.exposed_ns > kept.nominal.exposed_ns == bare.result.exposed_ns
    assert (
        f"the best plan exposes {format_ns(kept.exposed_ns)} instead of "
        f"{format_ns(found.result.exposed_ns)}" in text
    )
    assert "hook_us 90" in text
    assert "terms.json" in text
    rows = dict(found.overheads.rows)
    assert [title for title, _ in found.overheads.rows][-2:] == [
        "the best plan",
        "the plan made for them",
    ]
    made = rows["the plan made for them"]
    assert made.plan == best.plan != found.result.plan
    assert made.makespan_ns < kept.makespan_ns
    for title, timeline in rows.items():
        again = play_overheads(problem, timeline.plan, TERMS)
        assert (again.makespan_ns, again.exposed_ns) == (timeline.makespan_ns, timeline.exposed_ns)
        for ns in (timeline.exposed_ns, timeline.nominal.exposed_ns):
            assert format_ns(ns) in text, title
    least = best.lower_bound_ns - problem.compute_ns
    assert f"no plan has less than {format_ns(least)} exposed with them" in text
    assert "Settings for the plan made for them" in text
    assert found.overheads.settings.text.splitlines()[0] in text
    top = data.decode()
    top = top[: top.index('id="settings"')]
    assert f"{format_ns(kept.exposed_ns)} exposed, {format_ns(found.result.exposed_ns)}" in top
    # Its timeline comes last; those before are as on a page without overheads.
    *others, shown = page.data["timelines"]
    assert len(others) == len(Page(page_bytes(bare)).data["timelines"])
    assert not any(one["slowed"] for one in others)
    assert shown["slowed"] is True
    assert (shown["makespan"], shown["exposed"]) == (made.makespan_ns, made.exposed_ns)
    assert [launch[4:6] for launch in shown["launches"]] == [
        [launch.start_ns, launch.end_ns] for launch in made.launches
    ]
    (backward,) = page.data["compute"][shown["rows"]]
    edges = list(accumulate(backward["spans"]))
    assert list(zip(edges[::2], edges[1::2], strict=True)) == made.busy
    assert sorted(span.end_ns for span in made.tasks)[: len(problem.names)] == list(
        accumulate(backward["marks"])
    )
    assert found.verdict == bare.verdict
    assert found.result.plan == bare.result.plan


def test_a_plan_that_stays_needs_no_other_settings():
    """One gradient: there is only one plan."""
    found = contents_of(gradients(1), overheads=known())
    assert found.overheads.settings is None
    data = page_bytes(found)
    assert "Settings for the plan" not in section(data)
    assert Page(data).data["timelines"][-1]["title"] == "The best plan, with overheads"


def test_a_step_that_is_only_evaluated():
    """A whole step is not planned for overheads, and the section says so."""
    problem = load(EXAMPLES / "next_forward.json").problem
    found = contents_of(problem, overheads=known())
    data = page_bytes(found)
    check_alone(data)
    text = section(data)
    assert "Planned without overheads and then evaluated with them" in text
    kept = play_overheads(problem, found.result.plan, TERMS)
    assert format_ns(kept.exposed_ns) in text
    assert "the plan made for them" not in text


def test_where_overheads_are_not_defined_the_section_says_why():
    """And the rest of the page is there."""
    tasks = [
        Compute("b", 1000),
        Collective("a", 4096, "allreduce", "dp", after=("b",), hold=Hold("p")),
    ]
    costs = {("dp", "allreduce"): AlphaBeta(30, 1)}
    problem = Problem(tasks, costs, limits=limits_of_texts(["pool-bytes:p=4096"]))
    found = contents_of(problem, overheads=known())
    assert found.overheads.rows == ()
    data = page_bytes(found)
    assert "overheads are not defined where a pool of memory is limited" in section(data)
    assert "With overheads" not in Page(data).text
    assert evaluate(problem, found.result.plan).exposed_ns == found.result.exposed_ns


def test_scope_any_keeps_its_plan():
    """Only plans of scope in-order are made for overheads."""
    problem = gradients(6)
    found = contents_of(problem, result=optimize(problem, scope="any"), overheads=known())
    assert "the scope is any" in section(page_bytes(found))


def test_no_terms_change_nothing():
    """Every term at nothing: the figures are the same on both sides."""
    found = contents_of(gradients(6), overheads=known(Overheads()))
    for _, timeline in found.overheads.rows:
        assert timeline.makespan_ns == timeline.nominal.makespan_ns
    assert "no term" in section(page_bytes(found))


@pytest.fixture
def files(tmp_path):
    step, terms = tmp_path / "step.json", tmp_path / "terms.json"
    write_problem(gradients(20), step)
    write_overheads(TERMS, terms)
    return step, terms, tmp_path / "page.html"


def test_the_command_takes_the_file(files):
    """As plan does: the same plan, the same figures, in lines and in JSON."""
    step, terms, out = files
    code, printed, said = command(step, "--overheads", terms, "-o", out)
    assert (code, said) == (0, "")
    problem = load(step).problem
    kept = play_overheads(problem, optimize(problem).plan, TERMS)
    assert printed.splitlines()[1] == (
        f"with overheads the best plan exposes {format_ns(kept.exposed_ns)}, "
        f"without {format_ns(kept.nominal.exposed_ns)}"
    )
    assert str(terms) in section(out.read_bytes())
    code, printed, said = command(step, "--overheads", terms, "-o", out, "--json")
    assert (code, said) == (0, "")
    document = json.loads(printed)["overheads"]
    best = optimize_overheads(problem, TERMS, slack=True, within=0.001)
    assert document["buckets"] == [list(bucket.names) for bucket in best.plan.buckets]
    assert document["lower_bound_us"] == best.lower_bound_ns / 1000
    assert document["makespan_us"] == best.makespan_ns / 1000
    assert document["rows"][-1]["makespan_us"] == document["makespan_us"]
    assert document["terms"]["hook_us"] == 90
    assert "overheads" not in json.loads(command(step, "-o", out, "--json")[1])


def test_a_file_that_is_none_is_refused_before_the_search(files, monkeypatch):
    """One line names it, and no page is written."""
    step, terms, out = files
    monkeypatch.setattr("commsched.reporting.optimize", None)
    for text in ("{}", '{"format": "commsched/overheads", "version": 1, "hook_us": -1}'):
        terms.write_text(text)
        code, printed, said = command(step, "--overheads", terms, "-o", out)
        assert (code, printed) == (2, "")
        assert said.startswith(f"commsched: {terms}: ")
        assert said.count("\n") == 1
    assert not out.exists()

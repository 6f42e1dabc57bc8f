"""``--overheads FILE``: figures with and without it, side by side and never mixed."""

from __future__ import annotations

import json

import pytest
from cli_runner import refusal, run, run_json

from commsched.models import Plan
from commsched.models.overheads import Overheads, play_overheads
from commsched.optimizer.overheads import optimize_overheads
from commsched.problems import read

TERMS = {"issue_us": 10, "hook_us": 400, "wake_us": 50, "copy_gb_s": 2, "finish_us": 300}
COST = {"alpha_us": 500, "bandwidth_gb_s": 1}


@pytest.fixture
def files(tmp_path):
    """Return a problem of six gradients, terms, and where a plan may go."""
    gradients = [
        {"name": f"g{k}", "bytes": 400_000 * (k + 1), "ready_us": 1000 * (k + 1)} for k in range(6)
    ]
    problem, terms = tmp_path / "problem.json", tmp_path / "terms.json"
    head = {"format": "commsched/problem", "version": 1, "name": "six"}
    problem.write_text(json.dumps({**head, "gradients": gradients, "costs": {"allreduce": COST}}))
    terms.write_text(json.dumps({"format": "commsched/overheads", "version": 1, **TERMS}))
    return problem, terms, tmp_path / "plan.json"


def plan_in(document) -> Plan:
    """Return the plan of a document."""
    return Plan.of(row["names"] for row in document["buckets"])


def test_the_plan_is_that_with_overheads_and_its_own_figures_are_without(files):
    """The document's top is a plan file as ever; what the overheads make of it is by itself."""
    problem_file, terms_file, out = files
    document = run_json("plan", problem_file, "--overheads", terms_file, "--out", out)
    problem, terms = read(problem_file), Overheads(**TERMS)
    timeline = play_overheads(problem, plan_in(document), terms)
    assert document["exposed_us"] == timeline.nominal.exposed_ns / 1000
    own = document["overheads"]
    assert own["terms"] == TERMS
    assert own["exposed_us"] == timeline.exposed_ns / 1000
    assert own["makespan_us"] == timeline.makespan_ns / 1000
    assert own["exposed_without_us"] == document["exposed_us"]
    assert own["exposed_us"] > own["exposed_without_us"]
    best = optimize_overheads(problem, terms)
    assert own["lower_bound_us"] == best.makespan_ns / 1000
    assert timeline.makespan_ns <= 1.001 * best.makespan_ns
    bare = run_json("plan", problem_file)
    assert "overheads" not in bare
    assert play_overheads(problem, plan_in(bare), terms).makespan_ns > timeline.makespan_ns
    # What is written is a plan file, which can be checked without the overheads.
    assert "overheads" not in json.loads(out.read_text())
    assert run("verify", out, problem_file)[0] == 0


def test_evaluate_shows_both(files):
    """In words and as JSON."""
    problem_file, terms_file, out = files
    assert run("plan", problem_file, "--out", out)[0] == 0
    bare = run_json("evaluate", problem_file, out)
    document = run_json("evaluate", problem_file, out, "--overheads", terms_file)
    overheads = document.pop("overheads")
    assert document == bare
    timeline = play_overheads(read(problem_file), plan_in(bare), Overheads(**TERMS))
    assert overheads["exposed_us"] == timeline.exposed_ns / 1000
    assert overheads["work_end_us"] == timeline.work_end_ns / 1000
    code, text, _ = run("evaluate", problem_file, out, "--overheads", terms_file)
    assert code == 0
    assert "exposed without  exposed with  step with  launches" in text
    assert "overheads: issue_us 10, hook_us 400, wake_us 50, copy_gb_s 2, finish_us 300" in text


def test_the_words_say_what_was_planned_how(files):
    """What runs today, the best without overheads, and this plan, each without and with."""
    problem_file, terms_file, _ = files
    code, text, _ = run("plan", problem_file, "--overheads", terms_file)
    assert code == 0
    with_terms = text[text.index("exposed without") :]
    assert "PyTorch DDP" in with_terms
    assert "best plan without overheads" in with_terms
    assert "this plan" in with_terms
    assert "with overheads: by launch recurrence and slack" in with_terms
    assert "DistributedDataParallel(model, bucket_cap_mb_list=[" in with_terms


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", "most-launches=3"], "plans are limited (most-launches)"),
        (["--scope", "any"], "the scope is any"),
    ],
)
def test_what_cannot_be_planned_is_evaluated_and_said(files, options, words):
    """The plan is the one without overheads then."""
    problem_file, terms_file, _ = files
    document = run_json("plan", problem_file, "--overheads", terms_file, *options)
    bare = run_json("plan", problem_file, *options)
    assert document["buckets"] == bare["buckets"]
    assert "lower_bound_us" not in document["overheads"]
    assert document["overheads"]["reason"] == (
        f"planned without overheads and then evaluated with them: {words}"
    )


def test_a_whole_step_is_evaluated(tmp_path, files):
    """What waits for a gradient waits for it to be handed back."""
    step = tmp_path / "step.json"
    tasks = [
        {"name": "bwd", "type": "compute", "duration_us": 100},
        {"name": "ar", "type": "collective", "bytes": 100_000, "kind": "allreduce",
         "group": "dp", "dtype": "float32", "after": ["bwd"]},
        {"name": "fwd", "type": "compute", "duration_us": 50, "after": ["ar"]},
    ]  # fmt: skip
    head = {"format": "commsched/problem", "version": 1, "name": "step"}
    step.write_text(json.dumps({**head, "tasks": tasks, "costs": {"dp": {"allreduce": COST}}}))
    document = run_json("plan", step, "--overheads", files[1])
    assert document["exposed_us"] == 600
    # issue 10, launch 600, wake 50, copy 50, and the end 300; the hook ends within the launch
    assert document["overheads"]["exposed_us"] == 1010
    code, text, _ = run("plan", step, "--overheads", files[1])
    assert code == 0
    assert "only a plain backward pass is planned under overheads" in text


def test_files_that_are_wrong_are_refused_before_anything_is_searched(tmp_path, files):
    """And none is written over."""
    problem_file, terms_file, _ = files
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "commsched/overheads", "version": 1, "hook_us": -1}')
    said = refusal("plan", problem_file, "--overheads", wrong)
    assert said == f"commsched: {wrong}: hook_us: -1 must be at least 0\n"
    said = refusal("plan", problem_file, "--overheads", terms_file, "--out", terms_file)
    assert said == f"commsched: --out: {terms_file} is the input itself\n"

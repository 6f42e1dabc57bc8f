"""Which steps ``--robust`` means: files, other steps of the same file, and how they are read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from test_sensitivity_cli import refusal, run_json

from commsched import AlphaBeta, Gradient, evaluate, gradient_problem, write_problem
from commsched.cases import other_cases
from commsched.models import InputError
from commsched.optimizer import optimize
from commsched.optimizer import robust as robust_module
from commsched.optimizer.robust import robust
from commsched.optimizer.robust_cases import MAX_CASES
from commsched.problems import Loaded, Network, ReadOptions, limits_of_texts, load
from commsched.watching import Watch

DATA = Path(__file__).resolve().parents[1] / "problems" / "data"
RANK0, RANK1 = (DATA / f"transformer_ddp_gloo_rank{k}.json.gz" for k in (0, 1))
NETWORK = Network.uniform(AlphaBeta(200, 1))


def steps_of(path):
    """The steps that a trace has, counted here."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    return sorted(int(name.partition("#")[2]) for name in names)


def cases_of(file, *others, network=NETWORK, costs=(), **reading):
    options = ReadOptions(**reading)
    loaded = load(file, cost=network, options=options)
    return other_cases(
        str(file),
        loaded,
        others=[str(other) for other in others],
        other_costs=costs,
        network=network,
        reading=options,
        watch=Watch(quiet=True),
    )


def at_step(path, step):
    return load(path, cost=NETWORK, options=ReadOptions(step=step)).problem


def same(one, other):
    return (one.gradients, one.compute_ns) == (other.gradients, other.compute_ns)


def test_another_step_of_the_same_recording():
    steps = steps_of(RANK0)
    assert len(steps) == 3
    cases = cases_of(RANK0, *(f"::step={step}" for step in steps), step=steps[0])
    assert [case.title for case in cases] == [f"{RANK0}, step={step}" for step in steps]
    for case, step in zip(cases, steps, strict=True):
        assert same(case.problem, at_step(RANK0, step))
    assert not same(cases[0].problem, cases[1].problem)


def test_another_rank_is_read_with_the_same_options():
    """Its median step is another one; the step that the user names holds for all."""
    step = steps_of(RANK0)[0]
    (case,) = cases_of(RANK0, RANK1, step=step)
    assert case.title == str(RANK1)
    assert same(case.problem, at_step(RANK1, step))
    other = steps_of(RANK0)[2]
    (case,) = cases_of(RANK0, f"{RANK1}::step={other}", step=step)
    assert same(case.problem, at_step(RANK1, other))
    assert not same(case.problem, at_step(RANK1, step))


def test_a_member_of_a_folder(tmp_path):
    for path in (RANK0, RANK1):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (case,) = cases_of(tmp_path, f"::member={RANK1.name}", member=RANK0.name)
    assert same(case.problem, load(RANK1, cost=NETWORK).problem)
    # The member of the folder says nothing about a single file.
    (case,) = cases_of(tmp_path, RANK1, member=RANK0.name)
    assert same(case.problem, load(RANK1, cost=NETWORK).problem)
    with_step = f"::member={RANK1.name}::step={steps_of(RANK1)[1]}"
    (case,) = cases_of(tmp_path, with_step, member=RANK0.name)
    assert same(case.problem, at_step(RANK1, steps_of(RANK1)[1]))


def test_a_problem_file_takes_no_step(tmp_path):
    """An option that is not said of it alone is left out where it says nothing."""
    step = steps_of(RANK0)[0]
    made = at_step(RANK1, step)
    path = tmp_path / "made.json"
    write_problem(made, path)
    (case,) = cases_of(RANK0, path, step=step)
    assert same(case.problem, made)
    assert "--step says nothing" in refusal(
        RANK0, "--alpha-us", 200, "--bandwidth-gb-s", 1, "--robust", f"{path}::step=1"
    )


def test_a_recording_beside_a_problem_file_has_its_costs(tmp_path):
    path = tmp_path / "made.json"
    write_problem(load(RANK0, cost=NETWORK).problem, path)
    (case,) = cases_of(path, RANK1, network=None)
    assert same(case.problem, load(RANK1, cost=NETWORK).problem)
    assert list(case.problem.costs.values()) == [AlphaBeta(200, 1)]


def test_limits_hold_in_every_case():
    """A plan that breaks a limit is not what is best in another case, either."""
    loaded = load(RANK0, cost=NETWORK)
    limits = limits_of_texts(["most-launches=2"])
    problem = loaded.problem.with_limits(limits)
    (case,) = other_cases(
        str(RANK0),
        Loaded(problem, loaded.recorded),
        others=[str(RANK1)],
        other_costs=None,
        network=NETWORK,
        reading=ReadOptions(),
        watch=Watch(quiet=True),
    )
    assert case.problem.limits == tuple(limits)
    document = run_json(
        *(RANK0, "--alpha-us", 200, "--bandwidth-gb-s", 1, "--robust", RANK1),
        *("--limit", "most-launches=2", "--slowdown", "1.1"),
    )
    best = optimize(case.problem).makespan_ns
    assert document["robust"]["cases"][1]["best_us"] == best / 1000
    assert len(document["robust"]["buckets"]) <= 2


def test_a_file_whose_name_looks_like_options(tmp_path):
    path = tmp_path / "a::step=3"
    problem = gradient_problem([Gradient("a", 4096, ready_ns=10)], AlphaBeta(1, 1))
    write_problem(problem, path)
    (case,) = cases_of(path, path, network=None)
    assert case.title == str(path)
    assert same(case.problem, problem)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("::stpe=1", "'stpe' is not one of member, step, sizes, graph, tokens"),
        ("::step", "'' is no step"),
        ("::step=-1", "'-1' is no step"),
        ("::step=1.5", "'1.5' is no step"),
        ("::step=" + "9" * 40, "is no step"),
        ("::step=1::step=2", "step is said twice"),
        ("::graph=yes", "'yes' is no graph"),
        ("::member=", "'' is no member"),
        ("::tflops=fast", "'fast' is no tflops"),
        ("::", "'' is not one of"),
        ("-", "would read standard input"),
        ("::step=99", "step 99"),
        ("no such file", "no such file"),
        ("no such file::step=1", "no such file"),
        ("a\0b", "a"),
    ],
)
def test_refused(text, message):
    """One line that says what is wrong."""
    said = refusal(RANK0, "--alpha-us", 200, "--bandwidth-gb-s", 1, "--robust", text)
    assert message in said


def test_standard_input_is_not_read_again(tmp_path):
    path = tmp_path / "costs.json"
    curve = {"kind": "allreduce", "cost": {"alpha_us": 20, "bandwidth_gb_s": 1}}
    path.write_text(json.dumps({"format": "commsched/costs", "version": 1, "curves": [curve]}))
    problem = gradient_problem([Gradient("a", 4096, ready_ns=10)], AlphaBeta(1, 1))
    with pytest.raises(InputError, match="standard input cannot be read again"):
        other_cases(
            "-",
            Loaded(problem),
            others=None,
            other_costs=[path],
            network=None,
            reading=ReadOptions(),
            watch=Watch(quiet=True),
        )


def test_too_many_cases():
    given = ["--robust", str(RANK1)] * MAX_CASES
    said = refusal(RANK0, "--alpha-us", 200, "--bandwidth-gb-s", 1, *given)
    assert "at most 63 cases" in said


def test_the_first_result_is_not_searched_again(monkeypatch):
    """A known result is taken, and gives the same."""
    gradients = [Gradient(n, 10_000, ns) for n, ns in (("c", 10_000), ("b", 20_000))]
    problems = [gradient_problem(gradients, AlphaBeta(us, 1)) for us in (3, 20)]
    nominal = optimize(problems[0])
    searched = []
    monkeypatch.setattr(
        robust_module,
        "optimize",
        lambda problem, **words: searched.append(problem) or optimize(problem, **words),
    )
    said = []
    found = robust(problems, nominal=nominal, progress=lambda *told: said.append(told))
    assert searched == problems[1:]
    assert found.nominal == nominal.plan
    assert [done for done, _, _ in said] == [0, 1, 2]
    assert evaluate(problems[0], found.plan).makespan_ns == found.cases[0].makespan_ns

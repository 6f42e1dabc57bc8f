"""One plan for several cases on the page: named ones, and costs as wrong as their fit."""

from __future__ import annotations

import json

import pytest
from test_report import EXAMPLES, Page, check_alone, command, contents_of, gradients

from commsched.cases import Case
from commsched.models import AlphaBeta, Gradient, GradientProblem, PiecewiseLinear, Plan, evaluate
from commsched.models.units import format_ns
from commsched.optimizer import optimize
from commsched.optimizer.robust import robust
from commsched.problems import Network, NetworkCurve, limits_of_texts, load, write_problem
from commsched.report import page_bytes
from commsched.report import safety as safety_module
from commsched.report.scaled import repriced


def three(alpha_us=3, shift=0, name=""):
    """Gradients for which a small start-up wants three launches and a large one fewer."""
    made = [
        Gradient(n, 10_000, ns + shift) for n, ns in (("c", 10_000), ("b", 20_000), ("a", 30_000))
    ]
    return GradientProblem(made, AlphaBeta(alpha_us, 1), name=name)


def section(data):
    """The section's text."""
    text = data.decode()
    start = text.index('<section id="safety"')
    return Page(text[start : text.index("</section>", start)].encode()).text


def test_named_cases():
    """Both regrets are what the evaluator says, and the settings are those of the robust plan."""
    problems = [three(), three(20), three(8)]
    cases = [Case("slow.json", problems[1]), Case("<b>other", problems[2])]
    found = contents_of(problems[0], others=cases)
    best = robust(problems)
    assert found.safety.named
    assert found.safety.found.worst.regret_ns == best.worst.regret_ns
    plan, nominal = found.safety.found.plan, found.result.plan
    for row, problem in zip(found.safety.rows, problems, strict=True):
        optimum = optimize(problem).makespan_ns
        assert row.best_ns == optimum
        assert row.nominal_ns == evaluate(problem, nominal).makespan_ns - optimum
        assert row.robust_ns == evaluate(problem, plan).makespan_ns - optimum
    assert found.safety.helps
    data = page_bytes(found)
    check_alone(data)
    text = section(data)
    worst = best.nominal_worst.nominal_regret_ns
    assert f"costs at most {format_ns(worst)} more" in text
    assert f"the robust plan at most {format_ns(best.worst.regret_ns)}" in text
    assert "slow.json" in text
    assert "<b>other" in text
    assert "bucket_cap_mb_list=[" in text
    caps = json.loads(text[text.index("list=[") + 5 : text.index("]", text.index("list=[")) + 1])
    assert len(caps) == plan.launches
    assert "--robust" not in text


def test_no_plan_is_safer_than_the_best():
    found = contents_of(three(), others=[Case("same", three())])
    text = section(page_bytes(found))
    assert "costs at most 0 us more" in text
    assert "no plan is safer" in text
    assert "Settings for the robust plan" not in text


def test_limits_that_no_common_plan_keeps():
    """In the other case, every gradient must be launched by itself."""
    first = three().with_limits(limits_of_texts(["most-launches=1"]))
    other = three().with_limits(limits_of_texts(["most-bucket-bytes=10000"]))
    found = contents_of(first, others=[Case("other", other)])
    text = section(page_bytes(found))
    assert found.safety.rows == ()
    assert "No robust plan is known." in text
    assert "no plan is known that every case can run" in text


def test_another_scope():
    problem = three()
    found = contents_of(
        problem, result=optimize(problem, scope="any"), others=[Case("slow", three(20))]
    )
    assert "the best of that scope" in section(page_bytes(found))


def fitted(error, cost=None, **words):
    cost = cost or AlphaBeta(3, 1)
    return Network((NetworkCurve(cost, kind="allreduce", max_error=error, **words),))


def test_the_error_of_the_fit():
    """All launches a fifth faster and slower, made by hand."""
    problem = three()
    found = contents_of(problem, network=fitted(0.2))
    hand = [GradientProblem(problem.gradients, AlphaBeta(3 * k / 10, 10 / k)) for k in (10, 8, 12)]
    assert found.safety.error == 0.2
    assert [row.title for row in found.safety.rows] == [
        "step.json",
        "every launch 20% faster",
        "every launch 20% slower",
    ]
    plan = found.result.plan
    for row, other in zip(found.safety.rows, hand, strict=True):
        best = optimize(other).makespan_ns
        assert row.best_ns == best
        assert row.nominal_ns == evaluate(other, plan).makespan_ns - best
    assert found.safety.found.worst.regret_ns == robust(hand).worst.regret_ns
    text = section(page_bytes(found))
    assert "if the costs are as wrong as their fit (20%)" in text
    assert "--robust FILE" in text


def test_without_an_error_nothing_is_varied():
    for network in (None, fitted(None), fitted(0.1, AlphaBeta(5, 1))):
        found = contents_of(three(), network=network)
        assert found.safety.rows == ()
        text = section(page_bytes(found))
        assert "The costs state no error of their fit" in text
        assert "--robust FILE" in text


def test_an_error_above_one_only_makes_launches_slower():
    found = contents_of(three(), network=fitted(1.5))
    assert [row.title for row in found.safety.rows] == ["step.json", "every launch 150% slower"]


def test_curves_are_varied_by_their_own_errors():
    """Only one of two costs states an error; the other stays as it is."""
    problem = load(EXAMPLES / "next_forward.json").problem
    (key, cost), *_ = problem.costs.items()
    errors = safety_module.fit_errors(problem, fitted(0.1, cost))
    assert errors == {cost: 0.1}
    slow = safety_module._fit_cases(problem, errors, 0.1)[-1].problem
    for size in (0, 4096, 10**7):
        assert slow.costs[key].exact_ns(size) == cost.exact_ns(size) * 11 / 10
    assert slow.tasks == problem.tasks
    # Of a step whose optimum needs a search nothing is said.
    found = contents_of(problem, network=fitted(0.1, cost))
    assert found.safety.rows == ()
    assert "what is best with other costs needs a search" in section(page_bytes(found)).lower()


def test_repriced_curves_keep_what_was_measured():
    curve = PiecewiseLinear([(1000, 10), (3000, 14), (10_000, 50)])
    other = safety_module._times(curve, safety_module.exact(1.1, "x"))
    for size in (0, 500, 2500, 20_000):
        assert other.exact_ns(size) == curve.exact_ns(size) * 11 / 10
    assert other.measured_to == curve.measured_to
    problem = GradientProblem([Gradient("a", 2500, 10)], curve, name="n", backward_end_ns=20)
    same = repriced(problem, dict.fromkeys(problem.costs, other))
    assert (same.gradients, same.backward_end_ns, same.name) == (problem.gradients, 20, "n")


def test_large_steps_show_the_regret_of_the_best_plan_alone(monkeypatch):
    monkeypatch.setattr(safety_module, "MOST_SEARCHED", 10)
    problem = gradients(12)
    network = fitted(0.2, AlphaBeta(30, 40))
    found = contents_of(problem, network=network)
    assert found.safety.found is None
    rows = found.safety.rows
    assert all(row.robust_ns is None for row in rows)
    for row, k in zip(rows, (10, 8, 12), strict=True):
        other = GradientProblem(problem.gradients, AlphaBeta(30 * k / 10, 400 / k))
        best = optimize(other).makespan_ns
        kept = evaluate(other, found.result.plan).makespan_ns
        assert abs(row.nominal_ns - max(0, kept - best)) <= found.result.plan.launches
    text = section(page_bytes(found))
    assert "up to 10 collectives unless cases are named" in text
    assert "the robust plan over it" not in text
    monkeypatch.setattr(safety_module, "MOST_REGRETS", 10)
    assert contents_of(problem, network=network).safety.rows == ()
    # Named cases are searched whatever the size.
    named = contents_of(problem, others=[Case("x", problem)])
    assert named.safety.found is not None


# the command


@pytest.fixture
def steps(tmp_path):
    paths = []
    for name, problem in (("fast", three()), ("slow", three(20)), ("other", gradients(3))):
        paths.append(tmp_path / f"{name}.json")
        write_problem(replace_name(problem, name), paths[-1])
    return paths


def replace_name(problem, name):
    return GradientProblem(problem.gradients, next(iter(problem.costs.values())), name=name)


def test_the_command(steps, tmp_path):
    fast, slow, _ = steps
    out = tmp_path / "page.html"
    code, printed, said = command(fast, "-o", out, "--robust", slow)
    assert (code, said) == (0, "")
    best = robust([three(), three(20)])
    line = printed.splitlines()[1]
    assert f"the robust plan at most {format_ns(best.worst.regret_ns)}" in line
    assert str(slow) in section(out.read_bytes())
    code, printed, _ = command(fast, "-o", out, "--robust", slow, "--json")
    document = json.loads(printed)["robust"]
    assert document["named"] is True
    assert [case["case"] for case in document["cases"]] == [str(fast), str(slow)]
    plan = Plan.of(document["buckets"])
    for case, problem in zip(document["cases"], (three(), three(20)), strict=True):
        makespan_ns = evaluate(problem, plan).makespan_ns
        assert case["best_us"] + case["robust_regret_us"] == makespan_ns / 1000


def test_other_costs_and_their_error(steps, tmp_path):
    fast, _, _ = steps
    costs, out = tmp_path / "costs.json", tmp_path / "page.html"
    curve = {"kind": "allreduce", "cost": {"alpha_us": 20, "bandwidth_gb_s": 1}, "max_error": 0.07}
    costs.write_text(json.dumps({"format": "commsched/costs", "version": 1, "curves": [curve]}))
    code, _, _ = command(fast, "-o", out, "--costs", costs)
    assert code == 0
    assert "as wrong as their fit (7%)" in section(out.read_bytes())
    code, _, _ = command(fast, "-o", out, "--robust-costs", costs)
    assert code == 0
    assert f"{fast} with {costs}" in section(out.read_bytes())


def test_what_is_no_case_is_refused_before_the_search(steps, tmp_path):
    fast, _, other = steps
    out = tmp_path / "page.html"
    code, printed, said = command(fast, "-o", out, "--robust", other)
    assert (code, printed) == (2, "")
    assert f"--robust: {other} is not the first one's step: it lacks 'c'" in said
    assert not out.exists()


def test_a_case_is_not_overwritten(steps):
    fast, slow, _ = steps
    before = slow.read_bytes()
    code, _, said = command(fast, "-o", slow, "--robust", slow)
    assert (code, slow.read_bytes()) == (2, before)
    assert "is the input itself" in said


def test_a_page_without_a_plan_says_nothing_of_cases(steps, tmp_path):
    fast, slow, _ = steps
    out = tmp_path / "page.html"
    limits = ("--limit", "most-bucket-bytes=10000B", "--limit", "most-launches=1")
    code, _, said = command(fast, "-o", out, "--robust", slow, *limits)
    assert code == 3, said
    assert section(out.read_bytes()) == "One plan for several cases"


def test_the_same_cases_give_the_same_bytes():
    def page():
        return page_bytes(contents_of(gradients(12), network=fitted(0.1, AlphaBeta(30, 40))))

    assert page() == page()

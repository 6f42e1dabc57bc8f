"""The report's curves: every rule with a cap, what each cap really gives, and what is left out."""

from __future__ import annotations

import random

import pytest
from test_report import Page, contents_of, gradients, page_of

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Problem,
    evaluate,
)
from commsched.optimizer import RULES, Bound, Status, compare, optimize, rule
from commsched.optimizer.registry import KnobOf
from commsched.optimizer.result import Result
from commsched.problems import limits_of_texts
from commsched.problems.estimates.library import make
from commsched.report import contents as contents_module
from commsched.report import curve as curve_module
from commsched.report import page_bytes

MIB = 2**20


def knob_of(name):
    return next(knob for knob in rule(name).knobs if isinstance(knob, KnobOf))


def test_every_rule_with_a_cap_has_a_curve():
    """Also those that cut; and every step of each is what the rule really does with that cap."""
    problem = gradients(12)
    chart = page_of(problem).data["chart"]
    names = [name for curve in chart["curves"] for name in curve["names"]]
    found = compare(problem)
    tuned = {row.name for row in found.rows} & set(found.best_settings)
    assert sorted(f"{name}-best" for name in names) == sorted(
        name for name in tuned if not name.endswith("-pair")
    )
    assert names[0] == "ddp"
    assert {"horovod", "deepspeed", "megatron", "dear", "bytescheduler", "inductor"} <= set(names)
    rng = random.Random(3)
    for curve in chart["curves"]:
        assert curve["sampled"] is False
        for name in curve["names"]:
            for low, high, exposed, launches in rng.sample(
                curve["ranges"], min(4, len(curve["ranges"]))
            ):
                for cap in {low, high or low * 2}:
                    plan = knob_of(name).make(problem, cap)
                    assert (evaluate(problem, plan).exposed_ns, plan.launches) == (
                        exposed,
                        launches,
                    ), (name, cap)
        assert curve["best"][2] == min(exposed for _, _, exposed, _ in curve["ranges"])
    assert [c["cuts"] for c in chart["curves"] if "bytescheduler" in c["names"]] == [True]


def test_rules_that_do_the_same_share_a_curve():
    """Without gradients of other types DDP does the same with and without unused parameters."""
    curves = page_of(gradients(5)).data["chart"]["curves"]
    titles = [title for curve in curves for title in curve["titles"]]
    assert len(set(titles)) == len(titles)
    assert max(len(curve["titles"]) for curve in curves) > 1
    for curve in curves:
        assert len(curve["titles"]) == len(curve["names"])
    keys = [(c["in_bytes"], c["cuts"], str(c["ranges"])) for c in curves]
    assert len(set(keys)) == len(keys)


def test_elements_are_drawn_in_bytes():
    """A cap that counts elements of two and of four bytes stands for their mean size."""
    made = [
        Gradient("a", 2 * MIB, 100_000, "bfloat16"),
        Gradient("b", 2 * MIB, 200_000, "bfloat16"),
        Gradient("c", 4 * MIB, 300_000, "float32"),
    ]
    problem = GradientProblem(made, AlphaBeta(30, 10))
    chart = page_of(problem).data["chart"]
    for curve in chart["curves"]:
        assert (
            curve["in_bytes"] is (not {"deepspeed", "megatron"} & set(curve["names"]))
            or (curve["cuts"])
        )
        assert curve["unit"] == (1 if curve["in_bytes"] else pytest.approx(8 / 3))
    for row, best in zip(chart["rows"][:1], [optimize(problem).timeline], strict=True):
        assert row["size"] == sum(launch.bytes for launch in best.launches) / len(best.launches)


def test_large_steps_try_some_caps_of_each_rule(monkeypatch):
    monkeypatch.setattr(contents_module, "MOST_COMPARED", 10)
    monkeypatch.setattr(contents_module, "MOST_TUNED", 20)
    monkeypatch.setattr(curve_module, "OTHER_SAMPLES", 9)
    problem = gradients(30)
    curves = page_of(problem).data["chart"]["curves"]
    assert len(curves) > 4
    assert curves[0]["names"] == ["ddp"]
    assert all(curve["sampled"] for curve in curves)
    for curve in curves[1:]:
        assert curve["plans"] <= 10
        for low, high, exposed, _ in curve["ranges"]:
            assert low == high
            plan = knob_of(curve["names"][0]).make(problem, low)
            assert evaluate(problem, plan).exposed_ns == exposed
    # Cutting everything into tiny pieces would take too long to try.
    assert "bytescheduler" not in {name for curve in curves for name in curve["names"]}


def test_long_curves_are_thinned(monkeypatch):
    from commsched.report import data as data_module

    monkeypatch.setattr(data_module, "MOST_RANGES", 40)
    monkeypatch.setattr(data_module, "MOST_OTHER_RANGES", 12)
    curves = page_of(gradients(30)).data["chart"]["curves"]
    assert curves[0]["plans"] > 40 >= len(curves[0]["ranges"])
    assert all(len(curve["ranges"]) <= 12 for curve in curves[1:])
    for curve in curves:
        assert min(r[2] for r in curve["ranges"]) == curve["best"][2]


def test_a_rule_whose_default_breaks_a_limit_still_has_its_curve():
    problem = gradients(8).with_limits(limits_of_texts(["most-bucket-bytes=6MiB"]))
    found = compare(problem)
    assert "inductor" not in {row.name for row in found.rows}
    assert "inductor-best" in found.best_settings
    chart = page_of(problem).data["chart"]
    assert "inductor" in {name for curve in chart["curves"] for name in curve["names"]}
    assert chart["limited"] is True


def test_a_step_without_such_a_rule_has_none():
    tasks = [Compute("c", 100), Collective("r", 4096, "broadcast", after=("c",))]
    problem = Problem(tasks, {("dp", "broadcast"): AlphaBeta(1, 1)})
    chart = page_of(problem).data["chart"]
    assert [n for c in chart["curves"] for n in c["names"] if n in ("ddp", "horovod")] == []


def test_what_was_found_by_the_way_and_is_better_is_a_doubt():
    """A search that gave up must not hide that some cap is better than its plan."""
    problem = gradients(12)
    plan = rule("one-bucket").make(problem)
    bound = Bound(problem.compute_ns, "compute alone")
    poor = Result(problem, "in-order", Status.FEASIBLE, plan, bound, "rule", "gave up", 1.0)
    found = contents_of(problem, result=poor)
    page = Page(page_bytes(found))
    best = min(
        curve.best.makespan_ns
        for curve in (found.curve, *found.other_curves)
        if curve.best.makespan_ns
    )
    assert best < poor.makespan_ns
    assert "shorter than the best plan that the search found" in page.text
    assert "shorter than the best plan" not in page_of(problem).text


def test_caps_that_are_as_good_elsewhere_are_shaded_too():
    """What is within 1% may lie in several ranges; the page draws all, and says how many there are."""
    problem = make("resnet50/a100/10g/dp16").problem
    tuning = compare(problem, rules=["ddp"]).best_settings["ddp-best"].tuning
    assert tuning.equal_elsewhere
    curve = page_of(problem).data["chart"]["curves"][0]
    assert curve["names"][0] == "ddp"
    assert "other ranges" in curve["best_text"]
    best = curve["best"][:2]
    for cap in [low for low, _ in tuning.equal_elsewhere]:
        assert any(low <= cap <= high for low, high in [best, *curve["equal"]])
    limit = tuning.best.makespan_ns * 1.01
    for each in tuning.ranges:
        good = any(
            low <= each.low and (high is None or (each.high or high + 1) <= high)
            for low, high in curve["flat"]
        )
        assert good or each.makespan_ns > limit


def test_ranges_that_no_eye_can_tell_apart_are_one():
    """Thousands of ranges would make the page large; a gap that can be seen stays."""
    many = [(k, k) for k in range(1_000, 100_000, 2)]
    assert curve_module.seen_apart(many) == [(1_000, 99_998)]
    assert curve_module.seen_apart([(1, 9), (12, None)]) == [(1, 9), (12, None)]
    assert curve_module.seen_apart([]) == []


def test_every_knob_is_known_to_the_curves():
    """A rule that gets a cap later appears without further ado."""
    for known in RULES:
        assert curve_module.has_curve(known.name) is any(
            isinstance(knob, KnobOf) for knob in known.knobs
        )

"""The report: what the page holds, that it loads nothing, and that no name in it becomes code."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import random
import re
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path

import cli_runner
import pytest
import typer
from shared_files import shared_data

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    ExtrapolationWarning,
    Gradient,
    GradientProblem,
    InputError,
    PiecewiseLinear,
    Plan,
    Problem,
    evaluate,
    launch_exposures,
)
from commsched.models.units import format_ns
from commsched.optimizer import Bound, Status, compare, optimize
from commsched.optimizer.result import Result
from commsched.problems import (
    Check,
    ImportReport,
    Loaded,
    Network,
    RecordedStep,
    limits_of_texts,
    load,
    write_problem,
)
from commsched.problems.recorded import RecordedLaunch
from commsched.process import run as run_app
from commsched.report import contents as contents_module
from commsched.report import curve as curve_module
from commsched.report import gather, page_bytes
from commsched.report import stability as stability_module
from commsched.report import what_if as what_if_module
from commsched.report.page import SCRIPTS
from commsched.report.scaled import ScaledCost, scaled
from commsched.report.timelines import MOST_ROWS
from commsched.reporting import report_command

EXAMPLES = Path(__file__).parents[1] / "examples"
MIB, US = 2**20, 1000
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "<!--",
    "]]>&amp;&lt;",
    "a\nb\r\x00\x1b[31m",
    "\u2028\u2029\u202eevil",
    "${alert(3)} `$title` $data $$",
    "\ud800 lone",
    "x" * 100_000,
)


def gradients(count=5, cost=(30, 40), seed=1):
    """Gradients of mixed sizes, most of them hidden."""
    rng, ready_ns, made = random.Random(seed), 0, []
    for k in range(count):
        ready_ns += rng.randint(US, 100 * US)
        made.append(Gradient(f"g{k}", rng.choice((4096, MIB, 4 * MIB)) + 4 * k, ready_ns))
    return GradientProblem(made, AlphaBeta(*cost), name=f"{count} gradients")


def contents_of(problem, *, recorded=None, result=None, notes=(), **words):
    loaded = Loaded(problem, recorded, notes)
    found = result or optimize(problem, time_limit_s=20, workers=2)
    return gather("step.json", loaded, found, **{"time_limit_s": 5, "workers": 2, **words})


class Page(html.parser.HTMLParser):
    """A page taken apart: its elements, and the texts of scripts, style and of all else."""

    def __init__(self, data):
        super().__init__(convert_charrefs=True)
        self.tags, self.stack, self.texts = [], [], []
        self.scripts, self.styles = [], []
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.stack.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts[-1] += data
        elif self.stack and self.stack[-1] == "style":
            self.styles[-1] += data
        else:
            self.texts.append(data)

    @property
    def data(self):
        return json.loads(self.scripts[0])

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def page_of(problem, **words):
    return Page(page_bytes(contents_of(problem, **words)))


def check_alone(data):
    """The page loads nothing and runs nothing but its own script."""
    page = Page(data)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "a") or (
            tag == "a" and attributes["href"].startswith("#")
        )
        for name in attributes:
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "style", "action", "data")
    text = data.decode()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "url(" not in text
    assert "@import" not in text
    assert len(page.scripts) == 2
    assert len(page.styles) == 1
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind, inline in (("script-src", page.scripts[1]), ("style-src", page.styles[0])):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    return page


# one file that needs nothing else


@pytest.mark.parametrize("make", [gradients, lambda: load(EXAMPLES / "next_forward.json").problem])
def test_the_page_loads_nothing(make):
    page = check_alone(page_bytes(contents_of(make())))
    assert page.data["format"] == "commsched/report"
    tags = {tag for tag, _ in page.tags}
    assert {"h1", "h2", "table", "dl", "noscript"} <= tags
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        assert attributes.get("aria-labelledby", ids[0]) in ids


def test_the_same_step_gives_the_same_bytes():
    assert page_bytes(contents_of(gradients())) == page_bytes(contents_of(gradients()))


def test_the_scripts_are_package_data():
    folder = files("commsched.report")
    for name in (*SCRIPTS, "page.html", "style.css"):
        text = folder.joinpath(name).read_text(encoding="utf-8")
        assert "</script" not in text or name == "page.html"
        assert "\r" not in text


def hostile_recording():
    """A recording all of whose texts are hostile."""
    made = [Gradient(f"{k}{name}", 4096 + k, (k + 1) * US) for k, name in enumerate(HOSTILE)]
    names = tuple(gradient.name for gradient in made)
    launch = RecordedLaunch(names, "allreduce", "dp", "float32", 1, 0, 0, 9 * US, exact=True)
    texts = tuple(HOSTILE)
    report = ImportReport(
        HOSTILE[0],
        7,
        dict.fromkeys(texts, 3),
        dict.fromkeys(texts, 4),
        texts,
        tuple(Check(text, passed=bool(k % 2)) for k, text in enumerate(texts)),
        texts,
    )
    return RecordedStep(HOSTILE[0], tuple(made), (launch,), 20 * US, HOSTILE[1], report)


def test_no_name_becomes_code():
    recorded = hostile_recording()
    problem = recorded.problem(AlphaBeta(3, 1))
    page = check_alone(page_bytes(contents_of(problem, recorded=recorded, notes=HOSTILE)))
    assert ("img", {"src": "x", "onerror": "alert(2)"}) not in page.tags
    assert HOSTILE[0] in page.text
    assert HOSTILE[1] in page.text
    assert "]]>&amp;&lt;" in page.text
    assert "${alert(3)} `$title` $data $$" in page.text
    for text in (page.text, page.scripts[0]):
        for character in "\x00\x1b\u2028\u2029\u202e\ud800":
            assert character not in text
    names = page.data["names"]
    assert f"0{HOSTILE[0]}" in names
    assert all(len(name) <= 400 for name in names)
    assert len(names) == len(HOSTILE)
    assert "<" not in page.scripts[0]


def test_hostile_names_of_a_graph():
    """Streams, groups, channels, kinds of data and tasks."""
    tasks = [Compute(f"c{name}", 100 * US, stream=name or "s") for name in HOSTILE[:8]]
    tasks += [
        Collective(f"r{n}", 4096 + k, group=n, dtype=n, after=(f"c{n}",))
        for k, n in enumerate(HOSTILE[:8])
    ]
    costs = {(name, "allreduce"): AlphaBeta(9, 1) for name in HOSTILE[:8]}
    page = check_alone(page_bytes(contents_of(Problem(tasks, costs, name=HOSTILE[2]))))
    assert page.data["compute"][0][0]["label"] == HOSTILE[0]


# the numbers are the evaluator's


def check_timeline(data, shown, timeline):
    """What is drawn is what the evaluator says."""
    assert shown["makespan"] == timeline.makespan_ns
    assert shown["exposed"] == timeline.exposed_ns
    assert shown["compute"] == timeline.compute_ns
    assert len(shown["launches"]) == len(timeline.launches)
    exposures = launch_exposures(timeline)
    for row, launch, exposure in zip(shown["launches"], timeline.launches, exposures, strict=True):
        channel, kind, size, ready, start, end, exposed, reason, runs, parts = row
        assert shown["channels"][channel] == f"channel {launch.channel}"
        assert shown["kinds"][kind] == [launch.key.kind, launch.key.group, launch.key.dtype]
        assert (size, ready, start, end) == (
            launch.bytes,
            launch.ready_ns,
            launch.start_ns,
            launch.end_ns,
        )
        assert (exposed, data["reasons"][reason]) == (exposure.exposed_ns, str(exposure.reason))
        members = [
            data["names"][first + k]
            for first, count in zip(runs[::2], runs[1::2], strict=True)
            for k in range(count)
        ]
        assert members == list(launch.names)
        assert parts == sum(chunk is not None for chunk in launch.chunks)
    edges = list(accumulate(shown["busy"]))
    assert [*zip(edges[::2], edges[1::2], strict=True)] == timeline.busy
    found = {}
    for row in data["compute"][shown["rows"]]:
        edges = list(accumulate(row["spans"]))
        for k, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
            name = data["names"][row["names"][k]] if "names" in row else None
            found[row["label"], name] = (start, end)
    if timeline.problem.gradients is not None:
        assert found == {("backward", None): (0, timeline.compute_ns)}
        ready = sorted(gradient.ready_ns for gradient in timeline.problem.gradients)
        assert list(accumulate(data["compute"][0][0]["marks"])) == ready
        return
    assert found == {
        (span.stream, span.name): (span.start_ns, span.end_ns)
        for span in timeline.tasks
        if span.end_ns > span.start_ns
    }


@pytest.mark.parametrize("count", [1, 5, 40])
def test_timelines_of_gradients(count):
    problem = gradients(count)
    found = contents_of(problem)
    data = Page(page_bytes(found)).data
    by_title = {shown["title"]: shown for shown in data["timelines"]}
    assert by_title["By default: PyTorch DDP"]["note"] == "1 MiB, then 25 MiB"
    check_timeline(data, by_title["By default: PyTorch DDP"], found.today.timeline)
    check_timeline(data, by_title["Optimum, scope in-order"], found.result.timeline)
    if count == 40:
        best = by_title["Best setting: PyTorch DDP"]
        row = min(
            (r for r in found.comparison.rows if r.name in ("ddp", "ddp-best", "ddp-best-pair")),
            key=lambda r: (r.timeline.makespan_ns, r.launches),
        )
        check_timeline(data, best, row.timeline)
        assert best["note"] == row.setting


def test_timelines_of_a_step_whose_tasks_wait():
    found = contents_of(load(EXAMPLES / "next_forward.json").problem)
    data = Page(page_bytes(found)).data
    assert data["gradients"] is False
    check_timeline(data, data["timelines"][-1], found.result.timeline)
    check_timeline(data, data["timelines"][0], found.today.timeline)


def test_many_streams_share_a_row():
    count = MOST_ROWS + 6
    tasks = [Compute(f"c{k}", (k + 1) * US, stream=f"s{k}") for k in range(count)]
    tasks += [Collective(f"r{k}", 100, group=f"g{k}", after=(f"c{k}",)) for k in range(count)]
    costs = {(f"g{k}", "allreduce"): AlphaBeta(1, 1) for k in range(count)}
    data = page_of(Problem(tasks, costs)).data
    rows = data["compute"][0]
    assert len(rows) == MOST_ROWS
    assert rows[-1]["label"] == "7 more streams"
    # The busiest have a row of their own; the others' work is one piece, for all begin at once.
    assert rows[0]["label"] == f"s{count - 1}"
    assert rows[-1]["spans"] == [0, 7 * US]
    shown = data["timelines"][-1]
    assert len(shown["channels"]) == MOST_ROWS
    assert shown["channels"][-1] == "7 more channels"
    assert len(shown["launches"]) == count


# verdict, settings and rules


def test_the_verdict_says_what_was_proved():
    found = contents_of(gradients(40))
    page = Page(page_bytes(found))
    result = found.result
    assert "Proved optimal" in page.text
    assert found.verdict[1:] in page.text
    for ns, figures in ((result.makespan_ns, 4), (result.lower_bound_ns, 5)):
        assert format_ns(ns, figures) in page.text
    assert result.reason in page.text
    assert "Doubts" not in page.text


def test_a_gap_is_no_proof():
    problem = gradients(12)
    best = optimize(problem)
    bound = Bound(best.makespan_ns // 2, "a weak bound")
    result = replace(best, status=Status.FEASIBLE, bound=bound)
    page = page_of(problem, result=result)
    assert "Proved optimal" not in page.text
    assert "Best known, not proved optimal" in page.text
    assert "Best known plan" in page.text
    assert "by a weak bound" in page.text
    assert f"{100 * result.gap:.2f}% of the step" in page.text
    assert "a better plan may exist" in page.text
    assert page.data["timelines"][-1]["title"] == "Best known, scope in-order"


def test_every_rule_is_in_the_table():
    problem = gradients(20)
    found = contents_of(problem)
    comparison = compare(problem)
    page = Page(page_bytes(found))
    sorts = [int(a["data-sort"]) for t, a in page.tags if t == "td" and "data-sort" in a]
    rows = [sorts[k : k + 6] for k in range(0, len(sorts), 6)]  # number, step, exposed, over ...
    assert rows == [
        [
            number,
            row.timeline.makespan_ns,
            row.timeline.exposed_ns,
            row.over_optimal_ns,
            row.launches,
            row.timeline.peak_bytes,
        ]
        for number, row in enumerate((comparison.optimal, *comparison.rows))
    ]
    chart = page.data["chart"]
    assert [(r["number"], r["exposed"]) for r in chart["rows"]] == [(r[0], r[2]) for r in rows]
    assert chart["bound"] == comparison.lower_bound_ns - problem.compute_ns
    tuning = comparison.best_settings["ddp-best"].tuning
    assert chart["curves"][0]["ranges"] == [
        [r.low, r.high, r.exposed_ns, r.launches] for r in tuning.ranges
    ]
    for name, reason in comparison.skipped:
        assert f"{name}: {reason}" in page.text


def test_settings_to_paste():
    page = page_of(gradients(20))
    assert "bucket_cap_mb_list=[" in page.text
    assert "PyTorch DDP runs exactly the best plan; nothing is lost." in page.text
    assert "torch 2.11 or later" in page.text
    copies = [a for t, a in page.tags if t == "button" and a.get("class") == "copy"]
    assert len(copies) == 3


def test_another_framework():
    found = contents_of(gradients(20), framework="deepspeed")
    page = Page(page_bytes(found))
    assert "reduce_bucket_size" in page.text
    title = page.data["timelines"][1]["title"]
    assert title == "Best setting: DeepSpeed ZeRO-1/2"
    assert page.data["chart"]["curves"][0]["in_bytes"] is False
    assert page.data["chart"]["curves"][0]["unit"] == 4
    assert page.data["chart"]["curves"][0]["titles"] == ["DeepSpeed ZeRO-1/2"]
    size = page.data["chart"]["rows"][0]["size"]
    launches = found.result.timeline.launches
    assert size == pytest.approx(sum(n.bytes for n in launches) / len(launches))


def test_a_framework_that_cannot_run_the_plan():
    tasks = [Compute("c", 100), Collective("t", 4096, "all_to_all", "ep", after=("c",))]
    problem = Problem(tasks, {("ep", "all_to_all"): AlphaBeta(1, 1)})
    page = page_of(problem, framework="megatron")
    assert "Megatron-core cannot run the best plan" in page.text
    assert "all_to_all" in page.text
    assert len(page.data["timelines"]) == 1


# beyond what is cheap


def test_large_steps_are_sampled(monkeypatch):
    monkeypatch.setattr(contents_module, "MOST_COMPARED", 10)
    monkeypatch.setattr(contents_module, "MOST_TUNED", 20)
    some = contents_of(gradients(15))
    assert list(some.comparison.best_settings) == ["ddp-best"]
    assert not some.curve.sampled
    best = compare(gradients(15), rules=["ddp"]).row("ddp-best").timeline.makespan_ns
    assert some.comparison.row("ddp-best").timeline.makespan_ns == best
    many = contents_of(gradients(30))
    assert many.curve.sampled
    assert many.comparison.best_settings == {}
    page = Page(page_bytes(many))
    assert page.data["chart"]["curves"][0]["sampled"] is True
    assert "not searched beyond 10 collectives" in page.text
    row = many.comparison.row("ddp-best")
    assert row.timeline.makespan_ns == min(r.makespan_ns for r in many.curve.ranges)
    assert row.setting.startswith("best of ")
    for each in many.curve.ranges:
        timeline = evaluate(many.result.problem, ddp_plan(many.result.problem, each.low))
        assert timeline.exposed_ns == each.exposed_ns


def ddp_plan(problem, cap):
    """DDP's buckets with one cap for all: closed when the bytes reach it."""
    buckets, open_, held = [], [], 0
    for k in problem.ready_order:
        open_.append(problem.names[k])
        held += problem.bytes[k]
        if held >= cap:
            buckets.append(open_)
            open_, held = [], 0
    return Plan.of(buckets + ([open_] if open_ else []))


def test_two_thousand_gradients_are_a_small_page(monkeypatch):
    monkeypatch.setattr(what_if_module, "WORK", 20_000)
    monkeypatch.setattr(curve_module, "SAMPLES", 20)
    monkeypatch.setattr(stability_module, "MOST_RANGES", 1000)
    problem = gradients(2000)
    data = page_bytes(contents_of(problem))
    assert len(data) < 300_000
    page = check_alone(data)
    check_timeline(page.data, page.data["timelines"][-1], optimize(problem).timeline)
    assert page.data["what_if"]["combined"] is False


# what if


def test_what_if_is_the_optimum_there():
    """Against problems that are made by hand with other costs and ready times."""
    problem = gradients(12, cost=(30, 40))
    data = page_of(problem).data["what_if"]
    assert data["factors"] == [0.25, 0.5, 0.75, 1, 1.5, 2, 4]
    assert data["network"] == {"alpha_us": 30, "bandwidth_gb_s": 40}
    assert len(data["points"]) == 343
    best = optimize(problem)
    assert data["titles"][-1] == "the best plan"
    rng = random.Random(5)
    for place, compute, bound, optimum, launches, kept in rng.sample(data["points"], 25):
        alpha, bandwidth, speed = (Fraction(data["factors"][k]) for k in place)
        other = GradientProblem(
            [
                replace(g, ready_ns=-(-g.ready_ns * speed.denominator // speed.numerator))
                for g in problem.gradients
            ],
            AlphaBeta(30 * alpha, 40 * bandwidth),
        )
        there = optimize(other)
        assert compute == other.compute_ns
        assert optimum == [there.makespan_ns, there.exposed_ns]
        assert (bound, launches) == (there.lower_bound_ns, there.plan.launches)
        timeline = evaluate(other, best.plan)
        assert kept[-1] == [timeline.makespan_ns, timeline.exposed_ns]
        assert kept[-1][0] >= optimum[0]


def test_scaled_costs_of_a_curve():
    """Twice the start-up adds the time for 0 bytes; half the bandwidth doubles the rest."""
    curve = PiecewiseLinear([(1000, 10), (3000, 14), (10_000, 50)])
    for size in (0, 500, 1000, 2500, 9000, 20_000):
        base = curve.exact_ns(size)
        assert ScaledCost(curve, Fraction(2), Fraction(1)).exact_ns(size) == base + 10_000
        slow = ScaledCost(curve, Fraction(1), Fraction(1, 2)).exact_ns(size)
        assert slow == 10_000 + 2 * (base - 10_000)
    assert ScaledCost(curve, Fraction(1), Fraction(1)).measured_to == 10_000


def test_scaled_graphs():
    problem = load(EXAMPLES / "next_forward.json").problem
    other = scaled(problem, Fraction(1), Fraction(1), Fraction(2))
    for task, before in zip(other.tasks, problem.tasks, strict=True):
        if isinstance(task, Compute):
            assert task.duration_ns == -(-before.duration_ns // 2)
        else:
            assert task == before
    assert other.channels == problem.channels


def test_what_if_where_the_optimum_needs_a_search():
    problem = load(EXAMPLES / "next_forward.json").problem
    page = page_of(problem)
    data = page.data["what_if"]
    assert data["optimal"] is False
    assert "needs a search of its own" in page.text
    for place, _, bound, optimum, launches, kept in data["points"]:
        assert optimum is None
        assert launches is None
        assert all(bound <= plan[0] for plan in kept)
        if place == [data["factors"].index(1)] * 3:
            assert kept[-1][0] == optimize(problem).makespan_ns


def test_times_out_of_bounds_are_left_out():
    """Four times as slow, backward would take longer than problems may."""
    problem = GradientProblem([Gradient("a", 4096, 2**49)], AlphaBeta(1, 1))
    points = page_of(problem).data["what_if"]["points"]
    assert 0 < len(points) < 343
    assert all(point[1] <= 2**50 for point in points)


# how stable the plan is


def test_the_range_in_which_the_plan_stays_optimal():
    problem = gradients(12)
    found = contents_of(problem)
    data = Page(page_bytes(found)).data["stability"]
    assert set(data) == {"alpha", "bandwidth", "compute"}
    low, high = (Fraction(end) for end in data["bandwidth"]["optimal"])
    assert low <= 1 <= high
    for factor, inside in ((high * Fraction(99, 100), True), (high * Fraction(101, 100), False)):
        if high >= 10:
            break
        other = scaled(problem, Fraction(1), factor, Fraction(1))
        over = evaluate(other, found.result.plan).makespan_ns - optimize(other).makespan_ns
        assert (over <= found.result.plan.launches) is inside
    factors = [regret[0] for regret in data["alpha"]["regrets"]]
    assert factors == sorted(factors)
    assert all(share >= 0 for _, _, share in data["alpha"]["regrets"])


def test_stability_is_left_out_with_a_reason():
    page = page_of(load(EXAMPLES / "next_forward.json").problem)
    assert "Not known for this step: sensitivity is exact only where ready times" in page.text
    assert page.data["stability"] == {}


# no plan


def limited(*limits):
    problem = gradients(6)
    return problem.with_limits(limits_of_texts(list(limits)))


def test_infeasible_limits_are_named():
    page = page_of(limited("most-bucket-bytes=5MiB", "most-launches=1"))
    assert "Proved impossible" in page.text
    assert "No plan keeps together most-bucket-bytes; most-launches." in page.text
    assert "most-bucket-bytes: 5.00 MiB" in page.text
    assert "most-launches: 1" in page.text
    assert "what runs today breaks a limit" in page.text
    assert [t["title"] for t in page.data["timelines"]] == ["By default: PyTorch DDP"]
    assert page.data["chart"] is None
    check_timeline(page.data, page.data["timelines"][0], contents_of(gradients(6)).today.timeline)


def test_no_plan_in_time():
    problem = gradients(6)
    bound = Bound(problem.compute_ns, "longest path")
    result = Result(problem, "in-order", Status.UNKNOWN, None, bound, "cpsat", "out of time", 1.0)
    page = page_of(problem, result=result)
    assert "No plan found" in page.text
    assert "Out of time." in page.text
    assert "Proved" not in page.text


def test_a_default_that_breaks_a_limit_is_not_compared_with():
    problem = GradientProblem(
        [Gradient(f"g{k}", 4 * MIB, (k + 1) * 100 * US) for k in range(6)], AlphaBeta(30, 10)
    )
    page = page_of(problem.with_limits(limits_of_texts(["most-bucket-bytes=5MiB"])))
    assert "what runs today breaks a limit" in page.text
    assert "Gain" not in page.text
    assert page.data["status"] == "optimal"


def test_prices_beyond_what_was_measured_are_a_doubt():
    cost = PiecewiseLinear([(1000, 10), (100_000, 14)])
    problem = GradientProblem([Gradient("a", 4 * MIB, 10 * US)], cost)
    with pytest.warns(ExtrapolationWarning):
        result = optimize(problem)
    page = page_of(problem, result=result)
    assert "Doubts (1)" in page.text
    assert "a launch of 4.00 MiB is priced by the line through the last points" in page.text
    assert "was measured up to 97.66 KiB" in page.text


def luminance(colour):
    """The relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_texts_stand_out(theme):
    style = files("commsched.report").joinpath("style.css").read_text(encoding="utf-8")
    block = style[style.index(theme) :].partition("}")[0]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    pairs = [("ink", "page"), ("ink", "panel"), ("soft", "page"), ("soft", "panel")]
    pairs += [("link", "page"), ("compute-ink", "compute"), ("ink", "flat")]
    pairs += [(name, f"{name}-page") for name in ("good", "warn", "bad")]
    pairs += [("ink", f"{name}-page") for name in ("warn",)]
    pairs += [("box-ink", n) for n in ("hidden", "gradient", "channel", "length", "held")]
    for text, ground in pairs:
        light, dark = sorted(map(luminance, (colours[text], colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


# what was read


def test_failed_checks_are_at_the_top():
    recorded = hostile_recording()
    recorded = replace(
        recorded,
        report=replace(
            recorded.report,
            checks=(Check("sizes add up: 3 of 4", False), Check("clocks agree", True)),
        ),
    )
    problem = recorded.problem(AlphaBeta(3, 1))
    found = contents_of(problem, recorded=recorded)
    text = page_bytes(found).decode()
    top = text[: text.index('id="settings"')]
    assert "sizes add up: 3 of 4" in top
    assert "clocks agree" not in top
    assert "clocks agree" in text
    assert Page(page_bytes(found)).data["timelines"][0]["title"] == "Today: the recorded buckets"


@pytest.mark.shared
def test_a_real_trace_of_several_channels():
    path = shared_data("hta/negative_queue_rank0_of16.json.gz")
    loaded = load(path, cost=Network.uniform(AlphaBeta(20, 40)))
    found = gather(str(path), loaded, optimize(loaded.problem), time_limit_s=5, workers=2)
    page = check_alone(page_bytes(found))
    report = loaded.recorded.report
    for text in (*report.assumptions, *(check.text for check in report.checks)):
        assert " ".join(text.split()) in page.text
    for what, count in report.kept.items():
        assert f"{count:,} {what}" in page.text
    shown = page.data["timelines"][0]
    assert shown["channels"] == ["channel stream 285", "channel stream 363", "channel stream 84"]
    check_timeline(page.data, shown, evaluate(loaded.problem, loaded.recorded.plan))


# the command


def command(*arguments):
    """Run the command by itself; return its exit code, output and error output."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.command("report")(report_command)
    main, cli_runner.main = cli_runner.main, lambda given: run_app(app, given)
    try:
        return cli_runner.run("report", *arguments)
    finally:
        cli_runner.main = main


@pytest.fixture
def step(tmp_path):
    path = tmp_path / "step.json"
    write_problem(gradients(6), path)
    return path


def test_the_command_writes_the_page(step, tmp_path):
    out = tmp_path / "page.html"
    code, printed, said = command(step, "-o", out)
    assert (code, said) == (0, "")
    lines = printed.splitlines()
    assert lines[0].startswith("verdict: ")
    assert lines[1] == f"written to {out}: open it in a browser"
    page = check_alone(out.read_bytes())
    assert f"read from {step}" in page.text
    code, printed, said = command(step, "-o", out, "--json", "--framework", "horovod")
    assert (code, said) == (0, "")
    document = json.loads(printed)
    assert document["written"] == str(out)
    assert document["bytes"] == out.stat().st_size
    assert document["status"] == "optimal"
    assert "Horovod" in Page(out.read_bytes()).text


def test_the_command_tells_how_far_it_is(step, tmp_path):
    """In lines if asked for; never on standard output, and not where nobody looks."""
    out = tmp_path / "page.html"
    code, printed, said = command(step, "-o", out, "--progress")
    assert code == 0
    lines = said.splitlines()
    assert all(line.startswith("commsched: ") for line in lines)
    parts = [line for line in lines if "making the page: " in line]
    assert [part.split(": ")[2] for part in parts] == [f"{k} of 7" for k in range(7)]
    assert parts[0].endswith("rules")
    assert command(step, "-o", out, "--quiet") == (0, printed, "")
    assert command(step, "-o", out) == (0, printed, "")


def test_parts_are_told_with_what_is_done_in_them():
    told = []
    contents_of(gradients(6), progress=lambda *words: told.append(words))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert {total for _, total, _ in told} == {7}
    assert {done for done, _, _ in told} == set(range(7))
    texts = [now for _, _, now in told]
    assert "rules: Horovod, best setting" in texts
    assert "how wrong the numbers may be: bandwidth" in texts
    assert "slowdown: compute 1.1x as long beside communication" in texts


def test_the_command_writes_a_page_without_a_plan(step, tmp_path):
    out = tmp_path / "page.html"
    limits = ("--limit", "most-bucket-bytes=5MiB", "--limit", "most-launches=1")
    code, _, said = command(step, "-o", out, *limits)
    assert code == 3
    assert (
        said == "commsched: infeasible: no plan keeps together most-bucket-bytes; most-launches\n"
    )
    assert "Proved impossible" in Page(out.read_bytes()).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--framework", "caffe"], "--framework: 'caffe' is not one of ddp, "),
        (["--scope", "some"], "scope: 'some' is not one of"),
        (["-o", "no/such/folder/page.html"], "the folder no/such/folder does not exist"),
    ],
)
def test_refusals(step, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, printed, said = command(step, *arguments)
    assert (code, printed) == (2, "")
    assert message in said
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json"]


def test_the_problem_is_not_overwritten(step):
    before = step.read_bytes()
    code, _, said = command(step, "-o", step)
    assert (code, step.read_bytes()) == (2, before)
    assert "is the input itself" in said


def test_a_folder_is_no_page(step, tmp_path):
    code, _, said = command(step, "-o", tmp_path)
    assert code == 2
    assert "is a folder" in said


def test_random_steps_make_pages():
    """Whatever the problem, the page is whole and its numbers are the evaluator's."""
    rng = random.Random(7)
    for _ in range(6):
        streams = [f"s{k}" for k in range(rng.randint(1, 3))]
        tasks = []
        for k in range(rng.randint(2, 7)):
            after = tuple(rng.sample([t.name for t in tasks], min(len(tasks), rng.randint(0, 2))))
            tasks.append(Compute(f"c{k}", rng.choice((0, 5, 90)), rng.choice(streams), after))
            if rng.random() < 0.7 or k == 0:
                group = rng.choice(("dp", "tp"))
                tasks.append(
                    Collective(f"r{k}", rng.choice((0, 8, 64)), group=group, after=(f"c{k}",))
                )
        costs = {(group, "allreduce"): AlphaBeta(0.01, 1) for group in ("dp", "tp")}
        try:
            problem = Problem(tasks, costs)
        except InputError:
            continue
        found = contents_of(problem)
        page = check_alone(page_bytes(found))
        check_timeline(page.data, page.data["timelines"][-1], found.result.timeline)
        for first, second in pairwise(page.data["timelines"]):
            assert first["title"] != second["title"]

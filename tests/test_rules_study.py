"""The rules' study: its cases, its distances, and that the page in the docs is about those cases."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from commsched.models.errors import CycleError, DeadlockError
from commsched.problems.estimates.library import NAMES, RECORDED

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rules_page import groups, page, table  # noqa: E402
from rules_steps import NETWORKS, STEPS, WHOLE_NETWORKS, Case, Distance, Refusal, cases  # noqa: E402
from rules_study import distances  # noqa: E402

MODELS = tuple(step.model for step in STEPS)
SMALL = Case("backward", "vgg16", "56 Gb/s, 4 GPUs")


@pytest.fixture(scope="module")
def found():
    """What is found about a small backward pass and a small whole step."""
    return [*distances(SMALL), *distances(Case("whole", "vgg16", "56 Gb/s, 4 GPUs"))]


def test_every_step_and_network_has_a_case():
    made = cases(MODELS)
    assert len(set(made)) == len(made)
    assert {case.step for case in made} == {*MODELS, *NAMES, *RECORDED}
    count = len(MODELS) * (len(NETWORKS) + len(WHOLE_NETWORKS)) + len(NAMES) + len(RECORDED)
    assert len(made) == count
    assert len({network.name for network in NETWORKS}) == len(NETWORKS)
    assert set(WHOLE_NETWORKS) <= {network.name for network in NETWORKS}


def test_no_rule_is_better_than_what_it_is_compared_with(found):
    for row in found:
        if isinstance(row, Distance):
            assert row.makespan_ns >= row.best_ns - row.launches, row
    names = {row.rule for row in found if isinstance(row, Distance)}
    assert {"ddp", "ddp-best", "ddp-best-pair", "horovod-best", "in-order", "any"} <= names


def test_the_optimum_in_any_order_is_between_the_bound_and_every_plan(found):
    whole = [row for row in found if row.case.kind == "whole" and isinstance(row, Distance)]
    best = next(row for row in whole if row.rule == "any")
    assert best.optimal
    assert all(row.makespan_ns >= best.makespan_ns - row.launches for row in whole)


def test_rows_are_merged_only_if_equal_and_sorted_by_mean(found):
    rows = [row for row in found if isinstance(row, Distance) and row.case.kind == "backward"]
    made = groups(rows, "backward")
    assert sorted(title for group in made for title in group.titles) == sorted(
        row.title for row in rows
    )
    assert [group.mean for group in made] == sorted(group.mean for group in made)
    lines = table(made, over="optimum", exposed=True)
    assert len(lines) == len(made) + 2
    assert len({line.count("|") for line in lines}) == 1


def test_what_is_left_out_is_said(found):
    refused = [
        Refusal("x-best", "Rule X, best setting", SMALL, "there are too many plans to visit")
    ]
    text = page([*found, *refused])
    assert "Left out, because there are too many plans to visit: Rule X, best setting in 1" in text
    assert text.count("<details") == text.count("</details>")


def test_the_page_is_of_these_cases():
    text = (ROOT / "docs" / "rules_study.md").read_text(encoding="utf-8")
    made = cases(MODELS)
    for kind in ("backward", "whole"):
        assert f"\n{sum(case.kind == kind for case in made)} steps" in text
    assert f"The library's {sum(case.kind == 'sharded' for case in made)} steps" in text
    for network in NETWORKS:
        assert f"| {network.name} |" in text


@pytest.mark.parametrize("kind", [CycleError, DeadlockError])
def test_errors_with_a_path_reach_another_process(kind):
    """The study runs in several processes; an error that cannot be sent would end them all."""
    error = pickle.loads(pickle.dumps(kind("what waits", ["a", "b", "a"])))
    assert (type(error), str(error), error.path) == (kind, "what waits", ("a", "b", "a"))

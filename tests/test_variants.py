"""The best of several forms of one step."""

from __future__ import annotations

import random

import pytest
from oracles import brute_force
from strategies import random_gradient_problem

from commsched.models import AlphaBeta, Gradient, GradientProblem, InputError, MostBucketBytes
from commsched.optimizer import Status, optimize, optimize_variants


def test_the_best_form_is_found_and_proved():
    """As if each had been tried by itself; those that are skipped cannot be better."""
    skipped = 0
    for seed in range(60):
        rng = random.Random(seed)
        forms = {k: random_gradient_problem(rng, 4, dtypes=("float32",)) for k in range(3)}
        found = optimize_variants(forms)
        ends = {k: brute_force(problem, "in-order").makespan for k, problem in forms.items()}
        assert found.result.makespan_ns == optimize(forms[found.best]).makespan_ns
        assert found.result.makespan_ns - found.result.slack_ns <= min(ends.values())
        assert found.result.makespan_ns <= min(ends.values()) + found.result.slack_ns
        assert found.lower_bound_ns <= min(ends.values())
        assert found.status == Status.OPTIMAL
        assert found.results.keys() | found.skipped.keys() == forms.keys()
        assert all(ends[k] >= bound.ns for k, bound in found.skipped.items())
        skipped += len(found.skipped)
    assert skipped > 20


def test_forms_without_a_plan_do_not_count():
    good = GradientProblem([Gradient("a", 10, 5)], AlphaBeta(1, 1))
    bad = good.with_limits([MostBucketBytes(1)])
    found = optimize_variants({"bad": bad, "good": good})
    assert (found.best, found.status) == ("good", Status.OPTIMAL)
    none = optimize_variants({"bad": bad})
    assert (none.best, none.result, none.status) == (None, None, Status.INFEASIBLE)
    with pytest.raises(InputError, match="no form"):
        optimize_variants({})

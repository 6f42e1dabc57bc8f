"""Public names given something else than they take: one clear line, and nothing half-made."""

from __future__ import annotations

import inspect

import pytest

import commsched
from commsched import AlphaBeta, Bucket, Collective, Compute, Gradient, Layer, LayerProfile, Plan
from commsched.models import CommschedError
from commsched.optimizer.rules.ddp import ddp
from commsched.problems.network import Network
from commsched.problems.steps.experts import Experts

COST = AlphaBeta(3, 1)
GRADIENTS = (Gradient("b", 5000, ready_ns=10), Gradient("a", 5000, ready_ns=20))
PROBLEM = commsched.gradient_problem(GRADIENTS, COST)
PLAN = Plan.of([["b"], ["a"]])
PROFILE = LayerProfile((Layer("a", 1000, 2000, 4000), Layer("b", 1000, 2000, 4000)))
TASKS = (Compute("c", 10), Collective("x", 40, after=("c",)))
INSIDE = {"all_gather": COST, "reduce_scatter": COST}
MOE = {"profile": PROFILE, "experts": Experts(4000, 8000, 4000), "costs": {"all_to_all": COST}}


class Odd:
    """Nothing that anybody takes."""


WRONG = [
    *(None, True, -1, 0, 3, 1.5, float("nan"), 10**30, "x", "", b"x", int, len, Odd()),
    *([], [3], [None], [Odd()], ["a"], [["a"]], [(1, 2)], (), (1, 2), {1}, range(3)),
    *({}, {"a": 1}, {("dp", "allreduce"): 3}, {("dp",): COST}, {"x": Odd()}),
    *(COST, GRADIENTS[0], PROBLEM, PLAN, Network),
]
# Each public name with arguments that are right, of which one at a time is replaced.
CALLS = {
    "AlphaBeta": (AlphaBeta, {"alpha_us": 3, "bandwidth_gb_s": 1}),
    "Bucket": (Bucket, {"names": ("a", "b"), "not_before_ns": 0, "chunks": ((0, 4), None)}),
    "BusBandwidth": (
        commsched.BusBandwidth,
        {"alpha_us": 1, "bus_bandwidth_gb_s": 2, "ranks": 4, "kind": "allreduce"},
    ),
    "Collective": (Collective, {"name": "x", "bytes": 4, "group": "dp", "after": ("b",)}),
    "CommschedError": (CommschedError, {"message": "x"}),
    "Compute": (Compute, {"name": "c", "duration_ns": 4, "stream": "s", "after": ("b",)}),
    "Gradient": (Gradient, {"name": "g", "bytes": 4, "ready_ns": 3, "dtype": "float32"}),
    "InputError": (commsched.InputError, {"message": "x"}),
    "Layer": (Layer, {"name": "a", "forward_ns": 10, "backward_ns": 20, "parameter_bytes": 4}),
    "LayerProfile": (LayerProfile, {"layers": PROFILE.layers, "name": "p"}),
    "PiecewiseLinear": (commsched.PiecewiseLinear, {"rows": [(1, 2), (3, 4)]}),
    "Plan": (Plan, {"buckets": PLAN.buckets, "orders": {"s": ("x",)}}),
    "Plan.of": (Plan.of, {"buckets": [["a"], ["b"]]}),
    "a bucket": (lambda bucket: Plan((bucket,)), {"bucket": PLAN.buckets[0]}),
    "its names": (lambda names: Plan.of([names]), {"names": ["a"]}),
    "a name": (lambda name: Plan((Bucket((name,)), Bucket(("a",)))), {"name": "b"}),
    "Problem": (
        commsched.Problem,
        {"tasks": TASKS, "costs": {("dp", "allreduce"): COST}, "channels": {"nic": ["dp"]}},
    ),
    "a task": (
        lambda task: commsched.Problem([task], {("dp", "allreduce"): COST}),
        {"task": Collective("x", 4)},
    ),
    "a channel": (
        lambda groups: commsched.Problem(
            TASKS, {("dp", "allreduce"): COST}, channels={"nic": groups}
        ),
        {"groups": ["dp"]},
    ),
    "limits": (PROBLEM.with_limits, {"limits": ()}),
    "a limit": (
        lambda limit: PROBLEM.with_limits([limit]),
        {"limit": commsched.models.MostBucketBytes(9000)},
    ),
    "StepTable": (commsched.StepTable, {"rows": [(1, 2), (3, 4)]}),
    "compare": (
        commsched.compare,
        {"problem": PROBLEM, "scope": "any", "result": None, "rules": ["ddp"], "time_limit_s": 1},
    ),
    "ddp_step": (commsched.ddp_step, {"profile": PROFILE, "cost": COST}),
    "evaluate": (commsched.evaluate, {"problem": PROBLEM, "plan": PLAN}),
    "fsdp_step": (
        commsched.fsdp_step,
        {"profile": PROFILE, "costs": INSIDE, "reduce_dtype": "float32"},
    ),
    "gradient_problem": (
        commsched.gradient_problem,
        {"gradients": GRADIENTS, "cost": COST, "name": "", "backward_end_ns": None},
    ),
    "a gradient": (
        lambda gradient: commsched.gradient_problem([gradient], COST),
        {"gradient": GRADIENTS[0]},
    ),
    "moe_step": (commsched.moe_step, MOE),
    "moe_steps": (commsched.moe_steps, MOE),
    "optimize": (
        commsched.optimize,
        {"problem": PROBLEM, "scope": "any", "method": "auto", "time_limit_s": 1, "seed": 0},
    ),
    "optimize_variants": (
        commsched.optimize_variants,
        {"problems": {"one": PROBLEM}, "time_limit_s": 1},
    ),
    "read": (commsched.read, {"path": "problem.json", "cost": None}),
    "rule": (commsched.rule, {"name": "ddp"}),
    "tune": (
        lambda problem, unit_bytes: commsched.tune(
            problem, lambda step, cap: ddp(step, [cap]), unit_bytes
        ),
        {"problem": PROBLEM, "unit_bytes": 1},
    ),
    "two_level": (
        commsched.two_level,
        {"problem": PROBLEM, "inside": INSIDE, "across": COST, "local_ranks": 4},
    ),
    "write_problem": (commsched.write_problem, {"problem": PROBLEM, "path": "written.json"}),
}
MADE_BY_US = {"Comparison", "CostCurve", "Result", "Status", "Timeline"}
"""Results, and names that nobody calls."""


def used(made):
    """Do what follows the making of a value."""
    if isinstance(made, Plan):
        hash(made)
        commsched.evaluate(PROBLEM, made)
    elif isinstance(made, commsched.Problem):
        commsched.evaluate(made, Plan.of([name] for name in made.names))


def test_every_public_name_is_called():
    assert set(commsched.__all__) - MADE_BY_US <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_refused_in_one_line_or_taken_as_it_should(name, tmp_path, monkeypatch):
    """CommschedError, or for a path Python's own TypeError; what is made can be used and hashed."""
    monkeypatch.chdir(tmp_path)
    commsched.write_problem(PROBLEM, "problem.json")
    make, right = CALLS[name]
    make(**right)
    lines = [refused(make, {**right, field: wrong}, field) for field in right for wrong in WRONG]
    assert all(line is None or (line and "\n" not in line) for line in lines)
    assert any(lines) or name in ("CommschedError", "InputError")


def refused(make, arguments, field):
    """Return the line with which something is refused, or None; anything else than that fails."""
    try:
        used(make(**arguments))
    except CommschedError as error:
        return str(error)
    except TypeError as error:
        if field != "path" or "PathLike" not in str(error):
            raise
        return str(error)
    return None


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: commsched.gradient_problem([3], COST), "gradients: item 0 is 3, not a Gradient"),
        (lambda: commsched.gradient_problem(3, COST), "gradients: 3 must be a list"),
        (lambda: Plan([["a"], ["b"]]), "plan: buckets: item 0 is ['a'], not a Bucket"),
        (lambda: Plan.of(["ab"]), "'ab' must be a list of names"),
        (lambda: Bucket((["a"],)), "bucket: item 0 is ['a'], not a str"),
        (lambda: commsched.optimize(3), "problem: 3 must be of type Problem"),
        (lambda: commsched.evaluate(PROBLEM, [["a"]]), "plan: [['a']] must be of type Plan"),
    ],
)
def test_the_line_names_the_item_the_value_and_the_type(make, line):
    with pytest.raises(commsched.InputError) as caught:
        make()
    assert str(caught.value) == line


def test_lists_of_what_is_right_are_taken_and_make_equal_values():
    """Lists become tuples, so that plans from code and from files are equal and can be keys."""
    plan = Plan([Bucket(["a"]), Bucket(("b",))], {"s": ["x", "y"]})
    assert plan == Plan((Bucket(("a",)), Bucket(("b",))), {"s": ("x", "y")})
    assert len({plan, Plan((Bucket(("a",)), Bucket(("b",))), {"s": ("x", "y")})}) == 1
    assert plan.orders["s"] == ("x", "y")
    assert set(inspect.signature(Plan).parameters) == {"buckets", "orders"}

"""Data-parallel steps with the next forward: by hand, against the oracles, in chunks."""

from __future__ import annotations

import random

import pytest
from step_maker import check_optimum, check_step, each, random_cost, random_profile
from strategies import random_valid_plan

from commsched.models import AlphaBeta, Bucket, Collective, Gradient, InputError, Plan, evaluate
from commsched.optimizer import optimize
from commsched.problems.steps.builders import gradient_problem
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.layer_models import estimated_profile
from commsched.problems.steps.layers import Layer, LayerProfile, Tensor

UNIT = AlphaBeta(0.002, 1)
"""Two nanoseconds and one for each byte."""
THREE = LayerProfile(
    (Layer("a", 10, 20, 8), Layer("b", 10, 20, 20), Layer("c", 10, 20, 30)), "three"
)


def test_three_layers_by_hand():
    """Backward ends at 60. c: 20-52, b: 52-74, a: 74-84; forwards 84-94, 94-104, 104-114."""
    problem = ddp_step(THREE, UNIT)
    assert [task.name for task in problem.tasks] == [
        "backward c", "c", "backward b", "b", "backward a", "a", "forward a", "forward b", "forward c"
    ]  # fmt: skip
    assert (problem.compute_ns, problem.name) == (90, "three: data-parallel step")
    timeline = evaluate(problem, each(problem))
    assert (timeline.makespan_ns, timeline.exposed_ns) == (114, 24)
    # One bucket: ready at 60, 60 bytes.
    assert evaluate(problem, Plan.of([["a", "b", "c"]])).makespan_ns == 60 + 60 + 30
    # a's gradient goes first: c 20-52, a 60-70, b 70-92; a 70-80, b 92-102, c 102-112.
    first = Plan.of([["c"], ["a"], ["b"]])
    assert evaluate(problem, first).makespan_ns == 112
    assert optimize(problem, scope="any").makespan_ns == check_optimum(problem, "any") <= 112
    check_step(problem, first)


def test_without_the_next_forward_it_is_a_plain_backward_pass():
    problem = ddp_step(THREE, UNIT, next_forward=False)
    gradients = [Gradient("c", 30, 20), Gradient("b", 20, 40), Gradient("a", 8, 60)]
    flat = gradient_problem(gradients, UNIT)
    assert (problem.settled, problem.compute_ns) == (True, flat.compute_ns)
    assert problem.ready_ns == flat.ready_ns
    for scope in ("in-order", "any"):
        ours, its = optimize(problem, scope=scope), optimize(flat, scope=scope)
        assert ours.makespan_ns == its.makespan_ns
        assert ours.plan == its.plan


def test_an_optimizer_step_for_all_or_for_each_layer():
    """One for all waits for the last all-reduce at 84; each runs before its layer's forward."""
    whole = ddp_step(THREE, UNIT, optimizer_ns=6)
    assert evaluate(whole, each(whole)).makespan_ns == 84 + 6 + 30
    layers = ddp_step(THREE, UNIT, optimizer_ns={"a": 1, "b": 2, "c": 3})
    names = [task.name for task in layers.tasks if not isinstance(task, Collective)]
    assert names[3:5] == ["optimizer a", "forward a"]
    assert evaluate(layers, each(layers)).makespan_ns == 84 + 6 + 30
    # With a sent first, the others' updates are hidden: a done at 70, b at 92.
    first = Plan.of([["c"], ["a"], ["b"]])
    assert evaluate(layers, first).makespan_ns == 92 + 2 + 10 + 3 + 10
    last = ddp_step(THREE, UNIT, optimizer_ns={"b": 2}, next_forward=False)
    assert evaluate(last, each(last)).makespan_ns == max(84, 74 + 2)


def test_tensors_of_a_layer_come_in_reverse_and_the_forward_waits_for_all():
    layer = Layer("fc", 10, 20, tensors=(Tensor("fc.weight", 10), Tensor("fc.bias", 2)))
    problem = ddp_step(LayerProfile((layer,)), UNIT)
    assert problem.names == ["fc.bias", "fc.weight"]
    assert problem.tasks[-1].after == ("fc.weight", "fc.bias")
    assert evaluate(problem, each(problem)).makespan_ns == 20 + 4 + 12 + 10


def test_chunks_have_full_size_and_a_rest_and_the_forward_waits_for_each():
    problem = ddp_step(THREE, UNIT, chunk_bytes=8)
    assert problem.names == [
        "c [1/4]", "c [2/4]", "c [3/4]", "c [4/4]", "b [1/3]", "b [2/3]", "b [3/3]", "a"
    ]  # fmt: skip
    assert problem.bytes == [8, 8, 8, 6, 8, 8, 4, 8]
    by_name = {task.name: task for task in problem.tasks}
    assert by_name["forward b"].after == ("b [1/3]", "b [2/3]", "b [3/3]")


@pytest.mark.parametrize("seed", range(6))
def test_a_finer_chunk_size_allows_every_plan_of_its_multiples(seed):
    """A coarse chunk is a bucket of fine ones: the same timeline, so no worse an optimum."""
    rng = random.Random(seed)
    profile = random_profile(rng, 3)
    cost, size = random_cost(rng), rng.choice((1, 2, 3))
    coarse = ddp_step(profile, cost, chunk_bytes=2 * size)
    fine = ddp_step(profile, cost, chunk_bytes=size)
    for scope in ("in-order", "any"):
        plan = random_valid_plan(rng, coarse, scope)
        parts = {}
        names = iter(fine.names)
        for name, total in zip(coarse.names, coarse.bytes, strict=True):
            parts[name] = []
            while sum(fine.bytes[fine.index[n]] for n in parts[name]) < total:
                parts[name].append(next(names))
        buckets = [
            Bucket(tuple(p for n in bucket.names for p in parts[n]), bucket.not_before_ns)
            for bucket in plan.buckets
        ]
        split = Plan(tuple(buckets))
        assert evaluate(fine, split).makespan_ns == evaluate(coarse, plan).makespan_ns
    best = {n: optimize(step, workers=2).makespan_ns for n, step in ((1, fine), (2, coarse))}
    assert best[1] <= best[2]


def test_movable_weight_gradients_can_run_later():
    """The inner gradients come first, so b's all-reduce starts later and the end is nearer."""
    layers = (
        Layer("a", 10, 20, 40, weight_gradient_ns=10),
        Layer("b", 10, 20, 1, weight_gradient_ns=10),
    )
    problem = ddp_step(LayerProfile(layers), UNIT, movable_weights=True)
    names = [task.name for task in problem.tasks if not isinstance(task, Collective)]
    assert names[:4] == ["backward b", "weights b", "backward a", "weights a"]
    # As listed a is ready at 40, sent by 82; with b's weights last it is ready at 30.
    assert evaluate(problem, each(problem)).makespan_ns == 82 + 20
    assert check_optimum(problem, "any") == 30 + 42 + 20
    fixed = ddp_step(LayerProfile(layers), UNIT)
    assert evaluate(fixed, each(fixed)).makespan_ns == 82 + 20


@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_the_optimum_is_that_of_all_plans(scope):
    for seed in range(20):
        rng = random.Random(seed)
        profile = random_profile(rng, 3, tensors=True)
        problem = ddp_step(
            profile,
            random_cost(rng),
            optimizer_ns=rng.choice((None, 3, {"L0": 2})),
            chunk_bytes=rng.choice((None, 4)),
            movable_weights=scope == "in-order"
            and rng.random() < 0.3
            and any(n.weight_gradient_ns and n.parameter_bytes for n in profile.layers),
        )
        if len(problem.names) > (4 if scope == "any" else 6):
            continue
        check_step(problem, random_valid_plan(rng, problem, scope))
        check_optimum(problem, scope)


def test_llama_by_block():
    profile = estimated_profile("llama3-8b", samples=4096, tflops=300, dtype="bfloat16", by="block")
    problem = ddp_step(profile, AlphaBeta(30, 100))
    assert (len(problem.names), len(problem.tasks)) == (291, 291 + 70)
    assert sum(problem.bytes) == 16_060_522_496


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_bytes": 0}, "chunk_bytes: 0 must be above 0"),
        ({"chunk_bytes": -1}, "chunk_bytes: -1 must be at least 0"),
        ({"optimizer_ns": -1}, "optimizer_ns: -1 must be at least 0"),
        ({"optimizer_ns": {"d": 1}}, "optimizer_ns: 'd' is no layer with parameters"),
        ({"optimizer_ns": {"a": True}}, "optimizer_ns of 'a': True is a boolean"),
        ({"movable_weights": True}, "no layer of the profile says how long"),
        ({"group": ""}, "must be a non-empty text"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError) as error:
        ddp_step(THREE, UNIT, **options)
    assert message in str(error.value)


def test_too_many_chunks_and_clashing_names_are_refused():
    huge = LayerProfile((Layer("a", 1, 1, 2**40),))
    with pytest.raises(InputError, match="makes 1099511627776 chunks, at most 200000 may be"):
        ddp_step(huge, UNIT, chunk_bytes=1)
    clash = LayerProfile((Layer("a", 1, 1, 4), Layer("backward a", 1, 1, 4)))
    with pytest.raises(InputError, match="'backward a': the name is used twice"):
        ddp_step(clash, UNIT)

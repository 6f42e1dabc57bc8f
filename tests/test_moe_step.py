"""Steps with experts: by hand, in chunks, with fillers, and all plans tried."""

from __future__ import annotations

import random

import pytest
from step_maker import check_optimum, check_step, each, random_cost
from strategies import random_valid_plan

from commsched.models import AlphaBeta, Collective, Compute, InputError, Plan, evaluate
from commsched.optimizer import Status, optimize, optimize_variants
from commsched.problems.steps.experts import Experts, estimated_experts
from commsched.problems.steps.layers import Layer, LayerProfile
from commsched.problems.steps.moe_step import moe_step, moe_steps

UNIT = AlphaBeta(0.002, 1)
"""Two nanoseconds and one for each byte."""
COSTS = {"all_to_all": UNIT}
ONE = LayerProfile((Layer("a", 10, 20),))
EXPERTS = Experts(40, 80, dispatch_bytes=20)


def computes(problem) -> list[str]:
    return [task.name for task in problem.tasks if isinstance(task, Compute)]


def test_one_layer_by_hand():
    """Forward 10, dispatch 22, experts 40, combine 22; backward 22, 80, 22, 20."""
    problem = moe_step(ONE, EXPERTS, COSTS)
    assert [task.name for task in problem.tasks] == [
        "forward a", "dispatch a", "experts a", "combine a",
        "backward combine a", "backward experts a", "backward dispatch a", "backward a",
    ]  # fmt: skip
    timeline = evaluate(problem, each(problem))
    assert (timeline.makespan_ns, problem.compute_ns) == (10 + 84 + 124 + 20, 150)
    check_step(problem)


def test_chunks_pipeline_the_experts_with_the_all_to_alls():
    """Two chunks of 10 bytes: 10-22, 22-34 there; experts 22-42, 42-62; back 42-54, 62-74."""
    problem = moe_step(ONE, EXPERTS, COSTS, chunks=2)
    assert problem.bytes == [10] * 8
    timeline = evaluate(problem, each(problem))
    ends = dict(timeline.ends_ns)
    assert ends["experts a [2/2]"] == 62
    assert ends["combine a [2/2]"] == 74
    # Backward: 74-86, 86-98 there; experts 86-126, 126-166; back 126-138, 166-178; then 20.
    assert timeline.makespan_ns == 178 + 20
    # The chunks may be fused again: one launch for both is the step without chunks.
    pairs = [problem.names[k : k + 2] for k in range(0, 8, 2)]
    assert evaluate(problem, Plan.of(pairs)).makespan_ns == 238
    check_step(problem, Plan.of(pairs))


def test_chunks_across_layers_by_hand():
    """A chunk's all-to-alls wait for that chunk only, and the chunk's next compute for them.

    Forward 0-5, 5-10; there 5-17, 17-29; experts 17-37, 37-57; back 37-49, 57-69. Backward as
    listed: 69-81, 81-93; experts 81-121, 121-161; 121-133, 161-173; own 161-171, 173-183.
    """
    problem = moe_step(ONE, EXPERTS, COSTS, chunks=2, across_layers=True)
    assert computes(problem) == [
        "forward a [1/2]", "forward a [2/2]", "experts a [1/2]", "experts a [2/2]",
        "backward experts a [1/2]", "backward experts a [2/2]", "backward a [1/2]", "backward a [2/2]",
    ]  # fmt: skip
    assert evaluate(problem, each(problem)).makespan_ns == 183
    # The first chunk turns round before the second one is back: 49-61, then 61-73 and 73-85.
    order = problem.names.copy()
    order.insert(order.index("combine a [2/2]"), order.pop(order.index("backward combine a [1/2]")))
    plan = Plan.of([name] for name in order)
    assert evaluate(problem, plan).makespan_ns == 163
    check_step(problem, plan)
    assert (
        moe_step(ONE, EXPERTS, COSTS, across_layers=True).tasks
        == moe_step(ONE, EXPERTS, COSTS).tasks
    )


def test_chunks_across_layers_add_up_and_gradients_wait_for_all():
    profile = LayerProfile(
        (Layer("a", 11, 23, 30, weight_gradient_ns=7), Layer("b", 5, 9, 12, weight_gradient_ns=9))
    )
    experts = Experts(
        40, 80, 20, shared_forward_ns=13, shared_backward_ns=27, weight_gradient_ns=31
    )
    costs = {**COSTS, "allreduce": UNIT}
    whole = moe_step(profile, experts, costs)
    for count in (2, 3):
        problem = moe_step(
            profile, experts, costs, chunks=count, across_layers=True, chunk_overhead_ns=2
        )
        sums: dict[str, int] = {}
        pieces: dict[str, int] = {}
        for task in problem.tasks:
            if isinstance(task, Compute):
                name = task.name.partition(" [")[0]
                sums[name] = sums.get(name, 0) + task.duration_ns
                pieces[name] = pieces.get(name, 0) + 1
        for task in whole.tasks:
            if isinstance(task, Compute):
                overhead = 0 if "weights" in task.name else 2 * (count - 1)
                assert sums[task.name] == task.duration_ns + overhead
                assert pieces[task.name] == (1 if "expert weights" in task.name else count)
        after = {task.name: task.after for task in problem.tasks}
        assert after["gradients a"] == tuple(f"weights a [{k + 1}/{count}]" for k in range(count))
        assert after[f"forward b [{count}/{count}]"] == (
            f"shared a [{count}/{count}]",
            f"combine a [{count}/{count}]",
        )
        check_step(problem)


def test_the_number_of_chunks_and_what_is_cut_are_decided():
    """Forms compete: without an overhead cutting all the layers' compute is best here."""
    profile = LayerProfile((Layer("a", 40, 80),))
    forms = {
        (count, across): moe_step(
            profile, EXPERTS, COSTS, chunks=count, across_layers=across, chunk_overhead_ns=1
        )
        for count in (1, 2)
        for across in (False, True)
        if count > 1 or not across
    }
    found = optimize_variants(forms, scope="any", workers=2, time_limit_s=60)
    assert (found.best, found.status) == ((2, True), Status.OPTIMAL)
    ends = {form: optimize(step, scope="any", workers=2) for form, step in forms.items()}
    assert found.result.makespan_ns == min(end.makespan_ns for end in ends.values())
    assert found.lower_bound_ns <= found.result.makespan_ns


def test_chunks_add_up_and_cost_an_overhead_each_but_the_first():
    odd = Experts(41, 83, dispatch_bytes=21, combine_bytes=31)
    for count, problem in moe_steps(ONE, odd, COSTS, chunk_overhead_ns=5).items():
        sums = {"dispatch": 0, "combine": 0, "experts": 0, "backward experts": 0}
        for task in problem.tasks:
            kind = task.name.rsplit(" a", 1)[0]
            if kind in sums:
                sums[kind] += task.bytes if isinstance(task, Collective) else task.duration_ns
        extra = 5 * (count - 1)
        assert sums == {
            "dispatch": 21, "combine": 31, "experts": 41 + extra, "backward experts": 83 + extra
        }  # fmt: skip
        backward = {t.name: t.bytes for t in problem.collectives if "backward" in t.name}
        assert sum(size for name, size in backward.items() if "combine" in name) == 31


def test_the_best_number_of_chunks_is_neither_one_nor_the_most():
    """Overheads eat what pipelining brings: the choice is made over the dictionary."""
    big = Experts(400, 800, dispatch_bytes=200)
    steps = moe_steps(ONE, big, {"all_to_all": AlphaBeta(0.01, 1)}, chunk_overhead_ns=60)
    ends = {n: evaluate(step, each(step)).makespan_ns for n, step in steps.items()}
    assert list(ends) == [1, 2, 4, 8]
    assert min(ends, key=ends.__getitem__) == 2
    assert min(steps, key=lambda n: optimize(steps[n], workers=2, time_limit_s=5).makespan_ns) == 2


def test_a_shared_expert_and_weight_gradients_fill_the_waits():
    """As listed: shared (15) during the dispatch, expert weights (30) during the way back."""
    experts = Experts(
        40, 80, 20, shared_forward_ns=15, shared_backward_ns=25, weight_gradient_ns=30
    )
    layer = LayerProfile((Layer("a", 10, 20, 8, weight_gradient_ns=10),))
    problem = moe_step(layer, experts, COSTS)
    assert computes(problem) == [
        "forward a", "shared a", "experts a",
        "backward shared a", "backward experts a", "expert weights a", "backward a", "weights a",
    ]  # fmt: skip
    movable = [t.name for t in problem.tasks if isinstance(t, Compute) and t.movable]
    assert movable == ["shared a", "backward shared a", "expert weights a", "weights a"]
    # 10, dispatch until 32 (shared 10-25), experts until 72, combine 94; combine 116, shared
    # 94-119, experts (50) until 169, back 191, weights 169-199, a's inner 10 and its weights 10.
    assert evaluate(problem, each(problem)).makespan_ns == 199 + 20
    check_step(problem)
    fixed = moe_step(layer, experts, COSTS, movable=False)
    assert not any(t.movable for t in fixed.tasks if isinstance(t, Compute))
    # Shared until 119, experts 80 until 199, back 221, 20.
    assert evaluate(fixed, each(fixed)).makespan_ns == 241
    # Weights last: experts 116-166, back 188, inner 198; its weights and the experts' end it.
    assert check_optimum(problem, "in-order") <= 219


def test_layers_without_experts_and_the_all_reduce_of_their_own_gradients():
    profile = LayerProfile((Layer("a", 10, 20, 30), Layer("b", 10, 20, 30)))
    costs = {**COSTS, "allreduce": UNIT}
    problem = moe_step(profile, {"b": EXPERTS}, costs)
    assert [task.name for task in problem.tasks] == [
        "forward a", "forward b", "dispatch b", "experts b", "combine b",
        "backward combine b", "backward experts b", "backward dispatch b", "backward b",
        "gradients b", "backward a", "gradients a",
    ]  # fmt: skip
    # 20, 22, 40, 22, 22, 80, 22, 20 = 248; b's gradient until 280, a's backward 268: 280-312.
    assert evaluate(problem, each(problem)).makespan_ns == 312
    shared = moe_step(profile, {"a": EXPERTS}, costs, one_nic=True)
    assert set(shared.channels.values()) == {"nic"}
    # Forward 10 + 84 + 10, b's backward until 124: its gradient (32) is in the all-to-all's way,
    # or fits in while the experts compute (146-226, 22 + 80 after 124).
    order = [name for name in shared.names if name != "gradients b"]
    at = order.index("backward combine a")
    early = Plan.of([n] for n in [*order[:at], "gradients b", *order[at:]])
    late = Plan.of([n] for n in [*order[: at + 1], "gradients b", *order[at + 1 :]])
    assert evaluate(shared, late).makespan_ns == 124 + 124 + 20 + 32
    assert evaluate(shared, early).makespan_ns == 124 + 32 + 124 + 20 + 32
    check_step(shared, early, late)


@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_the_optimum_is_that_of_all_plans(scope):
    tried = 0
    for seed in range(20):
        rng = random.Random(seed)
        parameters = rng.choice((0, 6))
        profile = LayerProfile(
            (Layer("a", rng.choice((0, 5, 9)), rng.choice((4, 10)), parameters),)
        )
        experts = Experts(
            rng.choice((4, 12)),
            rng.choice((12, 20)),
            rng.choice((3, 8)),
            rng.choice((None, 5)),
            shared_forward_ns=rng.choice((0, 4)),
            weight_gradient_ns=rng.choice((0, 6)),
        )
        costs = {"all_to_all": random_cost(rng)}
        if rng.random() < 0.5:
            costs["allreduce"] = random_cost(rng)
        problem = moe_step(
            profile,
            experts,
            costs,
            chunks=1 if scope == "any" else rng.choice((1, 2)),
            across_layers=rng.random() < 0.5,
            chunk_overhead_ns=rng.choice((0, 2)),
            movable=scope == "in-order" and rng.random() < 0.5,
            one_nic=rng.random() < 0.5,
        )
        check_step(problem, random_valid_plan(rng, problem, scope))
        if len(problem.names) > 5 and problem.movable:
            continue
        tried += 1
        check_optimum(problem, scope)
    assert tried >= 8


def test_mixtral_chunks_help():
    profile, experts = estimated_experts("mixtral-8x7b", samples=4096, tflops=300, shared=True)
    costs = {"all_to_all": AlphaBeta(30, 40), "allreduce": AlphaBeta(30, 40)}
    steps = moe_steps(profile, experts, costs, chunks=(1, 4))
    assert len(steps[4].names) == 32 * 4 * 4 + 35
    ends = {n: evaluate(step, each(step)).makespan_ns for n, step in steps.items()}
    assert ends[4] < ends[1]


def test_a_tiny_step_is_proved():
    result = optimize(moe_step(ONE, EXPERTS, COSTS), workers=2)
    assert (result.status, result.makespan_ns) == (Status.OPTIMAL, 238)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("a", EXPERTS, COSTS), {}, "profile: 'a' is not a LayerProfile"),
        ((ONE, {}, COSTS), {}, "experts: at least one layer must have experts"),
        ((ONE, {"b": EXPERTS}, COSTS), {}, "experts: 'b' is no layer of the profile"),
        ((ONE, {"a": 3}, COSTS), {}, "experts of 'a': 3 is not an Experts"),
        ((ONE, EXPERTS, {}), {}, "a cost curve for all_to_all is missing"),
        ((ONE, EXPERTS, {**COSTS, "broadcast": UNIT}), {}, "'broadcast' is neither all_to_all"),
        ((ONE, EXPERTS, UNIT), {}, "costs: a mapping from kind to cost curve is needed"),
        ((ONE, EXPERTS, COSTS), {"across_layers": 1}, "across_layers: 1 must be True or False"),
        ((ONE, EXPERTS, COSTS), {"chunks": 0}, "chunks: 0 must be a whole number from 1"),
        ((ONE, EXPERTS, COSTS), {"chunks": 200001}, "chunks: 200001 times 1 layers is more than"),
        ((ONE, EXPERTS, COSTS), {"chunk_overhead_ns": -1}, "chunk_overhead_ns: -1"),
        ((ONE, EXPERTS, COSTS), {"group": ""}, "group: '' must be a non-empty text"),
    ],
)
def test_what_is_refused(arguments, options, message):
    with pytest.raises(InputError) as error:
        moe_step(*arguments, **options)
    assert message in str(error.value)


def test_a_choice_of_no_chunks_is_refused():
    with pytest.raises(InputError, match=r"chunks: .* must be a list of at least one number"):
        moe_steps(ONE, EXPERTS, COSTS, chunks=())

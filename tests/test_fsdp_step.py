"""Sharded steps: by hand, memory, prefetch, micro-batches, units, and all plans tried."""

from __future__ import annotations

import random

import pytest
from oracles import Stuck, brute_force
from step_maker import check_optimum, check_step, each, random_profile, sharded_costs
from strategies import random_valid_plan

from commsched.models import (
    Alike,
    AlphaBeta,
    Apart,
    Collective,
    DeadlockError,
    InputError,
    NotApplicableError,
    Plan,
    PoolBytes,
    evaluate,
)
from commsched.models.timeline import play
from commsched.optimizer import Status, optimize
from commsched.optimizer.rules.fsdp_default import fsdp_default
from commsched.problems.steps.ddp_step import ddp_step
from commsched.problems.steps.fsdp_step import FSDP2_PREFETCH, fsdp_step
from commsched.problems.steps.layer_models import estimated_profile
from commsched.problems.steps.layers import Layer, LayerProfile

UNIT = AlphaBeta(0.002, 1)
"""Two nanoseconds and one for each byte."""
COSTS = {"all_gather": UNIT, "reduce_scatter": UNIT}
TWO = LayerProfile((Layer("a", 20, 40, 10), Layer("b", 20, 40, 10)), "two")
FOUR = LayerProfile(tuple(Layer(name, 20, 40, 10) for name in "abcd"))


def spans(timeline) -> dict[str, tuple[int, int]]:
    return {launch.names[0]: (launch.start_ns, launch.end_ns) for launch in timeline.launches}


def test_two_layers_by_hand():
    """Gathers 0-12, 12-24; forwards 12-32, 32-52; gathered again 52-64, 64-76; backward b 64-104,
    a 104-144; scatter b 104-116, a 144-156."""
    problem = fsdp_step(TWO, COSTS)
    timeline = evaluate(problem, each(problem))
    assert spans(timeline) == {
        "gather a": (0, 12),
        "gather b": (12, 24),
        "gather b again": (52, 64),
        "gather a again": (64, 76),
        "scatter b": (104, 116),
        "scatter a": (144, 156),
    }
    assert (timeline.makespan_ns, problem.compute_ns) == (156, 120)
    assert timeline.pool_peak("gathered") == 20
    assert timeline.pool_peak("gradients") == 10
    check_step(problem)


def test_one_unit_of_both_layers_is_one_launch_in_each_pass():
    """22 to gather, 40 forward, 22 again, 80 backward, 22 to scatter."""
    problem = fsdp_step(TWO, COSTS)
    plan = Plan.of(
        [["gather a", "gather b"], ["gather b again", "gather a again"], ["scatter b", "scatter a"]]
    )
    timeline = evaluate(problem, plan)
    assert (timeline.makespan_ns, timeline.broken) == (22 + 40 + 22 + 80 + 22, ())
    uneven = [["gather a", "gather b"], ["gather b again"], ["gather a again"]]
    broken = evaluate(problem, Plan.of([*uneven, ["scatter b", "scatter a"]])).broken
    assert "grouped differently" in broken[0]


def test_gathers_of_two_passes_never_share_a_launch():
    """A backward pass's gathers wait for all of forward, so such a bucket waits for itself."""
    problem = fsdp_step(TWO, COSTS)
    with pytest.raises(DeadlockError):
        evaluate(
            problem,
            Plan.of([["gather a"], ["gather b", "gather a again"], ["gather b again"],
                     ["scatter b"], ["scatter a"]]),
        )  # fmt: skip


def test_parameters_that_are_kept_are_gathered_once_and_held_until_backward():
    kept = fsdp_step(TWO, COSTS, reshard_after_forward=False)
    assert kept.names == ["gather a", "gather b", "scatter b", "scatter a"]
    timeline = evaluate(kept, each(kept))
    assert timeline.makespan_ns == 12 + 40 + 80 + 12
    assert timeline.pool_peak("gathered") == 20
    last = fsdp_step(FOUR, COSTS, reshard_after_forward="all-but-last")
    again = [name for name in last.names if name.endswith("again")]
    assert again == ["gather c again", "gather b again", "gather a again"]
    users = {task.name: task for task in last.tasks}
    assert users["backward d"].after == ("gather d",)
    assert users["gather d"].hold.until == ("backward d",)
    # The last layer shares no unit with one whose parameters go.
    apart = {limit.names for limit in last.limits if isinstance(limit, Apart)}
    assert apart == {(f"gather {name}", "gather d") for name in "abc"}
    check_step(last)


def test_two_communicators_overlap_unless_they_share_a_nic():
    """With slow scatters a gather waits behind one on one channel, and not on two."""
    costs = {"all_gather": UNIT, "reduce_scatter": AlphaBeta(0.05, 1)}
    order = ["gather a", "gather b", "gather c", "gather d", "gather d again", "gather c again",
             "scatter d", "gather b again", "scatter c", "gather a again", "scatter b",
             "scatter a"]  # fmt: skip
    plan = Plan.of([name] for name in order)
    one = evaluate(fsdp_step(FOUR, costs), plan)
    # 92 forward, gather d again until 104, d's backward until 144; scatter d 144-204, then b's
    # gather 204-216, b computes until 256, scatter c 216-276, a's gather 276-288, a until 328.
    assert spans(one)["scatter d"] == (144, 204)
    assert spans(one)["gather b again"] == (204, 216)
    # scatter b 288-348, scatter a 348-408.
    assert one.makespan_ns == 408
    two = evaluate(fsdp_step(FOUR, costs, communicators=2), plan)
    # Nothing of the gathers is seen but the first of each pass; scatters end 240 after 144.
    assert two.makespan_ns == 144 + 4 * 60
    shared = fsdp_step(FOUR, costs, communicators=2, one_nic=True)
    assert set(shared.channels.values()) == {"fsdp nic"}
    assert evaluate(shared, plan).makespan_ns == one.makespan_ns


def test_the_limit_of_gathered_bytes_delays_gathers():
    """Room for one layer: nothing overlaps. Room for two: as without a limit."""
    for limit, makespan in ((10, 2 * (12 + 20) + 2 * (12 + 40) + 12), (20, 156)):
        problem = fsdp_step(TWO, COSTS, gathered_limit_bytes=limit)
        assert PoolBytes("gathered", limit) in problem.limits
        order = fsdp_default(problem)
        timeline = evaluate(problem, order)
        assert (timeline.makespan_ns, timeline.broken) == (makespan, ())
        assert timeline.pool_peak("gathered") <= limit
        check_step(problem, order)


def test_the_limit_of_gradients_must_be_kept_by_the_plan():
    """One unit of all layers has all gradients waiting; one a layer has one."""
    problem = fsdp_step(FOUR, COSTS, gradient_limit_bytes=20)
    assert evaluate(problem, fsdp_default(problem)).broken == ()
    rows = [[f"gather {n}" for n in "abcd"], [f"gather {n} again" for n in "dcba"],
            [f"scatter {n}" for n in "dcba"]]  # fmt: skip
    broken = evaluate(problem, Plan.of(rows)).broken
    assert broken == ("pool-bytes gradients: 40 B of gradients are alive at once, 20 bytes may be",)


def test_prefetch_says_how_far_ahead_a_gather_runs():
    """0: each gather is exposed, in backward behind a scatter. 1: at most two are gathered."""
    none = fsdp_step(FOUR, COSTS, prefetch=0)
    assert evaluate(none, fsdp_default(none)).makespan_ns == 4 * 32 + 4 * 52 + 3 * 12 + 12
    one = fsdp_step(FOUR, COSTS, prefetch=1)
    timeline = evaluate(one, fsdp_default(one))
    # Forward 12 + 80. Again d 92-104; backward d 104-144, scatter d 144-156, b's gather 156-168.
    assert spans(timeline)["gather c"][0] == 32
    assert spans(timeline)["gather b again"] == (156, 168)
    assert timeline.makespan_ns == 104 + 160 + 12
    assert timeline.pool_peak("gathered") == 20
    pair = fsdp_step(FOUR, COSTS, prefetch=FSDP2_PREFETCH)
    starts = spans(evaluate(pair, fsdp_default(pair)))
    # Forward: c is gathered when a begins at 12 (after b's gather), d when b begins at 32.
    assert [starts[f"gather {n}"][0] for n in "abcd"] == [0, 12, 24, 36]
    assert starts["gather b again"] == (156, 168)
    free = fsdp_step(FOUR, COSTS)
    assert evaluate(free, fsdp_default(free)).pool_peak("gathered") > 20
    check_step(one, fsdp_default(one))
    # A unit of three layers would need the third before the first computes: it waits for itself.
    three = [["gather a", "gather b", "gather c"], *([name] for name in one.names[3:])]
    with pytest.raises(DeadlockError):
        evaluate(one, Plan.of(three))


def test_scatter_buffers_hold_backward_back():
    """One buffer: backward b waits for the scatter of d, and so on."""
    costs = {"all_gather": UNIT, "reduce_scatter": AlphaBeta(0.05, 1)}
    problem = fsdp_step(FOUR, costs, communicators=2, scatter_buffers=1)
    by_name = {task.name: task for task in problem.tasks}
    assert by_name["backward d"].after == ("gather d again",)
    assert by_name["backward c"].after == ("gather c again",)
    assert by_name["backward b"].after == ("gather b again", "scatter d")
    assert by_name["backward a"].after == ("gather a again", "scatter c")
    timeline = evaluate(problem, fsdp_default(problem))
    # d until 144, scatter d 144-204; c until 184, scatter c 204-264; b 204-244; a 264-304.
    assert spans(timeline)["scatter c"] == (204, 264)
    assert {s.name: s.end_ns for s in timeline.tasks}["backward a"] == 304
    assert timeline.makespan_ns == 384
    assert timeline.pool_peak("gradients") == 20
    check_step(problem, fsdp_default(problem))


def test_micro_batches_gather_each_time_and_scatter_each_or_last():
    each_time = fsdp_step(TWO, COSTS, micro_batches=2)
    last = fsdp_step(TWO, COSTS, micro_batches=2, scatter="last")
    assert len(each_time.names) == 12
    assert [name for name in last.names if "scatter" in name] == [
        "scatter b (micro-batch 2)", "scatter a (micro-batch 2)"
    ]  # fmt: skip
    timeline = evaluate(each_time, fsdp_default(each_time))
    # The first backward ends at 144, a's scatter runs until 156 and is in the way of the gather.
    assert spans(timeline)["gather a (micro-batch 2)"] == (156, 168)
    assert timeline.makespan_ns == 156 + 156
    assert evaluate(last, fsdp_default(last)).makespan_ns == 144 + 156
    # One channel, and a group a micro-batch so that nothing fuses across them.
    assert set(each_time.channels.values()) == {"fsdp"}
    assert set(each_time.channels) == {"fsdp 1", "fsdp 2"}
    (alike, gathers) = [limit for limit in each_time.limits if isinstance(limit, Alike)]
    assert len(alike.rows) == 4
    assert gathers.rows[0] == ("gather a (micro-batch 1)", "gather b (micro-batch 1)")
    assert len(gathers.rows) == 3
    check_step(each_time, fsdp_default(each_time))
    check_step(last, fsdp_default(last))


def test_the_root_unit_is_gathered_first_and_kept_and_scattered_last():
    problem = fsdp_step(FOUR, COSTS, root=("a", "d"))
    root = problem.collectives[0]
    assert (root.name, root.bytes) == ("gather root", 20)
    assert root.hold.until == ("backward a", "backward d")
    scatter = problem.collectives[-1]
    assert (scatter.name, scatter.after) == ("scatter root", ("backward d", "backward a"))
    timeline = evaluate(problem, fsdp_default(problem))
    # 22 for the root, 80 forward, c again 102-114 while d computes until 142.
    assert {s.name: s.start_ns for s in timeline.tasks}["backward c"] == 142
    assert timeline.makespan_ns == 22 + 80 + 160 + 22
    check_step(problem, fsdp_default(problem))


def test_units_of_single_layers_leave_only_the_order():
    problem = fsdp_step(TWO, COSTS, units="layers")
    assert all(isinstance(limit, Apart) for limit in problem.limits)
    result = optimize(problem, workers=2)
    assert result.plan.launches == 6
    assert result.makespan_ns == check_optimum(problem, "in-order")


def test_gradients_may_be_scattered_in_another_type_and_an_optimizer_step_follows():
    half = LayerProfile((Layer("a", 20, 40, 10, "bfloat16"), Layer("b", 20, 40, 10, "bfloat16")))
    problem = fsdp_step(half, COSTS, reduce_dtype="float32", optimizer_ns=7)
    sizes = {task.name: (task.bytes, task.dtype) for task in problem.collectives}
    assert sizes["scatter a"] == (20, "float32")
    assert sizes["gather a"] == (10, "bfloat16")
    assert evaluate(problem, each(problem)).makespan_ns == 144 + 22 + 7
    layers = fsdp_step(TWO, COSTS, optimizer_ns={"a": 3, "b": 5})
    assert [t.name for t in layers.tasks[-2:]] == ["optimizer b", "optimizer a"]
    assert evaluate(layers, each(layers)).makespan_ns == 156 + 3


def test_movable_weight_gradients_fill_the_wait_for_a_gather():
    layers = (Layer("a", 20, 40, 50, weight_gradient_ns=20),
              Layer("b", 20, 40, 10, weight_gradient_ns=20))  # fmt: skip
    problem = fsdp_step(LayerProfile(layers), COSTS, movable_weights=True, prefetch=0)
    names = [task.name for task in problem.tasks if not isinstance(task, Collective)]
    assert names[2:] == ["backward b", "weights b", "backward a", "weights a"]
    assert next(t for t in problem.tasks if t.name == "scatter b").after == ("weights b",)
    check_step(problem, fsdp_default(problem))
    result = optimize(problem, workers=2, time_limit_s=60)
    assert result.status == Status.OPTIMAL
    assert result.makespan_ns <= evaluate(problem, fsdp_default(problem)).makespan_ns


@pytest.mark.parametrize("scope", ["in-order", "any"])
def test_the_optimum_is_that_of_all_plans(scope):
    """Random small steps of every option; infeasible is said exactly where no plan runs."""
    tried = infeasible = 0
    for seed in range(30):
        rng = random.Random(seed)
        profile = random_profile(rng, rng.choice((2, 2, 3)), bare=False)
        total = profile.parameter_bytes
        problem = fsdp_step(
            profile,
            sharded_costs(rng),
            reshard_after_forward=rng.choice((True, "all-but-last", False)),
            communicators=rng.choice((1, 2)) if scope == "in-order" else 1,
            prefetch=rng.choice((None, None, 1)),
            scatter_buffers=rng.choice((None, None, 1)),
            gathered_limit_bytes=rng.choice((None, None, total, total - 1)),
            optimizer_ns=rng.choice((None, 3)),
            units=rng.choice(("decided", "decided", "layers")),
        )
        if len(problem.names) > (5 if scope == "any" else 6):
            continue
        tried += 1
        try:
            brute_force(problem, scope)
        except Stuck:
            infeasible += 1
            assert optimize(problem, scope=scope, workers=2).status == Status.INFEASIBLE, seed
            continue
        check_optimum(problem, scope)
    assert tried >= 8
    assert infeasible or scope == "any"


def test_a_plan_may_hold_a_gather_back_so_that_fewer_gradients_wait():
    """Backward of a takes no time: its gather is held back until b's gradients are on their way."""
    profile = LayerProfile((Layer("a", 4, 0, 5), Layer("b", 4, 9, 5)))
    problem = fsdp_step(profile, COSTS, communicators=2, gradient_limit_bytes=9, units="layers")
    with pytest.raises(Stuck):
        brute_force(problem, "in-order")  # its plans hold nothing back
    result = optimize(problem, workers=2)
    timeline = play(problem, result.plan)
    assert (result.status, timeline.broken) == (Status.OPTIMAL, ())
    # Gathers 7 each; forwards until 18; again b 18-25, backward b 34, scatter b 34-41, scatter a.
    assert timeline.makespan_ns == 41 + 7


def test_two_evaluators_agree_on_random_steps():
    """Larger ones, random plans, every option: times as the slow simulation finds them."""
    played = 0
    for seed in range(60):
        rng = random.Random(seed)
        profile = random_profile(rng, rng.randint(1, 5))
        names = [layer.name for layer in profile.layers if layer.parameter_bytes]
        movable = any(n.weight_gradient_ns and n.parameter_bytes for n in profile.layers)
        problem = fsdp_step(
            profile,
            sharded_costs(rng),
            root=rng.choice(((), names[-1:], names[:1])),
            reshard_after_forward=rng.choice((True, "all-but-last", False)),
            communicators=rng.choice((1, 2)),
            prefetch=rng.choice((None, 0, 1, 2, (2, 1))),
            scatter_buffers=rng.choice((None, 1, 2)) if rng.random() < 0.5 else None,
            gathered_limit_bytes=rng.choice((None, profile.parameter_bytes)),
            micro_batches=rng.choice((1, 2)),
            scatter=rng.choice(("each", "last")),
            movable_weights=movable and rng.random() < 0.5,
        )
        check_step(problem, fsdp_default(problem))
        assert evaluate(problem, fsdp_default(problem)).broken == ()
        if not problem.limited_pools:
            check_step(problem, random_valid_plan(rng, problem))
            played += 1
    assert played > 10


def test_a_looser_limit_is_never_worse():
    rng = random.Random(3)
    for _ in range(4):
        profile = random_profile(rng, 2, bare=False)
        costs = sharded_costs(rng)
        largest = max(layer.parameter_bytes for layer in profile.layers)
        ends = []
        for limit in (largest, profile.parameter_bytes, None):
            problem = fsdp_step(profile, costs, gathered_limit_bytes=limit)
            ends.append(optimize(problem, workers=2, time_limit_s=60).makespan_ns)
        assert ends == sorted(ends, reverse=True)


def test_llama_runs_as_fsdp2_would():
    profile = estimated_profile("llama3-8b", samples=4096, tflops=300, dtype="bfloat16", by="block")
    costs = {"all_gather": AlphaBeta(30, 150), "reduce_scatter": AlphaBeta(30, 150)}
    problem = fsdp_step(
        profile,
        costs,
        root=("embed_tokens", "norm", "lm_head"),
        reshard_after_forward="all-but-last",
        prefetch=FSDP2_PREFETCH,
        gathered_limit_bytes=4 * 2**30,
    )
    # 33 gathers, 31 again, 33 scatters.
    assert len(problem.names) == 33 + 31 + 33
    timeline = play(problem, fsdp_default(problem))
    assert timeline.broken == ()
    layer = profile.by_name["layers.0"].parameter_bytes
    root = sum(profile.by_name[n].parameter_bytes for n in ("embed_tokens", "norm", "lm_head"))
    # The root, and in forward never more than three others.
    assert timeline.pool_peak("gathered") == root + 3 * layer


def test_fsdp2s_plan_speaks_of_sharded_steps_only():
    with pytest.raises(NotApplicableError, match="the step has allreduce"):
        fsdp_default(ddp_step(TWO, UNIT))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": "modules"}, "units: 'modules' is not one of decided, layers"),
        ({"reshard_after_forward": 1}, "reshard_after_forward: 1 must be"),
        ({"reshard_after_forward": "last"}, "reshard_after_forward: 'last' must be"),
        ({"communicators": 3}, "communicators: 3 must be 1 or 2"),
        ({"communicators": True}, "communicators: True must be 1 or 2"),
        ({"one_nic": True}, "there is only one communicator"),
        ({"prefetch": -1}, "prefetch: -1 must be a whole number from 0"),
        ({"prefetch": (1, 2, 3)}, "prefetch: (1, 2, 3) must be one number or two"),
        ({"prefetch": (1, True)}, "prefetch: True must be a whole number from 0"),
        ({"scatter_buffers": 0}, "scatter_buffers: 0 must be a whole number from 1"),
        ({"micro_batches": 0}, "micro_batches: 0 must be"),
        ({"micro_batches": 1.0}, "micro_batches: 1.0 must be"),
        ({"micro_batches": 100001}, "micro_batches: 100001 times 2 layers is more than 200000"),
        ({"scatter": "first"}, "scatter: 'first' is not one of each, last"),
        ({"root": "a"}, "root: 'a' must be a list"),
        ({"root": ("x",)}, "root: 'x' is no layer"),
        ({"root": ("a", "a")}, "root: a layer is named twice"),
        ({"reduce_dtype": "float31"}, "reduce_dtype: 'float31'"),
        ({"gathered_limit_bytes": -1}, "pool-bytes gathered: bytes: -1 must be at least 0"),
        ({"optimizer_ns": {"x": 1}}, "optimizer_ns: 'x' is no layer"),
        ({"movable_weights": True}, "no layer of the profile says how long"),
        ({"group": ""}, "group: '' must be"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError) as error:
        fsdp_step(TWO, COSTS, **options)
    assert message in str(error.value)


def test_missing_costs_and_a_root_without_parameters_are_refused():
    with pytest.raises(InputError, match="a cost curve for reduce_scatter is missing"):
        fsdp_step(TWO, {"all_gather": UNIT})
    with pytest.raises(InputError, match="a cost curve for all_gather is missing"):
        fsdp_step(TWO, UNIT)
    with pytest.raises(
        InputError, match=r"'allreduce' is none of all_gather, reduce_scatter .an allreduce needs"
    ):
        fsdp_step(TWO, {**COSTS, "allreduce": UNIT})
    bare = LayerProfile((Layer("a", 1, 1, 4), Layer("b", 1, 1)))
    with pytest.raises(InputError, match="root: layer 'b' has no parameters"):
        fsdp_step(bare, COSTS, root=("b",))


HYBRID = {**COSTS, "allreduce": AlphaBeta(0.001, 0.5)}
"""An all-reduce across replicas: a nanosecond and two for each byte."""


def test_two_replicas_by_hand():
    """As test_two_layers_by_hand up to the scatters; then 5 of 10 bytes, 11 ns each, across."""
    problem = fsdp_step(TWO, HYBRID, hybrid_shard=2)
    timeline = evaluate(problem, each(problem))
    found = spans(timeline)
    assert (found["scatter b"], found["reduce b"]) == ((104, 116), (116, 127))
    assert (found["scatter a"], found["reduce a"]) == ((144, 156), (156, 167))
    assert timeline.makespan_ns == 167
    reduces = [task for task in problem.collectives if task.kind == "allreduce"]
    assert [(t.name, t.bytes, t.after) for t in reduces] == [
        ("reduce b", 5, ("scatter b",)),
        ("reduce a", 5, ("scatter a",)),
    ]
    assert problem.channel(reduces[0].key) == "replicate"
    assert problem.channel(problem.collectives[0].key) == "fsdp"
    check_step(problem)


def test_replicas_share_the_units_and_the_optimizer_waits_for_them():
    """A unit of both layers is one launch of each sort, and its bytes are rounded up."""
    odd = LayerProfile((Layer("a", 20, 40, 11), Layer("b", 20, 40, 10)), "odd")
    problem = fsdp_step(odd, HYBRID, hybrid_shard=4, optimizer_ns={"a": 3, "b": 3})
    after = {task.name: task.after for task in problem.tasks}
    assert after["optimizer a"] == ("reduce a",)
    assert [t.bytes for t in problem.collectives if t.kind == "allreduce"] == [3, 3]
    one = [
        ["gather a", "gather b"],
        ["gather b again", "gather a again"],
        ["scatter b", "scatter a"],
    ]
    assert evaluate(problem, Plan.of([*one, ["reduce b", "reduce a"]])).broken == ()
    broken = evaluate(problem, Plan.of([*one, ["reduce b"], ["reduce a"]])).broken
    assert "grouped differently" in broken[0]


def test_replicas_in_each_micro_batch_and_only_in_the_last():
    for scatter, count in (("each", 4), ("last", 2)):
        problem = fsdp_step(TWO, HYBRID, hybrid_shard=2, micro_batches=2, scatter=scatter)
        reduces = [task for task in problem.collectives if task.kind == "allreduce"]
        assert len(reduces) == count
        assert {problem.channel(task.key) for task in reduces} == {"replicate"}
        check_step(problem)


@pytest.mark.parametrize("communicators", [1, 2])
def test_replicas_are_planned_as_well_as_all_plans_tried(communicators):
    profile = LayerProfile((Layer("a", 20, 40, 10),))
    for seed in range(6):
        rng = random.Random(seed)
        costs = {**sharded_costs(rng), "allreduce": AlphaBeta(0.002, rng.choice((1, 2)))}
        problem = fsdp_step(profile, costs, hybrid_shard=2, communicators=communicators)
        check_optimum(problem, "any")


@pytest.mark.parametrize(
    ("costs", "options", "message"),
    [
        (HYBRID, {"hybrid_shard": 1}, "hybrid_shard: 1 must be a whole number from 2"),
        (HYBRID, {"hybrid_shard": True}, "hybrid_shard: True must be"),
        (COSTS, {"hybrid_shard": 2}, "a cost curve for allreduce is missing"),
        (HYBRID, {"hybrid_shard": 2, "replicate_group": "fsdp"}, "replicate_group: 'fsdp' is the"),
        (HYBRID, {"hybrid_shard": 2, "replicate_group": ""}, "replicate_group: '' must be"),
    ],
)
def test_what_is_refused_of_replicas(costs, options, message):
    with pytest.raises(InputError) as error:
        fsdp_step(TWO, costs, **options)
    assert message in str(error.value)

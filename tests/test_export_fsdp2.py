"""Plans as groups and prefetch lists of FSDP2."""

from __future__ import annotations

import ast
import random

import pytest
from export_cases import FOUR, buckets_of, check_export, random_partition, random_step

from commsched.export import ExportOptions, export
from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Hold,
    NotApplicableError,
    Plan,
    Problem,
    evaluate,
)
from commsched.optimizer import optimize
from commsched.optimizer.rules.fsdp_default import fsdp_default
from commsched.problems.steps.fsdp_step import fsdp_step
from commsched.problems.steps.layers import Layer, LayerProfile

COSTS = {"all_gather": AlphaBeta(0.5, 4), "reduce_scatter": AlphaBeta(0.5, 4)}


def step(count=6, costs=COSTS, **options) -> Problem:
    """Return a sharded step of layers that grow."""
    layers = tuple(Layer(f"layers.{k}", 1000 * (k + 1), 2000 * (k + 1), 4000) for k in range(count))
    return fsdp_step(LayerProfile(layers), costs, **options)


def test_gradients_give_groups_of_modules():
    """The golden text of a small plan; it is Python."""
    plan = Plan.of([["head.weight", "body.1.weight"], ["body.0.bias", "body.0.weight"]])
    found = export(FOUR, plan, "fsdp2")
    assert found.text.splitlines() == [
        "from torch.distributed.fsdp import fully_shard",
        "",
        "GROUPS = [",
        '    ["head", "body.1"],',
        '    ["body.0"],',
        "]",
        "",
        "",
        "def apply_plan(model, **options):",
        '    """Wrap a model in the planned groups; the options go to fully_shard."""',
        "    first = []",
        "    for names in GROUPS:",
        "        modules = [model.get_submodule(name) for name in names]",
        "        fully_shard(modules if len(modules) > 1 else modules[0], **options)",
        "        first.append(modules[0])",
        "    fully_shard(model, **options)",
        "    return model",
    ]
    ast.parse(found.text)
    assert found.exact
    assert found.lost_ns == 0
    assert any("all-reduce" in text for text in found.cannot)


def test_any_partition_into_modules_is_exact():
    """Each gradient of these steps is a module of its own."""
    rng = random.Random(1)
    for _ in range(150):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        plan = random_partition(rng, problem)
        found = export(problem, plan, "fsdp2")
        assert found.exact
        assert [len(names) for names in found.settings["groups"]] == [
            len(bucket.names) for bucket in plan.buckets
        ]
        check_export(problem, plan, found)


def gradients(*names) -> GradientProblem:
    """Return gradients of these names, ready in their order."""
    return GradientProblem([Gradient(n, 8, k) for k, n in enumerate(names)], AlphaBeta(1, 1))


def test_inner_modules_are_wrapped_before_outer_ones():
    """Else the outer call would take the inner parameters, too."""
    problem = gradients("block.scale", "block.fc.weight", "head.weight", "token")
    found = export(problem, Plan.of([[name] for name in problem.names]), "fsdp2")
    assert found.exact
    assert found.settings == {"groups": [["block.fc"], ["block"], ["head"]], "root": ["token"]}
    crossed = gradients("a.x", "b.c.x", "b.x", "a.c.x")
    with pytest.raises(NotApplicableError, match="hold modules of each other"):
        export(crossed, Plan.of([["a.x", "b.c.x"], ["b.x", "a.c.x"]]), "fsdp2")
    assert export(crossed, Plan.of([["b.x", "b.c.x"], ["a.x", "a.c.x"]]), "fsdp2").exact


@pytest.mark.parametrize(
    ("names", "buckets", "groups", "root", "message"),
    [
        (("a.w", "b.w", "a.b"), [["a.w"], ["b.w", "a.b"]], [["a", "b"]], [], "parameters of 'a'"),
        (("w", "a.w", "b"), [["w"], ["a.w", "b"]], [["a"]], ["w", "b"], "'w' belongs to the model"),
        (("w", "a.b"), [["w", "a.b"]], [["a"]], ["w"], "'w' belongs to the model itself"),
    ],
)
def test_modules_stay_whole(names, buckets, groups, root, message):
    """What a plan takes apart goes together, and that is priced."""
    problem, plan = gradients(*names), Plan.of(buckets)
    found = export(problem, plan, "fsdp2")
    assert not found.exact
    assert found.settings == {"groups": groups, "root": root}
    assert any(message in text for text in found.cannot)
    check_export(problem, plan, found)


def test_a_split_module_goes_where_it_costs_less():
    """With the first of its buckets or with the last."""
    for ready, expected in ((1, [["a", "b"], ["c"]]), (50_000, [["b"], ["a", "c"]])):
        problem = GradientProblem(
            [
                Gradient("a.w", 2000, 0),
                Gradient("b.w", 8000, 0),
                Gradient("a.b", 8, ready),
                Gradient("c.w", 8000, 60_000),
            ],
            AlphaBeta(1, 1),
        )
        plan = Plan.of([["a.w", "b.w"], ["a.b", "c.w"]])
        found = export(problem, plan, "fsdp2")
        makespans = []
        for order in ([["a.w", "a.b", "b.w"], ["c.w"]], [["b.w"], ["a.w", "a.b", "c.w"]]):
            makespans.append(evaluate(problem, Plan.of(order)).makespan_ns)
        assert evaluate(problem, found.projected).makespan_ns == min(makespans)
        assert len(found.settings["groups"]) == len(expected)


def test_a_module_of_two_types_is_refused():
    """FSDP2 asks for one type in each group."""
    problem = GradientProblem(
        [Gradient("a.w", 8, 0, "float16"), Gradient("a.b", 8, 0)], AlphaBeta(1, 1)
    )
    with pytest.raises(NotApplicableError, match="has float16 and float32"):
        export(problem, Plan.of([["a.w"], ["a.b"]]), "fsdp2")


def test_what_is_no_parameter_is_refused():
    """A recording without names gives no modules."""
    with pytest.raises(NotApplicableError, match="needs parameter names"):
        export(gradients("g0 [3x4]"), Plan.of([["g0 [3x4]"]]), "fsdp2")


def test_an_older_torch_is_refused():
    """Lists of modules came later than FSDP2."""
    with pytest.raises(NotApplicableError, match=r"2\.5\.1 is too old"):
        export(FOUR, Plan.of([list(FOUR.names)]), "fsdp2", ExportOptions("2.5.1"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"root": ("layers.0", "layers.5")},
        {"reshard_after_forward": False},
        {"reshard_after_forward": "all-but-last"},
        {"prefetch": 1},
        {"communicators": 2},
        {"units": "layers"},
        {"scatter_buffers": 1},
    ],
    ids=str,
)
def test_the_best_plan_of_a_sharded_step_is_exact(options):
    """Groups, and the order of gathers and scatters, come back; nothing is lost."""
    problem = step(**options)
    result = optimize(problem, scope="any", time_limit_s=10, workers=1)
    found = export(problem, result.plan, "fsdp2")
    check_export(problem, result.plan, found)
    ast.parse(found.text)
    assert found.exact
    assert found.lost_ns == 0
    kept = [not flag for flag in found.settings["reshard_after_forward"]]
    assert any(kept) is ("reshard_after_forward" in options)
    assert found.settings.get("separate_reduce_scatter_group", False) is (
        options.get("communicators") == 2
    )


def test_the_default_needs_no_deeper_lists():
    """What FSDP2 does by itself comes back as lists of the next group."""
    problem = step(prefetch=1)
    plan = fsdp_default(problem)
    found = export(problem, plan, "fsdp2")
    assert found.exact
    assert found.lost_ns == 0
    for rows in (found.settings["forward_prefetch"], found.settings["backward_prefetch"]):
        assert all(len(others) == 1 for others in rows.values())


def test_launches_are_not_before_they_are_issued():
    """The projection holds a gather back until the group that issues it begins to compute."""
    problem = step()
    plan = Plan.of([name] for name in problem.names)
    found = export(problem, plan, "fsdp2")
    timeline = evaluate(problem, found.projected)
    starts = {span.name: span.start_ns for span in timeline.tasks}
    issued = {
        name: issuer
        for issuer, others in found.settings["forward_prefetch"].items()
        for name in others
    }
    for launch in timeline.launches:
        for name in launch.names:
            if name.startswith("gather") and not name.endswith("again"):
                group = int(name.rpartition(".")[2])
                if issued.get(group, "0") != "0":
                    assert launch.start_ns >= starts[f"forward layers.{issued[group]}"]
    assert buckets_of(found.projected) == buckets_of(plan)


def test_random_plans_of_sharded_steps():
    """Whatever the order and the limits are, the projection keeps them or is refused."""
    rng = random.Random(2)
    for _ in range(60):
        count = rng.randint(1, 5)
        layers = tuple(
            Layer(f"b.{k}", rng.randint(0, 3000), rng.randint(0, 5000), 400 * rng.randint(1, 30))
            for k in range(count)
        )
        options = {
            "root": rng.choice(((), ("b.0",))),
            "reshard_after_forward": rng.choice((True, False, "all-but-last")),
            "communicators": rng.choice((1, 2)),
            "prefetch": rng.choice((None, 0, 1, 2)),
        }
        problem = fsdp_step(LayerProfile(layers), COSTS, **options)
        plan = fsdp_default(problem)
        found = export(problem, plan, "fsdp2")
        check_export(problem, plan, found)
        assert found.lost_ns <= 0 or not found.exact


def test_every_order_that_prefetching_can_give_comes_back():
    """Any number of groups ahead, another one for each gather: the order is that of the plan."""
    rng = random.Random(6)
    deep = 0
    for _ in range(80):
        count = rng.randint(2, 6)
        # On a slow link launches queue, and start long after they are issued.
        speed = rng.choice((4, 0.4, 0.1))
        problem = step(count, {kind: AlphaBeta(0.5, speed) for kind in COSTS})
        back, issuer = [f"gather layers.{count - 1} again"], count - 1
        for k in reversed(range(count - 1)):
            while issuer > k + 1 and rng.random() < 0.5:
                back.append(f"scatter layers.{issuer}")
                issuer -= 1
            deep += issuer > k + 1
            back.append(f"gather layers.{k} again")
        back += [f"scatter layers.{k}" for k in range(issuer, -1, -1)]
        plan = Plan.of([[f"gather layers.{k}"] for k in range(count)] + [[name] for name in back])
        found = export(problem, plan, "fsdp2")
        check_export(problem, plan, found)
        # Another order may make a shorter step; it is taken only then.
        assert found.exact or found.lost_ns < 0
    assert deep > 50


def test_memory_beyond_a_limit_is_not_taken():
    """FSDP2 does not wait for memory: deeper prefetching than the limit allows is left out."""
    problem = step(gathered_limit_bytes=9000)
    plan = fsdp_default(problem)
    found = export(problem, plan, "fsdp2")
    assert evaluate(problem, found.projected).pool_peak("gathered") <= 9000
    tight = step(gathered_limit_bytes=4000)
    with pytest.raises(NotApplicableError, match="does not wait for memory"):
        export(tight, fsdp_default(tight), "fsdp2")


def test_steps_of_another_shape_are_refused():
    """Other names, several micro-batches, layers that are no modules, unlike groups."""
    micro = step(micro_batches=2)
    with pytest.raises(NotApplicableError, match="one micro-batch"):
        export(micro, fsdp_default(micro), "fsdp2")
    layers = (Layer("layer one", 10, 20, 400), Layer("layer two", 10, 20, 400))
    named = fsdp_step(LayerProfile(layers), COSTS)
    with pytest.raises(NotApplicableError, match="'layer one' is none"):
        export(named, fsdp_default(named), "fsdp2")
    tasks = [
        Collective("weights", 8, "all_gather", hold=Hold("gathered", until=("c",))),
        Compute("c", 10, after=("weights",)),
    ]
    other = Problem(tasks, {("dp", "all_gather"): AlphaBeta(1, 1)})
    with pytest.raises(NotApplicableError, match="'weights' is not of such a step"):
        export(other, Plan.of([["weights"]]), "fsdp2")
    free = Problem(step(3).tasks, step(3).costs)
    unlike = [["gather layers.0", "gather layers.1"], *([n] for n in free.names[2:])]
    with pytest.raises(NotApplicableError, match="once for all passes"):
        export(free, Plan.of(unlike), "fsdp2")
    two = step(3, communicators=2)
    with pytest.raises(NotApplicableError, match="one communicator"):
        export(two, fsdp_default(two), "fsdp2", ExportOptions("2.12.0"))


def test_a_hostile_step_of_the_right_names_is_refused():
    """A gather that is used by no forward, or a layer without a backward."""
    tasks = [
        Collective("gather a", 8, "all_gather", hold=Hold("gathered", until=("forward a",))),
        Collective("gather a again", 8, "all_gather"),
        Compute("forward a", 10, after=("gather a",)),
        Collective("scatter a", 8, "reduce_scatter", after=("forward a",)),
    ]
    costs = {("dp", kind): AlphaBeta(1, 1) for kind in ("all_gather", "reduce_scatter")}
    problem = Problem(tasks, costs)
    with pytest.raises(NotApplicableError, match="'backward a' is not of such a step"):
        export(problem, Plan.of([[n] for n in problem.names]), "fsdp2")

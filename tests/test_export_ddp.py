"""Plans as settings of PyTorch DDP."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from export_cases import (
    FOUR,
    THREE_BUCKETS,
    buckets_of,
    check_export,
    random_in_order,
    random_partition,
    random_step,
)

from commsched.export import ExportOptions, ddp_settings, export
from commsched.models import (
    AlphaBeta,
    Bucket,
    Chunk,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Hold,
    InputError,
    MostBucketBytes,
    NotApplicableError,
    Plan,
    PlanError,
    PoolBytes,
    Problem,
    evaluate,
)
from commsched.optimizer import ddp, optimize, rule
from commsched.optimizer.rules.ddp import ddp_last_cap
from commsched.optimizer.tuning import tune

MIB = 2**20


def test_the_four_gradients_give_a_list_to_the_byte():
    """The golden text of a small plan."""
    found = export(FOUR, THREE_BUCKETS, "ddp")
    assert found.text == (
        "DistributedDataParallel(model, bucket_cap_mb_list=[3, 1.0009765625, 0.5])"
    )
    assert (found.exact, found.lost_ns, found.cannot) == (True, 0, ())
    assert found.settings == {"bucket_cap_mb_list": [3.0, 1.0009765625, 0.5]}
    assert any("2.11" in text for text in found.needs)
    assert any("find_unused_parameters" in text for text in found.needs)


@pytest.mark.parametrize("seed", range(4))
def test_every_plan_in_ready_order_of_one_dtype_is_exact(seed):
    """torch rounds cap * 2**20 down; the rule on those bytes gives the plan, hundreds of times."""
    rng = random.Random(seed)
    for _ in range(150):
        problem = random_step(rng)
        plan = random_in_order(rng, problem)
        found = export(problem, plan, "ddp")
        caps = [int(cap * MIB) for cap in found.settings["bucket_cap_mb_list"]]
        assert buckets_of(ddp(problem, caps)) == buckets_of(plan)
        assert found.exact
        assert found.lost_ns == 0
        check_export(problem, plan, found)


@pytest.mark.parametrize("seed", range(2))
def test_a_torch_without_the_list_gets_the_best_single_cap(seed):
    """The cap is as good as the tuning's, from the front or from the end."""
    rng = random.Random(seed)
    for _ in range(60):
        problem = random_step(rng)
        plan = random_partition(rng, problem)
        found = export(problem, plan, "ddp", ExportOptions("2.10.0+cu128"))
        check_export(problem, plan, found)
        cap = int(found.settings["bucket_cap_mb"] * MIB)
        last = found.settings.get("environment", {}).get("DDP_SET_LAST_BUCKET_CAP") == "1"
        assert found.projected == (ddp_last_cap if last else ddp)(problem, [cap])
        best = min(
            tune(problem, lambda p, knob, make=make: make(p, [knob])).best.makespan_ns
            for make in (ddp, ddp_last_cap)
        )
        assert evaluate(problem, found.projected).makespan_ns == best
        front = rule("ddp").knobs[0].best(problem).tuning.best
        assert best <= front.makespan_ns
        assert last or best == front.makespan_ns
        assert "2.10.0" in found.cannot[0]


def test_a_plan_out_of_order_becomes_the_best_list_in_order():
    """Where the recurrence applies, the list of the optimum is what DDP can do at best."""
    rng = random.Random(5)
    seen = 0
    for _ in range(60):
        problem = random_step(rng)
        plan = random_partition(rng, problem)
        try:
            ddp_settings(problem, plan)
        except NotApplicableError:
            seen += 1
        found = export(problem, plan, "ddp")
        check_export(problem, plan, found)
        best = optimize(problem).makespan_ns
        if not found.exact:
            assert evaluate(problem, found.projected).makespan_ns == best
            assert found.cannot[0].startswith("DDP only forms buckets that are contiguous")
    assert seen > 20


def test_a_first_cap_and_a_cap_where_the_recurrence_does_not_apply():
    """Under a limit the best of the settings that keep it is taken."""
    problem = FOUR.with_limits([MostBucketBytes(4 * MIB)])
    plan = Plan.of([["head.weight", "body.0.bias"], ["body.1.weight"], ["body.0.weight"]])
    found = export(problem, plan, "ddp")
    assert not found.exact
    assert max(launch.bytes for launch in evaluate(problem, found.projected).launches) <= 4 * MIB
    caps = [int(cap * MIB) for cap in found.settings["bucket_cap_mb_list"]]
    assert ddp(problem, caps) == found.projected
    tight = FOUR.with_limits([MostBucketBytes(4 * MIB), *_apart()])
    with pytest.raises(NotApplicableError, match="no setting can be found"):
        export(tight, plan, "ddp")


def _apart():
    from commsched.models import Together

    return [Together(("head.weight", "body.0.bias"))]


def test_mixed_dtypes_share_no_list():
    """Each dtype would walk through the list by itself; the best shared cap is simulated."""
    gradients = [
        Gradient(f"l.{k}", 2**20, k * 1000, ("float32", "float16")[k % 2]) for k in range(6)
    ]
    problem = GradientProblem(gradients, AlphaBeta(10, 1))
    plan = Plan.of([["l.0", "l.2"], ["l.1"], ["l.4"], ["l.3", "l.5"]])
    found = export(problem, plan, "ddp")
    assert not found.exact
    assert found.cannot[0].startswith("DDP walks through the caps once for each dtype")
    check_export(problem, plan, found)


def refused(problem, plan, options=None) -> str:
    """Return the message of the refusal."""
    with pytest.raises(NotApplicableError) as caught:
        export(problem, plan, "ddp", options)
    return str(caught.value)


def test_what_ddp_has_not_is_refused():
    """Chunks, holds, other kinds, several groups, memory limits."""
    halves = Plan(
        (
            Bucket(("head.weight",), chunks=(Chunk(0, 2**20),)),
            Bucket(("head.weight",), chunks=(Chunk(2**20, 3 * 2**20),)),
            *THREE_BUCKETS.buckets[1:],
        )
    )
    assert "splits 'head.weight'" in refused(FOUR, halves)
    first, *others = THREE_BUCKETS.buckets
    held = Plan((replace(first, not_before_ns=7), *others))
    assert "holds the one of 'head.weight' back" in refused(FOUR, held)
    tasks = [
        Compute("c", 10),
        Collective("g", 8, "reduce_scatter", "dp", after=("c",)),
        Collective("a", 8, "allreduce", "dp", after=("c",)),
        Collective("b", 8, "allreduce", "tp", after=("c",), hold=Hold("pool")),
    ]
    costs = {
        ("dp", "reduce_scatter"): AlphaBeta(1, 1),
        ("dp", "allreduce"): AlphaBeta(1, 1),
        ("tp", "allreduce"): AlphaBeta(1, 1),
    }
    graph = Problem(tasks, costs)
    assert "does not bucket reduce_scatter" in refused(graph, Plan.of([["g"], ["a"], ["b"]]))
    costs.pop(("dp", "reduce_scatter"))
    graph = Problem([tasks[0], *tasks[2:]], costs)
    assert "has one process group" in refused(graph, Plan.of([["a"], ["b"]]))
    limited = Problem([tasks[0], tasks[3]], costs, limits=[PoolBytes("pool", 8)])
    assert "does not wait for memory" in refused(limited, Plan.of([["b"]]))


def test_movable_compute_is_refused():
    """No framework changes the order of a stream."""
    tasks = [
        Compute("w", 10, movable=True),
        Compute("c", 10),
        Collective("a", 8, after=("c",)),
    ]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(1, 1)})
    plan = Plan((Bucket(("a",)),), {"gpu": ("c", "w")})
    assert "moves tasks of stream 'gpu'" in refused(problem, plan)


def test_a_plan_for_other_gradients_is_an_input_error():
    """The plan is checked against the problem first."""
    with pytest.raises(PlanError, match="is no collective"):
        export(FOUR, Plan.of([["x"]]), "ddp")
    with pytest.raises(InputError, match="not one of ddp, horovod"):
        export(FOUR, THREE_BUCKETS, "mpi")


@pytest.mark.parametrize("version", ["new", "2.", "-1", "9" * 400])
def test_a_version_is_a_version(version):
    """Nonsense is refused, and nothing is guessed."""
    if version == "2.":
        assert ExportOptions("2.").older_than("2.11")
        return
    with pytest.raises(InputError, match="is no version"):
        ExportOptions(version)


@pytest.mark.parametrize(
    ("version", "older"),
    [("2.10.0", True), ("2.11.0", False), ("2.11.0a0+git", False), ("v2.9", True), ("3", False)],
)
def test_versions_compare_by_number(version, older):
    """2.9 is older than 2.11."""
    assert ExportOptions(version).older_than("2.11") is older


def test_a_bucket_without_bytes_that_ddp_would_cut_is_not_exact():
    """Its cap is 0, which the first of two empty gradients reaches."""
    gradients = [Gradient("a", 0, 1), Gradient("b", 0, 2), Gradient("c", 8, 3)]
    problem = GradientProblem(gradients, AlphaBeta(0, 1))
    plan = Plan.of([["a", "b"], ["c"]])
    found = export(problem, plan, "ddp")
    assert not found.exact
    check_export(problem, plan, found)
    alone = Plan.of([["a"], ["b", "c"]])
    assert export(problem, alone, "ddp").settings["bucket_cap_mb_list"][0] == 0

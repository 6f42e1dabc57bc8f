"""Plans as settings of XLA and TorchInductor."""

from __future__ import annotations

import ast
import random

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

from commsched.export import ExportOptions, export
from commsched.export.xla import DEFAULT_BYTES, MOST_OPERANDS, combine
from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    InputError,
    NotApplicableError,
    Plan,
    Problem,
    evaluate,
)
from commsched.optimizer import rule
from commsched.optimizer.rules.inductor import inductor
from commsched.optimizer.tuning import tune

MIB = 2**20
REDUCE = "xla_gpu_all_reduce_combine_threshold_bytes"


def scatters(names_and_bytes) -> Problem:
    """Return reduce-scatters that become ready one after the other."""
    tasks: list = []
    for k, (name, size) in enumerate(names_and_bytes):
        tasks.append(Compute(f"c{k}", 1000))
        tasks.append(Collective(name, size, "reduce_scatter", after=(f"c{k}",)))
    return Problem(tasks, {("dp", "reduce_scatter"): AlphaBeta(1, 1)})


def test_xla_gets_a_flag():
    """The golden text of a small plan."""
    plan = Plan.of([["head.weight"], list(FOUR.names[1:])])
    found = export(FOUR, plan, "xla")
    assert found.text == f'export XLA_FLAGS="$XLA_FLAGS --{REDUCE}=1573888"'
    assert found.exact
    assert any("scheduler" in text for text in found.cannot)


@pytest.mark.parametrize("seed", range(3))
def test_xla_finds_its_own_plans_again_and_else_the_best_threshold(seed):
    """What a threshold gives comes back; other plans cost what the best threshold costs."""
    rng = random.Random(seed)
    for _ in range(60):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        own = combine(problem, rng.randint(1, 200))
        found = export(problem, own, "xla")
        assert found.exact
        assert buckets_of(found.projected) == buckets_of(own)
        plan = random_partition(rng, problem)
        found = export(problem, plan, "xla")
        check_export(problem, plan, found)
        assert found.projected == combine(problem, found.settings["xla_flags"][REDUCE])
        if not found.exact:
            best = tune(problem, combine).best.makespan_ns
            assert evaluate(problem, found.projected).makespan_ns == best


def test_xla_combines_at_most_256_and_skips_large_ones():
    """The count closes a set as the bytes do; a large tensor does not."""
    many = GradientProblem([Gradient(f"g{k}", 4, k) for k in range(600)], AlphaBeta(1, 1))
    assert [len(b.names) for b in combine(many, 10**6).buckets] == [
        MOST_OPERANDS,
        MOST_OPERANDS,
        88,
    ]
    sizes = [3, 9, 3]
    around = GradientProblem(
        [Gradient(f"g{k}", size, k) for k, size in enumerate(sizes)], AlphaBeta(1, 1)
    )
    assert buckets_of(combine(around, 6)) == [{"g1"}, {"g0", "g2"}]


def test_xla_does_not_combine_what_depends_on_each_other():
    """A collective that waits for a member of the set closes it."""
    tasks = [
        Collective("a", 8),
        Compute("c", 10, after=("a",)),
        Collective("b", 8, after=("c",)),
        Collective("d", 8, after=("c",)),
    ]
    problem = Problem(tasks, {("dp", "allreduce"): AlphaBeta(1, 1)})
    assert buckets_of(combine(problem, 1000)) == [{"a"}, {"b", "d"}]


def test_xla_avoids_the_value_that_means_its_own_choice():
    """With the default of 30 MiB newer versions choose by themselves."""
    gradients = [Gradient("a.w", DEFAULT_BYTES // 2, 0), Gradient("b.w", DEFAULT_BYTES // 2, 1)]
    problem = GradientProblem(gradients, AlphaBeta(100, 1))
    found = export(problem, Plan.of([["a.w", "b.w"]]), "xla")
    assert found.settings["xla_flags"][REDUCE] == DEFAULT_BYTES + 1
    assert found.exact


def test_xla_counts_one_ranks_part_of_a_reduce_scatter():
    """So the number of ranks is needed, and the threshold is a fraction of the bytes."""
    problem = scatters([("a", 800), ("b", 800), ("c", 800)])
    plan = Plan.of([["a", "b"], ["c"]])
    with pytest.raises(InputError, match="number of ranks"):
        export(problem, plan, "xla")
    found = export(problem, plan, "xla", ExportOptions(ranks=8))
    flag = "xla_gpu_reduce_scatter_combine_threshold_bytes"
    assert found.settings["xla_flags"] == {flag: 200}
    assert found.exact


def test_xla_refuses_several_kinds_and_others():
    """A threshold is found for one kind at a time."""
    tasks = [Collective("a", 8), Collective("b", 8, "all_gather"), Collective("c", 8, "broadcast")]
    costs = {("dp", kind): AlphaBeta(1, 1) for kind in ("allreduce", "all_gather", "broadcast")}
    with pytest.raises(NotApplicableError, match="does not bucket broadcast"):
        export(Problem(tasks, costs), Plan.of([["a"], ["b"], ["c"]]), "xla")
    costs.pop(("dp", "broadcast"))
    with pytest.raises(NotApplicableError, match="all_gather, allreduce"):
        export(Problem(tasks[:2], costs), Plan.of([["a"], ["b"]]), "xla")


def test_inductor_gets_a_cap():
    """The golden text of a small plan; it is Python."""
    plan = Plan.of([["head.weight"], list(FOUR.names[1:])])
    found = export(FOUR, plan, "inductor")
    assert found.text.splitlines() == [
        "from torch._inductor import config",
        "",
        'config.bucket_all_reduces_fx = "all"',
        "config.bucket_all_reduces_fx_bucket_size_determinator = lambda bucket: 1.500977  # MiB",
    ]
    ast.parse(found.text)
    assert (found.exact, found.cannot) == (True, ())


@pytest.mark.parametrize("seed", range(3))
def test_inductor_finds_its_own_plans_again_and_else_the_best_cap(seed):
    """As for XLA; the cap in MiB gives the same bytes when torch rounds it down."""
    rng = random.Random(seed)
    key = "bucket_all_reduces_fx_bucket_size_determinator"
    for _ in range(60):
        problem = random_step(rng, dtypes=("float32", "float16")[: rng.randint(1, 2)])
        own = inductor(problem, rng.randint(1, 200))
        found = export(problem, own, "inductor")
        assert found.exact
        plan = random_partition(rng, problem)
        found = export(problem, plan, "inductor")
        check_export(problem, plan, found)
        assert found.projected == inductor(problem, int(found.settings["config"][key] * MIB))
        if not found.exact:
            best = rule("inductor").knobs[0].best(problem).tuning.best.makespan_ns
            assert evaluate(problem, found.projected).makespan_ns == best
            assert "bucket 0" in found.cannot[0]


def test_inductor_gets_module_plans_for_reduce_scatters():
    """Where no cap gives the buckets and they are whole modules."""
    problem = scatters([("a.w", 800), ("a.b", 8), ("b.w", 800), ("c.w", 8), ("d.w", 800)])
    plan = Plan.of([["a.w", "a.b", "b.w", "c.w"], ["d.w"]])
    assert "config" in export(problem, plan, "inductor").settings
    plan = Plan.of([["a.w", "a.b", "b.w"], ["c.w"], ["d.w"]])
    found = export(problem, plan, "inductor")
    assert found.settings == {"module_bucket_plans": [["a", "b"], "c", "d"]}
    assert found.exact
    ast.parse(found.text)
    split = Plan.of([["a.w", "b.w"], ["a.b"], ["c.w", "d.w"]])
    found = export(problem, split, "inductor")
    assert not found.exact
    assert "the parameters of 'a' lie in several buckets" in found.cannot[0]


def test_inductor_refuses_an_older_torch():
    """Its passes were others."""
    with pytest.raises(NotApplicableError, match=r"2\.12"):
        export(FOUR, THREE_BUCKETS, "inductor", ExportOptions("2.12.1"))


@pytest.mark.parametrize("framework", ["xla", "inductor"])
def test_in_order_plans_lose_what_one_number_cannot_say(framework):
    """The loss is the difference of two evaluations, whatever its sign."""
    rng = random.Random(11)
    for _ in range(60):
        problem = random_step(rng)
        plan = random_in_order(rng, problem)
        check_export(problem, plan, export(problem, plan, framework))

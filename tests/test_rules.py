"""The rules: what DDP and its neighbours do, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import golden, shared_data
from strategies import PROPERTY, problems

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    DeadlockError,
    Gradient,
    GradientProblem,
    NotApplicableError,
    Problem,
    evaluate,
)
from commsched.models.timeline import play
from commsched.models.units import MIB
from commsched.optimizer import RULES, ddp, no_overlap, one_bucket, one_each
from commsched.problems.profiler.profiler_trace import read_profiler_trace

# Parameters of torchvision's resnet18 in registration order, as numbers of elements.
_BASIC = [
    (64, [(64, 64), (64, 64)], False),
    (64, [(64, 64), (64, 64)], False),
    (128, [(64, 128), (128, 128)], True),
    (128, [(128, 128), (128, 128)], False),
    (256, [(128, 256), (256, 256)], True),
    (256, [(256, 256), (256, 256)], False),
    (512, [(256, 512), (512, 512)], True),
    (512, [(512, 512), (512, 512)], False),
]


def resnet18_elements() -> list[int]:
    """Return the sizes of ResNet-18's 62 parameters in registration order."""
    sizes = [64 * 3 * 49, 64, 64]
    for width, convolutions, down in _BASIC:
        for fan_in, fan_out in convolutions:
            sizes += [fan_in * fan_out * 9, width, width]
        if down:
            sizes += [convolutions[0][0] * width, width, width]
    return [*sizes, 512 * 1000, 1000]


def in_order(sizes: list[int], dtypes: list[str] | None = None) -> GradientProblem:
    """Return gradients that become ready one after another in the listed order."""
    dtypes = dtypes or ["float32"] * len(sizes)
    return GradientProblem(
        [Gradient(f"g{k}", size, k, dtypes[k]) for k, size in enumerate(sizes)], AlphaBeta(8, 50)
    )


def bucket_bytes(problem: Problem, plan) -> list[int]:
    """Return each bucket's bytes in launch order."""
    size = dict(zip(problem.names, problem.bytes, strict=True))
    return [sum(size[name] for name in bucket.names) for bucket in plan.buckets]


def test_resnet18_has_its_number_of_parameters():
    """The table above is ResNet-18: 62 tensors, 11,689,512 parameters."""
    assert len(resnet18_elements()) == 62
    assert sum(resnet18_elements()) == 11_689_512


# Source: all-reduce sizes that a user reported in pytorch#48880 (first bucket 1 MiB).
@pytest.mark.parametrize(
    ("cap_mib", "expected"),
    [(25, [2052000, 28852224, 15853824]), (35, [2052000, 38297600, 6408448])],
)
def test_ddp_forms_the_buckets_reported_in_pytorch_48880(cap_mib, expected):
    """The rule reproduces the six reported all-reduce sizes."""
    problem = in_order([4 * n for n in reversed(resnet18_elements())])
    assert bucket_bytes(problem, ddp(problem, [MIB, cap_mib * MIB])) == expected


@pytest.mark.shared
def test_ddp_golden_file():
    """The same, from the golden file."""
    found = golden("ddp_resnet18.json")
    problem = in_order([4 * n for n in reversed(resnet18_elements())])
    for case in found["cases"]:
        caps = [found["first_cap_mib"] * MIB, case["cap_mib"] * MIB]
        assert bucket_bytes(problem, ddp(problem, caps)) == case["bucket_bytes"]


# Traces of other people's runs, with the caps that they ran with (None: torch's defaults).
RECORDED = [
    ("tracelens/mi300_resnet_ddp_act_checkpoint.json.gz", None, None),
    ("hta/nccl_data.json.gz", "param/resnet_2gpu_et_1.1.0.json.gz", None),
    ("local-torch-2.14.1/ddp_gloo_rank0.pt.trace.json.gz", None, [2 * MIB]),
    ("local-torch-2.14.1/ddp_gloo_rank1.pt.trace.json.gz", None, [2 * MIB]),
]


@pytest.mark.shared
@pytest.mark.parametrize(("trace", "sizes", "caps"), RECORDED)
def test_ddp_predicts_the_launches_of_real_traces(trace, sizes, caps):
    """What the rule predicts is what was launched, bucket by bucket and gradient by gradient."""
    step = read_profiler_trace(shared_data(trace), sizes=sizes and shared_data(sizes))
    problem = step.problem(AlphaBeta(30, 10))
    predicted = ddp(problem, caps) if caps else ddp(problem)
    assert predicted == step.plan
    assert bucket_bytes(problem, predicted) == [launch.bytes for launch in step.launches]


def reference_ddp(sizes: list[int], dtypes: list[str], caps: list[int]) -> list[list[int]]:
    """Transcribe torch's loop (reducer.cpp) for dense tensors in ready order."""
    open_buckets: dict[str, list[int]] = {}
    limits: dict[str, int] = {}
    result = []
    for k, dtype in enumerate(dtypes):
        bucket = open_buckets.setdefault(dtype, [])
        bucket.append(k)
        limit = limits.setdefault(dtype, 0)
        if sum(sizes[n] for n in bucket) >= caps[limit]:
            result.append(bucket)
            open_buckets[dtype] = []
            limits[dtype] = min(limit + 1, len(caps) - 1)
    rest = [bucket for bucket in open_buckets.values() if bucket]
    return result + rest[::-1]


@pytest.mark.parametrize("seed", range(4))
def test_ddp_equals_a_transcription_of_torch_s_loop(seed):
    """Caps with an iterator for each dtype, closed after adding, left-overs last."""
    rng = random.Random(seed)
    for _ in range(500):
        count = rng.randint(1, 12)
        sizes = [rng.choice([0, 1, 2, 5, 9]) for _ in range(count)]
        dtypes = [rng.choice(["float32", "float16"]) for _ in range(count)]
        caps = [rng.randint(1, 15) for _ in range(rng.randint(1, 4))]
        problem = in_order(sizes, dtypes)
        expected = [[f"g{k}" for k in bucket] for bucket in reference_ddp(sizes, dtypes, caps)]
        assert [list(bucket.names) for bucket in ddp(problem, caps).buckets] == expected


def test_ddp_only_speaks_of_all_reduces():
    """A step with other collectives is not DDP's."""
    problem = Problem(
        [Compute("b", 1), Collective("x", 1, "reduce_scatter", after=("b",))],
        {("dp", "reduce_scatter"): AlphaBeta(1, 1)},
    )
    with pytest.raises(NotApplicableError, match="reduce_scatter"):
        ddp(problem)


def test_no_overlap_starts_when_compute_ends():
    """Nothing is sent before the end of backward, and everything after it is exposed."""
    problem = GradientProblem(
        [Gradient("a", 100, 5), Gradient("b", 50, 9)], AlphaBeta(0.01, 1), backward_end_ns=20
    )
    timeline = evaluate(problem, no_overlap(problem))
    assert timeline.launches[0].start_ns == 20
    assert timeline.exposed_ns == timeline.communication_ns == 160
    waiting = Problem(
        [Collective("x", 1), Compute("f", 1, after=("x",))],
        {("dp", "allreduce"): AlphaBeta(1, 1)},
    )
    with pytest.raises(NotApplicableError, match="waits"):
        no_overlap(waiting)


def test_one_each_and_one_bucket():
    """The two ends of the range."""
    problem = in_order([1, 2, 3], ["float32", "float16", "float32"])
    assert one_each(problem).launches == 3
    assert [b.names for b in one_bucket(problem).buckets] == [("g1",), ("g0", "g2")]


@PROPERTY
@given(problems(), st.integers(0, len(RULES) - 1))
def test_every_rule_covers_every_byte_once_and_is_deterministic(problem, which):
    """A rule either declines, or makes a plan that the evaluator accepts, the same each time."""
    rule = RULES[which]
    try:
        plan = rule.make(problem)
        timeline = play(problem, plan)
    except (NotApplicableError, DeadlockError):
        return
    assert rule.make(problem) == plan
    assert {n for b in plan.buckets for n in b.names} == set(problem.names)
    assert sum(launch.bytes for launch in timeline.launches) == sum(problem.bytes)


def test_rule_names_are_unique():
    """Scripts find rules by name."""
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_catalogue_lists_every_rule():
    """docs/rules.md names each rule of the registry."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "rules.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"`{rule.name}`" in page

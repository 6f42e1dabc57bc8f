"""The bucket assignment against torch's own function."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from commsched.models import AlphaBeta, Gradient, GradientProblem  # noqa: E402
from commsched.models.units import MIB  # noqa: E402
from commsched.optimizer.rules.ddp import (  # noqa: E402
    assign,
    ddp,
    ddp_first_iteration,
    ddp_last_cap,
    ddp_unused,
)

pytestmark = pytest.mark.torch

SIZE_OF = {"float32": 4, "float16": 2, "float64": 8, "bfloat16": 2}


def torch_assign(numels, dtypes, caps, sparse, indices):
    """Return torch's buckets."""
    from torch.distributed import _compute_bucket_assignment_by_size

    tensors = [torch.empty(n, dtype=getattr(torch, d)) for n, d in zip(numels, dtypes, strict=True)]
    return _compute_bucket_assignment_by_size(tensors, caps, sparse, indices)[0]


def random_case(rng: random.Random):
    """Return numbers of elements, dtypes, caps and sparse flags (often none)."""
    count = rng.randint(1, 14)
    dtypes = rng.sample(sorted(SIZE_OF), rng.randint(1, 4))
    caps = [rng.randint(1, 60) for _ in range(rng.randint(1, 4))]
    sparse = [rng.random() < 0.2 for _ in range(count)] if rng.random() < 0.4 else []
    numels = [rng.choice((0, 1, 2, 3, 5, 9)) for _ in range(count)]
    return numels, [rng.choice(dtypes) for _ in range(count)], caps, sparse


@pytest.mark.parametrize("seed", range(4))
def test_assign_equals_torch_with_tensor_indices(seed):
    """As when buckets are rebuilt; the order of left-overs of several dtypes is torch's, too."""
    rng = random.Random(seed)
    for _ in range(1000):
        numels, dtypes, caps, sparse = random_case(rng)
        count = len(numels)
        indices = rng.sample(range(count), count)
        # torch looks sparse up by tensor index, not by place in the list.
        by_index = [False] * count
        for place, index in enumerate(indices):
            by_index[index] = bool(sparse) and sparse[place]
        expected = torch_assign(numels, dtypes, caps, by_index if sparse else [], indices)
        sizes = [n * SIZE_OF[d] for n, d in zip(numels, dtypes, strict=True)]
        found = assign(sizes, dtypes, caps, sparse)
        if not any(sparse):
            assert found == assign(sizes, dtypes, caps)
        assert [[indices[place] for place in bucket] for bucket in found] == expected


@pytest.mark.parametrize("seed", range(4))
def test_assign_equals_torch_without_tensor_indices(seed):
    """As in the first iteration: torch then sorts by smallest index, so that all is determined."""
    rng = random.Random(100 + seed)
    for _ in range(1000):
        numels, dtypes, caps, sparse = random_case(rng)
        sizes = [n * SIZE_OF[d] for n, d in zip(numels, dtypes, strict=True)]
        expected = torch_assign(numels, dtypes, caps, sparse, [])
        assert sorted(assign(sizes, dtypes, caps, sparse), key=min) == expected


@pytest.fixture(scope="module")
def one_rank():
    """A process group of this process alone."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def numbers(text):
    """Return the numbers of an entry of DDP's logging data."""
    return [int(number) for number in str(text).split(", ")]


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        ({}, None),
        ({"bucket_cap_mb": 0.5}, [MIB // 2]),
        ({"bucket_cap_mb_list": [0.25, 1, 0.5]}, [MIB // 4, MIB, MIB // 2]),
    ],
)
def test_the_rules_equal_real_ddp(one_rank, monkeypatch, setting, caps, last, unused):
    """Its buckets in the first iteration, and those of later ones, under every setting."""
    if last:
        monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "1")
    widths = (300, 500, 70, 400, 600, 30)
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), find_unused_parameters=unused, **setting
    )
    first = None
    for _ in range(3):
        model(torch.zeros(1, widths[0])).sum().backward()
        first = first or numbers(model._get_ddp_logging_data()["bucket_sizes"])
    logged = model._get_ddp_logging_data()
    size = {str(k): 4 * p.numel() for k, p in enumerate(model.parameters())}

    def buckets(rule, order, *settings):
        gradients = [Gradient(str(k), size[str(k)], ready) for ready, k in enumerate(order)]
        plan = rule(GradientProblem(gradients, AlphaBeta(1, 1)), *settings)
        return [sum(size[name] for name in bucket.names) for bucket in plan.buckets]

    backward = range(len(size) - 1, -1, -1)
    given = () if caps is None else (caps,)
    if unused:
        assert first == buckets(ddp_unused, backward, *given)
        assert not logged.get("rebuilt_bucket_sizes")
        return
    listed = given if "bucket_cap_mb_list" in setting else ()
    assert first == buckets(ddp_first_iteration, backward, *listed)
    ready = numbers(logged["prev_iteration_grad_ready_order_indices"])
    rebuilt = numbers(logged["rebuilt_bucket_sizes"])
    assert rebuilt == buckets(ddp_last_cap if last else ddp, ready, *given)

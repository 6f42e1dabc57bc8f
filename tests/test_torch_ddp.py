"""The bucket assignment against torch's own function."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from commsched.optimizer.rules.ddp import assign  # noqa: E402

pytestmark = pytest.mark.torch

SIZE_OF = {"float32": 4, "float16": 2, "float64": 8}


def torch_assign(numels, dtypes, caps, sparse, indices):
    """Return torch's buckets."""
    from torch.distributed import _compute_bucket_assignment_by_size

    tensors = [torch.empty(n, dtype=getattr(torch, d)) for n, d in zip(numels, dtypes, strict=True)]
    return _compute_bucket_assignment_by_size(tensors, caps, sparse, indices)[0]


def random_case(rng: random.Random):
    """Return numbers of elements, dtypes, caps and sparse flags (often none)."""
    count = rng.randint(1, 14)
    dtypes = rng.sample(sorted(SIZE_OF), rng.randint(1, 3))
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

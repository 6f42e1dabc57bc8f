"""Plans, buckets, and the rule by which PyTorch DDP closes buckets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import golden
from strategies import PROPERTY

from commsched.models import Bucket, InputError, Plan, close_at_or_above

MIB = 2**20


def naive_close(sizes, caps):
    """Return the ends of the buckets, one element at a time."""
    ends, held, closed = [], 0, 0
    for index, size in enumerate(sizes):
        held += size
        if held >= caps[min(closed, len(caps) - 1)]:
            ends.append(index + 1)
            held = 0
            closed += 1
    if sizes and (not ends or ends[-1] < len(sizes)):
        ends.append(len(sizes))
    return ends


@PROPERTY
@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
def test_close_at_or_above_equals_a_naive_loop(sizes, caps):
    """The rule in one pass equals the rule spelled out, and covers everything once."""
    ends = close_at_or_above(sizes, caps)
    assert ends == naive_close(sizes, caps)
    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == len(sizes)


@pytest.mark.parametrize(
    ("sizes", "caps", "ends"),
    [
        ([], [5], []),
        ([3], [5], [1]),
        ([5, 5, 5], [5], [1, 2, 3]),  # reaching the cap closes
        ([4, 4, 4], [5], [2, 3]),  # tested after adding: a bucket may exceed its cap
        ([100], [5], [1]),
        ([1, 1, 1, 1], [1, 3], [1, 4]),  # the first cap once, the last cap from then on
        ([1] * 7, [1, 2], [1, 3, 5, 7]),
        ([0, 0, 0], [0], [1, 2, 3]),
        ([0, 0, 0], [1], [3]),
        ([5, 0], [5], [1, 2]),  # nothing is appended to a closed bucket
        ((2**60, 2**60), [2**60 + 1], [2]),
        ([0.5, 0.25, 0.25], [1.0], [3]),
    ],
)
def test_close_at_or_above_examples(sizes, caps, ends):
    """Worked examples of the rule."""
    assert close_at_or_above(sizes, caps) == ends


def test_no_cap_is_refused():
    """Without a cap the rule says nothing."""
    with pytest.raises(InputError, match="caps: at least one"):
        close_at_or_above([1], [])


def resnet18_bytes():
    """Return the bytes of ResNet-18's float32 parameters in registration order (torchvision)."""
    counts = [64 * 3 * 7 * 7, 64, 64]  # conv1, bn1
    width = 64
    for planes in (64, 128, 256, 512):
        for block in range(2):
            counts += [planes * width * 9, planes, planes]  # conv1, bn1
            counts += [planes * planes * 9, planes, planes]  # conv2, bn2
            if block == 0 and planes != width:
                counts += [planes * width, planes, planes]  # downsample
            width = planes
    counts += [1000 * 512, 1000]  # fc
    assert sum(counts) == 11_689_512
    assert len(counts) == 62
    return [4 * count for count in counts]


def bucket_bytes(sizes, caps):
    """Return the bytes of the buckets that the rule makes."""
    ends = close_at_or_above(sizes, caps)
    return [sum(sizes[i:j]) for i, j in zip([0, *ends], ends, strict=False)]


# The all-reduce sizes that were reported in pytorch/pytorch#48880.
@pytest.mark.parametrize(
    ("cap_mib", "expected"),
    [(25, [2_052_000, 28_852_224, 15_853_824]), (35, [2_052_000, 38_297_600, 6_408_448])],
)
def test_resnet18_buckets(cap_mib, expected):
    """PyTorch's buckets for ResNet-18, byte for byte: first cap 1 MiB, reverse order."""
    sizes = resnet18_bytes()[::-1]
    assert bucket_bytes(sizes, [MIB, cap_mib * MIB]) == expected


@pytest.mark.shared
def test_resnet18_buckets_golden():
    """The same from the golden file."""
    file = golden("ddp_resnet18.json")
    for case in file["cases"]:
        caps = [file["first_cap_mib"] * MIB, case["cap_mib"] * MIB]
        assert bucket_bytes(resnet18_bytes()[::-1], caps) == case["bucket_bytes"]


def test_plan_of():
    """A plan from lists of names."""
    plan = Plan.of([["a", "b"], ("c",)], not_before_ns=7)
    assert plan == Plan((Bucket(("a", "b"), 7), Bucket(("c",), 7)))
    assert plan.launches == 2
    assert Plan.of([]).launches == 0
    assert Plan.of(iter([iter("ab")])).buckets[0].names == ("a", "b")
    assert len({plan, Plan.of([["a", "b"], ["c"]], 7)}) == 1


def test_plans_are_frozen():
    """Plans and buckets cannot be changed."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Bucket(("a",)).not_before_ns = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(()).buckets = ()


def test_an_empty_bucket_is_refused():
    """A launch of nothing is no launch."""
    with pytest.raises(InputError, match="at least one member"):
        Bucket(())
    with pytest.raises(InputError, match="at least one member"):
        Plan.of([["a"], []])


@pytest.mark.parametrize("bad", [-1, 2**50 + 1, 0.5, float("nan"), True, False, "0", "", None])
def test_bad_not_before_is_refused(bad):
    """The time until which a launch is held back is a whole number of nanoseconds."""
    with pytest.raises(InputError, match="bucket of 'a': not_before_ns"):
        Bucket(("a",), bad)


@pytest.mark.parametrize("number", [float, np.int64])
def test_not_before_is_kept_as_an_int(number):
    """Whatever number type holds the time, the bucket holds an int."""
    for value in (0, 5):
        assert type(Bucket(("a",), number(value)).not_before_ns) is int


def test_a_text_is_no_bucket():
    """A bucket given as one text would be taken apart into letters; it is refused."""
    with pytest.raises(InputError):
        Bucket("ab")
    with pytest.raises(InputError):
        Plan.of(["ab"])

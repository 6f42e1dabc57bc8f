"""The five classroom functions: golden values, hand-worked cases, refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import golden
from strategies import PROPERTY

from commsched import models
from commsched.models import (
    InputError,
    alltoall_route_ledger,
    communication_exposure,
    communication_time_ms,
    ring_allreduce_payload_mib,
    schedule_gradient_buckets,
)


def four_layers():
    """Return four layers of 32 MiB each; at the default 50 GiB/s one takes 0.625 ms plus 8 us."""
    return [
        {"name": "L4", "ready_ms": 2.0, "size_mib": 32},
        {"name": "L3", "ready_ms": 5.0, "size_mib": 32},
        {"name": "L2", "ready_ms": 9.0, "size_mib": 32},
        {"name": "L1", "ready_ms": 14.0, "size_mib": 32},
    ]


def uneven_layers():
    """Return layers out of order, two ready at once, with sizes that are no whole MiB."""
    return [
        {"name": "a", "ready_ms": 3.5, "size_mib": 10.5},
        {"name": "b", "ready_ms": 0.25, "size_mib": 0.125},
        {"name": "c", "ready_ms": 3.5, "size_mib": 25},
        {"name": "d", "ready_ms": 7.75, "size_mib": 1},
    ]


def same(result, expected):
    """Whether two results are equal down to int or float."""
    return result == expected and json.dumps(result) == json.dumps(expected)


@pytest.mark.shared
@pytest.mark.parametrize(
    "function",
    [
        "communication_time_ms",
        "ring_allreduce_payload_mib",
        "alltoall_route_ledger",
        "communication_exposure",
    ],
)
def test_golden_values(function):
    """Every case of the golden file, to the last digit."""
    cases = golden("seed_functions.json")[function]
    assert cases
    for case in cases:
        assert same(getattr(models, function)(*case["args"]), case["out"])


@pytest.mark.shared
def test_golden_schedules():
    """Every schedule of the golden file, to the last digit."""
    for case in golden("seed_functions.json")["schedule_gradient_buckets"]:
        assert same(
            schedule_gradient_buckets(case["layers"], case["cap"], **case["kw"]), case["out"]
        )


@pytest.mark.shared
def test_golden_refusals():
    """Every refusal of the golden file."""
    for case in golden("seed_functions.json")["raises_ValueError"]:
        with pytest.raises(ValueError, match=r"\S"):
            getattr(models, case["function"])(*case["args"])


# Cases of the same golden file (seed_functions.json), typed here so that they run without it.
@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        ((256, 50, 8, 1), (5.0, 0.008, 5.008)),
        ((256, 50, 8, 64), (5.0, 0.512, 5.512)),
        ((0, 50, 8, 4), (0.0, 0.032, 0.032)),
        ((0.001, 12.5, 3, 1), (0.0001, 0.003, 0.0031)),
        ((102400, 400, 25, 1000), (250.0, 25.0, 275.0)),
    ],
)
def test_communication_time(arguments, times):
    """256 MiB at 50 GiB/s take 5 ms; each launch adds its latency."""
    result = communication_time_ms(*arguments)
    assert same(
        result,
        {
            "payload_mib": arguments[0],
            "launches": arguments[3],
            "transfer_ms": times[0],
            "launch_ms": times[1],
            "communication_ms": times[2],
        },
    )


def test_one_launch_is_the_default():
    """The number of launches may be left out."""
    assert communication_time_ms(1, 1, 1) == communication_time_ms(1, 1, 1, 1)


@PROPERTY
@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 1000))
def test_communication_time_formula(payload, bandwidth, latency, launches):
    """Transfer is payload over bandwidth, launching is launches times latency."""
    result = communication_time_ms(payload, bandwidth, latency, launches)
    assert result["transfer_ms"] == pytest.approx(payload / 1024 / bandwidth * 1000, abs=6e-5)
    assert result["launch_ms"] == pytest.approx(latency * launches / 1000, abs=6e-5)
    total = result["transfer_ms"] + result["launch_ms"]
    assert result["communication_ms"] == pytest.approx(total, abs=1.1e-4)


# Cases of the same golden file.
@pytest.mark.parametrize(
    ("cap", "groups", "ends", "exposed"),
    [
        (32, [["L4"], ["L3"], ["L2"], ["L1"]], [2.633, 5.633, 9.633, 14.633], 0.633),
        (64, [["L4", "L3"], ["L2", "L1"]], [6.258, 15.258], 1.258),
        (48, [["L4", "L3"], ["L2", "L1"]], [6.258, 15.258], 1.258),
        (128, [["L4", "L3", "L2", "L1"]], [16.508], 2.508),
        (1000, [["L4", "L3", "L2", "L1"]], [16.508], 2.508),
    ],
)
def test_four_layers(cap, groups, ends, exposed):
    """A bucket closes when it has reached the cap, and the last one is exposed."""
    result = schedule_gradient_buckets(four_layers(), cap)
    assert [bucket["layers"] for bucket in result["timeline"]] == groups
    assert [bucket["end_ms"] for bucket in result["timeline"]] == ends
    assert [bucket["bucket_id"] for bucket in result["timeline"]] == list(range(len(groups)))
    assert result["bucket_count"] == len(groups)
    assert result["backward_end_ms"] == 14.0
    assert result["communication_end_ms"] == ends[-1]
    assert result["exposed_after_backward_ms"] == exposed


def test_a_slow_channel_queues():
    """At 5 GiB/s and 500 us a launch takes 6.75 ms, and each waits for the one before it."""
    result = schedule_gradient_buckets(four_layers(), 32, bandwidth_gib_s=5, latency_us=500)
    assert [bucket["start_ms"] for bucket in result["timeline"]] == [2.0, 8.75, 15.5, 22.25]
    assert result["communication_end_ms"] == 29.0
    assert result["exposed_after_backward_ms"] == 15.0


def test_uneven_layers():
    """Ready order with a tie in listing order; sizes are rounded for reading only."""
    result = schedule_gradient_buckets(uneven_layers(), 11, bandwidth_gib_s=2.5, latency_us=120)
    assert same(
        result,
        {
            "bucket_count": 2,
            "backward_end_ms": 7.75,
            "communication_end_ms": 18.0466,
            "exposed_after_backward_ms": 10.2966,
            "timeline": [
                {
                    "bucket_id": 0,
                    "layers": ["b", "a", "c"],
                    "size_mib": 35.62,
                    "ready_ms": 3.5,
                    "start_ms": 3.5,
                    "end_ms": 17.536,
                },
                {
                    "bucket_id": 1,
                    "layers": ["d"],
                    "size_mib": 1.0,
                    "ready_ms": 7.75,
                    "start_ms": 17.536,
                    "end_ms": 18.0466,
                },
            ],
        },
    )


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 64)), min_size=1, max_size=7),
    st.integers(1, 100),
    st.sampled_from([1, 5, 50]),
    st.sampled_from([0, 8, 500]),
)
def test_schedules_equal_a_loop(layers, cap, bandwidth, latency):
    """The schedule equals a loop over floats that fills, closes and sends buckets."""
    listed = [
        {"name": f"L{k}", "ready_ms": ready / 4, "size_mib": size}
        for k, (ready, size) in enumerate(layers)
    ]
    result = schedule_gradient_buckets(listed, cap, bandwidth, latency)
    free, held, size, rows = 0.0, [], 0, []
    in_order = sorted(listed, key=lambda layer: layer["ready_ms"])
    for layer in in_order:
        held.append(layer["name"])
        size += layer["size_mib"]
        if size >= cap or layer is in_order[-1]:
            start = max(free, layer["ready_ms"])
            free = start + size / 1024 / bandwidth * 1000 + latency / 1000
            rows.append((held, start, free))
            held, size = [], 0
    assert [bucket["layers"] for bucket in result["timeline"]] == [row[0] for row in rows]
    for bucket, (_, start, end) in zip(result["timeline"], rows, strict=True):
        assert bucket["start_ms"] == pytest.approx(start, abs=6e-5)
        assert bucket["end_ms"] == pytest.approx(end, abs=6e-5)


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [((256, 4), 384.0), ((256, 2), 256.0), ((0, 8), 0.0), ((100, 1024), 199.8046875)],
)
def test_ring_payload(arguments, payload):
    """A ring all-reduce sends 2 (n-1) / n of its payload (the same golden file)."""
    assert same(ring_allreduce_payload_mib(*arguments), payload)


@pytest.mark.parametrize(
    ("tokens", "size", "expected"),
    [
        ([[16] * 4] * 4, 4096, (0.75, [64] * 4, 1.0)),
        ([[4, 4, 52, 4]] * 4, 4096, (0.75, [16, 16, 208, 16], 3.25)),
        ([[0, 5, 1], [2, 9, 3], [7, 0, 4]], 2, (0.0, [9, 14, 8], 1.3548)),
        ([[0, 0], [0, 0]], 8, (0.0, [0, 0], 1.0)),
    ],
)
def test_route_ledger(tokens, size, expected):
    """What crosses ranks and how uneven it is (the same golden file; nothing sent: even)."""
    names = ("remote_payload_mib", "received_tokens", "max_to_mean_receive_ratio")
    assert same(alltoall_route_ledger(tokens, size), dict(zip(names, expected, strict=True)))


@pytest.mark.parametrize(
    ("communication", "compute", "expected"),
    [
        ([0, 12], [], (12, 0, 12, 0.0, [])),
        ([0, 12], [[1, 4], [3, 8]], (12, 7, 5, 0.5833, [[1, 8]])),
        ([0, 12], [[-2, 5], [5, 20]], (12, 12, 0, 1.0, [[0, 12]])),
        ([3, 3], [[0, 9]], (0, 0, 0, 1.0, [])),
        (
            [0, 10],
            [[1, 2], [2, 3], [5, 5], [4, 6], [4.5, 5.5]],
            (10, 4, 6, 0.4, [[1, 3], [4, 6]]),
        ),
    ],
)
def test_exposure(communication, compute, expected):
    """Hidden time is the union of the overlaps (the same golden file)."""
    names = (
        "communication_ms",
        "hidden_ms",
        "exposed_ms",
        "overlap_ratio",
        "merged_overlap_intervals",
    )
    result = communication_exposure(communication, compute)
    assert same(result, dict(zip(names, expected, strict=True)))


@PROPERTY
@given(
    st.integers(0, 20),
    st.integers(0, 15),
    st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 9)), max_size=6),
)
def test_exposure_equals_a_grid(start, length, compute):
    """Hidden time is the unit cells that compute covers."""
    intervals = [[low, low + size] for low, size in compute]
    covered = {cell for low, high in intervals for cell in range(low, high)}
    hidden = len(covered & set(range(start, start + length)))
    result = communication_exposure([start, start + length], intervals)
    assert result["hidden_ms"] == hidden
    assert result["exposed_ms"] == length - hidden


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (communication_time_ms, (-1, 50, 8, 1)),
        (communication_time_ms, (math.nan, 50, 8, 1)),
        (communication_time_ms, (1, 0, 8, 1)),
        (communication_time_ms, (1, -5, 8, 1)),
        (communication_time_ms, (1, math.inf, 8, 1)),
        (communication_time_ms, (1, 50, -1, 1)),
        (communication_time_ms, (1, 50, 8, 0)),
        (communication_time_ms, (1, 50, 8, 1.5)),
        (communication_time_ms, (1, 50, 8, True)),
        (communication_time_ms, ("1", 50, 8, 1)),
        (communication_time_ms, (1e308, 1e-300, 8, 1)),
        (communication_time_ms, (10**400, 50, 8, 1)),
        (ring_allreduce_payload_mib, (-1, 4)),
        (ring_allreduce_payload_mib, (1.7e308, 4)),
        (ring_allreduce_payload_mib, (10**400, 4)),
        (ring_allreduce_payload_mib, (1, 1)),
        (ring_allreduce_payload_mib, (1, 2.5)),
        (ring_allreduce_payload_mib, (math.nan, 4)),
        (alltoall_route_ledger, ([[1]], 4)),
        (alltoall_route_ledger, ([[1, 2], [3]], 4)),
        (alltoall_route_ledger, ([[1, 2], [3, -4]], 4)),
        (alltoall_route_ledger, ([[1, 2], [3, 4]], 0)),
        (communication_exposure, ([5, 1], [])),
        (communication_exposure, ([0, 12], [[4, 1]])),
        (communication_exposure, ([0, math.nan], [])),
        (communication_exposure, ([0, 1, 2], [])),
        (communication_exposure, ([0, 12], [[3]])),
        (communication_exposure, ([0, 12], [[math.nan, 3]])),
        (communication_exposure, ([0, 12], [[1, math.nan]])),
        (schedule_gradient_buckets, ([], 32)),
        (schedule_gradient_buckets, (four_layers(), 0)),
        (schedule_gradient_buckets, (four_layers(), -1)),
        (schedule_gradient_buckets, (four_layers(), math.nan)),
        (schedule_gradient_buckets, (four_layers() * 2, 32)),
        (schedule_gradient_buckets, (four_layers(), 32, 0)),
        (schedule_gradient_buckets, (four_layers(), 32, 50, -1)),
        (schedule_gradient_buckets, ([{"name": "a", "ready_ms": -1, "size_mib": 1}], 32)),
        (schedule_gradient_buckets, ([{"name": "a", "ready_ms": 1, "size_mib": -1}], 32)),
        (schedule_gradient_buckets, ([{"name": "a", "ready_ms": math.nan, "size_mib": 1}], 32)),
        (schedule_gradient_buckets, ([{"name": "", "ready_ms": 1, "size_mib": 1}], 32)),
        (schedule_gradient_buckets, ([{"name": "a", "ready_ms": 1}], 32)),
    ],
)
def test_refusals(function, arguments):
    """Values out of range are refused with an InputError, which is a ValueError."""
    with pytest.raises(InputError):
        function(*arguments)


def test_tiny_caps_and_empty_layers():
    """A cap far below a byte closes a bucket for every layer that has bytes."""
    layers = four_layers()
    assert schedule_gradient_buckets(layers, 1e-12)["bucket_count"] == 4
    layers[1]["size_mib"] = 0
    assert schedule_gradient_buckets(layers, 1e-12)["bucket_count"] == 3


def test_numpy_values():
    """Numbers from arrays are numbers."""
    layers = [dict(layer, size_mib=np.float64(32), ready_ms=np.int64(2)) for layer in four_layers()]
    assert schedule_gradient_buckets(layers, np.int64(32))["bucket_count"] == 4
    tokens = np.array([[0, 3], [1, 0]])
    assert same(alltoall_route_ledger(tokens, 4096), alltoall_route_ledger([[0, 3], [1, 0]], 4096))
    assert communication_time_ms(np.float64(256), np.int64(50), 8)["transfer_ms"] == 5.0

"""Five small functions in the units of the classroom: thin faces over the engine.

They take and return plain numbers in ms, MiB and GiB/s, rounded for reading, and compute nothing
that the engine does not: cost curves, the bucket rule, the evaluator, unions of intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from commsched.models.collectives import all_to_all_ledger, sent_bytes
from commsched.models.cost import AlphaBeta
from commsched.models.errors import InputError
from commsched.models.exposure import merge_intervals, overlap
from commsched.models.gradients import GradientProblem
from commsched.models.plan import Plan, close_at_or_above
from commsched.models.step import Gradient
from commsched.models.timeline import evaluate
from commsched.models.units import (
    GIB,
    MAX_BYTES,
    MAX_NS,
    MIB,
    NS_PER_MS,
    check_bytes,
    exact,
    exact_at_least_zero,
    shown,
)

DIGITS = 4
# The engine counts whole ticks and whole bytes. So that its rounding never shows in the fourth
# decimal of a millisecond, a tick is a picosecond here, and a unit of size 1/1024 byte.
TICKS_PER_MS = 1000 * NS_PER_MS
UNITS_PER_MIB = 1024 * MIB


def communication_time_ms(
    payload_mib: float, bandwidth_gib_s: float, latency_us: float, launches: int = 1
) -> dict[str, float]:
    """Return the time of a payload that is sent in some number of equal launches.

    Parameters
    ----------
    payload_mib
        Bytes to move, in MiB, at least 0.
    bandwidth_gib_s
        Algorithm bandwidth in GiB/s, above 0.
    latency_us
        Start-up latency of each launch in microseconds, at least 0.
    launches
        Number of launches, at least 1.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> communication_time_ms(256, 50, 8, 64)["communication_ms"]
    5.512
    """
    exact_at_least_zero(payload_mib, "payload_mib")
    if check_bytes(launches, "launches") < 1:
        raise InputError(f"launches: {launches!r} must be at least 1")
    curve = AlphaBeta(latency_us, _gb_s(bandwidth_gib_s))
    launch_ns = launches * curve.exact_ns(0)
    each = exact(payload_mib, "payload_mib") * MIB / launches
    line = curve.pieces[0]
    total_ns = launches * (line.intercept + line.slope * each) / line.scale
    if total_ns > MAX_NS:
        raise InputError("the launches take longer than 13 days; check the units")
    return {
        "payload_mib": payload_mib,
        "launches": launches,
        "transfer_ms": _ms(total_ns - launch_ns),
        "launch_ms": _ms(launch_ns),
        "communication_ms": _ms(total_ns),
    }


def schedule_gradient_buckets(
    layers: Sequence[Mapping[str, Any]],
    bucket_cap_mib: float,
    bandwidth_gib_s: float = 50,
    latency_us: float = 8,
) -> dict[str, Any]:
    """Return the timeline of gradients that are bucketed by DDP's rule with one cap.

    Parameters
    ----------
    layers
        At least one mapping with ``name``, ``ready_ms`` and ``size_mib``, in any order.
    bucket_cap_mib
        A bucket closes when it has reached this size; above 0.
    bandwidth_gib_s, latency_us
        What a launch costs.

    Raises
    ------
    InputError
        If there is no layer or a value is out of range.

    Examples
    --------
    >>> schedule_gradient_buckets([
    ...     {"name": "L2", "ready_ms": 2, "size_mib": 32},
    ...     {"name": "L1", "ready_ms": 5, "size_mib": 32}], 64)["exposed_after_backward_ms"]
    1.258
    """
    if exact(bucket_cap_mib, "bucket_cap_mib") <= 0:
        raise InputError(f"bucket_cap_mib: {bucket_cap_mib} must be above 0")
    for number, layer in enumerate(layers):
        missing = {"name", "ready_ms", "size_mib"} - set(layer)
        if missing:
            raise InputError(f"layer {number}: {', '.join(sorted(missing))} missing")
    gradients = [
        Gradient(
            str(layer["name"]),
            _units(layer["size_mib"], UNITS_PER_MIB, f"layer {layer['name']!r}: size_mib"),
            _units(layer["ready_ms"], TICKS_PER_MS, f"layer {layer['name']!r}: ready_ms"),
        )
        for layer in layers
    ]
    scale = Fraction(TICKS_PER_MS, NS_PER_MS)
    curve = AlphaBeta(
        exact(latency_us, "latency_us") * scale,
        _gb_s(bandwidth_gib_s) * Fraction(UNITS_PER_MIB, MIB) / scale,
    )
    problem = GradientProblem(gradients, curve)
    order = problem.ready_order
    ends = close_at_or_above(
        [problem.bytes[k] for k in order],
        [max(1, _units(bucket_cap_mib, UNITS_PER_MIB, "bucket_cap_mib"))],
    )
    names = [problem.names[k] for k in order]
    plan = Plan.of(names[i:j] for i, j in zip([0, *ends], ends, strict=False))
    timeline = evaluate(problem, plan)
    return {
        "bucket_count": plan.launches,
        "backward_end_ms": _rounded(timeline.compute_ns, TICKS_PER_MS),
        "communication_end_ms": _rounded(timeline.launches[-1].end_ns, TICKS_PER_MS),
        "exposed_after_backward_ms": _rounded(timeline.exposed_ns, TICKS_PER_MS),
        "timeline": [
            {
                "bucket_id": number,
                "layers": list(launch.names),
                "size_mib": round(launch.bytes / UNITS_PER_MIB, 2),
                "ready_ms": _rounded(launch.ready_ns, TICKS_PER_MS),
                "start_ms": _rounded(launch.start_ns, TICKS_PER_MS),
                "end_ms": _rounded(launch.end_ns, TICKS_PER_MS),
            }
            for number, launch in enumerate(timeline.launches)
        ],
    }


def ring_allreduce_payload_mib(payload_mib: float, ranks: int) -> float:
    """Return what each rank sends for a ring all-reduce of ``payload_mib``, in MiB.

    Raises
    ------
    InputError
        If the payload is negative or above 1 PiB, or there are fewer than 2 ranks.

    Examples
    --------
    >>> ring_allreduce_payload_mib(256, 4)
    384.0
    """
    payload = exact_at_least_zero(payload_mib, "payload_mib")
    if payload > MAX_BYTES // MIB:
        raise InputError(f"payload_mib: {shown(payload_mib)} must be at most {MAX_BYTES // MIB}")
    return float(payload * sent_bytes("allreduce", 1, ranks))


def alltoall_route_ledger(tokens: Sequence[Sequence[int]], bytes_per_token: int) -> dict[str, Any]:
    """Return who receives how much when rank ``i`` sends ``tokens[i][j]`` tokens to rank ``j``.

    Raises
    ------
    InputError
        If the matrix is not square, smaller than 2 x 2 or holds a negative number, or
        ``bytes_per_token`` is not above 0.

    Examples
    --------
    >>> alltoall_route_ledger([[0, 3], [1, 0]], 4096)["max_to_mean_receive_ratio"]
    1.5
    """
    ledger = all_to_all_ledger(tokens, bytes_per_token)
    return {
        "remote_payload_mib": _rounded(ledger.remote_bytes, MIB),
        "received_tokens": list(ledger.received_tokens),
        "max_to_mean_receive_ratio": round(float(ledger.max_to_mean), DIGITS),
    }


def communication_exposure(
    communication: Sequence[float], compute: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Return how much of one communication interval is hidden behind compute intervals.

    Parameters
    ----------
    communication
        Start and end, in ms.
    compute
        Starts and ends, in ms, in any order; they may overlap.

    Raises
    ------
    InputError
        If an interval is not a start and an end, or ends before it starts.

    Examples
    --------
    >>> communication_exposure([0, 12], [[1, 4], [3, 8]])["exposed_ms"]
    5
    """
    for interval in [communication, *compute]:
        if len(interval) != 2:
            raise InputError(f"{interval!r:.100} must be a start and an end")
        exact(interval[0], "start")
        exact(interval[1], "end")
    start, end = communication
    if end < start:
        raise InputError(f"communication: [{start}, {end}] ends before it starts")
    hidden_parts = overlap(start, end, merge_intervals((low, high) for low, high in compute))
    hidden = sum(high - low for low, high in hidden_parts)
    length = end - start
    return {
        "communication_ms": round(length, DIGITS),
        "hidden_ms": round(hidden, DIGITS),
        "exposed_ms": round(length - hidden, DIGITS),
        "overlap_ratio": round(hidden / length, DIGITS) if length else 1.0,
        "merged_overlap_intervals": [list(part) for part in hidden_parts],
    }


def _gb_s(gib_s: object) -> Fraction:
    value = exact(gib_s, "bandwidth_gib_s")
    if value <= 0:
        raise InputError(f"bandwidth_gib_s: {gib_s} must be above 0")
    return value * GIB / 10**9


def _units(value: object, per: int, what: str) -> int:
    units = math.floor(exact_at_least_zero(value, what) * per + Fraction(1, 2))
    if units > MAX_NS:
        raise InputError(f"{what}: {value} must be at most {MAX_NS // per}")
    return units


def _rounded(ticks: int, per: int) -> float:
    return round(ticks / per, DIGITS)


def _ms(ns: Fraction) -> float:
    return round(float(ns / NS_PER_MS), DIGITS)

"""TorchInductor's greedy bucketing of adjacent collectives, and its cap for saturated bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

import networkx as nx

from commsched.models import Plan, Problem
from commsched.models.collectives import Kind, check_ranks
from commsched.models.cost import CostCurve
from commsched.models.errors import InputError
from commsched.models.knob import Setting, exceeded
from commsched.models.units import MIB, NS_PER_US, Number, exact, shown
from commsched.optimizer.rules.curve import bandwidth_bytes_per_ns, latency_ns
from commsched.optimizer.rules.order import by_last_member, contracted, in_launch_order
from commsched.optimizer.rules.rows import Cut, Rows, Sketch, Sketcher

CAP_BYTES = 2000 * MIB
EFFICIENCY = 0.9
LOW_BYTES = 10 * MIB
HIGH_BYTES = 500 * MIB
PASSES: tuple[Kind, ...] = ("reduce_scatter", "allreduce", "all_gather")
"""The kinds that Inductor buckets, in the order of its passes."""


def inductor(problem: Problem, cap_bytes: Setting = CAP_BYTES) -> Plan:
    """Return the buckets of Inductor's greedy pass.

    One pass a kind (reduce-scatter, all-reduce, all-gather; others are never bucketed) looks at the
    collectives of that kind alone, in order. Neighbours of one group and dtype form a run: a
    collective of the same kind with another fusion key ends it, one of another kind does not. In a
    run a collective joins the bucket while the sum stays at most the cap, else it opens the next; one
    alone may exceed the cap. A collective that waits for a member of the open bucket is left out and
    launched by itself; the bucket goes on. The pass walks the graph's waits; here that is the ready
    order. Cap lists cannot be set: the pass asks its callback only for bucket 0.

    Source: torch/_inductor/fx_passes/bucketing.py, ``greedy_bucket_collective_by_mb`` and
    ``bucket_cap_mb_by_bucket_idx_default`` = 2000 (multiplied by 1024 * 1024: MiB). The passes are
    off by default (``torch._inductor.config.bucket_all_reduces_fx`` and its like); their cap is
    ``bucket_all_reduces_fx_bucket_size_determinator``, which returns MiB.

    Parameters
    ----------
    problem
        The step.
    cap_bytes
        The most bytes of a bucket of several collectives.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", size, k) for k, size in enumerate([3, 3, 9, 2, 4])]
    >>> [b.names for b in inductor(GradientProblem(gradients, AlphaBeta(1, 1)), 6).buckets]
    [('g0', 'g1'), ('g2',), ('g3', 'g4')]
    """
    if (sketch := inductor_sketcher(problem)) is not None:
        return sketch(cap_bytes).plan()
    buckets: list[Sequence[int]] = [[k] for k in problem.ready_order]
    for kind in PASSES:
        if any(key.kind == kind for key in problem.chains):
            buckets = _bucketed(problem, by_last_member(problem, buckets), kind, cap_bytes)
    return in_launch_order(problem, buckets)


def inductor_sketcher(problem: Problem) -> Sketcher | None:
    """Return :func:`inductor` from its cap to buckets where nothing waits for a collective.

    Then no pass changes what another one sees: each kind is cut in ready order.
    """
    if not problem.settled:
        return None
    rows = Rows(problem, problem.chains.items())
    runs: list[tuple[int, int, int]] = []  # row, begin, end
    for kind in (*PASSES, *({key.kind for key in problem.chains} - set(PASSES))):
        mine = [n for n, row in enumerate(rows.rows) if row.key.kind == kind]
        placed = sorted((place, n) for n in mine for place in rows.rows[n].places)
        done = dict.fromkeys(mine, 0)
        for n, members in groupby(placed, key=lambda entry: entry[1]):
            count = len(list(members))
            if kind in PASSES:
                runs.append((n, done[n], done[n] + count))
            else:  # never bucketed
                runs += [(n, k, k + 1) for k in range(done[n], done[n] + count)]
            done[n] += count
    alone = [Cut(*run) for run in runs if run[2] == run[1] + 1]
    runs = [run for run in runs if run[2] > run[1] + 1]
    totals = [row.totals for row in rows.rows]

    def sketch(cap: Setting) -> Sketch:
        cuts = list(alone)
        for row, begin, stop in runs:
            while begin < stop:
                # The first one is taken, however large.
                sums = totals[row]
                end = exceeded(sums, begin + 2, stop + 1, sums[begin], cap) - 1
                cuts.append(Cut(row, begin, end))
                begin = end
        return rows.by_last_member(cuts)

    return sketch


def _bucketed(
    problem: Problem, buckets: Sequence[Sequence[int]], kind: Kind, cap: Setting
) -> list[Sequence[int]]:
    """Return the buckets after the pass of a kind, none of which is bucketed yet."""
    followers = None if problem.settled else _followers(problem, buckets)
    result: list[Sequence[int]] = []
    members: list[int] = []
    waiting = total = 0
    for number, bucket in enumerate(buckets):
        first = bucket[0]
        if problem.keys[first].kind != kind:
            result.append(bucket)
            continue
        if members and problem.keys[first] == problem.keys[members[0]]:
            if waiting >> number & 1:
                result.append(bucket)
                continue
            full = total + problem.bytes[first] > cap
        else:
            full = True
        if full:
            members, waiting, total = [], 0, 0
            result.append(members)
        members.append(first)
        total += problem.bytes[first]
        waiting |= followers[number] if followers else 0
    return result


def _followers(problem: Problem, buckets: Sequence[Sequence[int]]) -> list[int]:
    """Return for each bucket a mask with a bit for each bucket that waits for it."""
    graph = contracted(problem, buckets)
    masks: dict[str | int, int] = {}
    for node in reversed(list(nx.topological_sort(graph))):
        mask = 0
        for after in graph.succ[node]:
            mask |= masks[after] | (1 << after if isinstance(after, int) else 0)
        masks[node] = mask
    return [masks[number] for number in range(len(buckets))]


def inductor_saturation(
    problem: Problem,
    *,
    efficiency: Number = EFFICIENCY,
    low: int = LOW_BYTES,
    high: int = HIGH_BYTES,
) -> Plan:
    """Return Inductor's buckets under the cap that saturates the bandwidth.

    Inductor buckets the collectives of FSDP before it schedules overlap, with one cap for all: the
    size from which the link is used to 90%, clamped to 10 to 500 MiB. It takes latency and bandwidth
    for an all-gather from its own table of interconnects (:data:`PROFILES`). Here they are those of
    the step: the cost of 0 bytes and the inverse slope at large sizes of its first all-gather, or
    of its first collective where there is none. So this is what its formula makes of the
    right figures.

    Source: torch/_inductor/fx_passes/fsdp.py, ``compute_pre_bucket_cap_mb`` and
    ``pre_bucket_fsdp_collectives``; ``pre_bucketing_fsdp_collectives*`` in config.py. The cap is
    set by ``aten_distributed_optimizations.pre_bucketing_fsdp_collectives_bucket_cap_mb`` (MiB).

    Parameters
    ----------
    problem
        The step.
    efficiency
        The share of the bandwidth to be reached, above 0 and below 1.
    low, high
        Least and most bytes of the cap; the least wins where they contradict each other.

    Raises
    ------
    NotApplicableError
        If the cost does not grow with size at large sizes.
    InputError
        If the efficiency is out of range.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 8 * 2**20, k) for k in range(4)]
    >>> problem = GradientProblem(gradients, AlphaBeta(alpha_us=50, bandwidth_gb_s=40))
    >>> saturation_cap(problem.cost(problem.keys[0])) / 2**20  # 9 * 50 us * 40 GB/s = 18 MB
    17.1661376953125
    >>> [b.names for b in inductor_saturation(problem).buckets]
    [('g0', 'g1'), ('g2', 'g3')]
    """
    keys = [problem.keys[k] for k in problem.ready_order]
    key = next((key for key in keys if key.kind == "all_gather"), keys[0])
    return inductor(problem, saturation_cap(problem.cost(key), efficiency, low, high))


def saturation_cap(
    curve: CostCurve,
    efficiency: Number = EFFICIENCY,
    low: int = LOW_BYTES,
    high: int = HIGH_BYTES,
) -> int:
    """Return the size in bytes that saturates a curve's bandwidth, clamped to ``low`` to ``high``.

    Raises
    ------
    NotApplicableError
        If the cost does not grow with size at large sizes.
    InputError
        If the efficiency is out of range.
    """
    latency_us = latency_ns(curve) / NS_PER_US
    cap = saturation_bytes(latency_us, bandwidth_bytes_per_ns(curve), efficiency)
    return max(low, min(high, cap))


def saturation_bytes(
    latency_us: Number, bandwidth_gb_s: Number, efficiency: Number = EFFICIENCY
) -> int:
    """Return the least size whose transfer reaches a share of the bandwidth, in bytes.

    A launch of s bytes takes ``latency + s / bandwidth``; it reaches the share e of the bandwidth at
    ``e / (1 - e) * latency * bandwidth``: nine times latency times bandwidth for 90%. Rounded down;
    torch computes in floating point and may be a byte below.

    Parameters
    ----------
    latency_us
        Start-up latency in microseconds.
    bandwidth_gb_s
        Bandwidth in GB/s, 1 GB = 1e9 bytes.
    efficiency
        The share, above 0 and below 1.

    Raises
    ------
    InputError
        If the efficiency is out of range, or a value is no number.

    Examples
    --------
    >>> saturation_bytes(latency_us=10, bandwidth_gb_s=1)
    90000
    """
    share = exact(efficiency, "efficiency")
    if not 0 < share < 1:
        raise InputError(f"efficiency: {shown(efficiency)} must be above 0 and below 1")
    nanoseconds = exact(latency_us, "latency_us") * NS_PER_US
    return int(share / (1 - share) * nanoseconds * exact(bandwidth_gb_s, "bandwidth_gb_s"))


@dataclass(frozen=True, slots=True)
class Profile:
    """What Inductor assumes of an interconnect.

    Attributes
    ----------
    bus_bandwidth_gb_s
        Bus bandwidth at large sizes in GB/s.
    hop_us, base_us
        Latency of a step of the ring and of the launch, in microseconds.
    floor_bytes
        The least size that is taken to saturate it.
    """

    bus_bandwidth_gb_s: int
    hop_us: int
    base_us: int
    floor_bytes: int = 0


PROFILES: Mapping[str, Profile] = {
    "NVLINK_V100": Profile(14, 50, 10),
    "NVLINK_A100": Profile(22, 45, 10),
    "NVLINK_H100": Profile(36, 40, 10),
    "NVLINK_B200": Profile(60, 30, 10),
    "IB_HDR": Profile(11, 14, 30, 75 * MIB),
    "IB_NDR": Profile(22, 12, 30, 100 * MIB),
    "PCIE": Profile(10, 60, 15),
}
"""``INTERCONNECT_PROFILES`` of torch/_inductor/comm_analysis.py (torch 2.13), for reference."""


def inductor_profile_cap(profile: str, ranks: int, kind: Kind = "all_gather") -> int:
    """Return the cap in bytes that Inductor derives from its own table.

    ``compute_min_saturation_bytes`` in torch/_inductor/comm_analysis.py, clamped to 10 to 500 MiB as
    in fsdp.py, which asks for the all-gather. A ring takes n - 1 steps, an all-reduce twice as many.

    Parameters
    ----------
    profile
        A name in :data:`PROFILES`.
    ranks
        Ranks of the group, at least 2.
    kind
        An all-gather, reduce-scatter or all-reduce.

    Raises
    ------
    InputError
        If the profile or kind is unknown to Inductor, or there are fewer than 2 ranks.

    Examples
    --------
    >>> round(inductor_profile_cap("NVLINK_H100", 8) / 2**20, 1)  # 9 * (10 + 7 * 40) us * 36 GB/s
    89.6
    """
    if profile not in PROFILES:
        raise InputError(f"profile: {profile!r:.100} is not one of {', '.join(PROFILES)}")
    if kind not in PASSES:
        raise InputError(f"kind: {kind!r:.100} is not one of {', '.join(PASSES)}")
    figures = PROFILES[profile]
    steps = (2 if kind == "allreduce" else 1) * (check_ranks(ranks) - 1)
    latency_us = Fraction(figures.base_us + steps * figures.hop_us)
    size = max(saturation_bytes(latency_us, figures.bus_bandwidth_gb_s), figures.floor_bytes)
    return max(LOW_BYTES, min(HIGH_BYTES, size))

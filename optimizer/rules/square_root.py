"""The teaching formula: buckets of the square root of bytes times bandwidth times latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from commsched.models import Plan, Problem, close_at_or_above
from commsched.optimizer.rules.curve import bandwidth_bytes_per_ns, latency_ns
from commsched.optimizer.rules.order import in_launch_order


def square_root_bytes(total: int, latency: Fraction, bandwidth: Fraction) -> int:
    """Return the formula's bucket in bytes, rounded up.

    Parameters
    ----------
    total
        Bytes of all gradients.
    latency
        Start-up latency in nanoseconds.
    bandwidth
        Bandwidth in bytes per nanosecond (GB/s).

    Examples
    --------
    >>> square_root_bytes(10_000_000, Fraction(10_000), Fraction(1))  # 10 us, 1 GB/s
    316228
    """
    product = math.ceil(total * bandwidth * latency)
    return math.isqrt(product - 1) + 1 if product > 0 else 0


def square_root(problem: Problem) -> Plan:
    """Return buckets of about ``sqrt(total bytes * bandwidth * latency)`` bytes.

    A formula for teaching: it balances the start-ups of many launches against the wait for a big
    bucket, and looks at no ready time. For each fusion key the total is that of its collectives, the
    latency is the cost of 0 bytes and the bandwidth the inverse slope at large sizes. A bucket closes
    as soon as it has reached that size, as in DDP; what is left is the last bucket. The formula's
    source only counts buckets, so where they end is this tool's choice. Without latency every
    collective is launched alone.

    Source: torchedup.dev, "Bucketed AllReduce - Optimal Bucket Count".

    Raises
    ------
    NotApplicableError
        If a cost does not grow with size at large sizes.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 250, ready_ns=k) for k in range(4)]
    >>> problem = GradientProblem(gradients, AlphaBeta(alpha_us=0.25, bandwidth_gb_s=1))
    >>> [b.names for b in square_root(problem).buckets]  # sqrt(1000 * 1 * 250) = 500 bytes
    [('g0', 'g1'), ('g2', 'g3')]
    """
    buckets: list[Sequence[int]] = []
    for key, chain in problem.chains.items():
        curve = problem.cost(key)
        sizes = [problem.bytes[k] for k in chain]
        cap = square_root_bytes(sum(sizes), latency_ns(curve), bandwidth_bytes_per_ns(curve))
        ends = close_at_or_above(sizes, [cap])
        buckets += [chain[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return in_launch_order(problem, buckets)

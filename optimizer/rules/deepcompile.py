"""DeepSpeed's DeepCompile: fuse while the predicted time of the fused launch stays close."""

from __future__ import annotations

from collections.abc import Sequence

from commsched.models import Plan, Problem
from commsched.models.units import Number, exact_at_least_zero
from commsched.optimizer.rules.order import in_launch_order

FUSE_FACTOR = 1.2
MAX_BYTES = 1_000_000_000


def deep_compile(
    problem: Problem, *, factor: Number = FUSE_FACTOR, max_bytes: int = MAX_BYTES
) -> Plan:
    """Return the buckets that DeepCompile's prefetch pass would fuse.

    The pass walks *backwards*, from the last collective to the first. It adds the next one to the
    open bucket if ``factor * max(T(bucket), T(next)) > T(bucket + next)`` and the sum is below
    ``max_bytes``; otherwise it closes the bucket and opens another. So under an affine cost a tensor
    joins where start-up dominates or where the other part is much larger. T is the cost curve (the
    pass interpolates a benchmark that it runs).

    DeepCompile fuses the all-gathers of ZeRO-3; here the criterion is applied to each fusion key's
    collectives, whatever their kind. Left out: how far the pass moves a bucket forward, which
    depends on memory; a launch starts when it is ready and its channel is free. Memory also closes
    a bucket there (more than 4e9 bytes gathered ahead, or above 90% of the device's memory).

    Source: deepspeed/compile/passes/prefetch.py, ``schedule_prefetch``; 1.2 stands in the
    comparison itself, ``MAX_FUSE_SIZE`` = 1e9 bytes (the ``FUSE_FACTOR`` = 0.8 there is unused).

    Parameters
    ----------
    problem
        The step.
    factor
        How much longer than its longer part a fused launch may be; the comparison is strict.
    max_bytes
        A fused bucket stays below that, in bytes.

    Raises
    ------
    InputError
        If the factor is no number of at least 0.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", size, k) for k, size in enumerate([1000, 1000, 100, 100])]
    >>> problem = GradientProblem(gradients, AlphaBeta(alpha_us=0.5, bandwidth_gb_s=1))
    >>> [b.names for b in deep_compile(problem).buckets]  # 1.2 * 1500 > 1700, 1.2 * 1700 < 2700
    [('g0',), ('g1', 'g2', 'g3')]
    """
    times = exact_at_least_zero(factor, "factor")
    buckets: list[Sequence[int]] = []
    for key, chain in problem.chains.items():
        cost = problem.cost(key).exact_ns
        bucket: list[int] = []
        total = 0
        for k in reversed(chain):
            fused = total + problem.bytes[k]
            longer = max(cost(total), cost(problem.bytes[k]))
            if bucket and not (times * longer > cost(fused) and fused < max_bytes):
                buckets.append(bucket[::-1])
                bucket, fused = [], problem.bytes[k]
            bucket.append(k)
            total = fused
        buckets.append(bucket[::-1])
    return in_launch_order(problem, buckets)

"""Megatron-core's rule: a bucket of the gradient buffer closes when it has enough parameters.

Source: megatron/core/distributed/param_and_grad_buffer.py, ``_ParamAndGradBuffer.__init__``; default in
megatron/core/distributed/distributed_data_parallel.py: ``bucket_size`` = max(40,000,000 parameters,
1,000,000 parameters times the data-parallel size).
"""

from __future__ import annotations

from commsched.models import Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.knob import Setting
from commsched.optimizer.rules.common import kinds_only
from commsched.optimizer.rules.order import in_launch_order

LEAST_BUCKET_ELEMENTS = 40_000_000
BUCKET_ELEMENTS_A_RANK = 1_000_000
ALIGNED_ELEMENTS = 64


def megatron(
    problem: Problem,
    bucket_elements: Setting | None = None,
    *,
    data_parallel_size: int = 1,
    distributed_optimizer: bool = False,
) -> Plan:
    """Return what Megatron-core runs with ``overlap_grad_reduce`` on the first pipeline stage.

    Without that option, which is off by default, and on later stages it has no limit: one bucket for
    each dtype.

    Each dtype has a buffer that is filled in reverse registration order, for which ready order
    stands. A bucket closes when its extent in the buffer reaches ``bucket_elements``, tested after
    adding. With the distributed optimizer every parameter starts at a multiple of 64 elements, and
    the elements skipped for that count. The padding at a bucket's end (to a multiple of the
    data-parallel size and 128, or 65536 with ``pad_buckets_for_high_nccl_busbw``) does not count: the
    bucket is closed already, and the next extent begins after it. A bucket is launched when all its
    gradients are ready.

    Padding is not priced: a launch has the bytes of its gradients. Shared embeddings, which get a
    bucket of their own with the distributed optimizer, are not known to a problem.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces or reduce-scatters.
    bucket_elements
        ``bucket_size`` (``--ddp-bucket-size``) in parameters; None for the default, 40,000,000 or
        1,000,000 times ``data_parallel_size`` if that is more.
    data_parallel_size
        Ranks in the data-parallel group; only the default depends on it.
    distributed_optimizer
        Whether parameters are aligned.

    Raises
    ------
    NotApplicableError
        If the step has other collectives, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient(f"g{k}", 400, k) for k in range(4)], AlphaBeta(1, 1))
    >>> [bucket.names for bucket in megatron(problem, 228).buckets]
    [('g0', 'g1', 'g2'), ('g3',)]
    >>> [bucket.names for bucket in megatron(problem, 228, distributed_optimizer=True).buckets]
    [('g0', 'g1'), ('g2', 'g3')]
    """
    kinds = ("allreduce", "reduce_scatter")
    kinds_only(problem, "Megatron's rule", kinds, "all-reduces and reduce-scatters")
    if bucket_elements is None:
        bucket_elements = max(LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_A_RANK * data_parallel_size)
    aligned = ALIGNED_ELEMENTS if distributed_optimizer else 1
    buckets: list[list[int]] = []
    for key, chain in problem.chains.items():
        members: list[int] = []
        extent = 0
        for position in chain:
            begin = -(-extent // aligned) * aligned
            extent = begin + elements(problem.bytes[position], key.dtype)
            members.append(position)
            if extent >= bucket_elements:
                buckets.append(members)
                members, extent = [], 0
        if members:
            buckets.append(members)
    return in_launch_order(problem, buckets)

"""Megatron-core's rule: a bucket of the gradient buffer closes when it has enough parameters.

Source: megatron/core/distributed/param_and_grad_buffer.py, ``_ParamAndGradBuffer.__init__``; default in
megatron/core/distributed/distributed_data_parallel.py: ``bucket_size`` = max(40,000,000 parameters,
1,000,000 parameters times the data-parallel size).
"""

from __future__ import annotations

from itertools import accumulate

from commsched.models import Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.knob import Setting, reached
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.rows import Cut, Rows, Sketch, Sketcher

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
        A step with all-reduces, or with reduce-scatters alone; its other collectives are launched by
        themselves.
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
        If the step has neither, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient(f"g{k}", 400, k) for k in range(4)], AlphaBeta(1, 1))
    >>> [bucket.names for bucket in megatron(problem, 228).buckets]
    [('g0', 'g1', 'g2'), ('g3',)]
    >>> [bucket.names for bucket in megatron(problem, 228, distributed_optimizer=True).buckets]
    [('g0', 'g1'), ('g2', 'g3')]
    """
    if bucket_elements is None:
        bucket_elements = max(LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_A_RANK * data_parallel_size)
    return megatron_sketcher(problem, distributed_optimizer=distributed_optimizer)(
        bucket_elements
    ).plan()


def megatron_sketcher(problem: Problem, *, distributed_optimizer: bool = False) -> Sketcher:
    """Return :func:`megatron` from its knob to buckets."""
    kinds = ("allreduce", "reduce_scatter")
    chains = reductions(problem, "Megatron's rule", kinds, "all-reduces and reduce-scatters")
    rows = Rows(problem, chains.items())
    aligned = ALIGNED_ELEMENTS if distributed_optimizer else 1
    # Where each parameter begins in the buffer, and where the buffer ends after it.
    begins: list[list[int]] = []
    extents: list[list[int]] = []
    for row in rows.rows:
        counts = [elements(problem.bytes[k], row.key.dtype) for k in row.positions]
        begins.append([0, *accumulate(-(-count // aligned) * aligned for count in counts)])
        extents.append([begin + n for begin, n in zip(begins[-1], counts, strict=False)])

    def sketch(bucket_elements: Setting) -> Sketch:
        cuts: list[Cut] = []
        for number, (starts, ends) in enumerate(zip(begins, extents, strict=True)):
            begin = 0
            while begin < len(ends):
                last = reached(ends, begin, starts[begin], bucket_elements)
                cuts.append(Cut(number, begin, min(last + 1, len(ends))))
                begin = last + 1
        return rows.by_last_member(cuts)

    return sketch

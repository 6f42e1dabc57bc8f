"""DeepSpeed ZeRO-1/2's rule: a bucket is flushed when the next gradient no longer fits into it.

Source: deepspeed/runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``
and ``reduce_ipg_grads``. Default: ``reduce_bucket_size`` = 5e8 elements, in
deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

from itertools import accumulate

from commsched.models import Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.knob import Setting, exceeded
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.rows import Cut, Rows, Sketch, Sketcher

BUCKET_ELEMENTS = 500_000_000


def deepspeed(problem: Problem, bucket_elements: Setting = BUCKET_ELEMENTS) -> Plan:
    """Return what DeepSpeed ZeRO-1/2 runs with ``overlap_comm``, which is off by default there.

    Gradients are taken in ready order, in one bucket for each dtype (DeepSpeed has one for each
    type that it communicates in, and casts to it; here that is the gradient's own). Before one is
    added, the bucket is flushed if the two together have more elements than ``bucket_elements``; so
    that is a true maximum, and a larger gradient is reduced by itself. It is the arrival of the
    gradient which does not fit that launches a bucket, and the end of backward that launches the last
    ones: each bucket carries that time in ``not_before_ns`` (in a step whose compute waits for
    collectives, the time in the nominal step). What is launched at the end of backward goes by the
    name of the dtype.

    Each bucket is priced as one all-reduce.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.
    bucket_elements
        ``reduce_bucket_size``, in elements; by default 500,000,000.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 4000, ready_ns=k) for k in range(5)]
    >>> problem = GradientProblem(gradients, AlphaBeta(1, 1), backward_end_ns=9)
    >>> [(b.names, b.not_before_ns) for b in deepspeed(problem, 2500).buckets]
    [(('g0', 'g1'), 2), (('g2', 'g3'), 4), (('g4',), 9)]
    """
    return deepspeed_sketcher(problem)(bucket_elements).plan()


def deepspeed_sketcher(problem: Problem) -> Sketcher:
    """Return :func:`deepspeed` from its knob to buckets."""
    rows = Rows(problem, reductions(problem, "DeepSpeed's rule").items())
    end_ns = problem.compute_ns if problem.gradients is not None else max(problem.ready_ns)
    counts = [
        [0, *accumulate(elements(problem.bytes[k], row.key.dtype) for k in row.positions)]
        for row in rows.rows
    ]

    def sketch(bucket_elements: Setting) -> Sketch:
        flushed: list[tuple[str, int, Cut]] = []
        for number, (row, totals) in enumerate(zip(rows.rows, counts, strict=True)):
            begin, members = 0, len(row.positions)
            while True:
                # The first one is taken, however large.
                most = members + 1
                end = exceeded(totals, begin + 2, most, totals[begin], bucket_elements) - 1
                if end >= members:
                    break
                when_ns = rows.ready_at[row.places[end]]
                flushed.append(("", row.places[end], Cut(number, begin, end, when_ns)))
                begin = end
            last = Cut(number, begin, members, end_ns)
            flushed.append((row.key.dtype, row.places[begin], last))
        return Sketch(rows, [cut for _, _, cut in sorted(flushed)])

    return sketch

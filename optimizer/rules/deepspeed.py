"""DeepSpeed ZeRO-1/2's rule: a bucket is flushed when the next gradient no longer fits into it.

Source: deepspeed/runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``
and ``reduce_ipg_grads``. Default: ``reduce_bucket_size`` = 5e8 elements, in
deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

from commsched.models import Bucket, Plan, Problem
from commsched.models.dtypes import elements
from commsched.models.knob import Setting
from commsched.optimizer.rules.common import allreduce_only

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
        A step whose collectives are all all-reduces.
    bucket_elements
        ``reduce_bucket_size``, in elements; by default 500,000,000.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 4000, ready_ns=k) for k in range(5)]
    >>> problem = GradientProblem(gradients, AlphaBeta(1, 1), backward_end_ns=9)
    >>> [(b.names, b.not_before_ns) for b in deepspeed(problem, 2500).buckets]
    [(('g0', 'g1'), 2), (('g2', 'g3'), 4), (('g4',), 9)]
    """
    allreduce_only(problem, "DeepSpeed's rule")
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    end_ns = problem.compute_ns if problem.gradients is not None else max(problem.ready_ns)
    flushed: list[tuple[str, int, Bucket]] = []
    for key, chain in problem.chains.items():
        members: list[int] = []
        filled = 0
        for position in chain:
            count = elements(problem.bytes[position], key.dtype)
            if members and filled + count > bucket_elements:
                bucket = _bucket(problem, members, problem.ready_ns[position])
                flushed.append(("", rank[position], bucket))
                members, filled = [], 0
            members.append(position)
            filled += count
        flushed.append((key.dtype, rank[members[0]], _bucket(problem, members, end_ns)))
    return Plan(tuple(bucket for _, _, bucket in sorted(flushed, key=lambda entry: entry[:2])))


def _bucket(problem: Problem, members: list[int], when_ns: int) -> Bucket:
    return Bucket(tuple(problem.names[k] for k in members), when_ns)

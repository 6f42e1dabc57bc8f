"""PyTorch DistributedDataParallel's rule, after its buckets have been rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

from commsched.models import Bucket, Plan, Problem, close_at_or_above
from commsched.models.errors import NotApplicableError
from commsched.models.knob import Setting
from commsched.models.units import MIB

FIRST_CAP_BYTES = MIB
CAP_BYTES = 25 * MIB


def ddp(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs from its second iteration on.

    Gradients are taken in ready order; for each dtype a bucket closes as soon as its bytes reach
    the cap (tested after adding, so the cap is a threshold); each dtype walks through the caps
    with an iterator of its own and the last cap repeats. Buckets are launched in the order in
    which they close. What is left unfinished is launched last; torch does so in hash-map order,
    here it goes by the first member's ready time.

    Source: torch/csrc/distributed/c10d/reducer.cpp, ``compute_bucket_assignment_by_size`` and
    ``rebuild_buckets``; defaults ``kDefaultFirstBucketBytes`` = 1 MiB and
    ``kDefaultBucketBytesCap`` = 25 MiB in reducer.hpp. A user who passes ``bucket_cap_mb`` has no
    special first bucket: then caps is that one cap.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces.
    caps
        Caps in bytes, at least one.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**20, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0',), ('g1', 'g2', 'g3')]
    """
    others = sorted({key.kind for key in problem.chains} - {"allreduce"})
    if others:
        raise NotApplicableError(
            f"DDP's rule buckets all-reduces; the step has {', '.join(others)}"
        )
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    closed: list[tuple[int, int, Bucket]] = []
    for chain in problem.chains.values():
        sizes = [problem.bytes[k] for k in chain]
        ends = close_at_or_above(sizes, caps)
        for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            names = tuple(problem.names[k] for k in chain[begin:end])
            full = sum(sizes[begin:end]) >= caps[min(number, len(caps) - 1)]
            when = rank[chain[end - 1]] if full else rank[chain[begin]]
            closed.append((0 if full else 1, when, Bucket(names)))
    return Plan(tuple(bucket for _, _, bucket in sorted(closed, key=lambda entry: entry[:2])))

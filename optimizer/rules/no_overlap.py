"""No overlap: everything is sent after compute, in buckets of one dtype."""

from __future__ import annotations

from commsched.models import Bucket, Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.optimizer.rules.one import one_bucket


def no_overlap(problem: Problem) -> Plan:
    """Return the plan that starts to communicate when backward has ended, fused as far as possible.

    Overlap can be a net loss where communication slows compute down, so it has to be compared
    with. This is also what DDP's first iteration and a plain loop of all-reduces after
    ``backward()`` do.

    Raises
    ------
    NotApplicableError
        If compute waits for communication: then there is no "after compute".

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 1, 2)], AlphaBeta(1, 1), backward_end_ns=9)
    >>> [(bucket.names, bucket.not_before_ns) for bucket in no_overlap(problem).buckets]
    [(('a',), 9)]
    """
    if not problem.settled:
        raise NotApplicableError("no overlap: part of the compute waits for communication")
    return Plan(
        tuple(Bucket(bucket.names, problem.compute_ns) for bucket in one_bucket(problem).buckets)
    )

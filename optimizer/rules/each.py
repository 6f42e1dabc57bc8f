"""One launch for each collective: wait-free back-propagation without fusion."""

from __future__ import annotations

from commsched.models import Plan, Problem


def one_each(problem: Problem) -> Plan:
    """Return the plan that launches every collective by itself, in ready order.

    It hides the most and pays the start-up latency the most often. Known as wait-free
    back-propagation (Poseidon, USENIX ATC 2017).

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 1, 2), Gradient("b", 1, 1)], AlphaBeta(1, 1))
    >>> [bucket.names for bucket in one_each(problem).buckets]
    [('b',), ('a',)]
    """
    return Plan.of([problem.names[k]] for k in problem.ready_order)

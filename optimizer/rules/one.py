"""One bucket for all: the fewest launches there can be, and nothing hidden."""

from __future__ import annotations

from commsched.models import Plan, Problem


def one_bucket(problem: Problem) -> Plan:
    """Return the plan with a single bucket for each fusion key, in order of last ready time.

    It is what DDP runs in its first iteration, before buckets are rebuilt.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 1, 2), Gradient("b", 1, 1)], AlphaBeta(1, 1))
    >>> one_bucket(problem).buckets[0].names
    ('b', 'a')
    """
    chains = sorted(problem.chains.values(), key=lambda chain: problem.ready_ns[chain[-1]])
    return Plan.of([problem.names[k] for k in chain] for chain in chains)

"""What several rules need: which steps they speak of, order of launches, and modules by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError


def kinds_only(problem: Problem, who: str, kinds: Collection[str], what: str) -> None:
    """Check that a step has no other collectives than those that a rule buckets.

    Parameters
    ----------
    problem
        The step.
    who
        The rule, for the message.
    kinds
        The kinds that it buckets.
    what
        These kinds for people.

    Raises
    ------
    NotApplicableError
        If it has others.
    """
    others = sorted({key.kind for key in problem.chains} - set(kinds))
    if others:
        raise NotApplicableError(f"{who} buckets {what}; the step has {', '.join(others)}")


def allreduce_only(problem: Problem, who: str) -> None:
    """Check that all collectives of a step are all-reduces.

    Raises
    ------
    NotApplicableError
        If there are others.
    """
    kinds_only(problem, who, ("allreduce",), "all-reduces")


def in_ready_order(problem: Problem, buckets: Iterable[Sequence[int]]) -> Plan:
    """Return the plan that launches buckets in the order in which they become complete.

    Parameters
    ----------
    problem
        The step.
    buckets
        Each a list of positions in ``problem.names``; they are listed in the plan in ready order.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient(f"g{k}", 1, k) for k in range(3)], AlphaBeta(1, 1))
    >>> [bucket.names for bucket in in_ready_order(problem, [[2, 0], [1]]).buckets]
    [('g1',), ('g0', 'g2')]
    """
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    ranked = sorted((sorted(rank[k] for k in bucket) for bucket in buckets), key=lambda b: b[-1])
    order = problem.ready_order
    return Plan.of([problem.names[order[place]] for place in bucket] for bucket in ranked)


def module_of(name: str) -> str:
    """Return the module of a parameter: its name up to the last dot, or all of it without one.

    Examples
    --------
    >>> module_of("layers.3.attn.q.weight"), module_of("scale")
    ('layers.3.attn.q', 'scale')
    """
    return name.rpartition(".")[0] or name

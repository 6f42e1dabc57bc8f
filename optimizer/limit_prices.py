"""What limits cost, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from commsched.models import Limit, Problem
from commsched.optimizer.result import Result, Status
from commsched.optimizer.solve import TIME_LIMIT_S, WORKERS, optimize

MOST_LIMITS = 12
"""Up to so many limits a smallest conflict is looked for: there are 4,095 sets of them."""


@dataclass(frozen=True, slots=True)
class LimitPrice:
    """What one limit costs in time.

    Attributes
    ----------
    label
        The limit.
    without
        The best plan under all other limits.
    least_ns, most_ns
        The makespan that the limit costs is between the two, in nanoseconds; they are equal where
        both plans are proved best.
    """

    label: str
    without: Result
    least_ns: int
    most_ns: int


def limit_prices(
    result: Result,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    workers: int = WORKERS,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[LimitPrice, ...]:
    """Return what each limit costs: the step is planned again without it.

    Parameters
    ----------
    result
        A result with a plan.
    time_limit_s, workers, seed
        For each of the searches, as for :func:`~commsched.optimizer.solve.optimize`.
    progress
        Called before each search with how many are done, of how many, and the limit's label.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, MostBucketBytes
    >>> gradients = [Gradient("b", 5000, ready_ns=10), Gradient("a", 5000, ready_ns=20)]
    >>> problem = GradientProblem(gradients, AlphaBeta(3, 1), limits=[MostBucketBytes(5000)])
    >>> [(p.label, p.least_ns, p.most_ns) for p in limit_prices(optimize(problem))]
    [('most-bucket-bytes', 2990, 2990)]
    """
    problem = result.problem
    prices = []
    for done, limit in enumerate(problem.limits):
        if progress is not None:
            progress(done, len(problem.limits), limit.label)
        others = problem.with_limits(other for other in problem.limits if other is not limit)
        without = optimize(
            others, scope=result.scope, time_limit_s=time_limit_s, workers=workers, seed=seed
        )
        most_ns = max(0, result.makespan_ns - without.bound.ns)
        if without.plan is None:
            prices.append(LimitPrice(limit.label, without, 0, most_ns))
            continue
        if without.status is Status.OPTIMAL and result.status is Status.OPTIMAL:
            least_ns = most_ns = max(0, result.makespan_ns - without.makespan_ns)
        else:
            least_ns = max(0, result.bound.ns - without.makespan_ns)
        prices.append(LimitPrice(limit.label, without, least_ns, most_ns))
    return tuple(prices)


def conflict(
    problem: Problem,
    *,
    scope: str = "in-order",
    time_limit_s: float = TIME_LIMIT_S,
    workers: int = WORKERS,
    seed: int = 0,
) -> tuple[Limit, ...] | None:
    """Return a smallest set of limits that no plan keeps together; None if none can be proved.

    Sets are tried in order of size, so the first that is infeasible is a smallest one.

    Parameters
    ----------
    problem
        A problem that has no plan.
    scope, time_limit_s, workers, seed
        As for :func:`~commsched.optimizer.solve.optimize`, for each of the searches.

    Examples
    --------
    >>> from commsched.models import (
    ...     AlphaBeta, Gradient, GradientProblem, LeastBucketBytes, MostBucketBytes, MostLaunches)
    >>> limits = [MostLaunches(2), MostBucketBytes(15), LeastBucketBytes(15)]
    >>> problem = GradientProblem(
    ...     [Gradient("b", 10, 0), Gradient("a", 10, 5)], AlphaBeta(1, 1), limits=limits)
    >>> [limit.label for limit in conflict(problem)]
    ['most-bucket-bytes', 'least-bucket-bytes']
    """
    limits = problem.limits
    if len(limits) > MOST_LIMITS:
        return None
    for chosen in _by_size(limits):
        found = optimize(
            problem.with_limits(chosen),
            scope=scope,
            time_limit_s=time_limit_s,
            workers=workers,
            seed=seed,
        )
        if found.status is Status.INFEASIBLE:
            return chosen
    return None


def _by_size(limits: Sequence[Limit]) -> list[tuple[Limit, ...]]:
    return [chosen for size in range(1, len(limits) + 1) for chosen in combinations(limits, size)]

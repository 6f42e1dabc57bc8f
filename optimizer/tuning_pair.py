"""DDP's first cap and cap together, over all pairs of values.

For each range of first caps that close the first bucket at the same place, all caps are visited (see
:mod:`commsched.optimizer.tuning`). Where the recurrence applies, a first bucket is skipped if even the
best continuation after it, with free boundaries, is worse than a pair that was already seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from commsched.models import Plan, Problem, close_at_or_above
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.recurrence import AffineChain
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.tuning import MAX_VISITS, least_worthwhile, setting_ranges, tune


class Span(NamedTuple):
    """Values from ``low`` to ``high`` (None: no end), in bytes."""

    low: int
    high: int | None


@dataclass(frozen=True)
class PairTuning:
    """The best first cap and cap.

    Attributes
    ----------
    first, cap
        Any first cap and any cap in these ranges, in bytes, together give ``plan``.
    plan
        The best plan: least makespan, then fewest launches.
    makespan_ns, exposed_ns
        What it does.
    visited, skipped
        How many plans were evaluated, and how many first buckets were proved to be worse.
    """

    first: Span
    cap: Span
    plan: Plan
    makespan_ns: int
    exposed_ns: int
    visited: int
    skipped: int


def tune_first_and_cap(problem: Problem) -> PairTuning:
    """Return the best ``bucket_cap_mb_list=[first, cap]`` for DDP's rule, over all pairs.

    Raises
    ------
    NotApplicableError
        If DDP's rule does not apply, or the step has too many gradients to visit every plan.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> tuning = tune_first_and_cap(GradientProblem(
    ...     [Gradient(f"g{k}", 1000, ready_ns=k * 1000) for k in range(5)], AlphaBeta(0.5, 1)))
    >>> tuning.first, tuning.cap, tuning.exposed_ns
    (Span(low=1, high=1000), Span(low=1001, high=2000), 3000)
    """
    least = _least_after_first(problem)
    # The first cap alone decides where the first bucket ends; the other has no say in it.
    firsts = [found[:2] for found in setting_ranges(lambda knob: ddp(problem, [knob, 1]))]
    bounds = {first: 0 if least is None else least(first) for first, _ in firsts}
    firsts.sort(key=lambda found: bounds[found[0]])
    single = tune(problem, lambda problem, cap: ddp(problem, [cap]))
    # A pair of equal caps does what the best single cap does, so the search finds at least that.
    best = (single.best.makespan_ns, single.plan.launches + 1)
    where = (Span(1, None), Span(1, None))
    plan = single.plan
    worth = sum(bounds[first] <= best[0] for first, _ in firsts)
    if worth * len(single.ranges) * len(problem.names) > MAX_VISITS:
        raise NotApplicableError(
            f"first cap and cap: about {worth * len(single.ranges)} plans of "
            f"{len(problem.names)} gradients are too many to visit"
        )
    visited = len(single.ranges)
    skipped = 0
    for number, (first, last) in enumerate(firsts):
        if bounds[first] > best[0]:
            skipped = len(firsts) - number
            break
        low = least_worthwhile(problem, best[0], 1)
        for cap, end, found in setting_ranges(
            lambda knob, first=first: ddp(problem, [first, knob]),  # type: ignore[misc]
            low,
        ):
            visited += 1
            key = (play(problem, found).makespan_ns, found.launches)
            if key < best:
                best, plan, where = key, found, (Span(first, last), Span(cap, end))
    exposed_ns = best[0] - problem.compute_ns
    return PairTuning(*where, plan, best[0], exposed_ns, visited, skipped)


def _least_after_first(problem: Problem) -> Callable[[int], int] | None:
    """Return a lower bound on the makespan by first cap, or None where there is no quick one."""
    if not problem.settled or len(problem.chains) != 1:
        return None
    ((key, chain),) = problem.chains.items()
    cost = problem.cost(key).affine
    if cost is None:
        return None
    ready = [problem.ready_ns[k] for k in chain]
    sizes = [problem.bytes[k] for k in chain]

    def least(first_cap: int) -> int:
        end = close_at_or_above(sizes, [first_cap])[0]
        # Rounded down: the bound must also hold for what follows an unrounded first launch.
        free = ready[end - 1] + math.floor(cost.exact_ns(sum(sizes[:end])))
        if end == len(sizes):
            return max(problem.compute_ns, free)
        rest = AffineChain([max(free, at) for at in ready[end:]], sizes[end:], cost)
        return max(problem.compute_ns, rest.earliest_end() // cost.scale)

    return least

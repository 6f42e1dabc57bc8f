"""DDP's first cap and cap together, over all pairs of values.

For each range of first caps that close the first bucket at the same place, all caps are visited (see
:mod:`commsched.optimizer.tuning`). Where the recurrence applies, a first bucket is skipped if even the
best continuation after it, with free boundaries, is worse than a pair that was already seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from commsched.models import Plan, Problem, close_at_or_above
from commsched.models.errors import NotApplicableError, SolverError
from commsched.models.knob import Setting
from commsched.models.timeline import play
from commsched.optimizer.recurrence import AffineChain
from commsched.optimizer.rules.ddp import ddp, ddp_sketcher
from commsched.optimizer.rules.rows import Decision
from commsched.optimizer.tuning import (
    MAX_VISITS,
    Played,
    SettingRange,
    setting_ranges,
    tune,
)
from commsched.optimizer.worthwhile import least_worthwhile

MOST_PAIRS = 300_000
"""So many plans are looked at by the best single cap's, and by the first buckets that are worth it."""


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
    sketch = ddp_sketcher(problem)
    quick = sketch([1]).quick

    def look(caps: Sequence[Setting]) -> Decision:
        return sketch(caps) if quick else Played(problem, ddp(problem, caps))

    least = _least_after_first(problem)
    # The first cap alone decides where the first bucket ends; the other has no say in it.
    firsts = [Span(*found[:2]) for found in setting_ranges(lambda knob: sketch([knob, 1]))]
    bounds = {first: 0 if least is None else least(first.low) for first in firsts}
    firsts.sort(key=lambda first: bounds[first])
    single = tune(problem, lambda problem, cap: ddp(problem, [cap]), decide=lambda c: sketch([c]))
    # A pair of equal caps does what the best single cap does, so the search finds at least that.
    best = (single.best.makespan_ns, single.plan.launches + 1)
    first_span = cap_span = Span(1, None)
    chosen = look([1])
    worth = sum(bounds[first] <= best[0] for first in firsts)
    if worth * len(single.ranges) > MOST_PAIRS:
        raise _too_many(problem, worth * len(single.ranges))
    visited, cost = len(single.ranges), 0
    skipped = 0
    for number, first in enumerate(firsts):
        if bounds[first] > best[0]:
            skipped = len(firsts) - number
            break
        for cap, end, found in _after(problem, look, first.low, best[0]):
            visited += 1
            cost += found.cost
            if cost > MAX_VISITS:
                raise _too_many(problem, visited)
            if first == first_span and cap_span.high == cap - 1 and found.cuts == chosen.cuts:
                cap_span = Span(cap_span.low, end)
                continue
            key = (found.makespan_ns(), len(found.cuts))
            if key < best:
                best, chosen, first_span, cap_span = key, found, first, Span(cap, end)
    plan = chosen.plan()
    if play(problem, plan).makespan_ns != best[0]:
        raise SolverError(f"first cap and cap: the evaluator does not agree on {best[0]} ns")
    exposed_ns = best[0] - problem.compute_ns
    return PairTuning(first_span, cap_span, plan, best[0], exposed_ns, visited, skipped)


def _after(
    problem: Problem, look: Callable[[Sequence[Setting]], Decision], first: int, limit_ns: int
) -> Iterator[SettingRange[Decision]]:
    """Yield what a first cap gives with all caps that can keep to a makespan."""

    def begin(sizes: Sequence[int]) -> int:
        # The first bucket is as large as its own cap makes it, however small the others are.
        return close_at_or_above(sizes, [first])[0]

    low = least_worthwhile(problem, limit_ns, 1, begin=begin)
    return setting_ranges(lambda cap: look([first, cap]), low)


def _too_many(problem: Problem, plans: int) -> NotApplicableError:
    return NotApplicableError(
        f"first cap and cap: about {plans} plans of {len(problem.names)} gradients are too many "
        "to visit"
    )


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

"""The best single cap for DDP's rule over *all* caps, by visiting every plan that a cap can give.

For a cap c let m be the size of the smallest bucket that the rule closes. Every cap from c to m cuts
at the same places: a closed bucket reached c only with its last gradient, has at least m bytes, and so
reaches any cap up to m with that same gradient; what is left over stays below c. So the next plan
begins at m + 1, and the plans of all caps are finitely many. Below a certain cap the start-ups alone
make a step that is more than a per cent slower than one already seen; those caps need no look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from commsched.models import Plan, Problem, close_at_or_above
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.rules.ddp import ddp

FLAT = 0.01
"""A cap is in the flat region if the step is at most this much longer than with the best cap."""
MAX_VISITS = 60_000_000
"""Visits times gradients; beyond it the search would take minutes."""


@dataclass(frozen=True, slots=True)
class CapRange:
    """Caps that all give the same plan.

    Attributes
    ----------
    low_bytes, high_bytes
        The first and last cap in bytes; ``high_bytes`` is None where the range has no end.
    makespan_ns, exposed_ns, launches
        What the plan does.
    """

    low_bytes: int
    high_bytes: int | None
    makespan_ns: int
    exposed_ns: int
    launches: int


@dataclass(frozen=True)
class CapTuning:
    """Every plan that DDP's rule can make with one cap.

    Attributes
    ----------
    ranges
        All ranges of caps in ascending order, without gaps, from ``ranges[0].low_bytes`` on.
        Smaller caps are proved to be worse than the flat region.
    best
        The range with the least makespan, then the fewest launches; ranges side by side that
        are equally good are joined.
    flat
        The first and last cap (None: no end) around ``best`` with a makespan at most 1% longer.
    plan
        The best range's plan.
    """

    ranges: tuple[CapRange, ...]
    best: CapRange
    flat: tuple[int, int | None]
    plan: Plan


def best_cap(problem: Problem) -> CapTuning:
    """Return the best ``bucket_cap_mb`` for DDP's rule, in bytes, over all caps.

    As in torch, a cap that the user gives applies to the first bucket, too.

    Raises
    ------
    NotApplicableError
        If DDP's rule does not apply, or the step has too many gradients to visit every plan.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient(f"g{k}", 1000, ready_ns=k * 1000) for k in range(4)], AlphaBeta(0.5, 1))
    >>> tuning = best_cap(problem)
    >>> tuning.best.low_bytes, tuning.best.high_bytes, tuning.best.exposed_ns
    (1001, 2000, 3000)
    """
    sizes = [[problem.bytes[k] for k in chain] for chain in problem.chains.values()]
    seen = min(play(problem, ddp(problem, [cap])).makespan_ns for cap in _samples(sizes))
    low = _least_worthwhile_cap(problem, seen)
    ranges: list[CapRange] = []
    visits = 0
    for first, last in cap_ranges(sizes, low):
        visits += len(problem.names)
        if visits > MAX_VISITS:
            raise NotApplicableError(
                f"best cap: {len(problem.names)} gradients give too many plans to visit them all"
            )
        plan = ddp(problem, [first])
        timeline = play(problem, plan)
        ranges.append(
            CapRange(first, last, timeline.makespan_ns, timeline.exposed_ns, plan.launches)
        )
    best = min(range(len(ranges)), key=lambda k: (ranges[k].makespan_ns, ranges[k].launches))
    top = ranges[best]
    first, last = _around(
        ranges, best, lambda r: (r.makespan_ns, r.launches) == (top.makespan_ns, top.launches)
    )
    joined = CapRange(
        ranges[first].low_bytes,
        ranges[last].high_bytes,
        top.makespan_ns,
        top.exposed_ns,
        top.launches,
    )
    first, last = _around(ranges, best, lambda r: r.makespan_ns <= top.makespan_ns * (1 + FLAT))
    return CapTuning(
        tuple(ranges),
        joined,
        (ranges[first].low_bytes, ranges[last].high_bytes),
        ddp(problem, [joined.low_bytes]),
    )


def cap_ranges(chains: list[list[int]], low: int = 1) -> Iterator[tuple[int, int | None]]:
    """Yield the ranges of caps within which DDP's rule cuts all chains of sizes alike.

    Parameters
    ----------
    chains
        For each dtype the sizes in the order in which they are added, in bytes.
    low
        The first cap to look at.

    Yields
    ------
    tuple
        First and last cap; the last range has no last cap (None).

    Examples
    --------
    >>> list(cap_ranges([[4, 4, 4]]))
    [(1, 4), (5, 8), (9, 12), (13, None)]
    """
    cap = max(1, low)
    while True:
        closed = []
        for sizes in chains:
            begin = 0
            for end in close_at_or_above(sizes, [cap]):
                size = sum(sizes[begin:end])
                if size >= cap:
                    closed.append(size)
                begin = end
        if not closed:
            yield cap, None
            return
        yield cap, min(closed)
        cap = min(closed) + 1


def _samples(chains: list[list[int]]) -> list[int]:
    total = max(sum(sizes) for sizes in chains)
    return sorted({max(1, total // 2**k) for k in range(12)} | {total + 1})


def _least_worthwhile_cap(problem: Problem, seen_ns: int) -> int:
    """Return a cap below which the start-ups alone exceed the flat region of what was seen.

    With cap c a chain of S bytes, the largest of them s, has at least S / (c + s) launches, since a
    closed bucket is below c before its last gradient. Each pays a minorant's intercept.
    """
    least = 1
    limit = math.ceil(seen_ns * Fraction(1 + FLAT))
    for key, chain in problem.chains.items():
        total = sum(problem.bytes[k] for k in chain)
        largest = max(problem.bytes[k] for k in chain)
        first = min(problem.ready_ns[k] for k in chain)
        for line in problem.cost(key).minorants:
            room = (limit - first) * line.scale - line.slope * total
            if line.intercept > 0 and room > 0:
                most_launches = room // line.intercept + 1
                least = max(least, total // most_launches - largest)
    return least


def _around(ranges: list[CapRange], k: int, good: Callable[[CapRange], bool]) -> tuple[int, int]:
    """Return the first and last index of the ranges around k that are good."""
    first = last = k
    while first > 0 and good(ranges[first - 1]):
        first -= 1
    while last + 1 < len(ranges) and good(ranges[last + 1]):
        last += 1
    return first, last

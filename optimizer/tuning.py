"""The best value of a rule's knob over *all* values, by visiting every plan that a value can give.

See :mod:`commsched.models.knob` for why the plans are finitely many and none is missed. Below a
certain value the start-ups of so many launches alone make the step more than a per cent longer than one
that was already seen; those values need no look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.knob import Knob, Setting
from commsched.models.timeline import play

FLAT = Fraction(1, 100)
"""A value is in the flat region if the step is at most this much longer than with the best one."""
MAX_VISITS = 12_000_000
"""Plans times collectives; beyond it the search would take minutes."""
CUTTING_COSTS = 100
"""A plan with pieces takes so many times longer to make and evaluate, a launch."""


@dataclass(frozen=True, slots=True)
class KnobRange:
    """Values of a knob that all give the same plan.

    Attributes
    ----------
    low, high
        The first and last value in the knob's unit; ``high`` is None where there is no end.
    makespan_ns, exposed_ns, launches
        What the plan does.
    """

    low: int
    high: int | None
    makespan_ns: int
    exposed_ns: int
    launches: int


@dataclass(frozen=True)
class Tuning:
    """Every plan that a rule makes for some value of its knob.

    Attributes
    ----------
    ranges
        All ranges of values in ascending order, without gaps, from ``ranges[0].low`` on. Smaller
        values are proved to be worse than the flat region.
    best
        The range with the least makespan, then the fewest launches; ranges side by side that
        are equally good are joined.
    flat
        The first and last value (None: no end) around ``best`` with a makespan at most 1% longer.
    plan
        The best range's plan.
    """

    ranges: tuple[KnobRange, ...]
    best: KnobRange
    flat: tuple[int, int | None]
    plan: Plan


def tune(
    problem: Problem,
    make: Callable[[Problem, Setting], Plan],
    unit_bytes: int = 1,
    *,
    cuts: bool = False,
) -> Tuning:
    """Return the best value of a rule's knob over all values.

    Parameters
    ----------
    problem
        The step.
    make
        The rule. It may only compare its knob, or ask it for pieces; a bucket that it makes must
        hold at most ``knob * unit_bytes`` bytes more than its largest member.
    unit_bytes
        The most bytes that one unit of the knob stands for.
    cuts
        Whether the rule cuts collectives into pieces of at most the knob's size.

    Raises
    ------
    NotApplicableError
        If the rule does not apply, or the step has too many collectives to visit every plan.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> from commsched.optimizer.rules.ddp import ddp
    >>> problem = GradientProblem(
    ...     [Gradient(f"g{k}", 1000, ready_ns=k * 1000) for k in range(4)], AlphaBeta(0.5, 1))
    >>> tuning = tune(problem, lambda problem, cap: ddp(problem, [cap]))
    >>> tuning.best.low, tuning.best.high, tuning.best.exposed_ns
    (1001, 2000, 3000)
    """
    total = max(1, sum(problem.bytes))
    samples = {max(1, total // (unit_bytes * 2**k)) for k in range(6 if cuts else 16)}
    seen_ns = min(play(problem, make(problem, Knob(value))).makespan_ns for value in samples)
    low = least_worthwhile(problem, math.ceil(seen_ns * (1 + FLAT)), unit_bytes, cuts=cuts)
    ranges: list[KnobRange] = []
    plans: list[Plan] = []
    visits = 0
    for first, last, plan in setting_ranges(lambda knob: make(problem, knob), low):
        visits += max(plan.launches, len(problem.names))
        if visits > (MAX_VISITS // CUTTING_COSTS if cuts else MAX_VISITS):
            raise NotApplicableError(
                f"best setting: {len(problem.names)} collectives give too many plans to visit"
            )
        if plans and plan == plans[-1]:
            ranges[-1] = _extended(ranges[-1], last)
            continue
        timeline = play(problem, plan)
        plans.append(plan)
        ranges.append(
            KnobRange(first, last, timeline.makespan_ns, timeline.exposed_ns, plan.launches)
        )
    best = min(range(len(ranges)), key=lambda k: (ranges[k].makespan_ns, ranges[k].launches))
    top = ranges[best]
    first, end = _around(
        ranges, best, lambda r: (r.makespan_ns, r.launches) == (top.makespan_ns, top.launches)
    )
    joined = _extended(ranges[first], ranges[end].high)
    limit = math.floor(top.makespan_ns * (1 + FLAT))
    first, end = _around(ranges, best, lambda r: r.makespan_ns <= limit)
    return Tuning(tuple(ranges), joined, (ranges[first].low, ranges[end].high), plans[best])


def _extended(found: KnobRange, high: int | None) -> KnobRange:
    return KnobRange(found.low, high, found.makespan_ns, found.exposed_ns, found.launches)


def least_worthwhile(
    problem: Problem, limit_ns: int, unit_bytes: int, *, cuts: bool = False
) -> int:
    """Return a value below which the start-ups alone make the makespan exceed a limit.

    With the value v a chain of S bytes, the largest member s, has at least S / (v u + s) launches of
    at most v u + s bytes. Each pays a minorant's intercept.
    """
    least = 1
    for key, chain in problem.chains.items():
        sizes = [problem.bytes[k] for k in chain]
        first = min(problem.ready_ns[k] for k in chain)
        for line in problem.cost(key).minorants:
            room = (limit_ns - first) * line.scale - line.slope * sum(sizes)
            if line.intercept > 0 and room > 0:
                most_launches = room // line.intercept + 1
                most_bytes = sum(sizes) // most_launches - (0 if cuts else max(sizes))
                least = max(least, most_bytes // unit_bytes)
    return least


def _around(
    ranges: Sequence[KnobRange], k: int, good: Callable[[KnobRange], bool]
) -> tuple[int, int]:
    """Return the first and last index of the ranges around k that are good."""
    first = last = k
    while first > 0 and good(ranges[first - 1]):
        first -= 1
    while last + 1 < len(ranges) and good(ranges[last + 1]):
        last += 1
    return first, last


class SettingRange(NamedTuple):
    """Values of a knob, from ``low`` to ``high`` (None: no end), that all give ``plan``."""

    low: int
    high: int | None
    plan: Plan


def setting_ranges(make: Callable[[Knob], Plan], low: int = 1) -> Iterator[SettingRange]:
    """Yield every plan that a rule makes for some value of its knob, in order of the value.

    Parameters
    ----------
    make
        The rule; it may only compare the knob, or ask it for :meth:`Knob.pieces`.
    low
        The first value to look at.

    Yields
    ------
    SettingRange
        The first begins at ``low``, each next one after the end of the one before.
    """
    value = low
    while True:
        knob = Knob(value)
        plan = make(knob)
        yield SettingRange(value, knob.high, plan)
        if knob.high is None:
            return
        value = knob.high + 1

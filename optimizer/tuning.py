"""The best value of a rule's knob over *all* values, by visiting every plan that a value can give.

See :mod:`commsched.models.knob` for why the plans are finitely many and none is missed. Below a
certain value the start-ups of so many launches alone make the step more than a per cent longer than one
that was already seen; those values need no look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
CUTTING_COSTS = 20
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

    @property
    def key(self) -> tuple[int, int]:
        """What the best value has least of: makespan, then launches."""
        return self.makespan_ns, self.launches


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
        are equally good are joined. Of several that are not side by side it is the lowest.
    flat
        The first and last value (None: no end) around ``best`` with a makespan at most 1% longer.
    plan
        The best range's plan.
    equal_elsewhere, flat_elsewhere
        What is as good as ``best``, or at most 1% longer, apart from those: first and last values.
    """

    ranges: tuple[KnobRange, ...]
    best: KnobRange
    flat: tuple[int, int | None]
    plan: Plan
    equal_elsewhere: tuple[tuple[int, int | None], ...] = ()
    flat_elsewhere: tuple[tuple[int, int | None], ...] = ()


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
    limit_ns = math.ceil(seen_ns * (1 + FLAT))
    least = least_cutting if cuts else least_worthwhile
    low = least(problem, limit_ns, unit_bytes)
    ranges: list[KnobRange] = []
    # Of all the plans only two are kept: there may be thousands, of thousands of names each.
    last_plan = best_plan = None
    best_key = (math.inf, 0)
    visits = 0
    for first, last, plan in setting_ranges(lambda knob: make(problem, knob), low):
        visits += max(plan.launches, len(problem.names))
        if visits > (MAX_VISITS // CUTTING_COSTS if cuts else MAX_VISITS):
            raise NotApplicableError(
                f"best setting: {len(problem.names)} collectives give too many plans to visit"
            )
        if plan == last_plan:
            ranges[-1] = replace(ranges[-1], high=last)
            continue
        timeline = play(problem, plan)
        last_plan = plan
        ranges.append(
            KnobRange(first, last, timeline.makespan_ns, timeline.exposed_ns, plan.launches)
        )
        if ranges[-1].key < best_key:
            best_key, best_plan = ranges[-1].key, plan
    assert best_plan is not None
    top, *equal = _joined(ranges, lambda found: found.key == best_key)
    limit = math.floor(top.makespan_ns * (1 + FLAT))
    flat = [(r.low, r.high) for r in _joined(ranges, lambda found: found.makespan_ns <= limit)]
    around = next(span for span in flat if span[1] is None or span[1] >= top.low)
    return Tuning(
        tuple(ranges),
        top,
        around,
        best_plan,
        tuple((found.low, found.high) for found in equal),
        tuple(span for span in flat if span != around),
    )


def least_worthwhile(
    problem: Problem,
    limit_ns: int,
    unit_bytes: int,
    begin: Callable[[Sequence[int]], int] | None = None,
) -> int:
    """Return a value below which the start-ups alone make the makespan exceed a limit.

    With the value v a chain of S bytes, the largest member s, has at least S / (v u + s) launches of
    at most v u + s bytes. Each pays a minorant's intercept. ``begin`` says how many of a chain's
    first members, by their sizes, the value has no say in; only what follows them is counted.
    """
    least = 1
    for key, whole in problem.chains.items():
        chain = whole[begin([problem.bytes[k] for k in whole]) :] if begin else whole
        if not chain:
            continue
        sizes = [problem.bytes[k] for k in chain]
        first = min(problem.ready_ns[k] for k in chain)
        for line in problem.cost(key).minorants:
            room = (limit_ns - first) * line.scale - line.slope * sum(sizes)
            if line.intercept > 0 and room > 0:
                most_launches = room // line.intercept + 1
                most_bytes = sum(sizes) // most_launches - max(sizes)
                least = max(least, most_bytes // unit_bytes)
    return least


def least_cutting(problem: Problem, limit_ns: int, unit_bytes: int) -> int:
    """Return a value of a rule that cuts below which the makespan surely exceeds a limit.

    With the value v a member of s bytes is at least s / (v u) launches. What is ready no earlier than
    a member, and that member, take the start-ups of their pieces and the time of their bytes.
    """
    least, most = 1, max(1, *problem.bytes)

    def fits(value: int) -> bool:
        for key, chain in problem.chains.items():
            for line in problem.cost(key).minorants:
                if line.intercept < 0:
                    continue  # more pieces would lower it
                after = 0
                for k in reversed(chain):
                    pieces = max(1, -(-problem.bytes[k] // (value * unit_bytes)))
                    after += pieces * line.intercept + problem.bytes[k] * line.slope
                    if after > (limit_ns - problem.ready_ns[k]) * line.scale:
                        return False
        return True

    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(middle) else (middle + 1, most)
    return least


def _joined(ranges: Iterable[KnobRange], good: Callable[[KnobRange], bool]) -> list[KnobRange]:
    """Return the ranges that are good, those side by side as one."""
    found: list[KnobRange] = []
    for each in ranges:
        if not good(each):
            continue
        if found and found[-1].high == each.low - 1:
            found[-1] = replace(found[-1], high=each.high)
        else:
            found.append(each)
    return found


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

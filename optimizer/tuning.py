"""The best value of a rule's knob over *all* values, by visiting every plan that a value can give.

See :mod:`commsched.models.knob` for why the plans are finitely many and none is missed. Small values
that are surely worse need no look (:mod:`commsched.optimizer.worthwhile`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from commsched.models import Plan, Problem
from commsched.models.errors import InputError, NotApplicableError, SolverError
from commsched.models.given import given
from commsched.models.knob import Knob, Setting
from commsched.models.step import FusionKey
from commsched.models.timeline import play
from commsched.models.units import check_bytes
from commsched.optimizer.rules.rows import Decide, Decision
from commsched.optimizer.worthwhile import least_worthwhile

Made = TypeVar("Made")

FLAT = Fraction(1, 100)
"""A value is in the flat region if the step is at most this much longer than with the best one."""
MAX_VISITS = 12_000_000
"""Launches of all plans that are visited; beyond it the search would take a minute."""
MAX_PLAYED = 400_000
"""Launches of all plans that are played to find their order."""
PLAN_COSTS, WAITING_COSTS = 1, 10
"""What a collective costs where each plan is made, and where compute waits for it, in launches."""


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
    decide: Decide | None = None,
    largest: Mapping[FusionKey, int] | None = None,
    launches_from: Callable[[Problem, int, int], int] | None = None,
) -> Tuning:
    """Return the best value of a rule's knob over all values.

    Parameters
    ----------
    problem
        The step.
    make
        The rule. It may only compare its knob, or ask it for pieces; a bucket that it makes must
        hold at most ``knob * unit_bytes`` bytes more than its largest part.
    unit_bytes
        The most bytes that one unit of the knob stands for.
    cuts
        Whether the rule cuts collectives into pieces of at most the knob's size.
    decide
        The same rule on this step, up to its decisions: then only the best becomes a plan.
    largest
        The bytes of the largest part of each fusion key that the rule does not cut, where that is
        no single collective.
    launches_from
        From the step, the smallest value that is looked at and a limit, how many launches the plans
        have together: then a search that would take too long is refused at once.

    Raises
    ------
    InputError
        If ``problem`` is no problem, or ``unit_bytes`` no whole number from 1.
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
    given(problem, Problem, "problem")
    if not callable(make):
        raise InputError(f"make: {make!r:.60} is no rule")
    if check_bytes(unit_bytes, "unit_bytes") < 1:
        raise InputError(f"unit_bytes: {unit_bytes!r} must be a whole number from 1")
    total = max(1, sum(problem.bytes))
    samples = {max(1, total // (unit_bytes * 2**k)) for k in range(6 if cuts else 16)}
    look: Decide = partial(_played, problem, make)
    if decide is not None and decide(Knob(total)).quick:
        look = decide
    seen_ns = min(look(Knob(value)).makespan_ns() for value in samples)
    limit_ns = math.ceil(seen_ns * (1 + FLAT))
    low = least_worthwhile(problem, limit_ns, unit_bytes, cuts=cuts, largest=largest)
    refusal = NotApplicableError(
        f"best setting: {len(problem.names)} collectives give too many plans to visit"
    )
    if launches_from is not None and launches_from(problem, low, MAX_PLAYED) > MAX_PLAYED:
        raise refusal
    ranges: list[KnobRange] = []
    # Of all that was decided only two are kept: there may be thousands, of thousands of launches.
    last: Decision | None = None
    best: Decision | None = None
    best_key = (math.inf, 0)
    visits = 0
    for first, end, found in setting_ranges(look, low):
        visits += found.cost
        if visits > MAX_VISITS:
            raise refusal
        if last is not None and found.cuts == last.cuts:
            ranges[-1] = replace(ranges[-1], high=end)
            continue
        last = found
        makespan_ns = found.makespan_ns()
        ranges.append(
            KnobRange(first, end, makespan_ns, makespan_ns - problem.compute_ns, len(found.cuts))
        )
        if ranges[-1].key < best_key:
            best_key, best = ranges[-1].key, found
    assert best is not None
    plan = best.plan()
    if best.quick and play(problem, plan).makespan_ns != best_key[0]:
        raise SolverError(f"best setting: the evaluator does not agree on {best_key[0]} ns")
    top, *equal = _joined(ranges, lambda found: found.key == best_key)
    limit = math.floor(top.makespan_ns * (1 + FLAT))
    flat = [(r.low, r.high) for r in _joined(ranges, lambda found: found.makespan_ns <= limit)]
    around = next(span for span in flat if span[1] is None or span[1] >= top.low)
    return Tuning(
        tuple(ranges),
        top,
        around,
        plan,
        tuple((found.low, found.high) for found in equal),
        tuple(span for span in flat if span != around),
    )


class Played:
    """A plan that only the evaluator knows."""

    quick = False

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem = problem
        self._plan = plan
        self.cuts = plan.buckets
        members = max(plan.launches, len(problem.names))
        self.cost = members * (PLAN_COSTS if problem.settled else WAITING_COSTS)

    def makespan_ns(self) -> int:
        """Return what the evaluator says."""
        return play(self._problem, self._plan).makespan_ns

    def plan(self) -> Plan:
        """Return the plan."""
        return self._plan


def _played(
    problem: Problem, make: Callable[[Problem, Setting], Plan], setting: Setting
) -> Decision:
    return Played(problem, make(problem, setting))


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


class SettingRange(NamedTuple, Generic[Made]):
    """Values of a knob, from ``low`` to ``high`` (None: no end), that all give ``made``."""

    low: int
    high: int | None
    made: Made


def setting_ranges(make: Callable[[Knob], Made], low: int = 1) -> Iterator[SettingRange[Made]]:
    """Yield all that a rule makes for some value of its knob, in order of the value.

    Parameters
    ----------
    make
        The rule; it may only compare the knob, or ask it for :meth:`Knob.pieces` and its like.
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
        made = make(knob)
        yield SettingRange(value, knob.high, made)
        if knob.high is None:
            return
        value = knob.high + 1

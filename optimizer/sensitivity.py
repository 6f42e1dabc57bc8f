"""How far start-up latency, bandwidth and compute speed may move before the best plan changes.

Nothing is sampled: a plan's makespan and the optimum are functions of the factor, made of straight
pieces, and the places where they part are found exactly (see
:mod:`commsched.optimizer.parametric`). Times are not rounded to whole nanoseconds on the way, so the
evaluator's makespans can exceed these by less than a nanosecond a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from commsched.models import Plan, Problem
from commsched.models.errors import InputError
from commsched.models.units import Number, exact
from commsched.optimizer.lines import Interval, Pieces, between, gaps, joined
from commsched.optimizer.parametric import Family, Knob

LOW, HIGH = Fraction(1, 10), Fraction(10)
WITHIN = Fraction(1, 100)
MAX_PLANS = 2000
MAX_WORK = 200_000_000
"""The most plans of which a search looks where they are optimal, and that times collectives squared."""

ONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Span:
    """A closed range of the factor.

    Attributes
    ----------
    low, high
        Its ends.
    """

    low: Fraction
    high: Fraction


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of the factor in which one plan is optimal.

    Attributes
    ----------
    low, high
        The range's ends, which belong to it.
    plan
        The plan.
    """

    low: Fraction
    high: Fraction
    plan: Plan = field(repr=False)

    @property
    def launches(self) -> int:
        """How many launches the plan has."""
        return self.plan.launches


@dataclass(frozen=True, slots=True)
class Regret:
    """What it costs at one place to keep the plan.

    Attributes
    ----------
    factor
        The place.
    makespan_ns, optimum_ns
        Of the plan that is kept and of the best one there, unrounded.
    """

    factor: Fraction
    makespan_ns: Fraction
    optimum_ns: Fraction

    @property
    def ns(self) -> Fraction:
        """Makespan less optimum."""
        return self.makespan_ns - self.optimum_ns

    @property
    def share(self) -> float:
        """The regret as a part of the optimum."""
        return float(self.ns / self.optimum_ns) if self.optimum_ns else 0.0


@dataclass(frozen=True)
class Sensitivity:
    """How a plan stands the change of one knob, all else fixed.

    Factors multiply the nominal value: 2 means twice the start-up latency, bandwidth or speed.

    Attributes
    ----------
    knob
        What changes.
    plan
        The plan that is kept.
    searched
        The range of the factor that was looked at; it contains 1.
    optimal
        The range around 1 in which the plan is optimal; None if it is not optimal at 1. An end
        that is an end of ``searched`` says that it goes on at least until there.
    rounding_ns
        The plan counts as optimal if it exceeds the optimum by no more than this. It is 0, or what
        the plan exceeds it by at 1 if whole nanoseconds explain that (below one for each launch).
    within
        The share of the optimum that counts as little.
    good
        The range around 1 in which keeping the plan costs at most that; None if it costs more at 1.
    segments
        An optimal plan for every place of ``searched``, from low to high; the kept plan wherever it
        is one of them. Empty if it was not asked for.
    complete
        Whether the segments cover all of ``searched``.
    regrets
        What keeping the plan costs at all places at which that function bends, from low to high; in
        between it is straight in the factor (in its inverse for bandwidth and speed).
    """

    knob: Knob
    plan: Plan = field(repr=False)
    searched: Span
    optimal: Span | None
    rounding_ns: Fraction
    within: Fraction
    good: Span | None
    segments: tuple[Segment, ...] = field(repr=False)
    complete: bool
    regrets: tuple[Regret, ...] = field(repr=False)

    @property
    def worst(self) -> Regret | None:
        """The largest regret in nanoseconds; None if the regrets are not known everywhere."""
        return max(self.regrets, key=lambda r: r.ns) if self.regrets and self.complete else None

    @property
    def worst_share(self) -> Regret | None:
        """The largest regret as a part of the optimum; None if not known everywhere."""
        return max(self.regrets, key=lambda r: r.share) if self.regrets and self.complete else None


def sensitivity(
    problem: Problem,
    knob: str | Knob,
    plan: Plan | None = None,
    *,
    low: Number = LOW,
    high: Number = HIGH,
    within: Number = WITHIN,
    segments: bool = True,
) -> Sensitivity:
    """Return in which range a plan stays optimal, what replaces it outside, and what keeping it costs.

    Parameters
    ----------
    problem
        A step in which nothing waits for a collective, without limits and movable tasks. The
        optimum is that of scope ``in-order``.
    knob
        ``"alpha"``, ``"bandwidth"`` or ``"compute"``; see :class:`~commsched.optimizer.parametric.Knob`.
    plan
        The plan to keep; by default the optimal one.
    low, high
        The range of the factor to look at; 1 must lie in it.
    within
        The share of the optimum up to which a regret counts as little.
    segments
        Whether to find the optimal plans of the whole range and the regrets, too.

    Raises
    ------
    InputError
        If the knob is unknown or the range is not valid.
    NotApplicableError
        If the step is of a class for which this is not exact, or too large for it.
    PlanError
        If the plan does not fit the step.

    Examples
    --------
    Two launches start at 10 and 20 and the second ends at 20 + 5 + 3 x; one launch ends at
    20 + 10 + 3 x, and later than two until the channel is what they wait for:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 5, ready_ns=10), Gradient("a", 5, ready_ns=20)], AlphaBeta(0.003, 1))
    >>> found = sensitivity(problem, "alpha")
    >>> found.optimal, [segment.launches for segment in found.segments]
    (Span(low=Fraction(1, 10), high=Fraction(10, 3)), [2, 1])
    >>> found.worst.ns
    Fraction(20, 1)
    """
    kind = _knob(knob)
    ends = exact(low, "low"), exact(high, "high")
    share = exact(within, "within")
    if not 0 < ends[0] <= 1 <= ends[1]:
        raise InputError(f"range: {low} to {high} must contain 1 and be above 0")
    if share < 0:
        raise InputError(f"within: {within} must be at least 0")
    search = _Search(Family(problem, kind), plan, *sorted(kind.x(end) for end in ends))
    optimal = search.around_one(search.rounding, Fraction(0))
    good = search.around_one(search.rounding, share)
    if segments:
        search.fill()
    return Sensitivity(
        kind,
        search.plan,
        Span(*ends),
        _span(kind, optimal),
        search.rounding / search.family.scale,
        share,
        _span(kind, good),
        tuple(_in_order(kind, search.merged())),
        segments and search.complete,
        tuple(sorted(search.regrets(), key=lambda regret: regret.factor)),
    )


def _knob(knob: str) -> Knob:
    try:
        return Knob(knob)
    except ValueError:
        raise InputError(f"knob: {knob!r} is not one of {', '.join(Knob)}") from None


def _span(knob: Knob, interval: Interval | None) -> Span | None:
    return None if interval is None else Span(*sorted(knob.x(end) for end in interval))


def _in_order(knob: Knob, found: Sequence[tuple[Interval, Plan]]) -> list[Segment]:
    segments = []
    for ends, plan in found:
        low, high = sorted(knob.x(end) for end in ends)
        segments.append(Segment(low, high, plan))
    return sorted(segments, key=lambda segment: segment.low)


class _Search:
    """The search of one knob, in x (see :class:`Knob`) and in the family's unit of time."""

    def __init__(self, family: Family, plan: Plan | None, low: Fraction, high: Fraction) -> None:
        self.family, self.low, self.high = family, low, high
        best = family.optimum(ONE)
        self.plan = best.plan if plan is None else plan
        self.kept = family.makespan(self.plan, low, high)
        over = self.kept.at(ONE) - best.makespan
        # Whole nanoseconds explain less than one for each launch.
        explained = over < self.plan.launches * family.scale
        self.rounding = over if explained else Fraction(0)
        self.regret_at_one = over
        self.found: list[tuple[Interval, Plan]] = []
        self.complete = False

    def around_one(self, rounding: Fraction, share: Fraction) -> Interval | None:
        """Return the closed interval around 1 with ``kept <= (1 + share) optimum + rounding``."""
        optimum = self.kept.at(ONE) - self.regret_at_one
        if self.kept.at(ONE) > (1 + share) * optimum + rounding:
            return None
        times = share.numerator + share.denominator
        target = _scaled(self.kept, share.denominator, share.denominator * rounding)
        low, high = self.low, self.high
        for first, last in self.family.better(target, times):
            if last <= ONE:
                low = max(low, last)
            elif first >= ONE:
                high = min(high, first)
        return low, high

    def fill(self) -> None:
        """Find an optimal plan for every place."""
        if self.low == self.high:  # no interval, but one place
            kept = self.regret_at_one <= self.rounding
            plan = self.plan if kept else self.family.optimum(ONE).plan
            self.found, self.complete = [((ONE, ONE), plan)], True
            return
        open_ = self._keep_where_optimal(self.plan, self.kept, self.low, self.high, self.rounding)
        plans, most = 0, min(MAX_PLANS, MAX_WORK // len(self.family.problem.names) ** 2)
        while open_ and plans < most:
            plans += 1
            low, high = open_.pop()
            plan = self.family.optimum(between(low, high)).plan
            makespan = self.family.makespan(plan, low, high)
            open_ += self._keep_where_optimal(plan, makespan, low, high, Fraction(0))
        self.complete = not open_

    def _keep_where_optimal(
        self, plan: Plan, makespan: Pieces, low: Fraction, high: Fraction, rounding: Fraction
    ) -> list[Interval]:
        """Note where a plan is optimal; return where it is not."""
        worse = joined(self.family.better(_scaled(makespan, 1, rounding)))
        self.found += [(gap, plan) for gap in gaps(low, high, worse)]
        return worse

    def merged(self) -> list[tuple[Interval, Plan]]:
        """Return the intervals in ascending order, neighbours of one plan joined."""
        merged: list[tuple[Interval, Plan]] = []
        for (low, high), plan in sorted(self.found, key=lambda entry: entry[0]):
            if merged and merged[-1][1] == plan and merged[-1][0][1] == low:
                merged[-1] = ((merged[-1][0][0], high), plan)
            else:
                merged.append(((low, high), plan))
        return merged

    def regrets(self) -> list[Regret]:
        """Return the regrets where they bend; all is known only where the search is complete."""
        scale, factor = self.family.scale, self.family.knob.x
        found: dict[Fraction, Regret] = {}
        for (low, high), plan in self.found:
            optimum = self.family.makespan(plan, low, high)
            bends = {low, high, *optimum.starts, *(x for x in self.kept.starts if low < x < high)}
            if low <= ONE <= high:
                bends.add(ONE)
            for x in bends:
                regret = Regret(factor(x), self.kept.at(x) / scale, optimum.at(x) / scale)
                found[x] = min(found.get(x, regret), regret, key=lambda r: r.optimum_ns)
        return list(found.values())


def _scaled(function: Pieces, times: int, less: Fraction) -> Pieces:
    """Return ``times`` a function, less a whole number."""
    lines = [
        line.times(times)._replace(base=line.base * times - int(less)) for line in function.lines
    ]
    return Pieces(function.starts, lines, function.end)

"""A step whose start-up latency, bandwidth or compute speed is scaled by a factor.

Nothing waits for a collective here, so a plan's makespan is the largest of some sums of ready times
and launch costs. Each is a straight line in the factor that is called x: the factor on start-up
latencies, on the time of a byte, or on compute times. A plan's makespan is therefore convex and made
of straight pieces, and the optimum is the least of these over all plans: straight pieces, too, but
not convex.

Costs are not rounded to whole nanoseconds here. A cost curve that is not a straight line counts as
its time for 0 bytes (the start-up) plus what the bytes add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from commsched.models import Bucket, CostCurve, FusionKey, Plan, Problem
from commsched.models.cost import Piece
from commsched.models.coverage import fit
from commsched.models.errors import NotApplicableError
from commsched.optimizer.lines import Interval, Line, Pieces, above_zero, overlaps, upper
from commsched.optimizer.parametric_chain import (
    LineChain,
    affine_intervals,
    check_small_enough,
    least_end,
)
from commsched.optimizer.prefix import Chain, best_prefix_plan, earliest_end
from commsched.optimizer.recurrence import AffineChain


class Knob(StrEnum):
    """What is scaled.

    ``alpha``: the start-up latency of every launch. ``bandwidth``: the bandwidth of every group.
    ``compute``: the speed of compute, so that all ready times and the end of backward are divided.
    """

    ALPHA = "alpha"
    BANDWIDTH = "bandwidth"
    COMPUTE = "compute"

    def x(self, factor: Fraction) -> Fraction:
        """Return the factor on times that a factor of the knob means, and the other way round.

        Examples
        --------
        >>> Knob.ALPHA.x(Fraction(3)), Knob.BANDWIDTH.x(Fraction(3))
        (Fraction(3, 1), Fraction(1, 3))
        """
        return factor if self is Knob.ALPHA else 1 / factor


class Optimum(NamedTuple):
    """The optimum at one place: a plan with the fewest launches, and its makespan in 1 / scale ns."""

    plan: Plan
    makespan: Fraction


@dataclass(frozen=True)
class _Scaled(CostCurve):
    """Pieces that are whole already, in a small unit of time."""

    whole: tuple[Piece, ...]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return self.whole


class Family:
    """All the problems that one knob makes of a step.

    Times are in units of ``1 / scale`` nanoseconds.

    Parameters
    ----------
    problem
        A step in which nothing waits for a collective, without limits and movable tasks.
    knob
        What is scaled.

    Raises
    ------
    NotApplicableError
        If the step is of another class, or too large for the exact method.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> family = Family(GradientProblem([
    ...     Gradient("b", 5, ready_ns=10), Gradient("a", 5, ready_ns=20)], AlphaBeta(0.003, 1)),
    ...     Knob.ALPHA)
    >>> [(float(x), family.optimum(x).plan.launches) for x in (Fraction(1), Fraction(4))]
    [(1.0, 2), (4.0, 1)]
    """

    def __init__(self, problem: Problem, knob: Knob) -> None:
        why = _why_not(problem)
        if why is not None:
            raise NotApplicableError(
                f"sensitivity is exact only where ready times are fixed: {why}"
            )
        self.problem, self.knob = problem, knob
        curves = [problem.cost(key) for key in problem.chains]
        self.scale = math.lcm(*(piece.scale for curve in curves for piece in curve.pieces))
        self.compute = self._ready_line(problem.compute_ns)
        self.keys_of: dict[str, list[FusionKey]] = {}
        for key in problem.chains:
            self.keys_of.setdefault(problem.channel(key), []).append(key)
        self._ends: dict[str, Pieces] = {}
        for keys in self.keys_of.values():
            if not self._is_affine(keys):
                check_small_enough([len(problem.chains[key]) for key in keys])

    def _is_affine(self, keys: Sequence[FusionKey]) -> bool:
        return len(keys) == 1 and self.problem.cost(keys[0]).affine is not None

    def _ready_line(self, ready_ns: int) -> Line:
        time = ready_ns * self.scale
        return Line(0, time) if self.knob is Knob.COMPUTE else Line(time, 0)

    def _split(self, key: FusionKey, piece: Piece) -> tuple[int, int, int]:
        """Return start-up, what else a launch of 0 bytes of this piece takes, time of a byte."""
        start = int(self.problem.cost(key).exact_ns(0) * self.scale)
        times = self.scale // piece.scale
        return start, piece.intercept * times - start, piece.slope * times

    def cost_line(self, key: FusionKey, size: int) -> Line:
        """Return what a launch of so many bytes costs."""
        start, more, each = self._split(key, self.problem.cost(key).piece(size))
        return self._cost_line(start, more + each * size)

    def _cost_line(self, start: int, transfer: int) -> Line:
        if self.knob is Knob.COMPUTE:
            return Line(start + transfer, 0)
        return Line(transfer, start) if self.knob is Knob.ALPHA else Line(start, transfer)

    def _chain(self, key: FusionKey) -> LineChain:
        chain = self.problem.chains[key]
        ready = [self._ready_line(self.problem.ready_ns[k]) for k in chain]
        sent = list(accumulate((self.problem.bytes[k] for k in chain), initial=0))
        return LineChain(ready, sent, lambda size: self.cost_line(key, size))

    def makespan(self, plan: Plan, low: Fraction, high: Fraction) -> Pieces:
        """Return a plan's makespan on an interval; it need not be in order.

        Raises
        ------
        PlanError
            If the plan does not fit the step.
        """
        members = fit(self.problem, plan)
        after = dict.fromkeys(self.keys_of, Line(0, 0))
        lines = [self.compute]
        launches = zip(plan.buckets, *members, strict=True)
        for bucket, positions, size in reversed(list(launches)):
            key = self.problem.keys[positions[0]]
            channel = self.problem.channel(key)
            after[channel] = rest = after[channel].plus(self.cost_line(key, size))
            ready_ns = max(self.problem.ready_ns[k] for k in positions)
            lines.append(self._ready_line(ready_ns).plus(rest))
            if bucket.not_before_ns:
                lines.append(Line(bucket.not_before_ns * self.scale, 0).plus(rest))
        return upper(lines, low, high)

    def optimum(self, x: Fraction) -> Optimum:
        """Return the optimum where the knob multiplies times by ``x``, unrounded."""
        each = x.denominator
        ends = {channel: self._channel_end(channel, x) for channel in self.keys_of}
        makespan = max(self.compute.sign(x), *ends.values())
        buckets: list[Bucket] = []
        for channel in sorted(self.keys_of):
            buckets += self._channel_buckets(channel, x, makespan)
        return Optimum(Plan(tuple(buckets)), Fraction(makespan, each))

    def _at(self, channel: str, x: Fraction) -> list[Chain]:
        """Return a channel's chains in units of ``1 / (scale * x's denominator)`` nanoseconds."""
        chains = []
        for key in self.keys_of[channel]:
            pieces = []
            for piece in self.problem.cost(key).pieces:
                start, more, each = self._split(key, piece)
                fixed = self._cost_line(start, more).sign(x)
                slope = self._cost_line(0, each).sign(x)
                pieces.append(Piece(piece.first_bytes, fixed, slope, 1))
            chain = self.problem.chains[key]
            ready = [self._ready_line(self.problem.ready_ns[k]).sign(x) for k in chain]
            sizes = [self.problem.bytes[k] for k in chain]
            chains.append(Chain(ready, sizes, _Scaled(tuple(pieces))))
        return chains

    def _channel_end(self, channel: str, x: Fraction) -> int:
        chains = self._at(channel, x)
        if self._is_affine(self.keys_of[channel]):
            chain = chains[0]
            return AffineChain(chain.ready_ns, chain.sizes, chain.cost.pieces[0]).earliest_end()
        return earliest_end(chains)

    def _channel_buckets(self, channel: str, x: Fraction, deadline: int) -> list[Bucket]:
        keys, chains = self.keys_of[channel], self._at(channel, x)
        if self._is_affine(keys):
            chain = chains[0]
            ends = AffineChain(chain.ready_ns, chain.sizes, chain.cost.pieces[0]).fewest_launches(
                deadline
            )
            cuts = [(0, i, j) for i, j in zip([0, *ends], ends, strict=False)]
        else:
            cuts = best_prefix_plan(chains, deadline).buckets
        names = self.problem.names
        return [
            Bucket(tuple(names[k] for k in self.problem.chains[keys[number]][begin:end]))
            for number, begin, end in cuts
        ]

    def better(self, target: Pieces, times: int = 1) -> list[Interval]:
        """Return where some plan is better than a target: the optimum is below it.

        Parameters
        ----------
        target
            A makespan on an interval, ``times`` as large.
        times
            The optimum is multiplied by this before the two are compared.

        Returns
        -------
        list of Interval
            Disjoint open intervals in ascending order. Where two touch, the place between them can
            belong to them or not.
        """
        for channel, keys in self.keys_of.items():
            if not self._is_affine(keys):
                self._end(channel, target.starts[0], target.end)
        found: list[Interval] = []
        for low, high, line in target:
            for first, last in above_zero(line.minus(self.compute.times(times)), low, high):
                found += self.sent_before(line, first, last, times)
        return found

    def sent_before(
        self, line: Line, low: Fraction, high: Fraction, times: int = 1
    ) -> list[Interval]:
        """Return where in an interval every channel can end before a line, as :meth:`better` does."""
        here: list[Interval] = [(low, high)]
        for channel, keys in self.keys_of.items():
            inside: list[Interval] = []
            for interval in here:
                inside += self._channel_better(channel, keys, interval, line, times)
            here = overlaps(here, inside)
        return here

    def _channel_better(
        self, channel: str, keys: Sequence[FusionKey], interval: Interval, line: Line, times: int
    ) -> list[Interval]:
        low, high = interval
        if self._is_affine(keys):
            return affine_intervals(self._chain(keys[0]), low, high, line, times)
        return Pieces.line(line, low, high).exceeds(self._end(channel, low, high), times)

    def _end(self, channel: str, low: Fraction, high: Fraction) -> Pieces:
        """Return a channel's least end; it is kept, for the next question is about a part of it."""
        known = self._ends.get(channel)
        if known is None or not known.starts[0] <= low <= high <= known.end:
            chains = [self._chain(key) for key in self.keys_of[channel]]
            known = self._ends[channel] = least_end(chains, low, high)
        return known.part(low, high)


def _why_not(problem: Problem) -> str | None:
    if problem.limits:
        return f"plans are limited ({problem.limits[0].label})"
    if problem.movable:
        return "compute tasks may move"
    if not problem.settled:
        return "tasks wait for collectives"
    return None

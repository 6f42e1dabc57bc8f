"""A step on another network or another processor: start-up, bandwidth and speed times a factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from commsched.models import Compute, CostCurve, GradientProblem, Problem
from commsched.models.cost import Piece
from commsched.models.problem import Costs


@dataclass(frozen=True)
class ScaledCost(CostCurve):
    """A cost whose start-up takes ``alpha`` times as long, and whose bytes are so much faster.

    The start-up of a curve that is no straight line is its time for 0 bytes.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> ScaledCost(AlphaBeta(30, 10), Fraction(2), Fraction(1, 2)).ns(1_000_000)
    260000
    """

    of: CostCurve
    alpha: Fraction
    bandwidth: Fraction

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the other curve, each with another intercept and slope."""
        start = self.of.exact_ns(0)
        pieces = []
        for piece in self.of.pieces:
            beyond = Fraction(piece.intercept, piece.scale) - start
            intercept = self.alpha * start + beyond / self.bandwidth
            slope = Fraction(piece.slope, piece.scale) / self.bandwidth
            scale = math.lcm(intercept.denominator, slope.denominator)
            whole = Piece(piece.first_bytes, int(intercept * scale), int(slope * scale), scale)
            pieces.append(whole)
        return tuple(pieces)

    @property
    def measured_to(self) -> int | None:
        """The largest measured size in bytes."""
        return self.of.measured_to


def scaled(problem: Problem, alpha: Fraction, bandwidth: Fraction, speed: Fraction) -> Problem:
    """Return the same step with other times; what is not whole is rounded up to nanoseconds.

    Parameters
    ----------
    problem
        The step.
    alpha, bandwidth, speed
        By what start-up latencies, bandwidths and the speed of compute are multiplied.

    Raises
    ------
    InputError
        If times grow beyond what a problem may hold.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> from commsched.models import Gradient
    >>> step = GradientProblem([Gradient("a", 4096, ready_ns=1000)], AlphaBeta(1, 4.096))
    >>> other = scaled(step, Fraction(1), Fraction(2), Fraction(4))
    >>> other.ready_ns, other.cost(other.keys[0]).ns(4096)
    ([250], 1500)
    """
    costs = {key: ScaledCost(cost, alpha, bandwidth) for key, cost in problem.costs.items()}
    return repriced(problem, costs, speed)


def repriced(problem: Problem, costs: Costs, speed: Fraction = Fraction(1)) -> Problem:
    """Return the same step with other costs, and with compute so many times as fast.

    Parameters
    ----------
    problem
        The step.
    costs
        A curve for each group and kind that the problem has a cost for.
    speed
        By what the speed of compute is multiplied.

    Raises
    ------
    InputError
        If times grow beyond what a problem may hold.
    """
    if isinstance(problem, GradientProblem):
        assert problem.gradients is not None
        return GradientProblem(
            [replace(each, ready_ns=math.ceil(each.ready_ns / speed)) for each in problem.gradients]
            if speed != 1
            else problem.gradients,
            next(iter(costs.values())),
            name=problem.name,
            backward_end_ns=math.ceil(problem.backward_end_ns / speed),
            limits=problem.limits,
        )
    tasks = [
        replace(task, duration_ns=math.ceil(task.duration_ns / speed))
        if isinstance(task, Compute)
        else task
        for task in problem.tasks
    ]
    return Problem(
        tasks,
        costs,
        channels=problem.groups_of_channel,
        name=problem.name,
        limits=problem.limits,
    )

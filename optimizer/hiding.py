"""The bandwidth at which communication hides."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from commsched.models import Plan, Problem
from commsched.models.errors import InputError
from commsched.models.units import Number, exact
from commsched.optimizer.lines import Line, joined
from commsched.optimizer.parametric import Family, Knob

SHARE = Fraction(1, 100)


@dataclass(frozen=True)
class Hiding:
    """From which bandwidth on communication hides.

    Attributes
    ----------
    share
        Communication counts as hidden while less than this part of the step is exposed (with 0:
        while the last launch ends before compute does).
    factor
        With every factor above this one on all bandwidths, the best plan hides it; with none below.
        None if no bandwidth is enough; 0 if every bandwidth is.
    bandwidth_gb_s
        The same for the step's only cost, if that is a straight line; else None.
    plan
        The best plan at the factor; None without one.
    least_exposed_ns
        What remains exposed with unlimited bandwidth, unrounded.
    """

    share: Fraction
    factor: Fraction | None
    bandwidth_gb_s: Fraction | None
    plan: Plan | None = field(repr=False)
    least_exposed_ns: Fraction


def hiding_bandwidth(problem: Problem, share: Number = SHARE) -> Hiding:
    """Return the least bandwidth at which communication hides, exactly.

    Start-up latencies stay as they are. The optimum does not fall as the time of a byte rises, so
    there is one place at which it passes the target.

    Parameters
    ----------
    problem
        A step in which nothing waits for a collective, without limits and movable tasks.
    share
        Which part of the step may stay exposed, from 0 to less than 1.

    Raises
    ------
    InputError
        If the share is out of range.
    NotApplicableError
        If the step is of a class for which this is not exact, or too large for it.

    Examples
    --------
    The only launch may end at 100 and starts at 50, so its 100 bytes may take 50 ns:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("a", 100, ready_ns=50)], AlphaBeta(0, 1), backward_end_ns=100)
    >>> found = hiding_bandwidth(problem, share=0)
    >>> found.factor, found.bandwidth_gb_s
    (Fraction(2, 1), Fraction(2, 1))
    """
    part = exact(share, "share")
    if not 0 <= part < 1:
        raise InputError(f"share: {share} must be at least 0 and below 1")
    family = Family(problem, Knob.BANDWIDTH)
    # exposed < part * makespan is the same as (1 - part) * makespan < compute.
    times = part.denominator - part.numerator
    target = Line(family.compute.base * part.denominator, 0)
    least = family.optimum(Fraction(0)).makespan - family.compute.base
    exposed_ns = least / family.scale
    slope = max(
        family.cost_line(key, max(problem.bytes[k] for k in chain)).slope
        for key, chain in problem.chains.items()
    )
    if slope == 0:
        hidden = bool(family.sent_before(target, Fraction(0), Fraction(1), times))
        return Hiding(part, Fraction(0) if hidden else None, None, None, exposed_ns)
    # Beyond this the largest collective alone takes too long.
    high = Fraction(target.base, times * slope) + 1
    found = joined(family.sent_before(target, Fraction(0), high, times))
    if not found:
        return Hiding(part, None, None, None, exposed_ns)
    x = found[-1][1]
    factor = family.knob.x(x)
    return Hiding(part, factor, _gb_s(problem, factor), family.optimum(x).plan, exposed_ns)


def _gb_s(problem: Problem, factor: Fraction) -> Fraction | None:
    affine = {problem.cost(key).affine for key in problem.chains}
    piece = affine.pop()
    if piece is None or affine or not piece.slope:
        return None
    return factor * Fraction(piece.scale, piece.slope)

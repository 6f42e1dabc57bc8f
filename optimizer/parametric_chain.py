"""Where a channel can end before a target, for all values of a factor at once.

For an affine cost, :func:`affine_intervals` follows the levels of
:class:`~commsched.optimizer.recurrence.AffineChain` from the target backwards: the first position
after which m launches are enough to end *before* the target. As a function of the factor each level
is constant on intervals, and the next level follows from it on each of them.

For every other curve, and where several fusion keys share the channel, :func:`least_end` runs the
prefix recurrence on functions instead of numbers:
``F(p) = min over keys k and q < p_k of max(F(p with q), ready_k(p_k)) + cost_k(bytes q..p_k)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from commsched.models.errors import NotApplicableError
from commsched.optimizer.lines import Interval, Line, Pieces, above_zero, gaps

MAX_PAIRS = 50_000
"""The most pairs of states that the recurrence on functions looks at."""


class LineChain(NamedTuple):
    """The gradients of one fusion key in ready order.

    Attributes
    ----------
    ready
        When each is ready.
    sent
        Bytes of the first 0, 1, 2, ... gradients.
    cost
        What a launch of so many bytes costs.
    """

    ready: Sequence[Line]
    sent: Sequence[int]
    cost: Callable[[int], Line]


class _Part(NamedTuple):
    """An open interval with the level that holds in it, and its latest line.

    ``need`` is the least of ready time plus start-ups over the levels so far.
    """

    low: Fraction
    high: Fraction
    level: int
    need: Line | None


def affine_intervals(
    chain: LineChain, low: Fraction, high: Fraction, target: Line, times: int = 1
) -> list[Interval]:
    """Return the open intervals in which all gradients can be sent before a target.

    Parameters
    ----------
    chain
        Its cost is affine, with a time of a byte that is above 0 within the interval.
    low, high
        The interval to look at.
    target
        When everything must have ended, ``times`` as late.
    times
        By which all times of the chain are multiplied.

    Examples
    --------
    One gradient, ready at 10, costs x + 5: it ends before 18 if x is below 3.

    >>> chain = LineChain([Line(10, 0)], [0, 5], lambda size: Line(size, 1))
    >>> affine_intervals(chain, Fraction(0), Fraction(9), Line(18, 0))
    [(Fraction(0, 1), Fraction(3, 1))]
    """
    start = chain.cost(0).times(times)
    each = chain.cost(1).times(times).minus(start)
    total = each.times(chain.sent[-1])
    found: list[Interval] = []
    parts = [_Part(low, high, len(chain.ready), None)]
    launches = 0
    while parts:
        launches += 1
        after: list[_Part] = []
        for part in parts:
            need = chain.ready[part.level - 1].times(times).plus(start.times(launches))
            for split in _with_least(part, need):
                assert split.need is not None
                # The bytes before position i must take more than this for the rest to be in time.
                least = split.need.minus(target).plus(total)
                for step in _levels(chain.sent, each, least, split):
                    if step.level == 0:
                        found.append((step.low, step.high))
                    elif step.level < part.level:
                        after.append(step)
        parts = after
    return sorted(found)


def _with_least(part: _Part, need: Line) -> list[_Part]:
    """Return the part with the smaller of its need and another, cut where they cross."""
    if part.need is None:
        return [part._replace(need=need)]
    kept = above_zero(need.minus(part.need), part.low, part.high)
    splits = [part._replace(low=low, high=high) for low, high in kept]
    splits += [
        part._replace(low=low, high=high, need=need)
        for low, high in gaps(part.low, part.high, kept)
    ]
    return splits


def _levels(sent: Sequence[int], each: Line, least: Line, part: _Part) -> list[_Part]:
    """Return the part cut where the first position changes whose bytes take more than ``least``."""

    def over(i: int) -> Line:
        return each.times(sent[i]).minus(least)

    first = _search(part.level, lambda i: over(i).after(part.low))
    last = _search(part.level, lambda i: over(i).before(part.high))
    if first == last:
        return [part._replace(level=first)]
    found = []
    low = part.low
    rising = first < last
    # While the level rises position i drops out at its zero; while it falls i - 1 comes in.
    for i in range(first, last) if rising else range(first, last, -1):
        high = over(i if rising else i - 1).zero()
        if low < high:
            found.append(part._replace(low=low, high=high, level=i))
            low = high
    found.append(part._replace(low=low, level=last))
    return found


def _search(count: int, holds: Callable[[int], bool]) -> int:
    """Return the first of 0, 1, ... for which a condition holds that then goes on to hold."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def check_small_enough(lengths: Sequence[int]) -> None:
    """Check that the recurrence on functions is quick enough for chains of these lengths.

    Raises
    ------
    NotApplicableError
        If it is not.
    """
    if math.prod(length + 1 for length in lengths) * sum(lengths) // 2 > MAX_PAIRS:
        raise NotApplicableError(
            f"sensitivity: {sum(lengths)} collectives of {len(lengths)} fusion keys on one channel "
            "are too many where costs are no straight line or keys share a channel"
        )


def least_end(chains: Sequence[LineChain], low: Fraction, high: Fraction) -> Pieces:
    """Return the least end of all launches of a channel as a function on an interval.

    Ready times and costs must not fall anywhere in the interval, and costs not with bytes.

    Examples
    --------
    >>> chain = LineChain([Line(10, 0), Line(20, 0)], [0, 5, 10], lambda size: Line(size, 3))
    >>> least_end([chain], Fraction(0), Fraction(9)).starts
    [Fraction(0, 1), Fraction(5, 3), Fraction(10, 3)]
    """
    found: dict[tuple[int, ...], Pieces] = {}
    for state in product(*(range(len(chain.ready) + 1) for chain in chains)):
        best: Pieces | None = None if any(state) else Pieces.line(Line(0, 0), low, high)
        for k, chain in enumerate(chains):
            if not state[k]:
                continue
            ready = Pieces.line(chain.ready[state[k] - 1], low, high)
            for q in reversed(range(state[k])):
                before = found[(*state[:k], q, *state[k + 1 :])]
                waits = before.most(ready)
                end = waits.plus(chain.cost(chain.sent[state[k]] - chain.sent[q]))
                best = end if best is None else best.least(end)
                if len(waits.lines) == 1 and waits.lines[0] == ready.lines[0]:
                    break  # sending less before would only make this launch longer
        assert best is not None
        found[state] = best
    return found[tuple(len(chain.ready) for chain in chains)]

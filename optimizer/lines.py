"""Straight lines in one parameter with whole coefficients, and what is made of pieces of them.

A makespan as a function of one factor (of the start-up latency, say) is made of straight pieces.
Coefficients are whole numbers in some small unit of time and places are fractions, so that two
functions are compared, and their crossings found, without any rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

Interval = tuple[Fraction, Fraction]
"""An interval of the parameter; whether its ends belong to it is said where it is used."""


class Line(NamedTuple):
    """``base + slope * x``."""

    base: int
    slope: int

    def plus(self, other: Line) -> Line:
        """Return the sum."""
        return Line(self.base + other.base, self.slope + other.slope)

    def minus(self, other: Line) -> Line:
        """Return the difference."""
        return Line(self.base - other.base, self.slope - other.slope)

    def times(self, factor: int) -> Line:
        """Return the line with all its values multiplied."""
        return Line(self.base * factor, self.slope * factor)

    def at(self, x: Fraction) -> Fraction:
        """Return the value at ``x``."""
        return self.base + self.slope * x

    def sign(self, x: Fraction) -> int:
        """Return a number with the sign of the value at ``x``, sooner than :meth:`at`."""
        return self.base * x.denominator + self.slope * x.numerator

    def after(self, x: Fraction) -> bool:
        """Return whether the value is above 0 immediately after ``x``."""
        value = self.sign(x)
        return value > 0 or (value == 0 and self.slope > 0)

    def before(self, x: Fraction) -> bool:
        """Return whether the value is above 0 immediately before ``x``."""
        value = self.sign(x)
        return value > 0 or (value == 0 and self.slope < 0)

    def zero(self) -> Fraction:
        """Return where the value is 0; the slope must not be."""
        return Fraction(-self.base, self.slope)


class Pieces(NamedTuple):
    """A continuous function of straight pieces on a closed interval.

    Attributes
    ----------
    starts
        Where each piece begins, in ascending order; the first is the interval's begin.
    lines
        The pieces.
    end
        The interval's end.
    """

    starts: Sequence[Fraction]
    lines: Sequence[Line]
    end: Fraction

    @classmethod
    def line(cls, line: Line, low: Fraction, high: Fraction) -> Pieces:
        """Return one line as a function."""
        return cls([low], [line], high)

    def __iter__(self) -> Iterator[tuple[Fraction, Fraction, Line]]:  # type: ignore[override]
        """Yield each piece's begin, end and line."""
        for number, line in enumerate(self.lines):
            last = number + 1 == len(self.lines)
            yield self.starts[number], self.end if last else self.starts[number + 1], line

    def at(self, x: Fraction) -> Fraction:
        """Return the value at a place of the interval."""
        return self.lines[max(0, bisect_right(self.starts, x) - 1)].at(x)

    def part(self, low: Fraction, high: Fraction) -> Pieces:
        """Return the function on a part of its interval."""
        first = max(0, bisect_right(self.starts, low) - 1)
        last = max(first + 1, bisect_left(self.starts, high))
        return Pieces([low, *self.starts[first + 1 : last]], self.lines[first:last], high)

    def plus(self, line: Line) -> Pieces:
        """Return the sum with a line."""
        return Pieces(self.starts, [own.plus(line) for own in self.lines], self.end)

    def least(self, other: Pieces) -> Pieces:
        """Return the smaller of two functions on the same interval, everywhere."""
        return _extreme(self, other, 1)

    def most(self, other: Pieces) -> Pieces:
        """Return the larger of two functions on the same interval, everywhere."""
        return _extreme(self, other, -1)

    def exceeds(self, other: Pieces, times: int = 1) -> list[Interval]:
        """Return the open intervals in which this is above ``times`` the other function.

        Adjacent ones may touch at a place that belongs to neither, although it could.
        """
        found: list[Interval] = []
        for low, high, mine, theirs in _together(self, other):
            found += above_zero(mine.minus(theirs.times(times)), low, high)
        return found


def above_zero(line: Line, low: Fraction, high: Fraction) -> list[Interval]:
    """Return the part of an open interval in which a line is above 0, as no or one interval.

    Examples
    --------
    >>> above_zero(Line(-2, 1), Fraction(0), Fraction(5))
    [(Fraction(2, 1), Fraction(5, 1))]
    """
    first, last = line.after(low), line.before(high)
    if first and last:
        return [(low, high)]
    if first or last:
        zero = line.zero()
        return [(low, zero)] if first else [(zero, high)]
    return []


def upper(lines: Iterable[Line], low: Fraction, high: Fraction) -> Pieces:
    """Return the largest of some lines, everywhere on an interval.

    Examples
    --------
    >>> upper([Line(3, 0), Line(0, 1), Line(1, 0)], Fraction(0), Fraction(9)).starts
    [Fraction(0, 1), Fraction(3, 1)]
    """
    hull: list[Line] = []
    starts: list[Fraction] = []
    for line in sorted(set(lines), key=lambda line: (line.slope, line.base)):
        start = low
        while hull:
            if hull[-1].slope == line.slope:
                start = low  # the other is lower: it goes
            else:
                start = max(low, line.minus(hull[-1]).zero())
                if start > starts[-1]:
                    break
            hull.pop()
            starts.pop()
            start = low
        if start < high or not hull:
            hull.append(line)
            starts.append(start)
    return Pieces(starts, hull, high)


def overlaps(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the common parts of two lists of disjoint open intervals in ascending order."""
    found: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """Return intervals in ascending order with those made one that touch.

    Examples
    --------
    >>> joined([(Fraction(0), Fraction(2)), (Fraction(2), Fraction(4))])
    [(Fraction(0, 1), Fraction(4, 1))]
    """
    found: list[Interval] = []
    for low, high in intervals:
        if found and found[-1][1] == low:
            low = found.pop()[0]
        found.append((low, high))
    return found


def between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the least denominator in the middle half of an interval.

    Examples
    --------
    >>> between(Fraction(1, 3), Fraction(1, 2))
    Fraction(2, 5)
    """
    quarter = (high - low) / 4
    return _simplest(low + quarter, high - quarter)


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    whole -= 1
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))


def _together(f: Pieces, g: Pieces) -> Iterator[tuple[Fraction, Fraction, Line, Line]]:
    """Yield the parts on which both functions are straight, with their lines."""
    if len(f.lines) == len(g.lines) == 1:
        yield f.starts[0], f.end, f.lines[0], g.lines[0]
        return
    i = j = 0
    low = f.starts[0]
    while True:
        f_end = f.starts[i + 1] if i + 1 < len(f.starts) else f.end
        g_end = g.starts[j + 1] if j + 1 < len(g.starts) else g.end
        high = min(f_end, g_end)
        if low < high or f.starts[0] == f.end:
            yield low, high, f.lines[i], g.lines[j]
        if high == f.end:
            return
        low = high
        i += f_end == high
        j += g_end == high


def _extreme(f: Pieces, g: Pieces, sense: int) -> Pieces:
    """Return the smaller (sense 1) or larger (-1) of two functions."""
    starts: list[Fraction] = []
    lines: list[Line] = []

    def add(start: Fraction, line: Line) -> None:
        if not lines or lines[-1] != line:
            starts.append(start)
            lines.append(line)

    for low, high, mine, theirs in _together(f, g):
        more = mine.minus(theirs) if sense > 0 else theirs.minus(mine)
        first, last = more.after(low), more.before(high)
        add(low, theirs if first else mine)
        if first != last:
            zero = more.zero()
            if low < zero < high:
                add(zero, theirs if last else mine)
    return Pieces(starts, lines, f.end)


def gaps(low: Fraction, high: Fraction, taken: Sequence[Interval]) -> list[Interval]:
    """Return what disjoint intervals in ascending order leave of an interval, single places aside.

    Examples
    --------
    >>> gaps(Fraction(0), Fraction(9), [(Fraction(0), Fraction(2)), (Fraction(2), Fraction(4))])
    [(Fraction(4, 1), Fraction(9, 1))]
    """
    ends = [low, *(place for interval in taken for place in interval), high]
    return [(first, last) for first, last in list(pairwise(ends))[::2] if first < last]

"""A rule's scalar knob that remembers what it was compared with.

A rule that uses its knob only in comparisons with whole numbers takes the same decisions, and makes the
same plan, for every value that answers all those comparisons alike. :class:`Knob` records them and
narrows ``[low, high]`` to exactly these values. Running the rule, then running it again with the value
after ``high``, and so on, visits *every* plan that any value of the knob can give: a proof, no grid.

A knob has no arithmetic: a rule that tried to compute with it would fail instead of escaping the record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class Knob:
    """A whole number of at least 1, with the range of values that it could have been.

    Attributes
    ----------
    value
        The number.
    low, high
        All values from ``low`` to ``high`` (None: no end) would have answered alike so far.

    Examples
    --------
    >>> knob = Knob(7)
    >>> 10 >= knob, 5 >= knob, knob <= 9, (knob.low, knob.high)
    (True, False, True, (6, 9))
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: int) -> None:
        self.value = value
        self.low = 1
        self.high: int | None = None

    def __repr__(self) -> str:
        return f"Knob({self.value})"

    def at_most(self, other: int) -> bool:
        """Return whether the knob is at most ``other``, and remember the answer."""
        if self.value <= other:
            self.high = other if self.high is None else min(self.high, other)
            return True
        self.low = max(self.low, other + 1)
        return False

    def __le__(self, other: int) -> bool:
        return self.at_most(other)

    def __lt__(self, other: int) -> bool:
        return self.at_most(other - 1)

    def __gt__(self, other: int) -> bool:
        return not self.at_most(other)

    def __ge__(self, other: int) -> bool:
        return not self.at_most(other - 1)

    def __eq__(self, other: object) -> bool:
        raise TypeError("a knob is only compared by order")

    def pieces(self, total: int) -> int:
        """Return into how many pieces of at most the knob's size ``total`` is cut, at least 1.

        Examples
        --------
        >>> knob = Knob(4)
        >>> knob.pieces(10), (knob.low, knob.high)
        (3, (4, 4))
        """
        count = max(1, -(-total // self.value))
        self.at_most(-(-total // count) - 1)
        if count > 1:
            self.at_most(-(-total // (count - 1)) - 1)
        return count

    def reached(self, totals: Sequence[int], begin: int, before: int) -> int:
        """Return the first index from ``begin`` on whose total less ``before`` reaches the knob.

        The totals ascend. Where none does, it is their number. It is one comparison with each
        total, found and remembered at once.

        Examples
        --------
        >>> knob = Knob(5)
        >>> knob.reached([3, 6, 9, 12], 1, 3), (knob.low, knob.high)
        (2, (4, 6))
        """
        found = bisect_left(totals, before + self.value, begin)
        if found > begin:
            self.low = max(self.low, totals[found - 1] - before + 1)
        if found < len(totals):
            self.at_most(totals[found] - before)
        return found

    def exceeded(self, totals: Sequence[int], begin: int, end: int, before: int) -> int:
        """Return the first index from ``begin`` on whose total less ``before`` exceeds the knob.

        Where none below ``end`` does, it is ``end`` (or ``begin``, if that is more). As
        :meth:`reached` otherwise.

        Examples
        --------
        >>> knob = Knob(6)
        >>> knob.exceeded([3, 6, 9, 12], 1, 4, 3), (knob.low, knob.high)
        (3, (6, 8))
        """
        if begin >= end:
            return begin
        found = bisect_right(totals, before + self.value, begin, end)
        if found > begin:
            self.low = max(self.low, totals[found - 1] - before)
        if found < end:
            self.at_most(totals[found] - before - 1)
        return found


Setting = int | Knob
"""What a rule takes: a number, or a knob that records."""


def pieces(total: int, size: Setting) -> int:
    """Return into how many pieces of at most ``size`` a total is cut, at least 1.

    Examples
    --------
    >>> pieces(10, 4), pieces(0, 4)
    (3, 1)
    """
    return size.pieces(total) if isinstance(size, Knob) else max(1, -(-total // size))


def reached(totals: Sequence[int], begin: int, before: int, cap: Setting) -> int:
    """Return the first index from ``begin`` on whose total less ``before`` is at least ``cap``.

    Examples
    --------
    >>> reached([3, 6, 9, 12], 1, 3, 5), reached([3, 6], 0, 0, 7)
    (2, 2)
    """
    if isinstance(cap, Knob):
        return cap.reached(totals, begin, before)
    return bisect_left(totals, before + cap, begin)


def exceeded(totals: Sequence[int], begin: int, end: int, before: int, cap: Setting) -> int:
    """Return the first index from ``begin`` on whose total less ``before`` is more than ``cap``.

    Where none below ``end`` is, it is ``end`` (or ``begin``, if that is more).

    Examples
    --------
    >>> exceeded([3, 6, 9, 12], 1, 4, 3, 6), exceeded([3, 6], 0, 2, 0, 7)
    (3, 2)
    """
    if isinstance(cap, Knob):
        return cap.exceeded(totals, begin, end, before)
    return bisect_right(totals, before + cap, begin, end) if begin < end else begin

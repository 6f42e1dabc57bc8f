"""What each column of a timeline of text shows: the sign and the style of what fills most of it.

What fills no column gets a thin sign where it runs, so nothing vanishes; of what is exposed, each
stretch has at least one sign, whatever else its column shows. Counting is exact, in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from commsched.lanes import Lane, exposed_parts
from commsched.models.exposure import merge_intervals

IDLE, COMPUTE, LAUNCHES, SEVERAL, SHORT = " ", ":", "#=", "%", "|"
EXPOSED, SEVERAL_EXPOSED, SHORT_EXPOSED = "/\\", "X", "!"
"""Launches side by side take turns between two signs."""
ALL_EXPOSED = EXPOSED + SEVERAL_EXPOSED + SHORT_EXPOSED


class Cell(NamedTuple):
    """What a column shows; ``kind`` is empty for compute and where nothing runs."""

    sign: str
    kind: str = ""


class Scale(NamedTuple):
    """Where times lie: so many columns over a window of time."""

    first_ns: int
    window_ns: int
    columns: int

    def over(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
        """Yield the columns that a time covers, each with how much of it.

        A whole column is ``window_ns`` units, so nothing is rounded.

        Examples
        --------
        >>> list(Scale(0, 10, 4).over(5, 9))
        [(2, 10), (3, 6)]
        """
        whole = self.columns * self.window_ns
        start = max((start_ns - self.first_ns) * self.columns, 0)
        end = min((end_ns - self.first_ns) * self.columns, whole)
        while start < end:
            column = start // self.window_ns
            until = min(end, (column + 1) * self.window_ns)
            yield column, until - start
            start = until


def cells_of(lane: Lane, busy: Sequence[tuple[int, int]], scale: Scale) -> list[Cell]:
    """Return what the columns of a lane show.

    Parameters
    ----------
    lane
        A stream or a channel.
    busy
        When something computes, on any stream: disjoint intervals in order.
    scale
        Where times lie.
    """
    if not lane.launches:
        return _compute(lane, scale)
    launched = _Filled(scale)
    exposed = _Filled(scale)
    stretches: list[tuple[int, int]] = []
    for number, part in enumerate(lane.parts):
        launched.add(part.start_ns, part.end_ns, number)
        for start, end in exposed_parts(part.start_ns, part.end_ns, busy):
            exposed.add(start, end, number)
            stretches.append((start, end))
    signs = []
    for column in range(scale.columns):
        sign = exposed.sign(column, EXPOSED, SEVERAL_EXPOSED)
        signs.append(sign or launched.sign(column, LAUNCHES, SEVERAL) or IDLE)
    for part in lane.parts:
        _mark(signs, scale, (part.start_ns, part.end_ns), SHORT, over=IDLE)
    for stretch in merge_intervals(stretches):
        others = "".join((IDLE, *LAUNCHES, SEVERAL, SHORT))
        _mark(signs, scale, stretch, SHORT_EXPOSED, over=others)
    kinds = [lane.parts[number].kind if number >= 0 else "" for number in launched.most_of]
    return [
        Cell(sign, kind if sign != IDLE else "") for sign, kind in zip(signs, kinds, strict=True)
    ]


class _Filled:
    """How much of each column is filled, and by what most."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.total = [0] * scale.columns
        self.most = [0] * scale.columns
        self.most_of = [-1] * scale.columns
        self._now = [(-1, 0)] * scale.columns

    def add(self, start_ns: int, end_ns: int, number: int) -> None:
        """Note when something runs; what has the same number follows each other."""
        for column, units in self.scale.over(start_ns, end_ns):
            self.total[column] += units
            last, before = self._now[column]
            filled = units + before * (last == number)
            self._now[column] = (number, filled)
            if filled > self.most[column]:
                self.most[column], self.most_of[column] = filled, number

    def sign(self, column: int, signs: str, several: str) -> str:
        """Return the sign of a column; empty if less than half of it is filled."""
        if 2 * self.total[column] < self.scale.window_ns:
            return ""
        if 2 * self.most[column] < self.scale.window_ns:
            return several
        return signs[self.most_of[column] % 2]


def _compute(lane: Lane, scale: Scale) -> list[Cell]:
    spans = merge_intervals((part.start_ns, part.end_ns) for part in lane.parts)
    filled = _Filled(scale)
    for span in spans:
        filled.add(*span, 0)
    signs = [COMPUTE if filled.sign(k, COMPUTE, COMPUTE) else IDLE for k in range(scale.columns)]
    for span in spans:
        _mark(signs, scale, span, SHORT, over=IDLE)
    return [Cell(sign) for sign in signs]


def _mark(
    signs: list[str], scale: Scale, span: tuple[int, int], mark: str, *, over: Iterable[str]
) -> None:
    """Mark where most of something is, if every column that it covers shows something else."""
    covered = list(scale.over(*span))
    if covered and all(signs[column] in over for column, _ in covered):
        column = max(covered, key=lambda each: each[1])[0]
        signs[column] = mark

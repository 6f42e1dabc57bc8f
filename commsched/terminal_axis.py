"""The time axis under a timeline of text: round values, as many as have room."""

from __future__ import annotations

UNITS = (("us", 3, 999_500), ("ms", 6, 9_999_500_000), ("s", 9, 1 << 62))
"""Names, powers of ten in nanoseconds, and up to where they are used."""
LEAST_GAP = 9
"""From one tick to the next are at least so many columns."""


def ticks(first_ns: int, window_ns: int, columns: int) -> tuple[list[tuple[int, str]], str]:
    """Return round times on an axis and their unit; each has its column and its label.

    Parameters
    ----------
    first_ns, window_ns
        Where the axis begins, and how long it is.
    columns
        How wide it is.

    Examples
    --------
    >>> ticks(0, 12_000_000, 60)
    ([(0, '0'), (10, '2'), (20, '4'), (30, '6'), (40, '8'), (50, '10'), (59, '12')], 'ms')
    """
    last_ns = first_ns + window_ns
    unit, power, _ = next(each for each in UNITS if last_ns < each[2])
    exponent = 0
    while True:
        for leading in (1, 2, 5):
            step = leading * 10**exponent
            digits = max(0, power - exponent)
            values = range(-(-first_ns // step) * step, last_ns + 1, step)
            widest = len(_label(last_ns, power, digits))
            if step * columns >= window_ns * max(LEAST_GAP, 2 * widest + 3):
                if not values:
                    values, digits = range(first_ns, first_ns + 1), power
                return [
                    (_column(ns - first_ns, window_ns, columns), _label(ns, power, digits))
                    for ns in values
                ], unit
        exponent += 1


def _column(ns: int, window_ns: int, columns: int) -> int:
    return min(ns * columns // window_ns, columns - 1)


def _label(ns: int, power: int, digits: int) -> str:
    whole, rest = divmod(ns, 10**power)
    return f"{whole}.{rest:0{power}}"[: len(str(whole)) + 1 + digits] if digits else str(whole)


def axis_lines(
    first_ns: int, window_ns: int, columns: int, *, ascii_only: bool = False
) -> tuple[str, str]:
    """Return the axis and the labels under it.

    Parameters
    ----------
    first_ns, window_ns, columns
        As for :func:`ticks`.
    ascii_only
        Whether no other characters may be used.

    Examples
    --------
    >>> for line in axis_lines(0, 12_000, 32, ascii_only=True):
    ...     print(line)
    +------------+------------+-----
    0            5           10 us
    """
    found, unit = ticks(first_ns, window_ns, columns)
    line = ["-" if ascii_only else "─"] * columns
    for column, _ in found:
        line[column] = "+" if ascii_only else "┬"
    labels = ""
    for number, (column, text) in enumerate(found, 1):
        shown = f"{text} {unit}" if number == len(found) else text
        # Right of the first one, and centred on the number without its unit.
        place = min(column - len(text) // 2, columns - len(shown))
        labels = labels.ljust(max(place, len(labels) + bool(labels))) + shown
    return "".join(line), labels

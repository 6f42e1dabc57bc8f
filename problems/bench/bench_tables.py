"""Tables in benchmark logs: their headers and their rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from commsched.models.errors import InputError, printable
from commsched.models.units import MAX_BYTES, MAX_NS, NS_PER_US
from commsched.problems.bench.bench_result import (
    DAMAGED,
    DISAGREE,
    NCCL_TEXT,
    NO_BYTES,
    NO_TIME,
    SPLICED,
    TOO_LARGE,
    WRONG_COLUMNS,
    Point,
    point,
)

MAX_LINE = 4096
"""Longer lines are no rows of a table."""

_ROW = re.compile(r"\d[\d.]{0,20}\s+\d")
_SIZE = re.compile(r"\d{1,18}")
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_EXPONENT = re.compile(r"\d(?:\.\d{1,3})?e\+\d\d")
_ZERO = re.compile(r"0(?:\.0+)?(?:e[+-]\d\d)?")
_DTYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d(?:[T_].{1,20})?|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_UNIT = re.compile(r"\((us|ms|s)\)")
_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_MAX_COLUMNS = 40
_RENAMED = {"bytes": "size", "n": "count", "op": "redop", "res": "error"}

NCCL, NCCOM = "nccl-tests", "nccom-test"
CPU_TIME = "time of the processor only"
IMPRECISE = "a time of two digits only"


def looks_like_row(text: str) -> bool:
    """Return whether an unprefixed line begins as a row of numbers does."""
    return _ROW.match(text) is not None


def time_unit(text: str) -> str | None:
    """Return the first unit of time in the line of units below a header, if it is one.

    Examples
    --------
    >>> time_unit("#  (B)  (elements)   (us)  (GB/s)"), time_unit("# Rank 0 on (us)")
    ('us', None)
    """
    if not text.lstrip("# \t").startswith("("):
        return None
    match = _UNIT.search(text)
    return match.group(1) if match else None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of nccl-tests, as its header names them.

    Attributes
    ----------
    head
        Names before the first time: ``size``, ``count``, ``type``, perhaps ``redop``, ``root``.
    tail
        Names from the first time on; rows are aligned with them from the right.
    unit
        The unit of the times: ``us``, ``ms`` or ``s``.
    tool
        The benchmark that prints such columns: ``nccl-tests`` or ``nccom-test``.
    """

    head: tuple[str, ...]
    tail: tuple[str, ...]
    unit: str = "us"
    tool: str = NCCL

    @property
    def cpu_time(self) -> bool:
        """Whether the times are those of the processor (``-C``), not of the operation."""
        return self.tail[0] == "cputime"


@dataclass(frozen=True, slots=True)
class Side:
    """One half of a row: out of place or in place.

    Attributes
    ----------
    time_us
        Microseconds, above 0.
    algbw, busbw
        As printed, in GB/s with two decimals.
    checked
        Whether the results were checked.
    wrong
        How many results were wrong, as printed; empty if none was.
    """

    time_us: float
    algbw: float
    busbw: float
    checked: bool
    wrong: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table of nccl-tests.

    Attributes
    ----------
    size
        Bytes of the whole operation, above 0.
    dtype, redop, root
        As printed; None where the row says nothing.
    out_of_place, in_place
        The two halves; the second is None where there is none.
    """

    size: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Side
    in_place: Side | None


def columns_of(text: str) -> Columns | None:
    """Return the columns that an unprefixed line names, or None if it is no header.

    Examples
    --------
    >>> line = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error"
    >>> columns_of(line).head
    ('size', 'count', 'type', 'redop')
    """
    if "algbw" not in text or "busbw" not in text:
        return None
    words = text.lstrip("#> \t").split()
    if len(words) > _MAX_COLUMNS:
        return None
    names = [re.split(r"[(:]", word.lower(), maxsplit=1)[0] for word in words]
    oldest = names[0] == "bytes"
    names = [_RENAMED.get(name, name) for name in names]
    statistics = [k for k, word in enumerate(words) if word.lower().startswith("time:")]
    chosen = next((k for k in statistics if words[k].lower().startswith("time:avg")), None)
    for k in statistics:  # nccom-test prints as many as it is asked for
        if k != (statistics[0] if chosen is None else chosen):
            names[k] = words[k].lower()
    while names and names[-1] == "timestamp":
        names.pop()
    first = next(
        (k for k, name in enumerate(names) if name == "cputime" or name.split(":")[0] == "time"), 0
    )
    tail = names[first:]
    if names[:3] != ["size", "count", "type"] or first < 3:
        return None
    if "algbw" not in tail or "busbw" not in tail:
        return None
    unit = _UNIT.search(words[first])
    return Columns(
        tuple(names[:first]),
        tuple(tail),
        unit.group(1) if unit else "ms" if oldest else "us",
        NCCOM if "count(elems)" in words else NCCL,
    )


def parse_row(text: str, columns: Columns) -> Row | str:
    """Return a row, or the reason why it is dropped."""
    if NCCL_TEXT.search(text):
        return SPLICED
    words = text.split()
    while words and _STAMP.fullmatch(words[-1]):
        words.pop()
    head = len(words) - len(columns.tail)
    missing = len(columns.head) - head
    blank = [name for name in ("redop", "root") if name in columns.head]
    if not 0 <= missing <= len(blank):
        return WRONG_COLUMNS
    names = [name for name in columns.head if name not in blank[:missing]]
    values = dict(zip(names, words[:head], strict=True))
    if not _SIZE.fullmatch(values["size"]) or not _DTYPE.fullmatch(values["type"]):
        return DAMAGED
    root = values.get("root")
    if root is not None and not re.fullmatch(r"-?\d{1,9}", root):
        return DAMAGED
    size = int(values["size"])
    if size == 0:
        return NO_BYTES
    if size > MAX_BYTES:
        return TOO_LARGE
    sides = _sides(words[head:], columns, size)
    if isinstance(sides, str):
        return sides
    return Row(
        size,
        values["type"],
        values.get("redop"),
        None if root is None else int(root),
        *sides,
    )


def _sides(words: list[str], columns: Columns, size: int) -> tuple[Side, Side | None] | str:
    if columns.cpu_time:
        return CPU_TIME
    starts = [k for k, name in enumerate(columns.tail) if name == "time"]
    ends = [*starts[1:], len(words)]
    halves = [
        _side(dict(zip(columns.tail[start:end], words[start:end], strict=True)), columns, size)
        for start, end in zip(starts, ends, strict=True)
    ]
    if isinstance(halves[0], str):
        return halves[0]
    second = halves[1] if len(halves) > 1 else None
    return halves[0], None if isinstance(second, str) else second


def _side(values: dict[str, str], columns: Columns, size: int) -> Side | str:
    try:
        texts = [values[name] for name in ("time", "algbw", "busbw")]
    except KeyError:
        return WRONG_COLUMNS
    if "N/A" in texts:
        return NO_TIME
    if _EXPONENT.fullmatch(texts[0]):
        return IMPRECISE
    if not all(_NUMBER.fullmatch(text) for text in texts):
        return DAMAGED
    time, algbw, busbw = (float(text) for text in texts)
    scale = _US[columns.unit]
    time_us = time if scale == 1 else round(time * scale, 6)
    if time_us == 0:
        return NO_TIME
    if time_us * NS_PER_US > MAX_NS:
        return TOO_LARGE
    if not _agree(size, time_us, algbw, texts[0], scale):
        return DISAGREE
    result = values.get("#wrong", values.get("error", "N/A"))
    # An error is a distance that is allowed, marked where it is not; a number of wrong ones is not.
    is_wrong = result.endswith("*") or ("#wrong" in values and not _right(values["#wrong"]))
    return Side(time_us, algbw, busbw, result != "N/A", result if is_wrong else "")


def _right(text: str) -> bool:
    return text == "N/A" or _ZERO.fullmatch(text) is not None


def _agree(size: int, time_us: float, algbw: float, printed: str, scale: float) -> bool:
    """Return whether bytes over time is the printed bandwidth, as far as its digits say."""
    digits = len(printed.partition(".")[2])
    slack = 0.5 * 10.0**-digits * scale / time_us
    expected = size / time_us / 1e3
    return abs(expected - algbw) <= 0.02 * expected + min(slack, 1) * expected + 0.011


def osu_row(text: str, where: str = "") -> Point | str:
    """Return bytes and microseconds of a row of OSU latencies, or the reason to drop it.

    Parameters
    ----------
    text
        The row, which may end with the result of a validation.
    where
        Its place in the log.

    Raises
    ------
    InputError
        If the validation failed.

    Examples
    --------
    >>> osu_row("1048576   104.30   104.26   104.33   10   Pass"), osu_row("0   0.3")
    ((1048576, 104.3), 'size 0')
    """
    if NCCL_TEXT.search(text):
        return SPLICED
    words = text.split()
    if words[-1:] == ["Fail"]:
        raise InputError(
            f"{where}: results at {printable(words[0])} bytes are wrong (Validation is Fail): the "
            "times of such a run are not used"
        )
    if words[-1:] == ["Pass"]:
        words.pop()
    if len(words) < 2:
        return WRONG_COLUMNS
    if not _SIZE.fullmatch(words[0]) or not all(_NUMBER.fullmatch(word) for word in words[1:]):
        return DAMAGED
    return point(int(words[0]), float(words[1]))

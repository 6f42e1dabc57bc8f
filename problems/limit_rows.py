"""Limits in files and on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import UNSET

from commsched.models.errors import InputError
from commsched.models.limits import (
    Alike,
    Apart,
    BytesInFlight,
    LaunchesInFlight,
    LeastBucketBytes,
    Limit,
    MostBucketBytes,
    MostLaunches,
    PoolBytes,
    Together,
)
from commsched.models.units import GIB, MAX_DIGITS, MIB
from commsched.problems.schema import LimitRow

_BY_BYTES: Mapping[str, Callable[[int], Limit]] = {
    "most-bucket-bytes": MostBucketBytes,
    "least-bucket-bytes": LeastBucketBytes,
    "bytes-in-flight": BytesInFlight,
}
_BY_COUNT: Mapping[str, Callable[[int], Limit]] = {
    "most-launches": MostLaunches,
    "launches-in-flight": LaunchesInFlight,
}
_BY_NAMES: Mapping[str, Callable[[tuple[str, ...]], Limit]] = {"together": Together, "apart": Apart}
LIMITS = (*_BY_BYTES, *_BY_COUNT, *_BY_NAMES, "pool-bytes", "alike")
"""The names of the kinds of limits."""
_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 10**6, "GB": 10**9, "KIB": 1024, "MIB": MIB, "GIB": GIB}
_SIZE = re.compile(r"([0-9]{1,400}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})")


def limit_of_row(row: LimitRow) -> Limit:
    """Return the limit that a row describes.

    Raises
    ------
    InputError
        If the type is unknown, or the fields are not those of its type.
    """
    kind = row.type
    what = f"limit {kind!r:.60}"
    if kind not in LIMITS:
        raise InputError(f"{what}: is not one of {', '.join(LIMITS)}")
    wanted = {"names"} if kind in _BY_NAMES else {"count"} if kind in _BY_COUNT else {"bytes"}
    if kind == "pool-bytes":
        wanted = {"bytes", "pool"}
    elif kind == "alike":
        wanted = {"rows"}
    given = {name for name in ("bytes", "count", "pool", "names", "rows") if _given(row, name)}
    if given != wanted:
        raise InputError(
            f"{what}: needs {' and '.join(sorted(wanted))}, "
            f"{' and '.join(sorted(given)) or 'nothing'} is given"
        )
    if kind == "pool-bytes":
        return PoolBytes(str(row.pool), int(row.bytes or 0))
    if kind == "alike":
        return Alike(tuple(tuple(names) for names in row.rows or ()))
    if kind in _BY_NAMES:
        return _BY_NAMES[kind](tuple(row.names or ()))
    if kind in _BY_COUNT:
        return _BY_COUNT[kind](int(row.count or 0))
    return _BY_BYTES[kind](int(row.bytes or 0))


def _given(row: LimitRow, name: str) -> bool:
    return getattr(row, name) is not UNSET


def row_of_limit(limit: Limit) -> LimitRow:
    """Return the row that describes a limit."""
    kind = limit.label.split(" ", 1)[0]
    if isinstance(limit, PoolBytes):
        return LimitRow(kind, bytes=limit.bytes, pool=limit.pool)
    if isinstance(limit, Alike):
        return LimitRow(kind, rows=[list(row) for row in limit.rows])
    if isinstance(limit, Together | Apart):
        return LimitRow(kind, names=list(limit.names))
    if isinstance(limit, MostLaunches | LaunchesInFlight):
        return LimitRow(kind, count=limit.count)
    return LimitRow(kind, bytes=limit.bytes)


def limits_of_texts(texts: Iterable[str]) -> tuple[Limit, ...]:
    """Return the limits that a user wrote on the command line.

    Parameters
    ----------
    texts
        ``most-bucket-bytes=25MiB``, ``most-launches=12``, ``pool-bytes:gathered=8GiB``,
        ``together=a,b``; names that hold a comma can only be given in a problem file.

    Raises
    ------
    InputError
        If a text is no limit.

    Examples
    --------
    >>> limits_of_texts(["bytes-in-flight=64MiB", "pool-bytes:gathered=1GB"])
    (BytesInFlight(bytes=67108864), PoolBytes(pool='gathered', bytes=1000000000))
    """
    return tuple(_limit_of_text(text) for text in texts)


def _limit_of_text(text: str) -> Limit:
    name, separator, value = text.partition("=")
    kind, _, pool = name.strip().partition(":")
    what = f"--limit {text!r:.100}"
    if not separator or kind not in LIMITS or kind == "alike":
        known = ", ".join(known for known in LIMITS if known != "alike")
        raise InputError(f"{what}: must be KIND=VALUE, with one of {known}")
    if bool(pool) != (kind == "pool-bytes"):
        raise InputError(f"{what}: a pool is named as in pool-bytes:NAME=8GiB, and only there")
    if kind in _BY_NAMES:
        return _BY_NAMES[kind](tuple(part.strip() for part in value.split(",")))
    if kind in _BY_COUNT:
        digits = value.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS):
            raise InputError(f"{what}: {digits!r:.60} must be a whole number")
        return _BY_COUNT[kind](int(digits))
    size = _bytes_of_text(value.strip(), what)
    return PoolBytes(pool, size) if kind == "pool-bytes" else _BY_BYTES[kind](size)


def _bytes_of_text(text: str, what: str) -> int:
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise InputError(f"{what}: {text!r:.60} is no size such as 4096, 25MiB or 1.5GB")
    whole, _, broken = match[1].partition(".")
    size, rest = divmod(int(whole + broken) * unit, int(f"1{'0' * len(broken)}"))
    if rest:
        raise InputError(f"{what}: {text!r:.60} is no whole number of bytes")
    return size

"""Files of our own formats: what each says of itself, its shape, and no key given twice.

JSON leaves open what a key means that an object has twice, and most programs take the last one
without a word. In files that people write and merge that hides a mistake: it is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from commsched.models.errors import InputError
from commsched.problems.files import MAX_FILE_BYTES, decode, read_bytes
from commsched.problems.schema import VERSION, Head

T = TypeVar("T")
_SHOWN = 60  # characters of a key, in a message


def read_own(path: str | Path, expected: str, type_: type[T], limit: int = MAX_FILE_BYTES) -> T:
    """Read a file of one of our formats; ``-`` means standard input.

    Parameters
    ----------
    path
        The file.
    expected
        Its format, such as ``commsched/plan``.
    type_
        Its shape.
    limit
        The most bytes that it may have.

    Raises
    ------
    InputError
        If it cannot be read, is of another format, version or shape, or has a key twice.
    """
    data = read_bytes(path, limit)
    own_head(data, expected, path)
    return decode_own(data, type_, path)


def own_head(data: bytes, expected: str, path: str | Path) -> Head:
    """Return what a file of ours says of itself.

    Raises
    ------
    InputError
        If it is no JSON object, or its format or version is missing or another one.
    """
    head = decode(data, Head, path)
    if head.format != expected:
        raise InputError(f"{path}: format is {_said(head.format)}, expected {expected!r}")
    if type(head.version) is not int or head.version != VERSION:
        raise InputError(
            f"{path}: version is {_said(head.version)}, this program reads version {VERSION}"
        )
    return head


def decode_own(data: bytes, type_: type[T], path: str | Path) -> T:
    """Return the whole content of a file of ours.

    Raises
    ------
    InputError
        If it is of another shape, or an object in it has a key twice.
    """
    content = decode(data, type_, path)
    check_keys(data, path)
    return content


def check_keys(data: bytes, path: str | Path) -> None:
    r"""Check that no object in a JSON text has a key twice.

    A pair that is lost in decoding takes its colon with it, and other colons stay; so counting them
    is enough, at a tenth of the time that reading a problem takes. Only to say what is wrong every
    object is looked at.

    Raises
    ------
    InputError
        If one has, or the JSON is malformed or nested too deeply; the message names the first such
        key and where it is.

    Examples
    --------
    >>> check_keys(b'{"costs": {"dp": {}, "tp": {}}}', "a.json")
    >>> check_keys(b'{"costs": {"dp": {}, "d\\u0070": {}}}', "a.json")
    Traceback (most recent call last):
    commsched.models.errors.InputError: a.json: costs: 'dp' is given twice
    """
    if _colons(data) == _colons_kept(data):
        return
    try:
        top = json.loads(data, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON: {error}") from None
    for place, key in _twice(top):
        where = f"{place}: " if place else ""
        raise InputError(f"{path}: {where}'{_short(key)}' is given twice")


def _colons(data: bytes) -> int:
    """Return the number of colons in a JSON text, also of those that are written as escapes."""
    written = data.count(b":")
    if b"\\u003" not in data:
        return written
    return written + sum(len(escape[0]) > 2 for escape in _ESCAPE.finditer(data))


_ESCAPE = re.compile(rb"\\(?:u003[aA]|.)", re.DOTALL)


def _colons_kept(data: bytes) -> int | None:
    """Return how many are left with each key once in its object; None if that cannot be told."""
    try:
        return msgspec.json.encode(msgspec.json.decode(data)).count(b":")
    except (msgspec.MsgspecError, RecursionError):
        return None  # a number out of range in a part that is not decoded yet, say


class _Pairs(list[tuple[str, object]]):
    """An object's keys and values, in the order of the file."""


def _twice(top: object) -> Iterator[tuple[str, str]]:
    """Yield the keys that are given twice, outermost first, each with the place of its object."""
    waiting: list[tuple[str, object]] = [("", top)]
    while waiting:
        place, value = waiting.pop()
        inner: list[tuple[str, object]] = []
        if isinstance(value, _Pairs):
            seen: set[str] = set()
            for key, one in value:
                if key in seen:
                    yield place, key
                seen.add(key)
                if isinstance(one, list):
                    inner.append((f"{place}.{_short(key)}" if place else _short(key), one))
        elif isinstance(value, list):
            inner = [(f"{place}[{n}]", one) for n, one in enumerate(value) if isinstance(one, list)]
        waiting.extend(reversed(inner))


def _short(key: str) -> str:
    text = repr(key[: _SHOWN + 1])[1:-1]  # a message is one line, whatever a key holds
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _said(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]

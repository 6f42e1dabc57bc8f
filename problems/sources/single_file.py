"""Small files that are read as a whole: the only file given, its text, its JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from commsched.models.errors import InputError
from commsched.models.units import MIB
from commsched.problems.sources.source import Source
from commsched.problems.sources.trace_bytes import valid_utf8

MAX_SMALL_BYTES = 32 * MIB
"""Profiles and workloads are far smaller than this."""
MAX_JSON_BYTES = 16 * MIB
"""Configurations and logging data are; decoded, JSON may take many times its size."""

_OTHERS = re.compile(rb'"traceEvents"|"format"\s{0,100}:\s{0,100}"commsched/')


def only_file(files: Sequence[Source]) -> Source:
    """Return the only file.

    Raises
    ------
    InputError
        If there are several; the message names the first two.
    """
    if len(files) != 1:
        raise InputError(
            f"{files[0]}: files of this kind are read one at a time, {files[1]} was given too"
        )
    return files[0]


def read_text(source: Source, repairs: Counter[str], *, max_bytes: int = MAX_SMALL_BYTES) -> str:
    """Return a small file's text; bad UTF-8 is replaced and counted.

    Parameters
    ----------
    source
        The file.
    repairs
        Gets the number of replaced sequences.
    max_bytes
        The most bytes that it may have.

    Raises
    ------
    InputError
        If it cannot be read or is too large.
    """
    data = source.read(max_text_bytes=max_bytes, max_file_bytes=max_bytes)
    return valid_utf8(data, repairs).decode("utf-8", errors="replace")


def read_object(source: Source) -> dict[str, object]:
    """Return a small JSON file's object.

    Raises
    ------
    InputError
        If it cannot be read, is too large, no valid JSON, or no object.
    """
    text = read_text(source, Counter(), max_bytes=MAX_JSON_BYTES)
    try:
        top: object = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: this is no valid JSON: {error}") from None
    if not isinstance(top, dict):
        raise InputError(f"{source}: a JSON object is needed, this is a {type(top).__name__}")
    return top


def start_object(start: bytes, mark: bytes) -> dict[str, object]:
    """Return the JSON object that a file's start is as a whole; empty if it is none of interest.

    Parameters
    ----------
    start
        The first part of a file's content.
    mark
        Bytes that the object must hold; looked for first, for it is quick.

    Examples
    --------
    >>> start_object(b'{"a": 1}', b'"a"'), start_object(b'{"a": 1, ', b'"a"')
    ({'a': 1}, {})
    """
    if mark not in start or _OTHERS.search(start):
        return {}
    try:
        top = json.loads(valid_utf8(start, Counter()))
    except (ValueError, RecursionError):
        return {}
    return top if isinstance(top, dict) else {}


def start_lines(start: bytes, count: int) -> list[str]:
    r"""Return the first lines of a text that are not blank; a line that is cut off counts.

    Examples
    --------
    >>> start_lines(b"\n one\n\ntwo\nthree", 2)
    ['one', 'two']
    """
    if b"\0" in start[:4096]:
        return []
    lines: list[str] = []
    for line in valid_utf8(start, Counter()).decode("utf-8", errors="replace").split("\n"):
        if line.strip():
            lines.append(line.strip())
            if len(lines) == count:
                break
    return lines

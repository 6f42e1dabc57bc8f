"""Repairs of traces that are almost JSON; each one is counted, so that a report can tell.

Profilers have written all of these: bare ``inf`` and ``nan``, control characters, backslashes
and quotes that are not escaped, and files cut off by a crash. Everything here runs in time
linear in the length of the text.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

_TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|-?\b(?:inf(?:inity)?|nan)\b(?:\(ind\))?', re.I | re.S
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.S
)
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}\Z")
_BARE_LIST = re.compile(rb"\s*+\[")
LIST_OF_EVENTS = re.compile(rb'"traceEvents"\s*+:\s*+\[')
"""Where the list of events begins, unless this stands in a text or deeper down."""
_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*+:'
BETWEEN_EVENTS = re.compile(rb"\}\s*+(,)\s*+(?=\{\s*+" + _KEYS + rb")")
"""What stands between two events; its group is the comma. It may stand elsewhere, too."""
_QUOTE = re.compile(rb'\\.|"', re.S)
_AFTER_CLOSING = re.compile(rb'\s*+(?::|[}\]]|\Z|,\s*+["\[{\d\-tfn])')
_MOST_PIECES = 8
"""An event may hold lists of objects that look like events; so many pieces are put together."""

_OBJECT = json.JSONDecoder()


def mend_tokens(text: bytes, repairs: Counter[str]) -> bytes:
    """Return the text with bare ``inf``/``nan``, control characters and bad escapes mended.

    Parameters
    ----------
    text
        Valid UTF-8.
    repairs
        Gets the number of repairs of each sort.
    """

    def mend(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if not token.startswith(b'"'):
            repairs["bare inf or nan read as null"] += 1
            return b"null"
        if _CONTROL.search(token):
            repairs["text with control characters"] += 1
            token = _CONTROL.sub(b" ", token)
        if b"\\" in token:
            mended = _ESCAPE.sub(_mend_escape, token)
            if mended != token:
                repairs["text with invalid escapes"] += 1
                token = mended
        return token

    return _TOKEN.sub(mend, text)


def _mend_escape(match: re.Match[bytes]) -> bytes:
    escape = match.group()
    if len(escape) == 2:
        return escape if escape[1:] in b'"\\/bfnrt' else b"\\" + escape
    return b"\\ufffd" if _LONE_SURROGATE.fullmatch(escape) else escape


def salvage_events(
    text: bytes, repairs: Counter[str], decode: Callable[[bytes], T]
) -> list[T] | None:
    """Return the events of a damaged trace that can be read, one by one.

    Parameters
    ----------
    text
        Valid UTF-8.
    repairs
        Gets what was mended, and the number of events that are lost.
    decode
        Makes an event from the JSON text of one object; raises ``ValueError`` if it cannot.

    Returns
    -------
    list or None
        None if the text has no list of events at all.
    """
    start = events_start(text)
    if start is None:
        return None
    commas = [match.start(1) for match in BETWEEN_EVENTS.finditer(text, start)]
    begins = [start, *(comma + 1 for comma in commas)]
    ends = [*commas, len(text)]
    events: list[T] = []
    closed = False
    index = 0
    while index < len(begins) and not closed:
        last = index
        found = _read_piece(text[begins[index] : ends[last]], decode)
        while found.unfinished and last + 1 < min(index + _MOST_PIECES, len(begins)):
            last += 1
            found = _read_piece(text[begins[index] : ends[last]], decode)
        if found.failed:
            last = index
            found = _mend_piece(text[begins[index] : ends[index]], repairs, decode)
        events += found.events
        if found.failed:
            cut = found.unfinished and last == len(begins) - 1
            repairs["event cut off at the end" if cut else "unreadable event dropped"] += 1
        closed = found.closed
        index = last + 1
        repairs["text between events skipped"] += found.skipped
    if not closed:
        repairs["file cut off before its end"] += 1
    if not +repairs:
        repairs["list of events that is not valid JSON"] += 1
    return events


def events_start(text: bytes) -> int | None:
    """Return where the list of events begins, past its bracket."""
    match = _BARE_LIST.match(text) or LIST_OF_EVENTS.search(text)
    return match.end() if match else None


@dataclass(slots=True)
class _Found(Generic[T]):
    """What a piece of text held.

    Attributes
    ----------
    events
        Usually one.
    closed
        Whether the list ends here.
    failed
        Whether something is left that looks like an event but cannot be read.
    unfinished
        Whether that is only because the text ends too early.
    skipped
        Whether something stood between events that is none.
    """

    events: list[T] = field(default_factory=list)
    closed: bool = False
    failed: bool = False
    unfinished: bool = False
    skipped: bool = False


def _read_piece(piece: bytes, decode: Callable[[bytes], T]) -> _Found[T]:
    with contextlib.suppress(ValueError, RecursionError):
        return _Found([decode(piece)])
    # More than one object: the end of the list, or something between events that is none.
    text = piece.decode()
    found = _Found[T]()
    at = 0
    while True:
        begin = text.find("{", at)
        end = text.find("]", at, None if begin < 0 else begin)
        if end >= 0 or begin < 0:
            found.closed = end >= 0
            found.failed = not found.events and end < 0 and bool(text.strip(" \t\r\n,"))
            return found
        found.skipped |= bool(text[at:begin].strip(" \t\r\n,"))
        try:
            _, at = _OBJECT.raw_decode(text, begin)
            found.events.append(decode(text[begin:at].encode()))
        except json.JSONDecodeError as error:
            found.failed = True
            at_end = error.pos >= len(text.rstrip()) - 1
            found.unfinished = at_end or error.msg.startswith("Unterminated")
            return found
        except (ValueError, RecursionError):
            found.failed = True
            return found


def _mend_piece(piece: bytes, repairs: Counter[str], decode: Callable[[bytes], T]) -> _Found[T]:
    mended = Counter[str]()
    found = _read_piece(mend_tokens(piece, mended), decode)
    if found.failed:
        quotes = Counter({"unescaped quotes in an event": 1})
        other = _read_piece(mend_tokens(_escape_inner_quotes(piece), quotes), decode)
        if not other.failed:
            found, mended = other, quotes
    if found.events:
        repairs += mended
    return found


def _escape_inner_quotes(piece: bytes) -> bytes:
    """Escape the quotes that, going by what follows them, stand inside a text."""
    parts: list[bytes] = []
    inside = False
    done = 0
    for match in _QUOTE.finditer(piece):
        if match.group() != b'"':
            continue
        if not inside:
            inside = True
        elif _AFTER_CLOSING.match(piece, match.end()):
            inside = False
        else:
            parts += (piece[done : match.start()], b'\\"')
            done = match.end()
    return b"".join((*parts, piece[done:]))

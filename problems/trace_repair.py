"""Repairs of traces that are almost JSON; each one is counted, so that a report can tell.

Profilers have written all of these: bare ``inf`` and ``nan``, control characters, backslashes
and quotes that are not escaped, and files cut off by a crash. Everything here runs in time
linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
_EVENTS = re.compile(rb'"traceEvents"\s*+:\s*+\[')
_KEYS = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*+:'
_BETWEEN = re.compile(rb"\}\s*+(,)\s*+(?=\{\s*+" + _KEYS + rb")")
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
    commas = [match.start(1) for match in _BETWEEN.finditer(text, start)]
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
        if found.event is None and not found.closed:
            last = index
            found = _mend_piece(text[begins[index] : ends[index]], repairs, decode, found)
        if found.event is not None:
            events.append(found.event)
        elif not found.closed and text[begins[index] : ends[last]].strip(b" \t\r\n,"):
            cut = found.unfinished and last == len(begins) - 1
            repairs["event cut off at the end" if cut else "unreadable event dropped"] += 1
        closed = found.closed
        index = last + 1
    if not closed:
        repairs["file cut off before its end"] += 1
    return events


def events_start(text: bytes) -> int | None:
    """Return where the list of events begins, past its bracket."""
    match = _BARE_LIST.match(text) or _EVENTS.search(text)
    return match.end() if match else None


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """What a piece of text held: an event, the end of the list, or half an event."""

    event: T | None = None
    closed: bool = False
    unfinished: bool = False


def _read_piece(piece: bytes, decode: Callable[[bytes], T]) -> _Found[T]:
    try:
        return _Found(decode(piece))
    except (ValueError, RecursionError):
        pass  # The last piece has more behind its event, so look at the start only.
    text = piece.decode().lstrip(" \t\r\n,")
    if not text.startswith("{"):
        return _Found(closed=text.startswith("]"))
    try:
        _, end = _OBJECT.raw_decode(text)
        closed = text[end:].lstrip().startswith("]")
        return _Found(decode(text[:end].encode()), closed)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) - 1
        return _Found(unfinished=at_end or error.msg.startswith("Unterminated"))
    except (ValueError, RecursionError):
        return _Found()


def _mend_piece(
    piece: bytes, repairs: Counter[str], decode: Callable[[bytes], T], unmended: _Found[T]
) -> _Found[T]:
    mended = Counter[str]()
    found = _read_piece(mend_tokens(piece, mended), decode)
    if found.event is None:
        mended = Counter({"unescaped quotes in an event": 1})
        found = _read_piece(mend_tokens(_escape_inner_quotes(piece), mended), decode)
    if found.event is None:
        return unmended
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

"""Decoding the events of a large trace piece by piece, so that its text never exists as a whole.

The text is cut where one event seems to end and the next to begin, and each piece is decoded as
a JSON list of its own. That proves the cut: a piece that begins at an element of the list and is
a whole JSON list once brackets stand around it ends at an element too, whatever its strings hold,
for a cut within a string or a nested value would leave that open. What cannot be cut is decoded
in one piece, and what is no strict JSON is left to those who read the whole text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec

from commsched.models.errors import InputError
from commsched.models.units import format_bytes
from commsched.problems.profiler.trace_repair import BETWEEN_EVENTS, LIST_OF_EVENTS
from commsched.problems.sources.trace_bytes import is_utf8

T = TypeVar("T")
Text = bytes | memoryview

PIECE_BYTES = 1 << 20
"""How much text is decoded at a time."""
EVENTS = "traceEvents"
MOST_BETWEEN = 256 << 20
"""If no event begins in so much text, none will."""
_BARE_LIST = re.compile(rb"[ \t\r\n]*+\[")
_BEFORE_KEY = re.compile(rb"[{,]\s*+\Z")
_BLANKS = b" \t\r\n"
_WINDOWS = (1 << 13, 1 << 18)
_TRIES = 3
_STARTS = 8
_HEAD_DOUBLED = 5
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])


def stream_events(
    pieces: Iterator[bytes],
    decode: Callable[[Text], list[T]],
    take: Callable[[list[T]], None],
    *,
    name: str = "the trace",
    piece_bytes: int = PIECE_BYTES,
    most_between: int = MOST_BETWEEN,
) -> Mapping[str, msgspec.Raw] | None:
    """Decode the events of a trace piece by piece.

    The outcome is that of decoding the whole text strictly, or none.

    Parameters
    ----------
    pieces
        The text.
    decode
        Makes events of the text of a JSON list; raises ``ValueError`` if it cannot.
    take
        Gets the events, in their order.
    name
        What the text is called in messages.
    piece_bytes
        How much text is decoded at a time.
    most_between
        How much text may come between the beginnings of two events.

    Returns
    -------
    mapping or None
        What stands beside the events at the top level; None if the text is no strict JSON, or of
        an unusual form: then what ``take`` got is worth nothing.

    Raises
    ------
    InputError
        If the list of events has begun and no event begins for too long.
    """
    text = _grown(b"", pieces, piece_bytes).removeprefix(codecs.BOM_UTF8)
    begun = _begin(text)
    for _ in range(_HEAD_DOUBLED):
        if begun is None:
            # A job of thousands of ranks lists its groups first.
            text = _grown(text, pieces, 2 * len(text))
            begun = _begin(text)
    if begun is None:
        return None
    at, head = begun
    text = text[at:]
    wanted = piece_bytes
    while True:
        text = _grown(text, pieces, wanted)
        if len(text) < wanted:
            return _finish(text, head, decode, take)
        # What is left over at least doubles before it is looked at again: the work stays linear.
        wanted = 2 * len(text)
        cuts = _cuts(text)
        if not cuts:
            if len(text) > most_between:
                raise InputError(
                    f"{name}: is no trace: no event begins in {format_bytes(len(text))} of its list"
                )
            continue
        for cut in cuts:
            events = _decoded(text[:cut], decode)
            if events is not None:
                break
        else:
            # The list ends somewhere in here, or it is damaged: the whole rest will tell.
            return _finish(_grown(text, pieces, None), head, decode, take)
        take(events)
        text = text[cut + 1 :]
        wanted = max(piece_bytes, 2 * len(text))


def _grown(text: bytes, pieces: Iterator[bytes], size: int | None) -> bytes:
    """Return the text with pieces behind it, up to a size or all."""
    parts = [text]
    have = len(text)
    while (size is None or have < size) and (piece := next(pieces, b"")):
        parts.append(piece)
        have += len(piece)
    return b"".join(parts)


def _begin(text: bytes) -> tuple[int, Mapping[str, msgspec.Raw] | None] | None:
    """Return where the list of events begins, and what stands before it; None for a bare list."""
    bare = _BARE_LIST.match(text)
    if bare:
        return bare.end(), None
    for number, match in enumerate(LIST_OF_EVENTS.finditer(text)):
        if number == _STARTS:
            break
        # The text so far with an empty list is JSON only if this is a key of the top level.
        head = text[: match.end()] + b"]}"
        if _BEFORE_KEY.search(head, max(0, match.start() - 4096), match.start()) and is_utf8(head):
            try:
                return match.end(), _TOP.decode(head)
            except (ValueError, RecursionError):
                continue
    return None


def _cuts(text: bytes) -> list[int]:
    """Return the commas near the end that seem to stand between two events, the last one first."""
    for window in (*_WINDOWS, len(text)):
        found = [m.start(1) for m in BETWEEN_EVENTS.finditer(text, max(0, len(text) - window))]
        if found:
            return found[: -_TRIES - 1 : -1]
    return []


def _decoded(text: bytes, decode: Callable[[Text], list[T]]) -> list[T] | None:
    if not is_utf8(text):
        return None
    try:
        return decode(b"".join((b"[", text, b"]")))
    except (ValueError, RecursionError):
        return None


def _finish(
    text: bytes,
    head: Mapping[str, msgspec.Raw] | None,
    decode: Callable[[Text], list[T]],
    take: Callable[[list[T]], None],
) -> Mapping[str, msgspec.Raw] | None:
    """Decode what is left: the last events, the end of the list, and what follows it."""
    if not is_utf8(text):
        return None
    try:
        if head is None:
            take(decode(b"[" + text))
            return {}
        # The key is one that no profiler writes; a later one like it shows by what it holds.
        text = b'{"":[' + text
        whole = memoryview(text)
        found = _TOP.decode(text).get("")
        events = memoryview(found or b"")
        end = len(b'{"":') + len(events)
        if whole[end - len(events) : end] != events:
            return None
        tail = _tail(text[end:])
        if tail is None or EVENTS in tail:
            return None
        take(decode(events))
    except (ValueError, RecursionError):
        return None
    return {**head, **tail}


def _tail(text: bytes) -> Mapping[str, msgspec.Raw] | None:
    """Return what stands behind the list of events."""
    text = text.strip(_BLANKS)
    if text.startswith(b","):
        return _TOP.decode(b"{" + text[1:]) or None
    return {} if text == b"}" else None

"""Loading the events of a Chrome trace: what ``torch.profiler`` and many others write.

The text is read as strict JSON first. Only if that fails are the known faults of profilers
mended (see :mod:`commsched.problems.profiler.trace_repair`), and every repair is counted.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from commsched.models.errors import InputError
from commsched.problems.profiler.trace_copies import without_copies
from commsched.problems.profiler.trace_repair import events_start, mend_tokens, salvage_events
from commsched.problems.profiler.trace_stream import EVENTS, PIECE_BYTES, stream_events
from commsched.problems.sources.source import Source
from commsched.problems.sources.trace_bytes import (
    MAX_FILE_BYTES,
    MAX_TEXT_BYTES,
    joined,
    starting,
    valid_utf8,
)

MAX_EVENT_NS = 7 * 24 * 3600 * 10**9
"""A longer event is an artefact of the profiler (they wrote 236 years); one week in nanoseconds."""
_MAX_ABS_US = 2**62 // 1000
_TRACE_KEYS = frozenset({"traceEvents", "schemaVersion", "deviceProperties", "distributedInfo"})
_BRACKET = re.compile(rb"\s*+([\[{])")


class Event(msgspec.Struct, gc=False):
    """One event as it was written: nothing is known about the types of its fields.

    Attributes
    ----------
    ph, cat, name, pid, tid
        Phase (``"X"`` is a complete event), category, name, process and thread.
    ts, dur
        Start and duration in microseconds, whatever ``displayTimeUnit`` says.
    args
        The arguments, not decoded yet: most events' arguments are never looked at.
    """

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")

    @property
    def arguments(self) -> dict[str, object]:
        """The decoded arguments; empty where there are none that can be read."""
        raw = bytes(self.args)
        if not raw:
            return {}
        try:
            value = msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            # The standard library reads what msgspec refuses, such as 1e999.
            try:
                value = json.loads(raw, strict=False)
            except (ValueError, RecursionError):
                return {}
        return value if isinstance(value, dict) else {}


_EVENT = msgspec.json.Decoder(Event)
_EVENT_LIST = msgspec.json.Decoder(list[Event])
_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MOST_SHARED = 1 << 16
_COUNTED = 1 << 24
MAX_EVENTS = 25_000_000
"""The most events that are kept: 4 GiB of text hold no more real ones, but a billion empty ones."""
INCOMPLETE = "not complete"
"""The word for events without a length of their own: metadata, flows, marks."""


@dataclass(frozen=True, slots=True)
class ChromeTrace:
    """A loaded trace.

    Attributes
    ----------
    source
        What it came from.
    events
        In the order of the file.
    metadata
        What stands beside the events at the top level.
    repairs
        What had to be mended or was lost, and how often.
    left_out
        How many events were not kept because the caller did not want them, by category.
    """

    source: Path | Source
    events: Sequence[Event]
    metadata: Mapping[str, object]
    repairs: Mapping[str, int]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file that the trace, or the archive that holds it, is."""
        return self.source.path if isinstance(self.source, Source) else self.source

    @property
    def events_read(self) -> int:
        """Number of events in the file, those left out included."""
        return len(self.events) + sum(self.left_out.values())


def read_chrome_trace(
    source: Path | Source,
    *,
    only_complete: bool = False,
    without: Collection[str] = (),
    max_text_bytes: int = MAX_TEXT_BYTES,
    max_file_bytes: int = MAX_FILE_BYTES,
    piece_bytes: int = PIECE_BYTES,
) -> ChromeTrace:
    """Load a Chrome trace: JSON or gzip, an object with ``traceEvents`` or a bare list of events.

    A large trace is decoded piece by piece. It takes about 1.2 times its decompressed size in
    memory, less where more is left out; one that must be repaired takes several times its size.

    Parameters
    ----------
    source
        The file, or the member of an archive.
    only_complete
        Whether to leave out what has no length of its own: metadata, flows, marks.
    without
        Categories, in lower case, whose events are left out.
    max_text_bytes, max_file_bytes
        The most bytes that it may hold once it is decompressed (4 GiB) and on the disk (2 GiB).
    piece_bytes
        How much of a large trace is decoded at a time; a smaller one is decoded as a whole.

    Raises
    ------
    InputError
        If the file cannot be read, breaks a limit (25 million events are one), or is no trace.
    """
    content = source if isinstance(source, Source) else Source(source)

    def pieces() -> Iterator[bytes]:
        return content.pieces(max_text_bytes=max_text_bytes, max_file_bytes=max_file_bytes)

    kept = _Kept(str(source), only_complete, frozenset(without))
    text = pieces()
    data = starting(text, piece_bytes)
    more = next(text, b"")
    if more:
        whole = itertools.chain([data, more], text)
        del data, more
        top = stream_events(whole, _decoded, kept.take, name=str(source), piece_bytes=piece_bytes)
        if top is not None:
            metadata = {key: _value(raw) for key, raw in top.items() if key != EVENTS}
            return kept.trace(source, metadata, Counter())
        kept = _Kept(str(source), only_complete, frozenset(without))
        data = joined(pieces())
    repairs = Counter[str]()
    data = valid_utf8(data, repairs)
    if not _BRACKET.match(data):
        raise InputError(f"{source}: this is no trace: neither a JSON object nor a JSON list")
    events, metadata = _load(str(source), data, repairs)
    kept.take(events)
    return kept.trace(source, metadata, repairs)


class _Kept:
    """Collects the events that are wanted, and frees them from the text that they came from."""

    def __init__(self, name: str, only_complete: bool, without: frozenset[str]) -> None:
        self._name = name
        self.events: list[Event] = []
        self.left_out: Counter[str] = Counter()
        self._only_complete = only_complete
        self._without = without
        self._shared: dict[Any, Any] = {}

    def trace(
        self, source: Path | Source, metadata: Mapping[str, object], repairs: Counter[str]
    ) -> ChromeTrace:
        """Return the trace of the events."""
        events = without_copies(self.events, repairs)
        return ChromeTrace(source, events, metadata, dict(+repairs), dict(self.left_out))

    def take(self, events: Iterable[Event]) -> None:
        """Add events."""
        only_complete, without = self._only_complete, self._without
        if len(self._shared) > _MOST_SHARED:
            self._shared.clear()
        share = self._shared.setdefault
        keep = self.events.append
        for event in events:
            if only_complete and event.ph != "X":
                self.left_out[INCOMPLETE] += 1
                continue
            cat = event.cat
            if without and type(cat) is str and cat.lower() in without:
                self.left_out[cat.lower()] += 1
                continue
            # Equal texts become one object. Other types are left alone, or equal numbers of
            # different types (1, 1.0, True) would become one, too.
            ph, name, pid, tid = event.ph, event.name, event.pid, event.tid
            if type(ph) is str:
                event.ph = share(ph, ph)
            if type(cat) is str:
                event.cat = share(cat, cat)
            if type(name) is str:
                event.name = share(name, name)
            if type(pid) is int or type(pid) is str:
                event.pid = share(pid, pid)
            if type(tid) is int or type(tid) is str:
                event.tid = share(tid, tid)
            event.args = event.args.copy()
            keep(event)
        if len(self.events) > MAX_EVENTS:
            raise _too_many(self._name)


def _decoded(text: bytes | memoryview) -> list[Event]:
    _refuse_many("the trace", text)
    return _EVENT_LIST.decode(text)


def _refuse_many(name: str, text: bytes | memoryview) -> None:
    """Refuse a text that would become far too many events, before it is decoded at once."""
    most = 2 * MAX_EVENTS  # an event has its arguments in braces, too
    if len(text) < most:
        return
    codes = np.frombuffer(text, np.uint8)
    opened = sum(
        int(np.count_nonzero(codes[at : at + _COUNTED] == ord("{")))
        for at in range(0, len(codes), _COUNTED)
    )
    if opened > most:
        raise _too_many(name)


def _too_many(name: str) -> InputError:
    return InputError(f"{name}: the trace has more than {MAX_EVENTS} events, the limit")


def _load(name: str, data: bytes, repairs: Counter[str]) -> tuple[list[Event], dict[str, object]]:
    _refuse_many(name, data)
    try:
        return _load_strict(name, data)
    except RecursionError:
        fault = "it is nested too deeply"
    except msgspec.DecodeError as error:
        fault = str(error)
    mended = Counter[str]()
    try:
        result = _load_strict(name, mend_tokens(data, mended))
    except (msgspec.DecodeError, RecursionError):
        events = salvage_events(data, repairs, _EVENT.decode)
        if not events:
            raise InputError(f"{name}: this is no trace: no event can be read ({fault})") from None
        return events, _head_metadata(data)
    repairs += mended
    return result


def _load_strict(name: str, data: bytes) -> tuple[list[Event], dict[str, object]]:
    bracket = _BRACKET.match(data)
    if bracket and bracket[1] == b"[":
        return _EVENT_LIST.decode(data), {}
    top = _TOP.decode(data)
    if not _TRACE_KEYS & top.keys():
        raise InputError(f"{name}: this is no trace: the JSON object has no traceEvents")
    raw = top.pop(EVENTS, None)
    events = [] if raw is None else _EVENT_LIST.decode(raw)
    return events, {key: _value(value) for key, value in top.items()}


def _value(raw: msgspec.Raw) -> object:
    try:
        return cast(object, msgspec.json.decode(raw))
    except (ValueError, RecursionError):
        return None


def _head_metadata(data: bytes) -> dict[str, object]:
    """Return what stands before the events of a damaged trace, if it can be read."""
    start = events_start(data) or 0
    try:
        top = _TOP.decode(data[:start] + b"]}")
    except (ValueError, RecursionError):
        return {}
    return {key: _value(value) for key, value in top.items() if key != EVENTS}


@dataclass(slots=True)
class Op:
    """An event with times: ``start`` and ``end`` in nanoseconds on the trace's own clock."""

    name: str
    tid: str
    start: int
    end: int
    event: Event

    @property
    def arguments(self) -> dict[str, object]:
        """The event's arguments."""
        return self.event.arguments


def ns_from_trace_us(value: object) -> int | None:
    """Return a trace's microseconds as nanoseconds, to the nearest; None if it is no time.

    Times such as 4458676416788.066 have more digits than a float holds after multiplying by a
    thousand, so the whole and the broken part are converted one by one.

    Examples
    --------
    >>> ns_from_trace_us(4458676416788.066), ns_from_trace_us("12.5"), ns_from_trace_us(None)
    (4458676416788066, 12500, None)
    """
    number = value if type(value) is float or type(value) is int else _number(value)
    if number is None or not -_MAX_ABS_US < number < _MAX_ABS_US:  # False for NaN too
        return None
    whole = int(number)
    return whole * 1000 + round((number - whole) * 1000)


def _number(value: object) -> float | None:
    """Return the number that a text is; None if it is none, or no text."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        return int(value) if value.strip().lstrip("-").isdecimal() else float(value)
    except ValueError:
        return None


def times_of(event: Event, dropped: Counter[str]) -> tuple[int, int] | None:
    """Return an event's start and end in nanoseconds; None if it has none, counted by reason."""
    start, length = ns_from_trace_us(event.ts), ns_from_trace_us(event.dur)
    if start is None:
        dropped["events without a readable time"] += 1
        return None
    if length is None:
        dropped["events without a duration"] += 1
        return None
    if not 0 <= length <= MAX_EVENT_NS:
        dropped["events with an impossible duration"] += 1
        return None
    return start, start + length


def timed_op(event: Event, dropped: Counter[str]) -> Op | None:
    """Return an event with its times; None if it has none that make sense, counted by reason."""
    times = times_of(event, dropped)
    if times is None:
        return None
    return Op(event.name, str(event.tid).strip(), times[0], times[1], event)

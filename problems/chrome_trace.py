"""Loading the events of a Chrome trace: what ``torch.profiler`` and many others write.

The text is read as strict JSON first. Only if that fails are the known faults of profilers
mended (see :mod:`commsched.problems.trace_repair`), and every repair is counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from commsched.models.errors import InputError
from commsched.problems.trace_bytes import (
    MAX_FILE_BYTES,
    MAX_TEXT_BYTES,
    read_trace_bytes,
    valid_utf8,
)
from commsched.problems.trace_repair import events_start, mend_tokens, salvage_events

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


@dataclass(frozen=True, slots=True)
class ChromeTrace:
    """A loaded trace.

    Attributes
    ----------
    path
        The file it came from.
    events
        In the order of the file.
    metadata
        What stands beside the events at the top level.
    repairs
        What had to be mended or was lost, and how often.
    """

    path: Path
    events: Sequence[Event]
    metadata: Mapping[str, object]
    repairs: Mapping[str, int]


def read_chrome_trace(
    path: Path, *, max_text_bytes: int = MAX_TEXT_BYTES, max_file_bytes: int = MAX_FILE_BYTES
) -> ChromeTrace:
    """Load a Chrome trace: JSON or gzip, an object with ``traceEvents`` or a bare list of events.

    Parameters
    ----------
    path
        The file.
    max_text_bytes, max_file_bytes
        The most bytes that it may hold once it is decompressed (4 GiB) and on the disk (2 GiB).
        A trace takes about three times its decompressed size in memory.

    Raises
    ------
    InputError
        If the file cannot be read, breaks a limit, or is no trace.
    """
    data = read_trace_bytes(path, max_text_bytes=max_text_bytes, max_file_bytes=max_file_bytes)
    repairs = Counter[str]()
    data = valid_utf8(data, repairs)
    if not _BRACKET.match(data):
        raise InputError(f"{path}: this is no trace: neither a JSON object nor a JSON list")
    events, metadata = _load(path, data, repairs)
    return ChromeTrace(path, events, metadata, dict(+repairs))


def _load(path: Path, data: bytes, repairs: Counter[str]) -> tuple[list[Event], dict[str, object]]:
    try:
        return _load_strict(path, data)
    except RecursionError:
        fault = "it is nested too deeply"
    except msgspec.DecodeError as error:
        fault = str(error)
    mended = Counter[str]()
    try:
        result = _load_strict(path, mend_tokens(data, mended))
    except (msgspec.DecodeError, RecursionError):
        events = salvage_events(data, repairs, _EVENT.decode)
        if not events:
            raise InputError(f"{path}: this is no trace: no event can be read ({fault})") from None
        return events, _head_metadata(data)
    repairs += mended
    return result


def _load_strict(path: Path, data: bytes) -> tuple[list[Event], dict[str, object]]:
    bracket = _BRACKET.match(data)
    if bracket and bracket[1] == b"[":
        return _EVENT_LIST.decode(data), {}
    top = _TOP.decode(data)
    if not _TRACE_KEYS & top.keys():
        raise InputError(f"{path}: this is no trace: the JSON object has no traceEvents")
    raw = top.pop("traceEvents", None)
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
    return {key: _value(value) for key, value in top.items() if key != "traceEvents"}


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
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value) if not value.strip().lstrip("-").isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -_MAX_ABS_US < value < _MAX_ABS_US:  # False for NaN too
        return None
    if isinstance(value, int):
        return value * 1000
    whole = int(value)
    return whole * 1000 + round((value - whole) * 1000)


def timed_op(event: Event, dropped: Counter[str]) -> Op | None:
    """Return an event with its times; None if it has none that make sense, counted by reason."""
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
    return Op(event.name, str(event.tid).strip(), start, start + length, event)

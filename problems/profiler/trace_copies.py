"""Events that a file holds twice: traces that were merged with themselves, or appended to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commsched.problems.profiler.chrome_trace import Event

COPIES = "events that the file holds twice"
_SAMPLE = 64
"""One event in so many, chosen by its time, shows whether it is worth looking at all of them."""
_LEAST_SHARE = 0.05


def without_copies(events: Sequence[Event], repairs: Counter[str]) -> Sequence[Event]:
    """Return the events, each once, if a good part of them are exact copies of others.

    Few equal events are left alone: old traces round to whole microseconds and may have them.
    Marks and events without a length are not compared.
    """
    sample = [event for event in events if hash(_time(event)) % _SAMPLE == 0]
    if len(events) < _SAMPLE**2:
        sample = list(events)
    if _copies(sample) <= _LEAST_SHARE * len(sample):
        return events
    seen: set[int] = set()
    kept = []
    for event in events:
        key = _key(event)
        if key is not None:
            if key in seen:
                continue
            seen.add(key)
        kept.append(event)
    repairs[COPIES] += len(events) - len(kept)
    return kept


def _copies(events: Sequence[Event]) -> int:
    keys = [key for key in map(_key, events) if key is not None]
    return len(keys) - len(set(keys))


def _time(event: Event) -> object:
    ts = event.ts
    return ts if type(ts) in (int, float, str) else None


def _key(event: Event) -> int | None:
    """Return what two equal events share; None for events that are not compared."""
    if event.ph != "X" or not event.dur:
        return None
    try:
        return hash(
            (event.name, event.cat, event.pid, event.tid, event.ts, event.dur, bytes(event.args))
        )
    except TypeError:  # a list or an object where there should be none
        return None

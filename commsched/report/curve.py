"""The exposed time over a rule's cap: every step of it where that is feasible, else a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.models import Plan, Problem
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer import KnobRange, Row, Tuning, rule
from commsched.optimizer.handy import bytes_range
from commsched.optimizer.registry import KnobOf

SAMPLES = 120
"""So many caps are tried where there are too many to try all."""
MOST_RANGES = 2_400
"""A curve with more steps is thinned out for the picture."""


@dataclass(frozen=True)
class Curve:
    """What a rule does at every value of its cap.

    Attributes
    ----------
    name, title
        The rule.
    in_bytes
        Whether the cap counts bytes; else it counts elements.
    ranges
        Values with what they give, ascending; where ``sampled``, each is a single value.
    best
        The best of them.
    flat
        The first and last value around it with a step at most 1% longer; None if sampled.
    sampled
        Whether only some values were tried, so that a better one may be missed.
    setting, plan
        What to paste for the best value, and what the rule makes of it.
    """

    name: str
    title: str
    in_bytes: bool
    ranges: tuple[KnobRange, ...]
    best: KnobRange
    flat: tuple[int, int | None] | None
    sampled: bool
    setting: str
    plan: Plan = field(repr=False)


def curve_of_tuning(name: str, setting: str, tuning: Tuning) -> Curve:
    """Return the curve of a rule whose every plan was visited."""
    found = rule(name)
    in_bytes = _knob(name).range_text is bytes_range
    return Curve(
        name,
        found.title,
        in_bytes,
        tuning.ranges,
        tuning.best,
        tuning.flat,
        False,
        setting,
        tuning.plan,
    )


def sampled_curve(problem: Problem, name: str) -> Curve:
    """Return what a rule does at caps on a geometric scale that are easy to type.

    Raises
    ------
    NotApplicableError
        If the rule does not apply or has no cap.
    """
    knob = _knob(name)
    in_bytes = knob.range_text is bytes_range
    unit = 1 if in_bytes else 4
    low = max(1, min(size for size in (*problem.bytes, 2**50) if size > 0) // unit)
    high = max(low + 1, sum(problem.bytes) // unit + 1)
    step = (high / low) ** (1 / SAMPLES)
    settings: dict[int, str] = {}
    for k in range(SAMPLES + 1):
        value, setting = knob.handy(round(low * step**k), round(low * step ** (k + 0.5)))
        settings[value] = setting
    ranges, plans = [], {}
    for value in sorted(settings):
        plans[value] = plan = knob.make(problem, value)
        timeline = play(problem, plan)
        if not timeline.broken:
            ranges.append(
                KnobRange(value, value, timeline.makespan_ns, timeline.exposed_ns, plan.launches)
            )
    if not ranges:
        raise NotApplicableError(f"{name}: every cap that was tried breaks a limit")
    best = min(ranges, key=lambda r: (r.makespan_ns, r.launches))
    return Curve(
        name,
        rule(name).title,
        in_bytes,
        tuple(ranges),
        best,
        None,
        True,
        settings[best.low],
        plans[best.low],
    )


def has_curve(name: str) -> bool:
    """Return whether a rule has a cap whose curve can be drawn."""
    return _find(name) is not None


def _find(name: str) -> KnobOf | None:
    for knob in rule(name).knobs:
        if isinstance(knob, KnobOf) and not knob.cuts:
            return knob
    return None


def _knob(name: str) -> KnobOf:
    knob = _find(name)
    if knob is None:
        raise NotApplicableError(f"{name}: the rule has no cap")
    return knob


def thinned(ranges: Sequence[KnobRange], most: int = MOST_RANGES) -> list[KnobRange]:
    """Return the ranges for a picture: of each narrow strip the best and the worst one.

    Examples
    --------
    >>> many = [KnobRange(k, k, 100 + k % 7, k % 7, 1) for k in range(1, 10_000)]
    >>> few = thinned(many, 100)
    >>> len(few) <= 100, max(r.exposed_ns for r in few), few[-1].low > 9_900
    (True, 6, True)
    """
    if len(ranges) <= most:
        return list(ranges)
    low, high = math.log(ranges[0].low), math.log(ranges[-1].low)
    strips: dict[int, list[KnobRange]] = {}
    for each in ranges:
        strip = int((math.log(each.low) - low) / (high - low) * (most // 2 - 1))
        kept = strips.setdefault(strip, [each, each])
        kept[0] = min(kept[0], each, key=lambda r: r.exposed_ns)
        kept[1] = max(kept[1], each, key=lambda r: r.exposed_ns)
    found = {each for kept in strips.values() for each in kept}
    return sorted(found, key=lambda r: r.low)


def mean_size(problem: Problem, row: Row, *, in_bytes: bool) -> float:
    """Return the mean size of a row's launches, in bytes or, where types allow, in elements."""
    sizes = 0.0
    for launch in row.timeline.launches:
        sizes += launch.bytes / (1 if in_bytes else item_bytes(launch.key.dtype))
    return sizes / max(1, row.launches)


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element; 4 where the type is unknown."""
    return ITEM_BYTES.get(dtype, 4)

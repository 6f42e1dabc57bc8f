"""The exposed time over each rule's cap: every step of it where that is feasible, else a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from commsched.models import Plan, Problem
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import DeadlockError, NotApplicableError, PlanError
from commsched.models.timeline import play
from commsched.models.units import format_bytes
from commsched.optimizer import Comparison, KnobRange, Row, Tuning, rule
from commsched.optimizer.handy import Span, bytes_range, ranges_text
from commsched.optimizer.registry import RULES, KnobOf

SAMPLES = 120
"""So many caps are tried where there are too many to try all."""
OTHER_SAMPLES = 40
"""So many of each rule other than the framework's."""
MOST_RANGES = 2_400
"""A curve with more steps is thinned out for the picture."""
MOST_OTHER_RANGES = 400
"""So are the small ones."""
APART = 1.01
"""Ranges of caps look as one if there is no more than this factor between them."""


@dataclass(frozen=True)
class Curve:
    """What a rule does at every value of its cap.

    Attributes
    ----------
    name, title
        The rule.
    in_bytes
        Whether the cap counts bytes; else it counts elements.
    unit_bytes
        The bytes that one unit of the cap stands for; of elements, their mean size.
    cuts
        Whether the rule cuts collectives into pieces of at most the cap's size.
    ranges
        Values with what they give, ascending; where ``sampled``, each is a single value.
    best
        The best of them.
    flat
        The first and last value around it with a step at most 1% longer; None if sampled.
    equal_elsewhere, flat_elsewhere
        What is as good as the best, or at most 1% longer, apart from those.
    best_text, flat_text
        Which values do equally well, and which lie within 1%, for people.
    sampled
        Whether only some values were tried, so that a better one may be missed.
    setting, plan
        What to paste for the best value, and what the rule makes of it.
    """

    name: str
    title: str
    in_bytes: bool
    unit_bytes: float
    cuts: bool
    ranges: tuple[KnobRange, ...]
    best: KnobRange
    flat: Span | None
    sampled: bool
    setting: str
    plan: Plan = field(repr=False)
    equal_elsewhere: tuple[Span, ...] = ()
    flat_elsewhere: tuple[Span, ...] = ()
    best_text: str = ""
    flat_text: str = ""

    @property
    def flat_spans(self) -> list[Span]:
        """All values with a step at most 1% longer than with the best, ascending."""
        spans = [*self.flat_elsewhere, *([] if self.flat is None else [self.flat])]
        return sorted(spans, key=lambda span: span[0])


def curve_of_tuning(problem: Problem, name: str, setting: str, tuning: Tuning) -> Curve:
    """Return the curve of a rule whose every plan was visited."""
    knob = _knob(name)
    in_bytes, unit_bytes = _unit(problem, knob)
    best = tuning.best.low, tuning.best.high

    def show(low: int, high: int | None, inner: Span | None = None) -> str:
        text = knob.range_text(low, high, inner)
        return text if in_bytes or text == "any" else f"{text} elements"

    return Curve(
        name,
        rule(name).title,
        in_bytes,
        unit_bytes,
        knob.cuts,
        tuning.ranges,
        tuning.best,
        tuning.flat,
        False,
        setting,
        tuning.plan,
        tuning.equal_elsewhere,
        tuning.flat_elsewhere,
        ranges_text(show, best, tuning.equal_elsewhere),
        ranges_text(show, tuning.flat, tuning.flat_elsewhere, best),
    )


def sampled_curve(problem: Problem, name: str, samples: int | None = None) -> Curve:
    """Return what a rule does at caps on a geometric scale that are easy to type.

    Parameters
    ----------
    problem
        The step.
    name
        The rule.
    samples
        How many caps are tried; by default :data:`SAMPLES`.

    Raises
    ------
    NotApplicableError
        If the rule does not apply or has no cap, or its pieces are too many.
    """
    knob, count = _knob(name), SAMPLES if samples is None else samples
    in_bytes, unit_bytes = _unit(problem, knob)
    if knob.cuts:
        raise NotApplicableError(f"{name}: small caps cut collectives into too many pieces")
    low = max(1, int(min(size for size in (*problem.bytes, 2**50) if size > 0) / unit_bytes))
    high = max(low + 1, int(sum(problem.bytes) / unit_bytes) + 1)
    step = (high / low) ** (1 / count)
    settings: dict[int, str] = {}
    for k in range(count + 1):
        value, setting = knob.handy(round(low * step**k), round(low * step ** (k + 0.5)))
        settings[value] = setting
    ranges, plans = [], {}
    for value in sorted(settings):
        try:
            plans[value] = plan = knob.make(problem, value)
            timeline = play(problem, plan)
        except DeadlockError:
            continue  # with another cap its launches may not wait for each other
        if not timeline.broken:
            ranges.append(
                KnobRange(value, value, timeline.makespan_ns, timeline.exposed_ns, plan.launches)
            )
    if not ranges:
        raise NotApplicableError(
            f"{name}: every cap that was tried breaks a limit, or its launches wait for each other"
        )
    best = min(ranges, key=lambda r: (r.makespan_ns, r.launches))
    return Curve(
        name,
        rule(name).title,
        in_bytes,
        unit_bytes,
        knob.cuts,
        tuple(ranges),
        best,
        None,
        True,
        settings[best.low],
        plans[best.low],
        best_text=format_bytes(best.low) if in_bytes else f"{best.low:,} elements",
    )


def other_curves(
    comparison: Comparison,
    first: Curve | None,
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Curve, ...]:
    """Return the curves of all rules with a cap but one, sampled where they were not tuned.

    Parameters
    ----------
    comparison
        The rules; what was tuned there is not tried again.
    first
        The curve that is known already.
    tell
        Called with what is being done.
    """
    problem, found = comparison.result.problem, []
    applies = {row.name for row in comparison.rows}
    for known in RULES:
        name = known.name
        tuned = comparison.best_settings.get(f"{name}-best")
        if not has_curve(name) or (tuned is None and name not in applies):
            continue
        if first is not None and first.name == name:
            continue
        tell(known.title)
        if tuned is not None and tuned.tuning is not None:
            found.append(curve_of_tuning(problem, name, tuned.setting, tuned.tuning))
            continue
        try:
            found.append(sampled_curve(problem, name, OTHER_SAMPLES))
        except (NotApplicableError, PlanError):
            continue
    return tuple(found)


def has_curve(name: str) -> bool:
    """Return whether a rule has a cap whose curve can be drawn."""
    return _find(name) is not None


def _find(name: str) -> KnobOf | None:
    return next((knob for knob in rule(name).knobs if isinstance(knob, KnobOf)), None)


def _knob(name: str) -> KnobOf:
    knob = _find(name)
    if knob is None:
        raise NotApplicableError(f"{name}: the rule has no cap")
    return knob


def _unit(problem: Problem, knob: KnobOf) -> tuple[bool, float]:
    """Return whether a cap counts bytes, and how many bytes its unit stands for."""
    if knob.range_text is bytes_range:
        return True, 1.0
    elements = sum(
        size / item_bytes(key.dtype) for size, key in zip(problem.bytes, problem.keys, strict=True)
    )
    return False, sum(problem.bytes) / elements if elements else 4.0


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


def seen_apart(spans: Sequence[Span]) -> list[Span]:
    """Return ascending ranges for a picture: those that no eye can tell apart are joined.

    Examples
    --------
    >>> seen_apart([(1, 10), (20, 1000), (1002, 1100), (1102, None)])
    [(1, 10), (20, None)]
    """
    found: list[Span] = []
    for low, high in spans:
        if found and found[-1][1] is not None and low <= found[-1][1] * APART:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def mean_size(row: Row) -> float:
    """Return the mean bytes of a row's launches."""
    return sum(launch.bytes for launch in row.timeline.launches) / max(1, row.launches)


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element; 4 where the type is unknown."""
    return ITEM_BYTES.get(dtype, 4)

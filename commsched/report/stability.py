"""How far the network and the processor may be from what was assumed, and what it costs if they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commsched.models.errors import NotApplicableError
from commsched.optimizer import Result
from commsched.optimizer.hiding import Hiding, hiding_bandwidth
from commsched.optimizer.parametric import Knob
from commsched.optimizer.sensitivity import Sensitivity, sensitivity

MOST_SEGMENTS = 200
"""Up to so many collectives all replacements of the plan are found, which takes a few seconds."""
MOST_RANGES = 4_000
"""Up to so many, the range in which it stays optimal is."""


@dataclass(frozen=True)
class Stability:
    """What is known of other start-ups, bandwidths and speeds.

    Attributes
    ----------
    knobs
        The plan under the change of one knob, all else fixed.
    hiding
        The bandwidth at which communication hides; None if that is not known.
    why_not
        Why nothing is known, or not all.
    """

    knobs: Mapping[Knob, Sensitivity]
    hiding: Hiding | None
    why_not: str


def stability(result: Result, tell: Callable[[str], None] = lambda text: None) -> Stability:
    """Return how a result's plan stands other networks and processors, exactly or not at all.

    Parameters
    ----------
    result
        A result with a plan.
    tell
        Called with what is being done.
    """
    count = len(result.problem.names)
    if count > MOST_RANGES:
        why = f"not computed beyond {MOST_RANGES:,} collectives; this step has {count:,}"
        return Stability({}, None, why)
    segments = count <= MOST_SEGMENTS
    try:
        knobs = {}
        for knob in Knob:
            tell(str(knob))
            knobs[knob] = sensitivity(result.problem, knob, result.plan, segments=segments)
        tell("the bandwidth that hides communication")
        hiding = hiding_bandwidth(result.problem)
    except NotApplicableError as error:
        return Stability({}, None, str(error))
    why = "" if segments else f"regrets are computed up to {MOST_SEGMENTS} collectives"
    return Stability(knobs, hiding, why)

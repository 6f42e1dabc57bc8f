"""The best value of a framework's one number: over all values, or of many where that takes too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from commsched.export.source import ExportSource
from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.knob import Setting
from commsched.models.timeline import play
from commsched.models.units import MIB
from commsched.optimizer.handy import handy_mib
from commsched.optimizer.tuning import tune

MOST_TUNED = 500
"""Up to so many collectives every plan that a value gives is looked at, in a few seconds."""
STEPS = 4
"""Tried values for each doubling, where not all can be."""
DOUBLINGS = 14
"""From all bytes down to so many halvings of them."""


class Best(NamedTuple):
    """A value, what the framework's rule makes of it, and how it was found.

    Attributes
    ----------
    value
        In the knob's unit.
    plan
        The rule's plan for exactly this value.
    makespan_ns
        What that does.
    note
        Empty if no value does better, else how many were tried.
    """

    value: int
    plan: Plan
    makespan_ns: int
    note: str

    @property
    def notes(self) -> tuple[str, ...]:
        """The note, if there is one."""
        return (self.note,) if self.note else ()


def handy_bytes(low: int, high: int | None) -> int:
    """Return the bytes of the number of MiB in a range that is easiest to type.

    Examples
    --------
    >>> handy_bytes(67108865, 100663296) / 2**20
    70.0
    """
    return int(handy_mib(low, high) * MIB)


def mib_of(size: int) -> float:
    """Return the shortest number of MiB that a framework turns into exactly so many bytes.

    Examples
    --------
    >>> mib_of(1646264), mib_of(2**20 + 1)
    (1.57, 1.000001)
    """
    short = handy_mib(size, size + 1)
    return short if int(short * MIB) == size else size / MIB


def best_value(
    source: ExportSource,
    make: Callable[[Problem, Setting], Plan],
    pick: Callable[[int, int | None], int],
    unit_bytes: int = 1,
    *,
    most: int = MOST_TUNED,
) -> Best:
    """Return the best value of a rule's knob.

    Parameters
    ----------
    source
        With the problem.
    make
        The rule with its knob, as for :func:`commsched.optimizer.tuning.tune`.
    pick
        Chooses a value of a range that is equally good.
    unit_bytes
        The most bytes that one unit of the knob stands for.
    most
        Up to so many collectives all values are looked at.
    """
    problem = source.problem
    assert problem is not None
    if len(problem.names) <= most:
        try:
            found = tune(problem, make, unit_bytes)
        except NotApplicableError as error:
            if not str(error).startswith("best setting"):
                raise
        else:
            value = pick(found.best.low, found.best.high)
            # The values that are equally good need not all give the same plan.
            plan = make(problem, value)
            return Best(value, plan, play(problem, plan).makespan_ns, "")
    total = max(1, sum(problem.bytes))
    sizes = sorted(launch.bytes for launch in source.launches)
    tried = {int(total * 2 ** (-k / STEPS)) for k in range(DOUBLINGS * STEPS)}
    tried |= {sizes[0], sizes[len(sizes) // 2], sizes[-1]}
    values = sorted({max(1, size // unit) for size in tried for unit in {1, unit_bytes}})
    results = []
    for value in values:
        plan = make(problem, value)
        results.append(Best(value, plan, play(problem, plan).makespan_ns, ""))
    best = min(results, key=lambda one: (one.makespan_ns, one.plan.launches))
    note = f"surely the best value: of {len(values)} that were tried it is the best"
    return best._replace(note=note)

"""Scope fifo: any partition, but a channel runs its launches in the order in which they are ready."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple, Protocol

from commsched.models import FusionKey, Problem
from commsched.models.errors import NotApplicableError
from commsched.optimizer.cpsat.base import StepModel

MAX_BUCKETS = 64
"""More possible launches a channel make too many pairs."""


class Slot(NamedTuple):
    """A possible launch: whether it is there, when it is ready (exactly), starts and ends."""

    key: FusionKey
    present: Any
    ready: Any
    start: Any
    end: Any


class Slots(Protocol):
    """What the model of scope ``any`` offers."""

    step: StepModel

    def slots(self) -> list[Slot]:
        """Return every possible launch."""


def check_fifo(problem: Problem) -> None:
    """Check that the model of scope ``fifo`` is not too large and means what the evaluator does.

    Raises
    ------
    NotApplicableError
        If it is too large, or launches wait for memory, so that they do not start when they could.
    """
    if problem.limited_pools:
        raise NotApplicableError("cpsat: scope fifo and limited pools exclude each other")
    for groups in problem.groups_of_channel.values():
        count = sum(len(chain) for key, chain in problem.chains.items() if key.group in groups)
        if count > MAX_BUCKETS:
            raise NotApplicableError(
                f"cpsat: scope fifo takes up to {MAX_BUCKETS} collectives a channel, not {count}"
            )


def add_fifo(model: Slots) -> None:
    """Ensure that of two launches on a channel the one that is ready first runs first.

    Every launch starts as soon as it can, as the evaluator starts it: otherwise a solution might
    hold a launch back to put others in another order.
    """
    step = model.step
    cp, scale = step.cp, step.scale
    by_channel: dict[str, list[tuple[Slot, Any]]] = {}
    for slot in model.slots():
        when = cp.new_int_var(0, step.horizon_ns, "ready, in whole nanoseconds")
        cp.add_division_equality(when, slot.ready, scale)
        by_channel.setdefault(step.problem.channel(slot.key), []).append((slot, when))
    for slots in by_channel.values():
        free: list[list[Any]] = [[slot.ready] for slot, _ in slots]
        for (j, (one, one_ns)), (k, (two, two_ns)) in combinations(enumerate(slots), 2):
            first = cp.new_bool_var("first")
            both = [one.present, two.present]
            cp.add(one.end <= two.start).only_enforce_if([*both, first])
            cp.add(one_ns <= two_ns).only_enforce_if([*both, first])
            cp.add(two.end <= one.start).only_enforce_if([*both, ~first])
            cp.add(two_ns <= one_ns).only_enforce_if([*both, ~first])
            for here, other, literal in ((k, one, first), (j, two, ~first)):
                before = step.time_var(0, "end before")
                cp.add(before == other.end).only_enforce_if([other.present, literal])
                cp.add(before == 0).only_enforce_if(~other.present)
                cp.add(before == 0).only_enforce_if(~literal)
                free[here].append(before)
        for (slot, _), ends in zip(slots, free, strict=True):
            earliest = step.time_var(0, "earliest start")
            cp.add_max_equality(earliest, ends)
            cp.add(slot.start == earliest).only_enforce_if(slot.present)

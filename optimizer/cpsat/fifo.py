"""Scope fifo: any partition, but a channel runs its launches in the order in which they are ready.

Where no collective waits for a collective, a bucket is ready with its last member, whatever the plan:
the order of possible launches is known beforehand, apart from those that are ready at the same time,
and delays gain nothing. Elsewhere the order of any two launches is a decision.

With limited pools a launch may have to wait for room. The model then also allows other waiting, which a
queue does not: its bound is valid, and what it finds is only taken if it runs without being held back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, groupby
from typing import Any, NamedTuple, Protocol

from commsched.models import FusionKey, Plan, Problem
from commsched.models.coverage import is_fifo
from commsched.models.errors import DeadlockError, NotApplicableError
from commsched.models.timeline import play
from commsched.optimizer.cpsat.base import StepModel

MAX_LAUNCH_PAIRS = 4_000
"""Where ready times are open, more pairs of possible launches make too large a model."""


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

    def leads(self) -> list[FusionKey]:
        """Return the fusion key of every possible launch."""

    def slots(self) -> list[Slot]:
        """Return every possible launch."""


def ready_fixed(problem: Problem) -> bool:
    """Return whether no plan changes when a collective is ready."""
    return not problem.movable and not any(name in problem.waiting for name in problem.names)


def check_fifo(model: Slots) -> None:
    """Check that the model of scope ``fifo`` is not too large.

    Raises
    ------
    NotApplicableError
        If it is.
    """
    problem = model.step.problem
    if ready_fixed(problem):
        return
    count: dict[str, int] = {}
    for key in model.leads():
        channel = problem.channel(key)
        count[channel] = count.get(channel, 0) + 1
    pairs = sum(n * (n - 1) // 2 for n in count.values())
    if pairs > MAX_LAUNCH_PAIRS:
        raise NotApplicableError(
            f"cpsat: scope fifo takes up to {MAX_LAUNCH_PAIRS} pairs of launches on one channel "
            f"where collectives wait for collectives, not {pairs}"
        )


def add_fifo(model: Slots) -> None:
    """Ensure that of two launches on a channel the one that is ready first runs first."""
    problem = model.step.problem
    by_channel: dict[str, list[Slot]] = {}
    for slot in model.slots():
        by_channel.setdefault(problem.channel(slot.key), []).append(slot)
    for slots in by_channel.values():
        if ready_fixed(problem):
            _as_known(model.step, slots)
        else:
            _as_decided(model.step, slots)


def _as_known(step: StepModel, slots: list[Slot]) -> None:
    """Ensure the order of ready times, which are constants."""
    cp = step.cp
    done: Any = None
    for _, group in groupby(sorted(slots, key=lambda slot: slot.ready), lambda slot: slot.ready):
        following = step.time_var(0, "so far")
        if done is not None:
            cp.add(following >= done)
        for slot in group:
            if done is not None:
                cp.add(slot.start >= done).only_enforce_if(slot.present)
            cp.add(following >= slot.end).only_enforce_if(slot.present)
        done = following


def _as_decided(step: StepModel, slots: list[Slot]) -> None:
    """Ensure the order of ready times, which depend on the plan.

    Every launch starts as soon as it can, as the evaluator starts it, unless memory is limited:
    otherwise a solution might hold a launch back to put others in another order.
    """
    cp, at_once = step.cp, not step.problem.limited_pools
    ready_ns = [step.whole_ns(slot.ready, "ready") for slot in slots]
    free: list[list[Any]] = [[slot.ready] for slot in slots]
    for (j, one), (k, two) in combinations(enumerate(slots), 2):
        first = cp.new_bool_var("first")
        both = [one.present, two.present]
        cp.add(one.end <= two.start).only_enforce_if([*both, first])
        cp.add(ready_ns[j] <= ready_ns[k]).only_enforce_if([*both, first])
        cp.add(two.end <= one.start).only_enforce_if([*both, ~first])
        cp.add(ready_ns[k] <= ready_ns[j]).only_enforce_if([*both, ~first])
        if not at_once:
            continue
        for here, other, literal in ((k, one, first), (j, two, ~first)):
            before = step.time_var(0, "end before")
            cp.add(before == other.end).only_enforce_if([other.present, literal])
            cp.add(before == 0).only_enforce_if(~other.present)
            cp.add(before == 0).only_enforce_if(~literal)
            free[here].append(before)
    if not at_once:
        return
    for slot, ends in zip(slots, free, strict=True):
        earliest = step.time_var(0, "earliest start")
        cp.add_max_equality(earliest, ends)
        cp.add(slot.start == earliest).only_enforce_if(slot.present)


def unheld(problem: Problem, plan: Plan) -> Plan | None:
    """Return a plan without what holds its launches back, if it then is first come first served."""
    plan = replace(plan, buckets=tuple(replace(b, not_before_ns=0) for b in plan.buckets))
    try:
        timeline = play(problem, plan)
    except DeadlockError:
        return None
    return plan if is_fifo(timeline) and not timeline.broken else None

"""How much communication slows compute, from tasks that were timed with and without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from commsched.models.errors import InputError
from commsched.models.slowdown import MAX_FACTOR, Slowdown
from commsched.models.units import check_ns


class TimedTwice(NamedTuple):
    """One compute task that was timed alone and beside communication.

    Attributes
    ----------
    name
        For messages.
    alone_ns
        How long it takes while nothing is communicated.
    took_ns
        How long it took beside communication.
    overlapped_ns
        During how much of ``took_ns`` some launch ran.
    """

    name: str
    alone_ns: int
    took_ns: int
    overlapped_ns: int


@dataclass(frozen=True)
class SlowdownFit:
    """A fitted slowdown.

    Attributes
    ----------
    factor
        The factor of all tasks together; it is that of the time in which they overlapped.
    tasks
        How many tasks overlapped at all.
    overlapped_ns
        The time that the factor rests on.
    low, high
        Half of the overlapped time lies in tasks with factors from low to high. ``high`` is None
        where such a task got no work done while it overlapped.
    faster
        How many of the tasks took less time than alone: noise, and a sign of how much of it.
    """

    factor: Fraction
    tasks: int
    overlapped_ns: int
    low: Fraction
    high: Fraction | None
    faster: int

    @property
    def slowdown(self) -> Slowdown:
        """The slowdown, for :func:`~commsched.models.slowdown.evaluate_slowed`."""
        return Slowdown(self.factor)


def fit_slowdown(timed: Iterable[TimedTwice]) -> SlowdownFit:
    """Return the factor by which communication slowed some tasks.

    In its overlapped time o a task does ``o / factor`` of its work, and the rest of its time it runs
    at full speed, so ``took - o + o / factor = alone``. Both times must be of the same work on the
    same device at the same clock; that is for the caller to see to. One recording alone does not
    say it: there is no telling whether its long tasks are long because of communication.

    Parameters
    ----------
    timed
        The tasks. Those that did not overlap say nothing and are left out.

    Raises
    ------
    InputError
        If a time is not valid, a task overlapped for longer than it took, nothing overlapped, or the
        tasks together got too little done while they overlapped.

    Examples
    --------
    >>> fit_slowdown([TimedTwice("mm", 100, 130, 130), TimedTwice("norm", 50, 56, 26)]).factor
    Fraction(13, 10)
    """
    found: list[tuple[Fraction | None, int]] = []
    overlapped = done = faster = 0
    for task in timed:
        for value, what in zip(task[1:], ("alone_ns", "took_ns", "overlapped_ns"), strict=True):
            check_ns(value, f"task {task.name!r:.100}: {what}")
        if task.overlapped_ns > task.took_ns:
            raise InputError(
                f"task {task.name!r:.100}: overlapped_ns {task.overlapped_ns} exceeds its length "
                f"{task.took_ns}"
            )
        if not task.overlapped_ns:
            continue
        work = task.alone_ns - (task.took_ns - task.overlapped_ns)
        factor = Fraction(task.overlapped_ns, work) if work > 0 else None
        found.append((factor, task.overlapped_ns))
        overlapped += task.overlapped_ns
        done += work
        faster += task.took_ns < task.alone_ns
    if not found:
        raise InputError("slowdown: no task overlapped communication, so nothing can be fitted")
    if done * MAX_FACTOR < overlapped:
        raise InputError("slowdown: the tasks got next to nothing done beside communication")
    low, high = _middle_half(found, overlapped)
    factor = max(Fraction(1), Fraction(overlapped, done))
    return SlowdownFit(factor, len(found), overlapped, low or factor, high, faster)


def _middle_half(
    found: list[tuple[Fraction | None, int]], overlapped: int
) -> tuple[Fraction | None, Fraction | None]:
    """Return the quartiles of the factors, weighted by time; no work done counts as the largest."""
    ordered = sorted(found, key=lambda pair: (pair[0] is None, pair[0] or 0))
    quartiles: list[Fraction | None] = []
    for share in (1, 3):
        seen = 0
        for factor, time in ordered:
            seen += time
            if 4 * seen >= share * overlapped:
                quartiles.append(factor)
                break
    return quartiles[0], quartiles[1]

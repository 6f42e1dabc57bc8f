"""Where a rank's time went: computation, communication, what of it was hidden, copies, idle.

The input is neutral: a device's activities, each with a sort and times. Readers make it from
whatever they read (see :mod:`commsched.problems.breakdown.breakdown_trace`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate

from commsched.models.errors import InputError
from commsched.models.exposure import merge_intervals
from commsched.problems.recorded import ImportReport


class Sort(StrEnum):
    """What an activity is."""

    COMPUTATION = "computation"
    COLLECTIVE = "collective"
    COPY = "copy"


@dataclass(slots=True)
class Activity:
    """Something that ran on a device.

    Attributes
    ----------
    sort
        What it is.
    start, end
        When it ran, in nanoseconds on the recording's clock.
    stream
        The stream, or the thread on a processor, that ran it.
    launched
        When the processor launched it, on the same clock; None if that was not recorded.
    kind
        A collective's kind; a word of the recording where it is none of
        :data:`~commsched.models.collectives.KINDS`, empty if unknown.
    bytes
        A collective's size as nccl-tests counts it; None if unknown.
    """

    sort: Sort
    start: int
    end: int
    stream: str = ""
    launched: int | None = None
    kind: str = ""
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StepWindow:
    """A recorded step: what the processor launched from ``start`` to before ``end`` is its own."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """What ran on one device of one rank.

    Attributes
    ----------
    source
        The file's name.
    rank
        The rank; None if that was not recorded.
    device
        The device's name in the recording.
    activities
        In any order.
    report
        What was read of the file, kept, dropped and assumed.
    steps
        The recorded steps, rising.
    notes
        What a reader of the figures must know.
    """

    source: str
    rank: int | None
    device: str
    activities: Sequence[Activity]
    report: ImportReport
    steps: Sequence[StepWindow] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def not_launched(self) -> int:
        """How many activities have no recorded launch: most were launched before the recording."""
        return sum(activity.launched is None for activity in self.activities)

    def of_step(self, number: int) -> DeviceWork:
        """Return only what was launched in one step.

        Raises
        ------
        InputError
            If the recording does not have the step, or nothing ran that it launched.
        """
        window = next((step for step in self.steps if step.number == number), None)
        if window is None:
            have = ", ".join(str(step.number) for step in self.steps)
            have = f"has {have[:200]}" if have else "has no ProfilerStep"
            raise InputError(f"{self.source}: step {number} is not in the recording, which {have}")
        own = [
            activity
            for activity in self.activities
            if activity.launched is not None and window.start <= activity.launched < window.end
        ]
        if not own:
            raise InputError(
                f"{self.source}: nothing ran on device {self.device} that step {number} launched"
            )
        return replace(self, activities=own)

    def by_step(self) -> list[tuple[int, DeviceWork]]:
        """Return each step's number and work; steps that launched nothing are left out.

        Raises
        ------
        InputError
            If no step launched anything.
        """
        starts = [step.start for step in self.steps]
        own: dict[int, list[Activity]] = {step.number: [] for step in self.steps}
        for activity in self.activities:
            time = activity.launched
            at = -1 if time is None else bisect_right(starts, time) - 1
            if time is not None and at >= 0 and time < self.steps[at].end:
                own[self.steps[at].number].append(activity)
        found = [(number, replace(self, activities=part)) for number, part in own.items() if part]
        if not found:
            raise InputError(
                f"{self.source}: nothing ran on device {self.device} that a recorded step launched"
            )
        return found

    def launched_only(self) -> DeviceWork:
        """Return only what has a recorded launch.

        Raises
        ------
        InputError
            If nothing has.
        """
        own = [activity for activity in self.activities if activity.launched is not None]
        if not own:
            raise InputError(f"{self.source}: no launch was recorded, so none can be told apart")
        return replace(self, activities=own)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where a device's time went; ``computation + exposed + copies + idle = span``.

    Where several things ran at once, computation counts before communication, and communication
    before copies. All times are unions in nanoseconds: two kernels at once count once.

    Attributes
    ----------
    start_ns, span_ns
        When the first activity began, and from there to the end of the last one.
    computation_ns
        Something computed.
    communication_ns
        A collective ran.
    overlap_ns
        A collective ran while something computed: communication that is hidden.
    exposed_ns
        A collective ran while nothing computed.
    memory_ns
        A copy or a memset ran.
    copies_ns
        A copy or a memset ran, and nothing else.
    idle_ns
        Nothing ran.
    """

    start_ns: int
    span_ns: int
    computation_ns: int
    communication_ns: int
    overlap_ns: int
    exposed_ns: int
    memory_ns: int
    copies_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class CollectiveRun:
    """A collective that ran, and how long it did while nothing computed on its device."""

    activity: Activity
    exposed_ns: int


def break_down(activities: Sequence[Activity]) -> Breakdown:
    """Return where a device's time went.

    Raises
    ------
    InputError
        If there is no activity, or one ends before it starts.

    Examples
    --------
    >>> found = break_down([
    ...     Activity(Sort.COMPUTATION, 0, 100),
    ...     Activity(Sort.COLLECTIVE, 80, 150),
    ...     Activity(Sort.COPY, 140, 160),
    ...     Activity(Sort.COMPUTATION, 190, 200)])
    >>> found.computation_ns, found.communication_ns, found.overlap_ns, found.exposed_ns
    (110, 70, 20, 50)
    >>> found.copies_ns, found.idle_ns, found.span_ns
    (10, 30, 200)
    """
    if not activities:
        raise InputError("breakdown: nothing ran")
    computing = _busy(activities, Sort.COMPUTATION)
    communicating = _busy(activities, Sort.COLLECTIVE)
    copying = _busy(activities, Sort.COPY)
    either = merge_intervals([*computing, *communicating])
    computation, communication = _length(computing), _length(communicating)
    busy = _length(merge_intervals([*either, *copying]))
    start = min(activity.start for activity in activities)
    span = max(activity.end for activity in activities) - start
    exposed = _length(either) - computation
    return Breakdown(
        start_ns=start,
        span_ns=span,
        computation_ns=computation,
        communication_ns=communication,
        overlap_ns=communication - exposed,
        exposed_ns=exposed,
        memory_ns=_length(copying),
        copies_ns=busy - computation - exposed,
        idle_ns=span - busy,
    )


def collective_runs(activities: Sequence[Activity]) -> list[CollectiveRun]:
    """Return the collectives in the order in which they started.

    Where two ran at once, both are exposed: the sum is then more than the breakdown's time.

    Examples
    --------
    >>> [run.exposed_ns for run in collective_runs([
    ...     Activity(Sort.COMPUTATION, 0, 100), Activity(Sort.COLLECTIVE, 80, 150)])]
    [50]
    """
    computing = _busy(activities, Sort.COMPUTATION)
    starts = [start for start, _ in computing]
    before = [0, *accumulate(end - start for start, end in computing)]

    def computed(time: int) -> int:
        """Return how much was computed until a time."""
        at = bisect_right(starts, time)
        if at == 0:
            return 0
        start, end = computing[at - 1]
        return before[at - 1] + min(time, end) - start

    runs = sorted(
        (activity for activity in activities if activity.sort is Sort.COLLECTIVE),
        key=lambda activity: (activity.start, activity.end),
    )
    return [
        CollectiveRun(run, run.end - run.start - (computed(run.end) - computed(run.start)))
        for run in runs
    ]


def _busy(activities: Iterable[Activity], sort: Sort) -> list[tuple[int, int]]:
    return merge_intervals((one.start, one.end) for one in activities if one.sort is sort)


def _length(merged: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in merged)

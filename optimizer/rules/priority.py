"""Priority schedulers: a queue of ready pieces on each channel, and a window of pieces in flight.

ByteScheduler, BytePS and P3 decide at run time what to send next. :func:`run` plays the whole step, with
the evaluator's semantics, under such a scheduler and returns the order of launches that it takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from commsched.models import Bucket, Chunk, Compute, Plan, Problem
from commsched.models.dtypes import ITEM_BYTES, elements
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.knob import Knob, Setting, pieces
from commsched.models.units import check_bytes
from commsched.optimizer.rules.waiting import MostUrgent, MostUrgentFitting, Urgency

MAX_PIECES = 250_000
"""More pieces than that are refused: to play them would take more than a few seconds."""
PIECE_COSTS = 8
"""A piece takes so many times longer to play than a bucket of a sketch."""


class Part(NamedTuple):
    """A piece of a collective.

    Attributes
    ----------
    chunk
        Its bytes.
    load
        What it takes out of the window, in the unit in which the scheduler counts.
    """

    chunk: Chunk
    load: int


class Scheduler(NamedTuple):
    """How a scheduler decides.

    Attributes
    ----------
    parts
        For each collective its pieces.
    urgency
        From the time when a piece is ready, its collective's position and its number there.
    credit
        The window of a channel, in the unit of ``Part.load``; None: no limit.
    fits
        Whether a piece must fit into the credit that is left; one that does not is passed over.
        Then urgency must not depend on the time. Else the most urgent goes as long as any credit
        is left, so that it may overshoot.
    """

    parts: Sequence[Sequence[Part]]
    urgency: Callable[[int, int, int], Urgency]
    credit: int | None
    fits: bool = False


class Run(NamedTuple):
    """What :func:`run` saw.

    Attributes
    ----------
    plan
        One piece a launch, in the order in which the schedulers committed them.
    launches
        Start and end of each launch, in nanoseconds, in the plan's order.
    end_ns
        When each compute task ended that waits for a collective.
    """

    plan: Plan
    launches: list[tuple[int, int]]
    end_ns: dict[str, int]


def run(problem: Problem, scheduler: Scheduler) -> Run:
    """Play a step whose channels each have such a scheduler.

    A collective's pieces join its channel's queue when all that it waits for has ended. At every
    instant, after everything that ends or becomes ready at it, each scheduler commits pieces for as
    long as its window admits one; the channel sends what was committed in that order, one piece a
    launch; a piece leaves the window when it has been sent.

    An idle channel has an empty window, so no launch waits for anything but its ready time and the
    launch before it: the plan, evaluated, gives the same times.
    """
    step = _Step(problem, scheduler)
    step.run()
    return Run(step.plan(), step.launches, step.end_ns)


class _Channel:
    """A channel's credit that is left, ready pieces, and committed launches."""

    def __init__(self, credit: int, waiting: MostUrgent | MostUrgentFitting) -> None:
        self.credit = credit
        self.waiting = waiting
        self.committed: deque[int] = deque()
        self.busy = False


class _Step:
    def __init__(self, problem: Problem, scheduler: Scheduler) -> None:
        self.problem = problem
        self.scheduler = scheduler
        total = sum(part.load for parts in scheduler.parts for part in parts)
        credit = total + 1 if scheduler.credit is None else scheduler.credit
        names = [problem.channel(key) for key in problem.keys]
        self.channels = {
            name: _Channel(credit, self._waiting(names, name)) for name in sorted(set(names))
        }
        self.channel_of = [self.channels[name] for name in names]
        self.unsent = [len(parts) for parts in scheduler.parts]
        self.order: list[tuple[int, int]] = []  # position and piece of each launch
        self.launches: list[tuple[int, int]] = []
        self.end_ns: dict[str, int] = {}
        self.events: list[tuple[int, int, Callable[[int, int | str], None], int | str]] = []
        self.count = 0
        self.open: dict[str, int] = {}
        self.earliest: dict[str, int] = {}
        self.followers: dict[str, list[str]] = {}
        self.duration_ns: dict[str, int] = {}
        if problem.settled:
            for position, ready in enumerate(problem.ready_ns):
                self._at(ready, self._collective_ready, position)
        else:
            self._link()

    def _waiting(self, names: Sequence[str], name: str) -> MostUrgent | MostUrgentFitting:
        if not self.scheduler.fits:
            return MostUrgent()
        return MostUrgentFitting(
            self.scheduler.urgency(0, position, number)
            for position, parts in enumerate(self.scheduler.parts)
            if names[position] == name
            for number in range(len(parts))
        )

    def _link(self) -> None:
        """Find what waits for what; tasks that wait for no collective run at their nominal times."""
        problem = self.problem
        for task in problem.tasks:
            if task.name not in problem.waiting and task.name not in problem.index:
                continue
            if isinstance(task, Compute):
                self.duration_ns[task.name] = task.duration_ns
            self.open[task.name] = self.earliest[task.name] = 0
            for before in problem.graph.pred[task.name]:
                if before in problem.index or before in problem.waiting:
                    self.open[task.name] += 1
                    self.followers.setdefault(before, []).append(task.name)
                else:
                    ended = problem.nominal.end_ns[before]
                    self.earliest[task.name] = max(self.earliest[task.name], ended)
        for name, waits in self.open.items():
            if not waits:
                self._release(name, 0)

    def _at(self, when: int, happens: Callable[[int, int | str], None], what: int | str) -> None:
        self.count += 1
        heappush(self.events, (when, self.count, happens, what))

    def _release(self, name: str, now: int) -> None:
        start = max(now, self.earliest[name])
        if name in self.duration_ns:
            self._at(start + self.duration_ns[name], self._compute_ended, name)
        else:
            self._at(start, self._collective_ready, self.problem.index[name])

    def _ended(self, name: str, now: int) -> None:
        for follower in self.followers.get(name, ()):
            self.open[follower] -= 1
            if not self.open[follower]:
                self._release(follower, now)

    def _compute_ended(self, now: int, what: int | str) -> None:
        name = str(what)
        self.end_ns[name] = now
        self._ended(name, now)

    def _collective_ready(self, now: int, what: int | str) -> None:
        position = int(what)
        waiting = self.channel_of[position].waiting
        for number, part in enumerate(self.scheduler.parts[position]):
            urgency = self.scheduler.urgency(now, position, number)
            waiting.put(urgency, (position, number), part.load)

    def _sent(self, now: int, what: int | str) -> None:
        position, number = self.order[int(what)]
        channel = self.channel_of[position]
        channel.credit += self.scheduler.parts[position][number].load
        channel.busy = False
        self.unsent[position] -= 1
        if not self.unsent[position]:
            self._ended(self.problem.names[position], now)

    def _commit(self, channel: _Channel) -> None:
        while (piece := channel.waiting.take(channel.credit)) is not None:
            position, number = piece
            channel.credit -= self.scheduler.parts[position][number].load
            channel.committed.append(len(self.order))
            self.order.append(piece)
            self.launches.append((0, 0))

    def _start(self, channel: _Channel, now: int) -> None:
        if channel.busy or not channel.committed:
            return
        launch = channel.committed.popleft()
        position, number = self.order[launch]
        begin, end = self.scheduler.parts[position][number].chunk
        cost = self.problem.cost(self.problem.keys[position])
        self.launches[launch] = (now, now + cost.ns(end - begin))
        channel.busy = True
        self._at(self.launches[launch][1], self._sent, launch)

    def run(self) -> None:
        """Play the step."""
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, happens, what = heappop(self.events)
                happens(now, what)
            for channel in self.channels.values():
                self._commit(channel)
                self._start(channel, now)

    def plan(self) -> Plan:
        """Return the launches as they were committed."""
        return Plan(tuple(self._bucket(*piece) for piece in self.order))

    def _bucket(self, position: int, number: int) -> Bucket:
        parts = self.scheduler.parts[position]
        chunks = (parts[number].chunk,) if len(parts) > 1 else ()
        return Bucket((self.problem.names[position],), chunks=chunks)


class Played:
    """What a scheduler decides, before it becomes a plan; see ``Decision`` in ``rules.rows``."""

    def __init__(self, problem: Problem, scheduler: Scheduler) -> None:
        self.quick = not problem.limited_pools  # memory can hold a launch back
        self._step = _Step(problem, scheduler)
        self._step.run()
        # A piece's bytes tell it apart, too: its number says nothing about where it was cut.
        self.cuts = [(k, scheduler.parts[k][number].chunk) for k, number in self._step.order]
        self.cost = PIECE_COSTS * len(self.cuts)

    def makespan_ns(self) -> int:
        """Return the makespan of the plan."""
        step = self._step
        ends = (end for _, end in step.launches)
        return max(step.problem.compute_ns, *ends, *step.end_ns.values())

    def plan(self) -> Plan:
        """Return the plan."""
        return self._step.plan()


def at_least_one(value: Setting, what: str) -> None:
    """Raise InputError if a plain number is no whole number of at least 1."""
    if not isinstance(value, Knob) and check_bytes(value, what) < 1:
        raise InputError(f"{what}: {value} must be at least 1")


def plain(value: Setting, what: str) -> int:
    """Return a setting as a number.

    Raises
    ------
    InputError
        If it is no whole number of at least 1.
    NotApplicableError
        If it is a knob: every value cuts at other places, so there are as many plans as values.
    """
    if isinstance(value, Knob):
        raise NotApplicableError(
            f"{what}: the pieces' boundaries move with every value, so that not all values can be "
            "visited; try some"
        )
    at_least_one(value, what)
    return int(value)


def layer_numbers(problem: Problem) -> list[int]:
    """Return for each collective the number of its layer, the one nearest the input having 0.

    Backward visits layers in reverse, so reverse ready order stands in for forward order.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> layer_numbers(GradientProblem([Gradient("b", 1, 1), Gradient("a", 1, 2)], AlphaBeta(1, 1)))
    [1, 0]
    """
    numbers = [0] * len(problem.names)
    reduced = (k for k in reversed(problem.ready_order) if problem.keys[k].kind == "allreduce")
    for number, position in enumerate(reduced):
        numbers[position] = number
    return numbers


def beside_others(problem: Problem, scheduler: Scheduler) -> Scheduler:
    """Return a scheduler of a step's all-reduces that lets everything else pass by.

    Other collectives are sent whole as soon as they are ready; where they share a channel with the
    all-reduces, they come before what is not committed yet.
    """
    place = {
        position: number
        for number, position in enumerate(problem.ready_order)
        if problem.keys[position].kind != "allreduce"
    }
    if not place:
        return scheduler
    parts = list(scheduler.parts)
    for position in place:
        parts[position] = [Part(Chunk(0, problem.bytes[position]), 0)]

    def urgency(now: int, position: int, piece: int) -> Urgency:
        if position in place:
            return (-1, place[position])
        return scheduler.urgency(now, position, piece)

    return scheduler._replace(parts=parts, urgency=urgency)


def counted(totals: Iterable[int], size: Setting) -> list[int]:
    """Return into how many pieces of at most ``size`` each total is cut.

    Raises
    ------
    NotApplicableError
        If they are more than :data:`MAX_PIECES`.
    """
    counts = [pieces(total, size) for total in totals]
    if sum(counts) > MAX_PIECES:
        shown = size.value if isinstance(size, Knob) else size
        raise NotApplicableError(
            f"pieces of {shown} are too small: there would be {sum(counts):,}, which takes long "
            f"to play (at most {MAX_PIECES:,})"
        )
    return counts


def of_elements(problem: Problem, ends: Sequence[Sequence[int]]) -> list[list[Part]]:
    """Return pieces that end after so many elements of their all-reduce; their load is elements."""
    parts: list[list[Part]] = []
    for size, key, after in zip(problem.bytes, problem.keys, ends, strict=True):
        if key.kind != "allreduce":
            parts.append([])
            continue
        item = ITEM_BYTES[key.dtype]
        begins = [0, *after[:-1]]
        parts.append(
            [
                Part(Chunk(begin * item, min(end * item, size)), end - begin)
                for begin, end in zip(begins, after, strict=True)
            ]
        )
    return parts


def element_counts(problem: Problem) -> list[int]:
    """Return how many elements each all-reduce has; 0 for other collectives."""
    return [
        elements(size, key.dtype) if key.kind == "allreduce" else 0
        for size, key in zip(problem.bytes, problem.keys, strict=True)
    ]


def cut_ends(total: int, size: int) -> list[int]:
    """Return where pieces of exactly ``size`` and a rest end.

    Examples
    --------
    >>> cut_ends(10, 4), cut_ends(0, 4)
    ([4, 8, 10], [0])
    """
    return [*range(size, total, size), total]

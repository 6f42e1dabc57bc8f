"""Which movable tasks fill which pauses of a stream: a search that is a bound, too.

Pauses are filled one after another. A state says what is pending and before when nothing on the stream
can start: the end of its last fixed task, and what lags after earlier tasks still demand. To place the
next fixed task k some pending tasks X run in the pause before it; k then starts at the latest of its
head, what lags demand, and the end of the task before plus the length of X. After the last fixed task
what is pending runs, that with the longest tail first. In every plan each movable task runs in some
pause, and all that is counted are paths, and tasks of a stream that run one at a time; so the least
end over all fillings bounds the makespan.

**Fillings that need not be looked at.** Let x in X have no lags, let the rest of X last until k may
start anyway, and let what follows the next fixed task be no shorter than x's tail. Then x can as well
run in the next pause: k starts earlier by the length of x, the next fixed task when it did, and x
ends before that one starts. Where one of those that may run demands something of k itself, this is not
used. Of two states that have the same pending the one that is nowhere earlier is dropped.

**What a state leads to at least.** All that is left must run on the stream, and it pauses by what
cannot be filled: a task of length p fills at most min(p, g) of a pause g. States from which that is no
better than a known plan are dropped, and of more states than may be kept those with the largest of
these bounds; the bound of the search is then no more than the least of theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from commsched.optimizer.pauses import Filler, Stream

MOST_FILLINGS = 400
"""Of a single state in a single pause no more fillings are looked at."""
ORDERS = 6
"""How many orders are returned at most."""
_BLINK = 64
_NEVER = 1 << 62

Counts = tuple[int, ...]


class _State(NamedTuple):
    """What is known once a fixed task is placed.

    ``time`` is its end, ``demands`` what later fixed tasks wait for, by number, ``end`` before when the
    step does not end, ``pending`` how many of each active kind are left, ``bound`` what the state leads
    to at least, ``path`` how it came about.
    """

    bound: int
    time: int
    end: int
    demands: tuple[tuple[int, int], ...]
    pending: Counts
    path: tuple[object, Counts] | None


class Filled(NamedTuple):
    """What a search found.

    Attributes
    ----------
    bound
        No plan that is better than the one known has a smaller makespan, in nanoseconds.
    complete
        Whether nothing was dropped for want of room or time.
    orders
        Orders of the stream's tasks, those that promise most first.
    fillings
        How many were looked at.
    """

    bound: int
    complete: bool
    orders: list[tuple[str, ...]]
    fillings: int


class _Pause(NamedTuple):
    """What happens before and in a pause.

    ``active`` are the numbers of the kinds that may run in it, ``kinds`` these, ``carry`` for each its
    place among those of the pause before or -1, ``arrived`` how many can run from here on. ``idle`` is
    how long the stream pauses at least from here on but for what is pending, ``cover`` how much of it
    one pending task of each kind may fill, ``work`` the length of all that can only run later on.
    ``free`` says of which kinds a task may as well run in the next pause.
    """

    active: Counts
    kinds: tuple[Filler, ...]
    carry: Counts
    arrived: Counts
    idle: int
    cover: Counts
    work: int
    free: tuple[bool, ...]


class PauseSearch:
    """The search on one stream.

    Parameters
    ----------
    stream
        The stream.

    Examples
    --------
    Two pauses of 20, and two tasks of 25 that may fill them: each makes the stream 5 late.

    >>> fillers = (Filler(25, 2, (), 0, ((1, "x"), (1, "y"))),)
    >>> stream = Stream(("a", "b", "c"), (10, 10, 10), (0, 0, 0), (0, 0, 0),
    ...                 (((1, 20),), ((2, 20),), ()), fillers, 0)
    >>> PauseSearch(stream).run(10**9, 100, float("inf"))[:3]
    (80, True, [('a', 'x', 'b', 'y', 'c')])
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.count = len(stream.fixed)
        self.least_tail = min(stream.tail[-1], *(f.tail for f in stream.fillers))
        self.rest = [0] * (self.count + 1)
        for k in range(self.count - 1, -1, -1):
            self.rest[k] = self.rest[k + 1] + stream.length[k]
        self.pauses = self._pauses()

    def _pauses(self) -> list[_Pause]:
        stream, count = self.stream, self.count
        gap = [stream.head[0]]
        gap += [next((ns for to, ns in stream.lags[k] if to == k + 1), 0) for k in range(count - 1)]
        first = [filler.members[0][0] for filler in stream.fillers]
        arrivals: list[dict[int, int]] = [{} for _ in range(count + 1)]
        for kind, filler in enumerate(stream.fillers):
            for early, _ in filler.members:
                arrivals[early][kind] = arrivals[early].get(kind, 0) + 1
        # The longest pause from each on, for kinds that may run anywhere later.
        longest = [0] * (count + 1)
        for k in range(count - 1, -1, -1):
            longest[k] = max(gap[k], longest[k + 1])

        def cover(kind: int, k: int) -> int:
            filler = stream.fillers[kind]
            most = longest[k] if filler.late >= count else max(gap[k : filler.late + 1], default=0)
            return min(filler.length, most)

        idle = [0] * (count + 1)
        work = [0] * (count + 1)
        for k in range(count, -1, -1):
            later = work[k + 1] if k < count else 0
            work[k] = later + sum(c * stream.fillers[i].length for i, c in arrivals[k].items())
            if k < count:
                filled = sum(c * cover(i, k) for i, c in arrivals[k].items())
                idle[k] = max(0, gap[k] - filled + idle[k + 1])
        found: list[_Pause] = []
        before: dict[int, int] = {}
        for k in range(count + 1):
            active = [i for i, f in enumerate(stream.fillers) if first[i] <= k <= f.late]
            kinds = tuple(stream.fillers[i] for i in active)
            # Where one of them holds up the next fixed task, others beside it may be needed.
            plain = not any(to == k for kind in kinds for to, _ in kind.lags)
            found.append(
                _Pause(
                    tuple(active),
                    kinds,
                    tuple(before.get(i, -1) for i in active),
                    tuple(arrivals[k].get(i, 0) for i in active),
                    idle[k],
                    tuple(cover(i, k) for i in active),
                    work[k],
                    tuple(plain and self._may_wait(kind, k) for kind in kinds),
                )
            )
            before = {i: place for place, i in enumerate(active)}
        return found

    def _may_wait(self, filler: Filler, k: int) -> bool:
        stream = self.stream
        return (
            k + 1 < self.count
            and filler.late > k
            and not filler.lags
            and filler.tail <= stream.length[k + 1] + stream.tail[k + 1]
        )

    def run(self, upper: int, width: int, until: float) -> Filled:
        """Search.

        Parameters
        ----------
        upper
            The makespan of a known plan: only better ones matter.
        width
            How many states are kept.
        until
            When to stop, on the clock of :func:`time.monotonic`.
        """
        upper += self.stream.extra
        self.fillings, self.dropped = 0, upper
        self.complete = True
        states = [_State(0, 0, 0, (), (), None)]
        for k in range(self.count):
            found: dict[tuple[Counts, Counts], list[_State]] = {}
            for number, state in enumerate(states):
                if number % _BLINK == 0 and time.monotonic() > until:
                    self._drop(state.bound for state in states)
                    return self._filled([])
                for new in self._place(state, k, upper):
                    kin = found.setdefault((new.pending, tuple(to for to, _ in new.demands)), [])
                    _keep(kin, new)
            states = [state for kin in found.values() for state in kin]
            if len(states) > width:
                states.sort(key=lambda state: (state.bound, state.time, state.end))
                self._drop(state.bound for state in states[width:])
                states = states[:width]
        return self._filled(states)

    def _drop(self, bounds: Iterator[int]) -> None:
        self.dropped = min(self.dropped, *bounds)
        self.complete = False

    def _filled(self, states: Sequence[_State]) -> Filled:
        ends = [(self._finish(state), number) for number, state in enumerate(states)]
        ends.sort()
        least = min([self.dropped, *(end for end, _ in ends)])
        orders = [self._order(states[number]) for _, number in ends[:ORDERS]]
        return Filled(least - self.stream.extra, self.complete, orders, self.fillings)

    def _place(self, state: _State, k: int, upper: int) -> Iterator[_State]:
        """Yield the states in which fixed task k is placed after one."""
        stream, pause, following = self.stream, self.pauses[k], self.pauses[k + 1]
        kinds, pending = pause.kinds, self._arrived(state, pause)
        ready = max([stream.head[k], state.time, *(ns for to, ns in state.demands if to == k)])
        waiting = [(to, ns) for to, ns in state.demands if to > k]
        surely = self.rest[k + 1] + following.work + self.least_tail
        covers = [0] * len(kinds)
        for there, place in enumerate(following.carry):
            if place >= 0:
                covers[place] = following.cover[there]
        for tried, (chosen, length) in enumerate(
            self._fillings(pending, kinds, pause.free, k, ready - state.time)
        ):
            if tried >= MOST_FILLINGS:
                self._drop(iter((state.bound,)))
                return
            self.fillings += 1
            start, end = max(ready, state.time + length), state.end
            demands = dict(waiting)
            for place, number in enumerate(chosen):
                if not number:
                    continue
                kind = kinds[place]
                alone = state.time + kind.length
                end = max(end, alone + kind.tail)
                for to, ns in kind.lags:
                    if to == k:
                        start = max(start, alone + ns)
                    elif to > k:
                        demands[to] = max(demands.get(to, 0), alone + ns)
            now = start + stream.length[k]
            end = max(end, now + stream.tail[k])
            for to, ns in stream.lags[k]:
                demands[to] = max(demands.get(to, 0), now + ns)
            left = tuple(a - b for a, b in zip(pending, chosen, strict=True))
            load, idle = 0, following.idle
            for number, kind, cover in zip(left, kinds, covers, strict=True):
                load += number * kind.length
                idle -= number * cover
            bound = max(end, now + surely + load + max(0, idle))
            if bound >= upper:
                continue
            real = tuple(sorted((to, ns) for to, ns in demands.items() if ns > now))
            yield _State(bound, now, end, real, left, (state.path, chosen))

    def _arrived(self, state: _State, pause: _Pause) -> Counts:
        """Return how many of each active kind are pending in a pause."""
        return tuple(
            (state.pending[place] if place >= 0 else 0) + new
            for place, new in zip(pause.carry, pause.arrived, strict=True)
        )

    def _fillings(
        self, pending: Counts, kinds: Sequence[Filler], free: Sequence[bool], k: int, gap: int
    ) -> Iterator[tuple[Counts, int]]:
        """Yield how many of each kind may run in pause k, and how long these take."""
        counts = [0] * len(pending)

        def choose(place: int, length: int, spare: int) -> Iterator[tuple[Counts, int]]:
            # Spare is the shortest of those chosen that might as well run later.
            if place == len(counts):
                yield tuple(counts), length
                return
            kind = kinds[place]
            least = pending[place] if kind.late == k else 0
            for number in range(least, pending[place] + 1):
                total = length + number * kind.length
                shortest = min(spare, kind.length) if free[place] and number else spare
                if total - shortest >= gap and shortest < _NEVER:
                    break
                counts[place] = number
                yield from choose(place + 1, total, shortest)
            counts[place] = 0

        return choose(0, 0, _NEVER)

    def _finish(self, state: _State) -> int:
        """Return before when the step does not end, whatever runs after the last fixed task."""
        pause = self.pauses[self.count]
        pending = self._arrived(state, pause)
        now, end = state.time, state.end
        last = list(zip(pause.kinds, pending, strict=True))
        for kind, number in sorted(last, key=lambda found: -found[0].tail):
            if number:
                now += number * kind.length
                end = max(end, now + kind.tail)
        return end

    def _order(self, state: _State) -> tuple[str, ...]:
        """Return the order of the stream that a state came from."""
        chosen: list[Counts] = []
        path: object = state.path
        while isinstance(path, tuple):
            path, counts = path
            chosen.append(counts)
        chosen.append(self._arrived(state, self.pauses[self.count]))
        chosen[:-1] = reversed(chosen[:-1])
        left = [list(filler.members) for filler in self.stream.fillers]
        order: list[str] = []
        for k, counts in enumerate(chosen):
            some = sorted(
                zip(self.pauses[k].active, counts, strict=True),
                key=lambda found: (
                    self.stream.fillers[found[0]].late,
                    -self.stream.fillers[found[0]].tail,
                ),
            )
            for kind, number in some:
                order += [name for _, name in left[kind][:number]]
                del left[kind][:number]
            if k < self.count:
                order.append(self.stream.fixed[k])
        return tuple(order)


def _keep(found: list[_State], new: _State) -> None:
    """Add a state to those with the same pending, of which none is nowhere earlier than another."""
    for other in found:
        if _no_later(other, new):
            return
    found[:] = [other for other in found if not _no_later(new, other)]
    found.append(new)


def _no_later(first: _State, second: _State) -> bool:
    return (
        first.time <= second.time
        and first.end <= second.end
        and all(a[1] <= b[1] for a, b in zip(first.demands, second.demands, strict=True))
    )

"""The exact plan of one channel where compute is slower while launches run.

Nothing waits for a collective here, so all compute advances together: by one unit of its own work a
nanosecond while the channel is idle, by ``1 / compute`` of one while a launch runs. Ready times and
the end of compute are places in that work. What the launches so far mean for those that follow is
therefore two numbers: the time at which the last one ended, and the *lag*, the time that compute has
lost by then. A state (how many gradients of each fusion key have been sent) keeps the pairs that no
other pair is at least as small as in both.

That is enough where overlap pays: where launches and compute at once get at least as much done as one
of them alone, ``1 / compute + 1 / launch >= 1``. A launch starts at ``s = max(time, lag + ready)``. If
compute goes on until its end, it takes ``launch * length`` and adds a share of that to the lag. Else
compute ends R = compute work left = (end - s + lag) after s in its own work, the launch ends at
``s + length + R compute (1 - 1 / launch)``, and that does not fall with s, nor with lag. By the same
argument nothing is gained by holding a launch back, which makes s larger and leaves the lag alone.
Where overlap does not pay, a plan that waits for compute to end can be better than all others; then
only the bound is proved.

Times are whole numbers in a unit in which everything that can occur is one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, product
from typing import NamedTuple

from commsched.models.slowdown import Slowdown
from commsched.optimizer.prefix import Chain

MAX_STEPS = 2_000_000
"""The search gives up after so many launches that it has tried."""
FEW = 8
"""The quick search keeps so many labels of a state."""


class Label(NamedTuple):
    """One way to have sent some gradients.

    Attributes
    ----------
    time
        When the last launch ended.
    lag
        What compute has lost by then; its work is ``time - lag``.
    before
        The label before its last launch; None at the start.
    launch
        That launch: chain number, first position, end position (exclusive).
    """

    time: int
    lag: int
    before: Label | None = None
    launch: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class SlowedPlan:
    """What the search found.

    Attributes
    ----------
    end_ns
        The makespan of the best plan that is known, compute included.
    buckets
        That plan in launch order: chain number, first position, end position (exclusive). None if
        it is the one that was known before.
    bound_ns
        No plan has a smaller makespan.
    """

    end_ns: Fraction
    buckets: list[tuple[int, int, int]] | None
    bound_ns: Fraction


class Speeds:
    """How launches and compute hold each other up, in whole numbers.

    Parameters
    ----------
    slowdown
        The factors.
    compute_ns
        When compute ends alone.
    """

    def __init__(self, slowdown: Slowdown, compute_ns: int) -> None:
        compute, launch = slowdown.factors
        self.p, self.q = compute.numerator, compute.denominator
        self.a, self.b = launch.numerator, launch.denominator
        self.unit = self.p * self.q * self.a * self.b
        self.all_work = compute_ns * self.unit

    def lost(self, length: int) -> int:
        """Return what compute loses while launches run that take so long alone, at most their length.

        The length is a whole number of nanoseconds.
        """
        return min(length, length * self.a * (self.p - self.q) // (self.b * self.p))

    def run(self, time: int, lag: int, ready: int, length: int) -> tuple[int, int]:
        """Return time and lag after a launch; ready time and length are in the small unit, too."""
        time = max(time, lag + ready)
        left = self.all_work - time + lag
        if left <= 0:
            return time + length, time + length - self.all_work
        whole = length * self.a // self.b
        gain = whole * self.q // self.p
        if gain <= left:
            return time + whole, lag + whole - gain
        # Compute ends during the launch, which goes on at full speed.
        until = left * self.p // self.q
        end = time + until + length - until * self.b // self.a
        return end, end - self.all_work


def overlap_pays(slowdown: Slowdown) -> bool:
    """Return whether launches and compute at once get as much done as one of them alone.

    Examples
    --------
    >>> overlap_pays(Slowdown(9)), overlap_pays(Slowdown(2, 2)), overlap_pays(Slowdown(3, 2))
    (True, True, False)
    """
    compute, launch = slowdown.factors
    return 1 / compute + 1 / launch >= 1


def best_slowed_plan(
    chains: Sequence[Chain], slowdown: Slowdown, compute_ns: int, known_ns: Fraction
) -> SlowedPlan:
    """Return the best plan of one channel in scope ``in-order``, as far as it is found and proved.

    Parameters
    ----------
    chains
        One a fusion key.
    slowdown
        The factors.
    compute_ns
        When compute ends if nothing slows it.
    known_ns
        The makespan of a plan that is known; only better ones are looked for.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> chains = [Chain([10, 20], [5, 5], AlphaBeta(0.003, 1))]
    >>> found = best_slowed_plan(chains, Slowdown(2), 20, Fraction(99))
    >>> found.buckets, found.end_ns == found.bound_ns == 32
    ([(0, 0, 1), (0, 1, 2)], True)
    """
    speeds = Speeds(slowdown, compute_ns)
    search = _Search(chains, speeds)
    below = math.ceil(known_ns * speeds.unit)
    buckets = None
    least = max(search.bounds((0,) * len(chains)))
    # A quick search that keeps few labels gives the thorough one less to look at.
    for thin in (_few, _all):
        try:
            label = search.best(below, thin)
        except OverflowError:
            break
        if label is not None:
            below, buckets = max(label.time, label.lag + speeds.all_work), _launches(label)
    else:
        least = below if overlap_pays(slowdown) else least
    end = known_ns if buckets is None else Fraction(below, speeds.unit)
    return SlowedPlan(end, buckets, min(end, Fraction(least, speeds.unit)))


State = tuple[int, ...]
Thin = Callable[[list[Label]], list[Label]]


class _Search:
    """The search over states, in the small unit of time."""

    def __init__(self, chains: Sequence[Chain], speeds: Speeds) -> None:
        self.speeds, unit = speeds, speeds.unit
        self.shape = tuple(len(chain.sizes) for chain in chains)
        self.sent = [list(accumulate(chain.sizes, initial=0)) for chain in chains]
        self.ready = [[time * unit for time in chain.ready_ns] for chain in chains]
        self.costs = [chain.cost for chain in chains]
        self._lengths: list[dict[int, int]] = [{} for _ in chains]
        # By chain and position: the least time that all launches from there on take together ...
        self.rest = [
            [
                unit * math.ceil(cost.at_least_ns(sent[-1] - before)) if sent[place:-1] else 0
                for place, before in enumerate(sent)
            ]
            for cost, sent in zip(self.costs, self.sent, strict=True)
        ]
        # ... and the latest that any later gradient's ready time plus what must follow it comes to.
        self.late: list[list[int]] = []
        for ready, rest in zip(self.ready, self.rest, strict=True):
            late = [speeds.all_work]
            for time, left in zip(reversed(ready), reversed(rest[:-1]), strict=True):
                late.append(max(late[-1], time + left - speeds.lost(left)))
            self.late.append(late[::-1])

    def length(self, k: int, begin: int, end: int) -> int:
        """Return how long a launch takes alone."""
        size = self.sent[k][end] - self.sent[k][begin]
        known = self._lengths[k].get(size)
        if known is None:
            known = self._lengths[k][size] = self.costs[k].ns(size) * self.speeds.unit
        return known

    def bounds(self, state: State) -> tuple[int, int]:
        """Return by how much a makespan exceeds a label's time, and its lag, at least.

        What is sent before a gradient is ready slows compute down, so that it is ready later; the
        gradient and what comes after it in its chain must still be sent then. What is sent in all
        takes at least ``rest``. A bound on the makespan is what the launches before slow compute,
        plus the ready time, plus the length of those after; it is least when all that may be sent
        before is, for a launch slows compute by less than its length (or else by just that).
        """
        rest = sum(left[place] for left, place in zip(self.rest, state, strict=True))
        late = max(late[place] for late, place in zip(self.late, state, strict=True))
        return rest, late + self.speeds.lost(rest)

    def best(self, below: int, thin: Thin) -> Label | None:
        """Return the label of the best plan with a makespan below a limit, if there is one.

        Parameters
        ----------
        below
            The limit.
        thin
            Which labels of a state's to go on with. With all of them it is proved if there is none.

        Raises
        ------
        OverflowError
            If the search would take more than ``MAX_STEPS``.
        """
        run, all_work = self.speeds.run, self.speeds.all_work
        labels = {(0,) * len(self.shape): _Front([Label(0, 0)])}
        steps = 0
        for state in product(*(range(length + 1) for length in self.shape)):
            front = labels.pop(state, None)
            if front is None:
                continue
            if state == self.shape:
                return min(front.labels, key=lambda label: max(label.time, label.lag + all_work))
            moves = [
                (k, end, (*state[:k], end, *state[k + 1 :]))
                for k, length in enumerate(self.shape)
                for end in range(state[k] + 1, length + 1)
            ]
            kept = thin(front.labels)
            steps += len(moves) * len(kept)
            if steps > MAX_STEPS:
                raise OverflowError
            for k, end, after in moves:
                ready, length = self.ready[k][end - 1], self.length(k, state[k], end)
                rest, late = self.bounds(after)
                launch = (k, state[k], end)
                for label in kept:
                    time, lag = run(label.time, label.lag, ready, length)
                    # Where nothing is left to send this is the makespan.
                    if max(time + rest, lag + late) < below:
                        if after not in labels:
                            labels[after] = _Front([])
                        labels[after].add(Label(time, lag, label, launch))
        return None


def _few(labels: list[Label]) -> list[Label]:
    """Return few of some labels, the first and the last among them."""
    if len(labels) <= FEW:
        return labels
    return [labels[number * (len(labels) - 1) // (FEW - 1)] for number in range(FEW)]


def _all(labels: list[Label]) -> list[Label]:
    return labels


class _Front:
    """Labels of one state of which none is at least as small as another in both, by time."""

    def __init__(self, labels: list[Label]) -> None:
        self.labels = labels
        self.times = [label.time for label in labels]

    def add(self, label: Label) -> None:
        """Add a label unless another is as small; drop those that are not smaller than it."""
        place = bisect_right(self.times, label.time)
        if place and self.labels[place - 1].lag <= label.lag:
            return
        first = place
        while first and self.times[first - 1] == label.time:
            first -= 1
        last = place
        while last < len(self.labels) and self.labels[last].lag >= label.lag:
            last += 1
        self.labels[first:last] = [label]
        self.times[first:last] = [label.time]


def _launches(label: Label | None) -> list[tuple[int, int, int]]:
    launches = []
    while label is not None and label.before is not None:
        launches.append(label.launch)
        label = label.before
    return launches[::-1]

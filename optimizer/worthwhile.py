"""Values of a knob that are too small to be worth a look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from commsched.models import Problem
from commsched.models.step import FusionKey

SURELY = 1 - 1e-9
"""Sums of floating-point numbers are no more than this much too large."""
MOST_CHAINS = 64
"""So many fusion keys of a channel are counted, those of the most collectives."""


def least_worthwhile(
    problem: Problem,
    limit_ns: int,
    unit_bytes: int,
    *,
    begin: Callable[[Sequence[int]], int] | None = None,
    cuts: bool = False,
    largest: Mapping[FusionKey, int] | None = None,
) -> int:
    """Return a value of a rule's knob below which the makespan surely exceeds a limit.

    With the value v a bucket has at most v u bytes more than the largest part that is not cut. So
    what is ready no earlier than some collective, S bytes of a fusion key whose largest part has s,
    takes at least S / (v u + s) launches; a rule that cuts makes at least b / (v u) of each b
    bytes. None of them starts before that collective is ready, and those of one channel run one after
    the other: each pays a minorant's intercept, and all bytes pay its slope.

    Parameters
    ----------
    problem
        The step.
    limit_ns
        The limit in nanoseconds.
    unit_bytes
        The most bytes that one unit of the knob stands for: u.
    begin
        From a fusion key's sizes how many of its first members the value has no say in.
    cuts
        Whether the rule cuts all-reduces into pieces of at most the knob's size.
    largest
        The bytes of each fusion key's largest part, where that is no single collective.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient(f"g{k}", 1000, ready_ns=0) for k in range(8)], AlphaBeta(1, 1))
    >>> least_worthwhile(problem, 12_000, 1)  # four launches: buckets of at least 2000 bytes
    1000
    """
    channels: dict[str, list[_Chain]] = {}
    for key, whole in problem.chains.items():
        first = begin([problem.bytes[k] for k in whole]) if begin else 0
        if first < len(whole):
            chain = _Chain(problem, key, whole[first:], cuts and key.kind == "allreduce")
            chain.part = (largest or {}).get(key, chain.part)
            channels.setdefault(problem.channel(key), []).append(chain)
    sums = [_Channel(chains, limit_ns) for chains in channels.values()]
    least, most = 1, max(1, sum(problem.bytes))
    while least < most:
        middle = (least + most) // 2
        if all(channel.fits(middle * unit_bytes) for channel in sums):
            most = middle
        else:
            least = middle + 1
    return least


class _Chain:
    """A fusion key's members that the value has a say in, by falling ready time."""

    def __init__(
        self, problem: Problem, key: FusionKey, chain: Sequence[int], pieces: bool
    ) -> None:
        self.ready = np.array([problem.ready_ns[k] for k in chain][::-1], dtype=float)
        self.sizes = np.array([problem.bytes[k] for k in chain][::-1], dtype=float)
        self.pieces = pieces
        self.part = max(problem.bytes[k] for k in chain)
        self.lines = [
            (line.intercept / line.scale, line.slope / line.scale)
            for line in problem.cost(key).minorants
            if line.intercept >= 0  # else more launches would lower it
        ]
        self.totals = np.cumsum(self.sizes)

    def ns(self, most_bytes: int) -> np.ndarray:
        """Return the least time of the last 1, 2, ... members, with so many bytes more a launch."""
        if self.pieces:
            launches = np.cumsum(np.maximum(1, np.ceil(self.sizes / most_bytes * SURELY)))
        else:
            launches = np.maximum(1, np.ceil(self.totals / (most_bytes + self.part) * SURELY))
        times = [start * launches + slope * self.totals for start, slope in self.lines]
        return np.max(times, axis=0) if times else np.zeros(len(self.sizes))


class _Channel:
    """The chains of a channel, whose launches run one after the other."""

    def __init__(self, chains: Sequence[_Chain], limit_ns: int) -> None:
        if len(chains) > MOST_CHAINS:  # leaving out some only lowers the bound
            chains = sorted(chains, key=lambda chain: -len(chain.sizes))[:MOST_CHAINS]
        self.chains = chains
        ready = np.unique(np.concatenate([chain.ready for chain in chains]))
        self.room = limit_ns - ready
        # How many members of each chain are ready no earlier; at least one of some chain is.
        self.behind = [np.searchsorted(-chain.ready, -ready, side="right") for chain in chains]

    def fits(self, most_bytes: int) -> bool:
        """Return whether the launches may keep to the limit."""
        taken = np.zeros(len(self.room))
        for chain, behind in zip(self.chains, self.behind, strict=True):
            taken += np.concatenate([[0.0], chain.ns(most_bytes)])[behind]
        return not bool(np.any(taken * SURELY > self.room))

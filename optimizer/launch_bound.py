"""A lower bound on the makespan from the number of launches that a deadline forces.

Take a makespan M. A launch that carries collective k starts at its *head* (longest path before it) or
later and ends by ``M - tail`` (longest path after it). Let collectives join one by one such that heads
and tails never grow, so the window ``[head, M - tail]`` only widens. If what has joined so far needs L
launches and the next collective does not fit into these launches in the *previous* window, then some
launch carries only the newcomer of them: L + 1 launches are needed. Whatever has joined must fit
into the window with that many start-ups:

    L * alpha + beta * bytes  <=  M - tail - head.

M fails if it does not; the least M that does not fail bounds the makespan. With curves other than
affine each minorant (see ``CostCurve.minorants``) takes the place of alpha and beta. Fusion keys that
share a channel are counted apart, since they cannot share a launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from commsched.models import FusionKey, Problem
from commsched.optimizer.bounds import Lines
from commsched.optimizer.grouping import channel_positions
from commsched.optimizer.result import Bound

MAX_CHAINS = 24
"""How many chains with one head or one tail are tried on each channel where windows are not nested."""


@dataclass(frozen=True, slots=True)
class _Job:
    head: int
    tail: int
    size: int
    key: FusionKey


def launch_bound(
    problem: Problem, head: dict[str, int], tail: dict[str, int], lower_ns: int
) -> Bound:
    """Return a bound that is at least ``lower_ns``, which must be one.

    Parameters
    ----------
    problem
        The step.
    head, tail
        What :func:`commsched.optimizer.bounds.paths_ns` says, or anything better.
    lower_ns
        A proved bound.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective, Compute
    >>> from commsched.optimizer.bounds import paths_ns
    >>> step = Problem(
    ...     [Compute("b2", 10), Collective("x2", 40, after=("b2",)),
    ...      Compute("b1", 10), Collective("x1", 10, after=("b1",)),
    ...      Compute("f1", 50, after=("x1",)), Compute("f2", 10, after=("x2",))],
    ...     {("dp", "allreduce"): AlphaBeta(0.02, 1)})
    >>> launch_bound(step, *paths_ns(step), 0)
    Bound(ns=110, proof='launches needed')
    """
    best = lower_ns
    for positions in channel_positions(problem):
        jobs = [
            _Job(head[problem.names[k]], tail[problem.names[k]], problem.bytes[k], problem.keys[k])
            for k in positions
        ]
        lines = Lines(problem, list({job.key: None for job in jobs}))
        for chain in _chains(jobs):
            best = _least(chain, lines, best)
    return Bound(best, "launches needed")


def _chains(jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Yield sequences along which heads and tails never grow."""
    inward = sorted(jobs, key=lambda job: (-job.head, -job.tail))
    if all(a.tail >= b.tail for a, b in pairwise(inward)):
        yield inward
        return
    for tail in _some({job.tail for job in jobs}):
        yield [_Job(job.head, tail, job.size, job.key) for job in inward if job.tail >= tail]
    inward.sort(key=lambda job: -job.tail)
    for head in _some({job.head for job in jobs}):
        yield [_Job(head, job.tail, job.size, job.key) for job in inward if job.head >= head]


def _some(values: set[int]) -> list[int]:
    ordered = sorted(values)
    step = max(1.0, len(ordered) / MAX_CHAINS)
    return [ordered[int(k * step)] for k in range(math.ceil(len(ordered) / step))]


def _least(chain: Sequence[_Job], lines: Lines, lower_ns: int) -> int:
    """Return the least makespan from ``lower_ns`` on that does not fail."""
    if _fits(chain, lines, lower_ns):
        return lower_ns
    low, step = lower_ns, 1024
    while not _fits(chain, lines, low + step):
        low, step = low + step, 2 * step
    high = low + step
    while low + 1 < high:
        middle = (low + high) // 2
        if _fits(chain, lines, middle):
            high = middle
        else:
            low = middle
    return high


def _fits(chain: Sequence[_Job], lines: Lines, makespan: int) -> bool:
    scale = lines.scale
    launches: dict[FusionKey, int] = {}
    sent: dict[FusionKey, int] = {}
    load: dict[FusionKey, int] = {}
    total = window = 0
    for job in chain:
        key = job.key
        others = total - load.get(key, 0)
        sent[key] = sent.get(key, 0) + job.size
        if key not in launches:
            launches[key] = 1
        elif others + lines.load(key, launches[key], sent[key]) > window:
            launches[key] += 1
        load[key] = lines.load(key, launches[key], sent[key])
        total = others + load[key]
        window = (makespan - job.tail - job.head) * scale
        if total > window:
            return False
    return True

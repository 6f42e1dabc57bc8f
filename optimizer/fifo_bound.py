"""A lower bound for scope fifo: what is ready last is launched last.

Where no collective waits for a collective, a bucket is ready with its last member. So the launch of the
collective that is ready last comes after all others of its channel or carries them too, and what comes
after that collective comes after everything that the channel has to send. The same holds of those
that are ready last together: one of them is in the channel's last launch.

When everything can have been sent at the earliest follows from the recurrence for divisible
collectives (see :mod:`commsched.optimizer.two_sided`).
"""

from __future__ import annotations

import math

import numpy as np

from commsched.models import Problem
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.grouping import channel_positions
from commsched.optimizer.result import Bound
from commsched.optimizer.two_sided import all_done, start_ups_and_work

_MARGIN = 1e-12


def fifo_bound(problem: Problem, lower_ns: int) -> Bound:
    """Return a bound that is at least ``lower_ns``, which must be one.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective, Compute
    >>> step = Problem(
    ...     [Compute("b2", 10), Collective("x2", 40, after=("b2",)),
    ...      Compute("b1", 10), Collective("x1", 10, after=("b1",)),
    ...      Compute("f1", 50, after=("x1",)), Compute("f2", 10, after=("x2",))],
    ...     {("dp", "allreduce"): AlphaBeta(0.02, 1)})
    >>> fifo_bound(step, 0)
    Bound(ns=150, proof='ready last, launched last')
    """
    proof = "ready last, launched last"
    if problem.movable or any(name in problem.waiting for name in problem.names):
        return Bound(lower_ns, proof)
    _, tail = paths_ns(problem)
    best = lower_ns
    for positions in channel_positions(problem):
        ready = np.array([problem.ready_ns[k] for k in positions], dtype=float)
        last = ready.max()
        after_ns = min(
            tail[problem.names[k]]
            for k, ready_ns in zip(positions, ready, strict=True)
            if ready_ns == last
        )
        for startup, work in start_ups_and_work(problem, positions):
            sent = all_done(ready, work, startup) * (1 - _MARGIN)
            best = max(best, math.ceil(sent - 1e-3) + after_ns)
    return Bound(best, proof)

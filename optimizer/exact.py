"""Exact plans without a solver, for steps in which nothing waits for a collective.

Channels do not influence each other then, so each is solved by itself: by the O(n) recurrence if it
carries one fusion key with an affine cost, else by the prefix recurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsched.models import FusionKey, Plan, Problem
from commsched.models.plan import Bucket
from commsched.optimizer.prefix import (
    Chain,
    best_prefix_plan,
    earliest_end,
    is_small_enough,
    unrounded,
)
from commsched.optimizer.recurrence import AffineChain
from commsched.optimizer.result import Bound, Scope

MAX_WHOLE_NS = 24
"""Channels up to this size are solved in whole nanoseconds, rounded up as the evaluator does, also
where costs are affine. That is slower and gains at most a nanosecond a launch."""


@dataclass(frozen=True)
class ExactPlan:
    """An optimal plan with its proof.

    Attributes
    ----------
    plan, bound, method
        As in :class:`~commsched.optimizer.result.Result`.
    linear
        Whether the O(n) recurrence on unrounded times was enough for every channel.
    fewest
        Whether no optimal plan has fewer launches.
    """

    plan: Plan
    bound: Bound
    method: str
    linear: bool
    fewest: bool


def why_not_exact(problem: Problem, scope: Scope) -> str | None:
    """Return why no recurrence solves this problem, or None if one does."""
    if problem.limits:
        return f"plans are limited ({problem.limits[0].label})"
    if problem.movable:
        return "compute tasks may move"
    if not problem.settled:
        return "tasks wait for collectives"
    for channel, keys in keys_of_channel(problem).items():
        curved = [key for key in keys if problem.cost(key).affine is None]
        if scope != "in-order" and curved:
            return f"the cost of {curved[0].kind} is not affine and the scope is {scope}"
        if scope == "fifo" and len(keys) > 1:
            return f"several fusion keys on channel {channel!r} and the scope is fifo"
        if (curved or len(keys) > 1) and not is_small_enough(
            [len(problem.chains[key]) for key in keys]
        ):
            return f"channel {channel!r} has too many collectives for the prefix recurrence"
    return None


def exact_plan(problem: Problem, scope: Scope = "in-order", *, whole_ns: bool = True) -> ExactPlan:
    """Return the optimal plan of a problem for which :func:`why_not_exact` returned None.

    Parameters
    ----------
    problem, scope
        The problem and which plans count.
    whole_ns
        Whether small channels are solved in whole nanoseconds. In scope ``any`` the bound is on
        unrounded times, and then only the plan for unrounded times is sure to be within rounding
        of it.
    """
    channels = [
        _Channel(problem, keys, scope, whole_ns) for keys in keys_of_channel(problem).values()
    ]
    makespan_ns = max(problem.compute_ns, *(channel.end_ns for channel in channels))
    buckets = [bucket for channel in channels for bucket in channel.buckets(makespan_ns)]
    least = max(problem.compute_ns, *(channel.least_end_ns for channel in channels))
    linear = all(channel.linear for channel in channels)
    return ExactPlan(
        Plan(tuple(buckets)),
        Bound(least, "exact recurrence"),
        "O(n) recurrence" if linear else "prefix recurrence",
        linear,
        all(channel.fewest for channel in channels),
    )


def keys_of_channel(problem: Problem) -> dict[str, list[FusionKey]]:
    """Return the fusion keys that each channel carries, channels in the order of their names."""
    keys: dict[str, list[FusionKey]] = {}
    for key in problem.chains:
        keys.setdefault(problem.channel(key), []).append(key)
    return dict(sorted(keys.items()))


class _Channel:
    """One channel: its earliest end, then its buckets.

    ``end_ns`` is the end of the plan that was found, ``least_end_ns`` what is proved of all plans.
    """

    def __init__(
        self, problem: Problem, keys: Sequence[FusionKey], scope: Scope, whole_ns: bool
    ) -> None:
        self.problem = problem
        self.chains = [problem.chains[key] for key in keys]
        curves = [problem.cost(key) for key in keys]
        ready = [list(map(problem.ready_ns.__getitem__, chain)) for chain in self.chains]
        sizes = [list(map(problem.bytes.__getitem__, chain)) for chain in self.chains]
        self.fewest = True
        pieces = [curve.affine for curve in curves]
        rounds = any(piece is None or piece.scale > 1 for piece in pieces)
        small = whole_ns and sum(map(len, sizes)) <= MAX_WHOLE_NS
        self.linear = len(keys) == 1 and pieces[0] is not None and not (rounds and small)
        if self.linear and pieces[0] is not None:
            self.affine = AffineChain(ready[0], sizes[0], pieces[0])
            self.earliest = self.affine.earliest_end()
            self.end_ns = self.least_end_ns = -(-self.earliest // pieces[0].scale)
            return
        self.inputs = [Chain(r, s, c) for r, s, c in zip(ready, sizes, curves, strict=True)]
        self.scale = 1
        if scope != "in-order" and rounds:
            scaled, scale = unrounded(self.inputs)
            if not whole_ns:
                self.inputs, self.scale = scaled, scale
            self.least_end_ns = -(-earliest_end(scaled) // scale)
        self.found = best_prefix_plan(self.inputs)
        self.end_ns = -(-self.found.end_ns // self.scale)
        if scope == "in-order" or not rounds:
            self.least_end_ns = self.end_ns

    def buckets(self, deadline_ns: int) -> list[Bucket]:
        """Return the buckets that end by the deadline with the fewest launches."""
        if self.linear:
            cuts = [(0, i, j) for i, j in self._linear_cuts(deadline_ns)]
        else:
            if self.end_ns < deadline_ns:
                self.found = best_prefix_plan(self.inputs, deadline_ns * self.scale)
            self.fewest = self.found.fewest
            cuts = self.found.buckets
        name_of = self.problem.names.__getitem__
        return [
            Bucket(tuple(map(name_of, self.chains[number][begin:end])))
            for number, begin, end in cuts
        ]

    def _linear_cuts(self, deadline_ns: int) -> list[tuple[int, int]]:
        scale = self.affine.scale
        if deadline_ns == self.end_ns:
            ends = self.affine.fewest_launches(self.earliest)
        else:
            ends = self.affine.fewest_launches(deadline_ns * scale)
            # Rounding each launch up may pass a deadline that something else sets: leave room.
            with_room = (deadline_ns - len(ends)) * scale
            if self.affine.rounded_end_ns(ends) > deadline_ns and with_room >= self.earliest:
                ends = self.affine.fewest_launches(with_room)
        return list(zip([0, *ends], ends, strict=False))

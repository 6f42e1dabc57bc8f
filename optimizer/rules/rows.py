"""Buckets as index ranges: what a rule decides, without a name or a plan.

A search over all values of a knob looks at thousands of plans of thousands of names each. A rule that
goes once over each fusion key's collectives in a fixed order cuts *rows*; where a row is cut is all
that a value decides. A :class:`Sketch` is evaluated on sums of bytes alone, and only the best becomes a
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from commsched.models import Bucket, Plan, Problem
from commsched.models.knob import Setting
from commsched.models.step import FusionKey
from commsched.optimizer.rules.order import beside_others, in_launch_order


class Row:
    """Collectives of one fusion key in the order in which a rule goes over them.

    Parameters
    ----------
    problem
        The step.
    key
        Their fusion key.
    positions
        The collectives.
    places, sums
        The place of each collective of the problem in the ready order, and the bytes of all up to
        each place.

    Attributes
    ----------
    names, places
        Of each, in the row's order.
    totals
        The bytes of the first 0, 1, 2, ... of them.
    sums
        The bytes of all collectives up to each of them in ready order.
    """

    def __init__(
        self,
        problem: Problem,
        key: FusionKey,
        positions: Sequence[int],
        places: Sequence[int],
        sums: Sequence[int],
    ) -> None:
        self.key = key
        self.positions = positions
        self.names = tuple(problem.names[k] for k in positions)
        self.totals = [0, *accumulate(problem.bytes[k] for k in positions)]
        self.places = [places[k] for k in positions]
        self.sums = [sums[place] for place in self.places]
        self.ascending = all(a < b for a, b in pairwise(self.places))
        self.descending = all(a > b for a, b in pairwise(self.places))
        self.channel = problem.channel(key)
        cost = problem.cost(key)
        # Sums of whole bytes need no check, and one piece no look which.
        self.ns = cost.ns if cost.affine is None else cost.affine.ns

    def last_place(self, begin: int, end: int) -> int:
        """Return the place in ready order of the last of some members that is ready."""
        if self.ascending:
            return self.places[end - 1]
        return self.places[begin] if self.descending else max(self.places[begin:end])


class Cut(NamedTuple):
    """A bucket: members of a row from ``begin`` up to ``end``, held back until ``not_before_ns``."""

    row: int
    begin: int
    end: int
    not_before_ns: int = 0


class Rows:
    """The rows of a step.

    Parameters
    ----------
    problem
        The step.
    rows
        Keys with positions, in the order in which a rule goes over them.
    """

    def __init__(self, problem: Problem, rows: Iterable[tuple[FusionKey, Sequence[int]]]) -> None:
        self.problem = problem
        places = [0] * len(problem.names)
        for place, position in enumerate(problem.ready_order):
            places[position] = place
        self.place_of = places
        sums = [*accumulate(problem.bytes[k] for k in problem.ready_order)]
        self.rows = [Row(problem, key, positions, places, sums) for key, positions in rows]
        self.ready_at = [problem.ready_ns[position] for position in problem.ready_order]
        members = sum(len(row.names) for row in self.rows)
        self.complete = members == len(places)
        self.quick = self.complete and problem.settled and not problem.limited_pools
        """Whether a sketch can be evaluated by itself: fixed ready times, nothing but rows."""

    def by_last_member(self, cuts: Iterable[Cut]) -> Sketch:
        """Return buckets in the order in which they are final, as :func:`by_last_member`."""
        if self.quick:
            rows = self.rows
            cuts = sorted(cuts, key=lambda cut: rows[cut.row].last_place(cut.begin, cut.end))
            return Sketch(self, cuts)
        return Sketch(self, list(cuts), ordered=False)

    def plan(self, cuts: Sequence[Cut], *, ordered: bool) -> Plan:
        """Return the plan of some buckets; all collectives that are in no row go by themselves."""
        if ordered and self.complete:
            return Plan(tuple(self._bucket(cut) for cut in cuts))
        positions = [self.rows[cut.row].positions[cut.begin : cut.end] for cut in cuts]
        if ordered:
            return beside_others(self.problem, positions, [self._bucket(cut) for cut in cuts])
        rowed = {k for row in self.rows for k in row.positions}
        alone = ([k] for k in self.problem.ready_order if k not in rowed)
        return in_launch_order(self.problem, [*positions, *alone])

    def _bucket(self, cut: Cut) -> Bucket:
        row = self.rows[cut.row]
        names = row.names[cut.begin : cut.end]
        if not row.ascending:
            members = sorted(zip(row.places[cut.begin : cut.end], names, strict=True))
            names = tuple(name for _, name in members)
        return Bucket(names, cut.not_before_ns)


class Sketch:
    """Buckets in launch order, as ranges of rows.

    Attributes
    ----------
    cuts
        The buckets.
    """

    __slots__ = ("_ordered", "_rows", "cuts")

    def __init__(self, rows: Rows, cuts: Sequence[Cut], *, ordered: bool = True) -> None:
        self._rows = rows
        self.cuts = cuts
        self._ordered = ordered

    @property
    def quick(self) -> bool:
        """Whether :meth:`makespan_ns` knows."""
        return self._rows.quick

    @property
    def cost(self) -> int:
        """How many launches it has."""
        return len(self.cuts)

    def plan(self) -> Plan:
        """Return the plan."""
        return self._rows.plan(self.cuts, ordered=self._ordered)

    def makespan_ns(self) -> int:
        """Return what the evaluator says of the plan of a step with fixed ready times.

        It is the evaluator's own pass over the launches, on sums of bytes; whoever shows the plan
        evaluates it there.
        """
        rows, ready_at = self._rows.rows, self._rows.ready_at
        free: dict[str, int] = {}
        for number, begin, end, not_before in self.cuts:
            row = rows[number]
            start = free.get(row.channel, 0)
            ready = ready_at[row.last_place(begin, end)]
            if ready > start:
                start = ready
            if not_before > start:
                start = not_before
            free[row.channel] = start + row.ns(row.totals[end] - row.totals[begin])
        return max(self._rows.problem.compute_ns, *free.values())


class Decision(Protocol):
    """What a rule decides with some value of its knob, before it becomes a plan."""

    @property
    def cuts(self) -> Sequence[object]:
        """Its launches; those of two values are equal where their plans are."""

    @property
    def quick(self) -> bool:
        """Whether the makespan is known without a plan."""

    @property
    def cost(self) -> int:
        """How long it took to find, in launches of a :class:`Sketch`."""

    def makespan_ns(self) -> int:
        """Return the makespan of the plan in nanoseconds, if ``quick``."""

    def plan(self) -> Plan:
        """Return the plan."""


Decide = Callable[[Setting], Decision]
"""A rule on a step: from its knob to what it decides."""
Sketcher = Callable[[Setting], Sketch]
"""The same of a rule that cuts rows."""

"""What a network's launches cost, by kind, group and number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from commsched.models import CostCurve, Kind
from commsched.models.errors import InputError
from commsched.models.problem import Costs

Need = tuple[str, Kind]
"""A process group and a kind."""


@dataclass(frozen=True, slots=True)
class NetworkCurve:
    """What one kind of collective costs.

    Attributes
    ----------
    cost
        The curve.
    kind
        The kind that it is for; None if it stands for every kind.
    ranks
        Number of ranks that it was measured with; None if that is not known.
    nodes
        Number of nodes; None if that is not known.
    group
        The process group that it is for; empty if any.
    source, date, tool
        Where it comes from; empty if that is not known.
    mean_error, max_error
        Relative error against what was measured; None if it was stated and not fitted.
    """

    cost: CostCurve
    kind: Kind | None = None
    ranks: int | None = None
    nodes: int | None = None
    group: str = ""
    source: str = ""
    date: str = ""
    tool: str = ""
    mean_error: float | None = None
    max_error: float | None = None

    @property
    def key(self) -> tuple[Kind | None, int | None, int | None, str]:
        """What it is for: kind, ranks, nodes and group."""
        return self.kind, self.ranks, self.nodes, self.group

    @property
    def title(self) -> str:
        """What it is for, in a few words.

        Examples
        --------
        >>> from commsched.models import AlphaBeta
        >>> NetworkCurve(AlphaBeta(8, 50), "allreduce", ranks=16, nodes=2).title
        'allreduce, 16 ranks, 2 nodes'
        """
        parts: list[str] = [self.kind or "any kind"]
        if self.ranks is not None:
            parts.append(f"{self.ranks} ranks")
        if self.nodes is not None:
            parts.append(f"{self.nodes} node{'s' * (self.nodes != 1)}")
        if self.group:
            parts.append(f"group {self.group}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Network:
    """The curves of a network.

    Attributes
    ----------
    curves
        Any number of them, each for something else.
    name
        A title for people.
    any_ranks
        Whether a curve may stand for another number of ranks than it was measured with.

    Raises
    ------
    InputError
        If two curves are for the same kind, ranks, nodes and group.
    """

    curves: tuple[NetworkCurve, ...]
    name: str = ""
    any_ranks: bool = False

    def __post_init__(self) -> None:
        seen = set()
        for curve in self.curves:
            if curve.key in seen:
                raise InputError(f"two curves are for the same: {curve.title}")
            seen.add(curve.key)

    @classmethod
    def uniform(cls, cost: CostCurve) -> Network:
        """Return a network in which every kind costs the same, whatever the number of ranks."""
        return cls((NetworkCurve(cost),))

    def costs(self, needs: Mapping[Need, int | None], what: str) -> tuple[Costs, tuple[str, ...]]:
        """Return the curve of each (group, kind), and sentences on what was taken for granted.

        A curve for the group comes before one for any group, one for the kind before one for every
        kind; then comes one for the group's number of ranks, then one of an unknown number, and, only
        with ``any_ranks``, the one whose number is nearest, as a ratio. Several that are equally
        near are refused: nothing says which one is meant.

        Parameters
        ----------
        needs
            The pairs that occur, with the group's number of ranks where that is known.
        what
            What needs them, for messages.

        Raises
        ------
        InputError
            If a pair has no curve, only curves of other numbers of ranks, or several that are
            equally near.
        """
        costs: dict[Need, CostCurve] = {}
        notes: list[str] = []
        alike: set[Kind] = set()
        for (group, kind), ranks in needs.items():
            curve = self._curve(group, kind, ranks, what, notes)
            costs[group, kind] = curve.cost
            alike |= {kind} if curve.kind is None else set()
        if len(alike) > 1:
            kinds = ", ".join(sorted(alike))
            notes.append(f"{kinds} are priced alike, by bytes over one bandwidth")
        return costs, tuple(dict.fromkeys(notes))

    def _curve(
        self, group: str, kind: Kind, ranks: int | None, what: str, notes: list[str]
    ) -> NetworkCurve:
        found = [c for c in self.curves if c.kind in (kind, None) and c.group in (group, "")]
        if not found:
            have = ", ".join(sorted({c.kind or "any kind" for c in self.curves})) or "nothing"
            raise InputError(f"{what}: has {kind} in group {group!r}, costs are given for {have}")

        def distance(curve: NetworkCurve) -> tuple[bool, bool, int, Fraction]:
            if curve.ranks is None or ranks is None:
                nearness, apart = int(curve.ranks is not None or ranks is not None), Fraction(1)
            else:
                apart = max(Fraction(curve.ranks, ranks), Fraction(ranks, curve.ranks))
                nearness = 0 if apart == 1 else 2
            return (curve.group == "", curve.kind is None, nearness, apart)

        best = min(found, key=distance)
        equal = [curve for curve in found if distance(curve) == distance(best)]
        if len({curve.cost for curve in equal}) > 1:
            several = "; ".join(curve.title for curve in equal[:4])
            of = "an unknown number of" if ranks is None else str(ranks)
            raise InputError(
                f"{what}: {kind} in group {group!r} of {of} ranks: costs are given for {several}, and "
                "nothing says which one to take: keep one in the cost file"
            )
        if best.ranks is not None and ranks is not None and best.ranks != ranks:
            text = f"{kind} in group {group!r} of {ranks} ranks, its cost is of {best.ranks} ranks"
            if not self.any_ranks:
                raise InputError(f"{what}: {text}; --any-ranks takes it all the same")
            notes.append(f"{text}: taken all the same")
        elif best.ranks is not None and ranks is None:
            notes.append(f"{kind} in group {group!r}: its cost is of {best.ranks} ranks")
        return best

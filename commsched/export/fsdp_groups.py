"""Buckets of parameters as groups of modules, in an order in which they can be wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import networkx as nx

from commsched.export.names import paths_only
from commsched.export.source import ExportSource
from commsched.models.errors import NotApplicableError
from commsched.optimizer.rules.common import module_of

Keep = Literal["all", "first", "last"]
"""What becomes of a module whose parameters lie in several buckets: it is refused, or goes with the
first or the last of them."""


@dataclass(frozen=True)
class ModuleGroups:
    """Groups of modules.

    Attributes
    ----------
    modules
        The modules of each group, in the order in which groups must be wrapped: a module inside of
        another one before it, else in the order of launch.
    names
        The parameters of each group.
    root
        Parameters that the model itself holds, which are wrapped with it, last.
    moved
        What had to go with another bucket than planned: a sentence each.
    """

    modules: tuple[tuple[str, ...], ...]
    names: tuple[tuple[str, ...], ...]
    root: tuple[str, ...]
    moved: tuple[str, ...] = ()


def module_groups(source: ExportSource, who: str, keep: Keep = "all") -> ModuleGroups:
    """Return the modules of each bucket of a plan whose names are parameters.

    Raises
    ------
    NotApplicableError
        If a name is no parameter name, a module's parameters lie in several buckets or those of the
        model itself are not alone (unless they may be moved), a group would have several types, or
        no order of wrapping gives these groups.
    """
    paths_only((name for name, _ in source.members()), who)
    bucket_of: dict[str, int] = {}
    root_buckets: dict[int, str] = {}
    moved: dict[str, None] = {}
    for number, launch in enumerate(source.launches):
        for name in launch.names:
            if "." not in name:
                root_buckets.setdefault(number, name)
                continue
            module = module_of(name)
            if bucket_of.setdefault(module, number) != number:
                what = f"the parameters of {module!r:.100} lie in several buckets"
                moved[what] = None
                if keep == "last":
                    bucket_of[module] = number
    for number, name in root_buckets.items():
        if len(root_buckets) > 1 or any("." in other for other in source.launches[number].names):
            moved[f"{name!r:.100} belongs to the model itself and is grouped with it alone"] = None
    if moved and keep == "all":
        raise NotApplicableError(f"{who} groups whole modules; {next(iter(moved))}")
    rows: list[dict[str, list[str]]] = [{} for _ in source.launches]
    root: list[str] = []
    for name, _ in source.members():
        if "." in name:
            module = module_of(name)
            rows[bucket_of[module]].setdefault(module, []).append(name)
        else:
            root.append(name)
    order = [number for number in _wrapping_order(bucket_of, len(rows), who) if rows[number]]
    names = tuple(tuple(n for some in rows[k].values() for n in some) for k in order)
    _check_types(source, [*names, root], who)
    return ModuleGroups(
        tuple(tuple(rows[number]) for number in order), names, tuple(root), tuple(moved)
    )


def _check_types(source: ExportSource, groups: Iterable[Sequence[str]], who: str) -> None:
    key_of = dict(source.members())
    for names in groups:
        types = sorted({key_of[name].dtype for name in names})
        if len(types) > 1:
            raise NotApplicableError(
                f"{who} groups parameters of one type; the group of {names[0]!r:.100} has "
                f"{' and '.join(types)}"
            )


def _wrapping_order(bucket_of: dict[str, int], count: int, who: str) -> Sequence[int]:
    """Return the buckets so that a module is wrapped before the module that holds it."""
    before: nx.DiGraph = nx.DiGraph()
    before.add_nodes_from(range(count))
    for module, number in bucket_of.items():
        parent = module
        while "." in parent:
            parent = parent.rpartition(".")[0]
            outer = bucket_of.get(parent)
            if outer is not None and outer != number:
                before.add_edge(number, outer)
    try:
        return list(nx.lexicographical_topological_sort(before))
    except nx.NetworkXUnfeasible:
        cycle = nx.find_cycle(before)
        first, second = cycle[0][:2]
        raise NotApplicableError(
            f"{who} wraps inner modules before outer ones; buckets {first + 1} and {second + 1} hold "
            "modules of each other"
        ) from None

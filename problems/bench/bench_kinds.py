"""Which operation a benchmark's table is of, and over how many ranks, where it does not say."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commsched.models.collectives import MAX_RANKS
from commsched.problems.bench.bench_tables import NCCOM, Columns, Row

_NAMES: Final = {
    "allreduce": "allreduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallpersonalizedexchange": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_IN_TEXT = re.compile(
    r"reduce[_-]?scatter|all[_-]?reduce|all[_-]?gather|all[_-]?to[_-]?all|broadcast|bcast"
    r"|send[_-]?recv|reduce|gather|scatter"
)
_PERF = re.compile(r"\b([a-z_]{4,20})_perf\b")
_NCCOM = re.compile(
    r"\s(allr|allg|redsct|alltoall|sendrecv|all_reduce|all_gather|reduce_scatter)\b"
)
_NCCOM_NAMES = {"allr": "allreduce", "allg": "all_gather", "redsct": "reduce_scatter"}
_HALF_STEP = 0.005 + 1e-9
"""Bandwidths are printed with two decimals."""

_MANY_RANKS = 256

FACTORS: Final = {
    "allreduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "gather": 1,
    "scatter": 1,
    "broadcast": 0,
    "reduce": 0,
    "send_recv": 0,
}
"""Bus over algorithm bandwidth: 2 stands for 2 (n-1)/n, 1 for (n-1)/n and 0 for 1."""
_REDUCING = {"allreduce", "reduce_scatter", "reduce", "send_recv"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_NOT_IN_PLACE = {"all_to_all", "send_recv"}


def operation_named(name: str) -> str | None:
    """Return the operation that a benchmark's name says, None if there is none such.

    Examples
    --------
    >>> operation_named("all_reduce"), operation_named("All-to-All Personalized Exchange")
    ('allreduce', 'all_to_all')
    """
    return _NAMES.get(re.sub(r"[\s_-]", "", name.lower()))


def operations_in(text: str) -> set[str]:
    """Return the operations whose test programs (``all_reduce_perf``) a line names."""
    found = {operation_named(name) for name in _PERF.findall(text)}
    command = text.partition("nccom-test")[2]
    found |= {operation_named(_NCCOM_NAMES.get(name, name)) for name in _NCCOM.findall(command)}
    return {name for name in found if name is not None}


def operations_of_file(path: str) -> set[str]:
    """Return the operations that a file's name has in it.

    Examples
    --------
    >>> operations_of_file("runs/nccl_allreduce.log"), operations_of_file("log.txt")
    ({'allreduce'}, set())
    """
    found = {operation_named(word) for word in _IN_TEXT.findall(Path(path).name.lower())}
    return {name for name in found if name is not None}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Bus over algorithm bandwidth, as closely as two decimals tell.

    Attributes
    ----------
    low, high
        The ratio is between them.
    """

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether the ratio may be this."""
        return self.low <= value <= self.high

    def ranks(self, operation: str) -> int | None:
        """Return the only number of ranks that gives the ratio, None if there is none such."""
        found = self._range(FACTORS.get(operation, 0))
        if found is None or found[0] != found[1]:
            return None
        return found[0]

    def fits(self, operation: str, ranks: int | None) -> bool:
        """Return whether the operation, over so many ranks if that is known, gives the ratio."""
        factor = FACTORS[operation]
        if factor == 0:
            return self.holds(1)
        if ranks is not None:
            return self.holds(factor * (ranks - 1) / ranks)
        return self._range(factor) is not None

    def _range(self, factor: int) -> tuple[int, int] | None:
        if factor == 0 or self.low >= factor:
            return None
        # ratio = factor (n-1)/n, so n = factor / (factor - ratio)
        low = max(2, math.ceil(factor / (factor - self.low) - 1e-9))
        high = MAX_RANKS
        if self.high < factor:
            high = min(high, math.floor(factor / (factor - self.high) + 1e-9))
        return (low, high) if low <= high else None


@dataclass(frozen=True, slots=True)
class Listed:
    """A rank that a log lists.

    Attributes
    ----------
    group, rank
        Its group and number.
    host, device
        Where it runs; empty if that is not readable.
    """

    group: int
    rank: int
    host: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Counted:
    """The ranks and nodes of one group, as far as a list of ranks tells.

    Attributes
    ----------
    ranks, nodes
        None if they are not known.
    remarks
        Sentences on what is odd.
    """

    ranks: int | None = None
    nodes: int | None = None
    remarks: tuple[str, ...] = ()


def ranks_listed(listed: Iterable[Listed]) -> Counted:
    """Return the ranks and nodes of one group out of a list of ranks.

    Examples
    --------
    >>> ranks_listed([Listed(0, 0, "a", "0"), Listed(0, 1, "b", "0")])
    Counted(ranks=2, nodes=2, remarks=())
    """
    found = {(one.group, one.rank): one for one in listed}
    if not found:
        return Counted()
    remarks = []
    groups = Counter(group for group, _ in found)
    sizes = set(groups.values())
    ranks: int | None = max(rank for _, rank in found) + 1
    whole = len(found) == ranks
    if len(groups) > 1:
        remarks.append(f"{len(groups)} groups of ranks run at the same time")
        ranks = sizes.pop() if len(sizes) == 1 else None
    elif not whole and ranks is not None:
        remarks.append(f"{len(found)} ranks are listed, the last is number {ranks - 1}")
    places = Counter((one.host, one.device) for one in found.values())
    nodes = None
    if max(places.values()) > 1 and "" not in {host for host, _ in places}:
        remarks.append("hosts are not told apart by their names: the number of nodes is not known")
    elif whole and "" not in {host for host, _ in places}:
        hosts: dict[int, set[str]] = {}
        for one in found.values():
            hosts.setdefault(one.group, set()).add(one.host)
        counts = {len(names) for names in hosts.values()}
        nodes = counts.pop() if len(counts) == 1 else None
    return Counted(ranks, nodes, tuple(remarks))


def ratio_of(rows: Iterable[Row]) -> Ratio | None:
    """Return the ratio that all the rows agree on; None if they do not or say nothing."""
    sides = (side for row in rows for side in (row.out_of_place, row.in_place) if side is not None)
    return ratio_between(((side.algbw, side.busbw) for side in sides), _HALF_STEP)


def ratio_between(pairs: Iterable[tuple[float, float]], half_step: float) -> Ratio | None:
    """Return the ratio of bus to algorithm bandwidth that all pairs agree on, else None.

    Parameters
    ----------
    pairs
        Algorithm and bus bandwidths as printed.
    half_step
        By how much printing may have moved each.
    """
    low, high = 0.0, math.inf
    for algbw, busbw in pairs:
        if algbw <= half_step:
            continue
        low = max(low, (busbw - half_step) / (algbw + half_step))
        high = min(high, (busbw + half_step) / (algbw - half_step))
    if low > high or math.isinf(high):
        return None
    return Ratio(low, high)


def possible_operations(
    rows: Sequence[Row], columns: Columns, ratio: Ratio | None, ranks: int | None
) -> set[str]:
    """Return the operations that a table's columns and bandwidths leave open.

    Parameters
    ----------
    rows
        The table's rows, at least one.
    columns
        The table's columns.
    ratio
        Bus over algorithm bandwidth, if it is known.
    ranks
        Number of ranks, if it is known. Where no operation over so many ranks gives the ratio,
        the ratio alone counts.
    """
    left = _by_columns(rows, columns)
    if ratio is None or ranks == 1:
        return left
    found = {name for name in left if ratio.fits(name, ranks)}
    found = found or {name for name in left if ratio.fits(name, None)}
    likelier = {name for name in found if FACTORS[name] != 1}
    # (n-1)/n of very many ranks cannot be told from 1, which is then the likelier.
    return likelier if likelier and ratio.low > 1 - 1 / _MANY_RANKS else found


def _by_columns(rows: Sequence[Row], columns: Columns) -> set[str]:
    first, head = rows[0], columns.head
    if columns.tool == NCCOM:  # names neither reduction nor root, whatever it runs
        return {"allreduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"}
    left = set(FACTORS)
    rooted = first.root is not None and first.root >= 0
    left = left & _ROOTED if rooted else left - _ROOTED
    if first.redop not in (None, "none"):
        left &= _REDUCING
    else:
        left -= _REDUCING - {"send_recv"}
    if "redop" not in head and "root" not in head:
        left &= {"all_gather"}
    elif "redop" in head and first.redop is None:
        left &= {"all_to_all", "send_recv"}
    if first.out_of_place.checked and first.in_place is not None:
        # What cannot run in place has no result to check there.
        left = left - _NOT_IN_PLACE if first.in_place.checked else left & _NOT_IN_PLACE
    return left


def choose_operation(
    possible: set[str], hints: Iterable[tuple[set[str], str]]
) -> tuple[str | None, str | None]:
    """Return the operation among the possible ones, and how it was found if that is a guess.

    Parameters
    ----------
    possible
        What columns and bandwidths leave open.
    hints
        Operations named somewhere, with the place, the best first; a hint that does not fit is
        not followed.

    Examples
    --------
    >>> choose_operation({"all_gather", "all_to_all"}, [({"all_gather"}, "the file's name")])
    ('all_gather', "taken for all_gather, from the file's name")
    """
    for named, place in hints:
        found = named & possible
        if len(found) == 1:
            (operation,) = found
            how = None if len(possible) == 1 else f"taken for {operation}, from {place}"
            return operation, how
    if len(possible) == 1:
        (operation,) = possible
        return operation, f"taken for {operation}, from its columns and bandwidths"
    some = f": one of {', '.join(sorted(possible))}" if possible else ""
    return None, f"the operation is not known{some}"

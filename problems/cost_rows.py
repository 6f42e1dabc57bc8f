"""Costs in files: rows to curves and back."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from commsched.models import AlphaBeta, BusBandwidth, CostCurve, Kind, PiecewiseLinear, StepTable
from commsched.models.collectives import KINDS, MAX_RANKS, check_kind, check_ranks
from commsched.models.errors import InputError
from commsched.models.units import exact, exact_at_least_zero
from commsched.problems.files import write_bytes
from commsched.problems.network import Network, NetworkCurve
from commsched.problems.own_file import read_own
from commsched.problems.schema import (
    COSTS_FORMAT,
    VERSION,
    CostRow,
    CostsFile,
    CurveRow,
)

ANY_KIND = "any"
"""In a cost file, the kind of a curve that stands for every kind."""

FORMS = {
    ("alpha_us", "bandwidth_gb_s"): "algorithm bandwidth",
    ("alpha_us", "bus_bandwidth_gb_s", "ranks"): "bus bandwidth",
    ("points",): "points",
    ("table",): "table",
}


def curve_from_row(row: CostRow, kind: Kind, what: str) -> CostCurve:
    """Return the cost curve that a row describes.

    Raises
    ------
    InputError
        If the fields do not make one of the forms, or a value is out of range; the message
        begins with ``what``.
    """
    given = {name for name in CostRow.__struct_fields__ if getattr(row, name) is not UNSET}
    required = given - {"algorithm"} if "bus_bandwidth_gb_s" in given else given
    if tuple(sorted(required)) not in FORMS:
        forms = "; ".join(" + ".join(form) for form in FORMS)
        have = ", ".join(sorted(given)) or "nothing"
        raise InputError(f"{what}: a cost is one of: {forms}; given: {have}")
    values: dict[str, Any] = {name: getattr(row, name) for name in given}
    try:
        if "points" in given:
            return PiecewiseLinear(values["points"])
        if "table" in given:
            return StepTable(values["table"])
        if "bus_bandwidth_gb_s" in given:
            return BusBandwidth(kind=kind, **values)
        return AlphaBeta(**values)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def row_from_curve(curve: CostCurve, what: str) -> CostRow:
    """Return the row that describes a cost curve.

    Raises
    ------
    InputError
        If the curve is of a kind that files do not know, or holds a number that has no exact
        decimal form.
    """
    if isinstance(curve, AlphaBeta):
        return CostRow(
            alpha_us=plain(curve.alpha_us, what), bandwidth_gb_s=plain(curve.bandwidth_gb_s, what)
        )
    if isinstance(curve, BusBandwidth):
        return CostRow(
            alpha_us=plain(curve.alpha_us, what),
            bus_bandwidth_gb_s=plain(curve.bus_bandwidth_gb_s, what),
            ranks=curve.ranks,
            algorithm=curve.algorithm,
        )
    if isinstance(curve, PiecewiseLinear):
        return CostRow(points=[(int(size), plain(us, what)) for size, us in curve.rows])
    if isinstance(curve, StepTable):
        return CostRow(table=[(int(size), plain(us, what)) for size, us in curve.rows])
    raise InputError(f"{what}: a {type(curve).__name__} cannot be written to a file")


def plain(value: object, what: str) -> int | float:
    """Return a number as JSON can hold it without loss.

    Raises
    ------
    InputError
        If it has no exact decimal form that a float keeps.

    Examples
    --------
    >>> from fractions import Fraction
    >>> plain(2.0, "alpha_us"), plain(Fraction(1, 4), "alpha_us")
    (2, 0.25)
    """
    number = exact(value, what)
    if number.denominator == 1:
        return int(number)
    try:
        nearest = float(number)
    except OverflowError:
        raise InputError(f"{what}: a number is too large to be written") from None
    if exact(nearest, what) != number:
        raise InputError(f"{what}: {value} has no exact decimal form; give a rounded one")
    return nearest


def read_network(path: str | Path) -> Network:
    """Return the curves of a cost file.

    Raises
    ------
    InputError
        If the file is not a valid cost file.
    """
    file = read_own(path, COSTS_FORMAT, CostsFile)
    curves = []
    for kind in KINDS:
        row = getattr(file, kind)
        if row is not UNSET:
            cost = curve_from_row(row, kind, f"{path}: {kind}")
            ranks = cost.ranks if isinstance(cost, BusBandwidth) else None
            curves.append(NetworkCurve(cost, kind, ranks))
    rows = file.curves if isinstance(file.curves, list) else []
    for number, curve in enumerate(rows):
        curves.append(_curve(curve, f"{path}: curves[{number}]"))
    if not curves:
        raise InputError(f"{path}: has no curve: give curves, or one of {', '.join(KINDS)}")
    try:
        return Network(tuple(curves), file.name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def write_network(network: Network, path: str | Path) -> None:
    """Write a network as a cost file, at once or not at all.

    Raises
    ------
    InputError
        If a curve has no form in files or the file cannot be written.
    """
    rows = [_row(curve) for curve in network.curves]
    file = CostsFile(COSTS_FORMAT, VERSION, network.name, rows)
    text = msgspec.json.format(msgspec.json.encode(file), indent=1)
    text = _PAIR.sub(rb"[\1, \2]", text)  # one point a line
    write_bytes(path, text + b"\n")


_PAIR = re.compile(rb"\[\n *([-+.\deE]+),\n *([-+.\deE]+)\n *\]")


def _curve(row: CurveRow, what: str) -> NetworkCurve:
    kind = None if row.kind == ANY_KIND else check_kind(row.kind, f"{what}: kind")
    ranks, nodes = row.ranks, row.nodes
    cost_ranks = row.cost.ranks
    if isinstance(cost_ranks, int):
        if isinstance(ranks, int) and ranks != cost_ranks:
            raise InputError(f"{what}: ranks is {ranks}, its cost is of {cost_ranks} ranks")
        ranks = cost_ranks
    if kind is None and row.cost.bus_bandwidth_gb_s is not UNSET:
        raise InputError(f"{what}: a bus bandwidth is that of one kind, not of any")
    try:
        if isinstance(ranks, int):
            check_ranks(ranks)
        if isinstance(nodes, int) and not 1 <= nodes <= MAX_RANKS:
            raise InputError(f"nodes: {nodes} must be a whole number from 1 to {MAX_RANKS}")
        if isinstance(nodes, int) and isinstance(ranks, int) and nodes > ranks:
            raise InputError(f"nodes: {nodes} must be at most ranks, which is {ranks}")
        if row.date:
            check_date(row.date)
        errors = [
            None if value is UNSET else float(exact_at_least_zero(value, name))
            for name, value in (("mean_error", row.mean_error), ("max_error", row.max_error))
        ]
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    return NetworkCurve(
        curve_from_row(row.cost, kind or "allreduce", f"{what}: cost"),
        kind,
        ranks if isinstance(ranks, int) else None,
        nodes if isinstance(nodes, int) else None,
        row.group,
        row.source,
        row.date,
        row.tool,
        *errors,
    )


def _row(curve: NetworkCurve) -> CurveRow:
    return CurveRow(
        kind=curve.kind or ANY_KIND,
        cost=row_from_curve(curve.cost, curve.title),
        ranks=UNSET if curve.ranks is None else curve.ranks,
        nodes=UNSET if curve.nodes is None else curve.nodes,
        group=curve.group,
        source=curve.source,
        date=curve.date,
        tool=curve.tool,
        mean_error=UNSET if curve.mean_error is None else round(curve.mean_error, 6),
        max_error=UNSET if curve.max_error is None else round(curve.max_error, 6),
    )


def check_date(text: str) -> str:
    """Return a day as ISO 8601 writes it: ``2025-01-31``.

    Raises
    ------
    InputError
        If it is no such day.
    """
    try:
        if len(text) == len("2025-01-31"):
            return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        pass
    raise InputError(f"date: {text!r:.40} is no day like 2025-01-31")

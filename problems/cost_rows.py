"""Costs in files: rows to curves and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from commsched.models import AlphaBeta, BusBandwidth, CostCurve, Kind, PiecewiseLinear, StepTable
from commsched.models.errors import InputError
from commsched.models.units import exact
from commsched.problems.files import decode, read_bytes, write_bytes
from commsched.problems.schema import COSTS_FORMAT, VERSION, CostRow, CostsFile, Head

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
    if exact(float(number), what) != number:
        raise InputError(f"{what}: {value} has no exact decimal form; give a rounded one")
    return float(number)


def read_costs(path: str | Path) -> CostCurve:
    """Return the all-reduce cost of a cost file.

    Raises
    ------
    InputError
        If the file is not a valid cost file.
    """
    data = read_bytes(path)
    check_head(decode(data, Head, path), COSTS_FORMAT, path)
    file = decode(data, CostsFile, path)
    return curve_from_row(file.allreduce, "allreduce", f"{path}: allreduce")


def write_costs(curve: CostCurve, path: str | Path, name: str) -> None:
    """Write the cost file of an all-reduce, at once or not at all.

    Raises
    ------
    InputError
        If the curve has no form in files or the file cannot be written.
    """
    row = row_from_curve(curve, "allreduce")
    file = CostsFile(COSTS_FORMAT, VERSION, row, name)
    write_bytes(path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


def check_head(head: Head, expected: str, path: str | Path) -> None:
    """Check a file's format and version.

    Raises
    ------
    InputError
        If either is missing or another one.
    """
    if head.format != expected:
        raise InputError(f"{path}: format is {_shown(head.format)}, expected {expected!r}")
    if type(head.version) is not int or head.version != VERSION:
        raise InputError(
            f"{path}: version is {_shown(head.version)}, this program reads version {VERSION}"
        )


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]

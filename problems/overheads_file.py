"""The overheads file: what a framework adds to a step, measured once and used for many plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from commsched.models.errors import InputError
from commsched.models.overheads import RATES, TIMES, Overheads
from commsched.problems.cost_rows import plain
from commsched.problems.files import write_bytes
from commsched.problems.own_file import read_own
from commsched.problems.schema import VERSION

OVERHEADS_FORMAT = "commsched/overheads"
MAX_OVERHEADS_BYTES = 1024 * 1024


class OverheadsFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An overheads file; every term is optional, see :class:`~commsched.models.overheads.Overheads`."""

    format: str
    version: int
    name: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    issue_us: int | float | UnsetType = UNSET
    hook_us: int | float | UnsetType = UNSET
    fill_gb_s: int | float | UnsetType = UNSET
    filled: bool | UnsetType = UNSET
    wake_us: int | float | UnsetType = UNSET
    copy_gb_s: int | float | UnsetType = UNSET
    gradient_us: int | float | UnsetType = UNSET
    finish_us: int | float | UnsetType = UNSET


TERMS = (*TIMES, *RATES, "filled")


def read_overheads(path: str | Path) -> Overheads:
    """Read an overheads file; ``-`` means standard input.

    Raises
    ------
    InputError
        If the file is not a valid overheads file; the message names the field.

    Examples
    --------
    A whole file::

        {"format": "commsched/overheads", "version": 1, "issue_us": 12.5, "fill_gb_s": 6.9}
    """
    file = read_own(path, OVERHEADS_FORMAT, OverheadsFile, MAX_OVERHEADS_BYTES)
    given: dict[str, Any] = {
        name: getattr(file, name) for name in TERMS if getattr(file, name) is not UNSET
    }
    try:
        return Overheads(**given)
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix('overheads: ')}") from None


def write_overheads(
    overheads: Overheads, path: str | Path, *, name: str = "", source: str = ""
) -> None:
    """Write overheads as a file, at once or not at all.

    Parameters
    ----------
    overheads
        The terms.
    path
        The file.
    name, source
        A title and where the values come from, for people.

    Raises
    ------
    InputError
        If a value has no exact decimal form, or the file cannot be written.
    """
    terms: dict[str, Any] = {
        term: value if isinstance(value, bool) else plain(value, f"overheads: {term}")
        for term, value in overheads.as_row().items()
    }
    file = OverheadsFile(OVERHEADS_FORMAT, VERSION, name or UNSET, source or UNSET, **terms)
    write_bytes(path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")

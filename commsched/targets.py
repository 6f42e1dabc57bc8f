"""The files that a command writes: what would do harm or fail is refused before anything is read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from commsched.models.errors import InputError, MissingExtraError
from commsched.problems.sources.source import STANDARD_INPUT

PICTURES = (".png", ".svg")


def check_targets(targets: Mapping[str, object], inputs: Iterable[object]) -> None:
    """Check the files that a command is to write.

    Parameters
    ----------
    targets
        The files by option; None is nothing to write.
    inputs
        What the command reads: files, folders, ``-``, or None.

    Raises
    ------
    InputError
        If a target is an input or a file of one, two targets are the same file, a target's folder
        is not there, or a picture has the name of something else.
    MissingExtraError
        If a picture is to be drawn and matplotlib cannot be loaded.

    Examples
    --------
    >>> check_targets({"--out": Path("plan.json"), "--picture": None}, ["problem.json"])
    >>> check_targets({"--out": Path("a.svg"), "--picture": Path("./a.svg")}, [])
    Traceback (most recent call last):
    commsched.models.errors.InputError: --out and --picture: both are to be written to a.svg
    """
    read = [str(one) for one in inputs if one is not None]
    seen: dict[str, str] = {}
    for option, target in targets.items():
        if not isinstance(target, Path):
            continue
        for one in read:
            _refuse_input(option, target, one)
        try:
            real = os.path.realpath(target)
        except ValueError as error:  # no path at all
            raise InputError(f"{option}: {target}: {error}") from None
        first = seen.setdefault(real, option)
        if first != option:
            raise InputError(f"{first} and {option}: both are to be written to {target}")
        try:
            if option == "--picture":
                check_picture(target)
            check_folder(target)
        except InputError as error:
            raise InputError(f"{option}: {error}") from None
    if isinstance(targets.get("--picture"), Path):
        need_matplotlib()


def need_matplotlib() -> None:
    """Load what draws pictures.

    Raises
    ------
    MissingExtraError
        If it cannot be loaded.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        hint = "pip install 'commsched[plot]'"
        raise MissingExtraError(f"pictures need matplotlib: {hint}") from error


def check_picture(path: Path) -> str:
    """Return the suffix of a picture's name, in lower case.

    Raises
    ------
    InputError
        If it is neither ``.png`` nor ``.svg``.
    """
    suffix = path.suffix.lower()
    if suffix not in PICTURES:
        found = f"not in {path.suffix!r}" if suffix else "this one has no suffix"
        raise InputError(f"{path}: a picture's name must end in {' or '.join(PICTURES)}, {found}")
    return suffix


def check_folder(path: Path) -> None:
    """Check that the folder is there in which a file is to be written.

    Raises
    ------
    InputError
        If it is not.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


def _refuse_input(option: str, target: Path, given: str) -> None:
    """Refuse a target that is an input, or an existing file in a folder that is one."""
    source = Path(given)
    try:
        if given == STANDARD_INPUT:
            itself = os.path.samestat(target.stat(), os.fstat(sys.stdin.fileno()))
            if itself and target.is_file():
                raise InputError(f"{option}: {target} is the input itself")
            return
        if target.samefile(source):
            raise InputError(f"{option}: {target} is the input itself")
        if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
            raise InputError(f"{option}: {target} is a file of the input {source}")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        # One is not there, or is no path at all.

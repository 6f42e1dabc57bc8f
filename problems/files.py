"""Reading and writing files safely: bounded, by content, and never half-written."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from commsched.models.errors import InputError

MAX_FILE_BYTES = 256 * 1024 * 1024
"""The largest problem, plan or cost file that is read."""

T = TypeVar("T")


def read_bytes(path: str | Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return a file's content; ``-`` means standard input.

    Raises
    ------
    InputError
        If the file cannot be read, is a folder, is empty or is larger than ``limit`` bytes.
    """
    name = str(path)
    try:
        if name == "-":
            data = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    if len(data) > limit:
        raise InputError(f"{name}: is larger than {limit} bytes")
    data = data.removeprefix(b"\xef\xbb\xbf")  # a byte order mark says nothing in UTF-8
    if not data.strip():
        raise InputError(f"{name}: is empty")
    return data


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file at once: to a temporary file beside it, which then takes its name.

    Raises
    ------
    InputError
        If the file cannot be written; an existing one is then unharmed.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        if target.is_dir():
            raise InputError(f"{target}: is a folder")
        if target.exists() and not target.is_file():
            # A pipe or a device cannot be replaced, only written to.
            target.write_bytes(data)
            return
        target = target.resolve()  # a link stays a link
        if target.exists() and not target.stat().st_mode & 0o222:
            raise InputError(f"{path}: is write-protected")  # replacing it would not ask
        handle, temporary = tempfile.mkstemp(prefix=".commsched-", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(_mode(target))
        Path(temporary).replace(target)
        temporary = None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _mode(target: Path) -> int:
    """Return the permissions that a file has, or would get if it were new."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def decode(data: bytes | msgspec.Raw, type_: type[T], path: str | Path, place: str = "") -> T:
    """Return JSON decoded to a type, or say in one line what does not fit, and where.

    Parameters
    ----------
    data
        The JSON text.
    type_
        What it must be.
    path
        The file, for messages.
    place
        Where in the file the text stands, if it is a part of it.

    Raises
    ------
    InputError
        If the JSON is malformed, truncated, nested too deeply, or of another shape.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {_readable(str(error), place)}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: is not valid JSON: {error}{_no_number(error, data)}") from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None


def _no_number(error: msgspec.DecodeError, data: bytes | msgspec.Raw) -> str:
    """Return what is to be said where other programs write a number that JSON does not have."""
    place = _AT_BYTE.search(str(error))
    if place is None:
        return ""
    found = _NO_NUMBER.match(bytes(data), int(place[1]))
    return f": {found[0].decode()} is no number" if found else ""


_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_NO_NUMBER = re.compile(rb"NaN|Infinity")


def _readable(message: str, place: str) -> str:
    """Put the place first: ``Expected `int`, got `str` - at `$.a[0].b``` -> ``a[0].b: expected ...``."""
    text, separator, inner = message.rpartition(" - at `")
    if separator:
        place = (place + inner.rstrip("`").removeprefix("$")).lstrip(".")
    else:
        text = message
    text = text[:1].lower() + text[1:]
    return f"{place}: {text}" if place else text

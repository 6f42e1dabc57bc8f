"""A file in an archive, and the limits that archives have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from commsched.models.errors import InputError
from commsched.models.units import GIB, format_bytes

MAX_MEMBERS = 4096
"""The most files that an archive may hold."""
MAX_ARCHIVE_BYTES = 16 * GIB
"""The most bytes that an archive may hold once it is decompressed."""

Open = Callable[[], IO[bytes]]
"""Opens the file that is or holds an archive, at its start."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive.

    Attributes
    ----------
    name
        With its folders; on one line.
    pieces
        Yields its content as it is stored; raises ``InputError`` if that is damaged.
    """

    name: str
    pieces: Callable[[], Iterator[bytes]]


def too_many(name: str, limit: int) -> InputError:
    """Return the error that says that an archive holds too many files."""
    return InputError(f"{name}: the archive holds more than {limit} files")


def too_large(name: str, limit: int) -> InputError:
    """Return the error that says that an archive holds too much."""
    return InputError(f"{name}: the archive holds more than {format_bytes(limit)}, the limit")

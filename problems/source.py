"""What is read: a file, or a member of an archive, decompressed and within limits."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commsched.models.errors import InputError
from commsched.problems.trace_bytes import MAX_FILE_BYTES, MAX_TEXT_BYTES, read_trace_bytes

START_BYTES = 1 << 20
"""How much of a file is looked at to find out what it is."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a member of an archive; ``str()`` is its name for messages.

    Attributes
    ----------
    path
        The file on the disk.
    member
        The member's name where the file is an archive.
    """

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        """The name without folders."""
        return Path(self.member or self.path).name

    def read(
        self, *, max_text_bytes: int = MAX_TEXT_BYTES, max_file_bytes: int = MAX_FILE_BYTES
    ) -> bytes:
        """Return the content, decompressed where it is gzip.

        Raises
        ------
        InputError
            If it cannot be read, is empty or breaks a limit.
        """
        return read_trace_bytes(
            self.path, max_text_bytes=max_text_bytes, max_file_bytes=max_file_bytes
        )

    @contextlib.contextmanager
    def on_disk(self) -> Iterator[Path]:
        """Give the decompressed content as a file, for libraries that need a path."""
        with tempfile.NamedTemporaryFile(suffix=self.name) as file:
            file.write(self.read())
            file.flush()
            yield Path(file.name)


def sources(path: str | Path) -> list[Source]:
    """Return what a path holds: the file itself, a folder's files, or an archive's members.

    Raises
    ------
    InputError
        If there is nothing to read.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"{path}: No such file or directory")
    return [Source(file)]

"""Telling how much of the files was read, without the readers knowing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from commsched.problems.sources.source import Source

Tell = Callable[[int, int], None]
"""Takes how many bytes were read, and of how many (0: not known); neither ever falls."""


def counted(files: list[Source], tell: Tell | None) -> list[Source]:
    """Return the same files, which now tell how much of them was read.

    Bytes are counted as they are stored, and once however often they are read.

    Parameters
    ----------
    files
        What is to be read.
    tell
        Is called as reading goes on; None if nobody wants to know.
    """
    if tell is None:
        return files
    count = _Count(files, tell)
    return [
        _Counted(file.path, file.member, file.stored, count, at) for at, file in enumerate(files)
    ]


class _Count:
    """How much was read of each of several files."""

    def __init__(self, files: Sequence[Source], tell: Tell) -> None:
        self.tell = tell
        self.sizes = [_stored_bytes(file) for file in files]
        self.known = all(self.sizes)
        self.read = [0] * len(files)
        self.done, self.total = 0, sum(self.sizes)

    def reached(self, at: int, position: int) -> None:
        """Note how far into a file someone has read; a second pass over it tells nothing new."""
        before = self.read[at]
        if position <= before:
            return
        self.read[at] = position
        self.done += position - before
        # A file may grow while it is read.
        self.total += max(0, position - max(self.sizes[at], before))
        self.tell(self.done, self.total if self.known else 0)


def _stored_bytes(file: Source) -> int:
    """Return how many bytes a file has on the disk; 0 for what is not a file of its own."""
    if file.stored is not None or file.member:
        return 0
    try:
        return file.path.stat().st_size
    except (OSError, ValueError):
        return 0  # whoever reads it says what is wrong


@dataclass(frozen=True, slots=True)
class _Counted(Source):
    """A source that tells how much of it was read."""

    count: _Count | None = field(default=None, repr=False, compare=False)
    at: int = field(default=0, repr=False, compare=False)

    def _stored(self, max_file_bytes: int) -> Iterator[bytes]:
        position = 0
        for piece in super(_Counted, self)._stored(max_file_bytes):
            position += len(piece)
            if self.count is not None:
                self.count.reached(self.at, position)
            yield piece

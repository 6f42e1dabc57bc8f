"""What is read: a file, a member of an archive, or standard input, within limits."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from commsched.models.errors import InputError
from commsched.problems.files import read_bytes
from commsched.problems.sources.archive import members
from commsched.problems.sources.archive_member import MAX_MEMBERS, Member
from commsched.problems.sources.trace_bytes import (
    MAX_FILE_BYTES,
    MAX_TEXT_BYTES,
    file_pieces,
    is_gzip,
    joined,
    text_pieces,
)

START_BYTES = 1 << 20
"""How much of a file is looked at to find out what it is."""
STANDARD_INPUT = "-"
_DIGITS = re.compile(r"([0-9]+)")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
_MAX_CHILDREN = 100_000
_HIDDEN = ("__MACOSX", "__pycache__")


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a member of an archive; ``str()`` is its name for messages.

    Attributes
    ----------
    path
        The file on the disk; ``-`` is standard input.
    member
        The member's name where the file is an archive.
    stored
        Yields the content as it is stored; needed only for members and for what was piped in.
    """

    path: Path
    member: str = ""
    stored: Callable[[], Iterator[bytes]] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        """The name without folders."""
        return Path(self.member or self.path).name

    def pieces(
        self, *, max_text_bytes: int = MAX_TEXT_BYTES, max_file_bytes: int = MAX_FILE_BYTES
    ) -> Iterator[bytes]:
        """Yield the content piece by piece, decompressed where it is gzip.

        Parameters
        ----------
        max_text_bytes, max_file_bytes
            The most bytes that it may hold once it is decompressed, and that a file may have on
            the disk; an archive has limits of its own.

        Raises
        ------
        InputError
            If it cannot be read, is empty or breaks a limit.
        """
        return text_pieces(self._stored(max_file_bytes), str(self), max_text_bytes)

    def read(
        self, *, max_text_bytes: int = MAX_TEXT_BYTES, max_file_bytes: int = MAX_FILE_BYTES
    ) -> bytes:
        """Return the content, decompressed where it is gzip.

        Raises
        ------
        InputError
            If it cannot be read, is empty or breaks a limit.
        """
        return joined(self.pieces(max_text_bytes=max_text_bytes, max_file_bytes=max_file_bytes))

    def start(self) -> bytes:
        """Return the first MiB of the decompressed content, by which readers know their files.

        What is damaged further on does no harm here.

        Raises
        ------
        InputError
            If nothing at all can be read.
        """
        start = b""
        try:
            for piece in self.pieces():
                start += piece[: START_BYTES - len(start)]
                if len(start) == START_BYTES:
                    break
        except InputError:
            if not start:
                raise
        return start

    @contextlib.contextmanager
    def on_disk(self) -> Iterator[Path]:
        """Give the decompressed content as a file, for libraries that need a path.

        It is the file itself where it is not compressed, so it must only be read; else it is a
        temporary file, gone afterwards.

        Raises
        ------
        InputError
            If the content cannot be read, or there is no room for the temporary file.
        """
        if self.stored is None and not self.member and not self._is_compressed():
            yield self.path
            return
        suffix = "-" + _UNUSUAL.sub("_", self.name)[-60:]
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=suffix))
                for piece in self.pieces():
                    file.write(piece)
                file.flush()
            except OSError as error:
                raise InputError(
                    f"{self}: cannot be put into a temporary file: {error.strerror or error}"
                ) from None
            yield Path(file.name)

    def _is_compressed(self) -> bool:
        for piece in self._stored(MAX_FILE_BYTES):
            return is_gzip(piece)
        raise InputError(f"{self}: the file is empty")

    def _stored(self, max_file_bytes: int) -> Iterator[bytes]:
        if self.stored is not None:
            return _or_refusal(self.stored, str(self))
        if not self.member:
            return file_pieces(self.path, max_file_bytes)
        for source in sources(self.path):
            if source.member == self.member and source.stored is not None:
                return _or_refusal(source.stored, str(self))
        raise InputError(f"{self.path}: holds no member {self.member!r}")


def sources(path: str | Path) -> list[Source]:
    """Return what a path holds: the file itself, a folder's files, or an archive's members.

    Archives are tar, tar in gzip, and zip, recognised by content; nothing is unpacked. Of a
    folder, the files in it are meant, or, where it has none, those in its sub-folders, one level
    down. Hidden files, and what macOS adds to archives, are left out. The order is that of the
    names, with ``rank10`` after ``rank9``. ``-`` is standard input, which is read at once.

    Parameters
    ----------
    path
        A file, a folder or ``-``.

    Raises
    ------
    InputError
        If there is nothing to read, or more than 4096 files.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for rank in (10, 9):
    ...         _ = Path(folder, f"rank{rank}.json").write_text("{}")
    ...     [source.name for source in sources(folder)]
    ['rank9.json', 'rank10.json']
    """
    if str(path) == STANDARD_INPUT:
        return _piped(Path(path), read_bytes(path, MAX_FILE_BYTES))
    file = Path(path)
    try:
        if file.is_dir():
            return _in_folder(file)
        if file.exists() and not file.is_file():  # A pipe, which can be read only once.
            return _piped(file, joined(file_pieces(file)))
        found = members(lambda: file.open("rb"), str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # A NUL in the name.
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: {error}") from None
    return [Source(file)] if found is None else _members(file, found)


def _piped(path: Path, data: bytes) -> list[Source]:
    def open_() -> IO[bytes]:
        return io.BytesIO(data)

    found = members(open_, str(path)) if data else None
    if found is None:
        return [Source(path, stored=lambda: iter([data] if data else []))]
    return _members(path, found)


def _members(path: Path, found: list[Member]) -> list[Source]:
    shown = [member for member in found if not _is_hidden(member.name)]
    if not shown:
        raise InputError(f"{path}: the archive holds no files")
    shown.sort(key=lambda member: _natural(member.name))
    return [Source(path, member.name, member.pieces) for member in shown]


def _in_folder(folder: Path) -> list[Source]:
    children = _children(folder)
    files = [child for child in children if child.is_file()]
    if not files:
        for child in children:
            if child.is_dir():
                files += [inner for inner in _children(child) if inner.is_file()]
            if len(files) > MAX_MEMBERS:
                break
    if not files:
        raise InputError(f"{folder}: the folder holds no files")
    if len(files) > MAX_MEMBERS:
        raise InputError(f"{folder}: the folder holds more than {MAX_MEMBERS} files")
    files.sort(key=lambda file: _natural(file.relative_to(folder).as_posix()))
    return [Source(file) for file in files]


def _children(folder: Path) -> list[Path]:
    found = list(itertools.islice(folder.iterdir(), _MAX_CHILDREN))
    if len(found) == _MAX_CHILDREN:
        raise InputError(f"{folder}: the folder holds {_MAX_CHILDREN} files or more")
    return [child for child in found if not _is_hidden(child.name)]


def _is_hidden(name: str) -> bool:
    return any(
        part in _HIDDEN or (part.startswith(".") and part.strip(".")) for part in name.split("/")
    )


def _natural(name: str) -> list[tuple[str, int, str]]:
    """Return a key by which numbers in names sort by value; it never makes a number of them."""
    parts = _DIGITS.split(name)
    digits = [part.lstrip("0") for part in parts[1::2]] + [""]
    return [(text, len(d), d) for text, d in zip(parts[::2], digits, strict=True)] + [(name, 0, "")]


def _or_refusal(stored: Callable[[], Iterator[bytes]], name: str) -> Iterator[bytes]:
    try:
        yield from stored()
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None

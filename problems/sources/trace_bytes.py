"""Reading content piece by piece within stated limits; gzip is recognised by content."""

from __future__ import annotations

import codecs
import io
import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from commsched.models.errors import InputError
from commsched.models.units import GIB, format_bytes

MAX_FILE_BYTES = 2 * GIB
"""The largest file that is read, as it lies on the disk."""
MAX_TEXT_BYTES = 4 * GIB
"""The most bytes that a file may hold once it is decompressed."""

MOST_TIMES = 250
"""Gzip data that grow beyond so many times their size are no recording: those of real traces are 10 to
50 times smaller than their text, blanks a thousand times."""
FREE_BYTES = 256 << 20
"""Up to so much text they may grow as they like."""

_CHUNK = 1 << 20
_IN, _OUT = 1 << 16, 1 << 20
_MOST_PARTS = 1 << 20
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's word for gzip: header and checksum are its business
_LOOKED_AT = 512
_ARCHIVES = ((0, b"PK\x03\x04", "zip"), (257, b"ustar", "tar"))
_OTHER_COMPRESSION = (
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)


def read_trace_bytes(
    path: Path, *, max_text_bytes: int = MAX_TEXT_BYTES, max_file_bytes: int = MAX_FILE_BYTES
) -> bytes:
    """Return a file's bytes, decompressed where they are gzip.

    Parameters
    ----------
    path
        The file.
    max_text_bytes
        The most bytes that it may hold once it is decompressed. Reading stops one block later,
        so a compression bomb costs no more than this.
    max_file_bytes
        The largest file that is opened.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, too large, an archive, or damaged gzip data.
    """
    return joined(text_pieces(file_pieces(path, max_file_bytes), str(path), max_text_bytes))


def file_pieces(path: Path, max_file_bytes: int = MAX_FILE_BYTES) -> Iterator[bytes]:
    """Yield a file's bytes as they lie on the disk.

    Raises
    ------
    InputError
        If the file cannot be read or is too large.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > max_file_bytes:
                raise InputError(
                    f"{path}: the file has {format_bytes(size)}, "
                    f"at most {format_bytes(max_file_bytes)} are read"
                )
            yield from pieces_of(file, max_file_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # A NUL in the name.
        raise InputError(f"{path!s}: cannot be read: {error}") from None


def pieces_of(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield at most ``size`` bytes of an open file, from where it stands."""
    while size > 0 and (piece := file.read(min(size, _CHUNK))):
        size -= len(piece)
        yield piece


def joined(pieces: Iterable[bytes]) -> bytes:
    """Return the pieces as one; they do not all exist twice at any time."""
    whole = io.BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()


def text_pieces(raw: Iterator[bytes], name: str, max_text_bytes: int) -> Iterator[bytes]:
    """Yield content in pieces, decompressed where it is gzip.

    Parameters
    ----------
    raw
        The content as it is stored.
    name
        What it is called in messages.
    max_text_bytes
        The most bytes that it may hold once it is decompressed.

    Raises
    ------
    InputError
        If it is empty, too large, an archive, or gzip data that are damaged or grow as no recording
        does.
    """
    start = starting(raw, len(_GZIP))
    raw = itertools.chain([start], raw)
    compressed = start.startswith(_GZIP)
    pieces = iter(Inflater(raw, name)) if compressed else raw
    start = starting(pieces, _LOOKED_AT)
    if not start:
        raise InputError(f"{name}: the file is empty")
    _refuse_archive(name, start)
    total = 0
    for piece in itertools.chain([start], pieces):
        total += len(piece)
        if total > max_text_bytes:
            what = "decompresses to" if compressed else "has"
            raise InputError(
                f"{name}: the file {what} more than {format_bytes(max_text_bytes)}, the limit"
            )
        yield piece


def starting(pieces: Iterator[bytes], size: int) -> bytes:
    """Return the first pieces, as many as it takes to have ``size`` bytes if there are so many."""
    start = next(pieces, b"")
    while len(start) < size and (piece := next(pieces, b"")):
        start += piece
    return start


def is_gzip(start: bytes) -> bool:
    """Return whether content that starts so is gzip."""
    return start.startswith(_GZIP)


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in gzip data from which they can be read again.

    Attributes
    ----------
    consumed
        How many compressed bytes come before it.
    engine
        What zlib knew there: the last 32 KiB of text.
    """

    consumed: int
    engine: Any


class Inflater:
    """The text of gzip data, in blocks of at most 1 MiB.

    Parameters
    ----------
    raw
        The gzip data from the mark on.
    name
        What they are called in messages.
    mark
        Where to go on; by default at the start.
    """

    def __init__(self, raw: Iterator[bytes], name: str, mark: Mark | None = None) -> None:
        self._raw = raw
        self._name = name
        self._engine: Any = mark.engine.copy() if mark else zlib.decompressobj(_GZIP_WINDOW)
        self._pending = b""
        self._consumed = mark.consumed if mark else 0
        self._text = 0
        self._parts = 1
        self._mark = mark or Mark(0, self._engine.copy())
        self._small: Iterator[bytes] = iter(())

    @property
    def mark(self) -> Mark:
        """The place where the block that was returned last begins."""
        return self._mark

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next block.

        Raises
        ------
        InputError
            If the gzip data are damaged, end early or grow as no recording does.
        """
        self._mark = Mark(self._consumed, self._engine.copy())
        while True:
            if self._engine.eof and not self._next_member():
                raise StopIteration
            if not self._pending:
                self._pending = self._more()
                if not self._pending:
                    raise InputError(
                        f"{self._name}: the gzip data end early after {format_bytes(self._text)}: "
                        "the file was cut off, copy it again"
                    )
            try:
                block: bytes = self._engine.decompress(self._pending, _OUT)
            except zlib.error as error:
                raise self._damaged(str(error)) from None
            rest = self._engine.unused_data if self._engine.eof else self._engine.unconsumed_tail
            self._consumed += len(self._pending) - len(rest)
            self._pending = rest
            if block:
                self._text += len(block)
                if self._text > max(FREE_BYTES, MOST_TIMES * self._consumed):
                    raise InputError(
                        f"{self._name}: {format_bytes(self._consumed)} of gzip data decompress to "
                        f"{format_bytes(self._text)}, more than {MOST_TIMES} times as much: no "
                        "recording does"
                    )
                return block

    def _more(self) -> bytes:
        # Small bites: what zlib leaves over is copied with every block.
        bite = next(self._small, b"")
        if not bite:
            piece = next(self._raw, b"")
            self._small = (piece[at : at + _IN] for at in range(0, len(piece), _IN))
            bite = next(self._small, b"")
        return bite

    def _next_member(self) -> bool:
        """Return whether more gzip data follow, after any padding with zeros."""
        while True:
            kept = self._pending.lstrip(b"\0")
            self._consumed += len(self._pending) - len(kept)
            self._pending = kept
            if len(kept) >= len(_GZIP):
                break
            more = self._more()
            if not more:
                break
            self._pending += more
        if not self._pending:
            return False
        if not self._pending.startswith(_GZIP):
            raise self._damaged("bytes that are no gzip data follow them")
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise self._damaged(f"they consist of more than {_MOST_PARTS} parts")
        self._engine = zlib.decompressobj(_GZIP_WINDOW)
        return True

    def _damaged(self, why: str) -> InputError:
        return InputError(f"{self._name}: the gzip data are damaged: {why}")


def _refuse_archive(name: str, data: bytes) -> None:
    for offset, magic, kind in _ARCHIVES:
        if data[offset : offset + len(magic)] == magic:
            raise InputError(
                f"{name}: this is a {kind} archive: unpack it and name one trace in it"
            )
    for magic, kind in _OTHER_COMPRESSION:
        if data.startswith(magic):
            raise InputError(
                f"{name}: this is {kind} data: decompress it first (gzip is read as is)"
            )


def valid_utf8(data: bytes, repairs: Counter[str]) -> bytes:
    """Return the bytes without a byte order mark and with bad UTF-8 replaced.

    Parameters
    ----------
    data
        Any bytes.
    repairs
        Gets the number of replaced sequences.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    if data.isascii() or is_utf8(data):
        return data
    text = data.decode("utf-8", errors="replace")
    mark = "\N{REPLACEMENT CHARACTER}"
    # Marks that were in the file already are no repairs.
    repairs["bad UTF-8 replaced"] += text.count(mark) - data.count(mark.encode())
    return text.encode()


def is_utf8(data: bytes) -> bool:
    """Return whether the bytes are valid UTF-8; they are not copied as a whole."""
    if data.isascii():
        return True
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), _CHUNK):
            decoder.decode(view[start : start + _CHUNK])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True

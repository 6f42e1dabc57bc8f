"""The members of tar archives, plain or in gzip, in all the dialects that are met."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from commsched.models.errors import InputError, printable
from commsched.models.units import MIB
from commsched.problems.sources.archive_member import (
    MAX_ARCHIVE_BYTES,
    MAX_MEMBERS,
    Member,
    Open,
    too_large,
    too_many,
)
from commsched.problems.sources.trace_bytes import Inflater, Mark, pieces_of

BLOCK = 512
"""Tar archives consist of blocks of so many bytes."""
_MAX_HEADERS = 100_000
_MAX_NAME_BYTES = 4096
_MAX_RECORD_BYTES = 1 * MIB
_MAX_RECORDS_BYTES = 64 * MIB
# Kinds of headers.
_FILE, _WITHOUT_DATA, _OF_THE_NEXT, _OF_OTHERS = b"0\x007", b"123456", b"LxX", b"gK"
_SPARSE = b"GNU.sparse"
_PAX_RECORD = re.compile(rb"([0-9]{1,8}) ([^=\n]{1,200})=")


class Tape(Protocol):
    """A tar archive's bytes, one after the other."""

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""

    def skip(self, size: int) -> bool:
        """Go on; return whether there were so many bytes."""

    def from_here(self, size: int) -> Callable[[], Iterator[bytes]]:
        """Return what yields the next bytes, now or later."""


class PlainTape:
    """The tape of a tar archive as it lies in a file."""

    def __init__(self, open_: Open, file: IO[bytes]) -> None:
        self._open, self._file = open_, file
        self._size = file.seek(0, io.SEEK_END)
        file.seek(0)

    def read(self, size: int) -> bytes:
        """See :class:`Tape`."""
        return self._file.read(size)

    def skip(self, size: int) -> bool:
        """See :class:`Tape`."""
        return self._file.seek(size, io.SEEK_CUR) <= self._size

    def from_here(self, size: int) -> Callable[[], Iterator[bytes]]:
        """See :class:`Tape`."""
        offset = self._file.tell()

        def pieces() -> Iterator[bytes]:
            with self._open() as file:
                file.seek(offset)
                yield from pieces_of(file, size)

        return pieces


class GzipTape:
    """The tape of a tar archive in gzip.

    It remembers how zlib stood at each member, so that none is reached through those before it.
    """

    def __init__(self, open_: Open, name: str, text: Inflater) -> None:
        self._open, self._name, self._text = open_, name, text
        self._block = b""
        self._at = 0
        self._mark: Mark = text.mark

    def read(self, size: int) -> bytes:
        """See :class:`Tape`."""
        parts: list[bytes] = []
        while size > 0 and self._fill():
            part = self._block[self._at : self._at + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        return b"".join(parts)

    def skip(self, size: int) -> bool:
        """See :class:`Tape`."""
        while size > 0 and self._fill():
            step = min(size, len(self._block) - self._at)
            self._at += step
            size -= step
        return size == 0

    def from_here(self, size: int) -> Callable[[], Iterator[bytes]]:
        """See :class:`Tape`."""
        self._fill()
        mark, skipped = self._mark, self._at

        def pieces() -> Iterator[bytes]:
            left = size
            with self._open() as file:
                file.seek(mark.consumed)
                before = skipped
                for block in Inflater(pieces_of(file, MAX_ARCHIVE_BYTES), self._name, mark):
                    piece = block[before : before + left]
                    before = 0
                    left -= len(piece)
                    yield piece
                    if not left:
                        return

        return pieces

    def _fill(self) -> bool:
        """Return whether something is left to read, after getting it."""
        if self._at == len(self._block):
            self._block, self._at = next(self._text, b""), 0
            # One mark for all members of a block: it holds 32 KiB.
            self._mark = self._text.mark
        return bool(self._block)


def is_tar(header: bytes) -> bool:
    """Return whether content that starts with this block is a tar archive."""
    if len(header) < BLOCK:
        return False
    return header[257:262] == b"ustar" or _checksum_fits(header)


def _checksum_fits(header: bytes) -> bool:
    stated = _number(header[148:156])
    return header[0] != 0 and stated == sum(header) - sum(header[148:156]) + 8 * ord(" ")


def _number(field: bytes) -> int | None:
    """Return a number of a header, octal or (GNU) in base 256; None if it is none."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if not text:
        return 0
    return int(text, 8) if re.fullmatch(rb"[0-7]+", text) else None


def tar_members(tape: Tape, name: str) -> list[Member]:
    """Return the files in a tar archive.

    Parameters
    ----------
    tape
        The archive.
    name
        What it is called in messages.

    Raises
    ------
    InputError
        If it is damaged or breaks a limit.
    """
    found: dict[str, Member] = {}
    total = spoken = 0
    stated: dict[bytes, bytes] = {}  # What headers of their own say of the next file.
    for count in itertools.count():
        header = tape.read(BLOCK)
        if not header.strip(b"\0"):
            return list(found.values())
        if len(header) < BLOCK:
            raise _cut(name)
        if count == _MAX_HEADERS or len(found) > MAX_MEMBERS:
            raise too_many(name, MAX_MEMBERS)
        kind = header[156:157]
        size = _size(header, kind, stated)
        if not _checksum_fits(header) or size is None:
            raise InputError(f"{name}: the tar archive is damaged: header {count} is none")
        total += BLOCK + size
        if total > MAX_ARCHIVE_BYTES:
            raise too_large(name, MAX_ARCHIVE_BYTES)
        if kind in _OF_THE_NEXT:
            spoken += size
            if size > _MAX_RECORD_BYTES or spoken > _MAX_RECORDS_BYTES:
                raise InputError(f"{name}: the tar archive is damaged: a name of {size} bytes")
            data = tape.read(size)
            if len(data) < size or not tape.skip(-size % BLOCK):
                raise _cut(name)
            stated |= {b"path": data.rstrip(b"\0")} if kind == b"L" else _pax_records(data)
            length = len(stated.get(b"path", b""))
            if length > _MAX_NAME_BYTES:
                raise InputError(f"{name}: the tar archive is damaged: a name of {length} bytes")
            continue
        if kind == b"S" or _SPARSE in stated:
            raise InputError(f"{name}: the tar archive holds a file with holes (GNU sparse)")
        if kind in _FILE:
            member = _one_line(stated.get(b"path", _tar_name(header)))
            if not member.endswith("/"):
                # A name that comes twice was replaced by the later one.
                found[member] = Member(member, tape.from_here(size))
        if kind not in _OF_OTHERS:
            stated = {}
        if not tape.skip(size + -size % BLOCK):
            raise _cut(name)
    raise AssertionError("unreachable")


def _size(header: bytes, kind: bytes, stated: dict[bytes, bytes]) -> int | None:
    """Return how many bytes follow a header; None if it does not say."""
    if kind in _WITHOUT_DATA:
        return 0
    text = stated.get(b"size", b"")
    if kind in _FILE and text:
        return int(text) if re.fullmatch(rb"[0-9]{1,18}", text) else None
    return _number(header[124:136])


def _cut(name: str) -> InputError:
    return InputError(f"{name}: the tar archive ends early: it was cut off, copy it again")


def _tar_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """Return the records that matter of a header of the POSIX sort, up to a bad one."""
    records: dict[bytes, bytes] = {}
    at = 0
    while match := _PAX_RECORD.match(data, at):
        end = at + int(match[1])
        if end <= match.end():
            break
        if match[2].startswith(_SPARSE):
            records[_SPARSE] = b""
        elif match[2] in (b"path", b"size"):
            records[match[2]] = data[match.end() : end - 1]
        at = end
    return records


def _one_line(name: bytes) -> str:
    return printable(name.decode("utf-8", errors="replace"))

"""The members of zip archives. The standard library reads the list, within limits."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import cast

from commsched.models.errors import InputError, printable
from commsched.models.units import MIB, format_bytes
from commsched.problems.sources.archive_member import (
    MAX_ARCHIVE_BYTES,
    MAX_MEMBERS,
    Member,
    Open,
    too_large,
    too_many,
)
from commsched.problems.sources.trace_bytes import pieces_of

_MAX_DIRECTORY = 4 * MIB
_MAX_BITE, _MAX_BLOCK = 1 << 16, 1 << 20
_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError, OverflowError, EOFError,
    LookupError, struct.error,
)  # fmt: skip


class _Bounded(io.BufferedReader):
    """A file that refuses large reads: zipfile reads the whole list of members at once."""

    def read(self, size: int | None = -1) -> bytes:
        """Return the bytes; raise ValueError if they are too many."""
        asked = _MAX_DIRECTORY + 1
        if size is not None and size >= 0:
            asked = min(asked, size)
        data = super().read(asked)
        if len(data) > _MAX_DIRECTORY:
            raise ValueError(f"its list of members has more than {format_bytes(_MAX_DIRECTORY)}")
        return data


def is_zip(start: bytes) -> bool:
    """Return whether content that starts so is a zip archive."""
    return start.startswith(_STARTS)


def zip_members(open_: Open, name: str) -> list[Member]:
    """Return the files in a zip archive.

    Parameters
    ----------
    open_
        Opens it.
    name
        What it is called in messages.

    Raises
    ------
    InputError
        If it is damaged or breaks a limit.
    """
    try:
        with (
            open_() as raw,
            _Bounded(cast(io.RawIOBase, raw)) as bounded,
            zipfile.ZipFile(bounded) as archive,
        ):
            infos = [info for info in archive.infolist() if _is_file(info)]
    except _ERRORS as error:
        raise InputError(f"{name}: the zip archive is damaged: {error}") from None
    if len(infos) > MAX_MEMBERS:
        raise too_many(name, MAX_MEMBERS)
    if sum(info.file_size for info in infos) > MAX_ARCHIVE_BYTES:
        raise too_large(name, MAX_ARCHIVE_BYTES)
    found: dict[str, Member] = {}
    for info in infos:
        member = printable(info.filename)
        found[member] = Member(member, _zip_pieces(open_, f"{name}: {member}", info))
    return list(found.values())


def _is_file(info: zipfile.ZipInfo) -> bool:
    mode = info.external_attr >> 16
    return not info.is_dir() and (stat.S_IFMT(mode) == 0 or stat.S_ISREG(mode))


def _zip_pieces(open_: Open, name: str, info: zipfile.ZipInfo) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        if info.flag_bits & 1:
            raise InputError(f"{name}: is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{name}: is compressed in a way that is not read (zip method "
                f"{info.compress_type}): unpack it first"
            )
        with open_() as file:
            file.seek(info.header_offset)
            header = file.read(30)
            if len(header) < 30 or not header.startswith(_STARTS[0]):
                raise InputError(f"{name}: the zip archive is damaged: it has no such member")
            lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(
                header[28:30], "little"
            )
            file.seek(info.header_offset + 30 + lengths)
            stored = pieces_of(file, info.compress_size)
            deflated = info.compress_type == zipfile.ZIP_DEFLATED
            yield from _checked(_inflated(stored) if deflated else stored, name, info)

    return pieces


def _checked(pieces: Iterator[bytes], name: str, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's pieces; refuse it where length or checksum are not those stated."""
    length = checksum = 0
    try:
        for piece in pieces:
            length += len(piece)
            checksum = zlib.crc32(piece, checksum)
            if length > info.file_size:
                break
            yield piece
    except zlib.error as error:
        raise InputError(f"{name}: the zip archive is damaged: {error}") from None
    if length != info.file_size or checksum != info.CRC:
        raise InputError(f"{name}: the zip archive is damaged: length or checksum differ")


def _inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    engine = zlib.decompressobj(-15)
    for piece in pieces:
        for at in range(0, len(piece), _MAX_BITE):
            bite = piece[at : at + _MAX_BITE]
            while bite and not engine.eof:
                block = engine.decompress(bite, _MAX_BLOCK)
                bite = engine.unconsumed_tail
                if block:
                    yield block
    if rest := engine.flush():
        yield rest

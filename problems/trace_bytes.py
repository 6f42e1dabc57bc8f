"""Reading a file's bytes within stated limits; gzip is recognised by content, never by suffix."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections import Counter
from pathlib import Path
from typing import IO

from commsched.models.errors import InputError
from commsched.models.units import GIB, format_bytes

MAX_FILE_BYTES = 2 * GIB
"""The largest file that is read, as it lies on the disk."""
MAX_TEXT_BYTES = 4 * GIB
"""The most bytes that a file may hold once it is decompressed."""

_CHUNK = 1 << 22
_GZIP = b"\x1f\x8b"
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
        The most bytes that it may hold once it is decompressed. Reading stops one byte later, so
        a compression bomb costs no more than this.
    max_file_bytes
        The largest file that is opened.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, too large, an archive, or damaged gzip data.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > max_file_bytes:
                raise InputError(
                    f"{path}: the file has {format_bytes(size)}, "
                    f"at most {format_bytes(max_file_bytes)} are read"
                )
            compressed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            data = (
                _inflate(file, path, max_text_bytes) if compressed else _read(file, max_file_bytes)
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > max_text_bytes:
        what = "decompresses to" if compressed else "has"
        raise InputError(
            f"{path}: the file {what} more than {format_bytes(max_text_bytes)}, the limit"
        )
    if not data:
        raise InputError(f"{path}: the file is empty")
    _refuse_archive(path, data)
    return data


def _read(file: IO[bytes], limit: int) -> bytes:
    return file.read(limit + 1)


def _inflate(file: IO[bytes], path: Path, limit: int) -> bytes:
    data = bytearray()
    try:
        with gzip.GzipFile(fileobj=file) as text:
            while len(data) <= limit:
                piece = text.read(min(_CHUNK, limit + 1 - len(data)))
                if not piece:
                    break
                data += piece
    except EOFError:
        raise InputError(
            f"{path}: the gzip data end early after {format_bytes(len(data))}: "
            "the file was cut off, copy it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the gzip data are damaged: {error}") from None
    return bytes(data)


def _refuse_archive(path: Path, data: bytes) -> None:
    for offset, magic, kind in _ARCHIVES:
        if data[offset : offset + len(magic)] == magic:
            raise InputError(
                f"{path}: this is a {kind} archive: unpack it and name one trace in it"
            )
    for magic, kind in _OTHER_COMPRESSION:
        if data.startswith(magic):
            raise InputError(
                f"{path}: this is {kind} data: decompress it first (gzip is read as is)"
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
    if data.isascii() or _is_utf8(data):
        return data
    text = data.decode("utf-8", errors="replace")
    mark = "\N{REPLACEMENT CHARACTER}"
    # Marks that were in the file already are no repairs.
    repairs["bad UTF-8 replaced"] += text.count(mark) - data.count(mark.encode())
    return text.encode()


def _is_utf8(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), _CHUNK):
            decoder.decode(view[start : start + _CHUNK])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True

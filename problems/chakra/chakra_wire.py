"""Protocol buffers as bytes: fields of a message, and messages one after another.

Only what Chakra's traces need, within the bounds of the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
MAX_FIELDS = 2_000_000
"""The most fields of one message; in memory each takes many times its bytes."""
_MAX_PACKED = 20_000_000
"""The most bytes of one list of numbers."""

Value = int | memoryview
Fields = list[tuple[int, int, Value]]
"""(field number, wire type, value) of each field of a message."""


class WireError(ValueError):
    """The bytes are no protocol buffer."""


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that starts at a position, and where it ends.

    Examples
    --------
    >>> varint(memoryview(bytes([0xAC, 0x02])), 0)
    (300, 2)
    """
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1  # The common case first.
    value = shift = 0
    for byte in data[at : at + _MAX_VARINT_BYTES]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value >= 1 << 64:
                raise WireError("a number has more than 64 bits")
            return value, at + shift // 7
    raise WireError("a number is cut off or has more than 10 bytes")


def fields(data: memoryview) -> Fields:
    """Return a message's fields in order.

    Raises
    ------
    WireError
        If a field is cut off or of an unknown wire type.
    """
    found: Fields = []
    at, end = 0, len(data)
    value: Value
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = varint(data, at - 1)
        number, wire = key >> 3, key & 7
        if not number:
            raise WireError("field number 0")
        if wire == VARINT:
            value, at = varint(data, at)
        elif wire in (BYTES, FIXED64, FIXED32):
            if wire == BYTES:
                length, at = varint(data, at)
            else:
                length = 8 if wire == FIXED64 else 4
            if length > end - at:
                raise WireError(f"field {number} is cut off")
            value = data[at : at + length]
            at += length
        else:
            raise WireError(f"field {number} has the wire type {wire}")
        found.append((number, wire, value))
        if len(found) > MAX_FIELDS:
            raise WireError(f"a message has more than {MAX_FIELDS} fields")
    return found


def messages(data: memoryview) -> Iterator[memoryview]:
    """Return messages that stand one after another, each behind its length.

    Raises
    ------
    WireError
        If one is cut off.
    """
    at, end = 0, len(data)
    while at < end:
        length, at = varint(data, at)
        if length > end - at:
            raise WireError("the last message is cut off")
        yield data[at : at + length]
        at += length


def numbers(wire: int, value: Value) -> list[int]:
    """Return what a field of a repeated number adds, packed or not.

    Raises
    ------
    WireError
        If it is no such field.
    """
    if isinstance(value, int):
        return [value]
    if wire != BYTES:
        raise WireError("a list of numbers is of fixed width")
    if len(value) > _MAX_PACKED:
        raise WireError(f"a list of numbers has more than {_MAX_PACKED} bytes")
    found = []
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def text(value: Value) -> str:
    """Return a text field; what is no UTF-8 is replaced."""
    if isinstance(value, int):
        raise WireError("a number where a text is needed")
    return bytes(value).decode("utf-8", errors="replace")


def signed(value: int, bits: int = 64) -> int:
    """Return an unsigned number as the signed one with the same bits.

    Examples
    --------
    >>> signed(2**64 - 1), signed(7)
    (-1, 7)
    """
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def zigzag(value: int) -> int:
    """Return the signed number that zigzag encoding stored.

    Examples
    --------
    >>> zigzag(3), zigzag(4)
    (-2, 2)
    """
    return (value >> 1) ^ -(value & 1)


def unpacked(form: str, value: Value) -> int | float:
    """Return a field of fixed width, by its ``struct`` letter.

    Raises
    ------
    WireError
        If the width differs.
    """
    if isinstance(value, int) or len(value) != struct.calcsize(f"<{form}"):
        raise WireError("a field of fixed width has another width")
    number: int | float = struct.unpack(f"<{form}", value)[0]
    return number

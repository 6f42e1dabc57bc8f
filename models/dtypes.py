"""Bytes of an element, for the rules that count elements instead of bytes."""

from __future__ import annotations

from collections.abc import Mapping

from commsched.models.errors import NotApplicableError

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element of each type, by the name that PyTorch gives it."""


def elements(size: int, dtype: str) -> int:
    """Return how many elements a tensor of so many bytes has (a begun one counts).

    Raises
    ------
    NotApplicableError
        If the type is unknown.

    Examples
    --------
    >>> elements(4096, "float32"), elements(4096, "bfloat16")
    (1024, 2048)
    """
    if dtype not in ITEM_BYTES:
        raise NotApplicableError(f"the rule counts elements, and the type {dtype!r} is unknown")
    return -(-size // ITEM_BYTES[dtype])

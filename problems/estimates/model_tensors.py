"""The tensors of a model's checkpoint: the header of a safetensors file, or the index of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import msgspec

from commsched.models.errors import InputError
from commsched.models.units import MIB
from commsched.problems.profiler.trace_dtypes import shape_of
from commsched.problems.sources.single_file import read_object
from commsched.problems.sources.source import Source

_MAX_HEADER = 16 * MIB
"""More than a hundred thousand tensors need."""


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors of a checkpoint.

    Attributes
    ----------
    source
        The file's name.
    elements
        How many numbers each tensor has; None where only its name is known.
    total_bytes
        Bytes of all tensors as the file states them; None if it does not.
    """

    source: str
    elements: Mapping[str, int | None]
    total_bytes: int | None


def read_model_tensors(source: Source) -> ModelTensors:
    """Read a ``.safetensors`` file's header or a ``model.safetensors.index.json``.

    Raises
    ------
    InputError
        If the file is neither, or damaged.
    """
    try:
        with source.path.open("rb") as file:
            start = file.read(9)
            length = int.from_bytes(start[:8], "little")
            if len(start) == 9 and start[8:] == b"{" and 2 <= length <= _MAX_HEADER:
                file.seek(8)
                return _header(source, file.read(length), length)
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{source}: cannot be read: {error}") from None
    return _index(source)


def _header(source: Source, data: bytes, length: int) -> ModelTensors:
    if len(data) < length:
        raise InputError(f"{source}: the safetensors header ends early: the file was cut off")
    try:
        top: object = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: the safetensors header is no valid JSON: {error}") from None
    elements: dict[str, int | None] = {}
    for name, row in (top if isinstance(top, dict) else {}).items():
        if name == "__metadata__":
            continue
        shape = shape_of(row.get("shape")) if isinstance(row, dict) else None
        if shape is None:
            raise InputError(f"{source}: tensor {name!r:.100} has no shape")
        elements[name] = prod(shape)
    if not elements:
        raise InputError(f"{source}: the safetensors header has no tensor")
    return ModelTensors(source.name, elements, None)


def _index(source: Source) -> ModelTensors:
    top = read_object(source)
    names, about = top.get("weight_map"), top.get("metadata")
    if not isinstance(names, dict) or not names:
        raise InputError(
            f"{source}: this is no list of a model's tensors: neither a safetensors file nor its "
            "index (weight_map)"
        )
    total = about.get("total_size") if isinstance(about, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return ModelTensors(
        source.name, dict.fromkeys(names), total if type(total) is int and total >= 0 else None
    )

"""Tensors in PyTorch's traces: the many spellings of their types, and their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from commsched.models.dtypes import ITEM_BYTES

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "float32": ("float",),
    "float64": ("double",),
    "float16": ("half",),
    "int64": ("long", "long int", "long long", "int64_t"),
    "int32": ("int", "int32_t"),
    "int16": ("short", "short int"),
    "int8": ("char", "signed char"),
    "uint8": ("byte", "unsigned char"),
    "complex64": ("complexfloat", "complex<float>"),
    "complex128": ("complexdouble", "complex<double>"),
}
_DTYPES = {spelling: name for name in ITEM_BYTES for spelling in (name, *_SPELLINGS.get(name, ()))}
_MAX_NUMEL = 2**62
_MAX_DIMENSIONS = 64
"""PyTorch's own limit."""


class TensorSize(NamedTuple):
    """The size of a tensor.

    Attributes
    ----------
    shape
        Its dimensions; none for a scalar.
    dtype
        The name of its type, such as ``float32``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return self.elements * itemsize(self.dtype)


def dtype_name(text: object) -> str | None:
    """Return the usual name of a type in any of the spellings of traces; None if unknown.

    Examples
    --------
    >>> dtype_name("c10::BFloat16"), dtype_name("Tensor(float)"), dtype_name("Long")
    ('bfloat16', 'float32', 'int64')
    """
    if not isinstance(text, str):
        return None
    text = text.strip().lower()
    if text.startswith("tensor(") and text.endswith(")"):
        text = text[len("tensor(") : -1]
    return _DTYPES.get(text.removeprefix("torch.").removeprefix("c10::"))


def itemsize(dtype: str) -> int:
    """Return the bytes of one element of a type that :func:`dtype_name` returned."""
    return ITEM_BYTES[dtype]


def is_floating(dtype: str) -> bool:
    """Return whether gradients can have this type."""
    return "float" in dtype or "complex" in dtype


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return a list of dimensions as a shape; None if it is none."""
    if not isinstance(value, list | tuple) or len(value) > _MAX_DIMENSIONS:
        return None
    if not all(type(size) is int and size >= 0 for size in value):
        return None
    shape = tuple(value)
    return shape if prod(shape) < _MAX_NUMEL else None


def tensor_sizes(dims: object, types: object) -> list[TensorSize]:
    """Return the tensors among an operation's recorded ``Input Dims`` and ``Input type``.

    A list of tensors has a list of shapes but no element type (``TensorList``); it is left out
    here, see :func:`list_elements`.
    """
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    found = []
    for shape, text in zip(dims, types, strict=False):
        dtype = dtype_name(text)
        sizes = shape_of(shape)
        if dtype is not None and sizes is not None:
            found.append(TensorSize(sizes, dtype))
    return found


def list_elements(dims: object) -> int | None:
    """Return the elements of the first list of tensors in ``Input Dims``; None if not recorded.

    Examples
    --------
    >>> list_elements([[[776912], [8]], [], []]), list_elements([[], []])
    (776920, None)
    """
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list) or not dims[0]:
        return None
    shapes = [shape_of(shape) for shape in dims[0]]
    known = [shape for shape in shapes if shape is not None]
    return sum(map(prod, known)) if len(known) == len(shapes) else None


def only_shape(dims: object) -> tuple[int, ...] | None:
    """Return the shape of a list of one tensor in ``Input Dims``; None if it is something else.

    Examples
    --------
    >>> only_shape([[[1024, 256]], []]), only_shape([[[3], [4]]])
    ((1024, 256), None)
    """
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list) or len(dims[0]) != 1:
        return None
    return shape_of(dims[0][0])

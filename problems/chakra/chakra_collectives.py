"""What the communication nodes of a Chakra trace are: kind, size, group and element type."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from math import prod

from commsched.models.collectives import KINDS
from commsched.models.errors import InputError, printable
from commsched.models.step import Collective
from commsched.problems.chakra.chakra_nodes import (
    COLLECTIVE,
    COLLECTIVE_TYPES,
    RECV,
    SEND,
    ChakraNode,
)
from commsched.problems.profiler.trace_dtypes import dtype_name, itemsize, shape_of

ANY_BYTES = "bytes"
"""The element type of a collective that only moves bytes."""
_ATTRIBUTES = ("comm_type", "comm_size", "pg_name", "involved_dim")
_TYPE = re.compile(r"Tensor\(([^()]{1,40})\)")
_ARITHMETIC = re.compile(
    r"_(?:Sum|Prod|Max|Min|Avg|MinMax|PreMulSum|SumPostDiv)_([a-z]+\d*(?:_?[a-z0-9]+?)?)(?:_RING|_TREE|_NVLS"
    r"|_COLLNET|[(<]|\Z)"
)
_NCCL_TYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
    "__nv_bfloat16": "bfloat16",
}
_NAMES = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "allreduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
)


def is_communication(node: ChakraNode) -> bool:
    """Return whether a node is of a communication type."""
    return node.type in (SEND, RECV, COLLECTIVE)


def kind_of(node: ChakraNode) -> str | None:
    """Return what a communication node does, None if neither type nor name says it."""
    if node.type in (SEND, RECV):
        return "send_recv"
    number = node.attributes.get("comm_type")
    if type(number) is int and 0 <= number < len(COLLECTIVE_TYPES):
        return COLLECTIVE_TYPES[number]
    name = node.name.lower().replace("_", "").replace("-", "")
    return next((kind for part, kind in _NAMES if part in name), None)


def size_of(node: ChakraNode) -> object:
    """Return a communication node's recorded bytes, else those of its tensors, else None."""
    size = node.attributes.get("comm_size")
    return _tensor_bytes(node) if size is None else size


def _tensor_bytes(node: ChakraNode) -> int | None:
    """Return the bytes of the first input, a tensor or a list of tensors."""
    dtype = dtype_of(node)
    if len(node.shapes) > 1 << 16 or dtype in (None, ANY_BYTES):
        return None
    try:
        shapes: object = json.loads(node.shapes)
    except (ValueError, RecursionError):
        return None
    if not isinstance(shapes, list) or not shapes or not isinstance(shapes[0], list):
        return None
    first = shapes[0] if shapes[0] and isinstance(shapes[0][0], list) else [shapes[0]]
    sizes = [shape_of(shape) for shape in first]
    known = [size for size in sizes if size]
    if len(known) != len(sizes):
        return None
    assert dtype is not None
    return sum(map(prod, known)) * itemsize(dtype)


def dtype_of(node: ChakraNode) -> str | None:
    """Return the element type of a communication node, None if nothing says it.

    Examples
    --------
    >>> dtype_of(ChakraNode(name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"))
    'bfloat16'
    >>> dtype_of(ChakraNode(name="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"))
    'float32'
    """
    found = _TYPE.search(node.types[: 1 << 12])
    if found and dtype_name(found[1]) is not None:
        return dtype_name(found[1])
    if kind_of(node) in ("all_gather", "all_to_all", "broadcast", "send_recv"):
        return ANY_BYTES
    found = _ARITHMETIC.search(node.name[: 1 << 10])
    if found:
        return _NCCL_TYPES.get(found[1]) or dtype_name(found[1])
    return None


def group_of(node: ChakraNode) -> str:
    """Return the name of a communication node's group, as far as the trace says it."""
    name = node.attributes.get("pg_name")
    if isinstance(name, str | int) and not isinstance(name, bool) and str(name).strip():
        group = printable(str(name).strip()[:100])
    else:
        dims = node.attributes.get("involved_dim")
        used = [str(k) for k, on in enumerate(dims) if on] if isinstance(dims, list) else []
        # One dimension and all of them is the same as no choice.
        some = bool(used) and isinstance(dims, list) and len(dims) > 1
        group = f"dimensions {','.join(used)}" if some else "world"
    if node.type in (SEND, RECV):
        return f"{group} {'send' if node.type == SEND else 'receive'}"
    return group


def collective_of(node: ChakraNode, what: str, unknown: Counter[str]) -> Collective | None:
    """Return a communication node as a collective; None for a kind that cannot be planned.

    Parameters
    ----------
    node
        The node.
    what
        The file's name, for messages.
    unknown
        Gets what was not said, by sentence.

    Raises
    ------
    InputError
        If its kind or its size is not recorded or out of range.
    """
    kind = kind_of(node)
    if kind is None:
        raise InputError(
            f"{what}: node {node.id} ({node.name!r:.80}): no comm_type says which collective it is"
        )
    if kind not in KINDS:
        return None
    size = size_of(node)
    if size is None:
        raise InputError(
            f"{what}: node {node.id} ({node.name!r:.80}) has no comm_size and no shapes: give "
            "another Chakra trace of the same run that has them (--sizes)"
        )
    dtype = dtype_of(node)
    if dtype is None:
        unknown["element types of collectives"] += 1
    try:
        return Collective(
            f"{kind} {node.id}",
            size,  # type: ignore[arg-type]  # checked there
            kind,
            group_of(node),
            dtype or "unknown",
        )
    except InputError as error:
        raise InputError(f"{what}: node {node.id}: {error}") from None


def with_sizes(
    nodes: Sequence[ChakraNode], others: Sequence[ChakraNode], what: str, other: str
) -> None:
    """Give communication nodes what another trace of the same run says of them.

    Raises
    ------
    InputError
        If a node with a size of the other trace is not the same node here.
    """
    known = {node.id: node for node in others if is_communication(node)}
    found = 0
    for node in nodes:
        if not is_communication(node):
            continue
        twin = known.get(node.id)
        if twin is None or twin.type != node.type:
            raise InputError(
                f"{other}: node {node.id} is not the same as in {what}: they are of different runs"
            )
        for name in _ATTRIBUTES:
            if name in twin.attributes and name not in node.attributes:
                node.attributes[name] = twin.attributes[name]
                found += name == "comm_size"
        node.shapes, node.types = node.shapes or twin.shapes, node.types or twin.types
    if not found:
        raise InputError(f"{other}: has no size that {what} does not have")

"""Nodes of MLCommons Chakra execution traces, and reading them from protocol buffers.

The schemas are mlcommons/chakra ``et_def.proto``: that of 2024 and later (``schema`` 1.0.x, from
package 0.0.4 on) and the one of 2023 with typed attributes. Field numbers are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from commsched.models.errors import InputError
from commsched.problems.chakra.chakra_wire import (
    BYTES,
    FIXED32,
    VARINT,
    Fields,
    Value,
    WireError,
    fields,
    messages,
    numbers,
    signed,
    text,
    unpacked,
    zigzag,
)

COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
_TYPES = range(11)
MAX_NODES = 2_000_000
MAX_DEPENDENCIES = 20_000_000
MAX_CHAKRA_BYTES = 1 << 30
"""The largest trace that is read, decompressed."""

ATTRIBUTES = frozenset(
    ["comm_size", "comm_type", "involved_dim", "is_cpu_op", "pg_name", "rf_id", "stream", "tid"]
)
"""The attributes that are kept."""

COLLECTIVE_TYPES = (
    "allreduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
_TYPES_OF_2023 = ("allreduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast")


@dataclass(slots=True)
class ChakraNode:
    """A node of a Chakra trace; times are in microseconds, as recorded."""

    id: int = 0
    name: str = ""
    type: int = 0
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_us: object = 0
    duration_us: object = 0
    shapes: str = ""
    types: str = ""
    attributes: dict[str, object] = field(default_factory=dict)


def recognises_chakra(start: bytes) -> bool:
    """Return whether a file starts like a Chakra trace in protocol buffers.

    That is metadata with named attributes or a version, and then a node with a name.
    """
    try:
        parts = []
        for part in messages(memoryview(start)):
            parts.append(fields(part))
            if len(parts) == 2:
                break
    except WireError:
        return False
    if len(parts) != 2 or not all(_is_metadata(one) for one in parts[0]):
        return False
    texts = [bytes(v) for n, w, v in parts[1] if n == 2 and w == BYTES and not isinstance(v, int)]
    kinds = [value for n, w, value in parts[1] if n == 3 and w == VARINT]
    ids = [w for n, w, _ in parts[1] if n == 1]
    return (
        len(texts) == 1
        and _is_name(texts[0])
        and len(kinds) <= 1
        and all(kind in _TYPES for kind in kinds)
        and ids in ([], [VARINT])
        and all(n <= 12 for n, _, _ in parts[1])
    )


def _is_metadata(one: tuple[int, int, Value]) -> bool:
    number, wire, value = one
    if number not in (1, 2) or wire != BYTES or isinstance(value, int):
        return False
    if number == 1 and _is_name(bytes(value)):
        return True
    try:
        return any(n == 1 and w == BYTES and _is_name(bytes(v)) for n, w, v in _inner(value))
    except WireError:
        return False


def _inner(value: memoryview) -> list[tuple[int, int, memoryview]]:
    return [(n, w, v) for n, w, v in fields(value) if not isinstance(v, int)]


def _is_name(data: bytes) -> bool:
    try:
        return 0 < len(data) < 1 << 16 and data.decode().isprintable()
    except UnicodeDecodeError:
        return False


def nodes_from_bytes(data: bytes, what: str) -> list[ChakraNode]:
    """Return a trace's nodes in the order of the file.

    Parameters
    ----------
    data
        The file's content.
    what
        The file's name, for messages.

    Raises
    ------
    InputError
        If it is cut off, damaged or too large.
    """
    nodes: list[ChakraNode] = []
    dependencies = 0
    try:
        for position, part in enumerate(messages(memoryview(data))):
            if position == 0:
                continue
            node = _node(fields(part))
            dependencies += len(node.ctrl_deps) + len(node.data_deps)
            if len(nodes) == MAX_NODES or dependencies > MAX_DEPENDENCIES:
                raise InputError(
                    f"{what}: more than {MAX_NODES} nodes or {MAX_DEPENDENCIES} dependencies"
                )
            nodes.append(node)
    except WireError as error:
        raise InputError(
            f"{what}: node {len(nodes)} of the Chakra trace cannot be read: {error}"
        ) from None
    return nodes


def _node(parts: Fields) -> ChakraNode:
    node = ChakraNode()
    old = any(number == 11 and _is_old_attribute(value) for number, _, value in parts)
    for number, wire, value in parts:
        if number in (1, 3) and not isinstance(value, int):
            raise WireError(f"field {number} is no number")
        if number == 1 and isinstance(value, int):
            node.id = value
        elif number == 2:
            node.name = text(value)
        elif number == 3 and isinstance(value, int):
            node.type = value
        elif number == 4:
            (node.data_deps if old else node.ctrl_deps).extend(numbers(wire, value))
        elif old:
            _read_old(node, number, value)
        else:
            _read_new(node, number, wire, value)
    return node


def _read_new(node: ChakraNode, number: int, wire: int, value: Value) -> None:
    if number == 5:
        node.data_deps.extend(numbers(wire, value))
    elif number == 6 and isinstance(value, int):
        node.start_us = value
    elif number == 7 and isinstance(value, int):
        node.duration_us = value
    elif number == 8 and not isinstance(value, int) and node.type in (SEND, RECV, COLLECTIVE):
        for inner, _, content in fields(value):
            if inner == 2:
                node.shapes = text(content)
            elif inner == 3:
                node.types = text(content)
    elif number == 10 and not isinstance(value, int):
        name, attribute = _attribute(value)
        if name in ATTRIBUTES:
            node.attributes[name] = attribute


_SCALARS: Mapping[int, Callable[[int], object]] = {
    7: signed,
    9: signed,
    11: int,
    13: int,
    15: zigzag,
    17: zigzag,
    27: bool,
}
_FIXED = {3: "d", 5: "f", 19: "I", 21: "Q", 23: "i", 25: "q"}
_LISTS = (8, 10, 12, 14, 28)


def _attribute(data: memoryview) -> tuple[str, object]:
    name = ""
    content: object = None
    for number, _, value in fields(data):
        if number == 1:
            name = text(value)
        elif number in _SCALARS and isinstance(value, int):
            content = _SCALARS[number](value)
        elif number in _FIXED:
            content = unpacked(_FIXED[number], value)
        elif number == 29:
            content = text(value)
        elif number in _LISTS and not isinstance(value, int):
            content = [x for n, w, inner in fields(value) if n == 1 for x in numbers(w, inner)]
    return name, content


def _is_old_attribute(value: Value) -> bool:
    """Return whether it is an attribute of 2023: a name, and its type as a number."""
    if isinstance(value, int):
        return False
    try:
        parts = {number: wire for number, wire, _ in fields(value)}
    except WireError:
        return False
    return parts.get(1) == BYTES and parts.get(2) == VARINT


def _read_old(node: ChakraNode, number: int, value: Value) -> None:
    if number == 6:
        node.shapes = text(value)
    elif number == 7:
        node.types = text(value)
    elif number == 11 and not isinstance(value, int):
        name = ""
        content: object = None
        for inner, wire, one in fields(value):
            if inner == 1:
                name = text(one)
            elif inner == 5 and wire == FIXED32:
                content = unpacked("f", one)
            elif inner in (4, 6, 7) and isinstance(one, int):
                content = bool(one) if inner == 4 else signed(one) if inner == 7 else one
            elif inner == 8:
                content = text(one)
        if name == "comm_type" and type(content) is int and 0 <= content < len(_TYPES_OF_2023):
            content = COLLECTIVE_TYPES.index(_TYPES_OF_2023[content])
        if name == "runtime":
            node.duration_us = content
        if name in ATTRIBUTES:
            node.attributes[name] = content

"""The collectives of a PyTorch execution trace: kind, size, group and order, but no times.

A collective is up to four nodes in each other: ``c10d::allreduce_`` calls ``record_param_comms``,
which holds ``nccl:all_reduce``. Which of them there are depends on PyTorch's version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from commsched.models.collectives import Kind
from commsched.models.errors import InputError, printable
from commsched.problems.execution.execution_trace import execution_nodes, input_shapes
from commsched.problems.profiler.trace_dtypes import dtype_name, itemsize, shape_of
from commsched.problems.profiler.trace_events import collective_kind
from commsched.problems.sources.trace_bytes import read_trace_bytes

PARAMS = "record_param_comms"
_TENSOR = re.compile(r"Tensor\(([^()]{1,40})\)")
_MAX_DEPTH = 1000
_LISTS = 3
"""Tensors may stand in lists of lists, no deeper."""


class ExecutionCollective:
    """A collective of an execution trace.

    Attributes
    ----------
    node
        The id of its outermost node, which rises in order of issue.
    kind
        Its kind.
    bytes
        Its size: of an all-gather, a reduce-scatter or an all-to-all the larger of input and
        output, which is the total over the ranks. None if that was not recorded.
    dtype, group
        Element type and process group; None if not recorded.
    ranks
        Number of ranks of the group; None if not recorded.
    parts
        The ids of all its nodes.
    """

    __slots__ = ("bytes", "dtype", "group", "kind", "node", "parts", "ranks")

    def __init__(self, node: int, kind: Kind) -> None:
        self.node = node
        self.kind = kind
        self.bytes: int | None = None
        self.dtype: str | None = None
        self.group: str | None = None
        self.ranks: int | None = None
        self.parts = [node]


def execution_collectives(nodes: Sequence[dict[str, object]]) -> list[ExecutionCollective]:
    """Return the collectives of an execution trace in the order in which they were issued.

    Parameters
    ----------
    nodes
        The trace's nodes in order of their ids.
    """
    parents: dict[int, object] = {}
    tops: dict[int, ExecutionCollective] = {}
    # gloo's threads name their own events; what called them is not recorded.
    skipped = "gloo:" if any(_starts(node, "c10d::") for node in nodes) else "\0"
    for node in nodes:
        number = node.get("id")
        if type(number) is not int or _starts(node, skipped):
            continue
        parents[number] = node.get("parent", node.get("ctrl_deps"))
        kind = _kind(node)
        if kind is None:
            continue
        top = _outermost(number, parents, tops)
        if top is None or top.kind != kind:
            top = ExecutionCollective(number, kind)
        else:
            top.parts.append(number)
        tops[number] = top
        _read(top, node)
    # Each is stored under all its nodes.
    return sorted({id(one): one for one in tops.values()}.values(), key=lambda one: one.node)


def read_collectives(path: Path) -> list[ExecutionCollective]:
    """Return the collectives of an execution trace in the order in which they were issued.

    Raises
    ------
    InputError
        If the file is no execution trace or has no collective.
    """
    found = execution_collectives(execution_nodes(read_trace_bytes(path), str(path)))
    if not found:
        raise InputError(f"{path}: the execution trace has no collective")
    return found


def _starts(node: dict[str, object], prefix: str) -> bool:
    name = node.get("name")
    return isinstance(name, str) and name.startswith(prefix)


def _kind(node: dict[str, object]) -> Kind | None:
    name = node.get("name")
    if not isinstance(name, str):
        return None
    if name == PARAMS:
        said = _attributes(node).get("collective_name")
        if said is None:
            values = _values(node)
            said = next((v for v in values if isinstance(v, str) and v and v != "<Object>"), None)
        return collective_kind(f"nccl:{said}") if isinstance(said, str) else None
    return collective_kind(name)


def _outermost(
    number: int, parents: Mapping[int, object], tops: Mapping[int, ExecutionCollective]
) -> ExecutionCollective | None:
    """Return the collective that a node is inside of."""
    for _ in range(_MAX_DEPTH):
        above = parents.get(number)
        if type(above) is not int or above == number:
            return None
        if above in tops:
            return tops[above]
        number = above
    return None


def _values(node: dict[str, object]) -> list[object]:
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return values if isinstance(values, list) else []


def _attributes(node: dict[str, object]) -> dict[object, object]:
    found = node.get("attrs")
    if not isinstance(found, list):
        return {}
    return {
        one["name"]: one.get("value")
        for one in found
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    }


def _read(top: ExecutionCollective, node: dict[str, object]) -> None:
    """Add what one of its nodes says; the outer ones know both input and output."""
    name = node.get("name")
    if name == PARAMS:
        said = _attributes(node)
        group, ranks = said.get("pg_name"), said.get("pg_size")
        if isinstance(group, str) and group:
            top.group = printable(group[:100])
        if type(ranks) is int and 1 <= ranks < 1 << 24:
            top.ranks = ranks
        dtype = dtype_name(said.get("dtype"))
        counts = [said.get("in_msg_nelems"), said.get("out_msg_nelems")]
        known = [count for count in counts if type(count) is int and 0 <= count < 1 << 50]
        if dtype is not None and len(known) == 2:
            _set(top, max(known) * itemsize(dtype), dtype)
            return
    tensors = [
        one
        for shapes, types in (
            input_shapes(node),
            _output_shapes(node) if name == PARAMS else ((), ()),
        )
        if isinstance(shapes, list) and isinstance(types, list)
        for one in map(_tensors, shapes[:2], types[:2])
        if one is not None
    ]
    if tensors and len({dtype for _, dtype in tensors}) == 1:
        dtype = tensors[0][1]
        _set(top, max(elements for elements, _ in tensors) * itemsize(dtype), dtype)


def _set(top: ExecutionCollective, size: int, dtype: str) -> None:
    if top.bytes is None or size > top.bytes:
        top.bytes, top.dtype = size, dtype


def _output_shapes(node: dict[str, object]) -> tuple[object, object]:
    outputs = node.get("outputs")
    if isinstance(outputs, dict):
        return outputs.get("shapes"), outputs.get("types")
    return node.get("output_shapes"), node.get("output_types")


def _tensors(shape: object, text: object) -> tuple[int, str] | None:
    """Return the elements and the type of a tensor, or of tensors in a list."""
    if not isinstance(text, str) or "Tensor(" not in text:
        return None
    dtypes = {dtype_name(name) for name in _TENSOR.findall(text[: 1 << 16])}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    elements = _elements(shape, 0 if text.startswith("Tensor(") else _LISTS)
    return None if dtype is None or elements is None else (elements, dtype)


def _elements(shape: object, lists: int) -> int | None:
    if isinstance(shape, list) and lists and shape and all(isinstance(s, list) for s in shape):
        parts = [_elements(one, lists - 1) for one in shape]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None
    found = shape_of(shape)
    return None if found is None else prod(found)

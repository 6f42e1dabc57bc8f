"""Chakra traces as JSON, in the form that Chakra's feeder reads: ``workload_graph``."""

from __future__ import annotations

import json
import re
from collections import Counter

import msgspec

from commsched.models.errors import InputError
from commsched.problems.chakra.chakra_nodes import (
    ATTRIBUTES,
    MAX_DEPENDENCIES,
    MAX_NODES,
    ChakraNode,
)
from commsched.problems.sources.trace_bytes import valid_utf8

_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_MARK = re.compile(rb'"workload_graph"\s*:\s*\[\s*(?:\]|\{)')
_OTHERS = re.compile(rb'"(?:traceEvents|schema|format)"\s*:')
MAX_JSON_BYTES = 1 << 29
"""The largest JSON that is read, decompressed; decoded it takes many times as much."""


def recognises_json(start: bytes) -> bool:
    """Return whether a file is a Chakra trace as JSON."""
    return bool(_START.match(start) and _MARK.search(start) and not _OTHERS.search(start))


def nodes_from_json(data: bytes, what: str) -> list[ChakraNode]:
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
        If it is no such JSON, or a node has no usable id, type or dependencies.
    """
    data = valid_utf8(data, Counter())
    try:
        top: object = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        try:
            # More patient: control characters, numbers beyond a double.
            top = json.loads(data, strict=False)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{what}: this is no whole JSON file: {error}") from None
    found = top.get("workload_graph") if isinstance(top, dict) else None
    if not isinstance(found, list):
        raise InputError(f"{what}: workload_graph must be a list of nodes")
    if len(found) > MAX_NODES:
        raise InputError(f"{what}: more than {MAX_NODES} nodes")
    nodes = [_node(one, k, what) for k, one in enumerate(found)]
    if sum(len(node.ctrl_deps) + len(node.data_deps) for node in nodes) > MAX_DEPENDENCIES:
        raise InputError(f"{what}: more than {MAX_DEPENDENCIES} dependencies")
    return nodes


def _node(one: object, k: int, what: str) -> ChakraNode:
    if not isinstance(one, dict):
        raise InputError(f"{what}: workload_graph[{k}] must be an object")
    return ChakraNode(
        id=_number(one, "Id", k, what),
        name=str(one.get("Name", "")),
        type=_number(one, "NodeType", k, what),
        ctrl_deps=_dependencies(one, "ctrlDeps", k, what),
        data_deps=_dependencies(one, "data_deps", k, what),
        duration_us=one.get("runtime", 0),
        attributes={key: value for key, value in one.items() if key in ATTRIBUTES},
    )


def _number(one: dict[str, object], key: str, k: int, what: str) -> int:
    number = one.get(key)
    if type(number) is not int or not 0 <= number < 2**64:
        raise InputError(
            f"{what}: workload_graph[{k}]: {key} {number!r:.60} must be a whole number"
        )
    return number


def _dependencies(one: dict[str, object], key: str, k: int, what: str) -> list[int]:
    found = one.get(key, [])
    if not isinstance(found, list) or not all(type(x) is int for x in found):
        raise InputError(f"{what}: workload_graph[{k}]: {key} must be a list of node ids")
    return found

"""PyTorch execution traces (schema 1.0.1 to 1.1.1): the sizes of the gradients, in order.

An execution trace has no times, but it always has shapes. A profiler trace that was recorded
without ``record_shapes`` can take its sizes from one, for both list a step's gradients in the
order in which autograd produced them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from commsched.models.errors import InputError
from commsched.problems.profiler.trace_dtypes import TensorSize, dtype_name, shape_of
from commsched.problems.sources.trace_bytes import read_trace_bytes, valid_utf8

ACCUMULATE = "torch::autograd::AccumulateGrad"
_UNDEFINED = ("Tensor(nullptr (uninitialized))", "")
STEP_STARTS = ("ProfilerStep#", "DistributedDataParallel.forward", "Optimizer.")


def is_execution_trace(top: object) -> bool:
    """Return whether a file's decoded top level is that of a PyTorch execution trace."""
    return (
        isinstance(top, dict)
        and isinstance(top.get("schema"), str)
        and isinstance(top.get("nodes"), list)
    )


def read_gradient_sizes(path: Path, count: int | None = None) -> tuple[TensorSize | None, ...]:
    """Return the size of each gradient of one step, in the order in which backward produced them.

    A parameter that got no gradient has None.

    Parameters
    ----------
    path
        A PyTorch execution trace, JSON or gzip, of one or several steps.
    count
        How many gradients a step has; None if that is not known.

    Raises
    ------
    InputError
        If the file is no execution trace, has no gradient, has no step with ``count``
        gradients, or has steps that differ.
    """
    passes = _backward_passes(path, execution_nodes(read_trace_bytes(path), str(path)))
    if not passes:
        raise InputError(f"{path}: the execution trace has no gradient (no {ACCUMULATE})")
    fitting = [sizes for sizes in passes if count is None or len(sizes) == count]
    everything = [size for sizes in passes for size in sizes]
    if not fitting and count and len(everything) % count == 0:
        # No marks between the steps: cut by number, which the comparison below confirms.
        fitting = [everything[k : k + count] for k in range(0, len(everything), count)]
    if not fitting:
        have = ", ".join(str(n) for n in sorted({len(sizes) for sizes in passes}))
        raise InputError(
            f"{path}: the execution trace has {have} gradients a step, the profiler trace {count}: "
            "they are of different models"
        )
    if any(sizes != fitting[0] for sizes in fitting[1:]):
        raise InputError(
            f"{path}: the execution trace's steps have different gradients, "
            "so it is not clear which one to use"
        )
    return tuple(fitting[0])


def execution_nodes(data: bytes, what: str) -> list[dict[str, object]]:
    """Return an execution trace's nodes in order of their ids, which is the order of their starts.

    Parameters
    ----------
    data
        The file's content.
    what
        The file's name, for messages.

    Raises
    ------
    InputError
        If it is no execution trace.
    """
    data = valid_utf8(data, Counter())
    try:
        top: object = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        try:
            # More patient: control characters, numbers beyond a double.
            top = json.loads(data, strict=False)
        except (ValueError, RecursionError):
            raise InputError(f"{what}: this is no execution trace: {error}") from None
    if not isinstance(top, dict) or not is_execution_trace(top):
        raise InputError(
            f"{what}: this is no PyTorch execution trace: it needs a schema and a list of nodes"
        )
    return sorted((node for node in top["nodes"] if isinstance(node, dict)), key=_node_id)


def _backward_passes(
    path: Path, nodes: Sequence[dict[str, object]]
) -> list[list[TensorSize | None]]:
    """Cut the gradients where another step or another forward pass starts."""
    passes: list[list[TensorSize | None]] = [[]]
    for node in nodes:
        name = node.get("name")
        if name == ACCUMULATE:
            passes[-1].append(gradient_size(str(path), node))
        elif isinstance(name, str) and name.startswith(STEP_STARTS) and passes[-1]:
            passes.append([])
    return [sizes for sizes in passes if sizes]


def _node_id(node: dict[str, object]) -> int:
    number = node.get("id")
    return number if type(number) is int else 0


def gradient_size(what: str, node: dict[str, object]) -> TensorSize | None:
    """Return the size of the gradient that an ``AccumulateGrad`` got; None if it got none.

    Raises
    ------
    InputError
        If neither is recorded.
    """
    shapes, types = input_shapes(node)
    if isinstance(shapes, list) and isinstance(types, list) and shapes and types:
        shape, dtype = shape_of(shapes[0]), dtype_name(types[0])
        if shape is not None and dtype is not None:
            return TensorSize(shape, dtype)
        if types[0] in _UNDEFINED:
            return None
    raise InputError(
        f"{what}: node {node.get('id')}: {ACCUMULATE} has no readable shape and type "
        f"({shapes!r:.60}, {types!r:.60})"
    )


def input_shapes(node: dict[str, object]) -> tuple[object, object]:
    """Return the shapes and the types of a node's inputs, in either schema."""
    inputs = node.get("inputs")
    if isinstance(inputs, dict):  # schema 1.0.2 and later
        return inputs.get("shapes"), inputs.get("types")
    return node.get("input_shapes"), node.get("input_types")

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
from commsched.problems.trace_bytes import read_trace_bytes, valid_utf8
from commsched.problems.trace_dtypes import TensorSize, dtype_name, shape_of

ACCUMULATE = "torch::autograd::AccumulateGrad"
_UNDEFINED = ("Tensor(nullptr (uninitialized))", "")
_STEP_STARTS = ("ProfilerStep#", "DistributedDataParallel.forward", "Optimizer.")


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
    passes = _backward_passes(path, _nodes(path))
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


def _nodes(path: Path) -> Sequence[object]:
    data = valid_utf8(read_trace_bytes(path), Counter())
    try:
        top: object = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        try:
            # More patient: control characters, numbers beyond a double.
            top = json.loads(data, strict=False)
        except (ValueError, RecursionError):
            raise InputError(f"{path}: this is no execution trace: {error}") from None
    if not isinstance(top, dict) or not is_execution_trace(top):
        raise InputError(
            f"{path}: this is no PyTorch execution trace: it needs a schema and a list of nodes"
        )
    nodes: list[object] = top["nodes"]
    return nodes


def _backward_passes(path: Path, nodes: Sequence[object]) -> list[list[TensorSize | None]]:
    """Cut the gradients where another step or another forward pass starts."""
    passes: list[list[TensorSize | None]] = [[]]
    for node in sorted((n for n in nodes if isinstance(n, dict)), key=_node_id):
        name = node.get("name")
        if name == ACCUMULATE:
            passes[-1].append(_gradient_size(path, node))
        elif isinstance(name, str) and name.startswith(_STEP_STARTS) and passes[-1]:
            passes.append([])
    return [sizes for sizes in passes if sizes]


def _node_id(node: dict[str, object]) -> int:
    number = node.get("id")
    return number if isinstance(number, int) else 0


def _gradient_size(path: Path, node: dict[str, object]) -> TensorSize | None:
    inputs = node.get("inputs")
    if isinstance(inputs, dict):  # schema 1.0.2 and later
        shapes, types = inputs.get("shapes"), inputs.get("types")
    else:
        shapes, types = node.get("input_shapes"), node.get("input_types")
    if isinstance(shapes, list) and isinstance(types, list) and shapes and types:
        shape, dtype = shape_of(shapes[0]), dtype_name(types[0])
        if shape is not None and dtype is not None:
            return TensorSize(shape, dtype)
        if types[0] in _UNDEFINED:
            return None
    raise InputError(
        f"{path}: node {node.get('id')}: {ACCUMULATE} has no readable shape and type "
        f"({shapes!r:.60}, {types!r:.60})"
    )

"""The compute tasks that the builders of whole steps have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commsched.models import Compute
from commsched.models.errors import InputError
from commsched.models.units import check_ns
from commsched.problems.steps.layers import Layer, LayerProfile

GPU = "gpu"
"""The stream on which a step computes."""


class Backward(NamedTuple):
    """The backward of a layer.

    Attributes
    ----------
    tasks
        One task, or two if the gradients of the parameters are computed by a task of their own.
    inner
        The task that the layer before it waits for; the last that needs the layer's parameters.
    gradients
        The task after which the gradients of the parameters are there.
    """

    tasks: tuple[Compute, ...]
    inner: str
    gradients: str


def backward_of(
    layer: Layer, *, movable: bool, after: Sequence[str] = (), suffix: str = ""
) -> Backward:
    """Return the tasks of a layer's backward.

    Parameters
    ----------
    layer
        The layer.
    movable
        Whether the gradients of its parameters, if their time is known, may be computed later.
    after
        What its backward waits for, beside the stream.
    suffix
        Ends the tasks' names.
    """
    name = f"backward {layer.name}{suffix}"
    part = layer.weight_gradient_ns
    if not (movable and part and layer.parameter_bytes):
        return Backward((Compute(name, layer.backward_ns, GPU, tuple(after)),), name, name)
    inner = Compute(name, layer.backward_ns - part, GPU, tuple(after))
    weights = Compute(f"weights {layer.name}{suffix}", part, GPU, (name,), movable=True)
    return Backward((inner, weights), name, weights.name)


def check_movable(profile: LayerProfile, movable: bool) -> None:
    """Check that there is something to move where something shall be.

    Raises
    ------
    InputError
        If no layer with parameters says how long the gradients of its parameters take.
    """
    if movable and not any(n.weight_gradient_ns and n.parameter_bytes for n in profile.layers):
        raise InputError(
            "movable_weights: no layer of the profile says how long the gradients of its "
            "parameters take (weight_gradient_ns)"
        )


def optimizer_tasks(
    profile: LayerProfile,
    optimizer_ns: int | Mapping[str, int] | None,
    communicated: Mapping[str, Sequence[str]],
) -> dict[str, Compute]:
    """Return the optimizer's tasks by layer.

    Parameters
    ----------
    profile
        The layers.
    optimizer_ns
        A number: one step for all layers, which waits for all gradients; its key is empty. By
        layer: a task for each, which waits for that layer's gradients only. None: no task.
    communicated
        For each layer with parameters the collectives after which its gradients are there.

    Raises
    ------
    InputError
        If a time is out of range or of a layer that is unknown or has no parameters.
    """
    if optimizer_ns is None:
        return {}
    if not isinstance(optimizer_ns, Mapping):
        ns = check_ns(optimizer_ns, "optimizer_ns")
        # A unit's layers share its collective: named once is enough.
        names = dict.fromkeys(name for some in communicated.values() for name in some)
        return {"": Compute("optimizer", ns, GPU, tuple(names))}
    tasks = {}
    for name, ns in optimizer_ns.items():
        if name not in communicated:
            raise InputError(f"optimizer_ns: {name!r:.100} is no layer with parameters")
        tasks[name] = Compute(
            f"optimizer {name}",
            check_ns(ns, f"optimizer_ns of {name!r:.100}"),
            GPU,
            tuple(communicated[name]),
        )
    return tasks

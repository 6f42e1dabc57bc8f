"""A step of data-parallel training: backward, all-reduces, and the next forward that needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commsched.models import Collective, CostCurve, Problem, Task
from commsched.models.errors import InputError
from commsched.models.step import Compute
from commsched.models.units import check_bytes
from commsched.problems.steps.layer_tasks import GPU, backward_of, check_movable, optimizer_tasks
from commsched.problems.steps.layers import MAX_TASKS, LayerProfile, Tensor, check_profile


def ddp_step(
    profile: LayerProfile,
    cost: CostCurve,
    *,
    next_forward: bool = True,
    optimizer_ns: int | Mapping[str, int] | None = None,
    chunk_bytes: int | None = None,
    movable_weights: bool = False,
    group: str = "dp",
) -> Problem:
    """Return the step from the start of backward to the end of the next forward.

    Backward runs the layers in reverse. Each gradient is all-reduced once its layer's backward has
    ended: one for each tensor of a layer, or one of the layer's name where its tensors are not
    known. The next forward of a layer waits for its all-reduces, and for its optimizer task if it
    has one.

    Parameters
    ----------
    profile
        The layers.
    cost
        What an all-reduce costs.
    next_forward
        Whether the step goes on with the next forward pass. Without it, and without optimizer
        tasks, nothing waits for an all-reduce.
    optimizer_ns
        A number: one optimizer step after all gradients, as ``optimizer.step()`` is, after which
        nothing is left for the next forward to hide. By layer name: tasks of their own, each of
        which waits for its layer's gradients only and runs right before the layer's forward.
    chunk_bytes
        Tensors are split into chunks of at most so many bytes, each a collective of its own. The
        optimizer may fuse neighbours again, so every plan for a multiple of this size is one for
        this size too.
    movable_weights
        Whether a layer's gradients are computed by a task of their own, which a plan may run
        later (where the profile has ``weight_gradient_ns``).
    group
        The process group.

    Raises
    ------
    InputError
        If the profile has no parameters, two tasks get one name, a number is out of range, or
        there are more than ``MAX_TASKS`` chunks.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Plan, evaluate
    >>> from commsched.problems.steps.layers import Layer
    >>> layers = (Layer("a", 1000, 2000, 4000), Layer("b", 1000, 2000, 4000))
    >>> problem = ddp_step(LayerProfile(layers), AlphaBeta(1, 4))
    >>> [task.name for task in problem.tasks]
    ['backward b', 'b', 'backward a', 'a', 'forward a', 'forward b']
    >>> evaluate(problem, Plan.of([["b"], ["a"]])).makespan_ns
    8000
    """
    check_profile(profile)
    check_movable(profile, movable_weights)
    pieces = _pieces(profile, chunk_bytes)
    tasks: list[Task] = []
    for layer in reversed(profile.layers):
        backward = backward_of(layer, movable=movable_weights)
        tasks += backward.tasks
        after = (backward.gradients,)
        # Backward comes to a layer's tensors in the reverse of their registration.
        for chunks in reversed(pieces[layer.name]):
            tasks += [
                Collective(name, size, "allreduce", group, layer.dtype, after)
                for name, size in chunks
            ]
    reduced = {
        layer: [chunk.name for chunks in some for chunk in chunks]
        for layer, some in pieces.items()
        if some
    }
    steps = optimizer_tasks(profile, optimizer_ns, reduced)
    if "" in steps:
        tasks.append(steps[""])
    for layer in profile.layers if next_forward else reversed(profile.layers):
        waits = tuple(reduced.get(layer.name, ()))
        if layer.name in steps:
            tasks.append(steps[layer.name])
            waits = (steps[layer.name].name,)
        if next_forward:
            waits = (steps[""].name,) if "" in steps else waits
            tasks.append(Compute(f"forward {layer.name}", layer.forward_ns, GPU, waits))
    what = "data-parallel step" if next_forward else "data-parallel backward"
    return Problem(tasks, {(group, "allreduce"): cost}, name=_titled(profile, what))


def _titled(profile: LayerProfile, what: str) -> str:
    return f"{profile.name}: {what}" if profile.name else what


def _pieces(profile: LayerProfile, chunk_bytes: int | None) -> dict[str, list[tuple[Tensor, ...]]]:
    """Return for each layer the chunks of each of its gradients."""
    if chunk_bytes is not None and check_bytes(chunk_bytes, "chunk_bytes") == 0:
        raise InputError("chunk_bytes: 0 must be above 0")
    gradients = [tensor for layer in profile.layers for tensor in layer.gradients]
    if chunk_bytes is not None:
        count = sum(max(1, -(-tensor.bytes // chunk_bytes)) for tensor in gradients)
        if count > MAX_TASKS:
            raise InputError(
                f"chunk_bytes: {chunk_bytes} makes {count} chunks, at most {MAX_TASKS} may be"
            )
    return {
        layer.name: [tuple(_chunks(tensor, chunk_bytes)) for tensor in layer.gradients]
        for layer in profile.layers
    }


def _chunks(tensor: Tensor, chunk_bytes: int | None) -> Iterator[Tensor]:
    """Yield full chunks and a rest, so that the ends of larger chunks are ends of smaller ones."""
    if chunk_bytes is None or tensor.bytes <= chunk_bytes:
        yield tensor
        return
    count = -(-tensor.bytes // chunk_bytes)
    for number in range(count):
        size = min(chunk_bytes, tensor.bytes - number * chunk_bytes)
        yield Tensor(f"{tensor.name} [{number + 1}/{count}]", size)

"""Putting a model and its optimizers back as they were before some steps."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from commsched.models.errors import InputError


@contextlib.contextmanager
def restored(model: torch.nn.Module) -> Iterator[None]:
    """Give a context after which parameters, buffers and optimizers' states are as before.

    Every ``torch.optim`` optimizer that makes a step in the context is put back, whichever
    parameters it has.

    Parameters
    ----------
    model
        The model. A copy of its parameters, its buffers and the optimizers' states is held
        meanwhile.

    Raises
    ------
    InputError
        If a parameter has no shape yet.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in tensors):
        raise InputError("model: it has parameters without a shape: run a step before restoring")
    copies = [tensor.detach().clone() for tensor in tensors]
    states: dict[int, tuple[Optimizer, dict[object, object], list[dict[str, object]]]] = {}

    def remember(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if id(optimizer) not in states:
            settings = [
                {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                for group in optimizer.param_groups
            ]
            states[id(optimizer)] = (optimizer, _copied(optimizer), settings)

    handle = register_optimizer_step_pre_hook(remember)
    try:
        yield
    finally:
        handle.remove()
        with torch.no_grad():
            for tensor, before in zip(tensors, copies, strict=True):
                tensor.copy_(before)
        for optimizer, state, settings in states.values():
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, values in zip(optimizer.param_groups, settings, strict=False):
                group.update(values)


def _copied(optimizer: Optimizer) -> dict[object, object]:
    """Return a copy of an optimizer's state whose keys are the same parameters."""
    same = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    return copy.deepcopy(dict(optimizer.state), same)

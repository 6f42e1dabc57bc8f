"""When each gradient of a model becomes ready: hooks on its parameters."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from commsched.models.errors import InputError
from commsched.torch.clocks import clock_of


class GradientMeta(NamedTuple):
    """What a gradient is.

    Attributes
    ----------
    bytes, dtype
        Its size if it is dense, and its type.
    sparse_bytes
        The size of its indices and values; None if it is dense.
    """

    bytes: int
    dtype: str
    sparse_bytes: int | None


class StepTimes(NamedTuple):
    """The times of one step, in nanoseconds from its start.

    Attributes
    ----------
    ready
        When each parameter's gradient was ready, the last time; by the parameter's number.
    repeats
        How many gradients came before the last of the same parameter, over all parameters.
    backward_end
        When the last backward pass had ended.
    end
        When the step had ended.
    """

    ready: dict[int, int]
    repeats: int
    backward_end: int
    end: int


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:  # noqa: SLF001  (torch.compile's wrapper)
            model = model._modules["_orig_mod"]  # noqa: SLF001
        else:
            return model


def trainable_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that get gradients, by name, without the names of wrappers.

    A parameter that several modules share has its first name. These are the names in every
    problem that :func:`~commsched.torch.capture` returns.

    Examples
    --------
    >>> import torch
    >>> list(trainable_parameters(torch.nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    return {
        name: parameter
        for name, parameter in unwrap(model).named_parameters()
        if parameter.requires_grad
    }


def checked_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return :func:`trainable_parameters`, where their gradients can be timed.

    Raises
    ------
    InputError
        If there are none, or some are sharded, not initialised or without storage.
    """
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise InputError(
                "model: it is sharded (FSDP), and only gradients that are all-reduced whole can "
                "be captured"
            )
    parameters = trainable_parameters(model)
    if not parameters:
        raise InputError("model: no parameter requires a gradient, so there is nothing to plan")
    for name, parameter in parameters.items():
        if hasattr(parameter, "device_mesh"):  # a DTensor
            raise InputError(
                f"parameter {name!r}: it is sharded (FSDP or tensor parallelism), and only "
                "gradients that are all-reduced whole can be captured"
            )
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise InputError(f"parameter {name!r}: it is still without a shape after the warm-up")
        if parameter.device.type == "meta":
            raise InputError(f"parameter {name!r}: it is on the meta device and has no gradient")
    return parameters


class GradientHooks:
    """A context in which every parameter's gradient leaves a mark when it is ready.

    Nothing waits for a GPU until :meth:`times` is called, and the hooks are gone when the context
    is left, whatever happened in it.

    Parameters
    ----------
    parameters
        The parameters by name.

    Raises
    ------
    InputError
        If a device's work cannot be timed.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self._parameters = list(parameters.values())
        self._clocks = {device: clock_of(device) for device in self.devices}
        self._clock = [self._clocks[parameter.device] for parameter in self._parameters]
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._raw: list[_RawStep] = []
        self.meta: dict[int, GradientMeta] = {}

    @property
    def devices(self) -> list[torch.device]:
        """The parameters' devices, in order of appearance."""
        return list(dict.fromkeys(parameter.device for parameter in self._parameters))

    def __enter__(self) -> Self:
        try:
            for number, parameter in enumerate(self._parameters):
                hook = partial(self._ready, number)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def start_step(self) -> None:
        """Begin a step: time zero is now, or where the GPU's stream has got to."""
        if len(self._clocks) > 1:  # Several clocks have one zero only while nothing runs.
            self.wait()
        self._raw.append(_RawStep({d: clock.mark() for d, clock in self._clocks.items()}))

    def end_step(self) -> None:
        """End the step."""
        self._raw[-1].end = self._marks()

    def wait(self) -> None:
        """Wait for all devices."""
        for clock in self._clocks.values():
            clock.wait()

    def times(self) -> list[StepTimes]:
        """Return the times of all steps that have ended."""
        self.wait()
        return [self._times(raw) for raw in self._raw]

    def _times(self, raw: _RawStep) -> StepTimes:
        ready = {
            number: self._clock[number].ns(raw.start[self._parameters[number].device], mark)
            for number, mark in raw.ready.items()
        }
        end = self._latest(raw, raw.end)
        # Without a graph task (compiled autograd) nothing says when backward ended.
        last = max(ready.values(), default=0)
        backward_end = self._latest(raw, raw.backward_end) if raw.backward_end else last
        return StepTimes(ready, raw.fired - len(ready), max(backward_end, last), end)

    def _latest(self, raw: _RawStep, marks: dict[torch.device, object]) -> int:
        return max(clock.ns(raw.start[d], marks[d]) for d, clock in self._clocks.items())

    def _marks(self) -> dict[torch.device, object]:
        return {device: clock.mark() for device, clock in self._clocks.items()}

    def _ready(self, number: int, parameter: torch.nn.Parameter) -> None:
        """Note that a gradient is ready; called by autograd, before DDP's own hook."""
        if not self._raw:
            return
        raw = self._raw[-1]
        raw.ready[number] = self._clock[number].mark()
        raw.fired += 1
        task = torch._C._current_graph_task_id()  # noqa: SLF001  (the only way to tell passes)
        if task not in raw.tasks and task >= 0:
            raw.tasks.add(task)
            # Called when this pass has ended, before DDP's callback, which was queued later and
            # waits for the all-reduces.
            engine = torch.autograd.Variable._execution_engine  # noqa: SLF001
            engine.queue_callback(partial(self._backward_ended, raw))
        if number not in self.meta:
            self.meta[number] = _meta(parameter)

    def _backward_ended(self, raw: _RawStep) -> None:
        raw.backward_end = self._marks()


class _RawStep:
    """The marks of one step."""

    def __init__(self, start: dict[torch.device, object]) -> None:
        self.start = start
        self.ready: dict[int, object] = {}
        self.fired = 0
        self.tasks: set[int] = set()
        self.backward_end: dict[torch.device, object] = {}
        self.end: dict[torch.device, object] = {}


def _meta(parameter: torch.nn.Parameter) -> GradientMeta:
    gradient = parameter.grad
    if gradient is None:  # Another hook has already used it up.
        gradient = parameter
    sparse_bytes = None
    if gradient.layout == torch.sparse_coo:
        parts = (gradient._indices(), gradient._values())  # noqa: SLF001  (without coalescing)
        sparse_bytes = sum(part.numel() * part.element_size() for part in parts)
    elif gradient.layout != torch.strided:
        sparse_bytes = 0
    return GradientMeta(
        gradient.numel() * gradient.element_size(), dtype_text(gradient.dtype), sparse_bytes
    )


def dtype_text(dtype: torch.dtype) -> str:
    """Return a type's name, such as ``float32``."""
    return str(dtype).removeprefix("torch.")

"""A step's gradients and their ready times, from a few real steps and no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commsched.models.errors import InputError
from commsched.problems.recorded import RecordedStep
from commsched.torch.buckets import DdpLog, read_ddp_log, reduced_parameters, synced_steps
from commsched.torch.hooks import (
    GradientHooks,
    GradientMeta,
    StepTimes,
    checked_parameters,
    dtype_text,
    unwrap,
)
from commsched.torch.ranks import RankRecord, check_same_model, gathered, world_size
from commsched.torch.restore import restored
from commsched.torch.summary import Conditions, summarised

MAX_STEPS = 10_000
"""The most steps that one call runs."""


def capture(
    model: torch.nn.Module,
    step: Callable[[], object],
    *,
    steps: int = 5,
    warmup: int = 2,
    communicate: bool = True,
    restore: bool = False,
    group: dist.ProcessGroup | None = None,
    name: str = "",
) -> RecordedStep:
    """Run a few training steps and return what they do as a problem to plan.

    Hooks note when each parameter's gradient is ready, before DDP's own hooks; on a GPU they
    record events on the stream, and nothing waits. They are removed in the end, also when a step
    raises. With several ranks every rank must make this call; all get the same result. A ready
    time is the median over the steps of its maximum over the ranks: a launch waits for the
    slowest rank of its own step.

    Time zero is the start of a step; on a GPU the moment when its stream reaches the step.
    Where a gradient is accumulated several times in a step (several backward passes, parts that
    are checkpointed) the last time counts, for only then can it be all-reduced.

    Parameters
    ----------
    model
        The model, plain or in ``DistributedDataParallel``, as the step uses it. With DDP the
        result's ``launches`` and ``plan`` are the buckets that DDP really forms.
    step
        Runs one whole training step: zero the gradients, forward, backward, optimizer. It is
        called ``warmup + steps`` times and really trains the model.
    steps
        How many steps are measured, at least 1.
    warmup
        How many steps run before, unmeasured. DDP rebuilds its buckets in a run's second step
        (with ``static_graph`` in the third).
    communicate
        Whether DDP may all-reduce meanwhile. It may by default, because then backward shares
        processors, memory and links with communication, as it will in training; this is closest
        to the ready times of a run, though of one with today's buckets. False gives those of
        backward alone; ``restore`` is then implied, for the ranks train apart.
    restore
        Whether parameters, buffers and the state of every ``torch.optim`` optimizer that made a
        step are put back afterwards. A copy is held meanwhile. Gradients stay as the last step
        left them; random numbers, data, schedulers and gradient scalers are not put back.
    group
        The ranks that share the gradients; by default DDP's group, without DDP all ranks.
    name
        A title for people; by default the model's class.

    Raises
    ------
    InputError
        If an argument is out of range, the model is sharded, a device cannot be timed, the steps
        gave no gradient, or the ranks have different models. Whatever ``step`` raises comes out as
        it is, at once; the other ranks then wait for this one, as in any step.

    Examples
    --------
    >>> import torch, commsched, commsched.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> def step():
    ...     optimizer.zero_grad()
    ...     model(torch.ones(4, 64)).sum().backward()
    ...     optimizer.step()
    >>> recorded = commsched.torch.capture(model, step)
    >>> sorted((gradient.name, gradient.bytes) for gradient in recorded.gradients)
    [('0.bias', 256), ('0.weight', 16384), ('1.bias', 32), ('1.weight', 2048)]
    >>> problem = recorded.problem(commsched.AlphaBeta(alpha_us=20, bandwidth_gb_s=10))
    >>> commsched.optimize(problem).status.value
    'optimal'

    ``commsched.write_problem(problem, "step.json")`` keeps it.
    """
    return captured(
        model,
        step,
        steps=steps,
        warmup=warmup,
        communicate=communicate,
        restore=restore,
        group=group,
        name=name,
    ).recorded


class Captured(NamedTuple):
    """A captured step, each of the measured ones, and whether they ran in DDP.

    Attributes
    ----------
    recorded
        What :func:`capture` returns.
    steps
        For each step the latest ready time of each gradient, by name, and when backward ended.
    in_ddp
        Whether the gradients were copied into DDP's buckets meanwhile.
    """

    recorded: RecordedStep
    steps: tuple[tuple[Mapping[str, int], int], ...]
    in_ddp: bool


def captured(
    model: torch.nn.Module,
    step: Callable[[], object],
    *,
    steps: int,
    warmup: int,
    communicate: bool = True,
    restore: bool,
    group: dist.ProcessGroup | None,
    name: str,
) -> Captured:
    """Do what :func:`capture` does, and return the steps as well.

    Raises
    ------
    InputError
        As for :func:`capture`.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model: {type(model).__name__} is no torch.nn.Module")
    if not callable(step):
        raise InputError(f"step: {type(step).__name__} cannot be called")
    steps = _count(steps, "steps", 1)
    warmup = _count(warmup, "warmup", 0)
    ddp = _ddp_of(model)
    if group is None and ddp is not None:
        group = ddp.process_group
    ranks = world_size(group)
    silent = ddp if not communicate else None
    if silent is not None:
        _check_can_be_silent(silent)
    with contextlib.ExitStack() as context:
        if restore or silent is not None:
            context.enter_context(restored(model))
        if silent is not None:
            context.enter_context(silent.no_sync())
        for _ in range(warmup):
            step()
        # Only now: the first steps may give parameters their shapes.
        parameters = checked_parameters(model)
        found = len(parameters)
        if ddp is not None:
            reduced = {id(parameter) for parameter in reduced_parameters(ddp)}
            parameters = {n: p for n, p in parameters.items() if id(p) in reduced}
            if not parameters:
                raise InputError(
                    "model: DDP was told to ignore all the parameters that get gradients"
                )
        before = 0 if ddp is None else synced_steps(ddp)
        with GradientHooks(parameters) as hooks:
            for _ in range(steps):
                hooks.start_step()
                step()
                hooks.end_step()
        times = tuple(hooks.times())
        log = read_ddp_log(ddp) if ddp is not None and silent is None else None
    records = gathered(_record(parameters, hooks, times, log), group)
    check_same_model(records)
    module = unwrap(model)
    conditions = Conditions(
        title=name or type(module).__name__,
        warmup=warmup,
        frozen=sum(not parameter.requires_grad for parameter in module.parameters()),
        ignored=found - len(parameters),
        ranks=ranks,
        ddp=ddp is not None,
        silent=silent is not None,
        rebuilt_meanwhile=log is not None and log.rebuilt and before < _rebuilding(ddp) - 1,
        nested_ddp=ddp is None and any(_is_ddp(inner) for inner in model.modules()),
    )
    return Captured(summarised(records, conditions), _each(records), ddp is not None)


def _each(records: Sequence[RankRecord]) -> tuple[tuple[Mapping[str, int], int], ...]:
    """Return the steps one by one: of every time the maximum over the ranks."""
    found = []
    for ranks in zip(*(record.steps for record in records), strict=True):
        ready: dict[str, int] = {}
        for record, own in zip(records, ranks, strict=True):
            for k, ns in own.ready.items():
                name = record.names[k]
                ready[name] = max(ns, ready.get(name, 0))
        found.append((ready, max(own.backward_end for own in ranks)))
    return tuple(found)


def _record(
    parameters: dict[str, torch.nn.Parameter],
    hooks: GradientHooks,
    times: tuple[StepTimes, ...],
    log: DdpLog | None,
) -> RankRecord:
    """Return what this rank has to tell the others."""
    devices = hooks.devices
    return RankRecord(
        names=tuple(parameters),
        metas=tuple(
            hooks.meta.get(k)
            or GradientMeta(p.numel() * p.element_size(), dtype_text(p.dtype), None)
            for k, p in enumerate(parameters.values())
        ),
        devices=(
            tuple(map(str, devices)),
            tuple(devices.index(p.device) for p in parameters.values()),
        ),
        steps=times,
        ddp=log,
    )


def _count(value: object, what: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_STEPS:
        raise InputError(
            f"{what}: {value!r:.100} must be a whole number from {least} to {MAX_STEPS}"
        )
    return value


def _check_can_be_silent(ddp: DistributedDataParallel) -> None:
    if ddp.static_graph and not synced_steps(ddp):
        raise InputError(
            "communicate: DDP with static_graph must have made a step with communication before "
            "steps without"
        )


def _rebuilding(ddp: DistributedDataParallel | None) -> int:
    """Return in which step DDP rebuilds its buckets, if it does, before that step's backward."""
    return 3 if ddp is not None and ddp.static_graph else 2


def _is_ddp(module: torch.nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel)


def _ddp_of(model: torch.nn.Module) -> DistributedDataParallel | None:
    """Return the model's DDP wrapper, if it has one; it may itself be compiled."""
    inner = model._modules.get("_orig_mod")  # noqa: SLF001  (torch.compile's wrapper)
    outer = model if inner is None else inner
    return outer if _is_ddp(outer) else None

"""What DDP itself adds to a step on this machine: measured with a hook that takes no time."""

from __future__ import annotations

import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commsched.models.errors import InputError, NotApplicableError
from commsched.models.overheads import Overheads
from commsched.models.units import MIB
from commsched.torch.hooks import GradientHooks, trainable_parameters
from commsched.torch.ranks import gathered, world_size

MOST_BYTES = 256 * MIB
"""The stand-in has no more gradients than these many bytes; three copies of them are held."""
LAUNCHES = 8
"""About so many launches a step: as many as plans have, for caches are colder than with more."""
SMALL_BYTES, LARGE_BYTES = 16 * 1024, 256 * 1024
LATE_S = 0.004
IDLE_S = 0.02
"""Before each step, so that a busy machine lends the processor to a step without a break."""
_WARMUP = 3
_MOST_STEPS = 1000


@dataclass(frozen=True)
class MeasuredOverheads:
    """What was measured; on every rank the same: the largest value of all ranks.

    A rank's value is the lower quartile over the steps: what other programs take of the processor
    meanwhile comes on top of it, in some steps more than in others.

    Attributes
    ----------
    overheads
        The terms. ``wake_us`` is nothing: what ``measure_costs`` measures has it in the costs.
    spread
        For each measured term the median absolute deviation over the steps, relative to their
        median; a large one says that the machine was not quiet.
    gradients, bytes
        How many gradients the stand-in had, and their size.
    views
        Whether it was run with ``gradient_as_bucket_view=True``.
    """

    overheads: Overheads
    spread: dict[str, float]
    gradients: int
    bytes: int
    views: bool


def measure_overheads(
    model: torch.nn.Module,
    *,
    views: bool = False,
    steps: int = 10,
    group: dist.ProcessGroup | None = None,
) -> MeasuredOverheads:
    """Measure what DDP adds to a step; every rank makes this call.

    A stand-in with the model's parameters (not the model itself, which is left alone) makes a few
    steps in DDP with a communication hook that returns every bucket at once. So nothing is sent, and
    what is left is DDP: copying gradients into buckets, calling the hook, handing them back.

    Parameters
    ----------
    model
        The model, plain or in DDP; its trainable parameters count, up to 256 MiB of them.
    views
        Whether the model is to be run with ``gradient_as_bucket_view=True``.
    steps
        How many steps are timed, at least 3.
    group
        The ranks; by default all of them.

    Raises
    ------
    InputError
        If nothing is distributed, or the steps are out of range.
    NotApplicableError
        If the parameters are not on the processor: on a GPU the processor runs ahead, and its clock
        does not say what holds up what.
    """
    if type(steps) is not int or not 3 <= steps <= _MOST_STEPS:
        raise InputError(f"steps: {steps!r:.100} must be a whole number from 3 to {_MOST_STEPS}")
    if world_size(group) is None:
        raise InputError("torch.distributed is not initialised: DDP cannot be run")
    parameters = _some(list(trainable_parameters(model).values()))
    if not parameters:
        raise InputError("model: no parameter requires a gradient")
    if any(p.device.type != "cpu" for p in parameters):
        raise NotApplicableError(
            f"overheads are measured on the processor; the parameters are on {parameters[0].device}"
        )
    total = sum(p.numel() * p.element_size() for p in parameters)
    samples = _samples(parameters, total, views, steps, group)
    body = _issuing_us(group) if (world_size(group) or 1) > 1 else None
    if body is not None:
        samples["hook_us"] = body
    own = {name: (_quartile(values), _spread(values)) for name, values in samples.items()}
    worst = {name: max(rank[name] for rank in gathered(own, group)) for name in own}
    middle = {name: max(0.0, value) for name, (value, _) in worst.items()}
    overheads = Overheads(
        issue_us=round(middle["issue_us"], 1),
        hook_us=round(middle["issue_us"] + middle["hook_us"], 1),
        fill_gb_s=_rate(middle["fill"]),
        copy_gb_s=None if views else _rate(middle["copy"]),
        gradient_us=round(middle["gradient_us"], 2),
        finish_us=round(middle["finish_us"], 1),
    )
    spread = {name: round(spread, 3) for name, (_, spread) in worst.items()}
    return MeasuredOverheads(overheads, spread, len(parameters), total, views)


def _some(parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    found: list[torch.nn.Parameter] = []
    total = 0
    for parameter in parameters:
        total += parameter.numel() * parameter.element_size()
        if found and total > MOST_BYTES:
            break
        found.append(parameter)
    return found


def _rate(ns_per_byte: float) -> float | None:
    """Return GB/s; None for what takes no time that could be seen."""
    return None if ns_per_byte < 1e-3 else round(1 / ns_per_byte, 3)


def _quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[0]


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values) / max(abs(middle), 1e-9)


class _StandIn(torch.nn.Module):  # type: ignore[misc]  # torch may be missing
    """Parameters of the same shapes and types, whose backward does next to nothing."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        self.own = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros_like(p, requires_grad=False)) for p in parameters]
        )

    def forward(self) -> torch.Tensor:
        """Return a number that depends on all of them."""
        return torch.stack([p.sum().abs().float() for p in self.own]).sum()


class _Call(NamedTuple):
    start_ns: int
    end_ns: int


class _Instant:
    """A communication hook that takes no time; ``late`` buckets are completed by another thread."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.late = False
        self.last_gradients = 0
        self.completed_ns = 0

    def hook(self, state: object, bucket: Any) -> Any:  # noqa: ANN401  (DDP compares annotations)
        """Return a bucket as it is."""
        start = time.perf_counter_ns()
        future: Any = torch.futures.Future()
        if self.late and bucket.is_last():
            threading.Timer(LATE_S, self._complete, (future, bucket.buffer())).start()
        else:
            future.set_result(bucket.buffer())
        self.calls.append(_Call(start, time.perf_counter_ns()))
        if self.late and bucket.is_last():
            self.last_gradients = len(bucket.gradients())
        return future

    def _complete(self, future: Any, buffer: torch.Tensor) -> None:  # noqa: ANN401
        self.completed_ns = time.perf_counter_ns()
        future.set_result(buffer)


_Instant.hook.__annotations__.clear()


class _Steps(NamedTuple):
    """The steps of one setting.

    For each step: from when the last gradient of each launch was ready to the call of the hook, and
    that gradient's bytes; what the hook took; and what came after backward.
    """

    delays_us: list[list[tuple[float, int]]]
    body_us: list[float]
    after_us: list[float]
    last_gradients: int


def _run(
    parameters: Sequence[torch.nn.Parameter],
    cap: float,
    views: bool,
    steps: int,
    group: dist.ProcessGroup | None,
    late: bool = False,
) -> _Steps:
    model = DistributedDataParallel(
        _StandIn(parameters),
        process_group=group,
        bucket_cap_mb=cap,
        gradient_as_bucket_view=views,
        init_sync=False,
    )
    instant = _Instant()
    model.register_comm_hook(None, instant.hook)
    named = trainable_parameters(model)
    sizes = [p.numel() * p.element_size() for p in named.values()]
    rows: list[tuple[int, int, list[_Call], int]] = []
    with GradientHooks(named) as hooks:
        for number in range(_WARMUP + steps):
            instant.late = late and number >= _WARMUP
            instant.calls.clear()
            time.sleep(IDLE_S)
            model.zero_grad()
            loss = model()
            start = time.perf_counter_ns()
            hooks.start_step()
            loss.backward()
            end = time.perf_counter_ns()
            hooks.end_step()
            del loss
            rows.append((start, end, list(instant.calls), instant.completed_ns))
        times = hooks.times()
    delays, body, after = [], [], []
    for (start, end, calls, completed), step in list(zip(rows, times, strict=True))[_WARMUP:]:
        ready = sorted((start + ns, sizes[k]) for k, ns in step.ready.items())
        marks = [at for at, _ in ready]
        one = []
        for call in calls:
            at, size = ready[max(0, bisect_right(marks, call.start_ns) - 1)]
            one.append(((call.start_ns - at) / 1000, size))
        delays.append(one)
        body.append(statistics.median((call.end_ns - call.start_ns) / 1000 for call in calls))
        ended = completed if late else start + step.backward_end
        after.append((end - ended) / 1000)
    return _Steps(delays, body, after, instant.last_gradients)


def _samples(
    parameters: Sequence[torch.nn.Parameter],
    total: int,
    views: bool,
    steps: int,
    group: dist.ProcessGroup | None,
) -> dict[str, list[float]]:
    """Return each term's value in each step; the rates in nanoseconds a byte."""
    cap = max(total / LAUNCHES, 1) / MIB
    each = _run(parameters, 1 / MIB, True, steps, group)
    some = _run(parameters, cap, True, steps, group)
    late = _run(parameters, cap, True, steps, group, late=True)
    issue, fill = zip(*(_issue_and_fill(one) for one in each.delays_us), strict=True)
    count = len(parameters)
    rest = max(1, count - late.last_gradients)
    gradient = [(a - b) / rest for a, b in zip(some.after_us, late.after_us, strict=True)]
    per_gradient = max(0.0, _quartile(gradient))
    finish = [us - count * per_gradient for us in some.after_us]
    found = {
        "fill": list(fill),
        "issue_us": list(issue),
        "hook_us": some.body_us,
        "gradient_us": gradient,
        "finish_us": finish,
    }
    if not views:
        copied = _run(parameters, cap, False, steps, group)
        bare = _quartile(some.after_us)
        found["copy"] = [1000 * (us - bare) / max(1, total) for us in copied.after_us]
    return found


def _issue_and_fill(delays: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return a launch's own time, in microseconds, and the copy's, in nanoseconds a byte.

    A launch of a small gradient has next to no copy, one of a large gradient next to nothing else.
    """
    small = [us for us, size in delays if size <= SMALL_BYTES]
    issue = statistics.median(small) if small else 0.0
    large = [1000 * (us - issue) / size for us, size in delays if size > LARGE_BYTES]
    if not large:
        size = max(size for _, size in delays)
        large = [1000 * (us - issue) / size for us, own in delays if own == size and size]
    return issue, max(0.0, statistics.median(large or [0.0]))


def _issuing_us(group: dist.ProcessGroup | None) -> list[float]:
    """Return how long the call of an all-reduce takes, which DDP makes in backward's thread."""
    data = torch.zeros(1024)
    found = []
    for number in range(_WARMUP + 20):
        start = time.perf_counter_ns()
        work = dist.all_reduce(data, group=group, async_op=True)
        took = time.perf_counter_ns() - start
        if work is not None:
            work.wait()
        if number >= _WARMUP:
            found.append(took / 1000)
    return found

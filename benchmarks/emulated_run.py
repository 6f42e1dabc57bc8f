"""How benchmarks/emulated_link.py measures: steps in turns, over all ranks, and whether it was quiet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commsched.models import Gradient, GradientProblem, Plan
from commsched.models.overheads import Overheads
from commsched.torch import EmulatedLink
from commsched.torch.hooks import GradientHooks, StepTimes, trainable_parameters
from commsched.torch.ranks import gathered, world_size

STAT = Path("/proc/stat")
PROBES = 20


class Variant(NamedTuple):
    """A way of setting DDP: its arguments, the plan that it should run, and a model in it."""

    name: str
    plan: Plan
    ddp: DistributedDataParallel
    step: Callable[[], int]


class Timed(NamedTuple):
    """A measured step of a rank, in nanoseconds of ``time.perf_counter_ns()``."""

    start: int
    times: StepTimes
    returned: int
    end: int


class Step(NamedTuple):
    """A measured step of all ranks: its problem, and what it took after backward and in all."""

    problem: GradientProblem
    exposed_ns: int
    step_ns: int


class Others:
    """What other programs took of the processors meanwhile; None where the system does not say."""

    def __init__(self) -> None:
        self._start = (time.perf_counter(), self._busy(), time.process_time())

    @staticmethod
    def _busy() -> float | None:
        """Return for how many seconds the processors have been busy since the system began."""
        try:
            fields = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        except OSError:
            return None
        ticks = [int(field) for field in fields]
        return (sum(ticks[:3]) + sum(ticks[5:8])) / 100  # all but idle, and waiting for disks

    def share(self) -> float | None:
        """Return how many processors others used on average; every rank must make this call."""
        start, busy, own = self._start
        now = self._busy()
        ours = sum(gathered(time.process_time() - own, None))
        if busy is None or now is None:
            return None
        return max(0.0, now - busy - ours) / (time.perf_counter() - start)


def measured(
    variants: list[Variant], link: EmulatedLink | None, rounds: int
) -> dict[str, list[Timed]]:
    """Return the steps of each variant, in rounds that take turns."""
    starts: dict[str, list[tuple[int, int, int]]] = {variant.name: [] for variant in variants}
    with ExitStack() as stack:
        hooks = {
            variant.name: stack.enter_context(GradientHooks(trainable_parameters(variant.ddp)))
            for variant in variants
        }
        for number in range(rounds):
            turn = number % len(variants)
            for variant in variants[turn:] + variants[:turn]:
                if link is not None:
                    link.clear()
                if (world_size(None) or 1) > 1:
                    dist.barrier()
                start = time.perf_counter_ns()
                hooks[variant.name].start_step()
                returned = variant.step()
                hooks[variant.name].end_step()
                starts[variant.name].append((start, returned, time.perf_counter_ns()))
        return {
            name: [
                Timed(start, times, returned, end)
                for (start, returned, end), times in zip(starts[name], each.times(), strict=True)
            ]
            for name, each in hooks.items()
        }


def joined(steps: list[Timed], names: list[str], known: GradientProblem) -> list[Step]:
    """Return each step over all ranks, which share a clock: the latest of everything counts."""
    found = []
    size = dict(zip(known.names, known.bytes, strict=True))
    cost = known.cost(known.keys[0])
    for ranks in zip(*gathered(steps, None), strict=True):
        zero = min(one.start for one in ranks)
        ready = {
            names[k]: max(one.start - zero + one.times.ready[k] for one in ranks)
            for k in ranks[0].times.ready
        }
        backward = max(one.start - zero + one.times.backward_end for one in ranks)
        gradients = [Gradient(name, size[name], ready[name]) for name in known.names]
        gradients.sort(key=lambda gradient: gradient.ready_ns)
        problem = GradientProblem(gradients, cost, backward_end_ns=backward)
        returned = max(one.returned for one in ranks) - zero
        found.append(Step(problem, returned - backward, max(one.end for one in ranks) - zero))
    return found


class _Probe:
    """A bucket that was made up, to see what a link's own threads take."""

    def __init__(self) -> None:
        self._buffer = torch.zeros(1024)

    def index(self) -> int:
        return 0

    def buffer(self) -> torch.Tensor:
        return self._buffer


def with_link(terms: Overheads, link: EmulatedLink | None, paced: bool) -> Overheads:
    """Return DDP's overheads with those of a link's own hook and thread, measured by themselves.

    At an even pace nothing holds backward up: what a launch takes there is taken from waiting.
    """
    if link is not None:
        bodies = []
        link.clear()
        for _ in range(PROBES):
            start = time.perf_counter_ns()
            future = link.hook(None, _Probe())  # type: ignore[arg-type]
            bodies.append((time.perf_counter_ns() - start) / 1000)
            future.wait()
        late = [(launch.end_ns - launch.due_ns) / 1000 for launch in link.launches]
        own = (statistics.median(bodies), statistics.median(late))
        body, wake = (max(values) for values in zip(*gathered(own, None), strict=True))
        hook = round(float(terms.issue_us) + body, 1)
        terms = replace(terms, hook_us=hook, wake_us=round(wake, 1))
        link.clear()
    return replace(terms, hook_us=0) if paced else terms


def quartiles(values: list[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    low, _, high = statistics.quantiles(values)
    return low, high


def spread_row(name: str, values: list[float]) -> dict[str, Any]:
    """Return a median with its quartiles, for a row."""
    low, high = quartiles(values)
    return {f"{name}_ms": statistics.median(values), f"{name}_quartiles": [low, high]}

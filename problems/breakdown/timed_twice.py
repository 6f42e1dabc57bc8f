"""Kernels that were timed twice: in a recording with communication and in one of the same work alone.

How much communication slows compute cannot be told from one recording: a kernel that is long in it
may be long for any reason. Two of the same steps on the same device, one of them without communication
(for example within ``no_sync``), say it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from commsched.models.errors import InputError
from commsched.models.exposure import merge_intervals
from commsched.models.slowdown_fit import TimedTwice
from commsched.problems.profiler.chrome_trace import read_chrome_trace, timed_op
from commsched.problems.profiler.trace_kernels import KERNEL_CATS, kernel_of
from commsched.problems.sources.source import Source

_NEVER_USED = frozenset({"python_function", "gpu_user_annotation", "trace", "overhead"})

Place = tuple[str, str, str]
"""A kernel's device, stream and name."""
Times = tuple[int, int]


@dataclass(frozen=True)
class Pairing:
    """The kernels of two recordings that are the same work.

    Attributes
    ----------
    tasks
        Each with both times.
    left_out
        How many kernels of the recording with communication have no counterpart: the other
        recording has more or fewer of that name on that stream.
    """

    tasks: tuple[TimedTwice, ...]
    left_out: int


def timed_twice(beside: Source | Path, alone: Source | Path) -> Pairing:
    """Return the kernels of two profiler traces with their times in both.

    A kernel is paired with the one that has the same device, stream, name and number among these. Names
    that one recording has more often than the other are left out.

    Parameters
    ----------
    beside
        The trace with communication.
    alone
        The trace of the same steps on the same device without it.

    Raises
    ------
    InputError
        If one cannot be read or has no kernel of a GPU, the first has no collective or the second
        has one, or less than half of the time in kernels can be paired.
    """
    kernels, collectives = _kernels(beside)
    others, communication = _kernels(alone)
    if not collectives:
        raise InputError(f"{beside}: has no collective of a GPU, so nothing is slowed in it")
    if communication:
        count = sum(map(len, communication.values()))
        raise InputError(
            f"{alone}: has {count} collectives: the recording beside which times are compared must "
            "be one without communication"
        )
    launches = {device: _Busy(collectives.get(device, [])) for device, _, _ in kernels}
    tasks: list[TimedTwice] = []
    whole = paired = left_out = 0
    for place, times in kernels.items():
        whole += _length(times)
        twins = others.get(place, [])
        if len(twins) != len(times):
            left_out += len(times)
            continue
        paired += _length(times)
        busy = launches[place[0]]
        for one, other in zip(sorted(times), sorted(twins), strict=True):
            took, took_alone = one[1] - one[0], other[1] - other[0]
            tasks.append(TimedTwice(place[2], took_alone, took, busy.during(*one)))
    if 2 * paired < whole or not tasks:
        raise InputError(
            f"{alone}: is not the same work as {beside}: of its time in kernels only "
            f"{100 * paired // max(1, whole)}% is in kernels that both have equally often"
        )
    return Pairing(tuple(tasks), left_out)


def _kernels(
    source: Source | Path,
) -> tuple[Mapping[Place, list[Times]], Mapping[str, list[Times]]]:
    """Return when each kernel of compute ran, and the collectives of each device."""
    compute: dict[Place, list[Times]] = defaultdict(list)
    collectives: dict[str, list[Times]] = defaultdict(list)
    dropped: Counter[str] = Counter()
    for event in read_chrome_trace(source, only_complete=True, without=_NEVER_USED).events:
        if event.ph != "X" or not isinstance(event.name, str):
            continue
        cat = event.cat.lower() if isinstance(event.cat, str) else ""
        if cat not in KERNEL_CATS or "kernel" not in cat:
            continue
        op = timed_op(event, dropped)
        if op is None:
            continue
        kernel, _ = kernel_of(op, cat)
        device, stream = str(event.pid), str(op.tid)
        if kernel.is_collective:
            collectives[device].append((op.start, op.end))
        else:
            compute[device, stream, op.name].append((op.start, op.end))
    if not compute:
        raise InputError(
            f"{source}: has no kernel of a GPU whose time could be compared (profile with "
            "ProfilerActivity.CUDA)"
        )
    return compute, collectives


def _length(times: Sequence[Times]) -> int:
    return sum(end - start for start, end in times)


class _Busy:
    """When at least one launch ran on a device."""

    def __init__(self, times: Sequence[Times]) -> None:
        merged = merge_intervals(times)
        self.starts = [start for start, _ in merged]
        self.ends = [end for _, end in merged]
        # Of the first so many intervals together.
        self.lengths = [0, *accumulate(end - start for start, end in merged)]

    def during(self, start: int, end: int) -> int:
        """Return for how long of an interval some launch ran."""
        return self._until(end) - self._until(start)

    def _until(self, now: int) -> int:
        begun = bisect_right(self.starts, now)
        over = max(0, self.ends[begun - 1] - now) if begun else 0
        return self.lengths[begun] - over

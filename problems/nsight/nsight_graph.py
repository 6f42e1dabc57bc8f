"""Nsight Systems exports as steps to plan, with the sizes of another recording of the same run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.models.errors import InputError
from commsched.models.step import Collective
from commsched.models.units import format_ns
from commsched.problems.execution.collective_sizes import SizedCollective, match, sized_collectives
from commsched.problems.nsight.nsight_sqlite import (
    NsightExport,
    NsightKernel,
    read_nsight,
    recognises,
)
from commsched.problems.nsight.nsight_work import NO_SIZES
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedGraph, RecordedLaunch
from commsched.problems.segments import Node, merge, shared_channels
from commsched.problems.sources.source import Source

_CLOSE = 0.05
"""How far the replayed end may be from the recorded one, as a part of it."""


_MAX_WAITS = 20_000_000


@dataclass(slots=True)
class _Device:
    """One device's work on its way to a graph; times are from ``origin``."""

    kernels: Sequence[NsightKernel]
    origin: int
    nodes: list[Node] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    launches: list[RecordedLaunch] = field(default_factory=list)
    groups: dict[str, set[str]] = field(default_factory=dict)

    def add(self, node: Node, duration: int) -> int:
        """Add a node that took so long, and return its position."""
        self.nodes.append(node)
        self.durations.append(duration)
        return len(self.nodes) - 1


def read(files: Sequence[Source], options: ReadOptions) -> RecordedGraph:
    """Read the whole export as one step of its first device.

    Raises
    ------
    InputError
        If it cannot be read, has no collective, no sizes are given or they do not fit.
    """
    if len(files) != 1:
        raise InputError(f"{files[0]}: name one Nsight Systems export, not {len(files)} files")
    source = files[0]
    export = read_nsight(source)
    by_device: dict[int, list[NsightKernel]] = {}
    for kernel in export.kernels:
        by_device.setdefault(kernel.device, []).append(kernel)
    counts = {
        device: sum(kernel.is_collective for kernel in kernels)
        for device, kernels in sorted(by_device.items())
    }
    if not any(counts.values()):
        nameless = all(kernel.name == "kernel" for kernel in export.kernels if kernel.is_kernel)
        why = " (no kernel has a name: is the table StringIds missing?)" if nameless else ""
        raise InputError(f"{source}: no collective kernel was recorded: nothing to plan{why}")
    if options.sizes is None:
        listed = ", ".join(f"{count} on device {device}" for device, count in counts.items())
        raise InputError(
            f"{source}: {NO_SIZES}, only times ({listed}): give a PyTorch profiler trace or "
            "execution trace of the same run (--sizes); commsched analyse needs none"
        )
    sizes = sized_collectives(options.sizes)
    device = next((d for d, count in counts.items() if count == len(sizes)), min(counts))
    kernels = sorted(by_device[device], key=_issued)
    runs = [kernel for kernel in kernels if kernel.is_collective]
    streams = len({kernel.stream for kernel in kernels})
    if streams * len(runs) > _MAX_WAITS:
        raise InputError(f"{source}: {streams} streams and {len(runs)} collectives are too many")
    match([run.kind for run in runs], sizes, str(source), str(options.sizes))
    origin = min(kernels[0].start, *(_issued(kernel)[0] for kernel in kernels))
    one = _Device(kernels, origin)
    _fill(one, sizes)
    ranks = {size.group or "world": size.ranks for size in sizes if size.ranks is not None}
    dropped = Counter(export.dropped)
    for other, found in by_device.items():
        if other != device:
            dropped[f"kernels and copies of device {other}"] += len(found)
    return _graph(source, options, one, device, export, dropped, ranks)


def _issued(kernel: NsightKernel) -> tuple[int, int]:
    return (kernel.start if kernel.launched is None else kernel.launched, kernel.start)


def _fill(one: _Device, sizes: Sequence[SizedCollective]) -> None:
    """Make a node of each launch and of each kernel.

    A stream runs its kernels in order, each after the processor has launched it. A collective on
    a stream of its own also waits for what was launched before it on the other streams, as
    frameworks make it wait for its input.
    """
    at = one.origin
    clock = -1
    computed: dict[int, int] = {}
    pending: dict[int, list[int]] = {}
    remaining = iter(sizes)
    for kernel in one.kernels:
        launched = _issued(kernel)[0]
        if launched > at or clock < 0:
            one.add(Node("processor", launched - at, [clock] if clock >= 0 else []), launched - at)
            clock, at = len(one.nodes) - 1, launched
        duration = kernel.end - kernel.start
        if not kernel.is_collective:
            # It waits for the collectives since the last kernel of its stream, if there are any.
            after = [clock, *pending.pop(kernel.stream, ())]
            computed[kernel.stream] = one.add(
                Node(f"gpu {kernel.stream}", duration, after), duration
            )
            continue
        size = next(remaining)
        collective = Collective(
            f"{size.kind} {len(one.launches)}",
            size.bytes,
            size.kind,
            size.group or "world",
            size.dtype or "unknown",
        )
        after = sorted({clock, *computed.values()})
        position = one.add(Node(after=after, collective=collective), duration)
        pending.setdefault(kernel.stream, []).append(position)
        one.groups.setdefault(f"gpu {kernel.stream}", set()).add(collective.group)
        one.launches.append(_launch(one, kernel, collective))


def _launch(one: _Device, kernel: NsightKernel, collective: Collective) -> RecordedLaunch:
    return RecordedLaunch(
        names=(collective.name,),
        kind=collective.kind,
        group=collective.group,
        dtype=collective.dtype,
        bytes=collective.bytes,
        issued_ns=_issued(kernel)[0] - one.origin,
        start_ns=kernel.start - one.origin,
        end_ns=kernel.end - one.origin,
        exact=True,
    )


def _replayed(one: _Device) -> int:
    """Return when the graph ends if collectives take as long as recorded."""
    ends: list[int] = []
    last: dict[str, int] = {}
    for node, duration in zip(one.nodes, one.durations, strict=True):
        lane = node.stream if node.collective is None else f"\0{node.collective.group}"
        start = max((ends[k] for k in node.after), default=0)
        ends.append(max(start, last.get(lane, 0)) + duration)
        last[lane] = ends[-1]
    return max(ends)


def _graph(
    source: Source,
    options: ReadOptions,
    one: _Device,
    device: int,
    export: NsightExport,
    dropped: Counter[str],
    ranks: dict[str, int],
) -> RecordedGraph:
    try:
        merged = merge(one.nodes)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    end = max(kernel.end for kernel in one.kernels) - one.origin
    replayed = _replayed(one)
    silent = sum(kernel.launched is None for kernel in one.kernels)
    assert options.sizes is not None
    assumptions = [
        f"the sizes come from {options.sizes.name}, collective by collective in order of issue",
        "the whole export is one step",
        "the processor's calls come when they were recorded, whatever the collectives take",
        "a collective waits for what was launched before it on every stream; what runs on "
        "another stream waits for no collective",
    ]
    if silent:
        assumptions.append(
            f"{silent} kernels without a recorded launch were launched at their start"
        )
    text = (
        f"replayed with the recorded durations, the graph ends after {format_ns(replayed)}, "
        f"the recording after {format_ns(end)}"
    )
    checks = [Check(text, abs(replayed - end) <= _CLOSE * end)]
    if export.synchronisations:
        text = (
            f"the processor waited {export.synchronisations} times for a GPU, perhaps for a "
            "collective, and these waits are taken as fixed"
        )
        checks.append(Check(text, passed=False))
    return RecordedGraph(
        name=f"{source.name.split('.')[0]} device {device} (Nsight)",
        tasks=merged.tasks,
        launches=tuple(one.launches),
        step_name="the whole export",
        report=ImportReport(
            source=source.name,
            events_read=export.events_read,
            kept={
                "kernels and copies": len(one.kernels) - len(one.launches),
                "collectives": len(one.launches),
                "tasks after merging": len(merged.tasks),
            },
            dropped={reason: number for reason, number in dropped.items() if number},
            assumptions=tuple(assumptions),
            checks=tuple(checks),
        ),
        channels=shared_channels(one.groups),
        ranks=ranks,
        end_ns=end,
    )


READER = Reader(
    title="Nsight Systems export",
    recognises=recognises,
    read=read,
    options=frozenset({"sizes"}),
)

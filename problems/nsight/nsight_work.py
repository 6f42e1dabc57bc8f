"""An Nsight Systems export as what ran on each device, for breaking its time down."""

from __future__ import annotations

from collections import Counter

from commsched.problems.breakdown.breakdown import Activity, DeviceWork, Sort
from commsched.problems.nsight.nsight_sqlite import NsightExport, NsightKernel, read_nsight
from commsched.problems.recorded import Check, ImportReport
from commsched.problems.sources.source import Source

NO_SIZES = "Nsight's export has no sizes of collectives"
_WORDS = {
    Sort.COMPUTATION: "kernels",
    Sort.COLLECTIVE: "collectives",
    Sort.COPY: "copies and memsets",
}


def read_nsight_work(source: Source, name: str = "") -> list[DeviceWork]:
    """Return what ran on each device that an Nsight Systems export has.

    Parameters
    ----------
    source
        The export, an SQLite file.
    name
        What to call it in results; by default its name without folders.

    Raises
    ------
    InputError
        If it cannot be read or nothing ran on a GPU.
    """
    export = read_nsight(source)
    devices: dict[int, list[Activity]] = {}
    for kernel in export.kernels:
        devices.setdefault(kernel.device, []).append(_activity(kernel))
    title = name or source.name
    report = _report(title, export)
    return [
        DeviceWork(title, None, str(device), activities, report)
        for device, activities in sorted(devices.items())
    ]


def sort_of(kernel: NsightKernel) -> Sort:
    """Return what something that ran on a GPU is."""
    if kernel.is_collective:
        return Sort.COLLECTIVE
    return Sort.COMPUTATION if kernel.is_kernel else Sort.COPY


def _activity(kernel: NsightKernel) -> Activity:
    return Activity(
        sort_of(kernel),
        kernel.start,
        kernel.end,
        str(kernel.stream),
        kernel.launched,
        kernel.kind or "",
    )


def _report(name: str, export: NsightExport) -> ImportReport:
    count = Counter(sort_of(kernel) for kernel in export.kernels)
    runs = [kernel for kernel in export.kernels if kernel.is_collective]
    silent = sum(kernel.launched is None for kernel in export.kernels)
    assumptions = [f"{NO_SIZES}: durations only"] if runs else []
    if silent:
        assumptions.append(
            f"{silent} of {len(export.kernels)} kernels and copies have no recorded launch (most "
            "were launched before the recording began)"
        )
    checks = []
    if runs:
        known = sum(kernel.kind is not None for kernel in runs)
        text = f"the kind of {known} of {len(runs)} collectives is known"
        checks.append(Check(text, known == len(runs)))
    return ImportReport(
        source=name,
        events_read=export.events_read,
        kept={_WORDS[sort]: count[sort] for sort in Sort if count[sort]},
        dropped=export.dropped,
        assumptions=tuple(assumptions),
        checks=tuple(checks),
    )

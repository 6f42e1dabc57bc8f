"""Recordings of several ranks, made from a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commsched.models.step import Collective, Compute, Gradient
from commsched.problems.ranks.ranks_input import RankRecording
from commsched.problems.recorded import (
    Check,
    ImportReport,
    RecordedGraph,
    RecordedLaunch,
    RecordedStep,
    Recording,
)

REPORT = ImportReport(
    "r.json", 10, {"gradients": 2}, {"flows": 1}, ("times are whole",), (Check("whole", True),)
)


def launch(
    names: Sequence[str],
    size: int,
    ran: tuple[int, int] | None,
    *,
    group: str = "dp",
    kind: Any = "allreduce",
    issued: int = 0,
    exact: bool = True,
) -> RecordedLaunch:
    """Return a launch."""
    start, end = ran if ran is not None else (None, None)
    return RecordedLaunch(tuple(names), kind, group, "float32", size, issued, start, end, exact)


def step(
    ready: Sequence[int],
    sizes: Sequence[int],
    buckets: Sequence[Sequence[int]],
    runs: Sequence[tuple[int, int] | None],
    **more: Any,
) -> RecordedStep:
    """Return a step whose gradients are ready in the order given; buckets name them by number."""
    gradients = [
        Gradient(f"g{k}", size, time)
        for k, (size, time) in enumerate(zip(sizes, ready, strict=True))
    ]
    launches = [
        launch(
            [f"g{k}" for k in bucket],
            sum(sizes[k] for k in bucket),
            run,
            issued=max(ready[k] for k in bucket),
        )
        for bucket, run in zip(buckets, runs, strict=True)
    ]
    end = more.pop("backward_end_ns", max(ready, default=0))
    more = {"step_name": "ProfilerStep#3", "report": REPORT, **more}
    return RecordedStep("job", tuple(gradients), tuple(launches), end, **more)


def graph(
    durations: Sequence[int],
    sizes: Sequence[int],
    runs: Sequence[tuple[int, int] | None],
    *,
    blocking: bool = False,
    group: str = "dp",
    kind: Any = "allreduce",
    **more: Any,
) -> RecordedGraph:
    """Return a chain of compute tasks with a collective after each; blocking ones hold the next."""
    tasks: list[Compute | Collective] = []
    for k, (duration, size) in enumerate(zip(durations, sizes, strict=True)):
        after = (f"c{k - 1}",) if blocking and k else ()
        tasks.append(Compute(f"t{k}", duration, "gpu", after))
        tasks.append(Collective(f"c{k}", size, kind, group, after=(f"t{k}",)))
    launches = tuple(
        launch([f"c{k}"], size, run, group=group, kind=kind, issued=k)
        for k, (size, run) in enumerate(zip(sizes, runs, strict=True))
    )
    more = {"launches": launches, "step_name": "ProfilerStep#3", "report": REPORT, **more}
    return RecordedGraph("job", tuple(tasks), **more)


def rank(
    number: int | None,
    recording: Recording,
    origin: int | None = 0,
    source: str | None = None,
    members: Mapping[str, tuple[int, ...]] | None = None,
) -> RankRecording:
    """Return a rank's recording."""
    return RankRecording(
        number, recording, origin, source or f"job/rank{number}.json", members or {}
    )


def failed(recording: Recording) -> list[str]:
    """Return the checks that failed."""
    return [check.text for check in recording.report.checks if not check.passed]


def said(recording: Recording, part: str) -> list[str]:
    """Return the assumptions and findings that contain a text."""
    report = recording.report
    return [note for note in (*report.assumptions, *report.findings) if part in note]

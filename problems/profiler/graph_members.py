"""The gradients in the buckets of a step graph, from what is worked out for a DDP step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_cpu import CpuWiring
from commsched.problems.profiler.graph_gpu import GpuWiring
from commsched.problems.profiler.graph_host import HOST
from commsched.problems.profiler.graph_lanes import Point
from commsched.problems.profiler.trace_draft import Draft
from commsched.problems.profiler.trace_report import gradient_names


@dataclass(frozen=True, slots=True)
class Member:
    """A gradient of a bucket.

    Attributes
    ----------
    name, bytes, dtype
        As in a recorded DDP step.
    ready
        The work that made it; None if there was none before.
    """

    name: str
    bytes: int
    dtype: str
    ready: Point | None


def find_members(
    draft: Draft, calls: Sequence[Call], wired: GpuWiring | CpuWiring
) -> dict[int, list[Member]]:
    """Return the gradients of each call that is a bucket whose members add up to the byte.

    Parameters
    ----------
    draft
        The step as a DDP step.
    calls
        Its collectives in the order of issue.
    wired
        Its lanes.
    """
    names = gradient_names(draft)
    by_issue = {
        (call.op.tid, call.op.start): number
        for number, call in enumerate(calls)
        if call.kind == "allreduce"
    }
    found: dict[int, list[Member]] = {}
    for launch in draft.launches:
        parts = [launch.launch.op, *launch.launch.parts]
        number = next(
            (by_issue[key] for part in parts if (key := (part.tid, part.start)) in by_issue), None
        )
        if number is None or not launch.exact or not launch.members:
            continue
        if calls[number].message.dtype is None:
            calls[number].message.dtype = launch.dtype(draft.sizes)
        found[number] = [
            Member(
                names[k],
                draft.sizes[k].bytes,
                draft.sizes[k].dtype,
                _ready(draft, k, calls[number], wired),
            )
            for k in launch.members
        ]
    return found


def _ready(draft: Draft, k: int, call: Call, wired: GpuWiring | CpuWiring) -> Point | None:
    hook = draft.hooks[k]
    if isinstance(wired, CpuWiring):
        time = min(hook.start, call.op.start)
        return Point(HOST, time) if time > wired.origin else None
    work = wired.launched_before(hook.tid, hook.start)
    if work is None:
        return None
    lane, position = work
    start = None if call.ran is None else call.ran[0]
    if start is not None and lane.ends[position] > start:
        return None
    return Point(lane.key, lane.ends[position])

"""Playing a recorded step graph with the recorded durations, to see whether it fits the recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commsched.models.cost import AlphaBeta
from commsched.models.plan import Bucket, Plan
from commsched.models.problem import Problem
from commsched.models.step import Collective, Task
from commsched.models.timeline import Timeline, evaluate
from commsched.models.units import format_ns
from commsched.problems.profiler.graph_groups import Groups
from commsched.problems.profiler.graph_tasks import StepTasks
from commsched.problems.recorded import Check, RecordedGraph, RecordedLaunch

_ONE_BYTE_A_NS = AlphaBeta(0, 1)
_TOLERANCE = 0.05


class Replay(NamedTuple):
    """What playing the graph gave.

    Attributes
    ----------
    modelled_ns, recorded_ns
        When the last task ended.
    largest_ns
        The largest difference between the modelled and the recorded end of a task.
    worst
        The task that has it.
    """

    modelled_ns: int
    recorded_ns: int
    largest_ns: int
    worst: str

    @property
    def share(self) -> float:
        """The largest difference in shares of the step."""
        return self.largest_ns / self.recorded_ns if self.recorded_ns else 0.0


def play_recorded(
    tasks: Sequence[Task],
    launches: Sequence[RecordedLaunch],
    channels: Mapping[str, tuple[str, ...]],
) -> Timeline:
    """Return the timeline of the recorded launches, each as long as it was recorded."""
    durations: dict[str, int] = {}
    for launch in launches:
        long = 0
        if launch.start_ns is not None and launch.end_ns is not None:
            long = launch.end_ns - launch.start_ns
        durations.update(dict.fromkeys(launch.names, 0))
        durations[launch.names[0]] = long
    played: list[Task] = []
    for task in tasks:
        if isinstance(task, Collective):
            task = Collective(
                task.name, durations[task.name], task.kind, task.group, task.dtype, task.after
            )
        played.append(task)
    costs = {
        (task.group, task.kind): _ONE_BYTE_A_NS for task in played if isinstance(task, Collective)
    }
    plan = Plan(tuple(Bucket(launch.names) for launch in launches))
    return evaluate(Problem(played, costs, channels=channels), plan)


def merged_check(graph: RecordedGraph) -> tuple[Check, ...]:
    """Check a merge of ranks: its launches, as long as they took by themselves, and all work."""
    if graph.end_ns is None or graph.plan is None:
        return ()
    ended = play_recorded(graph.tasks, graph.launches, graph.channels).makespan_ns
    off = abs(ended - graph.end_ns) / graph.end_ns if graph.end_ns else 0.0
    return (
        Check(
            f"the ranks' common step reproduced within {off:.1%} (modelled {format_ns(ended)}, "
            f"recorded {format_ns(graph.end_ns)})",
            off <= _TOLERANCE,
        ),
    )


def replay(step: StepTasks, channels: dict[str, tuple[str, ...]]) -> Replay:
    """Play a step: every launch takes as long as it took, everything else follows.

    A launch is given as many bytes as it took nanoseconds, and a network that sends one byte a
    nanosecond, so the only clock of the package plays it. A launch without times takes none.
    """
    timeline = play_recorded(step.tasks, step.launches, channels)
    ends = {span.name: span.end_ns for span in timeline.tasks}
    for played in timeline.launches:
        ends.update(dict.fromkeys(played.names, played.end_ns))
    largest, worst = max(
        ((abs(ends[name] - end), name) for name, end in step.ends.items()), default=(0, "")
    )
    return Replay(timeline.makespan_ns, step.end, largest, worst)


def replay_check(step: StepTasks, played: Replay) -> Check:
    """Return how well the graph fits the recording, as a check of the report."""
    text = (
        f"recorded step reproduced within {100 * played.share:.1f}% "
        f"(modelled {format_ns(played.modelled_ns)}, recorded {format_ns(played.recorded_ns)})"
    )
    if step.timed < step.total:
        text += f"; {step.total - step.timed} collectives without recorded times took none"
    elif played.share > _TOLERANCE:
        text += f"; furthest off: {played.worst}"
    return Check(text, played.share <= _TOLERANCE and step.timed == step.total)


def overlaps(step: StepTasks) -> int:
    """Return how many launches of a group began while another one of the group was running."""
    by_group: dict[str, list[tuple[int, int]]] = {}
    for launch in step.launches:
        if launch.start_ns is not None and launch.end_ns is not None:
            by_group.setdefault(launch.group, []).append((launch.start_ns, launch.end_ns))
    return sum(map(_overlapping, by_group.values()))


def _overlapping(spans: Sequence[tuple[int, int]]) -> int:
    reached, count = None, 0
    for start, end in sorted(spans):
        count += reached is not None and start + 1000 < reached
        reached = end if reached is None else max(reached, end)
    return count


def channels_of(
    shared: dict[str, tuple[str, ...]], step: StepTasks, groups: Groups
) -> dict[str, tuple[str, ...]]:
    """Return the channels that several groups of the step's collectives share."""
    present = {task.group for task in step.tasks if isinstance(task, Collective)}
    present &= set(groups.names.values())
    kept = {
        channel: tuple(group for group in own if group in present)
        for channel, own in shared.items()
    }
    return {channel: own for channel, own in kept.items() if len(own) > 1}

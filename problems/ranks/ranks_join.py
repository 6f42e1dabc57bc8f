"""Merging the graphs of several ranks.

A merged graph holds the compute tasks of *all* its ranks, each rank on streams of its own, and
each collective once: it waits for what it waited for on any rank, and on every rank the tasks
after it wait for it. That is what happens on the machines, and other rules are not: the largest
duration of each task over the ranks adds up delays that one rank had with those that another one
had at the same time, and the slowest rank's graph alone leaves out that different ranks may be
the last at different collectives. With every collective taking no time the ranks still wait for
each other at it; so the makespan of that step, and with it the exposed time, tell stragglers,
which no plan can mend, from communication.
"""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from commsched.models.errors import InputError
from commsched.models.step import Collective, Compute, Task
from commsched.problems.ranks.ranks_input import RankRecording
from commsched.problems.recorded import RecordedGraph


def graph_of(one: RankRecording) -> RecordedGraph:
    """Return a rank's recording, which must be a graph."""
    assert isinstance(one.recording, RecordedGraph)
    return one.recording


def join(
    ranks: Sequence[RankRecording], collectives_of: RankRecording, zeros: Mapping[int, int]
) -> tuple[Task, ...] | None:
    """Return the tasks of all ranks with each collective once; None if they form a circle.

    Parameters
    ----------
    ranks
        Those whose compute tasks are taken.
    collectives_of
        The rank whose names the collectives have. All must have the same ones in each group.
    zeros
        The rank's number -> when its step starts, in nanoseconds.

    Raises
    ------
    InputError
        If a task waits for one that is not there.
    """
    graphs = {one.number: graph_of(one) for one in ranks}
    reference = graph_of(collectives_of)
    taken = {task.name for task in reference.tasks if isinstance(task, Collective)}
    names = {n: _names(n, graph, reference, taken) for n, graph in graphs.items()}
    merged: dict[str, list[Collective]] = defaultdict(list)
    after: dict[str, dict[str, None]] = defaultdict(dict)
    compute: list[Task] = []
    for one in ranks:
        number, own = one.number, names[one.number]
        begin = _late_start(number, zeros[number], taken)
        compute += begin
        begun = tuple(task.name for task in begin)
        streams = set[str]()
        for task in graphs[number].tasks:
            waits = tuple(_known(own, name, task, one) for name in task.after)
            if isinstance(task, Collective):
                merged[own[task.name]].append(task)
                after[own[task.name]].update(dict.fromkeys(waits or begun))
                continue
            first = task.stream not in streams
            streams.add(task.stream)
            if first and not waits:
                waits = begun
            stream = f"rank {number}: {task.stream}"
            compute.append(Compute(own[task.name], task.duration_ns, stream, waits))
    collectives: list[Task] = [
        Collective(
            task.name,
            max((other.bytes for other in merged[task.name]), default=task.bytes),
            task.kind,
            task.group,
            task.dtype,
            tuple(after[task.name]),
            task.device,
            task.sparse,
        )
        for task in reference.tasks
        if isinstance(task, Collective)
    ]
    tasks = (*compute, *collectives)
    return None if _circular(tasks) else tasks


def _names(
    number: int, graph: RecordedGraph, reference: RecordedGraph, taken: set[str]
) -> dict[str, str]:
    """Return the merged name of each task of a rank; the k-th collectives of a group are one."""
    by_group: defaultdict[str, list[str]] = defaultdict(list)
    for task in reference.tasks:
        if isinstance(task, Collective):
            by_group[task.group].append(task.name)
    queues = {group: iter(names) for group, names in by_group.items()}
    names = {}
    for task in graph.tasks:
        if isinstance(task, Collective):
            names[task.name] = next(queues[task.group])
        else:
            names[task.name] = _free(f"rank {number}: {task.name}", taken)
    return names


def _late_start(number: int, zero: int, taken: set[str]) -> list[Task]:
    """Return a task that holds back a rank whose step starts later than the first one's."""
    if zero == 0:
        return []
    name = _free(f"rank {number}: starts later", taken)
    return [Compute(name, zero, name)]


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _known(own: Mapping[str, str], name: str, task: Task, one: RankRecording) -> str:
    if name not in own:
        raise InputError(
            f"{one.source}: task {task.name!r}: after names {name!r}, which is no task"
        )
    return own[name]


def _circular(tasks: Sequence[Task]) -> bool:
    before: dict[str, list[str]] = {task.name: list(task.after) for task in tasks}
    last: dict[str, str] = {}
    for task in tasks:
        if isinstance(task, Compute):
            if task.stream in last:
                before[task.name].append(last[task.stream])
            last[task.stream] = task.name
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError:
        return True
    return False

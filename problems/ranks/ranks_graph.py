"""Merging the graphs of several ranks: whose tasks are taken, and when the launches ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from commsched.models.step import Collective, Compute, Task
from commsched.problems.ranks.ranks_clock import align
from commsched.problems.ranks.ranks_gates import Gate, gate, gate_lines, merge_launch, spans
from commsched.problems.ranks.ranks_input import RankRecording, numbers_text
from commsched.problems.ranks.ranks_join import graph_of, join
from commsched.problems.ranks.ranks_match import (
    Matched,
    alike,
    difference,
    group_size,
    match_launches,
)
from commsched.problems.ranks.ranks_report import (
    clock_checks,
    clock_notes,
    count_check,
    left_out_checks,
    merge_reports,
    run_checks,
    run_notes,
)
from commsched.problems.recorded import Check, RecordedGraph, RecordedLaunch

MOST_TASKS = 20_000
"""The most tasks of a merged graph; beyond it only the ranks that gate most are in it."""


def merge_graphs(
    all_ranks: Sequence[RankRecording],
    ranks: Sequence[RankRecording],
    why: Mapping[int, str],
    notes: Sequence[str],
    most_tasks: int = MOST_TASKS,
) -> RecordedGraph:
    """Return one graph for those of all ranks.

    The graph is made of the largest set of ranks with the same collectives; of several such sets
    the one whose ranks gate most launches. Every rank's launches count for the durations.

    Parameters
    ----------
    all_ranks
        All ranks that were read.
    ranks
        Those of the chosen step, each with a :class:`RecordedGraph`, by their numbers.
    why
        Why the others are left out, by the rank's number.
    notes
        Assumptions made so far.
    most_tasks
        The most tasks of a merged graph.

    Raises
    ------
    InputError
        If a task waits for one that is not there.
    """
    found, unmatched = match_launches(ranks)
    ends = [graph_of(one).end_ns or compute_ns(graph_of(one)) for one in ranks]
    clock = align([one.origin_ns for one in ranks], spans(found, ranks), ends)
    zeros = {one.number: zero for one, zero in zip(ranks, clock.zeros_ns, strict=True)}
    gates = _gates(found, zeros)
    gating = Counter(one.rank for one in gates)
    weight = {n: (gating[n], compute_ns(graph_of(one)), -n) for one in ranks for n in (one.number,)}
    classes = alike(ranks)
    best = max(classes, key=lambda own: (len(own), max(weight[one.number] for one in own)))
    # The lowest rank lends its names; alone, the rank that gates most is shown as it is.
    tasks, used, how, checks = _tasks(best, weight, zeros, most_tasks)
    reference = best[0] if len(used) > 1 else used[0]
    graph = graph_of(reference)
    if len(used) == 1:
        zeros = {number: zero - zeros[reference.number] for number, zero in zeros.items()}
    reasons = {
        one.number: f"of the graph, not of the durations: {difference(one, best[0])}"
        for own in classes
        if own is not best
        for one in own
    }
    groups = {task.group for task in graph.tasks if isinstance(task, Collective)}
    sizes = {group: group_size(reference, group) for group in sorted(groups)}
    known = [e + zeros[one.number] for one in used if (e := graph_of(one).end_ns) is not None]
    return RecordedGraph(
        name=f"{graph.name}, {len(ranks)} ranks",
        tasks=tasks,
        launches=_launches(reference, found, zeros),
        step_name=graph.step_name,
        report=merge_reports(
            all_ranks,
            ranks,
            [
                *notes,
                *clock_notes(clock, ranks),
                *how,
                *run_notes(found, zeros),
            ],
            [
                *left_out_checks(why),
                *left_out_checks(reasons),
                *checks,
                *count_check(len(ranks), max((s for s in sizes.values() if s), default=None)),
                *(clock_checks(clock, ranks) if graph.launches else []),
                *run_checks(found),
                *(
                    Check(f"launches of group {group!r:.60} compared between ranks: {no}", False)
                    for group, no in sorted(unmatched.items())
                ),
            ],
            gate_lines(gates, "it was the last to start"),
        ),
        channels=graph.channels,
        ranks=graph.ranks,
        end_ns=max(known) if len(known) == len(used) else None,
    )


def compute_ns(graph: RecordedGraph) -> int:
    """Return the work of a graph's busiest stream, in nanoseconds."""
    busy: defaultdict[str, int] = defaultdict(int)
    for task in graph.tasks:
        if isinstance(task, Compute):
            busy[task.stream] += task.duration_ns
    return max(busy.values(), default=0)


def _gates(found: Sequence[Matched], zeros: Mapping[int, int]) -> list[Gate]:
    """Return which rank each launch waited for; the last to start it was not waiting."""
    gates = []
    for number, one in enumerate(found):
        when = {
            rank: zeros[rank] + launch.start_ns
            for rank, launch in one.launches.items()
            if launch.start_ns is not None
        }
        if len(when) > 1:
            gates.append(gate(next(iter(one.launches.values())), number, when))
    return gates


def _tasks(
    ranks: Sequence[RankRecording],
    weight: Mapping[int, tuple[int, int, int]],
    zeros: Mapping[int, int],
    most_tasks: int,
) -> tuple[tuple[Task, ...], list[RankRecording], list[str], list[Check]]:
    """Return the merged tasks, the ranks whose they are, and what there is to say about it."""
    ordered = sorted(ranks, key=lambda one: weight[one.number], reverse=True)
    first = ordered[0]
    if len(ranks) == 1:
        return graph_of(first).tasks, [first], [f"the graph is that of rank {first.rank}"], []
    separate = _separate_group(ranks)
    if separate is not None:
        text = (
            f"ranks in one group: group {separate!r:.60} has fewer ranks than were read, and who "
            f"is in it is not recorded; the graph is that of rank {first.rank}, which gates most"
        )
        return graph_of(first).tasks, [first], [], [Check(text, False)]
    used: list[RankRecording] = []
    total = 0
    for one in ordered:
        total += len(graph_of(one).tasks) + 1
        if used and total > most_tasks:
            break
        used.append(one)
    if len(used) == 1:
        text = f"tasks of all ranks: too many, the graph is that of rank {first.rank}"
        return graph_of(first).tasks, [first], [], [Check(text, False)]
    used.sort(key=lambda one: one.number)
    tasks = join(used, ranks[0], zeros)
    if tasks is None:
        text = (
            "the ranks' graphs fit together: they form a circle (collectives of two groups in "
            f"another order); the graph is that of rank {first.rank}, which gates most"
        )
        return graph_of(first).tasks, [first], [], [Check(text, False)]
    how = [
        f"the graph holds the compute tasks of {numbers_text([one.number for one in used])}, each "
        "rank on streams of its own; a collective waits for all of them"
    ]
    checks = []
    if len(used) < len(ranks):
        text = f"ranks whose tasks are in the graph: {len(used)} of {len(ranks)}, which gate most"
        checks.append(Check(f"{text} (more than {most_tasks} tasks)", False))
    return tasks, used, how, checks


def _separate_group(ranks: Sequence[RankRecording]) -> str | None:
    """Return a group that has fewer ranks than these, so that they are not all in one."""
    for one in ranks:
        groups = {task.group for task in graph_of(one).tasks if isinstance(task, Collective)}
        for group in sorted(groups):
            size = group_size(one, group)
            if size is not None and size < len(ranks):
                return group
    return None


def _launches(
    reference: RankRecording, found: Sequence[Matched], zeros: Mapping[int, int]
) -> tuple[RecordedLaunch, ...]:
    """Return the reference's launches with the times of all ranks, where they can be compared."""
    number = reference.number
    matched = {one.positions[number]: one for one in found if number in one.positions}
    launches = []
    for position, launch in enumerate(reference.recording.launches):
        alone = Matched(launch.group, {number: launch}, {number: position})
        launches.append(merge_launch(matched.get(position, alone), launch.names, zeros))
    launches.sort(key=lambda launch: launch.issued_ns)
    return tuple(launches)

"""Merging a recording's thousands of small tasks into the segments between its collectives.

The merged graph has the same times as the whole one, whatever the collectives cost: what waits
for no collective runs at fixed times and becomes one chain; of the rest, tasks that follow each
other on a stream become one where nothing else looks in between.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from commsched.models.errors import CycleError
from commsched.models.step import Collective, Compute, Task

_MAX_LATEST = 20_000_000
_MAX_BITS = 2_000_000_000
"""Beyond so many entries on ancestors, dependencies that follow from others are kept."""
SETTLED = "compute"
"""The stream of what waits for no collective, where several streams had a part in it."""


@dataclass(slots=True)
class Node:
    """A task of a recording.

    Attributes
    ----------
    stream
        The stream that ran it; empty for a task of no stream.
    duration_ns
        How long it ran, in nanoseconds; nothing for a collective, whose time the plan decides.
    after
        Positions of the tasks that it waits for, besides the one before it on its stream.
    collective
        The collective, where it is one; its ``after`` is replaced.
    """

    stream: str = ""
    duration_ns: int = 0
    after: Sequence[int] = ()
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """What came out.

    Attributes
    ----------
    tasks
        The merged graph.
    ready_ns
        When each collective is ready if collectives take no time, by name.
    end_ns
        When the last task ends if collectives take no time.
    waiting
        How many compute tasks wait for some collective.
    """

    tasks: tuple[Task, ...]
    ready_ns: dict[str, int]
    end_ns: int
    waiting: int


def topological(
    after: Sequence[Sequence[int]], rank: Sequence[object], label: Callable[[int], str]
) -> list[int]:
    """Return the positions in an order in which everything comes after what it waits for.

    Parameters
    ----------
    after
        For each position the positions that it waits for.
    rank
        Among positions that could be next, the one of least rank is; ranks must be comparable.
    label
        A position's name, for the message.

    Raises
    ------
    CycleError
        If some wait for each other in a circle.

    Examples
    --------
    >>> topological([[2], [], [1]], [0, 1, 2], str)
    [1, 2, 0]
    """
    left = [len(set(before)) for before in after]
    followers: list[list[int]] = [[] for _ in after]
    for position, before in enumerate(after):
        for other in set(before):
            followers[other].append(position)
    heap = [(rank[k], k) for k, count in enumerate(left) if not count]
    heapq.heapify(heap)
    order = []
    while heap:
        _, position = heapq.heappop(heap)
        order.append(position)
        for follower in followers[position]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(heap, (rank[follower], follower))
    if len(order) < len(after):
        _refuse_circle(after, left, label)
    return order


def _refuse_circle(
    after: Sequence[Sequence[int]], left: Sequence[int], label: Callable[[int], str]
) -> None:
    position = next(k for k, count in enumerate(left) if count)
    seen: dict[int, int] = {}
    while position not in seen:
        seen[position] = len(seen)
        # Every one that is left waits for another one that is left.
        position = next(k for k in after[position] if left[k])
    circle = [k for k, number in seen.items() if number >= seen[position]][::-1]
    path = [label(k) for k in [circle[-1], *circle]]
    raise CycleError(f"tasks wait for each other in a circle: {' -> '.join(path)}", path)


def shared_channels(groups: Mapping[str, AbstractSet[str]]) -> dict[str, tuple[str, ...]]:
    """Return the communication streams that several groups share, as a problem's channels.

    Parameters
    ----------
    groups
        The groups whose collectives each stream ran. A group with several streams shares none.

    Examples
    --------
    >>> shared_channels({"gpu 14": {"tp", "dp"}, "gpu 20": {"ep"}})
    {'gpu 14': ('dp', 'tp')}
    """
    count = Counter(group for found in groups.values() for group in found)
    return {
        stream: tuple(sorted(found))
        for stream, found in groups.items()
        if len(found) > 1 and all(count[group] == 1 for group in found)
    }


@dataclass(slots=True)
class _Waiting:
    """A task that waits for some collective, or a collective.

    ``release`` is the earliest start that what waits for no collective allows.
    """

    release: int
    after: list[int]
    duration: int


def merge(nodes: Sequence[Node]) -> Merged:
    """Return the merged graph.

    Parameters
    ----------
    nodes
        The tasks in an order in which everything comes after what it waits for; a stream runs
        its tasks in this order.

    Raises
    ------
    InputError
        If a time is out of range.

    Examples
    --------
    >>> merged = merge([Node("gpu", 5), Node("gpu", 7, [0]),
    ...                 Node(collective=Collective("ar", 64), after=[0]), Node("gpu", 9, [2])])
    >>> [(task.name, task.after) for task in merged.tasks]  # doctest: +NORMALIZE_WHITESPACE
    [('gpu 1', ()), ('gpu 2', ('gpu 1',)), ('ar', ('gpu 1',)), ('gpu 3', ('ar', 'gpu 2'))]
    >>> merged.ready_ns, merged.end_ns
    ({'ar': 5}, 21)
    """
    before = _with_streams(nodes)
    waits = _waits(nodes, before)
    ends: list[int] = []
    rest: dict[int, _Waiting] = {}
    for k, node in enumerate(nodes):
        start = max((ends[b] for b in before[k]), default=0)
        ends.append(start + node.duration_ns)
        if waits[k] or node.collective is not None:
            held = [b for b in before[k] if b in rest]
            release = max((ends[b] for b in before[k] if b not in rest), default=0)
            # What it waits for ends later in any case: nothing is lost.
            if any(ends[b] >= release for b in held):
                release = 0
            rest[k] = _Waiting(release, held, node.duration_ns)
    _without_implied(nodes, rest)
    into = _chains(nodes, rest, before)
    settled = max((ends[k] for k in range(len(nodes)) if k not in rest), default=0)
    return Merged(
        _tasks(nodes, rest, into, settled),
        {
            node.collective.name: ends[k]
            for k, node in enumerate(nodes)
            if node.collective is not None
        },
        max(ends, default=0),
        sum(nodes[k].collective is None for k in rest),
    )


def _with_streams(nodes: Sequence[Node]) -> list[list[int]]:
    last: dict[str, int] = {}
    before = []
    for k, node in enumerate(nodes):
        found = set(node.after)
        if node.collective is None and node.stream:
            if node.stream in last:
                found.add(last[node.stream])
            last[node.stream] = k
        before.append(sorted(found))
    return before


def _waits(nodes: Sequence[Node], before: Sequence[Sequence[int]]) -> list[bool]:
    waits: list[bool] = []
    for found in before:
        waits.append(any(waits[b] or nodes[b].collective is not None for b in found))
    return waits


def _without_implied(nodes: Sequence[Node], rest: dict[int, _Waiting]) -> None:
    """Drop the dependencies that follow from others.

    Of each stream only the latest ancestor matters, for the earlier ones are before it. What is
    on no stream has a bit of its own.
    """
    lanes: dict[str, int] = {}
    bits: dict[int, int] = {}
    for k in rest:
        if nodes[k].collective is None and nodes[k].stream:
            lanes.setdefault(nodes[k].stream, len(lanes))
        else:
            bits[k] = len(bits)
    if len(lanes) * len(rest) > _MAX_LATEST or len(bits) * len(rest) > _MAX_BITS:
        return
    reached: dict[int, tuple[list[int], int]] = {}
    for k, one in rest.items():
        latest, seen = [-1] * len(lanes), 0
        for b in one.after:
            latest = list(map(max, latest, reached[b][0]))
            seen |= reached[b][1]
        one.after = [
            b
            for b in one.after
            if not (seen >> bits[b] & 1 if b in bits else latest[lanes[nodes[b].stream]] >= b)
        ]
        for b in one.after:
            if b in bits:
                seen |= 1 << bits[b]
            else:
                lane = lanes[nodes[b].stream]
                latest[lane] = max(latest[lane], b)
        reached[k] = (latest, seen)


def _chains(
    nodes: Sequence[Node], rest: dict[int, _Waiting], before: Sequence[Sequence[int]]
) -> dict[int, int]:
    """Merge tasks into the one before them on their stream; return which went into which."""
    followers: dict[int, int] = dict.fromkeys(rest, 0)
    for one in rest.values():
        for b in one.after:
            followers[b] += 1
    into: dict[int, int] = {}
    for k, one in rest.items():
        if nodes[k].collective is not None or not nodes[k].stream or len(one.after) != 1:
            continue
        b = one.after[0]
        if (
            followers[b] == 1
            and b in before[k]
            and nodes[b].collective is None
            and nodes[b].stream == nodes[k].stream
        ):
            head = into.get(b, b)
            into[k] = head
            # The later part may not start earlier than its own release.
            rest[head].release = max(rest[head].release, one.release - rest[head].duration)
            rest[head].duration += one.duration
    return into


def _tasks(
    nodes: Sequence[Node], rest: dict[int, _Waiting], into: dict[int, int], settled: int
) -> tuple[Task, ...]:
    streams = {node.stream for k, node in enumerate(nodes) if k not in rest and node.duration_ns}
    if len(streams) == 1 and "" not in streams:
        stream = streams.pop()
    else:
        stream = SETTLED
        while any(node.stream == stream for node in nodes):
            stream = f"settled {stream}"
    tasks: list[Task] = []
    count: dict[str, int] = {}

    taken = {node.collective.name for node in nodes if node.collective is not None}

    def named(lane: str) -> str:
        while True:
            count[lane] = count.get(lane, 0) + 1
            name = f"{lane} {count[lane]}"
            if name not in taken:
                taken.add(name)
                return name

    clock: dict[int, str] = {}
    last = 0
    times = {one.release for k, one in rest.items() if k not in into}
    for time in sorted(time for time in times | {settled} if time > 0):
        clock[time] = named(stream)
        tasks.append(Compute(clock[time], time - last, stream, (clock[last],) if last else ()))
        last = time
    names: dict[int, str] = {}
    for k, one in rest.items():
        if k in into:
            names[k] = names[into[k]]
            continue
        collective = nodes[k].collective
        after = [names[b] for b in one.after]
        if one.release:
            after.append(clock[one.release])
        if collective is not None:
            names[k] = collective.name
            tasks.append(replace(collective, after=tuple(after)))
            continue
        name = named(nodes[k].stream or "other")
        names[k] = name
        lane = nodes[k].stream or name
        tasks.append(Compute(name, one.duration, lane, tuple(after)))
    return tuple(tasks)

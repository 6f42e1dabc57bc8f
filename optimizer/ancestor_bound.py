"""Heads and tails from the load of what comes before and after, and a bound from them.

The *head* of a task X is a time before which no plan starts it, its *tail* a time that passes after
its end under every plan. Longest paths are such times (:func:`commsched.optimizer.bounds.paths_ns`).
They miss that a channel runs one launch at a time: a layer's forward waits for its own gather, and,
through the layers before it, for all gathers before its own.

**Load of ancestors.** Take some collectives A of one channel that all are ancestors of X, with heads of
at least h, from each of which a path of at least q leads to X. Their launches run one after another;
none starts before h, for a launch is ready when its last member is; none ends later than q before X
starts. So ``head(X) >= h + load(A) + q``. The sets that are tried are those of all ancestors with
heads of at least some value, and the tasks are walked through in topological order, so the heads that
this rests on are final. The same holds for a stream some of whose tasks may move. A step seen
backwards is a step, so the same walk from the other end gives the tails.

**What fused launches take at least.** However A is cut into launches, those of one fusion key that carry
S bytes in at least L launches take ``L * alpha + beta * S`` for each minorant of its curve (see
``CostCurve.minorants``), and launches of different keys add up. L is the largest of: the collectives of
the key on one path from some member of A to X, since two that wait for each other cannot be fused (all
of them have heads of at least h, and none is nearer to X than q allows); members that a limit keeps
apart; and S over the most bytes that a limit allows in a bucket.

**Parts.** What lies between two tasks, or before or after one, is a step of its own, and takes at least
what bounds of that step say. This is done for *fences*: tasks that come before or after every
collective of some channel, such as the last layer's forward between the gathers of forward and those
of backward. Launches needed and waiting at both sides are counted for each part alone, which says more
than for the whole, and parts of a few tasks are enumerated
(:mod:`commsched.optimizer.small_steps`).

The bound is the best of ``head + length + tail`` of any task and the load of channels and streams
between heads and tails.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import networkx as nx

from commsched.models import Collective, Compute, Problem, Task
from commsched.models.limits import Apart, Limit, MostBucketBytes
from commsched.optimizer.ancestor_walk import Loads, Times, Walk
from commsched.optimizer.bounds import channel_load_bound, paths_ns
from commsched.optimizer.grouping import channels_of_groups
from commsched.optimizer.launch_bound import launch_bound
from commsched.optimizer.result import Bound
from commsched.optimizer.small_steps import MAX_TASKS, least_makespan
from commsched.optimizer.two_sided import two_sided_bound

PROOF = "load of ancestors"
MOST_CELLS = 8_000_000
"""Tasks times collectives beyond which only longest paths are used."""
CELL_S = 1e-6
"""About what a cell takes; where there is less time nothing is begun."""
MAX_WHOLE = 3
"""How many fences are bounded by all that is before them, not only since the fence before."""
MAX_PART = 300
"""Collectives in a part beyond which it is not bounded by itself."""
STARTS = 4
"""To how many fences before it parts are looked at; beyond the nearest only those of a few tasks."""
MAX_FENCES = 300


class Sides(NamedTuple):
    """What surely comes before and after each task, and what that says of the makespan."""

    head: Times
    tail: Times
    bound: Bound


def ancestor_bound(problem: Problem, lower_ns: int = 0, until: float = math.inf) -> Sides:
    """Return heads and tails, at least those of longest paths, and a bound of at least ``lower_ns``.

    Parameters
    ----------
    problem
        The step.
    lower_ns
        A proved bound.
    until
        When to stop looking, on the clock of :func:`time.monotonic`.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective, Compute
    >>> step = Problem(
    ...     [Collective("x1", 40), Compute("f1", 10, after=("x1",)),
    ...      Collective("x2", 40), Compute("f2", 10, after=("x2",)),
    ...      Collective("y", 40, after=("f2",))],
    ...     {("dp", "allreduce"): AlphaBeta(0.02, 1)})
    >>> sides = ancestor_bound(step)
    >>> sides.head["f2"], sides.bound
    (110, Bound(ns=180, proof='load of ancestors'))
    """
    head, tail = paths_ns(problem)
    if problem.waiting.isdisjoint(problem.names) and not problem.movable:
        # Only compute waits: then the channels' load between longest paths says the same.
        return Sides(head, tail, Bound(lower_ns, PROOF))
    loads = Loads(problem)
    if loads.cells > MOST_CELLS or time.monotonic() + loads.cells * CELL_S > until:
        return Sides(head, tail, Bound(lower_ns, PROOF))
    before, after = Walk(problem, loads), Walk(problem, loads, backwards=True)
    before.run(head, until)
    after.run(tail, until)
    fences = _fences(problem, before, after)
    if fences:
        _by_parts(problem, fences, before, head, until)
        _by_parts(problem, fences, after, tail, until)
        before.run(head, until)
        after.run(tail, until)
    best = max(lower_ns, channel_load_bound(problem, head, tail))
    for task in problem.tasks:
        best = max(
            best, head[task.name] + before.length[before.number[task.name]] + tail[task.name]
        )
    return Sides(head, tail, Bound(best, PROOF))


@dataclass(frozen=True)
class _Fence:
    """A task that is before or after every collective of a channel, and how many are before it."""

    name: str
    channel: str
    before: int


def _fences(problem: Problem, before: Walk, after: Walk) -> list[_Fence]:
    """Return fences in topological order: of those between the same collectives the outer two."""
    channel_of = [problem.channel(key) for key in problem.keys]
    columns: dict[str, list[int]] = {}
    for name, channel in zip(problem.names, channel_of, strict=True):
        columns.setdefault(channel, []).append(before.loads.column[name])
    found: list[_Fence] = []
    for channel, mine in columns.items():
        if len(mine) < 2:
            continue
        groups: dict[int, list[str]] = {}
        for task, name in enumerate(before.order):
            if name in problem.index:
                continue
            early = before.distance[task, mine] >= 0
            late = after.distance[after.number[name], mine] >= 0
            if bool((early | late).all()):
                groups.setdefault(int(early.sum()), []).append(name)
        for count, names in groups.items():
            for name in dict.fromkeys((names[0], names[-1])):
                found.append(_Fence(name, channel, count))
    found.sort(key=lambda fence: before.number[fence.name])
    return found[:: max(1, -(-len(found) // MAX_FENCES))]


def _by_parts(
    problem: Problem, fences: Sequence[_Fence], walk: Walk, head: Times, until: float
) -> None:
    """Raise the heads (tails, if backwards) of fences by bounds of the parts between them."""
    graph = problem.fixed_graph
    reach, back = nx.ancestors, nx.descendants
    if walk.backwards:
        reach, back = back, reach
    ordered = list(reversed(fences)) if walk.backwards else list(fences)
    earlier = {fence.name: reach(graph, fence.name) for fence in ordered}
    later = {fence.name: back(graph, fence.name) for fence in ordered}
    largest = sorted(range(len(ordered)), key=lambda k: -len(earlier[ordered[k].name]))
    whole = set(largest[:: max(1, -(-len(ordered) // MAX_WHOLE))])
    # Layers are often alike, and so are the parts between their fences.
    parts: dict[object, int] = {}

    def between(start: str, inner: set[str]) -> int:
        shape = _shape(problem, inner)
        if shape not in parts:
            part = _part(problem, inner)
            found = 0 if part is None else _part_bound(part, None, walk.backwards, until)
            parts[shape] = found
        return head[start] + walk.length[walk.number[start]] + parts[shape]

    # What is quick first, then once more with all that is before some of the fences.
    for again in (False, True):
        last: dict[str, dict[int, _Fence]] = {}
        for place, fence in enumerate(ordered):
            known = last.setdefault(fence.channel, {})
            # Of the fences between the same collectives the nearest.
            starts = [
                known[count].name
                for count in sorted(known, key=lambda count: abs(count - fence.before))
                if count != fence.before and known[count].name in earlier[fence.name]
            ]
            for rank, start in enumerate(starts[:STARTS]):
                if time.monotonic() > until:
                    return
                inner = earlier[fence.name] & later[start]
                if not rank or len(inner) <= MAX_TASKS:
                    head[fence.name] = max(head[fence.name], between(start, inner))
            part = None
            if (again and place in whole) or not (again or starts):
                part = _part(problem, earlier[fence.name])
            if part is not None and len(part.names) > 1:
                # Waiting at both sides takes long for what consists of many parts.
                sides = 0.0 if starts else until
                found = _part_bound(part, head, walk.backwards, sides)
                head[fence.name] = max(head[fence.name], found)
            known[fence.before] = fence


def _shape(problem: Problem, names: set[str]) -> object:
    """Return what the bound of a part depends on: parts of one shape take equally long."""
    inside = [task for task in problem.tasks if task.name in names]
    number = {task.name: k for k, task in enumerate(inside)}
    shape: list[object] = []
    apart = [limit for limit in problem.limits if isinstance(limit, Apart)]
    for task in inside:
        after = tuple(number[name] for name in task.after if name in names)
        if isinstance(task, Compute):
            shape.append((after, task.duration_ns, task.stream, task.movable))
        else:
            labels = tuple(k for k, limit in enumerate(apart) if task.name in limit.names)
            shape.append((after, task.bytes, task.key, labels))
    return tuple(shape)


def _part(problem: Problem, names: set[str]) -> Problem | None:
    """Return the step of some tasks between two, or None without collectives or with too many."""
    inside = {task.name: task.group for task in problem.collectives if task.name in names}
    if not 1 <= len(inside) <= MAX_PART:
        return None
    tasks: list[Task] = []
    for task in problem.tasks:
        if task.name in names:
            after = tuple(name for name in task.after if name in names)
            if isinstance(task, Collective):
                tasks.append(replace(task, after=after, hold=None))
            else:
                tasks.append(replace(task, after=after))
    limits: list[Limit] = [n for n in problem.limits if isinstance(n, MostBucketBytes)]
    for limit in problem.limits:
        if isinstance(limit, Apart):
            left = tuple(name for name in limit.names if name in inside)
            if len(left) > 1:
                limits.append(Apart(left))
    channels = channels_of_groups(problem, set(inside.values()))
    return Problem(tasks, problem.costs, channels=channels, limits=limits)


def _part_bound(part: Problem, given: Times | None, backwards: bool, until: float) -> int:
    """Return a bound on how long a part takes.

    Parameters
    ----------
    part
        The part, a step of its own.
    given
        Heads (tails, if ``backwards``) of its tasks from elsewhere; None: from the part alone.
    backwards
        Whether those given are tails.
    until
        When to stop looking; waiting at both sides is not looked at afterwards.
    """
    if given is None and (exact := least_makespan(part)) is not None:
        return exact
    head, tail = paths_ns(part)
    loads = Loads(part)
    for walk_backwards, times in ((False, head), (True, tail)):
        if given is not None and walk_backwards == backwards:
            times.update((task.name, given[task.name]) for task in part.tasks)
        else:
            Walk(part, loads, backwards=walk_backwards).run(times, math.inf)
    best = channel_load_bound(part, head, tail)
    best = launch_bound(part, head, tail, best).ns
    if time.monotonic() > until:
        return best
    return two_sided_bound(part, head, tail, best, until).ns

"""Lower bounds on the makespan that hold for every plan of every scope, without a solver.

Path: a collective's launch takes at least as long as the collective alone, since costs do not
decrease with bytes; the longest path through the graph with those lengths bounds the makespan.

Channel load: take the collectives of a channel whose *head* (longest path before them) is at least
h and whose *tail* (longest path after them) is at least t. Their launches run one after another,
none starts before h, and t must still pass after the last one ends. Together they take at least what
the curves' minorants say of their bytes (see ``CostCurve.minorants``), so
``makespan >= h + load + t``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import networkx as nx

from commsched.models import Compute, FusionKey, Problem
from commsched.optimizer.result import Bound

MAX_TAILS = 64


def paths_ns(problem: Problem) -> tuple[dict[str, int], dict[str, int]]:
    """Return each task's head and tail: the longest paths before its start and after its end.

    Every collective on a path counts the cost of a launch of its own.
    """
    graph = problem.fixed_graph
    length = {
        task.name: task.duration_ns
        if isinstance(task, Compute)
        else problem.cost(task.key).ns(task.bytes)
        for task in problem.tasks
    }
    order = list(nx.topological_sort(graph))
    head: dict[str, int] = {}
    tail: dict[str, int] = {}
    for name in order:
        head[name] = max((head[p] + length[p] for p in graph.pred[name]), default=0)
    for name in reversed(order):
        tail[name] = max((tail[s] + length[s] for s in graph.succ[name]), default=0)
    return head, tail


def closed_form_bound(problem: Problem) -> Bound:
    """Return the best of the closed-form bounds on the makespan.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> closed_form_bound(GradientProblem(
    ...     [Gradient("b", 15, ready_ns=10), Gradient("a", 30, ready_ns=20)], AlphaBeta(0.005, 1)))
    Bound(ns=60, proof='channel load')
    """
    head, tail = paths_ns(problem)
    best = Bound(_compute_alone(problem), "compute alone")
    for task in problem.collectives:
        through = head[task.name] + problem.cost(task.key).ns(task.bytes) + tail[task.name]
        if through > best.ns:
            best = Bound(through, "longest path")
    load = channel_load_bound(problem, head, tail)
    return Bound(load, "channel load") if load > best.ns else best


def channel_load_bound(problem: Problem, head: dict[str, int], tail: dict[str, int]) -> int:
    """Return the largest load of any channel between heads and tails.

    Parameters
    ----------
    problem
        The step.
    head, tail
        What :func:`paths_ns` says, or anything better.
    """
    by_channel: dict[str, list[int]] = defaultdict(list)
    for position, key in enumerate(problem.keys):
        by_channel[problem.channel(key)].append(position)
    return max(_channel_bound(problem, some, head, tail) for some in by_channel.values())


def _compute_alone(problem: Problem) -> int:
    """Return the least makespan with every collective taking no time, whatever moves."""
    if not problem.movable:
        return problem.compute_ns
    end: dict[str, int] = {}
    work: dict[str, int] = defaultdict(int)
    graph = problem.fixed_graph
    for name in nx.topological_sort(graph):
        task = graph.nodes[name]["task"]
        duration_ns = task.duration_ns if isinstance(task, Compute) else 0
        end[name] = max((end[p] for p in graph.pred[name]), default=0) + duration_ns
        if isinstance(task, Compute):
            work[task.stream] += duration_ns
    return max(*end.values(), *work.values())


def _channel_bound(
    problem: Problem, positions: list[int], head: dict[str, int], tail: dict[str, int]
) -> int:
    names = problem.names
    positions = sorted(positions, key=lambda k: head[names[k]], reverse=True)
    tails = sorted({tail[names[k]] for k in positions})
    if len(tails) > MAX_TAILS:
        step = len(tails) / MAX_TAILS
        tails = [tails[int(k * step)] for k in range(MAX_TAILS)]
    lines = Lines(problem, list({problem.keys[k]: None for k in positions}))
    found = [(head[names[k]], tail[names[k]], problem.keys[k], problem.bytes[k]) for k in positions]
    best = 0
    for least_tail in tails:
        sent: dict[FusionKey, int] = {}
        load: dict[FusionKey, int] = {}
        total = 0
        following = [here for here, _, _, _ in found[1:]]
        for (here, after, key, size), earlier in zip(found, [*following, -1], strict=True):
            if after >= least_tail:
                sent[key] = sent.get(key, 0) + size
                now = lines.load(key, 1, sent[key])
                total += now - load.get(key, 0)
                load[key] = now
                if earlier < here:
                    best = max(best, here + -(-total // lines.scale) + least_tail)
    return best


class Lines:
    """The minorants of some fusion keys' curves in whole numbers of a common unit.

    Attributes
    ----------
    scale
        How many units make a nanosecond.
    """

    def __init__(self, problem: Problem, keys: Sequence[FusionKey]) -> None:
        lines = {key: problem.cost(key).minorants for key in keys}
        self.scale = math.lcm(*(line.scale for found in lines.values() for line in found))
        self.of = {
            key: [
                (
                    line.intercept * (self.scale // line.scale),
                    line.slope * (self.scale // line.scale),
                )
                for line in found
            ]
            for key, found in lines.items()
        }

    def load(self, key: FusionKey, launches: int, sent: int) -> int:
        """Return the least time that launches which carry so many bytes take together."""
        lines = self.of[key]
        if len(lines) == 1:
            return launches * lines[0][0] + lines[0][1] * sent
        return max(launches * alpha + beta * sent for alpha, beta in lines)

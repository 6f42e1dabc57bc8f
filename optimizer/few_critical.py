"""A bound from the few chains of collectives that are the most critical, by themselves.

Where a gradient is reduced in stages (within a node, across nodes, within a node again), what is ready
last and needed first goes through the same channel twice, with something beside it that is just as
urgent. Each channel's load says little then, for it may go first on one and last on another. So some
*chains* of collectives that wait for each other are taken out of the step, each with its head and its
tail, and everything that can be done with these alone is enumerated
(:mod:`commsched.optimizer.small_steps`): whatever a plan does beside them, it does not end earlier.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import networkx as nx

from commsched.models import Problem
from commsched.optimizer.grouping import channels_of_groups
from commsched.optimizer.result import Bound
from commsched.optimizer.small_steps import MAX_TASKS, least_makespan

PROOF = "critical chains"
MOST_CHAINS = 8
"""Of how many of the most critical chains all pairs are looked at."""
LONGEST = 5
"""Chains of more collectives are left out."""


def few_critical_bound(
    problem: Problem,
    head: Mapping[str, int],
    tail: Mapping[str, int],
    lower_ns: int = 0,
    until: float = float("inf"),
) -> Bound:
    """Return a bound from pairs of chains, and from what is added to the best of them.

    Parameters
    ----------
    problem
        The step.
    head, tail
        What surely passes before and after each task.
    lower_ns
        A proved bound.
    until
        When to stop looking, on the clock of :func:`time.monotonic`.

    Examples
    --------
    Two gradients of 10 and 4 bytes that are reduced inside and across: whichever is first inside, the
    other one waits for it once.

    >>> from commsched.models import AlphaBeta, Collective
    >>> step = Problem(
    ...     [Collective("x", 10, group="inside"), Collective("X", 1, group="across", after=("x",)),
    ...      Collective("x'", 10, group="inside", after=("X",)),
    ...      Collective("y", 4, group="inside"), Collective("Y", 1, group="across", after=("y",)),
    ...      Collective("y'", 4, group="inside", after=("Y",))],
    ...     {(group, "allreduce"): AlphaBeta(0, 1) for group in ("inside", "across")})
    >>> tail = {"x'": 20, "y'": 19}
    >>> few_critical_bound(step, {}, tail)
    Bound(ns=47, proof='critical chains')
    """
    chains = _chains(problem)
    length = {task.name: problem.cost(task.key).ns(task.bytes) for task in problem.collectives}

    def through(chain: Sequence[str]) -> int:
        return max(head.get(name, 0) + length[name] + tail.get(name, 0) for name in chain)

    chains.sort(key=through, reverse=True)
    best, found = lower_ns, _Few(problem, head, tail)
    least: tuple[list[str], ...] = ()
    for pair in itertools.combinations(chains[:MOST_CHAINS], 2):
        if time.monotonic() > until:
            return Bound(best, PROOF)
        ns = found.least(pair)
        if ns > best:
            best, least = ns, pair
    grown = bool(least)
    while grown:
        grown = False
        for chain in chains[:MOST_CHAINS]:
            if time.monotonic() > until:
                break
            if chain not in least and (ns := found.least((*least, chain))) > best:
                best, more, grown = ns, (*least, chain), True
        if grown:
            least = more
    return Bound(best, PROOF)


def _chains(problem: Problem) -> list[list[str]]:
    """Return the sets of collectives that wait for each other directly, but for single ones."""
    graph = nx.Graph()
    graph.add_nodes_from(problem.names)
    for task in problem.collectives:
        graph.add_edges_from((p, task.name) for p in task.after if p in problem.index)
    found = [[n for n in problem.names if n in some] for some in nx.connected_components(graph)]
    return [chain for chain in found if 1 < len(chain) <= LONGEST]


class _Few:
    """Some chains by themselves."""

    def __init__(self, problem: Problem, head: Mapping[str, int], tail: Mapping[str, int]) -> None:
        self.problem, self.head, self.tail = problem, head, tail
        self.task_of = {task.name: task for task in problem.collectives}

    def least(self, chains: Sequence[Sequence[str]]) -> int:
        """Return the least makespan of some chains alone, 0 if that is too much to look at."""
        names = {name for chain in chains for name in chain}
        if len(names) > MAX_TASKS:
            return 0
        tasks = [
            replace(task, after=tuple(p for p in task.after if p in names), hold=None)
            for task in self.problem.collectives
            if task.name in names
        ]
        channels = channels_of_groups(self.problem, {task.group for task in tasks})
        part = Problem(tasks, self.problem.costs, channels=channels)
        return least_makespan(part, self.head, self.tail) or 0

"""Which collectives may share a bucket: by size, and by who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import networkx as nx

from commsched.models import LeastBucketBytes, MostBucketBytes, Problem
from commsched.models.units import MAX_BYTES


def bucket_bytes(problem: Problem) -> tuple[int, int]:
    """Return the least and the most bytes that a bucket may have under the problem's limits."""
    least = [limit.bytes for limit in problem.limits if isinstance(limit, LeastBucketBytes)]
    most = [limit.bytes for limit in problem.limits if isinstance(limit, MostBucketBytes)]
    return max(least, default=0), min(most, default=MAX_BYTES)


def conflicts(problem: Problem, chain: Sequence[int]) -> list[int]:
    """Return for each place in a chain with which places it can never share a bucket.

    That are those of which one collective waits for the other; place p is bit p of a number.
    """
    place = {problem.names[k]: number for number, k in enumerate(chain)}
    found = [0] * len(chain)
    if not any(name in problem.waiting for name in place):
        return found
    graph = problem.fixed_graph
    before: dict[str, int] = {}
    for name in nx.topological_sort(graph):
        mask = 0
        for other in graph.pred[name]:
            mask |= before[other]
        if name in place:
            number = place[name]
            found[number] |= mask
            for p in bits(mask):
                found[p] |= 1 << number
            mask |= 1 << number
        before[name] = mask
    return found


def bits(mask: int) -> Iterator[int]:
    """Yield which bits of a number are set, highest first."""
    while mask:
        top = mask.bit_length() - 1
        yield top
        mask ^= 1 << top


def channels_of_groups(problem: Problem, groups: AbstractSet[str]) -> dict[str, list[str]]:
    """Return the channels on which some groups launch, with those of the groups that share each.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective
    >>> two = [Collective("a", 1, group="x"), Collective("b", 1, group="y")]
    >>> costs = {(group, "allreduce"): AlphaBeta(0, 1) for group in "xy"}
    >>> channels_of_groups(Problem(two, costs, channels={"nic": ["x", "y"]}), {"y"})
    {'nic': ['y']}
    """
    return {
        channel: left
        for channel, members in problem.groups_of_channel.items()
        if (left := [group for group in members if group in groups])
    }


def channel_positions(problem: Problem) -> list[list[int]]:
    """Return the positions of each channel's collectives.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Collective
    >>> cost = AlphaBeta(1, 1)
    >>> channel_positions(Problem(
    ...     [Collective("a", 1), Collective("b", 1, group="tp"), Collective("c", 1)],
    ...     {("dp", "allreduce"): cost, ("tp", "allreduce"): cost}))
    [[0, 2], [1]]
    """
    found: dict[str, list[int]] = {}
    for k, key in enumerate(problem.keys):
        found.setdefault(problem.channel(key), []).append(k)
    return list(found.values())

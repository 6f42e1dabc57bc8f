"""The order in which a rule's buckets are launched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import networkx as nx

from commsched.models import Bucket, Plan, Problem


def by_last_member(problem: Problem, buckets: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Return buckets in the order in which they are final: by the ready order of the last member.

    Where compute or collectives wait for collectives, a bucket comes after those that it waits for,
    as a compiler keeps it; buckets that wait for each other keep the first order, and the
    evaluator reports them.

    Parameters
    ----------
    problem
        The step.
    buckets
        Positions of collectives, each collective in one bucket.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 1, ready_ns=k) for k in range(4)]
    >>> by_last_member(GradientProblem(gradients, AlphaBeta(1, 1)), [[0, 3], [1, 2]])
    [[1, 2], [0, 3]]
    """
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    ordered = sorted(buckets, key=lambda bucket: max(rank[k] for k in bucket))
    if problem.settled:
        return ordered
    graph = contracted(problem, ordered)
    try:
        # Compute first: it delays no bucket. Ready buckets then go by their place.
        order = nx.lexicographical_topological_sort(
            graph, key=lambda node: node if isinstance(node, int) else -1
        )
        return [ordered[node] for node in order if isinstance(node, int)]
    except nx.NetworkXUnfeasible:
        return ordered


def contracted(problem: Problem, buckets: Sequence[Sequence[int]]) -> nx.DiGraph:
    """Return the dependency graph in which each bucket is one node: its number in ``buckets``.

    Compute tasks keep their names as nodes.
    """
    node: dict[str, str | int] = {
        problem.names[k]: number for number, bucket in enumerate(buckets) for k in bucket
    }
    graph = nx.DiGraph()
    graph.add_nodes_from(node.get(task.name, task.name) for task in problem.tasks)
    graph.add_edges_from(
        (node.get(before, before), node.get(after, after))
        for before, after in problem.graph.edges
        if node.get(before, before) != node.get(after, after)
    )
    return graph


def beside_others(
    problem: Problem, positions: Sequence[Sequence[int]], buckets: Sequence[Bucket]
) -> Plan:
    """Return the plan with these buckets in this order, and all other collectives by themselves.

    What is in no bucket is launched in ready order, as far as it waits for no later bucket. Buckets
    of one channel keep the order in which they stand.

    Parameters
    ----------
    problem
        The step.
    positions
        Each bucket's collectives.
    buckets
        The buckets in launch order.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Bucket, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 1, ready_ns=k) for k in range(4)]
    >>> problem = GradientProblem(gradients, AlphaBeta(1, 1))
    >>> [b.names for b in beside_others(problem, [[1, 3]], [Bucket(("g1", "g3"))]).buckets]
    [('g0',), ('g2',), ('g1', 'g3')]
    """
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    bucketed = {k for members in positions for k in members}
    alone = [k for k in problem.ready_order if k not in bucketed]
    members = [*positions, *([k] for k in alone)]
    launched = [*buckets, *(Bucket((problem.names[k],)) for k in alone)]
    graph = contracted(problem, members)
    last: dict[str, int] = {}
    for number, bucket in enumerate(positions):
        channel = problem.channel(problem.keys[bucket[0]])
        if channel in last:
            graph.add_edge(last[channel], number)
        last[channel] = number
    places = [max(rank[k] for k in bucket) for bucket in members]
    try:
        # Compute first: it delays no launch.
        order = nx.lexicographical_topological_sort(
            graph, key=lambda node: places[node] if isinstance(node, int) else -1
        )
        return Plan(tuple(launched[node] for node in order if isinstance(node, int)))
    except nx.NetworkXUnfeasible:  # the buckets wait for each other; the evaluator says how
        return Plan(tuple(launched))


def in_launch_order(problem: Problem, buckets: Iterable[Sequence[int]]) -> Plan:
    """Return the plan with these buckets of positions, launched in :func:`by_last_member` order.

    The members of a bucket are listed in ready order.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 1, 2), Gradient("b", 1, 1)], AlphaBeta(1, 1))
    >>> [bucket.names for bucket in in_launch_order(problem, [[0], [1]]).buckets]
    [('b',), ('a',)]
    """
    rank = {position: place for place, position in enumerate(problem.ready_order)}
    return Plan.of(
        [problem.names[k] for k in sorted(bucket, key=rank.__getitem__)]
        for bucket in by_last_member(problem, buckets)
    )

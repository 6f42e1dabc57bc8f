"""The problem: a step's dependency graph, what launches cost, and which groups share a channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, get_args

import networkx as nx

from commsched.models.collectives import Kind
from commsched.models.cost import CostCurve
from commsched.models.errors import CycleError, InputError
from commsched.models.given import items_of, mapping_of
from commsched.models.limits import Alike, Apart, Limit, PoolBytes, Together
from commsched.models.step import Collective, Compute, FusionKey, Gradient, Task
from commsched.models.units import MAX_NS

Costs = Mapping[tuple[str, Kind], CostCurve]
"""Cost curves by (group, kind)."""


class Nominal(NamedTuple):
    """The step with every collective taking no time and no plan holding anything back.

    Attributes
    ----------
    end_ns
        When each task ends, by name.
    compute_ns
        When the last task ends: the makespan that no plan can beat.
    """

    end_ns: Mapping[str, int]
    compute_ns: int


class Problem:
    """One training step to be scheduled.

    Parameters
    ----------
    tasks
        Compute tasks and collectives; a stream runs its tasks in this order, and ties in the
        ready order are broken by it.
    costs
        The cost curve of each (group, kind) that occurs.
    channels
        Channel name -> the groups that share it. A group that is not listed has a channel of
        its own with the group's name.
    name
        A title for people.
    limits
        What every plan must respect, beside the dependencies.

    Raises
    ------
    InputError
        If there is no collective, a name is used twice, a predecessor is unknown, a cost is
        missing, a channel names an unknown group or a limit an unknown collective.
    CycleError
        If tasks wait for each other in a circle.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> problem = Problem(
    ...     [Compute("bwd", 1000), Collective("ar", 4096, after=("bwd",))],
    ...     {("dp", "allreduce"): AlphaBeta(1, 4.096)})
    >>> problem.compute_ns, problem.ready_ns, problem.settled
    (1000, [1000], True)
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        costs: Costs,
        *,
        channels: Mapping[str, Sequence[str]] | None = None,
        name: str = "",
        limits: Iterable[Limit] = (),
    ) -> None:
        self.name = checked_title(name)
        self.tasks: tuple[Task, ...] = items_of(tasks, "tasks", Compute, Collective)
        self.gradients: tuple[Gradient, ...] | None = None
        duplicates = [n for n, c in Counter(task.name for task in self.tasks).items() if c > 1]
        if duplicates:
            raise InputError(f"task {duplicates[0]!r}: the name is used twice")
        if not self.collectives:
            raise InputError("the problem has no collective: there is nothing to plan")
        if sum(task.duration_ns for task in self.tasks if isinstance(task, Compute)) > MAX_NS:
            raise InputError("the compute tasks together take longer than 13 days")
        self.costs: Costs = dict(mapping_of(costs, "costs"))
        for task in self.collectives:
            check_cost(self.costs, task.group, task.kind, f"task {task.name!r}")
        self.channels = _channel_of_group({task.group for task in self.collectives}, channels or {})
        self._check_acyclic()
        self._check_holds()
        self.limits = self._checked_limits(limits)
        for key, chain in self.chains.items():
            check_total(
                self.cost(key), [self.bytes[k] for k in chain], f"{key.kind} in {key.group!r}"
            )

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives in the order in which they are listed."""
        return tuple(task for task in self.tasks if isinstance(task, Collective))

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The dependency graph: a node for each task name with the task in ``task``.

        An edge's ``why`` is ``"after"`` for a stated dependency and ``"stream"`` from a compute
        task to the next one of its stream.
        """
        graph = nx.DiGraph(name=self.name)
        graph.add_nodes_from((task.name, {"task": task}) for task in self.tasks)
        last: dict[str, str] = {}
        for task in self.tasks:
            if isinstance(task, Compute):
                if task.stream in last:
                    graph.add_edge(last[task.stream], task.name, why="stream")
                last[task.stream] = task.name
        for task in self.tasks:
            for before in task.after:
                if before not in graph:
                    raise InputError(
                        f"task {task.name!r}: after names {before!r}, which is no task"
                    )
                graph.add_edge(before, task.name, why="after")
        return graph

    @cached_property
    def fixed_graph(self) -> nx.DiGraph:
        """What holds under every plan: :attr:`graph` without the places of movable tasks."""
        if not self.movable:
            return self.graph
        graph = nx.DiGraph(name=self.name)
        graph.add_nodes_from(self.graph.nodes(data=True))
        graph.add_edges_from(
            (a, b, d) for a, b, d in self.graph.edges(data=True) if d["why"] == "after"
        )
        last: dict[str, str] = {}
        for task in self.tasks:
            if isinstance(task, Compute) and not task.movable:
                if task.stream in last and not graph.has_edge(last[task.stream], task.name):
                    graph.add_edge(last[task.stream], task.name, why="stream")
                last[task.stream] = task.name
        return graph

    def _check_acyclic(self) -> None:
        if nx.is_directed_acyclic_graph(self.graph):  # far quicker than looking for the cycle
            return
        cycle = nx.find_cycle(self.graph)
        path = [edge[0] for edge in cycle] + [cycle[0][0]]
        raise CycleError(f"tasks wait for each other in a circle: {' -> '.join(path)}", path)

    def _check_holds(self) -> None:
        for task in self.collectives:
            for name in task.hold.until if task.hold else ():
                if name not in self.graph:
                    raise InputError(f"task {task.name!r}: holds until {name!r}, which is no task")

    def _checked_limits(self, limits: Iterable[Limit]) -> tuple[Limit, ...]:
        found: tuple[Limit, ...] = items_of(limits, "limits", *get_args(Limit))
        known = set(self.names)
        pools = {task.hold.pool for task in self.collectives if task.hold} if found else set()
        labels = Counter(limit.label for limit in found)
        for limit in found:
            if labels[limit.label] > 1 and not isinstance(limit, Together | Apart | Alike):
                raise InputError(f"limit {limit.label}: is given twice")
            if isinstance(limit, PoolBytes) and limit.pool not in pools:
                raise InputError(f"limit {limit.label}: no collective holds memory of this pool")
            if isinstance(limit, Together | Apart | Alike):
                for name in limit.names:
                    if name not in known:
                        raise InputError(f"limit {limit.label}: {name!r} is no collective")
        return found

    def with_limits(self, limits: Iterable[Limit]) -> Problem:
        """Return the same step under other limits.

        Raises
        ------
        InputError
            If a limit names an unknown collective or pool, or is given twice.
        """
        return Problem(
            self.tasks,
            self.costs,
            channels=self.groups_of_channel,
            name=self.name,
            limits=limits,
        )

    @cached_property
    def limited_pools(self) -> Mapping[str, int]:
        """The bytes of each pool that has a limit."""
        return {limit.pool: limit.bytes for limit in self.limits if isinstance(limit, PoolBytes)}

    @property
    def movable(self) -> bool:
        """Whether a plan may change the order of some stream."""
        return any(isinstance(task, Compute) and task.movable for task in self.tasks)

    @cached_property
    def nominal(self) -> Nominal:
        """Times of the step in which every collective takes no time."""
        end: dict[str, int] = {}
        for name in nx.topological_sort(self.graph):
            task = self.graph.nodes[name]["task"]
            start = max((end[before] for before in self.graph.pred[name]), default=0)
            end[name] = start + (task.duration_ns if isinstance(task, Compute) else 0)
        return Nominal(end, max(end.values()))

    @property
    def compute_ns(self) -> int:
        """The makespan of the step with every collective taking no time, in nanoseconds."""
        return self.nominal.compute_ns

    @cached_property
    def names(self) -> list[str]:
        """The collectives' names in the order in which they are listed."""
        return [task.name for task in self.collectives]

    @cached_property
    def index(self) -> dict[str, int]:
        """Position in :attr:`collectives` by name."""
        return {name: k for k, name in enumerate(self.names)}

    @cached_property
    def bytes(self) -> list[int]:
        """Bytes of each collective."""
        return [task.bytes for task in self.collectives]

    @cached_property
    def keys(self) -> list[FusionKey]:
        """The fusion key of each collective."""
        return [task.key for task in self.collectives]

    @cached_property
    def ready_ns(self) -> list[int]:
        """When each collective is ready in the nominal step, in nanoseconds."""
        return [self.nominal.end_ns[name] for name in self.names]

    @cached_property
    def ready_order(self) -> list[int]:
        """Positions of the collectives by nominal ready time, ties by listing order.

        A collective that waits for another one comes after it, also where both are ready at once.
        """
        if self.settled:
            return sorted(range(len(self.names)), key=self.ready_ns.__getitem__)
        end_ns = self.nominal.end_ns
        waits: nx.DiGraph = nx.DiGraph()
        waits.add_nodes_from(range(len(self.names)))
        # The collectives before each task that end at the same nominal time as the task.
        tied: dict[str, set[int]] = {}
        for name in nx.topological_sort(self.graph):
            before = set()
            for other in self.graph.pred[name]:
                if end_ns[other] == end_ns[name]:
                    before |= {self.index[other]} if other in self.index else tied[other]
            tied[name] = before
            if name in self.index:
                waits.add_edges_from((other, self.index[name]) for other in before)
        return list(nx.lexicographical_topological_sort(waits, key=lambda k: (self.ready_ns[k], k)))

    @cached_property
    def chains(self) -> dict[FusionKey, list[int]]:
        """For each fusion key its collectives' positions in ready order."""
        if len(set(self.keys)) == 1:
            return {self.keys[0]: self.ready_order}
        chains: dict[FusionKey, list[int]] = {}
        for position in self.ready_order:
            chains.setdefault(self.keys[position], []).append(position)
        return chains

    @cached_property
    def waiting(self) -> frozenset[str]:
        """Names of the tasks that wait, directly or not, for some collective.

        All others run at their nominal times under every plan.
        """
        waiting: set[str] = set()
        for name in nx.topological_sort(self.graph):
            if any(
                before in waiting or isinstance(self.graph.nodes[before]["task"], Collective)
                for before in self.graph.pred[name]
            ):
                waiting.add(name)
        return frozenset(waiting)

    @property
    def settled(self) -> bool:
        """Whether nothing waits for a collective, so that ready times are fixed for every plan."""
        return not self.waiting

    @property
    def groups_of_channel(self) -> dict[str, list[str]]:
        """The groups that share each channel."""
        groups: dict[str, list[str]] = {}
        for group, channel in self.channels.items():
            groups.setdefault(channel, []).append(group)
        return groups

    def channel(self, key: FusionKey) -> str:
        """Return the channel that runs launches of this fusion key."""
        return self.channels[key.group]

    def cost(self, key: FusionKey) -> CostCurve:
        """Return what launches of this fusion key cost."""
        return self.costs[key.group, key.kind]


def checked_title(name: object) -> str:
    """Return a problem's title, which may be empty.

    Raises
    ------
    InputError
        If it is no text.
    """
    if not isinstance(name, str):
        raise InputError(f"name: {name!r:.100} must be a text")
    return name


def check_cost(costs: Costs, group: str, kind: Kind, what: str) -> None:
    """Check that a (group, kind) has a cost.

    Raises
    ------
    InputError
        If it has none; the message lists those that are there.
    """
    if (group, kind) not in costs:
        have = ", ".join(sorted("/".join(items_of(key, "costs", str)) for key in costs)) or "none"
        raise InputError(f"{what}: no cost for {kind} in group {group!r} (given: {have})")


def check_total(cost: CostCurve, sizes: Sequence[int], what: str) -> None:
    """Check that a cost and the sizes that it is for are of this world.

    Raises
    ------
    InputError
        If the cost is no curve, or sending everything takes longer than 13 days, whether at once
        or one by one.
    """
    if not isinstance(cost, CostCurve):
        raise InputError(f"{what}: the cost {cost!r:.100} must be a cost curve")
    # The product is quick and nearly always enough.
    one_by_one = len(sizes) * cost.ns(max(sizes))
    if one_by_one > MAX_NS:
        one_by_one = sum(map(cost.ns, sizes))
    if max(cost.ns(sum(sizes)), one_by_one) > MAX_NS:
        raise InputError(f"{what}: sending everything takes longer than 13 days; check the units")


def _channel_of_group(groups: set[str], channels: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    channel_of: dict[str, str] = {}
    for channel, listed in mapping_of(channels, "channels").items():
        if not isinstance(channel, str) or not channel:
            raise InputError(f"channel: the name {channel!r:.100} must be a non-empty text")
        members = items_of(listed, f"channel {channel!r}", str)
        if not members:
            raise InputError(f"channel {channel!r}: no group is listed")
        for group in members:
            if group not in groups:
                raise InputError(f"channel {channel!r}: group {group!r} has no collective")
            if channel_of.get(group) == channel:
                raise InputError(f"channel {channel!r}: group {group!r} is listed twice")
            if group in channel_of:
                raise InputError(
                    f"channel {channel!r}: group {group!r} is on channel {channel_of[group]!r} too"
                )
            channel_of[group] = channel
    for group in sorted(groups - channel_of.keys()):
        if group in channels:
            raise InputError(
                f"channel {group!r} does not list group {group!r}, which would use it by default"
            )
        channel_of[group] = group
    return channel_of

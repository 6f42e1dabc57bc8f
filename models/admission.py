"""Running a plan where memory is limited: launches wait until there is room.

A launch that holds memory of a limited pool starts when it is ready, its channel is free, all
launches of the pool that stand before it in the plan have started, and its bytes fit. This is how
FSDP's rate limiter works (torch/distributed/fsdp, ``limit_all_gathers``), and with it a plan, which
only has an order, has exactly one timeline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from commsched.models.coverage import Members
from commsched.models.errors import DeadlockError, NotApplicableError
from commsched.models.launch import Launch, launch_of
from commsched.models.plan import Plan
from commsched.models.problem import Problem
from commsched.models.step import Collective

Node = int | str
"""A bucket's number, or the name of a compute task or of a collective (done at once)."""


def refuse_pools(problem: Problem, what: str) -> None:
    """Check that no launch of a step waits for memory.

    Parameters
    ----------
    problem
        The step.
    what
        What is defined only there, such as ``a slowdown is``.

    Raises
    ------
    NotApplicableError
        If a pool is limited.
    """
    if problem.limited_pools:
        raise NotApplicableError(f"{what} not defined where a pool of memory is limited")


class _Demand(NamedTuple):
    """What a launch takes of a pool when it starts."""

    pool: str
    bytes: int


class Admission:
    """One run of a plan under limited pools.

    Parameters
    ----------
    problem, plan, members
        The step, the plan, and what each of its buckets holds.
    """

    def __init__(self, problem: Problem, plan: Plan, members: Members) -> None:
        self.problem, self.plan, self.members = problem, plan, members
        self.limits = problem.limited_pools
        self.end: dict[Node, int] = {}
        self.ready: dict[Node, int] = {}
        self.started: dict[int, int] = {}
        self.alive: Counter[str] = Counter()
        self.events: list[tuple[int, int, Node]] = []
        self._number = 0
        self._wire()

    def _wire(self) -> None:
        """Set up who waits for whom, the queues, and what frees which memory."""
        problem, graph = self.problem, self.problem.graph
        self.before: Counter[Node] = Counter()
        self.behind: dict[Node, list[Node]] = defaultdict(list)
        for name, task in graph.nodes(data="task"):
            if isinstance(task, Collective):
                continue
            for other in graph.pred[name]:
                self._wait(other, name)
        self.channels: dict[str, list[int]] = defaultdict(list)
        self.queues: dict[str, list[int]] = defaultdict(list)
        self.demands: dict[int, list[_Demand]] = {}
        self.channel_of: dict[int, str] = {}
        taken: set[int] = set()
        for number, positions in enumerate(self.members.positions):
            wanted: Counter[str] = Counter()
            for k in positions:
                self._wait(number, problem.names[k])
                for other in graph.pred[problem.names[k]]:
                    self._wait(other, number)
                hold = problem.collectives[k].hold
                # The first chunk of a collective takes the memory of all of it.
                if k not in taken and hold and hold.since == "start" and hold.pool in self.limits:
                    wanted[hold.pool] += problem.bytes[k]
                taken.add(k)
            self.demands[number] = [_Demand(pool, size) for pool, size in wanted.items()]
            channel = problem.channel(problem.keys[positions[0]])
            self.channel_of[number] = channel
            self.channels[channel].append(number)
            for pool in wanted:
                self.queues[pool].append(number)
        for queue in (*self.channels.values(), *self.queues.values()):
            queue.reverse()
        self.frees: dict[Node, list[str]] = defaultdict(list)
        self.users: Counter[str] = Counter()
        for task in problem.collectives:
            if task.hold is None or task.hold.pool not in self.limits:
                continue
            for user in {*task.hold.until, task.name}:
                self.frees[user].append(task.name)
                self.users[task.name] += 1
        self.born = self._births()

    def _births(self) -> dict[Node, list[str]]:
        """Return the collectives that take memory once what they wait for has ended."""
        born: dict[Node, list[str]] = defaultdict(list)
        self.unborn: Counter[str] = Counter()
        for task in self.problem.collectives:
            hold = task.hold
            if hold is None or hold.pool not in self.limits or hold.since != "ready":
                continue
            before = list(self.problem.graph.pred[task.name])
            self.unborn[task.name] = len(before)
            for other in before:
                born[other].append(task.name)
            if not before:
                self.alive[hold.pool] += task.bytes
        return born

    def _wait(self, before: Node, after: Node) -> None:
        self.before[after] += 1
        self.behind[before].append(after)

    def run(self) -> tuple[list[Launch], dict[str, int]]:
        """Run the step; return its launches and the ends of its compute tasks.

        Raises
        ------
        DeadlockError
            If launches wait for each other or for memory for ever.
        """
        problem = self.problem
        nodes: list[Node] = [
            name for name, task in problem.graph.nodes(data="task") if name not in problem.index
        ]
        nodes += range(len(self.plan.buckets))
        for node in nodes:
            if not self.before[node]:
                self._reach(node, 0)
        clock = 0
        while True:
            while self.events and self.events[0][0] <= clock:
                _, _, node = heappop(self.events)
                self._finish(node, clock)
            if self._start(clock):
                continue
            if not self.events:
                break
            clock = self.events[0][0]
        if len(self.end) < len(problem.tasks) + len(self.plan.buckets):
            raise self._stuck()
        launches = []
        for number, bucket in enumerate(self.plan.buckets):
            key = problem.keys[self.members.positions[number][0]]
            times = (self.ready[number], self.started[number], self.end[number])
            size = self.members.sizes[number]
            launches.append(launch_of(bucket, key, self.channel_of[number], size, times))
        ends = {
            name: ns
            for name, ns in self.end.items()
            if isinstance(name, str) and name not in problem.index
        }
        return launches, ends

    def _reach(self, node: Node, clock: int) -> None:
        """Note that nothing holds a node back any more but its channel and memory."""
        self.ready[node] = clock
        if isinstance(node, int):
            held_ns = self.plan.buckets[node].not_before_ns
            if held_ns > clock:
                self._push(held_ns, -1)  # only wakes the loop
        elif node in self.problem.index:
            self._push(clock, node)
        else:
            self._push(clock + self.problem.graph.nodes[node]["task"].duration_ns, node)

    def _push(self, time: int, node: Node) -> None:
        self._number += 1
        heappush(self.events, (time, self._number, node))

    def _finish(self, node: Node, clock: int) -> None:
        if node == -1:
            return
        self.end[node] = clock
        for name in self.frees.get(node, ()):
            self.users[name] -= 1
            if not self.users[name]:
                self._change(name, -1)
        for name in self.born.get(node, ()):
            self.unborn[name] -= 1
            if not self.unborn[name]:
                self._change(name, 1)
        for other in self.behind[node]:
            self.before[other] -= 1
            if not self.before[other]:
                self._reach(other, clock)

    def _change(self, name: str, sign: int) -> None:
        position = self.problem.index[name]
        hold = self.problem.collectives[position].hold
        if hold is not None:
            self.alive[hold.pool] += sign * self.problem.bytes[position]

    def _start(self, clock: int) -> bool:
        """Start every launch that may start now; return whether one did."""
        some = False
        for queue in self.channels.values():
            if not queue:
                continue
            number = queue[-1]
            if number in self.started or not self._may_start(number, clock):
                continue
            some = True
            self.started[number] = clock
            for pool, size in self.demands[number]:
                self.queues[pool].pop()
                self.alive[pool] += size
            key = self.problem.keys[self.members.positions[number][0]]
            self._push(clock + self.problem.cost(key).ns(self.members.sizes[number]), number)
        for queue in self.channels.values():
            while queue and queue[-1] in self.end:
                queue.pop()
                some = True
        return some

    def _may_start(self, number: int, clock: int) -> bool:
        if self.ready.get(number, clock + 1) > clock:
            return False
        if self.plan.buckets[number].not_before_ns > clock:
            return False
        return all(
            self.queues[pool][-1] == number and self.alive[pool] + size <= self.limits[pool]
            for pool, size in self.demands[number]
        )

    def _stuck(self) -> DeadlockError:
        blocked = [queue[-1] for queue in self.channels.values() if queue]
        for number in blocked:
            if number not in self.ready:
                continue
            for pool, size in self.demands[number]:
                if self.alive[pool] + size > self.limits[pool]:
                    names = self.plan.buckets[number].names
                    return DeadlockError(
                        f"plan: the launch of {names[0]!r} waits for memory for ever: it takes "
                        f"{size} bytes of {pool}, of which {self.alive[pool]} are held and "
                        f"{self.limits[pool]} may be",
                        list(names),
                    )
        path = [f"[{', '.join(self.plan.buckets[n].names)}]" for n in blocked]
        return DeadlockError(
            f"plan: launches wait for each other for ever: {' and '.join(path)}", path
        )


def run_admitted(
    problem: Problem, plan: Plan, members: Members
) -> tuple[list[Launch], Mapping[str, int]]:
    """Run a plan under the problem's limited pools.

    Raises
    ------
    DeadlockError
        If launches wait for each other or for memory for ever.
    """
    return Admission(problem, plan, members).run()

"""All-reduces over nodes in three parts: scattered inside a node, reduced across, gathered inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from commsched.models import (
    Alike,
    Apart,
    Collective,
    CostCurve,
    Hold,
    Kind,
    Limit,
    PoolBytes,
    Problem,
    Task,
    Together,
)
from commsched.models.errors import InputError
from commsched.models.given import given
from commsched.problems.steps.layers import check_count


class _Parts(NamedTuple):
    """The names of the three parts of an all-reduce."""

    scatter: str
    across: str
    gather: str


def two_level(
    problem: Problem,
    inside: Mapping[Kind, CostCurve],
    across: CostCurve,
    *,
    local_ranks: int,
    alike: bool = True,
) -> Problem:
    """Return the step in which each all-reduce is done on two levels.

    An all-reduce of B bytes becomes a reduce-scatter of B bytes inside each node, an all-reduce
    across the nodes of the part that a rank then holds (B over the ranks of a node, rounded up),
    and an all-gather of B bytes inside. Those inside run on one channel, those across on another,
    so that one bucket is on the network while the next is inside the node. Other collectives stay
    as they are, on the channels that they had.

    Parameters
    ----------
    problem
        A step with all-reduces.
    inside
        What a ``reduce_scatter`` and an ``all_gather`` cost inside a node.
    across
        What an all-reduce costs across nodes for the bytes of one rank, while all ranks of a node
        do theirs.
    local_ranks
        Ranks in a node, at least 2.
    alike
        Whether buckets are the same in all three parts, as a framework that reduces a bucket by
        three launches does. Without it each part has buckets of its own.

    Raises
    ------
    InputError
        If there is no all-reduce, a cost is missing, a name is taken, or the step has a limit
        that speaks of launches or of their bytes, which have another meaning on two levels.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
    >>> flat = GradientProblem([Gradient("a", 8000, 100), Gradient("b", 8000, 200)], AlphaBeta(1, 1))
    >>> fast = {"reduce_scatter": AlphaBeta(0, 8), "all_gather": AlphaBeta(0, 8)}
    >>> problem = two_level(flat, fast, AlphaBeta(1, 1), local_ranks=4)
    >>> [(task.name, task.bytes) for task in problem.collectives[:3]]
    [('a reduce-scatter', 8000), ('a across', 2000), ('a all-gather', 8000)]
    >>> plan = Plan.of([name] for name in problem.names)
    >>> evaluate(problem, plan).makespan_ns
    10100
    """
    given(problem, Problem, "problem")
    check_count(local_ranks, "local_ranks", least=2)
    curves: dict[Kind, CostCurve] = {}
    for kind in ("reduce_scatter", "all_gather"):
        curve = inside.get(kind) if isinstance(inside, Mapping) else None
        if not isinstance(curve, CostCurve):
            raise InputError(f"inside: a cost curve for {kind} is missing")
        curves[kind] = curve
    if not isinstance(across, CostCurve):
        raise InputError(f"across: {across!r:.60} is not a cost curve")
    reduced = [task for task in problem.collectives if task.kind == "allreduce"]
    if not reduced:
        raise InputError("two levels: the step has no all-reduce")
    parts = {
        task.name: _Parts(
            f"{task.name} reduce-scatter", f"{task.name} across", f"{task.name} all-gather"
        )
        for task in reduced
    }
    tasks: list[Task] = []
    for task in problem.tasks:
        after = _waits(task.after, parts)
        if isinstance(task, Collective):
            hold = task.hold and replace(task.hold, until=_waits(task.hold.until, parts))
            task = replace(task, after=after, hold=hold)
            if task.name in parts:
                tasks += _three(task, parts[task.name], local_ranks)
                continue
        tasks.append(replace(task, after=after))
    costs: dict[tuple[str, Kind], CostCurve] = {
        (task.group, task.kind): problem.costs[task.group, task.kind]
        for task in problem.collectives
        if task.kind != "allreduce"
    }
    for group in dict.fromkeys(task.group for task in reduced):
        costs[_inside(group), "reduce_scatter"] = curves["reduce_scatter"]
        costs[_inside(group), "all_gather"] = curves["all_gather"]
        costs[_across(group), "allreduce"] = across
    limits = [new for limit in problem.limits for new in _limits(limit, parts)]
    if alike:
        limits += _alike(reduced, parts)
    title = f"{problem.name}, on two levels" if problem.name else "two levels"
    return Problem(tasks, costs, channels=_channels(problem, reduced), name=title, limits=limits)


def _inside(name: str) -> str:
    return f"{name} inside"


def _across(name: str) -> str:
    return f"{name} across"


def _waits(names: tuple[str, ...], parts: Mapping[str, _Parts]) -> tuple[str, ...]:
    """Return what is waited for: of an all-reduce its last part."""
    return tuple(parts[name].gather if name in parts else name for name in names)


def _three(task: Collective, names: _Parts, local_ranks: int) -> tuple[Collective, ...]:
    # The buffer that the all-reduce holds is in use until the last part has ended.
    hold = task.hold and Hold(task.hold.pool, task.hold.since, (*task.hold.until, names.gather))
    scatter = replace(
        task, name=names.scatter, kind="reduce_scatter", group=_inside(task.group), hold=hold
    )
    across = replace(
        task,
        name=names.across,
        bytes=-(-task.bytes // local_ranks),
        group=_across(task.group),
        after=(names.scatter,),
        hold=None,
    )
    gather = replace(
        scatter, name=names.gather, kind="all_gather", after=(names.across,), hold=None
    )
    return scatter, across, gather


def _channels(problem: Problem, reduced: list[Collective]) -> dict[str, list[str]]:
    """Return the channels: groups that shared one share one on each level, too."""
    two = {task.group for task in reduced}
    left = {task.group for task in problem.collectives if task.kind != "allreduce"}
    channels: dict[str, list[str]] = {}
    for channel, groups in problem.groups_of_channel.items():
        for group in groups:
            if group in left:
                channels.setdefault(channel, []).append(group)
            if group in two:
                channels.setdefault(_inside(channel), []).append(_inside(group))
                channels.setdefault(_across(channel), []).append(_across(group))
    return channels


def _limits(limit: Limit, parts: Mapping[str, _Parts]) -> list[Limit]:
    """Return what a limit says on two levels."""
    if isinstance(limit, PoolBytes):
        return [limit]
    if isinstance(limit, Alike):
        if not parts.keys() & set(limit.names):
            return [limit]
        return [
            Alike(tuple(tuple(_part(name, level, parts) for name in row) for row in limit.rows))
            for level in range(3)
        ]
    if isinstance(limit, Together | Apart):
        make = type(limit)
        if not parts.keys() & set(limit.names):
            return [limit]
        return [
            make(tuple(_part(name, level, parts) for name in limit.names)) for level in range(3)
        ]
    raise InputError(f"two levels: limit {limit.label} has no meaning there; set it afterwards")


def _part(name: str, level: int, parts: Mapping[str, _Parts]) -> str:
    return parts[name][level] if name in parts else name


def _alike(reduced: list[Collective], parts: Mapping[str, _Parts]) -> list[Limit]:
    """Return a limit for each fusion key: its buckets are the same in all three parts."""
    chains: dict[tuple[str, str, str], list[str]] = {}
    for task in reduced:
        if not task.sparse:
            chains.setdefault((task.group, task.dtype, task.device), []).append(task.name)
    return [
        Alike(tuple(tuple(parts[name][level] for name in names) for level in range(3)))
        for names in chains.values()
        if len(names) > 1
    ]

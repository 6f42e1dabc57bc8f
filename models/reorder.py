"""A step whose streams run their movable tasks at other places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from commsched.models.errors import PlanError
from commsched.models.problem import Problem
from commsched.models.step import Compute


def reordered(problem: Problem, orders: Mapping[str, Sequence[str]]) -> Problem:
    """Return the step in which streams run their tasks in other orders.

    Parameters
    ----------
    problem
        The step.
    orders
        For each stream that changes, the names of all its tasks.

    Raises
    ------
    PlanError
        If a stream is unknown, a name is missing or foreign, or a task that is not movable
        changes its place among its like.
    CycleError
        If tasks then wait for each other in a circle.
    """
    queues: dict[str, list[Compute]] = {}
    for task in problem.tasks:
        if isinstance(task, Compute):
            queues.setdefault(task.stream, []).append(task)
    ordered: dict[str, list[Compute]] = {}
    for stream, names in orders.items():
        listed = queues.get(stream)
        if listed is None:
            raise PlanError(f"plan: orders: the step has no stream {stream!r}")
        by_name = {task.name: task for task in listed}
        listed_names = Counter(task.name for task in listed)
        if Counter(names) != listed_names:
            wrong = next(iter(Counter(names) - listed_names), None)
            what = "a task is missing" if wrong is None else f"{wrong!r} does not belong there"
            raise PlanError(f"plan: orders: stream {stream!r}: {what}")
        moved = [by_name[name] for name in names]
        fixed = [task.name for task in moved if not task.movable]
        if fixed != [task.name for task in listed if not task.movable]:
            raise PlanError(
                f"plan: orders: stream {stream!r}: a task changes its place that is not movable"
            )
        ordered[stream] = moved[::-1]
    tasks = [
        ordered[task.stream].pop() if isinstance(task, Compute) and task.stream in ordered else task
        for task in problem.tasks
    ]
    return Problem(
        tasks,
        problem.costs,
        channels=problem.groups_of_channel,
        name=problem.name,
        limits=problem.limits,
    )

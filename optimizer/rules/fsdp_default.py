"""What FSDP2 does by itself with a sharded step: one unit a layer, in the order of issue.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py. In forward the next all-gather is
issued when the host reaches the next module, without waiting for the module before it. Before a
module's backward its parameters are gathered if they are not there, then those of the module that
comes next; after its backward its gradients are scattered.
"""

from __future__ import annotations

from bisect import bisect_right

from commsched.models import Collective, Compute, Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.optimizer.rules.common import kinds_only


def fsdp_default(problem: Problem) -> Plan:
    """Return the plan that FSDP2 runs without any setting: the order in which it issues.

    One launch for each all-gather and each reduce-scatter. Along the stream, before each task: the
    gathers that it needs, then those of the next task that needs some, if everything that these
    wait for comes earlier; after the task: the scatters that need nothing later. How far ahead a
    gather runs follows from the problem: for FSDP2 itself build it with ``units="layers"``,
    ``prefetch=FSDP2_PREFETCH`` and ``scatter_buffers=1``
    (:func:`~commsched.problems.steps.fsdp_step.fsdp_step`).

    It has no parameter. All-reduces across replicas (HSDP) are not formed.

    Parameters
    ----------
    problem
        A step of all-gathers and reduce-scatters around compute tasks of one stream.

    Raises
    ------
    NotApplicableError
        If the step has other collectives or streams, no gather that a task waits for, or a
        collective that waits for another one.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> from commsched.problems.steps.fsdp_step import fsdp_step
    >>> from commsched.problems.steps.layers import Layer, LayerProfile
    >>> profile = LayerProfile(tuple(Layer(name, 10, 20, 8) for name in "abc"))
    >>> costs = {"all_gather": AlphaBeta(1, 1), "reduce_scatter": AlphaBeta(1, 1)}
    >>> [bucket.names[0] for bucket in fsdp_default(fsdp_step(profile, costs)).buckets][3:]
    ['gather c again', 'gather b again', 'scatter c', 'gather a again', 'scatter b', 'scatter a']
    """
    who = "FSDP2's default"
    kinds_only(problem, who, ("all_gather", "reduce_scatter"), "all-gathers and reduce-scatters")
    stream = [task for task in problem.tasks if isinstance(task, Compute)]
    if len({task.stream for task in stream}) != 1:
        raise NotApplicableError(f"{who} speaks of one stream of compute tasks")
    place = {task.name: k for k, task in enumerate(stream)}

    def ready(task: Collective) -> int:
        """Return the place of the last task that a collective waits for."""
        if any(name not in place for name in task.after):
            raise NotApplicableError(f"{who}: {task.name!r} waits for a collective")
        return max((place[name] for name in task.after), default=-1)

    gathers = {task.name: task for task in problem.collectives if task.kind == "all_gather"}
    first_user: dict[str, int] = {}
    for k, compute in enumerate(stream):
        for name in compute.after:
            first_user.setdefault(name, k)
    # By place: the gathers that are first needed there, and what is launched right after it.
    needed: dict[int, list[Collective]] = {}
    behind: dict[int, list[Collective]] = {}
    for task in problem.collectives:
        if task.name in gathers and task.name in first_user:
            needed.setdefault(first_user[task.name], []).append(task)
        else:
            behind.setdefault(ready(task), []).append(task)
    if not needed:
        raise NotApplicableError(f"{who}: no compute task waits for an all-gather")
    places = sorted(needed)
    issued: dict[str, None] = {}

    def issue(found: list[Collective], now: int) -> None:
        issued.update((task.name, None) for task in found if ready(task) < now)

    issue(behind.get(-1, []), 0)
    for k, compute in enumerate(stream):
        if not gathers.keys().isdisjoint(compute.after):
            later = bisect_right(places, k)
            issue(needed.get(k, []), k)
            issue(needed[places[later]] if later < len(places) else [], k)
        issue(behind.get(k, []), k + 1)
    return Plan.of([name] for name in issued)

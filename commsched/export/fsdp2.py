"""PyTorch FSDP2: groups of modules for ``fully_shard``, and what each prefetches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from commsched.export.fsdp_groups import ModuleGroups, module_groups
from commsched.export.fsdp_step import TITLE, Prefetch, ShardedStep, projected_plan, sharded_step
from commsched.export.names import first_other, is_path, paths_only
from commsched.export.result import Draft, difference, lines, lost, same_buckets
from commsched.export.source import ExportSource
from commsched.models import Bucket, Plan, Problem, evaluate
from commsched.models.errors import NotApplicableError
from commsched.models.timeline import play
from commsched.models.units import format_bytes
from commsched.optimizer.rules.order import in_launch_order

MIN_TORCH = "2.6"
"""A torch whose ``fully_shard`` takes lists of modules and whose prefetch lists are public."""
MIN_TORCH_SEPARATE = "2.13"
"""The first torch with ``set_separate_reduce_scatter_group``."""
DEPTHS = (1, 2, 3, 4)
"""Depths of prefetching that are tried beside what the plan's own times ask for."""
ROOT = -1
"""The model itself among the groups: it is wrapped last."""
LATE_ROOT = (
    "the scatter of what the model itself holds as soon as it is ready, as the figures have it: FSDP2 "
    "issues it when backward has ended, and where the inputs need no gradient also the first group's, "
    "after it"
)
NEEDS: tuple[str, ...] = (
    f"torch {MIN_TORCH} or later; each module is run by calling it, groups in the order of the plan",
    "one parameter dtype in each group",
)


def export_fsdp2(source: ExportSource) -> Draft:
    """Return FSDP2's wrapping for a plan.

    For a plan of gradients that are named by their parameters, each bucket becomes a group of whole
    modules; gathers are then not part of the problem. For a plan of a sharded step (``fsdp_step``)
    the groups must be the same in all passes, and lists of what to prefetch are chosen: those that
    the plan's order or times ask for, or one to four groups ahead, whichever makes the step shorter.

    Raises
    ------
    NotApplicableError
        If the plan has what FSDP2 has not, or its names are neither parameters nor layers.
    """
    if source.options.older_than(MIN_TORCH):
        raise NotApplicableError(
            f"{TITLE}: torch {source.options.version} is too old, it needs {MIN_TORCH}"
        )
    source.check(TITLE, ("all_gather", "reduce_scatter", "allreduce"), memory=True)
    source.no_sparse(TITLE)
    if any(key.kind == "all_gather" for key in source.keys):
        return _of_step(source)
    return _of_gradients(source)


def _of_gradients(source: ExportSource) -> Draft:
    source.check(TITLE, ("reduce_scatter", "allreduce"))
    source.one_group(TITLE)
    groups = module_groups(source, TITLE, "last")
    projected = None
    missed: tuple[str, ...] = ()
    problem = source.problem
    if problem is not None:
        found = [groups]
        if groups.moved:
            with suppress(NotApplicableError):
                found.append(module_groups(source, TITLE, "first"))
        plans = [_projected(problem, some) for some in found]
        best = min(range(len(found)), key=lambda k: play(problem, plans[k]).makespan_ns)
        projected, groups = plans[best], found[best]
        missed = difference(problem, source.plan, projected)
    cannot = ["the gathers of the parameters: they are not in this problem, nor in the figures"]
    if any(key.kind == "allreduce" for key in source.keys):
        cannot.append("an all-reduce: gradients are reduce-scattered, which costs about half")
    return Draft(
        TITLE,
        {"groups": [list(names) for names in groups.modules], "root": list(groups.root)},
        snippet(groups.modules, (), {}, {}),
        "python",
        (*cannot, *groups.moved, *missed),
        NEEDS,
        projected,
    )


def _projected(problem: Problem, groups: ModuleGroups) -> Plan:
    """Return the groups in the order in which they are complete; the model's own come last."""
    plan = in_launch_order(problem, [[problem.index[n] for n in names] for names in groups.names])
    if not groups.root:
        return plan
    # The model's own backward ends with everything else.
    end_ns = problem.compute_ns if problem.settled else 0
    return Plan((*plan.buckets, Bucket(groups.root, end_ns)))


def _of_step(source: ExportSource) -> Draft:
    if source.problem is None:
        raise NotApplicableError(
            f"{TITLE}: prefetch lists of a sharded step cannot be found without the problem"
        )
    step = sharded_step(source)
    paths_only((n for g in step.groups if not g.root for n in g.layers), TITLE, "module")
    problem = step.problem
    found: list[tuple[tuple[int, bool, int], Prefetch, Plan]] = []
    refused = ""
    timeline = evaluate(problem, source.plan)
    wanted = [Prefetch.of_plan(step, timeline, by_order=which) for which in (True, False)]
    uniform = [Prefetch.of_depth(step, depth) for depth in DEPTHS]
    for number, prefetch in enumerate([*wanted, *uniform]):
        try:
            plan = projected_plan(step, prefetch)
            late = lost(problem, source.plan, plan, TITLE)
        except NotApplicableError as error:
            refused = str(error)
            continue
        found.append(((late, not same_buckets(problem, source.plan, plan), number), prefetch, plan))
    if not found:
        raise NotApplicableError(refused)
    _, prefetch, plan = min(found, key=lambda entry: entry[0])
    numbers = _numbers(step)
    forward, backward = (
        {numbers[k]: [numbers[j] for j in others] for k, others in some.items()}
        for some in prefetch.lists(step)
    )
    named = [group for group in step.groups if not group.root]
    kept = [number for number, group in enumerate(named) if group.kept]
    modules = [group.layers for group in named]
    text = snippet(modules, kept, forward, backward)
    settings: dict[str, Any] = {
        "groups": [list(names) for names in modules],
        "reshard_after_forward": [not group.kept for group in named],
        "forward_prefetch": {str(k): others for k, others in forward.items()},
        "backward_prefetch": {str(k): others for k, others in backward.items()},
    }
    needs = NEEDS
    if _separate(source):
        settings["separate_reduce_scatter_group"] = True
        text = text.replace(
            "    return model",
            "    model.set_separate_reduce_scatter_group(True)\n    return model",
        )
        needs = (f"torch {MIN_TORCH_SEPARATE} or later: scatters on a communicator of their own",)
        needs += NEEDS[1:]
    needs += _memory(problem, plan)
    return Draft(
        TITLE,
        settings,
        text,
        "python",
        (
            "a launch at any other time than when a group begins or ends to compute",
            *(LATE_ROOT for group in step.groups if group.root),
            *difference(problem, source.plan, plan),
        ),
        needs,
        plan,
    )


def _memory(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Return how much of each pool is alive at once, which deeper prefetching pays for."""
    timeline = play(problem, plan)
    pools = dict.fromkeys(task.hold.pool for task in problem.collectives if task.hold)
    return tuple(
        f"room for {format_bytes(timeline.pool_peak(pool))} of {pool} at once" for pool in pools
    )


def _separate(source: ExportSource) -> bool:
    """Return whether gathers and scatters run on channels of their own.

    Raises
    ------
    NotApplicableError
        If they do and torch cannot.
    """
    problem = source.problem
    assert problem is not None
    channels = {problem.channel(key) for key in source.keys}
    if len(channels) == 1:
        return False
    if source.options.older_than(MIN_TORCH_SEPARATE):
        raise NotApplicableError(
            f"{TITLE}: torch {source.options.version} runs gathers and scatters on one communicator; "
            f"two need {MIN_TORCH_SEPARATE}"
        )
    return True


def _numbers(step: ShardedStep) -> list[int]:
    """Return each group's number among those that are wrapped before the model."""
    numbers: list[int] = []
    for group in step.groups:
        numbers.append(ROOT if group.root else sum(number != ROOT for number in numbers))
    return numbers


def snippet(
    groups: Sequence[Sequence[str]],
    kept: Sequence[int],
    forward: Mapping[int, Sequence[int]],
    backward: Mapping[int, Sequence[int]],
) -> str:
    """Return Python that wraps a model in groups; the model itself is group -1.

    Raises
    ------
    NotApplicableError
        If a name is no module's path.

    Examples
    --------
    >>> print(snippet([["a", "b"], ["c"]], [], {}, {}).splitlines()[3])
        ["a", "b"],
    """
    other = first_other(name for names in groups for name in names)
    if other is not None:
        assert not is_path(other)
        raise NotApplicableError(f"{TITLE} needs module names; {other!r:.100} is none")
    flag = ", reshard_after_forward=number not in KEPT" if kept else ""
    body = [
        "from torch.distributed.fsdp import fully_shard",
        "",
        "GROUPS = [",
        *(f"    {json.dumps(list(names), ensure_ascii=False)}," for names in groups),
        "]",
    ]
    if kept:
        body.append(f"KEPT = {list(kept)!r}  # groups that stay gathered from forward to backward")
    if forward or backward:
        body += _table("FORWARD_PREFETCH", forward) + _table("BACKWARD_PREFETCH", backward)
    body += [
        "",
        "",
        "def apply_plan(model, **options):",
        '    """Wrap a model in the planned groups; the options go to fully_shard."""',
        "    first = []",
        "    for number, names in enumerate(GROUPS):" if kept else "    for names in GROUPS:",
        "        modules = [model.get_submodule(name) for name in names]",
        f"        fully_shard(modules if len(modules) > 1 else modules[0]{flag}, **options)",
        "        first.append(modules[0])",
        "    fully_shard(model, **options)",
    ]
    if forward or backward:
        body += [
            "    first.append(model)  # number -1",
            "    for number, others in FORWARD_PREFETCH.items():",
            "        first[number].set_modules_to_forward_prefetch([first[k] for k in others])",
            "    for number, others in BACKWARD_PREFETCH.items():",
            "        first[number].set_modules_to_backward_prefetch([first[k] for k in others])",
        ]
    return lines([*body, "    return model"])


def _table(name: str, rows: Mapping[int, Sequence[int]]) -> list[str]:
    if not rows:
        return [f"{name} = {{}}"]
    return [f"{name} = {{", *(f"    {k}: {list(others)!r}," for k, others in rows.items()), "}"]

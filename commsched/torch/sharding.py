"""A plan of a sharded step on a real model: groups of modules for FSDP2 and what each prefetches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from commsched.export import Export, export
from commsched.export.fsdp_step import AGAIN, GATHER
from commsched.models import Plan, Problem
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError, NotApplicableError
from commsched.torch.ranks import gathered
from commsched.torch.running import Solved

SEPARATE = "separate_reduce_scatter_group"
"""The setting of a plan whose gathers and scatters have communicators of their own."""
MODEL = -1
"""The number of the group that is the model itself."""
ROOT = "root"
"""The problem's name of that unit: what no other group holds."""


@dataclass(frozen=True)
class ShardedGroups:
    """How a model was wrapped.

    Attributes
    ----------
    groups
        The names of each group's modules; the model itself, which is wrapped last, is not listed.
    kept
        The numbers of groups whose parameters stay gathered from forward to backward.
    forward, backward
        For each group that prefetches others their numbers, in order; -1 is the model itself.
        Groups without an entry follow FSDP2's default.
    modules
        For each group the module by which FSDP2 knows it.
    """

    groups: tuple[tuple[str, ...], ...]
    kept: tuple[int, ...]
    forward: Mapping[int, tuple[int, ...]]
    backward: Mapping[int, tuple[int, ...]]
    modules: tuple[torch.nn.Module, ...] = field(repr=False, compare=False)


def fully_shard_plan(
    model: torch.nn.Module,
    plan: Export | Solved | Plan,
    problem: Problem | None = None,
    **options: Any,  # noqa: ANN401  (whatever this torch's fully_shard takes)
) -> ShardedGroups:
    """Apply a plan of a sharded step to a model with ``fully_shard``, in place.

    Each group of layers becomes one ``fully_shard`` call, and the model itself the last one. The
    layers of the problem (:func:`commsched.problems.steps.fsdp_step.fsdp_step`) must have the names of
    the model's modules. A plan of gradients that are named by the model's parameters does, too:
    its buckets must be whole modules, and nothing is said about prefetching.

    Everything is checked before anything is wrapped: where this raises, the model is as it was, on
    every rank. Ranks with different groups would wait for each other for ever, and a search that a
    time limit ends may find another plan on each: let one rank plan and broadcast the result.

    Parameters
    ----------
    model
        The model, not wrapped yet.
    plan
        A result of ``optimize``, a plan, or what ``commsched.export.export(..., "fsdp2")`` gave.
    problem
        The plan's problem, for a plan alone.
    options
        Go to every ``fully_shard`` call: ``mesh``, ``mp_policy``, ``offload_policy``.

    Raises
    ------
    InputError
        If there is no problem, a name is no module of the model, a module is in two groups, the
        groups have other sizes than in the problem, or the ranks have different groups. If it is
        so on one rank, all ranks raise it.
    NotApplicableError
        If FSDP2 cannot run anything like the plan.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model: {type(model).__name__} is no torch.nn.Module")
    if "reshard_after_forward" in options:
        raise InputError("reshard_after_forward: the plan says it for each group")
    found: ShardedGroups | None = None
    said, input_error = "", True
    try:
        settings, planned = _settings(plan, problem)
        found = _groups(model, settings)
        _check_parameters(model, found, settings, planned)
        _check_communicators(settings)
    except (InputError, NotApplicableError) as error:  # the other ranks wait for what came out
        said, input_error = str(error), isinstance(error, InputError)
    _agree(said, input_error, found, options.get("mesh"))
    assert found is not None
    from torch.distributed.fsdp import fully_shard

    for number, names in enumerate(found.groups):
        modules = [model.get_submodule(name) for name in names]
        # The list's first module stands for all of them.
        fully_shard(
            modules if len(modules) > 1 else modules[0],
            reshard_after_forward=number not in found.kept,
            **options,
        )
    fully_shard(model, **options)
    if settings.get(SEPARATE):
        model.set_separate_reduce_scatter_group(True)
    for number, others in found.forward.items():
        prefetched = [found.modules[other] for other in others]
        found.modules[number].set_modules_to_forward_prefetch(prefetched)
    for number, others in found.backward.items():
        prefetched = [found.modules[other] for other in others]
        found.modules[number].set_modules_to_backward_prefetch(prefetched)
    return found


def _agree(
    said: str,
    input_error: bool,
    found: ShardedGroups | None,
    mesh: Any,  # noqa: ANN401
) -> None:
    """Raise what a rank says on all ranks of a mesh, also if they have different groups.

    Raises
    ------
    InputError, NotApplicableError
        The same one on every rank.
    """
    own = "" if found is None else repr((found.groups, found.kept, found.forward, found.backward))
    groups = [None] if mesh is None else [mesh.get_group(dim) for dim in range(mesh.ndim)]
    for group in groups:
        everybody = gathered((said, input_error, own), group)
        said, input_error, _ = next((one for one in everybody if one[0]), everybody[0])
        for rank, (_, _, theirs) in enumerate(everybody):
            if not said and theirs != everybody[0][2]:
                said = (
                    f"rank {rank} has another plan than rank 0, and they would wait for each other "
                    "for ever: let one rank plan and broadcast the result"
                )
    if said:
        raise (InputError if input_error else NotApplicableError)(said)


def _settings(
    plan: Export | Solved | Plan, problem: Problem | None
) -> tuple[Mapping[str, Any], _Planned]:
    """Return the settings of the export of a plan, and the size of each group where it is known."""
    if isinstance(plan, Export):
        if plan.framework != "fsdp2":
            raise InputError(f"plan: it is an export for {plan.title}, not for FSDP2")
        return plan.settings, _Planned({})
    if not isinstance(plan, Plan):
        own = getattr(plan, "problem", None)
        if not isinstance(own, Problem):
            raise InputError(f"plan: {type(plan).__name__} is no result, plan or export")
        if plan.plan is None:
            raise InputError("plan: the result has none")
        plan, problem = plan.plan, own
    if problem is None:
        raise InputError("problem: it is missing; a plan by itself does not know the layers")
    # Without a version: what this torch has is looked up in it.
    return export(problem, plan, "fsdp2").settings, _Planned.of(problem)


class _Planned:
    """How many elements the problem gathers for each layer; nothing where it has no gathers."""

    def __init__(self, elements: Mapping[str, int]) -> None:
        self._elements = elements

    @classmethod
    def of(cls, problem: Problem) -> _Planned:
        return cls(
            {
                task.name.removeprefix(GATHER): task.bytes // ITEM_BYTES[task.dtype]
                for task in problem.collectives
                if task.kind == "all_gather"
                and not task.name.endswith(AGAIN)
                and task.dtype in ITEM_BYTES
            }
        )

    def get(self, layers: Sequence[str]) -> int | None:
        """Return how many elements some layers have; None if that is not known."""
        found = [self._elements.get(layer) for layer in layers]
        known = [count for count in found if count is not None]
        return sum(known) if len(known) == len(found) else None


def _groups(model: torch.nn.Module, settings: Mapping[str, Any]) -> ShardedGroups:
    """Return the groups with their modules; the last module is the model itself."""
    known = dict(model.named_modules())
    groups = tuple(tuple(names) for names in settings["groups"])
    taken: set[str] = set()
    for names in groups:
        for name in names:
            if not name or name not in known:
                raise InputError(f"plan: {name!r:.100} is no module of the model")
            if name in taken:
                raise InputError(f"plan: module {name!r:.100} is in two groups")
            taken.add(name)
    resharded = settings.get("reshard_after_forward", [True] * len(groups))
    return ShardedGroups(
        groups,
        tuple(number for number, again in enumerate(resharded) if not again),
        _lists(settings.get("forward_prefetch", {})),
        _lists(settings.get("backward_prefetch", {})),
        (*(known[names[0]] for names in groups), model),
    )


def _lists(rows: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    return {int(number): tuple(others) for number, others in rows.items()}


def _check_parameters(
    model: torch.nn.Module, found: ShardedGroups, settings: Mapping[str, Any], planned: _Planned
) -> None:
    """Check that the groups hold what the plan says they do; what is left is the model's own."""
    elements = {name: p.numel() for name, p in model.named_parameters()}
    left = dict(elements)
    for names in found.groups:
        own = [name for name in left if _inside(name, names)]
        _check_size(names[0], sum(left.pop(name) for name in own), planned.get(names))
    root = planned.get((ROOT,))
    if root is not None:
        _check_size(ROOT, sum(left.values()), root)
    elif left and not settings.get("root") and not _has_root(found):
        raise InputError(
            f"plan: no group holds parameter {next(iter(left))!r:.100}, which the model itself "
            "would gather"
        )


def _check_communicators(settings: Mapping[str, Any]) -> None:
    from torch.distributed.fsdp import FSDPModule

    if settings.get(SEPARATE) and not hasattr(FSDPModule, f"set_{SEPARATE}"):
        raise InputError(
            "plan: its gathers and scatters have a communicator each, and torch "
            f"{torch.__version__} has no set_{SEPARATE}"
        )


def _has_root(found: ShardedGroups) -> bool:
    """Return whether the model itself prefetches, as the first group of every pass does."""
    return MODEL in found.forward or MODEL in found.backward


def _inside(parameter: str, modules: Iterable[str]) -> bool:
    return any(parameter.startswith(f"{module}.") for module in modules)


def _check_size(first: str, elements: int, planned: int | None) -> None:
    if planned not in (None, elements):
        raise InputError(
            f"plan: the group of {first!r:.100} has {planned} elements in the problem, its modules "
            f"have {elements}"
        )

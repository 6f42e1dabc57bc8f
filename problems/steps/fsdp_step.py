"""A step of sharded training: all-gathers before each layer, reduce-scatters after it.

With hybrid sharding (HSDP) an all-reduce across the replicas follows each reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from commsched.models import Collective, Compute, CostCurve, Hold, Kind, PoolBytes, Problem, Task
from commsched.models.errors import InputError
from commsched.models.limits import Limit
from commsched.problems.steps.fsdp_lanes import Lanes
from commsched.problems.steps.fsdp_units import Reshard, Unit, Units, unit_limits, units_of
from commsched.problems.steps.layer_tasks import (
    GPU,
    backward_of,
    check_movable,
    optimizer_tasks,
)
from commsched.problems.steps.layers import (
    Layer,
    LayerProfile,
    check_count,
    check_profile,
    check_total,
)

GATHERED = "gathered"
"""The pool of parameters that are gathered."""
FSDP2_PREFETCH = (2, 1)
"""How far ahead FSDP2 gathers in forward and in backward.

In forward the gather streams wait for the copy-out of the unit before the last one, in backward for
that of the current unit (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
``wait_for_unshard``).
"""
GRADIENTS = "gradients"
"""The pool of gradients that are not scattered yet."""


def fsdp_step(
    profile: LayerProfile,
    costs: Mapping[Kind, CostCurve],
    *,
    units: Units = "decided",
    root: Sequence[str] = (),
    reshard_after_forward: Reshard = True,
    communicators: int = 1,
    one_nic: bool = False,
    prefetch: int | tuple[int, int] | None = None,
    scatter_buffers: int | None = None,
    gathered_limit_bytes: int | None = None,
    gradient_limit_bytes: int | None = None,
    micro_batches: int = 1,
    scatter: Literal["each", "last"] = "each",
    reduce_dtype: str | None = None,
    optimizer_ns: int | Mapping[str, int] | None = None,
    movable_weights: bool = False,
    hybrid_shard: int | None = None,
    group: str = "fsdp",
    replicate_group: str = "replicate",
) -> Problem:
    """Return the step from the start of forward to the end of backward or of the optimizer.

    Each layer with parameters is gathered before its forward, gathered again before its backward,
    and its gradients are scattered after that. Gathers of one pass (a forward or a backward) wait
    until the pass before it has computed, as a framework issues them; within a pass the launch
    order and the memory decide how early they run.

    Parameters
    ----------
    profile
        The layers.
    costs
        What an ``all_gather`` and a ``reduce_scatter`` cost; with ``hybrid_shard`` also an
        ``allreduce`` of one rank's bytes across the replicas, while all ranks do theirs.
    units
        ``"decided"``: a plan may make one unit of layers that follow each other; the units are
        the same in all passes. ``"layers"``: each layer is a unit.
    root
        Layers that form the root unit: gathered first, kept until the end of backward, scattered
        once the last of them has its gradients, and fused with no other.
    reshard_after_forward
        True, False (parameters are gathered once and kept until backward), or ``"all-but-last"``.
    communicators
        1: gathers and scatters run one after the other on one channel. 2: on two channels.
    one_nic
        Whether two communicators share a channel all the same, since they share a NIC.
    prefetch
        A gather waits until the unit so many units before it begins to compute: 0 is no overlap;
        None leaves it to the launch order and the memory. A pair is for forward and backward:
        :data:`FSDP2_PREFETCH` is what FSDP2 does. A unit that a plan makes of several layers then
        has at most ``prefetch + 1`` of them.
    scatter_buffers
        A layer's backward waits until no more than so many scatters before it are unfinished: 1
        is FSDP2's default, None does not wait.
    gathered_limit_bytes, gradient_limit_bytes
        The most bytes that may be gathered, or wait for their scatter, at once.
    micro_batches
        Forward and backward are run so many times; the profile's times are those of one.
    scatter
        ``"each"``: gradients are scattered in each micro-batch; ``"last"``: only in the last one.
    reduce_dtype
        The type in which gradients are scattered; None is that of the parameters.
    optimizer_ns
        A number: one optimizer step after all scatters. By layer name: tasks that wait for that
        layer's last scatter only.
    movable_weights
        As for :func:`~commsched.problems.steps.ddp_step.ddp_step`.
    hybrid_shard
        Hybrid sharding (FSDP's ``HYBRID_SHARD``, HSDP): parameters are sharded over so many ranks
        and replicated beyond them. The part that a rank holds after a reduce-scatter (its bytes over
        ``hybrid_shard``, rounded up) is all-reduced across the replicas, on a channel of its own.
    group, replicate_group
        The process groups' names: that of the ranks with a shard each, and that of the replicas.

    Raises
    ------
    InputError
        If the profile has no parameters, a cost is missing, or an option is out of range.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Plan, evaluate
    >>> layers = (Layer("a", 1000, 2000, 4000), Layer("b", 1000, 2000, 4000))
    >>> costs = {"all_gather": AlphaBeta(1, 4), "reduce_scatter": AlphaBeta(1, 4)}
    >>> problem = fsdp_step(LayerProfile(layers), costs)
    >>> problem.names
    ['gather a', 'gather b', 'gather b again', 'gather a again', 'scatter b', 'scatter a']
    >>> evaluate(problem, Plan.of([name] for name in problem.names)).makespan_ns
    13000
    """
    check_profile(profile)
    check_movable(profile, movable_weights)
    check_total(profile, check_count(micro_batches, "micro_batches"), "micro_batches")
    ahead = _checked_prefetch(prefetch)
    if scatter_buffers is not None:
        check_count(scatter_buffers, "scatter_buffers")
    if scatter not in ("each", "last"):
        raise InputError(f"scatter: {scatter!r:.60} is not one of each, last")
    found = units_of(profile, root, reshard_after_forward, reduce_dtype)
    if hybrid_shard is not None:
        check_count(hybrid_shard, "hybrid_shard", least=2)
        if replicate_group == group:
            raise InputError(f"replicate_group: {group!r:.60} is the group of the shards, too")
    lanes = Lanes.of(
        costs,
        group,
        communicators,
        one_nic,
        micro_batches,
        replicate_group if hybrid_shard else None,
    )
    step = _Step(
        profile, found, lanes, ahead, scatter_buffers, reduce_dtype, movable_weights, hybrid_shard
    )
    for number in range(micro_batches):
        scatters = scatter == "each" or number == micro_batches - 1
        step.add(number, f" (micro-batch {number + 1})" if micro_batches > 1 else "", scatters)
    ends = step.reduced[-1] if hybrid_shard else step.scattered[-1]
    last = dict(zip((unit.name for unit in found), ends, strict=True))
    communicated = {layer.name: [last[unit.name]] for unit in found for layer in unit.layers}
    steps = optimizer_tasks(profile, optimizer_ns, communicated)
    step.tasks += [steps[name] for name in ("", *reversed(profile.by_name)) if name in steps]
    limits: list[Limit] = [
        PoolBytes(pool, size)
        for pool, size in ((GATHERED, gathered_limit_bytes), (GRADIENTS, gradient_limit_bytes))
        if size is not None
    ]
    rows = [*step.gathered, *step.scattered, *step.reduced]
    limits += unit_limits(found, units, rows, step.regathered)
    title = f"{profile.name}: sharded step" if profile.name else "sharded step"
    used = {task.group for task in step.tasks if isinstance(task, Collective)}
    channels = {
        channel: [name for name in groups if name in used]
        for channel, groups in lanes.channels.items()
    }
    return Problem(step.tasks, lanes.costs, channels=channels, name=title, limits=limits)


def _checked_prefetch(prefetch: object) -> tuple[int, int] | None:
    if prefetch is None:
        return None
    pair = prefetch if isinstance(prefetch, tuple | list) else (prefetch, prefetch)
    if len(pair) != 2:
        raise InputError(f"prefetch: {prefetch!r:.60} must be one number or two")
    return (
        check_count(pair[0], "prefetch", least=0),
        check_count(pair[1], "prefetch", least=0),
    )


class _Users(NamedTuple):
    """Who uses what a pass gathers."""

    direction: str
    suffix: str
    number: int

    def of(self, unit: Unit) -> tuple[str, ...]:
        """Return the tasks until the last of which a unit stays gathered."""
        direction = "backward" if unit.kept else self.direction
        return tuple(f"{direction} {layer.name}{self.suffix}" for layer in unit.layers)


@dataclass
class _Step:
    """The tasks as they are listed, micro-batch by micro-batch."""

    profile: LayerProfile
    units: Sequence[Unit]
    lanes: Lanes
    prefetch: tuple[int, int] | None
    buffers: int | None
    reduce_dtype: str | None
    movable: bool
    shard_ranks: int | None
    tasks: list[Task] = field(default_factory=list)
    gathered: list[list[str]] = field(default_factory=list)
    regathered: list[list[str]] = field(default_factory=list)
    scattered: list[list[str]] = field(default_factory=list)
    reduced: list[list[str]] = field(default_factory=list)
    fence: tuple[str, ...] = ()
    """What the gathers of a pass wait for: the last compute task of the pass before it."""

    def add(self, number: int, suffix: str, scatters: bool) -> None:
        """Add the forward and the backward of a micro-batch."""
        name_of = {unit.name: f"gather {unit.name}{suffix}" for unit in self.units}
        self.gathered.append(list(name_of.values()))
        computes = [f"forward {layer.name}{suffix}" for layer in self.profile.layers]
        users = _Users("forward", suffix, number)
        waits = self._gathers(users, self.units, self.profile.layers, computes, name_of)
        for layer, name in zip(self.profile.layers, computes, strict=True):
            self.tasks.append(Compute(name, layer.forward_ns, GPU, waits[layer.name]))
        self.fence = (computes[-1],)

        layers = self.profile.layers[::-1]
        again = [unit for unit in self.units if not unit.kept]
        kept = [unit for unit in self.units if unit.kept]
        regather = {unit.name: f"gather {unit.name} again{suffix}" for unit in again}
        if again:
            self.regathered.append(list(regather.values()))
        computes = [f"backward {layer.name}{suffix}" for layer in layers]
        users = _Users("backward", suffix, number)
        waits = self._gathers(users, again[::-1], layers, computes, regather)
        for unit in kept:
            for layer in unit.layers:
                waits[layer.name] = (name_of[unit.name],)
        self._backward(number, layers, waits, suffix, scatters)
        self.fence = (computes[-1],)

    def _gathers(
        self,
        users: _Users,
        units: Sequence[Unit],
        layers: Sequence[Layer],
        computes: Sequence[str],
        names: Mapping[str, str],
    ) -> dict[str, tuple[str, ...]]:
        """Add the gathers of a pass; return what each layer's compute waits for."""
        place = {layer.name: k for k, layer in enumerate(layers)}
        # Where each unit begins in the order of the pass; the root unit is all of the model.
        begins = [
            0 if unit.root else min(place[layer.name] for layer in unit.layers) for unit in units
        ]
        waits: dict[str, tuple[str, ...]] = {layer.name: () for layer in layers}
        ahead = self.prefetch and self.prefetch[users.direction == "backward"]
        for k, unit in enumerate(units):
            after = self.fence
            if ahead is not None and k >= ahead:
                begin = begins[k - ahead]
                after = (computes[begin - 1],) if begin else self.fence
            name = names[unit.name]
            self.tasks.append(
                Collective(
                    name,
                    unit.gathered_bytes,
                    "all_gather",
                    self.lanes.gathers[users.number],
                    unit.dtype,
                    after,
                    hold=Hold(GATHERED, "start", users.of(unit)),
                )
            )
            for layer in unit.layers:
                waits[layer.name] = (name,)
        return waits

    def _backward(
        self,
        number: int,
        layers: Sequence[Layer],
        waits: Mapping[str, tuple[str, ...]],
        suffix: str,
        scatters: bool,
    ) -> None:
        """Add the backward of all layers, and the scatter of each unit once it is ready."""
        unit_of = {layer.name: unit for unit in self.units for layer in unit.layers}
        missing = {unit.name: len(unit.layers) for unit in self.units}
        ready: dict[str, list[str]] = {unit.name: [] for unit in self.units}
        done: list[str] = []
        for layer in layers:
            after = waits[layer.name]
            if scatters and self.buffers is not None and len(done) > self.buffers:
                # What is unfinished is at most the scatters after this one.
                after = (*after, done[-1 - self.buffers])
            backward = backward_of(layer, movable=self.movable, after=after, suffix=suffix)
            self.tasks += backward.tasks
            if layer.name not in unit_of:
                continue
            unit = unit_of[layer.name]
            missing[unit.name] -= 1
            ready[unit.name].append(backward.gradients)
            if missing[unit.name] or not scatters:
                continue
            name = f"scatter {unit.name}{suffix}"
            dtype = self.reduce_dtype or unit.dtype
            self.tasks.append(
                Collective(
                    name,
                    unit.scattered_bytes(self.reduce_dtype),
                    "reduce_scatter",
                    self.lanes.scatters[number],
                    dtype,
                    tuple(ready[unit.name]),
                    hold=Hold(GRADIENTS, "ready"),
                )
            )
            done.append(name)
            if self.shard_ranks is not None:
                size = -(-unit.scattered_bytes(self.reduce_dtype) // self.shard_ranks)
                reduces = self.lanes.reduces[number]
                name_across = f"reduce {unit.name}{suffix}"
                self.tasks.append(
                    Collective(name_across, size, "allreduce", reduces, dtype, (name,))
                )
        if scatters:
            self.scattered.append([f"scatter {unit.name}{suffix}" for unit in self.units])
            if self.shard_ranks is not None:
                self.reduced.append([f"reduce {unit.name}{suffix}" for unit in self.units])

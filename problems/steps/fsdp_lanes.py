"""The communicators of a sharded step: groups, costs and channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commsched.models import CostCurve, Kind
from commsched.models.errors import InputError
from commsched.problems.steps.layers import check_text


@dataclass(frozen=True)
class Lanes:
    """The groups of the collectives, what they cost and which channels they share.

    Attributes
    ----------
    gathers, scatters, reduces
        The groups of the gathers, the scatters and the all-reduces across replicas, one for each
        micro-batch; no ``reduces`` without replicas.
    costs, channels
        As a problem takes them.
    """

    gathers: tuple[str, ...]
    scatters: tuple[str, ...]
    reduces: tuple[str, ...]
    costs: Mapping[tuple[str, Kind], CostCurve]
    channels: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(
        cls,
        costs: Mapping[Kind, CostCurve],
        group: str,
        communicators: int,
        one_nic: bool,
        micro_batches: int,
        replicas: str | None,
    ) -> Lanes:
        """Return the groups for the options of a step.

        Parameters
        ----------
        costs, group, communicators, one_nic, micro_batches
            As for :func:`~commsched.problems.steps.fsdp_step.fsdp_step`.
        replicas
            The group of the replicas; None without.

        Raises
        ------
        InputError
            If an option is out of range or a cost is missing or not used.
        """
        check_text(group, "group")
        if replicas is not None:
            check_text(replicas, "replicate_group")
        if communicators not in (1, 2) or isinstance(communicators, bool):
            raise InputError(f"communicators: {communicators!r:.60} must be 1 or 2")
        if one_nic and communicators == 1:
            raise InputError("one_nic: there is only one communicator")
        needed: tuple[Kind, ...] = ("all_gather", "reduce_scatter")
        if replicas is not None:
            needed = (*needed, "allreduce")
        for kind in costs if isinstance(costs, Mapping) else ():
            if kind not in needed:
                more = "" if replicas else " (an allreduce needs hybrid_shard)"
                raise InputError(f"costs: {kind!r:.60} is none of {', '.join(needed)}{more}")
        curves: dict[Kind, CostCurve] = {}
        for kind in needed:
            curve = costs.get(kind) if isinstance(costs, Mapping) else None
            if not isinstance(curve, CostCurve):
                raise InputError(f"costs: a cost curve for {kind} is missing")
            curves[kind] = curve
        first, second = (
            (group, group) if communicators == 1 else (f"{group} gather", f"{group} scatter")
        )

        def of_micro_batches(name: str) -> tuple[str, ...]:
            # A group for each micro-batch, on one channel: nothing fuses across micro-batches.
            if micro_batches == 1:
                return (name,)
            return tuple(f"{name} {number}" for number in range(1, micro_batches + 1))

        gathers, scatters = of_micro_batches(first), of_micro_batches(second)
        reduces = of_micro_batches(replicas) if replicas is not None else ()
        prices: dict[tuple[str, Kind], CostCurve] = {
            **{(name, "all_gather"): curves["all_gather"] for name in gathers},
            **{(name, "reduce_scatter"): curves["reduce_scatter"] for name in scatters},
            **{(name, "allreduce"): curves["allreduce"] for name in reduces},
        }
        if one_nic:
            channels = {f"{group} nic": (*gathers, *scatters)}
        else:
            channels = {first: gathers, second: scatters}
        if replicas is not None:
            channels[replicas] = reduces
        return cls(gathers, scatters, reduces, prices, channels)

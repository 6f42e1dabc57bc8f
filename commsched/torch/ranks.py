"""What each rank measured, and how all ranks get to know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

from commsched.models.errors import InputError
from commsched.torch.buckets import DdpLog
from commsched.torch.hooks import GradientMeta, StepTimes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What one rank measured.

    Attributes
    ----------
    names
        The trainable parameters, in the order of the model.
    metas
        What the gradient of each is; of those that got none, what the parameter is.
    devices
        The devices' names, and for each parameter the number of its device among them.
    steps
        The steps' times.
    ddp
        DDP's log; None without DDP.
    """

    names: tuple[str, ...]
    metas: tuple[GradientMeta, ...]
    devices: tuple[tuple[str, ...], tuple[int, ...]]
    steps: tuple[StepTimes, ...]
    ddp: DdpLog | None


def world_size(group: dist.ProcessGroup | None) -> int | None:
    """Return how many ranks a group has; None if nothing is distributed.

    Raises
    ------
    InputError
        If this rank is not in the group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    if dist.get_rank(group) < 0:
        raise InputError("group: this rank is not in the process group")
    return int(dist.get_world_size(group))


def gathered(mine: T, group: dist.ProcessGroup | None) -> list[T]:
    """Return what every rank of the group has, in the order of ranks; on every rank the same."""
    size = world_size(group)
    if size is None:
        return [mine]
    everything: list[T | None] = [None] * size
    dist.all_gather_object(everything, mine, group=group)
    return [one for one in everything if one is not None]


def check_same_model(records: list[RankRecord]) -> None:
    """Check that all ranks have the same parameters.

    Raises
    ------
    InputError
        If they do not; the message names the first difference.
    """
    first = records[0]
    for rank, record in enumerate(records[1:], start=1):
        if len(record.steps) != len(first.steps):
            raise InputError(
                f"steps: rank {rank} ran {len(record.steps)}, rank 0 ran {len(first.steps)}"
            )
        if len(record.names) != len(first.names):
            raise InputError(
                f"model: rank {rank} has {len(record.names)} trainable parameters, "
                f"rank 0 has {len(first.names)}"
            )
        for k, name in enumerate(first.names):
            one, other = first.metas[k], record.metas[k]
            if (name, one.bytes, one.dtype, first.devices[1][k]) != (
                record.names[k],
                other.bytes,
                other.dtype,
                record.devices[1][k],
            ):
                raise InputError(
                    f"model: parameter {k} is {name!r} ({one.bytes} bytes, {one.dtype}) on rank 0 "
                    f"and {record.names[k]!r} ({other.bytes} bytes, {other.dtype}) on rank {rank}"
                )

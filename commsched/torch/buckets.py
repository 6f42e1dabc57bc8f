"""The buckets that a DistributedDataParallel module really forms, from its own log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commsched.torch.hooks import dtype_text, trainable_parameters


class DdpBucket(NamedTuple):
    """A bucket.

    Attributes
    ----------
    names
        Its parameters, in DDP's order.
    bytes
        Its size as DDP states it.
    dtype
        Its elements' type.
    """

    names: tuple[str, ...]
    bytes: int
    dtype: str


class DdpLog(NamedTuple):
    """What DDP says about itself.

    Attributes
    ----------
    buckets
        In the order in which they are launched; empty where ``unknown`` says why.
    rebuilt
        Whether they follow the order in which gradients became ready.
    hook
        The name of a communication hook, empty without one.
    unknown
        Why the buckets are not known, empty if they are.
    """

    buckets: tuple[DdpBucket, ...]
    rebuilt: bool
    hook: str
    unknown: str


def logging_data(model: DistributedDataParallel) -> dict[str, object]:
    """Return DDP's log as of now.

    DDP writes it at the start of a step, so what it holds is one step old: after the second step
    it does not know yet that buckets have been rebuilt. It is therefore told to write it again.
    """
    model.logger.set_runtime_stats_and_log()
    return dict(model._get_ddp_logging_data())  # noqa: SLF001  (there is no public way)


def synced_steps(model: DistributedDataParallel) -> int:
    """Return how many steps with communication DDP has logged; it samples, but counts to ten."""
    return int(str(logging_data(model).get("iteration", 0)))


def read_ddp_log(model: DistributedDataParallel) -> DdpLog:
    """Return the buckets that a module forms now.

    The log names their members once DDP has rebuilt them, after its first step. Where DDP never
    does that (``find_unused_parameters``) its own function of the first step is asked, and what
    comes out must have the sizes that the log states.

    Parameters
    ----------
    model
        The module, after at least one step.
    """
    data = logging_data(model)
    tensors = reduced_parameters(model)
    named = {id(tensor): name for name, tensor in trainable_parameters(model).items()}
    names = [named[id(tensor)] for tensor in tensors]
    rebuilt = bool(data.get("has_rebuilt_buckets"))
    sizes = _numbers(data.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes"))
    unknown = ""
    members: Sequence[Sequence[int]] = []
    if getattr(model, "_use_python_reducer", False):
        unknown = "torch.compile's Python reducer does not log its buckets"
    elif data.get("num_parameter_tensors") != len(tensors):
        unknown = "DDP was made when other parameters required gradients"
    elif rebuilt:
        text = str(data.get("rebuilt_per_bucket_param_indices", ""))
        members = [_numbers(bucket, None) for bucket in text.split(",")]
    else:
        members = _first_buckets(model, tensors, sizes)
    if not unknown and (
        len(members) != len(sizes)
        or sorted(k for bucket in members for k in bucket) != list(range(len(tensors)))
    ):
        unknown = "DDP's log does not name the members of its buckets"
    if unknown:
        members, sizes = [], []
    return DdpLog(
        tuple(
            DdpBucket(
                tuple(names[k] for k in bucket),
                size,
                dtype_text(tensors[bucket[0]].dtype) if bucket else "float32",
            )
            for bucket, size in zip(members, sizes, strict=True)
        ),
        rebuilt,
        str(data.get("comm_hook", "")),
        unknown,
    )


def _numbers(text: object, separator: str | None = ",") -> list[int]:
    return [int(part) for part in str(text or "").split(separator) if part.strip()]


def reduced_parameters(model: DistributedDataParallel) -> list[torch.nn.Parameter]:
    """Return the parameters whose gradients a module reduces, in the order of its numbers."""
    found: dict[int, torch.nn.Parameter] = {}
    for prefix, module in model.module.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            # DDP looks the top module's names up with a leading dot, too.
            if parameter.requires_grad and f"{prefix}.{name}" not in model.parameters_to_ignore:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _first_buckets(
    model: DistributedDataParallel, tensors: Sequence[torch.nn.Parameter], sizes: Sequence[int]
) -> list[list[int]]:
    """Return the first step's buckets: the ones, of DDP's possible caps, that have its sizes."""
    sparse_weights = {
        id(module.weight)
        for module in model.module.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
    sparse = [id(tensor) in sparse_weights for tensor in tensors]
    cap = model.bucket_bytes_cap
    caps_list = list(getattr(model, "bucket_bytes_cap_list", ()))
    first = min(cap, dist._DEFAULT_FIRST_BUCKET_BYTES)  # noqa: SLF001
    for caps in (caps_list, [sys.maxsize], [first, cap], [cap]):
        if not caps:
            continue
        found, _ = dist._compute_bucket_assignment_by_size(list(tensors), caps, sparse)  # noqa: SLF001
        buckets = [list(bucket) for bucket in reversed(found)]
        if [_bytes(tensors, bucket) for bucket in buckets] == list(sizes):
            return buckets
    return []


def _bytes(tensors: Sequence[torch.Tensor], bucket: Sequence[int]) -> int:
    return sum(tensors[k].numel() * tensors[k].element_size() for k in bucket)

"""A plan in a real run: DDP's arguments, and whether DDP formed the planned buckets."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from commsched.export import ddp_settings
from commsched.export.ddp import LAST_CAP, MIN_TORCH
from commsched.models import Plan, Problem
from commsched.models.coverage import fit
from commsched.models.dtypes import ITEM_BYTES
from commsched.models.errors import InputError, PlanError
from commsched.models.units import MIB, check_bytes
from commsched.problems import plan_of, problem_digest, read_plan
from commsched.torch.buckets import DdpBucket, read_ddp_log
from commsched.torch.ranks import gathered


class Solved(Protocol):
    """A plan that brings its problem: what ``optimize`` and ``tune`` return."""

    @property
    def plan(self) -> Plan | None:
        """The plan, if there is one."""

    @property
    def problem(self) -> Problem:
        """What it was made for."""


Planned = Solved | Plan | str | Path
"""A result, a plan with its problem, or a plan file."""


class FormedBuckets(NamedTuple):
    """The buckets that DDP formed, which are those of the plan on every rank.

    Attributes
    ----------
    buckets
        In launch order.
    ranks
        How many ranks have them.
    """

    buckets: tuple[DdpBucket, ...]
    ranks: int


def ddp_kwargs(plan: Planned, problem: Problem | None = None) -> dict[str, Any]:
    """Return the arguments with which ``DistributedDataParallel`` forms a plan's buckets.

    That is ``bucket_cap_mb_list`` with one cap a bucket. After a few steps :func:`check` says
    whether the buckets did come out.

    Parameters
    ----------
    plan
        A result of ``optimize`` or ``tune``, a plan, or the path of a plan file.
    problem
        The plan's problem; a result brings its own, and a plan file needs none. With it DDP's
        rule is run on the caps, and what DDP would not form is refused.

    Raises
    ------
    InputError
        If there is no plan, no problem for it, a file is not valid or of another problem, this
        torch is older than 2.11, or ``DDP_SET_LAST_BUCKET_CAP`` would turn the caps round.
    NotApplicableError
        If DDP cannot form the buckets; ``commsched export --to ddp`` says what comes next.

    Examples
    --------
    >>> import commsched
    >>> problem = commsched.gradient_problem(
    ...     [commsched.Gradient("b", 2**21, ready_ns=10), commsched.Gradient("a", 2**19, 10**6)],
    ...     commsched.AlphaBeta(alpha_us=3, bandwidth_gb_s=10))
    >>> ddp_kwargs(commsched.optimize(problem))
    {'bucket_cap_mb_list': [2.0, 0.5]}
    """
    _check_torch()
    launches, planned, known = _launches(plan, problem)
    if known is not None:
        return {"bucket_cap_mb_list": list(ddp_settings(known, planned).bucket_cap_mb_list)}
    if len({launch.dtype for launch in launches}) > 1:
        raise InputError(
            f"{plan}: its buckets are of several dtypes, which a list of caps cannot express"
        )
    for number, launch in enumerate(launches):
        if not launch.bytes:
            raise InputError(f"{plan}: buckets[{number}] has no bytes, which no cap closes")
    return {"bucket_cap_mb_list": [launch.bytes / MIB for launch in launches]}


def check(
    model: DistributedDataParallel, plan: Planned, problem: Problem | None = None
) -> FormedBuckets:
    """Check that DDP has formed a plan's buckets; every rank must make this call.

    Call it after two or three steps: DDP forms its final buckets in the second step (with
    ``static_graph`` in the third). Members are compared by their parameters' names, sizes to the
    byte. Either no rank raises, or all raise the same error.

    Parameters
    ----------
    model
        The model in DDP.
    plan, problem
        As for :func:`ddp_kwargs`. Gradients must have the names of the model's parameters, as
        after :func:`~commsched.torch.capture`.

    Raises
    ------
    PlanError
        If a rank has other buckets, or has not rebuilt them yet; the message names the rank and
        the first difference.
    InputError
        If the model is not in DDP, or as for :func:`ddp_kwargs`.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InputError(f"model: {type(model).__name__} is no DistributedDataParallel")
    buckets: tuple[DdpBucket, ...] = ()
    try:
        launches, _, _ = _launches(plan, problem)
        log = read_ddp_log(model)
        buckets = log.buckets
        said = log.unknown or _first_difference(launches, buckets, log.rebuilt)
    except InputError as error:  # The other ranks wait for what this one has to say.
        said = str(error)
    everybody = gathered((said, buckets), model.process_group)
    for rank, (words, theirs) in enumerate(everybody):
        if words:
            raise PlanError(f"rank {rank}: {words}")
        if theirs != everybody[0][1]:
            raise PlanError(f"rank {rank}: its plan is another one than that of rank 0")
    return FormedBuckets(buckets, len(everybody))


def _check_torch() -> None:
    if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
        raise InputError(
            f"torch {torch.__version__} has no bucket_cap_mb_list, it came with {MIN_TORCH}: "
            f"pip install 'torch>={MIN_TORCH}'"
        )
    if os.environ.get(LAST_CAP, "0") not in ("", "0"):
        raise InputError(
            f"{LAST_CAP}={os.environ[LAST_CAP]:.20}: DDP then counts its caps from the last "
            "gradient on; unset it"
        )


def _launches(
    plan: Planned, problem: Problem | None
) -> tuple[list[DdpBucket], Plan, Problem | None]:
    """Return the planned buckets in launch order, the plan, and its problem if it is known."""
    if isinstance(plan, str | Path):
        return _of_file(plan, problem)
    if not isinstance(plan, Plan):
        own = getattr(plan, "problem", None)
        if not isinstance(own, Problem):
            raise InputError(
                f"plan: {type(plan).__name__} is no result, plan or path of a plan file"
            )
        if plan.plan is None:
            raise InputError("plan: the result has none")
        plan, problem = plan.plan, own
    if problem is None:
        raise InputError("problem: it is missing; a plan by itself does not know any sizes")
    return _of_problem(plan, problem), plan, problem


def _of_problem(plan: Plan, problem: Problem) -> list[DdpBucket]:
    members = fit(problem, plan)
    return [
        DdpBucket(bucket.names, size, problem.keys[positions[0]].dtype)
        for bucket, positions, size in zip(
            plan.buckets, members.positions, members.sizes, strict=True
        )
    ]


def _of_file(
    path: str | Path, problem: Problem | None
) -> tuple[list[DdpBucket], Plan, Problem | None]:
    file = read_plan(path)
    plan = plan_of(file, path)
    if problem is not None:
        if file.problem_digest != problem_digest(problem):
            raise InputError(f"{path}: it is a plan of another problem: {file.problem_digest:.30}")
        return _of_problem(plan, problem), plan, problem
    if file.scope != "in-order":
        raise InputError(f"{path}: it is of scope {file.scope}; give its problem as well")
    launches = []
    for number, row in enumerate(file.buckets):
        what = f"{path}: buckets[{number}]"
        for field in ("kind", "dtype", "bytes"):
            if not isinstance(getattr(row, field), str | int):
                raise InputError(f"{what}: {field} is missing; give the problem as well")
        if row.kind != "allreduce" or row.dtype not in ITEM_BYTES or plan.buckets[number].chunks:
            raise InputError(
                f"{what}: DDP all-reduces whole gradients, not {row.kind!r:.40} of {row.dtype!r:.40}"
            )
        if plan.buckets[number].not_before_ns:
            raise InputError(f"{what}: DDP launches a bucket as soon as it is ready")
        size = check_bytes(row.bytes, f"{what}: bytes")
        launches.append(DdpBucket(tuple(row.names), size, str(row.dtype)))
    return launches, plan, None


def _first_difference(
    planned: Sequence[DdpBucket], formed: Sequence[DdpBucket], rebuilt: bool
) -> str:
    """Return in a sentence what is the first difference; empty if there is none."""
    if not rebuilt:
        return (
            "DDP has not rebuilt its buckets yet: it does so in the second step (third with "
            "static_graph), and never with find_unused_parameters"
        )
    if _as_sets(planned) == _as_sets(formed):
        for number, (want, have) in enumerate(zip(planned, formed, strict=True)):
            if set(want.names) != set(have.names):
                return (
                    f"launch {number + 1} of {len(formed)}: DDP launches the bucket of "
                    f"{have.names[0]!r:.100}, the plan that of {want.names[0]!r:.100}; the buckets "
                    "themselves are as planned"
                )
    for number, (want, have) in enumerate(zip(planned, formed, strict=False)):
        missing = [name for name in want.names if name not in set(have.names)]
        extra = [name for name in have.names if name not in set(want.names)]
        where = f"bucket {number + 1} of {len(formed)}"
        if missing:
            return f"{where}: DDP left {missing[0]!r:.100} out, which the plan has there"
        if extra:
            return f"{where}: DDP put {extra[0]!r:.100} in, which the plan has elsewhere"
        if want.bytes != have.bytes:
            return f"{where}: it has {have.bytes} bytes, {want.bytes} are planned"
        if want.dtype != have.dtype:
            return f"{where}: it is of {have.dtype}, {want.dtype} is planned"
    if len(planned) != len(formed):
        return f"DDP formed {len(formed)} buckets, {len(planned)} are planned"
    return ""


def _as_sets(buckets: Sequence[DdpBucket]) -> Counter[frozenset[str]]:
    return Counter(frozenset(bucket.names) for bucket in buckets)

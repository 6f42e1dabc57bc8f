"""PyTorch DDP: a plan as ``bucket_cap_mb_list``."""

from __future__ import annotations

from dataclasses import dataclass

from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.units import MIB
from commsched.optimizer import ddp

MIN_TORCH = "2.11"
"""The first torch with ``bucket_cap_mb_list``."""


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """What to pass to ``torch.nn.parallel.DistributedDataParallel``.

    Attributes
    ----------
    bucket_cap_mb_list
        One cap a bucket, in MiB. torch multiplies by 2**20 and rounds down, and bytes over 2**20
        are exact in a float, so every cap arrives to the byte.
    """

    bucket_cap_mb_list: tuple[float, ...]

    @property
    def line(self) -> str:
        """The line to paste."""
        caps = ", ".join(
            str(int(cap)) if cap == int(cap) else repr(cap) for cap in self.bucket_cap_mb_list
        )
        return f"DistributedDataParallel(model, bucket_cap_mb_list=[{caps}])"


def ddp_settings(problem: Problem, plan: Plan) -> DdpSettings:
    """Return the caps with which DDP's rule forms exactly the buckets of a plan.

    The rule is run on the caps and the buckets are compared, so what is returned does come out,
    as long as DDP sees the gradients become ready in the same order.

    Raises
    ------
    NotApplicableError
        If DDP cannot run the plan: several dtypes, other collectives, buckets that are not
        contiguous in ready order or not launched in it.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 2**20, 10), Gradient("a", 2**19, 20)], AlphaBeta(3, 1))
    >>> ddp_settings(problem, Plan.of([["b"], ["a"]])).line
    'DistributedDataParallel(model, bucket_cap_mb_list=[1, 0.5])'
    """
    if len(problem.chains) > 1:
        raise NotApplicableError(
            "DDP walks through the caps once for each dtype and group, "
            "so a list cannot express this plan"
        )
    size = dict(zip(problem.names, problem.bytes, strict=True))
    caps = [sum(size[name] for name in bucket.names) for bucket in plan.buckets]
    formed = ddp(problem, caps)
    if formed != plan:
        raise NotApplicableError(
            "DDP only forms buckets that are contiguous in ready order, "
            "are launched in that order and hold at least one byte each"
        )
    return DdpSettings(tuple(cap / MIB for cap in caps))

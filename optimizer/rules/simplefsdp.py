"""SimpleFSDP's one-pass greedy bucketing, on a step that only reduces gradients."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby

from commsched.models import Plan, Problem
from commsched.models.errors import NotApplicableError
from commsched.models.step import FusionKey
from commsched.models.units import Number, exact_at_least_zero
from commsched.optimizer.rules.order import in_launch_order

COMPUTE_AHEAD = 5
CALIBRATED_SHARE = 0.2


class _Reductions:
    """The open bucket: gradients of several fusion keys that are sent together, a launch a key."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._members: dict[FusionKey, list[int]] = {}
        self._bytes: dict[FusionKey, int] = {}
        self.closed: list[Sequence[int]] = []

    def add(self, k: int) -> None:
        """Add a gradient."""
        key = self._problem.keys[k]
        self._members.setdefault(key, []).append(k)
        self._bytes[key] = self._bytes.get(key, 0) + self._problem.bytes[k]

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def bytes(self) -> int:
        """All members' bytes."""
        return sum(self._bytes.values())

    @property
    def ns(self) -> Fraction:
        """The time of the launches, one after another."""
        times = (self._problem.cost(key).exact_ns(size) for key, size in self._bytes.items())
        return sum(times, Fraction(0))

    def close(self) -> Fraction:
        """Close the bucket and return its time."""
        time = self.ns
        self.closed += self._members.values()
        self._members, self._bytes = {}, {}
        return time


def simple_fsdp(
    problem: Problem,
    *,
    relax_ratio: Number = 0,
    compute_ahead: Number = COMPUTE_AHEAD,
    calibrated_share: Number = CALIBRATED_SHARE,
) -> Plan:
    """Return the buckets of SimpleFSDP's greedy pass if gathering parameters took no time.

    The pass goes once over the backward graph. A reduction joins the open bucket, and the bucket
    closes

    * after adding, if the compute that is still to come is less than ``compute_ahead`` times the
      bucket's time: the rest of compute shall hide it;
    * before a layer's compute, where the pass looks at the layer's all-gather: if the compute of the
      current step times ``1 + relax_ratio`` is less than the all-gather plus the reductions closed
      last, or if the open bucket is larger than what was calibrated, a fifth of all bytes. Then
      the compute since the previous such close becomes the current step.

    Left out, because the problem has none of it: the all-gathers (their time and size count as 0; a
    layer is the gradients of one ready time, and its compute the time since the one before) and the
    memory criterion. With all-gathers the pass closes earlier. The calibrated size is counted in
    bytes, there in elements of a shard rounded to hundreds; it is never below the smallest
    gradient. A bucket holds all fusion keys and becomes one launch for each.

    Source: meta-pytorch/autoparallel, graph_passes/autobucketing_inductor/bucket_plan.py,
    ``get_simplefsdp_auto_plan`` (relax_ratio 0, factor 5) and estimation_utils.py (0.2).

    Parameters
    ----------
    problem
        A step of all-reduces or reduce-scatters in which no compute waits for communication.
    relax_ratio
        How much longer than the compute the communication may be.
    compute_ahead
        How many times the bucket's time the remaining compute must be.
    calibrated_share
        Share of a fusion key's bytes up to which times were measured.

    Raises
    ------
    NotApplicableError
        If there are other collectives, or something waits for a collective.
    InputError
        If an option is no number of at least 0.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 10, ready_ns=100 * (k + 1)) for k in range(6)]
    >>> problem = GradientProblem(gradients, AlphaBeta(alpha_us=0.015, bandwidth_gb_s=1))
    >>> [b.names for b in simple_fsdp(problem).buckets]  # 20 > 60 / 5; after g4 100 < 5 * 25
    [('g0', 'g1'), ('g2', 'g3'), ('g4',), ('g5',)]
    """
    others = sorted({key.kind for key in problem.chains} - {"allreduce", "reduce_scatter"})
    if others:
        raise NotApplicableError(
            f"SimpleFSDP's rule is kept for reductions; the step has {', '.join(others)}"
        )
    if not problem.settled:
        raise NotApplicableError("SimpleFSDP's rule: part of the step waits for communication")
    relax = 1 + exact_at_least_zero(relax_ratio, "relax_ratio")
    ahead = exact_at_least_zero(compute_ahead, "compute_ahead")
    share = exact_at_least_zero(calibrated_share, "calibrated_share")
    limit = max(_calibrated(problem, chain, share) for chain in problem.chains.values())
    bucket = _Reductions(problem)
    last_ns, last_bytes = Fraction(0), 0
    step_ns, next_step_ns, now = 0, 0, 0
    for ready, layer in groupby(problem.ready_order, key=problem.ready_ns.__getitem__):
        if step_ns * relax < last_ns or limit < last_bytes:
            if bucket:
                last_ns = bucket.close()
            step_ns, next_step_ns = next_step_ns, 0
        next_step_ns += ready - now
        now = ready
        for k in layer:
            bucket.add(k)
            last_bytes = bucket.bytes
            if problem.compute_ns - ready < ahead * bucket.ns:
                last_ns = bucket.close()
    bucket.close()
    return in_launch_order(problem, bucket.closed)


def _calibrated(problem: Problem, chain: Sequence[int], share: Fraction) -> Fraction:
    sizes = [problem.bytes[k] for k in chain]
    return max(share * sum(sizes), Fraction(min(sizes)))

"""Horovod's rule: at each wake of a background loop everything that is ready is fused and launched.

Source: horovod/common/controller.cc (``FuseResponses``, ``ComputeResponseList``) and
horovod/common/operations.cc (``RunLoopOnce``). Defaults: ``HOROVOD_FUSION_THRESHOLD`` = 128 MiB,
``HOROVOD_CYCLE_TIME`` = 1 ms.

The loop is simulated: when it wakes depends on what the launches cost. One loop serves all channels,
and launches run as the evaluator runs them (one at a time on each channel). What is not modelled: the
time that negotiation takes; that ranks are ready at different times; that the threshold is rounded up
to a multiple of 512 bytes times the ranks of a node (128 MiB is one for 1, 2, 4, 8, ... ranks); that
CUDA builds count each tensor as a multiple of 16 bytes; that the response cache, on by default, lists
what is ready at one wake in the order in which it was last launched, here in ready order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from commsched.models import Bucket, Plan, Problem
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.knob import Setting
from commsched.models.units import MIB, NS_PER_MS, check_ns
from commsched.optimizer.rules.common import kinds_only
from commsched.optimizer.rules.fusing import fuse_responses, fused_rows
from commsched.optimizer.rules.rows import Cut, Rows, Sketch, Sketcher

THRESHOLD_BYTES = 128 * MIB
CYCLE_NS = NS_PER_MS


def horovod(
    problem: Problem,
    threshold: Setting = THRESHOLD_BYTES,
    *,
    cycle_ns: int = CYCLE_NS,
    waits: bool = True,
) -> Plan:
    """Return what Horovod runs.

    A background loop wakes at 0 and then one cycle after its last wake, or when the launches that it
    made have ended if that is later. Each time it takes what has become ready since, in ready order,
    and launches it as :func:`~commsched.optimizer.rules.fusing.fuse_responses` says, one launch after
    the other. So all that becomes ready while a long launch runs is fused. Every bucket carries the
    wake at which it was launched in ``not_before_ns``.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces and in which nothing waits for them.
    threshold
        ``HOROVOD_FUSION_THRESHOLD`` in bytes.
    cycle_ns
        ``HOROVOD_CYCLE_TIME`` in nanoseconds.
    waits
        Whether the loop waits until the launches have ended. Without it the loop wakes every cycle,
        as where launches are handed over to a GPU stream.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces, or tasks that wait for collectives.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 1000, ready_ns=k * 400_000) for k in range(6)]
    >>> for bucket in horovod(GradientProblem(gradients, AlphaBeta(10, 1))).buckets:
    ...     print(bucket.names, bucket.not_before_ns)
    ('g0',) 0
    ('g1', 'g2') 1000000
    ('g3', 'g4', 'g5') 2000000
    """
    return horovod_sketcher(problem, cycle_ns=cycle_ns, waits=waits)(threshold).plan()


def horovod_sketcher(problem: Problem, *, cycle_ns: int = CYCLE_NS, waits: bool = True) -> Sketcher:
    """Return :func:`horovod` from its knob to buckets."""
    loop = _Loop(problem, cycle_ns, waits)
    rows = Rows(problem, problem.chains.items())
    row_at = [0] * len(problem.names)
    for number, row in enumerate(rows.rows):
        for place in row.places:
            row_at[place] = number

    def sketch(threshold: Setting) -> Sketch:
        sent = [0] * len(rows.rows)
        free: dict[str, int] = {}
        cuts: list[Cut] = []
        at = wake = 0
        while at < len(row_at):
            wake = end = loop.wake_for(rows.ready_at[at], wake)
            until = bisect_right(rows.ready_at, wake, at)
            for number, last in fused_rows(rows.rows, row_at, (at, until), sent, threshold):
                row, begin = rows.rows[number], sent[number]
                sent[number] = last
                start = max(wake, free.get(row.channel, 0))
                size = row.totals[last] - row.totals[begin]
                free[row.channel] = start + row.ns(size)
                end = max(end, free[row.channel])
                cuts.append(Cut(number, begin, last, wake))
            at = until
            wake = max(wake + loop.cycle_ns, end if waits else 0)
        return Sketch(rows, cuts)

    return sketch


def horovod_groups(
    problem: Problem,
    groups: Sequence[Sequence[str]],
    *,
    fuse: bool = False,
    threshold: Setting = THRESHOLD_BYTES,
    cycle_ns: int = CYCLE_NS,
    waits: bool = True,
) -> Plan:
    """Return what Horovod runs with ``DistributedOptimizer(..., groups=[[...], ...])``.

    A group is held back until all its members are ready; a parameter that is in no group is a group
    of its own. Also with ``HOROVOD_DISABLE_GROUP_FUSION=1`` a group that is larger than the threshold
    is cut by it, and one of several dtypes by dtype.

    Source: horovod/torch/optimizer.py (``groups``), horovod/common/controller.cc.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces and in which nothing waits for them.
    groups
        Lists of names.
    fuse
        Whether groups that are ready at the same wake are fused with each other up to the threshold,
        as they are unless ``HOROVOD_DISABLE_GROUP_FUSION=1``.
    threshold, cycle_ns, waits
        As for :func:`horovod`.

    Raises
    ------
    InputError
        If a name is unknown or listed twice.
    NotApplicableError
        As for :func:`horovod`.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient(f"g{k}", 9, k) for k in range(4)], AlphaBeta(10, 1))
    >>> plan = horovod_groups(problem, [["g0", "g2"], ["g1"]])
    >>> [bucket.names for bucket in plan.buckets]
    [('g1',), ('g0', 'g2'), ('g3',)]
    """
    left = dict.fromkeys(problem.names)
    listed: list[list[int]] = []
    for names in groups:
        for name in names:
            if name not in left:
                what = "is in two groups" if name in problem.index else "is no collective"
                raise InputError(f"groups: {name!r:.100} {what}")
            del left[name]
        listed.append([problem.index[name] for name in names])
    listed += [[problem.index[name]] for name in left]
    loop = _Loop(problem, cycle_ns, waits)
    return loop.run([group for group in listed if group], threshold, fuse=fuse)


class _Held(NamedTuple):
    """A group: when it is complete, the place of its last member in ready order, its members."""

    ready_ns: int
    place: int
    positions: list[int]


class _Loop:
    """The background loop."""

    def __init__(self, problem: Problem, cycle_ns: int, waits: bool) -> None:
        kinds_only(problem, "Horovod's rule", ("allreduce",), "all-reduces")
        if not problem.settled:
            raise NotApplicableError(
                "Horovod's rule needs fixed ready times; part of the step waits for communication"
            )
        self.problem = problem
        self.cycle_ns = check_ns(cycle_ns, "cycle_ns")
        self.waits = waits
        self.free: dict[str, int] = {}

    def run(self, groups: Sequence[list[int]], threshold: Setting, *, fuse: bool) -> Plan:
        place = {position: number for number, position in enumerate(self.problem.ready_order)}
        held = deque(
            sorted(
                _Held(
                    max(self.problem.ready_ns[k] for k in group),
                    max(place[k] for k in group),
                    group,
                )
                for group in groups
            )
        )
        buckets: list[Bucket] = []
        wake = 0
        while held:
            wake = self.wake_for(held[0].ready_ns, wake)
            queues: list[list[int]] = []
            while held and held[0].ready_ns <= wake:
                queues.append(held.popleft().positions)
            if fuse:
                queues = [[k for queue in queues for k in queue]]
            end = wake
            for queue in queues:
                for positions in self.fused(queue, threshold):
                    end = max(end, self.launch(positions, wake))
                    names = tuple(self.problem.names[k] for k in positions)
                    buckets.append(Bucket(names, wake))
            wake = max(wake + self.cycle_ns, end if self.waits else 0)
        return Plan(tuple(buckets))

    def wake_for(self, ready_ns: int, wake: int) -> int:
        """Return the first wake at or after a time, if the loop would wake at ``wake`` next."""
        if ready_ns <= wake:
            return wake
        if self.cycle_ns == 0:
            return ready_ns
        return wake - (wake - ready_ns) // self.cycle_ns * self.cycle_ns

    def fused(self, queue: list[int], threshold: Setting) -> list[list[int]]:
        sizes = [self.problem.bytes[k] for k in queue]
        keys = [self.problem.keys[k] for k in queue]
        launches = fuse_responses(sizes, keys, threshold)
        return [[queue[index] for index in launch] for launch in launches]

    def launch(self, positions: list[int], wake: int) -> int:
        """Return when a launch ends."""
        key = self.problem.keys[positions[0]]
        channel = self.problem.channel(key)
        size = sum(self.problem.bytes[k] for k in positions)
        start = max(wake, self.free.get(channel, 0))
        self.free[channel] = start + self.problem.cost(key).ns(size)
        return self.free[channel]

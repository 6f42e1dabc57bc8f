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

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from commsched.models import Bucket, Plan, Problem
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.knob import Setting
from commsched.models.units import MIB, NS_PER_MS, check_ns
from commsched.optimizer.rules.common import allreduce_only

THRESHOLD_BYTES = 128 * MIB
CYCLE_NS = NS_PER_MS


def fuse_responses(
    sizes: Sequence[int], keys: Sequence[Hashable], threshold: Setting
) -> list[list[int]]:
    """Return how ``Controller::FuseResponses`` fuses a queue of tensors.

    The front is taken out; what follows is fused into it as long as keys are equal and the sum is at
    most the threshold, which is a true maximum (a larger tensor is sent by itself). Others are skipped
    while the bytes so far and all bytes skipped are at most the threshold together; the skipped ones
    go back to the front.

    Parameters
    ----------
    sizes
        Bytes of each tensor, in the order of the queue.
    keys
        What tensors must have in common to be fused, one a tensor.
    threshold
        The fusion threshold in bytes.

    Returns
    -------
    list of list of int
        Indices of the tensors of each launch, in launch order.

    Examples
    --------
    >>> fuse_responses([4, 3, 5, 1], ["f4", "f2", "f4", "f4"], 10)
    [[0, 2, 3], [1]]
    >>> fuse_responses([4, 7, 5, 1], ["f4", "f2", "f4", "f4"], 10)
    [[0], [1], [2, 3]]
    """
    queue = deque(range(len(sizes)))
    launches: list[list[int]] = []
    while queue:
        front = queue.popleft()
        launch, size = [front], sizes[front]
        skipped: list[int] = []
        skipped_size = 0
        while queue:
            following = queue[0]
            if keys[following] == keys[front] and size + sizes[following] <= threshold:
                launch.append(following)
                size += sizes[following]
            else:
                skipped_size += sizes[following]
                if not size + skipped_size <= threshold:
                    break
                skipped.append(following)
            queue.popleft()
        queue.extendleft(reversed(skipped))
        launches.append(launch)
    return launches


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
    and launches it as :func:`fuse_responses` says, one launch after the other. So all that becomes
    ready while a long launch runs is fused. Every bucket carries the wake at which it was launched in
    ``not_before_ns``.

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
    groups = [[position] for position in problem.ready_order]
    return _Loop(problem, cycle_ns, waits).run(groups, threshold, fuse=True)


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
        allreduce_only(problem, "Horovod's rule")
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

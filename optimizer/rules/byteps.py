"""BytePS's rule: pieces of a fixed size, in ready order or, with scheduling on, by priority."""

from __future__ import annotations

from commsched.models import Chunk, Plan, Problem
from commsched.models.knob import Setting
from commsched.models.units import check_bytes
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.priority import (
    Part,
    Scheduler,
    at_least_one,
    beside_others,
    counted,
    cut_ends,
    layer_numbers,
    plain,
    run,
)

PARTITION_BYTES = 4_096_000
PAGE_BYTES = 4096


def byteps(
    problem: Problem,
    partition_bytes: Setting = PARTITION_BYTES,
    *,
    credit: int = 0,
    local_size: int = 1,
    page_bytes: int = PAGE_BYTES,
) -> Plan:
    """Return what BytePS (OSDI 2020) sends, one piece a launch.

    A tensor is cut into pieces of exactly the partition and a rest. With scheduling off, the default,
    pieces are sent in ready order. With it on, the queue goes by priority, then by key, which is by
    layer, then by piece; a piece goes if its bytes are at most the credit that is left, and one that
    does not fit is passed over. What was committed is sent in that order.

    Source: byteps/common/scheduled_queue.cc, operations.cc (``PartitionTensor``) and global.cc in
    bytedance/byteps; defaults ``BYTEPS_PARTITION_BYTES`` = 4096000, rounded up to a whole number of
    pages for each of the machine's GPUs, and ``BYTEPS_SCHEDULING_CREDIT`` = 0: off.

    Limits: the layer's number is taken from reverse ready order, which stands in for forward order
    (backward visits layers in reverse), for a problem has no order of registration. The stages of
    BytePS's pipeline (reduce in the machine, push, pull, broadcast) are one launch here, with the
    problem's cost of an all-reduce. Each channel has a queue and a credit of its own. Not all values of
    the partition can be visited, for the pieces' boundaries move with every value; only a grid is
    possible.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched whole, as soon as they are ready.
    partition_bytes
        The size of a piece in bytes, before it is rounded up; no knob.
    credit
        How many partitions may be in flight; 0: scheduling is off.
    local_size
        GPUs of a machine.
    page_bytes
        Bytes of a page of memory.

    Raises
    ------
    NotApplicableError
        If the partition is a knob, the step has no all-reduce, or would be cut into too many
        pieces.
    InputError
        If a setting is no whole number in its range.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 10000, ready_ns=0), Gradient("a", 500, ready_ns=5)], AlphaBeta(0, 1))
    >>> [(b.names[0], *b.chunks[0]) for b in byteps(problem, 4096).buckets if b.chunks]
    [('b', 0, 4096), ('b', 4096, 8192), ('b', 8192, 10000)]

    With scheduling on, ``a`` goes second and the rest of ``b``, which fits, passes the larger piece.

    >>> [(b.names[0], *b.chunks) for b in byteps(problem, 4096, credit=1).buckets[1:3]]
    [('a',), ('b', Chunk(begin=8192, end=10000))]
    """
    for value, what in ((local_size, "local_size"), (page_bytes, "page_bytes")):
        at_least_one(value, what)
    unit = local_size * page_bytes
    partition = -(-plain(partition_bytes, "partition_bytes") // unit) * unit
    return run(problem, byteps_of(problem, partition, credit)).plan


def byteps_of(problem: Problem, partition: int, credit: int) -> Scheduler:
    """Return BytePS's decisions for :func:`run`; the partition in bytes, already rounded up."""
    reductions(problem, "BytePS")
    credit = check_bytes(credit, "credit")
    reduced = [key.kind == "allreduce" for key in problem.keys]
    counted((size for size, mine in zip(problem.bytes, reduced, strict=True) if mine), partition)
    parts: list[list[Part]] = []
    for size, mine in zip(problem.bytes, reduced, strict=True):
        if not mine:
            parts.append([])
            continue
        ends = cut_ends(size, partition)
        begins = [0, *ends[:-1]]
        parts.append(
            [Part(Chunk(begin, end), end - begin) for begin, end in zip(begins, ends, strict=True)]
        )
    if credit:
        layers = layer_numbers(problem)
        scheduler = Scheduler(
            parts,
            lambda _now, position, piece: (layers[position], piece),
            credit=partition * credit,
            fits=True,
        )
    else:
        place = {position: number for number, position in enumerate(problem.ready_order)}
        scheduler = Scheduler(
            parts, lambda now, position, piece: (now, place[position], piece), credit=None
        )
    return beside_others(problem, scheduler)

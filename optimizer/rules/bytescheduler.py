"""ByteScheduler's rule: equal pieces, the layer nearest the input first, a credit window."""

from __future__ import annotations

from collections import Counter

from commsched.models import Plan, Problem
from commsched.models.knob import Setting
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.priority import (
    Played,
    Scheduler,
    at_least_one,
    beside_others,
    counted,
    element_counts,
    layer_numbers,
    of_elements,
    run,
)
from commsched.optimizer.rules.rows import Decide

PARTITION_ELEMENTS = 1_000_000
CREDIT_ELEMENTS = 4_000_000
PRIORITIES_OF_A_LAYER = 1000
"""A layer's pieces have the priorities layer * 1000 + piece; more of them mix with the next layer's."""


def bytescheduler(
    problem: Problem,
    partition_elements: Setting = PARTITION_ELEMENTS,
    *,
    credit_elements: int = CREDIT_ELEMENTS,
) -> Plan:
    """Return what ByteScheduler (SOSP 2019) sends, one piece a launch.

    A tensor larger than the partition is cut into as few equal pieces as keep to it. Of the pieces
    that are ready, the one with the smallest layer * 1000 + piece goes next, as long as any credit is
    left; so one piece may overshoot. It takes its elements out of the credit and gives them back when it
    has been sent. What was committed is sent in that order.

    Source: bytescheduler/bytescheduler/common/bytecore.py and bytetask.py in bytedance/byteps;
    defaults ``BYTESCHEDULER_PARTITION`` = 1000000 and ``BYTESCHEDULER_CREDIT`` = 4000000, both in
    elements (for all-reduce its documentation advises 8000000 and 16000000). By default the published
    code tunes the credit at run time; here it stays. Its tuner for the partition
    (``BYTESCHEDULER_PARTITION_TUNING``) has no effect: it sets ``_partition_unit``, and the splitter
    reads ``_partition``.

    Limits: the layer's number is taken from reverse ready order, which stands in for forward order
    (backward visits layers in reverse), for a problem has no order of registration. The framework cuts
    between rows of a tensor's first dimension, and never into more pieces than rows; a problem knows no
    shapes, so here pieces differ by at most one element. Each channel has a queue and a credit of its
    own. The claim of optimality is for no start-up latency and infinitely small pieces.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched whole, as soon as they are ready.
    partition_elements
        The most elements of a piece.
    credit_elements
        The most elements in flight before the one that overshoots, at least 1.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce, a type of unknown size, or would be cut into too many pieces.
    InputError
        If a setting is no whole number of at least 1.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 40, ready_ns=0), Gradient("a", 8, ready_ns=5)], AlphaBeta(0, 1))
    >>> plan = bytescheduler(problem, 5, credit_elements=1)
    >>> [(b.names[0], b.chunks) for b in plan.buckets]
    [('b', (Chunk(begin=0, end=20),)), ('a', ()), ('b', (Chunk(begin=20, end=40),))]
    """
    return run(problem, bytescheduler_of(problem, partition_elements, credit_elements)).plan


def bytescheduler_of(problem: Problem, partition: Setting, credit: int) -> Scheduler:
    """Return ByteScheduler's decisions for :func:`run`, both settings in elements."""
    reductions(problem, "ByteScheduler")
    at_least_one(partition, "partition_elements")
    at_least_one(credit, "credit_elements")
    totals = element_counts(problem)
    ends = [
        _equal_ends(total, count)
        for total, count in zip(totals, counted(totals, partition), strict=True)
    ]
    layers = layer_numbers(problem)

    def urgency(_now: int, position: int, piece: int) -> tuple[int, ...]:
        layer = layers[position]
        return (layer * PRIORITIES_OF_A_LAYER + piece, layer, piece)

    return beside_others(problem, Scheduler(of_elements(problem, ends), urgency, credit))


def bytescheduler_decides(problem: Problem) -> Decide:
    """Return :func:`bytescheduler` from its partition to launches."""
    return lambda partition: Played(problem, bytescheduler_of(problem, partition, CREDIT_ELEMENTS))


def launches_from(problem: Problem, least: int, most: int) -> int:
    """Return how many launches there are in all plans of partitions from ``least`` on together.

    Parameters
    ----------
    problem
        The step.
    least
        The smallest partition in elements, at least 1.
    most
        Counting stops where there are more.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 40, 0), Gradient("b", 40, 1)], AlphaBeta(0, 1))
    >>> launches_from(problem, 4, 100)  # 2 launches from 10 elements on, 4 from 5 on, 6 with 4
    12
    """
    totals = Counter(element_counts(problem))
    # A tensor has one piece more below each of these partitions.
    if sum(-(-total // least) - 1 for total in totals) > most:
        return most + 1
    more: Counter[int] = Counter()
    for total, tensors in totals.items():
        for count in range(1, -(-total // least)):
            more[-(-total // count)] += tensors
    launches = found = len(problem.names)
    for partition in sorted(more, reverse=True):
        launches += more[partition]
        found += launches
        if found > most:
            break
    return found


def _equal_ends(total: int, count: int) -> list[int]:
    """Return where ``count`` equal pieces end; the last ones have the elements that are left over."""
    small, more = divmod(total, count)
    return [k * small + max(0, k - (count - more)) for k in range(1, count + 1)]

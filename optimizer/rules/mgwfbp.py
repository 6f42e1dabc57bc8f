"""MG-WFBP's rule: merge a gradient into the next one if waiting costs less than a start-up.

Source: MG-WFBP (INFOCOM 2019), distributed_optimizer.py, ``_generate_groups_mgwfbp``; DeAR's copy of it
in mgwfbp/hv_distributed_optimizer.py. Both recompute all start times after each merge, in O(n^2);
the start times before the open bucket do not change, so one pass does the same.

The rule looks at one chain of gradients on a channel of its own. Where a step has several fusion keys,
each is planned as if the others were not there, and buckets are launched as they become complete.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from commsched.models import Plan, Problem
from commsched.models.cost import CostCurve
from commsched.models.dtypes import elements
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.rows import Cut, Rows

SMALL_ELEMENTS = 8192


def mg_wfbp(problem: Problem) -> Plan:
    """Return MG-WFBP's plan.

    From the last layer on: a bucket is merged with the next gradient if that one is ready before the
    bucket would have been sent, and either the bucket could not start before then, or it would have
    to wait for less than the start-up time. The start-up time is the cost of 0 bytes; a bucket of 0
    bytes takes no time. Ready times are those of the nominal step. Times are exact, not floats.

    It has no parameter.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> ready_ns = [0, 900, 9000, 10100]
    >>> gradients = [Gradient(f"g{k}", 100, at) for k, at in enumerate(ready_ns)]
    >>> [b.names for b in mg_wfbp(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0', 'g1'), ('g2',), ('g3',)]
    """
    return _merged(problem, small=0)


def mg_wfbp_dear(problem: Problem) -> Plan:
    """Return the plan of the copy of MG-WFBP that DeAR was compared with.

    It also merges a bucket with the next gradient, however long that takes, while the bucket has less
    than 8192 elements.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce, or an element type of unknown size.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 20_000, ready_ns=10**6 * k) for k in range(4)]
    >>> [b.names for b in mg_wfbp_dear(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0', 'g1'), ('g2', 'g3')]
    """
    return _merged(problem, small=SMALL_ELEMENTS)


def _merged(problem: Problem, small: int) -> Plan:
    rows = Rows(problem, reductions(problem, "MG-WFBP's rule").items())
    cuts: list[Cut] = []
    for row, (key, chain) in enumerate((row.key, row.positions) for row in rows.rows):
        sizes = [problem.bytes[k] for k in chain]
        counts = [elements(size, key.dtype) for size in sizes] if small else [0] * len(sizes)
        ready = [problem.ready_ns[k] for k in chain]
        ends = _ends(ready, sizes, problem.cost(key), counts, small)
        cuts += [Cut(row, begin, end) for begin, end in pairwise([0, *ends])]
    return rows.by_last_member(cuts).plan()


def _ends(
    ready_ns: Sequence[int],
    sizes: Sequence[int],
    cost: CostCurve,
    counts: Sequence[int],
    small: int,
) -> list[int]:
    """Return where each bucket of a chain ends (exclusive index).

    The bucket that is open starts at the end of the one before it or when its last member is ready:
    merged layers take no time in the source. Times are in units of ``1 / scale`` nanoseconds.
    """
    scale = math.lcm(*(piece.scale for piece in cost.pieces))

    def time(size: int) -> int:
        piece = cost.piece(size)
        return (piece.intercept + piece.slope * size) * (scale // piece.scale)

    startup = time(0)
    ready = [at * scale for at in ready_ns]
    ends: list[int] = []
    before = size = count = 0
    for index in range(len(sizes) - 1):
        size += sizes[index]
        count += counts[index]
        start = max(before, ready[index])
        end = start + (time(size) if size else 0)
        following = ready[index + 1]
        merge = following < end and (start > following or following - start < startup)
        if not merge and count >= small:
            ends.append(index + 1)
            before, size, count = end, 0, 0
    return [*ends, len(sizes)]

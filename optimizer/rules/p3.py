"""P3's rule: small slices, and the channel always sends the most urgent one that is ready."""

from __future__ import annotations

from commsched.models import Plan, Problem
from commsched.models.knob import Setting
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.priority import (
    Part,
    Scheduler,
    beside_others,
    counted,
    cut_ends,
    element_counts,
    layer_numbers,
    of_elements,
    plain,
    run,
)

SLICE_ELEMENTS = 40_000


def p3(problem: Problem, slice_elements: Setting = SLICE_ELEMENTS) -> Plan:
    """Return what P3 (priority-based parameter propagation, MLSys 2019) sends, one slice a launch.

    A tensor is cut into slices of exactly so many elements and a rest. Whenever the channel is
    free it sends the ready slice of the layer nearest the input, the tensor's first slice first.

    Source: src/kvstore/p3store_dist.h in apache/mxnet (``MXNET_KVSTORE_SLICE_THRESHOLD`` = 40000
    elements; in the authors' fork ``MXNET_KVSTORE_BIGARRAY_BOUND``); the priority is minus the
    layer's index (python/mxnet/model.py), and ps-lite's sender is a priority queue.

    Limits: the layer's number is taken from reverse ready order, which stands in for forward order
    (backward visits layers in reverse), for a problem has no order of registration. P3 pushes slices to
    parameter servers, round-robin; here a slice costs what the problem says of an all-reduce of its
    bytes, on one channel. Not all values of the slice can be visited, for the slices' boundaries move
    with every value; only a grid is possible.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched whole, as soon as they are ready.
    slice_elements
        The elements of a slice; no knob.

    Raises
    ------
    NotApplicableError
        If the slice is a knob, the step has no all-reduce or a type of unknown size, or would be
        cut into too many slices.
    InputError
        If the slice is no whole number of at least 1.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 20, ready_ns=0), Gradient("a", 4, ready_ns=5)], AlphaBeta(0, 1))
    >>> [(b.names[0], *b.chunks) for b in p3(problem, 2).buckets[:3]]
    [('b', Chunk(begin=0, end=8)), ('a',), ('b', Chunk(begin=8, end=16))]
    """
    return run(problem, p3_of(problem, plain(slice_elements, "slice_elements"))).plan


def p3_of(problem: Problem, size: int) -> Scheduler:
    """Return P3's decisions for :func:`run`; the slice in elements."""
    reductions(problem, "P3")
    totals = element_counts(problem)
    counted(totals, size)
    slices = of_elements(problem, [cut_ends(total, size) for total in totals])
    # One slice at a time: each takes the whole window.
    parts = [[Part(part.chunk, 1) for part in row] for row in slices]
    layers = layer_numbers(problem)
    return beside_others(
        problem, Scheduler(parts, lambda _now, position, piece: (layers[position], piece), credit=1)
    )

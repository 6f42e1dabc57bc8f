"""PyTorch DistributedDataParallel's rules: rebuilt buckets, the first iteration, and two variants.

Source: torch/csrc/distributed/c10d/reducer.cpp (``compute_bucket_assignment_by_size``,
``rebuild_buckets``, ``mark_bucket_ready``) and torch/nn/parallel/distributed.py
(``_ddp_init_helper``). Defaults: ``kDefaultFirstBucketBytes`` = 1 MiB and ``kDefaultBucketBytesCap``
= 25 MiB in reducer.hpp.

A problem does not know in which order the parameters were registered. Reverse ready order stands in
for it, since backward visits the layers in the reverse of forward order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate

from commsched.models import Plan, Problem
from commsched.models.errors import InputError
from commsched.models.knob import Setting, reached
from commsched.models.units import MIB
from commsched.optimizer.rules.common import reductions
from commsched.optimizer.rules.rows import Cut, Rows, Sketch

FIRST_CAP_BYTES = MIB
CAP_BYTES = 25 * MIB
UNLIMITED = sys.maxsize


def assign(
    sizes: Sequence[int],
    keys: Sequence[Hashable],
    caps: Sequence[Setting],
    sparse: Sequence[bool] = (),
) -> list[list[int]]:
    """Return what ``torch.distributed._compute_bucket_assignment_by_size`` returns.

    A bucket closes as soon as its bytes reach the cap (tested after adding, so the cap is a
    threshold). Each key walks through the caps with an iterator of its own; the last cap repeats. A
    sparse tensor is a bucket by itself and uses up no cap. Buckets come in the order in which they
    close, then what is left unfinished: torch lists the left-overs of several keys in the order of
    a hash map, which in its builds (libstdc++) is the last key seen first. (Of three keys or more
    some can collide and be listed otherwise; none of float32, float64, float16, bfloat16 do.)
    Without ``tensor_indices`` torch then sorts the buckets by their smallest index; that is left
    to the caller.

    Parameters
    ----------
    sizes
        Bytes of each tensor.
    keys
        What tensors must have in common to share a bucket (dtype and device), one a tensor.
    caps
        Caps in bytes, at least one.
    sparse
        Empty, or for each tensor whether its gradient is sparse.

    Returns
    -------
    list of list of int
        Indices of the tensors of each bucket.

    Raises
    ------
    InputError
        If no cap is given.

    Examples
    --------
    >>> assign([1, 60, 2, 46, 10, 2], ["f4"] * 6, [2, 50])  # pytorch#48880, in half MiB
    [[0, 1], [2, 3, 4], [5]]
    >>> assign([4, 2, 4, 2], ["f4", "f2", "f4", "f2"], [100])
    [[1, 3], [0, 2]]
    """
    chains: dict[tuple[str, Hashable], list[int]] = {}
    for index, key in enumerate(keys):
        # A key of its own, so that its only bucket uses up no other's cap.
        alone = bool(sparse) and sparse[index]
        chains.setdefault(("sparse", index) if alone else ("dense", key), []).append(index)
    rows = list(chains.values())
    totals = [[0, *accumulate(sizes[index] for index in row)] for row in rows]
    single = [own[0] == "sparse" for own in chains]
    cuts = _assigned(rows, totals, single, _given(caps))
    return [rows[row][begin:end] for row, begin, end in cuts]


def _assigned(
    orders: Sequence[Sequence[int]],
    totals: Sequence[Sequence[int]],
    sparse: Sequence[bool],
    caps: Sequence[Setting],
) -> list[tuple[int, int, int]]:
    """Return the buckets of :func:`assign` as the row, first member and end of each.

    Parameters
    ----------
    orders
        For each key the indices of its tensors, by which buckets that close are ordered.
    totals
        The bytes of each row's first 0, 1, 2, ... tensors.
    sparse
        Whether the only tensor of a row is sparse.
    caps
        Caps in bytes, at least one.
    """
    closed: list[tuple[int, int, int, int]] = []
    left: list[tuple[int, int, int]] = []
    for row, sums in enumerate(totals):
        members = len(sums) - 1
        if sparse[row]:
            closed.append((orders[row][0], row, 0, 1))
            continue
        limits = iter(caps)
        cap = next(limits)
        begin = 0
        while begin < members:
            end = reached(sums, begin + 1, sums[begin], cap)
            if end > members:  # only the last bucket of a key can be unfinished
                left.append((row, begin, members))
                break
            closed.append((orders[row][end - 1], row, begin, end))
            begin = end
            cap = next(limits, cap)
    closed.sort()
    return [bucket[1:] for bucket in closed] + left[::-1]


def ddp(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs from its second iteration on.

    Gradients are taken in ready order and assigned by :func:`assign`. Buckets are launched in the
    order in which they close; what is left unfinished is launched last, the dtype that became ready
    last first.

    A user who passes ``bucket_cap_mb`` has no special first bucket: then caps is that one cap.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.
    caps
        Caps in bytes, at least one; by default 1 MiB, then 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**20, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0',), ('g1', 'g2', 'g3')]
    """
    return ddp_sketcher(problem)(caps).plan()


def ddp_first_iteration(problem: Problem, caps: Sequence[Setting] = (UNLIMITED,)) -> Plan:
    """Return what DDP runs in its first iteration, before buckets are rebuilt.

    With ``static_graph`` or without ``find_unused_parameters`` the limit is ``sys.maxsize``, whatever
    ``bucket_cap_mb`` is: one bucket for the whole model (one for each dtype and device; sparse
    gradients by themselves), so nothing is launched before its last gradient is ready. Buckets are
    numbered in registration order, for which reverse ready order stands, and launched from the
    highest number down. A ``bucket_cap_mb_list`` holds in the first iteration already, in that order.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.
    caps
        The ``bucket_cap_mb_list`` in bytes where one is set; by default there is no limit.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**25, ready_ns=k) for k in range(3)]
    >>> ddp_first_iteration(GradientProblem(gradients, AlphaBeta(1, 1))).buckets[0].names
    ('g0', 'g1', 'g2')
    """
    return registered_sketcher(problem, indexed=False)(caps).plan()


def ddp_unused(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs with ``find_unused_parameters=True`` and without ``static_graph``.

    Then buckets are never rebuilt: gradients are assigned in registration order, for which reverse
    ready order stands, and the list of buckets is reversed. So the small bucket of the first cap
    holds the first layers and is launched last, and the left-over may come first. A bucket waits for
    all earlier ones of the list.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.
    caps
        Caps in bytes, at least one; by default 1 MiB, then 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**20, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp_unused(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0', 'g1', 'g2'), ('g3',)]
    """
    return registered_sketcher(problem, indexed=False)(caps).plan()


def ddp_last_cap(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs from its second iteration on with ``DDP_SET_LAST_BUCKET_CAP=1``.

    Gradients are assigned in reverse ready order and the list of buckets is reversed, so that the
    small bucket is the last one, which nothing can hide. As with :func:`ddp_unused` the left-overs
    come first.

    Parameters
    ----------
    problem
        A step with all-reduces; its other collectives are launched by themselves, in ready order.
    caps
        Caps in bytes, at least one; by default 1 MiB, then 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has no all-reduce.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**24, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp_last_cap(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0',), ('g1', 'g2'), ('g3',)]
    """
    return registered_sketcher(problem, indexed=True)(caps).plan()


def ddp_sketcher(problem: Problem) -> Callable[[Sequence[Setting]], Sketch]:
    """Return :func:`ddp` from caps to buckets."""
    rows = Rows(problem, reductions(problem, "DDP's rule").items())
    orders = [row.places for row in rows.rows]
    totals = [row.totals for row in rows.rows]
    sparse = [row.key.alone != "" for row in rows.rows]

    def sketch(caps: Sequence[Setting]) -> Sketch:
        return Sketch(rows, [Cut(*cut) for cut in _assigned(orders, totals, sparse, _given(caps))])

    return sketch


def registered_sketcher(
    problem: Problem, *, indexed: bool
) -> Callable[[Sequence[Setting]], Sketch]:
    """Return :func:`ddp_unused`, or :func:`ddp_last_cap` if ``indexed``, from caps to buckets.

    It assigns in reverse ready order and reverses the list; unless ``indexed`` torch sorts it first.
    """
    chains = reductions(problem, "DDP's rule")
    rows = Rows(problem, chains.items())
    most = len(problem.names)
    # Registration meets the keys in this order.
    backward = sorted(
        range(len(rows.rows)), key=lambda row: rows.rows[row].places[-1], reverse=True
    )
    orders = [[most - place for place in reversed(rows.rows[row].places)] for row in backward]
    totals = [
        [rows.rows[row].totals[-1] - total for total in reversed(rows.rows[row].totals)]
        for row in backward
    ]
    sparse = [rows.rows[row].key.alone != "" for row in backward]
    lengths = [len(order) for order in orders]

    def sketch(caps: Sequence[Setting]) -> Sketch:
        cuts = _assigned(orders, totals, sparse, _given(caps))
        if not indexed:
            cuts.sort(key=lambda cut: orders[cut[0]][cut[1]])
        return Sketch(
            rows,
            [
                Cut(backward[row], lengths[row] - end, lengths[row] - begin)
                for row, begin, end in reversed(cuts)
            ],
        )

    return sketch


def _given(caps: Sequence[Setting]) -> Sequence[Setting]:
    if not caps:
        raise InputError("caps: at least one is needed")
    return caps

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
from collections.abc import Hashable, Sequence
from itertools import pairwise

from commsched.models import Plan, Problem, close_at_or_above
from commsched.models.errors import InputError
from commsched.models.knob import Setting
from commsched.models.units import MIB
from commsched.optimizer.rules.common import allreduce_only

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
    if not caps:
        raise InputError("caps: at least one is needed")
    closed: list[list[int]] = []
    chains: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        if sparse and sparse[index]:
            closed.append([index])
        else:
            chains.setdefault(key, []).append(index)
    left: list[list[int]] = []
    for chain in chains.values():
        own = [sizes[index] for index in chain]
        ends = close_at_or_above(own, caps)
        closed += [chain[begin:end] for begin, end in pairwise([0, *ends])]
        # Only the last bucket of a key can be unfinished.
        begin = ends[-2] if len(ends) > 1 else 0
        if not sum(own[begin:]) >= caps[min(len(ends), len(caps)) - 1]:
            left.append(closed.pop())
    return sorted(closed, key=lambda bucket: bucket[-1]) + left[::-1]


def ddp(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs from its second iteration on.

    Gradients are taken in ready order and assigned by :func:`assign`. Buckets are launched in the
    order in which they close; what is left unfinished is launched last, the dtype that became ready
    last first.

    A user who passes ``bucket_cap_mb`` has no special first bucket: then caps is that one cap.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces.
    caps
        Caps in bytes, at least one; by default 1 MiB, then 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**20, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0',), ('g1', 'g2', 'g3')]
    """
    order = problem.ready_order
    return _plan(problem, order, _assigned(problem, order, caps))


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
        A step whose collectives are all all-reduces.
    caps
        The ``bucket_cap_mb_list`` in bytes where one is set; by default there is no limit.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**25, ready_ns=k) for k in range(3)]
    >>> ddp_first_iteration(GradientProblem(gradients, AlphaBeta(1, 1))).buckets[0].names
    ('g0', 'g1', 'g2')
    """
    return _from_registration(problem, caps, indexed=False)


def ddp_unused(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs with ``find_unused_parameters=True`` and without ``static_graph``.

    Then buckets are never rebuilt: gradients are assigned in registration order, for which reverse
    ready order stands, and the list of buckets is reversed. So the small bucket of the first cap
    holds the first layers and is launched last, and the left-over may come first. A bucket waits for
    all earlier ones of the list.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces.
    caps
        Caps in bytes, at least one; by default 1 MiB, then 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**20, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp_unused(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0', 'g1', 'g2'), ('g3',)]
    """
    return _from_registration(problem, caps, indexed=False)


def ddp_last_cap(problem: Problem, caps: Sequence[Setting] = (FIRST_CAP_BYTES, CAP_BYTES)) -> Plan:
    """Return what DDP runs from its second iteration on with ``DDP_SET_LAST_BUCKET_CAP=1``.

    Gradients are assigned in reverse ready order and the list of buckets is reversed, so that the
    small bucket is the last one, which nothing can hide. As with :func:`ddp_unused` the left-overs
    come first.

    Parameters
    ----------
    problem
        A step whose collectives are all all-reduces.
    caps
        Caps in bytes, at least one; by default 1 MiB, then 25 MiB.

    Raises
    ------
    NotApplicableError
        If the step has other collectives than all-reduces.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", 2**24, ready_ns=k) for k in range(4)]
    >>> [b.names for b in ddp_last_cap(GradientProblem(gradients, AlphaBeta(1, 1))).buckets]
    [('g0',), ('g1', 'g2'), ('g3',)]
    """
    return _from_registration(problem, caps, indexed=True)


def _assigned(problem: Problem, order: Sequence[int], caps: Sequence[Setting]) -> list[list[int]]:
    allreduce_only(problem, "DDP's rule")
    keys = [problem.keys[k] for k in order]
    sparse = [key.alone != "" for key in keys]
    return assign([problem.bytes[k] for k in order], keys, caps, sparse)


def _from_registration(problem: Problem, caps: Sequence[Setting], *, indexed: bool) -> Plan:
    """Assign in reverse ready order and reverse the list; unless ``indexed`` torch sorts it first."""
    order = problem.ready_order[::-1]
    buckets = _assigned(problem, order, caps)
    if not indexed:
        buckets.sort()
    return _plan(problem, order, [bucket[::-1] for bucket in reversed(buckets)])


def _plan(problem: Problem, order: Sequence[int], buckets: Sequence[Sequence[int]]) -> Plan:
    return Plan.of([problem.names[order[index]] for index in bucket] for bucket in buckets)

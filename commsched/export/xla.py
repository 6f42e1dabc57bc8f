"""XLA: the combine thresholds of its collectives."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from commsched.export.knob import best_value
from commsched.export.result import Draft, difference, same_buckets
from commsched.export.source import ExportSource
from commsched.models import Plan, Problem
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.knob import Setting
from commsched.optimizer.handy import handy_number
from commsched.optimizer.rules.order import in_launch_order

TITLE = "XLA"
KINDS = ("allreduce", "reduce_scatter", "all_gather")
FLAG = {
    "allreduce": "xla_gpu_all_reduce_combine_threshold_bytes",
    "reduce_scatter": "xla_gpu_reduce_scatter_combine_threshold_bytes",
    "all_gather": "xla_gpu_all_gather_combine_threshold_bytes",
}
MOST_OPERANDS = 256
"""XLA combines at most so many collectives into one."""
DEFAULT_BYTES = 30 * 1024 * 1024
"""With exactly this value newer versions choose a threshold of their own."""
MOST_TRIED = 300
"""At most so many thresholds are tried in search of one that gives the plan itself."""
MOST_DEPENDENT = 2000
"""In steps where something waits for collectives, at most so many are checked for dependence."""


def combine(problem: Problem, threshold: Setting) -> Plan:
    """Return what XLA's combiner passes make of a step.

    For each key (kind, group and type) the collectives are visited in order; one larger than the
    threshold is left alone and the set goes on. A set is closed before a collective with which it
    would exceed the threshold, or that depends on a member, or when it has 256 members.

    Source: xla/service/collective_combiner_utils.h, ``CombineInstructionsByKey``; the count of 256 in
    xla/service/gpu/gpu_compiler.cc. XLA visits instructions in post-order, for which ready order
    stands. Its scheduler may launch in another order than the one that is returned: as complete.

    Parameters
    ----------
    problem
        A step of all-reduces, reduce-scatters and all-gathers.
    threshold
        In bytes of the whole tensor.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> gradients = [Gradient(f"g{k}", size, k) for k, size in enumerate([3, 9, 3, 2, 4])]
    >>> [b.names for b in combine(GradientProblem(gradients, AlphaBeta(1, 1)), 6).buckets]
    [('g1',), ('g0', 'g2'), ('g3', 'g4')]
    """
    after = _dependent(problem)
    buckets: list[list[int]] = []
    for chain in problem.chains.values():
        members: list[int] = []
        total = 0
        for position in chain:
            size = problem.bytes[position]
            if size > threshold:
                buckets.append([position])
                continue
            if (
                total + size > threshold
                or len(members) == MOST_OPERANDS
                or any(problem.names[position] in after[member] for member in members if after)
            ):
                buckets.append(members)
                members, total = [], 0
            members.append(position)
            total += size
        if members:
            buckets.append(members)
    return in_launch_order(problem, [bucket for bucket in buckets if bucket])


def _dependent(problem: Problem) -> Sequence[frozenset[str]]:
    """Return for each collective what waits for it; nothing where no collective is waited for."""
    if problem.settled:
        return ()
    if len(problem.names) > MOST_DEPENDENT:
        raise NotApplicableError(
            f"{TITLE}: {len(problem.names)} collectives that depend on each other are too many"
        )
    return [frozenset(nx.descendants(problem.graph, name)) for name in problem.names]


def export_xla(source: ExportSource) -> Draft:
    """Return XLA's flags for a plan.

    There is one threshold for each kind: a true maximum, counted in bytes of what comes out. For a
    reduce-scatter that is one rank's part, so the number of ranks must be known.

    Raises
    ------
    NotApplicableError
        If the plan has what XLA has not, or several kinds of collectives.
    InputError
        If the plan has reduce-scatters and the number of ranks is not given.
    """
    source.check(TITLE, KINDS)
    source.no_sparse(TITLE)
    kinds = sorted({key.kind for key in source.keys})
    if len(kinds) > 1:
        raise NotApplicableError(
            f"{TITLE}: thresholds are found for one kind of collectives; the plan has "
            f"{', '.join(kinds)}"
        )
    (kind,) = kinds
    ranks = source.options.ranks
    if kind == "reduce_scatter" and ranks is None:
        raise InputError(
            f"{TITLE} counts one rank's part of a reduce-scatter: give the number of ranks"
        )
    threshold, projected, notes = _threshold(source)
    flag_bytes = threshold
    if kind == "reduce_scatter" and ranks is not None:
        flag_bytes = -(-threshold // ranks)
    cannot = ["a size for each launch: there is one threshold for all", *notes]
    if source.problem is not None and projected is not None:
        cannot += difference(source.problem, source.plan, projected)
    cannot.append("the order of launches: XLA's scheduler decides it")
    return Draft(
        TITLE,
        {"xla_flags": {FLAG[kind]: flag_bytes}},
        f'export XLA_FLAGS="$XLA_FLAGS --{FLAG[kind]}={flag_bytes}"',
        "sh",
        tuple(cannot),
        (
            "a GPU back end with these flags; --xla_gpu_enable_latency_hiding_scheduler=true to "
            "overlap with compute",
            "the compiler meets the collectives in the problem's order and combines no others with "
            "them",
        ),
        projected,
    )


def _threshold(source: ExportSource) -> tuple[int, Plan | None, tuple[str, ...]]:
    """Return the threshold and what comes out: the plan's own if one gives it, else the best."""
    several = [launch.bytes for launch in source.launches if len(launch.names) > 1]
    own = max([1, *several])
    problem = source.problem
    if problem is None:
        return own + (own == DEFAULT_BYTES), None, ()
    # A smaller threshold never joins more. But what is larger than it no longer closes a set, so
    # the sizes of those that are alone matter, too.
    alone = {launch.bytes for launch in source.launches if len(launch.names) == 1}
    for value in [own, *sorted(size for size in alone if size > own)[:MOST_TRIED]]:
        threshold = value + (value == DEFAULT_BYTES)
        plan = combine(problem, threshold)
        if same_buckets(problem, source.plan, plan):
            return threshold, plan, ()
    found = best_value(source, combine, _not_default)
    return found.value, found.plan, found.notes


def _not_default(low: int, high: int | None) -> int:
    """Return a value of a range that is not the one with a meaning of its own."""
    value = handy_number(low, high)
    if value != DEFAULT_BYTES:
        return value
    return value + 1 if high is None or value < high else value - 1

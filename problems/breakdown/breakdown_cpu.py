"""What a processor did in a trace of gloo: operations on its threads, collectives on gloo's.

Threads do not say when they wait, so only the innermost operations count as computation: what
an operation does outside of those it calls may be waiting.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from commsched.problems.breakdown.breakdown import Activity, Sort
from commsched.problems.breakdown.breakdown_names import (
    CommOps,
    comm_arguments,
    in_order,
    message_bytes,
    tensor_bytes,
)
from commsched.problems.profiler.chrome_trace import Op

_RUNS = re.compile(r"(?:gloo|mpi|ucc):")
_NO_WORK = re.compile(r"_?c10d|record_param_comms|gloo:|.*\bwait", re.IGNORECASE)
_CALLED = {"allreduce": {"allreduce", "reduce_scatter"}, "send_recv": {"send_recv", "all_to_all"}}
"""What gloo's word for a collective may really be."""

CPU_NOTE = (
    "no GPU: computation is the time in which threads of the processor ran their innermost "
    "operations, outside of communication; Python, and waiting, count as idle"
)


def processor_activities(ops: Sequence[Op], comm: CommOps) -> list[Activity]:
    """Return what ran on a processor; nothing if no collective of gloo, MPI or UCC did.

    Parameters
    ----------
    ops
        The operations of all threads, in any order.
    comm
        The events that speak of collectives, sorted.
    """
    runs = [
        pair
        for prefix in ("gloo:", "mpi:", "ucc:")
        for pair in in_order(comm.by_thread, prefix)
        if pair[0]
    ]
    runs.sort(key=lambda pair: (pair[1].start, -pair[1].end))
    runs = _outermost(runs)
    if not runs:
        return []
    issued = [pair for pair in in_order(comm.by_thread, "c10d::") if pair[0]]
    issuers = {op.tid for _, op in issued}
    communicators = {op.tid for _, op in runs} - issuers
    found = _collectives(runs, issued)
    threads: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.tid not in communicators:
            threads[op.tid].append(op)
    for tid, lane in threads.items():
        found += [
            Activity(Sort.COMPUTATION, op.start, op.end, tid, op.start) for op in _innermost(lane)
        ]
    return found


def _outermost(runs: Sequence[tuple[str, Op]]) -> list[tuple[str, Op]]:
    """Leave out events inside another of the same name on their thread: it is one collective."""
    until: dict[tuple[str, str], int] = {}
    kept = []
    for kind, op in runs:
        lane = (op.tid, op.name)
        if op.end > until.get(lane, -(2**63)):
            until[lane] = op.end
            kept.append((kind, op))
    return kept


def _collectives(
    runs: Sequence[tuple[str, Op]], issued: Sequence[tuple[str, Op]]
) -> list[Activity]:
    """Return the runs; c10d's events say what they are if there is one for each, in order.

    gloo's own word for a reduce-scatter is ``all_reduce``, and its all-gather lists only a shard.
    """
    known = len(issued) == len(runs) and all(
        op.start <= run.start and kind in _CALLED.get(word, {word})
        for (word, run), (kind, op) in zip(runs, issued, strict=True)
    )
    found = []
    for at, (kind, run) in enumerate(runs):
        launched = run.start
        size = tensor_bytes(kind, run.name, comm_arguments(run.event))
        if known:
            kind, op = issued[at]
            launched, arguments = op.start, comm_arguments(op.event)
            told = message_bytes(kind, arguments)
            told = tensor_bytes(kind, op.name, arguments) if told is None else told
            size = size if told is None else told
        found.append(Activity(Sort.COLLECTIVE, run.start, run.end, run.tid, launched, kind, size))
    return found


def _innermost(lane: list[Op]) -> list[Op]:
    """Return a thread's operations that hold no other one and do not communicate."""
    lane.sort(key=lambda op: (op.start, -op.end))
    found = []
    communicating_until = -(2**63)
    for op, after in zip(lane, [*lane[1:], None], strict=True):
        if _NO_WORK.match(op.name):
            communicating_until = max(communicating_until, op.end)
        elif op.start >= communicating_until and (after is None or after.start >= op.end):
            found.append(op)
    return found

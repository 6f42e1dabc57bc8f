"""Reading PyTorch profiler traces: one step of DDP, or of anything else as a graph."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

from commsched.models.collectives import MAX_RANKS, Kind
from commsched.models.errors import InputError
from commsched.problems.profiler.chrome_trace import ChromeTrace, read_chrome_trace
from commsched.problems.profiler.graph_trace import read_graph
from commsched.problems.profiler.trace_draft import Draft, draft_step
from commsched.problems.profiler.trace_events import IGNORED_CATS, TraceEvents, sort_events
from commsched.problems.profiler.trace_launches import count_collectives, find_allreduces
from commsched.problems.profiler.trace_report import report_step
from commsched.problems.profiler.trace_sizes import SizeSource
from commsched.problems.profiler.trace_steps import BackwardPass, backward_passes
from commsched.problems.ranks.ranks_input import RankRecording
from commsched.problems.recorded import Recording
from commsched.problems.sources.source import Source

_MAX_WORK = 20_000_000
_PLAIN: frozenset[Kind] = frozenset({"allreduce", "broadcast"})
"""A DDP step has all-reduces of gradients, and broadcasts of buffers that it does not wait for."""


class _NoDdpError(InputError):
    """The trace is not of a DDP step; the message says why."""


def read_rank(
    source: str | Path | Source,
    *,
    step: int | None = None,
    sizes: str | Path | None = None,
    graph: bool = False,
) -> RankRecording:
    """Read one step of one rank, with the rank's number, its clock and the members of its groups.

    The parameters and errors are those of :func:`read_profiler_trace`.
    """
    # Flows and marks say nothing here that the times do not say.
    trace = read_chrome_trace(
        source if isinstance(source, Source) else Path(source),
        only_complete=True,
        without=IGNORED_CATS - {"python_function"},  # these hold the names of modules
    )
    recording = _read(trace, step, sizes, graph)
    info = trace.metadata.get("distributedInfo")
    info = info if isinstance(info, Mapping) else {}
    rank, base = info.get("rank"), trace.metadata.get("baseTimeNanoseconds")
    origin_ns = recording.origin_ns
    if origin_ns is not None and type(base) is int and 0 <= base < 2**63:
        origin_ns += base
    return RankRecording(
        rank if type(rank) is int and 0 <= rank < MAX_RANKS else None,
        recording,
        origin_ns,
        str(trace.source),
        _members(info.get("pg_config")),
    )


def _members(listed: object) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group, by its name and by its description."""
    members: dict[str, tuple[int, ...]] = {}
    for one in listed if isinstance(listed, list) else ():
        ranks = one.get("ranks") if isinstance(one, Mapping) else None
        if not isinstance(ranks, list) or not all(
            type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks
        ):
            continue
        for key in ("pg_name", "pg_desc"):
            name = one.get(key)
            if isinstance(name, str) and name not in ("", "undefined"):
                members.setdefault(name, tuple(sorted(set(ranks))))
    return members


def read_profiler_trace(
    source: str | Path | Source,
    *,
    step: int | None = None,
    sizes: str | Path | None = None,
    graph: bool = False,
) -> Recording:
    """Read one step out of a PyTorch profiler trace.

    A step of plain DDP comes out as its gradients: autograd's ``AccumulateGrad`` events. On a GPU a
    gradient is ready when the last kernel ends that backward had launched before, on a processor
    when its event starts. The launches are the all-reduces inside those events (DDP's hooks),
    with the times at which they ran. Time starts with the step's first kernel, or without a GPU
    with the step itself.

    Every other step (FSDP, ZeRO, all-to-alls, compiled DDP) comes out as a graph: the work of each
    stream, every collective, what each of them waited for and what waited for it.

    Parameters
    ----------
    source
        The trace: Chrome-trace JSON, plain or gzip; a file, or the member of an archive.
    step
        The N of ``ProfilerStep#N``; by default the step of median length among those that are
        complete.
    sizes
        A PyTorch execution trace of the same model. It gives the gradients' sizes where the
        profiler ran without ``record_shapes=True``.
    graph
        Whether a step of plain DDP comes out as a graph too.

    Raises
    ------
    InputError
        If a file cannot be read, the trace has no such step, no collective, or lacks the sizes.
    """
    return read_rank(source, step=step, sizes=sizes, graph=graph).recording


def _read(trace: ChromeTrace, step: int | None, sizes: str | Path | None, graph: bool) -> Recording:
    path = trace.source
    if not trace.events:
        raise InputError(f"{path}: the trace has no events")
    events = sort_events(trace.events)
    if len(events.processes) > 1:
        raise InputError(
            f"{path}: the trace holds the gradients of {len(events.processes)} processes: "
            "name the trace of one rank"
        )
    plain = not graph and _is_plain(events)
    notes: list[str] = []
    try:
        drafts = _ddp_drafts(path, events, step, sizes)
    except InputError as error:
        if plain and not isinstance(error, _NoDdpError):
            raise
        if not isinstance(error, _NoDdpError):
            reason = str(error).removeprefix(f"{path}: ")
            notes.append(f"buckets of gradients are collectives as a whole: {reason}")
        drafts = []
    if not drafts:
        if sizes is not None:
            notes.append(f"{Path(sizes).name} was not used: it has sizes of DDP's gradients")
        return read_graph(trace, events, step=step, notes=notes)
    chosen, why = _choose(drafts, asked=step is not None)
    if sizes is not None and chosen.shapes_from is None:
        notes.append(f"the trace has its own sizes: {Path(sizes).name} was not read")
    if plain:
        return report_step(trace, events, chosen, drafts, [why, *notes])
    return read_graph(trace, events, step=step, draft=chosen, why=why, notes=notes)


def _is_plain(events: TraceEvents) -> bool:
    """Return whether a trace has no collectives but those of plain DDP.

    Broadcasts inside the optimizer are those of ZeRO's parameters.
    """
    if count_collectives(events).keys() - _PLAIN or (events.gloo_others and not events.collectives):
        return False
    updates = [op for op in events.starts if op.name.startswith("Optimizer.")]
    for kind, op in events.collectives:
        at = bisect_right(updates, op.start, key=lambda update: update.start)
        if kind == "broadcast" and any(
            update.start <= op.start < update.end for update in updates[max(0, at - 4) : at]
        ):
            return False
    return True


def _ddp_drafts(
    path: Path | Source, events: TraceEvents, step: int | None, sizes: str | Path | None
) -> list[Draft]:
    """Work out the steps as steps of DDP."""
    launches = find_allreduces(events)
    steps = backward_passes(path, events, launches, step)
    passes = [one for one_step in steps for one in one_step]
    if not any(one.in_hooks or one.after for one in passes):
        raise _NoDdpError(f"{path}: the trace is not of DDP")
    return _drafts(path, events, steps, SizeSource(None if sizes is None else Path(sizes)))


def _drafts(
    path: Path | Source,
    events: TraceEvents,
    steps: Sequence[Sequence[BackwardPass]],
    sizes: SizeSource,
) -> list[Draft]:
    """Work out each step whose backward pass is complete; its last one, if there are several."""
    communicating = [[one for one in passes if one.in_hooks or one.after] for passes in steps]
    longest = max(len(one.hooks) for passes in communicating for one in passes)
    drafts = []
    for passes in communicating:
        for one in reversed(passes):
            if len(one.hooks) * (len(one.in_hooks) + len(one.after)) > _MAX_WORK:
                raise InputError(
                    f"{path}: {one.name} has {len(one.hooks)} gradients and "
                    f"{len(one.in_hooks) + len(one.after)} all-reduces: too many for one step"
                )
            if len(one.hooks) < longest:
                continue  # Cut off at the edge of the recording, or another module's.
            found = draft_step(path, events, one, sizes)
            if found is not None:
                found.passes_with_launches = len(passes)
                drafts.append(found)
                break
    return drafts


def _choose(drafts: Sequence[Draft], *, asked: bool) -> tuple[Draft, str]:
    """Return the step of median length among the best recorded ones, and a sentence about it."""
    best = max(draft.completeness for draft in drafts)
    complete = [draft for draft in drafts if draft.completeness == best]
    complete.sort(key=lambda draft: (draft.length, draft.one.start))
    chosen = complete[(len(complete) - 1) // 2]
    why = f"the step is {chosen.one.name}"
    if not asked and len(drafts) > 1:
        why += f": the one of median length among {len(complete)} complete steps"
    return chosen, why

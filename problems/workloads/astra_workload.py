"""ASTRA-sim's text workloads and SimAI's (AICB): layers with times and collectives, not a recording.

What waits for what is the training loop of the simulators (``Workload.cc``), one pass of it:

============================  ==========================================================
``DATA``                      Forward; then for each layer from the last: weight gradient, its
                              collective (nothing waits), input gradient. Other collectives are
                              never issued.
``HYBRID_TRANSFORMER``,       Forward collectives block. Then for each layer from the last: input
``.._FWD_IN_BCKWD``           gradient, its collective blocks, weight gradient, its collective
                              (nothing waits). The second recomputes forward from checkpoints.
``HYBRID_DATA_MODEL``,        Forward collectives block. The input gradient's collective runs
``HYBRID_MODEL_DATA``,        beside the weight gradient; the next layer waits for it. The first
``HYBRID_CUSTOMIZED``         layer has none.
``MODEL``                     The same without collectives of weight gradients.
``HYBRID_DLRM``               The embedding's all-to-all (layer 0) runs beside the bottom layers;
                              the last of them waits for it. In backward it starts when that layer
                              is reached, and the end of backward waits (not in ``_ENHANCED``).
``DISTRIBUTED_INFERENCE``     Forward only; collectives block.
``MICRO``                     The first row's last collective alone.
============================  ==========================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from commsched.models import Compute, Gradient
from commsched.models.errors import InputError
from commsched.models.units import MAX_NS
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, ImportReport, RecordedGraph, RecordedStep, Recording
from commsched.problems.sources.single_file import only_file, read_text, start_lines
from commsched.problems.sources.source import Source
from commsched.problems.workloads.astra_rows import POLICIES, Row, Workload, parse_workload
from commsched.problems.workloads.astra_steps import Steps, build_steps

_FIRST = re.compile(rf"({'|'.join(POLICIES)})(?:\s.*)?")
_COUNT = re.compile(r"\d{1,9}")
_ROW = re.compile(r"\S+\s+-?\d+\s+\d+\s+[A-Z_]+\s+\d+\s+\d+\s+[A-Z_]+\s+\d+\s.*")


def recognises(start: bytes) -> bool:
    """Return whether a file begins with a loop's name, a number of layers and a layer."""
    lines = start_lines(start, 3)
    return (
        len(lines) == 3
        and _FIRST.fullmatch(lines[0]) is not None
        and _COUNT.fullmatch(lines[1]) is not None
        and _ROW.fullmatch(lines[2]) is not None
    )


def read(files: Sequence[Source], options: ReadOptions) -> Recording:
    """Read one pass of a workload: plain gradients where it is ``DATA``, else the whole graph.

    Parameters
    ----------
    files
        One workload.
    options
        ``graph`` gives the graph for ``DATA`` too.

    Raises
    ------
    InputError
        If a line is malformed, the file ends early, or no collective is issued.
    """
    source = only_file(files)
    repairs = Counter[str]()
    workload = parse_workload(source, read_text(source, repairs))
    plain = workload.policy == "DATA" and not options.graph and all(map(_is_plain, workload.rows))
    steps = build_steps(source, workload, delayed=not plain)
    if not steps.collectives:
        raise InputError(
            f"{source}: a {workload.policy} loop issues none of the file's collectives, "
            "so there is nothing to plan"
        )
    if sum(task.duration_ns for task in steps.tasks if isinstance(task, Compute)) > MAX_NS:
        raise InputError(f"{source}: the layers together take longer than 13 days")
    report = _report(source, workload, steps, repairs)
    name = f"{source.name.removesuffix('.gz').removesuffix('.txt')} ({workload.policy} workload)"
    if plain:
        return RecordedStep(
            name=name,
            gradients=tuple(
                Gradient(task.name, task.bytes, at, task.dtype)
                for task, at in zip(steps.collectives, steps.issued_ns, strict=True)
            ),
            launches=(),
            backward_end_ns=steps.compute_ns,
            step_name="workload",
            report=report,
        )
    groups = {task.group for task in steps.collectives}
    return RecordedGraph(
        name=name,
        tasks=tuple(steps.tasks),
        launches=(),
        step_name="workload",
        report=report,
        ranks={group: ranks for group, ranks in steps.ranks.items() if group in groups},
    )


def _is_plain(row: Row) -> bool:
    """Return whether a layer's gradient is all-reduced by data parallelism."""
    return row.weight is None or (row.weight.kind == "allreduce" and row.weight.group in ("", "dp"))


def _report(
    source: Source, workload: Workload, steps: Steps, repairs: Counter[str]
) -> ImportReport:
    counts = Counter(f"{task.kind} in {task.group}" for task in steps.collectives)
    dropped = {
        "collectives of no bytes": workload.empty,
        "lines beyond the stated number of layers": workload.extra,
        "delays after collectives": steps.dropped_updates,
        **steps.dropped,
    }
    checks = [
        Check(
            f"lines as stated: {len(workload.rows)} layers, {workload.extra} lines more",
            workload.extra == 0,
        )
    ]
    if steps.gathers:
        known = steps.gathers - steps.unknown_gathers
        checks.append(
            Check(
                f"all-gathers whose number of ranks is known, so that their size is: {known} of "
                f"{steps.gathers}",
                known == steps.gathers,
            )
        )
    if workload.simai:
        checks.append(
            Check(
                "the header's numbers of ranks divide each other: "
                + ", ".join(f"{key} {value}" for key, value in workload.numbers.items()),
                steps.divisible,
            )
        )
    return ImportReport(
        source=source.name,
        events_read=len(workload.rows),
        kept={"layers": len(workload.rows), **dict(sorted(counts.items()))},
        dropped={reason: count for reason, count in dropped.items() if count},
        assumptions=tuple(_assumptions(workload, steps, repairs)),
        checks=tuple(checks),
    )


def _assumptions(workload: Workload, steps: Steps, repairs: Counter[str]) -> list[str]:
    notes = [
        f"a workload and no recording: one pass of the simulators' {workload.policy} loop; "
        "the next pass, whose forward waits for the weight gradients, is not part of it",
        "times are in nanoseconds"
        if workload.simai
        else "times are in nanoseconds (the simulator's cycles, which it runs at 1 GHz)",
        "each group has a channel of its own: launches of different groups do not slow each other",
    ]
    if workload.simai:
        notes += [
            "sizes are those of the whole operation, as the generator (AICB) writes them",
            "forward and input gradient collectives without a suffix are of the tensor-parallel "
            "group, those of weight gradients of the data-parallel group",
            "activations are bfloat16; reduce-scatters of gradients, losses and norms float32",
            "an all-gather of weights waits for the reduce-scatter before it in its group",
        ]
        numbers = workload.numbers
        if numbers.get("pp", 1) > 1:
            notes.append(
                f"the rows are one rank's work of a pipeline of {numbers['pp']} stages; its sends "
                f"and receives ({numbers.get('pp_comm', 0)} bytes each) and its bubbles are not in "
                "the rows and left out"
            )
    else:
        notes.append("the elements are float32: the workload does not say their type")
        if steps.gathers:
            notes.append(
                "an all-gather's size is one rank's part, as the simulator takes it: it is "
                "multiplied by the ranks where their number is known, else kept as written"
            )
    if steps.ranks:
        shown = ", ".join(f"{group} {ranks}" for group, ranks in steps.ranks.items())
        notes.append(f"ranks of the groups, from the header: {shown}")
    if steps.updates:
        notes.append(
            f"{steps.updates} delays after collectives are kept; those of weight gradients run "
            "one at a time beside everything else"
        )
    if steps.recomputed:
        notes.append(f"{steps.recomputed} layers' forward is recomputed in backward")
    if workload.unused:
        notes.append(f"words of the header that were not used: {' '.join(workload.unused)[:200]}")
    notes += [f"mended while reading: {what} ({n})" for what, n in repairs.items() if n]
    return notes


READER = Reader(
    title="ASTRA-sim or SimAI workload",
    recognises=recognises,
    read=read,
    options=frozenset({"graph"}),
)

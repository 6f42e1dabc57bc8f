"""PyTorch profiler traces behind the one door: the files of one rank or of several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from commsched.models.errors import InputError
from commsched.problems.profiler.graph_check import merged_check
from commsched.problems.profiler.profiler_trace import read_rank
from commsched.problems.ranks.ranks_input import RankRecording
from commsched.problems.ranks.ranks_merge import merge_ranks
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Check, RecordedGraph, Recording
from commsched.problems.sources.source import Source

_MARK = re.compile(rb'"(traceEvents|ph)"')
_OURS = re.compile(rb'"format"\s*+:\s*+"commsched/')
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")


def recognises(start: bytes) -> bool:
    """Return whether a file is a Chrome trace, as the profiler writes them."""
    return bool(_MARK.search(start)) and not _OURS.search(start)


def read(files: Sequence[Source], options: ReadOptions) -> Recording:
    """Read one step of a job: of its only rank, or of all ranks merged.

    The first rank that can be read decides which step it is and in which form it comes out.

    Raises
    ------
    InputError
        If no trace can be read, or none holds a step that can be planned.
    """
    if len(files) == 1:
        return read_rank(
            files[0], step=options.step, sizes=options.sizes, graph=options.graph
        ).recording
    ranks: list[RankRecording] = []
    refused: list[InputError] = []
    step, graph = options.step, options.graph
    for file in files:
        try:
            one = read_rank(file, step=step, sizes=options.sizes, graph=graph)
        except InputError as error:
            refused.append(error)
            continue
        if not ranks:
            match = _STEP.fullmatch(one.recording.step_name)
            step = int(match[1]) if match and step is None else step
            graph = isinstance(one.recording, RecordedGraph)
        ranks.append(one)
    if not ranks:
        raise refused[0]
    merged = merge_ranks(ranks)
    checks = merged.report.checks
    if refused:
        lost = "; ".join(str(error) for error in refused[:3])
        text = f"traces that could be read: {len(ranks)} of {len(files)} ({lost})"
        checks = (Check(text, passed=False), *checks)
    if isinstance(merged, RecordedGraph) and len(ranks) > 1:
        checks = (*checks, *merged_check(merged))
    return replace(merged, report=replace(merged.report, checks=checks))


READER = Reader(
    title="PyTorch profiler trace",
    recognises=recognises,
    read=read,
    options=frozenset({"step", "sizes", "graph"}),
    several=True,
)

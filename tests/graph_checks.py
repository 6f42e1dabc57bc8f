"""Comparing a step graph that was read from a trace with what the trace was made from."""

from __future__ import annotations

import warnings
from pathlib import Path

from graph_maker import ALL, Shown
from graph_programs import Program, made

from commsched.models import AlphaBeta, evaluate
from commsched.models.errors import ExtrapolationWarning
from commsched.models.step import Collective, Compute
from commsched.models.timeline import Timeline
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.recorded import RecordedGraph


def read_graph(path: Path, **options) -> RecordedGraph:
    """Read a trace whole; whatever comes out must be a problem that the recorded plan solves."""
    graph = read_profiler_trace(path, graph=True, **options)
    assert isinstance(graph, RecordedGraph)
    played(graph)
    return graph


def played(graph: RecordedGraph, bandwidth: float = 10, alpha_us: float = 0) -> Timeline:
    """Run the recorded plan on a network."""
    problem = graph.with_costs({need: AlphaBeta(alpha_us, bandwidth) for need in graph.needs})
    assert graph.plan is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExtrapolationWarning)
        return evaluate(problem, graph.plan)


def graph_of(tmp_path: Path, program: Program, shown: Shown = ALL) -> RecordedGraph:
    return read_graph(made(program, shown).write(tmp_path / "trace"))


def collectives(graph: RecordedGraph) -> list[Collective]:
    return [task for task in graph.tasks if isinstance(task, Collective)]


def computes(graph: RecordedGraph, stream: str | None = None) -> list[Compute]:
    return [
        task for task in graph.tasks if isinstance(task, Compute) and stream in (None, task.stream)
    ]


def failed(graph: RecordedGraph) -> list[str]:
    return [check.text for check in graph.report.checks if not check.passed]


def notes(graph: RecordedGraph) -> str:
    return "\n".join(graph.report.assumptions)


def evidence(graph: RecordedGraph) -> str:
    """Return the sentence on how it is known who waits for the collectives."""
    return next(note for note in graph.report.assumptions if note.startswith("how it is known"))


def before(graph: RecordedGraph, name: str) -> set[str]:
    """Return everything that a task waits for, directly or not, its stream's earlier work too."""
    graph_of_names = graph.with_costs({need: AlphaBeta(1, 1) for need in graph.needs}).graph
    found: set[str] = set()
    stack = [name]
    while stack:
        for other in graph_of_names.pred[stack.pop()]:
            if other not in found:
                found.add(other)
                stack.append(other)
    return found

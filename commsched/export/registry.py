"""The registry of frameworks: a new one is a file in ``commsched/export`` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from commsched.export.ddp import export_ddp
from commsched.export.deepspeed import export_deepspeed
from commsched.export.fsdp2 import export_fsdp2
from commsched.export.horovod import export_horovod
from commsched.export.inductor import export_inductor
from commsched.export.megatron import export_megatron
from commsched.export.result import Draft, Export, finished
from commsched.export.source import ExportOptions, ExportSource
from commsched.export.xla import export_xla
from commsched.models import Plan, Problem
from commsched.models.errors import InputError
from commsched.problems.schema import PlanFile

EXPORTERS: Mapping[str, Callable[[ExportSource], Draft]] = {
    "ddp": export_ddp,
    "horovod": export_horovod,
    "megatron": export_megatron,
    "deepspeed": export_deepspeed,
    "fsdp2": export_fsdp2,
    "xla": export_xla,
    "inductor": export_inductor,
}


def export(
    problem: Problem, plan: Plan, framework: str, options: ExportOptions | None = None
) -> Export:
    """Return a plan as a framework's settings, with what the framework will really run.

    Parameters
    ----------
    problem, plan
        The plan and its problem.
    framework
        A name in :data:`EXPORTERS`.
    options
        The framework's version and what else it needs.

    Raises
    ------
    InputError
        If the framework is unknown, the plan does not fit the problem or an option is missing.
    NotApplicableError
        If the framework cannot run anything like the plan, or would silently run something else.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem(
    ...     [Gradient("b", 2**20, 10), Gradient("a", 2**19, 20)], AlphaBeta(3, 1))
    >>> found = export(problem, Plan.of([["b", "a"]]), "ddp")
    >>> found.exact, found.lost_ns, found.text
    (True, 0, 'DistributedDataParallel(model, bucket_cap_mb_list=[1.5])')
    """
    return _export(ExportSource.of(problem, plan, options), framework)


def export_file(
    file: PlanFile, framework: str, path: str | Path = "plan", options: ExportOptions | None = None
) -> Export:
    """Return what can be said from a plan file alone; nothing is simulated.

    Raises
    ------
    InputError, NotApplicableError
        As for :func:`export`, and where the framework's settings need the problem.
    """
    return _export(ExportSource.of_file(file, path, options), framework)


def _export(source: ExportSource, framework: str) -> Export:
    exporter = EXPORTERS.get(framework)
    if exporter is None:
        raise InputError(f"framework: {framework!r:.60} is not one of {', '.join(EXPORTERS)}")
    return finished(source, framework, exporter(source))

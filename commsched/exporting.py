"""``commsched export PLAN [FILE]``: a plan as the settings of the framework that runs it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from commsched.export import EXPORTERS, Export, ExportOptions, export, export_file
from commsched.export.launch_table import launch_table
from commsched.export.perfetto import trace_bytes
from commsched.models import Plan, Problem, evaluate
from commsched.models.errors import InputError, PlanError, printable
from commsched.models.units import format_ns, us_from_ns
from commsched.options import FileArgument, JsonOption, reads_problem
from commsched.output import make_console
from commsched.problems import Loaded, plan_of, problem_digest, read_plan
from commsched.problems.files import write_bytes
from commsched.problems.schema import PlanFile
from commsched.process import print_json
from commsched.targets import check_targets

FILES = ("perfetto", "csv")
"""What is written to a file: a trace of the step and the table of launches."""


@reads_problem
def _with_problem(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    file: FileArgument,
    loaded: Loaded,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FRAMEWORK", help=f"{', '.join((*EXPORTERS, *FILES))}."),
    ],
    version: Annotated[
        str,
        typer.Option("--version", help="The framework's version; torch's for ddp and the like."),
    ] = "",
    zero_stage: Annotated[int, typer.Option("--zero-stage", help="DeepSpeed's ZeRO stage.")] = 2,
    distributed_optimizer: Annotated[
        bool,
        typer.Option("--distributed-optimizer", help="Megatron-core runs its own optimizer."),
    ] = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", help="Ranks of the group, for XLA's reduce-scatters.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the lines here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    options = ExportOptions(version, zero_stage, distributed_optimizer, ranks)
    planned = read_plan(plan_file)
    if planned.problem_digest != problem_digest(loaded.problem):
        raise PlanError(f"{plan_file}: problem_digest: is for another problem than {file}")
    plan = plan_of(planned, plan_file)
    if to in FILES:
        _write_file(plan_file, plan, loaded, to, out, as_json)
        return
    try:
        found = export(loaded.problem, plan, to, options)
    except PlanError as error:
        raise PlanError(f"{plan_file}: {error}") from None
    _show(found, out, as_json, loaded.problem, plan)


def _without_problem(
    plan_file: Path,
    to: str,
    version: str,
    zero_stage: int,
    distributed_optimizer: bool,
    ranks: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    options = ExportOptions(version, zero_stage, distributed_optimizer, ranks)
    if to in FILES:
        raise InputError(
            f"--to {to}: shows times, which need the problem: commsched export PLAN FILE"
        )
    check_targets({"--out": out}, [plan_file])
    planned: PlanFile = read_plan(plan_file)
    _show(export_file(planned, to, plan_file, options), out, as_json)


def export_command(**values: Any) -> None:  # noqa: ANN401  (typer hands over what it parsed)
    """Turn a plan into the settings of a framework, and say what that loses."""
    if values["to"] not in (*EXPORTERS, *FILES):
        known = ", ".join((*EXPORTERS, *FILES))
        raise InputError(f"--to: {values['to']!r:.60} is not one of {known}")
    if values["file"] is not None:
        _with_problem(**values)
        return
    own = inspect.signature(_without_problem).parameters
    signature = inspect.signature(_with_problem).parameters
    for name, value in values.items():
        if name not in own and name != "file" and value != signature[name].default:
            option = name.replace("_", "-")
            raise InputError(f"--{option}: is about the problem: commsched export PLAN FILE")
    _without_problem(**{name: values[name] for name in own})


def _make_signature() -> inspect.Signature:
    """Return the command's parameters: those with the problem, which may be left out."""
    found = []
    for one in inspect.signature(_with_problem).parameters.values():
        if one.name == "file":
            help_text = "The problem; without it nothing is simulated."
            argument = typer.Argument(metavar="FILE", help=help_text)
            found.append(one.replace(default=None, annotation=Annotated[str | None, argument]))
        else:
            found.append(one)
    return inspect.Signature(found)


export_command.__signature__ = _make_signature()  # type: ignore[attr-defined]
export_command.__annotations__ = {
    one.name: one.annotation for one in _make_signature().parameters.values()
}


def _write_file(
    plan_file: Path, plan: Plan, loaded: Loaded, to: str, out: Path | None, as_json: bool
) -> None:
    if out is None:
        raise InputError(f"--to {to}: needs a file to write: --out FILE")
    try:
        timeline = evaluate(loaded.problem, plan)
    except PlanError as error:
        raise PlanError(f"{plan_file}: {error}") from None
    data = trace_bytes(timeline, loaded.recorded) if to == "perfetto" else launch_table(timeline)
    write_bytes(out, data)
    if as_json:
        print_json({"format": to, "written": str(out), "bytes": len(data)})
        return
    what = "open it with ui.perfetto.dev" if to == "perfetto" else "a row a launch"
    make_console().print(f"written to {out}: {what}", markup=False, soft_wrap=True)


def export_document(
    found: Export, problem: Problem | None = None, plan: Plan | None = None
) -> dict[str, Any]:
    """Return an export as plain data with fixed keys; times are in microseconds."""
    document: dict[str, Any] = {
        "framework": found.framework,
        "title": found.title,
        "simulated": found.projected is not None,
        "exact": found.exact,
        "settings": dict(found.settings),
        "text": found.text,
        "language": found.language,
        "lost_us": None if found.lost_ns is None else us_from_ns(found.lost_ns),
        "cannot": list(found.cannot),
        "needs": list(found.needs),
        "planned": None,
        "projected": None,
    }
    if problem is not None and plan is not None and found.projected is not None:
        document["planned"] = _outcome(problem, plan)
        document["projected"] = _outcome(problem, found.projected)
    return document


def _outcome(problem: Problem, plan: Plan) -> dict[str, Any]:
    timeline = evaluate(problem, plan)
    return {
        "makespan_us": us_from_ns(timeline.makespan_ns),
        "exposed_us": us_from_ns(timeline.exposed_ns),
        "launches": plan.launches,
        "buckets": [list(bucket.names) for bucket in plan.buckets],
    }


def _show(
    found: Export,
    out: Path | None,
    as_json: bool,
    problem: Problem | None = None,
    plan: Plan | None = None,
) -> None:
    if out is not None:
        write_bytes(out, f"{found.text}\n".encode())
    if as_json:
        document = export_document(found, problem, plan)
        print_json(document | ({} if out is None else {"written": str(out)}))
        return
    console = make_console()
    if out is None:
        for line in found.text.split("\n"):
            _print(console, line)
    else:
        _print(console, f"written to {out}")
    console.print()
    _print(console, f"{found.title}: {_sentence(found, problem, plan)}")
    for text in found.cannot:
        _print(console, f"cannot express: {text}")
    for text in found.needs:
        _print(console, f"needs: {text}")


def _print(console: Console, line: str) -> None:
    console.print(Text(printable(line)), soft_wrap=True)


def _sentence(found: Export, problem: Problem | None, plan: Plan | None) -> str:
    """Return what the framework will really run, and what that loses."""
    if problem is None or plan is None or found.projected is None or found.lost_ns is None:
        return "not simulated; what it makes of these settings, and what that loses, is not known"
    planned, real = evaluate(problem, plan), evaluate(problem, found.projected)
    what = "this plan to the byte" if found.exact else f"{found.projected.launches} launches"
    times = f"step {format_ns(real.makespan_ns)}, exposed {format_ns(real.exposed_ns)}"
    if found.lost_ns == 0:
        return f"{what}, {times}; nothing is lost"
    percent = 100 * abs(found.lost_ns) / max(1, planned.makespan_ns)
    word = "lost against" if found.lost_ns > 0 else "gained over"
    return f"{what}, {times}; {format_ns(abs(found.lost_ns))} ({percent:.1f}%) {word} the plan"

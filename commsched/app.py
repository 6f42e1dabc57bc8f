"""The application behind the command line: ``commsched plan``, ``compare``, ``verify`` and so on.

Results go to standard output, messages to standard error. Exit codes: 0 a plan was found or holds,
2 the input is at fault (one line says how), 3 infeasible, 4 the limit was reached without a plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched import __version__
from commsched.analysing import analyse_command
from commsched.comparing import compare_command
from commsched.documents import import_document, timeline_document
from commsched.exporting import export_command
from commsched.fitting import fit_command
from commsched.library_command import problems_app
from commsched.models import Problem, Timeline, evaluate
from commsched.models.errors import InputError, PlanError, printable
from commsched.models.overheads import play_overheads
from commsched.models.units import format_ns
from commsched.options import FileArgument, JsonOption, OverheadsOption, reads_problem
from commsched.output import (
    make_console,
    print_assumption,
    print_buckets,
    print_problem,
    print_recorded,
)
from commsched.overheads_output import overheads_document, print_overheads
from commsched.planning import plan_command
from commsched.problems import (
    Loaded,
    Network,
    Recording,
    plan_of,
    problem_digest,
    read_plan,
    write_problem,
)
from commsched.problems.overheads_file import read_overheads
from commsched.problems.schema import PlanFile
from commsched.process import print_json
from commsched.reporting import report_command
from commsched.sensitivity import sensitivity_command
from commsched.slowed_output import print_slowed, slowed_document
from commsched.slowing import KnownSlowdown
from commsched.verification import verify as verify_plan
from commsched.watching import Watch

app = typer.Typer(
    name="commsched",
    help="Provably best bucketing and ordering of the communication in one training step.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"commsched {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("plan")(plan_command)
app.command("compare")(compare_command)


@app.command("import")
@reads_problem
def import_command(
    file: FileArgument,
    recorded: Recording,
    network: Network | None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Write the problem file here.")
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if a check fails (exit code 2).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a recording into a problem file, and say what was kept, dropped and assumed."""
    failed = [check.text for check in recorded.report.checks if not check.passed]
    if strict and failed:
        raise InputError(f"{file}: not imported, --strict: {'; '.join(failed)}")
    problem = None
    notes: tuple[str, ...] = ("the file has no costs: give them to whatever reads it",)
    if network is not None:
        costs, notes = network.costs(recorded.needs, file)
        problem = recorded.with_costs(costs)
    write_problem(problem or recorded, out)
    if as_json:
        print_json(import_document(recorded))
        return
    console = make_console()
    console.print(printable(recorded.name), style="bold", markup=False)
    plan = None if problem is None else recorded.plan
    modelled = None if problem is None or plan is None else evaluate(problem, plan)
    print_recorded(console, recorded, modelled)
    for note in notes:
        print_assumption(console, note)
    console.print(printable(f"written to {out}"), markup=False)


@app.command("evaluate")
@reads_problem
def evaluate_command(
    file: FileArgument,
    loaded: Loaded,
    watch: Watch,
    slowed: KnownSlowdown | None,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    overheads: OverheadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan on a problem and print what it does."""
    problem = loaded.problem
    terms = None if overheads is None else read_overheads(overheads)
    planned = read_plan(plan_file)
    if planned.problem_digest != problem_digest(problem):
        watch.warn(f"{plan_file} was made for another problem")
    timeline = _evaluate(problem, planned, plan_file)
    if as_json:
        document = timeline_document(problem, timeline)
        if terms is not None:
            found = play_overheads(problem, timeline.plan, terms)
            document["overheads"] = overheads_document(found)
        if slowed is not None:
            plans = [("this plan", "", timeline.plan)]
            document["slowdown"] = slowed_document(problem, plans, slowed)
        print_json(document)
        return
    console = make_console()
    print_problem(console, problem)
    console.print(
        f"step {format_ns(timeline.makespan_ns)}, exposed {format_ns(timeline.exposed_ns)}, "
        f"{len(timeline.launches)} launches"
    )
    if terms is not None:
        play_overheads(problem, timeline.plan, terms)  # says why it cannot be done
        print_overheads(console, problem, [("this plan", timeline.plan)], terms)
    if slowed is not None:
        print_slowed(console, problem, [("this plan", "", timeline.plan)], slowed)
    console.print()
    print_buckets(console, timeline)


@app.command("verify")
@reads_problem
def verify_command(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    file: FileArgument,
    loaded: Loaded,
    as_json: JsonOption = False,
) -> None:
    """Check a plan file against its problem, without a solver."""
    problem = loaded.problem
    found = verify_plan(problem, read_plan(plan_file), plan_file)
    if as_json:
        print_json(
            {
                "verified": True,
                "checks": found.checks,
                "not_checked": found.notes,
                "bound_proved": found.bound_proved,
            }
        )
        return
    for check in found.checks:
        typer.echo(f"ok: {check}")
    for note in found.notes:
        typer.echo(f"note: {note}")


app.command("fit")(fit_command)
app.command("analyse")(analyse_command)
app.command("export")(export_command)
app.command("sensitivity")(sensitivity_command)
app.command("report")(report_command)
app.add_typer(problems_app, name="problems")


def _evaluate(problem: Problem, planned: PlanFile, path: Path) -> Timeline:
    try:
        return evaluate(problem, plan_of(planned, path))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None

"""The command line: ``commsched plan``, ``compare``, ``verify`` and so on.

Results go to standard output, messages to standard error. Exit codes: 0 a plan was found or holds,
2 the input is at fault (one line says how), 3 infeasible, 4 the limit was reached without a plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from commsched import __version__
from commsched.analysing import analyse_command
from commsched.documents import (
    comparison_document,
    import_document,
    json_bytes,
    plan_document,
    timeline_document,
)
from commsched.exporting import export_command
from commsched.fitting import fit_command
from commsched.library_command import problems_app
from commsched.models import Problem, Timeline, evaluate
from commsched.models.errors import (
    InputError,
    PlanError,
)
from commsched.models.units import format_ns
from commsched.optimizer import (
    METHODS,
    TIME_LIMIT_S,
    WORKERS,
    Result,
    Status,
    compare,
    conflict,
    limit_prices,
    optimize,
    verdict,
)
from commsched.options import FileArgument, JsonOption, LimitOption, ScopeOption, reads_problem
from commsched.output import (
    make_console,
    print_assumption,
    print_best_settings,
    print_buckets,
    print_left_out,
    print_prices,
    print_problem,
    print_proof,
    print_recorded,
    print_settings,
    print_steps,
    print_verdict,
)
from commsched.problems import (
    Loaded,
    Network,
    Recording,
    plan_of,
    problem_digest,
    read_plan,
    write_problem,
)
from commsched.problems.files import write_bytes
from commsched.problems.schema import PlanFile
from commsched.process import EXIT_INFEASIBLE, EXIT_LIMIT, print_csv, print_json, run
from commsched.reporting import report_command
from commsched.sensitivity import sensitivity_command
from commsched.today import TODAY, best_cap_row, draw_comparison_page, draw_plan, today_row
from commsched.verification import verify as verify_plan
from commsched.watching import watcher

MOST_TUNED = 500
"""Up to so many gradients ``plan`` also finds the best caps, which takes a second."""

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


@app.command()
@reads_problem
def plan(
    file: FileArgument,
    loaded: Loaded,
    scope: ScopeOption = "in-order",
    method: Annotated[
        str, typer.Option("--method", help=f"How to search: {', '.join(METHODS)}.")
    ] = "auto",
    time_limit: LimitOption = TIME_LIMIT_S,
    workers: Annotated[int, typer.Option("--workers", help="CP-SAT's threads.")] = WORKERS,
    seed: Annotated[int, typer.Option("--seed", help="CP-SAT's random seed.")] = 0,
    within: Annotated[
        float,
        typer.Option("--within", help="Few launches within this share of the best step: 0.01."),
    ] = 0.0,
    progress: Annotated[
        bool,
        typer.Option("--progress", help="Tell every better plan and bound on standard error."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Tell nothing on the way.")] = False,
    solver_log: Annotated[
        bool, typer.Option("--solver-log", help="Print CP-SAT's log on standard error.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan file here.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw the timelines, as .png or .svg."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best buckets and launch order, with a proof."""
    problem = loaded.problem
    result = optimize(
        problem,
        scope=scope,
        method=method,
        time_limit_s=time_limit,
        workers=workers,
        seed=seed,
        within=within,
        progress=watcher(quiet=quiet, asked=progress),
        log=solver_log,
    )
    if result.plan is None:
        _no_plan(result, as_json, time_limit, workers)
    with_settings = not as_json and len(problem.names) <= MOST_TUNED
    comparison = compare(problem, result=result, rules=TODAY, best_settings=with_settings)
    today = today_row(comparison, loaded)
    sentence = verdict(result, today)
    prices = limit_prices(result, time_limit_s=time_limit, workers=workers, seed=seed)
    document = {**plan_document(result, prices), "verdict": sentence}
    if picture is not None:
        draw_plan(picture, comparison, today)
    if out is not None:
        write_bytes(out, json_bytes(document))
    if as_json:
        print_json(document)
        return
    console = make_console()
    print_problem(console, problem)
    for note in loaded.notes:
        print_assumption(console, note)
    if loaded.recorded is not None:
        recorded = today.timeline if today is not None and today.name == "recorded" else None
        print_recorded(console, loaded.recorded, recorded)
    console.print()
    rows = [row for row in (today, best_cap_row(comparison)) if row is not None]
    print_steps(console, [*rows, comparison.optimal], result)
    console.print()
    print_proof(console, result)
    print_verdict(console, sentence)
    print_prices(console, prices)
    console.print()
    print_buckets(console, result.timeline)
    print_settings(console, problem, result, comparison)


@app.command("compare")
@reads_problem
def compare_command(
    file: FileArgument,
    loaded: Loaded,
    scope: ScopeOption = "in-order",
    time_limit: LimitOption = TIME_LIMIT_S,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Draw exposed time over the cap, as .png or .svg."
        ),
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the table as CSV and nothing else.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare every rule with the optimum and the lower bound."""
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other")
    comparison = compare(loaded.problem, scope=scope, time_limit_s=time_limit)
    today = today_row(comparison, loaded)
    sentence = verdict(comparison.result, today)
    if picture is not None:
        draw_comparison_page(picture, comparison, sentence)
    if as_csv:
        print_csv(comparison)
        return
    if as_json:
        print_json(comparison_document(comparison, sentence, today))
        return
    console = make_console()
    print_problem(console, loaded.problem)
    for note in loaded.notes:
        print_assumption(console, note)
    console.print()
    rows = list(comparison.rows)
    if today is not None and today not in rows:
        rows = sorted([*rows, today], key=lambda row: (row.timeline.makespan_ns, row.launches))
    print_steps(console, [comparison.optimal, *rows], comparison.result)
    console.print()
    print_best_settings(console, comparison)
    console.print()
    print_proof(console, comparison.result)
    for name, reason in comparison.skipped:
        print_left_out(console, name, reason)
    print_verdict(console, sentence)


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
    console.print(recorded.name, style="bold", markup=False)
    plan = None if problem is None else recorded.plan
    modelled = None if problem is None or plan is None else evaluate(problem, plan)
    print_recorded(console, recorded, modelled)
    for note in notes:
        print_assumption(console, note)
    console.print(f"written to {out}", markup=False)


@app.command("evaluate")
@reads_problem
def evaluate_command(
    file: FileArgument,
    loaded: Loaded,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    as_json: JsonOption = False,
) -> None:
    """Run a plan on a problem and print what it does."""
    problem = loaded.problem
    planned = read_plan(plan_file)
    if planned.problem_digest != problem_digest(problem):
        typer.echo(f"commsched: warning: {plan_file} was made for another problem", err=True)
    timeline = _evaluate(problem, planned, plan_file)
    if as_json:
        print_json(timeline_document(problem, timeline))
        return
    console = make_console()
    print_problem(console, problem)
    console.print(
        f"step {format_ns(timeline.makespan_ns)}, exposed {format_ns(timeline.exposed_ns)}, "
        f"{len(timeline.launches)} launches"
    )
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
    checks = verify_plan(problem, read_plan(plan_file), plan_file)
    if as_json:
        print_json({"verified": True, "checks": checks})
        return
    for check in checks:
        typer.echo(f"ok: {check}")


def _no_plan(result: Result, as_json: bool, time_limit: float, workers: int) -> NoReturn:
    """Say why there is no plan, and which limits exclude each other, and exit."""
    text = f"{result.status}: {result.reason}"
    excluded = None
    if result.status == Status.INFEASIBLE:
        excluded = conflict(
            result.problem, scope=result.scope, time_limit_s=time_limit, workers=workers
        )
    if excluded is not None:
        named = "; ".join(limit.label for limit in excluded)
        what = "no plan keeps" if len(excluded) == 1 else "no plan keeps together"
        text = f"{result.status}: {what}: {named}"
    if as_json:
        labels = None if excluded is None else [limit.label for limit in excluded]
        print_json({**plan_document(result), "conflict": labels})
    typer.echo(f"commsched: {text}", err=True)
    raise typer.Exit(EXIT_INFEASIBLE if result.status == Status.INFEASIBLE else EXIT_LIMIT)


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


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    run(app, arguments)

"""The command line: ``commsched plan | compare | evaluate | verify | import | fit``.

Results go to standard output, messages to standard error. Exit codes: 0 a plan was found or holds,
2 the input is at fault (one line says how), 3 infeasible, 4 the limit was reached without a plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched import __version__
from commsched.documents import (
    comparison_document,
    import_document,
    json_bytes,
    plan_document,
    timeline_document,
)
from commsched.fitting import fit_command
from commsched.models import AlphaBeta, CostCurve, Problem, Timeline, evaluate
from commsched.models.errors import (
    DeadlockError,
    InputError,
    PlanError,
)
from commsched.models.units import format_ns
from commsched.optimizer import (
    METHODS,
    TIME_LIMIT_S,
    WORKERS,
    Comparison,
    Row,
    Status,
    compare,
    optimize,
    verdict,
)
from commsched.options import (
    AlphaOption,
    BandwidthOption,
    CostsOption,
    JsonOption,
    LimitOption,
    ProblemArgument,
    ScopeOption,
    SizesOption,
    StepOption,
)
from commsched.output import (
    make_console,
    print_best_settings,
    print_buckets,
    print_left_out,
    print_problem,
    print_proof,
    print_recorded,
    print_settings,
    print_steps,
    print_verdict,
)
from commsched.problems import (
    Loaded,
    load,
    plan_of,
    problem_digest,
    read_costs,
    read_plan,
    write_problem,
)
from commsched.problems.files import write_bytes
from commsched.problems.schema import PlanFile
from commsched.process import EXIT_INFEASIBLE, EXIT_LIMIT, print_csv, print_json, run
from commsched.verification import verify as verify_plan

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
def plan(
    file: ProblemArgument,
    scope: ScopeOption = "in-order",
    method: Annotated[
        str, typer.Option("--method", help=f"How to search: {', '.join(METHODS)}.")
    ] = "auto",
    time_limit: LimitOption = TIME_LIMIT_S,
    workers: Annotated[int, typer.Option("--workers", help="CP-SAT's threads.")] = WORKERS,
    seed: Annotated[int, typer.Option("--seed", help="CP-SAT's random seed.")] = 0,
    alpha_us: AlphaOption = None,
    bandwidth_gb_s: BandwidthOption = None,
    costs: CostsOption = None,
    step: StepOption = None,
    sizes: SizesOption = None,
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
    if out is not None and _is_same_file(out, file):
        raise InputError(f"--out: {out} is the problem itself")
    loaded = _load(file, alpha_us, bandwidth_gb_s, costs, step, sizes)
    problem = loaded.problem
    result = optimize(
        problem, scope=scope, method=method, time_limit_s=time_limit, workers=workers, seed=seed
    )
    if result.plan is None:
        if as_json:
            print_json(plan_document(result))
        typer.echo(f"commsched: {result.status}: {result.reason}", err=True)
        raise typer.Exit(EXIT_INFEASIBLE if result.status == Status.INFEASIBLE else EXIT_LIMIT)
    with_settings = not as_json and len(problem.names) <= MOST_TUNED
    comparison = compare(problem, result=result, rules=["ddp"], best_settings=with_settings)
    today = _today(comparison, loaded)
    sentence = verdict(result, today)
    document = {**plan_document(result), "verdict": sentence}
    if picture is not None:
        _draw_plan(picture, comparison, today)
    if out is not None:
        write_bytes(out, json_bytes(document))
    if as_json:
        print_json(document)
        return
    console = make_console()
    print_problem(console, problem)
    if loaded.recorded is not None:
        recorded = today.timeline if today is not None and today.name == "recorded" else None
        print_recorded(console, loaded.recorded, recorded)
    console.print()
    rows = [row for row in (today, _best_cap_row(comparison)) if row is not None]
    print_steps(console, [*rows, comparison.optimal], result)
    console.print()
    print_proof(console, result)
    print_verdict(console, sentence)
    console.print()
    print_buckets(console, result.timeline)
    print_settings(console, problem, result, comparison)


@app.command("compare")
def compare_command(
    file: ProblemArgument,
    scope: ScopeOption = "in-order",
    time_limit: LimitOption = TIME_LIMIT_S,
    alpha_us: AlphaOption = None,
    bandwidth_gb_s: BandwidthOption = None,
    costs: CostsOption = None,
    step: StepOption = None,
    sizes: SizesOption = None,
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
    loaded = _load(file, alpha_us, bandwidth_gb_s, costs, step, sizes)
    comparison = compare(loaded.problem, scope=scope, time_limit_s=time_limit)
    today = _today(comparison, loaded)
    sentence = verdict(comparison.result, today)
    if picture is not None:
        _draw_comparison(picture, comparison, sentence)
    if as_csv:
        print_csv(comparison)
        return
    if as_json:
        print_json(comparison_document(comparison, sentence, today))
        return
    console = make_console()
    print_problem(console, loaded.problem)
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
def import_command(
    file: Annotated[
        str, typer.Argument(metavar="TRACE", help="A PyTorch profiler trace of a DDP step.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Write the problem file here.")
    ],
    alpha_us: AlphaOption = None,
    bandwidth_gb_s: BandwidthOption = None,
    costs: CostsOption = None,
    step: StepOption = None,
    sizes: SizesOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if a check fails (exit code 2).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a recording into a problem file, and say what was kept, dropped and assumed."""
    loaded = _load(file, alpha_us, bandwidth_gb_s, costs, step, sizes)
    if loaded.recorded is None:
        raise InputError(f"{file}: is no recording")
    failed = [check.text for check in loaded.recorded.report.checks if not check.passed]
    if strict and failed:
        raise InputError(f"{file}: not imported, --strict: {'; '.join(failed)}")
    write_problem(loaded.problem, out)
    if as_json:
        print_json(import_document(loaded.recorded))
        return
    console = make_console()
    print_problem(console, loaded.problem)
    recorded = loaded.recorded.plan
    modelled = None if recorded is None else evaluate(loaded.problem, recorded)
    print_recorded(console, loaded.recorded, modelled)
    console.print(f"written to {out}", markup=False)


@app.command("evaluate")
def evaluate_command(
    file: ProblemArgument,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    alpha_us: AlphaOption = None,
    bandwidth_gb_s: BandwidthOption = None,
    costs: CostsOption = None,
    step: StepOption = None,
    sizes: SizesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan on a problem and print what it does."""
    problem = _load(file, alpha_us, bandwidth_gb_s, costs, step, sizes).problem
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
def verify_command(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    file: ProblemArgument,
    alpha_us: AlphaOption = None,
    bandwidth_gb_s: BandwidthOption = None,
    costs: CostsOption = None,
    step: StepOption = None,
    sizes: SizesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a plan file against its problem, without a solver."""
    problem = _load(file, alpha_us, bandwidth_gb_s, costs, step, sizes).problem
    checks = verify_plan(problem, read_plan(plan_file), plan_file)
    if as_json:
        print_json({"verified": True, "checks": checks})
        return
    for check in checks:
        typer.echo(f"ok: {check}")


def _is_same_file(out: Path, file: str) -> bool:
    try:
        return out.samefile(file)
    except (OSError, ValueError):  # one is not there, or is no path at all
        return False


app.command("fit")(fit_command)


def _load(
    file: str,
    alpha_us: float | None,
    bandwidth_gb_s: float | None,
    costs: Path | None,
    step: int | None,
    sizes: Path | None,
) -> Loaded:
    cost: CostCurve | None = None
    if costs is not None:
        if alpha_us is not None or bandwidth_gb_s is not None:
            raise InputError("--costs: give a cost file or --alpha-us and --bandwidth-gb-s")
        cost = read_costs(costs)
    elif alpha_us is not None or bandwidth_gb_s is not None:
        if alpha_us is None or bandwidth_gb_s is None:
            raise InputError("--alpha-us and --bandwidth-gb-s go together")
        cost = AlphaBeta(alpha_us, bandwidth_gb_s)
    return load(file, cost=cost, step=step, sizes=sizes)


def _evaluate(problem: Problem, planned: PlanFile, path: Path) -> Timeline:
    try:
        return evaluate(problem, plan_of(planned, path))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def _today(comparison: Comparison, loaded: Loaded) -> Row | None:
    """Return what runs today: the recorded buckets where there are some, else DDP's default."""
    problem = comparison.result.problem
    if loaded.recorded is not None and (recorded := loaded.recorded.plan) is not None:
        try:
            timeline = evaluate(problem, recorded)
        except DeadlockError:
            pass
        else:
            over = max(0, timeline.makespan_ns - comparison.result.makespan_ns)
            return Row("recorded", "the recorded buckets", "", recorded, timeline, over)
    return next((row for row in comparison.rows if row.name == "ddp"), None)


def _best_cap_row(comparison: Comparison) -> Row | None:
    return next((row for row in comparison.rows if row.name == "ddp-best"), None)


def _draw_plan(path: Path, comparison: Comparison, today: Row | None) -> None:
    from commsched.picture import Panel, draw

    best = comparison.optimal
    rows = [row for row in (today, best) if row is not None]
    draw(
        [Panel.of(row.title, row.timeline) for row in rows],
        path,
        title=comparison.result.problem.name or "unnamed problem",
        subtitle=verdict(comparison.result, today),
    )


def _draw_comparison(path: Path, comparison: Comparison, sentence: str) -> None:
    from commsched.cap_picture import draw_comparison

    title = comparison.result.problem.name or "unnamed problem"
    draw_comparison(comparison, path, title=title, subtitle=sentence)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    run(app, arguments)

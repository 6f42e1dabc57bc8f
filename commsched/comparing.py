"""``commsched compare FILE``: every rule beside the optimum and the lower bound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched.documents import compared_document, comparison_document
from commsched.models.errors import InputError
from commsched.optimizer import TIME_LIMIT_S, compare, optimize, verdict
from commsched.options import (
    FileArgument,
    JsonOption,
    LimitOption,
    ScopeOption,
    TimelineOption,
    reads_problem,
)
from commsched.output import (
    make_console,
    print_assumption,
    print_best_settings,
    print_left_out,
    print_problem,
    print_proof,
    print_steps,
    print_verdict,
)
from commsched.planless import leave_without_plan
from commsched.problems import Loaded
from commsched.process import print_csv, print_json
from commsched.slowed_output import print_slowed, slowed_document
from commsched.slowing import KnownSlowdown
from commsched.terminal import print_rows
from commsched.today import draw_comparison_page, today_row, tuned_row
from commsched.watching import Watch


@reads_problem
def compare_command(
    file: FileArgument,
    loaded: Loaded,
    watch: Watch,
    slowed: KnownSlowdown | None,
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
    timeline: TimelineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every rule with the optimum and the lower bound."""
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other")
    if (as_csv or as_json) and timeline:
        raise InputError(f"--{'csv' if as_csv else 'json'} and --timeline exclude each other")
    problem = loaded.problem
    with watch.search("searching", time_limit) as tell:
        result = optimize(problem, scope=scope, time_limit_s=time_limit, progress=tell)
    if result.plan is None:
        shown = compared_document(result) if as_json else None
        leave_without_plan(result, watch, time_limit, document=shown)
    with watch.steps("comparing") as tell_steps:
        comparison = compare(problem, result=result, progress=tell_steps)
    today = today_row(comparison, loaded)
    sentence = verdict(comparison.result, today)
    if picture is not None:
        draw_comparison_page(picture, comparison, sentence)
    if as_csv:
        print_csv(comparison)
        return
    if as_json:
        document = comparison_document(comparison, sentence, today)
        if slowed is not None:
            plans = [(r.title, r.setting, r.plan) for r in [comparison.optimal, *comparison.rows]]
            document["slowdown"] = slowed_document(problem, plans, slowed)
        print_json(document)
        return
    console = make_console()
    print_problem(console, problem)
    for note in loaded.notes:
        print_assumption(console, note)
    console.print()
    rows = list(comparison.rows)
    if today is not None and today not in rows:
        rows = sorted([*rows, today], key=lambda row: (row.timeline.makespan_ns, row.launches))
    print_steps(console, [comparison.optimal, *rows], comparison.result)
    console.print()
    if slowed is not None:
        plans = [(row.title, row.setting, row.plan) for row in [comparison.optimal, *rows]]
        print_slowed(console, problem, plans, slowed)
    drawn = [today, tuned_row(comparison, today), comparison.optimal]
    print_rows(console, drawn, asked=timeline)
    print_best_settings(console, comparison)
    console.print()
    print_proof(console, comparison.result)
    for name, reason in comparison.skipped:
        print_left_out(console, name, reason)
    print_verdict(console, sentence)

"""``commsched plan FILE``: the best buckets and launch order, with a proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched.documents import json_bytes, plan_document
from commsched.models.errors import InputError
from commsched.optimizer import (
    METHODS,
    TIME_LIMIT_S,
    WORKERS,
    compare,
    limit_prices,
    optimize,
    verdict,
)
from commsched.options import (
    FileArgument,
    JsonOption,
    LimitOption,
    OverheadsOption,
    ScopeOption,
    TimelineOption,
    reads_problem,
)
from commsched.output import (
    make_console,
    print_assumption,
    print_buckets,
    print_prices,
    print_problem,
    print_proof,
    print_recorded,
    print_settings,
    print_steps,
    print_verdict,
)
from commsched.overheads_output import planned_document, print_planned, under_overheads
from commsched.planless import leave_without_plan
from commsched.problems import Loaded
from commsched.problems.files import write_bytes
from commsched.problems.overheads_file import read_overheads
from commsched.process import print_json
from commsched.slowed_output import for_slowdown, print_slowed, slowed_document
from commsched.slowing import KnownSlowdown
from commsched.terminal import print_rows
from commsched.today import TODAY, best_cap_row, draw_plan, today_row
from commsched.watching import Watch

MOST_TUNED = 500
"""Up to so many gradients ``plan`` also finds the best caps, which takes a second."""


@reads_problem
def plan_command(
    file: FileArgument,
    loaded: Loaded,
    watch: Watch,
    slowed: KnownSlowdown | None,
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
    repeatable: Annotated[
        bool,
        typer.Option(
            "--repeatable", help="End by counted work, so that the same seed gives the same plan."
        ),
    ] = False,
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
    timeline: TimelineOption = None,
    overheads: OverheadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best buckets and launch order, with a proof."""
    if as_json and timeline:
        raise InputError("--json and --timeline exclude each other")
    problem = loaded.problem
    terms = None if overheads is None else read_overheads(overheads)
    with watch.search("searching", time_limit) as tell:
        result = optimize(
            problem,
            scope=scope,
            method=method,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            within=within,
            progress=tell,
            log=solver_log,
            repeatable=repeatable,
        )
    if result.plan is None:
        shown = plan_document(result) if as_json else None
        leave_without_plan(result, watch, time_limit, workers, document=shown)
    found, chosen = None, result
    if terms is not None:
        with watch.doing("planning with overheads"):
            found = under_overheads(result, terms)
        chosen = found.result
    made = None
    if slowed is not None:
        with watch.doing("planning under the slowdown"):
            made = for_slowdown(chosen, slowed, time_limit)
    with_settings = not as_json and len(problem.names) <= MOST_TUNED
    with watch.steps("comparing") as tell_steps:
        comparison = compare(
            problem,
            result=result,
            rules=TODAY,
            best_settings=with_settings,
            progress=tell_steps,
        )
    today = today_row(comparison, loaded)
    sentence = verdict(result, today)
    with watch.steps("pricing limits") as tell_limits:
        prices = limit_prices(
            result, time_limit_s=time_limit, workers=workers, seed=seed, progress=tell_limits
        )
    words = sentence if found is None else found.words
    document = {**plan_document(chosen, prices), "verdict": words}
    if picture is not None:
        draw_plan(picture, comparison, today)
    if out is not None:
        write_bytes(out, json_bytes(document))
    if as_json:
        more = {} if found is None else {"overheads": planned_document(found)}
        if slowed is not None and made is not None:
            plans = [("this plan", "", made.ignorant.plan)]
            more["slowdown"] = slowed_document(problem, plans, slowed, made)
        print_json({**document, **more})
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
    print_rows(console, [today, comparison.optimal], asked=timeline)
    if slowed is not None:
        plans = [(row.title, row.setting, row.plan) for row in [*rows, comparison.optimal]]
        print_slowed(console, problem, plans, slowed, made)
    print_proof(console, result)
    print_verdict(console, sentence)
    print_prices(console, prices)
    console.print()
    if found is not None:
        print_planned(console, found, rows)
        return
    print_buckets(console, result.timeline)
    print_settings(console, problem, result, comparison)

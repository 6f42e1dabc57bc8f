"""``commsched report FILE -o report.html``: one page with everything that was found, for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched.cases import RobustCostsOption, RobustOption, other_cases
from commsched.export import EXPORTERS
from commsched.models.errors import InputError
from commsched.optimizer import METHODS, TIME_LIMIT_S, WORKERS, Status, optimize
from commsched.options import (
    FileArgument,
    JsonOption,
    LimitOption,
    OverheadsOption,
    ScopeOption,
    reads_problem,
)
from commsched.output import make_console
from commsched.problems import Loaded, Network, ReadOptions
from commsched.problems.files import write_bytes
from commsched.problems.overheads_file import read_overheads
from commsched.process import EXIT_INFEASIBLE, EXIT_LIMIT, print_json
from commsched.slowing import (
    LaunchSlowdownOption,
    SlowdownAloneOption,
    SlowdownOption,
    known_slowdown,
)
from commsched.watching import Watch


@reads_problem
def report_command(
    file: FileArgument,
    loaded: Loaded,
    network: Network | None,
    reading: ReadOptions,
    watch: Watch,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            metavar="FRAMEWORK",
            help=f"Whose settings to show: {', '.join(EXPORTERS)}; by default ddp, or fsdp2 "
            "where ddp does not apply.",
        ),
    ] = None,
    slowdown: SlowdownOption = None,
    launch_slowdown: LaunchSlowdownOption = 1,
    slowdown_alone: SlowdownAloneOption = None,
    overheads: OverheadsOption = None,
    other: RobustOption = None,
    other_costs: RobustCostsOption = None,
    scope: ScopeOption = "in-order",
    method: Annotated[
        str, typer.Option("--method", help=f"How to search: {', '.join(METHODS)}.")
    ] = "auto",
    time_limit: LimitOption = TIME_LIMIT_S,
    workers: Annotated[int, typer.Option("--workers", help="CP-SAT's threads.")] = WORKERS,
    seed: Annotated[int, typer.Option("--seed", help="CP-SAT's random seed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write a page with the verdict, timelines, rules, what-ifs and what was read."""
    from commsched.report import KnownOverheads, gather, page_bytes, summary_document, summary_lines

    if framework is not None and framework not in EXPORTERS:
        names = ", ".join(EXPORTERS)
        raise InputError(f"--framework: {framework!r:.60} is not one of {names}")
    known = known_slowdown(file, slowdown, launch_slowdown, slowdown_alone)
    cases = other_cases(
        file,
        loaded,
        others=other,
        other_costs=other_costs,
        network=network,
        reading=reading,
        watch=watch,
    )
    added = None
    if overheads is not None:
        added = KnownOverheads(read_overheads(overheads), str(overheads))
    problem = loaded.problem
    with watch.search("searching", time_limit) as tell:
        result = optimize(
            problem,
            scope=scope,
            method=method,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            progress=tell,
        )
    with watch.steps("making the page") as tell_steps:
        contents = gather(
            file,
            loaded,
            result,
            framework=framework,
            slowdown=known,
            overheads=added,
            others=cases,
            network=network,
            time_limit_s=time_limit,
            workers=workers,
            progress=tell_steps,
        )
        data = page_bytes(contents)
    write_bytes(out, data)
    if as_json:
        print_json({"written": str(out), "bytes": len(data), **summary_document(contents)})
    else:
        console = make_console()
        for line in (*summary_lines(contents), f"written to {out}: open it in a browser"):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if result.plan is None:
        typer.echo(f"commsched: {result.status}: {contents.verdict}", err=True)
        infeasible = result.status is Status.INFEASIBLE
        raise typer.Exit(EXIT_INFEASIBLE if infeasible else EXIT_LIMIT)

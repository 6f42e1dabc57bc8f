"""``commsched sensitivity FILE``: how wrong the input may be, and a plan that is safe for several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched.models.errors import InputError, NotApplicableError
from commsched.models.slowdown import Slowdown
from commsched.models.units import exact
from commsched.optimizer.hiding import hiding_bandwidth
from commsched.optimizer.robust import robust
from commsched.optimizer.sensitivity import sensitivity
from commsched.optimizer.slowed import optimize_slowed
from commsched.optimizer.solve import TIME_LIMIT_S, optimize
from commsched.options import FileArgument, JsonOption, LimitOption, reads_problem
from commsched.output import make_console, print_problem
from commsched.problems import Loaded, Network, load, read_network
from commsched.process import print_json
from commsched.sensitivity_output import (
    document,
    print_hiding,
    print_knobs,
    print_robust,
    print_slowed,
)

KNOBS = ("alpha", "bandwidth", "compute")


@reads_problem
def sensitivity_command(
    file: FileArgument,
    loaded: Loaded,
    network: Network | None,
    factor: Annotated[
        float, typer.Option("--factor", help="Look at factors from 1/N to N.", metavar="N")
    ] = 10,
    within: Annotated[
        float, typer.Option("--within", help="Percent of the step that count as little.")
    ] = 1,
    hide: Annotated[
        float,
        typer.Option("--hide", help="Percent of the step that may stay exposed when it is hidden."),
    ] = 1,
    slowdown: Annotated[
        float | None,
        typer.Option("--slowdown", help="Compute takes so many times as long beside a launch."),
    ] = None,
    launch_slowdown: Annotated[
        float, typer.Option("--launch-slowdown", help="Launches do beside compute.")
    ] = 1,
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--robust",
            metavar="FILE",
            help="Another step or rank that the plan should be good for, too; several times.",
        ),
    ] = None,
    other_costs: Annotated[
        list[Path] | None,
        typer.Option(
            "--robust-costs",
            metavar="FILE",
            help="Another cost file that the plan should be good for, too; several times.",
        ),
    ] = None,
    time_limit: LimitOption = TIME_LIMIT_S,
    as_json: JsonOption = False,
) -> None:
    """Say how far costs and compute speed may be off before the best plan changes."""
    range_ = exact(factor, "--factor")
    if range_ < 1:
        raise InputError(f"--factor: {factor} must be at least 1")
    if slowdown is None and launch_slowdown != 1:
        raise InputError("--launch-slowdown goes with --slowdown")
    problem = loaded.problem
    cases = [problem]
    cases += [load(path, cost=network).problem for path in other or ()]
    for path in other_costs or ():
        given = read_network(path)
        if loaded.recorded is None:
            cases.append(load(file, cost=given).problem)
        else:
            costs, _ = given.costs(loaded.recorded.needs, file)
            cases.append(loaded.recorded.with_costs(costs))
    result = optimize(problem, time_limit_s=time_limit)
    knobs, hiding, why_not = [], None, ""
    try:
        if result.plan is None:
            raise NotApplicableError(f"no plan is known: {result.status}")
        share = exact(within, "--within") / 100
        for knob in KNOBS:
            knobs.append(
                sensitivity(problem, knob, result.plan, low=1 / range_, high=range_, within=share)
            )
        hiding = hiding_bandwidth(problem, exact(hide, "--hide") / 100)
    except NotApplicableError as error:
        if slowdown is None and len(cases) == 1:
            raise
        why_not = str(error)
    slowed = safe = None
    if slowdown is not None:
        factors = Slowdown(slowdown, launch_slowdown)
        slowed = optimize_slowed(problem, factors, nominal=result, time_limit_s=time_limit)
    if len(cases) > 1:
        safe = robust(cases, time_limit_s=time_limit)
    if as_json:
        print_json(document(problem, result, knobs, hiding, slowed, safe, why_not))
        return
    console = make_console()
    print_problem(console, problem)
    if knobs and hiding is not None:
        print_knobs(console, problem, knobs)
        print_hiding(console, hiding)
    else:
        console.print(why_not, markup=False)
    if slowed is not None:
        print_slowed(console, slowed)
    if safe is not None:
        names = [file, *(other or ()), *(f"{file} with {path}" for path in other_costs or ())]
        print_robust(console, safe, names)

"""``commsched sensitivity FILE``: how wrong the input may be, and a plan that is safe for several."""

from __future__ import annotations

from typing import Annotated

import typer

from commsched.cases import RobustCostsOption, RobustOption, other_cases
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.units import exact
from commsched.optimizer.hiding import hiding_bandwidth
from commsched.optimizer.robust import robust
from commsched.optimizer.sensitivity import sensitivity
from commsched.optimizer.slowed import optimize_slowed
from commsched.optimizer.solve import TIME_LIMIT_S, optimize
from commsched.options import FileArgument, JsonOption, LimitOption, reads_problem
from commsched.output import make_console, print_problem
from commsched.planless import leave_without_plan
from commsched.problems import Loaded, Network, ReadOptions
from commsched.process import print_json
from commsched.sensitivity_output import (
    document,
    nominal_document,
    print_hiding,
    print_knobs,
    print_robust,
    print_slowed,
)
from commsched.slowing import (
    LaunchSlowdownOption,
    SlowdownAloneOption,
    SlowdownOption,
    known_slowdown,
)
from commsched.watching import Watch

KNOBS = ("alpha", "bandwidth", "compute")
PARTS = len(KNOBS) + 3
"""The knobs, the bandwidth that hides, the slowdown and the robust plan."""


@reads_problem
def sensitivity_command(
    file: FileArgument,
    loaded: Loaded,
    network: Network | None,
    reading: ReadOptions,
    watch: Watch,
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
    slowdown: SlowdownOption = None,
    launch_slowdown: LaunchSlowdownOption = 1,
    slowdown_alone: SlowdownAloneOption = None,
    other: RobustOption = None,
    other_costs: RobustCostsOption = None,
    time_limit: LimitOption = TIME_LIMIT_S,
    as_json: JsonOption = False,
) -> None:
    """Say how far costs and compute speed may be off before the best plan changes."""
    range_ = exact(factor, "--factor")
    if range_ < 1:
        raise InputError(f"--factor: {factor} must be at least 1")
    known = known_slowdown(file, slowdown, launch_slowdown, slowdown_alone)
    problem = loaded.problem
    cases = other_cases(
        file,
        loaded,
        others=other,
        other_costs=other_costs,
        network=network,
        reading=reading,
        watch=watch,
    )
    share, most_exposed = exact(within, "--within") / 100, exact(hide, "--hide") / 100
    with watch.search("searching", time_limit) as tell:
        result = optimize(problem, time_limit_s=time_limit, progress=tell)
    if result.plan is None:
        shown = nominal_document(problem, result) if as_json else None
        leave_without_plan(result, watch, time_limit, document=shown)
    knobs, hiding, why_not = [], None, ""
    slowed = safe = None
    with watch.steps("looking at other numbers") as tell_steps:
        try:
            for number, knob in enumerate(KNOBS):
                tell_steps(number, PARTS, knob)
                knobs.append(
                    sensitivity(
                        problem, knob, result.plan, low=1 / range_, high=range_, within=share
                    )
                )
            tell_steps(len(KNOBS), PARTS, "the bandwidth that hides communication")
            hiding = hiding_bandwidth(problem, most_exposed)
        except NotApplicableError as error:
            if known is None and not cases:
                raise
            why_not = str(error)
        if known is not None:
            tell_steps(PARTS - 2, PARTS, "slowdown")
            slowed = optimize_slowed(
                problem, known.slowdown, nominal=result, time_limit_s=time_limit
            )
        if cases:
            safe = robust(
                [problem, *(case.problem for case in cases)],
                nominal=result,
                time_limit_s=time_limit,
                progress=lambda done, total, now: tell_steps(PARTS - 1, PARTS, now),
            )
    source = "" if known is None else known.source
    names = [file, *(case.title for case in cases)]
    if as_json:
        print_json(document(problem, result, knobs, hiding, slowed, source, safe, names, why_not))
        return
    console = make_console()
    print_problem(console, problem)
    if knobs and hiding is not None:
        print_knobs(console, problem, knobs)
        print_hiding(console, hiding)
    else:
        console.print(why_not, markup=False)
    if slowed is not None:
        print_slowed(console, slowed, source)
    if safe is not None:
        print_robust(console, safe, names)

"""Leaving a command whose search found no plan: why, which limits are to blame, and the exit code."""

from __future__ import annotations

from typing import Any, NoReturn

import typer

from commsched.optimizer import WORKERS, Result, Status, conflict
from commsched.process import EXIT_INFEASIBLE, EXIT_LIMIT, print_json
from commsched.watching import Watch


def leave_without_plan(
    result: Result,
    watch: Watch,
    time_limit: float,
    workers: int = WORKERS,
    *,
    document: dict[str, Any] | None = None,
) -> NoReturn:
    """Say on standard error why there is no plan, and exit.

    Parameters
    ----------
    result
        A result without a plan.
    watch
        Tells what is being done.
    time_limit, workers
        For the search for limits that exclude each other.
    document
        What ``--json`` prints of the result, in the shape of the command's own object; None without it.

    Raises
    ------
    typer.Exit
        Always, with the code for an infeasible problem or for a limit that was reached.
    """
    excluded = None
    if result.status == Status.INFEASIBLE:
        with watch.doing("finding the limits that exclude each other"):
            excluded = conflict(
                result.problem, scope=result.scope, time_limit_s=time_limit, workers=workers
            )
    labels = None if excluded is None else [limit.label for limit in excluded]
    text = result.reason
    if labels is not None:
        what = "no plan keeps" if len(labels) == 1 else "no plan keeps together"
        text = f"{what}: {'; '.join(labels)}"
    if document is not None:
        print_json({**document, "conflict": labels})
    typer.echo(f"commsched: {result.status}: {text}", err=True)
    raise typer.Exit(EXIT_INFEASIBLE if result.status == Status.INFEASIBLE else EXIT_LIMIT)

"""Telling how a search goes, on standard error, so that nobody waits in the dark."""

from __future__ import annotations

import sys
from collections.abc import Callable

from commsched.models.units import format_ns
from commsched.optimizer.result import gap

FIRST_AFTER_S = 1.0
"""Searches that end sooner say nothing."""


def watcher(*, quiet: bool, asked: bool) -> Callable[[float, int | None, int], None] | None:
    """Return what a search is to call when it gets better; None if nobody looks.

    Parameters
    ----------
    quiet
        Whether nothing is to be said.
    asked
        Whether everything is to be said, also where standard error is no terminal.
    """
    if quiet or not (asked or sys.stderr.isatty()):
        return None
    first_after_s = 0.0 if asked else FIRST_AFTER_S

    def tell(elapsed_s: float, makespan_ns: int | None, bound_ns: int) -> None:
        if elapsed_s < first_after_s:
            return
        plan = "no plan yet" if makespan_ns is None else f"plan {format_ns(makespan_ns, 5)}"
        rest = f", gap {100 * gap(makespan_ns, bound_ns):.2f}%" if makespan_ns else ""
        sys.stderr.write(
            f"commsched: {elapsed_s:6.1f} s: {plan}, bound {format_ns(bound_ns, 5)}{rest}\n"
        )
        sys.stderr.flush()

    return tell

"""The options that say how much communication slows compute: stated, or fitted to two recordings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from commsched.models.errors import InputError
from commsched.models.slowdown import Slowdown
from commsched.models.slowdown_fit import fit_slowdown
from commsched.problems.breakdown.timed_twice import timed_twice
from commsched.problems.sources.source import STANDARD_INPUT, Source, sources

SlowdownOption = Annotated[
    float | None,
    typer.Option("--slowdown", help="Compute takes so many times as long beside a launch."),
]
LaunchSlowdownOption = Annotated[
    float, typer.Option("--launch-slowdown", help="Launches do beside compute.")
]
SlowdownAloneOption = Annotated[
    str | None,
    typer.Option(
        "--slowdown-alone",
        metavar="TRACE",
        help="Fit that factor to FILE and this trace of the same steps without communication.",
    ),
]


@dataclass(frozen=True)
class KnownSlowdown:
    """A slowdown, and where it comes from.

    Attributes
    ----------
    slowdown
        The factors.
    source
        ``stated``, or what it was fitted to.
    """

    slowdown: Slowdown
    source: str = "stated"


def known_slowdown(
    file: str, compute: float | None, launch: float, alone: str | None
) -> KnownSlowdown | None:
    """Return the slowdown that the options state or let be fitted; None if they say nothing.

    Parameters
    ----------
    file
        The recording with communication.
    compute, launch
        The stated factors.
    alone
        The trace without communication.

    Raises
    ------
    InputError
        If a factor is out of range, launches' is given alone, or nothing can be fitted.
    """
    if compute is not None and alone is not None:
        raise InputError("--slowdown-alone: the factor is stated already, by --slowdown")
    if compute is not None:
        return KnownSlowdown(Slowdown(compute, launch))
    if alone is None:
        if launch != 1:
            raise InputError("--launch-slowdown goes with --slowdown or --slowdown-alone")
        return None
    pairing = timed_twice(_one(file), _one(alone))
    try:
        fit = fit_slowdown(pairing.tasks)
    except InputError as error:
        raise InputError(f"--slowdown-alone: {alone}: {error}") from None
    high = "without an end" if fit.high is None else f"{float(fit.high):.3g}"
    text = (
        f"fitted to {fit.tasks:,} of {len(pairing.tasks):,} kernels that ran beside communication, half "
        f"of that time in kernels with factors from {float(fit.low):.3g} to {high}"
    )
    if pairing.left_out:
        text += f"; {pairing.left_out:,} kernels are not in both recordings"
    return KnownSlowdown(Slowdown(fit.factor, launch), text)


def _one(path: str) -> Source:
    if path == STANDARD_INPUT:
        raise InputError("--slowdown-alone: standard input cannot be read twice")
    try:
        found = sources(path)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"--slowdown-alone: {path}: {error}") from None
    if len(found) != 1:
        raise InputError(f"--slowdown-alone: {path}: holds {len(found)} files, not one trace")
    return found[0]

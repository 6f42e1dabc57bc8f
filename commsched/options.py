"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched.optimizer import SCOPES

ProblemArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A problem file, or a PyTorch profiler trace of a DDP step (JSON or gzip); "
        "'-' reads a problem from standard input.",
    ),
]
AlphaOption = Annotated[
    float | None,
    typer.Option("--alpha-us", help="Start-up latency of an all-reduce, in microseconds."),
]
BandwidthOption = Annotated[
    float | None,
    typer.Option(
        "--bandwidth-gb-s", help="Algorithm bandwidth (bytes / time), in GB/s = 1e9 bytes a second."
    ),
]
CostsOption = Annotated[
    Path | None, typer.Option("--costs", metavar="FILE", help="A cost file, instead of the two.")
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", help="The trace's step to plan; by default the one of median length."),
]
SizesOption = Annotated[
    Path | None,
    typer.Option(
        "--sizes", metavar="FILE", help="An execution trace with shapes, for a trace without them."
    ),
]
ScopeOption = Annotated[
    str, typer.Option("--scope", help=f"Which plans count: {' or '.join(SCOPES)}.")
]
LimitOption = Annotated[float, typer.Option("--time-limit", help="Seconds for CP-SAT.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

"""Options that several commands share, and the one way in which commands read their problem."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from commsched.cases import path_of
from commsched.models import AlphaBeta
from commsched.models.errors import CommschedWarning, InputError
from commsched.optimizer import SCOPES
from commsched.problems import (
    Network,
    ReadOptions,
    limits_of_texts,
    load,
    read_network,
    read_recording,
)
from commsched.slowing import (
    LaunchSlowdownOption,
    SlowdownAloneOption,
    SlowdownOption,
    known_slowdown,
)
from commsched.targets import check_targets
from commsched.watching import Watch

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A problem file, or a recording: a trace, profile or workload, also a folder or an "
        "archive with one for each rank; '-' reads a problem from standard input.",
    ),
]
AlphaOption = Annotated[
    float | None,
    typer.Option("--alpha-us", help="Start-up latency of a launch, in microseconds."),
]
BandwidthOption = Annotated[
    float | None,
    typer.Option("--bandwidth-gb-s", help="Algorithm bandwidth, in GB/s = 1e9 bytes a second."),
]
CostsOption = Annotated[
    Path | None, typer.Option("--costs", metavar="FILE", help="A cost file, instead of the two.")
]
AnyRanksOption = Annotated[
    bool,
    typer.Option("--any-ranks", help="Take costs that were measured with other ranks, too."),
]
MemberOption = Annotated[
    str | None,
    typer.Option("--member", help="Of a folder or archive only files of this name; * is any text."),
]
StepOption = Annotated[
    int | None,
    typer.Option("--step", help="The trace's step to take; by default the one of median length."),
]
SizesOption = Annotated[
    Path | None,
    typer.Option(
        "--sizes", metavar="FILE", help="An execution trace with shapes, for a trace without them."
    ),
]
GraphOption = Annotated[
    bool,
    typer.Option("--graph", help="Take a trace's whole step, also where it is plain DDP."),
]
TokensOption = Annotated[
    int | None,
    typer.Option("--tokens", help="Tokens of a rank in a step, to estimate from a model's config."),
]
TflopsOption = Annotated[
    float | None,
    typer.Option("--tflops", help="A rank's 1e12 operations a second, to estimate likewise."),
]
BackwardOption = Annotated[
    float | None,
    typer.Option("--backward-us", help="Backward's length, for recordings without times."),
]
LimitsOption = Annotated[
    list[str],
    typer.Option(
        "--limit",
        metavar="KIND=VALUE",
        help="What every plan must respect, several times: most-bucket-bytes=25MiB, "
        "least-bucket-bytes=1MiB, most-launches=8, bytes-in-flight=64MiB, launches-in-flight=2, "
        "pool-bytes:NAME=8GiB, together=A,B, apart=A,B.",
    ),
]
ScopeOption = Annotated[
    str, typer.Option("--scope", help=f"Which plans count: {' or '.join(SCOPES)}.")
]
LimitOption = Annotated[float, typer.Option("--time-limit", help="Seconds for CP-SAT.")]
ProgressOption = Annotated[
    bool,
    typer.Option("--progress", help="Tell how long work goes on standard error, line by line."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="Say nothing on standard error but errors.")
]
TimelineOption = Annotated[
    bool | None,
    typer.Option(
        "--timeline/--no-timeline",
        help="Draw the timelines as text; by default on terminals that are wide enough.",
    ),
]
OverheadsOption = Annotated[
    Path | None,
    typer.Option(
        "--overheads",
        metavar="FILE",
        help="What the framework adds to a step (hooks, copies, waking up): plan for it where that "
        "can be done, and show figures with and without it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

_READING: dict[str, tuple[Any, object]] = {
    "alpha_us": (AlphaOption, None),
    "bandwidth_gb_s": (BandwidthOption, None),
    "costs": (CostsOption, None),
    "any_ranks": (AnyRanksOption, False),
    "member": (MemberOption, None),
    "step": (StepOption, None),
    "sizes": (SizesOption, None),
    "graph": (GraphOption, False),
    "tokens": (TokensOption, None),
    "tflops": (TflopsOption, None),
    "backward_us": (BackwardOption, None),
}
_WATCHING: dict[str, tuple[Any, object]] = {
    "progress": (ProgressOption, False),
    "quiet": (QuietOption, False),
}
_SLOWING: dict[str, tuple[Any, object]] = {
    "slowdown": (SlowdownOption, None),
    "launch_slowdown": (LaunchSlowdownOption, 1),
    "slowdown_alone": (SlowdownAloneOption, None),
}
_INJECTED = ("loaded", "recorded", "network", "reading", "watch", "slowed")
TARGETS = ("out", "picture")
"""The parameters of commands that are files to write."""
_INPUTS = ("file", "plan_file", "sizes", "costs", "overheads", "slowdown_alone", "other_costs")
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_NETWORK = ("alpha_us", "bandwidth_gb_s", "costs", "any_ranks")


def reads_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument FILE and all options of reading it.

    The command's parameter ``file`` is the name that the user gave. If it has a parameter
    ``loaded``, that is the problem that was read; one named ``recorded`` is the recording, which
    needs no costs, ``network`` is what the options say of them, and ``reading`` what they say of
    the recording. ``watch`` is how it tells of long work, and ``slowed`` the slowdown of compute
    beside communication that three more options state, or None.
    """
    own = inspect.signature(command, eval_str=True).parameters
    shared = [
        inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation)
        for name, (annotation, default) in (*_READING.items(), *_WATCHING.items())
    ]
    if "slowed" in own:
        shared.extend(
            inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation)
            for name, (annotation, default) in _SLOWING.items()
        )
    if "loaded" in own:
        limits = inspect.Parameter("limit", _KEYWORD, default=[], annotation=LimitsOption)
        shared.append(limits)
    given = [one.replace(kind=_KEYWORD) for name, one in own.items() if name not in _INJECTED]

    @functools.wraps(command)
    def wrapped(**values: object) -> None:
        check_targets({f"--{name}": values.get(name) for name in TARGETS}, _inputs(values))
        reading: dict[str, Any] = {name: values.pop(name) for name in _READING}
        slowing = [values.pop(name) for name in _SLOWING] if "slowed" in own else []
        watch = Watch(quiet=bool(values.pop("quiet")), asked=bool(values.pop("progress")))
        if watch.quiet:
            warnings.simplefilter("ignore", CommschedWarning)
        network = network_of(**{name: reading.pop(name) for name in _NETWORK})
        options, file = ReadOptions(**reading), str(values["file"])
        if "loaded" in own:
            limits = limits_of_texts(cast(list[str], values.pop("limit")))
            with watch.reading(file) as tell:
                loaded = load(file, cost=network, options=options, progress=tell)
            if limits:
                problem = loaded.problem.with_limits((*loaded.problem.limits, *limits))
                loaded = replace(loaded, problem=problem)
            values["loaded"] = loaded
        if "recorded" in own:
            with watch.reading(file) as tell:
                values["recorded"] = read_recording(file, options=options, progress=tell)
        if "network" in own:
            values["network"] = network
        if "reading" in own:
            values["reading"] = options
        if "slowed" in own:
            values["slowed"] = known_slowdown(file, *cast(tuple[Any, Any, Any], tuple(slowing)))
        if "watch" in own:
            values["watch"] = watch
        command(**values)

    wrapped.__signature__ = inspect.Signature([*given, *shared])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in (*given, *shared)}
    return wrapped


def _inputs(values: Mapping[str, object]) -> Iterator[object]:
    """Yield every file that a command's arguments and options name to be read."""
    for name in _INPUTS:
        value = values.get(name)
        yield from value if isinstance(value, list | tuple) else [value]
    for text in cast(Sequence[str], values.get("other") or ()):
        yield path_of(text)


def network_of(
    *,
    alpha_us: float | None,
    bandwidth_gb_s: float | None,
    costs: Path | None,
    any_ranks: bool,
) -> Network | None:
    """Return the network that the options describe; None if they say nothing of it.

    Raises
    ------
    InputError
        If the options contradict each other, or the cost file cannot be read.
    """
    if costs is not None:
        if alpha_us is not None or bandwidth_gb_s is not None:
            raise InputError("--costs: give a cost file or --alpha-us and --bandwidth-gb-s")
        return replace(read_network(costs), any_ranks=any_ranks)
    if any_ranks:
        raise InputError("--any-ranks: is about the curves of a cost file: give --costs FILE")
    if alpha_us is None and bandwidth_gb_s is None:
        return None
    if alpha_us is None or bandwidth_gb_s is None:
        raise InputError("--alpha-us and --bandwidth-gb-s go together")
    return Network.uniform(AlphaBeta(alpha_us, bandwidth_gb_s))

"""The other cases that one plan should be good for: ``--robust`` and ``--robust-costs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from commsched.models import Problem
from commsched.models.errors import InputError
from commsched.optimizer.robust_cases import MAX_CASES, check_alike
from commsched.problems import Loaded, Network, ReadOptions, load, read_network, read_recording
from commsched.problems.registry import READERS
from commsched.problems.sources.source import STANDARD_INPUT, sources
from commsched.watching import Watch

SEPARATOR = "::"
"""Between a file of ``--robust`` and what is said of it: ``trace.json::step=12``."""

RobustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--robust",
        metavar="FILE",
        help="Another step or rank that the plan should be good for, too; several times. It is read "
        "with the same options; FILE::step=12 or FILE::member=NAME reads it with others, and "
        "::step=12 is another step of the same file.",
    ),
]
RobustCostsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--robust-costs",
        metavar="FILE",
        help="Another cost file that the plan should be good for, too; several times.",
    ),
]


@dataclass(frozen=True)
class Case:
    """A step that a plan should be good for.

    Attributes
    ----------
    title
        What the user called it.
    problem
        The step.
    """

    title: str
    problem: Problem


def other_cases(
    file: str,
    loaded: Loaded,
    *,
    others: Sequence[str] | None,
    other_costs: Sequence[Path] | None,
    network: Network | None,
    reading: ReadOptions,
    watch: Watch,
) -> list[Case]:
    """Return the cases that the user names; the limits of the first step hold in all of them.

    Parameters
    ----------
    file, loaded
        The first case: what the user named, and what was read.
    others, other_costs
        Values of ``--robust`` and ``--robust-costs``.
    network, reading
        How the first case was read.
    watch
        Tells how reading goes.

    Raises
    ------
    InputError
        If a value is not understood, a file cannot be read, or it is not the same step.
    """
    first, limits = loaded.problem, loaded.problem.limits
    cases = []
    if len(others or ()) + len(other_costs or ()) >= MAX_CASES:
        raise InputError(f"--robust: at most {MAX_CASES - 1} cases can be given beside {file}")
    for text in others or ():
        named = _named(text, file)
        cases.append(Case(named.title, _step(named, file, loaded, network, reading, watch)))
    for path in other_costs or ():
        given = read_network(path)
        if loaded.recorded is not None:
            costs, _ = given.costs(loaded.recorded.needs, file)
            problem = loaded.recorded.with_costs(costs)
        elif file == STANDARD_INPUT:
            raise InputError("--robust-costs: a step from standard input cannot be read again")
        else:
            problem = load(file, cost=given).problem
        cases.append(Case(f"{file} with {path}", problem))
    for case in cases:
        check_alike(first, case.problem, f"--robust: {case.title}")
    return [
        replace(case, problem=_limited(case.problem, limits)) if limits else case for case in cases
    ]


def path_of(text: str) -> str | None:
    """Return the file that a value of ``--robust`` names; None if it is the first one again.

    Examples
    --------
    >>> path_of("other.json::step=3"), path_of("::step=3")
    ('other.json', None)
    """
    return (text if Path(text).exists() else text.split(SEPARATOR)[0]) or None


def _limited(problem: Problem, limits: Sequence[Any]) -> Problem:
    own = {limit.label for limit in problem.limits}
    return problem.with_limits(
        (*problem.limits, *(limit for limit in limits if limit.label not in own))
    )


@dataclass(frozen=True)
class _Named:
    """What ``--robust`` names: a file, and the options that were said of it alone."""

    path: str
    own: dict[str, Any]
    title: str


def _named(text: str, file: str) -> _Named:
    """Return the file of a value and what is said of it.

    Examples
    --------
    >>> _named("other.json.gz::step=12::graph", "x").own
    {'step': 12, 'graph': True}
    >>> _named("::step=12", "trace.json").title
    'trace.json, step=12'
    """
    path, *said = text.split(SEPARATOR)
    if said and Path(text).exists():  # so it is a file's name
        path, said = text, []
    path = path or file
    if path == STANDARD_INPUT:
        raise InputError(f"--robust: {text!r:.100} would read standard input; name a file")
    own: dict[str, Any] = {}
    for part in said:
        name, _, value = part.partition("=")
        key = name.replace("-", "_")
        if key not in _VALUES:
            known = ", ".join(field.name.replace("_", "-") for field in fields(ReadOptions))
            raise InputError(f"--robust: {text!r:.100}: {name!r:.40} is not one of {known}")
        if key in own:
            raise InputError(f"--robust: {text!r:.100}: {name} is said twice")
        try:
            own[key] = _VALUES[key](value)
        except ValueError:
            raise InputError(f"--robust: {text!r:.100}: {value!r:.40} is no {name}") from None
    return _Named(path, own, ", ".join([path, *said]))


def _yes(text: str) -> bool:
    if text:
        raise ValueError
    return True


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValueError
    return int(text)


def _some(text: str) -> str:
    if not text:
        raise ValueError
    return text


_VALUES: dict[str, Callable[[str], Any]] = {
    "member": _some,
    "step": _whole,
    "sizes": lambda text: Path(_some(text)),
    "graph": _yes,
    "tokens": _whole,
    "tflops": float,
    "backward_us": float,
}


def _step(
    named: _Named,
    file: str,
    loaded: Loaded,
    network: Network | None,
    reading: ReadOptions,
    watch: Watch,
) -> Problem:
    path = named.path
    is_recording, usual = _usual(path, reading)
    options = replace(usual, **named.own)
    with watch.reading(path) as tell:
        if network is not None or not is_recording:
            return load(path, cost=network, options=options, progress=tell).problem
        # A problem file that was made of one rank's recording, and another rank's recording.
        recorded = read_recording(path, options=options, progress=tell)
    costs = loaded.problem.costs
    for group, kind in recorded.needs:
        if (group, kind) not in costs:
            raise InputError(f"{path}: has {kind} in group {group!r}, for which {file} has no cost")
    return recorded.with_costs({need: costs[need] for need in recorded.needs})


def _usual(path: str, reading: ReadOptions) -> tuple[bool, ReadOptions]:
    """Return whether a file is a recording, and those options that say something about it."""
    try:
        found = sources(path)
        starts = (source.start() for source in found)
        readers = (next((r for r in READERS if r.recognises(start)), None) for start in starts)
        reader = next((each for each in readers if each is not None), None)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    taken: frozenset[str] = frozenset() if reader is None else reader.options
    nothing = ReadOptions()
    usual = {
        field.name: getattr(reading if field.name in taken else nothing, field.name)
        for field in fields(reading)
    }
    if len(found) > 1:
        usual["member"] = reading.member
    return reader is not None, ReadOptions(**usual)

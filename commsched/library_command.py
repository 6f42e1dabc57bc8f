"""``commsched problems list|show|make``: the bundled library of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from commsched.models import GradientProblem, Problem
from commsched.models.errors import InputError
from commsched.models.units import format_bytes, format_ns, us_from_ns
from commsched.options import JsonOption
from commsched.output import make_console
from commsched.problems import problem_digest, write_problem
from commsched.problems.cost_rows import row_from_curve
from commsched.problems.estimates.hardware import ACCELERATORS, FABRICS, Figure
from commsched.problems.estimates.library import FORMS, NAMES, RECORDED, Made, make
from commsched.problems.estimates.library_models import SETTINGS
from commsched.process import print_json
from commsched.targets import check_targets

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="MODEL/ACCELERATOR/NETWORK/RANKS, such as llama3-8b/h100/400g/dp64, or "
        "recorded/transformer.",
    ),
]
NextOption = Annotated[
    bool, typer.Option("--next-forward", help="With the next forward pass: NAME's dp64-next.")
]
ShardedOption = Annotated[
    bool, typer.Option("--fsdp", help="Sharded, as FSDP2 runs it: NAME's fsdp64.")
]
ExpertsOption = Annotated[
    bool, typer.Option("--moe", help="With the all-to-alls of experts: NAME's moe64.")
]

problems_app = typer.Typer(
    help="Steps to try things on: estimated from architecture and hardware figures, and recorded.",
    rich_markup_mode=None,
)


@problems_app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the steps, and the parts of which others are made."""
    steps = [make(name) for name in (*RECORDED, *NAMES)]
    if as_json:
        print_json({"steps": [_summary(step) for step in steps], "parts": _parts()})
        return
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("name", "known", "collectives", "bytes", "compute", "collectives cost"):
        table.add_column(name, justify="left" if name in ("name", "known") else "right")
    for step in steps:
        problem = step.problem
        table.add_row(
            step.name,
            step.known,
            str(len(problem.names)),
            format_bytes(sum(problem.bytes)),
            format_ns(problem.compute_ns),
            "\n".join(_cost_words(problem)),
        )
    console.print(table)
    console.print()
    for what, names in _parts().items():
        console.print(Text(f"{what}: {', '.join(names)}"))
    console.print(
        Text("any MODEL/ACCELERATOR/NETWORK/RANKS is a step; RANKS: dp64, dp64-next, fsdp64, moe64")
    )


@problems_app.command("show")
def show_command(
    name: NameArgument,
    next_forward: NextOption = False,
    fsdp: ShardedOption = False,
    moe: ExpertsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show every figure of a step with its source, and what is assumed."""
    step = make(name, _form(next_forward=next_forward, fsdp=fsdp, moe=moe))
    if as_json:
        print_json(_document(step))
        return
    _print_step(step)


@problems_app.command("make")
def make_command(
    name: NameArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Write the problem file here.")
    ],
    next_forward: NextOption = False,
    fsdp: ShardedOption = False,
    moe: ExpertsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a step's problem file, with its costs."""
    check_targets({"--out": out}, [])
    step = make(name, _form(next_forward=next_forward, fsdp=fsdp, moe=moe))
    write_problem(step.problem, out)
    if as_json:
        print_json({**_document(step), "file": str(out)})
        return
    console = make_console()
    console.print(_headline(step))
    console.print(Text(f"written to {out}"))


def _form(**given: bool) -> str | None:
    """Return the form that the options ask for; None if they leave it to the name."""
    asked = [name for name, wanted in given.items() if wanted]
    if len(asked) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in asked)
        raise InputError(f"{names} exclude each other")
    return asked[0].replace("_", "-") if asked else None


def _parts() -> dict[str, list[str]]:
    links = {one.link_name: None for one in ACCELERATORS.values()}
    return {
        "models": [*SETTINGS],
        "accelerators": [*ACCELERATORS],
        "networks": [*links, *FABRICS],
        "forms": [*FORMS],
    }


def _cost_words(problem: Problem) -> list[str]:
    """Return for each cost its start-up and its bandwidth; the number of points of measured ones."""
    words = []
    for (_, kind), curve in problem.costs.items():
        line = curve.affine
        if line is None:
            words.append(f"{kind} {len(curve.pieces)} pieces")
            continue
        speed = line.scale / line.slope if line.slope else 0.0  # bytes a ns are GB a second
        words.append(f"{kind} {format_ns(round(line.intercept / line.scale))} + {speed:.4g} GB/s")
    return words


def _headline(step: Made) -> Text:
    problem = step.problem
    noun = "gradients" if isinstance(problem, GradientProblem) else "collectives"
    return Text(
        f"{step.name}, {step.known}: {len(problem.names)} {noun}, "
        f"{format_bytes(sum(problem.bytes))}, compute ends at {format_ns(problem.compute_ns)}",
        style="bold",
    )


def _print_step(step: Made) -> None:
    console = make_console()
    console.print(_headline(step))
    for words in _cost_words(step.problem):
        console.print(Text(f"  {words}"))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("known")
    table.add_column("source")
    for figure in step.figures:
        table.add_row(figure.what, _value(figure), figure.known, Text(figure.source))
    console.print(table)
    console.print()
    for note in step.notes:
        console.print(Text(f"  {note}"))


def _value(figure: Figure) -> str:
    return f"{figure.value:,.10g} {figure.unit}".strip()


def _summary(step: Made) -> dict[str, Any]:
    problem = step.problem
    return {
        "name": step.name,
        "known": step.known,
        "collectives": len(problem.names),
        "bytes": sum(problem.bytes),
        "compute_us": us_from_ns(problem.compute_ns),
        "problem_digest": problem_digest(problem),
    }


def _document(step: Made) -> dict[str, Any]:
    """Return a step with all its figures."""
    return {
        **_summary(step),
        "costs": [
            {"group": group, "kind": kind, "cost": row_from_curve(curve, f"costs.{group}.{kind}")}
            for (group, kind), curve in step.problem.costs.items()
        ],
        "figures": [
            {
                "what": figure.what,
                "value": figure.value,
                "unit": figure.unit,
                "known": figure.known,
                "source": figure.source,
            }
            for figure in step.figures
        ],
        "notes": list(step.notes),
    }

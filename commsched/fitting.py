"""``commsched fit LOG...``: cost curves from benchmark logs, with how far they are off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsched.fit_output import fit_document, print_fits
from commsched.fit_tables import Choice, Form, fit_logs, network_of_tables
from commsched.models.collectives import KINDS, check_kind, check_ranks
from commsched.models.errors import InputError
from commsched.output import make_console
from commsched.problems.cost_rows import write_network
from commsched.process import print_json
from commsched.targets import check_targets


def fit_command(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...",
            help="Logs of nccl-tests, rccl-tests, nccom-test, OSU, perftest, DeepSpeed or PARAM.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write all curves as a cost file."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", help="Take tables of so many ranks, or of unknown.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help=f"The kind of tables that leave it open: {', '.join(KINDS)}."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Take the in-place times, as DDP reduces.")
    ] = False,
    min_bytes: Annotated[int, typer.Option("--min-bytes", help="Leave out smaller sizes.")] = 1,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Leave out larger sizes.")
    ] = None,
    max_error: Annotated[
        float, typer.Option("--max-error", help="Relative error that the pieces may have.")
    ] = 0.05,
    one_line: Annotated[
        bool, typer.Option("--line", help="Write one alpha-beta line instead of pieces.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write all measured points instead of few pieces.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Raise times that fall to the largest before them.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw points and fits, as .png or .svg."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Fit cost curves to benchmark logs, and say how far they are off."""
    if one_line and raw:
        raise InputError("--line and --raw exclude each other")
    form: Form = "line" if one_line else "raw" if raw else "pieces"
    choice = Choice(
        ranks=None if ranks is None else check_ranks(ranks),
        kind=None if kind is None else check_kind(kind, "--kind"),
        in_place=in_place,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_error=max_error,
        repair=repair,
        form=form,
    )
    check_targets({"--out": out, "--picture": picture}, logs)
    tables = fit_logs(logs, choice)
    document = fit_document(tables) if as_json else {}
    skipped: tuple[tuple[str, str], ...] = ()
    said = ""
    if out is not None:
        network, skipped = network_of_tables(tables, form)
        write_network(network, out)
        titles = "; ".join(curve.title for curve in network.curves)
        said = f"written to {out}: {titles}"
        document["written"] = {
            "file": str(out),
            "form": form,
            "curves": [curve.title for curve in network.curves],
            "not_written": [{"table": title, "reason": why} for title, why in skipped],
        }
    if picture is not None:
        from commsched.fit_picture import draw_fits

        draw_fits(tables.fitted, picture, form=form)
    if as_json:
        print_json(document)
        return
    console = make_console()
    print_fits(console, tables)
    for title, why in skipped:
        console.print(f"not written: {title}: {why}", markup=False, highlight=False)
    if said:
        console.print(said, markup=False, highlight=False, soft_wrap=True)

"""``commsched analyse TRACE``: where each rank's time went, and which collectives are exposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commsched.models.errors import InputError, printable
from commsched.models.units import format_bytes, format_ns, us_from_ns
from commsched.options import ProgressOption, QuietOption
from commsched.output import make_console
from commsched.problems.breakdown.breakdown import (
    Breakdown,
    CollectiveRun,
    DeviceWork,
    break_down,
    collective_runs,
)
from commsched.problems.breakdown.breakdown_trace import read_device_work
from commsched.problems.nsight import nsight_graph
from commsched.problems.nsight.nsight_work import read_nsight_work
from commsched.problems.read_progress import Tell, counted
from commsched.problems.sources.source import sources
from commsched.process import print_json
from commsched.watching import Watch

ALL_STEPS = "all"
TOP = 10
MAX_NOTES = 16
MAX_LABEL = 8
"""A stream or a device is shown by so many characters, its last ones."""


class Analysed(NamedTuple):
    """A device's work, of one step or of the whole recording, with its breakdown."""

    work: DeviceWork
    step: int | None
    breakdown: Breakdown
    runs: list[CollectiveRun]


def analyse_command(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A profiler trace, or a folder or an archive with one for each rank.",
        ),
    ],
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="N|all",
            help="Count what this step launched; 'all' gives each step its own row. "
            "By default the whole recording.",
        ),
    ] = None,
    launched: Annotated[
        bool,
        typer.Option(
            "--launched", help="Count only what was launched while the recording ran, as HTA does."
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", help=f"So many collectives at most in the table; {TOP} by default.", min=0
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every collective.")] = False,
    progress: ProgressOption = False,
    quiet: QuietOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Break down each rank's time, and find the most exposed collectives."""
    if every and top is not None:
        raise InputError("--top and --all exclude each other")
    with Watch(quiet=quiet, asked=progress).reading(trace) as tell:
        works, left_out = _read(trace, tell)
    if launched:
        works = [work.launched_only() for work in works]
    rows = [row for work in works for row in _rows(work, step)]
    if as_json:
        print_json(_document(works, rows, left_out))
        return
    console = make_console()
    _print_rows(console, works, rows)
    _print_collectives(console, rows, None if every else TOP if top is None else top)
    _print_notes(console, works, left_out)


def _read(path: str, tell: Tell | None) -> tuple[list[DeviceWork], list[str]]:
    """Return the work of every rank, by rank, and why other files are left out."""
    files = counted(sources(path), tell)
    names = [file.name for file in files]
    if len(set(names)) < len(names):  # rank0/trace.json, rank1/trace.json
        names = [file.member or "/".join(file.path.parts[-2:]) for file in files]
    works: list[DeviceWork] = []
    errors: list[InputError] = []
    for file, name in zip(files, names, strict=True):
        try:
            read = read_nsight_work if nsight_graph.READER.recognises(file.start()) else None
            works += (read or read_device_work)(file, name)
        except InputError as error:
            errors.append(error)
    if not works:
        if len(errors) == 1:
            raise errors[0]
        raise InputError(f"{path}: none of {len(files)} files can be analysed; first: {errors[0]}")
    works.sort(key=lambda work: (work.rank is None, work.rank or 0))
    return works, [str(error) for error in errors]


def _rows(work: DeviceWork, step: str | None) -> list[Analysed]:
    if step is None:
        return [_analysed(work, None)]
    if step == ALL_STEPS:
        if not work.steps:
            raise InputError(f"{work.source}: --step all: the recording has no ProfilerStep")
        return [_analysed(part, number) for number, part in work.by_step()]
    if not (step.isascii() and step.isdecimal() and len(step) <= 18):
        raise InputError(f"--step: {step!r:.40} is neither a whole number nor 'all'")
    return [_analysed(work.of_step(int(step)), int(step))]


def _analysed(work: DeviceWork, step: int | None) -> Analysed:
    return Analysed(work, step, break_down(work.activities), collective_runs(work.activities))


def _document(works: list[DeviceWork], rows: list[Analysed], left_out: list[str]) -> dict[str, Any]:
    return {
        "rows": [_row_document(row) for row in rows],
        "files": [_file_document(work) for work in {work.source: work for work in works}.values()],
        "left_out": left_out,
    }


def _row_document(row: Analysed) -> dict[str, Any]:
    found = row.breakdown
    shares = {
        "computation": _share(found.computation_ns, found.span_ns),
        "communication": _share(found.communication_ns, found.span_ns),
        "exposed": _share(found.exposed_ns, found.span_ns),
        "copies": _share(found.copies_ns, found.span_ns),
        "idle": _share(found.idle_ns, found.span_ns),
        "overlap_of_communication": _share(found.overlap_ns, found.communication_ns),
    }
    return {
        "source": row.work.source,
        "rank": row.work.rank,
        "device": row.work.device,
        "step": row.step,
        "span_us": us_from_ns(found.span_ns),
        "computation_us": us_from_ns(found.computation_ns),
        "communication_us": us_from_ns(found.communication_ns),
        "overlap_us": us_from_ns(found.overlap_ns),
        "exposed_us": us_from_ns(found.exposed_ns),
        "memory_us": us_from_ns(found.memory_ns),
        "copies_us": us_from_ns(found.copies_ns),
        "idle_us": us_from_ns(found.idle_ns),
        "percent": shares,
        "collectives": [
            {
                "kind": run.activity.kind or None,
                "bytes": run.activity.bytes,
                "stream": run.activity.stream,
                "start_us": us_from_ns(run.activity.start - found.start_ns),
                "duration_us": us_from_ns(run.activity.end - run.activity.start),
                "exposed_us": us_from_ns(run.exposed_ns),
            }
            for run in row.runs
        ],
    }


def _file_document(work: DeviceWork) -> dict[str, Any]:
    report = work.report
    return {
        "source": work.source,
        "rank": work.rank,
        "steps": [step.number for step in work.steps],
        "events_read": report.events_read,
        "kept": dict(report.kept),
        "dropped": dict(report.dropped),
        "assumptions": [*work.notes, *report.assumptions],
        "checks": [{"text": check.text, "passed": check.passed} for check in report.checks],
    }


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _print_rows(console: Console, works: list[DeviceWork], rows: list[Analysed]) -> None:
    files = {work.source: work for work in works}
    kept = Counter[str]()
    for work in files.values():
        kept.update(work.report.kept)
    name = next(iter(files)) if len(files) == 1 else f"{len(files)} traces"
    read = ", ".join(f"{count} {what}" for what, count in kept.items())
    console.print(Text(printable(f"{name}: {read}"), style="bold"))
    labels = _Labels(rows)
    table = labels.table("span", "computation", "comm", "hidden", "exposed", "copies", "idle")
    for row in rows:
        found = row.breakdown
        span = found.span_ns
        table.add_row(
            *labels.of(row),
            format_ns(span),
            _time(found.computation_ns, span),
            format_ns(found.communication_ns),
            _time(found.overlap_ns, found.communication_ns),
            _time(found.exposed_ns, span),
            _time(found.copies_ns, span),
            _time(found.idle_ns, span),
        )
    console.print(table)


def _print_collectives(console: Console, rows: list[Analysed], top: int | None) -> None:
    runs = [(row, run) for row in rows for run in row.runs]
    if not runs:
        console.print("no collective ran")
        return
    runs.sort(key=lambda pair: -pair[1].exposed_ns)
    shown = runs if top is None else runs[:top]
    if not shown:
        return
    of = "" if len(shown) == len(runs) else f"{len(shown)} of "
    more = "" if len(shown) == len(runs) else " (every one with --all)"
    console.print()
    console.print(Text(f"{of}{len(runs)} collectives, the most exposed first{more}", style="bold"))
    labels = _Labels(rows)
    table = labels.table("start", "kind", "size", "stream", "length", "hidden", "exposed")
    for row, run in shown:
        one = run.activity
        length = one.end - one.start
        table.add_row(
            *labels.of(row),
            format_ns(one.start - row.breakdown.start_ns, 5),
            Text(printable(one.kind) or "?"),
            "?" if one.bytes is None else format_bytes(one.bytes),
            Text(printable(one.stream[-MAX_LABEL:])),
            format_ns(length),
            _time(length - run.exposed_ns, length),
            _time(run.exposed_ns, length),
        )
    console.print(table)
    console.print("a collective's length includes waiting for the slowest rank", style="dim")


class _Labels:
    """The columns that tell rows apart: the rank and, where they are needed, device and step.

    Where ranks do not tell the files apart, the files are numbered instead.
    """

    def __init__(self, rows: list[Analysed]) -> None:
        self.files = _numbered(row.work for row in rows)
        self.devices = len({(row.work.source, row.work.device) for row in rows}) > len(self.files)
        self.steps = any(row.step is not None for row in rows)
        self.numbers = len({row.work.rank for row in rows}) < len(self.files)

    def table(self, *names: str) -> Table:
        """Return an empty table with these columns and more."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        first = "trace" if self.numbers else "rank"
        for name in (first, *["gpu"] * self.devices, *["step"] * self.steps, *names):
            table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
        return table

    def of(self, row: Analysed) -> list[Text]:
        """Return the cells of a row."""
        work = row.work
        cells = ["?" if work.rank is None else str(work.rank)]
        if self.numbers:
            cells = [str(self.files[work.source])]
        cells += [work.device[-MAX_LABEL:]] * self.devices
        cells += [str(row.step)] * self.steps
        return [Text(printable(cell)) for cell in cells]


def _numbered(works: Iterable[DeviceWork]) -> dict[str, int]:
    return {source: at for at, source in enumerate(dict.fromkeys(w.source for w in works), 1)}


def _time(part: int, whole: int) -> str:
    """Return a time and its share, such as ``113 ms 17%``."""
    if not whole:
        return format_ns(part)
    share = 100 * part / whole
    digits = 0 if share >= 9.95 or not part else 1
    shown = f"{share:.{digits}f}"
    return f"{format_ns(part)} {'<0.1' if part and shown == '0.0' else shown}%"


def _print_notes(console: Console, works: list[DeviceWork], left_out: list[str]) -> None:
    notes: dict[str, str] = {}
    files = {work.source: work for work in works}
    if len({work.rank for work in files.values()}) < len(files):
        notes["DOUBT these are not the ranks of one job: several have the same rank, or none"] = (
            "bold yellow"
        )
        for source, number in _numbered(works).items():
            rank = files[source].rank
            whose = "no rank" if rank is None else f"rank {rank}"
            notes[f"trace {number} ({whose}): {source}"] = ""
    for work in {work.source: work for work in works}.values():
        report = work.report
        notes.update(dict.fromkeys(work.notes, ""))
        for reason, count in report.dropped.items():
            notes[f"{work.source}: not used: {count} {reason}"] = ""
        notes.update({f"{work.source}: {note}": "" for note in report.assumptions})
        notes.update(
            {
                f"DOUBT {work.source}: {check.text}": "bold yellow"
                for check in report.checks
                if not check.passed
            }
        )
    notes.update({f"left out: {reason}": "" for reason in left_out})
    for note, style in list(notes.items())[:MAX_NOTES]:
        console.print(Text(printable(note), style=style or "dim"))
    if len(notes) > MAX_NOTES:
        console.print(f"and {len(notes) - MAX_NOTES} more notes (all of them with --json)")

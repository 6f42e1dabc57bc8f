"""What people read: short tables, the bound, the verdict, the line to paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from commsched.export import ddp_settings
from commsched.export.ddp import MIN_TORCH
from commsched.models import Problem, Reason, Timeline, launch_exposures
from commsched.models.errors import NotApplicableError, printable
from commsched.models.units import format_bytes, format_ns
from commsched.optimizer import Comparison, LimitPrice, Result, Row
from commsched.optimizer.comparison import percent
from commsched.problems import RecordedStep, Recording

MAX_BUCKET_ROWS = 40
PLAIN_WIDTH = 140
WHY = "why exposed"
FEW_MEMBERS, MOST_MEMBERS = 16, 1000
"""Columns are left out before members get less room than this, and their names are cut beyond that."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that wraps tables to the terminal, or to a fixed width outside of one."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH)
    return console


def shows(console: Console, text: str) -> bool:
    """Say whether a console can show all characters of a text."""
    try:
        text.encode(console.encoding)
    except (UnicodeError, LookupError):
        return False
    return not console.legacy_windows


def _line(text: str, style: str = "") -> Text:
    """Return a text that cannot move the cursor, whatever names it quotes."""
    return Text(printable(text), style=style)


def print_problem(console: Console, problem: Problem) -> None:
    """Print what the problem is, in a line or two."""
    count, total = len(problem.names), sum(problem.bytes)
    noun = "gradients" if problem.gradients is not None else "collectives"
    what = "backward" if problem.gradients is not None else "compute"
    title = problem.name or "unnamed problem"
    console.print(
        _line(
            f"{title}: {count} {noun if count > 1 else noun[:-1]}, {format_bytes(total)}, "
            f"{what} ends at {format_ns(problem.compute_ns)}",
            style="bold",
        )
    )


def print_recorded(console: Console, recorded: Recording, modelled: Timeline | None) -> None:
    """Print what was read from a recording, what is doubtful, and how far the model is from it."""
    report = recorded.report
    kept = ", ".join(f"{count} {what}" for what, count in report.kept.items())
    dropped = ", ".join(f"{count} {what}" for what, count in report.dropped.items())
    step = f", {recorded.step_name}" if recorded.step_name else ""
    console.print(_line(f"read {report.source}{step}: kept {kept}"))
    if dropped:
        console.print(_line(f"  not used: {dropped}", style="dim"))
    for check in report.checks:
        console.print(
            _line(
                f"  {'ok   ' if check.passed else 'DOUBT'} {check.text}",
                style="" if check.passed else "bold yellow",
            )
        )
    for assumption in report.assumptions:
        print_assumption(console, assumption)
    for finding in report.findings:
        console.print(_line(f"  found: {finding}"))
    if modelled is not None and (sentence := against_recording(recorded, modelled)):
        console.print(_line(f"  {sentence}"))


def print_assumption(console: Console, assumption: str) -> None:
    """Print something that was taken for granted."""
    console.print(_line(f"  assumed: {assumption}", style="dim"))


def against_recording(recorded: Recording, modelled: Timeline) -> str:
    """Say how far the model is from what was recorded; empty where no times were recorded."""
    caveat = "it knows no stragglers, no contention, and takes the network as given"
    if isinstance(recorded, RecordedStep):
        ends = [launch.end_ns for launch in recorded.launches if launch.end_ns is not None]
        if not ends:
            return ""
        late = max(0, max(ends) - recorded.backward_end_ns)
        return (
            f"as recorded, communication ended {format_ns(late)} after backward; the model "
            f"says {format_ns(modelled.exposed_ns)} for the same buckets ({caveat})"
        )
    if recorded.end_ns is None:
        return ""
    return (
        f"as recorded, the step took {format_ns(recorded.end_ns)}; the model says "
        f"{format_ns(modelled.makespan_ns)} for the same launches ({caveat})"
    )


def print_steps(console: Console, rows: list[Row], result: Result) -> None:
    """Print rules and the bound, with step time, exposed time and launches."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    overflow: OverflowMethod = "ellipsis" if shows(console, "…") else "fold"
    table.add_column("", overflow=overflow)
    table.add_column("setting", overflow="fold")  # it is to be pasted
    table.add_column("step", justify="right")
    table.add_column("exposed", justify="right")
    table.add_column("over optimum", justify="right")
    table.add_column("launches", justify="right")
    table.add_column("in flight", justify="right")
    for row in rows:
        timeline = row.timeline
        over = "none"
        if row.over_optimal_ns > row.launches or row.over_optimal_ns < 0:
            share = percent(row.over_optimal_ns, row.optimal_ns)
            over = f"{format_ns(row.over_optimal_ns)} ({share})"
        table.add_row(
            _line(f"{row.title}{_mark(row)}", "bold" if row.name == "optimal" else ""),
            _line(row.setting),
            format_ns(timeline.makespan_ns, 5),
            format_ns(timeline.exposed_ns),
            "-" if row.name == "optimal" else over,
            str(row.launches),
            format_bytes(timeline.peak_bytes),
        )
    least = max(0, result.lower_bound_ns - result.timeline.compute_ns)
    table.add_row(
        "lower bound", "", format_ns(result.lower_bound_ns, 5), format_ns(least), "", "", ""
    )
    console.print(table)
    marks = {_mark(row) for row in rows}
    if " *" in marks:
        console.print("* splits collectives into chunks; the optimum keeps each in one launch")
    if " +" in marks and result.scope == "any":
        console.print("+ better than what the search found in its time")
    elif " +" in marks:
        console.print(
            f"+ not a plan of scope {result.scope}, and better: --scope any finds the best"
        )


def _mark(row: Row) -> str:
    """Return the sign of a row whose plan needs a note."""
    if row.plan.splits:
        return " *"
    return " +" if row.over_optimal_ns < 0 else ""


def print_proof(console: Console, result: Result) -> None:
    """Print the status, the gap and how both were come by."""
    text = f"{result.status}: by {result.method}; {result.reason}; bound by {result.bound.proof}"
    if result.status == "optimal" and result.slack_ns:
        text += f"; within {result.slack_ns} ns, which is rounding"
    elif result.status != "optimal":
        text += f"; gap {100 * result.gap:.2f}% of the step"
    console.print(_line(text))


def print_prices(console: Console, prices: Sequence[LimitPrice]) -> None:
    """Print what each limit costs in time."""
    for price in prices:
        if price.most_ns == 0:
            cost = "costs nothing"
        elif price.least_ns == price.most_ns:
            cost = f"costs {format_ns(price.most_ns)}"
        else:
            cost = f"costs {format_ns(price.least_ns)} to {format_ns(price.most_ns)}"
        console.print(_line(f"limit {price.label}: {cost}"))


def print_verdict(console: Console, sentence: str) -> None:
    """Print whether tuning is worth it."""
    console.print(_line(f"verdict: {sentence}", style="bold"))


def print_best_settings(console: Console, comparison: Comparison) -> None:
    """Print for each best setting which values are as good, and which nearly."""
    if comparison.best_settings:
        console.print("best settings, over all values:")
    for name, found in comparison.best_settings.items():
        title = comparison.row(name).title
        console.print(_line(f"  {title}: {found.setting}; {found.range_text}"))


def print_left_out(console: Console, name: str, reason: str) -> None:
    """Print why a rule is not in the table."""
    console.print(_line(f"left out: {name}: {reason}"))


def print_buckets(console: Console, timeline: Timeline) -> None:
    """Print one row a launch: when it was ready, when it ran, and why it is exposed."""
    exposures = launch_exposures(timeline)
    shown = _shown(len(timeline.launches))
    rows: list[dict[str, str]] = []
    for number, (launch, exposure) in enumerate(zip(timeline.launches, exposures, strict=True)):
        if number in shown:
            row = {
                "#": str(number + 1),
                "members": "",
                "size": format_bytes(launch.bytes),
                "ready": format_ns(launch.ready_ns),
                "start": format_ns(launch.start_ns),
                "end": format_ns(launch.end_ns),
                "exposed": format_ns(exposure.exposed_ns),
                "channel": printable(launch.channel),
                WHY: "" if exposure.reason is Reason.HIDDEN else str(exposure.reason),
            }
            rows.append(row)
    if len({launch.channel for launch in timeline.launches}) == 1:
        for row in rows:
            del row["channel"]
    dots = "…" if shows(console, "…") else "..."
    names = [timeline.launches[number].names for number in sorted(shown)]
    full = [printable(_members(each, dots, MOST_MEMBERS)) for each in names]
    left_out, width, why = _fitted(console.width, rows, max(map(len, full)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    overflow: OverflowMethod = "ellipsis" if shows(console, "…") else "fold"
    columns = [name for name in rows[0] if name not in left_out]
    for name in columns:
        justify: JustifyMethod = "left" if name in ("members", "channel") else "right"
        if name == WHY:
            table.add_column(name, overflow="fold", width=why)
        else:
            table.add_column(name, justify=justify, overflow=overflow, no_wrap=name != "members")
    for place, (row, each) in enumerate(zip(rows, names, strict=True)):
        row["members"] = printable(_members(each, dots, width))
        if place == len(shown) // 2 and len(shown) < len(timeline.launches):
            hidden = len(timeline.launches) - len(shown)
            table.add_row("...", f"{hidden} more (all of them with --json)")
        table.add_row(*(Text(row[name]) for name in columns))
    console.print(table)
    if left_out:
        console.print(f"(with --json: {', '.join(left_out)})")


def _fitted(
    width: int, rows: Sequence[Mapping[str, str]], members: int
) -> tuple[tuple[str, ...], int, int]:
    """Return the columns that are left out of a narrow terminal, and the room for members and why."""
    widths = {name: max(len(name), *(cell_len(row[name]) for row in rows)) for name in rows[0]}
    wanted = max(len("members"), min(members, FEW_MEMBERS))
    room = 0
    choices: list[tuple[tuple[str, ...], int]] = [((), widths[WHY]), ((), len(WHY)), ((WHY,), 0)]
    choices += [((WHY, "ready"), 0), ((WHY, "ready", "channel"), 0)]
    for left_out, why in choices if "channel" in widths else choices[:-1]:
        columns = [name for name in rows[0] if name not in left_out]
        others = sum(widths[name] for name in columns if name not in ("members", WHY))
        room = width - others - why - 2 * (len(columns) - 1)
        if room >= wanted:
            break
    return left_out, max(wanted, room), why


def _shown(count: int) -> set[int]:
    if count <= MAX_BUCKET_ROWS:
        return set(range(count))
    half = MAX_BUCKET_ROWS // 2
    return set(range(half)) | set(range(count - half, count))


def _members(names: tuple[str, ...], dots: str, width: int) -> str:
    if len(names) == 1:
        return _clipped(names[0], width, dots)
    count = f"{len(names)}: "
    each = max(len(dots) + 1, (width - len(count) - 4) // 2)
    return f"{count}{_clipped(names[0], each, dots)} .. {_clipped(names[-1], each, dots)}"


def _clipped(name: str, width: int, dots: str) -> str:
    return name if len(name) <= width else f"{name[: width - len(dots)]}{dots}"


def print_settings(
    console: Console, problem: Problem, result: Result, comparison: Comparison
) -> None:
    """Print the settings to paste, or why there are none."""
    if problem.gradients is None or result.plan is None:
        return
    console.print()
    try:
        settings = ddp_settings(problem, result.plan)
    except NotApplicableError as error:
        console.print(_line(f"PyTorch DDP cannot run this plan exactly: {error}"))
    else:
        console.print(_line(f"PyTorch DDP (torch >= {MIN_TORCH}), this plan to the byte:"))
        console.print(_line(f"  {settings.line}"), soft_wrap=True)
    if not comparison.best_settings:
        console.print("(commsched compare finds the best single cap, too)")
    for name, what in (("ddp-best", "a single cap"), ("ddp-best-pair", "a first cap and a cap")):
        if name in comparison.best_settings:
            found, lost = comparison.best_settings[name], comparison.row(name).over_optimal_ns
            price = f"costs {format_ns(lost)} more" if lost else "costs no more"
            console.print(
                _line(f"With {what}: {found.setting}, which {price} than the plan above.")
            )
            console.print(_line(f"  {found.range_text[0].upper()}{found.range_text[1:]}."))

"""Timelines as text: a row for each stream and channel, on one time axis as wide as the terminal.

Everything is drawn with ASCII signs; Unicode and colours only replace them, so nothing depends on
either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from commsched.lanes import Lane, exposed_parts, lanes_of, shown_from
from commsched.models.errors import printable
from commsched.models.timeline import Timeline
from commsched.models.units import format_ns
from commsched.optimizer import Row
from commsched.output import shows
from commsched.terminal_axis import axis_lines
from commsched.terminal_cells import (
    ALL_EXPOSED,
    COMPUTE,
    EXPOSED,
    LAUNCHES,
    SEVERAL,
    SHORT,
    Cell,
    Scale,
    cells_of,
)

NARROWEST, WIDEST = 60, 200
"""A narrower terminal gets a timeline only if it is asked for, a wider one none that is wider."""
PLAIN_WIDTH = 100
"""A timeline that goes into a file or a pipe is so wide."""
LEAST_WIDTH = 40
MOST_STREAMS, MOST_CHANNELS = 3, 5
"""So many rows has a timeline at most."""

_UNICODE = str.maketrans({COMPUTE: "░", "#": "█", "=": "▓", SEVERAL: "║"})
_NEEDED = "░█▓║─┬…"
# Middle tones of the 256 colours: they can be told from black and from white.
_SOFT, _LATE = "color(245)", "bold color(16) on color(208)"
_LATE_TOO = "bold color(16) on color(215)"
_KINDS = {
    "allreduce": "color(68)",
    "reduce_scatter": "color(72)",
    "all_gather": "color(133)",
    "all_to_all": "color(136)",
    "broadcast": "color(98)",
    "send_recv": "color(137)",
}


class Shown(NamedTuple):
    """One timeline of several: what it is, and what ran."""

    title: str
    timeline: Timeline


def print_rows(console: Console, rows: Iterable[Row | None], *, asked: bool | None) -> None:
    """Draw what rows of a comparison do; None among them is left out (see print_timelines)."""
    shown = []
    for row in rows:
        if row is not None:
            setting = f" ({row.setting})" if row.setting else ""
            shown.append(Shown(f"{row.title}{setting}", row.timeline))
    print_timelines(console, shown, asked=asked)


def print_timelines(console: Console, shown: Sequence[Shown], *, asked: bool | None) -> None:
    """Draw timelines one above the other on one time axis, if the terminal is fit for it.

    Parameters
    ----------
    console
        Where to draw.
    shown
        From top to bottom.
    asked
        Whether the user wants it; None leaves it to the terminal, which must know more than
        lines of text and be at least 60 columns wide. In a file or a pipe it is 100 columns wide.
    """
    if asked is None:
        capable = console.is_terminal and not console.is_dumb_terminal
        asked = capable and console.width >= NARROWEST
    shown = [each for each in shown if each.timeline.launches and each.timeline.makespan_ns]
    if not asked or not shown:
        return
    width = PLAIN_WIDTH
    if console.is_terminal:
        width = min(max(console.width, LEAST_WIDTH), WIDEST)
    coloured = console.color_system is not None and not console.no_color
    ascii_only = not shows(console, _NEEDED)
    for line in timeline_lines(shown, width, ascii_only=ascii_only, coloured=coloured):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    console.print()


def timeline_lines(
    shown: Sequence[Shown], width: int, *, ascii_only: bool = False, coloured: bool = True
) -> list[Text]:
    r"""Return timelines as lines of text.

    Parameters
    ----------
    shown
        From top to bottom, each with launches.
    width
        No line is wider; at least 40.
    ascii_only
        Whether no other characters may be used.
    coloured
        Whether colours will be seen, which tell kinds of collectives apart.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
    >>> problem = GradientProblem(
    ...     [Gradient("b", 6000, ready_ns=4000), Gradient("a", 3000, ready_ns=9000)],
    ...     AlphaBeta(1, 1))
    >>> for line in timeline_lines(
    ...     [Shown("one by one", evaluate(problem, Plan.of([["b"], ["a"]])))], 60, ascii_only=True):
    ...     print(line.plain)
    one by one: step 15.000 us, 2 launches, 6.00 us exposed
    backward    :::::::::::::::::::::::::::::
    channel dp               ################//////\\\\\\\\\\\\\
                +---------------+---------------+--------------+
                0               5              10          15 us
    : compute  # launches  /\ exposed: nothing computes
    """
    chosen, labels = _chosen_lanes(shown)
    left = min(max(map(cell_len, labels)), max(10, width // 5)) + 2
    timelines = [each.timeline for each in shown]
    first = shown_from(timelines)
    window = max(each.makespan_ns for each in timelines) - first
    scale = Scale(first, window, width - left)
    page = _Page(width, ascii_only, coloured)
    used: set[Cell] = set()
    for each, (lanes, note) in zip(shown, chosen, strict=True):
        page.title(each)
        for lane in lanes:
            cells = cells_of(lane, each.timeline.busy, scale)
            page.row(printable(lane.label), left, cells)
            used.update(cells)
        if note:
            page.note(note)
    for text in axis_lines(*scale, ascii_only=ascii_only):
        page.note(" " * left + text)
    page.legend(used, first)
    return page.lines


class _Page:
    """Lines of text that are being written."""

    def __init__(self, width: int, ascii_only: bool, coloured: bool) -> None:
        self.width, self.ascii_only, self.coloured = width, ascii_only, coloured
        self.lines: list[Text] = []

    def title(self, shown: Shown) -> None:
        """Write what a timeline is, with its numbers, which stay whole."""
        timeline = shown.timeline
        count = len(timeline.launches)
        exposed = format_ns(timeline.exposed_ns) if timeline.exposed_ns else "nothing"
        numbers = (
            f"step {format_ns(timeline.makespan_ns, 5)}, {count} launch{'es' * (count != 1)}, "
            f"{exposed} exposed"
        )
        name = printable(shown.title)
        lines = [f"{name}: {numbers}"]
        if cell_len(lines[0]) > self.width:
            lines = [f"{self.short(name, self.width - 1)}:", f"  {numbers}"]
        self.lines += [Text(self.short(line, self.width), "bold") for line in lines]

    def row(self, label: str, left: int, cells: Iterable[Cell]) -> None:
        """Write a row's label and its columns."""
        line = Text(set_cell_size(self.short(label, left - 2), left))
        for cell in cells:
            line.append(self.sign(cell.sign), _style(cell))
        line.rstrip()
        self.lines.append(line)

    def note(self, text: str) -> None:
        """Write something that is not in the foreground."""
        self.lines.append(Text(self.short(text, self.width), _SOFT))

    def legend(self, used: Collection[Cell], first_ns: int) -> None:
        """Write what the signs mean that were used, in as few lines as it takes."""
        kinds = [kind for kind in _KINDS if any(cell.kind == kind for cell in used)]
        if not self.coloured:
            kinds = []  # they look alike
        signs = {cell.sign for cell in used}
        entries = []
        for meant, kind, what in _meanings(kinds):
            found = [sign for sign in meant if sign in signs or what == kind]
            if found:
                entries.append(Text())
                for sign in found:
                    entries[-1].append(self.sign(sign), _style(Cell(sign, kind)))
                entries[-1].append(f" {what}", _SOFT)
        if first_ns:
            entries.append(Text(f"only compute before {format_ns(first_ns)}", _SOFT))
        line = Text()
        for entry in entries:
            if line and line.cell_len + 2 + entry.cell_len > self.width:
                self.lines.append(line)
                line = Text()
            line.append(" " * 2 * bool(line)).append_text(entry)
        self.lines.append(line)

    def sign(self, sign: str) -> str:
        """Return a sign as it is shown."""
        return sign if self.ascii_only else sign.translate(_UNICODE)

    def short(self, text: str, width: int) -> str:
        """Return a text that fits; letters are left out of the middle of a long one."""
        if self.ascii_only:
            text = text.encode("ascii", "replace").decode()
        dots = "..." if self.ascii_only else "…"
        if cell_len(text) <= width:
            return text
        keep = max(0, width - len(dots))
        first, last = set_cell_size(text, (keep + 1) // 2), set_cell_size(text[::-1], keep // 2)
        return f"{first}{dots}{last[::-1]}"


def _meanings(kinds: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return signs, the kind whose style they have, and what they mean."""
    only = kinds[0] if len(kinds) == 1 else ""
    several = [("#", kind, kind) for kind in kinds] if len(kinds) > 1 else []
    return [
        (COMPUTE, "", "compute"),
        (LAUNCHES, only, "launches"),
        (SEVERAL, only, "several in a column"),
        (ALL_EXPOSED, "", "exposed: nothing computes"),
        (SHORT, "", "shorter than a column"),
        *several,
    ]


def _style(cell: Cell) -> str:
    if cell.sign in ALL_EXPOSED:
        return _LATE_TOO if cell.sign == EXPOSED[1] else _LATE
    return _KINDS.get(cell.kind, _SOFT)


def _chosen_lanes(shown: Sequence[Shown]) -> tuple[list[tuple[list[Lane], str]], list[str]]:
    """Return for each timeline its rows and a note about those left out, and all labels."""
    lanes = [lanes_of(each.timeline) for each in shown]
    weights: dict[tuple[bool, str], tuple[int, int]] = {}
    exposed: list[dict[str, int]] = []
    for each, found in zip(shown, lanes, strict=True):
        exposed.append({})
        for lane in found:
            late = _exposed_ns(lane, each.timeline) if lane.launches else 0
            weight = (late, sum(part.end_ns - part.start_ns for part in lane.parts))
            key = (bool(lane.launches), lane.label)
            weights[key] = max(weight, weights.get(key, weight))
            exposed[-1][lane.label] = late
    heaviest = sorted(weights, key=lambda key: weights[key], reverse=True)
    kept = {key for key in heaviest if not key[0]}
    kept = set([key for key in heaviest if not key[0]][:MOST_STREAMS])
    kept |= set([key for key in heaviest if key[0]][:MOST_CHANNELS])
    chosen = []
    for found, late_of in zip(lanes, exposed, strict=True):
        left_out = [lane for lane in found if (bool(lane.launches), lane.label) not in kept]
        rows = [lane for lane in found if (bool(lane.launches), lane.label) in kept]
        chosen.append((rows, _note(left_out, late_of)))
    return chosen, [printable(label) for _, label in kept]


def _exposed_ns(lane: Lane, timeline: Timeline) -> int:
    parts = (exposed_parts(p.start_ns, p.end_ns, timeline.busy) for p in lane.parts)
    return sum(end - start for found in parts for start, end in found)


def _note(left_out: Sequence[Lane], exposed: dict[str, int]) -> str:
    if not left_out:
        return ""
    channels = [lane for lane in left_out if lane.launches]
    streams = len(left_out) - len(channels)
    said = [f"{streams} stream{'s' * (streams > 1)}"] if streams else []
    if channels:
        late = sum(exposed[lane.label] for lane in channels)
        what = f"{len(channels)} channel{'s' * (len(channels) > 1)}"
        said.append(f"{what} with {format_ns(late)} exposed on them")
    return f"  not shown: {' and '.join(said)}"

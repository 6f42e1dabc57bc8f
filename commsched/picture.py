"""Pictures of timelines: panels one above the other on one common time axis, as PNG or SVG.

Matplotlib is an extra and is imported only when something is drawn. Everything is placed on one
sheet measured in inches from its top left corner, so the width of every text is known before it
is placed: a label is drawn where it fits, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.lanes import Lane, Part, exposed_parts, is_backward, lanes_of
from commsched.models.errors import InputError
from commsched.models.launch import Launch
from commsched.models.timeline import Timeline
from commsched.models.units import format_bytes, format_ns
from commsched.problems.files import write_bytes
from commsched.sheet import (
    BAND,
    BODY,
    BOX,
    COMPUTE,
    DASHES,
    EXPOSED,
    FAINT,
    GAP,
    HEADING,
    INK,
    KIND_COLOURS,
    LANE,
    LINE,
    MARGIN,
    MOST_MARKS,
    ROW,
    RULE,
    SMALL,
    SOFT,
    SPECK,
    STRONG,
    THIN,
    TITLE,
    Sheet,
    clean,
    draw_axis,
    render,
    shorten,
    text_width,
    wrap,
)
from commsched.targets import check_folder, check_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Panel:
    """One timeline of a picture.

    Attributes
    ----------
    title
        Stands above the panel.
    timeline
        What is drawn.
    """

    title: str
    timeline: Timeline

    @classmethod
    def of(cls, name: str, timeline: Timeline) -> Panel:
        """Return a panel whose title gives the name, the launches and the exposed time.

        Examples
        --------
        >>> from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
        >>> problem = GradientProblem([Gradient("a", 3000, ready_ns=20)], AlphaBeta(0, 1))
        >>> Panel.of("everything at once", evaluate(problem, Plan.of([["a"]]))).title
        'everything at once: 1 launch, 3.00 us exposed'
        """
        count = len(timeline.launches)
        exposed = format_ns(timeline.exposed_ns) if timeline.exposed_ns else "nothing"
        return cls(f"{name}: {count} launch{'es' * (count != 1)}, {exposed} exposed", timeline)


def draw(panels: Sequence[Panel], path: Path, *, title: str, subtitle: str = "") -> None:
    """Draw timelines one above the other on one common time axis.

    Each panel has a row for each compute stream and each channel. The axis starts at the step's
    start, or shortly before the first bucket is ready if more than half of it would show nothing
    but compute; it then says so. The same panels give the same file.

    Parameters
    ----------
    panels
        At least one, from top to bottom.
    path
        The file to write, ending in ``.png`` or ``.svg``. It is replaced only when the picture is
        complete.
    title, subtitle
        Stand above the panels; long ones are wrapped.

    Raises
    ------
    InputError
        If the file's suffix is neither, it cannot be written, or there is no panel.
    MissingExtraError
        If matplotlib is not installed.
    """
    if not panels:
        raise InputError("the picture has no panel: there is nothing to draw")
    save(path, title, lambda: _figure(panels, title, subtitle))


def save(path: Path, title: str, make: Callable[[], Figure]) -> None:
    """Make a picture and write it, at once or not at all.

    Raises
    ------
    InputError, MissingExtraError
        As :func:`draw`.
    """
    path = Path(path)
    suffix = check_picture(path)
    check_folder(path)
    write_bytes(path, render(suffix, title, make))


def _colour(part: Part) -> str:
    return KIND_COLOURS[part.kind] if part.kind else COMPUTE


def _groups(parts: Iterable[Part], sheet: Sheet) -> list[list[Part]]:
    """Return the boxes of a row: parts that are too thin to tell apart share one."""
    groups: list[list[Part]] = []
    free_from = -math.inf
    for part in parts:
        start, end = sheet.x(part.start_ns), sheet.x(part.end_ns)
        joins = end - start < THIN and start - free_from < THIN / 3
        if joins and part.kind == groups[-1][-1].kind:
            groups[-1].append(part)
        else:
            groups.append([part])
        free_from = end if end - start < THIN else -math.inf
    return groups


def _labels(group: Sequence[Part]) -> list[tuple[str, ...]]:
    """Return what a box may say, as lines, the best first."""
    first, last, count = group[0], group[-1], len(group)
    if not first.number:
        return [(clean(first.name) if count == 1 else f"{count} tasks",)]
    size = format_bytes(sum(part.bytes for part in group))
    if count == 1:
        return [(f"{first.name}: {size}",), (first.name, size), (first.name,)]
    launches, numbers = f"{count} launches", f"{first.name} to {last.name}"
    if last.number - first.number >= count:  # another channel's launches lie between
        numbers = launches
    return [(f"{numbers}: {launches}, {size}",), (numbers, size), (numbers,), (launches,)]


def _draw_boxes(
    sheet: Sheet, y: float, height: float, row: Lane, busy: Sequence[tuple[int, int]]
) -> None:
    """Draw a row's boxes with what they say, and the marks on them."""
    seam = (-math.inf, 0.0)
    for group in _groups(row.parts, sheet):
        start, end = group[0].start_ns, group[-1].end_ns
        x, width = sheet.x(start), max(sheet.x(end) - sheet.x(start), SPECK)
        if end < sheet.first_ns:
            continue
        sheet.box(x, y, width, height, facecolor=_colour(group[0]))
        for low, high in exposed_parts(start, end, busy) if row.launches else []:
            exposed = max(sheet.x(high) - sheet.x(low), SPECK)
            sheet.box(sheet.x(low), y, exposed, height - sheet.foot, **EXPOSED)
        if x - seam[0] < SPECK and min(width, seam[1]) > THIN:
            wide = 0.9 if min(width, seam[1]) > 2 * THIN else 0.45
            sheet.line((x, x), (y, y + height), color="white", linewidth=wide)
        seam = (x + width, width)
        if start < sheet.first_ns:
            for slash in (x + 0.04, x + 0.09):
                sheet.line((slash, slash + 0.06), (y + height, y), color="white", linewidth=1.6)
        for lines in _labels(group):
            if max(text_width(line, SMALL) for line in lines) + 0.08 <= width:
                for number, line in enumerate(lines):
                    middle = y + height / 2 + 0.14 * (number - (len(lines) - 1) / 2)
                    sheet.text(x + width / 2, middle, line, SMALL, ha="center")
                break
    for mark in (sheet.x(ns) for ns in row.marks_ns if ns > sheet.first_ns):
        sheet.line((mark, mark), (y + height * 0.7, y + height), color=FAINT, linewidth=0.7)


def _draw_waits(sheet: Sheet, y: float, launches: Iterable[Launch]) -> float:
    """Draw when buckets were ready and how long they waited; return where the boxes begin."""
    ordered = sorted(launches, key=lambda launch: (launch.ready_ns, launch.start_ns))
    dotted = len(ordered) <= MOST_MARKS
    waiting: list[tuple[float, int]] = []
    free: list[int] = []
    levels = []  # no two launches that wait at the same time are on one level
    for launch in ordered:
        while waiting and waiting[0][0] <= sheet.x(launch.ready_ns):
            heappush(free, heappop(waiting)[1])
        levels.append(heappop(free) if free else len(waiting))
        heappush(waiting, (sheet.x(launch.start_ns) + 0.06 * dotted, levels[-1]))
    count = max(levels) + 1
    space = min(0.07, LANE / count)
    xs, ys = [], []
    for launch, level in zip(ordered, levels, strict=True):
        xs += [sheet.x(launch.ready_ns), sheet.x(launch.start_ns), math.nan]
        ys += [y + space * (count - level - 0.5)] * 3
    colour = SOFT if count <= 12 else FAINT
    sheet.line(xs, ys, color=colour, linewidth=min(0.9, space * 50))
    if dotted:
        sheet.dots(xs[::3], ys[::3], min(3.0, space * 60))
    return y + space * count + 0.02


def _draw_end(sheet: Sheet, y: float, timeline: Timeline) -> None:
    """Draw the bracket over what is exposed, and when the step ends."""
    left, right = sheet.x(timeline.compute_ns), sheet.x(timeline.makespan_ns)
    label, colour = "nothing exposed", SOFT
    if timeline.exposed_ns:
        label, colour = f"exposed {format_ns(timeline.exposed_ns)}", STRONG
        sheet.line((left, right), (y, y), color=STRONG, linewidth=1.2)
        for x in (left, right):
            sheet.line((x, x), (y - 0.05, y + 0.05), color=STRONG, linewidth=1.2)
    width = text_width(label, bold=True) + 0.1
    end = f"ends at {sheet.at(timeline.makespan_ns)}"
    if width + 0.3 <= right - left:
        sheet.box((left + right - width) / 2, y - 0.05, width, 0.1, facecolor=BAND, zorder=5)
        sheet.text((left + right) / 2, y, label, ha="center", color=colour, weight="bold")
    elif left - width >= sheet.left:
        sheet.text(left - 0.07, y, label, ha="right", color=colour, weight="bold")
    else:
        end = f"{label}, {end}"
    sheet.text(right + 0.07, y, end)


def _draw_panel(sheet: Sheet, y: float, panel: Panel, rows: Iterable[Lane]) -> tuple[float, float]:
    """Draw one panel below ``y``; return where its time begins, below the title, and ends."""
    timeline = panel.timeline
    for line in wrap(panel.title, HEADING, bold=True):
        back = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        sheet.text(MARGIN, y + LINE / 2, line, HEADING, weight="bold", bbox=back)
        y += LINE
    top = y + 0.04
    _draw_end(sheet, top + LINE / 2, timeline)
    y = top + LINE + 0.05
    for row in rows:
        height = ROW
        if row.launches:
            y, height = _draw_waits(sheet, y, row.launches), BOX
        label = shorten(row.label)
        sheet.text(sheet.left - 0.1, y + height / 2, label, ha="right")
        sheet.line((sheet.left, sheet.right), [y + height] * 2, color=RULE, zorder=1)
        _draw_boxes(sheet, y, height, row, timeline.busy)
        y += height + GAP
    left, right = sheet.x(timeline.compute_ns), sheet.x(timeline.makespan_ns)
    sheet.box(left, top, right - left, y - top, facecolor=BAND, zorder=0)
    sheet.line((right, right), (top, y), linewidth=1.0, zorder=2)
    for x, _ in sheet.ticks():
        sheet.line((x, x), (top + LINE + 0.03, y), color=RULE, linewidth=0.6, zorder=0.5)
    return top, y


def _draw_legend(sheet: Sheet, y: float, timelines: Sequence[Timeline]) -> float:
    """Draw below ``y`` what the signs mean that the picture shows; return where it ends."""
    hidden = ", hidden" if len(sheet.kinds) == 1 else ""
    entries: list[tuple[str, dict[str, Any]]] = [("compute", {"facecolor": COMPUTE})]
    entries += [(f"{kind}{hidden}", {"facecolor": KIND_COLOURS[kind]}) for kind in sheet.kinds]
    if any(each.exposed_ns for each in timelines):
        entries.append(("exposed: nothing computes", {**EXPOSED}))
    if any(x.start_ns > x.ready_ns for each in timelines for x in each.launches):
        dot = {"marker": "o", "markevery": [0], "markersize": 3.0, "markeredgewidth": 0}
        entries.append(
            ("bucket ready, then waiting", {"color": SOFT, "markerfacecolor": INK, **dot})
        )
    ends = {each.compute_ns for each in timelines}
    if ends != {0}:
        what = "backward ends" if all(map(is_backward, timelines)) else "compute alone ends"
        entries.append((what + (f" at {sheet.at(min(ends))}" if len(ends) == 1 else ""), DASHES))
    return sheet.key(y, entries)


def _figure(panels: Sequence[Panel], title: str, subtitle: str) -> Figure:
    timelines = [panel.timeline for panel in panels]
    rows = [lanes_of(each, MOST_MARKS) for each in timelines]
    widest = max(text_width(shorten(row.label)) for each in rows for row in each)
    sheet, y = Sheet(timelines, MARGIN + 0.1 + widest), MARGIN - 0.05
    for line in wrap(title, TITLE, bold=True):
        sheet.text(MARGIN, y + 0.13, line, TITLE, weight="bold")
        y += 0.26
    for line in wrap(subtitle, BODY):
        sheet.text(MARGIN, y + LINE / 2, line, color=SOFT)
        y += LINE
    last_end, last_bottom = -1, 0.0
    for panel, each in zip(panels, rows, strict=True):
        top, y = _draw_panel(sheet, y + 0.14, panel, each)
        end, x = panel.timeline.compute_ns, sheet.x(panel.timeline.compute_ns)
        sheet.line((x, x), (last_bottom if end == last_end else top, y), **DASHES)
        last_end, last_bottom = end, y
    y = _draw_legend(sheet, draw_axis(sheet, y + 0.04), timelines)
    return sheet.end(y + 0.12)

"""Picture of a comparison: the exposed time over DDP's single cap, every rule beside it, and a table.

The rules' points are numbered as in the table below them. A number is placed where it covers neither
another number nor the curve, so the picture stays legible with many rules at nearly one place.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched.models.units import MIB, format_bytes, format_ns
from commsched.optimizer.comparison import Comparison, Row, percent
from commsched.optimizer.handy import bytes_range, ranges_text
from commsched.picture import save
from commsched.sheet import (
    BODY,
    EXPOSED,
    INK,
    LINE,
    MARGIN,
    RULE,
    SMALL,
    SOFT,
    STRONG,
    TITLE,
    WIDTH,
    Box,
    Page,
    TimeScale,
    crosses,
    free_place,
    round_ns,
    stroke_boxes,
    text_width,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# All lengths are inches. Right of the plot stand the labels of the horizontal lines.
LEFT, RIGHT, HEIGHT = 0.95, WIDTH - 1.75, 3.8
CURVE, FLAT, GRID = "#1f5f99", "#deecf8", "#d6d9dc"
HATCH: dict[str, Any] = {"facecolor": "white", "edgecolor": "#cccccc", "hatch": "////"}
OPTIMUM: dict[str, Any] = {"linestyle": (0, (5, 2))}
BOUND: dict[str, Any] = {"linestyle": (0, (1, 1.5))}
Point = tuple[float, float]
COLUMN = 0.01  # steps of the curve that are narrower are drawn as one stroke
NEAR = 0.09  # points that are closer share a label
NUMBER, CELLS = 0.5, (2.35, 3.2)  # of the table's columns: the number, the rule and its setting
FIGURES = (("exposed", 6.8), ("over optimum", 8.1), ("launches", 8.85), ("mean bucket", 9.8))


def draw_comparison(comparison: Comparison, path: Path, *, title: str, subtitle: str = "") -> None:
    """Draw the exposed time over DDP's single cap, with every rule, the optimum and the bound.

    The curve is exact: it has every step that any cap can give. Rules stand at the mean size of
    their launches. Without a curve (where DDP does not apply) the rest is drawn. The same comparison
    gives the same file.

    Parameters
    ----------
    comparison
        What is drawn; the rows are numbered in their order.
    path
        The file to write, ending in ``.png`` or ``.svg``. It is replaced only when the picture is
        complete.
    title, subtitle
        Stand above the plot; long ones are wrapped.

    Raises
    ------
    InputError
        If the file's suffix is neither, or it cannot be written.
    MissingExtraError
        If matplotlib is not installed.
    """
    save(path, title, lambda: _figure(comparison, title, subtitle))


class _Chart(Page):
    """A page with a plot: bytes from left to right on a log scale, exposed times upwards."""

    def __init__(self, comparison: Comparison, top: float) -> None:
        super().__init__()
        self.top, self.bottom = top, top + HEIGHT
        self.rows = comparison.rows
        setting = comparison.best_settings.get("ddp-best")
        self.tuning = setting.tuning if setting else None
        self.ranges = self.tuning.ranges if self.tuning else ()
        best = comparison.optimal
        self.best_ns = best.timeline.exposed_ns
        self.bound_ns = max(0, comparison.lower_bound_ns - best.timeline.compute_ns)
        self.bounded = format_ns(self.bound_ns) != format_ns(self.best_ns)
        lines = [self.best_ns] + [self.bound_ns] * self.bounded
        points = [row.timeline.exposed_ns for row in self.rows]
        self.times = TimeScale([*lines, *points, *(each.exposed_ns for each in self.ranges)])
        self.lines = [self.y(ns) for ns in lines]
        sizes = [max(1.0, _mean_bytes(row)) for row in (*self.rows, best)]
        low, high = min(sizes) / 2, max(sizes) * 2
        if self.ranges:
            first, last = self.ranges[0], self.ranges[-1]
            low = min(low, first.low / 2 if first.low > 1 else (first.high or 1) / 8)
            high = max(high, last.low * 2)
        self.least = max(0.5, low)
        self.most = max(high, 16 * self.least)
        self.octave = (RIGHT - LEFT) / math.log2(self.most / self.least)

    def x(self, size: float | None) -> float:
        """Return where a number of bytes lies, on the plot's edge if it is beyond; None: no end."""
        size = self.most if size is None else min(max(size, self.least), self.most)
        return LEFT + self.octave * math.log2(size / self.least)

    def y(self, ns: float) -> float:
        """Return the height of an exposed time."""
        return self.bottom - HEIGHT * self.times.share(ns)

    def curve(self) -> list[tuple[float, float]]:
        """Return the corners of the curve; steps too narrow to see become one upright stroke."""
        corners: list[tuple[float, float]] = []
        stroke: list[float] = []
        for each in self.ranges:
            left, right = self.x(each.low), self.x(each.high and each.high + 1)
            y = self.y(each.exposed_ns)
            if corners and right - corners[-1][0] < COLUMN:
                stroke.append(y)
                continue
            if stroke:
                x = corners[-1][0]
                corners += [(x, min(stroke)), (x, max(stroke)), (x, stroke[-1])]
                corners.append((left, stroke[-1]))
                stroke = []
            corners += [(left, y), (right, y)]
        return corners

    def size_ticks(self) -> list[tuple[float, str]]:
        """Return where the sizes' ticks lie, with labels: powers of two, and DDP's 25 MiB."""
        step = next((s for s in (1, 2, 5) if s * self.octave > 0.72), 10)
        exponents = range(max(0, math.ceil(math.log2(self.least))), int(math.log2(self.most)) + 1)
        sizes = [25 * MIB, *(2**k for k in exponents if k % 10 == 0)]
        sizes += [2**k for k in exponents if k % step == 0]
        found: list[tuple[float, str]] = []
        for size in sizes:
            label = format_bytes(size).replace(".00", "")
            near = any(abs(self.x(size) - x) < 0.6 for x, _ in found)
            if self.least <= size <= self.most and not near:
                found.append((self.x(size), label))
        return found


def _mean_bytes(row: Row) -> float:
    launches = row.timeline.launches
    return sum(launch.bytes for launch in launches) / max(1, len(launches))


def _draw_frame(chart: _Chart) -> None:
    """Draw the plot's background, frame and ticks."""
    tuning = chart.tuning
    if tuning is not None:
        for low, high in (tuning.flat, *tuning.flat_elsewhere):
            left, right = chart.x(low), chart.x(high and high + 1)
            chart.box(left, chart.top, right - left, HEIGHT, facecolor=FLAT, zorder=0)
        first = tuning.ranges[0].low
        if first > 1:
            chart.box(LEFT, chart.top, chart.x(first) - LEFT, HEIGHT, **HATCH, zorder=0)
    for x, label in chart.size_ticks():
        chart.line((x, x), (chart.top, chart.bottom), color=GRID, linewidth=0.6, zorder=0.5)
        chart.line((x, x), (chart.bottom, chart.bottom + 0.05))
        chart.text(x, chart.bottom + 0.14, label, ha="center")
    for share, label in chart.times.ticks():
        y = chart.bottom - HEIGHT * share
        chart.line((LEFT, RIGHT), (y, y), color=GRID, linewidth=0.6, zorder=0.5)
        chart.line((LEFT - 0.05, LEFT), (y, y))
        chart.text(LEFT - 0.09, y, label, ha="right")
    chart.line(
        (LEFT, RIGHT, RIGHT, LEFT, LEFT),
        (chart.top, chart.top, chart.bottom, chart.bottom, chart.top),
        solid_joinstyle="miter",
    )
    what = "exposed time"
    if chart.times.log:
        what += ", log scale"
        if chart.times.foot:
            what += f" (linear from 0 to {round_ns(chart.times.floor_ns)})"
    if chart.times.cut:
        what += " (the axis does not start at 0)"
        for y in (chart.bottom - 0.08, chart.bottom - 0.14):
            chart.line((LEFT - 0.06, LEFT + 0.06), (y + 0.03, y - 0.03))
    chart.text(MARGIN, chart.top - 0.14, what)
    what = "points: mean bucket size; log scale"
    if tuning is not None:
        what = f"curve: DDP's single bucket cap; {what}"
    chart.text(RIGHT, chart.bottom + 0.35, what, ha="right")


def _draw_lines(chart: _Chart, best: Row) -> None:
    """Draw the optimum and the bound as horizontal lines with labels to their right."""
    name, count = best.title.split(",")[0], best.launches
    labels = [f"{name} {format_ns(chart.best_ns)}", f"lower bound {format_ns(chart.bound_ns)}"]
    lower = max(chart.lines[-1], chart.top + 0.7)
    upper = min(chart.lines[0], lower - 0.45 if chart.bounded else chart.bottom - 0.1)
    for y, middle, label, style in zip(
        chart.lines, (upper, lower), labels, (OPTIMUM, BOUND), strict=False
    ):
        chart.line((LEFT, RIGHT), (y, y), linewidth=1.1, zorder=3, **style)
        chart.line((RIGHT, RIGHT + 0.1), (y, middle), color=SOFT)
        chart.text(RIGHT + 0.14, middle, label, weight="bold")
    launches = f"{count} launch{'es' * (count != 1)}"
    chart.text(RIGHT + 0.14, upper + 0.16, launches, SMALL, color=SOFT)


def _draw_points(chart: _Chart, curve: Sequence[tuple[float, float]]) -> None:
    """Draw the rules as points, and beside them the numbers that they have in the table."""
    taken = [Box(LEFT, y, RIGHT, y).grown(0.015) for y in chart.lines]
    marks: list[tuple[float, float, list[int]]] = []  # points at nearly one place, their numbers
    for number, row in enumerate(chart.rows, 1):
        x, y = chart.x(_mean_bytes(row)), chart.y(row.timeline.exposed_ns)
        chart.line((x,), (y,), **_sign(row))
        taken.append(Box(x, y, x, y).grown(0.07))
        numbers = next((n for a, b, n in marks if max(abs(a - x), abs(b - y)) < NEAR), None)
        if numbers is None:
            marks.append((x, y, [number]))
        else:
            numbers.append(number)
    for (x, y), (end, other) in pairwise(curve):
        taken.append(Box(x, min(y, other), end, max(y, other)).grown(0.02))
    labels = [(x, y, textwrap.wrap(_runs(numbers), 18)) for x, y, numbers in marks]
    by_height = sorted(labels, key=lambda label: (label[1], label[0]))
    orders = [each[::way] for each in (labels, sorted(labels), by_height) for way in (1, -1)]
    tried = [_places(chart, order, taken) for order in orders]
    _, places = min(tried, key=lambda found: found[0])
    for x, y, numbers in marks:
        place, ends = places[x, y]
        if math.dist(*ends) > 0.13:
            chart.line(*zip(*ends, strict=True), color=SOFT, linewidth=0.6)
        strong = any(chart.rows[number - 1].name == "ddp" for number in numbers)
        style = {"color": STRONG, "weight": "bold"} if strong else {}
        for k, line in enumerate(textwrap.wrap(_runs(numbers), 18)):
            middle, height = (place.left + place.right) / 2, place.top + 0.125 * (k + 0.5)
            chart.text(middle, height, line, SMALL, ha="center", **style)


def _places(
    chart: _Chart, labels: Iterable[tuple[float, float, list[str]]], taken: Iterable[Box]
) -> tuple[float, dict[Point, tuple[Box, tuple[Point, Point]]]]:
    """Return the labels' places and the lines to them, if they are placed in the given order.

    The first value says how bad that is: the lines' lengths, and more if one crosses a label.
    """
    inside = Box(LEFT, chart.top, RIGHT, chart.bottom).grown(-0.04)
    places, taken, texts, cost = {}, list(taken), list[Box](), 0.0
    for x, y, lines in labels:
        width = max(text_width(line, SMALL, bold=True) for line in lines)
        place = free_place((x, y), (width, 0.125 * len(lines)), inside, taken, texts)
        ends = ((x, y), place.nearest(x, y))
        cost += math.dist(*ends) + crosses((x, y), place, texts)
        texts.append(place.grown(0.02))
        taken += stroke_boxes(*ends)
        places[x, y] = place, ends
    return cost, places


def _sign(row: Row) -> dict[str, Any]:
    """Return how a rule's point looks; DDP's default has a shape of its own."""
    if row.name == "ddp":
        style = {"marker": "D", "markersize": 6.0, "markeredgecolor": INK, "zorder": 5.5}
        return {"linestyle": "none", "markerfacecolor": EXPOSED["facecolor"], **style}
    style = {"marker": "o", "markersize": 5.0, "markeredgecolor": "white", "zorder": 5.2}
    return {"linestyle": "none", "markerfacecolor": INK, "markeredgewidth": 0.6, **style}


def _runs(numbers: Iterable[int]) -> str:
    """Return ascending numbers as a text, with three or more neighbours as a range."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def _draw_curve(chart: _Chart, curve: Sequence[tuple[float, float]]) -> None:
    """Draw the curve, thick where it is best."""
    if chart.tuning is None:
        return
    chart.line(*zip(*curve, strict=True), color=CURVE, linewidth=1.4, solid_joinstyle="miter")
    best = chart.tuning.best
    y = chart.y(best.exposed_ns)
    for low, high in ((best.low, best.high), *chart.tuning.equal_elsewhere):
        left, right = chart.x(low), chart.x(high and high + 1)
        middle, half = (left + right) / 2, max(right - left, 0.05) / 2
        chart.line((middle - half, middle + half), (y, y), color=CURVE, linewidth=4.5)


def _key(chart: _Chart) -> list[tuple[str, dict[str, Any]]]:
    """Return what the signs mean that the picture shows."""
    entries: list[tuple[str, dict[str, Any]]] = []
    if chart.tuning is not None:
        found = chart.tuning.best.low, chart.tuning.best.high
        best = ranges_text(bytes_range, found, chart.tuning.equal_elsewhere)
        flat = ranges_text(bytes_range, chart.tuning.flat, chart.tuning.flat_elsewhere, found)
        entries = [
            ("DDP with a single cap", {"color": CURVE, "linewidth": 1.4}),
            (f"best cap: {best}", {"color": CURVE, "linewidth": 4.5}),
            (f"step at most 1% longer: {flat}", {"facecolor": FLAT}),
        ]
        if chart.ranges[0].low > 1:
            entries.append(("smaller caps: proved worse", HATCH))
    default = next((row for row in chart.rows if row.name == "ddp"), None)
    other = next((row for row in chart.rows if row.name != "ddp"), None)
    for row, label in ((default, "DDP's default"), (other, "rule, numbered as below")):
        if row is not None:
            entries.append((label, _sign(row)))
    return entries


def _draw_table(chart: _Chart, y: float, comparison: Comparison) -> float:
    """Draw below ``y`` the optimum, the rules and the bound as a table; return where it ends."""
    starts = (MARGIN + NUMBER, MARGIN + NUMBER + CELLS[0])
    for x, name in zip(starts, ("rule", "setting"), strict=True):
        chart.text(x, y + LINE / 2, name, weight="bold")
    for name, x in FIGURES:
        chart.text(x, y + LINE / 2, name, ha="right", weight="bold")
    y += LINE + 0.03
    for number, row in enumerate((comparison.optimal, *chart.rows)):
        chart.line((MARGIN, WIDTH - MARGIN), (y, y), color=RULE)
        middle = y + LINE / 2 + 0.01
        if number:
            chart.line((MARGIN + 0.08,), (middle,), **_sign(row))
            chart.text(MARGIN + 0.4, middle, str(number), ha="right")
        else:
            chart.line((MARGIN, MARGIN + 0.4), (middle, middle), linewidth=1.1, **OPTIMUM)
        weight = "bold" if row.name in ("optimal", "ddp") else "normal"
        lines = 1
        for x, width, text in zip(starts, CELLS, (row.title, row.setting), strict=True):
            cell = wrap(text, BODY, weight == "bold", width - 0.15)
            for k, line in enumerate(cell):
                chart.text(x, middle + k * LINE * 0.85, line, weight=weight)
            lines = max(lines, len(cell))
        figures = (
            format_ns(row.timeline.exposed_ns),
            _over(row) if number else "-",
            str(row.launches),
            format_bytes(round(_mean_bytes(row))),
        )
        for (_, x), text in zip(FIGURES, figures, strict=True):
            chart.text(x, middle, text, ha="right", weight=weight)
        y += LINE * (1 + (lines - 1) * 0.85) + 0.02
    chart.line((MARGIN, WIDTH - MARGIN), (y, y), color=RULE)
    middle = y + LINE / 2 + 0.01
    if chart.bounded:
        chart.line((MARGIN, MARGIN + 0.4), (middle, middle), linewidth=1.1, **BOUND)
    chart.text(starts[0], middle, "lower bound")
    chart.text(FIGURES[0][1], middle, format_ns(chart.bound_ns), ha="right")
    return y + LINE


def _over(row: Row) -> str:
    """Return how much longer the step is than with the optimum; rounding is nothing."""
    if 0 <= row.over_optimal_ns <= row.launches:
        return "none"
    share = percent(row.over_optimal_ns, row.optimal_ns)
    return f"{format_ns(row.over_optimal_ns)} ({share})"


def _figure(comparison: Comparison, title: str, subtitle: str) -> Figure:
    titles, subtitles = wrap(title, TITLE, bold=True), wrap(subtitle, BODY)
    y = MARGIN - 0.05
    chart = _Chart(comparison, y + 0.26 * len(titles) + LINE * len(subtitles) + 0.38)
    for line in titles:
        chart.text(MARGIN, y + 0.13, line, TITLE, weight="bold")
        y += 0.26
    for line in subtitles:
        chart.text(MARGIN, y + LINE / 2, line, color=SOFT)
        y += LINE
    _draw_frame(chart)
    curve = chart.curve()
    _draw_curve(chart, curve)
    _draw_lines(chart, comparison.optimal)
    _draw_points(chart, curve)
    y = chart.key(chart.bottom + 0.55, _key(chart))
    y = _draw_table(chart, y + 0.14, comparison)
    return chart.end(y + 0.12)

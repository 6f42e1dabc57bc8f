"""Picture of a comparison: the exposed time over DDP's single cap, every rule beside it, and a table.

The rules' points are numbered as in the table below them. A number is placed where it covers neither
another number nor the curve, so the picture stays legible with many rules at nearly one place.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from commsched.models.units import MIB, format_bytes, format_ns
from commsched.optimizer.comparison import Comparison, Row, percent
from commsched.optimizer.handy import bytes_range
from commsched.picture import save
from commsched.sheet import (
    BODY,
    EXPOSED,
    FAINT,
    INK,
    LINE,
    MARGIN,
    RULE,
    SMALL,
    SOFT,
    STRONG,
    TITLE,
    UNITS,
    WIDTH,
    Box,
    Page,
    free_place,
    stroke_boxes,
    text_width,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# All lengths are inches. Right of the plot stand the labels of the horizontal lines.
LEFT, RIGHT, HEIGHT = 0.95, WIDTH - 1.75, 3.5
CURVE, FLAT = "#1f5f99", "#dcebf7"
HATCH = {"facecolor": "white", "edgecolor": FAINT, "hatch": "////"}
OPTIMUM, BOUND = {"linestyle": (0, (5, 2))}, {"linestyle": (0, (1, 1.5))}
COLUMN = 0.01  # steps of the curve that are narrower are drawn as one stroke
NEAR = 0.09  # points that are closer share a label
LOG_FROM, DECADES = 10, 4  # ratio from which the exposed times are on a log scale, and its most
NUMBER, CELLS = 0.5, (2.85, 2.6)  # of the table's columns: the number, the rule and its setting
FIGURES = (("exposed", 7.0), ("over optimum", 8.3), ("launches", 8.95), ("mean bucket", 9.8))


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
        If the file's suffix is neither, or its folder does not exist.
    MissingExtraError
        If matplotlib is not installed.
    OSError
        If the file cannot be written.
    """
    save(path, title, lambda: _figure(comparison, title, subtitle))


class _Times:
    """The vertical scale: exposed times as shares of the plot's height.

    It is logarithmic if the times differ so much that a linear one would hide the small ones, and
    then linear from 0 to ``floor_ns`` where there are times below it. A linear scale that would start
    with much empty space is cut.
    """

    def __init__(self, times: Sequence[int]) -> None:
        top = max(*times, 1)
        least = min((ns for ns in times if ns), default=top)
        self.floor_ns, self.foot = 0.0, 0.0
        self.log = top > LOG_FROM * least
        if self.log:
            self.floor_ns = max(least, top / 10**DECADES)
            if min(times) < self.floor_ns:
                self.floor_ns, self.foot = 10.0 ** math.floor(math.log10(self.floor_ns)), 0.16
            room = (top / self.floor_ns) ** 0.07
            self.low_ns = self.floor_ns if self.foot else self.floor_ns / room
            self.high_ns = top * room
        else:
            window = max(top - min(times), top / 20) if min(times) > top / 2 else top
            self.low_ns = top - window - 0.07 * window * (min(times) < top - window * 0.93)
            self.high_ns = top + 0.08 * window
        self.cut = not self.log and self.low_ns > 0

    def share(self, ns: float) -> float:
        """Return where a time lies: 0 at the foot, 1 at the head."""
        if not self.log:
            return (ns - self.low_ns) / (self.high_ns - self.low_ns)
        if ns < self.low_ns:
            return 0.05 + (self.foot - 0.05) * ns / self.floor_ns
        decades = math.log(ns / self.low_ns) / math.log(self.high_ns / self.low_ns)
        return self.foot + (1 - self.foot) * decades

    def ticks(self) -> list[tuple[float, str]]:
        """Return shares of the height with labels."""
        if not self.log:
            from matplotlib.ticker import MaxNLocator

            unit, decimals, _ = next(u for u in UNITS if self.high_ns < u[2])
            low, high = self.low_ns / 10**decimals, self.high_ns / 10**decimals
            values = MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
            near = 1e-9 * high
            shown = [float(v) for v in values if max(low, 0) - near <= v <= high]
            digits = next(d for d in range(16) if all(abs(v - round(v, d)) < near for v in shown))
            return [(self.share(v * 10**decimals), f"{v:.{digits}f} {unit}") for v in shown]
        decades = range(math.floor(math.log10(self.low_ns)), math.ceil(math.log10(self.high_ns)))
        found = [(self.share(0), "0")] * (self.foot > 0)
        for factor in (1, 5, 2):
            for ns in (factor * 10.0**decade for decade in decades):
                share = self.share(ns)
                if self.low_ns <= ns <= self.high_ns and all(
                    abs(share - s) > 0.07 for s, _ in found
                ):
                    found.append((share, _round_ns(ns)))
        return found


def _round_ns(ns: float) -> str:
    """Return a time of one figure in the unit in which it is shortest."""
    for unit, decimals in (("s", 9), ("ms", 6), ("us", 3)):
        if ns >= 10**decimals:
            return f"{ns / 10**decimals:g} {unit}"
    return f"{ns:g} ns"


class _Mark(NamedTuple):
    """Points at nearly one place: where, their numbers, and whether DDP's default is there."""

    x: float
    y: float
    numbers: list[int]


class _Chart(Page):
    """A page with a plot: bytes from left to right on a log scale, exposed times upwards."""

    def __init__(self, comparison: Comparison, top: float) -> None:
        super().__init__()
        self.top, self.bottom = top, top + HEIGHT
        self.rows = comparison.rows
        self.tuning = comparison.tunings.get("ddp")
        self.ranges = self.tuning.ranges if self.tuning else ()
        best = comparison.optimal
        self.best_ns = best.timeline.exposed_ns
        self.bound_ns = max(0, comparison.lower_bound_ns - best.timeline.compute_ns)
        self.bounded = format_ns(self.bound_ns) != format_ns(self.best_ns)
        lines = [self.best_ns] + [self.bound_ns] * self.bounded
        points = [row.timeline.exposed_ns for row in self.rows]
        self.times = _Times([*lines, *points, *(each.exposed_ns for each in self.ranges)])
        self.lines = [self.y(ns) for ns in lines]
        sizes = [max(1.0, _mean_bytes(row)) for row in (*self.rows, best)]
        low, high = min(sizes) / 2, max(sizes) * 2
        if self.ranges:
            first, last = self.ranges[0], self.ranges[-1]
            low = min(low, first.low / 2 if first.low > 1 else (first.high or 1) / 8)
            high = max(high, last.low * 2)
        self.least, self.most = max(1.0, low), max(high, 16 * max(1.0, low))
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
            left, right, y = (
                self.x(each.low),
                self.x(each.high and each.high + 1),
                self.y(each.exposed_ns),
            )
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
        exponents = range(math.ceil(math.log2(self.least)), int(math.log2(self.most)) + 1)
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
        left, right = (chart.x(size) for size in tuning.flat)
        chart.box(left, chart.top, right - left, HEIGHT, facecolor=FLAT, zorder=0)
        first = tuning.ranges[0].low
        if first > 1:
            chart.box(LEFT, chart.top, chart.x(first) - LEFT, HEIGHT, **HATCH, zorder=0)
    for x, label in chart.size_ticks():
        chart.line((x, x), (chart.top, chart.bottom), color=RULE, linewidth=0.6, zorder=0.5)
        chart.line((x, x), (chart.bottom, chart.bottom + 0.05))
        chart.text(x, chart.bottom + 0.14, label, ha="center")
    for share, label in chart.times.ticks():
        y = chart.bottom - HEIGHT * share
        chart.line((LEFT, RIGHT), (y, y), color=RULE, linewidth=0.6, zorder=0.5)
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
            what += f" (linear from 0 to {_round_ns(chart.times.floor_ns)})"
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
    labels = [(f"{name} {format_ns(chart.best_ns)}", f"{count} launch{'es' * (count != 1)}")]
    heights = [min(chart.lines[0], chart.bottom - 0.1)]
    if chart.bounded:
        labels.append((f"lower bound {format_ns(chart.bound_ns)}", "no plan exposes less"))
        low = max(chart.lines[1], chart.top + 3.5 * LINE)
        heights = [min(heights[0], low - 2 * LINE), low]
    for y, wanted, lines, style in zip(
        chart.lines, heights, labels, (OPTIMUM, BOUND), strict=False
    ):
        chart.line((LEFT, RIGHT), (y, y), linewidth=1.1, zorder=3, **style)
        middle = max(wanted, chart.top + 0.1)
        chart.line((RIGHT, RIGHT + 0.1), (y, middle), color=SOFT)
        for number, line in enumerate(lines):
            weight, colour = ("normal", SOFT) if number else ("bold", INK)
            size = SMALL if number else BODY
            y_text = middle + (number - 0.0) * LINE * 0.8
            chart.text(RIGHT + 0.14, y_text, line, size, weight=weight, color=colour)


def _draw_points(chart: _Chart, curve: Sequence[tuple[float, float]]) -> None:
    """Draw the rules as points, and beside them the numbers that they have in the table."""
    marks: list[_Mark] = []
    default = 0
    for number, row in enumerate(chart.rows, 1):
        x, y = chart.x(_mean_bytes(row)), chart.y(row.timeline.exposed_ns)
        if row.name == "ddp":
            default = number
        _draw_sign(chart, x, y, default=row.name == "ddp")
        mark = next((m for m in marks if max(abs(m.x - x), abs(m.y - y)) < NEAR), None)
        if mark is None:
            marks.append(_Mark(x, y, [number]))
        else:
            mark.numbers.append(number)
    texts: list[Box] = []
    taken = [Box(m.x, m.y, m.x, m.y).grown(0.07) for m in marks]
    taken += [Box(LEFT, y, RIGHT, y).grown(0.015) for y in chart.lines]
    for (x, y), (end, other) in zip(curve, curve[1:], strict=False):
        taken.append(Box(x, min(y, other), end, max(y, other)).grown(0.02))
    for mark in marks:
        lines = textwrap.wrap(_runs(mark.numbers), 18)
        width = max(text_width(line, SMALL, bold=True) for line in lines)
        place, end = _free_place(chart, mark, width, 0.125 * len(lines), taken, texts)
        texts.append(place.grown(0.02))
        colour, weight = INK, "normal"
        if default in mark.numbers:
            colour, weight = STRONG, "bold"
        if math.dist(end, (mark.x, mark.y)) > 0.1:
            chart.line((mark.x, end[0]), (mark.y, end[1]), color=SOFT, linewidth=0.6)
            taken += _between((mark.x, mark.y), end)
        for number, line in enumerate(lines):
            y, middle = place.top + 0.125 * (number + 0.5), (place.left + place.right) / 2
            chart.text(middle, y, line, SMALL, ha="center", color=colour, weight=weight)


def _draw_sign(page: Page, x: float, y: float, *, default: bool) -> None:
    """Draw a rule's point; DDP's default has a shape of its own."""
    style: dict[str, object] = {"marker": "o", "markersize": 5.0, "zorder": 5}
    colours = {"markerfacecolor": INK, "markeredgecolor": "white", "markeredgewidth": 0.6}
    if default:
        style = {"marker": "D", "markersize": 6.0, "zorder": 5.5}
        colours |= {"markerfacecolor": EXPOSED["facecolor"], "markeredgecolor": INK}
    page.line((x,), (y,), linestyle="none", **style, **colours)


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
    left, right = chart.x(best.low), chart.x(best.high and best.high + 1)
    middle, half = (left + right) / 2, max(right - left, 0.05) / 2
    y = chart.y(best.exposed_ns)
    chart.line((middle - half, middle + half), (y, y), color=CURVE, linewidth=4.5)


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
            _draw_sign(chart, MARGIN + 0.08, middle, default=row.name == "ddp")
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
    share = percent(row.over_optimal_ns, row.timeline.makespan_ns)
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
    y = _draw_key(chart, chart.bottom + 0.55)
    y = _draw_table(chart, y + 0.14, comparison)
    return chart.end(y + 0.12)

"""Pictures of measured times and the curves fitted to them: both axes logarithmic.

As in the other pictures everything is placed in inches, so every text's width is known beforehand.
Matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commsched.fit_tables import Fitted, Form
from commsched.models.cost import CostCurve
from commsched.models.errors import InputError
from commsched.models.fit import Fit
from commsched.models.units import format_bytes
from commsched.picture import save
from commsched.sheet import (
    BODY,
    FAINT,
    HEADING,
    INK,
    LINE,
    MARGIN,
    RULE,
    SMALL,
    SOFT,
    TITLE,
    WIDTH,
    Page,
    round_ns,
    text_width,
    wrap,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

MOST_TABLES = 24
"""More are too many for one picture."""

_GUTTER, _LABELS, _PLOT = 0.35, 0.62, 2.5
_SAMPLES = 200
_LINE = {"color": "#a34a10", "linestyle": (0, (5, 2)), "linewidth": 1.1}
_CURVE = {"color": "#2f7fc1", "linewidth": 1.4}
_POINTS = {"color": INK, "linestyle": "none", "marker": "o", "markersize": 3.0}
_NAMES = {"pieces": "straight pieces", "raw": "all points"}


class _Scale(NamedTuple):
    """A logarithmic axis: where values from low to high lie between two places, in inches."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.first + (self.last - self.first) * share


def draw_fits(fitted: Sequence[Fitted], path: Path, *, form: Form = "pieces") -> None:
    """Draw measured times and fits, a panel for each table.

    Parameters
    ----------
    fitted
        From 1 to 24 tables.
    path
        The file to write, ending in ``.png`` or ``.svg``. It is replaced only when the picture is
        complete.
    form
        Besides the line, the curve of few pieces is drawn, or with ``raw`` that of all points.

    Raises
    ------
    InputError
        If there are too many tables, the suffix is neither, or the file cannot be written.
    MissingExtraError
        If matplotlib is not installed.
    """
    if not 1 <= len(fitted) <= MOST_TABLES:
        raise InputError(
            f"--picture: {len(fitted)} tables, a picture holds from 1 to {MOST_TABLES}: "
            "give fewer logs, or --ranks"
        )
    title = "Measured times of collectives and what was fitted to them"
    save(path, title, lambda: _figure(fitted, title, "raw" if form == "raw" else "pieces"))


def _figure(fitted: Sequence[Fitted], title: str, form: Form) -> Figure:
    page, y = Page(), MARGIN - 0.05
    for line in wrap(title, TITLE, bold=True):
        page.text(MARGIN, y + 0.13, line, TITLE, weight="bold")
        y += 0.28
    y += 0.1
    columns = 1 if len(fitted) == 1 else 2
    width = (WIDTH - 2 * MARGIN - (columns - 1) * _GUTTER) / columns
    for start in range(0, len(fitted), columns):
        row = fitted[start : start + columns]
        heads = [_head(one, width, form) for one in row]
        tallest = max(len(head) for head in heads)
        for number, (one, head) in enumerate(zip(row, heads, strict=True)):
            left = MARGIN + number * (width + _GUTTER)
            for k, (text, style) in enumerate(head):
                size = style.get("size", BODY)
                more = {name: value for name, value in style.items() if name != "size"}
                page.text(left, y + (k + 0.5) * LINE, text, size, **more)
            _panel(page, left, left + width, y + tallest * LINE + 0.08, one, form)
        y += tallest * LINE + 0.08 + _PLOT + 0.62
    entries: list[tuple[str, dict[str, Any]]] = [("measured", _POINTS)]
    if any(_curve(one, form) is not None for one in fitted):
        entries.append((_NAMES[form], _CURVE))
    entries.append(("one line: latency and bandwidth", _LINE))
    y = page.key(y, entries)
    return page.end(y + 0.12)


def _curve(one: Fitted, form: Form) -> Fit | None:
    return one.raw if form == "raw" else one.curve


def _head(one: Fitted, width: float, form: Form) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines above a panel with their style."""
    lines = [
        (line, {"size": HEADING, "weight": "bold"})
        for line in wrap(one.title, HEADING, bold=True, width=width)
    ]
    texts = []
    curve = _curve(one, form)
    if curve is not None:
        count = f"{curve.pieces} piece{'s' * (curve.pieces != 1)}"
        texts.append(f"{count}: {_errors(curve)}")
    elif one.fall is not None:
        texts.append(f"no curve: {one.fall}")
    texts.append(f"line: {_errors(one.line)}")
    for text in texts:
        lines += [(line, {"color": SOFT}) for line in wrap(text, BODY, width=width)]
    return lines


def _errors(fit: Fit) -> str:
    return f"off by {100 * fit.mean_error:.1f}%, at most {100 * fit.max_error:.1f}%"


def _panel(page: Page, left: float, right: float, top: float, one: Fitted, form: Form) -> None:
    sizes = [max(1, size) for size, _ in one.points]
    first, last = min(sizes), max(sizes)
    curve = _curve(one, form)
    # A point that was measured at size 0 cannot be drawn on a logarithmic axis.
    points = [(size, us) for size, us in one.points if size]
    drawn = [(one.line.curve, _LINE)] + ([(curve.curve, _CURVE)] if curve is not None else [])
    sampled = [(_samples(shape, first, last), style) for shape, style in drawn]
    times = [us for _, us in points] + [us for some, _ in sampled for _, us in some]
    room = max((last / first) ** 0.03, 1 + 1e-9)
    wide = _Scale(first / room, last * room, left + _LABELS, right)
    stretch = max((max(times) / min(times)) ** 0.06, 1.15)
    high = _Scale(min(times) / stretch, max(times) * stretch, top + _PLOT, top)
    for value, label in _time_ticks(high):
        y = high.at(value)
        page.line((wide.first, wide.last), (y, y), color=RULE, linewidth=0.6, zorder=1)
        page.text(wide.first - 0.08, y, label, SMALL, ha="right")
    for value, label in _size_ticks(wide):
        x = wide.at(value)
        page.line((x, x), (top, top + _PLOT + 0.04), color=RULE, linewidth=0.6, zorder=1)
        page.text(x, top + _PLOT + 0.13, label, SMALL, ha="center")
    page.line((wide.first, wide.last), (top + _PLOT, top + _PLOT), color=FAINT)
    page.line((wide.first, wide.first), (top, top + _PLOT), color=FAINT)
    part = "one rank's part" if one.table.per_rank else "size of the whole operation"
    page.text(
        (wide.first + wide.last) / 2, top + _PLOT + 0.34, part, SMALL, ha="center", color=SOFT
    )
    for some, style in sampled:
        page.line([wide.at(x) for x, _ in some], [high.at(us) for _, us in some], **style)
    xs, ys = [wide.at(size) for size, _ in points], [high.at(us) for _, us in points]
    page.line(xs, ys, **_POINTS, markeredgewidth=0, zorder=5)


def _samples(curve: CostCurve, first: int, last: int) -> list[tuple[int, float]]:
    """Return sizes and microseconds along a curve, corners included."""
    ratio = last / first
    sizes = {round(first * ratio ** (k / _SAMPLES)) for k in range(_SAMPLES + 1)}
    sizes |= {piece.first_bytes for piece in curve.pieces if first < piece.first_bytes < last}
    return [(size, float(curve.exact_ns(size)) / 1000) for size in sorted(sizes)]


def _time_ticks(scale: _Scale) -> list[tuple[float, str]]:
    """Return round times in microseconds, the decades first, as many as have room."""
    found: list[float] = []
    low, high = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    step = max(1, math.ceil((high - low) / 10))
    decades = [10.0**decade for decade in range(low, high + 1, step)]
    for factor in (1, 3, 2, 5, 1.5, 7):
        for value in (factor * decade for decade in decades):
            inside = scale.low <= value <= scale.high
            if inside and all(abs(scale.at(value) - scale.at(other)) > 0.24 for other in found):
                found.append(value)
    return [(value, round_ns(value * 1000)) for value in sorted(found)]


def _size_ticks(scale: _Scale) -> list[tuple[float, str]]:
    """Return powers of two with labels, at even distances, as many as have room."""
    low, high = math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high))
    for step in (1, 2, 5, 10, 20):
        powers = [power for power in range(low, high + 1) if power % step == 0]
        labels = [format_bytes(1 << max(power, 0)).replace(".00 ", " ") for power in powers]
        widest = max((text_width(label, SMALL) for label in labels), default=0.0)
        places = [scale.at(2.0**power) for power in powers]
        if len(places) < 2 or places[1] - places[0] > widest + 0.12:
            break
    return [(2.0**power, label) for power, label in zip(powers, labels, strict=True) if power >= 0]

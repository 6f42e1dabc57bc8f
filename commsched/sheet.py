"""The sheet that pictures are drawn on: lengths in inches, times on its axis, texts that fit.

Everything is placed in inches from the top left corner, so the width of every text is known before it
is placed. Matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commsched.fonts import families, quiet
from commsched.lanes import shown_from
from commsched.models.timeline import Timeline
from commsched.models.units import format_ns
from commsched.targets import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = (("us", 3, 999.5e3), ("ms", 6, 9999.5e6), ("s", 9, math.inf))  # 10**3 ns, up to 999.5 us
# All lengths are inches and all text sizes points. The gutter holds the end of each step.
WIDTH, MARGIN, GUTTER, WIDEST_LABEL = 10.0, 0.2, 1.4, 1.6
LINE, ROW, BOX, GAP, LANE = 0.19, 0.26, 0.36, 0.07, 0.42
TITLE, HEADING, BODY, SMALL = 13.0, 10.0, 8.5, 7.5
THIN, SPECK = 0.03, 0.012  # narrower boxes are merged with their neighbours, or drawn wider
LOG_FROM, DECADES = 2.5, 4  # ratio from which times are on a log scale, and its most decades
CUT_BELOW = 0.5  # another axis is cut if the times differ by less than so much of the largest
MOST_MARKS = 60  # gradients of a backward, or launches of a channel, that are marked one by one

INK, SOFT, FAINT, RULE = "#1a1a1a", "#595959", "#8c8c8c", "#e6e6e6"
COMPUTE, BAND, STRONG = "#c8ccd1", "#fdeee2", "#a34a10"
EXPOSED = {"facecolor": "#ee7f31", "edgecolor": "#d2651d", "hatch": "////"}
DASHES = {"linestyle": (0, (4, 2)), "zorder": 2}
KIND_COLOURS = {
    "allreduce": "#a8d1f2",
    "reduce_scatter": "#9adbc2",
    "all_gather": "#ebbcd8",
    "all_to_all": "#f2e68c",
    "broadcast": "#c9bfee",
    "send_recv": "#d9c6a8",
}


class Page:
    """An empty page in inches from its top left corner."""

    def __init__(self) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def text(self, x: float, y: float, text: str, size: float = BODY, **style: object) -> None:
        """Write a line centred on the height ``y``."""
        written = self.axes.text(x, y + 0.0051 * size, text, parse_math=False)
        style = {"family": families(text), **style}
        written.set(**{"fontsize": size, "color": INK, "zorder": 6, **style})

    def box(self, x: float, y: float, width: float, height: float, **style: object) -> None:
        """Fill a rectangle whose top left corner is given."""
        from matplotlib.patches import Rectangle

        box = self.axes.add_patch(Rectangle((x, y), width, height))
        box.set(**{"linewidth": 0, "zorder": 3, **style})

    def line(self, xs: Sequence[float], ys: Sequence[float], **style: object) -> None:
        """Draw a line through points; NaN breaks it."""
        from matplotlib.lines import Line2D

        line = self.axes.add_line(Line2D(xs, ys, solid_capstyle="butt"))
        line.set(**{"color": INK, "linewidth": 0.8, "zorder": 4, **style})

    def dots(self, xs: Sequence[float], ys: Sequence[float], size: float = 3.0) -> None:
        """Draw a dot at each point."""
        self.line(xs, ys, linestyle="none", marker="o", markersize=size, markeredgewidth=0)

    def key(self, y: float, entries: Sequence[tuple[str, dict[str, Any]]]) -> float:
        """Draw below ``y`` what signs mean; return where it ends.

        A sign is a box if its style has a ``facecolor``, else a line, or a marker alone if its
        ``linestyle`` is none.
        """
        x = MARGIN
        for label, style in entries:
            width = 0.32 + text_width(label)
            if x + width > WIDTH - MARGIN:
                x, y = MARGIN, y + LINE + 0.02
            middle = y + LINE / 2
            if "facecolor" in style:
                self.box(x, middle - 0.06, 0.26, 0.12, **style)
            elif style.get("linestyle") == "none":
                self.line((x + 0.13,), (middle,), **style)
            else:
                self.line((x, x + 0.26), (middle, middle), **style)
            self.text(x + 0.32, middle, label)
            x += width + 0.22
        return y + LINE

    def end(self, y: float) -> Figure:
        """Return the figure, cut below the height ``y``."""
        self.figure.set_size_inches(WIDTH, y)
        self.axes.set(xlim=(0, WIDTH), ylim=(y, 0))
        return self.figure


class Sheet(Page):
    """A page, and where times lie on it."""

    def __init__(self, timelines: Sequence[Timeline], left: float) -> None:
        super().__init__()
        last = max(each.makespan_ns for each in timelines)
        used = {launch.key.kind for each in timelines for launch in each.launches}
        self.kinds = [kind for kind in KIND_COLOURS if kind in used]
        self.foot = 0.05 if len(used) > 1 else 0.0  # of an exposed box, keeps the kind's colour
        self.first_ns = shown_from(timelines)
        self.cut = self.first_ns > 0
        self.window_ns = max(last - self.first_ns, 10)
        self.left, self.right = left, WIDTH - GUTTER
        self.unit, self.decimals, _ = next(u for u in UNITS if last < u[2])
        self.origin_ns, self.since = 0, "from the start of the step"
        if self.window_ns * 1000 < last:  # the first digits would be the same on every tick
            coarse = 10 ** math.floor(math.log10(self.window_ns))
            self.origin_ns = self.first_ns // coarse * coarse
            self.since = f"after {self.origin_ns / 10**self.decimals:.15g} {self.unit}"
            self.unit, self.decimals, _ = next(u for u in UNITS if self.window_ns < u[2])

    def x(self, ns: float) -> float:
        """Return where a time lies, or the start of the axis if the time is before it."""
        share = max(0.0, ns - self.first_ns) / self.window_ns
        return self.left + (self.right - self.left) * share

    def at(self, ns: int) -> str:
        """Return a moment with four figures, or more where the axis needs them."""
        shift = ns - self.origin_ns
        figures = 3 - math.floor(math.log10(min(self.window_ns, max(shift, 1))))
        digits = min(max(self.decimals + figures, 0), self.decimals) if shift else 0
        sign = "+" * (self.origin_ns > 0)
        return f"{sign}{shift / 10**self.decimals:.{digits}f} {self.unit}"

    def ticks(self) -> list[tuple[float, str]]:
        """Return where the axis' ticks lie, with their labels."""
        unit_ns = 10**self.decimals
        low = (self.first_ns - self.origin_ns) / unit_ns
        shown = round_values(low, low + self.window_ns / unit_ns, 9)
        return [(self.x(value * unit_ns + self.origin_ns), label) for value, label in shown]


def round_values(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return at most so many round values of a range, with labels of equally many decimals."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    near = 1e-9 * high
    shown = [float(value) for value in values if low - near <= value <= high + near]
    digits = next(d for d in range(16) if all(abs(v - round(v, d)) < near for v in shown))
    return [(value, f"{value:.{digits}f}") for value in shown]


class TimeScale:
    """The vertical scale: exposed times as shares of the plot's height.

    It is logarithmic if the times differ so much that on a linear one a few large ones would squeeze
    the others, and then linear from 0 to ``floor_ns`` where there are times below it. A linear scale
    that would start with much empty space is cut.
    """

    def __init__(self, times: Sequence[int]) -> None:
        top = float(max(times) or 1000)
        least = min((ns for ns in times if ns), default=top)
        self.floor_ns, self.foot = 0.0, 0.0  # where a log scale becomes linear, and its share
        self.log = top > LOG_FROM * least
        if self.log:
            self.floor_ns = max(least, top / 10**DECADES)
            if min(times) < self.floor_ns:
                self.floor_ns, self.foot = float(10 ** math.floor(math.log10(self.floor_ns))), 0.16
            room = math.pow(top / self.floor_ns, 0.07)
            self.low_ns = self.floor_ns if self.foot else self.floor_ns / room**1.7
            self.high_ns = top * room
        else:
            window = float(top)
            self.low_ns = -0.07 * top if min(times) < 0.07 * top else 0.0
            if least == min(times) and 0 < top - least < CUT_BELOW * top:
                window = max(top - least, top / 50)
                self.low_ns = top - window / 2 - (top - least) / 2 - 0.08 * window
            self.high_ns = self.low_ns + 1.16 * window if self.low_ns > 0 else 1.08 * top
        self.cut = not self.log and self.low_ns > 0

    def share(self, ns: float) -> float:
        """Return where a time lies: 0 at the foot, 1 at the head."""
        if not self.log:
            return (ns - self.low_ns) / (self.high_ns - self.low_ns)
        if self.foot and ns < self.low_ns:
            return 0.05 + (self.foot - 0.05) * ns / self.floor_ns
        above = math.log(ns / self.low_ns) / math.log(self.high_ns / self.low_ns)
        return self.foot + (1 - self.foot) * above

    def ticks(self) -> list[tuple[float, str]]:
        """Return shares of the height with labels."""
        if not self.log:
            unit, decimals, _ = next(u for u in (("ns", 0, 1e3), *UNITS) if self.high_ns < u[2])
            low, high = max(0.0, self.low_ns) / 10**decimals, self.high_ns / 10**decimals
            shown = round_values(low, high, 7)
            found = [(self.share(v * 10**decimals), f"{text} {unit}") for v, text in shown]
            return [tick for tick in found if tick[0] > 0.06 or not self.cut]
        decades = range(math.floor(math.log10(self.low_ns)), math.ceil(math.log10(self.high_ns)))
        found = [(self.share(0), "0")] if self.foot else []
        for factors in ((1, 5, 2), (3, 7, 4), (1.5, 2.5)):
            for ns in (factor * 10.0**decade for factor in factors for decade in decades):
                share = self.share(ns)
                if self.low_ns <= ns <= self.high_ns and all(
                    abs(share - s) > 0.07 for s, _ in found
                ):
                    found.append((share, round_ns(ns)))
            if len(found) > 3:
                break
        return found


def round_ns(ns: float) -> str:
    """Return a time of few figures in the unit in which it is shortest."""
    for unit, decimals in (("s", 9), ("ms", 6), ("us", 3)):
        if ns >= 10**decimals:
            return f"{ns / 10**decimals:g} {unit}"
    return f"{ns:g} ns"


def render(suffix: str, title: str, make: Callable[[], Figure]) -> bytes:
    """Return a picture as a file's content; the same figure gives the same bytes.

    Parameters
    ----------
    suffix
        ``.png`` or ``.svg``.
    title
        Goes into the file's metadata.
    make
        Makes the figure. Settings of the user do not reach it.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    need_matplotlib()
    import matplotlib

    picture = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings(), quiet():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in any script
        matplotlib.rcdefaults()  # the user's settings must not change the picture
        matplotlib.rcParams.update({"svg.hashsalt": "commsched", "svg.fonttype": "none"})
        matplotlib.rcParams["hatch.linewidth"] = 0.5
        figure = make()
        undated = {"Date": None, "Creator": "commsched"} if suffix == ".svg" else {"Software": None}
        metadata = {"Title": clean(title), **undated}
        dpi = min(160.0, 30_000 / figure.get_figheight())
        figure.savefig(picture, format=suffix[1:], dpi=dpi, metadata=metadata)
    return picture.getvalue()


class Box(NamedTuple):
    """A rectangle on the page."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles have points in common."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        return wide > 0 and min(self.bottom, other.bottom) > max(self.top, other.top)

    def within(self, other: Box) -> bool:
        """Whether the rectangle is inside another one."""
        wide = other.left <= self.left and self.right <= other.right
        return wide and other.top <= self.top and self.bottom <= other.bottom

    def grown(self, by: float) -> Box:
        """Return a larger rectangle with the same middle."""
        return Box(self.left - by, self.top - by, self.right + by, self.bottom + by)

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Return the rectangle's point that is nearest to a point."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def stroke_boxes(start: tuple[float, float], end: tuple[float, float]) -> list[Box]:
    """Return a line without its ends as small squares."""
    count = max(1, math.ceil(math.dist(start, end) / 0.03))
    shares = [k / count for k in range(1, count)]
    (x, y), (to_x, to_y) = start, end
    places = [(x + (to_x - x) * share, y + (to_y - y) * share) for share in shares]
    return [Box(a, b, a, b).grown(0.02) for a, b in places]


def crosses(point: tuple[float, float], box: Box, others: Sequence[Box]) -> bool:
    """Whether the line from a point to its label meets other rectangles."""
    line = stroke_boxes(point, box.nearest(*point))
    return any(dot.meets(other) for dot in line for other in others)


def free_place(
    point: tuple[float, float],
    size: tuple[float, float],
    inside: Box,
    taken: Sequence[Box],
    texts: Sequence[Box],
) -> Box:
    """Return the nearest place for a label of a point.

    Parameters
    ----------
    point
        The label belongs to it.
    size
        The label's width and height.
    inside
        Where it must be.
    taken, texts
        It meets none of them; a line from the point to the label may meet the former, and a text
        only if there is no other way.
    """
    (x, y), (width, height) = point, size
    crossing = None
    for away in (0.08, 0.12, 0.18, *(0.25 + 0.1 * k for k in range(60))):
        for turn in (2, 6, 14, 10, 4, 0, 8, 12, 1, 3, 5, 7, 9, 11, 13, 15):
            left = x + math.cos(turn * math.pi / 8) * (away + width / 2) - width / 2
            top = y - math.sin(turn * math.pi / 8) * (away + height / 2) - height / 2
            box = Box(left, top, left + width, top + height)
            if not box.within(inside) or any(box.meets(other) for other in (*taken, *texts)):
                continue
            if not crosses(point, box, texts):
                return box
            crossing = crossing or box
    if crossing is not None:
        return crossing
    x, y = inside.nearest(x + 0.1, y)  # there is no room at all
    left, top = min(x, inside.right - width), min(y, inside.bottom - height)
    return Box(left, top, left + width, top + height)


def clean(text: str) -> str:
    """Return a text as one line without anything that cannot be printed."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def text_width(text: str, size: float = BODY, bold: bool = False) -> float:
    """Return how wide a text is, with a little to spare for other renderers."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    weight = "bold" if bold else "normal"
    font = FontProperties(family=families(text), size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72 * 1.03


def wrap(
    text: str, size: float, bold: bool = False, width: float = WIDTH - 2 * MARGIN
) -> list[str]:
    """Return a text as lines that fit on the sheet; words that are too long are broken."""
    for letters in range(240, 0, -4):
        lines = textwrap.wrap(clean(text), letters)
        if all(text_width(line, size, bold) <= width for line in lines):
            break
    return lines


def shorten(text: str) -> str:
    """Return a row's label; letters are left out of the middle of a long one."""
    text = short = clean(text)
    keep = len(text)
    while text_width(short) > WIDEST_LABEL:
        keep -= 1
        short = f"{text[: (keep + 1) // 2]}…{text[len(text) - keep // 2 :]}"
    return short


def draw_axis(sheet: Sheet, y: float) -> float:
    """Draw the time axis below ``y`` and return where it ends."""
    sheet.line((sheet.left, sheet.right), (y, y))
    for x, label in sheet.ticks():
        sheet.line((x, x), (y, y + 0.05))
        sheet.text(x, y + 0.14, label, ha="center")
    sheet.text(sheet.right, y + 0.34, f"time {sheet.since}, in {sheet.unit}", ha="right")
    if sheet.cut:
        note = f"from {format_ns(sheet.first_ns)}: before it there is only compute"
        sheet.text(sheet.left, y + 0.34, note, style="italic", color=SOFT)
        for x in (sheet.left + 0.01, sheet.left + 0.07):
            sheet.line((x, x + 0.06), (y + 0.06, y - 0.06))
    return y + 0.5

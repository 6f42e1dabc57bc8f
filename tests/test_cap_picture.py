"""The picture of a comparison: what it says, what is refused, and that every text has its place."""

import os
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from commsched import cap_picture
from commsched.cap_picture import draw_comparison
from commsched.models import AlphaBeta, Gradient, GradientProblem, InputError, Plan, evaluate
from commsched.optimizer import compare
from commsched.optimizer.result import Bound, Status
from commsched.problems import load
from commsched.problems.estimates.library import make
from commsched.sheet import Box, TimeScale, free_place

KIB, MIB = 2**10, 2**20
EXAMPLES = Path(__file__).parents[1] / "examples"
US, MS = 1000, 1_000_000
RULES = ("ddp", "one-each", "one-bucket", "no-overlap")


def small(cost=(80, 12)):
    return GradientProblem(
        [Gradient(f"g{k}", 8 * MIB, (k + 1) * MS) for k in range(6)], AlphaBeta(*cost)
    )


def large(count=120, cost=(60, 12), apart_ns=400 * US):
    rng = random.Random(1)
    sizes = (4 * KIB, 16 * KIB, MIB, 4 * MIB, 9 * MIB)
    ready_ns, gradients = 0, []
    for k in range(count):
        ready_ns += rng.randint(apart_ns // 20, apart_ns)
        size = rng.choice(sizes) + 4 * rng.randint(0, 999)
        gradients.append(Gradient(f"g{k}", size, ready_ns))
    return GradientProblem(gradients, AlphaBeta(*cost))


def hidden():
    gradients = [Gradient(f"g{k}", MIB, (k + 1) * MS) for k in range(30)]
    return GradientProblem(gradients, AlphaBeta(30, 50), backward_end_ns=90 * MS)


def slow_bucket():
    """One bucket is a hundred times worse than the optimum."""
    gradients = [Gradient(f"g{k}", MIB, (k + 1) * MS) for k in range(300)]
    return GradientProblem(gradients, AlphaBeta(5, 2))


def compared(problem, rules=RULES):
    return compare(problem, rules=rules)


def many(problem, count=25, rules=RULES):
    """A comparison with many more rows, many of them nearly the same."""
    comparison, rng = compared(problem, rules), random.Random(3)
    names = [problem.names[k] for k in problem.ready_order]
    rows = list(comparison.rows)
    for k in range(count):
        each = max(1, int(len(names) ** rng.random()))
        plan = Plan.of([names[i : i + each] for i in range(0, len(names), each)])
        timeline = evaluate(problem, plan)
        over = timeline.makespan_ns - comparison.result.makespan_ns
        row = replace(rows[0], name=f"x{k}", title=f"framework {k}", setting=f"buckets of {each}")
        rows.append(replace(row, plan=plan, timeline=timeline, over_optimal_ns=over))
    rows.sort(key=lambda row: (row.timeline.makespan_ns, row.launches, row.name))
    return replace(comparison, rows=tuple(rows))


def bounded(comparison, lower_ns):
    """The comparison as if only so much had been proved."""
    bound = Bound(lower_ns, "relaxation")
    result = replace(comparison.result, status=Status.FEASIBLE, bound=bound)
    return replace(comparison, result=result)


def texts(path):
    return [
        "".join(node.itertext()).strip()
        for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


def svg(tmp_path, comparison, **words):
    path = tmp_path / "picture.svg"
    draw_comparison(comparison, path, **{"title": "Title", **words})
    return texts(path)


# what is written


def test_png_is_an_image(tmp_path):
    path = tmp_path / "picture.PNG"
    draw_comparison(compared(small()), path, title="Title")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.info["Title"] == "Title"
        assert image.width == 1600
        image.load()
    assert os.listdir(tmp_path) == ["picture.PNG"]


def test_svg_keeps_its_texts(tmp_path):
    comparison = compared(small())
    launches = comparison.optimal.launches
    found = svg(tmp_path, comparison, subtitle="Sub")
    for expected in (
        "Title",
        "Sub",
        "exposed time, log scale",
        "curve: DDP's single bucket cap; points: mean bucket size; log scale",
        "25 MiB",
        "optimum 779 us",
        f"{launches} launches",
        "DDP with a single cap",
        "DDP's default",
        "rule, numbered as below",
        "optimum, scope in-order",
        "PyTorch DDP",
        "one bucket for all",
        "48.00 MiB",
        "lower bound",
    ):
        assert expected in found
    for number, row in enumerate(comparison.rows, 1):
        assert str(number) in found
        assert row.setting in [*found, ""]
    assert "lower bound 779 us" not in found


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_comparison_gives_the_same_bytes(tmp_path, suffix):
    import matplotlib

    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in paths:
        draw_comparison(many(small()), path, title="Title")
        matplotlib.rcParams["font.size"] += 3  # the user's settings do not matter
    matplotlib.rcdefaults()
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_best_cap_and_the_flat_region_are_named(tmp_path):
    comparison = compared(large())
    tuning = comparison.best_settings["ddp-best"].tuning
    found = svg(tmp_path, comparison)
    assert any(text.startswith("best cap: from ") for text in found)
    assert any(text.startswith("step at most 1% longer: ") for text in found)
    assert ("smaller caps: proved worse" in found) == (tuning.ranges[0].low > 1)


def test_values_that_are_proved_worse_are_left_out(tmp_path):
    comparison = compared(large(400))
    assert comparison.best_settings["ddp-best"].tuning.ranges[0].low > 1
    assert "smaller caps: proved worse" in svg(tmp_path, comparison)


def test_without_the_rule_there_is_no_curve(tmp_path):
    found = svg(tmp_path, compared(small(), ["one-each", "one-bucket"]))
    assert "points: mean bucket size; log scale" in found
    assert "optimum 779 us" in found
    assert not any("DDP" in text for text in found)


def test_without_rows_there_is_the_optimum(tmp_path):
    assert "optimum 779 us" in svg(tmp_path, compared(small(), []))


def test_what_is_not_proved_has_a_bound(tmp_path):
    comparison = compared(small())
    found = svg(tmp_path, bounded(comparison, comparison.result.makespan_ns - 100 * US))
    assert "best known 779 us" in found
    assert "lower bound 679 us" in found


def test_a_rule_better_than_the_scope(tmp_path):
    comparison = compared(small())
    first = replace(comparison.rows[0], title="in chunks", over_optimal_ns=-500 * US)
    found = svg(tmp_path, replace(comparison, rows=(first, *comparison.rows)))
    assert any(text.startswith("-500 us (-") for text in found)


def test_large_differences_are_on_a_log_scale(tmp_path):
    assert any(
        text.startswith("exposed time, log scale") for text in svg(tmp_path, many(slow_bucket()))
    )
    assert "exposed time" in svg(tmp_path, many(hidden()))


def test_small_differences_cut_the_axis(tmp_path):
    bound = large(60, cost=(2, 1), apart_ns=30 * US)
    assert "exposed time (the axis does not start at 0)" in svg(tmp_path, compared(bound))


def test_names_are_shown_as_they_are(tmp_path):
    comparison = compared(small())
    row = replace(comparison.rows[0], title="a_$b$ <&> \x00 tab\tnew\nline", setting="$x$")
    found = svg(tmp_path, replace(comparison, rows=(row,)))
    assert "a_$b$ <&> \ufffd tab new line" in found
    assert "$x$" in found


# what is refused


@pytest.mark.parametrize(("name", "message"), [("a.pdf", "'.pdf'"), ("a", "no suffix")])
def test_other_suffixes_are_refused(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        draw_comparison(compared(small()), tmp_path / name, title="Title")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["commsched.cap_picture._figure", "pathlib.Path.replace"])
def test_nothing_is_left_behind_when_drawing_fails(tmp_path, monkeypatch, target):
    def fail(*_):
        raise OSError("disk full")

    path = tmp_path / "a.svg"
    path.write_text("old")
    monkeypatch.setattr(target, fail)
    with pytest.raises((OSError, InputError), match="disk full"):
        draw_comparison(compared(small()), path, title="Title")
    assert os.listdir(tmp_path) == ["a.svg"]
    assert path.read_text() == "old"


# the curve and the scale


def test_the_curve_has_every_step():
    comparison = compared(small())
    chart = cap_picture._Chart(comparison, 1.0)
    ranges = comparison.best_settings["ddp-best"].tuning.ranges
    corners = chart.curve()
    assert len(corners) == 2 * len(ranges)
    for each, left, right in zip(ranges, corners[::2], corners[1::2], strict=True):
        y = chart.y(each.exposed_ns)
        assert left == pytest.approx((chart.x(each.low), y))
        assert right == pytest.approx((chart.x(each.high and each.high + 1), y))


def test_narrow_steps_keep_their_extremes():
    comparison = compared(large(400))
    chart = cap_picture._Chart(comparison, 1.0)
    ranges = comparison.best_settings["ddp-best"].tuning.ranges
    corners = chart.curve()
    assert len(corners) < 2 * len(ranges)
    assert all(a[0] <= b[0] + 1e-9 for a, b in pairwise(corners))
    heights = [chart.y(each.exposed_ns) for each in ranges]
    assert min(y for _, y in corners) == min(heights)
    assert max(y for _, y in corners) == max(heights)
    for each in ranges:
        x, y = chart.x(each.low), chart.y(each.exposed_ns)
        near = [b for a, b in corners if abs(a - x) <= 3 * cap_picture.COLUMN]
        assert not near or min(near) - 1e-9 <= y <= max(near) + 1e-9


@pytest.mark.parametrize(
    "times",
    [[0], [5], [0, 0], [1, 3], [0, 7 * MS], [500, 40 * MS], [0, 5, 9 * MS], [99 * MS, 100 * MS],
     [0, 10**14], [1, 10**14], [3 * MS, 3 * MS]],
)  # fmt: skip
def test_scales_keep_the_order_and_have_ticks(times):
    scale = TimeScale(times)
    dense = sorted({*times, *(min(times) + (max(times) - min(times)) * k // 50 for k in range(51))})
    shares = [scale.share(ns) for ns in dense]
    assert all(a < b for a, b in pairwise(shares))
    assert all(0 <= share <= 1 for share in shares)
    ticks = scale.ticks()
    assert len(ticks) >= 2
    assert all(0 <= share <= 1 for share, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_one_large_time_does_not_squeeze_the_others():
    """A rule that is several times worse than all others leaves them room to differ."""
    near = [13_530_000, 14_000_000, 16_500_000, 20_000_000]
    for far in (36_000_000, 75_000_000, 110_000_000, 2_000_000_000):
        scale = TimeScale([*near, far])
        room = scale.share(near[-1]) - scale.share(near[0])
        assert scale.log
        assert room > 1.3 * (near[-1] - near[0]) / far  # what a scale from 0 would give
        assert len(scale.ticks()) >= 3
    close = TimeScale([109_000_000, 131_000_000, 205_000_000])  # less than twice: the rest is cut
    assert close.cut
    assert close.share(131_000_000) - close.share(109_000_000) > 0.19


def test_all_caps_that_are_as_good_are_drawn_thick():
    """The best caps may be ranges apart from each other."""
    comparison = compare(make("resnet50/a100/10g/dp16").problem, rules=["ddp"])
    tuning = comparison.best_settings["ddp-best"].tuning
    assert tuning.equal_elsewhere
    figure = cap_picture._figure(comparison, "Title", "")
    chart = cap_picture._Chart(comparison, 1.0)
    drawn = [line for line in figure.axes[0].lines if line.get_linewidth() == 4.5]
    ends = sorted(
        tuple(line.get_xdata()) for line in drawn if line.get_xdata()[0] >= cap_picture.LEFT
    )
    for low, high in ((tuning.best.low, tuning.best.high), *tuning.equal_elsewhere):
        middle = (chart.x(low) + chart.x(high and high + 1)) / 2
        assert any(left <= middle <= right for left, right in ends)


def test_a_label_without_room_stays_inside():
    inside = Box(0.0, 0.0, 3.0, 3.0)
    place = free_place((2.9, 1.0), (0.5, 0.1), inside, [inside], [])
    assert place.within(inside)


def test_runs_of_numbers():
    assert cap_picture._runs([1, 2, 4, 5, 6, 9]) == "1, 2, 4-6, 9"


# every text has its place


CASES = {
    "small": lambda: compared(small()),
    "small, many rows": lambda: many(small()),
    "large": lambda: many(large()),
    "large, crowded": lambda: many(large(), 60),
    "bound by communication": lambda: many(large(cost=(2, 1), apart_ns=30 * US)),
    "hidden": lambda: many(hidden()),
    "slow bucket": lambda: many(slow_bucket()),
    "general": lambda: many(load(EXAMPLES / "next_forward.json").problem),
    "no curve": lambda: many(large(), rules=["one-each"]),
    "one": lambda: compared(GradientProblem([Gradient("a", 1, 0)], AlphaBeta(0, 1))),
    "empty": lambda: compared(GradientProblem([Gradient("a", 0, 0)], AlphaBeta(0, 1))),
    "long names": lambda: replace(
        compared(small()),
        rows=tuple(
            replace(row, title="word " * 40, setting="W" * 200) for row in compared(small()).rows
        ),
    ),
    "close bound": lambda: bounded(many(large()), compared(large()).result.makespan_ns - 90 * US),
    "no bound": lambda: bounded(many(slow_bucket()), slow_bucket().compute_ns),
}


@pytest.mark.parametrize("case", CASES)
def test_no_text_is_cut_off_or_covers_another(case):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    comparison = CASES[case]()
    figure = cap_picture._figure(comparison, "long title " * 20, "long subtitle " * 30)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    sheet, axes = figure.bbox, figure.axes[0]
    boxes = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in axes.texts
    ]
    for k, (text, box) in enumerate(boxes):
        assert sheet.x0 <= box.x0, text
        assert box.x1 <= sheet.x1, text
        assert sheet.y0 <= box.y0, text
        assert box.y1 <= sheet.y1, text
        for other, against in boxes[:k]:
            wide = min(box.x1, against.x1) - max(box.x0, against.x0)
            high = min(box.y1, against.y1) - max(box.y0, against.y0)
            assert wide < 1 or high < 2, (text, other)
    for line in axes.lines:
        is_curve = line.get_color() == cap_picture.CURVE
        is_point = line.get_linestyle() == "None"
        if not (is_curve or is_point):
            continue
        corners = [tuple(at) for at in axes.transData.transform(line.get_xydata())]
        for (x, y), (to_x, to_y) in pairwise(corners if is_curve else corners * 2):
            for text, box in boxes:
                wide = min(box.x1, max(x, to_x)) - max(box.x0, min(x, to_x))
                high = min(box.y1, max(y, to_y)) - max(box.y0, min(y, to_y))
                assert wide < 0 or high < 2, text


def test_every_row_has_its_number_at_the_plot():
    comparison = many(large(), 60)
    figure = cap_picture._figure(comparison, "Title", "")
    numbers = set()
    for text in figure.axes[0].texts:
        if text.get_fontsize() == 7.5 and "launch" not in text.get_text():
            for part in filter(None, text.get_text().replace(" ", "").split(",")):
                first, _, last = part.partition("-")
                numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(range(1, len(comparison.rows) + 1))

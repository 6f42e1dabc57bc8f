"""Pictures: what is written, what is refused, and that every text has its place."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from commsched import fonts, picture
from commsched import sheet as sheet_module
from commsched.models import (
    KINDS,
    AlphaBeta,
    Bucket,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    InputError,
    MissingExtraError,
    Plan,
    Problem,
    evaluate,
)
from commsched.picture import Panel, draw

MIB = 2**20
MS = 1_000_000


def gradients(count=5, *, first_ns=2 * MS, apart_ns=1_500_000, size=8 * MIB, cost=(80, 12)):
    """A backward pass whose gradients are ready one after the other."""
    return GradientProblem(
        [Gradient(f"g{k}", size, first_ns + k * apart_ns) for k in range(count)], AlphaBeta(*cost)
    )


def fused(problem, each):
    """A plan that fuses ``each`` neighbours in ready order."""
    names = [problem.names[k] for k in problem.ready_order]
    return Plan.of([names[k : k + each] for k in range(0, len(names), each)])


def panel(problem, each, name="rule"):
    return Panel.of(name, evaluate(problem, fused(problem, each)))


def next_forward():
    """Two streams, two channels, two kinds, and a forward pass that waits."""
    tasks = []
    for k in reversed(range(6)):
        tasks += [
            Compute(f"bwd{k}", 900_000, "gpu"),
            Collective(f"rs{k}", 24 * MIB, "reduce_scatter", "dp", after=(f"bwd{k}",)),
            Compute(f"opt{k}", 150_000, "optimizer", after=(f"rs{k}",)),
            Collective(f"ag{k}", 12 * MIB, "all_gather", "gather", after=(f"opt{k}",)),
        ]
    tasks += [Compute(f"fwd{k}", 500_000, "gpu", after=(f"ag{k}",)) for k in range(6)]
    costs = {
        ("dp", "reduce_scatter"): AlphaBeta(40, 30),
        ("gather", "all_gather"): AlphaBeta(40, 25),
    }
    return Problem(tasks, costs)


def texts(path):
    """Every text of an SVG file."""
    return [
        "".join(node.itertext()).strip()
        for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


def svg(tmp_path, panels, **words):
    path = tmp_path / "picture.svg"
    draw(panels, path, **{"title": "Title", **words})
    return texts(path)


# what is written


def test_png_is_an_image(tmp_path):
    path = tmp_path / "picture.PNG"
    draw([panel(gradients(), 2)], path, title="Title")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.info["Title"] == "Title"
        assert image.width == 1600
        image.load()
    assert os.listdir(tmp_path) == ["picture.PNG"]


def test_svg_keeps_its_texts(tmp_path):
    problem = gradients()
    found = svg(tmp_path, [panel(problem, 2, "DDP"), panel(problem, 5, "once")], subtitle="Sub")
    for expected in (
        "Title",
        "Sub",
        "DDP: 3 launches, 779 us exposed",
        "once: 1 launch, 3.58 ms exposed",
        "exposed 779 us",
        "exposed 3.58 ms",
        "ends at 11.58 ms",
        "#1: 40.00 MiB",
        "backward",
        "channel dp",
        "allreduce, hidden",
        "backward ends at 8.000 ms",
        "time from the start of the step, in ms",
    ):
        assert expected in found
    assert found.count("backward") == 2


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_panels_give_the_same_bytes(tmp_path, suffix):
    import matplotlib

    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in paths:
        draw([panel(next_forward(), 1)], path, title="Title")
        matplotlib.rcParams["font.size"] += 3  # the user's settings do not matter
    matplotlib.rcdefaults()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b"<dc:date>" not in paths[0].read_bytes()


def test_user_settings_are_left_alone(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "mine", "font.size": 3.0}):
        draw([panel(gradients(), 2)], tmp_path / "picture.svg", title="Title")
        assert matplotlib.rcParams["svg.hashsalt"] == "mine"
        assert matplotlib.rcParams["font.size"] == 3.0


def installed_cjk():
    """Whether a font with Chinese letters is installed, found without the code under test."""
    from matplotlib.font_manager import findSystemFonts

    names = [os.path.basename(path).lower() for path in findSystemFonts()]
    return any(name.startswith(("notosanscjk", "wqy-", "notosanssc")) for name in names)


def test_letters_that_the_own_font_lacks_take_one_that_is_installed(tmp_path):
    """All texts of a Chinese step have glyphs, where there is a font; others stay as they are."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    text = "训练 step"
    assert fonts.families("plain, …, →, é") == ["sans-serif"]
    if not installed_cjk():
        pytest.skip("no font with Chinese letters is installed")
    own, other = fonts.families(text)
    assert own == "sans-serif"
    assert {ord(letter) for letter in "训练"} <= set(
        get_font(findfont(FontProperties(family=[other]))).get_charmap()
    )
    pictures = []
    for letters in ("训", "训练", "ab"):
        path = tmp_path / "picture.png"
        draw([panel(gradients(), 2)], path, title=letters)
        pictures.append(path.read_bytes())
    assert len(set(pictures)) == 3
    path = tmp_path / "picture.svg"
    draw([panel(gradients(), 2)], path, title=text)
    assert path.read_text(encoding="utf-8").count(other) == 1
    draw([panel(gradients(), 2)], path, title="plain")
    assert other not in path.read_text(encoding="utf-8")


def test_without_such_a_font_or_with_a_broken_one_a_picture_is_drawn(tmp_path, monkeypatch, capfd):
    """Boxes instead of letters are no error and no warning."""
    broken = tmp_path / "NotoSansCJK-Regular.ttc"
    broken.write_bytes(b"no font")
    for files in ([], [str(broken)], [str(tmp_path / "NotoSansCJK-Gone.ttc")]):
        fonts.others.cache_clear()
        monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda files=files: files)
        assert fonts.families("训练") == ["sans-serif"]
        draw([panel(gradients(), 2)], tmp_path / "picture.png", title="训练")
    fonts.others.cache_clear()
    assert capfd.readouterr() == ("", "")


def test_an_old_file_is_replaced(tmp_path):
    path = tmp_path / "picture.svg"
    path.write_text("old")
    draw([panel(gradients(), 2)], path, title="Title")
    assert path.read_text().startswith("<?xml")


def test_matplotlib_is_loaded_late_and_without_pyplot(tmp_path):
    script = """
import sys
from itertools import pairwise
from commsched import fonts, picture
from commsched.models import AlphaBeta, Gradient, GradientProblem, Plan, evaluate
assert "matplotlib" not in sys.modules
problem = GradientProblem([Gradient("a", 1000, 2000)], AlphaBeta(1, 1))
panel = picture.Panel.of("a", evaluate(problem, Plan.of([["a"]])))
picture.draw([panel], sys.argv[1], title="Title")
assert "matplotlib.pyplot" not in sys.modules
"""
    path = tmp_path / "picture.png"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert path.is_file()


# what the picture says


def test_launches_that_are_hidden(tmp_path):
    problem = GradientProblem([Gradient("a", 1000, MS)], AlphaBeta(1, 1), backward_end_ns=9 * MS)
    found = svg(tmp_path, [panel(problem, 1)])
    assert "rule: 1 launch, nothing exposed" in found
    assert "nothing exposed" in found
    assert "exposed: nothing computes" not in found


def test_general_problem_has_a_row_for_each_stream_and_channel(tmp_path):
    found = svg(tmp_path, [panel(next_forward(), 1)])
    for label in ("gpu", "optimizer", "channel dp", "channel gather", "bwd5", "#12"):
        assert label in found
    assert "reduce_scatter" in found
    assert "all_gather" in found
    assert any(text.startswith("compute alone ends at") for text in found)


def test_axis_starts_late_if_the_lead_is_only_compute(tmp_path):
    found = svg(tmp_path, [panel(gradients(first_ns=812 * MS), 2)])
    assert "from 813 ms: before it there is only compute" in found
    assert "0" not in found
    assert not any("only compute" in text for text in svg(tmp_path, [panel(gradients(), 2)]))


def test_axis_counts_from_a_later_moment_if_its_digits_would_not_change(tmp_path):
    problem = gradients(first_ns=8_123_456_000, apart_ns=3_000, size=9_000, cost=(2, 40))
    found = svg(tmp_path, [panel(problem, 2)])
    assert "time after 8123.45 ms, in us" in found
    assert "backward ends at +18.00 us" in found


def test_thin_launches_share_a_box_and_a_label(tmp_path):
    problem = gradients(2000, first_ns=1000, apart_ns=1000, size=MIB, cost=(10, 100))
    found = svg(tmp_path, [panel(problem, 1)])
    assert "#1 to #2000: 2000 launches, 1.95 GiB" in found


def test_different_steps_have_their_own_line(tmp_path):
    found = svg(tmp_path, [panel(gradients(), 2), panel(gradients(9), 2)])
    assert "backward ends" in found


def test_every_kind_has_a_colour_of_its_own():
    assert set(picture.KIND_COLOURS) == set(KINDS)
    assert len(set(picture.KIND_COLOURS.values())) == len(KINDS)


def test_names_are_shown_as_they_are(tmp_path):
    name = "a_$b$ <&> \x00 tab\tnew\nline 層"
    problem = GradientProblem([Gradient(name, MIB, MS)], AlphaBeta(1, 1))
    found = svg(tmp_path, [panel(problem, 1, name)], title=name)
    assert "a_$b$ <&> \ufffd tab new line 層" in found


# what is refused


@pytest.mark.parametrize(("name", "message"), [("a.pdf", "'.pdf'"), ("a", "no suffix")])
def test_other_suffixes_are_refused(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        draw([panel(gradients(), 2)], tmp_path / name, title="Title")
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        draw([panel(gradients(), 2)], tmp_path / "none" / "a.svg", title="Title")


def test_no_panel_is_refused(tmp_path):
    with pytest.raises(InputError, match="no panel"):
        draw([], tmp_path / "a.svg", title="Title")


def test_missing_matplotlib_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"^.*pip install 'commsched\[plot\]'$"):
        draw([panel(gradients(), 2)], tmp_path / "a.svg", title="Title")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["commsched.picture._figure", "pathlib.Path.replace"])
def test_nothing_is_left_behind_when_drawing_fails(tmp_path, monkeypatch, target):
    def fail(*_):
        raise OSError("disk full")

    path = tmp_path / "a.svg"
    path.write_text("old")
    monkeypatch.setattr(target, fail)
    with pytest.raises((OSError, InputError), match="disk full"):
        draw([panel(gradients(), 2)], path, title="Title")
    assert os.listdir(tmp_path) == ["a.svg"]
    assert path.read_text() == "old"


# every text has its place


def many_kinds():
    tasks = [
        Compute(f"t{k}", 70_000, f"a very long stream name, number {k % 3}") for k in range(40)
    ]
    tasks += [
        Collective(f"c{k}", (k + 1) * MIB // 9, KINDS[k % 6], f"g{k % 4}", after=(f"t{k}",))
        for k in range(40)
    ]
    costs = {(f"g{g}", kind): AlphaBeta(15, 10) for g in range(4) for kind in KINDS}
    return Problem(tasks, costs)


def held_back():
    problem = gradients(30, apart_ns=500_000)
    names = [problem.names[k] for k in problem.ready_order]
    plan = Plan(tuple(Bucket((name,), not_before_ns=20 * MS) for name in names))
    return Panel.of("held", evaluate(problem, plan))


CASES = {
    "few": lambda: [panel(gradients(), 2), panel(gradients(), 5)],
    "many": lambda: [panel(gradients(161, apart_ns=400_000), each) for each in (1, 6, 40)],
    "communication bound": lambda: [panel(gradients(161, apart_ns=9_000), k) for k in (1, 161)],
    "next forward": lambda: [panel(next_forward(), 1)],
    "many kinds": lambda: [panel(many_kinds(), 1)],
    "held back": lambda: [held_back()],
    "late": lambda: [panel(gradients(first_ns=812 * MS), 2)],
    "very late": lambda: [panel(gradients(first_ns=10**13, apart_ns=7, size=9, cost=(0, 1)), 1)],
    "nanosecond": lambda: [panel(gradients(1, first_ns=0, size=1, cost=(0, 1)), 1)],
    "nothing": lambda: [panel(gradients(1, first_ns=0, size=0, cost=(0, 1)), 1)],
    "only communication": lambda: [panel(gradients(2, first_ns=0, apart_ns=0), 1)],
    "different steps": lambda: [panel(gradients(count), 2) for count in (1, 4, 30)],
    "long names": lambda: [panel(gradients(), 2, "word " * 60), panel(gradients(), 2, "W" * 300)],
}


@pytest.mark.parametrize("case", CASES)
def test_no_text_is_cut_off_or_covers_another(case):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = picture._figure(CASES[case](), "long title " * 20, "long subtitle " * 30)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    sheet = figure.bbox
    boxes = [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()))
        for text in figure.axes[0].texts
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


def test_levels_of_waiting_launches_do_not_overlap():
    class Recorder(sheet_module.Sheet):
        """A sheet that remembers its lines."""

        def line(self, xs, ys, **style):
            self.drawn = (list(xs), list(ys))

        def dots(self, xs, ys, size=3.0):
            pass

    timeline = held_back().timeline
    sheet = Recorder([timeline], 1.0)
    picture._draw_waits(sheet, 0.0, timeline.launches)
    xs, ys = sheet.drawn
    waits = sorted(zip(ys[::3], xs[::3], xs[1::3], strict=True))
    assert len(waits) == 30
    for (y, _, end), (other_y, start, _) in pairwise(waits):
        assert y != other_y or end <= start


def test_paths_may_be_texts(tmp_path):
    draw([panel(gradients(), 2)], str(tmp_path / "a.svg"), title="")
    assert Path(tmp_path / "a.svg").is_file()

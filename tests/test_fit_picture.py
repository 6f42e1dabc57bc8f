"""Pictures of fits: they are written, hold what they show, and nothing is cut off or overlaps."""

from __future__ import annotations

import itertools

import pytest
from cli_runner import refusal, run

from commsched.fit_picture import MOST_TABLES, draw_fits
from commsched.fit_tables import Choice, fit_logs
from commsched.models import InputError

pytest.importorskip("matplotlib")


@pytest.fixture
def fits(tmp_path):
    """Return fits of OSU tables with these points each."""

    def fits(*tables, name="osu.log", **choice):
        head = ["# OSU MPI Allreduce Latency Test v7.4", "# Size  Avg Latency(us)"]
        paths = []
        for number, points in enumerate(tables):
            paths.append(tmp_path / f"{number}-{name}")
            rows = [f"{size} {us:.3f}" for size, us in points]
            paths[-1].write_text("\n".join([*head, *rows]))
        return fit_logs(paths, Choice(**choice)).fitted

    return fits


GOOD = [(8 * 2**k, 10 + 2**k / 1000) for k in range(25)]
FALLING = [(8, 500.0), (16, 20.0), (1024, 21.0), (2**30, 1e5)]


def texts(path) -> str:
    return path.read_text(encoding="utf-8")


def test_points_and_fits_are_drawn(fits, tmp_path):
    """Title, errors, axes and legend are in the picture; without a curve it says why."""
    path = tmp_path / "a.svg"
    draw_fits(fits(GOOD, FALLING), path)
    drawn = texts(path)
    for part in (
        "0-osu.log: allreduce, unknown number of ranks",
        "1 piece: off by 0.",
        "no curve: times fall from 500 us at 8 bytes to 20 us at 16 bytes",
        "straight pieces",
        "one line: latency and bandwidth",
        "size of the whole operation",
        "1 KiB",
        "100 us",
    ):
        assert part in drawn, part
    draw_fits(fits(FALLING), path)
    assert "straight pieces" not in texts(path)
    draw_fits(fits(GOOD), path, form="raw")
    assert "all points" in texts(path)


def test_the_same_fits_give_the_same_file(fits, tmp_path):
    """As PNG and as SVG."""
    for suffix in ("png", "svg"):
        paths = [tmp_path / f"{k}.{suffix}" for k in range(2)]
        for path in paths:
            draw_fits(fits(GOOD), path)
        assert paths[0].read_bytes() == paths[1].read_bytes()


EXTREMES = {
    "two sizes": [(8, 1.0), (16, 1.0)],
    "neighbours": [(2**30, 1.0), (2**30 + 1, 1.1)],
    "huge": [(1, 0.01), (2**50, 1e9)],
    "good": GOOD,
    "falling": FALLING,
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("count", [1, 3])
def test_nothing_overlaps_or_is_cut_off(fits, monkeypatch, tmp_path, name, count):
    """All texts are inside the page and apart from each other; all points inside their panel."""
    figures = []
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from commsched import fit_picture

    real = fit_picture.save

    def save(path, title, make):
        def remember():
            figures.append(make())
            return figures[-1]

        real(path, title, remember)

    monkeypatch.setattr(fit_picture, "save", save)
    draw_fits(fits(*[EXTREMES[name]] * count, name=f"{'long ' * 9}.log"), tmp_path / "a.png")
    (figure,) = figures
    (axes,) = figure.axes
    renderer = FigureCanvasAgg(figure).get_renderer()
    page = figure.bbox
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    for text, box in zip(axes.texts, boxes, strict=True):
        inside = box.x0 >= 0 and box.x1 <= page.x1 and box.y0 >= 0 and box.y1 <= page.y1
        assert inside, text.get_text()
    for (one, a), (other, b) in itertools.combinations(zip(axes.texts, boxes, strict=True), 2):
        assert not a.overlaps(b), (one.get_text(), other.get_text())
    bounds = axes.transData.inverted()
    width, height = abs(bounds.transform(page.max) - bounds.transform(page.min))
    for line in axes.lines:
        xs, ys = line.get_data()
        assert all(0 <= x <= width for x in xs)
        assert all(0 <= y <= height for y in ys)


def test_too_many_tables_and_other_files_are_refused(fits, tmp_path):
    """One line, and nothing is written."""
    some = fits(GOOD)
    with pytest.raises(InputError, match=f"a picture holds from 1 to {MOST_TABLES}"):
        draw_fits(some * (MOST_TABLES + 1), tmp_path / "a.png")
    with pytest.raises(InputError, match=r"must end in \.png or \.svg"):
        draw_fits(some, tmp_path / "a.pdf")
    with pytest.raises(InputError, match="does not exist"):
        draw_fits(some, tmp_path / "absent" / "a.png")
    assert not list(tmp_path.glob("a.*"))


def test_from_the_command_line(fits, tmp_path):
    """``--picture`` writes it beside what is printed."""
    fits(GOOD)
    log, path = tmp_path / "0-osu.log", tmp_path / "a.svg"
    code, out, err = run("fit", log, "--picture", path)
    assert (code, err) == (0, "")
    assert "0-osu.log: allreduce" in out
    assert "straight pieces" in texts(path)
    assert "must end in" in refusal("fit", log, "--picture", tmp_path / "a.txt")

"""The report in a real browser: no errors, nothing cut off, and pointers, keys and sliders work.

These tests run where Chromium is installed. A copy of the page gets one more script that acts like a
reader and notes what it sees; for that its content security policy is taken out.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from PIL import Image
from test_report import EXAMPLES, Page, contents_of, gradients, hostile_recording, limited

from commsched.models import AlphaBeta
from commsched.models.slowdown import Slowdown
from commsched.models.units import format_ns
from commsched.optimizer import Status, one_each, optimize
from commsched.problems import load
from commsched.report import page_bytes
from commsched.slowing import KnownSlowdown

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")

HOLD = """
<script>
addEventListener("load", async () => {
  const seen = {};
  const pause = () => new Promise((done) => setTimeout(done, 60));
  const text = (id) => document.getElementById(id).innerText;
  const canvas = document.querySelectorAll("canvas");
  const box = (k) => canvas[k].getBoundingClientRect();
  const point = (k, type, x, y, id = 1, more = {}) => canvas[k].dispatchEvent(new PointerEvent(type,
    { clientX: box(k).left + x, clientY: box(k).top + y, pointerId: id, bubbles: true, ...more }));
  const key = (k, name, more = {}) => canvas[k].dispatchEvent(new KeyboardEvent("keydown",
    { key: name, bubbles: true, cancelable: true, ...more }));
  try { ACTIONS } catch (error) { seen.error = String(error.stack || error); }
  const note = document.createElement("pre");
  note.id = "seen";
  note.textContent = JSON.stringify(seen);
  parent.document.body.append(note);
});
</script></body>"""
SEEN = re.compile(r'<pre id="seen">(.*?)</pre>', re.DOTALL)


def browse(path, *options, width=1280, height=900):
    """Load a page; return what was printed and fail if the console says anything."""
    profile = path.with_name("profile")
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "--virtual-time-budget=6000",
            *options,
        ],
        capture_output=True,
        timeout=120,
        env={**os.environ, "LANG": "C.UTF-8"},
    )
    shutil.rmtree(profile, ignore_errors=True)
    said = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
    assert said == []
    return done.stdout.decode()


def written(tmp_path, data):
    path = tmp_path / "page.html"
    path.write_bytes(data)
    return path


def dump(tmp_path, data, **words):
    """Return the page as it stands once its scripts have run."""
    path = written(tmp_path, data)
    return Page(browse(path, "--dump-dom", path.as_uri(), **words).encode())


def act(tmp_path, data, actions, *, frame=None, **words):
    """Let a reader act; return what was noted in ``seen``.

    Windows have a least width; a page in a frame has none.
    """
    text = data.decode()
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    text = text.replace("</body>", HOLD.replace("ACTIONS", actions))
    if frame is not None:
        page = html.escape(text)
        size = f'width="{frame}" height="900" frameborder="0"'
        text = f'<body><iframe {size} srcdoc="{page}"></iframe></body>'
    path = written(tmp_path, text.encode())
    found = SEEN.search(browse(path, "--dump-dom", path.as_uri(), **words))
    seen = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert "error" not in seen, seen["error"]
    return seen


def shoot(tmp_path, data, *, fragment="", **words):
    """Return a screenshot."""
    path, picture = written(tmp_path, data), tmp_path / "page.png"
    browse(path, f"--screenshot={picture}", f"{path.as_uri()}#{fragment}", **words)
    with Image.open(picture) as image:
        return image.convert("RGB")


@pytest.fixture(scope="module")
def six():
    """A page on six gradients, and what it was made from."""
    contents = contents_of(gradients(6))
    return contents, page_bytes(contents)


def hostile():
    recorded = hostile_recording()
    return contents_of(recorded.problem(AlphaBeta(3, 1)), recorded=recorded)


MAKERS = {
    "gradients": lambda: contents_of(gradients(5)),
    "waiting": lambda: contents_of(load(EXAMPLES / "next_forward.json").problem),
    "infeasible": lambda: contents_of(limited("most-bucket-bytes=5MiB", "most-launches=1")),
    "hostile": hostile,
}


@pytest.mark.parametrize("name", MAKERS)
def test_pages_load_without_errors(tmp_path, name):
    contents = MAKERS[name]()
    page = dump(tmp_path, page_bytes(contents), width=400)
    canvases = [a for t, a in page.tags if t == "canvas"]
    data = Page(page_bytes(contents)).data
    assert len(canvases) == len(data["timelines"])
    for canvas, timeline in zip(canvases, data["timelines"], strict=True):
        assert canvas["aria-label"].startswith(timeline["title"])
        assert canvas["tabindex"] == "0"
    last = data["timelines"][-1]
    buttons = [a["aria-label"] for t, a in page.tags if t == "button" and "aria-label" in a]
    shown = [label for label in buttons if label.startswith("Show launch")]
    assert len(shown) == min(25, len(last["launches"]))
    hidden = {a["id"] for t, a in page.tags if t == "section" and "hidden" in a}
    assert hidden == (
        {"settings", "rules", "what-if", "stability", "slowed", "overheads", "safety"}
        if name == "infeasible"
        else set()
    )
    assert ("img", {"src": "x", "onerror": "alert(2)"}) not in page.tags


@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_nothing_is_wider_than_the_window(tmp_path, six, width):
    actions = """
      seen.page = document.documentElement.scrollWidth;
      seen.inner = innerWidth;
      const parts = "h1, h2, p, figure, canvas, svg, select, .tiles, .details, input";
      seen.out = [...document.querySelectorAll(parts)]
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
        .map((e) => e.outerHTML.slice(0, 80));
      seen.text = [...document.querySelectorAll("#chart text, #curves text")].filter((e) => {
        const box = e.getBoundingClientRect(), all = e.ownerSVGElement.getBoundingClientRect();
        return box.right > all.right + 1 || box.left < all.left - 1;
      }).map((e) => e.textContent);
    """
    seen = act(tmp_path, six[1], actions, width=2000, frame=width)
    assert seen["inner"] == width
    assert seen["page"] <= width
    assert seen["out"] == []
    assert seen["text"] == []


def test_keys_go_from_launch_to_launch(tmp_path, six):
    """What is written below the timelines is what the evaluator says of that launch."""
    actions = """
      const last = canvas.length - 1;
      canvas[last].focus();
      key(last, "ArrowRight"); await pause(); seen.first = text("details");
      key(last, "ArrowRight"); await pause(); seen.second = text("details");
      seen.row = document.querySelector("tr.chosen").innerText;
      key(last, "ArrowUp"); await pause(); seen.above = text("details");
      key(last, "Escape"); await pause(); seen.none = text("details");
    """
    seen = act(tmp_path, six[1], actions)
    for name, launch in zip(("first", "second"), six[0].result.timeline.launches, strict=False):
        assert f"{launch.bytes:,} bytes" in seen[name]
        for ns in (launch.ready_ns, launch.start_ns, launch.end_ns):
            assert format_ns(ns, 5) in seen[name]
    assert seen["first"].startswith("Launch #1")
    assert seen["second"].startswith("Launch #2")
    assert seen["row"].startswith("#2")
    assert seen["above"].startswith("backward")
    assert seen["none"].startswith("Point at")


def test_zoom_and_pan(tmp_path, six):
    actions = """
      const button = (name) => document.querySelector(`[data-view=${name}]`).click();
      seen.all = text("window");
      button("in"); await pause(); seen.in = text("window");
      button("right"); await pause(); seen.right = text("window");
      button("all"); await pause(); seen.back = text("window");
      const [clientX, clientY] = [box(0).left + 600, box(0).top + 40];
      canvas[0].dispatchEvent(new WheelEvent("wheel",
        { deltaY: -200, ctrlKey: true, clientX, clientY, cancelable: true }));
      await pause(); seen.wheel = text("window");
      point(0, "pointerdown", 600, 40);
      point(0, "pointermove", 500, 40);
      point(0, "pointerup", 500, 40);
      await pause(); seen.drag = text("window");
      key(0, "0"); await pause();
      point(0, "pointerdown", 500, 40, 1); point(0, "pointerdown", 700, 40, 2);
      point(0, "pointermove", 480, 40, 1); point(0, "pointermove", 900, 40, 2);
      point(0, "pointerup", 480, 40, 1); point(0, "pointerup", 900, 40, 2);
      await pause(); seen.pinch = text("window");
      button("end"); await pause(); seen.end = text("window");
      for (let k = 0; k < 80; k++) key(0, "+");
      await pause(); seen.deep = text("window");
    """
    seen = act(tmp_path, six[1], actions)
    timelines = Page(six[1]).data["timelines"]
    most = max(20, *(t["makespan"] for t in timelines)) * 1.015

    def window(name):
        return [nanoseconds(part) for part in seen[name].split(" to ")]

    def width(name):
        low, high = window(name)
        return high - low

    assert window("all") == window("back")
    assert window("all")[0] == 0
    assert window("all")[1] == pytest.approx(most, rel=1e-3)
    assert width("in") == pytest.approx(most / 1.6, rel=1e-2)
    assert window("right")[0] > window("in")[0]
    assert width("wheel") < most / 1.2
    assert window("drag")[0] > window("wheel")[0]
    assert width("drag") == pytest.approx(width("wheel"), rel=1e-2)
    assert width("pinch") < most / 1.5
    assert window("end")[1] > max(t["makespan"] for t in timelines)
    assert 0 <= width("deep") <= 100  # some nanoseconds, but never nothing


def nanoseconds(text):
    number, unit = text.split()
    return float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]


def test_pointing_shows_a_launch(tmp_path, six):
    """The middle of a launch is where its times say."""
    contents, data = six
    launch = contents.result.timeline.launches[0]
    most = max(t["makespan"] for t in Page(data).data["timelines"]) * 1.015
    share = (launch.start_ns + launch.end_ns) / 2 / most
    actions = f"""
      const last = canvas.length - 1;
      const c = canvas[last].getContext("2d");
      c.font = '13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
      const gutter = 14 + Math.ceil(c.measureText("channel dp").width);
      const x = gutter + {share} * (box(last).width - gutter - 2);
      point(last, "pointermove", x, 30 + 26 + 12, 7); await pause();
      seen.tip = text("tip"); seen.hidden = document.getElementById("tip").hidden;
      point(last, "pointerdown", x, 30 + 26 + 12, 7); point(last, "pointerup", x, 30 + 26 + 12, 7);
      await pause(); seen.details = text("details");
      point(last, "pointerleave", x, 30, 7); await pause();
      seen.gone = document.getElementById("tip").hidden;
    """
    seen = act(tmp_path, data, actions)
    assert seen["hidden"] is False
    assert seen["tip"].startswith("#1: ")
    assert format_ns(launch.ready_ns, 4) in seen["tip"]
    assert seen["details"].startswith("Launch #1")
    assert seen["gone"] is True


def test_sliders_snap_to_what_was_computed(tmp_path, six):
    actions = """
      const [alpha, bandwidth] = document.querySelectorAll("#what-if-panel input");
      const slide = (input, value) => { input.value = value; input.dispatchEvent(new Event("input")); };
      seen.before = text("what-if-panel");
      slide(alpha, 6); slide(bandwidth, 0); await pause();
      seen.after = text("what-if-panel");
      document.querySelector("#what-if-panel button").click(); await pause();
      seen.back = text("what-if-panel");
    """
    seen = act(tmp_path, six[1], actions)
    data = Page(six[1]).data["what_if"]
    points = {tuple(point[0]): point for point in data["points"]}
    one = data["factors"].index(1)
    for name, place in (("before", (one,) * 3), ("after", (6, 0, one)), ("back", (one,) * 3)):
        makespan_ns, exposed_ns = points[place][3]
        text = f"step {format_ns(makespan_ns, 4)}, {format_ns(exposed_ns)} exposed"
        assert text in seen[name].partition("the optimum there")[2]
    assert "4 x = 120 us" in seen["after"]
    assert "1/4 x = 10.0 GB/s" in seen["after"]


def test_tables_can_be_sorted(tmp_path):
    actions = """
      const heads = [...document.querySelectorAll("#launch-table th button")];
      heads[2].click(); await pause();
      const rows = (where) => [...document.querySelectorAll(`${where} tbody tr`)];
      const sizes = () => rows("#launch-table").map((row) => row.cells[2].innerText);
      seen.sizes = sizes();
      document.querySelector("#launch-table p button").click(); await pause();
      seen.all = sizes().length;
      document.querySelectorAll("table.sortable th button")[6].click(); await pause();
      seen.launches = rows("table.sortable").map((row) => Number(row.cells[6].innerText));
    """
    problem = gradients(60)
    best = optimize(problem)
    result = replace(best, plan=one_each(problem), status=Status.FEASIBLE, evaluated=None)
    contents = contents_of(problem, result=result)
    data = page_bytes(contents)
    seen = act(tmp_path, data, actions)
    assert len(seen["sizes"]) == 25
    assert seen["sizes"][0] == "4.00 MiB"
    assert seen["all"] == 60
    assert seen["launches"] == sorted(seen["launches"])


def test_every_curve_is_there_and_can_be_enlarged(tmp_path, six):
    """A small chart for each; the list and the buttons change the large one, and only that."""
    actions = """
      const charts = [...document.querySelectorAll("#curves > div")];
      seen.titles = charts.map((box) => box.querySelector("h3").innerText);
      seen.labels = charts.map((box) => box.querySelector("svg").getAttribute("aria-label"));
      seen.points = charts.map((box) => box.querySelectorAll("circle").length);
      const path = (place) => place.querySelector("path.curve").getAttribute("d");
      seen.small = charts.map(path);
      const large = () => [path(document.getElementById("chart")), text("chart-legend")];
      seen.first = large();
      const select = document.getElementById("curve");
      seen.options = [...select.options].map((option) => option.innerText);
      select.value = "1"; select.dispatchEvent(new Event("change")); await pause();
      seen.second = large();
      charts[2].querySelector("button").click(); await pause();
      seen.third = large(); seen.chosen = select.value;
      charts[0].querySelector("button").click(); await pause();
      seen.back = large();
    """
    seen = act(tmp_path, six[1], actions)
    curves = Page(six[1]).data["chart"]["curves"]
    titles = [" = ".join(curve["titles"]) for curve in curves]
    assert len(titles) > 3
    assert seen["titles"] == seen["options"] == titles
    assert seen["points"] == [len(curve["names"]) for curve in curves]
    for label, curve in zip(seen["labels"], curves, strict=True):
        assert f"at best {format_ns(curve['best'][2])}" in label
    # Rules that differ in one byte of their caps look alike.
    assert len(set(seen["small"])) > 3
    assert seen["back"] == seen["first"]
    assert seen["third"][0] != seen["first"][0]
    assert seen["chosen"] == "2"
    for name, k in (("first", 0), ("second", 1), ("third", 2)):
        assert titles[k] in seen[name][1]


def test_the_table_shows_the_best_plan_also_under_a_slowdown(tmp_path):
    contents = contents_of(gradients(6), slowdown=KnownSlowdown(Slowdown(1.5)))
    actions = """
      const which = document.getElementById("which");
      seen.plan = which.selectedOptions[0].innerText;
      seen.last = which.options[which.options.length - 1].innerText;
      seen.section = text("slowed");
    """
    seen = act(tmp_path, page_bytes(contents), actions)
    assert seen["plan"] == "Optimum, scope in-order"
    assert seen["last"] in ("The best plan, slowed", "A plan for the slowdown")
    assert format_ns(contents.slowed.rows[0].kept.exposed_ns) in seen["section"]


def test_a_page_with_one_curve_has_no_list(tmp_path):
    contents = contents_of(gradients(6))
    data = page_bytes(replace(contents, other_curves=()))
    actions = """
      const list = document.getElementById("curve");
      seen.shown = list.getClientRects().length;
      seen.small = document.querySelectorAll("#curves svg").length;
      seen.large = document.querySelectorAll("#chart path.curve").length;
    """
    assert act(tmp_path, data, actions) == {"shown": 0, "small": 0, "large": 1}


def test_colours(tmp_path, six):
    """Light and dark differ, and in both the exposed parts are painted in their colour."""
    for fragment, page, exposed in (
        ("light", (255, 255, 255), (198, 40, 40)),
        ("dark", (20, 23, 28), (255, 107, 98)),
    ):
        picture = shoot(tmp_path, six[1], fragment=fragment, height=2600)
        assert picture.getpixel((4, 4)) == page
        counts = {colour: count for count, colour in picture.getcolors(1 << 22)}
        assert counts[exposed] > 100


def test_the_page_prints(tmp_path, six):
    path, paper = written(tmp_path, six[1]), tmp_path / "page.pdf"
    browse(path, f"--print-to-pdf={paper}", f"{path.as_uri()}#dark")
    assert paper.read_bytes().startswith(b"%PDF")

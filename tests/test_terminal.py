"""Timelines as text: what columns show, that nothing vanishes, and where they are drawn."""

import json
import random
import re
from fractions import Fraction
from itertools import pairwise

import pytest
from cli_runner import refusal, run
from hypothesis import given, settings
from hypothesis import strategies as st
from pty_runner import ESCAPE, run_in_terminal
from rich.text import Text
from strategies import gradient_problems, problems_with_plans, random_valid_plan

import commsched
from commsched.lanes import lanes_of
from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    Gradient,
    GradientProblem,
    Plan,
    Problem,
    evaluate,
    launch_exposures,
)
from commsched.models.exposure import merge_intervals
from commsched.models.timeline import play
from commsched.models.units import format_ns
from commsched.problems import write_problem
from commsched.terminal import (
    MOST_CHANNELS,
    MOST_STREAMS,
    NARROWEST,
    PLAIN_WIDTH,
    WIDEST,
    Shown,
    timeline_lines,
)
from commsched.terminal_axis import UNITS, axis_lines, ticks
from commsched.terminal_cells import (
    ALL_EXPOSED,
    EXPOSED,
    IDLE,
    LAUNCHES,
    SEVERAL,
    SEVERAL_EXPOSED,
    SHORT,
    SHORT_EXPOSED,
    Scale,
    cells_of,
)

MS = 1_000_000
FULL = EXPOSED + SEVERAL_EXPOSED
BLOCKS = "░█▓║"
NUMBERS = re.compile(r"(: |^  )step [0-9.]+ [mun]?s, [0-9]+ launch")


def drawn(timeline, width=80, **options):
    return [line.plain for line in timeline_lines([Shown("plan", timeline)], width, **options)]


def row(lines, label):
    """The columns of the row that has this label."""
    (line,) = (line for line in lines if line.startswith(f"{label}  "))
    return line[len(label) + 2 :]


def one_by_one(problem):
    return evaluate(problem, Plan.of([[problem.names[k]] for k in problem.ready_order]))


def gradients(count, *, apart_ns=MS, size=500_000, cost=(0, 1)):
    return GradientProblem(
        [Gradient(f"g{k}", size, (k + 1) * apart_ns) for k in range(count)], AlphaBeta(*cost)
    )


@pytest.fixture
def file(tmp_path):
    """Four gradients of which the last one is exposed, whatever is done."""
    path = tmp_path / "step.json"
    write_problem(gradients(4, size=800_000, cost=(50, 1)), path)
    return path


def signs_of(timeline, columns):
    """Return the signs of every channel on an axis over the whole step."""
    scale = Scale(0, max(timeline.makespan_ns, 1), columns)
    lanes = [lane for lane in lanes_of(timeline) if lane.launches]
    return [
        (lane, "".join(cell.sign for cell in cells_of(lane, timeline.busy, scale)))
        for lane in lanes
    ]


def exposed_stretches(timeline, lane):
    """Return when a channel runs while nothing computes, nanosecond edge by nanosecond edge."""
    edges = {ns for part in lane.parts for ns in part[:2]} | {
        ns for two in timeline.busy for ns in two
    }
    found = []
    ordered = sorted(edges)
    for start, end in pairwise(ordered):
        runs = any(part.start_ns <= start and end <= part.end_ns for part in lane.parts)
        if runs and not any(low <= start and end <= high for low, high in timeline.busy):
            found.append((start, end))
    return merge_intervals(found)


def test_a_backward_pass_and_its_launches():
    """Launches take turns between two signs; what comes after backward is hatched likewise."""
    timeline = one_by_one(gradients(4, size=1_000_000))
    lines = drawn(timeline, 62, ascii_only=True)
    assert lines == [
        "plan: step 5.0000 ms, 4 launches, 1.00 ms exposed",
        "backward    ::::::::::::::::::::::::::::::::::::::::",
        "channel dp            ##########==========##########\\\\\\\\\\\\\\\\\\\\",
        "            +---------+---------+---------+---------+--------+",
        "            0         1         2         3         4     5 ms",
        ": compute  #= launches  \\ exposed: nothing computes",
    ]


def test_signs_beyond_ascii_change_nothing_else():
    timeline = one_by_one(gradients(40, size=1_300_000))
    plain, shown = drawn(timeline, 90, ascii_only=True), drawn(timeline, 90)
    back = str.maketrans({"░": ":", "█": "#", "▓": "=", "║": "%", "┬": "+", "─": "-"})
    assert [line.translate(back) for line in shown] == plain
    assert plain != shown
    assert all(line.isascii() for line in plain)


def test_columns_of_many_launches_say_so():
    """Two thousand launches in sixty columns: a sign for several, in both states."""
    timeline = one_by_one(gradients(2000, apart_ns=1000, size=1100, cost=(0, 1)))
    channel = row(drawn(timeline, 72, ascii_only=True), "channel dp")
    assert set(channel) == {SEVERAL, SEVERAL_EXPOSED}
    assert 4 <= channel.count(SEVERAL_EXPOSED) <= 6  # 9% of the step
    legend = drawn(timeline, 72, ascii_only=True)[-1]
    assert "% several in a column" in legend
    assert "X exposed" in legend


def test_what_is_too_short_for_a_column_is_seen():
    """A launch of a thousandth of a column and an exposed end of less than half of one."""
    problem = GradientProblem(
        [Gradient("a", 1000, 50 * MS), Gradient("b", 300_000, 100 * MS)], AlphaBeta(0, 1)
    )
    channel = row(drawn(one_by_one(problem), 72, ascii_only=True), "channel dp")
    assert channel.count(SHORT) == 1
    assert channel.count(SHORT_EXPOSED) == 1
    assert channel.index(SHORT) == 29
    assert channel.endswith(SHORT_EXPOSED)
    legend = drawn(one_by_one(problem), 72, ascii_only=True)[-1]
    assert legend == ": compute  ! exposed: nothing computes  | shorter than a column"


def test_a_short_exposed_stretch_shows_on_a_hidden_launch():
    """Compute that pauses for less than half a column under a long launch."""
    problem = Problem(
        [
            Compute("first", 1 * MS, "gpu"),
            Collective("long", 30_000_000, "allreduce", "dp", after=("first",)),
            Compute("more", 14 * MS, "gpu", after=("first",)),
            Compute("idle", 200_000, "none", after=()),
            Collective("tiny", 1, "allreduce", "pp", after=("more",)),
            Compute("rest", 25 * MS, "gpu", after=("tiny",)),
        ],
        {("dp", "allreduce"): AlphaBeta(0, 1), ("pp", "allreduce"): AlphaBeta(100, 1)},
    )
    timeline = evaluate(problem, Plan.of([["long"], ["tiny"]]))
    lines = drawn(timeline, 70, ascii_only=True)
    assert SHORT_EXPOSED in row(lines, "channel dp")
    assert set(row(lines, "channel dp").strip()) <= {*LAUNCHES, SHORT_EXPOSED}


@given(gradient_problems(), st.integers(0, 2**32), st.integers(20, 200))
@settings(deadline=None)
def test_exposed_is_marked_if_and_only_if_it_is_there(problem, seed, columns):
    """On one channel after backward, at every width."""
    timeline = play(problem, random_valid_plan(random.Random(seed), problem))
    marked = any(sign in ALL_EXPOSED for _, signs in signs_of(timeline, columns) for sign in signs)
    assert marked == (sum(each.exposed_ns for each in launch_exposures(timeline)) > 0)
    if not any(launch.not_before_ns for launch in timeline.launches):
        assert marked == (timeline.exposed_ns > 0)


@given(problems_with_plans(), st.integers(10, 200))
@settings(deadline=None)
def test_exposed_columns_add_up(problem_and_plan, columns):
    """Each stretch has a sign, and all marks differ from the truth by less than a column each."""
    timeline = play(*problem_and_plan[:2])
    column_ns = Fraction(max(timeline.makespan_ns, 1), columns)
    for lane, signs in signs_of(timeline, columns):
        assert len(signs) == columns
        stretches = exposed_stretches(timeline, lane)
        for start, end in stretches:
            covered = signs[int(start / column_ns) : -int(-end / column_ns // 1)]
            assert set(covered) & set(ALL_EXPOSED)
        true = sum(end - start for start, end in stretches) / column_ns
        assert abs(sum(sign in FULL for sign in signs) - true) <= len(stretches)
        assert sum(sign in ALL_EXPOSED for sign in signs) <= true + len(stretches)
        if not stretches:
            assert not set(signs) & set(ALL_EXPOSED)


@given(problems_with_plans(), st.integers(10, 200))
@settings(deadline=None)
def test_no_launch_vanishes_and_idle_columns_are_idle(problem_and_plan, columns):
    timeline = play(*problem_and_plan[:2])
    column_ns = Fraction(max(timeline.makespan_ns, 1), columns)
    for lane, signs in signs_of(timeline, columns):
        for start, end, *_ in lane.parts:
            if start < end:
                covered = signs[int(start / column_ns) : -int(-end / column_ns // 1)]
                assert set(covered) - {IDLE}
        for column, sign in enumerate(signs):
            low, high = column * column_ns, (column + 1) * column_ns
            runs = sum(max(0, min(high, p.end_ns) - max(low, p.start_ns)) for p in lane.parts)
            if sign == IDLE:
                assert 2 * runs < column_ns
            elif sign not in (SHORT, SHORT_EXPOSED):
                assert 2 * runs >= column_ns
            else:
                assert runs > 0


@given(problems_with_plans(), st.integers(40, 200), st.booleans())
@settings(deadline=None)
def test_no_line_is_too_wide(problem_and_plan, width, ascii_only):
    timeline = play(*problem_and_plan[:2])
    if not timeline.makespan_ns:
        return
    title = "a rule with quite a long name (and_a_setting=1234567, another_setting=8901234)"
    for line in timeline_lines(
        [Shown(title, timeline), Shown("short", timeline)], width, ascii_only=ascii_only
    ):
        assert line.cell_len <= width, line.plain
        assert line.plain.isascii() or not ascii_only


@given(st.integers(0, 2**50), st.integers(1, 2**50), st.integers(28, 200))
def test_ticks_are_round_and_where_they_say(first_ns, window_ns, columns):
    found, unit = ticks(first_ns, window_ns, columns)
    power = {name: power for name, power, _ in UNITS}[unit]
    assert found
    for column, label in found:
        ns = Fraction(label) * 10**power - first_ns
        assert 0 <= ns <= window_ns
        assert column == min(int(ns * columns / window_ns), columns - 1)
    axis, labels = axis_lines(first_ns, window_ns, columns)
    assert len(axis) == columns
    assert axis.count("┬") == len({column for column, _ in found})
    assert labels.split() == [*(label for _, label in found), unit]


def test_both_timelines_have_one_axis():
    """What ends at the same time ends in the same column, and the shorter step is shorter."""
    problem = gradients(6, size=900_000, cost=(200, 1))
    names = [problem.names[k] for k in problem.ready_order]
    shown = [
        Shown("apart", one_by_one(problem)),
        Shown("together", evaluate(problem, Plan.of([names]))),
    ]
    lines = [line.plain for line in timeline_lines(shown, 100, ascii_only=True)]
    backwards = [line for line in lines if line.startswith("backward")]
    assert backwards[0] == backwards[1]
    channels = [line for line in lines if line.startswith("channel")]
    assert len(channels[0]) < len(channels[1]) == 100


def test_an_axis_without_the_long_start_says_so():
    problem = gradients(3, apart_ns=1000, size=500)
    late = GradientProblem(
        [Gradient(g.name, g.bytes, g.ready_ns + 50 * MS) for g in problem.gradients],
        AlphaBeta(0, 1),
    )
    lines = drawn(one_by_one(late), 100)
    assert f"only compute before {format_ns(50 * MS)}" in lines[-1]
    assert lines[-2].split()[0].startswith("50.")


def test_kinds_are_in_the_legend_where_colours_tell_them_apart():
    costs = {("dp", kind): AlphaBeta(0, 1) for kind in ("allreduce", "all_gather")}
    tasks = [Collective(kind, MS, kind, group) for group, kind in costs]
    timeline = evaluate(Problem(tasks, costs), Plan.of([["allreduce"], ["all_gather"]]))
    shown = [Shown("plan", timeline)]
    coloured, plain = (timeline_lines(shown, 80, coloured=one)[-1] for one in (True, False))
    assert coloured.plain.endswith("█ allreduce  █ all_gather")
    assert len({str(span.style) for span in coloured.spans[-4::2]}) == 2
    assert "all" not in plain.plain


def many_lanes():
    """Nine streams and eleven channels; the channels' exposed times differ."""
    tasks = [Compute(f"c{k}", (k + 1) * MS, f"stream {k}") for k in range(9)]
    costs = {}
    for k in range(11):
        tasks.append(Collective(f"x{k}", 10_000_000 + k * MS, "allreduce", f"g{k:02}"))
        costs[(f"g{k:02}", "allreduce")] = AlphaBeta(0, 1)
    return Problem(tasks, costs)


def test_of_many_rows_the_heaviest_are_shown_and_the_rest_is_counted():
    timeline = evaluate(many_lanes(), Plan.of([[f"x{k}"] for k in range(11)]))
    lines = drawn(timeline, 80)
    labels = [line.split("  ")[0] for line in lines if set(line) & set("░█")][: MOST_STREAMS + 5]
    assert labels[:MOST_STREAMS] == ["stream 6", "stream 7", "stream 8"]
    assert [label for label in labels if label.startswith("channel")] == [
        f"channel g{k:02}" for k in range(11 - MOST_CHANNELS, 11)
    ]
    (note,) = (line for line in lines if "not shown" in line)
    hidden_ns = sum(max(0, 10 * MS + k * MS - 9 * MS) for k in range(11 - MOST_CHANNELS))
    assert note.strip() == (
        f"not shown: 6 streams and 6 channels with {format_ns(hidden_ns)} exposed on them"
    )


def test_names_cannot_move_the_cursor():
    problem = Problem(
        [Compute("a", MS, "evil\x1b[2J"), Collective("x", MS, "allreduce", "g\nh")],
        {("g\nh", "allreduce"): AlphaBeta(0, 1)},
    )
    timeline = evaluate(problem, Plan.of([["x"]]))
    lines = timeline_lines([Shown("t\x1b[31m\r", timeline)], 80)
    assert all(line.plain.isprintable() for line in lines)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_wide_characters_keep_the_columns_in_line(width):
    """A name of Chinese characters takes two columns each."""
    problem = Problem(
        [
            Compute("a", MS, "计算"),
            Collective("x", MS, "allreduce", "数据并行通信组一二三四五六七八"),
        ],
        {("数据并行通信组一二三四五六七八", "allreduce"): AlphaBeta(0, 1)},
    )
    timeline = evaluate(problem, Plan.of([["x"]]))
    lines = timeline_lines([Shown("默认设置" * 12, timeline)], width)
    assert all(line.cell_len <= width for line in lines)
    starts = []
    for line in lines:
        block = re.search("[░█]", line.plain)
        if block and block.start():
            starts.append(Text(line.plain[: block.start()]).cell_len)
    assert len(starts) == 2
    assert starts[0] == starts[1]


def timeline_part(screen):
    """Return the lines from the first timeline's title to the legend; empty if there is none."""
    lines = screen.split("\n")
    starts = [k - line.startswith("  step") for k, line in enumerate(lines) if NUMBERS.search(line)]
    ends = [k for k, line in enumerate(lines) if "exposed: nothing computes" in line]
    return lines[starts[0] : ends[-1] + 1] if starts and ends else []


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_piped_output_has_no_timeline_unless_it_is_asked_for(file, command):
    """The plain text is the same but for the timeline, which is 100 columns wide."""
    code, plain, err = run(command, file)
    assert (code, err) == (0, "")
    assert not timeline_part(plain)
    assert not set(plain) & set(BLOCKS)
    assert run(command, file, "--no-timeline") == (0, plain, "")
    code, asked, err = run(command, file, "--timeline")
    assert (code, err) == (0, "")
    part = timeline_part(asked)
    assert asked.replace("\n".join(part) + "\n\n", "") == plain
    assert max(map(len, part)) == PLAIN_WIDTH
    assert "\x1b" not in asked


def test_compare_shows_today_the_best_setting_and_the_optimum(file):
    part = timeline_part(run("compare", file, "--timeline")[1])
    titles = [line.split(": step ")[0] for line in part if ": step " in line]
    assert titles[0] == "PyTorch DDP (1 MiB, then 25 MiB)"
    assert titles[1].startswith("PyTorch DDP (best: bucket_cap_mb")
    assert titles[2] == "optimum, scope in-order"
    comparison = commsched.compare(commsched.read(file))
    shown = [line for line in part if ": step " in line]
    for line, one in zip(shown[::2], [comparison.row("ddp"), comparison.optimal], strict=True):
        assert f"step {format_ns(one.timeline.makespan_ns, 5)}, {one.launches} launch" in line
        assert line.endswith(f"{format_ns(one.timeline.exposed_ns)} exposed")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("plan", "--json"), "--json and --timeline exclude each other"),
        (("compare", "--json"), "--json and --timeline exclude each other"),
        (("compare", "--csv"), "--csv and --timeline exclude each other"),
    ],
)
def test_a_timeline_is_no_json(file, arguments, what):
    command, *options = arguments
    assert what in refusal(command, file, *options, "--timeline")
    code, out, _ = run(command, file, *options)
    assert code == 0
    assert not set(out) & set(BLOCKS)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_terminal_gets_a_timeline_of_its_width(file, columns):
    ended = run_in_terminal("plan", file, columns=columns)
    assert ended.code == 0
    part = timeline_part(ended.screen)
    assert max(map(len, part)) == columns
    assert all(len(line) <= columns for line in part)
    assert set("".join(part)) & set(BLOCKS)
    assert "\x1b[" in ended.out  # colours


@pytest.mark.parametrize(
    ("columns", "env"),
    [(NARROWEST - 1, {}), (80, {"TERM": "dumb"})],
)
def test_terminals_that_are_not_fit_for_it_get_none(file, columns, env):
    ended = run_in_terminal("plan", file, columns=columns, env=env)
    assert ended.code == 0
    assert not timeline_part(ended.screen)
    asked = run_in_terminal("plan", file, "--timeline", columns=columns, env=env)
    assert max(map(len, timeline_part(asked.screen))) == columns


def test_the_widest_terminal_is_not_filled(file):
    part = timeline_part(run_in_terminal("plan", file, columns=300).screen)
    assert max(map(len, part)) == WIDEST


def test_without_colour_the_signs_stay(file):
    """NO_COLOR takes the colours away; exposed is still told from hidden."""
    ended = run_in_terminal("plan", file, env={"NO_COLOR": "1"})
    colours = [code for code in ESCAPE.findall(ended.out) if code not in ("\x1b[1m", "\x1b[0m")]
    assert [code for code in colours if not code.startswith("\x1b[2m")] == []
    part = timeline_part(ended.screen)
    assert set("".join(part)) >= {"█", "░"}
    channel = [line for line in part if line.startswith("channel")][-1]
    assert set(channel.split()[-1]) & set(EXPOSED)
    assert part == timeline_part(run_in_terminal("plan", file).screen)


@pytest.mark.parametrize(
    "env",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
)
def test_an_ascii_terminal_gets_ascii(file, env):
    ended = run_in_terminal("plan", file, env=env)
    assert ended.code == 0
    part = timeline_part(ended.screen)
    assert part
    assert all(line.isascii() for line in part)
    assert "\\u" not in ended.out


def test_a_step_without_length_has_no_timeline(tmp_path):
    path = tmp_path / "none.json"
    problem = GradientProblem([Gradient("a", 0, 0)], AlphaBeta(0, 1))
    write_problem(problem, path)
    code, out, err = run("plan", path, "--timeline")
    assert (code, err) == (0, "")
    assert not set(out) & set(BLOCKS)


def test_json_on_a_terminal_is_json(file):
    ended = run_in_terminal("plan", file, "--json")
    assert json.loads(ended.out)["status"] == "optimal"


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize("channels", [1, 2])
def test_members_take_the_room_that_there_is(tmp_path, columns, channels):
    """No header is cut, no line is too wide, and names are whole where there is room for them."""
    names = [f"model.layers.{k}.self_attention.query_key_value.weight" for k in range(6)]
    tasks = []
    for k, name in enumerate(names):
        tasks.append({"name": f"backward {k}", "type": "compute", "duration_us": 2000})
        tasks.append({
            "name": name, "type": "collective", "kind": "allreduce", "bytes": 33554432,
            "group": f"group{k % channels}", "after": [f"backward {k}"],
        })  # fmt: skip
    cost = {"allreduce": {"alpha_us": 8, "bandwidth_gb_s": 18 / channels}}
    form = {"format": "commsched/problem", "version": 1, "tasks": tasks}
    path = tmp_path / "step.json"
    path.write_text(json.dumps({**form, "costs": {f"group{k}": cost for k in range(channels)}}))
    screen = run_in_terminal("plan", path, columns=columns).screen
    lines = screen.splitlines()
    (top,) = [number for number, line in enumerate(lines) if line.lstrip().startswith("#  members")]
    header, rows = lines[top].split(), lines[top + 1 : top + 7]
    wide = {"#", "members", "size", "start", "end", "exposed"}
    assert wide <= set(header) <= wide | {"ready", "channel", "why"}
    assert "…" not in lines[top]
    assert all(len(line) <= columns for line in [lines[top], *rows])
    shown = [row.split()[1] for row in rows]
    assert all(len(name) >= 16 for name in shown)
    if columns == 200:
        assert shown == names
        assert {"ready", "why"} <= set(header)
    several = ("channel",) * (channels > 1)
    left_out = [name for name in ("why exposed", "ready", *several) if name not in lines[top]]
    said = f"(with --json: {', '.join(left_out)})"
    assert (said in lines) == bool(left_out)

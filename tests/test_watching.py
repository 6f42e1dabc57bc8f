"""Telling how long work goes: bars on terminals, lines if they are asked for, and else nothing."""

import gzip
import json
import random
import re
import zipfile
from pathlib import Path

import pytest
from cli_runner import refusal, run
from hypothesis import given, settings
from hypothesis import strategies as st
from pty_runner import ESCAPE, run_in_terminal

import commsched
from commsched.models import AlphaBeta, Collective, Compute, Gradient, GradientProblem, Problem
from commsched.optimizer import RULES, compare
from commsched.problems import read_recording, write_problem
from commsched.problems.read_progress import counted
from commsched.problems.reading import load
from commsched.problems.sources.source import sources
from commsched.watching import Watch

MS = 1_000_000
AT_ONCE = """
import sys
import commsched.watching
from commsched.cli import main
commsched.watching.SHOWN_AFTER_S = 0
main(sys.argv[1:])
"""
# Work that tells of itself, waits until the bar is there, and goes on for ever or ends.
STOPPED = """
import sys, time
import commsched.comparing, commsched.watching
from commsched.cli import main
commsched.watching.SHOWN_AFTER_S = 0
def compare(problem, *, result, progress):
    progress(1, 4, "a rule")
    while True:
        time.sleep(0.01)
commsched.comparing.compare = compare
main(sys.argv[1:])
"""


def step(count=6, seed=1):
    rng = random.Random(seed)
    return GradientProblem(
        [
            Gradient(
                f"g{k}", rng.randint(1000, 900_000), (k + 1) * MS // 2 + rng.randint(0, MS // 4)
            )
            for k in range(count)
        ],
        AlphaBeta(60, 1),
        name="a step",
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "step.json"
    write_problem(step(), path)
    return path


def left_on_screen(written):
    """Return the lines that a terminal shows in the end, after all that moves and erases."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token.endswith("A") and token.startswith("\x1b["):
            row -= int(token[2:-1] or 1)
        elif not token.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token + line[column + len(token) :]
            column += len(token)
        else:
            assert token.endswith("m"), token  # nothing else is ever written
    return [line.rstrip() for line in lines if line.strip()]


def frames(written):
    """Return the bars that were shown, one after the other."""
    parts = re.split(r"\r\x1b\[2K|\x1b\[1A\x1b\[2K", written)
    return [shown for part in parts if (shown := ESCAPE.sub("", part).strip())]


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("command", ["plan", "compare"])
def test_bars_fit_and_vanish(file, command, columns):
    """They say what is done, are never wider than the terminal, and leave nothing behind."""
    ended = run_in_terminal(command, file, columns=columns, code=AT_ONCE)
    assert ended.code == 0
    assert left_on_screen(ended.err) == []
    shown = frames(ended.err)
    assert any(frame.startswith("reading step.json") for frame in shown)
    assert any(frame.startswith("searching") for frame in shown)
    assert any(frame.startswith("comparing") for frame in shown)
    assert max(map(len, shown)) <= columns
    assert "\x1b[?25" not in ended.err  # the cursor is never hidden, so it need not come back


def test_bars_do_not_touch_standard_output(file):
    """What a pipe gets beside bars on the terminal is what it gets without them."""
    ended = run_in_terminal("compare", file, out="pipe", code=AT_ONCE)
    code, plain, _ = run("compare", file)
    assert (ended.code, ended.out) == (code, plain)
    assert frames(ended.err)


def test_short_work_gets_no_bar(file):
    """With the delay that users have, work of a few milliseconds shows nothing at all."""
    patient = AT_ONCE.replace("= 0", "= 600")
    ended = run_in_terminal("plan", file, code=patient)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}])
def test_bars_without_colour_or_beyond_ascii(file, env):
    ended = run_in_terminal("compare", file, code=AT_ONCE, env=env)
    assert ended.code == 0
    assert left_on_screen(ended.err) == []
    assert frames(ended.err)
    if "NO_COLOR" in env:
        assert not re.search(r"\x1b\[[0-9;]*[34]8?[;0-9]*m", ended.err)
    else:
        assert all(frame.isascii() for frame in frames(ended.err))
        assert "\\u" not in ended.err


def test_an_interrupt_leaves_a_clean_terminal(file):
    """The bar is gone, and nothing of a result was printed."""
    ended = run_in_terminal("compare", file, code=STOPPED, after="a rule")
    assert ended.code == 130
    assert frames(ended.err)
    assert left_on_screen(ended.err) in ([], ["commsched: interrupted"])
    assert ended.out == ""


def test_an_error_leaves_only_itself(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{"format": "commsched/problem", "version": 1, "gradients": []')
    ended = run_in_terminal("plan", path, code=AT_ONCE)
    assert ended.code == 2
    said = "".join(left_on_screen(ended.err))
    assert said.startswith(f"commsched: {path}: is not valid JSON")


def test_a_dumb_terminal_gets_no_bars(file):
    ended = run_in_terminal("plan", file, env={"TERM": "dumb"}, code=AT_ONCE)
    assert ended.code == 0
    assert "reading" not in ended.err  # that took less than a second
    assert "\x1b" not in ended.err


@pytest.mark.parametrize("command", ["plan", "compare", "sensitivity"])
def test_pipes_get_nothing_unless_they_ask(file, command):
    assert run(command, file)[2] == ""
    assert run(command, file, "--quiet", "--progress")[2] == ""


def test_lines_when_they_are_asked_for(file):
    """One about reading, and one for every rule, in order."""
    code, out, err = run("compare", file, "--progress")
    assert (code, out) == run("compare", file)[:2]
    lines = err.splitlines()
    size = file.stat().st_size
    assert f"commsched: reading {file}: {size} B of {size} B" in lines
    counts = [
        (int(done), int(total), now)
        for done, total, now in re.findall(r"comparing: (\d+) of (\d+)(?:: (.+))?", err)
    ]
    totals = {total for _, total, _ in counts}
    assert len(totals) == 1
    assert [done for done, _, _ in counts] == list(range(totals.pop() + 1))
    assert counts[0][2] == RULES[0].title


def test_lines_for_every_better_plan(tmp_path):
    """Where something waits for a collective, the search tells of plans and bounds."""
    path = tmp_path / "step.json"
    tasks = [Compute("first", MS, "gpu")]
    for k in range(4):
        tasks += [
            Collective(f"x{k}", 500_000, "allreduce", "dp", after=("first",)),
            Compute(f"c{k}", MS, "gpu", after=(f"x{k}",)),
        ]
    write_problem(Problem(tasks, {("dp", "allreduce"): AlphaBeta(50, 1)}), path)
    code, _, err = run("plan", path, "--progress")
    assert code == 0
    told = re.findall(
        r"^commsched: +[\d.]+ s: (no plan yet|plan .+), bound .+?(, gap .+)?$", err, re.M
    )
    assert told
    assert all((plan == "no plan yet") == (not gap) for plan, gap in told)
    assert told[-1][1] == ", gap 0.00%"


def test_quiet_leaves_errors(tmp_path):
    missing = tmp_path / "missing.json"
    assert refusal("plan", missing, "--quiet") == refusal("plan", missing)


def test_quiet_takes_warnings_away(file, tmp_path):
    """A plan for another problem, and a launch beyond what was measured."""
    plan = tmp_path / "plan.json"
    assert run("plan", file, "-o", plan)[0] == 0
    other = tmp_path / "other.json"
    document = json.loads(file.read_text())
    document["name"] = "another"
    document["costs"]["allreduce"] = {"points": [[1, 1], [1000, 2]]}
    other.write_text(json.dumps(document))
    said = run_in_terminal("evaluate", other, plan, out="pipe", err="pipe")
    assert said.code == 0
    assert "was made for another problem" in said.err
    assert "was measured up to" in said.err
    quiet = run_in_terminal("evaluate", other, plan, "--quiet", out="pipe", err="pipe")
    assert (quiet.code, quiet.out, quiet.err) == (0, said.out, "")


def test_quiet_on_a_terminal(file):
    ended = run_in_terminal("compare", file, "--quiet", "--progress", code=AT_ONCE)
    assert (ended.code, ended.err) == (0, "")


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([None, ("ddp", "horovod")]))
@settings(deadline=None, max_examples=15)
def test_a_comparison_tells_steps_that_only_grow(seed, best_settings, rules):
    told = []
    problem = step(seed=seed)
    options = {"rules": rules, "best_settings": best_settings}
    comparison = compare(problem, progress=lambda *now: told.append(now), **options)
    assert comparison.records() == compare(problem, **options).records()
    totals = {total for _, total, _ in told}
    assert len(totals) == 1
    (total,) = totals
    done = [each for each, _, _ in told]
    assert done == sorted(done)
    assert set(done) == set(range(total + 1))
    assert told[-1] == (total, total, "")
    assert all(now for _, _, now in told[:-1])


def test_a_long_tuning_tells_how_many_plans_it_made():
    told = []
    compare(step(60), rules=["ddp"], progress=lambda *now: told.append(now))
    made = [int(m[1]) for *_, now in told if (m := re.search(r"best setting, (\d+) plans", now))]
    assert made
    assert made == sorted(set(made))


def test_a_comparison_gives_what_its_progress_raises():
    with pytest.raises(ZeroDivisionError):
        compare(step(), progress=lambda done, total, now: 1 // 0)


def test_reading_counts_bytes_once(tmp_path):
    """Several passes over several files: what is told only grows, up to their sizes."""
    for name, size in (("a", 2_500_000), ("b", 1_200_000), ("c", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    told = []
    files = counted(sources(tmp_path), lambda *now: told.append(now))
    assert files[0].start() == bytes(1 << 20)
    assert [len(file.read()) for file in files] == [2_500_000, 1_200_000, 10]
    assert [len(file.read()) for file in files] == [2_500_000, 1_200_000, 10]
    assert {total for _, total in told} == {3_700_010}
    done = [each for each, _ in told]
    assert done == sorted(set(done))
    assert done[-1] == 3_700_010


def test_reading_counts_compressed_bytes(tmp_path):
    path = tmp_path / "problem.json.gz"
    write_problem(step(50), tmp_path / "problem.json")
    path.write_bytes(gzip.compress((tmp_path / "problem.json").read_bytes()))
    told = []
    loaded = load(path, progress=lambda *now: told.append(now))
    assert loaded.problem.names == step(50).names
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


def test_reading_from_an_archive_has_no_known_end(tmp_path):
    path = tmp_path / "problem.zip"
    write_problem(step(50), tmp_path / "problem.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "problem.json", "problem.json")
    told = []
    assert load(path, progress=lambda *now: told.append(now)).problem.names == step(50).names
    assert told[-1] == ((tmp_path / "problem.json").stat().st_size, 0)
    code, _, err = run("plan", path, "--progress")
    assert code == 0
    assert " of " not in err.split("comparing")[0]


def test_counted_files_that_nobody_counts_are_the_same(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    files = sources(tmp_path)
    assert counted(files, None) is files


def test_a_file_without_compression_is_given_as_it_lies(tmp_path):
    """Libraries that need a path still get the file itself, not a copy."""
    (tmp_path / "a.db").write_bytes(b"abc")
    (file,) = counted(sources(tmp_path / "a.db"), lambda *_: None)
    with file.on_disk() as path:
        assert path == tmp_path / "a.db"


def test_recordings_are_counted_too():
    """The bundled trace is read to its end, in compressed bytes."""
    path = Path(commsched.__file__).parent / "problems/data/transformer_ddp_gloo_rank0.json.gz"
    told = []
    recorded = read_recording(path, progress=lambda *now: told.append(now))
    assert recorded.name == read_recording(path).name
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


def test_steps_that_nobody_watches_say_nothing(capsys):
    with Watch().steps("making a page") as tell, Watch().doing("thinking"):
        tell(0, 2, "a")
        tell(2, 2, "")
    with Watch().search("searching", 1) as search, Watch().reading("x") as reading:
        assert search is None
        assert reading is None
    assert capsys.readouterr() == ("", "")


def test_steps_as_lines(capsys):
    with Watch(asked=True).steps("making a page") as tell:
        tell(0, 2, "time\x1blines")
        tell(0, 2, "time lines, still")
        tell(2, 2)
    err = capsys.readouterr().err
    assert err.splitlines()[0].startswith("commsched: making a page: 0 of 2: time")
    assert "\x1b" not in err
    assert err.splitlines()[1:] == ["commsched: making a page: 2 of 2"]

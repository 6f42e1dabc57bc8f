"""Files that commands write: never over what they read, never half, and refused by name at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import refusal, run

import commsched.cases
import commsched.options
from commsched.app import app
from commsched.fitting import fit_command
from commsched.models.errors import InputError
from commsched.options import TARGETS
from commsched.targets import check_targets

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, DATA = ROOT / "examples", ROOT / "problems" / "data"
TRACE = "transformer_ddp_gloo_rank0.json.gz"
COSTS = "gloo_loopback_costs.json"
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with one file of each kind, in which one stands."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(EXAMPLES / "four_layers.json", "step.json")
    shutil.copy(EXAMPLES / "four_layers.json", "other.json")
    shutil.copy(EXAMPLES / "nccl_allreduce.log", "bench.log")
    for name in (TRACE, COSTS):
        shutil.copy(DATA / name, folder)
    assert run("plan", "step.json", "-o", "plan.json")[0] == 0
    Path("terms.json").write_text('{"format": "commsched/overheads", "version": 1, "issue_us": 5}')
    os.mkdir("logs")
    shutil.copy("bench.log", "logs/one.log")
    return folder


def content(folder):
    """Return every file in a folder with its content."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Every command that writes, each with everything it reads, as (target's option, its arguments).
READ = ("--costs", COSTS)
COMMANDS = [
    ("-o", ("plan", "step.json", *READ, "--overheads", "terms.json")),
    ("--picture", ("plan", "step.json", *READ, "--overheads", "terms.json")),
    ("--picture", ("compare", "step.json", *READ)),
    ("-o", ("import", TRACE, *READ)),
    ("-o", ("import", TRACE, "--sizes", "other.json")),
    ("-o", ("export", "plan.json", "--to", "ddp")),
    ("-o", ("export", "plan.json", "step.json", "--to", "csv", *READ)),
    ("-o", ("report", "step.json", *READ, "--overheads", "terms.json")),
    ("-o", ("report", "step.json", *READ, "--robust", "other.json")),
    ("-o", ("report", "step.json", "--robust", "other.json::step=3")),
    ("-o", ("report", "step.json", "--robust-costs", COSTS)),
    ("-o", ("report", TRACE, *READ, "--slowdown-alone", "other.json")),
    ("-o", ("plan", TRACE, *READ, "--slowdown-alone", "other.json")),
    ("-o", ("fit", "bench.log", "logs/one.log")),
    ("--picture", ("fit", "bench.log", "logs/one.log")),
]


def inputs_of(arguments):
    """Return the files that stand in arguments."""
    names = [text.partition("::")[0] for text in arguments[1:]]
    return [name for name in names if Path(name).is_file()]


@pytest.mark.parametrize(("option", "arguments"), COMMANDS)
def test_no_input_is_written_over(here, monkeypatch, option, arguments):
    """By no command, by its name, another path, or a link, and before anything is read."""

    def read(*_, **__):
        raise AssertionError("something was read")

    for module in (commsched.options, commsched.cases):
        for name in ("load", "read_network", "read_recording"):
            monkeypatch.setattr(module, name, read, raising=False)
    monkeypatch.setattr("commsched.exporting.read_plan", read)
    monkeypatch.setattr("commsched.fitting.fit_logs", read)
    files = inputs_of(arguments)
    assert len(files) >= 1
    for number, name in enumerate(files):
        link = Path(f"link{number}.svg")
        link.symlink_to(here / name)
        before = content(here)
        long = "--out" if option == "-o" else option
        for target in (name, f"./logs/../{name}", str(here / name), link):
            line = refusal(*arguments, option, target)
            assert line == f"commsched: {long}: {Path(target)} is the input itself\n"
        assert content(here) == before


def test_no_file_of_a_folder_that_is_read_is_written_over(here):
    """But a new file may be written there."""
    os.mkdir("ranks")
    for rank in (0, 1):
        shutil.copy(DATA / f"transformer_ddp_gloo_rank{rank}.json.gz", "ranks")
    target = Path("ranks", TRACE)
    before = content(here)
    line = refusal("import", "ranks", "-o", target)
    assert line == f"commsched: --out: {target} is a file of the input ranks\n"
    assert content(here) == before
    assert run("import", "ranks", "-o", "ranks/new.json")[0] == 0


def test_standard_input_from_a_file_is_not_written_over(here):
    """``plan - -o step.json < step.json``."""
    before = content(here)
    for target, code in (("step.json", 2), ("new.json", 0)):
        with Path("step.json").open("rb") as stdin:
            done = subprocess.run(
                [sys.executable, "-m", "commsched", "plan", "-", "-o", target],
                stdin=stdin,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert done.returncode == code, done.stderr
        if code:
            assert done.stderr == "commsched: --out: step.json is the input itself\n"
            assert content(here) == before


@pytest.mark.parametrize(("option", "arguments"), COMMANDS)
def test_a_folder_that_is_not_there_is_said_at_once(here, option, arguments):
    """Not after a search of minutes."""
    before = content(here)
    line = refusal(*arguments, option, "no/such/new.svg")
    long = "--out" if option == "-o" else option
    assert line == f"commsched: {long}: no/such/new.svg: the folder no/such does not exist\n"
    assert content(here) == before


PICTURES = [arguments for option, arguments in COMMANDS if option == "--picture"]


@needs_full
@pytest.mark.parametrize("arguments", PICTURES)
def test_a_picture_for_which_there_is_no_room(here, arguments):
    """One line names the file, and nothing else is there afterwards."""
    Path("new.svg").symlink_to(FULL)
    before = content(here)
    line = refusal(*arguments, "--picture", "new.svg")
    assert line == "commsched: new.svg: No space left on device\n"
    assert content(here) == before
    assert sorted(os.listdir(here)) == sorted({*(p.parts[-1] for p in here.iterdir())})
    assert not [path for path in os.listdir(here) if path.startswith(".")]


@pytest.mark.parametrize("arguments", PICTURES)
def test_a_picture_in_a_place_that_cannot_be_written(here, arguments):
    """A folder of that name, a file that is write-protected, and one that is no picture by name."""
    os.mkdir("folder.svg")
    Path("old.png").write_bytes(b"old")
    Path("old.png").chmod(0o444)
    before = content(here)
    assert refusal(*arguments, "--picture", "folder.svg") == "commsched: folder.svg: is a folder\n"
    line = refusal(*arguments, "--picture", "old.png")
    assert line == "commsched: old.png: is write-protected\n"
    line = refusal(*arguments, "--picture", "new.gif")
    assert line.startswith(
        "commsched: --picture: new.gif: a picture's name must end in .png or .svg"
    )
    assert content(here) == before


@needs_full
@pytest.mark.parametrize("arguments", PICTURES)
def test_a_picture_may_go_into_a_pipe(here, arguments):
    """What is no file is written to, not replaced."""
    Path("null.png").symlink_to("/dev/null")
    assert run(*arguments, "--picture", "null.png")[0] == 0
    assert Path("null.png").is_symlink()


def test_every_command_that_writes_is_looked_at():
    """A new command with a file to write must be added to the list above."""
    writing = set()
    groups = [("", app.registered_commands)]
    groups += [
        (f"{one.name} ", one.typer_instance.registered_commands) for one in app.registered_groups
    ]
    for group, commands in groups:
        for command in commands:
            parameters = command.callback.__annotations__
            for name in set(TARGETS) & parameters.keys():
                writing.add((f"{group}{command.name}", "-o" if name == "out" else f"--{name}"))
    looked_at = {(arguments[0], option) for option, arguments in COMMANDS}
    assert writing == looked_at | {("problems make", "-o")}
    assert fit_command.__annotations__.keys() >= set(TARGETS)


def test_a_step_of_the_library_needs_a_folder_too(here):
    """It reads no file, so it can overwrite none."""
    line = refusal("problems", "make", "resnet50/a100/10g/dp16", "-o", "no/such.json")
    assert line == "commsched: --out: no/such.json: the folder no does not exist\n"


@pytest.mark.parametrize("given", ["here.json", "-", "a\0", "x" * 5000])
def test_targets_that_are_no_paths(given):
    """Never another exception; what is too long is said when it is written."""
    with pytest.raises(InputError, match=r"^--out: a.*null byte"):
        check_targets({"--out": Path("a\0b"), "--picture": None}, [given])
    with pytest.raises(InputError, match=r"^--picture: a"):
        check_targets({"--out": None, "--picture": Path("a\0b/c.svg")}, [given])
    check_targets({"--out": Path("x" * 5000)}, [given, None])


def test_a_picture_without_matplotlib_is_refused_before_anything_is_read(here, monkeypatch):
    """Not after a search of a minute; no other file is written either."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    before = content(here)
    pictures = [arguments for option, arguments in COMMANDS if option == "--picture"]
    assert {arguments[0] for arguments in pictures} == {"plan", "compare", "fit"}
    for command, *_ in pictures:
        given = [command, "not-there.json", "--picture", "new.svg"]
        if command != "compare":
            given += ["-o", "new.json"]
        line = refusal(*given)
        assert line == "commsched: pictures need matplotlib: pip install 'commsched[plot]'\n"
    assert content(here) == before

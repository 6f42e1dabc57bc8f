"""The command line as a process: streams that are closed or full, signals, arguments of no meaning."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runner import refusal, run

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
COMMSCHED = [sys.executable, "-m", "commsched"]


@pytest.fixture
def four(tmp_path):
    """A copy of the smallest example, in a folder of its own."""
    return Path(shutil.copy(EXAMPLES / "four_layers.json", tmp_path))


def shell(command, folder):
    """Run a line of shell in which $COMMSCHED is the command; return exit code, output, errors."""
    done = subprocess.run(
        ["sh", "-c", command.replace("$COMMSCHED", f'"{sys.executable}" -m commsched')],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("$COMMSCHED plan four_layers.json >&-", "standard output is closed"),
        ("$COMMSCHED plan four_layers.json -o plan.json <&- >&-", "standard output is closed"),
        ("$COMMSCHED plan - <&-", "-: is empty"),
        ("$COMMSCHED fit - <&-", "-: "),
        ("$COMMSCHED plan four_layers.json > /dev/full", "No space left"),
        ("$COMMSCHED plan four_layers.json --json > /dev/full", "No space left"),
    ],
)
def test_streams_that_take_or_give_nothing(four, line, said):
    """One line and exit code 2, and nothing is written beside the input."""
    if "/dev/full" in line and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    code, out, err = shell(line, four.parent)
    assert (code, out) == (2, "")
    assert err.startswith("commsched: ")
    assert said in err
    assert len(err.splitlines()) == 1
    assert os.listdir(four.parent) == ["four_layers.json"]


def test_without_a_stream_for_errors_the_exit_code_says_it(four):
    """There is nowhere to print the line, and no crash."""
    assert shell("$COMMSCHED plan nothing.json 2>&-", four.parent) == (2, "", "")
    code, out, _ = shell("$COMMSCHED plan four_layers.json 2>&-", four.parent)
    assert code == 0
    assert "verdict: " in out


def test_a_reader_that_stops_early_is_no_error(four):
    """As with ``| head -1``."""
    code, out, err = shell("$COMMSCHED plan four_layers.json | head -c 11", four.parent)
    assert (code, out, err) == (0, "four layers", "")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("command", ["plan", "compare", "fit"])
def test_ctrl_c_while_reading(tmp_path, command):
    """Exit code 130 and one line, also while a file does not go on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*COMMSCHED, command, str(pipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with pipe.open("wb"):  # returns when the command has opened it
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "commsched: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", ""], "argument 2 is empty"),
        (["fit", "a.log", ""], "argument 3 is empty"),
        (["plan", "four_layers.json", "-o", ""], "argument 4 (after -o) is empty"),
        (["plan", "four_layers.json", "--out="], "argument 3 is empty"),
        (["compare", "four_layers.json", "--costs", ""], "argument 4 (after --costs) is empty"),
        (["problems", "make", "resnet50/a100/10g/dp16", "-o", "-"], "not a file to write"),
        (["plan", "four_layers.json", "--out=-"], "not a file to write"),
        (["plan", "four_layers.json", "-o-"], "not a file to write"),
        (["plan", "four_layers.json", "--picture", "-"], "not a file to write"),
        (["evaluate", "-", "-"], "given twice"),
        (["plan", "-", "--costs=-"], "given twice"),
    ],
)
def test_arguments_that_mean_nothing(four, monkeypatch, arguments, said):
    """An empty name would be the folder one stands in, and '-' a file of that name."""
    monkeypatch.chdir(four.parent)
    assert said in refusal(*arguments)
    assert os.listdir(four.parent) == ["four_layers.json"]


def test_one_dash_is_standard_input(four, monkeypatch):
    """And names that merely begin with one are files."""
    (four.parent / "-x.json").write_bytes(four.read_bytes())
    monkeypatch.chdir(four.parent)
    assert run("plan", "--", "-x.json")[0] == 0
    assert shell("$COMMSCHED plan - < four_layers.json", four.parent)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "four_layers.json", "-o", "new.svg", "--picture", "./new.svg"),
        ("fit", "nccl_allreduce.log", "-o", "new.svg", "--picture", "folder/../new.svg"),
    ],
)
def test_two_results_are_not_written_to_one_file(four, monkeypatch, arguments):
    """The second would replace the first, and nothing would say so."""
    shutil.copy(EXAMPLES / "nccl_allreduce.log", four.parent)
    (four.parent / "folder").mkdir()
    monkeypatch.chdir(four.parent)
    assert "--out and --picture: both are to be written to" in refusal(*arguments)
    assert not Path("new.svg").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep names in Unicode")
def test_names_of_files_need_not_be_utf8(tmp_path, monkeypatch):
    """They are printed as escapes, and JSON with them in it can be read."""
    monkeypatch.chdir(tmp_path)
    data = EXAMPLES.parent / "problems" / "data"
    trace, log = "tr\udce9.json.gz", "log\udce9.log"
    shutil.copy(data / "transformer_ddp_gloo_rank0.json.gz", trace)
    shutil.copy(EXAMPLES / "nccl_allreduce.log", log)
    costs = ("--costs", data / "gloo_loopback_costs.json")
    new = "new\udce9"
    for arguments in (
        ("import", trace, "-o", f"{new}.json", "--json"),
        ("plan", trace, *costs, "-o", f"{new}.plan", "--json"),
        ("export", f"{new}.plan", trace, *costs, "--to", "csv", "-o", f"{new}.csv", "--json"),
        ("analyse", trace, "--json"),
        ("fit", log, "--min-bytes", "1048576", "-o", f"{new}.costs", "--json"),
        ("problems", "make", "resnet50/a100/10g/dp16", "-o", f"{new}.made", "--json"),
    ):
        code, out, err = run(*arguments)
        assert (code, err) == (0, ""), arguments
        assert json.loads(out)
    assert run("plan", f"{new}.json", *costs)[0] == 0

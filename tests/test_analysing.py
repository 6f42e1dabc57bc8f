"""``commsched analyse``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import tarfile

import pytest
from cli_runner import refusal, run
from shared_files import shared_data
from test_breakdown import REDUCE, event, gpu, two_steps, write

TERMINAL = 100
"""Columns that a table may have."""


def rows_of(*arguments):
    """Run with ``--json``; return the rows."""
    code, out, err = run("analyse", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["rows"]


def table(out, title):
    """Return the rows of a printed table as lists of cells, its header first."""
    lines = out.splitlines()
    at = next(at for at, line in enumerate(lines) if title in line.split())
    rows = [lines[at]]
    for line in lines[at + 1 :]:
        if not line.strip() or not (line.split()[0].isdecimal() or line.split()[0] == "?"):
            break
        rows.append(line)
    assert all(len(row) <= TERMINAL for row in rows)
    return [row.split() for row in rows]


def test_whole_recording(tmp_path):
    """The parts add up to the span, and the collectives say how much of each is exposed."""
    path = write(tmp_path / "t.json", two_steps(), distributedInfo={"rank": 2})
    (row,) = rows_of(path)
    assert (row["rank"], row["device"], row["step"]) == (2, "0", None)
    parts = [row[name] for name in ("computation_us", "exposed_us", "copies_us", "idle_us")]
    assert sum(parts) == row["span_us"] == 330
    assert (row["communication_us"], row["overlap_us"]) == (80, 40)
    assert row["percent"]["overlap_of_communication"] == 50
    assert row["collectives"][0] == {
        "kind": "allreduce", "bytes": 512, "stream": "40",
        "start_us": 190, "duration_us": 40, "exposed_us": 20,
    }  # fmt: skip
    code, out, err = run("analyse", path)
    assert (code, err) == (0, "")
    header, values = table(out, "span")
    assert header == ["rank", "span", "computation", "comm", "hidden", "exposed", "copies", "idle"]
    assert values[:9] == ["2", "330", "us", "150", "us", "45%", "80.0", "us", "40.0"]
    assert "1 of 5 kernels and copies have no recorded launch" in out


def test_steps(tmp_path):
    """One step, or each in a row of its own; others are refused with the list of what there is."""
    path = write(tmp_path / "t.json", two_steps())
    (row,) = rows_of(path, "--step", "5")
    assert (row["step"], row["span_us"], row["exposed_us"]) == (5, 80, 20)
    rows = rows_of(path, "--step", "all")
    assert [row["step"] for row in rows] == [4, 5]
    _, out, _ = run("analyse", path, "--step", "all")
    assert [cells[:2] for cells in table(out, "span")[1:]] == [["?", "4"], ["?", "5"]]
    (row,) = rows_of(path, "--launched")
    assert (row["span_us"], row["computation_us"]) == (180, 120)
    assert "step 9 is not in the recording, which has 4, 5" in refusal("analyse", path, "--step", 9)
    for bad in ("-1", "first", "1.5", "²"):
        assert "neither a whole number nor" in refusal("analyse", path, f"--step={bad}")
    plain = write(tmp_path / "plain.json", [gpu("gemm", 0, 5)])
    assert "no ProfilerStep" in refusal("analyse", plain, "--step", "all")


def test_top(tmp_path):
    """The most exposed come first, ten of them unless more are asked for."""
    events = [gpu(REDUCE, 100 * k, 10 + k, stream=40) for k in range(14)]
    events.append(gpu("gemm", 1300, 20))  # Hides most of the last one.
    path = write(tmp_path / "t.json", events)
    for arguments, count in (((), 10), (("--top", 3), 3), (("--all",), 14), (("--top", 0), 0)):
        _, out, _ = run("analyse", path, *arguments)
        lengths = [line for line in out.splitlines() if " allreduce " in line]
        assert len(lengths) == count
        if lengths:
            assert "1.2000 ms" in lengths[0]  # The last but one started at 1200 us.
        if arguments == ("--all",):
            assert "1.3000 ms" in lengths[-1]
    assert len(rows_of(path, "--top", 1)[0]["collectives"]) == 14
    refusal("analyse", path, "--top", "-1")
    for top in (0, 3, 10, 99):
        line = refusal("analyse", path, "--all", "--top", top)
        assert line == "commsched: --top and --all exclude each other\n"


def test_folder_of_ranks(tmp_path):
    """A row for each rank, in order; what is no trace is left out and named."""
    for rank in (10, 9):
        folder = tmp_path / "job" / f"rank{rank}"
        folder.mkdir(parents=True)
        events = [gpu("gemm", 0, rank), gpu(REDUCE, rank, 1, stream=40)]
        write(folder / "trace.json", events, distributedInfo={"rank": rank})
    (tmp_path / "job" / "rank9" / "notes.txt").write_text("no trace")
    rows = rows_of(tmp_path / "job")
    assert [(row["rank"], row["source"]) for row in rows] == [
        (9, "rank9/trace.json"), (10, "rank10/trace.json"),
    ]  # fmt: skip
    assert [row["computation_us"] for row in rows] == [9, 10]
    _, out, _ = run("analyse", tmp_path / "job")
    assert [cells[0] for cells in table(out, "span")[1:]] == ["9", "10"]
    assert "left out: " in out
    assert "notes.txt" in out


def test_ranks_that_do_not_tell_files_apart(tmp_path):
    """Two files of rank 0 are numbered, and the reader warned."""
    for name in "ab":
        write(tmp_path / f"{name}.json", [gpu("gemm", 0, 5)], distributedInfo={"rank": 0})
    _, out, _ = run("analyse", tmp_path)
    assert table(out, "span")[0][0] == "trace"
    assert "DOUBT these are not the ranks of one job" in out
    assert "trace 2 (rank 0): b.json" in out


def test_wide_figures_fit_a_terminal(tmp_path):
    """Several devices, large ranks and steps, every column wide: still within the terminal."""
    events = []
    for device in (10, 11):
        launch = 1000 + device
        events += [
            event("cudaLaunchKernel", 5, 1, cat="cuda_runtime", correlation=launch),
            gpu("gemm", 10, 1_234_567, correlation=launch, device=device),
            gpu(
                "ncclDevKernel_ReduceScatter", 1_000_000, 3_456_789, stream=1234567,
                correlation=launch, device=device,
                **{"Collective name": "_reduce_scatter_base", "In msg nelems": 262143000,
                   "dtype": "Float"},
            ),
            gpu("Memset (Device)", 6_000_000, 3_000_000, correlation=launch, device=device,
                cat="gpu_memset"),
        ]  # fmt: skip
    events.append(event("ProfilerStep#123456", 0, 9, cat="user_annotation"))
    path = write(tmp_path / "t.json", events, distributedInfo={"rank": 1023})
    _, out, _ = run("analyse", path, "--step", "all")
    header, *values = table(out, "span")
    assert header[:3] == ["rank", "gpu", "step"]
    assert [cells[:3] for cells in values] == [["1023", "10", "123456"], ["1023", "11", "123456"]]
    assert len(table(out, "stream")) == 3
    assert "1000.00 MiB" in out
    assert "…" not in out


def test_refusals(tmp_path):
    """What cannot be analysed is refused in one line that says why."""
    text = tmp_path / "notes.txt"
    text.write_text("no trace")
    assert "notes.txt: this is no trace" in refusal("analyse", text)
    assert "gone.json" in refusal("analyse", tmp_path / "gone.json")
    cpu = write(tmp_path / "cpu.json", [event("aten::mm", 0, 5)])
    assert "no kernel of a GPU" in refusal("analyse", cpu)
    assert "none of 2 files can be analysed; first: " in refusal("analyse", tmp_path)


def test_names_cannot_move_the_cursor(tmp_path):
    """Whatever a trace says is printed as text."""
    wait = {"Collective name": "\x1b[2J\nx"}
    path = write(tmp_path / "t.json", [gpu(REDUCE, 0, 5, device=0, **wait), gpu("gemm", 0, 1)])
    _, out, _ = run("analyse", path)
    assert "\x1b[2J" not in out


@pytest.mark.shared
def test_eight_real_ranks():
    """An archive of all ranks: a row each, by rank; collectives wait for the slowest."""
    path = shared_data("param/dlrm_kineto.tar.gz")
    with tarfile.open(path) as archive:
        assert sum(m.name.endswith(".json") and "._" not in m.name for m in archive) == 8
    rows = rows_of(path)
    assert [row["rank"] for row in rows] == list(range(8))
    firsts = [next(c for c in row["collectives"] if c["kind"] == "all_to_all") for row in rows]
    assert {first["bytes"] for first in firsts} == {24576}
    assert min(first["duration_us"] for first in firsts) == 10
    assert max(first["duration_us"] for first in firsts) == 7635
    _, out, _ = run("analyse", path)
    assert [cells[0] for cells in table(out, "span")[1:]] == [str(rank) for rank in range(8)]

"""``commsched fit``: from benchmark logs to a cost file that ``--costs`` reads."""

from __future__ import annotations

import json

import pytest
from cli_runner import refusal, run
from shared_files import shared_data

from commsched.problems.cost_rows import read_network

SIDE = "time algbw busbw #wrong"
HEADER = f"""# nThread 1 nGpus 1 minBytes 1024 maxBytes 4194304 step: 2(factor)
#                            out-of-place       in-place
# size count type redop root {SIDE} {SIDE}
# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)
"""


def allreduce(path):
    """Return the curve of the all-reduce in a cost file."""
    (found,) = [one.cost for one in read_network(path).curves if one.kind == "allreduce"]
    return found


def log_text(alpha_us=20.0, us_per_byte=1e-4, ranks=4, slow=None, operation="all_reduce") -> str:
    """Return an nccl-tests log of a perfect line; the row ``slow`` takes 10 times as long."""
    rows = []
    factor = (2 if operation == "all_reduce" else 1) * (ranks - 1) / ranks
    redop = "sum" if operation == "all_reduce" else "none"
    for k in range(12):
        size = 1024 * 2**k
        us = (alpha_us + us_per_byte * size) * (10 if k == slow else 1)
        cells = [
            f"{t:.2f} {size / t / 1e3:.2f} {size / t / 1e3 * factor:.2f} 0" for t in (us, 2 * us)
        ]
        rows.append(f"{size} {size // 4} float {redop} -1 {' '.join(cells)}")
    ranks_text = "".join(
        f"#  Rank  {k} Group  0 Pid 1 on host{k // 2} device {k % 2} [0x00] X\n"
        for k in range(ranks)
    )
    start = f"# Collective test starting: {operation}_perf\n"
    return start + HEADER.replace("\n", "\n" + ranks_text, 1) + "\n".join(rows) + "\n"


@pytest.fixture
def write(tmp_path):
    """Return a writer of such logs."""

    def write(name="a.log", *tables, **options):
        path = tmp_path / name
        path.write_text("\n".join(tables) or log_text(**options))
        return path

    return write


def fitted(*arguments) -> dict:
    code, out, err = run("fit", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_line_comes_back_and_the_cost_file_prices_by_it(write, tmp_path):
    """Alpha and bandwidth are found, the errors are small, and the file holds what was fitted."""
    log, costs = write(), tmp_path / "costs.json"
    (table,) = fitted(log)["tables"]
    assert (table["kind"], table["ranks"], table["nodes"], table["rows"]) == ("allreduce", 4, 2, 12)
    assert table["line"]["cost"]["alpha_us"] == pytest.approx(20, rel=0.01)
    assert table["line"]["cost"]["bandwidth_gb_s"] == pytest.approx(10, rel=0.01)
    assert table["line"]["max_error"] < 0.01
    assert table["line"]["half_bandwidth_bytes"] == pytest.approx(200_000, rel=0.02)
    assert len(table["line"]["ranges"]) == 6
    code, out, err = run("fit", log, "-o", costs)
    assert (code, err) == (0, "")
    assert f"written to {costs}: allreduce, 4 ranks, 2 nodes" in out
    assert allreduce(costs).ns(1048576) == pytest.approx(20_000 + 104_858, rel=0.06)
    for flag, bound in (("--line", 0.01), ("--raw", 0.0002)):
        assert run("fit", log, "-o", costs, flag)[0] == 0
        assert allreduce(costs).ns(1048576) == pytest.approx(20_000 + 104_858, rel=bound)
    assert len(allreduce(costs).rows) == 12


def test_in_place_times_are_others(write, tmp_path):
    """Out of place is the default; here in place takes twice as long."""
    log = write()
    (out_of_place,), (in_place,) = fitted(log)["tables"], fitted(log, "--in-place")["tables"]
    assert in_place["points"][0][1] == pytest.approx(2 * out_of_place["points"][0][1], abs=0.02)
    osu = tmp_path / "osu.txt"
    osu.write_text("# OSU MPI Allreduce Latency Test v7\n# Size  Avg Latency(us)\n8 1\n16 2\n")
    assert "has no in-place times" in refusal("fit", osu, "--in-place")


def test_every_kind_and_number_of_ranks_is_written(write, tmp_path):
    """One curve for each, with where it comes from and how far it is off."""
    logs = [
        write("a.log", log_text(), log_text(operation="all_gather")),
        write("b.log", alpha_us=40, us_per_byte=2e-4, ranks=8),
    ]
    costs = tmp_path / "costs.json"
    document = fitted(*logs, "-o", costs)
    assert document["written"]["curves"] == [
        "allreduce, 4 ranks, 2 nodes",
        "all_gather, 4 ranks, 2 nodes",
        "allreduce, 8 ranks, 4 nodes",
    ]
    network = read_network(costs)
    assert network.name == "a.log, b.log"
    assert [(c.kind, c.ranks, c.nodes, c.source, c.tool) for c in network.curves] == [
        ("allreduce", 4, 2, "a.log, line 8", "nccl-tests"),
        ("all_gather", 4, 2, "a.log, line 30", "nccl-tests"),
        ("allreduce", 8, 4, "b.log, line 12", "nccl-tests"),
    ]
    assert all(c.date == "" and c.max_error <= 0.05 for c in network.curves)
    run("fit", *logs, "-o", costs, "--ranks", "8")
    (curve,) = read_network(costs).curves
    assert curve.cost.ns(1024) == pytest.approx(40_205, rel=0.06)


def test_repeated_runs_of_a_log_are_put_together(write, tmp_path):
    """The median of three runs counts; the same in two files is refused, for nothing chooses."""
    runs = [log_text(alpha_us=us) for us in (20, 500, 22)]
    log, costs = write("a.log", *runs), tmp_path / "costs.json"
    (table,) = fitted(log)["tables"]
    assert (table["rows"], table["sizes"], len(table["lines"])) == (36, 12, 3)
    assert table["raw"]["cost"]["points"][0][1] == pytest.approx(22.1)
    files = [write(f"{k}.log", text) for k, text in enumerate(runs[:2])]
    assert "two tables are for allreduce, 4 ranks, 2 nodes: 0.log: " in refusal(
        "fit", *files, "-o", costs
    )
    assert not costs.exists()
    assert len(fitted(*files)["tables"]) == 2


def test_times_that_fall_are_refused_unless_repaired(write, tmp_path):
    """The pair is named with what helps; each of the remedies does."""
    log, costs = write(slow=3), tmp_path / "costs.json"
    (table,) = fitted(log)["tables"]
    assert (table["pieces"], table["raw"]) == (None, None)
    assert table["fall"]["bytes"] == 8192
    assert table["fall"]["larger_bytes"] == 16384
    code, out, err = run("fit", log)
    assert (code, err) == (0, "")
    assert "pieces: none: times fall from 208.19 us at 8192 bytes to 21.64 us at 16384 bytes" in out
    for flags in ([], ["--raw"]):
        line = refusal("fit", log, "-o", costs, *flags)
        assert "times fall from 208.19 us at 8192 bytes" in line
        assert "--repair raises times that fall, --line fits one line" in line
        assert not costs.exists()
    for flags in (["--repair"], ["--repair", "--raw"], ["--line"], ["--max-error", "0.9"]):
        code, out, err = run("fit", log, "-o", costs, *flags)
        assert (code, err) == (0, "")
        costs.unlink()
    (table,) = fitted(log, "--repair")["tables"]
    assert table["pieces"]["max_error"] > 7
    assert "repaired: 7 of 12 times" in table["pieces"]["notes"][0]
    code, out, _ = run("fit", log, "--repair")
    assert "16384 bytes: repaired" in out
    assert run("fit", log, "-o", costs, "--min-bytes", "10000")[0] == 0


def test_wrong_results_are_an_error(write):
    """Exit code 2, and the line."""
    row = "1024 256 float sum -1 20.10 0.05 0.08 "
    text = log_text()
    assert f"{row}0" in text
    log = write("a.log", text.replace(f"{row}0", f"{row}7"))
    assert "a.log: line 10: results at 1024 bytes are wrong (#wrong is 7)" in refusal("fit", log)


def test_sizes_of_one_rank_need_the_number_of_ranks(tmp_path):
    """OSU's all-gather is shown, but not written without --ranks."""
    log, costs = tmp_path / "osu.txt", tmp_path / "costs.json"
    log.write_text(
        "# OSU MPI Allgather Latency Test v7.4\n# Size  Avg Latency(us)\n8 10\n1024 20\n"
    )
    (table,) = fitted(log)["tables"]
    assert table["sizes_are_per_rank"]
    assert "sizes are one rank's part; --ranks gives" in refusal("fit", log, "-o", costs)
    assert run("fit", log, "-o", costs, "--ranks", "4")[0] == 0
    (curve,) = read_network(costs).curves
    assert (curve.ranks, curve.cost.measured_to, curve.tool) == (4, 4096, "OSU 7.4")


def test_what_cannot_be_written_is_said(write, tmp_path):
    """A table of no kind of ours beside others is left out; alone it is an error."""
    reduce = tmp_path / "reduce.txt"
    reduce.write_text(
        "# OSU MPI Reduce Latency Test v7.4\n# Size  Avg Latency(us)\n8 10\n1024 20\n"
    )
    costs = tmp_path / "costs.json"
    line = refusal("fit", reduce, "-o", costs)
    assert "nothing can be written: reduce.txt: reduce, " in line
    assert "is no collective that steps launch" in line
    code, out, _ = run("fit", reduce, write(), "-o", costs)
    assert code == 0
    assert (
        "not written: reduce.txt: reduce, unknown number of ranks, line 2: is no collective" in out
    )
    assert [curve.kind for curve in read_network(costs).curves] == ["allreduce"]


def test_a_kind_names_what_is_open(tmp_path):
    """An all-gather that was not checked may be an all-to-all."""
    text = (
        log_text(operation="all_gather", ranks=8).replace(" 0\n", " N/A\n").replace(" 0 ", " N/A ")
    )
    text = text.partition("\n")[2]
    log, costs = tmp_path / "log.txt", tmp_path / "costs.json"
    log.write_text(text)
    assert "its operation is not known: --kind names it" in refusal("fit", log, "-o", costs)
    assert run("fit", log, "-o", costs, "--kind", "all_to_all")[0] == 0
    assert read_network(costs).curves[0].kind == "all_to_all"
    assert "is no allreduce" in refusal("fit", log, "--kind", "allreduce")
    assert "--kind: 'reduce' is not one of" in refusal("fit", log, "--kind", "reduce")


def test_bad_logs_and_options_are_one_line(write, tmp_path):
    """No table, no size left, no such file, options that exclude each other."""
    text = tmp_path / "notes.txt"
    text.write_text("hello\n" * 10)
    assert "no table" in refusal("fit", text)
    assert "No such file" in refusal("fit", tmp_path / "missing.log")
    log = write()
    assert "has fewer than two sizes" in refusal("fit", log, "--min-bytes", "4194304")
    assert "no table can be fitted" in refusal("fit", log, "--ranks", "16")
    assert "--line and --raw exclude each other" in refusal("fit", log, "--line", "--raw")
    assert "ranks: 1 must be" in refusal("fit", log, "--ranks", "1")
    assert "max_error" in refusal("fit", log, "--max-error", "1.5")
    assert "is the input itself" in refusal("fit", log, "-o", log)
    assert "must end in .png or .svg" in refusal("fit", log, "--picture", tmp_path / "a.gif")


def test_what_people_read(write):
    """Errors by range, the half-bandwidth size, what was not used."""
    code, out, _ = run("fit", write())
    assert code == 0
    assert "a.log: allreduce, 4 ranks, 2 nodes, line 8" in out
    assert "half of its bandwidth at 195." in out
    lines = [line for line in out.splitlines() if line.startswith(("  1 KiB", "  1 MiB"))]
    assert [line.split()[:5] for line in lines] == [
        ["1", "KiB", "4", "KiB", "2"],
        ["1", "MiB", "4", "MiB", "2"],
    ]


@pytest.mark.shared
def test_real_logs_give_curves_that_plan_accepts(tmp_path):
    """A real log of 64 GPUs: the known line above 1 MiB, and pieces within a few per cent."""
    costs = tmp_path / "costs.json"
    document = fitted(shared_data("echo/nccl_64.log"), "--min-bytes", "1048576", "-o", costs)
    (table,) = document["tables"]
    assert table["line"]["cost"]["alpha_us"] == pytest.approx(159, rel=0.02)
    assert table["pieces"]["max_error"] <= 0.05 + 1e-7
    assert table["nodes"] == 8
    assert allreduce(costs).measured_to >= 2**30


@pytest.mark.shared
def test_a_real_log_of_five_collectives(tmp_path):
    """All five kinds of a cluster's log in one cost file."""
    costs = tmp_path / "costs.json"
    log = shared_data("nccl-tests-cluster/multi_N10_G8.log")
    fitted(log, "-o", costs)
    network = read_network(costs)
    assert [(c.kind, c.ranks, c.nodes) for c in network.curves] == [
        (kind, 80, 10)
        for kind in ("allreduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    ]
    assert {c.tool for c in network.curves} == {"nccl-tests 2.17.8, NCCL 2.29.2"}
    assert all(0 < c.mean_error <= c.max_error <= 0.0501 for c in network.curves)


FOLDERS = ("abci", "aws", "cloudai", "deepops", "deepspeed", "echo", "nccl-tests-cluster")


@pytest.mark.shared
@pytest.mark.parametrize("folder", [*FOLDERS, "superbench", "te-ccl", "taccl"])
def test_every_real_log_is_fitted_or_refused_in_one_line(folder):
    """Whatever it is, there is no traceback."""
    for path in sorted(shared_data(folder).iterdir()):
        code, out, err = run("fit", path, "--json")
        assert (code, err) == (0, "") or (code == 2 and err.count("\n") == 1 and not out)
        if code == 0:
            json.loads(out)

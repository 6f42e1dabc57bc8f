"""``commsched fit``: from a benchmark log to a cost file that ``plan --costs`` reads."""

from __future__ import annotations

import json

import pytest
from cli_runner import refusal, run
from shared_files import shared_data

from commsched.problems import read_costs

SIDE = "time algbw busbw #wrong"
HEADER = f"""# nThread 1 nGpus 1 minBytes 1024 maxBytes 4194304 step: 2(factor)
#                            out-of-place       in-place
# size count type redop root {SIDE} {SIDE}
# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)
"""


def write_log(path, alpha_us=20.0, us_per_byte=1e-4, ranks=4):
    """Write an nccl-tests all-reduce log of a perfect line."""
    rows = []
    for k in range(12):
        size = 1024 * 2**k
        us = alpha_us + us_per_byte * size
        bandwidth = size / us / 1e3
        bus = bandwidth * 2 * (ranks - 1) / ranks
        cells = f"{us:.2f} {bandwidth:.2f} {bus:.2f} 0"
        rows.append(f"{size} {size // 4} float sum -1 {cells} {cells}")
    ranks_text = "".join(f"#  Rank  {k} Group  0 Pid 1 on host device {k}\n" for k in range(ranks))
    path.write_text(ranks_text + HEADER + "\n".join(rows) + "\n")
    return path


def test_a_line_comes_back_and_the_cost_file_prices_by_it(tmp_path):
    """Alpha and bandwidth are found, the errors are small, and the file is read by ``--costs``."""
    log, costs = write_log(tmp_path / "all_reduce.log"), tmp_path / "costs.json"
    code, out, err = run("fit", log, "--json")
    assert (code, err) == (0, "")
    (table,) = json.loads(out)["tables"]
    assert (table["kind"], table["ranks"], table["rows"]) == ("allreduce", 4, 12)
    assert table["line"]["cost"]["alpha_us"] == pytest.approx(20, rel=0.01)
    assert table["line"]["cost"]["bandwidth_gb_s"] == pytest.approx(10, rel=0.01)
    assert table["line"]["max_error"] < 0.01
    code, out, err = run("fit", log, "-o", costs)
    assert (code, err) == (0, "")
    assert "written to" in out
    assert read_costs(costs).ns(1048576) == pytest.approx(20_000 + 104_858, rel=0.06)
    code, _, _ = run("fit", log, "-o", costs, "--line")
    assert code == 0
    assert read_costs(costs).ns(1048576) == pytest.approx(20_000 + 104_858, rel=0.01)


def test_which_table_to_write_must_be_clear(tmp_path):
    """Two all-reduce tables and one file: the ranks decide, else nothing is written."""
    logs = [write_log(tmp_path / "a.log"), write_log(tmp_path / "b.log", 40, 2e-4, 8)]
    costs = tmp_path / "costs.json"
    assert "2 are there" in refusal("fit", *logs, "-o", costs)
    assert not costs.exists()
    code, _, _ = run("fit", *logs, "-o", costs, "--ranks", "8")
    assert code == 0
    assert read_costs(costs).ns(1024) == pytest.approx(40_205, rel=0.06)


def test_bad_logs_and_options_are_one_line(tmp_path):
    """No table, no size left, no such file."""
    text = tmp_path / "notes.txt"
    text.write_text("hello\n" * 10)
    assert "no table" in refusal("fit", text)
    assert "No such file" in refusal("fit", tmp_path / "missing.log")
    log = write_log(tmp_path / "a.log")
    assert "two sizes" in refusal("fit", log, "--min-bytes", "4194304")


@pytest.mark.shared
def test_real_logs_give_curves_that_plan_accepts(tmp_path):
    """A real log of 64 GPUs: the known line above 1 MiB, and pieces within a few per cent."""
    costs = tmp_path / "costs.json"
    log = shared_data("echo/nccl_64.log")
    code, out, _ = run("fit", log, "--min-bytes", "1048576", "--json", "-o", costs)
    assert code == 0
    (table,) = json.loads(out)["tables"]
    assert table["line"]["cost"]["alpha_us"] == pytest.approx(159, rel=0.02)
    assert table["pieces"]["max_error"] < 0.05
    assert read_costs(costs).measured_to >= 2**30

"""Logs of nccl-tests, rccl-tests and OSU: every variant of table, real ones, and hostile ones."""

from __future__ import annotations

import gzip
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import shared_data
from strategies import PROPERTY

from commsched.models import InputError
from commsched.problems.bench import bench_logs, bench_result
from commsched.problems.bench.bench_kinds import FACTORS, Ratio, operation_named, ratio_of
from commsched.problems.bench.bench_lines import Unprefixer
from commsched.problems.bench.bench_logs import BenchmarkLog, BenchmarkTable, read_benchmark_log
from commsched.problems.bench.bench_tables import columns_of, parse_row

SIZES = [0, 8, 4096, 1048576, 33554432, 1073741824]
EXPECTED = [(size, 20.0 + size / 200000) for size in SIZES[1:]]
OLD = ("size", "count", "type", "redop")
NEW = ("size", "count", "type", "redop", "root")


def factor(operation: str, ranks: int) -> float:
    return {2: 2 * (ranks - 1) / ranks, 1: (ranks - 1) / ranks, 0: 1.0}[FACTORS[operation]]


def side(size: int, us: float, ratio: float, result: str, tail: tuple[str, ...] = ()) -> str:
    algbw = size / us / 1e3
    more = " ".join("1.25" for _ in tail)
    return f"{us:.5f} {algbw:.2f} {algbw * ratio:.2f} {more} {result}"


def table(
    operation: str = "allreduce",
    ranks: int = 8,
    *,
    head: tuple[str, ...] = NEW,
    results: tuple[str, str] = ("0", "0"),
    redop: str = "sum",
    root: str = "-1",
    error: str = "#wrong",
    extra: tuple[str, ...] = (),
    mark: str = "# ",
) -> list[str]:
    """Return the lines of a table, from its header to the averages below it."""
    ratio = factor(operation, ranks)
    half = " ".join(("time", "algbw", "busbw", *extra, error))
    lines = [
        f"{mark}                  out-of-place         in-place",
        f"{mark}{'   '.join(head)}   {half}   {half}",
        f"{mark}(B)  (elements)   (us) (GB/s) (GB/s)   (us) (GB/s) (GB/s)",
    ]
    for size in SIZES:
        us = 20.0 + size / 200000
        values = {"size": str(size), "count": str(size // 4), "type": "float"}
        values |= {"redop": redop, "root": root}
        lines.append(
            "   ".join(values[name] for name in head)
            + f"   {side(size, us, ratio, results[0], extra)}"
            + f"   {side(size, us * 1.01, ratio, results[1], extra)}"
        )
    return [*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 59.3571", "#"]


def ranks_before(ranks: int, group: str = "") -> list[str]:
    return [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) iters: 20",
        "#",
        "# Using devices",
        *(
            f"#   Rank {k:2d} {group}Pid  123 on node-0 device {k} [0x00] A100"
            for k in range(ranks)
        ),
        "#",
    ]


@pytest.fixture
def read(tmp_path):
    """Return a reader of a log that is written for the test."""

    def read(lines: list[str] | bytes, name: str = "log.txt", **options) -> BenchmarkLog:
        path = tmp_path / name
        data = lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode()
        path.write_bytes(data)
        return read_benchmark_log(path, **options)

    return read


def only(log: BenchmarkLog) -> BenchmarkTable:
    (found,) = log.tables
    return found


VARIANTS = {
    "no redop, no root": ("all_gather", {"head": ("size", "count", "type"), "error": "error"}),
    "root only": ("broadcast", {"head": ("size", "count", "type", "root"), "root": "0"}),
    "redop only": ("allreduce", {"head": OLD, "results": ("1e-07", "2e-07"), "error": "error"}),
    "redop only, nothing checked": (
        "reduce_scatter",
        {"head": OLD, "results": ("N/A", "N/A"), "error": "error"},
    ),
    "blank redop": (
        "all_to_all",
        {"head": OLD, "redop": "", "results": ("0e+00", "N/A"), "error": "error"},
    ),
    "redop and root": ("reduce", {"root": "0", "results": ("0e+00", "0e+00"), "error": "error"}),
    "#wrong": ("allreduce", {}),
    "#wrong, all_gather": ("all_gather", {"redop": "none"}),
    "#wrong, reduce_scatter": ("reduce_scatter", {}),
    "#wrong, alltoall": ("all_to_all", {"redop": "none", "results": ("0", "N/A")}),
    "#wrong, sendrecv": ("send_recv", {"results": ("0", "N/A")}),
    "#wrong, broadcast": ("broadcast", {"redop": "none", "root": "0"}),
    "statistics": ("allreduce", {"extra": ("i_min", "i_max", "i_p99", "i_cv%")}),
    "no mark before the header": ("allreduce", {"mark": "  "}),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 8, 96])
def test_every_variant_of_columns(read, variant, listed, ranks):
    """Operation, ranks, type and times come out of the table alone, or out of the rank lines."""
    operation, options = VARIANTS[variant]
    log = read((ranks_before(ranks) if listed else []) + table(operation, ranks, **options))
    found = only(log)
    assert found.points == tuple(EXPECTED)
    assert len(found.in_place) == len(found.points)
    assert found.dtype == "float"
    if found.operation is None:
        # Two ranks' all-reduce moves what a send and a receive do.
        assert ranks == 2 or "nothing checked" in variant
        assert any("not known" in note for note in log.report.assumptions)
    else:
        assert found.operation == operation
        assert found.kind == (None if operation == "reduce" else operation)
        known = listed or FACTORS[operation] > 0
        assert found.ranks == (ranks if known else None)
    assert log.report.events_read == len(SIZES)
    assert log.report.kept == {"tables": 1, "rows": len(SIZES) - 1}
    assert log.report.dropped == {"size 0": 1}


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        " 0: ",
        "12: ",
        "> ",
        "> > ",
        "[0] ",
        "(pid=123) ",
        "(all_reduce pid=123, ip=10.0.0.1) ",
        "2024-05-01T12:00:00.123456789Z ",
        "worker-0: ",
        "worker-0  | ",
        "\x1b[36m(bench pid=7)\x1b[0m ",
        "2024-05-01 12:00:00,123 [1,0]<stdout>:",
        "\t",
        "0:",
        ">",
        "[prterun-node1-123@1,0]<stdout>: ",
        "Tue Jan  2 10:11:12 2024[1,0]<stdout>:",
        "(bench pid=123) [repeated 3x across cluster] ",
        "2024-05-01T12:00:00.123456789Z stdout F ",
        "nccl-launcher-abc12 nccl-test ",
        "[pod/nccl-launcher-x/mpi] ",
        "[2024-05-01 12:00:00,123] [INFO] ",
        "2024-05-01 12:00:00,123 INFO ",
        "12:00:00 ",
        "May 01 12:00:00 node1 bench[123]: ",
        "[rank0]: ",
        "[default0]:",
        "node1:1234:1234 [0] ",
        "1700000000000\t",
        "build\tRun\t2024-05-01T12:00:00.1234567Z ",
        "\x1b[K",
        "run.log:12:",
        '        "',
        "| ",
    ],
)
def test_prefixes(read, prefix):
    """What launchers and collectors put before a line does not matter."""
    log = read([prefix + line for line in ranks_before(16) + table("allreduce", 16)])
    found = only(log)
    assert found.points == tuple(EXPECTED)
    assert (found.kind, found.ranks) == ("allreduce", 16)


def test_a_prefix_that_changes_its_numbers(read):
    """Times and line numbers before the lines differ from line to line."""
    lines = ranks_before(16) + table("allreduce", 16)
    found = only(
        read([f"{k:4} 12:00:{k:02}.{k * 7} x-{k}: {line}" for k, line in enumerate(lines)])
    )
    assert found.points == tuple(EXPECTED)
    assert (found.kind, found.ranks, found.nodes) == ("allreduce", 16, 1)


def test_the_end_of_a_prefixed_line(read):
    """A quoted line, as Ansible and YAML print it."""
    lines = ranks_before(16) + table("allreduce", 16)
    assert only(read([f'    "{line}",' for line in lines])).points == tuple(EXPECTED)


def test_text_of_nccl_before_a_row_costs_that_row(read):
    """What stands before a row may have cut it: it is dropped, and counted."""
    lines = ranks_before(8) + table()
    at = next(k for k, line in enumerate(lines) if line.startswith("4096"))
    lines[at] = f"host:1:1 [0] NCCL INFO Launch mode Parallel     {lines[at]}"
    log = read(lines)
    assert only(log).points == tuple(one for one in EXPECTED if one[0] != 4096)
    assert log.report.dropped["other output spliced into the row"] == 1


def test_a_run_that_fails_in_its_table(read):
    """The rows before the failure count, and the report says that there are no more."""
    lines = [line for line in ranks_before(8) + table() if not line.startswith(("# Out", "# Avg"))]
    failure = "host: Test CUDA failure all_reduce.cu:40 'out of memory'"
    log = read([*lines, failure])
    assert only(log).points == tuple(EXPECTED)
    notes = " ".join(log.report.assumptions)
    assert f"line {len(lines) + 1}: the run failed" in notes
    assert "the table has no last lines" in notes


def test_validated_osu_rows(read):
    """OSU with -c prints Pass behind each row, or Fail, whose times are not used."""
    rows = ["4 2.50 Pass", "1024 4.25 1.0 9.0 1000 Pass"]
    assert only(read(OSU + rows)).points == ((4, 2.5), (1024, 4.25))
    with pytest.raises(InputError, match=r"line \d+: results at 8 bytes are wrong \(Validation"):
        read([*OSU, *rows, "8 3.0 Fail"])


def test_osu_beside_computation_is_refused(read):
    """A non-blocking collective's overall time holds computation."""
    head = "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)"
    lines = ["# OSU MPI Non-blocking Allreduce Latency Test v7.4", head, "4 3.1 1.1 2.0 10.0"]
    with pytest.raises(InputError, match="non-blocking"):
        read(lines)


@pytest.mark.parametrize("end", ["\r", "\r\r\n"])
def test_odd_line_ends(read, end):
    """Those of a terminal's record, or of old files."""
    text = end.join(ranks_before(8) + table())
    assert only(read(text.encode())).points == tuple(EXPECTED)


def test_nccom_test_with_several_statistics(read):
    """The average counts, wherever it stands among the times."""
    for names, times in (("avg p50 p99", "69.0 68.0 90.0"), ("p50 avg p99", "68.0 69.0 90.0")):
        head = " ".join(f"time:{name}(us)" for name in names.split())
        line = f"size(B)    count(elems)    type    {head}    algbw(GB/s)    busbw(GB/s)"
        rate = 1048576 / 69e3
        row = f"1048576 262144 fp32 {times} {rate:.2f} {rate * 2 * 31 / 32:.2f}"
        found = only(read(["nccom-test -r 32 allr", line, row]))
        assert (found.points, found.ranks) == (((1048576, 69.0),), 32)


def test_line_ends_marks_and_encodings(read):
    """DOS line ends, a byte order mark, UTF-16, bad UTF-8 and gzip."""
    text = "\n".join(ranks_before(8) + table())
    for data in (
        text.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + text.encode(),
        text.encode("utf-16"),
        b"\xff\x80 bad\n" + text.encode(),
        gzip.compress(text.encode()),
        text.encode(),  # no line end at the end
    ):
        assert only(read(data)).points == tuple(EXPECTED)


def test_spliced_lines_are_dropped_and_counted(read):
    """Text of NCCL inside a row costs that row only."""
    lines = ranks_before(32) + table("all_gather", 32, redop="none")
    at = next(k for k, line in enumerate(lines) if line.startswith("4096"))
    row = lines[at]
    lines[at] = row[:30] + "host:1:1 [0] NCCL INFO Channel 00/02 : 0 1"
    lines.insert(at + 1, "  13.41    0.00    0.00      0     9.95    0.00    0.00      0")
    lines.insert(at, "10.0.0.4:1:1 [0] NCCL INFO comm 0x55 rank 0 nranks 32")
    lines.insert(at, "host:1:1 [0] NCCL INFO Launch mode Parallel")
    log = read(lines)
    assert only(log).points == tuple(point for point in EXPECTED if point[0] != 4096)
    assert log.report.dropped == {
        "size 0": 1,
        "other output spliced into the row": 1,
        "wrong number of columns": 1,
    }
    assert only(log).kind == "all_gather"


def test_a_damaged_number_drops_its_row(read):
    """A lost digit shows in the bandwidth, a lost letter in the type."""
    lines = table()
    for size, old, new in (
        ("1048576", " 25.24288 ", " 5.24288 "),
        ("4096 ", " float ", " 4 "),
        ("33554432", "-1", "x"),
    ):
        at = next(k for k, line in enumerate(lines) if line.startswith(size))
        assert old in lines[at]
        lines[at] = lines[at].replace(old, new, 1)
    log = read(lines)
    assert [size for size, _ in only(log).points] == [8, 1073741824]
    assert log.report.dropped["time and algbw disagree"] == 1
    assert log.report.dropped["a damaged number or name"] == 2


def test_two_ranks_that_were_not_checked(read):
    """Two ranks' all-reduce has the bandwidths of a send and a receive: only a name decides."""
    unchecked = ranks_before(2) + table("allreduce", 2, results=("N/A", "N/A"))
    log = read(unchecked)
    assert only(log).operation is None
    assert any("one of allreduce, send_recv" in note for note in log.report.assumptions)
    assert only(read(["./all_reduce_perf -g 2", *unchecked])).kind == "allreduce"


def test_several_tables(read):
    """Each has the operation and the ranks that its own section says."""
    lines = []
    for operation, name, ranks, options in (
        ("allreduce", "all_reduce", 4, {}),
        ("all_gather", "all_gather", 8, {"redop": "none"}),
        ("all_to_all", "alltoall", 8, {"redop": "none", "results": ("0", "N/A")}),
        ("send_recv", "sendrecv", 8, {"results": ("0", "N/A")}),
        ("reduce", "reduce", 8, {"root": "0"}),
    ):
        lines += [f"# Collective test starting: {name}_perf", *ranks_before(ranks, "Group  0 ")]
        lines += table(operation, ranks, **options)
        lines += [f"# Collective test concluded: {name}_perf", "#", ""]
    log = read(lines)
    assert [(one.operation, one.ranks) for one in log.tables] == [
        ("allreduce", 4),
        ("all_gather", 8),
        ("all_to_all", 8),
        ("send_recv", 8),
        ("reduce", 8),
    ]
    assert all(check.passed for check in log.report.checks)
    assert not log.report.assumptions
    assert [one.line for one in log.tables] == sorted(one.line for one in log.tables)


def test_header_repeated_in_one_run(read):
    """Two tables below each other without anything between them."""
    first, second = read(table()[:-3] + table("reduce_scatter")).tables
    assert (first.kind, second.kind) == ("allreduce", "reduce_scatter")
    assert first.points == second.points


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["mpirun -np 8 ./build/all_gather_perf -b 8 -e 1G"], "log.txt"),
        (["+ srun -N 1 /opt/nccl-tests/build/all_gather_perf -b 8"], "log.txt"),
        (["# ./all_gather_perf"], "log.txt"),
        ([], "nccl_all_gather_h100.log"),
        ([], "nccl-allgather.log"),
        (["./all_reduce_perf"], "allgather.log"),  # what does not fit is not followed
    ],
)
def test_unchecked_tables_need_a_name(read, lines, name):
    """An all-gather that was not checked looks like an all-to-all: a name decides."""
    unchecked = table("all_gather", redop="none", results=("N/A", "N/A"))
    assert only(read(unchecked)).operation is None
    log = read(lines + unchecked, name)
    assert only(log).kind == "all_gather"
    assert any("taken for all_gather, from" in note for note in log.report.assumptions)


def test_a_wrong_name_is_overruled(read):
    """Bandwidths say more than a file's name; a contradicted test name is reported."""
    assert only(read(table("allreduce"), "all_gather.log")).kind == "allreduce"
    log = read(["# Collective test starting: all_gather_perf", *table("allreduce")])
    assert only(log).kind == "all_gather"
    assert [check.passed for check in log.report.checks] == [False, True]


def test_ranks_that_contradict_the_bandwidth(read):
    """The bandwidth was computed from the ranks that took part."""
    log = read(ranks_before(16) + table("allreduce", 8))
    assert only(log).ranks == 8
    assert [check.text for check in log.report.checks if not check.passed] == [
        "line 22: 16 ranks are listed, busbw is of 8"
    ]


def test_groups_that_run_at_once(read):
    """A split run: the ranks are those of one group."""
    lines = ranks_before(0)
    lines += [f"# Rank {k} Group {k % 2} Pid 1 on n device 0 [0] H100" for k in range(8)]
    log = read(lines + table("allreduce", 4))
    assert only(log).ranks == 4
    assert any("2 groups" in note for note in log.report.assumptions)


def test_given_ranks_fill_a_gap_only(read):
    """They count where the log does not say."""
    broadcast = table("broadcast", redop="none", root="0")
    assert only(read(broadcast)).ranks is None
    assert only(read(broadcast, ranks=6)).ranks == 6
    assert only(read(table("allreduce", 4), ranks=6)).ranks == 4
    with pytest.raises(InputError, match="ranks: 1 must be"):
        read(broadcast, ranks=1)


def test_one_rank_alone(read):
    """A run on one device is read; it moves nothing between ranks."""
    lines = [re.sub(r"(\d+\.\d\d) \d+\.\d\d  0", r"\1 0.00  0", line) for line in table()]
    found = only(read(ranks_before(1) + lines, "all_reduce.log"))
    assert (found.ranks, found.kind) == (1, "allreduce")


def test_repeated_sizes_are_kept(read):
    """A table with several roots or cycles has each size several times."""
    lines = table()
    rows = [line for line in lines if line[0].isdigit()]
    found = only(read(lines[:3] + rows + rows))
    assert found.points == tuple(EXPECTED) * 2


def test_mixed_types_are_reported(read):
    """``-d all`` prints all types into one table."""
    lines = table()
    rows = [line.replace("float", "half") for line in lines if line[0].isdigit()]
    log = read(lines[:-3] + rows)
    assert only(log).dtype == "several"
    assert any("mixes types" in note for note in log.report.assumptions)


def test_units_and_old_names(read):
    """Milliseconds of 2019, seconds, and units in the header's own words."""
    oldest = [
        "# out-of-place in-place",
        "# bytes N type op time algbw busbw res time algbw busbw res",
        "1048576 262144 float sum 0.500 2.10 3.15 2e-07 0.501 2.09 3.14 2e-07",
    ]
    assert only(read(oldest)).points == ((1048576, 500.0),)
    assert (only(read(oldest)).kind, only(read(oldest)).ranks) == ("allreduce", 4)
    neuron = [
        "size(B) count(elems) type time:avg(us) algbw(GB/s) busbw(GB/s)",
        "1048576 524288 bf16 100.00 10.49 20.32",
    ]
    found = only(read(neuron, "all_reduce.txt"))
    assert found.points == ((1048576, 100.0),)
    assert (found.dtype, found.in_place) == ("bf16", ())
    milli = [neuron[0].replace("(us)", "(ms)"), "1048576 524288 bf16 0.10 10.49 20.32"]
    assert only(read(milli)).points == ((1048576, 100.0),)
    below = [
        "# size count type redop time algbw busbw error",
        "# (B) (elements) (ms) (GB/s) (GB/s)",
    ]
    found = only(read([*below, "1048576 262144 float sum 0.100 10.49 18.35 N/A"]))
    assert (found.points, found.ranks) == (((1048576, 100.0),), 8)


def test_time_stamps_after_rows(read):
    """``-S`` prints the time of day after each row."""
    lines = table()
    lines[1] += "   timestamp"
    for stamp in ("2025-01-02 03:04:05", "2025-01-02T03:04:05", "03:04:05"):
        stamped = [f"{line} {stamp}" if line[0].isdigit() else line for line in lines]
        assert only(read(stamped)).points == tuple(EXPECTED)


def test_statistics_of_iterations(read):
    """``-I`` of 2.19 prints four columns after ``#wrong`` on both sides, ``-S`` the time of day."""
    half = "time  algbw  busbw  #wrong  i_min  i_max  i_p99  i_cv%"
    lines = [
        "#                                     out-of-place (+ per-iteration)      in-place",
        f"#       size         count      type   redop    root  {half}  {half}   timestamp",
        "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)  %Y-%m-%d %H:%M:%S",
    ]
    cells = "100.25 10.46 18.30 0 99.1 120.5 119.0 2.5"
    lines.append(f"1048576 262144 float sum -1 {cells} {cells} 2025-11-03 10:00:00")
    found = only(read(lines))
    assert found.points == found.in_place == ((1048576, 100.25),)
    assert (found.kind, found.ranks, found.date) == ("allreduce", 8, "2025-11-03")
    wrong = [line.replace("18.30 0", "18.30 2") for line in lines]
    with pytest.raises(InputError, match="line 4: results at 1048576 bytes are wrong"):
        read(wrong)


def test_times_of_two_digits_are_dropped(read):
    """Ten seconds and more are printed as 1.2e+07: too few digits for a fit."""
    lines = table()
    row = next(line for line in lines if line.startswith("1073741824"))
    lines[lines.index(row)] = (
        "1073741824 268435456 float sum -1 1.2e+07 0.09 0.16 0 1.2e+07 0.09 0.16 0"
    )
    log = read(lines)
    assert [size for size, _ in only(log).points] == [8, 4096, 1048576, 33554432]
    assert log.report.dropped["a time of two digits only"] == 1


def test_runs_that_failed(read):
    """Ranks are listed, then comes an error instead of a table."""
    with pytest.raises(
        InputError, match="a run of nccl-tests that failed or was cut: it has no table"
    ):
        read([*ranks_before(4), "node-0: Test NCCL failure common.cu:1005 'unhandled cuda error'"])
    with pytest.raises(InputError, match="no usable row"):
        read([*ranks_before(4), *table()[:3], "Test CUDA failure"])


def test_nodes_and_versions(read):
    """Hosts are counted where every rank has one and no device is listed twice."""
    before = ranks_before(0)
    rows = [f"#  Rank {k} Group 0 Pid 1 on host-{k // 2} device {k % 2} [0x00] X" for k in range(8)]
    head = ["# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22304"]
    found = only(read([*head, *before, *rows, *table()]))
    assert (found.ranks, found.nodes) == (8, 4)
    assert found.version == "nccl-tests 2.17.8, NCCL 2.23.4"
    cut = [*rows[:3], "#  Rank 3 Group 0 Pid 1 on [0] NCCL INFO text", *rows[4:]]
    assert (
        only(read([*before, *cut, *table()])).nodes,
        only(read([*before, *cut, *table()])).ranks,
    ) == (
        None,
        8,
    )
    same = [row.replace("host-1", "host-0") for row in rows]
    log = read([*before, *same, *table()])
    assert only(log).nodes is None
    assert any("hosts are not told apart" in note for note in log.report.assumptions)
    assert only(read([*before, *rows[:6], *table()])).nodes is None  # busbw is of 8


def test_kinds_that_are_asked_for(read):
    """A kind decides where columns and bandwidths leave it open, and contradicts nothing."""
    unchecked = table("all_gather", redop="none", results=("N/A", "N/A"))
    assert only(read(unchecked, kind="all_to_all")).kind == "all_to_all"
    assert only(read(unchecked, "all_gather.log", kind="all_to_all")).kind == "all_to_all"
    with pytest.raises(
        InputError, match=r"line 2: is no broadcast: its columns .* fit all_gather, "
    ):
        read(unchecked, kind="broadcast")
    started = ["# Collective test starting: all_gather_perf", *unchecked]
    assert only(read(started, kind="all_to_all")).kind == "all_gather"
    with pytest.raises(InputError, match="kind: 'reduce' is not one of"):
        read(unchecked, kind="reduce")


def test_processor_times_are_refused(read):
    """``-C`` reports what the processor took, not the operation."""
    lines = [line.replace("time ", "cputime ") for line in table()]
    with pytest.raises(InputError, match="5 x time of the processor only"):
        read(lines)


@pytest.mark.parametrize("wrong", ["3", "1e+06", "1.23457e+08", "12345678", "x", "-1"])
@pytest.mark.parametrize("side", [0, 1])
def test_wrong_results_are_refused(read, wrong, side):
    """A run with wrong results has no cost; the line is named, also where the in-place half is wrong."""
    results = ("0", wrong) if side else (wrong, "0")
    with pytest.raises(
        InputError, match=r"line 5: results at 8 bytes are wrong \(#wrong is "
    ) as got:
        read(table(results=results))
    assert f"#wrong is {wrong})" in str(got.value)


@pytest.mark.parametrize("right", ["0", "N/A", "0e+00"])
def test_right_and_unchecked_results_are_not(read, right):
    """``N/A`` means that nothing was checked, which the report says."""
    log = read(table(results=(right, right)), "all_reduce.log")
    assert only(log).points == tuple(EXPECTED)
    unchecked = any("did not check its results" in note for note in log.report.assumptions)
    assert unchecked == (right == "N/A")
    assert unchecked != any("none was wrong" in check.text for check in log.report.checks)


def test_errors_out_of_bounds_are_refused(read):
    """Older versions print errors, and say below the table when they are too large; RCCL marks them."""
    lines = table(head=OLD, results=("1e-07", "2e-07"), error="error")
    failed = [line.replace(": 0 OK", ": 5 FAILED") for line in lines]
    with pytest.raises(InputError, match="line 10: 5 values are out of bounds"):
        read(failed)
    with pytest.raises(InputError, match=r"line 5: results at 8 bytes are wrong .*2e\+00\*"):
        read(table(head=OLD, results=("2e+00*", "2e-07"), error="error"))


OSU = ["# OSU MPI-CUDA Allreduce Latency Test v5.7", "# Size       Avg Latency(us)"]
OSU_ROWS = ["4            29.76", "0            1.00", "1048576    104.30"]


def test_osu_short_and_full(read):
    """Two columns, or five; ``# Datatype`` where it is printed."""
    assert only(read(OSU + OSU_ROWS)).points == ((4, 29.76), (1048576, 104.3))
    full = [f"{OSU[1]}   Min Latency(us)   Max Latency(us)  Iterations"]
    rows = [f"{line}  1.00  200.00  1000" for line in OSU_ROWS]
    found = only(read([OSU[0], "# Datatype: MPI_FLOAT.", *full, *rows]))
    assert found.points == ((4, 29.76), (1048576, 104.3))
    assert (found.kind, found.ranks, found.dtype, found.tool) == ("allreduce", None, "float", "OSU")
    assert only(read(OSU + OSU_ROWS, ranks=16)).ranks == 16


@pytest.mark.parametrize(
    ("title", "kind", "operation"),
    [
        ("MPI Allgather", "all_gather", "all_gather"),
        ("MPI All-to-All Personalized Exchange", "all_to_all", "all_to_all"),
        ("MPI Broadcast", "broadcast", "broadcast"),
        ("NCCL Reduce_scatter", "reduce_scatter", "reduce_scatter"),
        ("MPI Reduce", None, "reduce"),
        ("MPI", "send_recv", "send_recv"),
        ("MPI Barrier", None, "Barrier"),
    ],
)
def test_osu_operations(read, title, kind, operation):
    """Names of OSU as names of ours; one rank's part times the ranks is the whole operation."""
    lines = [f"# OSU {title} Latency Test v7.4", "# Size          Latency (us)", *OSU_ROWS]
    log = read(lines)
    assert (only(log).kind, only(log).operation) == (kind, operation)
    per_rank = kind in ("all_gather", "all_to_all")
    assert only(log).per_rank == per_rank
    assert bool(log.report.assumptions) == per_rank
    known = only(read(lines, ranks=4))
    assert not known.per_rank
    assert known.points[0][0] == (16 if per_rank else 4)


def test_several_osu_tables_and_both_tools(read):
    """One file may hold several tests of both tools."""
    log = read([*OSU, *OSU_ROWS, "", *table(), *OSU, *OSU_ROWS])
    assert [one.tool for one in log.tables] == ["OSU", "nccl-tests", "OSU"]


def test_files_without_a_table(read, tmp_path):
    """One clear line each."""
    cases = {
        b"hello\n12 13 14\n": "no table of nccl-tests, .* in its 2 lines",
        b'{"a": 1}': "is JSON, but no report of nccl-tests",
        b"": "empty",
        b"# OSU MPI Bandwidth Test v7.4\n# Size Bandwidth (MB/s)\n1 2.3\n": "holds OSU bandwidths",
        "\n".join(table()[:3]).encode(): "no usable row",
        b"PK\x03\x04rest": "zip archive",
        gzip.compress(b"x" * 4000)[:-10]: "end early",
    }
    for data, message in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            read(data)
        assert "\n" not in str(caught.value)
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_benchmark_log(path)


@pytest.mark.parametrize(
    "line",
    [
        "nccom-test " * 370,
        "# Rank 1 Group 0 Pid 1 on a device 1 x",
        "1 B 1 " * 600,
        "comm op: " * 400,
        "COMMS-RES-" * 400,
        "#bytes #iterations BW average[MB/sec] Bidirectional",
        "all_reduce" + " " * 4000,
        "Comm. Op Avg Latency(ms)",
        "# size count type time algbw busbw error",
    ],
)
def test_many_hostile_lines_take_no_time(read, line):
    """Thousands of lines that look like something, and a good table between them."""
    marks = ["#bytes", "comm op:", "COMMS-RES", "algbw"]
    lines = [*marks, *[line] * 1500, *ranks_before(8), *table(), *[line] * 400]
    start = time.perf_counter()
    found = [one for one in read(lines).tables if one.points == tuple(EXPECTED)]
    assert time.perf_counter() - start < 20
    assert [(one.kind, one.ranks) for one in found] == [("allreduce", 8)]


def test_a_list_of_ranks_is_counted_once(read):
    """Many tables below a long list take no longer than one."""
    lines = ranks_before(0) + [f"# Rank {k} Pid 1 on n{k} device 0 x" for k in range(20_000)]
    start = time.perf_counter()
    log = read([*lines, *([*table()[:3], table()[4]] * 1500)])
    assert time.perf_counter() - start < 20
    assert [(one.ranks, one.nodes) for one in log.tables] == [(20_000, 20_000)] * 1500


def test_limits(read, monkeypatch):
    """Bytes, lines, rows and tables are bounded."""
    with monkeypatch.context() as patch:
        patch.setattr(bench_logs, "MAX_LINES", 3)
        with pytest.raises(InputError, match="more than 3 lines"):
            read(table())
    monkeypatch.setattr(bench_result, "MAX_ROWS", 20)
    with pytest.raises(InputError, match="more than 20 rows"):
        read(table() * 4)
    monkeypatch.setattr(bench_result, "MAX_TABLES", 2)
    with pytest.raises(InputError, match="more than 2 tables"):
        read(table() * 3)
    monkeypatch.setattr(bench_logs, "MAX_LOG_BYTES", 100)
    with pytest.raises(InputError, match="at most 100 B are read"):
        read(table())
    with pytest.raises(InputError, match="decompresses to more than 100 B"):
        read(gzip.compress(b"x" * 1000))


@pytest.mark.parametrize(
    "line",
    [
        "9" * 4000,
        "(" * 4000,
        "(" + "pid=1" * 800,
        "a:" * 2000,
        "a: " * 1300,
        "1 " * 2000,
        "[1,0]<stdout>:" * 290,
        "# OSU MPI " + "x " * 2000,
        "# " + "Rank 1 " * 500,
        "abc_" * 1000 + "_perf",
        "size count type " + "time algbw busbw " * 200,
        "8 2 float sum -1 1e400 inf nan 0 1 1 1 0",
        "8" * 30 + " 2 float sum -1 1 1 1 0 1 1 1 0",
        "8 2 float sum -1 N/A N/A N/A 0 1 1 1 0",
        "8 2 float sum 99999999999999999999 1 1 1 0 1 1 1 0",
        "٣ ٣ float",
        "x" * 100_000,
    ],
)
def test_hostile_lines_do_no_harm(read, line):
    """Absurd lines anywhere in a table change nothing else."""
    lines = ranks_before(8) + table()
    at = next(k for k, text in enumerate(lines) if text.startswith("8 "))
    found = only(read([line, *lines[:at], *[line] * 50, *lines[at:]]))
    assert found.points == tuple(EXPECTED)


@PROPERTY
@given(st.text(max_size=200))
def test_any_text_is_a_row_or_a_reason(text):
    """Parsing never fails in another way."""
    columns = columns_of("# size count type redop root time algbw busbw #wrong")
    assert columns is not None
    parse_row(text, columns)
    columns_of(text)
    columns_of(text + " algbw busbw")
    prefixes = Unprefixer()
    for line in (text, f"{text}# size count type", text):
        prefixes.text(line)
    operation_named(text)


def test_shuffled_and_cut_logs_give_a_log_or_one_line(read):
    """Whatever is cut or shuffled, there is a log or one clear line."""
    source = random.Random(1)
    text = "\n".join(ranks_before(8) + table() + OSU + OSU_ROWS)
    for _ in range(150):
        characters = list(text)
        for _ in range(source.randrange(1, 30)):
            at = source.randrange(len(characters))
            characters[at] = source.choice(["", "\n", "9", " ", "#", "x", characters[at] * 3])
        data = "".join(characters)[: source.randrange(1, len(text))]
        try:
            log = read(data.encode())
        except InputError:
            continue
        assert all(size > 0 and us > 0 for one in log.tables for size, us in one.points)


@pytest.mark.parametrize("operation", ["allreduce", "all_gather"])
def test_the_ratio_tells_the_ranks_or_is_silent(operation):
    """Large bandwidths tell many ranks apart; small ones do not pretend to."""
    columns = columns_of("# size count type redop root time algbw busbw #wrong")
    assert columns is not None

    def ratio(ranks: int, algbw: float) -> Ratio | None:
        us = 1e9 / algbw / 1e3
        busbw = algbw * factor(operation, ranks)
        row = parse_row(f"1000000000 1 float sum -1 {us:.4f} {algbw:.2f} {busbw:.2f} 0", columns)
        assert not isinstance(row, str)
        return ratio_of([row])

    for ranks in range(2, 60):
        found = ratio(ranks, 250.0)
        assert found is not None
        assert found.ranks(operation) == ranks
    vague = ratio(60, 1.0)
    assert vague is not None
    assert vague.ranks(operation) is None


REAL = {
    "echo/nccl_8.log": [("allreduce", 8, 28)],
    "echo/nccl_16.log": [("allreduce", 16, 25)],
    "echo/nccl_64.log": [("allreduce", 64, 23)],
    "echo/nccl_128.log": [("allreduce", 128, 23)],
    "superbench/nccl_allgather.log": [("all_gather", 8, 29)],
    "superbench/nccl_allreduce.log": [("allreduce", 8, 32)],
    "superbench/nccl_broadcast.log": [("broadcast", 8, 32)],
    "superbench/nccl_reduce.log": [("reduce", 8, 32)],
    **{
        f"nccl-tests-cluster/{name}": [
            (operation, ranks, 10)
            for operation in (
                "allreduce",
                "all_gather",
                "reduce_scatter",
                "all_to_all",
                "send_recv",
            )
        ]
        for name, ranks in (("multi_N10_G8.log", 80), ("single_N1_G8.log", 8))
    },
    "abci/vnode_04.nccl": [("allreduce", 16, 24)],
    "abci/vnode_16.nccl": [("allreduce", 64, 24)],
    "abci/vnode_04.mpi": [("allreduce", None, 24)],
    "abci/vnode_04.mpi-cpu": [("allreduce", None, 24)],
    "abci/vnode_16.mpi": [("allreduce", None, 24)],
    "abci/vnode_16.mpi-cpu": [("allreduce", None, 24)],
    "te-ccl/rccl_msccl_amd_mi250_32ranks.txt": [("all_gather", 32, 21)],
    "aws/aws_batch_0.txt": [("allreduce", 8, 32)],
    "aws/nccl-tests_readme_1.txt": [("allreduce", 16, 32)],
    "deepops/roce_1.txt": [("allreduce", 16, 29)],
    "deepops/slurm_0.txt": [("allreduce", 32, 13)],
    "cloudai/OSU_ALLGATHER_LAT.txt": [("all_gather", None, 2)],
}


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_real_logs(name):
    """Operation, ranks and number of rows of other people's logs."""
    log = read_benchmark_log(shared_data(name))
    assert [(one.operation, one.ranks, len(one.points)) for one in log.tables] == REAL[name]
    assert all(check.passed for check in log.report.checks)
    report = log.report
    assert report.events_read == report.kept["rows"] + sum(report.dropped.values())


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_real_logs_without_their_names(name, tmp_path):
    """No operation of a real log rests on the file's name."""
    path = tmp_path / "log.txt"
    path.write_bytes(shared_data(name).read_bytes())
    found = [one.operation for one in read_benchmark_log(path).tables]
    expected = [operation for operation, _, _ in REAL[name]]
    if name != "superbench/nccl_reduce.log":
        assert found == expected


NODES = {
    "echo/nccl_8.log": 1,
    "echo/nccl_16.log": 2,
    "echo/nccl_64.log": 8,
    "echo/nccl_128.log": 16,  # mpirun's tag stands in the middle of one host's name
    "abci/vnode_04.nccl": 4,
    "abci/vnode_16.nccl": 16,
    "te-ccl/rccl_msccl_amd_mi250_32ranks.txt": 2,
    "superbench/nccl_allreduce.log": 1,
    "nccl-tests-cluster/multi_N10_G8.log": 10,
    "nccl-tests-cluster/single_N1_G8.log": 1,
    "aws/aws_batch_0.txt": None,  # lists no ranks
    "abci/vnode_04.mpi": None,
}


@pytest.mark.shared
@pytest.mark.parametrize("name", NODES)
def test_nodes_of_real_logs(name):
    """Nodes are the hosts in the list of ranks."""
    log = read_benchmark_log(shared_data(name))
    assert {one.nodes for one in log.tables} == {NODES[name]}


@pytest.mark.shared
def test_versions_of_real_logs():
    """As far as the logs say them."""
    for name, version in (
        ("nccl-tests-cluster/multi_N10_G8.log", "nccl-tests 2.17.8, NCCL 2.29.2"),
        ("te-ccl/rccl_msccl_amd_mi250_32ranks.txt", "RCCL 2.18.3+hip6.0"),
        ("abci/vnode_04.mpi", "OSU 5.7"),
        ("cloudai/OSU_ALLGATHER_LAT.txt", "OSU 7.4"),
        ("echo/nccl_8.log", ""),
    ):
        log = read_benchmark_log(shared_data(name))
        assert {one.version for one in log.tables} == {version}
        assert {one.date for one in log.tables} == {""}


@pytest.mark.shared
def test_points_of_real_logs():
    """First and last rows, copied by eye."""
    log = read_benchmark_log(shared_data("deepops/slurm_0.txt"))
    assert only(log).points[0] == (1048576, 135.3)
    assert only(log).points[-1] == (4294967296, 43557.0)
    assert only(log).in_place[-1] == (4294967296, 43440.0)
    log = read_benchmark_log(shared_data("nccl-tests-cluster/single_N1_G8.log"))
    assert log.tables[0].points[0] == (33554432, 182.94)
    assert log.tables[1].in_place[-1] == (17179869184, 41083.8)


@pytest.mark.shared
def test_a_real_log_with_spliced_output():
    """32 ranks of RCCL with NCCL_DEBUG=INFO: rows cut in two are dropped, with a reason."""
    log = read_benchmark_log(shared_data("te-ccl/rccl_msccl_amd_mi250_32ranks.txt"))
    assert log.report.dropped == {
        "other output spliced into the row": 2,
        "wrong number of columns": 2,
        "size 0": 5,
    }
    sizes = [size for size, _ in only(log).points]
    assert sizes == [2**k for k in range(9, 31) if k != 13]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aws/fsdp_slurm_log_0.txt", "no table"),
        ("cloudai/OSU_BW.txt", "holds OSU bandwidths"),
        ("nsys-ai/mfu_2gpu_before.sqlite", "no table"),
        ("hta/nccl_data.json.gz", "is JSON, but no report of nccl-tests"),
        ("param/dlrm_kineto.tar.gz", "tar archive"),
        ("taccl/topo-dgx2-1MB.json", "is a TACCL topology"),
        ("taccl/topo-ndv2-1KB.json", "is a TACCL topology"),
    ],
)
def test_real_files_of_other_kinds(name, message):
    """They are refused in one line."""
    with pytest.raises(InputError, match=message):
        read_benchmark_log(shared_data(name))

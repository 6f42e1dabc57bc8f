"""Logs of other benchmarks than nccl-tests' text: each tool's formats, and what is said of them."""

# ruff: noqa: E501 (lines of logs are as long as the tools print them)

from __future__ import annotations

import json
import random

import pytest
from shared_files import shared_data

from commsched.models import InputError
from commsched.problems import RecordedLaunch
from commsched.problems.bench.bench_launches import tables_of_launches
from commsched.problems.bench.bench_logs import read_benchmark_log
from commsched.problems.bench.bench_result import BenchmarkLog, BenchmarkTable


@pytest.fixture
def read(tmp_path):
    """Return a reader of a log that is written for the test."""

    def read(text: str | bytes, name: str = "log.txt", **options) -> BenchmarkLog:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_benchmark_log(path, **options)

    return read


def only(log: BenchmarkLog) -> BenchmarkTable:
    (found,) = log.tables
    return found


def said(log: BenchmarkLog, part: str) -> bool:
    return any(part in note for note in log.report.assumptions)


LATENCY = """
---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF          Device         : mlx5_0
 Connection type : RC           Using SRQ      : OFF
---------------------------------------------------------------------------------------
 local address: LID 0x01 QPN 0x0215 PSN 0x79fcd6 OUT 0x10 RKey 0x28010100 VAddr 0x0055fa855bd000
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.
 2       1000          1.76           6.12         1.79                1.80             0.06            1.88                    6.12
 4096    1000          2.50           9.00         2.61                2.70             0.06            2.88                    9.00
 1048576 1000          90.00          99.00        91.50               91.70            0.06            92.00                   99.00
---------------------------------------------------------------------------------------
"""
BANDWIDTH = """
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             2757.96            2757.93\t\t   0.044127
 1048576    1000             2800.00            2799.00\t\t   0.002799
"""


def test_perftest_latencies(read):
    """The typical time of one message at a time, between two ranks."""
    found = only(read(LATENCY))
    assert found.points == ((2, 1.79), (4096, 2.61), (1048576, 91.5))
    assert (found.kind, found.ranks, found.tool) == ("send_recv", 2, "perftest")
    assert found.version == "perftest RDMA_Write Latency"
    oldest = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 8 100 1.00 3.00 1.25\n"
    assert only(read(oldest)).points == ((8, 1.25),)
    lasting = " #bytes        #iterations       t_avg[usec]    tps average\n 8 100 1.50 1000.00\n"
    assert only(read(lasting)).points == ((8, 1.5),)


def test_perftest_bandwidths(read):
    """Bytes over the average bandwidth, in 2**20 bytes as the message rate shows, and a warning."""
    log = read(BANDWIDTH)
    size, us = only(log).points[0]
    assert (size, us) == (65536, pytest.approx(1 / 0.044127, rel=1e-4))
    assert said(log, "keeps many messages in flight")
    gbit = BANDWIDTH.replace("MB/sec", "Gb/sec").replace("2757.93", "23.1355")
    assert only(read(gbit)).points[0][1] == pytest.approx(1 / 0.044127, rel=1e-4)
    mib = BANDWIDTH.replace("MB/sec", "MiB/sec")
    assert only(read(mib)).points == only(log).points


def test_perftest_that_is_not_used(read):
    """Both directions at once, a unit that the message rate denies, damaged rows."""
    with pytest.raises(InputError, match="both directions at once only"):
        read(BANDWIDTH.replace("RDMA_Write BW", "RDMA_Write Bidirectional BW"))
    with pytest.raises(InputError, match=r"no usable row \(1 x time and algbw disagree"):
        read("\n".join(BANDWIDTH.replace("2757.93", "2891.9").splitlines()[:4]))
    log = read(LATENCY.replace(" 4096    1000          2.50", " 4096    1000          x"))
    assert log.report.dropped == {"a damaged number or name": 1}
    with pytest.raises(InputError, match="without a time or an average"):
        read(" #bytes #iterations    something\n 8 100 3\n")


def test_perftest_of_server_and_client_and_both_tests(read):
    """One log may hold a latency and a bandwidth test; two heads of one test are one table."""
    log = read(LATENCY + BANDWIDTH)
    assert [table.version for table in log.tables] == [
        "perftest RDMA_Write Latency",
        "perftest RDMA_Write BW",
    ]
    doubled = BANDWIDTH.replace(
        " #bytes",
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n #bytes",
    )
    assert only(read(doubled)).points == only(read(BANDWIDTH)).points


NCCOM = """nccom-test -N 2 -r 64 --minbytes 64kb --maxbytes 1mb --datatype fp32 allg
    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)
      65536           16384    fp32           43.77           1.50           1.47
     524288          131072    fp32          126.55           4.14           4.08
Avg bus bandwidth:\t2.77GB/s
"""


def test_nccom_of_neuron(read):
    """Six columns; the command names operation, ranks and nodes, or the bandwidths and the user do."""
    found = only(read(NCCOM))
    assert found.points == ((65536, 43.77), (524288, 126.55))
    assert (found.kind, found.ranks, found.nodes, found.tool) == ("all_gather", 64, 2, "nccom-test")
    assert (found.dtype, found.in_place) == ("fp32", ())
    table = NCCOM.partition("\n")[2].replace("time:avg(us)", "time(us)")
    log = read(table)
    assert only(log).kind is None
    assert said(log, "one of all_gather, all_to_all, reduce_scatter")
    assert only(read(table, kind="reduce_scatter")).kind == "reduce_scatter"
    with pytest.raises(InputError, match="is no allreduce: its columns and bandwidths fit"):
        read(table, kind="allreduce")
    allreduce = NCCOM.replace("allg", "allr").replace("1.47", "2.95").replace("4.08", "8.15")
    assert only(read(allreduce)).kind == "allreduce"


SUMMARY = """Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)
all_reduce{caller}
                    1.0 MB              10                  12.30               1.23                13.64               11.93
                    2.0 GB              3                   300.00              100.00              343.60              300.65
all_gather_into_tensor{caller}
                    512.0 KB            7                   7.70                1.10                30.50               26.69
                    6.25 MB             7                   77.00               11.00               38.13               33.36
barrier{caller}
                    0B                  7                   77.00               11.00               0.00                0.00
"""
STRAGGLERS = """_______________________________
Breakdown with straggler effect
-------------------------------
Comm. Op            Message Size        Count               Total comm lat(ms)  Total straggler(ms) Avg comm lat(ms)    Avg straggler(ms)
all_reduce{caller}
                    1.0 MB              10                  9.10                3.20                0.91                0.32
                    2.0 GB              3                   270.00              30.00               90.00               10.00
"""


@pytest.mark.parametrize("caller", ["", " | [Caller Func: _broadcast_model]"])
@pytest.mark.parametrize("prefix", ["", "0: ", "[1,0]<stdout>:", "worker-0: "])
def test_deepspeed_summary(read, caller, prefix):
    """Average times in milliseconds, sizes in powers of 1024, with and without the caller."""
    text = "".join(prefix + line + "\n" for line in SUMMARY.format(caller=caller).splitlines())
    log = read(text)
    reduce, gather = log.tables
    assert (reduce.kind, reduce.ranks) == ("allreduce", 8)
    assert reduce.points == ((2**20, 1230.0), (2**31, 100000.0))
    assert (gather.kind, gather.ranks) == ("all_gather", 8)
    assert gather.points == ((2**19 * 8, 1100.0), (round(6.25 * 2**20) * 8, 11000.0))
    assert said(log, "include waiting for the slowest rank")
    assert said(log, "rounded to two decimals of a power of 1024, times to 10 us: 0 of 4 rows")
    assert said(log, "times 8 ranks")


@pytest.mark.parametrize("caller", ["", " | [Caller Func: step]"])
def test_deepspeed_stragglers_come_first(read, caller):
    """The minimum over the ranks is what the network costs; the summary is the same launches."""
    log = read((SUMMARY + STRAGGLERS).format(caller=caller))
    found = only(log)
    assert found.points == ((2**20, 910.0), (2**31, 90000.0))
    assert found.ranks == 8
    assert log.report.dropped["the same launches in another form"] == 4
    assert not said(log, "include waiting")


def test_deepspeed_launches(read):
    """One line a launch; of summaries the last counts; what is damaged is dropped."""
    line = (
        "[2024-05-01 01:39:55,722] [INFO] [logging.py:69:log_dist] [Rank 0] comm op: all_reduce | "
        "time (ms): {ms} | msg size: 1.5 MB | algbw (Gbps): 25.17 | busbw (Gbps): 22.02"
    )
    log = read("\n".join([line.format(ms="1.00"), line.format(ms="x"), line.format(ms="0.00")]))
    assert only(log).points == ((1572864, 1000.0),)
    assert (only(log).ranks, only(log).date) == (8, "2024-05-01")
    assert log.report.dropped == {"a damaged number or name": 1, "no time": 1}
    again = SUMMARY.format(caller="") + SUMMARY.format(caller="").replace("1.23 ", "1.11 ")
    log = read(again)
    assert log.tables[0].points[0] == (2**20, 1110.0)
    assert said(log, "of 2 summaries the last counts")


def test_deepspeed_without_ranks(read):
    """Sizes of an all-gather are one rank's part until the number of ranks is given."""
    text = "\n".join(SUMMARY.format(caller="").splitlines()[:1])
    text += "\nall_gather\n      1.0 MB    2    2.00    1.00    0.00    0.00\n"
    log = read(text)
    assert (only(log).per_rank, only(log).points) == (True, ((2**20, 1000.0),))
    known = only(read(text, ranks=4))
    assert (known.per_rank, known.points) == (False, ((2**22, 1000.0),))


PARAM = """\t PARAM COMM environment: {{'world_size': 16, 'local_size': 8, 'global_rank': 0}}
\t backend: nccl nw-stack: pytorch-dist mode: comms args.b: 1M

\tCOMMS-RES{head}
\tCOMMS-RES-{name}-float32{row1}
\tCOMMS-RES-{name}-float32{row2}
"""
HEAD = (
    "                                size (B)  nElementsPerRank   Latency(us):p50         p75         "
    "p95         Min         Max    AlgBW(GB/s) BusBW(GB/s)"
)


def param(name: str, factor: float, divided: bool = True, more: str = "") -> str:
    rows = []
    for size, us in ((1048576, 100.0), (4194304, 250.0)):
        elements = size // 4 // (16 if divided else 1)
        algbw = size / us / 1e3
        rows.append(
            f"  {size} {elements} {us:.1f} {us + 1:.1f} {us + 2:.1f} {us - 1:.1f} "
            f"{us + 3:.1f} {algbw:.3f} {algbw * factor:.3f}{more}"
        )
    return PARAM.format(head=HEAD, name=name, row1=rows[0], row2=rows[1])


@pytest.mark.parametrize(
    ("name", "factor", "kind", "ranks"),
    [
        ("all_reduce", 1.875, "allreduce", 16),
        ("all_gather", 0.9375, "all_gather", 16),
        ("all_gather_base", 0.9375, "all_gather", 16),
        ("reduce_scatter_v", 0.9375, "reduce_scatter", 16),
        ("all_to_allv", 0.9375, "all_to_all", 16),
        ("all_to_all_single", 0.9375, "all_to_all", 16),
        ("broadcast", 1.0, "broadcast", 16),
        ("multicast", 1.0, None, 16),
    ],
)
@pytest.mark.parametrize("more", ["", "      0.0", "   0.0  0.0  0.00000"])
def test_param(read, name, factor, kind, ranks, more):
    """Median over the ranks, kind out of the name, ranks and nodes out of the environment."""
    log = read(param(name, factor, name != "all_reduce", more))
    found = only(log)
    assert found.points == ((1048576, 100.0), (4194304, 250.0))
    assert (found.kind, found.ranks, found.nodes) == (kind, ranks, 2)
    assert (found.dtype, found.tool) == ("float32", "PARAM")
    assert not log.report.assumptions


def test_param_without_environment(read):
    """Ranks come out of the bandwidths; whose sizes they are is said."""
    text = param("all_gather", 0.9375).partition("\n")[2]
    log = read(text)
    assert only(log).ranks == 16
    assert said(log, "16 ranks, from BusBW / AlgBW")
    assert said(log, "count as the whole operation's")


def test_param_that_is_not_used(read):
    """Quantised runs, pairs of collectives, rows without a head, times that contradict."""
    quantised = param("all_reduce", 1.875).replace("COMMS-RES-all", "COMMS-RES-QUANT-all")
    pairs = param("all_reduce", 1.875).replace(
        "nElementsPerRank", "nElementsPerRank nElementsPairPerRank"
    )
    headless = "# 0: \tCOMMS-RES-all_reduce-float32   1073741824   41.187   77.226\n"
    damaged = param("all_reduce", 1.875).replace(" 100.0 ", " 10.0 ").replace(" 250.0 ", " 25.0 ")
    for text, reason in (
        (quantised, "2 x quantised"),
        (pairs, "2 x two collectives at once"),
        (headless, "1 x wrong number of columns"),
        (damaged, "2 x time and algbw disagree"),
    ):
        with pytest.raises(InputError, match=f"no usable row .{reason}"):
            read(text)


def report(**changes) -> dict:
    """Return a JSON report of 2 processes with 4 GPUs each."""
    results = []
    for size, us in ((0, 5.0), (1048576, 100.25), (4194304, 250.5)):
        side = {
            "time": us,
            "alg_bw": size / us / 1e3,
            "bus_bw": size / us / 1e3 * 1.75,
            "nwrong": 0.0,
        }
        results.append(
            {
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": side,
                "in_place": {**side, "time": us},
            }
        )
    devices = [
        {
            "rank": 4 * k,
            "group": 0,
            "pid": k,
            "hostname": f"node-{k}",
            "device": 0,
            "device_hex": "0000:00:00",
            "device_info": "X",
        }
        for k in range(2)
    ]
    return {
        "version": 2,
        "start_time": "2025-11-03 10:00:00",
        "args": ["./build/all_reduce_perf", "-g4"],
        "env": ["A=b"],
        "nccl_version": 22902,
        "config": {"nthreads": 1, "ngpus": 4, "devices": devices},
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        **changes,
    }


def test_json_report(read):
    """The same facts as the text table, with ranks, nodes, version and date."""
    log = read(json.dumps(report()))
    found = only(log)
    assert found.points == ((1048576, 100.25), (4194304, 250.5)) == found.in_place
    assert (found.kind, found.ranks, found.nodes) == ("allreduce", 8, 2)
    assert (found.date, found.version) == ("2025-11-03", "nccl-tests, NCCL 2.29.2")
    assert log.report.dropped == {"size 0": 1}
    assert all(check.passed for check in log.report.checks)


def test_json_report_refusals(read):
    """Wrong results, truncated files, other JSON, processor times, empty results."""
    wrong = report()
    wrong["results"][1]["in_place"]["nwrong"] = 3.0
    cpu = report()
    for row in cpu["results"]:
        row["out_of_place"]["cpu_time"] = row["out_of_place"].pop("time")
    for text, message in (
        (json.dumps(wrong), r"results\[1\]: results at 1048576 bytes are wrong \(#wrong is 3\)"),
        (json.dumps(report())[:-40], "is not valid JSON"),
        (json.dumps({"results": 3}), "results: expected `array`"),
        (json.dumps({"results": []}), "its results are empty"),
        (json.dumps(cpu), "2 x time of the processor only"),
        (json.dumps({"node_betas_list": [1], "remote_alpha": 2}), "is a TACCL topology"),
        ("{" * 5000, "is not valid JSON|nested too deeply"),
    ):
        with pytest.raises(InputError, match=message):
            read(text)


def launch(size=4096, start=1000, end=3500, kind="allreduce", group="dp") -> RecordedLaunch:
    return RecordedLaunch(("a",), kind, group, "float", size, 0, start, end, True)


def test_launches_as_tables():
    """One table a kind and group; what has no time or a negative one is dropped with the reason."""
    launches = [
        launch(),
        launch(8192, 0, 4000),
        launch(end=1000),
        launch(end=500),
        launch(start=None),
        launch(0),
        launch(group="ep", kind="all_to_all"),
    ]
    log = tables_of_launches(
        launches, "traces", ranks={"dp": 8}, nodes={"dp": 2}, date="2025-01-31"
    )
    assert [(one.kind, one.group, one.ranks, one.nodes) for one in log.tables] == [
        ("allreduce", "dp", 8, 2),
        ("all_to_all", "ep", None, None),
    ]
    assert log.tables[0].points == ((4096, 2.5), (8192, 4.0))
    assert log.report.dropped == {
        "the first rank ends before the last one starts": 2,
        "no recorded time": 1,
        "size 0": 1,
    }
    assert log.report.events_read == 7
    with pytest.raises(InputError, match="no launch is recorded"):
        tables_of_launches([], "traces")
    with pytest.raises(InputError, match="no usable row"):
        tables_of_launches([launch(0)], "traces")


TEXTS = {
    "perftest": LATENCY + BANDWIDTH,
    "nccom": NCCOM,
    "deepspeed": SUMMARY.format(caller="") + STRAGGLERS.format(caller=" | [Caller Func: x]"),
    "param": param("all_gather", 0.9375),
    "json": json.dumps(report()),
}


@pytest.mark.parametrize("name", TEXTS)
def test_mutated_logs_give_a_log_or_one_line(read, name):
    """Bytes flipped, cut, doubled: positive points or one clear line."""
    source = random.Random(name)
    refused = []
    for _ in range(150):
        data = bytearray(TEXTS[name].encode())
        for _ in range(source.randrange(1, 12)):
            at = source.randrange(len(data))
            part = source.choice(
                [b"", b"9", b" ", b"\xff", b"-", b"e", b"\n", b"|", b'"', bytes(data[at : at + 9])]
            )
            data[at : at + source.randrange(3)] = part
        del data[source.randrange(len(data) // 2, len(data) + 1) :]
        try:
            log = read(bytes(data) or b"x")
        except InputError as error:
            refused.append(str(error))
            continue
        assert all(size > 0 and us > 0 for table in log.tables for size, us in table.points)
        assert log.report.events_read == log.report.kept["rows"] + sum(log.report.dropped.values())
    assert not any("\n" in message for message in refused)


@pytest.mark.parametrize("seed", range(40))
def test_json_fields_of_other_types(read, seed):
    """Any field of another type: a log or one line."""
    source = random.Random(seed)
    document = report()
    places = [document, document["config"], document["config"]["devices"][0]]
    places += [document["results"][1], document["results"][1]["out_of_place"]]
    for _ in range(3):
        place = source.choice(places)
        name = source.choice(list(place) or ["x"])
        place[name] = source.choice([None, True, -1, 2**70, 1.5, "x", [], {}, [[]], "inf", 1e400])
    message = ""
    try:
        read(json.dumps(document))
    except InputError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.shared
def test_real_deepspeed_logs():
    """DeepSpeed's own examples: 16 ranks, out of busbw / algbw."""
    launches = read_benchmark_log(shared_data("deepspeed/comms_logging_0.txt"))
    assert [(one.kind, one.ranks, one.points) for one in launches.tables] == [
        ("reduce_scatter", 16, ((round(678.86 * 2**20), 9460.0),)),
        ("all_gather", 16, ((6 * 2**20 * 16, 110.0), (6 * 2**20 * 16, 80.0))),
    ]
    assert {one.date for one in launches.tables} == {"2022-06-26"}
    summary = read_benchmark_log(shared_data("deepspeed/comms_logging_1.txt"))
    assert [(one.kind, one.ranks, one.points) for one in summary.tables] == [
        ("broadcast", 16, ((2048, 80.0), (round(98.25 * 2**20), 8317120.0))),
        ("reduce_scatter", 16, ((round(678.86 * 2**20), 9690.0),)),
    ]

"""Reading Nsight Systems exports: times from SQLite, sizes from elsewhere, hostile files refused."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from shared_files import shared_data

from commsched.models import AlphaBeta, Collective, Compute, InputError
from commsched.problems.breakdown.breakdown import Sort, break_down
from commsched.problems.nsight import nsight_db, nsight_sqlite
from commsched.problems.nsight.nsight_graph import READER
from commsched.problems.nsight.nsight_sqlite import read_nsight
from commsched.problems.nsight.nsight_work import read_nsight_work
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedGraph
from commsched.problems.sources.source import Source

PROCESS = 5 << 24
KERNEL_COLUMNS = (
    "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER"
)


class Export:
    """Makes an export with what the reader needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self.database = sqlite3.connect(path)
        self.names: dict[str, int] = {}
        self.correlation = 0
        for sql in (
            f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNEL_COLUMNS})",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,"
            " contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER)",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,"
            " globalTid INTEGER, correlationId INTEGER, nameId INTEGER)",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, syncType INTEGER)",
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER,"
            " globalTid INTEGER, domainId INTEGER)",
            "CREATE TABLE StringIds ( -- a comment as Nsight writes them\n"
            " id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
            "CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)",
            "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.24.1')",
        ):
            self.database.execute(sql)

    def text(self, name: str) -> int:
        if name not in self.names:
            self.names[name] = len(self.names) + 1
            self.run("INSERT INTO StringIds VALUES (?, ?)", self.names[name], name)
        return self.names[name]

    def run(self, sql: str, *values) -> None:
        self.database.execute(sql, values)

    def kernel(self, name, start, end, *, stream=7, device=0, call=None, thread=1, process=PROCESS):
        self.correlation += 1
        self.run(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?)",
            start, end, device, stream, self.correlation, process,
            self.text(f"void {name}()"), self.text(name),
        )  # fmt: skip
        if call is not None:
            self.run(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 1)",
                call, call + 1, process + thread, self.correlation,
            )  # fmt: skip

    def nvtx(self, name, start, end, *, thread=1, by_id=False):
        text, number = (None, self.text(name)) if by_id else (name, None)
        self.run(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, 0)",
            start, end, text, number, PROCESS + thread,
        )  # fmt: skip

    def done(self) -> Source:
        self.database.commit()
        self.database.close()
        return Source(self.path)


def step(path: Path) -> Source:
    """Two gradients on stream 7 with a collective each on stream 20, and an optimizer."""
    export = Export(path)
    export.nvtx("c10d::allreduce_, op_id = 3", 130, 140)
    export.nvtx("nccl:all_reduce, op_id = 4", 131, 139, by_id=True)
    export.kernel("gemm", 200, 300, call=100)
    export.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 310, 500, stream=20, call=135)
    export.kernel("gemm", 300, 420, call=150)
    export.kernel("ncclDevKernel_SendRecv", 500, 600, stream=20, call=170)
    export.nvtx("nccl:all_to_all", 165, 175)
    export.nvtx("ncclSend", 168, 172)
    export.kernel("adam", 650, 700, call=180)
    export.run("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (420, 430, 0, 1, 7, 999, ?)", PROCESS)
    return export.done()


def sizes_file(folder: Path, collectives) -> Path:
    names = {"allreduce": "c10d::allreduce_", "all_to_all": "c10d::alltoall_base_"}
    nodes = [
        {
            "id": k + 1,
            "name": names[kind],
            "ctrl_deps": 0,
            "attrs": [],
            "inputs": {"values": [], "shapes": [[n], [n]], "types": ["Tensor(float)"] * 2},
        }
        for k, (kind, n) in enumerate(collectives)
    ]
    path = folder / "sizes.et.json"
    path.write_text(json.dumps({"schema": "1.1.0", "nodes": nodes}))
    return path


def get(source: Source, sizes: Path) -> RecordedGraph:
    assert READER.recognises(source.start())
    found = READER.read([source], ReadOptions(sizes=sizes))
    assert isinstance(found, RecordedGraph)
    return found


def refused(source: Source, **options) -> str:
    with pytest.raises(InputError) as caught:
        READER.read([source], ReadOptions(**options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_kernels_calls_and_kinds(tmp_path):
    """Kernels find their calls by correlation and process, kinds come from the ranges around."""
    export = read_nsight(step(tmp_path / "a.sqlite"))
    assert export.version == "3.24.1"
    assert [(k.name, k.start, k.end, k.stream, k.launched, k.kind) for k in export.kernels] == [
        ("gemm", 200, 300, 7, 100, None),
        ("gemm", 300, 420, 7, 150, None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 310, 500, 20, 135, "allreduce"),
        ("copy", 420, 430, 7, None, None),
        ("ncclDevKernel_SendRecv", 500, 600, 20, 170, "all_to_all"),
        ("adam", 650, 700, 7, 180, None),
    ]
    assert (export.events_read, export.dropped, export.synchronisations) == (6, {}, 0)


def test_a_call_of_another_process_is_not_the_kernels(tmp_path):
    """Correlations repeat between processes; the bits above the thread tell them apart."""
    export = Export(tmp_path / "a.sqlite")
    export.kernel("gemm", 10, 20)
    export.run(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (3, 4, {(6 << 24) + 1}, 1, 1)")
    export.kernel("gemm", 20, 30, call=7, process=6 << 24)
    assert [k.launched for k in read_nsight(export.done()).kernels] == [None, 7]


@pytest.mark.parametrize(
    ("ranges", "kind"),
    [
        ([], None),
        ([("ncclAllGather", 5, 15)], "all_gather"),
        ([("nccl:_reduce_scatter_base, op_id = 9", 5, 15), ("ncclSend", 8, 12)], "reduce_scatter"),
        ([("nccl:all_to_all", 1, 4)], None),
        ([("nccl:all_to_all", 5, 15)], "all_to_all"),
        ([("ncclGroupEnd", 5, 15)], None),
    ],
)
def test_kinds_of_point_to_point_kernels(tmp_path, ranges, kind):
    """SendRecv runs many operations: PyTorch's range counts before NCCL's; outside there is none."""
    export = Export(tmp_path / "a.sqlite")
    export.kernel("ncclDevKernel_SendRecv", 20, 30, call=10)
    for name, start, end in ranges:
        export.nvtx(name, start, end)
    assert read_nsight(export.done()).kernels[0].kind == kind


def test_many_ranges_within_one(tmp_path):
    """The range around is found past hundreds of ended ones within it."""
    export = Export(tmp_path / "a.sqlite")
    export.nvtx("nccl:all_to_all", 1, 10_000)
    for k in range(300):
        export.nvtx("ncclSend", 10 + 10 * k, 15 + 10 * k)
    export.kernel("ncclDevKernel_SendRecv", 20_000, 20_001, call=9000)
    assert read_nsight(export.done()).kernels[0].kind == "all_to_all"


def test_work_for_breaking_time_down(tmp_path):
    """Computation, communication and what hides it, without any size."""
    (work,) = read_nsight_work(step(tmp_path / "a.sqlite"))
    assert (work.device, work.rank, work.not_launched) == ("0", None, 1)
    found = break_down(work.activities)
    assert found.computation_ns == 100 + 120 + 50
    assert found.communication_ns == 290
    assert found.exposed_ns == 290 - 110
    assert all(run.bytes is None for run in work.activities)
    assert "no sizes of collectives" in " ".join(work.report.assumptions)


def test_without_sizes_there_is_no_problem(tmp_path):
    """Zero bytes would be a lie: one line says what is missing."""
    message = refused(step(tmp_path / "a.sqlite"))
    assert "has no sizes of collectives, only times (2 on device 0)" in message
    assert "--sizes" in message


def test_sizes_of_an_execution_trace(tmp_path):
    """Collectives take their sizes in order; ready times follow launches and earlier kernels."""
    source = step(tmp_path / "a.sqlite")
    graph = get(source, sizes_file(tmp_path, [("allreduce", 1000), ("all_to_all", 64)]))
    found = [task for task in graph.tasks if isinstance(task, Collective)]
    assert [(one.kind, one.bytes, one.dtype) for one in found] == [
        ("allreduce", 4000, "float32"),
        ("all_to_all", 256, "float32"),
    ]
    # From the first call at 100: a kernel starts once it is launched and the one before has ended.
    assert [x.issued_ns for x in graph.launches] == [35, 70]
    assert [(x.start_ns, x.end_ns) for x in graph.launches] == [(210, 400), (400, 500)]
    assert graph.end_ns == 600
    problem = graph.with_costs({key: AlphaBeta(0, 1) for key in graph.needs})
    # The graph knows durations and calls: gemm 0 to 100, gemm 100 to 220, then the collective.
    assert problem.ready_ns == [100, 220]
    assert problem.settled
    assert graph.plan is not None
    assert any("waits for no collective" in text for text in graph.report.assumptions)


def test_groups_on_one_stream_share_a_channel(tmp_path):
    """The other recording knows the groups; the export knows the streams."""
    export = Export(tmp_path / "a.sqlite")
    for k, stream in enumerate((20, 20, 21)):
        export.kernel("ncclDevKernel_AllReduce_Sum_f32", k, k + 1, call=k, stream=stream)
    source = export.done()
    said = {"collective_name": "allreduce", "dtype": "Float", "pg_size": 4}
    said |= {"in_msg_nelems": 8, "out_msg_nelems": 8}
    nodes = [
        {
            "id": k + 1,
            "name": "record_param_comms",
            "attrs": [{"name": a, "value": v} for a, v in (said | {"pg_name": group}).items()],
        }
        for k, group in enumerate(("tp", "dp", "ep"))
    ]
    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.1.0", "nodes": nodes}))
    graph = get(source, path)
    assert graph.channels == {"gpu 20": ("dp", "tp")}
    assert graph.ranks == {"tp": 4, "dp": 4, "ep": 4}
    assert graph.needs[("dp", "allreduce")] == 4


def test_collectives_on_the_compute_stream_hold_it_up(tmp_path):
    """What comes after a collective on its own stream waits for it."""
    export = Export(tmp_path / "a.sqlite")
    export.kernel("gemm", 10, 20, call=1)
    export.kernel("ncclDevKernel_AllReduce_Sum_f32", 20, 50, call=2)
    export.kernel("gemm", 50, 60, call=3)
    graph = get(export.done(), sizes_file(tmp_path, [("allreduce", 8)]))
    last = graph.tasks[-1]
    assert isinstance(last, Compute)
    assert last.after == ("allreduce 0",)
    assert not graph.with_costs({("world", "allreduce"): AlphaBeta(1, 1)}).settled


def test_sizes_that_do_not_fit_are_refused(tmp_path):
    """Numbers and kinds must agree, for the join is by order."""
    source = step(tmp_path / "a.sqlite")
    for wrong, words in (
        ([("allreduce", 1)], "has 1 collectives (1 allreduce)"),
        ([("all_to_all", 1), ("allreduce", 1)], "collective 0 is all_to_all"),
    ):
        assert words in refused(source, sizes=sizes_file(tmp_path, wrong))
    assert refused(source, sizes=tmp_path / "none.json")
    assert refused(source, sizes=source.path)


def test_waits_of_the_processor_are_a_doubt(tmp_path):
    """Calls that may have come late because of a collective are taken as fixed: said, not hidden."""
    export = Export(tmp_path / "a.sqlite")
    export.kernel("ncclDevKernel_AllReduce_Sum_f32", 3, 50, call=2)
    export.run("INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (1, 2), (1, 3), (1, 'x')")
    graph = get(export.done(), sizes_file(tmp_path, [("allreduce", 8)]))
    assert [check.passed for check in graph.report.checks] == [True, False]
    assert "waited 1 times" in graph.report.checks[1].text


def test_rows_of_wrong_types_are_counted(tmp_path):
    """SQLite lets any column hold anything."""
    export = Export(tmp_path / "a.sqlite")
    export.kernel("gemm", 10, 20)
    for values in (
        "('x', 3, 0, 1, 7, 1, 1, 1, 1)",
        "(5, 3, 0, 1, 7, 1, 1, 1, 1)",
        "(-5, 3, 0, 1, 7, 1, 1, 1, 1)",
        "(NULL, 3, 0, 1, 7, 1, 1, 1, 1)",
        "(1, 3.5, 0, 1, 7, 1, 1, 1, 1)",
        "(1, 3, 'x', 1, 7, 1, 1, 1, 1)",
        "(1, 3, 0, 1, NULL, 1, 1, 1, 1)",
        "(1, 3, 0, 'c', 7, 'x', x'00', 'n', x'ff')",
    ):
        export.run(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {values}")
    export.run("INSERT INTO NVTX_EVENTS VALUES (x'00', 'b', 3, 'x', NULL, 0)")
    found = read_nsight(export.done())
    assert found.dropped == {
        "kernels and copies without usable times": 5,
        "kernels and copies without a device or stream": 2,
    }
    assert [k.name for k in found.kernels] == ["kernel", "gemm"]


def test_missing_tables_and_columns(tmp_path):
    """An export without CUDA is named; one without names or calls is read."""
    path = tmp_path / "a.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE other (x)")
    database.commit()
    assert "no table CUPTI_ACTIVITY_KIND_KERNEL" in refused(Source(path))
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, duration, deviceId)")
    database.commit()
    assert "CUPTI_ACTIVITY_KIND_KERNEL has no end, streamId" in refused(Source(path))
    database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId)")
    database.commit()
    assert "no kernel of a GPU" in refused(Source(path))
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 7)")
    database.commit()
    database.close()
    assert "no kernel has a name" in refused(Source(path))
    (kernel,) = read_nsight(Source(path)).kernels
    assert (kernel.name, kernel.context, kernel.launched) == ("kernel", 0, None)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS"
        " (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end FROM n",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, deviceId, streamId,"
        " end AS (length(hex(zeroblob(900000)))))",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, deviceId, streamId,"
        " end INTEGER GENERATED ALWAYS AS (start + 1) STORED)",
    ],
)
def test_nothing_of_the_file_is_executed(tmp_path, sql):
    """Endless views, virtual tables and computed columns are not tables that are read."""
    path = tmp_path / "a.sqlite"
    database = sqlite3.connect(path)
    database.execute(sql)
    database.commit()
    database.close()
    assert "no table CUPTI_ACTIVITY_KIND_KERNEL" in refused(Source(path))


def test_functions_and_writing_are_forbidden(tmp_path):
    """Whatever reads the database can only select columns of tables."""
    source = step(tmp_path / "a.sqlite")
    with nsight_db.SafeDatabase(source.path, "a") as database:
        assert "NVTX_EVENTS" in database.tables
        for sql in (
            "SELECT load_extension('x')",
            "DELETE FROM StringIds",
            "ATTACH 'b.sqlite' AS b",
            "SELECT randomblob(10)",
        ):
            with pytest.raises(InputError):
                list(database._query(sql))
        assert list(database.rows("absent", ("x",))) == []


def test_limits(tmp_path, monkeypatch):
    """Too many rows and too much work end with one line."""
    export = Export(tmp_path / "a.sqlite")
    for k in range(50):
        export.kernel("gemm", k, k + 1, call=k)
    source = export.done()
    monkeypatch.setattr(nsight_sqlite, "MAX_KERNELS", 40)
    assert "more than 40 rows" in refused(source)
    monkeypatch.undo()
    monkeypatch.setattr(nsight_db, "MAX_ROWS", 30)
    assert "more than 30 rows" in refused(source)
    monkeypatch.undo()
    monkeypatch.setattr(nsight_db, "_STEPS", 10)
    monkeypatch.setattr(nsight_db, "_MAX_STEPS", 3)
    assert "takes too long" in refused(source)
    export = Export(tmp_path / "b.sqlite")
    export.kernel("a", 0, 1)
    export.kernel("b", 2**61, 2**61 + 1)
    monkeypatch.undo()
    assert "13 days" in refused(export.done())


def test_nothing_but_a_refusal_for_damaged_files(tmp_path):
    """Bytes flipped, zeroed and cut anywhere, the header and the schema too."""
    data = step(tmp_path / "a.sqlite").path.read_bytes()
    sizes = sizes_file(tmp_path, [("allreduce", 1000), ("all_to_all", 64)])
    rng = random.Random(5)
    used = [at for at in range(len(data)) if data[at]]
    path = tmp_path / "b.sqlite"
    outcomes = Counter()
    for number in range(600):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 6)):
            # Most of a small database is zeros, so aim at what is used.
            at = rng.choice(used) if rng.random() < 0.8 else rng.randrange(len(data))
            changed[at] = rng.choice((0, 255, rng.randrange(256)))
        if number % 10 == 0:
            del changed[rng.randrange(1, len(changed)) :]
        path.write_bytes(changed)
        try:
            graph = READER.read([Source(path)], ReadOptions(sizes=sizes))
        except InputError:
            outcomes["refused"] += 1
            continue
        assert isinstance(graph, RecordedGraph)
        outcomes["read"] += 1
    assert min(outcomes["refused"], outcomes["read"]) > 50


# --- another tool's export ---------------------------------------------------------------------


@pytest.mark.shared
def test_a_real_export(tmp_path):
    """Two H100s, 33 all-to-alls each, all on the compute stream, so that none can be hidden."""
    path = shared_data("nsys-ai/mfu_2gpu_before.sqlite")
    source = Source(path)
    export = read_nsight(source)
    assert export.version == "3.25.0"
    runs = [kernel for kernel in export.kernels if kernel.is_collective]
    assert Counter((k.name, k.device, k.stream) for k in runs) == {
        ("ncclDevKernel_SendRecv", 0, 7): 33,
        ("ncclDevKernel_SendRecv", 1, 15): 33,
    }
    # One of each device was launched before the recording began.
    assert Counter(k.kind for k in runs) == {"all_to_all": 64, None: 2}
    assert sum(k.is_kernel for k in export.kernels) == 4010
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    linked = database.execute(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
        "ON r.correlationId = k.correlationId AND r.globalTid >> 24 = k.globalPid >> 24"
    ).fetchone()[0]
    database.close()
    assert sum(k.is_kernel and k.launched is not None for k in export.kernels) == linked == 3986


@pytest.mark.shared
def test_a_real_exports_time(tmp_path):
    """All communication is exposed, on both devices."""
    works = read_nsight_work(Source(shared_data("nsys-ai/mfu_2gpu_before.sqlite")))
    assert [work.device for work in works] == ["0", "1"]
    for work, communication in zip(works, (17172652, 8229100), strict=True):
        found = break_down(work.activities)
        assert found.communication_ns == found.exposed_ns == communication
        assert sum(a.sort is Sort.COLLECTIVE for a in work.activities) == 33


@pytest.mark.shared
def test_a_real_export_with_sizes(tmp_path):
    """Sizes of a trace with as many collectives make a step that replays as it was recorded."""
    source = Source(shared_data("nsys-ai/mfu_2gpu_before.sqlite"))
    assert "33 on device 0, 33 on device 1" in refused(source)
    graph = get(source, sizes_file(tmp_path, [("all_to_all", 1000)] * 33))
    assert len([task for task in graph.tasks if isinstance(task, Collective)]) == 33
    assert graph.end_ns == 299848812
    assert graph.report.checks[0].passed
    assert len(graph.tasks) < 100
    assert not graph.with_costs({("world", "all_to_all"): AlphaBeta(10, 100)}).settled
    other = shared_data("hta/nccl_data.json.gz")
    assert "has 21 collectives (6 broadcast, 15 allreduce)" in refused(source, sizes=other)

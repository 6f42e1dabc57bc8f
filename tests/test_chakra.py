"""Reading MLCommons Chakra execution traces: protocol buffers and JSON."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
from functools import cache
from pathlib import Path

import pytest
from shared_files import SHARED, shared_data

from commsched.models import Collective, Compute, InputError
from commsched.problems.chakra.chakra_nodes import nodes_from_bytes
from commsched.problems.chakra.chakra_trace import READER, read_nodes
from commsched.problems.chakra.chakra_wire import WireError, fields, messages
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedGraph
from commsched.problems.sources.source import Source

# --- writing -----------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def packed(number: int, values) -> bytes:
    return field(number, b"".join(map(varint, values))) if values else b""


def attribute(name: str, value) -> bytes:
    if isinstance(value, bool):
        body = field(27, int(value))
    elif isinstance(value, int):
        body = field(9, value)
    elif isinstance(value, list):
        body = field(28, b"".join(field(1, int(x)) for x in value))
    elif isinstance(value, float):
        body = varint(3 << 3 | 1) + struct.pack("<d", value)
    else:
        body = field(29, value)
    return field(1, name) + body


def node(number, name, kind, data=(), ctrl=(), us=0, shapes="", types="", **attributes) -> bytes:
    parts = [field(1, number) if number else b"", field(2, name), field(3, kind)]
    parts += [packed(4, ctrl), packed(5, data), field(7, us) if us else b""]
    if shapes:
        parts.append(field(8, field(2, shapes) + field(3, types)))
    parts += [field(10, attribute(key, value)) for key, value in attributes.items()]
    return b"".join(parts)


def trace(*nodes: bytes, metadata: bytes | None = None) -> bytes:
    if metadata is None:
        metadata = field(2, attribute("schema", "1.0.2-chakra.0.0.4"))
    return b"".join(varint(len(part)) + part for part in (metadata, *nodes))


def write(folder: Path, data: bytes, name: str = "chakra.0.et") -> Source:
    path = folder / name
    path.write_bytes(data)
    return Source(path)


def get(source: Source, **options) -> RecordedGraph:
    assert READER.recognises(source.start())
    found = READER.read([source], ReadOptions(**options))
    assert isinstance(found, RecordedGraph)
    return found


def collectives(graph: RecordedGraph) -> list[Collective]:
    return [task for task in graph.tasks if isinstance(task, Collective)]


def refused(source: Source, **options) -> str:
    with pytest.raises(InputError) as caught:
        READER.read([source], ReadOptions(**options))
    message = str(caught.value)
    assert message.startswith(str(source.path)) or "sizes" in options
    assert "\n" not in message
    return message


COMP, SEND, RECV, COLL = 4, 5, 6, 7
SIMULATED = (
    node(0, "fwd1", COMP, us=10),
    node(1, "fwd2", COMP, [0], us=20),
    node(2, "bwd2", COMP, [1], us=40),
    node(3, "ar2", COLL, [2], comm_type=0, comm_size=4000),
    node(4, "bwd1", COMP, [2], us=30),
    node(5, "ar1", COLL, [4], comm_type=0, comm_size=1000),
    node(6, "next fwd1", COMP, [4, 5], us=10),
    node(7, "next fwd2", COMP, [6, 3], us=20),
)
"""What a simulator's workload looks like: two layers, and the next step's forward pass."""

CONVERTED = (
    node(2, "aten::mm", COMP, us=30, is_cpu_op=True, tid=1, rf_id=1),
    node(3, "gemm", COMP, [2], [2], us=100, is_cpu_op=False, tid=7),
    node(4, "c10d::allreduce_", COLL, [2], us=50, is_cpu_op=True, tid=1, rf_id=2),
    node(
        5,
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)",
        COLL,
        [4, 3],
        [99],
        us=700,
        is_cpu_op=False,
        tid=14,
        comm_type=0,
        comm_size=4096,
        pg_name="7",
    ),
    node(6, "gemm2", COMP, [4], us=60, is_cpu_op=False, tid=7),
    node(8, "adam", COMP, [5, 6], us=9, is_cpu_op=False, tid=7),
)
"""What Chakra's converter makes of one rank's PyTorch traces."""

# --- own traces --------------------------------------------------------------------------------


def test_a_simulated_workload(tmp_path):
    """One stream computes, everything keeps its dependencies, microseconds are nanoseconds."""
    graph = get(write(tmp_path, trace(*SIMULATED)))
    assert graph.tasks == (
        Compute("compute 1", 70_000, "compute"),
        Compute("compute 2", 30_000, "compute", ("compute 1",)),
        Collective("allreduce 3", 4000, group="world", dtype="unknown", after=("compute 1",)),
        Collective("allreduce 5", 1000, group="world", dtype="unknown", after=("compute 2",)),
        Compute("compute 3", 10_000, "compute", ("allreduce 5",)),
        Compute("compute 4", 20_000, "compute", ("allreduce 3", "compute 3")),
    )
    assert graph.launches == ()
    assert graph.needs == {("world", "allreduce"): None}
    assert graph.report.events_read == 8
    assert graph.report.kept["compute nodes"] == 6


def test_a_converted_trace(tmp_path):
    """The kernel is the collective, its call on the processor is not another one."""
    graph = get(write(tmp_path, trace(*CONVERTED)))
    (one,) = collectives(graph)
    assert (one.bytes, one.group, one.dtype) == (4096, "7", "float32")
    # The call takes until 80 us, the gradient until 130 us.
    assert [launch.issued_ns for launch in graph.launches] == [130_000]
    adam = graph.tasks[-1]
    assert isinstance(adam, Compute)
    assert (adam.stream, adam.duration_ns) == ("gpu 7", 9000)
    assert one.name in adam.after
    assert graph.plan is not None
    assert graph.report.dropped["callers of operations (ctrl_deps)"] == 2
    assert graph.report.kept["issuing side of collectives, as compute"] == 1


def test_dependencies_of_callers_count_only_where_nobody_converted(tmp_path):
    """A simulated node waits for its ctrl_deps."""
    first = node(1, "a", COMP, us=5)
    simulated = node(2, "ar", COLL, ctrl=[1], comm_type=0, comm_size=8)
    assert collectives(get(write(tmp_path, trace(first, simulated))))[0].after == ("compute 1",)
    converted = node(2, "ar", COLL, ctrl=[1], comm_type=0, comm_size=8, rf_id=4)
    assert collectives(get(write(tmp_path, trace(first, converted))))[0].after == ()


def test_nodes_may_be_listed_before_what_they_wait_for(tmp_path):
    """Order follows dependencies, not the file."""
    graph = get(write(tmp_path, trace(*reversed(SIMULATED))))
    assert graph.tasks == get(write(tmp_path, trace(*SIMULATED), "other.et")).tasks


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (0, "allreduce"),
        (2, "all_gather"),
        (5, "broadcast"),
        (6, "all_to_all"),
        (7, "reduce_scatter"),
    ],
)
def test_kinds(tmp_path, number, kind):
    """The numbers of comm_type; sizes whose meaning Chakra leaves open are a failed check."""
    graph = get(write(tmp_path, trace(node(1, "x", COLL, comm_type=number, comm_size=64))))
    assert collectives(graph)[0].kind == kind
    doubts = [check.text for check in graph.report.checks if not check.passed]
    assert any("part or the total" in text for text in doubts) == (
        kind in ("all_gather", "all_to_all", "reduce_scatter")
    )


def test_barriers_and_reductions_to_one_rank_are_not_planned(tmp_path):
    """A barrier takes no time, a reduction its recorded time; both hold up what waits for them."""
    graph = get(
        write(
            tmp_path,
            trace(
                node(1, "barrier", COLL, comm_type=9),
                node(2, "reduce", COLL, [1], us=6, comm_type=1, comm_size=64),
                node(3, "ar", COLL, [2], comm_type=0, comm_size=64),
            ),
        )
    )
    assert [launch.kind for launch in collectives(graph)] == ["allreduce"]
    assert graph.tasks[0] == Compute("communication reduce 1", 6000, "communication reduce")
    assert graph.report.dropped["barriers"] == 1


def test_groups_and_shared_streams(tmp_path):
    """Groups come from pg_name or involved_dim; those on one stream share a channel."""
    common = {"comm_type": 0, "comm_size": 64, "is_cpu_op": False, "rf_id": 1}
    graph = get(
        write(
            tmp_path,
            trace(
                node(1, "a", COLL, tid=14, pg_name="tp", **common),
                node(2, "b", COLL, tid=14, pg_name="dp", **common),
                node(3, "c", COLL, tid=20, pg_name="ep", **common),
                node(4, "d", COLL, tid=21, involved_dim=[False, True], **common),
                node(5, "e", COLL, tid=22, involved_dim=[True], **common),
            ),
        )
    )
    assert [one.group for one in collectives(graph)] == ["tp", "dp", "ep", "dimensions 1", "world"]
    assert graph.channels == {"gpu 14": ("dp", "tp")}


def test_sizes_from_shapes(tmp_path):
    """On processors there is no comm_size, but the shapes of the tensors; the inner node counts."""
    graph = get(
        write(
            tmp_path,
            trace(
                node(1, "c10d::allreduce_", COLL, is_cpu_op=True, rf_id=1, shapes="[[[7, 3]], []]",
                     types="['GenericList[Tensor(c10::BFloat16)]', 'Object']"),
                node(2, "gloo:all_reduce", COLL, [1], [1], is_cpu_op=True, rf_id=2,
                     shapes="[[7, 3]]", types="['Tensor(c10::BFloat16)']"),
            ),
        )
    )  # fmt: skip
    assert [(one.bytes, one.dtype) for one in collectives(graph)] == [(42, "bfloat16")]


def test_sends_and_receives_beside_collectives(tmp_path):
    """They are kept, each direction by itself, with what that takes for granted."""
    graph = get(
        write(
            tmp_path,
            trace(
                node(1, "send", SEND, comm_size=100),
                node(2, "recv", RECV, comm_size=50),
                node(3, "ar", COLL, comm_type=0, comm_size=64),
            ),
        )
    )
    assert [(one.kind, one.group) for one in collectives(graph)[:2]] == [
        ("send_recv", "world send"),
        ("send_recv", "world receive"),
    ]
    assert any("find the other rank ready" in text for text in graph.report.assumptions)


def test_the_schema_of_2023(tmp_path):
    """Typed attributes, and other numbers for the kinds."""

    def typed(name, kind, number, value):
        return field(1, name) + field(2, kind) + field(number, value)

    def old(number, name, kind, parents, *attributes):
        parts = [field(1, number), field(2, name), field(3, kind)]
        parts += [field(4, parent) for parent in parents]
        return b"".join(parts + [field(11, one) for one in attributes])

    data = trace(
        old(1, "bwd", COMP, [], typed("runtime", 3, 7, 12)),
        old(
            2,
            "a2a",
            COLL,
            [1],
            typed("comm_type", 3, 7, 1),
            typed("comm_size", 2, 6, 900),
            typed("pg_name", 4, 8, "ep"),
        ),
        metadata=field(1, typed("schema", 4, 8, "1.0.1")),
    )
    graph = get(write(tmp_path, data))
    assert graph.tasks[0].duration_ns == 12_000
    (one,) = collectives(graph)
    assert (one.kind, one.bytes, one.group, one.after) == ("all_to_all", 900, "ep", ("compute 1",))


def test_the_same_as_json(tmp_path):
    """The feeder's JSON gives the same graph, and takes sizes from the other form."""
    rows = [
        {"Id": 1, "Name": "bwd", "NodeType": 4, "ctrlDeps": [], "data_deps": [], "runtime": 8},
        {"Id": 2, "Name": "ar", "NodeType": 7, "data_deps": [1], "comm_type": 0},
    ]
    source = write(tmp_path, json.dumps({"workload_graph": rows}).encode(), "chakra.0.json")
    assert "node 2 ('ar') has no comm_size" in refused(source)
    other = write(
        tmp_path,
        trace(node(1, "bwd", COMP, us=8), node(2, "ar", COLL, [1], comm_type=0, comm_size=77)),
    )
    graph = get(source, sizes=other.path)
    assert graph.tasks == get(other).tasks
    assert "the collectives' sizes come from chakra.0.et" in graph.report.assumptions
    third = write(tmp_path, trace(node(2, "x", SEND, comm_size=1)), "third.et")
    assert "of different runs" in refused(source, sizes=third.path)
    assert "no size that" in refused(other, sizes=other.path)
    rows[1]["comm_size"] = 77
    source = write(tmp_path, json.dumps({"workload_graph": rows}).encode(), "chakra.1.json")
    assert get(source).tasks == graph.tasks


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node(1, "a", COMP, us=1)], "no collective"),
        (
            [node(1, "a", SEND, comm_size=1), node(2, "b", RECV, comm_size=1)],
            "1 sends and 1 receives",
        ),
        ([node(1, "a", COLL, comm_size=1)], "no comm_type"),
        ([node(1, "a", COLL, comm_type=12, comm_size=1)], "no comm_type"),
        ([node(1, "a", COLL, comm_type=0)], "no comm_size"),
        ([node(1, "a", COLL, comm_type=0, comm_size=-5)], "must be at least 0"),
        ([node(1, "a", COLL, comm_type=0, comm_size=1.5)], "whole number"),
        ([node(1, "a", COLL, comm_type=0, comm_size="9")], "not a number"),
        ([node(1, "a", COLL, comm_type=0, comm_size=2**60)], "at most"),
        ([node(1, "a", COLL, comm_type=0, comm_size=1)] * 2, "two nodes have the id 1"),
        (
            [node(1, "a", COMP, [2], us=1), node(2, "b", COLL, [1], comm_type=0, comm_size=1)],
            "in a circle: ",
        ),
        ([node(1, "a", COMP, us=2**50), node(2, "b", COLL, comm_type=0, comm_size=1)], "13 days"),
    ],
)
def test_refusals(tmp_path, nodes, words):
    """One line that names the file, the node and the rule."""
    assert words in refused(write(tmp_path, trace(*nodes)))


def test_files_that_are_cut_or_damaged(tmp_path):
    """A graph with nodes missing is not read as a smaller one."""
    data = trace(*SIMULATED)
    message = refused(write(tmp_path, data[:-3]))
    assert "node 7 of the Chakra trace cannot be read: the last message is cut off" in message
    for rows in (
        3,
        [{}],
        [{"Id": True, "NodeType": 4}],
        [{"Id": 1, "NodeType": 4, "data_deps": 5}],
    ):
        refused(write(tmp_path, json.dumps({"workload_graph": rows}).encode(), "x.json"))
    broken = b'{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": NaN}, '
    broken += b'{"Id": 2, "NodeType": 7, "comm_type": 0, '
    assert "no whole JSON" in refused(write(tmp_path, broken, "x.json"))
    assert "finite" in refused(write(tmp_path, broken + b'"comm_size": 1}]}', "x.json"))
    with pytest.raises(InputError, match="name the Chakra trace of one rank"):
        READER.read([write(tmp_path, data)] * 2, ReadOptions())
    with pytest.raises(InputError, match="no Chakra"):
        read_nodes(write(tmp_path, b"hello"))


@pytest.mark.parametrize(
    "data",
    [b"\x80" * 11, b"\xff" * 9 + b"\x7f", b"\x0a\x05abc", b"\x0b", b"\x00", b"\x0d\x00", b"\x08"],
)
def test_bytes_that_are_no_message(data):
    """Numbers of more than 64 bits, fields that are cut off, groups, field number 0."""
    with pytest.raises(WireError):
        fields(memoryview(data))


def test_a_length_beyond_the_file_takes_no_memory():
    """What a message says of its length is checked against the bytes that are there."""
    with pytest.raises(WireError):
        list(messages(memoryview(varint(2**62) + b"abc")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00",
        b"{}",
        b"[]",
        b"plain text\nof several lines\n",
        b"\x1f\x8b\x08\x00",
        b"SQLite format 3\0" + bytes(100),
        b'{"traceEvents": [], "workload_graph": [{}]}',
        b'{"schema": "1.0.1", "nodes": [], "workload_graph": []}',
        json.dumps({"note": '"workload_graph": ['}).encode(),
        trace(metadata=field(2, attribute("schema", "1"))),
        trace(field(1, 5)),
        trace(node(1, "a\nb", COMP)),
        trace(node(1, "a", 77)),
        trace(SIMULATED[0], metadata=field(1, 7)),
    ],
)
def test_other_files_are_not_taken_for_chakra(data):
    """Recognising is strict: other readers must have their files."""
    assert not READER.recognises(data)


def test_nothing_but_a_refusal_for_damaged_bytes(tmp_path):
    """Bytes flipped, inserted and cut: a graph or one clear line, never another exception."""
    rng = random.Random(7)
    rows = [
        {
            "Id": k,
            "Name": "n",
            "NodeType": 7 - 3 * (k % 2),
            "runtime": 3,
            "data_deps": [k - 1] if k else [],
            "comm_type": 0,
            "comm_size": 8,
        }
        for k in range(9)
    ]
    for data in (
        trace(*SIMULATED),
        trace(*CONVERTED),
        json.dumps({"workload_graph": rows}).encode(),
    ):
        for _ in range(400):
            changed = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(changed))
                what = rng.randrange(3)
                if what == 0:
                    changed[at] = rng.randrange(256)
                elif what == 1:
                    del changed[at : at + rng.randint(1, 9)]
                else:
                    changed[at:at] = rng.randbytes(rng.randint(1, 5))
                changed = changed or bytearray(b"x")
            source = write(tmp_path, bytes(changed))
            READER.recognises(source.start())
            try:
                found = READER.read([source], ReadOptions())
            except InputError:
                continue
            assert collectives(found)


# --- other people's traces ---------------------------------------------------------------------


@cache
def member(archive: str, name: str) -> bytes:
    data = shared_data(archive).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


@pytest.fixture
def feeder(tmp_path):
    return write(tmp_path, member("chakra/feeder_tests_trace.tar.gz", "tests/data/chakra.0.et"))


@pytest.mark.shared
def test_the_feeders_own_trace(feeder):
    """ResNet50 on two ranks: the five buckets and two broadcasts of the recording's own PyTorch."""
    graph = get(feeder)
    assert graph.report.events_read == 3664
    assert graph.report.kept["compute nodes"] == 3643
    assert graph.report.kept["issuing side of collectives, as compute"] == 14
    assert [(one.kind, one.bytes, one.dtype) for one in collectives(graph)] == [
        ("broadcast", 212480, "float32"),
        ("broadcast", 424, "int64"),
        *(("allreduce", 4 * n, "float32") for n in (2049000, 7875584, 6563840, 6637568, 2431040)),
    ]
    assert len(graph.tasks) == 15
    assert "nothing waits for a collective" in " ".join(graph.report.assumptions)


@pytest.mark.shared
def test_the_feeders_json_is_the_same_graph(feeder, tmp_path):
    """Apart from the sizes, which it lacks; times are checked against plain longest paths."""
    data = member("chakra/json_trace.tar.gz", "jsonData/chakra.0.json")
    source = write(tmp_path, data, "chakra.0.json")
    assert "has no comm_size" in refused(source)
    graph, twin = get(source, sizes=feeder.path), get(feeder)
    assert [one.bytes for one in collectives(graph)] == [one.bytes for one in collectives(twin)]
    rows = {row["Id"]: row for row in json.loads(data)["workload_graph"]}
    ends: dict[int, int] = {}

    def end(number: int) -> int:
        pending = [number]
        while pending:
            row = rows[pending[-1]]
            missing = [other for other in row["data_deps"] if other not in ends]
            if missing:
                pending += missing
                continue
            took = 0 if row["NodeType"] == 7 and not row["is_cpu_op"] else row.get("runtime", 0)
            ends[pending.pop()] = took + max((ends[b] for b in row["data_deps"]), default=0)
        return ends[number]

    for launch in twin.launches:
        # Streams can only delay it.
        assert launch.issued_ns >= 1000 * end(int(launch.names[0].split()[1]))


@pytest.mark.shared
def test_one_collectives_algorithm_is_no_step():
    """A ring's sends and receives depend on other ranks' files."""
    source = Source(shared_data("astra-sim/custom_allreduce.0.et"))
    assert READER.recognises(source.start())
    assert "14 sends and 14 receives" in refused(source)


@pytest.mark.shared
def test_no_other_real_file_is_taken_for_chakra():
    """Of all files of all kinds, only these."""
    shared_data("INDEX.md")
    taken = set()
    for path in sorted((SHARED / "data").rglob("*")):
        if path.is_file():
            try:
                start = Source(path).start()
            except InputError:
                continue
            if READER.recognises(start):
                taken.add(path.name)
    assert taken <= {"custom_allreduce.0.et", "feeder_tests_trace.tar.gz", "json_trace.tar.gz"}
    assert "custom_allreduce.0.et" in taken


def test_attributes_of_every_type():
    """Each scalar type of the schema comes out as what was put in."""
    body = [
        (7, varint(7 << 3) + varint(-3), -3),
        (15, varint(15 << 3) + varint(5), -3),
        (13, varint(13 << 3) + varint(2**63), 2**63),
        (3, varint(3 << 3 | 1) + struct.pack("<d", 0.5), 0.5),
        (5, varint(5 << 3 | 5) + struct.pack("<f", 0.25), 0.25),
        (21, varint(21 << 3 | 1) + struct.pack("<Q", 9), 9),
        (23, varint(23 << 3 | 5) + struct.pack("<i", -9), -9),
        (10, field(10, packed(1, [1, 300])), [1, 300]),
    ]
    nodes = [
        field(1, k) + field(2, "n") + field(10, field(1, "comm_size") + data)
        for k, (_, data, _) in enumerate(body)
    ]
    found = nodes_from_bytes(trace(*nodes), "x")
    assert [one.attributes for one in found] == [{"comm_size": value} for _, _, value in body]


def test_what_nobody_asks_for_takes_no_memory():
    """Attributes that say nothing of streams or collectives are not kept."""
    (found,) = nodes_from_bytes(trace(node(1, "n", COMP, op_schema="x" * 1000, tid=3)), "x")
    assert found.attributes == {"tid": 3}

"""ASTRA-sim's and SimAI's workloads: what waits for what, sizes, groups, and what is refused.

An independent simulator walks the loops as the simulators do, one clock and one queue a group, and
must agree with the graph under a plan that launches in order of issue.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import shared_data
from strategies import PROPERTY

import commsched
from commsched.models import AlphaBeta, Bucket, Collective, Compute, InputError, Plan
from commsched.problems.readers import ReadOptions
from commsched.problems.recorded import RecordedGraph, RecordedStep
from commsched.problems.sources.source import Source
from commsched.problems.workloads.astra_rows import POLICIES, parse_workload
from commsched.problems.workloads.astra_workload import READER

COST = AlphaBeta(7, 2)
KINDS = {
    "ALLREDUCE": "allreduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}
TWO = """\
DATA
2
a\t-1\t10\tNONE\t0\t20\tNONE\t0\t30\tALLREDUCE\t4096\t5
b -1  100 NONE 0  200 NONE 0  300  ALLREDUCE  8192  7
"""


def read(path, text=None, **options):
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return READER.read([Source(path)], ReadOptions(**options))


def outcome(path, text, **options):
    """Return what is read, or the message of the refusal."""
    try:
        return read(path, text, **options)
    except InputError as error:
        return str(error)


def problem_of(step):
    return step.with_costs(dict.fromkeys(step.needs, COST))


def by_name(step):
    return {task.name: task for task in step.tasks}


class Loop:
    """The simulators' loop, written down as a clock: ``now`` and each group's free time."""

    def __init__(self, header: list[str], rows: list[list[str]], alone: set[str], gather: int):
        self.policy, self.rows, self.alone, self.gather = header[0], rows, alone, gather
        self.bottom = int(header[1]) if "DLRM" in self.policy else -1
        self.now = 0
        self.free: Counter[str] = Counter()
        self.ends: dict[str, int] = {}
        self.last_update: Counter[str] = Counter()
        self.groups = ("dp", "dp")
        if self.policy in ("MODEL", "DISTRIBUTED_INFERENCE"):
            self.groups = ("tp", "tp")
        elif self.policy.startswith("HYBRID") and "DLRM" not in self.policy:
            self.groups = ("tp", "dp")

    def issue(self, row: list[str], column: int, blocking: bool) -> int:
        kind, size = row[column], int(row[column + 1])
        group = self.groups[column == 9]
        if kind == "NONE" or size == 0 or group in self.alone:
            return self.now
        if kind == "ALLGATHER" and group == "tp":
            size *= self.gather
        end = max(self.now, self.free[group]) + COST.ns(size)
        self.free[group] = end
        delay = int(row[11])
        # Delays of weight gradients queue up, as those of input gradients do.
        done = end + delay if blocking or not delay else max(end, self.last_update[column]) + delay
        if not blocking:
            self.last_update[column] = done
        self.ends[f"{row[0]}/{column}"] = done
        if blocking:
            self.now = done
        return done

    def run(self) -> int:
        rows, last = self.rows, len(self.rows) - 1
        if self.policy == "MICRO":
            return self.issue(rows[0], 9, blocking=False)
        exchanged = 0
        for number, row in enumerate(rows):
            self.now += int(row[2])
            if "DLRM" in self.policy:
                if row[3] == "ALLTOALL":
                    end = self.issue(row, 3, blocking=False)
                    exchanged = exchanged if number else end
                elif number == self.bottom:
                    self.now = max(self.now, exchanged)
            elif self.policy != "DATA":
                self.issue(row, 3, blocking=True)
        if self.policy == "DISTRIBUTED_INFERENCE":
            return self.end()
        exchanged = 0
        for number in range(last, -1, -1):
            row = rows[number]
            if self.policy == "DATA" or "DLRM" in self.policy:
                self.now += int(row[8])
                self.issue(row, 9, blocking=False)
                if number:
                    self.now += int(row[5])
                    if number == self.bottom + 1 and "DLRM" in self.policy:
                        exchanged = self.issue(rows[0], 6, blocking=False)
            elif "TRANSFORMER" in self.policy:
                self.now += int(row[5])
                self.issue(row, 6, blocking=True)
                self.now += int(row[8])
                self.issue(row, 9, blocking=False)
            else:
                self.now += int(row[5])
                end = self.issue(row, 6, blocking=False) if number else 0
                self.now += int(row[8])
                if self.policy != "MODEL":
                    self.issue(row, 9, blocking=False)
                self.now = max(self.now, end)
        if self.policy == "HYBRID_DLRM":
            self.now = max(self.now, exchanged)
        return self.end()

    def end(self) -> int:
        return max([self.now, *self.ends.values()])


COMMS = st.tuples(st.sampled_from(["NONE", *KINDS]), st.sampled_from([0, 1024, 40960]))


@given(
    st.sampled_from([p for p in POLICIES if p != "HYBRID_CUSTOMIZED"]),
    st.lists(
        st.tuples(*(st.integers(0, 40_000) for _ in range(3)), st.integers(0, 900), *[COMMS] * 3),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 5),
    st.sampled_from([0, 1, 4]),
)
@PROPERTY
def test_the_graph_is_the_simulators_loop(tmp_path_factory, policy, layers, bottom, tensor):
    """Launched in order of issue, the graph ends when the loop does."""
    bottom %= len(layers)
    rows = [
        ["l" + str(k), "-1", *map(str, (f, *fc, i, *ic, w, *wc, update))]
        for k, (f, i, w, update, fc, ic, wc) in enumerate(layers)
    ]
    header = [policy]
    if "DLRM" in policy:
        header.append(str(bottom))
    if "TRANSFORMER" in policy and tensor:
        header += ["model_parallel_NPU_group:", str(tensor)]
    else:
        tensor = 0
    text = "\n".join(["\t".join(header), str(len(rows)), *map(" ".join, rows)])
    path = tmp_path_factory.mktemp("w") / "w.txt"
    alone = {"tp"} if tensor == 1 else set()
    loop = Loop(header, rows, alone, max(tensor, 1))
    expected = loop.run()
    step = outcome(path, text, graph=True)
    if isinstance(step, str):
        assert "nothing to plan" in step
        assert not loop.ends
        return
    problem = problem_of(step)
    plan = Plan(tuple(Bucket((name,)) for name in problem.names))
    assert commsched.evaluate(problem, plan).makespan_ns == expected
    assert len(problem.names) == len(loop.ends)


def test_data_parallelism_is_plain_gradients(tmp_path):
    """Weight gradient before input gradient; the first layer has no input gradient."""
    step = read(tmp_path / "w.txt", TWO)
    assert isinstance(step, RecordedStep)
    assert [(g.name, g.bytes, g.ready_ns) for g in step.gradients] == [
        ("b", 8192, 410),
        ("a", 4096, 640),
    ]
    assert step.backward_end_ns == 640
    assert step.report.dropped == {"delays after collectives": 2}
    graph = read(tmp_path / "w.txt", graph=True)
    assert isinstance(graph, RecordedGraph)
    assert by_name(graph)["update after b"] == Compute(
        "update after b", 7, "weight updates", ("b",)
    )
    other = read(tmp_path / "w.txt", TWO.replace("ALLREDUCE\t4096", "REDUCESCATTER\t4096"))
    assert isinstance(other, RecordedGraph)


def test_checkpoints_are_recomputed(tmp_path):
    """Before layer 2's backward the forward of layers 0 and 1 runs again, collective and all."""
    rows = "\n".join(f"l{k} -1 1{k} ALLREDUCE 64 2 NONE 0 3 NONE 0 0" for k in range(3))
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 "
    text = f"{header}checkpoints: 1 0 checkpoint_initiates: 1 2\n3\n{rows}"
    step = read(tmp_path / "w.txt", text)
    names = [task.name for task in step.tasks if task.name.endswith(("l0", "l1", "forward"))]
    again = names.index("recomputed forward of l0")
    assert names[again : again + 4] == [
        "recomputed forward of l0",
        "l0 recomputed forward",
        "recomputed forward of l1",
        "l1 recomputed forward",
    ]
    assert by_name(step)["input gradient of l2"].after == ("l1 recomputed forward",)
    assert problem_of(step).compute_ns == 2 * 10 + 2 * 11 + 12 + 3 * 5
    for checkpoints in ("1 2 checkpoint_initiates: 1 2", "0 checkpoint_initiates: 1 2"):
        with pytest.raises(InputError, match="needs a checkpoint before it"):
            read(tmp_path / "w.txt", f"{header}checkpoints: {checkpoints}\n3\n{rows}")
    with pytest.raises(InputError, match="layer 7 is named, there are 3"):
        read(tmp_path / "w.txt", f"{header}checkpoints: 1 7\n3\n{rows}")


def test_all_gathers_are_of_all_ranks(tmp_path):
    """One rank's part times the ranks in ASTRA-sim; as written in SimAI; doubted if unknown."""
    row = "l -1 1 ALLGATHER 1000 1 NONE 0 1 NONE 0 0"
    classic = read(tmp_path / "w", f"HYBRID_TRANSFORMER model_parallel_NPU_group: 4\n1\n{row}")
    assert by_name(classic)["l forward"].bytes == 4000
    assert all(check.passed for check in classic.report.checks)
    simai = read(
        tmp_path / "w",
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 all_gpus: 8\n1\n{row}",
    )
    assert by_name(simai)["l forward"].bytes == 1000
    unknown = read(tmp_path / "w", f"HYBRID_DATA_MODEL\n1\n{row}")
    assert by_name(unknown)["l forward"].bytes == 1000
    assert [check.passed for check in unknown.report.checks] == [True, False]


def test_groups_of_simai_and_its_order_of_weights(tmp_path):
    """Suffixes name groups; the header gives ranks; weights are gathered after the scatter."""
    rows = [
        "w1 -1 1 NONE 0 1 NONE 0 1 ALLGATHER 50 0",
        "w2 -1 1 NONE 0 1 NONE 0 1 REDUCESCATTER 100 0",
        "moe -1 1 ALLTOALL_EP 64 1 ALLTOALL_EP 64 1 NONE 0 0",
        "moe -1 1 ALLTOALL 32 1 REDUCESCATTER 0 1 ALLREDUCE_DP_EP 8 0",
        "optimizer1 -1 0 ALLREDUCE 4 0 NONE 0 0 NONE 0 0",
    ]
    header = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 4 pp: 2 vpp: 1 ga: 1 "
        "all_gpus: 64 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 9 new: 3"
    )
    step = read(tmp_path / "w.txt", "\n".join([header, "5", *rows]))
    tasks = by_name(step)
    assert (tasks["moe [2] forward"].group, tasks["moe [3] forward"].group) == ("ep", "tp")
    assert (tasks["moe [3]"].group, tasks["w1"].group) == ("dp_ep", "dp")
    assert "w2" in tasks["w1"].after
    assert (tasks["w1"].dtype, tasks["w2"].dtype) == ("bfloat16", "float32")
    assert tasks["optimizer1 forward"].dtype == "float32"
    assert step.ranks == {"tp": 2, "ep": 4, "dp": 16, "dp_ep": 4}
    assert step.report.dropped == {"collectives of no bytes": 1}
    notes = " ".join(step.report.assumptions)
    assert "pipeline of 2 stages" in notes
    assert "(9 bytes each)" in notes
    assert "not used: new: 3" in notes
    assert problem_of(step).collectives
    odd = read(tmp_path / "w.txt", "\n".join([header.replace("64", "63"), "5", *rows]))
    assert not odd.report.checks[-1].passed
    assert "dp" not in odd.ranks


def test_loops_of_single_layers(tmp_path):
    """Groups across each other have names of their own; what a layer's loop never issues goes."""
    comms = "1 ALLGATHER 8 1 ALLREDUCE 16 1 ALLREDUCE 32 0"
    loops = ("HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "DATA", "MODEL")
    rows = [f"l{k} -1 {comms} {loop}" for k, loop in enumerate(loops)]
    step = read(tmp_path / "w.txt", "\n".join(["HYBRID_CUSTOMIZED", "4", *rows]))
    groups = {task.name: task.group for task in step.tasks if isinstance(task, Collective)}
    assert groups == {
        "l0 forward": "first dimension",
        "l1 forward": "other dimensions",
        "l3 forward": "all",
        "l1 input gradient": "other dimensions",
        "l3 input gradient": "all",
        "l0": "other dimensions",
        "l1": "first dimension",
        "l2": "all",
    }
    assert step.report.dropped == {"collectives that this loop never issues": 4}


def real(name, **options):
    path = shared_data(name)
    assert READER.recognises(path.read_bytes()[: 1 << 20])
    return path, read(path, **options)


@pytest.mark.shared
def test_real_data_parallel_workload():
    """54 layers of ResNet-50; times and bytes summed from the lines themselves."""
    path, step = real("astra-sim/text_workloads/Resnet50_DataParallel.txt")
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    assert len(step.gradients) == len(rows) == 54
    assert sum(g.bytes for g in step.gradients) == sum(int(row[10]) for row in rows)
    times = sum(int(row[2]) + int(row[5]) + int(row[8]) for row in rows) - int(rows[0][5])
    assert step.backward_end_ns == step.gradients[-1].ready_ns == times


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "kept", "recomputed"),
    [
        (
            "DLRM_HybridParallel",
            {"layers": 8, "all_to_all in dp": 2, "allreduce in dp": 7},
            False,
        ),
        (
            "MLP_HybridParallel_Data_Model",
            {"layers": 6, "all_gather in tp": 6, "allreduce in dp": 6, "allreduce in tp": 5},
            False,
        ),
        (
            "Transformer_HybridParallel",
            {"layers": 57, "all_gather in tp": 8, "allreduce in dp": 37, "allreduce in tp": 25},
            False,
        ),
        (
            "Transformer_HybridParallel_Fwd_In_Bckwd",
            {"layers": 21, "allreduce in dp": 14, "allreduce in tp": 15},
            True,
        ),
        ("microAllToAll", {"layers": 1, "all_to_all in dp": 1}, False),
    ],
)
def test_real_workloads(name, kept, recomputed):
    """The files of ASTRA-sim; where nothing is recomputed, the independent loop agrees."""
    path, step = real(f"astra-sim/text_workloads/{name}.txt")
    assert step.report.kept == kept
    problem = problem_of(step)
    plan = Plan(tuple(Bucket((name,)) for name in problem.names))
    lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    if not recomputed:
        ends = commsched.evaluate(problem, plan).makespan_ns
        assert ends == Loop(lines[0], lines[2:], set(), 4 if "Transf" in name else 1).run()
    else:
        again = [task.name for task in step.tasks if task.name.startswith("recomputed")]
        # 2 to 9 before layer 10, and 11 to 18 before layer 19.
        assert again == [
            f"recomputed forward of {lines[2 + k][0]}" for k in (*range(11, 19), *range(2, 10))
        ]


@pytest.mark.shared
def test_real_simai_workload():
    """1789 rows: every collective of some bytes, and the groups that the header gives."""
    path, step = real("simai/workload_analytical.txt")
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    assert len(rows) == 1789
    written = Counter(
        KINDS[row[k].split("_")[0]]
        for row in rows
        for k in (3, 6, 9)
        if row[k] != "NONE" and row[k + 1] != "0"
    )
    problem = problem_of(step)
    assert Counter(task.kind for task in problem.collectives) == written
    assert sum(problem.bytes) == sum(
        int(row[k + 1]) for row in rows for k in (3, 6, 9) if row[k] != "NONE"
    )
    assert step.ranks == {"tp": 2, "ep": 16, "dp": 384, "dp_ep": 24}
    assert step.report.dropped == {"collectives of no bytes": 216}
    assert by_name(step)["grad_gather"].after[-1] == "grad_param_comm"
    assert all(check.passed for check in step.report.checks)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("DATA", "HYBRID_NEW", "line 1 must begin with one of DATA"),
        ("DATA\n2", "DATA", "must hold the number of layers alone"),
        ("DATA\n2\n", "DATA\n3\n", "ends after 2 of 3 layers"),
        ("DATA\n2\n", "DATA\n0\n", "0 layers; there must be 1"),
        ("DATA\n2\n", "DATA\n-2\n", "must be a whole number"),
        ("DATA\n2\n", "DATA\n" + "9" * 29 + "\n", "there must be 1 to"),
        ("DATA", "HYBRID_DLRM", "needs the number of the last bottom layer"),
        ("DATA", "HYBRID_DLRM 2", "the last bottom layer is 2, there are 2"),
        ("DATA", "HYBRID_TRANSFORMER model_parallel_NPU_group: x", "'x' must be a whole number"),
        ("DATA", "HYBRID_TRANSFORMER ep:", "'' must be a whole number"),
        ("DATA", "HYBRID_TRANSFORMER checkpoints: 3 1 1", "must name 3 layers, 2 follow"),
        ("DATA", "HYBRID_TRANSFORMER checkpoints: 999999999 1", "must name 999999999"),
        ("DATA", "HYBRID_CUSTOMIZED", "line 3: a layer has 13 fields, this one 12"),
        ("\t5\n", "\n", "line 3: a layer has 12 fields, this one 11"),
        ("ALLREDUCE\t4096", "BROADCAST\t4096", "'BROADCAST' is not NONE or one of ALLREDUCE"),
        ("ALLREDUCE\t4096", "ALLREDUCE\t-4096", "bytes: '-4096' must be a whole number"),
        ("ALLREDUCE\t4096", "ALLREDUCE\t4.5", "'4.5' must be a whole number"),
        ("ALLREDUCE\t4096", "ALLREDUCE\t1125899906842625", "1 PiB"),
        ("a\t-1\t10\t", "a\t-1\tnan\t", "forward time: 'nan'"),
        ("a\t-1\t10\t", "a\t-1\t1125899906842625\t", "13 days"),
        ("a\t-1\t10\t", "a\t-1\t1125899906842624\t", "together take longer"),
        ("a\t-1\t10\t", "a" * 201 + "\t-1\t10\t", "more than 200 characters"),
        ("a\t-1", "a" + " " * 20_000 + "-1", "line 3 has more than 20000 characters"),
        ("ALLREDUCE", "NONE", "issues none of the file's collectives"),
    ],
)
def test_malformed_workloads_are_refused(tmp_path, old, new, message):
    """One line that names the file, the line and the value."""
    path = tmp_path / "w.txt"
    with pytest.raises(InputError, match=message) as error:
        read(path, TWO.replace(old, new))
    assert str(error.value).startswith(str(path))


def test_lines_beyond_the_stated_number_are_doubted(tmp_path):
    """They are not read, as the simulators do, and the report says so."""
    step = read(tmp_path / "w.txt", TWO.replace("DATA\n2", "DATA\n1"))
    assert [g.name for g in step.gradients] == ["a"]
    assert step.report.dropped["lines beyond the stated number of layers"] == 1
    assert not step.report.checks[0].passed


def test_only_workloads_are_recognised():
    """A loop, a number of layers and a layer; tabs or spaces."""
    data = TWO.encode()
    assert READER.recognises(data)
    assert READER.recognises(data.replace(b"\n", b"\t\t\r\n"))
    for text in (
        b"",
        b"DATA\n2\n",
        b"DATA\n2\nhello\n",
        b"DATABASE\n" + data[5:],
        b'{"traceEvents": []}\n' + data,
        b"\0" + data,
    ):
        assert not READER.recognises(text)


def test_names_never_clash(tmp_path):
    """Layers named like the tasks of others, and the same name many times."""
    rows = "\n".join(
        f"{name} -1 1 ALLREDUCE 8 1 ALLREDUCE 8 1 ALLREDUCE 8 1"
        for name in ("forward", "forward", "update", "of", "recomputed", "[1]", "input")
    )
    step = read(tmp_path / "w.txt", f"HYBRID_TRANSFORMER model_parallel_NPU_group: 2\n7\n{rows}")
    assert len(problem_of(step).collectives) == 21


def test_parsed_rows_keep_what_is_written(tmp_path):
    """The parser alone: groups, empty collectives, words that mean nothing."""
    path = tmp_path / "w.txt"
    text = "MODEL extra\n1\nx 9 1 ALLTOALL_EP 2 3 NONE 4 5 ALLGATHER 0 6\n"
    workload = parse_workload(Source(path), text)
    (row,) = workload.rows
    assert (row.forward.kind, row.forward.group, row.forward.bytes) == ("all_to_all", "ep", 2)
    assert (row.input, row.weight, workload.empty, workload.unused) == (None, None, 1, ("extra",))
    assert (row.forward_ns, row.input_ns, row.weight_ns, row.update_ns) == (1, 3, 5, 6)


def test_damage_never_escapes(tmp_path):
    """Flipped bytes, cuts and swapped words give a valid step or a refusal."""
    path = tmp_path / "w.txt"
    base = (
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 all_gpus: 8 "
        "checkpoints: 1 0 checkpoint_initiates: 1 1\n2\n"
        "a -1 1 ALLGATHER 8 1 ALLTOALL_EP 8 1 REDUCESCATTER 8 1\n"
        "b -1 1 ALLGATHER 8 1 ALLTOALL_EP 8 1 ALLGATHER_DP_EP 8 1\n"
    )
    rng = random.Random(3)
    words = ["NONE", "-1", "0", "9" * 25, "ALLREDUCE_TP", "\n", "ep:", "checkpoints:", "DATA", "²"]
    for number in range(500):
        if number % 2:
            data = bytearray(base.encode())
            for _ in range(rng.randint(1, 5)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 3)] = bytes([rng.randrange(256)])
            text = bytes(data)
        else:
            parts = base.split(" ")
            for _ in range(rng.randint(1, 4)):
                parts[rng.randrange(len(parts))] = rng.choice(words)
            text = " ".join(parts).encode()
        READER.recognises(text)
        step = outcome(path, text)
        if isinstance(step, str):
            assert "\n" not in step
        else:
            problem_of(step)


@pytest.mark.shared
def test_damaged_real_files_never_escape(tmp_path):
    """Flipped bytes and cuts of real workloads."""
    rng = random.Random(23)
    for name in (
        "astra-sim/text_workloads/DLRM_HybridParallel.txt",
        "astra-sim/text_workloads/Transformer_HybridParallel_Fwd_In_Bckwd.txt",
        "astra-sim/text_workloads/Resnet50_DataParallel.txt",
    ):
        whole = shared_data(name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 8)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(0, 4)] = bytes([rng.randrange(256)])
            if rng.random() < 0.2:
                del data[rng.randrange(1, len(data)) :]
            path = tmp_path / "damaged"
            path.write_bytes(data)
            step = outcome(path, None)
            if isinstance(step, str):
                assert "\n" not in step
            else:
                problem_of(step)

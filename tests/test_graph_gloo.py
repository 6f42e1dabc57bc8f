"""Step graphs of the processor: gloo runs collectives on threads of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from graph_checks import before, collectives, computes, evidence, failed, notes, played, read_graph
from trace_maker import GLOO, GLOO_OLD, Maker, write_trace

from commsched.models import InputError
from commsched.problems.profiler.profiler_trace import read_profiler_trace

OPS = {
    "allreduce": ("c10d::allreduce_", "gloo:all_reduce"),
    "all_gather": ("c10d::_allgather_base_", "gloo:all_gather"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "gloo:all_reduce"),
    "all_to_all": ("c10d::alltoall_base_", "gloo:all_to_all"),
    "broadcast": ("c10d::broadcast_", "gloo:broadcast"),
}


@dataclass
class Processor:
    """One thread that works, and gloo's threads that run its collectives one by one."""

    events: list[dict] = field(default_factory=list)
    now: float = 100.0
    free: float = 0.0
    config: bool = True

    def add(self, name, start, end, tid=1, cat="cpu_op", **args):
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid,
                            "ts": start, "dur": end - start, "args": args})  # fmt: skip

    def work(self, us, name="aten::mm"):
        self.add(name, self.now, self.now + us)
        self.now += us

    def collective(self, kind, elements, us, ranks=2):
        """Issue a collective; return when it ends."""
        op, run = OPS[kind]
        share = elements // ranks
        sent = share if kind == "all_gather" else elements
        received = share if kind == "reduce_scatter" else elements
        dims, types = [[received], [sent]], ["float", "float"]
        if kind in ("allreduce", "broadcast"):
            dims, types = [[[sent]]], ["TensorList"]
        self.add(op, self.now, self.now + 20, **{"Input Dims": dims, "Input type": types})
        start = max(self.free, self.now + 15)
        self.free = start + us
        self.add(run, start, self.free, 9, "user_annotation",
                 **{"Input Dims": [[sent]], "Input type": ["float"]})  # fmt: skip
        self.now += 20
        return self.free

    def wait(self, end):
        """Block until a collective has ended, if it has not."""
        self.now = max(self.now, end + 30)

    def write(self, path: Path, start=90.0) -> Path:
        self.add("ProfilerStep#2", start, self.now + 5, cat="user_annotation")
        info: dict = {"backend": "gloo", "rank": 0, "world_size": 2}
        if self.config:
            info["pg_config"] = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2}]
        path.write_text(json.dumps({"distributedInfo": info, "traceEvents": self.events}))
        return path


def test_a_blocked_processor_waits_for_what_ended_meanwhile(tmp_path):
    """Between two operations nothing happened until the all-to-all had ended."""
    cpu = Processor()
    cpu.work(300)
    cpu.wait(cpu.collective("all_to_all", 1000, 900))
    cpu.work(400)
    graph = read_graph(cpu.write(tmp_path / "t"))
    assert not failed(graph)
    (task,) = collectives(graph)
    assert (task.kind, task.bytes, task.group) == ("all_to_all", 4000, "default_pg")
    assert graph.ranks == {"default_pg": 2}
    first, beside, last = computes(graph)
    assert first.duration_ns == 325_000  # 10 us of the step before it, 300 of work, 15 of issue
    assert beside.duration_ns == 5_000
    assert task.after == (first.name,)
    assert last.after == (task.name,)
    assert last.duration_ns == 435_000
    assert "1: the processor was blocked until it ended" in evidence(graph)
    assert graph.end_ns == 1_660_000
    assert played(graph, 1e6).makespan_ns < 1_660_000 - 890_000


def test_bytes_are_those_of_the_whole_operation(tmp_path):
    """Of an all-gather the result counts, of a reduce-scatter the input."""
    cpu = Processor()
    for kind in OPS:
        cpu.work(100)
        cpu.wait(cpu.collective(kind, 600, 200))
    graph = read_graph(cpu.write(tmp_path / "t"))
    assert {(task.kind, task.bytes) for task in collectives(graph)} == {
        (kind, 2400) for kind in OPS
    }
    assert not failed(graph)


def test_what_runs_beside_work_is_not_waited_for_there(tmp_path):
    """The processor works on while the collective runs, and waits for it later."""
    cpu = Processor()
    cpu.work(100)
    end = cpu.collective("all_gather", 4000, 700)
    cpu.work(500)
    cpu.wait(end)
    cpu.work(200)
    graph = read_graph(cpu.write(tmp_path / "t"))
    (task,) = collectives(graph)
    _, beside, last = computes(graph)
    assert beside.duration_ns == 505_000
    assert task.name not in before(graph, beside.name)
    assert last.after == (task.name,)
    assert not failed(graph)


def test_without_any_sign_the_next_work_is_taken_to_wait(tmp_path):
    """It had ended before anybody waited: what began next may be what needs it."""
    cpu = Processor()
    cpu.work(100)
    cpu.collective("broadcast", 4000, 200)
    cpu.work(500)
    cpu.work(150)
    cpu.wait(cpu.collective("broadcast", 8000, 400))
    cpu.work(200)
    graph = read_graph(cpu.write(tmp_path / "t"))
    first, second = collectives(graph)
    waiting = next(task for task in computes(graph) if first.name in task.after)
    assert waiting.duration_ns == 165_000
    assert second.after == (waiting.name,)
    assert "1: assumed, the first work that started after it had ended" in evidence(graph)


def test_a_collective_that_ended_at_once_is_taken_to_be_waited_for_at_once(tmp_path):
    """It ended while it was still being issued; the next work may need it."""
    cpu = Processor()
    cpu.work(100)
    cpu.collective("all_to_all", 4000, 2)
    cpu.work(500)
    cpu.wait(cpu.collective("all_to_all", 4000, 300))
    cpu.work(100)
    graph = read_graph(cpu.write(tmp_path / "t"))
    first = collectives(graph)[0]
    assert first.name in before(graph, collectives(graph)[1].name)


def test_functional_collectives_are_waited_for_where_wait_tensor_is(tmp_path):
    """Compiled code waits in an operation of its own, also for the input of the next collective."""
    cpu = Processor()
    cpu.work(100)
    outer = cpu.now
    cpu.now += 5
    end = cpu.collective("allreduce", 5000, 300)
    cpu.add("_c10d_functional::all_reduce", outer, cpu.now, **{"Input Dims": [[5000], [], []],
            "Input type": ["float", "", ""]})  # fmt: skip
    cpu.work(350)
    cpu.add("_c10d_functional::wait_tensor", cpu.now, cpu.now + 20,
            **{"Input Dims": [[5000]], "Input type": ["float"]})  # fmt: skip
    cpu.now += 20
    assert cpu.now > end
    cpu.work(100)
    graph = read_graph(cpu.write(tmp_path / "t"))
    (task,) = collectives(graph)
    assert task.bytes == 20_000
    last = computes(graph)[-1]
    assert last.after == (task.name,)
    assert last.duration_ns == 125_000
    assert "1: a wait after it was recorded" in evidence(graph)


def test_gradients_are_waited_for_after_backward(tmp_path):
    """DDP's buckets: the work of backward goes on, the gradients are ready one by one."""
    maker = Maker(GLOO)
    truth = maker.step([(1000,), (1000, 512), (64,)], [2, 3])
    graph = read_graph(write_trace(tmp_path / "t", maker.top()))
    assert [launch.names for launch in graph.launches] == [
        ("grad000 [1000]", "grad001 [1000x512]"),
        ("grad002 [64]",),
    ]
    assert [(launch.start_ns, launch.end_ns) for launch in graph.launches] == [
        launch[1:] for launch in truth.launches
    ]
    assert not failed(graph)
    last = computes(graph)[-1]
    assert {task.name for task in collectives(graph)} <= before(graph, last.name)
    ready = played(graph).problem.ready_ns
    # The last one of a bucket is ready when the bucket is issued.
    assert ready[0] == truth.ready[0]
    assert truth.ready[1] <= ready[1] <= truth.launches[0][0] + 12_000


def test_old_traces_only_have_gloos_threads(tmp_path):
    """Nothing says when the collectives were issued: their own start stands for it."""
    maker = Maker(GLOO_OLD)
    maker.step([(100,)], [1])
    graph = read_graph(write_trace(tmp_path / "t", maker.top()))
    assert len(graph.launches) == 1
    assert graph.launches[0].bytes == 400
    assert graph.launches[0].names == ("grad000 [100]",)


def test_launches_of_one_group_that_overlap_are_said(tmp_path):
    """gloo has two threads for one group; a plan runs a group's launches one by one."""
    cpu = Processor()
    cpu.work(100)
    cpu.collective("broadcast", 4000, 600)
    cpu.free = 0
    cpu.wait(cpu.collective("broadcast", 4000, 600))
    cpu.work(100)
    graph = read_graph(cpu.write(tmp_path / "t"))
    assert failed(graph)[0] == (
        "launches that overlap another one of their group: 1 (a plan runs them one by one)"
    )
    assert any("reproduced within" in text for text in failed(graph))


def test_an_unknown_group_is_taken_for_all_ranks(tmp_path):
    """An all-gather whose result was not recorded needs the number of ranks for its size."""
    cpu = Processor(config=False)
    cpu.work(100)
    cpu.wait(cpu.collective("all_gather", 4000, 600))
    cpu.work(100)
    for event in cpu.events:
        if event["name"].startswith("c10d"):
            event["args"]["Input Dims"][0] = []
            event["args"]["Input type"][0] = ""
    graph = read_graph(cpu.write(tmp_path / "t"))
    assert collectives(graph)[0].bytes == 16_000
    assert graph.ranks == {"dp": 2}
    assert "taken for all 2 ranks" in notes(graph)


def test_collectives_without_work_are_refused(tmp_path):
    """Only gloo's threads were recorded: nothing says when anything was ready."""
    cpu = Processor()
    cpu.add("gloo:all_reduce", 100, 200, 9, "user_annotation",
            **{"Input Dims": [[5]], "Input type": ["float"]})  # fmt: skip
    path = cpu.write(tmp_path / "t")
    with pytest.raises(InputError, match="1 collectives, and no work of the processor"):
        read_profiler_trace(path)

"""Step graphs of unusual traces: missing sizes, odd kernels, old formats, and what is refused."""

from __future__ import annotations

import json
import random

import pytest
from graph_checks import (
    before,
    collectives,
    computes,
    evidence,
    failed,
    graph_of,
    notes,
    played,
    read_graph,
)
from graph_maker import COMM, MAIN, Gpu, Shown
from graph_programs import blocked, fsdp2, made, moe
from trace_checks import ENDS, SHAPES, refused
from trace_checks import made as made_ddp
from trace_maker import NEW, STYLES, Maker, write_trace

from commsched.models import InputError
from commsched.models.errors import CycleError
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.recorded import RecordedGraph, RecordedStep

NOTE = "user_annotation"


def kernel_only(gpu: Gpu, name: str, us: float, stream=COMM, **args) -> None:
    """Run a kernel of a library that tells PyTorch nothing of its collectives."""
    mark = gpu.record(MAIN)
    gpu.wait(stream, mark)
    gpu.run(name, stream, us * 1000, "cuLaunchKernelEx", **args)
    gpu.wait(MAIN, gpu.record(stream))


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::internode::dispatch<false, 8>(int4*)",
        "void primus_turbo::ep::internode::combine<false>(int4*)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "multimem_all_reduce_kernel",
    ],
)
def test_a_collective_without_a_size_is_work_of_its_own(tmp_path, name):
    """It keeps its place and its time, no plan moves it, and the report says so."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            kernel_only(gpu, name, 200)
            gpu.kernel(70)
            gpu.collective("allreduce", 100_000, sync=True)
            gpu.kernel(40)

    gpu = made(program)
    graph = read_graph(gpu.write(tmp_path / "t"))
    (task,) = collectives(graph)
    (own,) = computes(graph, "collectives of stream 20")
    assert own.duration_ns == 200_000
    assert own.name in before(graph, task.name)
    assert "collectives whose size is recorded: 1 of 2" in failed(graph)
    assert "1 collectives without a recorded size or kind are work of their own" in notes(graph)
    assert played(graph, 1).makespan_ns == pytest.approx(gpu.length, rel=0.01)
    assert played(graph, 1000).makespan_ns > 360_000


def test_a_step_of_which_no_size_is_known_is_refused(tmp_path):
    """It cannot be priced, and one line says why."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            kernel_only(gpu, "void deep_ep::intranode::dispatch()", 200)
            gpu.kernel(70)

    message = refused(made(program).write(tmp_path / "t"))
    assert "ProfilerStep#3: no size was recorded of any of its 1 collectives" in message


def test_a_kernel_that_says_all_of_itself_needs_no_event(tmp_path):
    """Its own arguments have the kind, the size and the group."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            kernel_only(gpu, "ncclDevKernel_Generic_4(args)", 200,
                        **{"Collective name": "_allgather_base", "In msg nelems": 1000,
                           "Out msg nelems": 4000, "Group size": 4, "dtype": "BFloat16",
                           "Process Group Name": "3", "Process Group Description": "tp"})  # fmt: skip
            gpu.kernel(70)

    (task,) = collectives(graph := graph_of(tmp_path, program))
    assert (task.kind, task.bytes, task.group, task.dtype) == (
        "all_gather", 8000, "tp", "bfloat16",
    )  # fmt: skip
    assert graph.ranks == {"tp": 4}
    assert not failed(graph)


def test_coalesced_calls_share_the_kernel_launched_for_them(tmp_path):
    """Two gathers are recorded, then one kernel runs both: one launch of two collectives."""

    def program(gpu: Gpu) -> None:
        args = {"Collective name": "_allgather_base", "Group size": 4, "dtype": "Float",
                "Process Group Name": "0", "Process Group Description": "pg"}  # fmt: skip
        with gpu.step():
            gpu.kernel(50)
            for elements in (1000, 3000):
                sizes = {"In msg nelems": elements, "Out msg nelems": 4 * elements}
                with (
                    gpu.op("c10d::_allgather_base_"),
                    gpu.op("record_param_comms", **args, **sizes),
                ):
                    gpu.host(1)
            with gpu.op("nccl:coalesced", cat="user_annotation"):
                gpu.run("ncclDevKernel_AllGather", COMM, 300_000)
            gpu.wait(MAIN, gpu.record(COMM))
            gpu.kernel(70)

    graph = graph_of(tmp_path, program)
    assert [task.bytes for task in collectives(graph)] == [16_000, 48_000]
    (launch,) = graph.launches
    assert launch.names == tuple(task.name for task in collectives(graph))
    assert launch.bytes == 64_000
    assert launch.end_ns - launch.start_ns == 300_000
    assert not failed(graph)


def test_lists_of_tensors_and_reduces_are_counted(tmp_path):
    """An old all-gather has lists; a reduce to one rank counts as a broadcast and is said."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            lists = {
                "Input Dims": [[[[25], [25], [25], [25]]], [[25]]],
                "Input type": ["", "TensorList"],
            }
            half = {"Input Dims": [[25]], "Input type": ["c10::Half"]}
            with gpu.op("c10d::allgather_", **lists), gpu.op("nccl:all_gather", NOTE, **half):
                gpu.run("ncclKernel_AllGather", COMM, 30_000)
            gpu.kernel(50)
            tensor = {"Input Dims": [[[6, 5]]], "Input type": ["TensorList"]}
            single = {"Input Dims": [[30]], "Input type": ["float"]}
            with gpu.op("c10d::reduce_", **tensor), gpu.op("nccl:reduce", NOTE, **single):
                gpu.run("ncclKernel_Reduce", COMM, 30_000)
            with gpu.op("c10d::barrier"):
                gpu.host(5)
            gpu.kernel(50)

    graph = graph_of(tmp_path, program)
    assert [(task.kind, task.bytes) for task in collectives(graph)] == [
        ("all_gather", 200),
        ("broadcast", 120),
    ]
    assert "1 reduces to one rank are counted as broadcasts" in notes(graph)
    assert graph.report.dropped["barriers and other calls that move no data"] == 1


def test_collectives_on_the_compute_stream_hold_up_what_follows(tmp_path):
    """Newer versions run a synchronous collective on the current stream: nothing overlaps it."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            for _ in range(3):
                gpu.kernel(50)
                gpu.collective("all_gather", 200_000, stream=MAIN)
                gpu.kernel(70)

    for shown in (Shown(), Shown(False, False, False)):
        graph = graph_of(tmp_path, program, shown)
        assert not failed(graph)
        stream = computes(graph, "stream 7")
        assert [task.duration_ns // 1000 for task in stream] == [50, 120, 120, 70]
        for k, task in enumerate(collectives(graph)):
            assert stream[k].name in task.after
            assert task.name in stream[k + 1].after
        for bandwidth in (0.5, 1, 100):
            truth = made(program, shown, bandwidth).length
            assert played(graph, bandwidth).makespan_ns == pytest.approx(truth, rel=0.01)


def test_groups_without_names_are_told_apart_by_stream(tmp_path):
    """NCCL has one stream for each communicator."""
    graph = graph_of(tmp_path, moe(), Shown(sync_rows=False, names=False))
    assert {task.group for task in collectives(graph)} == {"stream 20", "stream 28"}
    assert "each of the 2 communication streams is taken for one" in notes(graph)
    assert "the number of ranks was not recorded for 2 groups" in notes(graph)
    assert graph.ranks == {}
    alone = graph_of(tmp_path, blocked(), Shown(sync_rows=False, names=False))
    assert {task.group for task in collectives(alone)} == {"dp"}
    assert alone.ranks == {"dp": 4}


def test_two_groups_of_one_description_are_kept_apart(tmp_path):
    """Their short names tell them apart."""
    gpu = made(moe())
    for event in gpu.events:
        if "Process Group Description" in event["args"]:
            event["args"]["Process Group Description"] = "mesh"
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert {task.group for task in collectives(graph)} == {"mesh ep", "mesh dp"}


def test_waits_with_numbers_find_their_collective(tmp_path):
    """The wait for the second of two all-to-alls comes first, and says its number."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(20)
            first = gpu.collective("all_to_all", 20_000)
            second = gpu.collective("all_to_all", 20_000)
            gpu.kernel(100)
            gpu.wait_work(second)
            gpu.kernel(100)
            gpu.wait_work(first)
            gpu.kernel(100)

    gpu = made(program, Shown(sync_rows=False))
    numbers = iter([1, 2, 2, 1])
    for event in sorted(gpu.events, key=lambda event: event["ts"]):
        if event["name"] == "record_param_comms":
            event["args"]["Seq"] = next(numbers)
    graph = read_graph(gpu.write(tmp_path / "t"))
    first, second = collectives(graph)
    stream = computes(graph, "stream 7")
    assert second.name in stream[2].after
    assert first.name not in before(graph, stream[2].name)
    assert first.name in stream[3].after


def test_kernels_launched_before_the_recording_are_dropped(tmp_path):
    """Without a launch nobody knows what they belong to, and collectives have no size."""
    gpu = made(moe())
    early = [{**e, "ts": e["ts"] - 5000, "args": {}} for e in gpu.events if e["cat"] == "kernel"][
        :6
    ]
    gpu.events += early
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert not failed(graph)
    dropped = graph.report.dropped
    assert dropped["kernels and copies whose launch was not recorded"] == 3
    assert dropped["collective kernels whose launch was not recorded"] == 3


def test_kernels_of_a_cuda_graph_are_placed_by_their_stream(tmp_path):
    """They have no launch of their own but ran between others of their stream: they are work."""
    gpu = made(moe(1))
    kernels = [e for e in gpu.events if e["cat"] == "kernel" and e["tid"] == MAIN]
    for event in kernels[1:3]:
        event["args"]["correlation"] += 10_000
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert sum(task.duration_ns for task in computes(graph, "stream 7")) == 540_000
    assert "2 kernels of the trace have no recorded launch" in notes(graph)


def test_modules_give_names(tmp_path):
    """With stacks recorded, a stretch of work is called by the module that covers it."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            for k in range(2):
                with gpu.op(f"nn.Module: Expert_{k}", cat="python_function"):
                    with gpu.op("nn.Module: Linear_0", cat="python_function"):
                        gpu.kernel(50)
                    gpu.kernel(100)
                    gpu.collective("all_to_all", 100_000, sync=True)
            with gpu.note("my own note"):
                gpu.kernel(10)

    graph = graph_of(tmp_path, program)
    assert [task.name for task in computes(graph, "stream 7")] == [
        "forward Expert_0",
        "forward Expert_1",
        "my own note",
    ]


def test_compiled_ddp_gives_its_all_reduces(tmp_path):
    """All of them run inside one compiled function, before any gradient is accumulated."""
    maker = Maker(NEW)
    maker.step(SHAPES, [])
    hook = next(e for e in maker.events if "evaluate_function: torch" in e["name"])
    at = round(hook["ts"] * 1000) - 60_000
    maker.op("autograd::engine::evaluate_function: CompiledFunctionBackward", at, at + 50_000,
             tid=maker.backward)  # fmt: skip
    for k in range(3):
        maker.all_reduce(at + 1000 + k * 15_000, 555_177, "float32", maker.gpu_free)
    graph = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert isinstance(graph, RecordedGraph)
    assert [(task.kind, task.bytes) for task in collectives(graph)] == [
        ("allreduce", 4 * 555_177)
    ] * 3
    assert len(graph.launches) == 3
    assert not failed(graph)
    assert "3: nothing found: the end of the step waits" in evidence(graph)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_a_ddp_step_as_a_graph_has_the_same_buckets(tmp_path, style):
    """Ten years of formats: the gradients, their bytes and the launches are those of the step."""
    path, truth = made_ddp(tmp_path, style)
    step, graph = read_profiler_trace(path), read_graph(path)
    assert isinstance(step, RecordedStep)
    assert not failed(graph)
    assert graph.plan == step.plan
    sizes = {task.name: task.bytes for task in collectives(graph)}
    assert sizes == {gradient.name: gradient.bytes for gradient in step.gradients}
    assert [(x.start_ns, x.end_ns) for x in graph.launches] == [x[1:] for x in truth.launches]
    ready = dict(zip(played(graph).problem.names, played(graph).problem.ready_ns, strict=True))
    closing = {bucket[-1] for bucket in truth.buckets}
    for k, gradient in enumerate(step.gradients):
        late = ready[gradient.name] - gradient.ready_ns
        # The one that closes a bucket is also copied into it, and issued, before the launch.
        assert 0 <= late <= (50_000 if k in closing else 0)


def test_a_ddp_step_without_sizes_has_its_buckets_as_collectives(tmp_path):
    """The members are unknown; the launches' own sizes are there."""
    path, truth = made_ddp(tmp_path, STYLES["new"].__class__(shapes=False))
    assert "read the step as a graph (--graph)" in refused(path)
    graph = read_graph(path)
    assert [task.bytes for task in collectives(graph)] == [
        sum(truth.bytes[k] for k in bucket) for bucket in truth.buckets
    ]
    assert "buckets of gradients are collectives as a whole" in notes(graph)


def test_ddp_with_experts_is_a_graph_without_asking(tmp_path):
    """What waits for the all-to-alls matters as much as the gradients do."""
    maker = Maker(NEW)
    maker.step(SHAPES, ENDS)
    maker.op("c10d::alltoall_base_", 1_050_000, 1_055_000, tid=maker.main,
             dims=[[64], [64]], types=["float", "float"])  # fmt: skip
    graph = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert isinstance(graph, RecordedGraph)
    assert {task.kind for task in collectives(graph)} == {"all_to_all", "allreduce"}
    assert "collectives matched with kernels: 2 of 3" in failed(graph)


@pytest.mark.parametrize("in_optimizer", [True, False])
def test_broadcasts_of_parameters_make_a_graph_and_those_of_buffers_do_not(tmp_path, in_optimizer):
    """ZeRO's optimizer ends with broadcasts that the step waits for; DDP's are in forward."""
    maker = Maker(STYLES["gloo"])
    maker.step(SHAPES, ENDS)
    update = next(e for e in maker.events if e["name"].startswith("Optimizer"))
    at = round(update["ts"] * 1000) + 5_000 if in_optimizer else 1_020_000
    maker.op("c10d::broadcast_", at, at + 2_000, tid=maker.main,
             dims=[[[64, 2]]], types=["TensorList"])  # fmt: skip
    maker.op("gloo:broadcast", at + 1_000, at + 9_000, tid=maker.gloo, dims=[[64, 2]],
             types=["float"], cat="user_annotation")  # fmt: skip
    found = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert isinstance(found, RecordedGraph) == in_optimizer
    if isinstance(found, RecordedGraph):
        assert [(x.kind, x.bytes) for x in found.launches][-1] == ("broadcast", 512)
        assert not failed(found)


def test_traces_without_anything_to_plan_are_refused(tmp_path):
    """One line says what the trace has instead."""

    def alone(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)

    path = made(alone).write(tmp_path / "t")
    assert "the trace has no collective; it has 1 kernels and copies" in refused(path)

    def two(gpu: Gpu) -> None:
        alone(gpu)
        with gpu.step(4):
            gpu.kernel(50)
            gpu.collective("allreduce", 1000)

    path = made(two).write(tmp_path / "t")
    assert "ProfilerStep#3 has no collective" in refused(path, step=3)
    assert "which has 3, 4" in refused(path, step=7)
    assert read_profiler_trace(path).step_name == "ProfilerStep#4"
    gpu = made(moe())
    gpu.events = [e for e in gpu.events if e["cat"] != "kernel"]
    assert "neither kernels of a GPU nor" in refused(gpu.write(tmp_path / "t"))
    gpu = made(moe())
    gpu.events = [e for e in gpu.events if e["cat"] != "kernel" or "nccl" in e["name"]]
    assert "12 collectives, but no computation beside them" in refused(gpu.write(tmp_path / "t"))
    for event in gpu.events:
        event["args"].pop("correlation", None)
    message = refused(gpu.write(tmp_path / "t"))
    assert "12 kernels and copies do not say what launched them" in message
    gpu.events = [e for e in gpu.events if e["cat"] == "kernel"]
    message = refused(gpu.write(tmp_path / "t"))
    assert "no collective; it has 12 kernels and copies whose launch was not recorded" in message


@pytest.mark.parametrize("program", [moe(), fsdp2()])
def test_a_trace_that_holds_everything_twice(tmp_path, program):
    """Each event counts once, and the report says that the file has it twice."""
    gpu = made(program)
    once = read_graph(gpu.write(tmp_path / "once"))
    count = len(gpu.events)
    gpu.events += gpu.events
    twice = read_graph(gpu.write(tmp_path / "twice"))
    assert twice.launches == once.launches
    assert twice.tasks == once.tasks
    assert failed(twice) == [f"the file is intact: {count} faults"]
    assert f"events that the file holds twice ({count})" in notes(twice)


@pytest.mark.parametrize(
    ("prefix", "kernel"),
    [
        ("xccl", "oneccl_reduce_base<float, 2, 16, 1, 1, 2>"),
        ("hccl", "hcom_allReduce__123_0_1"),
        ("mccl", "mcclKernel_AllReduce_RING_LL_Sum_float"),
    ],
)
def test_libraries_of_other_makers(tmp_path, prefix, kernel):
    """Their annotations and kernels are collectives as NCCL's are."""
    gpu = made(moe())
    expected = read_graph(gpu.write(tmp_path / "nccl"))
    for event in gpu.events:
        event["name"] = event["name"].replace("nccl:", f"{prefix}:")
        if event["name"].startswith("ncclDevKernel"):
            event["name"] = kernel
    found = read_graph(gpu.write(tmp_path / "t"))
    assert found.launches == expected.launches
    assert not failed(found)


def test_contradicting_times_are_refused(tmp_path, monkeypatch):
    """Damage that makes work wait for itself is told in one line."""

    def circle(*_):
        raise CycleError("tasks wait for each other in a circle: a -> b -> a", ["a", "b", "a"])

    monkeypatch.setattr("commsched.problems.profiler.graph_trace.replay", circle)
    message = refused(made(moe(1)).write(tmp_path / "t"))
    assert "ProfilerStep#3: the recorded times contradict each other: tasks wait" in message


def test_a_trace_without_marks_is_one_step(tmp_path):
    """A profiler that was started and stopped by hand writes no ProfilerStep."""
    gpu = made(fsdp2())
    gpu.events = [e for e in gpu.events if not e["name"].startswith("ProfilerStep")]
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert graph.step_name == "the whole trace"
    assert len(collectives(graph)) == 12
    assert not failed(graph)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_traces_give_a_graph_or_one_line(tmp_path, seed):
    """Fuzzing: fields removed, changed and swapped, events lost and doubled; nothing else comes."""
    rnd = random.Random(seed)
    tops = [made(fsdp2(2)).top(), made(moe(1), Shown(sync_rows=False)).top(),
            made(blocked(), Shown(event_calls=False, sync_rows=False)).top()]  # fmt: skip
    odd: list[object] = [
        None,
        True,
        -3,
        0,
        2**70,
        1.5,
        "",
        "1",
        [],
        {},
        [[]],
        [[2**40]],
        "X",
        7,
        20,
    ]
    for _ in range(6):
        top = json.loads(json.dumps(rnd.choice(tops)))
        events = top["traceEvents"]
        for _ in range(rnd.choice([1, 4, 30])):
            event = rnd.choice(events)
            inner = isinstance(event.get("args"), dict) and event["args"] and rnd.random() < 0.5
            target = event["args"] if inner else event
            key = rnd.choice(sorted(target)) if target else "ts"
            action = rnd.random()
            if action < 0.2:
                target.pop(key, None)
            elif action < 0.5 and isinstance(target.get(key), int | float):
                target[key] = target[key] * rnd.choice([-1, 0.5, 1.001, 1000]) + rnd.choice([0, 50])
            elif action < 0.6:
                events.append(dict(event))
            elif action < 0.7:
                events.remove(event)
            else:
                target[key] = rnd.choice(odd)
        path = write_trace(tmp_path / "t", top)
        graph, message = None, f"{path}: "
        try:
            graph = read_profiler_trace(path)
        except InputError as error:
            message = str(error)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        if graph is not None:
            assert isinstance(graph, RecordedGraph)
            played(graph)

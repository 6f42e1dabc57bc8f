"""Step graphs of a GPU with streams: what is read predicts what the GPU does on another network."""

from __future__ import annotations

import itertools

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
from graph_programs import anything, blocked, fsdp2, made, moe, overlapped

from commsched.models.collectives import Kind

RECORDINGS = {
    "stream waits": Shown(),
    "no stream waits": Shown(sync_rows=False),
    "no waits of the group": Shown(sync_rows=False, waits=False),
    "no annotations": Shown(sync_rows=False, annotations=False),
    "no names": Shown(sync_rows=False, annotations=False, names=False),
    "nothing but kernels": Shown(
        sync_rows=False, event_calls=False, waits=False, annotations=False
    ),
}
PROGRAMS = {
    "fsdp2": fsdp2(),
    "fsdp2 without prefetch": fsdp2(prefetch=False),
    "fsdp2, the network dominates": fsdp2(size=1_000_000),
    "fsdp2, the processor is late": fsdp2(late=300),
    "fsdp2, two groups on two streams": fsdp2(scatter=(24, "shard")),
    "fsdp2, two groups on one stream": fsdp2(scatter=(COMM, "shard")),
    "moe": moe(),
    "overlapped": overlapped(),
    "blocked": blocked(),
}
BANDWIDTHS = (0.1, 0.3, 1, 2, 10, 1000)


@pytest.mark.parametrize("shown", RECORDINGS.values(), ids=RECORDINGS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_recorded_step_is_reproduced(tmp_path, program, shown):
    """Played with the network that it was recorded with, the graph takes as long as the GPU did."""
    gpu = made(program, shown)
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert not failed(graph)
    assert graph.end_ns == gpu.length
    assert played(graph, 1).makespan_ns == pytest.approx(gpu.length, rel=0.01)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_recorded_stream_waits_predict_every_other_network(tmp_path, program):
    """A hundred times slower or faster: the graph says what the GPU would have done."""
    graph = graph_of(tmp_path, program)
    for bandwidth in BANDWIDTHS:
        truth = made(program, bandwidth=bandwidth).length
        assert played(graph, bandwidth).makespan_ns == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("shown", RECORDINGS.values(), ids=RECORDINGS)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_no_network_looks_better_than_it_is(tmp_path, program, shown):
    """However little was recorded: what has to be assumed makes plans look worse, never better."""
    graph = graph_of(tmp_path, program, shown)
    for bandwidth in BANDWIDTHS:
        truth = made(program, shown, bandwidth).length
        assert played(graph, bandwidth).makespan_ns >= 0.985 * truth


@pytest.mark.parametrize("seed", range(60))
def test_any_program_with_recorded_stream_waits_is_never_too_good(tmp_path, seed):
    """Two compute streams, two groups, waits and blocks at random: no network looks too good."""
    graph = graph_of(tmp_path, anything(seed))
    assert not failed(graph)
    for bandwidth in BANDWIDTHS:
        truth = made(anything(seed), bandwidth=bandwidth).length
        assert played(graph, bandwidth).makespan_ns >= 0.97 * truth


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("shown", [RECORDINGS["no stream waits"], RECORDINGS["no names"]])
def test_any_program_is_reproduced_without_recorded_stream_waits(tmp_path, seed, shown):
    """What is not recorded is made up for by what the times show."""
    gpu = made(anything(seed), shown)
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert not failed(graph)
    assert played(graph, 1).makespan_ns == pytest.approx(gpu.length, rel=0.05)


@pytest.mark.parametrize("shown", list(RECORDINGS.values())[:3], ids=list(RECORDINGS)[:3])
def test_fsdp_layers_wait_for_their_own_gathers(tmp_path, shown):
    """Each layer's forward and backward pass waits for its all-gather, the optimizer for the rest."""
    graph = graph_of(tmp_path, fsdp2(), shown)
    found = collectives(graph)
    kinds: dict[Kind, int] = dict.fromkeys(("all_gather", "reduce_scatter"), 0)
    for task in found:
        kinds[task.kind] += 1
        assert task.bytes == 400_000
        assert task.dtype == "float32"
    assert kinds == {"all_gather": 8, "reduce_scatter": 4}
    names = [task.name for task in found if task.kind == "all_gather"]
    layers = [*range(4), *reversed(range(4))]
    assert names == [f"all_gather {k + 1:03d} blocks.{layer}" for k, layer in enumerate(layers)]
    for k, layer in enumerate(range(4)):
        task = next(t for t in computes(graph, "stream 7") if names[k] in t.after)
        assert task.name == f"forward blocks.{layer}"
        # The gather of a later layer is ahead of it and not waited for.
        assert not set(names[k + 1 :]) & before(graph, task.name)
    backward = next(t for t in computes(graph, "stream 7") if names[4] in t.after)
    assert backward.name == "backward blocks.3"
    last = computes(graph, "stream 7")[-1]
    assert last.name == "optimizer"
    assert {task.name for task in found} < before(graph, "optimizer")
    assert graph.ranks == {"default_pg": 4}


def test_a_gather_waits_for_the_copy_into_its_buffer(tmp_path):
    """The copy runs on a stream of its own; its kernel is what the all-gather needs."""
    graph = graph_of(tmp_path, fsdp2())
    gathers = [task for task in collectives(graph) if task.kind == "all_gather"]
    assert gathers
    for task in gathers:
        assert any("(stream 21)" in name for name in task.after)


def test_groups_on_one_stream_share_a_channel(tmp_path):
    """A stream runs one kernel at a time, whichever group it is of."""
    graph = graph_of(tmp_path, fsdp2(scatter=(COMM, "shard")))
    assert dict(graph.channels) == {"stream 20 of 0": ("default_pg", "shard")}
    apart = graph_of(tmp_path, fsdp2(scatter=(24, "shard")))
    assert dict(apart.channels) == {}
    assert {group for group, _ in apart.needs} == {"default_pg", "shard"}


def test_one_group_on_several_streams_is_said(tmp_path):
    """A group has one channel, so launches that overlapped cannot be reproduced."""
    graph = graph_of(tmp_path, fsdp2(scatter=(24, "default_pg")))
    said = failed(graph)
    assert "groups that ran on several streams: 1" in said
    assert any(
        text.startswith("launches that overlap another one of their group:") for text in said
    )
    assert any("recorded step reproduced within" in text for text in said)


def test_a_synchronous_all_to_all_is_waited_for_at_once(tmp_path):
    """The work after it is cut off from the work before, and the next one is chained to it."""
    graph = graph_of(tmp_path, moe(1), Shown(sync_rows=False, waits=False))
    first, second, third, gradient = collectives(graph)
    assert [task.kind for task in (first, second, third)] == ["all_to_all"] * 3
    assert first.bytes == 300_000
    assert gradient.kind == "allreduce"
    assert gradient.group == "dp"
    stream = computes(graph, "stream 7")
    assert [task.duration_ns // 1000 for task in stream] == [100, 80, 200, 100, 60]
    assert first.name in stream[1].after
    assert second.name in stream[2].after
    assert third.name in stream[3].after
    assert gradient.name in stream[4].after
    assert gradient.name not in before(graph, stream[3].name)
    assert "its thread made a stream wait right after it" in evidence(graph)


def test_two_collectives_in_a_row_are_chained(tmp_path):
    """The second one sends what the first one brought, with no work between them."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            gpu.collective("reduce_scatter", 400_000, sync=True)
            gpu.collective("allreduce", 100_000, stream=28, group="replicas", sync=True)
            gpu.kernel(50)

    for shown in RECORDINGS.values():
        graph = graph_of(tmp_path, program, shown)
        first, second = collectives(graph)
        if shown.event_calls:
            assert first.name in before(graph, second.name)
        last = computes(graph, "stream 7")[-1]
        assert {first.name, second.name} <= before(graph, last.name)


def test_work_in_flight_is_not_cut_off(tmp_path):
    """Work that does not need the result runs on; only the taker waits."""
    graph = graph_of(tmp_path, overlapped())
    (task,) = collectives(graph)
    stream = computes(graph, "stream 7")
    assert [part.duration_ns // 1000 for part in stream] == [50, 240, 120]
    assert task.name not in before(graph, stream[1].name)
    assert task.name in stream[2].after
    assert "the profiler recorded which stream waits" in evidence(graph)


def test_a_blocked_processor_passes_the_wait_on(tmp_path):
    """The processor read the result on a side stream; what it launched next waited all the same."""
    graph = graph_of(tmp_path, blocked(), Shown(sync_rows=False))
    (task,) = collectives(graph)
    stream = computes(graph, "stream 7")
    assert sum(part.duration_ns for part in stream) < 460_000
    assert task.name in before(graph, stream[-1].name)


def test_a_stall_shows_who_waits(tmp_path):
    """No annotation, no call, no wait: the stream stood still until the all-to-all had ended."""
    graph = graph_of(tmp_path, overlapped(), RECORDINGS["nothing but kernels"])
    assert "1: a stream stood still until it ended" in evidence(graph)
    assert collectives(graph)[0].name in computes(graph, "stream 7")[-1].after


def test_without_any_sign_the_first_later_work_is_taken_to_wait(tmp_path):
    """The all-to-all was done long before: nothing shows who takes it, so the earliest one may."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            end = gpu.collective("all_to_all", 100_000)
            for _ in range(5):
                gpu.kernel(60)
            gpu.wait_work(end)
            gpu.kernel(90)

    graph = graph_of(tmp_path, program, RECORDINGS["nothing but kernels"])
    assert "1: assumed, the first work that started after it had ended" in evidence(graph)
    assert [part.duration_ns // 1000 for part in computes(graph, "stream 7")] == [50, 120, 270]
    known = graph_of(tmp_path, program)
    assert [part.duration_ns // 1000 for part in computes(known, "stream 7")] == [50, 300, 90]


def test_idle_time_that_no_collective_explains_is_work(tmp_path):
    """The processor was late: no plan removes that, and the report says how much it was."""

    def program(gpu: Gpu) -> None:
        with gpu.step():
            gpu.kernel(50)
            gpu.host(500)
            gpu.kernel(50)
            gpu.collective("allreduce", 100_000, sync=True)
            gpu.kernel(50)

    gpu = made(program)
    graph = read_graph(gpu.write(tmp_path / "t"))
    assert "in which the main compute stream was idle" in notes(graph)
    assert played(graph, 1000).makespan_ns >= gpu.length - 101_000


def test_work_launched_before_the_step_is_not_in_it(tmp_path):
    """The GPU lags: a kernel belongs to the step that launched it, whenever it ran."""

    def program(gpu: Gpu) -> None:
        for number in (3, 4, 5):
            with gpu.step(number):
                gpu.kernel(400)
                gpu.collective("allreduce", 200_000, sync=True)
                gpu.kernel(300)

    path = made(program).write(tmp_path / "t")
    for number in (3, 4, 5):
        graph = read_graph(path, step=number)
        assert graph.step_name == f"ProfilerStep#{number}"
        assert sum(task.duration_ns for task in computes(graph, "stream 7")) == 700_000
        assert graph.end_ns == pytest.approx(900_000, abs=20_000)
    assert read_graph(path).step_name == "ProfilerStep#4"
    assert "median length among 3 complete steps" in notes(read_graph(path))


def test_a_step_that_was_cut_off_is_not_taken(tmp_path):
    """The median counts the steps that have all their collectives."""

    def program(gpu: Gpu) -> None:
        for number, count in ((1, 1), (2, 4), (3, 4)):
            with gpu.step(number):
                for _ in range(count):
                    gpu.kernel(100)
                    gpu.collective("all_to_all", 100_000, sync=True)
                gpu.kernel(100)

    graph = read_graph(made(program).write(tmp_path / "t"))
    assert graph.step_name == "ProfilerStep#2"
    assert "the same number of collectives in all steps" in failed(graph)


def test_gaps_and_work_of_a_stream_add_up(tmp_path):
    """Every nanosecond of a stream is work, waiting, or before its first work."""
    for program, shown in itertools.product(PROGRAMS.values(), RECORDINGS.values()):
        gpu = made(program, shown)
        graph = read_graph(gpu.write(tmp_path / "t"))
        work = sum(e["dur"] * 1000 for e in gpu.events if e["cat"] == "kernel" and e["tid"] == MAIN)
        total = sum(task.duration_ns for task in computes(graph, "stream 7"))
        assert work <= total + 1 <= gpu.length + 2

"""Step graphs of real traces, with facts that were counted in the files by other means."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections import Counter

import pytest
from graph_checks import before, collectives, computes, evidence, failed, notes, played, read_graph
from shared_files import shared_data
from trace_checks import refused

from commsched.models import InputError
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.recorded import RecordedGraph, RecordedStep
from commsched.problems.sources.source import sources

pytestmark = pytest.mark.shared

LOCAL = "local-torch-2.14.1"
RESNET50 = [2049000, 7875584, 6563840, 6637568, 2431040]


def kinds(graph: RecordedGraph) -> Counter[str]:
    return Counter(task.kind for task in collectives(graph))


def graph_by_default(name: str, **options) -> RecordedGraph:
    """Read a trace that is not of plain DDP."""
    graph = read_profiler_trace(shared_data(name), **options)
    assert isinstance(graph, RecordedGraph)
    played(graph)
    return graph


@pytest.mark.parametrize("rank", [0, 1])
def test_fsdp2_has_its_layers(rank):
    """Thirteen all-gathers and seven reduce-scatters of seven modules, in order."""
    graph = graph_by_default(f"{LOCAL}/fsdp2_gloo_rank{rank}.pt.trace.json.gz")
    assert kinds(graph) == {"all_gather": 13, "reduce_scatter": 7}
    blocks = [f" blocks.{k}" for k in range(6)]
    gathers = [task.name for task in collectives(graph) if task.kind == "all_gather"]
    assert [name[14:] for name in gathers] == ["", *blocks, *reversed(blocks)]
    scatters = [task.name for task in collectives(graph) if task.kind == "reduce_scatter"]
    assert [name[18:] for name in scatters] == [*reversed(blocks), ""]
    # The root has 1026512 elements with padding, each block 526080.
    for task in collectives(graph):
        assert task.bytes == 4 * (526080 if "blocks" in task.name else 1026512)
        assert task.dtype == "float32"
    assert graph.ranks == {"default_pg": 2}
    assert not failed(graph)
    assert "20 of 20" in graph.report.checks[0].text
    # Every layer's forward pass waits for its own gather, and gloo's are all blocking.
    for k, name in enumerate(gathers[1:7]):
        waiting = next(task for task in computes(graph) if name in task.after)
        assert waiting.name.startswith(f"forward blocks.{k}")
        assert set(gathers[: k + 1]) <= before(graph, waiting.name)
    assert {task.name for task in collectives(graph)} <= before(graph, computes(graph)[-1].name)
    # Without communication the step is what the processor did: a third of it is waiting.
    assert played(graph, 1e6).makespan_ns < 0.8 * graph.end_ns


@pytest.mark.parametrize("rank", [0, 1])
def test_experts_wait_for_their_tokens(rank):
    """Dispatch, experts, combine, the way back, and a synchronous all-reduce for each gradient."""
    graph = graph_by_default(f"{LOCAL}/moe_a2a_gloo_rank{rank}.pt.trace.json.gz")
    assert kinds(graph) == {"all_to_all": 3, "allreduce": 4}
    assert [task.bytes for task in collectives(graph)] == [
        *[4 * 512 * 256] * 3,
        *[4 * n for n in (1024 * 256, 1024, 256 * 1024, 256)],
    ]
    # Each gradient was reduced by itself after backward; two of them have equally many bytes.
    assert [launch.names for launch in graph.launches[3:]] == [
        ("grad003 [1024x256]",),
        ("grad002 [1024]",),
        ("grad001 [256x1024]",),
        ("grad000 [256]",),
    ]
    assert "dispatch(F)" in collectives(graph)[0].name
    assert not failed(graph)
    assert "7: the processor was blocked until it ended" in evidence(graph)
    names = [task.name for task in collectives(graph)]
    for first, second in itertools.pairwise(names):
        assert first in before(graph, second)


def test_resnet50_as_a_graph():
    """DDP on two A100: the buckets as NCCL says them, and two broadcasts of buffers a step."""
    path = shared_data("hta/nccl_data.json.gz")
    graph = read_graph(path)
    assert kinds(graph) == {"allreduce": 5, "broadcast": 2}
    assert [t.bytes for t in collectives(graph) if t.kind == "allreduce"] == [
        4 * n for n in RESNET50
    ]
    assert not failed(graph)
    assert graph.step_name == "ProfilerStep#4"
    assert graph.ranks == {"default_pg": 2}
    assert "record_shapes=True" in notes(graph)
    # 900 kernels, 320 copies and 38 memsets a step, less the seven of NCCL.
    assert graph.report.kept["kernels of the step"] == 1258
    last = computes(graph, "stream 7")[-1]
    assert {task.name for task in collectives(graph)} <= before(graph, last.name)
    sizes = shared_data("param/resnet_2gpu_et_1.1.0.json.gz")
    known = read_graph(path, sizes=sizes)
    step = read_profiler_trace(path, sizes=sizes)
    assert isinstance(step, RecordedStep)
    assert kinds(known) == {"allreduce": 161, "broadcast": 2}
    buckets = [launch.names for launch in known.launches if launch.kind == "allreduce"]
    assert buckets == [launch.names for launch in step.launches]
    assert not failed(known)


def test_resnet18_on_rocm_as_a_graph():
    """Every kernel is called Generic; communication dominates the step, and the graph says so."""
    path = shared_data("tracelens/mi300_resnet_ddp_act_checkpoint.json.gz")
    for number in (15, 16, 17):
        graph = read_graph(path, step=number)
        assert kinds(graph) == {"allreduce": 62, "broadcast": 2}
        assert [x.bytes for x in graph.launches if x.kind == "allreduce"] == [
            2 * 2873320,
            2 * 8816192,
        ]
        assert not failed(graph)
        assert graph.ranks == {"default_pg": 8}
    assert graph.end_ns > 18_000_000
    assert played(graph, 1e6).makespan_ns < 9_000_000


def test_a_recommender_on_sixteen_ranks():
    """All-to-alls of three communicators, 15 collectives with data in each of five steps."""
    path = shared_data("hta/negative_queue_rank0_of16.json.gz")
    graph = graph_by_default("hta/negative_queue_rank0_of16.json.gz")
    # Of eleven all-to-alls in a step two move nothing.
    assert Counter(launch.kind for launch in graph.launches) == {
        "all_to_all": 9,
        "reduce_scatter": 2,
        "all_gather": 2,
        "allreduce": 2,
    }
    assert len(graph.launches) == 15
    assert {task.group for task in collectives(graph)} == {"stream 84", "stream 285", "stream 363"}
    assert not failed(graph)
    assert "1 launches of gradients are collectives as a whole" in notes(graph)
    # The dense gradients, and the tables that every rank has: 1.8 GB.
    sizes = [launch.bytes for launch in graph.launches if launch.kind == "allreduce"]
    assert sizes == [4 * 366336, 4 * 447923396]
    scattered = [launch.bytes for launch in graph.launches if launch.kind == "reduce_scatter"]
    assert scattered == [100663296, 16777216]
    # The second stage of the embeddings' exchange sends what the first one brought.
    first, second = (t.name for t in collectives(graph) if t.kind == "reduce_scatter")
    forward = [t.name for t in collectives(graph) if "alltoall_fwd" in t.name]
    assert first in before(graph, forward[0])
    assert second in before(graph, forward[1])
    for number in range(550, 555):
        assert len(read_graph(path, step=number).launches) >= 15


def test_dlrm_on_eight_ranks():
    """Five all-to-alls and three buckets on every rank, on one stream, read from the archive."""
    found = [
        one for one in sources(shared_data("param/dlrm_kineto.tar.gz")) if "._" not in one.name
    ]
    assert len(found) == 8
    for source in found:
        graph = read_profiler_trace(source)
        assert isinstance(graph, RecordedGraph)
        played(graph)
        assert Counter(launch.kind for launch in graph.launches) == {
            "all_to_all": 5,
            "allreduce": 3,
        }
        buckets = [launch.bytes for launch in graph.launches if launch.kind == "allreduce"]
        assert buckets == [4 * 394241, 4 * 112, 4 * 226960]
        assert len([t for t in collectives(graph) if t.kind == "allreduce"]) == 15
        assert graph.ranks == {"dp": 8}
        assert not failed(graph)
        assert "3 launches are buckets of gradients" in notes(graph)
        # The kernels as the file has them: eight on stream 84.
        events = json.loads(source.read())["traceEvents"]
        spans = sorted(
            (e["ts"], e["dur"]) for e in events if "nccl" in str(e.get("name")) and e["tid"] == 84
        )
        assert [(x.end_ns - x.start_ns) // 1000 for x in graph.launches] == [s[1] for s in spans]
        # Pooled embeddings wait for the first all-to-all, the optimizer for every bucket.
        first = collectives(graph)[0].name
        assert any(first in task.after for task in computes(graph, "stream 7"))
        last = computes(graph, "stream 7")[-1]
        assert last.name.startswith("optimizer")
        reduced = {task.name for task in collectives(graph) if task.kind == "allreduce"}
        assert reduced <= before(graph, last.name)


@pytest.mark.parametrize("rank", [0, 1])
def test_gloos_two_threads_do_not_fit_one_channel(rank):
    """All buckets come out; that they overlapped on two threads is a failed check."""
    path = shared_data(f"{LOCAL}/ddp_gloo_rank{rank}.pt.trace.json.gz")
    graph, step = read_graph(path), read_profiler_trace(path)
    assert isinstance(step, RecordedStep)
    assert graph.plan == step.plan
    assert len(graph.launches) == 7
    assert {task.name: task.bytes for task in collectives(graph)} == {
        gradient.name: gradient.bytes for gradient in step.gradients
    }
    said = failed(graph)
    assert all("overlap another one" in text or "reproduced within" in text for text in said)
    assert len(said) == (2 if rank == 0 else 0)


def test_one_rank_has_collectives_that_took_no_time():
    """World size one: everything is there but the kernels of NCCL."""
    graph = read_graph(shared_data("hta/ns_resolution_rank0_of1.pt.trace.json.gz"))
    assert [t.bytes for t in collectives(graph) if t.kind == "allreduce"] == [
        4 * n for n in RESNET50
    ]
    assert kinds(graph)["broadcast"] == 2
    assert failed(graph)[0] == "collectives matched with kernels: 0 of 7"
    assert "one rank only" in notes(graph)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "kineto-tb/resnet50_torch1.9_worker0.pt.trace.json.gz",
            "no collective; it has 966 gradien",
        ),
        ("hta/rank_non_gpu.json.gz", "6 collectives, but not when they ran"),
        (
            "hta/cpu_only_gloo_rank34_of300.pt.trace.json.gz",
            "2 collectives, and no work",
        ),
        (
            "hta/large_integer_rank70.pt.trace.json.gz",
            "no collective; it has 1 kernels and copies whose launch was not recorded",
        ),
        ("hta/with_gpu_user_annotation.json.gz", "no collective; it has 20 gradients in 1 steps"),
        ("hta/amd_mi250_minitoy_ROCm6_2.json.gz", "no collective; it has 2 gradients in 2 steps"),
        ("straggler-analysis/timeline-ST.json.gz", "no collective"),
    ],
)
def test_traces_without_a_plan_are_refused(name, said):
    """Each in one line that says what it is."""
    assert said in refused(shared_data(name))
    assert said in refused(shared_data(name), graph=True)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_real_traces_give_a_recording_or_one_line(tmp_path, seed):
    """Bytes flipped, pieces cut out, the end lost: never another exception, a hang or a bad graph."""
    rnd = random.Random(seed)
    name = rnd.choice(["moe_a2a_gloo_rank0", "fsdp2_gloo_rank1", "ddp_gloo_rank0"])
    data = bytearray(gzip.decompress(shared_data(f"{LOCAL}/{name}.pt.trace.json.gz").read_bytes()))
    for _ in range(rnd.choice([1, 10, 200])):
        action, at = rnd.random(), rnd.randrange(len(data))
        if action < 0.6:
            data[at] = rnd.choice(b'0123456789{}[],":ax- \xff')
        elif action < 0.8:
            del data[at : at + rnd.choice([1, 20, 3000])]
        else:
            data[at:at] = data[at : at + rnd.choice([1, 500])]
    if rnd.random() < 0.3:
        del data[rnd.randrange(len(data)) :]
    path = tmp_path / "t"
    path.write_bytes(data)
    recording, message = None, f"{path}: "
    try:
        recording = read_profiler_trace(path, graph=rnd.random() < 0.5)
    except InputError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    if isinstance(recording, RecordedGraph):
        played(recording)

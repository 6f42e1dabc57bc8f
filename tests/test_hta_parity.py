"""``commsched analyse`` against HolisticTraceAnalysis (HTA), in the same process, to 1e-6.

HTA is right about which kernels compute and how unions of intervals are made, and there the two
agree on every NVIDIA trace. docs/analysis.md says where HTA is wrong; the last tests show each
of these differences on a trace that is small enough to count by hand.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from shared_files import shared_data

from commsched.problems.breakdown.breakdown import Activity, DeviceWork, Sort, break_down
from commsched.problems.breakdown.breakdown_trace import read_device_work

# HTA and pandas warn of their own affairs.
pytestmark = pytest.mark.filterwarnings("ignore")

NVIDIA = (
    "hta/nccl_data.json.gz",
    "hta/negative_queue_rank0_of16.json.gz",
    "hta/ns_resolution_rank0_of1.pt.trace.json.gz",
    "hta/with_gpu_user_annotation.json.gz",
    "kineto-tb/resnet50_torch1.9_worker0.pt.trace.json.gz",
)
WHOLE = (NVIDIA[3], NVIDIA[4])
"""Every launch was recorded, and the times are whole microseconds: nothing differs."""


@pytest.fixture(scope="module")
def hta():
    """Return a function that has HTA analyse traces: rank -> its figures in microseconds."""
    pytest.importorskip("hta.common.trace", reason="HTA (HolisticTraceAnalysis) is not installed")
    from hta.analyzers import communication_analysis
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis
    from hta.common.trace import Trace

    patch = pytest.MonkeyPatch()
    # HTA rounds the overlap to 0.01 per cent; the comparison needs it as it was computed.
    patch.setattr(communication_analysis, "round", lambda value, _: value, raising=False)

    done = {}

    def analyse(files: dict[int, Path], *, last: bool, rounded: bool = True):
        asked = (*files.values(), last, rounded)
        if asked not in done:
            done[asked] = run(files, last, rounded)
        return done[asked]

    def run(files, last, rounded):
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "0" if rounded else "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = Trace({rank: str(file) for rank, file in files.items()})
            trace.load_traces(include_last_profiler_step=last, use_multiprocessing=False)
            times = BreakdownAnalysis.get_temporal_breakdown(trace, visualize=False)
            overlap = communication_analysis.CommunicationAnalysis.get_comm_comp_overlap(
                trace, visualize=False
            )
        figures = times.merge(overlap, on="rank").set_index("rank")
        return {rank: figures.loc[rank].to_dict() for rank in files}

    yield analyse
    patch.undo()


def assert_same(activities: Sequence[Activity], figures: dict[str, float]):
    """Compare the times with HTA's, and the overlap where anything communicates."""
    ours = break_down(activities)
    for ns, name in [
        (ours.span_ns, "kernel_time(us)"),
        (ours.computation_ns, "compute_time(us)"),
        (ours.exposed_ns + ours.copies_ns, "non_compute_time(us)"),
        (ours.idle_ns, "idle_time(us)"),
    ]:
        assert ns / 1000 == pytest.approx(figures[name], rel=1e-6), name
    if ours.communication_ns:
        percent = 100 * ours.overlap_ns / ours.communication_ns
        assert percent == pytest.approx(figures["comp_comm_overlap_pctg"], rel=1e-6)


def as_hta_counts(work: DeviceWork, *, last: bool) -> Sequence[Activity]:
    """Return the activities that HTA counts: with two steps or more, those it saw launched.

    Without the last step, that is until the last step starts.
    """
    if len(work.steps) < 2:
        return work.activities
    until = work.steps[-1].end if last else work.steps[-1].start
    return [one for one in work.launched_only().activities if one.launched < until]


def as_hta_rounds(activities: Sequence[Activity]) -> list[Activity]:
    """Round starts up and ends down to microseconds."""
    return [
        Activity(one.sort, -(-one.start // 1000) * 1000, one.end // 1000 * 1000)
        for one in activities
    ]


@pytest.mark.shared
@pytest.mark.parametrize("last", [True, False], ids=["all-steps", "without-last-step"])
@pytest.mark.parametrize("name", NVIDIA)
def test_one_rank(hta, name, last):
    """Times of every NVIDIA trace agree, nanoseconds too where HTA is told not to round them."""
    path = shared_data(name)
    (work,) = read_device_work(path)
    figures = hta({0: path}, last=last, rounded=False)
    assert_same(as_hta_counts(work, last=last), figures[0])


@pytest.mark.shared
@pytest.mark.parametrize("name", WHOLE)
def test_whole_recording(hta, name):
    """Where all launches were recorded, what the command prints by default is what HTA says."""
    path = shared_data(name)
    (work,) = read_device_work(path)
    assert_same(work.activities, hta({0: path}, last=True, rounded=False)[0])


@pytest.mark.shared
def test_eight_ranks(hta, tmp_path):
    """All ranks of a job, with all-to-all and all-reduce on a stream of their own."""
    with tarfile.open(shared_data("param/dlrm_kineto.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    works = {}
    for path in tmp_path.glob("*/worker*.json"):
        (work,) = read_device_work(path)
        works[work.rank] = (path, work)
    assert sorted(works) == list(range(8))
    figures = hta({rank: path for rank, (path, _) in works.items()}, last=True)
    for rank, (_, work) in works.items():
        assert_same(work.activities, figures[rank])


@pytest.mark.shared
def test_rounding_is_the_whole_difference_on_nanosecond_traces(hta):
    """HTA's default rounding loses 2% of nccl_data's computation; redoing it gives its figures."""
    path = shared_data("hta/nccl_data.json.gz")
    (work,) = read_device_work(path)
    figures = hta({0: path}, last=True)[0]
    assert figures["compute_time(us)"] == 113_012
    assert break_down(work.activities).computation_ns == 115_655_847
    assert_same(as_hta_rounds(work.activities), figures)


@pytest.mark.shared
def test_idle_of_kernels_without_launch(hta):
    """HTA calls the GPU idle while 872 kernels run that were launched before the recording."""
    path = shared_data("hta/negative_queue_rank0_of16.json.gz")
    (work,) = read_device_work(path)
    figures = hta({0: path}, last=True, rounded=False)[0]
    ours = break_down(work.activities)
    assert work.not_launched == 872
    assert figures["idle_time(us)"] == 848_216
    assert ours.idle_ns == 793_037_000


def small(path, events):
    """Write a trace of one stream-7 kernel and these events; return its path."""
    first = kernel("gemm", 0, 10, correlation=1)
    path.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": [first, *events]}))
    return path


def kernel(name, ts, dur, *, stream=7, correlation=2, cat="kernel"):
    """Return an event of a GPU."""
    args = {"stream": stream, "device": 0, "correlation": correlation}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


@pytest.mark.parametrize(
    ("event", "theirs", "ours"),
    [
        # Waiting is not computing.
        (kernel("Stream Wait Event", 20, 50, cat="cuda_sync"), 60, 10),
        # A kernel's name may hold any word.
        (kernel("SyncBatchNorm_stats", 20, 50), 10, 60),
        (kernel("at::native::MemcpyLikeKernel", 20, 50), 10, 60),
        # Expert-parallel and AMD's communication is communication.
        (kernel("deep_ep::intranode::dispatch<8>", 20, 50, stream=9), 60, 10),
        (kernel("rcclGenericKernel", 20, 50, stream=9), 60, 10),
        # CUPTI has written lengths of 236 years, and negative ones.
        (kernel("gemm", 20, 7_447_698_000_000_000), 7_447_698_000_000_010, 10),
        (kernel("gemm", 20, -5), 5, 10),
    ],
    ids=["wait", "sync", "memcpy", "deepep", "rccl", "years", "negative"],
)
def test_where_hta_is_wrong(hta, tmp_path, event, theirs, ours):
    """Each difference that docs/analysis.md lists: microseconds of computation, theirs and ours."""
    path = small(tmp_path / "trace.json", [event])
    (work,) = read_device_work(path)
    assert break_down(work.activities).computation_ns == ours * 1000
    assert hta({0: path}, last=True)[0]["compute_time(us)"] == theirs


def test_devices_are_one_to_hta(hta, tmp_path):
    """Two GPUs of one process: HTA lets the second hide the first one's communication."""
    other = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 10, stream=9)
    other["args"]["device"] = other["pid"] = 1
    path = small(tmp_path / "trace.json.gz", [])
    path.write_bytes(
        gzip.compress(json.dumps({"traceEvents": [kernel("gemm", 0, 10), other]}).encode())
    )
    assert hta({0: path}, last=True)[0]["comp_comm_overlap_pctg"] == 100
    works = read_device_work(path)
    assert [break_down(work.activities).exposed_ns for work in works] == [0, 10_000]
    assert [work.activities[0].sort for work in works] == [Sort.COMPUTATION, Sort.COLLECTIVE]

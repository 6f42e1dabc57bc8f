"""Merging the DDP steps of several ranks."""

from __future__ import annotations

import gzip
import json
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks_maker import REPORT, failed, graph, launch, rank, said, step
from shared_files import shared_data

from commsched.models import AlphaBeta, InputError
from commsched.models.step import Gradient
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.ranks.ranks_merge import OwnDuration, merge_ranks, own_durations
from commsched.problems.recorded import Check

BUNDLED = Path(__file__).resolve().parents[1] / "problems" / "data"


def two_ranks():
    """Return two ranks; the second one's step starts 10 later, and it is late for bucket 1."""
    first = step([10, 20, 30, 40], [8, 8, 4, 4], [[0, 1], [2, 3]], [(25, 60), (61, 190)])
    second = step([12, 15, 70, 160], [8, 8, 4, 4], [[0, 1], [2, 3]], [(20, 50), (165, 180)])
    return [rank(0, first, 1000), rank(1, second, 1010)]


def test_a_gradient_is_ready_when_its_last_rank_has_it():
    """Computed by hand: the second rank's times are 10 later on the common clock."""
    merged = merge_ranks(two_ranks())
    assert [(g.name, g.ready_ns) for g in merged.gradients] == [
        ("g0", 22), ("g1", 25), ("g2", 80), ("g3", 170),
    ]  # fmt: skip
    assert merged.backward_end_ns == 170
    assert [(one.issued_ns, one.start_ns, one.end_ns) for one in merged.launches] == [
        (25, 30, 60),
        (170, 175, 190),
    ]
    assert own_durations(merged) == [
        OwnDuration("allreduce", "dp", 16, 30),
        OwnDuration("allreduce", "dp", 8, 15),
    ]
    assert not failed(merged)
    assert merged.plan is not None
    assert merged.problem(AlphaBeta(1, 1)).backward_end_ns == 170


def test_the_report_names_who_gates_each_launch():
    """Rank 1 is the last at both launches, by 5 and by 130."""
    merged = merge_ranks(two_ranks())
    assert said(merged, "gates it") == [
        "launch 0 (allreduce, 16 B): rank 1 gates it, 5 ns after the other",
        "launch 1 (allreduce, 8 B): rank 1 gates it, 0.13 us after the other",
    ]
    assert said(merged, "launches that each rank gates") == [
        "launches that each rank gates (its gradients were ready last), of 2: rank 1 2"
    ]
    assert said(merged, "starts 10 ns later")
    report = merged.report
    assert report.source == "2 ranks of rank*.json"
    assert report.events_read == 20
    assert report.kept == {"ranks": 2, "gradients": 4}
    assert report.dropped == {"flows": 2}
    assert said(merged, "times are whole") == ["times are whole"]
    assert Check("whole", True) in report.checks


def test_many_launches_are_summed_up():
    """Twelve lines for the worst of 20 launches; the ranks take turns."""
    ready = [100 * k for k in range(20)]
    late = [t + (3 * k if k % 2 else 0) for k, t in enumerate(ready)]
    late_too = [t + (0 if k % 2 else 2 * k) for k, t in enumerate(ready)]
    runs = [(t + 60, t + 90) for t in ready]
    buckets = [[k] for k in range(20)]
    merged = merge_ranks(
        [rank(n, step(t, [4] * 20, buckets, runs)) for n, t in enumerate((ready, late, late_too))]
    )
    assert len(said(merged, "gates it")) == 12
    assert "launch 19" in said(merged, "gates it")[-1]
    assert said(merged, "the other 8 launches wait less than these")
    assert "of 20: rank 1 10, rank 2 9; 1 wait for no rank" in said(merged, "that each rank")[0]
    assert said(merged, "57 ns at most")


def test_ready_order_changes_with_the_latest_times():
    """The launch names its members in the merged order; names are those of the lowest rank."""
    runs = [(200, 210)]
    first = step([10, 20, 30], [4, 8, 16], [[0, 1, 2]], runs)
    second = step([50, 60, 70], [8, 4, 16], [[0, 1, 2]], runs)  # The first two swapped.
    merged = merge_ranks([rank(5, second), rank(2, first)])
    assert [(g.name, g.bytes, g.ready_ns) for g in merged.gradients] == [
        ("g1", 8, 50), ("g0", 4, 60), ("g2", 16, 70),
    ]  # fmt: skip
    assert merged.launches[0].names == ("g1", "g0", "g2")
    assert said(merged, "rank 5: gradients became ready in another order")
    assert said(merged, "the ranks' latest times put the gradients in another order")


def test_wrong_clocks_are_estimated_and_said():
    """A rank whose clock is a second ahead gives the same step up to the scatter of the ends."""
    right = merge_ranks(two_ranks())
    ranks = two_ranks()
    wrong = merge_ranks([ranks[0], replace(ranks[1], origin_ns=ranks[1].origin_ns + 10**9)])
    assert said(wrong, "would end on a rank before they begin on another")
    for a, b in zip(right.gradients, wrong.gradients, strict=True):
        assert abs(a.ready_ns - b.ready_ns) <= 10
    assert not failed(wrong)
    none = merge_ranks([replace(one, origin_ns=None) for one in ranks])
    assert none.gradients == wrong.gradients
    assert said(none, "have no common clock")


def test_one_recording_alone_is_returned_as_it_is():
    """Nothing to merge."""
    one = two_ranks()[0]
    assert merge_ranks([one]) is one.recording


@st.composite
def jobs(draw):
    """Draw ranks with one clock: sizes and buckets agree, times differ, launches wait for all."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    ranks, count = draw(st.integers(2, 5)), draw(st.integers(1, 8))
    sizes = [rng.choice((4, 8, 16)) for _ in range(count)]
    cuts = sorted(rng.sample(range(1, count), rng.randint(0, count - 1)))
    buckets = [list(range(a, b)) for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    begins = [rng.randint(0, 500) for _ in range(ranks)]
    ready = [sorted(rng.randint(0, 3000) for _ in range(count)) for _ in range(ranks)]
    starts, ends, now = [], [], 0
    for bucket in buckets:
        own = [max(begins[r] + ready[r][bucket[-1]], now) for r in range(ranks)]
        now = max(own) + rng.randint(5, 300)
        starts.append(own)
        ends.append(now)
    recorded = []
    for r, begin in enumerate(begins):
        runs = [(a[r] - begin, b - begin) for a, b in zip(starts, ends, strict=True)]
        recorded.append(rank(r, step(ready[r], sizes, buckets, runs), 7000 + begin))
    durations = [b - max(a) for a, b in zip(starts, ends, strict=True)]
    return recorded, durations, ends


@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_the_ranks_does_not_matter(drawn, rng):
    """To the report's last word."""
    recorded = drawn[0]
    shuffled = list(recorded)
    rng.shuffle(shuffled)
    assert merge_ranks(shuffled) == merge_ranks(recorded)


@given(jobs())
def test_times_are_those_of_the_last_rank(drawn):
    """No rank is ready later, one is ready then; durations leave out the waiting."""
    recorded, durations, ends = drawn
    merged = merge_ranks(recorded)
    base = min(one.origin_ns for one in recorded)
    by_name = {g.name: g.ready_ns for g in merged.gradients}
    for k in range(len(by_name)):
        times = [one.recording.gradients[k].ready_ns + one.origin_ns - base for one in recorded]
        assert by_name[f"g{k}"] == max(times)
    assert [g.ready_ns for g in merged.gradients] == sorted(by_name.values())
    assert [one.duration_ns for one in own_durations(merged)] == durations
    assert [one.end_ns for one in merged.launches] == [end + 7000 - base for end in ends]
    assert not failed(merged)


@given(jobs(), st.integers(0, 4), st.integers(10**6, 10**12))
def test_a_shifted_clock_gives_the_same_step(drawn, which, shift):
    """Ends are simultaneous here, so the estimate is exact once it is needed."""
    recorded = list(drawn[0])
    which %= len(recorded)
    moved = replace(recorded[which], origin_ns=recorded[which].origin_ns + shift)
    shifted = merge_ranks([*recorded[:which], moved, *recorded[which + 1 :]])
    merged = merge_ranks(recorded)
    assert shifted.gradients == merged.gradients
    assert shifted.launches == merged.launches


def test_a_truncated_rank_is_left_out_and_named():
    """Eight traces, one of them cut: seven make the step, and a check fails."""
    ranks = [replace(two_ranks()[0], rank=n, source=f"r{n}.json") for n in range(8)]
    cut = step([10, 20, 30], [8, 8, 4], [[0, 1]], [(25, 60)])
    ranks[3] = replace(ranks[3], recording=cut)
    merged = merge_ranks(ranks)
    assert merged.gradients == ranks[0].recording.gradients
    assert failed(merged) == ["rank 3 left out: it has 1 launches, not 2"]
    assert merged.report.kept["ranks"] == 7
    assert merged.report.dropped["events of ranks that were left out"] == 10
    assert merged.report.source == "8 ranks of r*.json"
    with pytest.raises(InputError, match=r"^r0.json: rank 0 does not fit rank 3|^r3.json: rank 3"):
        merge_ranks([ranks[0], ranks[3]])


def other(**change):
    """Return a step of :func:`two_ranks` with one thing changed."""
    first = two_ranks()[0].recording
    if "launch" in change:
        return replace(first, launches=(replace(first.launches[0], **change["launch"]),
                                        first.launches[1]))  # fmt: skip
    return replace(first, **change)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (other(launch={"bytes": 12}), "launch 0 of group 'dp' is allreduce of float32, 12 bytes"),
        (other(launch={"kind": "broadcast"}), "is broadcast of float32, 16 bytes"),
        (other(launch={"dtype": "bfloat16"}), "is allreduce of bfloat16"),
        (other(launch={"group": "tp"}), "it has group 'tp', the others have not"),
        (other(step_name="ProfilerStep#4"), "its step is ProfilerStep#4, not ProfilerStep#3"),
        (other(gradients=two_ranks()[0].recording.gradients[:3]), "it has 3 gradients, not 4"),
        (
            other(gradients=(Gradient("g0", 4, 1), *two_ranks()[0].recording.gradients[1:])),
            "its launches hold other gradients",
        ),
    ],
    ids=["bytes", "kind", "dtype", "group", "step", "fewer", "sizes"],
)
def test_a_rank_that_differs_is_left_out(changed, reason):
    """The check says in what."""
    ranks = [replace(two_ranks()[0], rank=n, source=f"r{n}.json") for n in range(2)]
    merged = merge_ranks([rank(7, changed), *ranks])
    checks = failed(merged)
    assert len(checks) == 1
    assert checks[0].startswith("rank 7 left out: ")
    assert reason in checks[0]
    with pytest.raises(InputError):
        merge_ranks([rank(7, changed), ranks[0]])


def test_groups_of_one_name_with_other_ranks_are_told_apart():
    """Two data-parallel groups of two ranks: one of them is the step."""
    one = two_ranks()[0].recording
    who = {0: (0, 2), 2: (0, 2), 1: (1, 3)}
    merged = merge_ranks([rank(n, one, members={"dp": w}) for n, w in who.items()])
    assert failed(merged) == ["rank 1 left out: its group 'dp' has other ranks than theirs"]
    both = [rank(n, replace(one, ranks=2)) for n in range(4)]
    assert "ranks merged: 4 of 2: they are of several groups" in failed(merge_ranks(both))[0]


def test_a_job_with_more_ranks_than_recordings_is_doubted():
    """The slowest rank may be one that is not there."""
    ranks = [replace(one, recording=replace(one.recording, ranks=8)) for one in two_ranks()]
    merged = merge_ranks(ranks)
    assert failed(merged) == ["ranks merged: 2 of 8: a rank that is not there may gate launches"]
    assert merged.ranks == 8
    ranks[1] = replace(ranks[1], recording=replace(ranks[1].recording, ranks=4))
    mixed = merge_ranks(ranks)
    assert mixed.ranks is None
    assert failed(mixed) == ["the ranks agree on how many ranks the job has"]


def test_launches_without_times_are_doubted():
    """No clock can be checked then, and no duration is invented."""
    bare = step([10, 20], [8, 8], [[0, 1]], [None])
    merged = merge_ranks([rank(0, bare, 5), rank(1, bare, 9)])
    assert merged.launches[0].start_ns is None
    assert own_durations(merged) == []
    assert [g.ready_ns for g in merged.gradients] == [14, 24]
    assert failed(merged) == [
        "collectives that ran on all their ranks at once: 0 of 0",
        "launches timed on all their ranks: 0 of 1",
    ]


def test_failed_checks_and_notes_name_their_ranks():
    """Sentences that differ in their numbers only are one."""
    ranks = [*two_ranks(), replace(two_ranks()[0], rank=2, source="job/rank2.json")]
    for k, missing in ((1, 3), (2, 4)):
        report = replace(
            REPORT, assumptions=("ids end",), checks=(Check(f"{missing} lost", False),)
        )
        ranks[k] = replace(ranks[k], recording=replace(ranks[k].recording, report=report))
    merged = merge_ranks(ranks)
    assert failed(merged) == ["ranks 1, 2: 3 lost (so on rank 1)"]
    assert said(merged, "whole") == ["rank 0: times are whole"]
    assert said(merged, "ids end") == ["ranks 1, 2: ids end"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda a, b: [], "no recording given"),
        (lambda a, b: [a] * 5000, "5000 recordings given, at most 4096"),
        (lambda a, b: [a, replace(b, rank=0)], "rank 0 was already read from job/rank0.json"),
        (lambda a, b: [a, replace(b, rank=-1)], "rank -1 must be a whole number"),
        (lambda a, b: [a, replace(b, rank=True)], "rank True must be a whole number"),
        (lambda a, b: [a, rank(1, graph([1], [4], [(1, 2)]))], "rank 1 is a graph of tasks"),
    ],
    ids=["none", "many", "twice", "negative", "bool", "mixed"],
)
def test_what_is_refused(make, text):
    """In one line."""
    with pytest.raises(InputError, match=text):
        merge_ranks(make(*two_ranks()))


def test_times_out_of_range_are_refused():
    """Whatever the clocks say, a ready time stays in range or the merge is refused."""
    far = step([2**50 - 1], [4], [[0]], [None])
    with pytest.raises(InputError, match="must be at most"):
        merge_ranks([rank(0, far, 0), rank(1, far, 1000)])


def gloo(path: Path, number: int):
    """Return a rank's recording of a gloo trace; its time zero is the step's start."""
    recording = read_profiler_trace(path, step=number)
    top = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    begin = next(e["ts"] for e in top["traceEvents"] if e["name"] == f"ProfilerStep#{number}")
    return rank(None, recording, top["baseTimeNanoseconds"] + round(begin * 1000), str(path))


@pytest.mark.parametrize(("number", "count"), [(6, 4), (7, 4), (8, 4)])
def test_the_bundled_ranks_are_merged(number, count):
    """All bytes agree; rank 1's backward pass is the slower one in step 7."""
    ranks = [gloo(BUNDLED / f"transformer_ddp_gloo_rank{k}.json.gz", number) for k in (0, 1)]
    check_gloo(ranks, count)


@pytest.mark.shared
@pytest.mark.parametrize("number", [3, 4])
def test_local_gloo_ranks_are_merged(number):
    """Seven buckets; the two ranks were processes of one machine, so their clocks are one."""
    name = "local-torch-2.14.1/ddp_gloo_rank{}.pt.trace.json.gz"
    check_gloo([gloo(shared_data(name.format(k)), number) for k in (0, 1)], 7)


def check_gloo(ranks, count):
    """Check a merge against the ranks' own times, taken apart here."""
    merged = merge_ranks(ranks)
    assert not failed(merged)
    assert said(merged, "clocks are as recorded")
    assert said(merged, "numbers are those in the names")
    base = min(one.origin_ns for one in ranks)
    for k, one in enumerate(merged.launches):
        own = [(r.recording.launches[k], r.origin_ns - base) for r in ranks]
        assert one.start_ns == max(a.start_ns + zero for a, zero in own)
        assert one.end_ns == min(a.end_ns + zero for a, zero in own)
        assert 0 < one.end_ns - one.start_ns <= min(a.end_ns - a.start_ns for a, _ in own)
    assert len(merged.launches) == count
    assert merged.plan is not None
    for zero, one in ((r.origin_ns - base, r.recording) for r in ranks):
        assert one.backward_end_ns + zero <= merged.backward_end_ns
    estimated = merge_ranks([replace(one, origin_ns=None) for one in ranks])
    # Two processes of one machine: what the ends of gloo's collectives tell is right to a few ms.
    for a, b in zip(merged.launches, estimated.launches, strict=True):
        assert abs((a.end_ns - a.start_ns) - (b.end_ns - b.start_ns)) < 5_000_000


@pytest.mark.shared
def test_dlrms_all_reduces_last_as_long_as_all_ranks_are_in_them(tmp_path):
    """Between 69 and 952 us on one rank, but 62 us by itself; whatever form the reader gives."""
    with tarfile.open(shared_data("param/dlrm_kineto.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    ranks = []
    for path in sorted(tmp_path.rglob("worker*.json")):
        if path.name.startswith("._"):
            continue
        recording = read_profiler_trace(path)
        events = json.loads(path.read_text())["traceEvents"]
        first = min(e["ts"] for e in events if "AllReduce_RING" in str(e.get("name")))
        own = min(one.start_ns for one in recording.launches if one.kind == "allreduce")
        ranks.append(rank(None, recording, 1000 * first - own, f"x.tar: {path.name}"))
    merged = merge_ranks(ranks)
    assert [
        (one.bytes, one.duration_ns) for one in own_durations(merged) if one.kind == "allreduce"
    ] == [(4 * 394241, 82_000), (4 * 112, 18_000), (4 * 226960, 62_000)]
    assert not failed(merged)
    assert merged.report.source == "8 ranks of x.tar"
    gates = [line for line in said(merged, "gates it") if "allreduce" in line]
    assert [line.split(": ")[1][:12] for line in gates] == [
        "rank 7 gates", "rank 5 gates", "rank 4 gates",
    ]  # fmt: skip


@given(st.integers(0, 10**9))
def test_hostile_recordings_are_merged_or_refused(seed):
    """Names that are nowhere, times that run backwards, absurd numbers: never another exception."""
    rng = random.Random(seed)

    def number():
        return rng.choice((0, 1, 7, 100, -5, 2**50, 2**70, -(2**70)))

    ranks = []
    for k in range(rng.randint(2, 4)):
        gradients = [Gradient(f"g{j}", rng.choice((0, 4)), abs(number()) % 2**50) for j in range(2)]
        launches = [
            launch(
                rng.choice((["g0"], ["g1"], ["x"], [], ["g0", "g0", "g1"])),
                rng.choice((4, 8)),
                rng.choice((None, (number(), number()))),
                group=rng.choice(("dp", "dp", "tp")),
                kind=rng.choice(("allreduce", "all_to_all", "broadcast", "send_recv")),
                issued=number(),
            )
            for _ in range(rng.randint(0, 2))
        ]
        recording = replace(
            step([], [], [], []), gradients=tuple(gradients), launches=tuple(launches)
        )
        ranks.append(rank(rng.choice((None, k)), recording, rng.choice((None, number()))))
    try:
        merged = merge_ranks(ranks)
    except InputError:
        return
    assert [g.ready_ns for g in merged.gradients] == sorted(g.ready_ns for g in merged.gradients)
    assert all(one.duration_ns >= 0 for one in own_durations(merged))


def test_a_check_that_only_some_ranks_made_is_not_said_of_all():
    """A passed check is shown where it holds on every rank."""
    ranks = two_ranks()
    report = replace(REPORT, checks=(Check("whole", True), Check("kernels: 3 of 3", True)))
    ranks[0] = replace(ranks[0], recording=replace(ranks[0].recording, report=report))
    passed = [check.text for check in merge_ranks(ranks).report.checks if check.passed]
    assert "whole" in passed
    assert "kernels: 3 of 3" not in passed

"""Merging the graphs of several ranks."""

from __future__ import annotations

import json
import random
import tarfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks_maker import REPORT, failed, graph, launch, rank, said
from shared_files import shared_data

from commsched.models import AlphaBeta, InputError, evaluate
from commsched.models.plan import Bucket, Plan
from commsched.models.step import Collective, Compute
from commsched.problems.ranks.ranks_merge import OwnDuration, merge_ranks, own_durations
from commsched.problems.recorded import RecordedGraph

COST = {("dp", "allreduce"): AlphaBeta(0, 1)}  # One byte takes one nanosecond.


def makespan(merged: RecordedGraph) -> int:
    """Return the makespan of the plan that ran."""
    assert merged.plan is not None
    return evaluate(merged.with_costs(COST), merged.plan).makespan_ns


def chain(durations, sizes, starts, *, blocking):
    """Return when each collective of a chain of blocking or free ones starts, rank by rank."""
    now = [0] * len(durations)
    free = 0
    for k, size in enumerate(sizes):
        now = [t + d[k] for t, d in zip(now, durations, strict=True)]
        free = max(free, *(t + s for t, s in zip(now, starts, strict=True))) + size
        if blocking:
            now = [free - s for s in starts]
    return max(free, *(t + s for t, s in zip(now, starts, strict=True)))


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 6), st.booleans())
def test_the_merged_graph_is_what_the_machines_do(seed, ranks, count, blocking):
    """Its makespan is that of a small simulation of all ranks, free and blocking."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 50) for _ in range(count)]
    durations = [[rng.randint(0, 100) for _ in sizes] for _ in range(ranks)]
    starts = [rng.choice((0, 0, 30, 200)) for _ in range(ranks)]
    base = min(starts)
    recorded = [
        rank(r, graph(durations[r], sizes, [None] * count, blocking=blocking), starts[r])
        for r in range(ranks)
    ]
    # Without timed collectives the steps must overlap for their clocks to be believed.
    recorded = [replace(o, recording=replace(o.recording, end_ns=10**6)) for o in recorded]
    merged = merge_ranks(recorded)
    want = chain(durations, sizes, [s - base for s in starts], blocking=blocking)
    assert makespan(merged) == want
    rng.shuffle(recorded)
    assert merge_ranks(recorded) == merged


def two_graphs(**more):
    """Return two ranks of which each is the slower one once."""
    first = graph([100, 10], [20, 30], [(100, 120), (130, 180)], end_ns=190, **more)
    second = graph([40, 90], [20, 30], [(41, 121), (150, 181)], end_ns=200, **more)
    return [rank(0, first), rank(1, second)]


def test_each_rank_has_streams_of_its_own_and_collectives_are_shared():
    """Names are the first rank's; what a collective waits for is on all ranks."""
    merged = merge_ranks(two_graphs())
    assert merged.tasks == (
        Compute("rank 0: t0", 100, "rank 0: gpu"),
        Compute("rank 0: t1", 10, "rank 0: gpu"),
        Compute("rank 1: t0", 40, "rank 1: gpu"),
        Compute("rank 1: t1", 90, "rank 1: gpu"),
        Collective("c0", 20, after=("rank 0: t0", "rank 1: t0")),
        Collective("c1", 30, after=("rank 0: t1", "rank 1: t1")),
    )
    assert own_durations(merged) == [
        OwnDuration("allreduce", "dp", 20, 20),
        OwnDuration("allreduce", "dp", 30, 30),
    ]
    assert merged.end_ns == 200
    assert not failed(merged)
    # 130 is when the slower rank of both is done; the largest of each task would say 190.
    assert makespan(merged) == 130 + 30
    assert [line.split(", ")[1] for line in said(merged, "gates it")] == [
        "20 B): rank 0 gates it",
        "30 B): rank 1 gates it",
    ]


def test_stragglers_are_no_exposed_communication():
    """With blocking collectives that take no time the slower rank of each part still counts."""
    merged = merge_ranks(two_graphs(blocking=True))
    problem = merged.with_costs(COST)
    assert problem.compute_ns == 100 + 90
    assert evaluate(problem, merged.plan).exposed_ns == 20 + 30


def test_a_rank_that_starts_later_is_held_back():
    """By a task that says so."""
    ranks = two_graphs()
    late = replace(ranks[1].recording, launches=(
        replace(ranks[1].recording.launches[0], start_ns=1, end_ns=81),
        replace(ranks[1].recording.launches[1], start_ns=110, end_ns=141),
    ))  # fmt: skip
    merged = merge_ranks([ranks[0], rank(1, late, 40)])
    assert merged.tasks[2] == Compute("rank 1: starts later", 40, "rank 1: starts later")
    assert merged.tasks[3].after == ("rank 1: starts later",)
    assert merged.tasks[4].after == ()
    assert makespan(merged) == 170 + 30
    assert not failed(merged)


def test_one_graph_alone_is_returned_as_it_is():
    """Nothing to merge."""
    one = two_graphs()[0]
    assert merge_ranks([one]) is one.recording


def test_an_all_to_all_has_the_bytes_of_its_busiest_rank():
    """Others must agree on their bytes."""
    ranks = [
        rank(0, graph([1], [70], [(10, 20)], kind="all_to_all")),
        rank(1, graph([1], [90], [(11, 20)], kind="all_to_all")),
    ]
    merged = merge_ranks(ranks)
    assert own_durations(merged) == [OwnDuration("all_to_all", "dp", 90, 9)]
    assert merged.tasks[-1].bytes == 90
    assert said(merged, "1 all-to-alls differ in bytes")
    assert not failed(merged)


def test_a_broadcast_need_not_overlap():
    """Its root may be done before the others begin: then the shortest rank's time stands."""
    ranks = [
        rank(0, graph([1], [70], [(10, 15)], kind="broadcast")),
        rank(1, graph([1], [70], [(20, 23)], kind="broadcast")),
    ]
    merged = merge_ranks(ranks)
    assert own_durations(merged) == [OwnDuration("broadcast", "dp", 70, 3)]
    assert said(merged, "1 collectives have no such time (1 of them of kinds that need not wait")


def test_stages_of_a_pipeline_give_the_graph_of_the_rank_that_gates():
    """The world's collective is compared over all ranks, the stages' own are not."""
    stages = []
    for k in range(2):
        own = graph([50, 10 + 90 * k], [20, 8], [(60, 80), None], group=f"stage{k}")
        # A last collective of all ranks, for which stage 1 is late.
        world = launch(["w"], 4, (100 + 90 * k, 200), group="world", issued=9)
        stages.append(
            replace(
                own,
                tasks=(*own.tasks, Collective("w", 4, group="world", after=("t1",))),
                launches=(own.launches[0], world),
            )
        )
    merged = merge_ranks([rank(0, stages[0]), rank(1, stages[1])])
    assert merged.tasks == stages[1].tasks
    assert (merged.launches[-1].start_ns, merged.launches[-1].end_ns) == (190, 200)
    assert said(merged, "the graph is that of rank 1")
    assert failed(merged) == [
        "rank 0 left out: of the graph, not of the durations: it has group 'stage0' where the "
        "others have group 'stage1'"
    ]


def test_a_truncated_rank_does_not_cost_the_others_their_durations():
    """The check names it."""
    ranks = [*two_graphs(), replace(two_graphs()[1], rank=2, source="cut.json")]
    cut = ranks[2].recording
    ranks[2] = replace(
        ranks[2], recording=replace(cut, tasks=cut.tasks[:2], launches=cut.launches[:1])
    )
    merged = merge_ranks(ranks)
    assert [one.duration_ns for one in own_durations(merged)] == [20, 30]
    assert merged.tasks == merge_ranks(two_graphs()).tasks
    assert failed(merged) == [
        "rank 2 left out: of the graph, not of the durations: it has 1 launches, not 2"
    ]


def test_groups_of_unknown_members_are_not_merged():
    """Four ranks have a group of two ranks each: who waits for whom is not known."""
    ranks = [
        rank(n, replace(two_graphs()[n % 2].recording, ranks={"dp": 2}), source=f"{n}.json")
        for n in range(4)
    ]
    merged = merge_ranks(ranks)
    assert any("fewer ranks than were read" in text for text in failed(merged))
    assert any("compared between ranks: 4 ranks have a group" in text for text in failed(merged))
    assert merged.tasks == ranks[1].recording.tasks
    # Where the members are known, each pair is compared by itself.
    who = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    known = merge_ranks([replace(one, members={"dp": who[one.rank]}) for one in ranks])
    assert known.tasks == merge_ranks(two_graphs()).tasks
    assert [one.duration_ns for one in own_durations(known)] == [20, 30]
    assert any("ranks 2, 3 left out" in text for text in failed(known))


def test_sends_between_pairs_are_not_matched():
    """In a group of three nobody knows whose send is whose receive."""
    ranks = [
        rank(n, graph([5], [8], [(10 + n, 30)], kind="send_recv"), source=f"{n}.json")
        for n in range(3)
    ]
    assert any("sends between pairs" in text for text in failed(merge_ranks(ranks)))
    assert own_durations(merge_ranks(ranks[:2]))[0].duration_ns == 19


def test_ranks_that_wait_in_a_circle_are_not_joined():
    """Two groups in another order on each rank: no machine runs that, so it was misread."""

    def crossed(first, second):
        tasks = (
            Compute("t", 5), Collective(first, 4, group=first, after=("t",)),
            Compute("u", 5, after=(first,)), Collective(second, 4, group=second, after=("u",)),
        )  # fmt: skip
        return RecordedGraph("job", tasks, (), "s", REPORT)

    merged = merge_ranks([rank(0, crossed("a", "b")), rank(1, crossed("b", "a"))])
    assert any("form a circle" in text for text in failed(merged))
    assert merged.tasks in (crossed("a", "b").tasks, crossed("b", "a").tasks)


def test_too_many_tasks_leave_the_ranks_that_gate_most():
    """The limit is stated."""
    ranks = [
        rank(n, graph([10 * n, 5], [4, 4], [(10 * n, 50), (60, 70)]), source=f"{n}.json")
        for n in range(4)
    ]
    merged = merge_ranks(ranks, most_tasks=10)
    assert {t.stream for t in merged.tasks if isinstance(t, Compute)} == {
        "rank 2: gpu",
        "rank 3: gpu",
    }
    assert failed(merged) == [
        "ranks whose tasks are in the graph: 2 of 4, which gate most (more than 10 tasks)"
    ]
    alone = merge_ranks(ranks, most_tasks=3)
    assert alone.tasks == ranks[3].recording.tasks


def test_workloads_that_nobody_ran_are_joined_without_launches():
    """No launch, no clock: the collectives are matched in their order."""
    ranks = [replace(one, origin_ns=None, recording=replace(one.recording, launches=()))
             for one in two_graphs()]  # fmt: skip
    merged = merge_ranks(ranks)
    assert merged.launches == ()
    plan = Plan((Bucket(("c0",)), Bucket(("c1",))))
    assert evaluate(merged.with_costs(COST), plan).makespan_ns == 160


def test_a_task_after_an_unknown_one_is_refused():
    """The reader's mistake is not hidden."""
    broken = replace(two_graphs()[0].recording, tasks=(
        Compute("t0", 1, "gpu", ("nobody",)), *two_graphs()[0].recording.tasks[1:],
    ))  # fmt: skip
    with pytest.raises(InputError, match="after names 'nobody'"):
        merge_ranks([rank(0, broken), two_graphs()[1]])


def kernels(path) -> RecordedGraph:
    """Return the nccl kernels of a trace of 2023 as a graph; all-to-alls have no size there."""
    found = sorted(
        (1000 * e["ts"], 1000 * e["dur"], e["name"])
        for e in json.loads(path.read_text())["traceEvents"]
        if e.get("cat") == "kernel" and "nccl" in e["name"]
    )
    sizes = iter((394241, 112, 226960))
    tasks, launches = [], []
    for k, (start, length, name) in enumerate(found):
        kind = "all_to_all" if "SendRecv" in name else "allreduce"
        size = 0 if kind == "all_to_all" else 4 * next(sizes)
        tasks.append(Collective(f"c{k}", size, kind))
        ran = (start - found[0][0], start - found[0][0] + length)
        launches.append(launch([f"c{k}"], size, ran, kind=kind, issued=k))
    return replace(
        RecordedGraph("dlrm", tuple(tasks), tuple(launches), "s", REPORT), end_ns=found[0][0]
    )


@pytest.mark.shared
def test_the_eight_kernels_of_dlrm_on_eight_ranks(tmp_path):
    """An all-to-all of up to 7.6 ms on one rank takes 9 us."""
    with tarfile.open(shared_data("param/dlrm_kineto.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    paths = sorted(p for p in tmp_path.rglob("worker*.json") if not p.name.startswith("._"))
    graphs = [kernels(path) for path in paths]
    lengths = [[one.launches[0].end_ns for one in graphs]]
    assert (min(*lengths), max(*lengths)) == (10_000, 7_635_000)
    ranks = [
        rank(None, replace(one, end_ns=None), one.end_ns, path.name)
        for one, path in zip(graphs, paths, strict=True)
    ]
    merged = merge_ranks(ranks)
    own = own_durations(merged)
    assert len(own) == 8
    assert own[0] == ("all_to_all", "dp", 0, 9_000)
    assert [one for one in own if one.kind == "allreduce"] == [
        ("allreduce", "dp", 4 * 394241, 82_000),
        ("allreduce", "dp", 4 * 112, 18_000),
        ("allreduce", "dp", 4 * 226960, 62_000),
    ]
    assert not failed(merged)
    assert "rank 7 gates it" in said(merged, "launch 0 ")[0]
    # The same without a common clock: the ends alone tell the durations to a few us.
    blind = own_durations(merge_ranks([replace(one, origin_ns=None) for one in ranks]))
    for a, b in zip(own, blind, strict=True):
        assert abs(a.duration_ns - b.duration_ns) <= 25_000


@given(st.integers(0, 10**9))
def test_hostile_graphs_are_merged_or_refused(seed):
    """Names that are nowhere, circles, absurd times: never another exception than InputError."""
    rng = random.Random(seed)

    def number():
        return rng.choice((0, 1, 7, 100, -5, 2**50, 2**70, -(2**70)))

    ranks = []
    for k in range(rng.randint(2, 4)):
        names = [f"n{j}" for j in range(rng.randint(1, 4))]
        tasks, launches = [], []
        for name in names:
            after = tuple(rng.sample([*names, "nobody"], rng.choice((0, 0, 1))))
            if rng.random() < 0.5:
                tasks.append(Compute(name, abs(number()) % 2**50, "s", after))
                continue
            group = rng.choice(("dp", "dp", "tp"))
            kind = rng.choice(("allreduce", "all_to_all", "broadcast"))
            tasks.append(Collective(name, 4, kind, group, after=after))
            ran = rng.choice((None, (number(), number())))
            launches.append(launch([name], 4, ran, group=group, kind=kind, issued=number()))
        more = rng.choice((launches, launches[:1], []))
        recording = RecordedGraph("job", tuple(tasks), tuple(more), "s", REPORT)
        ranks.append(rank(k, recording, rng.choice((None, number()))))
    try:
        merged = merge_ranks(ranks)
    except InputError:
        return
    assert len({task.name for task in merged.tasks}) == len(merged.tasks)
    assert all(one.duration_ns >= 0 for one in own_durations(merged))


def test_a_late_rank_holds_back_what_waits_for_nothing():
    """A step that begins with an all-gather: it waits for the late rank, and the work for it."""
    tasks = (Collective("ag", 4, "all_gather"), Compute("t", 5, after=("ag",)))
    one = RecordedGraph("job", tasks, (), "s", REPORT, end_ns=90)
    merged = merge_ranks([rank(0, one), rank(1, one, 40)])
    after = {task.name: task.after for task in merged.tasks}
    assert after == {
        "rank 0: t": ("ag",),
        "rank 1: starts later": (),
        "rank 1: t": ("ag",),
        "ag": ("rank 1: starts later",),
    }


def test_a_graph_of_one_rank_has_its_own_time_zero():
    """Rank 1's step starts 40 later and is the graph: its launches stay where they were."""
    ranks = [
        rank(0, graph([5], [8], [(60, 90)], ranks={"dp": 1})),
        rank(1, graph([30], [8], [(25, 50)], ranks={"dp": 1}, end_ns=70), 40),
    ]
    merged = merge_ranks(ranks)
    assert merged.tasks == ranks[1].recording.tasks
    assert (merged.launches[0].start_ns, merged.launches[0].end_ns) == (25, 50)
    assert merged.end_ns == 70


def test_the_most_ranks_make_the_graph_even_if_another_one_works_longer():
    """A rank by itself is no measure of the others."""
    odd = rank(2, graph([900], [64], [(900, 950)]), source="odd.json")
    merged = merge_ranks([*two_graphs(), odd])
    assert merged.tasks == merge_ranks(two_graphs()).tasks

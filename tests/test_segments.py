"""Merging a recording's tasks keeps every time, whatever the collectives take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.models import AlphaBeta, Collective, Compute, CycleError, Problem
from commsched.problems.segments import Merged, Node, merge, topological


def collective(name: str, after=(), size: int = 64) -> Node:
    return Node(after=after, collective=Collective(name, size))


def times_of_nodes(nodes: list[Node], takes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return when each collective starts and when everything has ended, the slow way."""
    ends: list[int] = []
    last: dict[str, int] = {}
    starts = {}
    for node in nodes:
        start = max([ends[b] for b in node.after] + [last.get(node.stream, 0)])
        if node.collective is not None:
            start = max([ends[b] for b in node.after], default=0)
            starts[node.collective.name] = start
            ends.append(start + takes[node.collective.name])
            continue
        ends.append(start + node.duration_ns)
        if node.stream:
            last[node.stream] = ends[-1]
        else:
            ends[-1] = max([ends[b] for b in node.after], default=0) + node.duration_ns
    return starts, max(ends)


def times_of_tasks(merged: Merged, takes: dict[str, int]) -> tuple[dict[str, int], int]:
    ends: dict[str, int] = {}
    last: dict[str, int] = {}
    starts = {}
    for task in merged.tasks:  # listed so that everything comes after what it waits for
        start = max([ends[name] for name in task.after], default=0)
        if isinstance(task, Collective):
            starts[task.name] = start
            ends[task.name] = start + takes[task.name]
        else:
            ends[task.name] = max(start, last.get(task.stream, 0)) + task.duration_ns
            last[task.stream] = ends[task.name]
    return starts, max(ends.values())


@st.composite
def recordings(draw):
    nodes = []
    for k in range(draw(st.integers(1, 25))):
        after = sorted(draw(st.sets(st.integers(0, k - 1), max_size=3))) if k else []
        if draw(st.integers(0, 3)) == 0:
            nodes.append(collective(f"c{k}", after))
        else:
            stream = draw(st.sampled_from(["gpu", "cpu", "compute", ""]))
            nodes.append(Node(stream, draw(st.integers(0, 9)), after))
    return nodes


@settings(max_examples=300, deadline=None)
@given(recordings(), st.lists(st.integers(0, 20), min_size=25, max_size=25))
def test_no_time_changes(nodes, durations):
    """Each collective starts, and all ends, when it does in the whole graph."""
    names = [node.collective.name for node in nodes if node.collective is not None]
    takes = dict(zip(names, durations, strict=False))
    merged = merge(nodes)
    if not merged.tasks:
        assert times_of_nodes(nodes, takes)[1] == 0
        return
    assert times_of_tasks(merged, takes) == times_of_nodes(nodes, takes)
    nothing = dict.fromkeys(names, 0)
    assert (merged.ready_ns, merged.end_ns) == times_of_nodes(nodes, nothing)
    assert len(merged.tasks) <= len(nodes) + len(nodes)
    if names:
        problem = Problem(merged.tasks, {("dp", "allreduce"): AlphaBeta(1, 1)})
        assert problem.compute_ns == merged.end_ns


def test_what_waits_for_nothing_is_one_chain():
    """A thousand kernels and their launches become the segments between the collectives."""
    nodes = []
    for k in range(1000):
        nodes.append(Node("cpu", 3))
        nodes.append(Node("gpu", 7, [len(nodes) - 1]))
        if k in (400, 800):
            nodes.append(collective(f"c{k}", [len(nodes) - 1]))
    merged = merge(nodes)
    assert [(task.name, task.after) for task in merged.tasks] == [
        ("compute 1", ()),
        ("compute 2", ("compute 1",)),
        ("compute 3", ("compute 2",)),
        ("c400", ("compute 1",)),
        ("c800", ("compute 2",)),
    ]
    assert merged.ready_ns == {"c400": 3 + 401 * 7, "c800": 3 + 801 * 7}
    assert (merged.end_ns, merged.waiting) == (7003, 0)


def test_a_chain_after_a_collective_is_one_task_although_the_processor_launches_each():
    """The launches become one earliest start."""
    nodes = [collective("c")]
    for k in range(100):
        nodes.append(Node("cpu", 5))
        nodes.append(Node("gpu", 2, [0, len(nodes) - 1] if k == 0 else [len(nodes) - 1]))
    merged = merge(nodes)
    gpu = [task for task in merged.tasks if isinstance(task, Compute) and task.stream == "gpu"]
    assert [task.duration_ns for task in gpu] == [200]
    for takes in (0, 100, 400, 1000):
        assert times_of_tasks(merged, {"c": takes})[1] == max(502, takes + 200)


def test_streams_keep_their_names_and_do_not_clash_with_the_segments():
    """A stream that is named like the segments does not hold anything up."""
    nodes = [
        Node("compute", 1),
        Node("other", 50),
        collective("compute 1", [0]),
        Node("compute", 4, [2]),
    ]
    merged = merge(nodes)
    assert times_of_tasks(merged, {"compute 1": 10}) == ({"compute 1": 1}, 50)
    assert len({task.name for task in merged.tasks}) == len(merged.tasks)
    merged = merge([Node("gpu", 1), collective("gpu 1", [0]), Node("gpu", 1, [1])])
    assert [task.name for task in merged.tasks] == ["gpu 2", "gpu 1", "gpu 3"]


def test_thousands_of_waiting_tasks_merge_quickly():
    """No step of the merging is quadratic."""
    nodes = [collective("c")]
    for k in range(30_000):
        nodes.append(Node(f"gpu {k % 4}", 1, [max(0, k - 1), 0]))
    merged = merge(nodes)
    assert times_of_tasks(merged, {"c": 9})[1] == times_of_nodes(nodes, {"c": 9})[1]


def test_order_and_circles():
    """The order is by rank among those that could be next; a circle is named."""
    assert topological([[], [0], [], [1, 2]], [5, 1, 3, 0], str) == [2, 0, 1, 3]
    with pytest.raises(CycleError) as caught:
        topological([[], [3], [1], [2, 0]], [0, 1, 2, 3], lambda k: f"n{k}")
    assert sorted(caught.value.path[1:]) == ["n1", "n2", "n3"]
    assert caught.value.path[0] == caught.value.path[-1]

"""Problems: validation, cycles, channels, ready order, and what follows from the graph."""

from __future__ import annotations

import copy
import itertools
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from oracles import collectives_before, free_communication, ready_order
from strategies import PROPERTY, gradient_problems, problems, random_step, steps

from commsched.models import (
    AlphaBeta,
    Collective,
    Compute,
    CycleError,
    FusionKey,
    Gradient,
    GradientProblem,
    InputError,
    Plan,
    Problem,
    StepTable,
    evaluate,
)

COSTS = {("dp", "allreduce"): AlphaBeta(1, 1)}


@PROPERTY
@given(problems())
def test_nominal_times_equal_the_oracle(problem):
    """Ready times and the end of compute are those of a played step with free collectives."""
    makespan, ready = free_communication(problem)
    assert problem.compute_ns == makespan
    assert problem.nominal.compute_ns == makespan
    assert dict(zip(problem.names, problem.ready_ns, strict=True)) == ready
    assert all(problem.nominal.end_ns[name] == ready[name] for name in ready)


@PROPERTY
@given(problems())
def test_ready_order_equals_the_oracle(problem):
    """By ready time, ties by listing order, but never before what a collective waits for."""
    assert_ready_order(problem)


def test_ready_order_of_many_steps():
    """The same on many seeded steps, in which ties are common."""
    for seed in range(500):
        assert_ready_order(random_step(random.Random(seed), 7))


def assert_ready_order(problem):
    """Compare with the oracle, and the chains with a filter."""
    assert [problem.names[k] for k in problem.ready_order] == ready_order(problem)
    in_chains = sorted(k for chain in problem.chains.values() for k in chain)
    assert in_chains == list(range(len(problem.names)))
    for key, chain in problem.chains.items():
        assert chain == [k for k in problem.ready_order if problem.keys[k] == key]


@PROPERTY
@given(steps())
def test_waiting_equals_a_search(problem):
    """A task waits if a collective is among its ancestors, found one step at a time."""
    waiting = {name for name, before in collectives_before(problem).items() if before}
    assert problem.waiting == waiting
    assert problem.settled == (not waiting)


@PROPERTY
@given(steps())
def test_the_graph_holds_the_tasks(problem):
    """Each node carries its task; edges are the stated dependencies and the streams."""
    graph = problem.graph
    assert [graph.nodes[task.name]["task"] for task in problem.tasks] == list(problem.tasks)
    for task in problem.tasks:
        assert set(task.after) <= set(graph.pred[task.name])
    for before, after in graph.edges:
        stated = before in graph.nodes[after]["task"].after
        assert graph.edges[before, after]["why"] == ("after" if stated else "stream")


@PROPERTY
@given(gradient_problems(dtypes=("a", "b", "c")))
def test_a_gradient_problem_is_the_problem_of_its_tasks(problem):
    """The quick answers of a gradient problem are those of the general problem it stands for."""
    general = Problem(problem.tasks, problem.costs, channels={"dp": ["dp"]})
    for name in (
        "names",
        "index",
        "bytes",
        "keys",
        "ready_ns",
        "ready_order",
        "chains",
        "compute_ns",
        "waiting",
        "settled",
        "collectives",
        "channels",
    ):
        assert getattr(problem, name) == getattr(general, name), name
    assert problem.nominal == general.nominal
    assert general.gradients is None
    key = problem.keys[0]
    assert problem.cost(key) is general.cost(key)
    assert problem.channel(key) == "dp"


def test_ties_in_the_ready_order_follow_the_listing():
    """Equal ready times keep the order in which gradients and collectives are listed."""
    ready = {"d": 5, "a": 3, "c": 5, "b": 3}
    problem = GradientProblem([Gradient(n, 1, t) for n, t in ready.items()], AlphaBeta(1, 1))
    assert [problem.names[k] for k in problem.ready_order] == ["a", "b", "d", "c"]
    tasks = [Compute("x", 5), *(Collective(n, 1, after=("x",)) for n in "zay")]
    assert Problem(tasks, COSTS).ready_order == [0, 1, 2]


def test_ties_in_the_ready_order_of_a_step_with_a_next_forward():
    """That some task waits for a collective changes nothing in the order of the others."""
    tasks = [
        Collective("a", 1, after=("late",)),
        Collective("b", 1, after=("early",)),
        Compute("early", 5, stream="x"),
        Compute("late", 5, stream="y"),
    ]
    assert Problem(tasks, COSTS).ready_order == [0, 1]
    forward = Compute("forward", 1, stream="z", after=("b",))
    assert Problem([*tasks, forward], COSTS).ready_order == [0, 1]


def test_ready_at_once_but_one_waits_for_the_other():
    """A collective listed before the one that it waits for comes after it in the ready order."""
    tasks = [
        Collective("b", 1, after=("z",)),
        Compute("z", 0, after=("a",)),
        Collective("a", 1),
        Collective("c", 1),
    ]
    problem = Problem(tasks, COSTS)
    assert problem.ready_ns == [0, 0, 0]
    assert [problem.names[k] for k in problem.ready_order] == ["a", "b", "c"]


def test_a_stream_runs_in_listing_order():
    """Compute of one stream is serial, of two streams parallel."""
    one = Problem([Compute("a", 5), Compute("b", 7), Collective("c", 1, after=("b",))], COSTS)
    assert one.ready_ns == [12]
    assert one.compute_ns == 12
    two = Problem(
        [Compute("a", 5), Compute("b", 7, stream="aux"), Collective("c", 1, after=("a", "b"))],
        COSTS,
    )
    assert two.ready_ns == [7]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "no collective"),
        ([Compute("a", 1)], "no collective"),
        ([Compute("a", 1), Collective("a", 1)], "task 'a': the name is used twice"),
        ([Collective("a", 1), Collective("a", 1)], "task 'a': the name is used twice"),
        ([Collective("a", 1, after=("ghost",))], "task 'a': after names 'ghost', which is no task"),
        ([Collective("a", 1, group="tp")], r"task 'a': no cost for allreduce in group 'tp' .*dp/"),
        ([Collective("a", 1, "broadcast")], "task 'a': no cost for broadcast in group 'dp'"),
        (
            [Compute("x", 2**50), Compute("y", 1), Collective("a", 1)],
            "together take longer than 13 days",
        ),
    ],
)
def test_bad_problems_are_refused(tasks, message):
    """A problem that cannot be meant is refused; the message names the task."""
    with pytest.raises(InputError, match=message):
        Problem(tasks, COSTS)


@pytest.mark.parametrize(
    ("tasks", "circle"),
    [
        ([Collective("a", 1, after=("a",))], {"a"}),
        ([Collective("a", 1, after=("b",)), Collective("b", 1, after=("a",))], {"a", "b"}),
        # The stream runs x before y, and x waits for y through a collective.
        (
            [Compute("x", 1, after=("a",)), Compute("y", 1), Collective("a", 1, after=("y",))],
            {"x", "y", "a"},
        ),
        # The listing order of one stream against a stated dependency.
        ([Compute("x", 1, after=("y",)), Compute("y", 1), Collective("a", 1)], {"x", "y"}),
    ],
)
def test_cycles_are_refused_with_their_path(tasks, circle):
    """A cycle carries its path, closed, and each step of it is a dependency."""
    with pytest.raises(CycleError, match="in a circle: ") as caught:
        Problem(tasks, COSTS)
    path = caught.value.path
    assert path[0] == path[-1]
    assert set(path) == circle
    assert len(path) == len(circle) + 1
    task_of = {task.name: task for task in tasks}
    listed = [task.name for task in tasks]
    for before, after in itertools.pairwise(path):
        same_stream = all(isinstance(task_of[n], Compute) for n in (before, after))
        assert before in task_of[after].after or (
            same_stream and listed.index(before) < listed.index(after)
        )
    assert " -> ".join(path) in str(caught.value)


def two_groups(channels):
    """Return a problem with groups x and y."""
    tasks = [Collective("a", 1, group="x"), Collective("b", 1, group="y")]
    costs = {(group, "allreduce"): AlphaBeta(1, 1) for group in "xy"}
    return Problem(tasks, costs, channels=channels)


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        (None, {"x": "x", "y": "y"}),
        ({}, {"x": "x", "y": "y"}),
        ({"nic": ["x"]}, {"x": "nic", "y": "y"}),
        ({"nic": ["x", "y"]}, {"x": "nic", "y": "nic"}),
        ({"y": ["x"], "x": ["y"]}, {"x": "y", "y": "x"}),
        ({"x": ["y", "x"]}, {"x": "x", "y": "x"}),
    ],
)
def test_channels(channels, expected):
    """A group that is not listed has a channel of its own name."""
    problem = two_groups(channels)
    assert dict(problem.channels) == expected
    assert problem.channel(FusionKey("allreduce", "x", "float32")) == expected["x"]


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ({"nic": ["z"]}, "channel 'nic': group 'z' has no collective"),
        ({"n1": ["x"], "n2": ["x"]}, "channel 'n2': group 'x' is on channel 'n1' too"),
        ({"nic": ["x", "x"]}, "group 'x'"),
        ({"x": ["y"]}, "channel 'x' does not list group 'x'"),
        ({"nic": []}, "channel 'nic': no group is listed"),
        ({"": ["x"]}, "channel: the name '' must be a non-empty text"),
    ],
)
def test_bad_channels_are_refused(channels, message):
    """Unknown groups, groups on two channels, and a name that a group would use are refused."""
    with pytest.raises(InputError, match=message):
        two_groups(channels)


def test_costs_may_hold_more_than_is_used():
    """A table of costs for a whole cluster serves every step."""
    costs = {**COSTS, ("tp", "all_gather"): AlphaBeta(2, 2)}
    assert Problem([Collective("a", 1)], costs).compute_ns == 0


def test_a_problem_keeps_its_own_costs():
    """Changing the caller's dictionary later changes nothing."""
    costs = dict(COSTS)
    problem = Problem([Collective("a", 1)], costs)
    costs.clear()
    assert problem.cost(problem.keys[0]).ns(1) == 1001


def test_problems_can_be_sent_to_another_process():
    """A planner that uses processes pickles problems, of both forms, and plans."""
    gradients = GradientProblem([Gradient("a", 8, 5)], AlphaBeta(1, 1), backward_end_ns=9)
    for problem in (Problem([Collective("a", 1)], COSTS), gradients):
        plan = Plan.of([["a"]])
        copy, same = pickle.loads(pickle.dumps((problem, plan)))
        assert same == plan
        assert evaluate(copy, same).makespan_ns == evaluate(problem, plan).makespan_ns


def test_tasks_may_be_an_iterator():
    """Any iterable of tasks will do."""
    assert Problem(iter([Collective("a", 1)]), COSTS).names == ["a"]
    assert GradientProblem(iter([Gradient("a", 1, 1)]), AlphaBeta(1, 1)).names == ["a"]


@pytest.mark.parametrize("bad", ["", None, 7, b"a", ("a",)])
def test_bad_names_are_refused(bad):
    """A name is a non-empty text."""
    for make in (
        lambda: Compute(bad, 1),
        lambda: Collective(bad, 1),
        lambda: Gradient(bad, 1, 1),
    ):
        with pytest.raises(InputError, match="must be a non-empty text"):
            make()


@pytest.mark.parametrize("bad", ["", None, 7])
def test_bad_dtypes_groups_and_streams_are_refused(bad):
    """What names a dtype, a group or a stream is a non-empty text too, in every class."""
    for make in (
        lambda: Gradient("a", 1, 1, dtype=bad),
        lambda: Collective("a", 1, dtype=bad),
        lambda: Collective("a", 1, group=bad),
        lambda: Compute("a", 1, stream=bad),
    ):
        with pytest.raises(InputError, match="'a'"):
            make()


@pytest.mark.parametrize("bad", [-1, 0.5, True, float("nan"), float("inf"), "1", None, 2**60])
def test_bad_sizes_and_times_are_refused(bad):
    """Sizes and times are whole numbers in range; the message names the task."""
    for make in (
        lambda: Compute("t", bad),
        lambda: Collective("t", bad),
        lambda: Gradient("t", bad, 1),
        lambda: Gradient("t", 1, bad),
    ):
        with pytest.raises(InputError, match="'t': "):
            make()


def test_bad_kinds_are_refused():
    """The message lists the kinds."""
    with pytest.raises(InputError, match="task 'a': kind: 'all-reduce' is not one of allreduce"):
        Collective("a", 1, kind="all-reduce")


@pytest.mark.parametrize("number", [np.int64, np.int32, np.float64, float])
def test_numbers_are_kept_as_ints(number):
    """Whatever number type comes in, the tasks hold ints."""
    assert type(Compute("a", number(5)).duration_ns) is int
    assert type(Collective("a", number(5)).bytes) is int
    gradient = Gradient("a", number(5), number(6))
    assert (type(gradient.bytes), type(gradient.ready_ns)) == (int, int)
    problem = GradientProblem([gradient], AlphaBeta(1, 1), backward_end_ns=number(9))
    assert type(problem.compute_ns) is int


@pytest.mark.parametrize("make", [Compute, Collective])
def test_a_text_is_no_list_of_predecessors(make):
    """``after="bwd"`` would be taken apart into letters; it is refused."""
    with pytest.raises(InputError, match="after"):
        Problem([Compute("b", 1), make("x", 1, after="b"), Collective("c", 1)], COSTS)


def test_a_text_is_no_list_of_groups():
    """``{"nic": "xy"}`` would be taken apart into letters; it is refused."""
    with pytest.raises(InputError):
        two_groups({"nic": "xy"})


def test_predecessors_may_be_a_list():
    """A list of names is as good as a tuple, and naming one twice changes nothing."""
    problem = Problem([Compute("b", 3), Collective("c", 1, after=["b", "b"])], COSTS)
    assert problem.ready_ns == [3]


@pytest.mark.parametrize(
    ("gradients", "end", "message"),
    [
        ([], None, "no gradient"),
        ([Gradient("a", 1, 1), Gradient("b", 1, 1), Gradient("a", 2, 2)], None, "'a': .* twice"),
        ([Gradient("a", 1, 7)], 6, "backward_end_ns: 6 lies before .* ready at 7"),
        ([Gradient("a", 1, 7)], -1, "backward_end_ns"),
        ([Gradient("a", 1, 7)], True, "backward_end_ns"),
        ([Gradient("a", 1, 7)], 7.5, "backward_end_ns"),
        ([Gradient("a", 1, 7)], 2**51, "backward_end_ns"),
    ],
)
def test_bad_gradient_problems_are_refused(gradients, end, message):
    """No gradient, a name twice, or an end of backward that cannot be."""
    with pytest.raises(InputError, match=message):
        GradientProblem(gradients, AlphaBeta(1, 1), backward_end_ns=end)


def test_gradient_problem_tasks():
    """Backward is cut at the ready times; what remains after the last gradient is a task too."""
    problem = GradientProblem(
        [Gradient("b", 8, 30), Gradient("a", 4, 10, "float16")],
        StepTable([(9, 1)]),
        backward_end_ns=45,
        name="t",
    )
    compute = [task for task in problem.tasks if isinstance(task, Compute)]
    assert [task.duration_ns for task in compute] == [10, 20, 15]
    assert len({task.stream for task in compute}) == 1
    assert [(c.name, c.bytes, c.dtype) for c in problem.collectives] == [
        ("b", 8, "float32"),
        ("a", 4, "float16"),
    ]
    assert problem.compute_ns == 45
    assert problem.name == "t"


def test_gradient_names_that_look_like_the_tasks_in_between():
    """Names that a gradient problem would give its backward tasks are free for gradients."""
    names = ["backward of x", "x", "backward of x'", "end of backward", "backward of backward of x"]
    problem = GradientProblem(
        [Gradient(n, 1, k) for k, n in enumerate(names)], AlphaBeta(1, 1), backward_end_ns=9
    )
    every = [task.name for task in problem.tasks]
    assert len(every) == len(set(every)) == 11
    assert problem.nominal.compute_ns == 9
    assert [c.name for c in problem.collectives] == names


def test_a_chain_of_thousands_is_no_recursion():
    """Long chains of dependencies are neither refused nor too deep."""
    tasks = [Compute("c0", 1)]
    for k in range(3000):
        tasks.append(Collective(f"a{k}", 1, after=(tasks[-1].name,)))
    problem = Problem(tasks, COSTS)
    assert problem.ready_ns == [1] * 3000
    tasks[0] = Compute("c0", 1, after=("a2999",))
    with pytest.raises(CycleError) as caught:
        Problem(tasks, COSTS)
    assert len(caught.value.path) == 3002


def test_tasks_are_values():
    """Equal tasks are equal, can be hashed and cannot be changed."""
    assert Compute("a", 1) == Compute("a", 1)
    assert len({Collective("a", 1), Collective("a", 1), Gradient("a", 1, 1)}) == 2
    for value, field in ((Compute("a", 1), "name"), (Gradient("a", 1, 1), "bytes")):
        with pytest.raises(AttributeError):
            setattr(value, field, 7)
        assert copy.copy(value) == value


def test_random_steps_cover_what_they_promise():
    """The generator makes shared channels, next forwards, chains of collectives and zeros."""
    found = set()
    for seed in range(300):
        problem = random_step(random.Random(seed))
        collectives = set(problem.names)
        channels = list(problem.channels.values())
        found |= {"shared"} if len(set(channels)) < len(channels) else set()
        found |= {"two channels"} if len(set(channels)) > 1 else set()
        for task in problem.tasks:
            if isinstance(task, Compute):
                found |= {"forward"} if collectives & set(task.after) else set()
                found |= {"zero duration"} if task.duration_ns == 0 else set()
                found.add(task.stream)
            else:
                found |= {"chain"} if collectives & set(task.after) else set()
                found |= {"zero bytes"} if task.bytes == 0 else set()
        found |= {"settled"} if problem.settled else set()
    assert found == {
        "shared",
        "two channels",
        "forward",
        "chain",
        "zero duration",
        "zero bytes",
        "gpu",
        "aux",
        "settled",
    }


@pytest.mark.parametrize("bad", [None, 3, b"cuda:0"])
def test_a_device_that_is_no_text_is_refused(bad):
    """None would be another device than the default, and both have one digest."""
    with pytest.raises(InputError, match="gradient 'a': device"):
        Gradient("a", 4, 0, device=bad)
    with pytest.raises(InputError, match="task 'a': device"):
        Collective("a", 4, device=bad)


@pytest.mark.parametrize("bad", [None, 1, "no", np.bool_(True)])
def test_a_flag_that_is_no_bool_is_refused(bad):
    """The text "no" would count as yes."""
    with pytest.raises(InputError, match="gradient 'a': sparse"):
        Gradient("a", 4, 0, sparse=bad)
    with pytest.raises(InputError, match="task 'a': sparse"):
        Collective("a", 4, sparse=bad)
    with pytest.raises(InputError, match="task 'a': movable"):
        Compute("a", 4, movable=bad)


def test_a_hold_that_is_none_is_refused():
    """Memory is stated by a Hold."""
    with pytest.raises(InputError, match="task 'a': hold 'pool' must be a Hold"):
        Collective("a", 4, hold="pool")


@pytest.mark.parametrize("bad", [3, (30, 12), None, AlphaBeta])
def test_a_cost_that_is_no_curve_is_refused(bad):
    """Two numbers, or a class instead of its object, are one clear line."""
    with pytest.raises(InputError, match="must be a cost curve"):
        GradientProblem([Gradient("a", 4, 0)], bad)
    with pytest.raises(InputError, match="must be a cost curve"):
        Problem([Collective("a", 4)], {("dp", "allreduce"): bad})

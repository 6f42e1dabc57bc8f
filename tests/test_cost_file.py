"""Cost files: both spellings, what is refused, the round trip, and which curve a step gets."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY

from commsched.models import AlphaBeta, BusBandwidth, InputError, PiecewiseLinear, StepTable
from commsched.models.collectives import KINDS
from commsched.problems.cost_rows import read_network, write_network
from commsched.problems.network import Network, NetworkCurve

LINE = {"alpha_us": 8, "bandwidth_gb_s": 50}
POINTS = {"points": [[1000, 10], [3000, 14.5]]}
FULL = {
    "kind": "all_gather",
    "cost": POINTS,
    "ranks": 16,
    "nodes": 2,
    "group": "dp",
    "source": "a.log, line 3",
    "date": "2025-01-31",
    "tool": "nccl-tests 2.17.8",
    "mean_error": 0.01,
    "max_error": 0.04,
}


@pytest.fixture
def write(tmp_path):
    """Return a writer of cost files."""

    def write(**fields):
        path = tmp_path / "costs.json"
        path.write_text(json.dumps({"format": "commsched/costs", "version": 1, **fields}))
        return path

    return write


def test_both_spellings(write):
    """A kind's name is short for a curve of it without anything else."""
    network = read_network(write(name="mine", allreduce=LINE, all_to_all=POINTS, curves=[FULL]))
    assert network.name == "mine"
    assert network.curves == (
        NetworkCurve(AlphaBeta(8, 50), "allreduce"),
        NetworkCurve(PiecewiseLinear([(1000, 10), (3000, 14.5)]), "all_to_all"),
        NetworkCurve(
            PiecewiseLinear([(1000, 10), (3000, 14.5)]),
            "all_gather",
            16,
            2,
            "dp",
            "a.log, line 3",
            "2025-01-31",
            "nccl-tests 2.17.8",
            0.01,
            0.04,
        ),
    )
    for kind in KINDS:
        assert read_network(write(**{kind: LINE})).curves[0].kind == kind
    (curve,) = read_network(write(curves=[{"kind": "any", "cost": LINE}])).curves
    assert curve.kind is None


def test_the_ranks_of_a_bus_bandwidth_are_the_curves(write):
    """It was measured with them; another number beside it is a contradiction."""
    cost = {"alpha_us": 8, "bus_bandwidth_gb_s": 100, "ranks": 4}
    for fields in ({"allreduce": cost}, {"curves": [{"kind": "allreduce", "cost": cost}]}):
        (curve,) = read_network(write(**fields)).curves
        assert (curve.ranks, curve.cost) == (4, BusBandwidth(8, 100, 4, "allreduce"))
    with pytest.raises(InputError, match=r"curves\[0\]: ranks is 8, its cost is of 4 ranks"):
        read_network(write(curves=[{"kind": "allreduce", "cost": cost, "ranks": 8}]))
    with pytest.raises(InputError, match="a bus bandwidth is that of one kind, not of any"):
        read_network(write(curves=[{"kind": "any", "cost": cost}]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "reduce"}, r"curves\[0\]: kind: 'reduce' is not one of"),
        ({"kind": None}, r"curves\[0\].kind: expected `str`"),
        ({"cost": {"alpha_us": 8}}, r"curves\[0\]: cost: a cost is one of"),
        ({"cost": {"points": [[8, 2], [16, 1]]}}, "the cost decreases from 2 us at 8 bytes"),
        ({"ranks": 1}, r"curves\[0\]: ranks: 1 must be"),
        ({"ranks": 2.5}, r"curves\[0\].ranks: expected `int`"),
        ({"ranks": True}, r"curves\[0\].ranks: expected `int`"),
        ({"nodes": 0}, r"curves\[0\]: nodes: 0 must be"),
        ({"nodes": 32}, r"curves\[0\]: nodes: 32 must be at most ranks, which is 16"),
        ({"date": "31.1.2025"}, r"curves\[0\]: date: '31.1.2025' is no day"),
        ({"date": "2025-02-30"}, "is no day like"),
        ({"mean_error": -0.1}, r"curves\[0\]: mean_error: -0.1 must be at least 0"),
        ({"max_error": "x"}, r"curves\[0\].max_error: expected"),
        ({"algorithm": "ring"}, "unknown field `algorithm`"),
    ],
)
def test_bad_curves_are_refused(write, change, message):
    """One line that names the file, the curve and the field."""
    with pytest.raises(InputError, match=message) as caught:
        read_network(write(curves=[{**FULL, **change}]))
    assert "costs.json: " in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has no curve: give curves, or one of allreduce"),
        ({"curves": []}, "has no curve"),
        (
            {"curves": [FULL, FULL]},
            "two curves are for the same: all_gather, 16 ranks, 2 nodes, group dp",
        ),
        (
            {"allreduce": LINE, "curves": [{"kind": "allreduce", "cost": LINE}]},
            "two curves are for the same",
        ),
        ({"reduce": LINE}, "unknown field `reduce`"),
        ({"format": "commsched/plan"}, "expected 'commsched/costs'"),
        ({"version": 2}, "version is 2"),
    ],
)
def test_bad_files_are_refused(write, fields, message):
    """One line each."""
    with pytest.raises(InputError, match=message):
        read_network(write(**fields))


costs = st.one_of(
    st.builds(AlphaBeta, st.integers(0, 999), st.integers(1, 999)),
    st.builds(
        lambda a, b: PiecewiseLinear([(8, a), (4096, a + b)]),
        st.decimals("0.001", "99", places=3),
        st.integers(0, 9),
    ),
    st.builds(lambda a: StepTable([(8, a)]), st.integers(1, 9)),
)
curves = st.builds(
    NetworkCurve,
    costs,
    st.sampled_from([None, *KINDS]),
    st.one_of(st.none(), st.integers(8, 99)),
    st.one_of(st.none(), st.integers(1, 8)),
    st.sampled_from(["", "dp", "[\n 1,\n 2\n]"]),
    st.text(max_size=9),
    st.sampled_from(["", "2025-01-31"]),
    st.text(max_size=9),
    st.one_of(st.none(), st.sampled_from([0.0, 0.012346])),
    st.one_of(st.none(), st.sampled_from([0.05])),
)


@PROPERTY
@given(
    st.lists(curves, min_size=1, max_size=5, unique_by=lambda curve: curve.key), st.text(max_size=9)
)
def test_round_trip(tmp_path_factory, some, name):
    """What is written is read back, whatever the texts are."""
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    write_network(Network(tuple(some), name), path)
    again = read_network(path)
    assert again.name == name
    for one, other in zip(some, again.curves, strict=True):
        assert (one.key, one.source, one.date, one.tool) == (
            other.key,
            other.source,
            other.date,
            other.tool,
        )
        assert (one.mean_error, one.max_error) == (other.mean_error, other.max_error)
        assert one.cost.pieces == other.cost.pieces


def test_points_stand_on_lines_of_their_own(tmp_path):
    """A person can read the file."""
    path = tmp_path / "costs.json"
    write_network(Network((NetworkCurve(PiecewiseLinear([(8, 1.5), (16, 2)]), "allreduce"),)), path)
    assert "     [8, 1.5],\n     [16, 2]\n" in path.read_text()


def curve(bandwidth, kind="allreduce", ranks=None, group="", nodes=None) -> NetworkCurve:
    return NetworkCurve(AlphaBeta(1, bandwidth), kind, ranks, nodes, group)


def chosen(network: Network, ranks, group="dp", kind="allreduce") -> int:
    costs, _ = network.costs({(group, kind): ranks}, "step.json")
    return costs[group, kind].bandwidth_gb_s


def test_which_curve_a_step_gets():
    """The group's before any group's, the kind's before any kind's, then by ranks."""
    network = Network(
        (curve(1, ranks=8), curve(2, ranks=16), curve(3), curve(4, group="ep"), curve(5, None))
    )
    assert chosen(network, 8) == 1
    assert chosen(network, 16) == 2
    assert chosen(network, 32) == 3
    assert chosen(network, None) == 3
    assert chosen(network, 8, "ep") == 4
    assert chosen(network, 8, kind="broadcast") == 5
    assert network.costs({("dp", "broadcast"): 8}, "x")[1] == ()
    _, notes = network.costs({("dp", "broadcast"): 8, ("dp", "all_to_all"): 8}, "x")
    assert any("all_to_all, broadcast are priced alike" in note for note in notes)


def test_other_ranks_need_a_flag():
    """With it the nearest number, as a ratio, stands in, and that is said."""
    some = (curve(1, ranks=4), curve(2, ranks=64))
    with pytest.raises(InputError, match=r"of 8 ranks, its cost is of 4 ranks; --any-ranks"):
        chosen(Network(some), 8)
    network = Network(some, any_ranks=True)
    assert chosen(network, 8) == 1
    assert chosen(network, 32) == 2
    _, notes = network.costs({("dp", "allreduce"): 8}, "x")
    assert notes == (
        "allreduce in group 'dp' of 8 ranks, its cost is of 4 ranks: taken all the same",
    )
    with pytest.raises(InputError, match="nothing says which one to take"):
        chosen(network, 16)


def test_what_is_equally_near_is_refused():
    """Two numbers of nodes, or ranks that the step does not know."""
    nodes = Network((curve(1, ranks=8, nodes=1), curve(2, ranks=8, nodes=2)))
    with pytest.raises(
        InputError, match="8 ranks, 1 node; allreduce, 8 ranks, 2 nodes, and nothing"
    ):
        chosen(nodes, 8)
    ranks = Network((curve(1, ranks=8), curve(2, ranks=16)))
    with pytest.raises(InputError, match="of an unknown number of ranks: costs are given for"):
        chosen(ranks, None)
    assert chosen(Network((curve(1, ranks=8), curve(1, ranks=16))), None) == 1
    with pytest.raises(
        InputError, match="has all_gather in group 'dp', costs are given for allreduce"
    ):
        chosen(ranks, 8, kind="all_gather")


@pytest.mark.parametrize("seed", range(60))
def test_mutated_files_give_a_network_or_one_line(tmp_path, seed):
    """Bytes flipped and cut."""
    source = random.Random(seed)
    path = tmp_path / "costs.json"
    text = {"format": "commsched/costs", "version": 1, "allreduce": LINE, "curves": [FULL]}
    data = bytearray(json.dumps(text).encode())
    for _ in range(source.randrange(1, 5)):
        data[source.randrange(len(data))] = source.randrange(256)
    path.write_bytes(bytes(data[: source.randrange(1, len(data) + 40)]))
    message = ""
    try:
        assert read_network(path).curves
    except InputError as error:
        message = str(error)
    assert "\n" not in message

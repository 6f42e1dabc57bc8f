"""Sizes and groups of collectives, in the spellings of ten years of traces."""

from __future__ import annotations

import json

import msgspec
import pytest

from commsched.models.collectives import KINDS
from commsched.problems.profiler.chrome_trace import Event, Op
from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_groups import find_groups
from commsched.problems.profiler.graph_messages import Message, message_of_op


def op(name: str, **args) -> Op:
    raw = msgspec.Raw(json.dumps(args).encode())
    return Op(name, "1", 0, 1, Event(name=name, args=raw))


RPC = {"dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 32, "Group size": 4,
       "Process Group Name": "11", "Process Group Description": "tp"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dims", "types", "sent", "received"),
    [
        ("c10d::allreduce_", [[[3, 4], [8]], [], []], ["TensorList", "", ""], 20, None),
        ("nccl:all_reduce", [[12]], ["float"], 12, None),
        ("c10d::_allgather_base_", [[64], [16], []], ["float", "float", ""], 16, 64),
        ("c10d::allgather_", [[[[5], [5]]], [[5]], []], ["", "TensorList", ""], 5, 10),
        ("c10d::allgather_", [[], [[5, 2]]], ["", "TensorList"], 10, None),
        ("c10d::_reduce_scatter_base_", [[16], [64]], ["float", "float"], 64, 16),
        ("c10d::alltoall_base_", [[70], [50]], ["float", "float"], 50, 70),
        ("_c10d_functional::all_reduce", [[4, 4], [], []], ["float", "", ""], 16, None),
        # A scalar has no dimensions, and a list that was not recorded looks the same.
        ("gloo:all_reduce", [[]], ["float"], 1, None),
        ("c10d::allreduce_", [[], [], []], ["TensorList", "", ""], None, None),
        ("c10d::allreduce_", [[["x"]]], ["TensorList"], None, None),
        ("c10d::allreduce_", [[[2**40, 2**40]]], ["TensorList"], None, None),
        ("c10d::allreduce_", "no list", None, None, None),
    ],
)
def test_dimensions_give_what_is_sent_and_received(name, dims, types, sent, received):
    """The operations with an output name it first; annotations have the input alone."""
    message = message_of_op(op(name, **{"Input Dims": dims, "Input type": types}))
    assert (message.sent, message.received) == (sent, received)


def test_functional_collectives_say_how_many_ranks_there_are():
    """It is among their inputs, at a place that depends on the collective."""
    dims = {"Input Dims": [[6], [], [], []], "Input type": ["float", "", "", ""]}
    gather = op("_c10d_functional::all_gather_into_tensor", **dims,
                **{"Concrete Inputs": ["", "8", "0"]})  # fmt: skip
    assert message_of_op(gather).ranks == 8
    assert message_of_op(gather).bytes("all_gather", 8) == 6 * 8 * 4
    scatter = op("_c10d_functional::reduce_scatter_tensor", **dims,
                 **{"Concrete Inputs": ["", "sum", "8", "0"]})  # fmt: skip
    assert message_of_op(scatter).ranks == 8
    for odd in ([], ["", "x" * 30], None, ["", None]):
        changed = op("_c10d_functional::all_gather_into_tensor", **dims, **{"Concrete Inputs": odd})
        assert message_of_op(changed).ranks is None


def test_the_process_groups_own_event_knows_best():
    """Sizes, type and group of record_param_comms."""
    message = message_of_op(op("record_param_comms", **RPC))
    assert (message.sent, message.received, message.dtype) == (8, 32, "bfloat16")
    assert (message.group, message.description, message.ranks) == ("11", "tp", 4)
    assert message.bytes("all_gather", None) == 64
    message.learn(Message(sent=1, dtype="float32", sequence=5))
    assert (message.sent, message.dtype, message.sequence) == (8, "bfloat16", 5)


@pytest.mark.parametrize("value", [True, -1, 1.5, "8", None, [], 2**60])
def test_odd_counts_are_no_counts(value):
    """Nothing is guessed from a damaged field."""
    message = message_of_op(op("record_param_comms", **RPC | {"In msg nelems": value}))
    assert message.sent is None
    message = message_of_op(op("record_param_comms", **RPC | {"Group size": value}))
    assert message.ranks is None


def test_bytes_are_those_of_the_larger_buffer():
    """As nccl-tests counts them; what is missing is worked out from the ranks or not at all."""
    both = Message(sent=100, received=400, dtype="float16")
    assert {kind: both.bytes(kind, None) for kind in KINDS} == dict.fromkeys(KINDS, 800)
    part = Message(received=100, dtype="float16")
    assert part.bytes("reduce_scatter", 4) == 800
    assert part.bytes("reduce_scatter", None) is None
    assert Message(sent=100, dtype="float16").bytes("all_gather", None) is None
    assert Message(sent=100).bytes("allreduce", 4) is None
    assert Message(dtype="float16").bytes("allreduce", 4) is None
    assert Message(sent=2**50, dtype="float64").bytes("allreduce", 4) is None


def groups_of(messages: list[Message], metadata: dict) -> tuple[list[str], dict[str, int]]:
    calls = [Call("allreduce", op("x"), message) for message in messages]
    found = find_groups(calls, metadata)
    return [found.of(call) for call in calls], dict(found.ranks)


def test_groups_have_the_names_that_people_gave_them():
    """The description, with the short name where two share one; sizes from the configuration."""
    info = {"distributedInfo": {"world_size": 8, "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8},
        {"pg_name": "3", "pg_desc": "mesh_tp", "pg_size": 2}]}}  # fmt: skip
    messages = [Message(group="0", description="default_pg"), Message(group="3"),
                Message(group="7", description="x"), Message(group="8", description="x")]  # fmt: skip
    assert groups_of(messages, info) == (
        ["default_pg", "group 3", "x 7", "x 8"],
        {"default_pg": 8, "group 3": 2},
    )


@pytest.mark.parametrize(
    ("info", "name", "ranks"),
    [
        ({"world_size": 4}, "dp", {"dp": 4}),
        ({"world_size": 4, "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4}]},
         "default_pg", {"default_pg": 4}),
        ({"world_size": True, "pg_config": "x"}, "dp", {}),
        ({"pg_config": [3, {"pg_name": 3}, {"pg_name": "1", "pg_size": "2"}]}, "dp", {}),
        ("x", "dp", {}),
        (None, "dp", {}),
    ],
)  # fmt: skip
def test_a_group_that_was_not_recorded(info, name, ranks):
    """The only configured one, else a name of its own with all ranks, as far as they are known."""
    assert groups_of([Message()], {"distributedInfo": info}) == ([name], ranks)

"""Damaged traces, traces that are not of DDP, and sizes from execution traces."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY
from trace_checks import ENDS, SHAPES, check_step, failed, made, refused
from trace_maker import AG, GLOO, NEW, OUTER, STYLES, Maker, Style, write_trace

from commsched.models import InputError
from commsched.problems.execution.execution_trace import is_execution_trace, read_gradient_sizes
from commsched.problems.profiler.profiler_reader import recognises
from commsched.problems.profiler.profiler_trace import read_profiler_trace
from commsched.problems.profiler.trace_dtypes import shape_of
from commsched.problems.profiler.trace_events import collective_kind


def test_damage_is_mended_and_said(tmp_path):
    """Bare inf, bad UTF-8, quotes and a cut in one file: the step still comes out, with a report."""
    maker = Maker(GLOO)
    truth = maker.step(SHAPES, ENDS)
    maker.op("in\x01f", 5, 6, tid=1, dims=[[1]], types=["float"], bandwidth=123456)
    maker.op("torch_dynamo", 5, 6, tid=1)
    maker.op("the last one is cut", 5, 6, tid=1)
    text = json.dumps(maker.top(), indent=1).replace("123456", "inf").replace("\\u0001", "\x01")
    data = text.replace("torch_dynamo", 'torch "dynamo"').encode().replace(b"vectorized", b"\xff")
    path = tmp_path / "t"
    path.write_bytes(data[: data.index(b"the last one") + 5])
    step = read_profiler_trace(path)
    check_step(step, truth)
    assert failed(step) == ["the file is intact: 5 faults"]
    notes = " ".join(step.report.assumptions)
    assert "bare inf or nan read as null (1)" in notes
    assert "unescaped quotes in an event (1)" in notes
    assert step.report.dropped["event cut off at the end"] == 1


def test_ids_beyond_64_bits_and_hostile_fields_do_no_harm(tmp_path):
    """Nothing is known about the types of an event's fields."""
    maker = Maker(NEW)
    truth = maker.step(SHAPES, ENDS)
    odd: list[object] = [None, True, -1, 1.5, 10**30, "", "x", [], {}, [[]], float("1e308")]
    for value in odd:
        for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"):
            base = {"ph": "X", "cat": "kernel", "name": AG, "pid": 4000, "tid": 1, "ts": 1,
                    "args": {}}  # fmt: skip
            maker.events.append(base | {"cat": "cpu_op", "name": "aten::x", key: value})
            maker.events.append(base | {"name": "ncclDevKernel", key: value})
        args = {"Input Dims": value, "Input type": value, "In msg nelems": value,
                "Collective name": value, "correlation": value, "External id": value,
                "dtype": value, "Comms Id": 10159970886766084423}  # fmt: skip
        for cat, name in (("cpu_op", "record_param_comms"), ("kernel", "ncclDevKernel"),
                          ("cuda_runtime", "cudaLaunchKernel"), ("cpu_op", "c10d::allreduce_"),
                          ("user_annotation", "gloo:all_reduce")):  # fmt: skip
            maker.add(name, 1_000_000, 1_000_001, tid=1, cat=cat, args=args)
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert [g.bytes for g in step.gradients] == truth.bytes
    assert step.plan is not None


@PROPERTY
@given(st.data())
def test_any_field_may_be_replaced_by_anything(tmp_path_factory, data):
    """Fuzzing: a trace with damaged fields gives a step or an InputError, nothing else."""
    maker = Maker(data.draw(st.sampled_from([NEW, GLOO, STYLES["rocm-old"]])))
    maker.step([(3,), (4, 5)], [2])
    values = st.sampled_from([None, True, -3, 0, 2**70, 1.5, "", "1", [], {}, [[]], [[2**40]], "X"])
    for _ in range(data.draw(st.integers(1, 6))):
        event = data.draw(st.sampled_from(maker.events))
        target = event if data.draw(st.booleans()) or not event["args"] else event["args"]
        if isinstance(target, dict):
            target[data.draw(st.sampled_from(sorted(target)))] = data.draw(values)
        if not isinstance(event["args"], dict):
            break
    path = write_trace(tmp_path_factory.getbasetemp() / "fuzz-fields", maker.top())
    with contextlib.suppress(InputError):
        read_profiler_trace(path)


def test_all_reduces_inside_other_functions_of_backward_are_no_buckets(tmp_path):
    """Synchronised batch norm reduces in backward too: those hold no gradient."""
    maker = Maker(NEW)
    truth = maker.step(SHAPES, ENDS)
    work = [e for e in maker.events if "MmBackward0" in e["name"]][3]
    maker.op("c10d::allreduce_", round(work["ts"] * 1000) + 500, round(work["ts"] * 1000) + 900,
             tid=maker.backward, dims=[[[128]]], types=["TensorList"])  # fmt: skip
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    check_step(step, truth)
    assert step.report.dropped["all-reduces in backward outside the gradients' hooks"] == 1


def test_a_trace_without_sizes_says_how_to_get_them(tmp_path):
    """The message names both ways."""
    path, _ = made(tmp_path, Style(shapes=False))
    message = refused(path)
    assert "record_shapes=True" in message
    assert "--sizes" in message


def test_traces_of_two_ranks_in_one_file_are_refused(tmp_path):
    """Their times and gradients must not be mixed."""
    maker = Maker(GLOO)
    maker.step(SHAPES, ENDS)
    other = copy.deepcopy(maker.events)
    for event in other:
        event["pid"] = 4001
    maker.events += other
    assert "2 processes" in refused(write_trace(tmp_path / "t", maker.top()))


def test_backward_without_communication_is_refused(tmp_path):
    """One line says what the trace has instead of collectives."""
    maker = Maker(GLOO)
    maker.step(SHAPES, [])
    message = refused(write_trace(tmp_path / "t", maker.top()))
    assert "the trace has no collective; it has 5 gradients in 1 steps" in message


def test_no_work_and_no_events_are_refused(tmp_path):
    """Collectives without anything that could make them ready, and a file with metadata only."""
    maker = Maker(GLOO)
    maker.all_reduce(1_000_000, 5, "float32", 0)
    message = refused(write_trace(tmp_path / "t", maker.top()))
    assert "1 collectives, and no work of the processor or of a GPU" in message
    assert "no events" in refused(write_trace(tmp_path / "t", {"schemaVersion": 1}))


def test_an_unknown_element_type_is_refused(tmp_path):
    """Its bytes are not known, and none are guessed."""
    path, _ = made(tmp_path)
    top = json.loads(path.read_text())
    next(e for e in top["traceEvents"] if e["name"] == AG)["args"]["Input type"] = ["posit"]
    assert "gradient 0 has the unknown element type 'posit'" in refused(
        write_trace(tmp_path / "t", top)
    )


def test_a_gradient_beyond_all_bounds_is_refused(tmp_path):
    """Two to the sixtieth elements are a damaged trace."""
    path, _ = made(tmp_path)
    top = json.loads(path.read_text())
    next(e for e in top["traceEvents"] if e["name"] == AG)["args"]["Input Dims"] = [[2**60]]
    assert "must be at most" in refused(write_trace(tmp_path / "t", top))


def test_the_kind_is_recognised_by_content():
    """An object with events or a bare list of them; our own files and other JSON are not."""
    maker = Maker(STYLES["oldest"])
    maker.step(SHAPES, ENDS)
    top = maker.top()
    assert recognises(json.dumps(top).encode())
    assert recognises(json.dumps(top["traceEvents"]).encode())
    ours = {"format": "commsched/problem", "name": '"ph"', "traceEvents": []}
    for thing in ({}, [], None, 3, {"nodes": []}, [None, 3], ours):
        assert not recognises(json.dumps(thing).encode())


# Sizes from an execution trace


def execution_trace(shapes, *, flat=False, steps=2, marks=True):
    """Return the top level of a PyTorch execution trace, in the flat or the newer schema."""
    nodes: list[dict] = []

    def node(name, dims=None, text=None):
        number = len(nodes) + 2
        shown, types = ([dims], [f"Tensor({text})"]) if text else ([], [])
        if flat:
            inputs = {"inputs": [], "input_shapes": shown, "input_types": types}
        else:
            inputs = {"inputs": {"values": [], "shapes": shown, "types": types}}
        nodes.append({"id": number, "name": name, **inputs})

    for number in range(steps):
        if marks:
            node(f"ProfilerStep#{number}")
        for shape in shapes:
            node(OUTER)
            if shape is None:
                node(AG, [], "nullptr (uninitialized)")
            else:
                node(AG, list(shape), "float")
    nodes.reverse()  # the order is that of the ids
    return {"schema": "1.0.1" if flat else "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("marks", [True, False])
def test_sizes_come_from_an_execution_trace(tmp_path, flat, marks):
    """Both schemas, several steps in the file, marked or not."""
    path, truth = made(tmp_path, Style(shapes=False))
    sizes = write_trace(tmp_path / "et", execution_trace(SHAPES, flat=flat, marks=marks))
    step = read_profiler_trace(path, sizes=sizes)
    check_step(step, truth)
    assert any("sizes are those of et" in note for note in step.report.assumptions)


def test_execution_traces_that_do_not_fit_are_refused(tmp_path):
    """Another model, steps that differ, no gradients, or no execution trace at all."""
    path, _ = made(tmp_path, Style(shapes=False))
    et = tmp_path / "et"

    def said(top: object) -> str:
        write_trace(et, top, compress=True)
        with pytest.raises(InputError) as caught:
            read_profiler_trace(path, sizes=et)
        assert str(caught.value).startswith(f"{et}: ")
        return str(caught.value)

    assert "3 gradients a step, the profiler trace 5" in said(execution_trace(SHAPES[:3]))
    both = execution_trace(SHAPES, steps=1)
    both["nodes"] += [n | {"id": n["id"] + 50} for n in execution_trace(SHAPES[::-1])["nodes"]]
    assert "different gradients" in said(both)
    assert "has no gradient" in said(execution_trace([]))
    assert "no PyTorch execution trace" in said({"traceEvents": []})
    assert "no PyTorch execution trace" in said([])
    et.write_bytes(b"{")
    with pytest.raises(InputError, match="no execution trace"):
        read_profiler_trace(path, sizes=et)


def test_parameters_without_gradients_are_none_in_an_execution_trace(tmp_path):
    """They keep their place in the order."""
    top = execution_trace([(3,), None, (4, 5)], steps=1)
    assert is_execution_trace(top)
    sizes = read_gradient_sizes(write_trace(tmp_path / "et", top))
    assert [size and size.elements for size in sizes] == [3, None, 20]


def test_hostile_names_and_shapes_cost_no_time():
    """Neither a name of many suffixes nor a shape of many dimensions is worked through."""
    assert collective_kind("nccl:" + "_base" * 80_000 + "x") is None
    assert shape_of([2] * 100_000) is None
    assert shape_of([2] * 10) == (2,) * 10

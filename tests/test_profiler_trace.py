"""Reading DDP steps out of profiler traces that were made for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY
from trace_checks import ENDS, SHAPES, check_step, failed, made, refused
from trace_maker import AG, GLOO, NEW, OUTER, STYLES, Maker, write_trace

from commsched.models import AlphaBeta, evaluate
from commsched.problems.profiler.profiler_trace import read_profiler_trace


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_every_style_gives_back_what_was_put_in(tmp_path, style):
    """Ten years of names, numbers and nesting say the same."""
    path, truth = made(tmp_path, style)
    step = read_profiler_trace(path)
    check_step(step, truth)
    assert not failed(step)
    assert "buckets reproduced to the byte: 2 of 2" in [c.text for c in step.report.checks]
    assert step.step_name == ("ProfilerStep#3" if style.marks else "the whole trace")
    assert step.report.kept["gradients"] == 5
    assert step.report.events_read == len(json.loads(path.read_text())["traceEvents"])


shapes = st.lists(st.integers(1, 40), max_size=3).map(tuple)


@st.composite
def steps(draw):
    """Gradients in ready order, bucket ends, the type of each gradient, and a style."""
    gradients = draw(st.lists(shapes, min_size=1, max_size=12))
    inner = draw(st.sets(st.integers(1, len(gradients)), max_size=5))
    dtype = draw(st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
    style = draw(st.sampled_from(list(STYLES.values())))
    return gradients, sorted(inner | {len(gradients)}), [dtype] * len(gradients), style


@PROPERTY
@given(steps(), st.booleans())
def test_known_gradients_and_buckets_come_back_exactly(tmp_path_factory, step, compress):
    """Property: what a trace is made from is what is read from it."""
    gradients, ends, dtypes, style = step
    maker = Maker(style)
    truth = maker.step(gradients, ends, dtypes=dtypes)
    path = write_trace(tmp_path_factory.getbasetemp() / "property", maker.top(), compress=compress)
    check_step(read_profiler_trace(path), truth)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_the_number_of_ranks_is_read(tmp_path, style):
    """From the process group's own event, else from the job's; None where neither says it."""
    path, _ = made(tmp_path, style)
    assert read_profiler_trace(path).ranks == 2
    top = json.loads(path.read_text())
    del top["distributedInfo"]
    known = style.gpu and style.c10d and style.sizes == "comms"
    assert read_profiler_trace(write_trace(path, top)).ranks == (2 if known else None)


def test_names_say_number_and_shape(tmp_path):
    """They are stable, unique, and in ready order."""
    step = read_profiler_trace(made(tmp_path)[0])
    assert [g.name for g in step.gradients] == [
        "grad000 [1000]", "grad001 [1000x512]", "grad002 [64x3x7x7]", "grad003 [scalar]",
        "grad004 [256x128]",
    ]  # fmt: skip


def test_the_step_is_a_problem_and_its_plan_can_be_evaluated(tmp_path):
    """What was read plugs into the evaluator."""
    path, truth = made(tmp_path)
    step = read_profiler_trace(str(path))
    problem = step.problem(AlphaBeta(10, 10))
    assert problem.backward_end_ns == truth.backward_end >= truth.ready[-1]
    assert step.plan is not None
    timeline = evaluate(problem, step.plan)
    assert timeline.compute_ns == truth.backward_end
    assert len(timeline.launches) == 2


def test_two_types_have_two_sequences_of_buckets(tmp_path):
    """DDP never mixes types, so the gradients of one type close its bucket alone."""
    maker = Maker(NEW)
    dtypes = ["float32", "bfloat16", "float32", "bfloat16"]
    truth = maker.step([(5,), (7,), (11,), (13,)], [], dtypes=dtypes)
    hooks = [e for e in maker.events if e["name"] == OUTER]
    for hook, elements, dtype in ((hooks[2], 16, "float32"), (hooks[3], 20, "bfloat16")):
        maker.all_reduce(round(hook["ts"] * 1000) + 12_000, elements, dtype, maker.gpu_free)
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert [launch.bytes for launch in step.launches] == [64, 40]
    assert [launch.dtype for launch in step.launches] == ["float32", "bfloat16"]
    names = [g.name for g in step.gradients]
    assert [launch.names for launch in step.launches] == [
        (names[0], names[2]), (names[1], names[3])
    ]  # fmt: skip
    assert step.plan is not None
    assert [g.bytes for g in step.gradients] == truth.bytes


def test_a_communication_hook_that_compresses_changes_the_sizes(tmp_path):
    """What is sent is what counts: float32 gradients sent as bfloat16 have half the bytes."""
    path, truth = made(tmp_path, sent_as="bfloat16")
    step = read_profiler_trace(path)
    check_step(step, truth)
    assert step.gradients[1].bytes == 1000 * 512 * 2
    assert any("sent the gradients as bfloat16" in note for note in step.report.assumptions)


@pytest.mark.parametrize("style", [NEW, GLOO], ids=["gpu", "gloo"])
def test_a_bucket_of_another_module_is_told_apart(tmp_path, style):
    """Gradients that wait for their own bucket stay out of one that closes before it."""
    maker = Maker(style)
    maker.step([(100,), (30,), (7,), (50,)], [])
    hooks = [e for e in maker.events if e["name"] == OUTER]
    for hook, elements in ((hooks[2], 7), (hooks[3], 180)):
        at = round(hook["ts"] * 1000) + 12_000
        maker.all_reduce(at, elements, "float32", max(at, maker.gpu_free))
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    names = [g.name for g in step.gradients]
    assert [launch.names for launch in step.launches] == [
        (names[2],), (names[0], names[1], names[3])
    ]  # fmt: skip
    assert step.plan is not None
    assert any("do not follow each other" in note for note in step.report.assumptions)


def test_two_launches_of_one_hook_are_told_apart(tmp_path):
    """A bucket that was complete waits for the one before it: both go out of the same hook."""
    maker = Maker(NEW)
    maker.step([(100,), (30,), (7,), (50,)], [])
    hook = [e for e in maker.events if e["name"] == OUTER][3]
    for at, elements in ((5000, 130), (20_000, 57)):
        maker.all_reduce(round(hook["ts"] * 1000) + at, elements, "float32", maker.gpu_free)
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert [len(launch.names) for launch in step.launches] == [2, 2]
    assert step.plan is not None


def test_a_launch_that_holds_more_than_its_gradients_is_not_exact(tmp_path):
    """Parameters without a gradient are in the bucket but not in the trace: that is said."""
    maker = Maker(NEW)
    maker.step(SHAPES, ENDS)
    for event in maker.events:
        if event["args"].get("In msg nelems") == 513_000:
            event["args"]["In msg nelems"] = 513_096
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert [launch.exact for launch in step.launches] == [False, True]
    assert step.launches[0].bytes == 513_096 * 4
    assert step.plan is None
    assert "buckets reproduced to the byte: 1 of 2" in failed(step)
    assert any("launch 0: sent 2052384 bytes" in note for note in step.report.assumptions)


def test_a_parameter_without_a_gradient_is_left_out(tmp_path):
    """Its AccumulateGrad has neither dimensions nor a type."""
    path, _ = made(tmp_path, GLOO)
    top = json.loads(path.read_text())
    inner = [e for e in top["traceEvents"] if e["name"] == AG][3]
    inner["args"] |= {"Input Dims": [[]], "Input type": [""]}
    for event in top["traceEvents"]:
        text = json.dumps(event.get("args", {})).replace("61297", "61296")
        event["args"] = json.loads(text)
    step = read_profiler_trace(write_trace(tmp_path / "t", top))
    elements = 64 * 3 * 7 * 7 + 256 * 128
    assert len(step.gradients) == 4
    assert step.report.dropped["parameters that got no gradient"] == 1
    assert step.launches[0].exact
    assert sum(g.bytes for g in step.gradients[2:]) == elements * 4


def test_launches_without_a_size_are_not_exact(tmp_path):
    """Nothing says how large they were, so nothing is claimed."""
    path, _ = made(tmp_path)
    top = json.loads(path.read_text())
    for event in top["traceEvents"]:
        event.get("args", {}).pop("In msg nelems", None)
    step = read_profiler_trace(write_trace(tmp_path / "t", top))
    assert [launch.exact for launch in step.launches] == [False, False]
    assert [launch.bytes for launch in step.launches] == [513_000 * 4, (9408 + 1 + 32768) * 4]
    assert step.plan is None


@pytest.mark.parametrize("style", [NEW, GLOO], ids=["gpu", "gloo"])
def test_what_is_no_gradient_is_dropped_with_its_reason(tmp_path, style):
    """A loss average, a broadcast of buffers and DDP's map of used parameters hold no gradient."""
    maker = Maker(style)
    truth = maker.step(SHAPES, ENDS, loss_average=True)
    hook = [e for e in maker.events if e["name"] == OUTER][-1]
    at = round(hook["ts"] * 1000) + 30_000
    maker.op("c10d::allreduce_", at, at + 5000, tid=maker.backward, dims=[[[5]], []],
             types=["TensorList", ""])  # fmt: skip
    maker.op("nccl:all_reduce", at + 1000, at + 3000, tid=maker.backward, dims=[[5]],
             types=["int"], cat="user_annotation")  # fmt: skip
    maker.op("c10d::broadcast_", 1_001_000, 1_002_000, tid=maker.main)
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    check_step(step, truth)
    dropped = step.report.dropped
    assert dropped["all-reduces after backward without gradients"] == 1
    assert dropped["all-reduces of whole numbers"] == 1
    assert dropped["broadcast collectives"] == 1


def test_all_reduces_after_backward_count_if_they_hold_every_gradient(tmp_path):
    """Training without DDP's hooks that reduces each gradient at the end is a plan too."""
    maker = Maker(GLOO)
    maker.step([(5,), (7,), (11,)], [], launch=False)
    optimizer = maker.events[-3]
    assert optimizer["name"].startswith("Optimizer")
    start = round(optimizer["ts"] * 1000)
    optimizer["ts"] += 1000
    for k, elements in enumerate((11, 5, 1, 7)):
        maker.all_reduce(start + k * 20_000, elements, "float32", start)
    for event in maker.events:
        if event["name"].startswith("ProfilerStep"):
            event["dur"] += 5000
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    names = [g.name for g in step.gradients]
    assert [launch.names for launch in step.launches] == [(names[2],), (names[0],), (names[1],)]
    assert step.plan is not None
    assert step.report.dropped["all-reduces after backward without gradients"] == 1


@pytest.mark.parametrize("marked", [True, False])
def test_gradient_accumulation_keeps_the_last_micro_batch(tmp_path, marked):
    """Only the last micro-batch is sent; it is found with and without marks of forward."""
    maker = Maker(NEW)
    maker.step(SHAPES, ENDS, launch=False)
    begin, start = len(maker.events), maker.now
    truth = maker.step(SHAPES, ENDS)
    first_step, last_step = (e for e in maker.events if e["name"] == "ProfilerStep#3"
                             and e["cat"] == "user_annotation")  # fmt: skip
    first_step["dur"] = last_step["ts"] + last_step["dur"] - first_step["ts"]
    last_step["name"] = "another"
    for event in maker.events[:begin]:
        if event["name"].startswith("Optimizer"):
            event["name"] = "nothing"
    if not marked:
        for event in maker.events:
            if event["name"].startswith("Distributed"):
                event["name"] = "forward"
    assert start > 0
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    assert [g.bytes for g in step.gradients] == truth.bytes
    assert [launch.exact for launch in step.launches] == [True, True]
    assert step.plan is not None
    reason = "gradients of micro-batches that were not sent (gradient accumulation)"
    assert step.report.dropped[reason] == 5
    said = "\n".join(step.report.assumptions)
    assert ("an earlier backward pass of it sends nothing" in said) == marked
    assert "modules take part" not in said
    # Times count from the start of the whole step.
    assert step.gradients[0].ready_ns > truth.ready[0]


def test_the_median_step_is_taken_and_any_other_on_request(tmp_path):
    """Three steps of different lengths; the choice is explained."""
    maker = Maker(NEW)
    truths = {n: maker.step(SHAPES, ENDS, number=n, length=length)
              for n, length in ((7, 90_000), (8, 60_000), (9, 70_000))}  # fmt: skip
    for n, extra in ((7, 900), (8, 0), (9, 400)):
        event = next(e for e in maker.events if e["name"] == f"ProfilerStep#{n}")
        event["dur"] -= 9 - extra / 1000
    path = write_trace(tmp_path / "t", maker.top())
    step = read_profiler_trace(path)
    assert step.step_name == "ProfilerStep#9"
    check_step(step, truths[9])
    assert "ProfilerStep#9: the one of median length among 3" in step.report.assumptions[0]
    for number, truth in truths.items():
        chosen = read_profiler_trace(path, step=number)
        assert chosen.step_name == f"ProfilerStep#{number}"
        check_step(chosen, truth)
    assert "step 10 is not in the trace, which has 7, 8, 9" in refused(path, step=10)
    assert not failed(step)


def test_steps_cut_off_at_the_edge_are_not_chosen(tmp_path):
    """Of a step that the file cuts in two, the rest is no step."""
    maker = Maker(GLOO)
    truth = maker.step(SHAPES, ENDS, number=1)
    maker.step(SHAPES, ENDS, number=2)
    events = maker.events
    hooks = [k for k, e in enumerate(events) if e["name"] == OUTER]
    mark = next(e for e in events if e["name"] == "ProfilerStep#2")
    maker.events = [*events[: hooks[7]], mark]
    check_step(read_profiler_trace(write_trace(tmp_path / "t", maker.top())), truth)


@pytest.mark.parametrize("style", [NEW, GLOO], ids=["gpu", "gloo"])
def test_several_steps_without_marks_are_told_apart(tmp_path, style):
    """Without ProfilerStep each forward pass starts another step."""
    style = replace(style, marks=False)
    maker = Maker(style)
    truths = [maker.step(SHAPES, ENDS) for _ in range(3)]
    path = write_trace(tmp_path / "t", maker.top())
    step = read_profiler_trace(path)
    assert step.step_name == "backward pass 2 of 3"
    assert [g.bytes for g in step.gradients] == truths[1].bytes
    assert step.plan is not None
    assert "has no ProfilerStep" in refused(path, step=3)


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path):
    """The GPU lags by more than a step: the kernels' own times would mix the steps up."""
    maker = Maker(NEW)
    maker.gpu_free = 50_000_000
    truths = [maker.step(SHAPES, ENDS, number=n) for n in (1, 2, 3)]
    path = write_trace(tmp_path / "t", maker.top())
    for number, truth in enumerate(truths, 1):
        check_step(read_profiler_trace(path, step=number), truth)
    assert truths[0].launches[0][0] < 0  # issued before the GPU began the step


def test_kernels_launched_before_the_recording_are_dropped(tmp_path):
    """They have no launch event, and their ids mean nothing."""
    maker = Maker(NEW)
    maker.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", 1_000_000, 1_100_000, tid=20,
              cat="kernel", args={"External id": 5, "correlation": 4})  # fmt: skip
    maker.add("ampere_sgemm", 1_000_000, 1_100_000, tid=7, cat="kernel",
              args={"External id": 5, "correlation": 3})  # fmt: skip
    truth = maker.step(SHAPES, ENDS)
    step = read_profiler_trace(write_trace(tmp_path / "t", maker.top()))
    check_step(step, truth)
    assert step.report.dropped["collective kernels whose launch was not recorded"] == 1
    assert step.report.dropped["kernels and copies whose launch was not recorded"] == 1


def test_without_kernels_the_times_are_said_to_be_the_processors(tmp_path):
    """A GPU run recorded without the GPU still tells the buckets, but not the times."""
    path, truth = made(tmp_path)
    top = json.loads(path.read_text())
    top["traceEvents"] = [e for e in top["traceEvents"] if e.get("cat") != "kernel"]
    step = read_profiler_trace(write_trace(tmp_path / "t", top))
    assert [g.bytes for g in step.gradients] == truth.bytes
    assert step.plan is not None
    assert any("processor's and not the GPU's" in text for text in failed(step))
    assert "launches with recorded times: 0 of 2" in failed(step)


def test_kernels_that_were_not_recorded_are_counted(tmp_path):
    """A gradient would seem ready too early if its kernel is missing, so that is said."""
    path, _ = made(tmp_path)
    top = json.loads(path.read_text())
    lost = next(e for e in top["traceEvents"] if e["name"] == "ampere_sgemm" and e["dur"] == 60)
    top["traceEvents"].remove(lost)
    step = read_profiler_trace(write_trace(tmp_path / "t", top))
    assert failed(step) == ["kernels that the step launched and that were not recorded: 1"]


def test_sizes_that_are_not_needed_are_not_read(tmp_path):
    """The trace's own shapes go first, and the report says so."""
    path, truth = made(tmp_path)
    step = read_profiler_trace(path, sizes=tmp_path / "missing.json")
    check_step(step, truth)
    assert "the trace has its own sizes: missing.json was not read" in step.report.assumptions


def test_ready_times_never_fall(tmp_path):
    """A kernel that ends before the one of the gradient before it is raised, and counted."""
    path, truth = made(tmp_path)
    top = json.loads(path.read_text())
    kernels = [e for e in top["traceEvents"] if e["name"] == "ampere_sgemm" and e["dur"] == 60]
    kernels[2]["dur"] = 1
    kernels[2]["ts"] = kernels[0]["ts"]
    step = read_profiler_trace(write_trace(tmp_path / "t", top))
    assert step.gradients[2].ready_ns == truth.ready[1]
    assert "ready times in the order of the hooks: 4 of 5 (1 raised to the one before)" in failed(
        step
    )

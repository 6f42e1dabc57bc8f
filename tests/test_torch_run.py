"""Plans in real runs: DDP's arguments and buckets, FSDP2, tuning, and the emulated link.

What needs ranks runs once in two processes (tests/torch_run_ranks.py); nothing here is a test of speed.
"""

from __future__ import annotations

import doctest
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from filelock import FileLock  # noqa: E402  (torch needs it, too)
from torch import nn  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

import commsched  # noqa: E402
import commsched.torch  # noqa: E402
from commsched.models import AlphaBeta, Bucket, InputError, Plan  # noqa: E402
from commsched.models.errors import NotApplicableError  # noqa: E402
from commsched.models.overheads import Overheads, play_overheads  # noqa: E402
from commsched.models.units import MIB, format_ns  # noqa: E402
from commsched.optimizer.overheads import optimize_overheads  # noqa: E402
from commsched.problems import problem_digest  # noqa: E402
from commsched.problems.steps.fsdp_step import fsdp_step  # noqa: E402
from commsched.problems.steps.layers import Layer, LayerProfile  # noqa: E402
from commsched.torch import (  # noqa: E402
    EmulatedLink,
    ddp_kwargs,
    fully_shard_plan,
    measure_overheads,
    tune,
)
from commsched.torch import link as link_module  # noqa: E402
from commsched.torch import running as running_module  # noqa: E402

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("torch_run_ranks.py")
MS = 1_000_000
COST = AlphaBeta(alpha_us=20, bandwidth_gb_s=1)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two real ranks found, by case; pytest-xdist's workers share one run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / "torch_run_ranks.pickle"
    with FileLock(folder / "torch_run_ranks.lock"):
        if not kept.exists():
            found = run_ranks(tmp_path_factory.mktemp("run_ranks"), str(SCRIPT))
            kept.write_bytes(pickle.dumps(found))
    return pickle.loads(kept.read_bytes())


def problem_of(*sizes, dtypes=()):
    """Return a problem of gradients a, b, c, ... of so many bytes, a microsecond apart."""
    names = "abcdefgh"[: len(sizes)]
    kinds = dtypes or ["float32"] * len(sizes)
    return commsched.gradient_problem(
        [
            commsched.Gradient(name, size, 1000 * k, kind)
            for k, (name, size, kind) in enumerate(zip(names, sizes, kinds, strict=True))
        ],
        COST,
    )


# From a plan to buckets that DDP has formed


def test_random_models_get_the_planned_buckets_from_real_ddp(ranks):
    """Plan, settings, a new model in DDP, its log: the same members, sizes and order."""
    trips = ranks[0]["round_trips"]
    assert len(trips) >= 50
    assert sum(trip["dtypes"] > 1 for trip in trips) >= 5
    assert sum(len(trip["log"].buckets) > 2 for trip in trips) >= 15
    assert sum("bucket_cap_mb_list" in trip["kwargs"] for trip in trips) >= 40
    for trip in trips:
        formed = [sorted(bucket.names) for bucket in trip["log"].buckets]
        planned = [sorted(bucket.names) for bucket in trip["plan"].buckets]
        assert sorted(formed) == sorted(planned)
        for bucket in trip["log"].buckets:
            assert bucket.bytes == sum(trip["bytes"][name] for name in bucket.names)
        if trip["dtypes"] == 1:
            assert formed == planned
            assert trip["said"] == "nothing"
        elif formed != planned:
            # DDP launches what it never closed in the order of a hash map; check says so.
            assert "the buckets themselves are as planned" in trip["said"]


def test_every_rank_forms_the_same_buckets(ranks):
    """DDP takes the first rank's order."""
    first, second = ([trip["log"] for trip in rank["round_trips"]] for rank in ranks)
    assert first == second


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("early", "rank 0: DDP has not rebuilt its buckets yet"),
        ("other", "rank 0: bucket 2 of 4: DDP left '2.bias' out, which the plan has there"),
        ("fewer", "rank 0: bucket 3 of 4: DDP left '0.bias' out"),
        ("more", "rank 0: bucket 4 of 4: DDP put '0.weight' in, which the plan has elsewhere"),
        ("larger", "rank 0: bucket 1 of 4: it has 4224 bytes, 4232 are planned"),
        ("dtype", "rank 0: bucket 1 of 4: it is of float32, bfloat16 is planned"),
        ("names", "rank 0: bucket 1 of 4: DDP left 'grad0' out"),
        ("unused", "rank 0: DDP has not rebuilt its buckets yet"),
        ("rank 1 only", "rank 1: bucket 2 of 4: DDP left '2.bias' out"),
        ("rank 1's argument", "rank 1: problem: it is missing"),
        ("no ddp", "model: Sequential is no DistributedDataParallel"),
    ],
)
def test_check_names_the_first_difference_on_all_ranks(ranks, name, words):
    """Also where one rank alone has it."""
    for rank in ranks:
        assert words in rank["checks"][name]
        assert rank["checks"][name] == ranks[0]["checks"][name]


def test_check_returns_what_ddp_formed(ranks):
    """Its names and bytes, and on how many ranks."""
    right = ranks[1]["checks"]["right"]
    assert right.ranks == 2
    assert [bucket.bytes for bucket in right.buckets] == [4224, 4224, 8448, 4224]
    assert right.buckets[0].names == ("4.bias", "4.weight")


# DDP's arguments


def test_a_result_a_plan_and_a_plan_file_give_the_same_caps(tmp_path):
    """A file needs no problem; with it it is compared."""
    problem = problem_of(2 * MIB, MIB // 2, 3 * MIB)
    plan = Plan.of([["a", "b"], ["c"]])
    expected = {"bucket_cap_mb_list": [2.5, 3.0]}
    assert ddp_kwargs(plan, problem) == expected
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_file(problem, plan)))
    assert ddp_kwargs(path) == ddp_kwargs(str(path)) == ddp_kwargs(path, problem) == expected
    result = commsched.optimize(problem)
    caps = ddp_kwargs(result)["bucket_cap_mb_list"]
    assert [int(cap * MIB) for cap in caps] == [
        sum(dict(zip("abc", problem.bytes, strict=True))[name] for name in bucket.names)
        for bucket in result.plan.buckets
    ]


def plan_file(problem, plan, **changes):
    """Return a plan file's content; ``changes`` are made to every bucket."""
    size = dict(zip(problem.names, problem.bytes, strict=True))
    rows = [
        {
            "names": list(bucket.names),
            "kind": "allreduce",
            "dtype": "float32",
            "bytes": sum(size[name] for name in bucket.names),
        }
        | changes
        for bucket in plan.buckets
    ]
    return {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": problem_digest(problem),
        "buckets": [{k: v for k, v in row.items() if v is not None} for row in rows],
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bytes": None}, "buckets[0]: bytes is missing; give the problem as well"),
        ({"kind": None}, "buckets[0]: kind is missing"),
        ({"bytes": 0}, "buckets[0] has no bytes"),
        ({"bytes": 2**60}, "buckets[0]: bytes"),
        ({"kind": "reduce_scatter"}, "DDP all-reduces whole gradients, not 'reduce_scatter'"),
        ({"dtype": "float99"}, "not 'allreduce' of 'float99'"),
        ({"chunks": [[0, 4], None], "names": ["a", "b"]}, "DDP all-reduces whole gradients"),
        ({"not_before_us": 3}, "DDP launches a bucket as soon as it is ready"),
    ],
)
def test_a_plan_file_that_ddp_cannot_run_is_refused(tmp_path, changes, words):
    """In one line that names the file and the bucket."""
    path = tmp_path / "plan.json"
    problem = problem_of(8, 8, 8)
    path.write_text(json.dumps(plan_file(problem, Plan.of([["a", "b"], ["c"]]), **changes)))
    if "chunks" in changes:
        document = json.loads(path.read_text())
        document["buckets"] = document["buckets"][:1]
        path.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        ddp_kwargs(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_files_of_several_dtypes_other_scopes_and_other_problems_are_refused(tmp_path):
    """They may be run, but not by caps that nobody has tried."""
    path = tmp_path / "plan.json"
    problem, plan = problem_of(8, 8, 8), Plan.of([["a", "b"], ["c"]])
    document = plan_file(problem, plan)
    document["buckets"][1]["dtype"] = "float16"
    for changed, words in (
        (document, "several dtypes"),
        (plan_file(problem, plan) | {"scope": "any"}, "scope any; give its problem as well"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(InputError, match=words):
            ddp_kwargs(path)
    path.write_text(json.dumps(plan_file(problem, plan)))
    with pytest.raises(InputError, match="a plan of another problem"):
        ddp_kwargs(path, problem_of(8, 8, 16))


def test_what_is_no_plan_is_refused(tmp_path):
    """One line each."""
    problem = problem_of(8, 8, 8)
    plan = Plan.of([["a", "b"], ["c"]])
    unplanned = type("Unplanned", (), {"plan": None, "problem": problem})()
    for wrong, words in ((3, "int is no result"), (None, "NoneType"), (unplanned, "has none")):
        with pytest.raises(InputError, match=words):
            ddp_kwargs(wrong)
    with pytest.raises(InputError, match="problem: it is missing"):
        ddp_kwargs(plan)
    with pytest.raises(InputError, match=r"nowhere\.json"):
        ddp_kwargs(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="'c'"):
        ddp_kwargs(Plan.of([["a", "b"]]), problem)
    for cannot in (Plan.of([["a", "c"], ["b"]]), Plan((Bucket(("a", "b", "c"), 10),))):
        with pytest.raises(NotApplicableError):
            ddp_kwargs(cannot, problem)
    with pytest.raises(NotApplicableError, match="dtype"):
        ddp_kwargs(Plan.of([["a"], ["b"]]), problem_of(8, 8, dtypes=["float32", "float16"]))


def test_an_old_torch_and_a_turned_list_are_refused(monkeypatch):
    """Before anything silently runs with other buckets."""
    problem, plan = problem_of(8, 8), Plan.of([["a"], ["b"]])
    monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "0")
    assert ddp_kwargs(plan, problem)
    monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "1")
    with pytest.raises(InputError, match=r"DDP_SET_LAST_BUCKET_CAP=1: .*; unset it"):
        ddp_kwargs(plan, problem)
    monkeypatch.delenv("DDP_SET_LAST_BUCKET_CAP")

    class Old(nn.Module):
        def __init__(self, module, bucket_cap_mb=None):
            raise AssertionError("not made")

    monkeypatch.setattr(running_module, "DistributedDataParallel", Old)
    with pytest.raises(InputError, match=r"has no bucket_cap_mb_list, it came with 2\.11: pip"):
        ddp_kwargs(plan, problem)


# Tuning


def test_tuning_gives_every_rank_the_same_plan_and_ddp_forms_it(ranks):
    """Capture, costs, plan, wrap, check; the model is as it was before."""
    for rank in ranks:
        story = rank["user_story"]
        tuned = story["tuned"]
        assert story["kept"]
        assert set(tuned.kwargs) == {"bucket_cap_mb_list"}
        assert tuned.environment == {}
        assert tuned.result.status == "optimal"
        # As good as the best one with DDP's overheads, within a thousandth of the step.
        with_terms = play_overheads(tuned.problem, tuned.plan, tuned.overheads)
        best = optimize_overheads(tuned.problem, tuned.overheads)
        assert best.makespan_ns <= with_terms.makespan_ns <= 1.001 * best.makespan_ns
        # Its ready times are those of the plain model: nothing was copied into buckets.
        assert not tuned.overheads.filled
        assert tuned.overheads.copy_gb_s is not None
        assert tuned.costs.ranks == 2
        # The largest size that was measured is all the gradients at once.
        assert tuned.costs.points[-1][0] == sum(g.bytes for g in tuned.recorded.gradients)
        assert [sorted(b.names) for b in story["formed"].buckets] == [
            sorted(b.names) for b in tuned.plan.buckets
        ]
        assert problem_digest(tuned.problem) == problem_digest(
            ranks[0]["user_story"]["tuned"].problem
        )
        assert tuned.kwargs == ranks[0]["user_story"]["tuned"].kwargs


def test_the_report_has_the_step_the_costs_the_plan_and_the_verdict(ranks):
    """A few lines for people."""
    tuned = ranks[0]["user_story"]["tuned"]
    lines = tuned.report.splitlines()
    assert lines[0].startswith("Sequential: 16 gradients, 291.00 KiB, backward ends at ")
    assert any(line.startswith("all-reduce on 2 ranks (gloo): 4.00 KiB take ") for line in lines)
    assert any(line.startswith(f"plan: {tuned.plan.launches} launches, ") for line in lines)
    assert lines[-1] == f"verdict: {tuned.verdict}"
    assert any(
        line.startswith("overheads of DDP: measured with 16 gradients, spread ")
        and line.endswith("; with room to spare")
        for line in lines
    )
    exposed = play_overheads(tuned.problem, tuned.plan, tuned.overheads).exposed_ns
    with_them = next(line for line in lines if line.startswith("with them ("))
    assert f": {format_ns(exposed)} exposed, " in with_them
    assert f"hook_us {tuned.overheads.hook_us}" in with_them
    bare = replace(tuned.overheads, copy_gb_s=None)
    saved = exposed - play_overheads(tuned.problem, tuned.plan, bare).exposed_ns
    views = [line for line in lines if line.startswith("gradient_as_bucket_view=True would save ")]
    assert [f"save {format_ns(saved)} of that" in line for line in views] == [True] * (saved > 0)
    again = ranks[0]["user_story"]["again"]
    # In DDP today's buckets are known; the cost was given.
    assert "the recorded buckets" in again.verdict
    assert again.costs is None
    assert "all-reduce on" not in again.report
    assert again.report.startswith("again: ")


def test_overheads_can_be_given_or_left_out_and_room_to_spare_too(ranks):
    """Without both it is the plan of the result; views are an argument of DDP's."""
    for rank in ranks:
        bare, given = rank["tuned_otherwise"]["bare"], rank["tuned_otherwise"]["given"]
        assert bare.plan == bare.result.plan
        assert bare.overheads == Overheads()
        assert "overheads of DDP: as given" in bare.report
        assert "room to spare" not in bare.report
        assert given.overheads == Overheads(hook_us=5000, finish_us=7)
        assert given.plan.launches == 1  # a second hook would cost more than it gains
        assert given.kwargs["gradient_as_bucket_view"] is True
        assert "with them (hook_us 5000, finish_us 7): " in given.report
        again = rank["user_story"]["again"]
        assert again.overheads.filled  # it was captured in DDP


def test_what_ddp_adds_is_measured_with_a_stand_in(ranks):
    """Each term is there, the ranks agree, and the model has not been touched."""
    terms = [rank["overheads"] for rank in ranks]
    assert terms[0]["copies"] == terms[1]["copies"]
    for found in terms:
        assert found["kept"]
        for name, views in (("copies", False), ("views", True)):
            measured = found[name]
            assert measured.views is views
            assert (measured.gradients, measured.bytes) == (16, 8 * (32 * 32 + 32) * 4)
            own = measured.overheads
            assert own.filled
            assert own.wake_us == 0
            # Wide bounds: two ranks on a machine that may be busy with anything.
            assert 0 < own.hook_us < 100_000
            assert own.issue_us < own.hook_us
            assert own.fill_gb_s is None or 0.01 < own.fill_gb_s < 1000
            assert (own.copy_gb_s is None) or not views
            assert set(measured.spread) >= {
                "issue_us",
                "hook_us",
                "fill",
                "gradient_us",
                "finish_us",
            }
        assert "steps: 2 must be a whole number from 3 to 1000" in found["steps"]
        assert "model: no parameter requires a gradient" in found["frozen"]
        assert "rank 1 has other overheads than rank 0" in found["differ"]


def test_overheads_need_a_process_group():
    """They are DDP's."""
    with pytest.raises(
        InputError, match=r"torch\.distributed is not initialised: DDP cannot be run"
    ):
        measure_overheads(nn.Linear(4, 4))


def test_tuning_alone_counts_no_overheads_that_nobody_measured():
    """And says so; there is room to spare all the same."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def step():
        model.zero_grad()
        model(torch.ones(4, 64)).sum().backward()

    tuned = tune(model, step, cost=AlphaBeta(20, 1), steps=2)
    assert tuned.overheads is None
    assert "overheads of DDP: not measured: torch.distributed is not initialised" in tuned.report
    assert "; with room to spare" in tuned.report


def test_ranks_that_cannot_agree_all_raise_the_same(ranks):
    """Costs differ, or the first rank finds nothing."""
    for rank in ranks:
        assert "InputError: rank 1 has problem sha256:" in rank["other_costs"]["cost"]
        assert rank["other_costs"]["limit"] == "InputError: time_limit_s: -1 must be above 0"
        assert rank["other_costs"] == ranks[0]["other_costs"]


def test_of_several_types_the_nearest_plan_is_run_and_named(ranks):
    """And what DDP forms is what was said."""
    for rank in ranks:
        found = rank["several_dtypes"]
        tuned, formed = found["tuned"], found["log"].buckets
        assert "DDP does not run the best plan: " in tuned.report
        assert sorted(sorted(b.names) for b in formed) == sorted(
            sorted(b.names) for b in tuned.plan.buckets
        )
        assert {bucket.dtype for bucket in formed} == {"float32", "bfloat16"}
        if found["said"] != "nothing":  # what was never closed is in the order of a hash map
            assert "the buckets themselves are as planned" in found["said"]


def test_tuning_alone_needs_a_cost():
    """There is nothing to measure."""
    model = nn.Linear(4, 4)
    with pytest.raises(InputError, match="cost: with one rank nothing can be measured"):
        tune(model, lambda: None)
    with pytest.raises(InputError, match="cost: int is no cost curve"):
        tune(model, lambda: None, cost=3)
    with pytest.raises(InputError, match="no gradient arrived"):
        tune(model, lambda: None, cost=COST)


@pytest.mark.parametrize("name", ["dying", "raising"])
def test_a_rank_that_is_gone_leaves_no_other_waiting(tmp_path, name):
    """Neither on the emulated link nor in tune."""
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    processes = [subprocess.Popen([*command, str(rank), name]) for rank in range(2)]
    try:
        for process in processes:
            process.wait(timeout=120)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    text, seconds = pickle.loads((tmp_path / "rank0.pickle").read_bytes())[name]
    assert text
    assert seconds < 60


# The emulated link


def test_a_link_carries_one_launch_at_a_time_for_what_it_costs(ranks):
    """In DDP's order, to the byte; each ends when it is due, but for the clock."""
    for rank in ranks:
        found = rank["link_of_one"]
        launches = found["launches"]
        assert [launch.bucket for launch in launches] == [0, 1, 2, 3]
        assert [launch.bytes for launch in launches] == found["bytes"]
        assert found["bytes"] == [16640, 33280, 33280, 16640]
        assert [launch.due_ns - launch.start_ns for launch in launches] == found["durations"]
        free = 0
        for launch in launches:
            assert launch.start_ns == max(launch.issued_ns, free)
            assert launch.end_ns >= launch.due_ns
            free = launch.due_ns
        # Launches take 28 to 37 ms; half of them, at least, are signalled within 5 ms of their end.
        late = sorted(launch.end_ns - launch.due_ns for launch in launches)
        assert late[1] < 5 * MS
        before, after = found["step"]
        assert before < launches[0].issued_ns
        assert launches[-1].end_ns < after


def test_what_the_model_says_of_a_step_is_what_it_takes(ranks):
    """Four launches of 130 ms in all, nearly all exposed: within 15 ms and a tenth."""
    for rank in ranks:
        found = rank["link_of_one"]
        predicted = found["predicted"]
        assert [launch.bytes for launch in predicted.launches] == found["bytes"]
        last = found["launches"][-1]
        measured = last.end_ns - last.issued_ns
        assert predicted.exposed_ns > 110 * MS
        assert abs(measured - predicted.exposed_ns) < 15 * MS + predicted.exposed_ns / 10


def test_with_two_ranks_a_launch_waits_for_the_later_one_and_averages(ranks):
    """Both ranks see the same launches; rank 1 begins 60 ms later."""
    one, two = (rank["link_of_two"] for rank in ranks)
    assert one["same"]
    assert two["same"]
    assert len(one["launches"]) > 1
    for mine, other in zip(one["launches"], two["launches"], strict=True):
        assert mine[:5] == other[:5]
    assert two["began"] - one["began"] > 40 * MS
    assert one["launches"][0].start_ns > two["began"]


def test_a_link_that_is_closed_or_not_asked_for_ddp_refuses(ranks):
    """In one line."""
    found = ranks[0]["link_of_one"]
    assert found["closed"] == "InputError: the emulated link is closed"
    assert found["attach"] == "InputError: model: Sequential is no DistributedDataParallel"


def test_a_link_needs_one_machine_and_numbers_in_range(monkeypatch):
    """The ranks' clocks are compared."""
    for alpha, bandwidth in ((-1, 1), (1, 0), (float("nan"), 1), (1, "fast")):
        with pytest.raises(InputError):
            EmulatedLink(alpha, bandwidth)
    monkeypatch.setattr(link_module, "world_size", lambda group: 2)
    monkeypatch.setattr(link_module, "gathered", lambda mine, group: ["here", "there"])
    with pytest.raises(InputError, match="rank 1 is on machine 'there', rank 0 on 'here'"):
        EmulatedLink(1, 1)


class MadeUpBucket:
    """What DDP gives a hook."""

    def __init__(self, buffer):
        self._buffer = buffer

    def index(self):
        return 7

    def buffer(self):
        return self._buffer


def test_a_link_takes_any_bucket_in_order_and_remembers_it():
    """Without DDP around it; a second close is harmless."""
    with EmulatedLink(2000, 1) as link:
        buffers = [torch.full((1000,), float(k)) for k in range(5)]
        futures = [link.hook(None, MadeUpBucket(buffer)) for buffer in buffers]
        for future, buffer in zip(futures, buffers, strict=True):
            assert torch.equal(future.wait(), buffer)
        assert [launch.bytes for launch in link.launches] == [4000] * 5
        assert link.launches[0].due_ns - link.launches[0].start_ns == 2_004_000
        link.clear()
        assert link.launches == ()
        sparse = torch.ones(2, 2).to_sparse()
        with pytest.raises(InputError, match="bucket 7: an emulated link carries dense"):
            link.hook(None, MadeUpBucket(sparse))
        with pytest.raises(InputError, match=r"not torch\.strided on meta"):
            link.hook(None, MadeUpBucket(torch.ones(2, device="meta")))
    link.close()


# FSDP2


@pytest.mark.parametrize("name", ["near", "far", "kept", "layers", "two"])
def test_a_sharded_model_runs_the_planned_groups_in_the_planned_order(ranks, name):
    """Its losses are those of the model that is not sharded."""
    for rank in ranks:
        found = rank["sharded"][name]
        for loss, reference in found["losses"]:
            assert loss == pytest.approx(reference, rel=1e-5)
        settings = found["settings"]
        groups, kept, forward, backward = found["groups"]
        assert settings.get("separate_reduce_scatter_group", False) == (name == "two")
        assert [list(group) for group in groups] == settings["groups"]
        assert kept == (tuple(range(len(groups))) if name == "kept" else ())
        assert forward == {int(k): tuple(v) for k, v in settings["forward_prefetch"].items()}
        assert backward == {int(k): tuple(v) for k, v in settings["backward_prefetch"].items()}
        text = {"root": ""} | {group[0]: f" ({', '.join(group)})" for group in groups}
        wanted = []
        for bucket in found["projected"].buckets:
            kind, _, layer = bucket.names[0].removesuffix(" again").partition(" ")
            if layer != "root":
                what = {"gather": "all_gather", "scatter": "post_backward_reduce"}[kind]
                wanted.append(f"FSDP::{what}{text[layer]}")
        # FSDP2 scatters the model's own parameters at the end, and its annotation has no name.
        real = [
            line
            for line in found["annotations"]
            if line.startswith(("FSDP::all_gather (", "FSDP::post_backward_reduce ("))
        ]
        assert real == wanted
        # The rows need no gradient: what the model holds goes when backward has ended, and then the
        # first group's, as the export says of what it cannot express.
        reduced = [line for line in found["annotations"] if "::post_backward_reduce" in line]
        assert reduced[-2] == "FSDP::post_backward_reduce"
        assert reduced[-1] == f"FSDP::post_backward_reduce{text[groups[0][0]]}"
        assert any("FSDP2 issues it when backward has ended" in line for line in found["cannot"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no problem", "problem: it is missing"),
        ("no plan", "plan: int is no result, plan or export"),
        ("no model", "model: int is no torch.nn.Module"),
        ("other framework", "plan: it is an export for PyTorch DDP, not for FSDP2"),
        ("reshard", "reshard_after_forward: the plan says it for each group"),
        ("missing", "plan: 'blocks.2' is no module of the model"),
        (
            "size",
            "plan: the group of 'blocks.1' has 4160 elements in the problem, its modules have",
        ),
        ("root", "plan: the group of 'root' has 64 elements in the problem, its modules have 84"),
        ("left over", "plan: no group holds parameter '2.weight'"),
        ("ranks differ", "rank 1 has another plan than rank 0"),
        ("one rank", "problem: it is missing"),
    ],
)
def test_a_sharded_plan_that_does_not_fit_is_refused(ranks, name, words):
    """Before anything is wrapped."""
    for rank in ranks:
        found = rank["sharding_refused"]
        assert found[name].startswith("InputError: ")
        assert words in found[name]
        assert not [kind for kind in found["untouched"] if kind.startswith("FSDP")]


def test_two_communicators_need_a_torch_that_has_them(monkeypatch):
    """Looked up in torch, before anything is wrapped."""
    from torch.distributed.fsdp import FSDPModule

    name = "set_separate_reduce_scatter_group"
    monkeypatch.delattr(FSDPModule, name, raising=False)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    layers = [Layer(name, 1000, 2000, (64 + 8) * 4) for name in ("0", "1")]
    costs = {"all_gather": COST, "reduce_scatter": COST}
    problem = fsdp_step(LayerProfile(layers), costs, communicators=2)
    plan = Plan.of([name] for name in problem.names)
    with pytest.raises(InputError, match=f"have a communicator each, .* has no {name}"):
        fully_shard_plan(model, plan, problem)
    assert type(model) is nn.Sequential


def test_a_plan_of_gradients_groups_modules(ranks):
    """Its buckets are whole layers."""
    assert ranks[0]["sharding_refused"]["gradients"] == (("1",), ("0",))


# The documentation


def test_the_python_of_the_page_runs(ranks):
    """On two ranks, as it stands there."""
    assert ranks[0]["documented"] >= 4


def test_the_examples_in_the_docstrings_run():
    """They are not run elsewhere, for they need torch."""
    for name in ("link", "running", "tuning"):
        outcome = doctest.testmod(sys.modules[f"commsched.torch.{name}"])
        assert outcome.attempted > 0
        assert outcome.failed == 0

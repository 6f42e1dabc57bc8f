"""``commsched.torch``: capturing real steps, alone and under DDP on two ranks, and timing links."""

from __future__ import annotations

import doctest
import os
import pickle
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from filelock import FileLock  # noqa: E402  (torch needs it, too)
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_ranks import run_ranks  # noqa: E402

import commsched  # noqa: E402
import commsched.torch  # noqa: E402
from commsched.export import ddp_settings  # noqa: E402
from commsched.models import AlphaBeta, InputError, MissingExtraError, Plan  # noqa: E402
from commsched.models.fit import fit_alpha_beta, fit_piecewise  # noqa: E402
from commsched.problems import problem_digest, write_problem  # noqa: E402
from commsched.torch import MeasuredCosts, capture, measure_costs, trainable_parameters  # noqa: E402
from commsched.torch import clocks as clocks_module  # noqa: E402
from commsched.torch import hooks as hooks_module  # noqa: E402
from commsched.torch.buckets import DdpBucket, DdpLog  # noqa: E402
from commsched.torch.hooks import GradientMeta, StepTimes  # noqa: E402
from commsched.torch.ranks import RankRecord  # noqa: E402
from commsched.torch.summary import Conditions, summarised  # noqa: E402

pytestmark = pytest.mark.torch

COST = AlphaBeta(alpha_us=20, bandwidth_gb_s=1)
REBUILT = [
    "plain_mlp",
    "convolutions",
    "tied",
    "sparse",
    "frozen",
    "mixed",
    "checkpointed",
    "checkpointed_reentrant",
    "accumulated",
    "views_and_static_graph",
    "caps_list",
    "compressed",
]
"""Models whose buckets DDP rebuilds in the order in which gradients become ready."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two real ranks found, by case; pytest-xdist's workers share one run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / "torch_ranks.pickle"
    with FileLock(folder / "torch_ranks.lock"):
        if not kept.exists():
            kept.write_bytes(pickle.dumps(run_ranks(tmp_path_factory.mktemp("ranks"))))
    return pickle.loads(kept.read_bytes())


def mlp(layers: int = 3, width: int = 16) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


def training(model, batch=None, **kwargs):
    """Return a step that trains a model, and its optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kwargs)
    batch = torch.ones(4, 16) if batch is None else batch

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step, optimizer


def failed(recorded) -> list[str]:
    """Return the checks that failed, but those of how steady the clock of a busy machine is."""
    return [
        check.text
        for check in recorded.report.checks
        if not check.passed and not check.text.startswith("ready times are steady")
    ]


def assumed(recorded, words: str) -> bool:
    return any(words in note for note in recorded.report.assumptions)


def numbers(text: str) -> list[list[int]]:
    return [[int(k) for k in part.replace(",", " ").split()] for part in text.split(",")]


def hooked(model) -> int:
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


# Under DDP, on two ranks


@pytest.mark.parametrize("name", REBUILT)
def test_a_capture_has_the_gradients_order_and_buckets_of_ddps_own_log(ranks, name):
    """Names, sizes, ready order and the buckets to the byte."""
    found = ranks[0][name]
    recorded, log, parameters = found["recorded"], found["log"], found["parameters"]
    assert sorted((g.name, g.bytes) for g in recorded.gradients) == sorted(parameters)
    order = [
        k for bucket in numbers(log["prev_iteration_grad_ready_order_indices"]) for k in bucket
    ]
    assert [g.name for g in recorded.gradients] == [parameters[k][0] for k in order]
    buckets = numbers(log["rebuilt_per_bucket_param_indices"])
    assert [sorted(launch.names) for launch in recorded.launches] == [
        sorted(parameters[k][0] for k in bucket) for bucket in buckets
    ]
    assert len(buckets) > 1
    assert [launch.bytes for launch in recorded.launches] == [
        size for sizes in numbers(log["rebuilt_bucket_sizes"]) for size in sizes
    ]
    assert all(launch.exact for launch in recorded.launches)
    assert recorded.plan == Plan.of([launch.names for launch in recorded.launches])
    assert not failed(recorded)
    assert recorded.ranks == 2


@pytest.mark.parametrize("name", [*REBUILT, "unused", "find_unused", "unused_on_one_rank"])
def test_every_rank_returns_the_same_and_is_left_without_hooks(ranks, name):
    """One plan for all ranks needs one problem; training goes on as before."""
    one, two = (rank[name]["recorded"] for rank in ranks)
    assert one == two
    assert problem_digest(one.problem(COST)) == problem_digest(two.problem(COST))
    for rank in ranks:
        before, after = rank[name]["hooks"]
        assert before == after
    assert ranks[0][name]["weights"] == ranks[1][name]["weights"]


@pytest.mark.parametrize("name", REBUILT)
def test_a_captured_step_is_planned_at_least_as_well_as_it_ran(ranks, name):
    """The result goes straight into the optimizer, the evaluator and the export."""
    recorded = ranks[0][name]["recorded"]
    problem = recorded.problem(COST)
    result = commsched.optimize(problem)
    today = commsched.evaluate(problem, recorded.plan)
    assert commsched.evaluate(problem, result.plan).makespan_ns <= today.makespan_ns
    ready = [gradient.ready_ns for gradient in recorded.gradients]
    assert ready == sorted(ready)
    assert ready[0] > 0
    assert ready[-1] <= recorded.backward_end_ns
    issued = [launch.issued_ns for launch in recorded.launches]
    assert issued == sorted(issued)
    last = {gradient.name: gradient.ready_ns for gradient in recorded.gradients}
    assert all(
        launch.issued_ns >= max(last[name] for name in launch.names) for launch in recorded.launches
    )


def test_the_plan_of_today_can_be_exported_again(ranks):
    """Caps as large as today's buckets form today's buckets."""
    recorded = ranks[0]["plain_mlp"]["recorded"]
    settings = ddp_settings(recorded.problem(COST), recorded.plan)
    assert [cap * 2**20 for cap in settings.bucket_cap_mb_list] == [
        launch.bytes for launch in recorded.launches
    ]


def test_a_tied_weight_is_one_gradient_and_comes_last(ranks):
    """It has its first name and is ready when its last use has added to it."""
    names = [gradient.name for gradient in ranks[0]["tied"]["recorded"].gradients]
    assert names[-1] == "embedding.weight"
    assert "head.weight" not in names


def test_a_sparse_gradient_is_marked_and_travels_alone(ranks):
    """It has the bytes that DDP counts; those that travel are told."""
    recorded = ranks[0]["sparse"]["recorded"]
    assert [(g.name, g.bytes) for g in recorded.gradients if g.sparse] == [
        ("embedding.weight", 100 * 32 * 4)
    ]
    assert ("embedding.weight",) in [launch.names for launch in recorded.launches]
    # 64 tokens: an index of 8 bytes and 32 values of 4 bytes for each.
    assert assumed(recorded, "8.50 KiB")
    assert not assumed(ranks[0]["tied"]["recorded"], "sparse")


def test_frozen_parameters_are_left_out_and_counted(ranks):
    """A block and the embedding."""
    recorded = ranks[0]["frozen"]["recorded"]
    assert recorded.report.dropped["frozen parameters"] == 13
    assert not any(g.name.startswith(("embedding.", "blocks.0.")) for g in recorded.gradients)


def test_types_are_those_of_the_gradients(ranks):
    """Half of the model is bfloat16."""
    recorded = ranks[0]["mixed"]["recorded"]
    assert {(g.name.partition(".")[0], g.dtype, g.device) for g in recorded.gradients} == {
        ("low", "bfloat16", ""),
        ("high", "float32", ""),
    }
    assert {launch.dtype for launch in recorded.launches} == {"bfloat16", "float32"}


def test_of_accumulated_gradients_the_last_counts(ranks):
    """Three passes in a step: ready times lie in the third."""
    recorded = ranks[0]["accumulated"]["recorded"]
    # 10 parameters, 3 steps, 2 ranks, two passes before the last.
    repeats = "gradients before the last of the same parameter in a step"
    assert recorded.report.dropped[repeats] == 10 * 3 * 2 * 2
    assert recorded.report.events_read == 10 * 3 * 2 * 3
    # Each pass takes 10 ms before its first gradient.
    assert recorded.gradients[0].ready_ns > 30_000_000
    assert recorded.gradients[0].name == "4.bias"


def test_parameters_without_gradients_are_reported(ranks):
    """DDP sends zeros for them: no plan of today without them."""
    recorded = ranks[0]["unused"]["recorded"]
    assert [g.name for g in recorded.gradients] == [
        "last.bias", "last.weight", "first.bias", "first.weight",
    ]  # fmt: skip
    assert recorded.report.dropped["parameters that never got a gradient"] == 2
    assert assumed(recorded, "extra.weight, extra.bias")
    assert failed(recorded) == ["buckets reproduced to the byte: 0 of 2"]
    assert recorded.plan is None
    sizes = [int(size) for size in ranks[0]["unused"]["log"]["bucket_sizes"].split(",")]
    assert [launch.bytes for launch in recorded.launches] == sizes


def test_buckets_that_ddp_never_rebuilds_are_found_too(ranks):
    """With find_unused_parameters they are those of the first step."""
    found = ranks[0]["find_unused"]
    recorded = found["recorded"]
    assert "rebuilt_bucket_sizes" not in found["log"]
    assert [launch.bytes for launch in recorded.launches] == [
        int(size) for size in found["log"]["bucket_sizes"].split(",")
    ]
    assert recorded.plan is not None
    assert assumed(recorded, "not rebuilt")
    assert not failed(recorded)


def test_a_gradient_of_one_rank_only_counts(ranks):
    """The others send zeros, so it is reduced all the same."""
    recorded = ranks[0]["unused_on_one_rank"]["recorded"]
    assert len(recorded.gradients) == 6
    assert "gradients that every rank has: 4 of 6" in failed(recorded)


@pytest.mark.parametrize(("static_graph", "rebuilds"), [(False, 1), (True, 2)])
def test_buckets_are_those_of_the_measured_step_though_ddps_log_is_a_step_old(
    ranks, static_graph, rebuilds
):
    """With a step or two before the measured one, DDP has only just rebuilt them, or not yet."""
    for before in range(4):
        recorded, _, log = ranks[0]["early"][static_graph, before]
        sizes = "rebuilt_bucket_sizes" if before >= rebuilds else "bucket_sizes"
        assert [launch.bytes for launch in recorded.launches] == [
            int(size) for size in log[sizes].split(",")
        ]
        assert not failed(recorded)
        assert assumed(recorded, "not rebuilt") == (before < rebuilds)


@pytest.mark.parametrize("static_graph", [False, True])
def test_buckets_that_change_meanwhile_are_reported(ranks, static_graph):
    """The second and third steps of a run: a static graph's buckets change between them."""
    _, longer, log = ranks[0]["early"][static_graph, 0]
    changed = [check for check in failed(longer) if "rebuilt them meanwhile" in check]
    assert len(changed) == int(static_graph)
    assert [launch.bytes for launch in longer.launches] == [
        int(size) for size in log["rebuilt_bucket_sizes"].split(",")
    ]


def test_parameters_that_ddp_ignores_are_left_out(ranks):
    """Nothing reduces them."""
    recorded = ranks[0]["ignored"]["recorded"]
    assert recorded.report.dropped["parameters that DDP ignores"] == 2
    assert {g.name[0] for g in recorded.gradients} == {"0", "2", "3", "4"}
    assert recorded.plan is not None
    assert not failed(recorded)


def test_a_communication_hook_is_reported(ranks):
    """It may send half the bytes."""
    assert assumed(ranks[0]["compressed"]["recorded"], "fp16_compress_hook")


def test_buckets_of_other_parameters_are_not_guessed(ranks):
    """A parameter was frozen after DDP had been made."""
    recorded = ranks[0]["changed_after_wrapping"]
    assert recorded.launches == ()
    assert recorded.plan is None
    assert len(failed(recorded)) == 1
    assert "other parameters" in failed(recorded)[0]


def test_buckets_that_are_compiled_are_not_taken_from_the_log(ranks):
    """torch.compile's Python reducer has its own; the log says one big bucket."""
    log = ranks[0]["python_reducer"]
    assert "does not log its buckets" in log.unknown
    assert log.buckets == ()


def test_ready_times_are_those_of_the_slowest_rank(ranks):
    """Rank 1 takes 50 ms longer between two layers, and the report names it."""
    recorded = ranks[0]["slow_rank"]["recorded"]
    ready = {g.name: g.ready_ns for g in recorded.gradients}
    assert ready["0.weight"] > 50_000_000
    assert ready["2.weight"] < 50_000_000
    assert assumed(recorded, "rank 1 holds the others up most")


def test_backward_ends_with_its_own_work_and_not_with_the_all_reduces(ranks):
    """20 ms after the last gradient; the wire takes 180 ms more."""
    recorded = ranks[0]["work_after_the_last_gradient"]["recorded"]
    rest = recorded.backward_end_ns - recorded.gradients[-1].ready_ns
    assert rest >= 20_000_000
    note = next(n for n in recorded.report.assumptions if "the median step took" in n)
    assert float(note.split("took ")[1].split(" ms")[0]) >= 200
    assert recorded.backward_end_ns < 200_000_000 + recorded.gradients[0].ready_ns


def test_ranks_without_ddp_are_captured_together(ranks):
    """Before wrapping: the same on both ranks, and without launches."""
    recorded = ranks[0]["without_ddp"]
    assert recorded == ranks[1]["without_ddp"]
    assert (recorded.name, recorded.ranks, recorded.launches) == ("plain", 2, ())
    # Rank 1 starts its step with 10 ms of other work.
    assert recorded.gradients[0].ready_ns > 10_000_000
    assert assumed(recorded, "not in DDP")


def test_a_silent_capture_changes_nothing(ranks):
    """The ranks train apart meanwhile; afterwards they are as before and communicate again."""
    one, two = ranks[0]["silent"], ranks[1]["silent"]
    assert one["recorded"] == two["recorded"]
    assert one["recorded"].launches == ()
    assert one["kept"]
    assert two["kept"]
    assert one["syncs"]
    assert one["weights"] == two["weights"]
    assert assumed(one["recorded"], "nothing was all-reduced")


def test_a_static_graph_must_communicate_before_it_may_be_silent(ranks):
    """Else torch fails an assertion of its own."""
    for rank in ranks:
        said, recorded = rank["silent_static_graph"]
        assert "static_graph must have made a step" in said
        assert len(recorded.gradients) == 10


def test_a_step_that_raises_leaves_no_hooks(ranks):
    """Its own exception comes out, and another capture works."""
    found = ranks[0]["raising"]
    assert found["said"] == "the step's own"
    assert found["hooks"] == (0, 0, 0)
    assert found["again"].plan is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("different_models", "rank 1 has 6 trainable parameters, rank 0 has 4"),
        ("different_sizes", "'weight' (2048 bytes, float32) on rank 0 and 'weight' (2304 bytes"),
        ("sharded", "parameter '0.weight': it is sharded"),
        ("all_ignored", "DDP was told to ignore all the parameters"),
    ],
)
def test_models_that_cannot_be_captured_are_refused_on_every_rank(ranks, name, words):
    """And not guessed."""
    for rank in ranks:
        assert words in rank[name]


def test_costs_are_measured_on_the_group_and_the_same_on_every_rank(ranks):
    """Sizes once each, in order, with a line through them."""
    measured = ranks[0]["costs"]
    assert measured == ranks[1]["costs"]
    assert [size for size, _ in measured.points] == [4096, 65536, 1 << 20]
    assert all(us > 1 for _, us in measured.points)
    assert all(spread >= 0 for spread in measured.spread)
    assert measured.line == fit_alpha_beta(measured.points)
    assert measured.pieces == fit_piecewise(measured.points, 0.1, repair=True)
    assert (measured.ranks, measured.backend) == (2, "gloo")
    assert measured.curve in (measured.line.curve, measured.pieces.curve)
    problem = ranks[0]["plain_mlp"]["recorded"].problem(measured.curve)
    assert commsched.optimize(problem).plan is not None


@pytest.mark.parametrize(("last", "bend"), [(41.0, False), (400.0, True)])
def test_the_cost_is_a_line_where_a_line_is_close(last, bend):
    """Else pieces, which follow a bend."""
    points = ((1000, 11.0), (2000, 21.0), (4000, last))
    measured = MeasuredCosts(
        points,
        (0, 0, 0),
        fit_alpha_beta(points),
        fit_piecewise(points, 0.1, repair=True),
        2,
        "gloo",
    )
    assert measured.curve is (measured.pieces if bend else measured.line).curve
    assert abs(float(measured.curve.exact_ns(4000)) / (1000 * last) - 1) <= 0.1


def test_costs_refuse_what_is_out_of_range(ranks):
    """Each with one line that names the value."""
    words = {
        "one size": "sizes: 1 different",
        "not whole": "sizes: 4098",
        "empty": "sizes: 0",
        "repeats": "repeats: 0",
        "one rank": "one rank",
        "other rank": "not in the process group",
    }
    for rank in ranks:
        said = rank["costs_refused"]
        assert said.keys() == words.keys()
        for name, text in said.items():
            assert words[name] in text
            assert "\n" not in text


# What comes out of given times


def record(*steps, names=("a", "b"), ends=None, **kwargs) -> RankRecord:
    """Return a rank with the ready times of its steps, a dictionary each."""
    return RankRecord(
        names=names,
        metas=tuple(GradientMeta(1000, "float32", None) for _ in names),
        devices=(("cpu",), (0,) * len(names)),
        steps=tuple(
            StepTimes(ready, 0, end, end + 50)
            for ready, end in zip(steps, ends or [500] * len(steps), strict=True)
        ),
        ddp=kwargs.get("ddp"),
    )


def conditions(ranks=None, **kwargs) -> Conditions:
    given = {"warmup": 2, "frozen": 0, "ignored": 0, "ddp": False, "silent": False}
    given |= {"nested_ddp": False, "rebuilt_meanwhile": False}
    return Conditions(title="made up", ranks=ranks, **(given | kwargs))


def test_times_are_the_median_over_the_steps_of_the_maximum_over_the_ranks():
    """Not the maximum of the medians, which are 100 and 100 for a."""
    one = record({0: 100, 1: 200}, {0: 300, 1: 310}, {0: 90, 1: 200}, ends=[250, 400, 260])
    two = record({0: 180, 1: 190}, {0: 100, 1: 200}, {0: 100, 1: 230}, ends=[240, 300, 270])
    step = summarised([one, two], conditions(ranks=2))
    # Maxima of a: 180, 300, 100; of b: 200, 310, 230. Ends: 250, 400, 270.
    assert [(g.name, g.ready_ns) for g in step.gradients] == [("a", 180), ("b", 230)]
    assert step.backward_end_ns == 270
    # Rank 0 is last with b, a, b by 10, 200, 110; rank 1 with a, a, b by 80, 10, 30.
    assert assumed(step, "rank 0 holds the others up most: it is last for 50% of the gradients")
    assert assumed(step, "0.11 us after the first rank on average")
    spread = next(c for c in step.report.checks if c.text.startswith("ready times are steady"))
    # Deviations of a: 0, 120, 80; of b: 30, 80, 0.
    assert "80 ns at most (a)" in spread.text
    assert not spread.passed


def test_ready_order_is_that_of_the_medians_and_equal_times_keep_a_steps_order():
    """Between two steps the median is their mean, rounded up."""
    step = summarised([record({1: 10, 0: 21}, {1: 13, 0: 20})], conditions())
    assert [(g.name, g.ready_ns) for g in step.gradients] == [("b", 12), ("a", 21)]
    equal = summarised([record({1: 10, 0: 10})], conditions())
    assert [g.name for g in equal.gradients] == ["b", "a"]
    assert equal.step_name == "one step"
    assert not failed(equal)


def test_the_order_is_that_of_rank_0_as_ddp_has_it():
    """Another rank may be late with a gradient, which then holds up those behind it."""
    one, two = record({1: 10, 0: 20}), record({0: 12, 1: 30})
    step = summarised([one, two], conditions(ranks=2))
    assert [(g.name, g.ready_ns) for g in step.gradients] == [("b", 30), ("a", 30)]
    assert any("1 ready times that contradict it" in note for note in step.report.assumptions)
    alone = summarised([one], conditions())
    assert not any("contradict" in note for note in alone.report.assumptions)


def test_ranks_with_other_buckets_are_reported():
    """Each rank's log is compared with the first's."""
    logs = [
        DdpLog((DdpBucket(names, 2000, "float32"),), True, "", "")
        for names in (("a", "b"), ("b", "a"))
    ]
    records = [record({0: 1, 1: 2}, ddp=log) for log in logs]
    step = summarised(records, conditions(ranks=2, ddp=True))
    assert failed(step) == ["ranks with the same buckets: 1 of 2"]
    assert step.plan == Plan.of([["a", "b"]])
    same = summarised([records[0], records[0]], conditions(ranks=2, ddp=True))
    assert not failed(same)


def test_ddp_inside_the_model_is_reported():
    """Its buckets are not read."""
    step = summarised([record({0: 1, 1: 2})], conditions(nested_ddp=True))
    assert "only parts are" in failed(step)[0]


# In one process


def test_a_plain_model_is_captured_in_the_order_of_backward():
    """All the gradients, from the last layer to the first."""
    model = mlp()
    step, _ = training(model)
    recorded = capture(model, step, steps=3, warmup=1)
    assert [g.name for g in recorded.gradients] == [
        f"{layer}.{kind}" for layer in (2, 1, 0) for kind in ("bias", "weight")
    ]
    assert {(g.name, g.bytes, g.dtype) for g in recorded.gradients} >= {
        ("0.weight", 1024, "float32"), ("0.bias", 64, "float32"),
    }  # fmt: skip
    assert (recorded.name, recorded.step_name) == ("Sequential", "median of 3 steps")
    assert (recorded.ranks, recorded.launches, recorded.plan) == (None, (), None)
    assert recorded.report.kept == {"gradients": 6, "steps": 3}
    assert recorded.report.events_read == 18
    assert recorded.report.dropped == {"steps of the warm-up": 1}
    assert not failed(recorded)


def test_the_examples_in_the_documentation_run():
    """They are not run elsewhere, for they need torch."""
    for name in ("capturing", "hooks", "measure"):
        outcome = doctest.testmod(sys.modules[f"commsched.torch.{name}"])
        assert outcome.attempted > 0
        assert outcome.failed == 0


def test_a_captured_problem_can_be_kept(tmp_path):
    """As an ordinary problem file."""
    model = mlp()
    problem = capture(model, training(model)[0], steps=1, warmup=0).problem(COST)
    write_problem(problem, tmp_path / "step.json")
    assert problem_digest(commsched.read(tmp_path / "step.json")) == problem_digest(problem)


def test_hooks_are_there_while_steps_are_measured_and_then_gone():
    """Also when a step raises, whichever it is."""
    model = mlp()
    step, _ = training(model)
    seen = []

    def counting():
        seen.append(hooked(model))
        step()

    capture(model, counting, steps=2, warmup=1)
    assert seen == [0, 6, 6]
    assert hooked(model) == 0
    for bad in (1, 2, 3):
        calls = []

        def failing(calls=calls, bad=bad):
            calls.append(1)
            if len(calls) == bad:
                raise KeyError("mine")
            step()

        with pytest.raises(KeyError, match="mine"):
            capture(model, failing, steps=2, warmup=1)
        assert hooked(model) == 0


def test_a_users_own_hooks_stay_and_may_use_the_gradient_up():
    """As optimizers that step in backward do."""
    model = mlp()
    used = []

    def eat(parameter):
        used.append(1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(eat)
    recorded = capture(model, lambda: model(torch.ones(2, 16)).sum().backward(), steps=2, warmup=1)
    assert len(recorded.gradients) == 6
    assert len(used) == 18
    assert hooked(model) == 6


def test_restoring_puts_weights_buffers_and_optimizers_back():
    """And without it the steps really train."""
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    step, optimizer = training(model)
    step()

    def state():
        tensors = [*model.parameters(), *model.buffers()]
        for values in optimizer.state.values():
            tensors += [values["step"], values["exp_avg"], values["exp_avg_sq"]]
        return [tensor.detach().clone() for tensor in tensors]

    def same(one, two):
        return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))

    before = state()
    lr = optimizer.param_groups[0]["lr"]

    def scheduled():
        step()
        optimizer.param_groups[0]["lr"] /= 2

    capture(model, scheduled, steps=2, warmup=1, restore=True)
    assert same(state(), before)
    assert optimizer.param_groups[0]["lr"] == lr
    step()
    trained = state()
    assert not same(trained, before)

    def failing():
        step()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(model, failing, restore=True)
    assert same(state(), trained)
    capture(model, step, steps=1, warmup=0)
    assert not same(state(), trained)


def test_restoring_an_optimizer_that_had_no_state_empties_it_again():
    """Its moments belong to steps that did not happen."""
    model = mlp()
    step, optimizer = training(model)
    capture(model, step, steps=1, warmup=0, restore=True)
    assert not optimizer.state
    step()
    assert len(optimizer.state) == 6


def wait(seconds: float) -> None:
    """Wait as a busy processor does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class SlowBackward(torch.autograd.Function):
    """Passes everything on; its backward takes 10 ms."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        wait(0.01)
        return gradient


def test_several_backward_passes_in_a_step_end_with_the_last():
    """Of one graph that is kept, too. Each goes on for 10 ms after its last gradient."""
    model = mlp()
    batch = torch.ones(2, 16, requires_grad=True)

    def step():
        model.zero_grad()
        loss = model(SlowBackward.apply(batch)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()

    recorded = capture(model, step, steps=3, warmup=1)
    dropped = recorded.report.dropped["gradients before the last of the same parameter in a step"]
    assert dropped == 6 * 3
    assert recorded.gradients[0].ready_ns > 10_000_000
    assert recorded.backward_end_ns - recorded.gradients[0].ready_ns >= 10_000_000


def test_a_layer_that_reentrant_checkpoints_share_is_ready_after_the_last():
    """Each use adds to its gradient in a backward pass of its own."""
    shared, first = nn.Linear(16, 16), nn.Linear(16, 16)
    model = nn.ModuleDict({"shared": shared, "first": first})

    def step():
        model.zero_grad()
        x = first(torch.ones(2, 16))
        for _ in range(3):
            x = checkpoint(shared, x, use_reentrant=True)
        x.square().mean().backward()

    recorded = capture(model, step, steps=2, warmup=1)
    assert sorted(g.name for g in recorded.gradients[:2]) == ["shared.bias", "shared.weight"]
    dropped = recorded.report.dropped["gradients before the last of the same parameter in a step"]
    assert dropped == 2 * 2 * 2


def test_gradients_of_some_steps_only_are_kept_and_reported():
    """A branch that is taken every other time."""
    model = mlp(2)
    calls = []

    def step():
        calls.append(1)
        model.zero_grad(set_to_none=True)
        x = torch.ones(2, 16)
        (model(x) if len(calls) % 2 else model[1](x)).sum().backward()

    recorded = capture(model, step, steps=4, warmup=0)
    assert len(recorded.gradients) == 4
    assert "steps with all the gradients: 2 of 4" in failed(recorded)


def test_an_unsteady_order_is_reported():
    """Two towers, 20 ms apart, whose losses are run in turns."""
    model = mlp(2)
    calls = []

    def step():
        calls.append(1)
        model.zero_grad()
        for k in (0, 1) if len(calls) > 1 else (1, 0):
            model[k](torch.ones(2, 16)).sum().backward()
            wait(0.02)

    recorded = capture(model, step, steps=5, warmup=0)
    assert "steps with this ready order: 4 of 5" in failed(recorded)
    assert [g.name[0] for g in recorded.gradients] == ["0", "0", "1", "1"]


def test_names_have_no_wrappers():
    """DataParallel and torch.compile put their own before them."""
    inner = nn.Sequential(nn.Linear(2, 2))
    assert list(trainable_parameters(nn.DataParallel(inner))) == ["0.weight", "0.bias"]
    compiled = torch.compile(inner, backend="eager")
    assert list(trainable_parameters(compiled)) == ["0.weight", "0.bias"]
    inner[0].bias.requires_grad_(False)
    assert list(trainable_parameters(compiled)) == ["0.weight"]


def test_lazy_parameters_get_their_shapes_in_the_warm_up():
    """Without a warm-up there is nothing to hook."""
    lazy = nn.LazyLinear(8)
    with pytest.raises(InputError, match=r"^parameter 'weight': it is still without a shape"):
        capture(lazy, lambda: None, steps=1, warmup=0)
    with pytest.raises(InputError, match="without a shape"):
        capture(lazy, lambda: None, restore=True)
    recorded = capture(lazy, lambda: lazy(torch.ones(2, 4)).sum().backward(), steps=1, warmup=1)
    assert {g.name: g.bytes for g in recorded.gradients} == {"weight": 8 * 4 * 4, "bias": 32}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 0}, "steps: 0 must be a whole number from 1 to"),
        ({"steps": True}, "steps: True"),
        ({"steps": 2.0}, "steps: 2.0"),
        ({"steps": 10**9}, "steps: 1000000000"),
        ({"warmup": -1}, "warmup: -1 must be a whole number from 0 to"),
        ({"model": "model"}, "model: str is no torch.nn.Module"),
        ({"step": 3}, "step: int cannot be called"),
        ({"model": nn.ReLU()}, "no parameter requires a gradient"),
        ({"model": nn.Linear(2, 2, device="meta")}, "'weight': it is on the meta device"),
        ({}, "step: no gradient arrived"),
    ],
)
def test_what_cannot_be_captured_is_refused(arguments, words):
    """With one line."""
    given = {"model": mlp(1), "step": lambda: None, **arguments}
    with pytest.raises(InputError) as error:
        capture(**given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_costs_need_a_process_group():
    """There is nothing to measure alone."""
    with pytest.raises(InputError, match="not initialised"):
        measure_costs()


# Clocks of GPUs, on a GPU that is made up


class MadeUpGpu:
    """Stands for ``torch.cuda``: events on streams, and a log of what was called."""

    def __init__(self):
        self.log = []
        self.now_ms = 0.0
        self.stream = "main"
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                self.ms = None

            def record(self, stream):
                gpu.now_ms += 0.25
                gpu.log.append(stream)
                self.ms = gpu.now_ms

            def elapsed_time(self, other):
                assert gpu.log[-1] == "synchronize", "read before all events were reached"
                return other.ms - self.ms

        self.Event = Event

    def current_stream(self, device):
        return f"{device}:{self.stream}"

    def synchronize(self, device):
        self.log.append("synchronize")


def test_gpu_times_come_from_events_on_the_current_stream(monkeypatch):
    """Nothing waits between the first step's start and the last one's end."""
    gpu = MadeUpGpu()
    monkeypatch.setattr(torch, "get_device_module", lambda device: gpu)
    monkeypatch.setattr(hooks_module, "clock_of", clocks_module.StreamClock)
    model = mlp(2)

    def step():
        gpu.stream = "side"
        model(torch.ones(2, 16)).sum().backward()
        gpu.stream = "main"

    recorded = capture(model, step, steps=2, warmup=1)
    # Start, four gradients, the end of backward, the end of the step.
    one = ["cpu:main", *["cpu:side"] * 5, "cpu:main"]
    assert gpu.log == [*one, *one, "synchronize"]
    assert [g.ready_ns for g in recorded.gradients] == [250_000, 500_000, 750_000, 1_000_000]
    assert recorded.backward_end_ns == 1_250_000


def test_several_devices_are_set_to_one_zero_and_named(monkeypatch):
    """All are waited for before each step; gradients of one device only share a bucket."""
    gpu = MadeUpGpu()
    monkeypatch.setattr(torch, "get_device_module", lambda device: gpu)
    monkeypatch.setattr(hooks_module, "clock_of", clocks_module.StreamClock)
    model = mlp(2)
    parameters = trainable_parameters(model)
    on_second = {id(p) for name, p in parameters.items() if name.startswith("1.")}

    class Placed:
        """A parameter that says it is on another device."""

        def __init__(self, parameter):
            self._parameter = parameter
            second = id(parameter) in on_second
            self.device = torch.device("cuda", int(second))

        def __getattr__(self, name):
            return getattr(self._parameter, name)

    monkeypatch.setattr(
        sys.modules["commsched.torch.capturing"],
        "checked_parameters",
        lambda model: {name: Placed(p) for name, p in parameters.items()},
    )
    recorded = capture(model, lambda: model(torch.ones(2, 16)).sum().backward(), steps=2, warmup=0)
    assert {(g.name, g.device) for g in recorded.gradients} == {
        ("0.weight", "cuda:0"), ("0.bias", "cuda:0"), ("1.weight", "cuda:1"), ("1.bias", "cuda:1"),
    }  # fmt: skip
    assert gpu.log[:3] == ["synchronize", "synchronize", "cuda:0:main"]
    assert assumed(recorded, "several devices")
    # A bucket holds gradients of one device.
    plan = commsched.optimize(recorded.problem(COST)).plan
    assert all(len({name[0] for name in bucket.names}) == 1 for bucket in plan.buckets)


def test_a_device_without_events_is_refused(monkeypatch):
    """With a line that names it."""
    for module in (lambda device: None, torch.device):
        monkeypatch.setattr(torch, "get_device_module", module)
        with pytest.raises(InputError, match="device mps: PyTorch has no events"):
            clocks_module.clock_of(torch.device("mps"))
    assert isinstance(clocks_module.clock_of(torch.device("cpu")), clocks_module.HostClock)


# The package


def test_without_torch_one_line_says_how_to_get_it():
    """As an ImportError, and as an error of this package."""
    code = "import sys; sys.modules['torch'] = None; import commsched.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    line = done.stderr.splitlines()[-1]
    assert line.endswith("commsched.torch needs PyTorch: pip install 'commsched[torch]'")
    assert "During handling" not in done.stderr
    assert issubclass(commsched.torch.TorchMissingError, ImportError)
    assert issubclass(commsched.torch.TorchMissingError, MissingExtraError)


def test_importing_does_nothing_but_import(ranks):
    """No process group, no default of torch changed, no solver loaded."""
    for rank in ranks:
        assert rank["importing"]["same"]
        assert "commsched.torch" in rank["importing"]["loaded"]
        assert not {"ortools", "matplotlib"} & set(rank["importing"]["loaded"])


def test_every_public_name_is_there_and_documented():
    """``__all__`` is sorted and each name has a docstring of its own."""
    names = commsched.torch.__all__
    assert names == sorted(names)
    assert all(getattr(commsched.torch, name).__doc__ for name in names)

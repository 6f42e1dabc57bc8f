"""The bundled library: names, figures, the steps they make, and how near its networks are to logs."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_files import shared_data

from commsched.library_command import problems_app
from commsched.models import InputError, Plan, evaluate
from commsched.optimizer import optimize
from commsched.optimizer.rules.fsdp_default import fsdp_default
from commsched.problems import problem_digest, read_problem, write_problem
from commsched.problems.bench.bench_logs import read_benchmark_log
from commsched.problems.estimates.architectures import parameters
from commsched.problems.estimates.hardware import (
    ACCELERATORS,
    FABRICS,
    NODE,
    network_cost,
    network_names,
)
from commsched.problems.estimates.library import FORMS, NAMES, RECORDED, make, parse_name
from commsched.problems.estimates.library_models import SETTINGS
from commsched.process import run

KNOWN = {"data sheet", "published", "measured", "assumed"}


def run_problems(*arguments):
    """Run ``commsched problems``; return its exit code, output and error output."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as caught,
    ):
        run(problems_app, [str(argument) for argument in arguments])
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return caught.value.code, printed, said


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_step_is_what_its_name_says(name, tmp_path):
    """It is estimated, its figures have sources, it can be planned, written and read again."""
    step = make(name)
    assert (step.name, step.known) == (name, "estimated")
    assert parse_name(name).text == name
    assert {figure.known for figure in step.figures} <= KNOWN
    assert all(figure.source and figure.value > 0 for figure in step.figures)
    assert any(note.startswith("estimated: ") for note in step.notes)
    problem = step.problem
    assert problem.name.startswith(f"{name} (estimated)")
    each = Plan.of([one] for one in problem.names)
    plan = fsdp_default(problem) if "/fsdp" in name else each
    assert evaluate(problem, plan).makespan_ns > problem.compute_ns
    write_problem(problem, tmp_path / "step.json")
    assert problem_digest(read_problem(tmp_path / "step.json")) == problem_digest(problem)


def test_names_do_not_change_their_meaning():
    """The digests of two steps: scripts and papers refer to them."""
    assert problem_digest(make("llama3-8b/h100/400g/dp64").problem) == (
        "sha256:b7da12cae9a8d3c51d197db12fa5c30f9760370c32f802e2e07f912be055860e"
    )
    assert problem_digest(make("resnet50/a100/10g/dp16").problem) == (
        "sha256:d65ddf1baa078587106ed5e6aca238aa56ec1f52a9fe5d3c9bcec558896ef832"
    )


def test_the_list_covers_every_part():
    """Each model, accelerator and form is listed, slow and fast networks too."""
    named = [parse_name(name) for name in NAMES]
    assert {one.model for one in named} == set(SETTINGS)
    assert {one.accelerator.name for one in named} == set(ACCELERATORS)
    assert {one.form for one in named} == set(FORMS)
    assert {one.network for one in named} == {"nvlink", "infinity-fabric", *FABRICS}
    assert len(set(NAMES)) == len(NAMES)


def test_a_step_by_hand():
    """ResNet-50: backward is four operations a multiply-add at a fifth of an A100's peak."""
    problem = make("resnet50/a100/10g/dp16").problem
    work = sum(parameter.work for parameter in parameters("resnet50"))
    assert problem.compute_ns == round(4 * 256 * work / (0.2 * 312e12) * 1e9)
    (cost,) = problem.costs.values()
    # Two nodes: up and down 7 steps of 4 us inside and one of 30 us across, after 8.4 us. The node's one
    # card of 10 Gb/s at 0.87 is a bus bandwidth of 1.087 GB/s (rounded), over 2 x 15 / 16.
    assert cost.alpha_us == pytest.approx(8.4 + 2 * (7 * 4 + 30))
    assert cost.ns(10**9) == pytest.approx(cost.alpha_us * 1e3 + 1e9 / 1.087 * 30 / 16, abs=2)
    assert sum(problem.bytes) == 4 * 25_557_032


def test_gathers_and_all_to_alls_by_hand():
    """A ring's steps, and what of an all-to-all leaves a node through its own card."""
    h100 = ACCELERATORS["h100"]
    gather = network_cost(h100, "400g", "all_gather", 64)
    assert gather.alpha_us == pytest.approx(8.4 + 56 * 3.4 + 7 * 14, abs=0.001)
    assert gather.bus_bandwidth_gb_s == 450 * 0.75  # the link is the narrower one
    there = network_cost(h100, "400g", "all_to_all", 64)
    assert there.alpha_us == pytest.approx(22.4)
    # 10 GB of a rank: 56 of 64 parts leave through 50 GB/s x 0.87.
    assert there.ns(10**10) == pytest.approx(22_400 + 10**10 * 56 / 64 / 43.5, rel=1e-4)
    inside = network_cost(h100, "nvlink", "all_to_all", 8)
    assert inside.ns(8 * 10**9) == pytest.approx(11_800 + 7e9 / 337.5, rel=1e-6)


def test_forms_of_one_name():
    """A form in place of the name's own gives the step that carries its name."""
    base = "llama3-8b/h100/400g/dp64"
    digests = set()
    for form, last in [("dp", "dp64"), ("next-forward", "dp64-next"), ("fsdp", "fsdp64")]:
        step = make(base, form)
        assert step.name == f"llama3-8b/h100/400g/{last}"
        assert problem_digest(step.problem) == problem_digest(make(step.name).problem)
        digests.add(problem_digest(step.problem))
    assert len(digests) == 3
    size = sum(make(base).problem.bytes)
    assert sum(make(base, "next-forward").problem.bytes) == size
    # Each block is gathered twice and scattered once.
    assert sum(make(base, "fsdp").problem.bytes) == 3 * size == 3 * 2 * 8_030_261_248


def test_experts_share_their_nodes_cards():
    """All-to-alls and all-reduces of a model with experts run on one channel."""
    problem = make("mixtral-8x7b/h100/400g/moe32").problem
    assert set(problem.costs) == {("ep", "all_to_all"), ("dp", "allreduce")}
    assert len(set(problem.channels.values())) == 1
    sizes = {task.bytes for task in problem.collectives if task.kind == "all_to_all"}
    assert sizes == {8_192 * 2 * 4_096 * 2}


def test_what_cannot_fit_is_said():
    """Llama-3-70B in one accelerator is made, with a note; sharded there is no note."""
    notes = make("llama3-70b/h100/400g/dp64").notes
    assert any("take 282 GB of 80 GB" in note for note in notes)
    assert not any("does not fit" in note for note in make("llama3-70b/h100/400g/fsdp64").notes)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_is_measured(name):
    """It has the 149 gradients of the trace and a measured curve."""
    step = make(name)
    assert step.known == "measured"
    assert {figure.known for figure in step.figures} == {"measured"}
    assert len(step.problem.names) == 149
    assert sum(step.problem.bytes) == 61_888_000
    (cost,) = step.problem.costs.values()
    assert cost.measured_to is not None
    assert optimize(step.problem).status == "optimal"


def test_merged_ranks_are_no_earlier_than_each():
    """A gradient of the merged step is ready when the last rank has it."""
    merged = make("recorded/transformer").problem.compute_ns
    ends = [make(f"recorded/transformer-rank{rank}").problem.compute_ns for rank in (0, 1)]
    assert merged >= max(ends)


@pytest.mark.parametrize(
    ("name", "form", "text"),
    [
        ("", None, "is no step of the library"),
        ("resnet50", None, "resnet50/a100/10g/dp16"),
        ("a/b/c/d/e", None, "is no step"),
        ("recorded/other", None, "recorded/transformer-rank0"),
        ("resnet51/a100/10g/dp16", None, "model: 'resnet51' is not one of resnet50, vgg16"),
        ("resnet50/v100/10g/dp16", None, "accelerator: 'v100' is not one of a100, h100"),
        ("resnet50/a100/40g/dp16", None, "network: '40g' is not one of nvlink, 10g"),
        ("resnet50/mi300x/nvlink/dp8", None, "of mi300x"),
        ("resnet50/a100/infinity-fabric/dp8", None, "of a100"),
        ("resnet50/a100/10g/dp0", None, "ranks: 'dp0'"),
        ("resnet50/a100/10g/dp016", None, "ranks: 'dp016'"),
        ("resnet50/a100/10g/dp٤", None, "ranks: "),
        ("resnet50/a100/10g/dp9999999", None, "ranks: "),
        ("resnet50/a100/10g/dp65544", None, "must be at most 65536"),
        ("resnet50/a100/10g/dp8", None, "two or more whole nodes of 8"),
        ("resnet50/a100/10g/dp20", None, "two or more whole nodes of 8"),
        ("resnet50/a100/nvlink/dp1", None, "from 2 to 8"),
        ("resnet50/a100/nvlink/dp16", None, "ends at the node"),
        ("resnet50/a100/10g/fsdp16-next", None, "ranks: "),
        ("resnet50/a100/10g/moe16", None, "has no experts, those with experts are: mixtral"),
        ("mixtral-8x7b/a100/400g/dp16", None, "its steps are moe16"),
        ("resnet50/a100/10g/dp16", "pipeline", "form: 'pipeline' is not one of dp"),
        ("recorded/transformer", "fsdp", "is recorded"),
    ],
)
def test_names_that_are_no_steps_are_refused(name, form, text):
    """One line says which part, and what is known."""
    with pytest.raises(InputError, match=text.replace("(", r"\(")) as caught:
        make(name, form)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(SETTINGS)),
    st.sampled_from(sorted(ACCELERATORS)),
    st.sampled_from(["nvlink", "infinity-fabric", *FABRICS]),
    st.sampled_from(["dp", "fsdp", "moe"]),
    st.integers(0, 200_000),
    st.sampled_from(["", "-next"]),
)
def test_every_combination_is_a_name_or_is_refused(model, chip, network, way, ranks, last):
    """What is taken apart has the same text again; nothing else is raised."""
    name = f"{model}/{chip}/{network}/{way}{ranks}{last}"
    with contextlib.suppress(InputError):
        assert parse_name(name).text == name


def test_damaged_names_are_refused_or_are_names():
    """Names with characters changed, cut or put in."""
    rng = random.Random(7)
    for _ in range(3_000):
        name = list(rng.choice([*NAMES, *RECORDED]))
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(name) + 1)
            name[place : place + rng.randint(0, 1)] = rng.choice(["", "/", "9", "x", "\x00", "-"])
            if not name:
                break
        with contextlib.suppress(InputError):
            parse_name("".join(name))


@pytest.mark.parametrize("chip", ACCELERATORS)
@pytest.mark.parametrize("kind", ["allreduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_more_ranks_and_slower_networks_never_cost_less(chip, kind):
    """Over ranks on each fabric, and from 400 down to 10 Gb/s."""
    accelerator = ACCELERATORS[chip]
    for network in network_names(accelerator):
        counts = [2, 4, 8] if network == accelerator.link_name else [16, 32, 64, 512]
        for size in (0, 1 << 20, 1 << 30):
            times = [network_cost(accelerator, network, kind, n).ns(size) for n in counts]
            assert times == sorted(times), (network, size)
    for size in (0, 1 << 30):
        times = [network_cost(accelerator, name, kind, 64).ns(size) for name in FABRICS]
        assert times == sorted(times, reverse=True)


LOGS = [
    # log, accelerator, network, ranks, and within which factor latency and bandwidth are
    ("echo/nccl_8.log", "a100", "nvlink", 8, 1.2, 1.05),
    ("echo/nccl_16.log", "a100", "200g", 16, 1.2, 1.45),
    ("echo/nccl_64.log", "a100", "200g", 64, 1.2, 1.45),
    ("echo/nccl_128.log", "a100", "200g", 128, 1.2, 1.5),
    ("nccl-tests-cluster/single_N1_G8.log", "h100", "nvlink", 8, 1.2, 1.45),
]


@pytest.mark.parametrize(("log", "chip", "network", "ranks", "alpha_within", "speed_within"), LOGS)
def test_the_formula_is_near_measured_all_reduces(
    log, chip, network, ranks, alpha_within, speed_within
):
    """Least squares of the relative error over 1 MiB and more, against the library's formula."""
    tables = [
        table
        for table in read_benchmark_log(shared_data(log)).tables
        if table.kind == "allreduce" and table.ranks == ranks
    ]
    points = [point for table in tables for point in table.points if point[0] >= 1 << 20]
    alpha_us, per_byte = line(points)
    cost = network_cost(ACCELERATORS[chip], network, "allreduce", ranks)
    speed = cost.pieces[0].scale / cost.pieces[0].slope
    assert abs(math.log(cost.alpha_us / alpha_us)) <= math.log(alpha_within)
    assert abs(math.log(speed * per_byte * 1e3)) <= math.log(speed_within)


def line(points):
    """Return start-up and time per byte with the least sum of squared relative errors."""
    weights = [(size, us, us**-2) for size, us in points]
    s0, s1, s2, t0, t1 = (
        sum(w * size**a * us**b for size, us, w in weights)
        for a, b in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))
    )
    slope = (s0 * t1 - s1 * t0) / (s0 * s2 - s1**2)
    return (t0 - slope * s1) / s0, slope


def test_list_prints_every_step():
    """A row for each step, estimated or measured, and the parts."""
    code, out, err = run_problems("list")
    assert (code, err) == (0, "")
    rows = {
        line.split()[0]: line.split()[1] for line in out.splitlines() if "/" in line.split(" ")[0]
    }
    assert {name: rows[name] for name in NAMES} == dict.fromkeys(NAMES, "estimated")
    assert {name: rows[name] for name in RECORDED} == dict.fromkeys(RECORDED, "measured")
    for part in (*SETTINGS, *ACCELERATORS, *FABRICS, *FORMS):
        assert part in out


def test_list_as_json():
    """One object with the same steps and the parts."""
    code, out, err = run_problems("list", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert [row["name"] for row in document["steps"]] == [*RECORDED, *NAMES]
    assert document["parts"]["accelerators"] == [*ACCELERATORS]
    row = document["steps"][-1]
    assert row["problem_digest"] == problem_digest(make(row["name"]).problem)


def test_show_prints_every_figure_with_its_source():
    """As text and as JSON; sources are wrapped, not cut."""
    step = make("gpt2-xl/h100/400g/dp64")
    code, out, err = run_problems("show", step.name)
    assert (code, err) == (0, "")
    flat = "".join(out.split())
    for figure in step.figures:
        assert "".join(figure.what.split()) in flat
    document = json.loads(run_problems("show", step.name, "--json")[1])
    assert [row["source"] for row in document["figures"]] == [f.source for f in step.figures]
    assert document["notes"] == list(step.notes)
    assert document["costs"][0]["cost"]["ranks"] == 64
    assert document["known"] == "estimated"


@pytest.mark.parametrize(
    ("option", "last"), [("--next-forward", "dp64-next"), ("--fsdp", "fsdp64")]
)
def test_make_writes_the_problem_file(option, last, tmp_path):
    """The file is the step of the option's form."""
    path = tmp_path / "step.json"
    code, out, err = run_problems("make", "llama3-8b/h100/400g/dp64", option, "-o", path)
    assert (code, err) == (0, "")
    assert f"llama3-8b/h100/400g/{last}, estimated" in out
    assert problem_digest(read_problem(path)) == problem_digest(
        make(f"llama3-8b/h100/400g/{last}").problem
    )


def test_make_with_experts_and_json(tmp_path):
    """``--moe`` on a model with experts, whose plain form is refused."""
    path = tmp_path / "step.json"
    arguments = ("make", "mixtral-8x7b/h100/nvlink/dp8", "--moe", "-o", path, "--json")
    code, out, err = run_problems(*arguments)
    assert (code, err) == (0, "")
    assert json.loads(out)["file"] == str(path)
    assert json.loads(out)["name"] == "mixtral-8x7b/h100/nvlink/moe8"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("show", "nothing"), "is no step of the library"),
        (("make", "resnet50/a100/10g/dp16"), "--out"),
        (
            ("make", "resnet50/a100/10g/dp16", "-o", "missing-folder/x.json"),
            "missing-folder/x.json",
        ),
        (("show", "resnet50/a100/10g/dp16", "--fsdp", "--moe"), "--fsdp and --moe exclude"),
        (("show", "resnet50/a100/10g/dp16", "--moe"), "has no experts"),
        ((), "Missing command"),
        (("draw",), "No such command"),
    ],
)
def test_refusals_are_one_line(arguments, text):
    """Exit code 2 and a line on standard error."""
    code, out, err = run_problems(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("commsched: ")
    assert err.count("\n") == 1
    assert text in err


def test_a_node_is_eight():
    """The names rest on it: ranks across nodes are its multiples."""
    assert NODE == 8

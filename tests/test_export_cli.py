"""``commsched export``: with and without the problem, its output, its files and its refusals."""

from __future__ import annotations

import csv
import io
import json
import random

import pytest
from cli_runner import refusal, run, run_json
from export_cases import FOUR, THREE_BUCKETS

from commsched.export import EXPORTERS, export_file
from commsched.models import CommschedError, GradientProblem, Plan, evaluate
from commsched.problems import plan_of, problem_digest, read_plan, write_problem

FILES = ("perfetto", "csv")


@pytest.fixture
def files(tmp_path):
    """A problem file and the plan file that ``commsched plan`` makes of it."""
    problem, plan = tmp_path / "four.json", tmp_path / "plan.json"
    write_problem(FOUR, problem)
    code, _, err = run("plan", problem, "-o", plan)
    assert (code, err) == (0, "")
    return plan, problem


def write_plan(path, problem, plan, **changes):
    """Write a plan file with its facts, as ``commsched plan --out`` does, and return its path."""
    timeline = evaluate(problem, plan)
    rows = [
        {
            "names": list(launch.names),
            "kind": launch.key.kind,
            "group": launch.key.group,
            "dtype": launch.key.dtype,
            "bytes": launch.bytes,
        }
        for launch in timeline.launches
    ]
    document = {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": problem_digest(problem),
        "buckets": rows,
        "scope": "any",
    }
    path.write_text(json.dumps(document | changes))
    return path


def test_the_lines_come_first_then_what_they_lose(files):
    """Lines to paste, a blank line, one sentence, what cannot be expressed, what is needed."""
    plan, problem = files
    code, out, err = run("export", plan, problem, "--to", "ddp")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("DistributedDataParallel(model, bucket_cap_mb_list=[")
    assert lines[1] == ""
    assert lines[2].startswith("PyTorch DDP: this plan to the byte, step ")
    assert lines[2].endswith("nothing is lost")
    assert lines[3] == "needs: torch 2.11 or later"


@pytest.mark.parametrize("framework", [*EXPORTERS])
def test_json_has_the_same_fields_for_all(files, framework):
    """One object; the projection's numbers come from the evaluator."""
    plan, problem = files
    found = run_json("export", plan, problem, "--to", framework)
    assert set(found) == {
        "framework",
        "title",
        "simulated",
        "exact",
        "settings",
        "text",
        "language",
        "lost_us",
        "cannot",
        "needs",
        "planned",
        "projected",
    }
    assert found["framework"] == framework
    assert found["simulated"] is True
    assert found["language"] in ("python", "json", "sh")
    assert found["lost_us"] == pytest.approx(
        found["projected"]["makespan_us"] - found["planned"]["makespan_us"], abs=1e-6
    )
    assert found["projected"]["launches"] == len(found["projected"]["buckets"])


@pytest.mark.parametrize("framework", [*EXPORTERS])
def test_without_the_problem_nothing_is_simulated(files, framework):
    """The settings are those that the plan alone gives, and it is said that nothing is known."""
    plan, _ = files
    code, out, err = run("export", plan, "--to", framework)
    assert (code, err) == (0, "")
    assert "not simulated" in out
    found = run_json("export", plan, "--to", framework)
    assert (found["simulated"], found["exact"], found["lost_us"]) == (False, False, None)
    assert found["projected"] is None
    assert found["needs"][0].startswith("not simulated")


def test_without_the_problem_the_exact_lists_are_the_same(files):
    """What needs no search does not need the problem."""
    plan, problem = files
    for framework in ("ddp", "fsdp2", "horovod"):
        alone = run_json("export", plan, "--to", framework)
        both = run_json("export", plan, problem, "--to", framework)
        assert alone["settings"].keys() == both["settings"].keys()
        for name in ("bucket_cap_mb_list", "groups", "buckets"):
            assert alone["settings"].get(name) == both["settings"].get(name)


def test_out_writes_the_lines(files, tmp_path):
    """And nothing else; a plan or a problem is not overwritten."""
    plan, problem = files
    out = tmp_path / "wrap.py"
    code, printed, _ = run("export", plan, problem, "--to", "fsdp2", "-o", out)
    assert code == 0
    assert printed.startswith(f"written to {out}\n")
    text = run_json("export", plan, problem, "--to", "fsdp2")["text"]
    assert out.read_text() == f"{text}\n"
    for command in (
        ["export", plan, problem, "--to", "ddp", "-o", problem],
        ["export", plan, problem, "--to", "ddp", "-o", plan],
        ["export", plan, "--to", "ddp", "-o", plan],
    ):
        assert "is the input itself" in refusal(*command)
    assert read_plan(plan)


def test_options_of_the_frameworks(files):
    """Version, stage, ranks and Megatron's optimizer reach the exporter."""
    plan, problem = files
    old = run_json("export", plan, problem, "--to", "ddp", "--version", "2.9.1")
    assert "bucket_cap_mb" in old["settings"]
    three = run_json("export", plan, problem, "--to", "deepspeed", "--zero-stage", "3")
    assert three["settings"]["zero_optimization"]["stage"] == 3
    aligned = run_json("export", plan, problem, "--to", "megatron", "--distributed-optimizer")
    assert aligned["settings"].get("use_distributed_optimizer") or aligned["settings"].get(
        "distributed_optimizer"
    )
    assert "not one of 0, 1, 2, 3" in refusal(
        "export", plan, problem, "--to", "deepspeed", "--zero-stage", "7"
    )
    assert "is no version" in refusal("export", plan, "--to", "ddp", "--version", "new")


def test_refusals_are_one_line(files, tmp_path):
    """Another problem's plan, unknown frameworks, options without the problem, broken files."""
    plan, problem = files
    assert "is not one of ddp, horovod" in refusal("export", plan, problem, "--to", "mpi")
    line = refusal("export", plan, "--to", "mpi")
    assert line.startswith("commsched: --to: 'mpi' is not one of ddp, horovod")
    assert line.endswith("perfetto, csv\n")
    other = tmp_path / "other.json"
    write_problem(GradientProblem(FOUR.gradients[:3], FOUR.cost(FOUR.keys[0])), other)
    assert "is for another problem" in refusal("export", plan, other, "--to", "ddp")
    assert "--alpha-us: is about the problem" in refusal(
        "export", plan, "--to", "ddp", "--alpha-us", "3"
    )
    assert "--to" in refusal("export", plan)
    assert refusal("export", tmp_path / "none.json", "--to", "ddp")
    held = write_plan(tmp_path / "chunks.json", FOUR, Plan.of([[n] for n in FOUR.names]))
    document = json.loads(held.read_text())
    document["buckets"][0]["chunks"] = [[0, 3 * 2**20]]
    held.write_text(json.dumps(document))
    assert "splits 'head.weight'" in refusal("export", held, problem, "--to", "ddp")
    assert "splits 'head.weight'" in refusal("export", held, "--to", "ddp")
    broken = write_plan(tmp_path / "broken.json", FOUR, THREE_BUCKETS)
    document = json.loads(broken.read_text())
    document["buckets"].pop()
    broken.write_text(json.dumps(document))
    assert "broken.json: plan: 'body.0.weight' is not in any bucket" in refusal(
        "export", broken, problem, "--to", "ddp"
    )


@pytest.mark.parametrize("field", ["kind", "group", "dtype", "bytes"])
def test_a_bare_plan_file_needs_the_problem(files, tmp_path, field):
    """Kind, group, dtype and bytes are for people; without them the problem must be there."""
    _, problem = files
    path = write_plan(tmp_path / "bare.json", FOUR, THREE_BUCKETS)
    document = json.loads(path.read_text())
    del document["buckets"][1][field]
    path.write_text(json.dumps(document))
    assert f"buckets[1]: {field} is missing; give the problem as well" in refusal(
        "export", path, "--to", "ddp"
    )
    assert run("export", path, problem, "--to", "ddp")[0] == 0


def test_names_cannot_move_the_cursor_or_end_a_string(tmp_path):
    """A name with quotes and control characters stays inside of its string."""
    from dataclasses import replace

    gradients = [
        replace(g, name=f'{g.name}"];import os\x1b[2J\n{k}') for k, g in enumerate(FOUR.gradients)
    ]
    problem = GradientProblem(gradients, FOUR.cost(FOUR.keys[0]))
    path = write_plan(tmp_path / "plan.json", problem, Plan.of([[g.name for g in gradients]]))
    assert "is none" in refusal("export", path, "--to", "fsdp2")
    code, out, _ = run("export", path, "--to", "ddp")
    assert code == 0
    assert "\x1b" not in out


def test_a_plan_without_names_of_parameters_still_has_numbers(tmp_path):
    """Horovod and Megatron-core then need the problem, for the best threshold."""
    gradients = [g.__class__(f"g {k}", g.bytes, g.ready_ns) for k, g in enumerate(FOUR.gradients)]
    problem = GradientProblem(gradients, FOUR.cost(FOUR.keys[0]))
    path = write_plan(tmp_path / "plan.json", problem, Plan.of([[g.name for g in gradients]]))
    for framework in ("horovod", "megatron"):
        assert "cannot be found without the problem" in refusal("export", path, "--to", framework)


def test_any_plan_file_is_exported_or_refused(tmp_path):
    """Random changes of a plan file never end in anything but an export or a one-line error."""
    rng = random.Random(0)
    path = write_plan(tmp_path / "plan.json", FOUR, THREE_BUCKETS)
    document = json.loads(path.read_text())
    values = [None, True, -1, 2**60, "", "x", [], {}, 1.5, "allreduce", "all_gather", [[0, 4]]]
    exported = 0
    for _ in range(800):
        changed = json.loads(json.dumps(document))
        for _ in range(rng.randint(1, 2)):
            row = rng.choice(changed["buckets"])
            if rng.random() < 0.2:
                changed["buckets"].append(json.loads(json.dumps(row)))
            else:
                row[rng.choice([*row, "chunks", "not_before_us"])] = rng.choice(values)
        path.write_text(json.dumps(changed))
        try:
            file = read_plan(path)
            found = export_file(file, rng.choice([*EXPORTERS]), path)
        except CommschedError as error:
            text = str(error)
            assert text.isprintable(), text
        else:
            exported += 1
            assert found.projected is None
    assert exported > 10


def test_csv_is_the_table_of_launches(files, tmp_path):
    """A row a launch, as the evaluator ran it."""
    plan, problem = files
    out = tmp_path / "launches.csv"
    assert run("export", plan, problem, "--to", "csv", "-o", out)[0] == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    timeline = evaluate(FOUR, plan_of(read_plan(plan), plan))
    assert [json.loads(row["names"]) for row in rows] == [
        list(launch.names) for launch in timeline.launches
    ]
    assert [float(row["end_us"]) * 1000 for row in rows] == [n.end_ns for n in timeline.launches]
    assert [int(row["bytes"]) for row in rows] == [n.bytes for n in timeline.launches]
    assert sum(float(row["exposed_us"]) for row in rows) * 1000 == timeline.exposed_ns


@pytest.mark.parametrize("to", FILES)
def test_files_need_a_name_and_the_problem(files, to):
    """They hold times, and are no lines to paste."""
    plan, problem = files
    assert "needs a file to write" in refusal("export", plan, problem, "--to", to)
    assert "need the problem" in refusal("export", plan, "--to", to, "-o", plan)
    assert run_json("export", plan, problem, "--to", to, "-o", f"{plan}.out")["format"] == to

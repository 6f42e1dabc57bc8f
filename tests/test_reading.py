"""The one door: kinds found by content, folders and archives, options, and fits from traces."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from cli_runner import refusal, run, run_json
from shared_files import shared_data

import commsched
from commsched.models import AlphaBeta, InputError
from commsched.problems import ReadOptions, RecordedGraph, RecordedStep, load, read_recording
from commsched.problems.registry import READERS
from commsched.problems.sources.source import sources

DATA = Path(commsched.__file__).parent / "problems" / "data"
RANKS = [DATA / f"transformer_ddp_gloo_rank{k}.json.gz" for k in (0, 1)]
NETWORK = ["--alpha-us", "100", "--bandwidth-gb-s", "1"]


def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    for rank in RANKS:
        shutil.copy(rank, made)
    return made


def tar(tmp_path: Path) -> Path:
    made = tmp_path / "job.bin"
    with tarfile.open(made, "w:gz") as archive:
        for rank in RANKS:
            archive.add(rank, f"traces/{rank.name}")
    return made


def zipped(tmp_path: Path) -> Path:
    made = tmp_path / "job.zip"
    with zipfile.ZipFile(made, "w") as archive:
        for rank in RANKS:
            archive.writestr(rank.name.removesuffix(".gz"), gzip.decompress(rank.read_bytes()))
    return made


@pytest.mark.parametrize("make", [folder, tar, zipped])
def test_the_ranks_of_a_job_are_merged_however_they_are_packed(tmp_path, make):
    """Ready times are the latest of the ranks, and the report names who gates each launch."""
    merged = read_recording(make(tmp_path))
    alone = [read_recording(rank, options=ReadOptions(step=7)) for rank in RANKS]
    assert isinstance(merged, RecordedStep)
    assert merged.report.kept["ranks"] == 2
    assert len(merged.gradients) == 149
    assert merged.backward_end_ns >= max(one.backward_end_ns for one in alone)
    assert sum("gates it" in line for line in merged.report.findings) == len(merged.launches) == 4
    assert merged.plan is not None


def test_one_member_can_be_named(tmp_path):
    job = tar(tmp_path)
    for name in (RANKS[1].name, f"traces/{RANKS[1].name}", "*rank1*"):
        recorded = read_recording(job, options=ReadOptions(member=name))
        assert "rank1" in recorded.report.source
        assert "ranks" not in recorded.report.kept
    with pytest.raises(InputError, match=r"holds no 'rank9', but transformer_ddp_gloo_rank0"):
        read_recording(job, options=ReadOptions(member="rank9"))


def test_what_no_reader_knows_is_named_and_left(tmp_path):
    job = folder(tmp_path)
    (job / "notes.txt").write_text("a good run")
    loaded = load(job, cost=AlphaBeta(100, 1))
    assert loaded.notes == ("not read, of no known kind: notes.txt",)


def test_a_rank_that_cannot_be_read_is_a_doubt(tmp_path):
    job = folder(tmp_path)
    (job / "transformer_ddp_gloo_rank2.json").write_text('{"traceEvents": []}')
    recorded = read_recording(job)
    (check,) = [c for c in recorded.report.checks if "could be read" in c.text]
    assert not check.passed
    assert "2 of 3" in check.text
    assert "rank2" in check.text


def test_different_kinds_in_one_folder_are_refused(tmp_path):
    job = folder(tmp_path)
    shutil.copy(next(DATA.glob("*logging*")), job)
    line = refusal("plan", job, *NETWORK)
    assert "2 x PyTorch profiler trace, 1 x DDP logging data" in line
    assert "--member" in line


def test_files_of_no_known_kind(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(empty) in refusal("plan", empty)
    (empty / "a").write_text("x")
    (empty / "b").write_text("y")
    assert "none of its 2 files is of a kind that is known" in refusal("plan", empty)
    line = refusal("import", empty / "a", "-o", tmp_path / "out")
    assert "'commsched fit' reads logs" in line


def test_at_most_one_reader_knows_a_file():
    """The bundled recordings are each of one kind, and our own files of none."""
    for path in [*DATA.iterdir(), *(Path(__file__).parents[1] / "examples").iterdir()]:
        (source,) = sources(path)
        known = [reader.title for reader in READERS if reader.recognises(source.start())]
        assert len(known) <= 1, (path, known)


@pytest.mark.shared
def test_the_first_reader_that_says_yes_is_the_only_one_but_for_one_kind():
    """A Megatron step timeline is a Chrome trace too, so its reader is asked first."""
    for path in sorted(shared_data("hta").parent.rglob("*")):
        if not path.is_file():
            continue
        for source in sources(path):
            known = [reader.title for reader in READERS if reader.recognises(source.start())]
            assert known[1:] in ([], ["PyTorch profiler trace"]), (path, known)
            assert known[1:] == [] or known[0] == "Megatron step timeline"


@pytest.mark.parametrize(
    ("path", "option"),
    [
        (RANKS[0], ["--tokens", "5"]),
        (RANKS[0], ["--backward-us", "5"]),
        (DATA / "x.json", ["--step", "7"]),
        (DATA / "x.json", ["--graph"]),
    ],
)
def test_options_that_say_nothing_of_a_file_are_refused(tmp_path, path, option):
    if not path.exists():
        path = tmp_path / path.name
        gradients = [{"name": "a", "bytes": 1, "ready_us": 1}]
        path.write_text(
            json.dumps({"format": "commsched/problem", "version": 1, "gradients": gradients})
        )
    line = refusal("plan", path, *NETWORK, *option)
    assert f"for which {option[0]} says nothing" in line


def test_a_compressed_problem_and_a_piped_one_are_problems(tmp_path, monkeypatch):
    text = json.dumps(
        {
            "format": "commsched/problem",
            "version": 1,
            "gradients": [{"name": "a", "bytes": 1000, "ready_us": 1}],
            "costs": {"allreduce": {"alpha_us": 1, "bandwidth_gb_s": 1}},
        }
    ).encode()
    path = tmp_path / "problem.json.gz"
    path.write_bytes(gzip.compress(text))
    assert run_json("plan", path)["makespan_us"] == 3
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run_json("plan", "-")["makespan_us"] == 3


def test_the_whole_step_of_a_ddp_trace(tmp_path):
    """With ``--graph`` gradients are collectives in a graph, and the recorded plan runs in it."""
    recorded = read_recording(RANKS[0], options=ReadOptions(graph=True))
    assert isinstance(recorded, RecordedGraph)
    assert recorded.plan is not None
    out = tmp_path / "step.json"
    code, text, _ = run("import", RANKS[0], "--graph", *NETWORK, "-o", out)
    assert code == 0
    assert "recorded step reproduced within" in text
    assert "as recorded, the step took" in text
    assert run_json("evaluate", *_planned(out, tmp_path))["launches"] >= 1


def _planned(problem: Path, tmp_path: Path) -> list[Path]:
    plan = tmp_path / "plan.json"
    assert run("plan", problem, "--time-limit", "0.5", "-o", plan)[0] == 0
    return [problem, plan]


def test_costs_are_fitted_to_the_traces_of_all_ranks_and_not_to_those_of_one(tmp_path):
    document = run_json("fit", folder(tmp_path))
    (table,) = document["tables"]
    assert (table["kind"], table["ranks"]) == ("allreduce", 2)
    assert "time on one rank includes waiting" in refusal("fit", RANKS[0])


@pytest.mark.shared
def test_eight_ranks_of_a_recommendation_model(tmp_path):
    """What INDEX.md computed of the kernels: durations without waiting, from 8 ranks."""
    recorded = read_recording(shared_data("param/dlrm_kineto.tar.gz"))
    durations = [
        (launch.kind, (launch.end_ns - launch.start_ns) // 1000) for launch in recorded.launches
    ]
    assert durations[0] == ("all_to_all", 9)
    assert [us for kind, us in durations if kind == "allreduce"] == [82, 18, 62]
    assert all(check.passed for check in recorded.report.checks)
    assert "the ranks' common step reproduced within 0.0%" in " ".join(
        check.text for check in recorded.report.checks
    )


def test_a_path_is_told_once(tmp_path):
    """One line, the path in front of it, however deep it was noticed."""
    missing = tmp_path / "missing"
    for call in (lambda: read_recording(missing), lambda: load(missing)):
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == f"{missing}: No such file or directory"


def test_what_is_no_json_is_called_by_what_it_is_not(tmp_path):
    """A text or a binary file is no damaged problem file."""
    path = tmp_path / "notes"
    for data in (b"some notes", b"\x00\x01\x02"):
        path.write_bytes(data)
        with pytest.raises(InputError, match="is neither a problem file nor a recording"):
            load(path)


def test_an_import_tells_of_files_that_it_did_not_read(tmp_path):
    """As planning does: a rank whose file is of no known kind must not get lost in silence."""
    job = folder(tmp_path)
    (job / "rank7.json").write_text("{}")
    note = "not read, of no known kind: rank7.json"
    assert note in read_recording(job).report.assumptions
    code, out, _ = run("import", job, "-o", tmp_path / "step.json")
    assert code == 0
    assert note in " ".join(out.split())


def test_no_command_writes_over_what_it_reads(tmp_path):
    """Not over the recording, a file of its folder, its sizes or costs; nor a protected file."""
    job = folder(tmp_path)
    rank, costs = job / RANKS[0].name, tmp_path / "costs.json"
    shutil.copy(DATA / "gloo_loopback_costs.json", costs)
    before = {path: path.read_bytes() for path in (rank, costs)}
    for command in (
        ["import", rank, "-o", rank],
        ["import", job, "-o", rank],
        ["plan", rank, "--costs", costs, "-o", costs],
        ["plan", rank, "--costs", costs, "--picture", rank],
        ["fit", job, "-o", rank],
    ):
        line = refusal(*command)
        assert "is the input itself" in line or "is a file of the input" in line
    protected = tmp_path / "precious.json"
    protected.write_text("x")
    protected.chmod(0o444)
    assert "is write-protected" in refusal("import", rank, "-o", protected)
    assert {path: path.read_bytes() for path in (rank, costs)} == before
    assert protected.read_text() == "x"

"""Every reader over damaged real files: a valid result or one line, never anything else.

The bundled recordings and small files made here are always damaged; other people's files where they
are there. What is damaged how depends on a seed, so a failure can be repeated.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import warnings
from pathlib import Path

import pytest
from shared_files import SHARED

import commsched
from commsched.models import AlphaBeta, InputError
from commsched.models.errors import MAX_MESSAGE
from commsched.models.timeline import play
from commsched.problems import Network, ReadOptions, read_recording
from commsched.problems.bench.bench_logs import read_benchmark_log
from commsched.problems.cost_rows import read_network

BUNDLED = Path(commsched.__file__).parent / "problems" / "data"
EXAMPLES = Path(__file__).parents[1] / "examples"
WORK_BYTES = 30_000_000
"""About so many bytes are read of each file, over all its mutants."""
NETWORK = Network.uniform(AlphaBeta(20, 10))
# What some kinds need to become a step.
OPTIONS = {
    "config.json": ReadOptions(tokens=4096, tflops=100.0),
    "_et_": ReadOptions(backward_us=10000.0),
    "nccl_data": ReadOptions(graph=True),
}
JUNK = (
    b"null",
    b"-1",
    b"1e999",
    b"99999999999999999999999",
    b'"x"',
    b"[]",
    b"{}",
    b"true",
    b"0.5",
    b"NaN",
)


def files() -> list[Path]:
    found = [path for path in sorted(BUNDLED.glob("*")) if path.suffix in (".json", ".gz")]
    found += sorted(EXAMPLES.glob("*"))
    shared = SHARED / "data"
    if shared.is_dir():
        found += [p for p in sorted(shared.rglob("*")) if p.is_file() and p.name != "INDEX.md"]
    return found


def content(path: Path) -> bytes:
    data = path.read_bytes()
    is_tar = data[:2] == b"\x1f\x8b" and path.name.endswith((".tgz", ".tar.gz"))
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" and not is_tar else data


def flipped(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 3, 30))):
        data[rng.randrange(len(data))] = rng.randrange(256)


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def removed(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 10, 300, 20_000))]


def repeated(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((10, 300, 20_000))]


def retyped(rng: random.Random, data: bytearray) -> None:
    """Replace numbers by something else, all over a stretch of the file."""
    at = rng.randrange(len(data))
    part = bytes(data[at : at + rng.choice((200, 5_000, len(data)))])
    share = rng.choice((0.02, 0.3))
    data[at : at + len(part)] = re.sub(
        rb"-?\d+(?:\.\d+)?",
        lambda match: rng.choice(JUNK) if rng.random() < share else match[0],
        part,
    )


def renamed(rng: random.Random, data: bytearray) -> None:
    """Give a field another name, everywhere: the field is missing."""
    names = re.findall(rb'"([A-Za-z_ ]{2,30})"\s*:', bytes(data[:200_000]))
    if names:
        name = rng.choice(names)
        data[:] = bytes(data).replace(b'"' + name + b'"', b'"' + name[::-1] + b'"')


MUTATIONS = (flipped, cut, removed, repeated, retyped, renamed)


def check(path: Path, options: ReadOptions) -> str:
    """Read a file in every way there is; return what came out."""
    said = []
    try:
        recorded = read_recording(path, options=options)
    except InputError as error:
        said.append(str(error))
    else:
        costs, _ = NETWORK.costs(recorded.needs, "mutant")
        try:
            problem = recorded.with_costs(costs)
            if recorded.plan is not None:
                assert play(problem, recorded.plan).makespan_ns >= problem.compute_ns
        except InputError as error:
            said.append(str(error))
        assert all(isinstance(check.text, str) for check in recorded.report.checks)
    for read in (read_benchmark_log, read_network):
        try:
            read(path)
        except InputError as error:
            said.append(str(error))
    for line in said:
        assert "\n" not in line
        assert len(line) <= MAX_MESSAGE + 10
    return said[0] if said else "fine"


def mutants(path: Path) -> int:
    return max(2, min(24, WORK_BYTES // max(1, len(content(path)))))


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_a_damaged_file_is_read_or_refused_in_one_line(path, tmp_path):
    whole = content(path)
    options = next((o for name, o in OPTIONS.items() if name in path.name), ReadOptions())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(mutants(path)):
            rng = random.Random(f"{path.name} {seed}")
            data = bytearray(whole)
            for mutate in rng.sample(MUTATIONS, rng.choice((1, 1, 2))):
                if data:
                    mutate(rng, data)
            mutant = tmp_path / f"{seed}"
            mutant.write_bytes(data)
            check(mutant, options)
            mutant.unlink()


def test_the_mutations_do_damage(tmp_path):
    """Most mutants of a small file are refused, and some survive: the test is worth its time."""
    whole = json.dumps(
        {"format": "commsched/costs", "version": 1, "allreduce": {"points": [[8, 1], [99, 2]]}}
    ).encode()
    results = []
    for seed in range(200):
        rng = random.Random(seed)
        data = bytearray(whole)
        rng.choice(MUTATIONS)(rng, data)
        mutant = tmp_path / "mutant"
        mutant.write_bytes(data)
        try:
            read_network(mutant)
        except InputError:
            results.append(False)
        else:
            results.append(True)
    assert 5 < sum(results) < 150

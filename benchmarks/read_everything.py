"""Read every file of a folder of other people's recordings and logs, and print what came out.

    python benchmarks/read_everything.py [FOLDER] [--write]

The table goes to standard output; with ``--write`` it is written to docs/data_files.md. A file that
gives anything but a result or one line of refusal ends the program with a traceback.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from commsched.models.errors import InputError
from commsched.problems import ReadOptions, RecordedStep, Recording, read_recording
from commsched.problems.bench.bench_logs import read_benchmark_log

DOCS = Path(__file__).resolve().parents[1] / "docs" / "data_files.md"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
HEAD = """# What comes out of real files

Every file of a folder of traces, profiles, workloads and logs that other people published, read by
`commsched import` or `commsched fit`, and what was not used. Made by `make data-table`; the files
themselves are not part of the project.

"""
# What a user would say for files that need it.
OPTIONS: Mapping[str, dict[str, object]] = {
    "granite-3b-code_config.json": {"tokens": 8192, "tflops": 200.0},
    "nccl_data.json.gz": {"sizes": "param/resnet_2gpu_et_1.1.0.json.gz"},
    "ddp_gloo_et_rank0.json.gz": {"backward_us": 20000.0},
    "ddp_gloo_et_rank1.json.gz": {"backward_us": 20000.0},
    "resnet_2gpu_et_1.1.0.json.gz": {"backward_us": 60000.0},
}


class Line(NamedTuple):
    """A file's row of the table."""

    file: str
    kind: str
    result: str
    dropped: str
    checks: str


def read(path: Path, folder: Path) -> Line:
    """Return what comes out of a file; a refusal is a result too."""
    name = str(path.relative_to(folder))
    given = dict(OPTIONS.get(path.name, {}))
    if "sizes" in given:
        given["sizes"] = folder / str(given["sizes"])
    try:
        recorded = read_recording(path, options=ReadOptions(**given))  # type: ignore[arg-type]
    except InputError as error:
        refusal = str(error).replace(f"{path}: ", "").replace(str(folder) + "/", "")
    else:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        return _of_recording(name, recorded, flags)
    try:
        log = read_benchmark_log(path)
    except InputError as error:
        if "no recording of a kind that is known" in refusal:
            refusal = str(error).replace(f"{path}: ", "")
        return Line(name, "refused", refusal, "", "")
    tables = ", ".join(
        f"{table.operation or 'unknown'} {table.ranks or '?'} ranks: {len(table.points)}"
        for table in log.tables
    )
    kinds = ", ".join(sorted({table.tool for table in log.tables}))
    report = log.report
    failed = [check.text for check in report.checks if not check.passed]
    return Line(name, f"{kinds} log", f"rows of {tables}", _counts(report.dropped), _all(failed, 1))


def _of_recording(name: str, recorded: Recording, flags: str) -> Line:
    report = recorded.report
    if isinstance(recorded, RecordedStep):
        exact = sum(launch.exact for launch in recorded.launches)
        result = f"{len(recorded.gradients)} gradients, {len(recorded.launches)} launches"
        kind = "gradients with ready times"
        if recorded.launches:
            result += f"; bytes of {exact} of {len(recorded.launches)} buckets reproduced"
    else:
        collectives: dict[str, int] = {}
        for task in recorded.tasks:
            what = getattr(task, "kind", "compute tasks")
            collectives[what] = collectives.get(what, 0) + 1
        result, kind = _counts(collectives), "step graph"
    failed = [check.text for check in report.checks if not check.passed]
    kind += f" (with {flags})" if flags else ""
    return Line(name, kind, result, _counts(report.dropped), _all(failed, len(report.checks)))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _all(failed: list[str], checks: int) -> str:
    return "; ".join(failed) if failed else "all hold" if checks else ""


def _cell(text: str) -> str:
    text = text if len(text) <= 420 else f"{text[:200]} ... {text[-200:]}"
    return re.sub(r"([|<>*_`])", r"\\\1", text)


def table(folder: Path) -> str:
    """Return the table of a folder, in Markdown."""
    rows = [
        "| file | read as | what came out | not used | doubts |",
        "| --- | --- | --- | --- | --- |",
    ]
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "INDEX.md":
            rows.append("| " + " | ".join(map(_cell, read(path, folder))) + " |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DATA)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        sys.exit(f"{arguments.folder}: is no folder")
    text = table(arguments.folder)
    if arguments.write:
        DOCS.write_text(HEAD + text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()

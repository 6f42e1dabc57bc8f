"""How fast a large profiler trace is read, and in how much memory.

``python benchmarks/trace_reading.py [TRACE] --mb 1000`` writes a trace of that size, in the layout of
PyTorch's profiler, by repeating the events of a real one with later times and other ids. Then each
of these reads it in a process of its own, several times in turns (but the last only once: it takes
minutes):

* ``json.load`` of the standard library;
* ``read_chrome_trace``, with every event kept, and with only those that the readers look at;
* the same and ``sort_events``, which is all that reading a step costs but for the step itself;
* ``TraceAnalysis`` of HolisticTraceAnalysis, where it is installed, in this Python or in one named with
  ``--hta-python``. It computes more than we do: it holds all events in a table.

The table shows the median time of the call, and the most memory that the process ever held, its
imports included.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "problems" / "data" / "transformer_ddp_gloo_rank0.json.gz"
MB = 1_000_000
_MARK = re.compile("\x01([tin])([0-9]+)\x02")
_FIRST = ("ph", "cat", "name", "pid", "tid")
_IDS = ("External id", "external id", "correlation", "Record function id", "Ev Idx")
_STEP = re.compile(r"ProfilerStep#([0-9]+)")

COMMON = """
import resource, sys, time
path = sys.argv[1]
def measure(call):
    started = time.perf_counter()
    count = call()
    took = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("RESULT", took, peak * (1 if sys.platform == "darwin" else 1024), count, flush=True)
"""
"""What every process runs first; it prints seconds, bytes and the number of events."""
OURS = """
from pathlib import Path
from commsched.problems.profiler.chrome_trace import read_chrome_trace
from commsched.problems.profiler.trace_events import sort_events
"""
IGNORED = {"python_function", "gpu_user_annotation", "trace", "overhead"}
WANTED = f"only_complete=True, without={IGNORED}"
METHODS = {
    "json.load": """
import json
def call():
    with open(path, encoding="utf-8") as file:
        return len(json.load(file)["traceEvents"])
measure(call)
""",
    "read_chrome_trace, all events": OURS
    + """
measure(lambda: read_chrome_trace(Path(path)).events_read)
""",
    "read_chrome_trace, events looked at": OURS
    + f"""
measure(lambda: read_chrome_trace(Path(path), {WANTED}).events_read)
""",
    "the same and sort_events": OURS
    + f"""
def call():
    trace = read_chrome_trace(Path(path), {WANTED})
    sort_events(trace.events)
    return trace.events_read
measure(call)
""",
    "HolisticTraceAnalysis": """
import logging, os
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def call():
    analysis = TraceAnalysis(
        trace_files={0: os.path.basename(path)}, trace_dir=os.path.dirname(path)
    )
    return len(analysis.t.get_trace(0))
measure(call)
""",
}
HTA = "HolisticTraceAnalysis"


def load(path: Path) -> dict[str, Any]:
    """Return a trace, plain or gzip."""
    data = path.read_bytes()
    top: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return top


def template(event: dict[str, Any]) -> str:
    """Return an event as the profiler writes it, with marks around the numbers that copies change."""
    rest = {key: value for key, value in event.items() if key not in (*_FIRST, "args")}
    first = {key: event[key] for key in _FIRST if key in event}
    args = dict(event.get("args", {}))
    if isinstance(first.get("name"), str):
        first["name"] = _STEP.sub("ProfilerStep#\x01n\\1\x02", first["name"])
    if isinstance(rest.get("ts"), int | float):
        rest["ts"] = f"\x01t{round(rest['ts'] * 1000)}\x02"
    for key, part in (("id", rest), *((key, args) for key in _IDS)):
        if type(part.get(key)) is int and part[key] > 0:
            part[key] = f"\x01i{part[key]}\x02"
    lines = [
        "    " + ", ".join(f"{_dumped(key)}: {_dumped(value)}" for key, value in part.items())
        for part in (first, rest)
        if part
    ]
    if args:
        inner = ",\n      ".join(f"{_dumped(key)}: {_dumped(value)}" for key, value in args.items())
        lines.append(f'    "args": {{\n      {inner}\n    }}')
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _dumped(value: object) -> str:
    text = json.dumps(value)
    # Marked numbers stand without quotes; in a name the mark is only a part.
    text = re.sub(r'"\\u0001([ti][0-9]+)\\u0002"', "\x01\\1\x02", text)
    return re.sub(r"\\u0001(n[0-9]+)\\u0002", "\x01\\1\x02", text)


def copies(events: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the text of all events, again and again, each time later and with other ids."""
    parts = _MARK.split(",\n".join(template(event) for event in events))
    texts, kinds, numbers = parts[::3], parts[1::3], [int(number) for number in parts[2::3]]
    shift = {}
    for kind in set(kinds):
        found = [number for number, its in zip(numbers, kinds, strict=True) if its == kind]
        shift[kind] = max(found) + 1 - (0 if kind == "i" else min(found))
    lengths = [e["dur"] for e in events if isinstance(e.get("dur"), int | float)]
    shift["t"] = shift.get("t", 0) + round(1000 * max(lengths, default=0))
    while True:
        out = [texts[0]]
        for k, kind in enumerate(kinds):
            number = numbers[k]
            out.append(f"{number // 1000}.{number % 1000:03d}" if kind == "t" else str(number))
            out.append(texts[k + 1])
            numbers[k] += shift[kind]
        yield "".join(out)


def write_trace(base: Path, path: Path, size: int) -> int:
    """Write a trace of about a size; return its size."""
    top = load(base)
    others = {key: value for key, value in top.items() if key not in ("traceEvents", "traceName")}
    others.setdefault("distributedInfo", {"backend": "nccl", "rank": 0, "world_size": 2})
    # What names processes and threads comes once.
    names = [event for event in top["traceEvents"] if event["ph"] == "M"]
    timed = [event for event in top["traceEvents"] if event["ph"] != "M"]
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(others, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        file.write(next(copies(names)) if names else "")
        for number, text in enumerate(copies(timed)):
            file.write((",\n" if names or number else "") + text)
            if file.tell() >= size:
                break
        file.write('\n  ],\n  "traceName": "trace.json"\n}')
    return path.stat().st_size


def run(code: str, path: Path, python: str) -> tuple[float, int, int] | str:
    """Return seconds, bytes and the number of events; or the last line of what went wrong."""
    environment = dict(os.environ)
    if python == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [python, "-c", COMMON + code, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            took, peak, count = line.split()[1:]
            return float(took), int(peak), int(count)
    return (done.stderr.strip().splitlines() or ["it ended without a result"])[-1]


def compress(path: Path) -> Path:
    """Put a gzip file in the place of a file; return its path."""
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    path.unlink()
    return packed


def main() -> None:
    """Write the trace, run every method, and print the table."""
    parser = argparse.ArgumentParser(description="time the reading of a large trace")
    parser.add_argument("trace", nargs="?", type=Path, default=BUNDLED, help="the trace to repeat")
    parser.add_argument("--mb", type=int, default=1000, help="size of the trace in MB")
    parser.add_argument("--runs", type=int, default=3, help="runs of each method")
    parser.add_argument("--hta-python", default=sys.executable, help="a Python that has HTA")
    parser.add_argument("--gzip", action="store_true", help="compress the trace")
    options = parser.parse_args()
    methods = dict(METHODS)
    if options.gzip:
        del methods["json.load"]
    if options.hta_python == sys.executable and importlib.util.find_spec("hta") is None:
        del methods[HTA]
        print("HolisticTraceAnalysis is not installed here and left out (see --hta-python)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        size = write_trace(options.trace, path, options.mb * MB)
        form = "gzip" if options.gzip else "plain text"
        print(f"{size / MB:.0f} MB of JSON, {form}: {options.trace.name} repeated", flush=True)
        if options.gzip:
            path = compress(path)
        found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in methods}
        failed: dict[str, str] = {}
        for number in range(options.runs):
            for name, code in methods.items():
                if name in failed or (name == HTA and number):
                    continue
                outcome = run(code, path, options.hta_python if name == HTA else sys.executable)
                if isinstance(outcome, str):
                    failed[name] = outcome
                else:
                    found[name].append(outcome)
                print(f"run {number + 1}: {name}: {outcome}", file=sys.stderr, flush=True)
    print_table(found, failed, size)


def print_table(
    found: dict[str, list[tuple[float, int, int]]], failed: dict[str, str], size: int
) -> None:
    """Print the median of the runs of each method."""
    times = {
        name: statistics.median(one[0] for one in runs) for name, runs in found.items() if runs
    }
    print(
        f"{'':35}  {'time':>8}  {'speed':>9}  {'peak memory':>11}  {'of the text':>11}"
        f"  {'events':>10}  {'HTA / this':>10}"
    )
    for name, took in times.items():
        peak = statistics.median(one[1] for one in found[name])
        line = (
            f"{name:35}  {took:>6.2f} s  {size / MB / took:>4.0f} MB/s  {peak / MB:>8.0f} MB"
            f"  {peak / size:>10.2f}x  {found[name][0][2]:>10,}"
        )
        print(line + (f"  {times[HTA] / took:>9.1f}x" if HTA in times else ""))
    for name, why in failed.items():
        print(f"{name:35}  failed: {why}")


if __name__ == "__main__":
    main()

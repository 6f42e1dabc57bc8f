"""Megatron step timelines: recognised, and refused with what they are and lack."""

from __future__ import annotations

import gzip
import json

import pytest
from shared_files import SHARED, shared_data

from commsched.models import InputError
from commsched.problems.readers import ReadOptions
from commsched.problems.sources.source import Source
from commsched.problems.workloads.straggler_timeline import READER


def event(cat: str, step: int = 3, **fields) -> dict:
    arguments = {"step": step, "model_chunk": 0, "mb_id": 0, "seq_id": 0}
    return {"name": cat, "cat": cat, "pid": 0, "tid": 0, "ts": 1.5, "dur": 2.5, "ph": "X"} | {
        "args": arguments,
        **fields,
    }


def refused(path) -> str:
    with pytest.raises(InputError) as caught:
        READER.read([Source(path)], ReadOptions())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_says_what_the_file_is_and_lacks(tmp_path):
    """One line with what was found."""
    events = [event("grads-reduce-scatter"), event("backward-compute", 4), event("gc"), 3, {}]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events))
    assert READER.recognises(path.read_bytes())
    message = refused(path)
    assert "Megatron step timeline" in message
    assert "of 2 steps (1 grads-reduce-scatter, 1 backward-compute)" in message
    assert "no size of any collective" in message


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '[{"cat": "backward-compute", "args": {"mb_id": 1}}', "[3, null]", "{}"]
)
def test_damaged_files(tmp_path, text):
    """Any bytes give one clear line."""
    path = tmp_path / "timeline.json"
    path.write_text(text)
    assert refused(path)


def test_profiler_traces_are_not_taken():
    """A list of events is a profiler's unless its categories and arguments are Megatron's."""
    assert not READER.recognises(json.dumps([event("cpu_op")]).encode())
    assert not READER.recognises(json.dumps({"traceEvents": [event("backward-compute")]}).encode())
    plain = event("backward-compute", args={})
    assert not READER.recognises(json.dumps([plain]).encode())


@pytest.mark.shared
def test_real_timelines():
    """The recorded and the ideal timeline, and no other real file."""
    path = shared_data("straggler-analysis/timeline-ST.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))
    steps = {e["args"]["step"] for e in events if e["ph"] == "X"}
    shards = sum(e.get("cat") == "grads-reduce-scatter" for e in events)
    assert f"of {len(steps)} steps" in refused(path)
    assert f"{shards} grads-reduce-scatter" in refused(path)
    taken = set()
    for other in sorted((SHARED / "data").rglob("*")):
        if other.is_file():
            data = other.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            if READER.recognises(data[: 1 << 20]):
                taken.add(other.name)
    assert taken == {"timeline-ST.json.gz", "ideal-timeline-ST.json.gz"}

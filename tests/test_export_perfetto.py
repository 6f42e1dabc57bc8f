"""The trace of the recorded and the planned step."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from export_cases import FOUR, THREE_BUCKETS

from commsched.export.perfetto import trace_bytes
from commsched.models import AlphaBeta, Collective, Compute, Plan, Problem, evaluate
from commsched.problems import load, read_network

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "problems" / "data"


def events_of(timeline, recorded=None) -> list[dict]:
    """Return the events, checked against what the viewers ask for."""
    document = json.loads(trace_bytes(timeline, recorded))
    events = document["traceEvents"]
    for event in events:
        assert event["ph"] in ("M", "X", "s", "f")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
    return events


def threads(events) -> dict[tuple[int, int], str]:
    """Return the threads' names by process and thread."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_every_launch_and_task_is_a_slice_at_its_time():
    """Streams and channels are threads; the bytes are in the arguments."""
    timeline = evaluate(FOUR, THREE_BUCKETS)
    events = events_of(timeline)
    names = threads(events)
    assert sorted(names.values()) == ["channel dp", "stream backward"]
    slices = [e for e in events if e["ph"] == "X" and names[e["pid"], e["tid"]] == "channel dp"]
    assert [(e["ts"] * 1000, e["dur"] * 1000, e["args"]["bytes"]) for e in slices] == [
        (n.start_ns, n.duration_ns, n.bytes) for n in timeline.launches
    ]
    assert [e["args"]["names"] for e in slices] == [list(n.names) for n in timeline.launches]
    tasks = [e for e in events if e["ph"] == "X" and e["cat"] == "compute"]
    assert [e["name"] for e in tasks] == [span.name for span in timeline.tasks]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["planned"]


def test_arrows_lead_from_what_made_a_launch_ready():
    """Each begins in a slice and ends where the launch starts."""
    tasks = [
        Compute("b", 1000),
        Collective("g", 8, after=("b",)),
        Compute("f", 500, after=("g",)),
        Collective("h", 8, group="tp", after=("f", "g")),
    ]
    costs = {(group, "allreduce"): AlphaBeta(1, 1) for group in ("dp", "tp")}
    timeline = evaluate(Problem(tasks, costs), Plan.of([["g"], ["h"]]))
    events = events_of(timeline)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() == {1, 2}
    assert {threads(events)[2, e["tid"]] for e in starts.values()} == {"stream gpu"}
    slices = [e for e in events if e["ph"] == "X"]
    for arrow in starts.values():
        assert any(
            e["tid"] == arrow["tid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]
            for e in slices
        )
    for number, arrow in ends.items():
        assert arrow["ts"] * 1000 == timeline.launches[number - 1].start_ns


def test_a_recording_stands_beside_the_plan():
    """The recorded launches at the times at which they really ran."""
    network = read_network(DATA / "gloo_loopback_costs.json")
    loaded = load(DATA / "transformer_ddp_gloo_rank0.json.gz", cost=network)
    recorded = loaded.recorded
    timeline = evaluate(loaded.problem, recorded.plan)
    events = events_of(timeline, recorded)
    titles = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert titles == ["recorded", "planned"]
    slices = [e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["cat"] == "allreduce"]
    assert len(slices) == len(recorded.launches) == 4
    for event, launch in zip(slices, recorded.launches, strict=True):
        assert event["ts"] * 1000 == pytest.approx(launch.start_ns)
        assert event["dur"] * 1000 == pytest.approx(launch.end_ns - launch.start_ns)
    (backward,) = [e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["cat"] == "compute"]
    assert backward["dur"] * 1000 == recorded.backward_end_ns


def test_slices_of_a_thread_do_not_overlap():
    """Viewers draw overlapping slices of one thread wrongly."""
    timeline = evaluate(FOUR, Plan.of([[name] for name in FOUR.names]))
    events = events_of(timeline)
    for place in threads(events):
        spans = [
            (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000))
            for e in events
            if e["ph"] == "X" and (e["pid"], e["tid"]) == place
        ]
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))

"""Loading Chrome traces: compression, limits, damage, and hostile files."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY

from commsched.models import InputError
from commsched.problems.chrome_trace import Event, ns_from_trace_us, read_chrome_trace

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": f"op{k}", "pid": 1, "tid": 2, "ts": k, "dur": 1,
     "args": {"External id": k, "Input Dims": [[k, 2], []]}}
    for k in range(5)
]  # fmt: skip


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def names(trace) -> list[str]:
    return [event.name for event in trace.events]


def as_kineto(events=EVENTS, tail='\n  ],\n  "traceName": "x.json"\n}') -> str:
    """Return the text that kineto writes: one event after the other, each over several lines."""
    rows = [json.dumps(event, indent=2) for event in events]
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + ",\n  ".join(rows) + tail


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_an_object_or_a_bare_list_plain_or_gzip(tmp_path, compress, bare):
    """The content decides, not the suffix, and nothing needed a repair."""
    data = json.dumps(EVENTS if bare else {"traceEvents": EVENTS, "schemaVersion": 1}).encode()
    path = write(tmp_path / "trace.txt", gzip.compress(data) if compress else data)
    trace = read_chrome_trace(path)
    assert names(trace) == [f"op{k}" for k in range(5)]
    assert trace.events[3].arguments == EVENTS[3]["args"]
    assert trace.metadata == ({} if bare else {"schemaVersion": 1})
    assert not trace.repairs


def test_a_trace_may_lack_its_events(tmp_path):
    """The profiler writes a file with metadata only where a rank recorded nothing."""
    trace = read_chrome_trace(write(tmp_path / "t", '{"schemaVersion": 1, "deviceProperties": []}'))
    assert list(trace.events) == []


def test_a_byte_order_mark_and_several_gzip_members(tmp_path):
    """Both occur after a file has passed through other tools."""
    data = b"\xef\xbb\xbf" + json.dumps(EVENTS).encode()
    path = write(tmp_path / "t", gzip.compress(data[:100]) + gzip.compress(data[100:]))
    assert names(read_chrome_trace(path)) == [f"op{k}" for k in range(5)]


@pytest.mark.parametrize(
    ("old", "new", "repair"),
    [
        ('"dur": 1', '"dur": inf', "bare inf or nan read as null"),
        ('"dur": 1', '"dur": -nan', "bare inf or nan read as null"),
        ('"dur": 1', '"dur": Infinity', "bare inf or nan read as null"),
        ("op3", "op\x013", "text with control characters"),
        ("op3", "C:\\Windows\\op3", "text with invalid escapes"),
        ("op3", "op\\ud8003", "text with invalid escapes"),
    ],
)
def test_known_faults_are_mended_and_counted(tmp_path, old, new, repair):
    """No event is lost, and what was mended is said."""
    trace = read_chrome_trace(write(tmp_path / "t", as_kineto().replace(old, new)))
    assert len(trace.events) == 5
    assert trace.events[4].arguments == EVENTS[4]["args"]
    assert set(trace.repairs) == {repair}
    assert trace.repairs[repair] == (5 if "dur" in old else 1)
    assert trace.metadata == {"schemaVersion": 1, "traceName": "x.json"}


def test_inf_inside_a_text_stays(tmp_path):
    """Only bare words are mended."""
    text = as_kineto().replace("op3", "inf, nan: -inf").replace('"dur": 1', '"dur": inf', 1)
    assert read_chrome_trace(write(tmp_path / "t", text)).events[3].name == "inf, nan: -inf"


def test_bad_utf8_is_replaced(tmp_path):
    """The name is damaged, the event is not."""
    data = as_kineto().encode().replace(b"op3", b"op\xff3")
    trace = read_chrome_trace(write(tmp_path / "t", data))
    assert names(trace)[3] == "op\N{REPLACEMENT CHARACTER}3"
    assert trace.repairs == {"bad UTF-8 replaced": 1}


def test_unescaped_quotes_are_escaped(tmp_path):
    """An event with quotes in its name is read, and so are its neighbours."""
    text = as_kineto().replace("op3", 'torch_dynamo "f" at <3>').replace("op1", 'a "b')
    trace = read_chrome_trace(write(tmp_path / "t", text))
    assert names(trace) == ["op0", 'a "b', "op2", 'torch_dynamo "f" at <3>', "op4"]
    assert trace.repairs == {"unescaped quotes in an event": 2}
    assert trace.metadata == {"schemaVersion": 1}


def test_an_unreadable_event_is_dropped_alone(tmp_path):
    """What no rule mends is counted as lost; the others are there."""
    text = as_kineto().replace('"name": "op2"', '"name": op2')
    trace = read_chrome_trace(write(tmp_path / "t", text))
    assert names(trace) == ["op0", "op1", "op3", "op4"]
    assert trace.repairs == {"unreadable event dropped": 1}


def test_elements_that_are_no_events_are_dropped(tmp_path):
    """Null in the list, or a comma too many, harms no event."""
    text = json.dumps([*EVENTS[:2], None, *EVENTS[2:]]).replace("}]", "},]")
    trace = read_chrome_trace(write(tmp_path / "t", text))
    assert names(trace) == [f"op{k}" for k in range(5)]
    assert trace.repairs == {"text between events skipped": 1}


def test_a_comma_too_many_is_said(tmp_path):
    """A list that only had to be read event by event is not called intact."""
    text = json.dumps(EVENTS).replace("}]", "},]")
    trace = read_chrome_trace(write(tmp_path / "t", text))
    assert names(trace) == [f"op{k}" for k in range(5)]
    assert trace.repairs == {"list of events that is not valid JSON": 1}


@pytest.mark.parametrize("compact", [False, True])
def test_a_file_cut_anywhere_keeps_its_complete_events(tmp_path, compact):
    """Every cut gives the complete events up to it, or an error where there is none."""
    text = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}) if compact else as_kineto()
    ends = [k + 1 for k, letter in enumerate(text) if letter == "}"]
    complete = [end for end in ends if '"ph"' in text[:end]]
    for cut in range(1, len(text) - 1, 7):
        path = write(tmp_path / "t", text[:cut])
        whole = sum(_is_complete(text[:end]) for end in complete if end <= cut)
        if whole == 0:
            with pytest.raises(InputError, match="no trace"):
                read_chrome_trace(path)
            continue
        trace = read_chrome_trace(path)
        assert names(trace) == [f"op{k}" for k in range(whole)]
        # After the list only the tail is missing.
        assert any("cut off" in what for what in trace.repairs) or whole == 5


def _is_complete(text: str) -> bool:
    """Return whether an event ends here: its braces are closed again."""
    start = text.rindex('"ph"')
    depth = 1 + text[start:].count("{") - text[start:].count("}")
    return depth == 0


def test_lists_of_objects_inside_an_event_are_no_events(tmp_path):
    """Where a file must be read event by event, nested objects stay where they are."""
    nested = {**EVENTS[0], "args": {"list": [{"name": "a", "ts": 1}, {"name": "b"}, {"ts": 2}]}}
    text = as_kineto([EVENTS[1], nested, EVENTS[2]]).replace("op2", 'o"p"2')
    trace = read_chrome_trace(write(tmp_path / "t", text))
    assert names(trace) == ["op1", "op0", 'o"p"2']
    assert trace.events[1].arguments == nested["args"]


def test_metadata_after_a_damaged_list_is_no_event(tmp_path):
    """A list of devices behind the events is not taken for events."""
    tail = '\n ], "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]}'
    text = as_kineto(tail=tail).replace("op2", 'o"p"2')
    assert len(read_chrome_trace(write(tmp_path / "t", text)).events) == 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"  \n", "this is no trace"),
        (b"size count type\n1 2 3\n", "neither a JSON object nor a JSON list"),
        (b'{"format": "commsched/problem", "gradients": []}', "has no traceEvents"),
        (b'{"traceEvents": 3}', "no event can be read"),
        (b'{"traceEvents": null', "no event can be read"),
        (b"[1, 2, 3]", "no event can be read"),
        (b"[[[[", "no event can be read"),
        (b"{", "no event can be read"),
        (b'{"nodes": [], "schema": "1.1.0"}', "has no traceEvents"),
        (b"\x00\x01\x02", "this is no trace"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"a" * 257 + b"ustar\x00", "tar archive"),
        (b"\x28\xb5\x2f\xfdrest", "zstd data"),
        (gzip.compress(b""), "the file is empty"),
        (gzip.compress(as_kineto().encode())[:-9], "the gzip data end early"),
        (gzip.compress(as_kineto().encode())[:60], "the gzip data end early"),
        (gzip.compress(as_kineto().encode())[:12] + b"xxxxxxxx", "the gzip data"),
        (gzip.compress(b"hello"), "this is no trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, content, said):
    """The message names the file and the reason."""
    path = write(tmp_path / "some.json", content)
    with pytest.raises(InputError) as caught:
        read_chrome_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    """The system's reason is in the message."""
    with pytest.raises(InputError, match="No such file"):
        read_chrome_trace(tmp_path / "missing.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_chrome_trace(tmp_path)


def test_a_compression_bomb_stops_at_the_limit(tmp_path):
    """A file of a few kilobytes that unpacks to 64 MiB is refused without unpacking it all."""
    path = write(tmp_path / "bomb", gzip.compress(b"[" + b" " * 2**26 + b"]"))
    with pytest.raises(InputError, match=r"more than 1\.00 MiB"):
        read_chrome_trace(path, max_text_bytes=2**20)


def test_large_files_are_refused_before_they_are_read(tmp_path):
    """Both limits hold for plain files."""
    path = write(tmp_path / "t", as_kineto())
    with pytest.raises(InputError, match="at most 10 B are read"):
        read_chrome_trace(path, max_file_bytes=10)
    with pytest.raises(InputError, match="more than 100 B"):
        read_chrome_trace(path, max_text_bytes=100)


HOSTILE = {
    "deep list": b"[" * 300_000,
    "deep object": b'{"traceEvents": [' + b'{"a":' * 100_000,
    "deep arguments": b'{"traceEvents": [{"ph": "X", "name": "a", "args": ' + b"[" * 10**5
    + b"]" * 10**5 + b"}]}",
    "open texts": b'{"traceEvents": [{"ph": "X", "name": "' + b'\\"' * 150_000,
    "quotes": b'{"traceEvents": [' + b'"' * 300_001,
    "quotes and commas": b'{"traceEvents": [{"ph": "' + b'","' * 100_000,
    "blanks": b'{"traceEvents": [' + b" " * 300_000 + b"x",
    "braces": b'{"traceEvents": [' + b"} " * 150_000,
    "begins": b'{"traceEvents": [' + b'},{"ph":' * 40_000,
    "open events": b'{"traceEvents": [' + b'{"ph": "},{"ph":"' * 20_000,
    "many starts": b'"traceEvents": [' * 20_000,
    "keys": b'{"traceEvents"' * 20_000,
    "backslashes": b'{"traceEvents": [{"name": "' + b"\\" * 300_001,
    "minus": b'{"traceEvents": [' + b"-" * 300_000,
    "infs": b'{"traceEvents": [' + b"inf," * 70_000,
    "long number": b'{"traceEvents": [{"ph": "X", "ts": ' + b"9" * 100_000 + b"}]}",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_end_quickly(tmp_path, kind):
    """Some hundred kilobytes of malice are refused, or read, in seconds, and raise nothing else."""
    path = write(tmp_path / "t", HOSTILE[kind])
    start = time.monotonic()
    with contextlib.suppress(InputError):
        trace = read_chrome_trace(path)
        assert all(isinstance(event.arguments, dict) for event in trace.events)
    assert time.monotonic() - start < 10


def test_arguments_are_read_with_patience():
    """What strict JSON refuses inside the arguments does no harm, and no arguments are none."""
    event = read_event(b'{"name": "a", "args": {"Comms Id": 10159970886766084423, "x": 1e999}}')
    assert event.arguments == {"Comms Id": 10159970886766084423, "x": float("inf")}
    assert read_event(b'{"name": "a"}').arguments == {}
    assert read_event(b'{"name": "a", "args": [1]}').arguments == {}
    assert read_event(b'{"name": "a", "args": null}').arguments == {}


def read_event(text: bytes) -> Event:
    return msgspec.json.decode(text, type=Event)


@PROPERTY
@given(st.integers(0, 8_000_000_000_000), st.integers(0, 999))
def test_microseconds_with_three_decimals_are_exact(whole, thousandths):
    """Relative times of some months keep every nanosecond."""
    text = f"{whole}.{thousandths:03d}"
    assert ns_from_trace_us(float(text)) == whole * 1000 + thousandths
    assert ns_from_trace_us(whole) == whole * 1000


@pytest.mark.parametrize(
    "value", [None, True, "", "x", "1" * 60, float("nan"), float("inf"), -float("inf"), 1e30,
              2**80, [], {}, "inf", "nan"]
)  # fmt: skip
def test_what_is_no_time_is_none(value):
    """Nothing raises, whatever stands in ``ts``."""
    assert ns_from_trace_us(value) is None


@PROPERTY
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_input_errors(tmp_path_factory, data):
    """Fuzzing: any file gives a trace or an InputError."""
    path = write(tmp_path_factory.getbasetemp() / "fuzz", data)
    for content in (data, b'{"traceEvents": [' + data, gzip.compress(b'[{"name": ' + data)):
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            read_chrome_trace(path)

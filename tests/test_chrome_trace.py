"""Loading Chrome traces: compression, limits, damage, and hostile files."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shared_files import SHARED, shared_data
from strategies import PROPERTY

from commsched.models import InputError
from commsched.problems.profiler import chrome_trace
from commsched.problems.profiler.chrome_trace import (
    INCOMPLETE,
    Event,
    ns_from_trace_us,
    read_chrome_trace,
)
from commsched.problems.profiler.trace_stream import stream_events
from commsched.problems.sources import trace_bytes
from commsched.problems.sources.source import Source, sources

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


BOMBS = {
    "blanks": (b'{"traceEvents": [', b" "),
    "blanks between events": (b'[{"ph":"X","ts":1}, {"ph":"X","ts":2},', b" "),
    "blanks in the head": (b'{"schemaVersion": 1,', b" "),
    "one endless text": (b'{"traceEvents": [{"name": "', b"a"),
    "endless arguments": (b'[{"ph":"X","ts":1},{"ph":"X","args":{"x":[', b"0,"),
    "endless nesting": (b'{"traceEvents": ', b"["),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_gzip_data_that_grow_as_no_recording_does_are_given_up_early(tmp_path, monkeypatch, bomb):
    """Of gigabytes of nothing a few megabytes are looked at, and the line says why."""
    begin, filling = BOMBS[bomb]
    free = 4 << 20
    monkeypatch.setattr(trace_bytes, "FREE_BYTES", free)
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(64):
            file.write(filling * (1 << 20))
    read = []
    grown = trace_bytes.Inflater.__next__

    def counted(inflater):
        block = grown(inflater)
        read.append(len(block))
        return block

    monkeypatch.setattr(trace_bytes.Inflater, "__next__", counted)
    with pytest.raises(InputError, match=r"decompress to .* more than 250 times as much"):
        read_chrome_trace(path, piece_bytes=1 << 16)
    assert free <= sum(read) <= 3 * free  # read twice at most, and not the other 50 MiB


def test_a_list_in_which_no_event_begins_is_given_up(tmp_path):
    """Plain text cannot grow, but it need not be looked at again and again either."""
    pieces = iter([b'{"traceEvents": [', *[b" " * 1000] * 1000])
    with pytest.raises(InputError, match=r"t\.json: is no trace: no event begins in"):
        stream_events(
            pieces, json.loads, lambda _: None, name="t.json", piece_bytes=64, most_between=5000
        )
    assert sum(map(len, pieces)) > 900_000  # was not even read


@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
@pytest.mark.parametrize("event", ["{}", '{"ph":"X"}', '{"ph":"X","ts":1,"dur":1}'])
@pytest.mark.parametrize("damage", ["", "nan, nan"])
def test_too_many_events_are_refused(tmp_path, monkeypatch, event, piece_bytes, damage):
    """A gigabyte of empty events would become a hundred gigabytes."""
    monkeypatch.setattr(chrome_trace, "MAX_EVENTS", 500)
    path = tmp_path / "trace.json"

    def write(count):
        path.write_text(f'{{"traceEvents": [{",".join([event] * count)}{damage}]}}')
        return read_chrome_trace(path, piece_bytes=piece_bytes)

    for count in (1001, 5000):
        with pytest.raises(InputError, match=r"trace\.json: the trace has more than 500 events"):
            write(count)
    if not damage:
        trace = write(500)
        assert len(trace.events) + sum(trace.repairs.values()) == 500


@pytest.mark.parametrize("megabytes", [2, 40])
def test_long_metadata_before_the_events_are_read(tmp_path, megabytes):
    """A job of thousands of ranks lists its groups first, also where that is most of the file."""
    groups = [{"pg": k, "ranks": list(range(k % 97, 4096))} for k in range(megabytes * 50)]
    path = tmp_path / "trace.json.gz"
    head = json.dumps({"distributedInfo": {"pg_config": groups}})
    assert len(head) > megabytes * 1_000_000
    event = {"ph": "X", "name": "op", "ts": 1, "dur": 2}
    text = f'{head[:-1]}, "traceEvents": {json.dumps([event] * 20_000)}}}'
    path.write_bytes(gzip.compress(text.encode(), 1))
    trace = read_chrome_trace(path)
    assert len(trace.events) >= 1
    assert trace.metadata["distributedInfo"]["pg_config"] == groups


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


# Large traces are decoded piece by piece ---------------------------------------------------------

HUGE = 1 << 30
DECODE = msgspec.json.Decoder(list[Event]).decode
TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
REAL = sorted(
    str(path.relative_to(SHARED / "data"))
    for pattern in ("hta/*.gz", "tracelens/*.gz", "kineto-tb/*.gz", "local-torch-*/*.gz",
                    "straggler-analysis/*.gz", "param/*.gz", "chakra/*gz", "superbench/*")
    for path in (SHARED / "data").glob(pattern)
)  # fmt: skip


def content(event: Event) -> tuple[str, ...]:
    """Return all that an event holds, with the types."""
    fields = (event.ph, event.cat, event.name, event.pid, event.tid, event.ts, event.dur)
    return (*map(repr, fields), bytes(event.args).decode())


def outcome(source: Path | Source, **options):
    """Return everything that loading gives, or what it says."""
    try:
        trace = read_chrome_trace(source, **options)
    except InputError as error:
        return str(error)
    events = [content(event) for event in trace.events]
    return events, trace.metadata, trace.repairs, trace.left_out


def stream(text: bytes, piece_bytes: int, step: int = 7):
    """Return what decoding piece by piece gives; None if it leaves the text to others."""
    found: list[Event] = []
    pieces = (text[at : at + step] for at in range(0, len(text), step))
    top = stream_events(pieces, DECODE, found.extend, piece_bytes=piece_bytes)
    if top is None:
        return None
    others = {key: bytes(raw) for key, raw in top.items() if key != "traceEvents"}
    return [content(event) for event in found], others


def strict(text: bytes):
    """Return what decoding the text as a whole gives; None if it is no strict JSON or UTF-8."""
    try:
        text.decode()
        if text.lstrip(b" \t\r\n").startswith(b"["):
            return [content(event) for event in DECODE(text)], {}
        top = TOP.decode(text)
        events = DECODE(top.pop("traceEvents"))
    except (ValueError, RecursionError, KeyError):
        return None
    return [content(event) for event in events], {key: bytes(raw) for key, raw in top.items()}


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL or ["hta/nccl_data.json.gz"])
def test_real_files_in_pieces_are_those_read_as_a_whole(name):
    """Every real file, trace or not, gives the same events, or the same message."""
    for source in sources(shared_data(name)):
        whole = outcome(source, piece_bytes=HUGE)
        assert outcome(source, piece_bytes=50_000) == whole
        if len(source.read()) < 2_000_000:
            assert outcome(source, piece_bytes=3_000) == whole


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "events"),
    [("hta/nccl_data.json.gz", 40_573), ("tracelens/mi300_resnet_ddp_act_checkpoint.json.gz", 56_451)],
)  # fmt: skip
def test_real_traces_do_pass_in_pieces(name, events):
    """They are not left to those who read the whole text; the count is the standard library's."""
    text = Source(shared_data(name)).read()
    found: list[Event] = []
    pieces = (text[at : at + 65_536] for at in range(0, len(text), 65_536))
    assert stream_events(pieces, DECODE, found.extend, piece_bytes=10_000) is not None
    assert len(found) == events == len(json.loads(text)["traceEvents"])


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("layout", ["kineto", "compact", "indented"])
def test_every_layout_passes_in_pieces(bare, layout):
    """What stands before and after the events comes along."""
    top = {"schemaVersion": 1, "traceEvents": EVENTS, "deviceProperties": [{"id": 0}, {"id": 1}]}
    text = json.dumps(EVENTS if bare else top, indent=1 if layout == "indented" else None)
    if layout == "kineto":
        text = "[" + as_kineto(tail="]").split("[", 1)[1] if bare else as_kineto()
    data = text.encode()
    for piece_bytes in range(60, 200, 9):
        assert stream(data, piece_bytes) == strict(data)
        assert stream(data, piece_bytes) is not None
    assert stream(b"\xef\xbb\xbf" + data, 100) == strict(data)


def test_what_stands_before_the_events_may_be_longer_than_a_piece():
    """A job of thousands of ranks lists its groups first; without any end it is left to others."""
    for count, passes in ((40, True), (4000, False)):
        groups = [{"pg_name": str(k), "ranks": [k, k + 1]} for k in range(count)]
        top = {"distributedInfo": {"pg_config": groups}, "traceEvents": EVENTS * 9, "a": 1}
        data = json.dumps(top).encode()
        assert stream(data, 100) == (strict(data) if passes else None)


NASTY = st.lists(
    st.sampled_from(
        ['},{"ph":', '}, {"name": ', '"', "\\", "{", "}", "[", "]", ",", "\n", "\u2028", "é",
         '"traceEvents": [', "a", "]}", '"}', "\N{SNOWMAN}", "\0", "\ud83d\ude00"]
    ), max_size=6,
).map("".join)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 2**70), st.floats(0, 1e9), NASTY)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["ph", "name", "ts", "x"]) | NASTY, inner, max_size=3),
    ),
    max_leaves=6,
)
ANY_EVENTS = st.lists(
    st.dictionaries(
        st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"]), VALUES
    ),
    max_size=12,
)


@PROPERTY
@given(
    events=ANY_EVENTS,
    head=st.dictionaries(NASTY, VALUES, max_size=2),
    tail=st.dictionaries(NASTY | st.just("traceEvents"), VALUES, max_size=2),
    style=st.sampled_from([None, 0, 2]),
    escaped=st.booleans(),
    piece_bytes=st.integers(1, 120),
    step=st.integers(1, 40),
    bare=st.booleans(),
)
def test_nasty_texts_in_pieces(events, head, tail, style, escaped, piece_bytes, step, bare):
    """Strings full of braces and quotes, nested look-alikes, and keys that come twice."""
    before, after = (json.dumps(part, ensure_ascii=escaped)[1:-1] for part in (head, tail))
    listed = json.dumps(events, indent=style, ensure_ascii=escaped)
    parts = [part for part in (before, f'"traceEvents": {listed}', after) if part]
    text = (listed if bare else "{" + ", ".join(parts) + "}").encode("utf-8", "surrogatepass")
    found = stream(text, piece_bytes, step)
    if found is not None:
        assert found == strict(text)


@PROPERTY
@given(
    st.lists(
        st.sampled_from(
            [*'{}[]",:\\', "1", " ", "\n", "\f", '"traceEvents":[', '{"ph":"X"}', '"a":', '"":[', "},{",
             "null", '"traceEvents":0']
        ), max_size=30,
    ).map("".join),
    st.integers(1, 20),
)  # fmt: skip
@example('{"traceEvents":[{"ph":"X"}]"a":1}', 1)
@example('{"traceEvents":[{"ph":"X"}],}', 1)
@example('{"traceEvents":[{"ph":"X"},]}', 1)
@example('{"traceEvents":[{"ph":"X"}],"traceEvents":[]}', 1)
@example('{"traceEvents":[{"ph":"X"}],"":[{"ph":"X"}]}', 1)
@example('{"traceEvents":[{"ph":"X"}],"":[]}', 1)
@example('{"a":{"traceEvents":[{"ph":"X"},{"ph":"X"}]}}', 1)
@example('{"a":"\\"traceEvents":[{"ph":"X"}]}', 1)
@example('\f[{"ph":"X"}]', 1)
@example('[{"ph":"X"}]]', 1)
@example('[{"ph":"X"}],{"ph":"X"}]', 1)
def test_what_pieces_accept_is_strict_json(text, piece_bytes):
    """Whatever is almost JSON is left to those who read the whole text."""
    found = stream(text.encode(), piece_bytes, 5)
    if found is not None:
        assert found == strict(text.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [('"dur": 1', '"dur": inf'), ("op3", "op\x013"), ("op3", 'o"p"3'), ('"name": "op2"', '"name": op2'),
     ('"ph": "X"', '"ph": "\xff"'), ("}\n  ],", "},\n ],"), ("op3", "\N{SNOWMAN}")],
)  # fmt: skip
def test_damage_is_mended_in_large_files_too(tmp_path, old, new):
    """What cannot pass in pieces is mended as ever, wherever the damage is."""
    text = as_kineto(EVENTS * 30).replace(old, new)
    for data in (text.encode(), text.encode("latin-1", "ignore"), text.encode()[:-700]):
        path = write(tmp_path / "t", data)
        whole = outcome(path, piece_bytes=HUGE)
        assert isinstance(whole, tuple)
        assert outcome(path, piece_bytes=500) == whole


def test_lists_of_look_alikes_inside_an_event_pass(tmp_path):
    """A cut within an event's arguments is noticed, and the events are whole."""
    nested = {**EVENTS[0], "args": {"list": [{"name": "a", "ts": k} for k in range(40)]}}
    path = write(tmp_path / "t", json.dumps([EVENTS[1], nested, *EVENTS, nested]))
    assert outcome(path, piece_bytes=100) == outcome(path, piece_bytes=HUGE)


def test_events_that_nobody_wants_are_counted(tmp_path):
    """They are dropped early, whether the file is read in pieces or not."""
    events = [
        *EVENTS, {"ph": "M", "name": "process_name"}, {"ph": "s", "cat": "python_function"},
        {"ph": "X", "cat": "Python_Function", "name": "f"}, {"ph": "X", "cat": ["python_function"]},
        {"ph": ["X"], "cat": "cpu_op"}, {"ph": "X", "name": 3},
    ]  # fmt: skip
    path = write(tmp_path / "t", json.dumps({"traceEvents": events}))
    for piece_bytes in (40, HUGE):
        every = read_chrome_trace(path, piece_bytes=piece_bytes)
        assert len(every.events) == every.events_read == 11
        assert not every.left_out
        some = read_chrome_trace(
            path, only_complete=True, without={"python_function"}, piece_bytes=piece_bytes
        )
        assert some.left_out == {INCOMPLETE: 3, "python_function": 1}
        assert len(some.events) == 7
        assert some.events_read == 11


def test_equal_texts_are_one_object_and_numbers_keep_their_types(tmp_path):
    """A large trace has few names and many events; ``1``, ``1.0`` and ``true`` stay apart."""
    values = [1, 1.0, True, "1"]
    events = [{"name": v, "pid": v, "tid": v, "cat": v, "ph": v} for v in values * 2]
    trace = read_chrome_trace(write(tmp_path / "t", json.dumps(events)))
    for event, value in zip(trace.events, values * 2, strict=True):
        for field in (event.name, event.pid, event.tid, event.cat, event.ph):
            assert type(field) is type(value)
    long = "autograd::engine::evaluate_function: AddmmBackward0"
    trace = read_chrome_trace(write(tmp_path / "t", json.dumps([{"name": long}, {"name": long}])))
    assert trace.events[0].name is trace.events[1].name


def test_a_large_trace_never_exists_as_a_whole(tmp_path):
    """The text of 18 MB is gone piece by piece: far less is held when little is wanted."""
    event = {"ph": "X", "cat": "python_function", "name": "f" * 300, "dur": 1}
    rows = [json.dumps({**event, "ts": k}) for k in range(50_000)]
    path = write(tmp_path / "t", '{"traceEvents": [' + ",\n".join(rows) + "]}")
    size = path.stat().st_size
    del rows
    tracemalloc.start()
    trace = read_chrome_trace(path, without={"python_function"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert trace.events_read == 50_000
    assert peak < 16 << 20 < size


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_in_small_pieces_end_quickly(tmp_path, kind):
    """The work stays linear however the text is cut."""
    path = write(tmp_path / "t", HOSTILE[kind])
    start = time.monotonic()
    assert outcome(path, piece_bytes=1000) == outcome(path, piece_bytes=HUGE)
    assert time.monotonic() - start < 20

"""Files of our own formats have no key twice: whatever the format, the place and the spelling."""

from __future__ import annotations

import json
import re

import pytest
from cli_runner import refusal, run
from hypothesis import given
from hypothesis import strategies as st

import commsched
from commsched.models.errors import InputError
from commsched.problems import problem_digest
from commsched.problems.own_file import check_keys
from commsched.problems.problem_file import problem_from_bytes

COST = {"alpha_us": 8, "bandwidth_gb_s": 50}
GRADIENTS = {
    "format": "commsched/problem",
    "version": 1,
    "name": "two layers",
    "gradients": [
        {"name": "L2", "bytes": 4194304, "ready_us": 2000},
        {"name": "L1", "bytes": 1048576, "ready_us": 2500},
    ],
    "costs": {"allreduce": COST},
    "limits": [{"type": "most-launches", "count": 2}],
}
HOLD = {"pool": "p", "until": ["b2"]}
AR = {"name": "a", "type": "collective", "kind": "allreduce", "bytes": 8, "group": "dp"}
STEP = {
    "format": "commsched/problem",
    "version": 1,
    "name": "a step",
    "tasks": [
        {"name": "b1", "type": "compute", "duration_us": 12},
        {**AR, "after": ["b1"], "hold": HOLD},
        {"name": "b2", "type": "compute", "duration_us": 12},
    ],
    "costs": {"dp": {"allreduce": COST}},
    "channels": {"nic": ["dp"]},
    "ranks": {"dp": 4},
}
COSTS = {
    "format": "commsched/costs",
    "version": 1,
    "allreduce": COST,
    "curves": [{"kind": "broadcast", "cost": {"points": [[1, 2], [3, 4]]}}],
}
OVERHEADS = {"format": "commsched/overheads", "version": 1, "issue_us": 12.5, "finish_us": 90}


def plan_of(document):
    """Return a plan file for a problem file, with an entry for people in it that is nested."""
    problem = problem_from_bytes(json.dumps(document).encode(), "x")
    return {
        "format": "commsched/plan",
        "version": 1,
        "problem_digest": problem_digest(problem),
        "buckets": [{"names": ["L2"]}, {"names": ["L1"]}],
        "limit_prices": [{"limit": "most-launches", "price_us": 0}],
    }


def objects_of(value, place=""):
    """Yield each object in a document with the place that messages name."""
    if isinstance(value, dict):
        yield place, value
        for key, one in value.items():
            yield from objects_of(one, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from objects_of(one, f"{place}[{number}]")


def with_twice(document, place, key):
    """Return JSON in which the object at a place has a key twice, with the same value."""

    def text(value, at):
        if isinstance(value, dict):
            pairs = [
                f"{json.dumps(name)}: {text(one, f'{at}.{name}' if at else name)}"
                for name, one in value.items()
            ]
            if at == place:
                pairs.append(next(pair for pair in pairs if pair.startswith(json.dumps(key))))
            return "{" + ", ".join(pairs) + "}"
        if isinstance(value, list):
            return f"[{', '.join(text(one, f'{at}[{n}]') for n, one in enumerate(value))}]"
        return json.dumps(value)

    return text(document, "")


def cases():
    """Return each format with each key of each object in it."""
    documents = {
        "gradients": GRADIENTS,
        "step": STEP,
        "costs": COSTS,
        "overheads": OVERHEADS,
        "plan": plan_of(GRADIENTS),
    }
    return [
        pytest.param(form, document, place, key, id=f"{form}-{place}-{key}")
        for form, document in documents.items()
        for place, one in objects_of(document)
        for key in one
    ]


def arguments_for(form, folder, text):
    """Write a file of a form, and return a command that reads it, and the file."""
    good, file = folder / "good.json", folder / "file.json"
    good.write_text(json.dumps(GRADIENTS))
    file.write_text(text)
    if form in ("gradients", "step"):
        return ("plan", file), file
    if form == "plan":
        return ("verify", file, good), file
    return ("plan", good, f"--{form}", file), file


@pytest.mark.parametrize(("form", "document", "place", "key"), cases())
def test_a_key_that_is_given_twice_is_named(tmp_path, form, document, place, key):
    """Also with the same value twice; the same file without it is read."""
    arguments, file = arguments_for(form, tmp_path, json.dumps(document))
    assert run(*arguments)[0] == 0
    arguments, file = arguments_for(form, tmp_path, with_twice(document, place, key))
    where = f"{place}: " if place else ""
    assert refusal(*arguments) == f"commsched: {file}: {where}'{key}' is given twice\n"


def test_costs_given_twice_from_the_library(tmp_path):
    """The case that matters: two values for one thing, of which nobody knows which is meant."""
    file = tmp_path / "problem.json"
    text = json.dumps(GRADIENTS).replace('"alpha_us": 8', '"alpha_us": 8, "alpha_us": 80')
    file.write_text(text)
    with pytest.raises(InputError, match=r"costs\.allreduce: 'alpha_us' is given twice$"):
        commsched.read(file)


@pytest.mark.parametrize(
    "text",
    [
        r'{"a": 1, "\u0061": 2}',
        r'{"a:": 1, "a\u003a": 2}',
        r'{"a\u003A": 1, "a\u003a": 2}',
        r'{"x": "\u003a", "a": 1, "a": 2}',
        r'{"x": "\u003a\u003a", "a": "\u003a", "a": 2}',
        r'{"x": "\\u003a", "a": {}, "a": {}}',
        r'{"": 1, "": 2}',
        r'{"a\"": 1, "a\u0022": 2}',
        r'[[{"a": {"a": 1}}, {"a": [{"b": 1, "b": 1}]}]]',
        '{"é": 1, "\\u00e9": 2}',
        '{"\\ud83d\\ude00": 1, "😀": 2}',
    ],
)
def test_keys_are_the_same_however_they_are_spelt(text):
    """And a colon in a text stands for nothing, escaped or not."""
    with pytest.raises(InputError, match=r"^f: .*is given twice$"):
        check_keys(text.encode(), "f")


@pytest.mark.parametrize(
    "text",
    [
        r'{"a": ":::", "b": "\u003a", "c": "\\u003a", ":": {"a": {":": []}}}',
        r'[{"a": 1}, {"a": 1}, {"a": {"a": {"a": 1}}}]',
        r'{"a": 1, "A": 1, "a ": 1, "": 1, "\u0000": 1}',
        r'{"e\u0301": 1, "\u00e9": 1}',
        r'{"a": 123456789012345678901234567890, "b": 1E-7, "c": -0.0}',
        "[]",
        "1",
        r'"\u003a"',
    ],
)
def test_keys_that_differ_are_nothing_to_complain_of(text):
    """One key in several objects is what files are made of."""
    check_keys(text.encode(), "f")


KEYS = st.text(st.sampled_from('ab:"\\é\n'), max_size=3)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=4).map(tuple)
    ),
    max_leaves=12,
)


def spelt(text, escape):
    """Return a JSON string, with each character as a \\u escape if asked for."""
    return '"' + "".join(f"\\u{ord(c):04x}" for c in text) + '"' if escape else json.dumps(text)


def json_of(value, escape):
    """Return JSON of a value in which a tuple of pairs is an object, repeated keys and all."""
    if isinstance(value, tuple):
        pairs = (f"{spelt(key, escape)}:{json_of(one, escape)}" for key, one in value)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(json_of(one, escape) for one in value) + "]"
    return spelt(value, escape) if isinstance(value, str) else json.dumps(value)


def has_twice(value):
    """Return whether an object in a value has a key twice."""
    if isinstance(value, tuple):
        keys = [key for key, _ in value]
        return len(set(keys)) < len(keys) or any(has_twice(one) for _, one in value)
    return isinstance(value, list) and any(map(has_twice, value))


@given(VALUES, st.booleans())
def test_every_repeated_key_is_found_and_no_other(value, escape):
    """Against a look at the data that the text was made of."""
    data = json_of(value, escape).encode()
    if has_twice(value):
        with pytest.raises(InputError, match=r"is given twice$"):
            check_keys(data, "f")
    else:
        check_keys(data, "f")


def test_the_line_is_short_and_one_whatever_the_key():
    """A key may be long, or hold a line break."""
    key = "a\n" * 5000
    data = json.dumps({key: {"x": 1}}).replace('"x": 1', '"x": 1, "x": 2')
    with pytest.raises(InputError) as caught:
        check_keys(data.encode(), "f")
    assert len(str(caught.value)) < 200
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError) as caught:
        check_keys(f"{{{json.dumps(key)}:1,{json.dumps(key)}:2}}".encode(), "f")
    assert len(str(caught.value)) < 200
    assert len(str(caught.value).splitlines()) == 1


def test_broken_and_deep_texts_are_refused_too():
    """Never with another exception, also where each object is looked at."""
    for text in ('{"a":', '{"\\u003a":', "{" * 5, '{"a":' * 100_000, '{"\\u003a":' * 100_000):
        with pytest.raises(InputError, match=r"^f: "):
            check_keys(text.encode(), "f")


def test_numbers_out_of_range_are_left_to_those_who_read_them():
    """They know what the number is; here it is no reason to miss a key that is given twice."""
    for number in ("1e400", "1" + "0" * 5000):
        check_keys(f'{{"a": {number}}}'.encode(), "f")
        with pytest.raises(InputError, match=r"'a' is given twice$"):
            check_keys(f'{{"a": {number}, "a": 1}}'.encode(), "f")


def test_foreign_files_are_read_as_their_tools_do(tmp_path):
    """In a trace the last value counts, as everywhere else; it is not ours to judge."""
    file = tmp_path / "model.json"
    text = json.dumps({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4})
    shape = ', "vocab_size": 5, "vocab_size": 100, "n_positions": 32}'
    file.write_text(re.sub("}$", shape, text))
    options = ("--tokens", "512", "--tflops", "10", "--alpha-us", "9", "--bandwidth-gb-s", "9")
    assert run("plan", file, *options)[0] == 0

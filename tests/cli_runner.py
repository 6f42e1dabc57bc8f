"""Running the command line inside the test process."""

from __future__ import annotations

import contextlib
import io
import json
import warnings

import pytest

from commsched.cli import main


def run(*arguments):
    """Run the command line in this process; return its exit code, output and error output."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    show = warnings.showwarning
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as caught,
        ):
            main([str(argument) for argument in arguments])
    finally:
        warnings.showwarning = show
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return caught.value.code, printed, said


def refusal(*arguments) -> str:
    """Run the command line, expect exit code 2 and one line on standard error; return the line."""
    code, out, err = run(*arguments)
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.startswith("commsched: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


def run_json(*arguments):
    """Run a command with ``--json``; return the only thing that it prints, one JSON object."""
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert isinstance(document, dict)
    return document

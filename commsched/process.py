"""The command line as a process: what it prints where, its exit codes, and no tracebacks.

Exit codes: 0 a plan was found or holds, 2 the input is at fault (one line says how), 3 infeasible, 4 the
limit was reached without a plan, 70 a bug of ours.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import warnings
from typing import Any, NoReturn

import typer

from commsched.cli import EXIT_INTERRUPTED
from commsched.documents import json_bytes
from commsched.models.errors import CommschedError, CommschedWarning, InputError, SolverError
from commsched.optimizer import Comparison

EXIT_INPUT, EXIT_INFEASIBLE, EXIT_LIMIT, EXIT_BUG = 2, 3, 4, 70
OUTPUTS = ("-o", "--out", "--picture")


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # JSON is, whatever the terminal is
    sys.stdout.write(json_bytes(document).decode())


def print_csv(comparison: Comparison) -> None:
    """Print a comparison's table as CSV on standard output."""
    records = comparison.records()
    writer = csv.DictWriter(sys.stdout, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def run(app: typer.Typer, arguments: list[str] | None) -> NoReturn:
    """Run an application and exit; whatever goes wrong on purpose is one line on standard error."""
    nowhere = _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        if nowhere:
            raise InputError("cannot write: standard output is closed")
        _check_arguments(sys.argv[1:] if arguments is None else arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = command.main(args=arguments, prog_name="commsched", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _fail(error.format_message(), EXIT_INPUT)
    except typer.Abort:
        _fail("interrupted", EXIT_INTERRUPTED)
    except SolverError as error:
        _fail(f"internal error, please report it: {error}", EXIT_BUG)
    except (CommschedError, CommschedWarning) as error:
        _fail(str(error), EXIT_INPUT)
    except OSError as error:
        # Nothing more can be printed; without this the interpreter would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        _fail(f"cannot write: {error.strerror or error}", EXIT_INPUT)
    if code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this code and says nothing
        _fail("interrupted", EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _open_missing_streams() -> bool:
    """Open streams that lead nowhere where the process got none; return whether output is lost.

    A closed descriptor would go to the next file that is opened, and ``sys`` has None in its place.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the least free number, which is this one
    nowhere = sys.stdout is None
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the whole process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return nowhere


def _check_arguments(arguments: list[str]) -> None:
    """Refuse what no command means: an empty argument, and ``-`` where it is no standard input."""
    read = 0
    for number, (before, text) in enumerate(zip(["", *arguments], arguments, strict=False), 1):
        option, _, value = text.partition("=") if text.startswith("--") else (before, "", text)
        if number > 1 and (not text or text == f"{option}="):
            after = f" (after {before})" if before.startswith("-") else ""
            raise InputError(f"argument {number}{after} is empty: is a variable not set?")
        if text == "-o-" or (value == "-" and option in OUTPUTS):
            raise InputError("'-' is standard input, not a file to write: name the file")
        read += value == "-"
    if read > 1:
        raise InputError("'-' is given twice, but standard input can be read only once")


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    sys.stderr.write(f"commsched: {line}\n")
    sys.exit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"commsched: warning: {message}\n")

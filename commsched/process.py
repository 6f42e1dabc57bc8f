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

from commsched.documents import json_bytes
from commsched.models.errors import CommschedError, CommschedWarning, SolverError
from commsched.optimizer import Comparison

EXIT_INPUT, EXIT_INFEASIBLE, EXIT_LIMIT, EXIT_BUG = 2, 3, 4, 70


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = command.main(args=arguments, prog_name="commsched", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _fail(error.format_message(), EXIT_INPUT)
    except typer.Abort:
        _fail("interrupted", 130)
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
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    sys.stderr.write(f"commsched: {line}\n")
    sys.exit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"commsched: warning: {message}\n")

"""Writes docs/cli.md, the reference of the command line, from the application itself.

Run ``python docs/make/cli_page.py``; with ``--check`` nothing is written and the exit code says whether
the page is what the application says now.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from commsched.app import app

PAGE = Path(__file__).resolve().parents[1] / "cli.md"
Command = TyperCommand | TyperGroup
Parameter = TyperOption | TyperArgument
HEAD = """# Command line

Made from the application by `docs/make/cli_page.py`; a test checks that it is current.

Results go to standard output, messages to standard error; `--json` prints one JSON object and nothing
else. Exit codes: 0 a plan was found or holds, 2 the input is at fault (one line says how), 3 infeasible,
4 the limit was reached without a plan, 70 a bug of ours, 130 interrupted.

`FILE` is a [problem file](formats.md) or [a recording](recordings.md) of any kind that is known, found
by content.
"""
READING = "Reading FILE"


def commands(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    """Yield every command with its full name, groups before what is in them."""
    if name != "commsched":
        yield name, command
    if isinstance(command, TyperGroup):
        for part, one in command.commands.items():
            if not one.hidden:
                yield from commands(cast(Command, one), f"{name} {part}")


def parameters(command: Command) -> list[Parameter]:
    """Return a command's arguments and options."""
    return cast(list[Parameter], command.params)


def is_argument(parameter: Parameter) -> bool:
    """Say whether a parameter has a place instead of a name."""
    return isinstance(parameter, TyperArgument)


def usage(name: str, command: Command) -> str:
    """Return a command in a line: its arguments and what must be given."""
    words = [name]
    if isinstance(command, TyperGroup):
        return f"{name} COMMAND"
    for parameter in parameters(command):
        if is_argument(parameter):
            word = metavar(parameter)
            words.append(word if parameter.required else f"[{word}]")
    for parameter in parameters(command):
        if not is_argument(parameter) and parameter.required:
            words.append(f"{parameter.opts[0]} {metavar(parameter)}")
    return " ".join([*words, "[OPTIONS]"])


def metavar(parameter: Parameter) -> str:
    """Return what stands for a parameter's value."""
    if parameter.metavar:
        return str(parameter.metavar)
    if is_argument(parameter):
        return str(parameter.name).upper()
    kinds = {"int": "N", "float": "NUMBER", "Path": "FILE"}
    return kinds.get(parameter.bare_type(), "TEXT")


def cell(text: str) -> str:
    """Return a text that does not end its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def row(parameter: Parameter) -> str:
    """Return a parameter's row."""
    if is_argument(parameter):
        name = f"`{metavar(parameter)}`"
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        value = (
            ""
            if isinstance(parameter, TyperOption) and parameter.is_flag
            else f" {metavar(parameter)}"
        )
        name = ", ".join(f"`{one}{value}`" for one in names)
    text = cell(parameter.help or "")
    default = parameter.default
    plain = isinstance(default, int | float | str) and not isinstance(default, bool)
    if plain and default != "" and not parameter.required:
        text += f" Default: {default}."
    if parameter.required and not is_argument(parameter):
        text += " Required."
    return f"| {name.replace('|', chr(92) + '|')} | {text} |"


def page() -> str:
    """Return the page's text."""
    found = [*commands(cast(Command, typer.main.get_command(app)), "commsched")]
    tables: dict[str, list[str]] = {
        name: [row(one) for one in parameters(command) if one.name != "help"]
        for name, command in found
    }
    # What several commands say of reading a file is said once.
    counts: dict[str, int] = {}
    for rows in tables.values():
        for one in rows:
            counts[one] = counts.get(one, 0) + 1
    shared = [one for one, count in counts.items() if count >= 4 and "`--json`" not in one]
    parts = [HEAD]
    parts.append("| command | what it does |\n| --- | --- |")
    for name, command in found:
        anchor = name.replace(" ", "-")
        parts[-1] += f"\n| [`{name}`](#{anchor}) | {cell(command.help or '').rstrip('.')} |"
    for name, command in found:
        parts.append(f"## {name}\n\n{' '.join((command.help or '').split())}\n")
        parts[-1] += f"\n    {usage(name, command)}\n"
        own = [one for one in tables[name] if one not in shared]
        if own:
            parts[-1] += "\n| argument or option | meaning |\n| --- | --- |\n" + "\n".join(own)
        if sum(one in shared for one in tables[name]) > 3:
            parts[-1] += f"\n\nAnd the options of [{READING.lower()}](#reading-file)."
    parts.append(
        f"## {READING}\n\nThe argument and the options that all commands share which read a step.\n\n"
        "| argument or option | meaning |\n| --- | --- |\n" + "\n".join(shared)
    )
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description="write docs/cli.md")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it differs")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/cli.md is not current: run python docs/make/cli_page.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

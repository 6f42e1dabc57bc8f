"""Runs every example in README.md and docs/: Python blocks, and console blocks with their output.

A ``python`` block is executed; the blocks of a page share their names. In a ``console`` block each line
that begins with ``$ `` is run by the shell in the project's folder, and what follows up to the next
command must be exactly what it prints. ``sh`` blocks (``make demo``) are run by CI itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list:
    """Return the blocks of a language as test parameters."""
    found = []
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if match[1] == language:
                line = page.read_text(encoding="utf-8")[: match.start()].count("\n") + 1
                name = f"{page.relative_to(ROOT)}:{line}"
                found.append(pytest.param(page, match[2], id=name))
    return found


NAMES: dict[Path, dict[str, object]] = {}


@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_block_runs(page, code):
    """The block runs; its asserts hold."""
    exec(compile(code, str(page), "exec"), NAMES.setdefault(page, {}))


@pytest.mark.parametrize(("page", "text"), blocks("console"))
def test_console_block_prints_what_it_says(page, text):
    """Each command prints exactly what stands under it."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    environment.pop("COLUMNS", None)
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not commands[0].strip(), "a console block begins with a command"
    for entry in commands[1:]:
        command, _, expected = entry.partition("\n")
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True
        )
        lines = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
        assert lines == [line.rstrip() for line in expected.splitlines()], command


def test_there_are_examples():
    """The README shows a library call and a command."""
    assert any(parameter.values[0].name == "README.md" for parameter in blocks("python"))
    assert any(parameter.values[0].name == "README.md" for parameter in blocks("console"))

"""The tests themselves: their names are the same in every process, as pytest-xdist needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def collected(hash_seed: str) -> list[str]:
    """Return the names that a fresh process collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_names_depend_neither_on_the_time_nor_on_the_order_of_sets():
    """The two processes run one after the other and hash differently."""
    first = collected("1")
    assert len(first) > 1000
    assert first == collected("2")

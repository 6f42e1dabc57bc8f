"""Where the golden files are: in the folder ``shared`` beside the checkout, if it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def golden(name: str) -> Any:
    """Return the content of a golden file; skip the test where there is none."""
    path = SHARED / "golden" / name
    if not path.is_file():
        pytest.skip(f"../shared/golden/{name} is not there")
    return json.loads(path.read_text(encoding="utf-8"))

"""Where the real files are: in the folder ``shared`` beside the checkout, if it is there.

Another place can be named in the environment variable ``COMMSCHED_SHARED``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(
    os.environ.get("COMMSCHED_SHARED") or Path(__file__).resolve().parents[1].parent / "shared"
)


def shared_data(name: str) -> Path:
    """Return the path of a real file; skip the test where it is not there."""
    return _there(f"data/{name}")


def golden(name: str) -> Any:
    """Return the content of a golden file; skip the test where there is none."""
    return json.loads(_there(f"golden/{name}").read_text(encoding="utf-8"))


def _there(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/{name} is not there")
    return path

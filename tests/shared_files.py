"""Where the real files are: in the folder ``shared`` beside the checkout, if it is there.

Another place can be named in the environment variable ``COMMSCHED_SHARED``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("COMMSCHED_SHARED") or Path(__file__).resolve().parents[1].parent / "shared"
)


def shared_data(name: str) -> Path:
    """Return the path of a real file; skip the test where it is not there."""
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is not there")
    return path

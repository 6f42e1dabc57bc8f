"""What all tests share."""

from __future__ import annotations


def pytest_make_parametrize_id(config, val, argname):
    """Name bytes by their argument: their content may differ between two runs.

    Compressed data hold the time at which they were made, and then two workers of pytest-xdist
    collect different tests.
    """
    return argname if isinstance(val, bytes | bytearray) else None

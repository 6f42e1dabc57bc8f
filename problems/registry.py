"""The list of readers: a new kind of recording is one module and one line here."""

from __future__ import annotations

from commsched.problems import profiler_reader
from commsched.problems.readers import Reader

READERS: tuple[Reader, ...] = (profiler_reader.READER,)
"""In the order in which they are asked whether a file is theirs; the first that says yes reads it."""

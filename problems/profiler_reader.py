"""PyTorch profiler traces behind the one door: the files of one rank or of several."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commsched.models.errors import InputError
from commsched.problems.profiler_trace import read_profiler_trace
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Recording
from commsched.problems.source import Source

_MARK = re.compile(rb'"(traceEvents|ph)"')
_OURS = re.compile(rb'"format"\s*+:\s*+"commsched/')


def recognises(start: bytes) -> bool:
    """Return whether a file is a Chrome trace, as the profiler writes them."""
    return bool(_MARK.search(start)) and not _OURS.search(start)


def read(files: Sequence[Source], options: ReadOptions) -> Recording:
    """Read one step of a job.

    Raises
    ------
    InputError
        If a trace cannot be read, or holds no step that can be planned.
    """
    if len(files) > 1:
        raise InputError(f"{files[0].path}: holds several traces")
    return read_profiler_trace(files[0].path, step=options.step, sizes=options.sizes)


READER = Reader(
    title="PyTorch profiler trace",
    recognises=recognises,
    read=read,
    options=frozenset({"step", "sizes", "graph"}),
    several=True,
)

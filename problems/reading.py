"""One door for every kind of file: the kind is found by content, never by the file's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from commsched.models import CostCurve, GradientProblem, Problem
from commsched.models.errors import InputError
from commsched.problems.files import read_bytes
from commsched.problems.problem_file import problem_from_bytes
from commsched.problems.profiler_trace import read_profiler_trace
from commsched.problems.recorded import RecordedStep

GZIP_MAGIC = b"\x1f\x8b"
_SNIFFED_BYTES = 1 << 20
_TRACE_MARK = re.compile(rb'"(traceEvents|ph)"')
_OUR_FORMAT = re.compile(rb'"format"\s*+:\s*+"commsched/')


@dataclass(frozen=True)
class Loaded:
    """A problem and, where it comes from a recording, what was recorded."""

    problem: Problem
    recorded: RecordedStep | None = None


def load(
    path: str | Path,
    *,
    cost: CostCurve | None = None,
    step: int | None = None,
    sizes: str | Path | None = None,
) -> Loaded:
    """Read a problem file or a PyTorch profiler trace of a DDP step.

    Parameters
    ----------
    path
        The file; ``-`` means a problem file on standard input.
    cost
        What an all-reduce costs. A trace needs it, for durations in a trace include waiting; in
        the simplest problem file it replaces the file's own cost.
    step
        The trace's step to take, by its number; by default the one of median length.
    sizes
        A PyTorch execution trace with the gradients' shapes, for a trace without them.

    Raises
    ------
    InputError
        If the file is neither, something in it is wrong, or an option does not fit it.
    """
    if _is_trace(path):
        if cost is None:
            raise InputError(
                f"{path}: is a trace; say what the network costs: --alpha-us and "
                "--bandwidth-gb-s, or --costs FILE"
            )
        recorded = read_profiler_trace(
            Path(path), step=step, sizes=None if sizes is None else Path(sizes)
        )
        return Loaded(recorded.problem(cost), recorded)
    if step is not None or sizes is not None:
        raise InputError(f"{path}: is no trace; a step and sizes are options of traces")
    problem = problem_from_bytes(read_bytes(path), path)
    if cost is None:
        return Loaded(problem)
    if not isinstance(problem, GradientProblem):
        raise InputError(f"{path}: has a cost for each group and kind, which no flag can replace")
    return Loaded(
        GradientProblem(
            problem.gradients or (),
            cost,
            name=problem.name,
            backward_end_ns=problem.backward_end_ns,
        )
    )


def read(
    path: str | Path,
    *,
    cost: CostCurve | None = None,
    step: int | None = None,
    sizes: str | Path | None = None,
) -> Problem:
    """Read a problem; the parameters and errors are those of :func:`load`."""
    return load(path, cost=cost, step=step, sizes=sizes).problem


def _is_trace(path: str | Path) -> bool:
    """Return whether a file is a trace; a pipe is not looked into, for it can be read only once."""
    try:
        if str(path) == "-" or not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            start = file.read(_SNIFFED_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if start.startswith(GZIP_MAGIC):
        return True
    return bool(_TRACE_MARK.search(start)) and not _OUR_FORMAT.search(start)

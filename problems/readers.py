"""What a reader of recordings is: how it recognises its files, and what it may be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched.problems.recorded import Recording
from commsched.problems.sources.source import Source


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user may say about a recording; None or empty is nothing said.

    Attributes
    ----------
    member
        Of a folder or an archive only the files with this name (``*`` and ``?`` stand for any
        characters and any one), or whose path ends with it.
    step
        The step to take, by the recording's own number.
    sizes
        Another file with the gradients' sizes.
    graph
        Whether to take the whole step as a graph, also where it is plain DDP.
    tokens
        Tokens that each rank processes in a step, for estimates.
    tflops
        Throughput of one rank in 1e12 operations a second, for estimates.
    backward_us
        Length of the backward pass in microseconds, for recordings without times.
    """

    member: str | None = None
    step: int | None = None
    sizes: Path | None = None
    graph: bool = False
    tokens: int | None = None
    tflops: float | None = None
    backward_us: float | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A way of reading one kind of file.

    Attributes
    ----------
    title
        What such a file is, for people: ``PyTorch profiler trace``.
    recognises
        Whether a file is of this kind, by the first MiB of its decompressed content.
    read
        Reads one step out of the files. Several files are one for each rank.
    options
        The fields of :class:`ReadOptions` that it uses; others are refused.
    several
        Whether it reads the files of several ranks together.
    """

    title: str
    recognises: Callable[[bytes], bool]
    read: Callable[[Sequence[Source], ReadOptions], Recording]
    options: frozenset[str] = frozenset()
    several: bool = False

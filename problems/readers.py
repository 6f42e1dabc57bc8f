"""The readers of recordings: which there are, and how each recognises its files by content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched.problems.recorded import Recording
from commsched.problems.source import Source


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user may say about a recording; None or empty is nothing said.

    Attributes
    ----------
    step
        The step to take, by the recording's own number.
    sizes
        Another file with the gradients' sizes.
    tokens
        Tokens that each rank processes in a step, for estimates.
    tflops
        Throughput of one rank in 1e12 operations a second, for estimates.
    """

    step: int | None = None
    sizes: Path | None = None
    tokens: int | None = None
    tflops: float | None = None


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

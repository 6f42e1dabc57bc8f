"""Sizes of collectives for recordings without any, from another recording of the same run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched.models.collectives import KINDS, Kind, check_kind
from commsched.models.errors import InputError
from commsched.problems.breakdown.breakdown import Activity, Sort
from commsched.problems.breakdown.breakdown_trace import read_device_work
from commsched.problems.execution.execution_collectives import read_collectives
from commsched.problems.execution.execution_steps import recognises as is_execution_trace
from commsched.problems.sources.source import Source


@dataclass(frozen=True, slots=True)
class SizedCollective:
    """A collective of the other recording; ``dtype`` and ``group`` are empty if not recorded."""

    kind: Kind
    bytes: int
    dtype: str = ""
    group: str = ""
    ranks: int | None = None


def sized_collectives(path: Path) -> list[SizedCollective]:
    """Return the collectives of a PyTorch execution trace or profiler trace, in order of issue.

    Parameters
    ----------
    path
        The other recording, of one rank.

    Raises
    ------
    InputError
        If it cannot be read, or a collective in it has no size.
    """
    source = Source(path)
    if is_execution_trace(source.start()):
        found = [
            (one.kind, one.bytes, one.dtype or "", one.group or "", one.ranks)
            for one in read_collectives(path)
        ]
    else:
        runs = sorted(
            (
                activity
                for work in read_device_work(source)
                for activity in work.activities
                if activity.sort is Sort.COLLECTIVE
            ),
            key=_issued,
        )
        found = [(_kind(path, run), run.bytes, "", "", None) for run in runs]
    sized = [
        SizedCollective(kind, size, dtype, group, ranks)
        for kind, size, dtype, group, ranks in found
        if size is not None
    ]
    if len(sized) < len(found):
        raise InputError(
            f"{path}: {len(found) - len(sized)} of {len(found)} collectives have no size: "
            "record it with record_shapes=True"
        )
    return sized


def _issued(run: Activity) -> tuple[int, int]:
    return (run.start if run.launched is None else run.launched, run.start)


def _kind(path: Path, run: Activity) -> Kind:
    if run.kind not in KINDS:
        raise InputError(f"{path}: a collective's kind is {run.kind or 'not recorded'}")
    return check_kind(run.kind, "kind")


def match(
    kinds: Sequence[Kind | None], sizes: Sequence[SizedCollective], what: str, other: str
) -> None:
    """Check that two recordings have the same collectives in the same order.

    Parameters
    ----------
    kinds
        The kinds of the collectives without sizes; None where a kind is not recorded.
    sizes
        The other recording's.
    what, other
        The files' names, for messages.

    Raises
    ------
    InputError
        If their numbers or kinds differ.
    """
    if len(kinds) != len(sizes):
        theirs = Counter(one.kind for one in sizes)
        listed = ", ".join(f"{count} {kind}" for kind, count in theirs.items()) or "none"
        raise InputError(
            f"{other}: has {len(sizes)} collectives ({listed}), {what} has {len(kinds)} on a "
            "device: they do not cover the same steps of the same run"
        )
    for k, (kind, one) in enumerate(zip(kinds, sizes, strict=True)):
        if kind is not None and kind != one.kind:
            raise InputError(
                f"{other}: collective {k} is {one.kind}, in {what} it is {kind}: "
                "they are of different runs"
            )

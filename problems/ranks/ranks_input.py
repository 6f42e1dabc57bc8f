"""What a merge of ranks starts from: a recording of each rank, and the rank's number."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from commsched.models.collectives import MAX_RANKS
from commsched.models.errors import InputError
from commsched.problems.recorded import Recording

_NAMED = re.compile(r"(?:rank|worker|proc(?:ess)?|gpu|device)[-_.=\[ ]{0,2}(\d{1,8})(?!\d)", re.I)
_LAST = re.compile(r"(?:^|[-_.])(\d{1,5})(?:\.[a-z]\w*)*$", re.I)
MAX_RECORDINGS = 4096
"""The most ranks that one merge takes."""


@dataclass(frozen=True, slots=True)
class RankRecording:
    """The recording of one rank of a job.

    Attributes
    ----------
    rank
        The rank's number as the recording says it; None if it does not.
    recording
        One step of it, the same on every rank.
    origin_ns
        When the recording's time zero was on a clock that the ranks share, in nanoseconds; None
        if that is not known.
    source
        Where it came from, for people: ``job.tar.gz: rank3.json``.
    members
        The ranks of each process group, by its name, where known.
    """

    rank: int | None
    recording: Recording
    origin_ns: int | None
    source: str
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The rank's number; only for what :func:`number_ranks` returned."""
        assert self.rank is not None
        return self.rank


def number_ranks(recordings: Sequence[RankRecording]) -> tuple[list[RankRecording], list[str]]:
    """Give every recording a number, and return them by it with sentences on how.

    A rank's number is the one that its recording says, else the one that its file's name says
    (``rank3``, ``worker0``, ``_3.json``), else its position in the list.

    Raises
    ------
    InputError
        If two recordings claim one rank, or a number is out of range.

    Examples
    --------
    >>> from commsched.problems.ranks.ranks_input import rank_in_name
    >>> rank_in_name("job.tar.gz: job/worker7_step_12.169.pt.trace.json"), rank_in_name("t_3.json")
    (7, 3)
    """
    for one in recordings:
        if one.rank is not None and (type(one.rank) is not int or not 0 <= one.rank < MAX_RANKS):
            raise InputError(
                f"{one.source}: rank {one.rank!r:.100} must be a whole number "
                f"from 0 to {MAX_RANKS - 1}"
            )
    numbers = [one.rank for one in recordings]
    notes = []
    for find, sure in ((_named, True), (_last, False)):
        found = [
            find(o.source) if n is None else n for o, n in zip(recordings, numbers, strict=True)
        ]
        # A number at the end of a name may be anything: it counts only where it tells ranks apart.
        told = [n for n in found if n is not None]
        if found != numbers and (sure or len(set(told)) == len(recordings)):
            notes.append("the ranks' numbers are those in the names of the files")
            numbers = found
    _refuse_twice(recordings, numbers)
    if None in numbers:
        notes.append("recordings that do not say their rank are numbered by their position")
        free = iter(sorted(set(range(len(numbers))) - {n for n in numbers if n is not None}))
        numbers = [next(free) if n is None else n for n in numbers]
    ranks = [replace(one, rank=n) for one, n in zip(recordings, numbers, strict=True)]
    return sorted(ranks, key=lambda one: one.number), list(dict.fromkeys(notes))


def rank_in_name(source: str) -> int | None:
    """Return the rank's number that a file's name says; None if it says none."""
    named = _named(source)
    return _last(source) if named is None else named


def _named(source: str) -> int | None:
    found = _NAMED.findall(source)
    return int(found[-1]) if found and int(found[-1]) < MAX_RANKS else None


def _last(source: str) -> int | None:
    name = re.split(r"[\\/]|: ", source[-1000:])[-1]
    found = _LAST.search(name)
    return int(found.group(1)) if found else None


def _refuse_twice(recordings: Sequence[RankRecording], numbers: Sequence[int | None]) -> None:
    first: dict[int, str] = {}
    for one, number in zip(recordings, numbers, strict=True):
        if number is None:
            continue
        if number in first:
            raise InputError(
                f"{one.source}: rank {number} was already read from {first[number]}: "
                "each rank's recording is needed once"
            )
        first[number] = one.source


def title(ranks: Sequence[RankRecording]) -> str:
    """Return what the recordings are together, for people.

    Examples
    --------
    >>> from types import SimpleNamespace as Rank
    >>> title([Rank(source="a/dlrm.tar.gz: r0.json"), Rank(source="a/dlrm.tar.gz: r1.json")])
    '2 ranks of dlrm.tar.gz'
    >>> title([Rank(source="a/rank10.json"), Rank(source="a/rank11.json")])
    '2 ranks of rank*.json'
    """
    files = sorted({one.source.partition(": ")[0] for one in ranks})
    names = {re.sub(r"\d+", "*", PurePath(file).name) for file in files}
    if len(files) == 1:
        whole = PurePath(files[0]).name
    elif len(names) == 1:
        whole = names.pop()
    else:
        whole = f"{PurePath(ranks[0].source.partition(': ')[0]).name} and others"
    return f"{len(ranks)} ranks of {whole}"


def numbers_text(numbers: Sequence[int]) -> str:
    """Return ranks for people, with their noun.

    Examples
    --------
    >>> numbers_text([3]), numbers_text([0, 1, 2, 5])
    ('rank 3', 'ranks 0-2, 5')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs]
    shown = ", ".join(parts[:20]) + (", ..." if len(parts) > 20 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


def same_step(ranks: Sequence[RankRecording]) -> tuple[list[RankRecording], dict[int, str]]:
    """Return the ranks that recorded the step that most of them did, and why not the others.

    Raises
    ------
    InputError
        If no two recordings are of the same step.
    """
    by_step: defaultdict[str, list[RankRecording]] = defaultdict(list)
    for one in ranks:
        by_step[one.recording.step_name].append(one)
    if len(by_step) == 1:
        return list(ranks), {}
    counts = Counter({step: len(found) for step, found in by_step.items()})
    most = max(counts.values())
    steps = [step for step in by_step if counts[step] == most]  # In the order of the ranks.
    if most == 1:
        a, b = by_step[steps[0]][0], by_step[steps[1]][0]
        raise InputError(
            f"{b.source}: rank {b.rank} has {steps[1]}, but rank {a.rank} has {steps[0]}: "
            "choose a step that all ranks recorded"
        )
    why = {
        one.number: f"its step is {one.recording.step_name}, not {steps[0]}"
        for one in ranks
        if one.recording.step_name != steps[0]
    }
    return by_step[steps[0]], why

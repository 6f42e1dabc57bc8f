"""One door for every kind of file: the kind is found by content, never by the file's name."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path

from commsched.models import CostCurve, Problem
from commsched.models.errors import InputError
from commsched.models.given import given
from commsched.problems.files import MAX_FILE_BYTES
from commsched.problems.network import Network
from commsched.problems.problem_file import problem_and_notes
from commsched.problems.read_progress import Tell, counted
from commsched.problems.readers import Reader, ReadOptions
from commsched.problems.recorded import Recording
from commsched.problems.registry import READERS
from commsched.problems.sources.source import Source, sources

NO_OPTIONS = ReadOptions()


@dataclass(frozen=True)
class Loaded:
    """A problem and, where it comes from a recording, what was recorded.

    Attributes
    ----------
    problem
        The problem.
    recorded
        The recording; None if the problem was read from a problem file.
    notes
        What was taken for granted about the costs.
    """

    problem: Problem
    recorded: Recording | None = None
    notes: tuple[str, ...] = ()


def load(
    path: str | Path,
    *,
    cost: CostCurve | Network | None = None,
    options: ReadOptions = NO_OPTIONS,
    progress: Tell | None = None,
) -> Loaded:
    """Read a problem file, or a recording of any kind that is known.

    Parameters
    ----------
    path
        The file, a folder or an archive; ``-`` means a problem file on standard input.
    cost
        What launches cost. A recording needs it, for durations in a trace include waiting; in
        the simplest problem file it replaces the file's own cost. A curve stands for every kind
        of collective.
    options
        What to take from a recording.
    progress
        Called now and then with how many bytes were read, and of how many.

    Raises
    ------
    InputError
        If the file is of no known kind, something in it is wrong, or an option does not fit it.
    """
    network = Network.uniform(cost) if isinstance(cost, CostCurve) else cost
    if network is not None:
        given(network, Network, "cost")
    given(options, ReadOptions, "options")
    files = _files(path, options.member)
    found = _recognise(path, files)
    if found is None:
        return _load_problem(path, counted(files, progress)[0], network, options)
    reader, files, notes = found
    _check_options(path, reader, options)
    if network is None:
        raise InputError(
            f"{path}: is a {reader.title}; say what the network costs: --alpha-us and "
            "--bandwidth-gb-s, or --costs FILE"
        )
    recorded = reader.read(counted(files, progress), options)
    costs, more = network.costs(recorded.needs, str(path))
    try:
        return Loaded(recorded.with_costs(costs), recorded, (*notes, *more))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read(
    path: str | Path,
    *,
    cost: CostCurve | Network | None = None,
    options: ReadOptions = NO_OPTIONS,
) -> Problem:
    """Read a problem; the parameters and errors are those of :func:`load`."""
    return load(path, cost=cost, options=options).problem


def read_recording(
    path: str | Path, *, options: ReadOptions = NO_OPTIONS, progress: Tell | None = None
) -> Recording:
    """Read a recording without asking what the network costs; ``progress`` as for :func:`load`.

    Raises
    ------
    InputError
        If the file is no recording of a known kind, or something in it is wrong.
    """
    found = _recognise(path, _files(path, options.member))
    if found is None:
        known = "; ".join(reader.title for reader in READERS)
        raise InputError(
            f"{path}: is no recording of a kind that is known ({known}); "
            "'commsched fit' reads logs of benchmarks"
        )
    reader, files, notes = found
    _check_options(path, reader, options)
    recording = reader.read(counted(files, progress), options)
    if not notes:
        return recording
    report = recording.report
    report = replace(report, assumptions=(*notes, *report.assumptions))
    return replace(recording, report=report)


def is_recording(path: str | Path) -> bool:
    """Return whether a path holds a recording of a known kind; a pipe is not looked into.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    if str(path) == "-" or not (Path(path).is_file() or Path(path).is_dir()):
        return False
    return _recognise(path, _files(path, None)) is not None


def _files(path: str | Path, member: str | None) -> list[Source]:
    """Return what a path holds, or of that what the user names."""
    try:
        files = sources(path)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return files if member is None else _named(path, files, member)


def _recognise(
    path: str | Path, files: Sequence[Source]
) -> tuple[Reader, list[Source], tuple[str, ...]] | None:
    """Return the reader of some files, those that it reads, and notes; None if none knows them."""
    by_reader: dict[str, list[Source]] = {}
    readers: dict[str, Reader] = {}
    unknown: list[Source] = []
    for file in files:
        start = file.start()
        reader = next((reader for reader in READERS if reader.recognises(start)), None)
        if reader is None:
            unknown.append(file)
        else:
            readers[reader.title] = reader
            by_reader.setdefault(reader.title, []).append(file)
    if not readers:
        if len(files) == 1:
            return None
        known = "; ".join(reader.title for reader in READERS)
        raise InputError(
            f"{path}: none of its {len(files)} files is of a kind that is known ({known})"
        )
    counts = Counter({title: len(found) for title, found in by_reader.items()})
    title, count = counts.most_common(1)[0]
    if len(readers) > 1 or (count > 1 and not readers[title].several):
        have = ", ".join(f"{n} x {one}" for one, n in counts.most_common())
        raise InputError(
            f"{path}: holds several recordings ({have}): name one of them with --member, "
            f"such as {by_reader[title][0].name}"
        )
    notes: tuple[str, ...] = ()
    if unknown:
        shown = ", ".join(file.name for file in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        notes = (f"not read, of no known kind: {shown}{more}",)
    return readers[title], by_reader[title], notes


def _named(path: str | Path, files: list[Source], member: str) -> list[Source]:
    """Return the files that a user names."""
    found = [file for file in files if member in (file.name, file.member)]
    found = found or [file for file in files if fnmatchcase(file.name, member)]
    found = found or [file for file in files if f"{file}".endswith(f"/{member}")]
    if not found:
        names = ", ".join(file.name for file in files[:4])
        more = f" and {len(files) - 4} more" if len(files) > 4 else ""
        raise InputError(f"{path}: holds no {member!r:.100}, but {names}{more}")
    return found


def _check_options(path: str | Path, reader: Reader | None, options: ReadOptions) -> None:
    """Refuse options that the reader would not look at."""
    for field in fields(options):
        given = getattr(options, field.name) != field.default and field.name != "member"
        if given and (reader is None or field.name not in reader.options):
            what = "problem file" if reader is None else reader.title
            raise InputError(
                f"{path}: is a {what}, for which --{field.name.replace('_', '-')} says nothing"
            )


def _load_problem(
    path: str | Path, file: Source, network: Network | None, options: ReadOptions
) -> Loaded:
    data = file.read(max_text_bytes=MAX_FILE_BYTES, max_file_bytes=MAX_FILE_BYTES)
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise InputError(f"{path}: is empty")
    if data.lstrip()[:1] not in (b"{", b"["):
        known = "; ".join(reader.title for reader in READERS)
        raise InputError(
            f"{path}: is neither a problem file nor a recording of a kind that is known ({known})"
        )
    problem, notes = problem_and_notes(data, str(file), network)
    _check_options(path, None, options)
    return Loaded(problem, notes=notes)

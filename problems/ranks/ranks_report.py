"""One import report for the recordings of several ranks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from commsched.models.units import format_ns
from commsched.problems.ranks.ranks_clock import Clock
from commsched.problems.ranks.ranks_gates import MOST_LINES, own_run
from commsched.problems.ranks.ranks_input import RankRecording, numbers_text, title
from commsched.problems.ranks.ranks_match import WAITING, Matched
from commsched.problems.recorded import Check, ImportReport

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def merge_reports(
    ranks: Sequence[RankRecording],
    kept: Sequence[RankRecording],
    assumptions: Iterable[str],
    checks: Iterable[Check],
    findings: Iterable[str],
) -> ImportReport:
    """Return the report of a merge.

    Parameters
    ----------
    ranks
        All ranks that were read.
    kept
        Those that were merged.
    assumptions, checks, findings
        What the merge itself has to say; it stands before what the ranks' own reports say.
    """
    used = {one.number for one in kept}
    counts, dropped = Counter[str](), Counter[str]()
    for one in kept:
        counts.update(one.recording.report.kept)
        dropped.update(one.recording.report.dropped)
    for one in ranks:
        if one.number not in used:
            dropped["events of ranks that were left out"] += one.recording.report.events_read
    return ImportReport(
        source=title(ranks),
        events_read=sum(one.recording.report.events_read for one in ranks),
        kept={"ranks": len(kept), **counts},
        dropped=+dropped,
        assumptions=(*assumptions, *_notes(kept)),
        checks=(*checks, *_checks(kept)),
        findings=tuple(findings),
    )


def _alike(texts: Iterable[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Gather sentences that differ in their numbers only."""
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for rank, text in texts:
        found[_NUMBER.sub("0", text)].append((rank, text))
    return list(found.values())


def _who(entries: Sequence[tuple[int, str]], ranks: int) -> str:
    """Return one sentence for some that differ in their numbers only."""
    numbers = list(dict.fromkeys(rank for rank, _ in entries))
    text = entries[0][1]
    if any(other != text for _, other in entries):
        text += f" (so on rank {numbers[0]}; elsewhere with other numbers)"
    return text if len(numbers) == ranks else f"{numbers_text(numbers)}: {text}"


def _notes(kept: Sequence[RankRecording]) -> list[str]:
    entries = [(one.number, note) for one in kept for note in one.recording.report.assumptions]
    return [_who(group, len(kept)) for group in _alike(entries)]


def _checks(kept: Sequence[RankRecording]) -> list[Check]:
    """Return the failed checks with their ranks, and the others once if they hold everywhere."""
    entries = [
        (one.number, check.text, check.passed)
        for one in kept
        for check in one.recording.report.checks
    ]
    failed = _alike((rank, text) for rank, text, passed in entries if not passed)
    checks = [Check(_failure(group), False) for group in failed]
    for group in _alike((rank, text) for rank, text, passed in entries if passed):
        if len({rank for rank, _ in group}) == len(kept):
            checks.append(Check(_who(group, len(kept)), True))
    return checks


def _failure(entries: Sequence[tuple[int, str]]) -> str:
    numbers = list(dict.fromkeys(rank for rank, _ in entries))
    text = entries[0][1]
    if any(other != text for _, other in entries):
        text += f" (so on rank {numbers[0]})"
    return f"{numbers_text(numbers)}: {text}"


def left_out_checks(why: Mapping[int, str]) -> list[Check]:
    """Return a failed check for each reason for which ranks were left out."""
    by_reason: defaultdict[str, list[int]] = defaultdict(list)
    for rank, reason in sorted(why.items()):
        by_reason[reason].append(rank)
    checks = [
        Check(f"{numbers_text(ranks)} left out: {reason}", False)
        for reason, ranks in by_reason.items()
    ]
    if len(checks) > MOST_LINES:
        rest = len(checks) - MOST_LINES
        checks[MOST_LINES:] = [Check(f"other ranks left out: for {rest} more reasons", False)]
    return checks


def clock_notes(clock: Clock, kept: Sequence[RankRecording]) -> list[str]:
    """Return what the common clock rests on."""
    late = [kept[k].number for k, zero in enumerate(clock.zeros_ns) if zero == 0]
    most = max(clock.zeros_ns)
    begin = f"time starts with the earliest rank's step ({numbers_text(late[:1])})" + (
        f"; the last one's starts {format_ns(most)} later" if most else ""
    )
    if not clock.collectives:
        how = "estimated from the steps' starts alone" if clock.estimated else "as recorded"
    elif clock.estimated:
        how = "estimated from the ends of the collectives"
    else:
        how = "as recorded"
    tail = f" ({clock.reason})" if clock.reason else ""
    notes = [f"the ranks' clocks are {how}{tail}; {begin}"]
    if clock.collectives:
        notes.append(
            f"the ends of a collective differ by {format_ns(clock.scatter_ns)} between ranks in "
            "the median: times across ranks are no more certain than that"
        )
    return notes


def clock_checks(clock: Clock, kept: Sequence[RankRecording]) -> list[Check]:
    """Return what speaks for and against the common clock."""
    checks = [
        Check(
            f"collectives that ran on all their ranks at once: {clock.overlapping} of "
            f"{clock.collectives}",
            clock.overlapping == clock.collectives > 0,
        )
    ]
    if clock.unlinked:
        numbers = [kept[k].number for k in clock.unlinked]
        checks.append(
            Check(
                f"the clock of {numbers_text(numbers)} cannot be told: no timed collective is "
                f"shared with rank {kept[0].rank}",
                False,
            )
        )
    return checks


def run_notes(found: Sequence[Matched], zeros: Mapping[int, int]) -> list[str]:
    """Return how the collectives' own durations were found."""
    if not found:
        return []
    notes = [
        "a collective's own duration is its first end minus its last start over the ranks: it "
        "leaves out waiting for the slowest rank"
    ]
    runs = [(matched, own_run(matched, zeros)) for matched in found]
    shortest = sum(run.ranks > 0 and not run.by_overlap for _, run in runs)
    if shortest:
        free = sum(
            run.ranks > 0 and not run.by_overlap and m.kind not in WAITING for m, run in runs
        )
        notes.append(
            f"{shortest} collectives have no such time ({free} of them of kinds that need not wait "
            "for all ranks): they last as long as on the rank where they were shortest"
        )
    busiest = sum(len({launch.bytes for launch in m.launches.values()}) > 1 for m in found)
    if busiest:
        notes.append(f"{busiest} all-to-alls differ in bytes: they have those of the busiest rank")
    return notes


def run_checks(found: Sequence[Matched]) -> list[Check]:
    """Return whether every rank recorded when its collectives ran."""
    timed = sum(all(launch.start_ns is not None for launch in m.launches.values()) for m in found)
    if timed == len(found):
        return []
    return [Check(f"launches timed on all their ranks: {timed} of {len(found)}", False)]


def count_check(kept: int, ranks: int | None) -> list[Check]:
    """Return whether all ranks of the job were merged, if it is known how many it has."""
    if ranks is None:
        return []
    text = f"ranks merged: {kept} of {ranks}"
    if kept < ranks:
        text += ": a rank that is not there may gate launches"
    elif kept > ranks:
        text += ": they are of several groups, which need not wait for each other"
    return [Check(text, kept == ranks)]

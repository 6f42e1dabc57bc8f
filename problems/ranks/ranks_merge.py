"""Several ranks of one job, merged into one recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commsched.models.collectives import Kind
from commsched.models.errors import InputError
from commsched.problems.ranks.ranks_graph import MOST_TASKS, merge_graphs
from commsched.problems.ranks.ranks_input import (
    MAX_RECORDINGS,
    RankRecording,
    number_ranks,
    same_step,
)
from commsched.problems.ranks.ranks_step import merge_steps
from commsched.problems.recorded import RecordedStep, Recording


class OwnDuration(NamedTuple):
    """How long a collective takes once all its ranks are in it.

    Attributes
    ----------
    kind, group
        Its kind and process group.
    bytes
        Its size in bytes.
    duration_ns
        In nanoseconds.
    """

    kind: Kind
    group: str
    bytes: int
    duration_ns: int


def own_durations(merged: Recording) -> list[OwnDuration]:
    """Return the collectives' durations without waiting, for fitting costs.

    Parameters
    ----------
    merged
        What :func:`merge_ranks` returned for several ranks: a single rank's launches include
        its waiting for the others, which no curve describes.
    """
    return [
        OwnDuration(launch.kind, launch.group, launch.bytes, launch.end_ns - launch.start_ns)
        for launch in merged.launches
        if launch.start_ns is not None and launch.end_ns is not None
    ]


def merge_ranks(recordings: Sequence[RankRecording], *, most_tasks: int = MOST_TASKS) -> Recording:
    """Return one recording for those of several ranks of a job.

    Times are on one clock and start with the earliest rank's step. A launch is issued when its
    last rank has issued it, and runs from its last start to its first end. A gradient is ready
    when its last rank has it; a graph holds the compute tasks of all its ranks (see
    :mod:`commsched.problems.ranks.ranks_join`), or where the ranks' collectives differ, as between
    stages of a pipeline, those of the rank that gates most. Ranks that do not fit the most of
    them are left out, and the report's checks say so. One recording alone is returned as it is.

    Parameters
    ----------
    recordings
        At least one, in any order, all of one form and of the same step.
    most_tasks
        The most tasks of a merged graph.

    Raises
    ------
    InputError
        If there is none, forms are mixed, two are of one rank, or no two fit each other.
    """
    if not recordings:
        raise InputError("ranks: no recording given, at least 1 needed")
    if len(recordings) > MAX_RECORDINGS:
        raise InputError(
            f"ranks: {len(recordings)} recordings given, at most {MAX_RECORDINGS} allowed"
        )
    if len(recordings) == 1:
        return recordings[0].recording
    ranks, notes = number_ranks(recordings)
    steps = [isinstance(one.recording, RecordedStep) for one in ranks]
    if any(steps) and not all(steps):
        graph, step = ranks[steps.index(False)], ranks[steps.index(True)]
        raise InputError(
            f"{graph.source}: rank {graph.rank} is a graph of tasks, but rank {step.rank} is a "
            "list of gradients: only recordings of one form can be merged"
        )
    of_step, why = same_step(ranks)
    if all(steps):
        return merge_steps(ranks, of_step, why, notes)
    return merge_graphs(ranks, of_step, why, notes, most_tasks)

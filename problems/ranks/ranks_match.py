"""Which ranks of a job recorded the same step, and which of their launches are one collective."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from commsched.models.collectives import Kind
from commsched.models.step import Collective, Gradient
from commsched.problems.ranks.ranks_input import RankRecording
from commsched.problems.recorded import RecordedGraph, RecordedLaunch, RecordedStep

WAITING: frozenset[Kind] = frozenset({"allreduce", "reduce_scatter", "all_gather", "all_to_all"})
"""Kinds that end on no rank before they have begun on all; a broadcast's root need not wait."""

_Call = tuple[str, str, int]
_Calls = dict[str, tuple[_Call, ...]]


@dataclass(frozen=True, slots=True)
class Matched:
    """One collective as its ranks recorded it.

    Attributes
    ----------
    group
        The name of its process group.
    launches
        The rank's number -> its launch.
    positions
        The rank's number -> the position of the launch in its recording.
    """

    group: str
    launches: Mapping[int, RecordedLaunch]
    positions: Mapping[int, int]

    @property
    def kind(self) -> Kind:
        """The kind, the same on all ranks."""
        return next(iter(self.launches.values())).kind


def alike(ranks: Sequence[RankRecording]) -> list[list[RankRecording]]:
    """Return the ranks by what they recorded, those with the same collectives together.

    Ranks are alike if each of their groups has the same members, as far as they are known, and
    the same sequence of launches (kind, dtype and bytes; an all-to-all's bytes may differ), and
    for gradients if each launch holds as many of each size. Classes are in the order of their
    first ranks.
    """
    classes: defaultdict[Hashable, list[RankRecording]] = defaultdict(list)
    for one in ranks:
        classes[_signature(one)].append(one)
    return list(classes.values())


def _signature(one: RankRecording) -> Hashable:
    recording = one.recording
    launched = _calls(recording.launches)
    calls = tuple(sorted(launched.items()))
    if isinstance(recording, RecordedStep):
        members = tuple(one.members.get(group) for group in sorted(launched))
        return calls, members, frozenset(Counter(gradient_keys(recording)).items())
    listed = _calls(task for task in recording.tasks if isinstance(task, Collective))
    members = tuple(one.members.get(group) for group in sorted({*launched, *listed}))
    return calls, members, tuple(sorted(listed.items()))


def _calls(items: Iterable[RecordedLaunch | Collective]) -> _Calls:
    calls: defaultdict[str, list[_Call]] = defaultdict(list)
    for item in items:
        size = 0 if item.kind == "all_to_all" else item.bytes
        calls[item.group].append((item.kind, item.dtype, size))
    return {group: tuple(found) for group, found in calls.items()}


def difference(one: RankRecording, other: RankRecording) -> str:
    """Return in words what the first of two ranks that are not alike has and the other has not."""
    mine, theirs = one.recording.launches, other.recording.launches
    if len(mine) != len(theirs):
        return f"it has {len(mine)} launches, not {len(theirs)}"
    found = _first_difference(_calls(mine), _calls(theirs), "launch")
    if found:
        return found
    for group in sorted({*one.members, *other.members}):
        a_members, b_members = one.members.get(group), other.members.get(group)
        if a_members != b_members:
            return f"its group {group!r:.60} has other ranks than theirs"
    if isinstance(one.recording, RecordedStep) and isinstance(other.recording, RecordedStep):
        a, b = len(one.recording.gradients), len(other.recording.gradients)
        return f"it has {a} gradients, not {b}" if a != b else "its launches hold other gradients"
    if isinstance(one.recording, RecordedGraph) and isinstance(other.recording, RecordedGraph):
        a_calls, b_calls = (
            _calls(task for task in recording.tasks if isinstance(task, Collective))
            for recording in (one.recording, other.recording)
        )
        return _first_difference(a_calls, b_calls, "collective") or "its collectives differ"
    return "it is recorded in another form"


def _first_difference(mine: _Calls, theirs: _Calls, noun: str) -> str:
    if mine.keys() != theirs.keys():
        own = [f"group {group!r:.60}" for group in sorted(mine.keys() - theirs.keys())]
        lacking = [f"group {group!r:.60}" for group in sorted(theirs.keys() - mine.keys())]
        if own and lacking:
            return f"it has {own[0]} where the others have {lacking[0]}"
        return f"it has {own[0]}, the others have not" if own else f"it lacks {lacking[0]}"
    for group in sorted(mine):
        for k, (a, b) in enumerate(zip(mine[group], theirs[group], strict=False)):
            if a != b:
                return (
                    f"{noun} {k} of group {group!r:.60} is {_in_words(a)}, where the others have "
                    f"{_in_words(b)}"
                )
        if len(mine[group]) != len(theirs[group]):
            return (
                f"it has {len(mine[group])} {noun}s in group {group!r:.60}, "
                f"not {len(theirs[group])}"
            )
    return ""


def _in_words(call: _Call) -> str:
    kind, dtype, size = call
    return f"{kind} of {dtype}" + ("" if kind == "all_to_all" else f", {size} bytes")


def match_launches(ranks: Sequence[RankRecording]) -> tuple[list[Matched], dict[str, str]]:
    """Return which launches are one collective, and why those of other groups are none.

    The k-th launch of a group is the same on all its ranks; ranks whose launches in the group
    are not those of the most are not among them. Where the recordings say who is in a group,
    groups of one name with different ranks are told apart.

    Returns
    -------
    tuple
        The collectives, those of the lowest rank first; and for each group that cannot be
        matched the reason.
    """
    having: defaultdict[tuple[str, tuple[int, ...]], list[RankRecording]] = defaultdict(list)
    calls = {one.number: _calls(one.recording.launches) for one in ranks}
    places = {one.number: _places(one.recording.launches) for one in ranks}
    for one in ranks:
        for group in calls[one.number]:
            having[group, one.members.get(group, ())].append(one)
    found: list[Matched] = []
    unmatched: dict[str, str] = {}
    for (group, members), own in having.items():
        same = _most_alike(own, {one.number: calls[one.number][group] for one in own})
        why = _mismatch(group, members, own, same, calls[same[0].number][group])
        if why:
            unmatched[group] = why
            continue
        for k in range(len(calls[same[0].number][group])):
            positions = {one.number: places[one.number][group][k] for one in same}
            launches = {one.number: one.recording.launches[positions[one.number]] for one in same}
            found.append(Matched(group, launches, positions))
    found.sort(key=lambda matched: next(iter(matched.positions.items())))
    return found, unmatched


def _most_alike(
    ranks: Sequence[RankRecording], calls: Mapping[int, Hashable]
) -> list[RankRecording]:
    """Return the largest set of ranks that have the same launches in a group."""
    classes: defaultdict[Hashable, list[RankRecording]] = defaultdict(list)
    for one in ranks:
        classes[calls[one.number]].append(one)
    return max(classes.values(), key=len)


def _mismatch(
    group: str,
    members: tuple[int, ...],
    own: Sequence[RankRecording],
    same: Sequence[RankRecording],
    calls: Sequence[_Call],
) -> str:
    sizes = {size for one in own if (size := group_size(one, group)) is not None}
    if not members and sizes and min(sizes) < len(own):
        return f"{len(own)} ranks have a group of that name, which has {min(sizes)} ranks"
    if len(same) == 1 < len(own):
        return f"ranks {own[0].rank} and {own[1].rank} do not have the same launches in it"
    if len(own) > 2 and any(kind == "send_recv" for kind, _, _ in calls):
        return "it sends between pairs of ranks, and the recordings do not say which"
    return ""


def _places(launches: Sequence[RecordedLaunch]) -> dict[str, list[int]]:
    places: defaultdict[str, list[int]] = defaultdict(list)
    for position, launch in enumerate(launches):
        places[launch.group].append(position)
    return places


def group_size(one: RankRecording, group: str) -> int | None:
    """Return how many ranks a group has; None if that was not recorded."""
    if group in one.members:
        return len(one.members[group])
    if isinstance(one.recording, RecordedGraph):
        return one.recording.ranks.get(group)
    return one.recording.ranks


def gradient_keys(step: RecordedStep) -> list[Hashable]:
    """Return for each gradient what it must have in common with its like on another rank."""
    launch_of = {
        name: (group, place)
        for group, places in _places(step.launches).items()
        for place, position in enumerate(places)
        for name in step.launches[position].names
    }
    return [(launch_of.get(g.name), g.bytes, g.dtype, g.device, g.sparse) for g in step.gradients]


def match_gradients(reference: RecordedStep, step: RecordedStep) -> tuple[list[Gradient], bool]:
    """Return a rank's gradients in the order of the reference's, and whether it had another order.

    The ranks must be alike. Gradients of one size in one launch are matched in their order.
    """
    waiting: defaultdict[Hashable, list[Gradient]] = defaultdict(list)
    mine = gradient_keys(step)
    theirs = gradient_keys(reference)
    for key, gradient in zip(mine, step.gradients, strict=True):
        waiting[key].append(gradient)
    taken = Counter[Hashable]()
    matched = []
    for key in theirs:
        matched.append(waiting[key][taken[key]])
        taken[key] += 1
    return matched, mine != theirs

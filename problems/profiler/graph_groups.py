"""The process groups of a trace's collectives: their names, their sizes, and who shares a stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.trace_launches import UNKNOWN_GROUP

_MAX_RANKS = 2**24


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a trace.

    Attributes
    ----------
    names
        The group of each call, by the call's identity.
    ranks
        How many ranks a group has, where known.
    notes
        What was taken for granted.
    """

    names: Mapping[int, str]
    ranks: Mapping[str, int]
    notes: tuple[str, ...]

    def of(self, call: Call) -> str:
        """Return the group of a call."""
        return self.names[id(call)]


def find_groups(calls: Sequence[Call], metadata: Mapping[str, object]) -> Groups:
    """Return the groups of all calls of a trace.

    Parameters
    ----------
    calls
        The calls.
    metadata
        What stands beside the trace's events.
    """
    world, configured = _configured(metadata)
    sharing: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        sharing[call.message.description].add(call.message.group)
    nameless = [call for call in calls if not (call.message.group or call.message.description)]
    streams = {call.stream for call in nameless if call.kernels}
    names: dict[int, str] = {}
    ranks: dict[str, int] = {}
    notes: list[str] = []
    for call in calls:
        group, description = call.message.group, call.message.description
        if description:
            name = description if len(sharing[description]) == 1 else f"{description} {group}"
        elif group:
            name = f"group {group}"
        elif len(configured) == 1:
            name = next(iter(configured.values()))[0] or UNKNOWN_GROUP
        elif len(streams) > 1 and call.kernels:
            name = f"stream {call.stream.rpartition('/')[2]}"
        else:
            name = UNKNOWN_GROUP
        names[id(call)] = name
        size = call.message.ranks
        if size is None and group in configured:
            size = configured[group][1]
        if size is None and not group and len(configured) == 1:
            size = next(iter(configured.values()))[1]
        if size is not None:
            ranks.setdefault(name, size)
    found = set(names.values())
    if nameless and len(streams) > 1 and len(configured) != 1:
        notes.append(
            f"the groups were not recorded: each of the {len(streams)} communication streams is "
            "taken for one, as NCCL has a stream for each communicator"
        )
    unknown = sorted(found - ranks.keys())
    if unknown == [UNKNOWN_GROUP] and len(found) == 1 and world is not None:
        ranks[UNKNOWN_GROUP] = world
        notes.append(f"the group was not recorded: it is taken for all {world} ranks")
    elif unknown:
        shown = ", ".join(unknown[:5])
        notes.append(f"the number of ranks was not recorded for {len(unknown)} groups: {shown}")
    return Groups(names, ranks, tuple(notes))


def _configured(
    metadata: Mapping[str, object],
) -> tuple[int | None, dict[str, tuple[str, int | None]]]:
    """Return the number of all ranks and the description and size of each configured group."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return None, {}
    world = _size(info.get("world_size"))
    groups: dict[str, tuple[str, int | None]] = {}
    listed = info.get("pg_config")
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and isinstance(one.get("pg_name"), str):
            description = one.get("pg_desc")
            shown = description[:100] if isinstance(description, str) else ""
            groups[one["pg_name"]] = shown, _size(one.get("pg_size"))
    return world, groups


def _size(value: object) -> int | None:
    return value if type(value) is int and 1 <= value <= _MAX_RANKS else None


def shared_streams(calls: Sequence[Call], groups: Groups) -> tuple[dict[str, tuple[str, ...]], int]:
    """Return which groups share a stream, and how many groups used several streams.

    A group belongs to the stream that ran most of its collectives. gloo's threads are no streams:
    there each group has a queue of its own.
    """
    used: dict[str, Counter[str]] = defaultdict(Counter)
    for call in calls:
        if call.kernels:
            used[groups.of(call)][call.stream] += 1
    homes: dict[str, list[str]] = defaultdict(list)
    for group in sorted(used):
        stream = max(used[group], key=lambda key: (used[group][key], key))
        homes[stream].append(group)
    channels = {
        f"stream {stream.rpartition('/')[2]} of {stream.rpartition('/')[0]}": tuple(own)
        for stream, own in homes.items()
        if len(own) > 1
    }
    return channels, sum(len(streams) > 1 for streams in used.values())

"""Turning lanes and calls into the tasks of a step graph, and the launches that really ran."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commsched.models.step import Collective, Compute, Task
from commsched.problems.profiler.graph_calls import Call
from commsched.problems.profiler.graph_cpu import CpuWiring
from commsched.problems.profiler.graph_gpu import GpuWiring
from commsched.problems.profiler.graph_groups import Groups
from commsched.problems.profiler.graph_host import HOST
from commsched.problems.profiler.graph_lanes import Lane, Point, Segment, Source, cut_lane
from commsched.problems.profiler.graph_members import Member
from commsched.problems.profiler.graph_names import Names, Unique, layer_of
from commsched.problems.recorded import RecordedLaunch


@dataclass(slots=True)
class StepTasks:
    """A step as tasks; times in nanoseconds from its origin.

    Attributes
    ----------
    tasks
        The compute tasks, those of a stream in its order, and the collectives.
    launches
        What was launched, in the order of issue.
    ends
        When each task ended as recorded, where known.
    fixed
        How many collectives are compute tasks of their own, for their size is unknown.
    idle
        How long the main compute stream was idle without a collective that explains it.
    sized, timed, total
        How many of all collectives have a size, have times, and how many there are.
    lost
        How many were left out: neither their size nor their time is known.
    end
        When the last task ended as recorded.
    kinds
        How many collectives there are of each kind.
    """

    tasks: list[Task] = field(default_factory=list)
    launches: list[RecordedLaunch] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    fixed: int = 0
    idle: int = 0
    sized: int = 0
    timed: int = 0
    total: int = 0
    lost: int = 0
    end: int = 0
    kinds: Counter[str] = field(default_factory=Counter)


class _Builder:
    def __init__(
        self,
        wired: GpuWiring | CpuWiring,
        calls: Sequence[Call],
        labels: Sequence[str],
        groups: Groups,
        members: Mapping[int, Sequence[Member]],
        names: Names,
    ) -> None:
        self.wired = wired
        self.calls = calls
        self.labels = labels
        self.groups = groups
        self.members = members
        self.names = names
        self.unique = Unique()
        self.step = StepTasks(total=len(calls))
        self.sizes = [
            sum(member.bytes for member in members[number])
            if number in members
            else self._bytes(call)
            for number, call in enumerate(calls)
        ]
        self.task_names: list[tuple[str, ...]] = [()] * len(calls)
        self.segments: dict[str, list[Segment]] = {}
        self.segment_ends: dict[str, list[int]] = {}

    def build(self) -> StepTasks:
        self._name_calls()
        self._cut()
        placed: list[tuple[int, int, Task]] = [
            (s.start, 0, self._compute(s)) for own in self.segments.values() for s in own
        ]
        for number in range(len(self.calls)):
            placed += [(self.calls[number].issued, 1, task) for task in self._call_tasks(number)]
        # Stable: the segments of a lane stay in order.
        placed.sort(key=lambda item: item[:2])
        self.step.tasks = [task for _, _, task in placed]
        self._launches()
        self.step.end = max(self.step.ends.values(), default=0)
        return self.step

    def _bytes(self, call: Call) -> int | None:
        if call.kind is None:
            return None
        return call.message.bytes(call.kind, self.groups.ranks.get(self.groups.of(call)))

    def _name_calls(self) -> None:
        ordinals = Counter[str]()
        for number, call in enumerate(self.calls):
            self.step.timed += call.ran is not None
            self.step.sized += self.sizes[number] is not None
            what = call.kind or "other"
            ordinals[what] += 1
            layer = layer_of(self.labels[number])
            name = f"{what} {ordinals[what]:03d}" + (f" {layer}" if layer else "")
            if number in self.members:
                self.task_names[number] = tuple(
                    self.unique.name(member.name) for member in self.members[number]
                )
            elif self.sizes[number] is not None or call.ran is not None:
                self.task_names[number] = (self.unique.name(name),)
            else:
                self.step.lost += 1

    def _cut(self) -> None:
        wiring = self.wired.wiring
        points = wiring.points()
        for own in self.members.values():
            for member in own:
                points[member.ready.lane].add(member.ready.time) if member.ready else None
        waits: dict[str, dict[int, set[Source]]] = defaultdict(dict)
        for (key, k), sources in wiring.waits.items():
            waits[key][k] = sources
        for lane in self.wired.lanes_cut:
            segments = cut_lane(
                lane, self.wired.origin, points.get(lane.key, set()), waits[lane.key], self._end_of
            )
            for segment in segments:
                segment.name = self.unique.name(self._segment_name(lane, segment))
                self.step.idle += segment.idle if lane is self.wired.main else 0
            self.segments[lane.key] = segments
            self.segment_ends[lane.key] = [segment.end for segment in segments]

    def _end_of(self, source: Source) -> int:
        if isinstance(source, Point):
            return source.time
        ran = self.calls[source].ran
        return self.calls[source].issued if ran is None else ran[1]

    def _segment_name(self, lane: Lane, segment: Segment) -> str:
        works = lane.works[segment.first : segment.last]
        if lane.key == HOST:
            name = self.names.of(segment.start, segment.end)
        elif works:
            name = self.names.of_works(works)
        else:
            name = "idle: the processor is late" if segment.idle else "work goes on"
        return name if lane is self.wired.main else f"{name} ({self._stream(segment.lane)})"

    def _stream(self, lane: str) -> str:
        device, _, stream = lane.rpartition("/")
        if not device:
            return lane
        several = len({key.rpartition("/")[0] for key in self.wired.lanes}) > 1
        return f"stream {stream} of {device}" if several else f"stream {stream}"

    def _sources(self, sources: Sequence[Source] | set[Source] | frozenset[Source]) -> list[str]:
        """Return the names of the tasks that stand for what something waits for."""
        found: dict[str, None] = {}
        points = sorted(source for source in sources if isinstance(source, Point))
        for point in points:
            at = bisect_right(self.segment_ends[point.lane], point.time) - 1
            if at >= 0:
                found[self.segments[point.lane][at].name] = None
        for number in sorted(source for source in sources if isinstance(source, int)):
            found.update(dict.fromkeys(self.task_names[number]))
        return list(found)

    def _compute(self, segment: Segment) -> Compute:
        self.step.ends[segment.name] = segment.end - self.wired.origin
        return Compute(
            segment.name,
            segment.end - segment.start,
            self._stream(segment.lane),
            tuple(self._sources(segment.sources)),
        )

    def _call_tasks(self, number: int) -> list[Task]:
        call, size, names = self.calls[number], self.sizes[number], self.task_names[number]
        if not names:
            return []
        after = tuple(self._sources(self.wired.wiring.needs[number]))
        if call.ran is not None:
            for name in names:
                self.step.ends[name] = call.ran[1] - self.wired.origin
        if size is None:
            assert call.ran is not None
            self.step.fixed += 1
            stream = f"collectives of stream {call.stream.rpartition('/')[2]}"
            return [Compute(names[0], call.ran[1] - call.ran[0], stream, after)]
        assert call.kind is not None
        group = self.groups.of(call)
        self.step.kinds[call.kind] += 1
        members = self.members.get(number)
        if members is None:
            dtype = call.message.dtype or "uint8"
            return [Collective(names[0], size, call.kind, group, dtype, after)]
        awaited = [n for n in self.wired.wiring.needs[number] if isinstance(n, int)]
        tasks: list[Task] = []
        for name, member in zip(names, members, strict=True):
            own: list[Source] = [*awaited, *([member.ready] if member.ready else [])]
            # The last one's own copy into the bucket comes before the launch.
            closes = member is members[-1] and call.is_issued
            needs = after if closes else tuple(self._sources(own))
            tasks.append(Collective(name, member.bytes, call.kind, group, member.dtype, needs))
        return tasks

    def _launches(self) -> None:
        shared: dict[int, int] = {}
        for number, call in enumerate(self.calls):
            size, names = self.sizes[number], self.task_names[number]
            if size is None or not names:
                continue
            assert call.kind is not None
            group, dtype = self.groups.of(call), call.message.dtype or "uint8"
            key = (call.kind, group, dtype)
            ran = call.ran
            if call.kernels:
                # One kernel for several calls: they were coalesced into one launch.
                first = shared.setdefault(id(call.kernels), len(self.step.launches))
                if first < len(self.step.launches):
                    other = self.step.launches[first]
                    if key == (other.kind, other.group, other.dtype):
                        self.step.launches[first] = _joined(other, names, size)
                        continue
                    ran = None
            self.step.launches.append(
                RecordedLaunch(
                    names=names,
                    kind=call.kind,
                    group=group,
                    dtype=dtype,
                    bytes=size,
                    issued_ns=call.issued - self.wired.origin,
                    start_ns=None if ran is None else ran[0] - self.wired.origin,
                    end_ns=None if ran is None else ran[1] - self.wired.origin,
                    exact=True,
                )
            )


def _joined(launch: RecordedLaunch, names: tuple[str, ...], size: int) -> RecordedLaunch:
    return RecordedLaunch(
        (*launch.names, *names),
        launch.kind,
        launch.group,
        launch.dtype,
        launch.bytes + size,
        launch.issued_ns,
        launch.start_ns,
        launch.end_ns,
        exact=True,
    )


def build_tasks(
    wired: GpuWiring | CpuWiring,
    calls: Sequence[Call],
    labels: Sequence[str],
    groups: Groups,
    members: Mapping[int, Sequence[Member]],
    names: Names,
) -> StepTasks:
    """Return the tasks of a step.

    Parameters
    ----------
    wired
        Its lanes and who waits for whom.
    calls
        Its collectives in the order of issue.
    labels
        The annotation around each of them.
    groups
        The process groups.
    members
        The gradients of the calls that are buckets of them.
    names
        Names for stretches of the step.
    """
    return _Builder(wired, calls, labels, groups, members, names).build()

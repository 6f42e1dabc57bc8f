"""FSDP2 on a whole sharded step: its units, and what its prefetching makes of their gathers.

FSDP2 issues collectives from the CPU, which runs ahead: a gather is issued when the unit that
prefetches it begins to compute, in the order of that unit's list, and every unit prefetches the next
one. A unit's gradients are scattered when its backward has ended. One communicator runs what is
issued in that order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from commsched.export.source import ExportSource
from commsched.models import Bucket, Compute, Plan, PoolBytes, Problem, Task, Timeline, evaluate
from commsched.models.errors import DeadlockError, NotApplicableError

TITLE = "PyTorch FSDP2"
FORWARD, BACKWARD = "forward ", "backward "
GATHER, AGAIN, SCATTER = "gather ", " again", "scatter "


@dataclass(frozen=True)
class Group:
    """What one ``fully_shard`` call holds.

    Attributes
    ----------
    layers
        In forward order.
    units
        The units of the problem that it consists of.
    kept
        Whether its parameters stay gathered from forward to backward.
    """

    layers: tuple[str, ...]
    units: tuple[str, ...]
    kept: bool

    @property
    def root(self) -> bool:
        """Whether it is what the model itself holds."""
        return self.units == ("root",)


@dataclass(frozen=True)
class ShardedStep:
    """A sharded step with a plan's groups in forward order."""

    problem: Problem
    groups: tuple[Group, ...]

    @property
    def again(self) -> list[int]:
        """The groups that are gathered again."""
        return [k for k, group in enumerate(self.groups) if not group.kept]

    def order(self, what: str) -> list[int]:
        """Return the groups in the order in which a pass reaches them: the model itself first."""
        order = list(range(len(self.groups)))
        if what == BACKWARD:
            order.reverse()
        return sorted(order, key=lambda k: not self.groups[k].root)

    def compute_names(self, what: str) -> list[str]:
        """Return the names of a pass's compute tasks, in order."""
        return [
            task.name
            for task in self.problem.tasks
            if isinstance(task, Compute) and task.name.startswith(what)
        ]

    def begins(self, what: str) -> list[int]:
        """Return at which compute task of a pass each group begins; the model itself at once."""
        spans = self.spans(what)
        return [
            0 if group.root else first for group, (first, _) in zip(self.groups, spans, strict=True)
        ]

    def spans(self, what: str) -> list[tuple[int, int]]:
        """Return the first and last compute task of each group in a pass.

        Raises
        ------
        NotApplicableError
            If a layer has none.
        """
        place = {name: number for number, name in enumerate(self.compute_names(what))}
        spans = []
        for group in self.groups:
            for layer in group.layers:
                if what + layer not in place:
                    raise _other_step(what + layer)
            own = [place[what + layer] for layer in group.layers]
            spans.append((min(own), max(own)))
        return spans


def sharded_step(source: ExportSource) -> ShardedStep:
    """Return a plan's groups on a sharded step.

    Raises
    ------
    NotApplicableError
        If the problem is not one of :func:`commsched.problems.steps.fsdp_step.fsdp_step`, or the plan
        groups the passes differently.
    """
    problem = source.problem
    assert problem is not None
    units: dict[str, tuple[tuple[str, ...], bool]] = {}
    for task in problem.collectives:
        if task.kind == "all_gather" and not task.name.endswith(AGAIN):
            name, until = task.name.removeprefix(GATHER), task.hold.until if task.hold else ()
            kept = any(user.startswith(BACKWARD) for user in until)
            what = BACKWARD if kept else FORWARD
            layers = tuple(user.removeprefix(what) for user in until)
            if not task.name.startswith(GATHER) or not until or not _in_pass(until, what):
                raise _other_step(task.name)
            units[name] = (layers, kept)
    expected = {GATHER + name for name in units} | {SCATTER + name for name in units}
    expected |= {f"{GATHER}{name}{AGAIN}" for name, (_, kept) in units.items() if not kept}
    for name in problem.names:
        if name not in expected:
            raise _other_step(name)
    if len(expected) != len(problem.names):
        raise _other_step(min(expected - set(problem.names)))
    groups = _groups_of(source, units)
    return ShardedStep(problem, groups)


def _in_pass(names: Sequence[str], what: str) -> bool:
    return all(name.startswith(what) for name in names)


def _other_step(name: str) -> NotApplicableError:
    return NotApplicableError(
        f"{TITLE} needs parameters as names, or a step of fsdp_step with one micro-batch; "
        f"{name!r:.100} is not of such a step"
    )


def _groups_of(
    source: ExportSource, units: dict[str, tuple[tuple[str, ...], bool]]
) -> tuple[Group, ...]:
    """Return the groups, the same ones in every pass, by the place of their first unit."""
    place = {name: number for number, name in enumerate(units)}
    found: dict[str, set[frozenset[str]]] = {"gather": set(), "again": set(), "scatter": set()}
    for bucket in source.plan.buckets:
        if bucket.names[0].startswith(SCATTER):
            row, names = "scatter", [name.removeprefix(SCATTER) for name in bucket.names]
        elif bucket.names[0].endswith(AGAIN):
            row, names = (
                "again",
                [n.removeprefix(GATHER).removesuffix(AGAIN) for n in bucket.names],
            )
        else:
            row, names = "gather", [name.removeprefix(GATHER) for name in bucket.names]
        for name in names:
            if name not in units:
                raise NotApplicableError(
                    f"{TITLE} groups each pass by itself; a bucket holds {bucket.names[0]!r:.80} "
                    f"and {name!r:.80}"
                )
        found[row].add(frozenset(names))
    again = {some for some in found["gather"] if not any(units[name][1] for name in some)}
    if found["scatter"] != found["gather"] or found["again"] != again:
        raise NotApplicableError(
            f"{TITLE} groups layers once for all passes; the plan groups gathers and scatters "
            "differently"
        )
    groups = []
    for together in sorted(found["gather"], key=lambda some: min(place[name] for name in some)):
        ordered = tuple(sorted(together, key=place.__getitem__))
        kept = {units[name][1] for name in ordered}
        if len(kept) > 1 or ("root" in ordered and len(ordered) > 1):
            raise NotApplicableError(
                f"{TITLE}: {ordered[0]!r:.80} and {ordered[1]!r:.80} are not kept alike"
            )
        layers = tuple(layer for name in ordered for layer in units[name][0])
        groups.append(Group(layers, ordered, kept.pop()))
    return tuple(groups)


@dataclass(frozen=True)
class Prefetch:
    """Which group issues each group's gather, by number; a group may issue its own.

    Attributes
    ----------
    forward
        By the group's number.
    backward
        By the group's number; -1 for groups that are not gathered again.
    rank
        The place of each gather among those that one group issues, by the collective's name;
        where none is given they go in the order of the pass.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    rank: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_depth(cls, step: ShardedStep, depth: int) -> Prefetch:
        """Return that each group prefetches the next ``depth`` ones; 1 is FSDP2's default."""

        def issuers(what: str, gathered: Collection[int]) -> tuple[int, ...]:
            found = [-1] * len(step.groups)
            order = step.order(what)
            for place, k in enumerate(order):
                if k in gathered:
                    found[k] = order[max(0, place - depth)]
            return tuple(found)

        return cls(issuers(FORWARD, range(len(step.groups))), issuers(BACKWARD, step.again))

    @classmethod
    def of_plan(cls, step: ShardedStep, timeline: Timeline, *, by_order: bool) -> Prefetch:
        """Return what a plan asks for.

        A gather is issued by the last group at whose begin it is not late, of those before it.
        With ``by_order`` gathers of the backward pass keep their place among the scatters: one that
        follows a group's scatter is issued by the group after that one.
        """
        start = {name: launch.start_ns for launch in timeline.launches for name in launch.names}
        names = (name for bucket in timeline.plan.buckets for name in bucket.names)
        rank = {name: number for number, name in enumerate(names)}
        begin = _begin_times(step, timeline)
        found: dict[str, list[int]] = {}
        for what, suffix in ((FORWARD, ""), (BACKWARD, AGAIN)):
            order = step.order(what)
            issuers = [-1] * len(step.groups)
            for place, k in enumerate(order):
                name = f"{GATHER}{step.groups[k].units[0]}{suffix}"
                if name not in start:
                    continue  # kept from forward
                earlier = order[:place]
                if what == BACKWARD and by_order:
                    scattered = sum(
                        rank[SCATTER + step.groups[j].units[0]] < rank[name] for j in earlier
                    )
                    issuers[k] = order[min(scattered, max(0, place - 1))]
                else:
                    early = [j for j in earlier if begin[what, j] <= start[name]]
                    issuers[k] = early[-1] if early else order[0]
            found[what] = issuers
        return cls(tuple(found[FORWARD]), tuple(found[BACKWARD]), rank)

    def lists(self, step: ShardedStep) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Return the groups that each group prefetches in forward and in backward."""
        rows: list[dict[int, list[int]]] = []
        for what, suffix, issuers in (
            (FORWARD, "", self.forward),
            (BACKWARD, AGAIN, self.backward),
        ):
            row: dict[int, list[int]] = {}
            for k in self.by_rank(step, what, suffix):
                if issuers[k] not in (k, -1):
                    row.setdefault(issuers[k], []).append(k)
            rows.append(row)
        return rows[0], rows[1]

    def by_rank(self, step: ShardedStep, what: str, suffix: str) -> list[int]:
        """Return the groups of a pass in the order in which one group would issue their gathers."""
        return sorted(
            step.order(what),
            key=lambda k: self.rank.get(f"{GATHER}{step.groups[k].units[0]}{suffix}", 0),
        )


def _begin_times(step: ShardedStep, timeline: Timeline) -> dict[tuple[str, int], int]:
    start = {span.name: span.start_ns for span in timeline.tasks}
    return {
        (what, k): start[step.compute_names(what)[first]]
        for what in (FORWARD, BACKWARD)
        for k, first in enumerate(step.begins(what))
    }


def projected_plan(step: ShardedStep, prefetch: Prefetch) -> Plan:
    """Return what FSDP2 runs: launches in the order of issue, gathers not before they are issued.

    Raises
    ------
    NotApplicableError
        If that would never end, or takes more memory than a limit of the problem allows.
    """
    problem = step.problem
    waits: dict[str, tuple[str, ...]] = {}
    buckets = _pass(step, FORWARD, "", prefetch, waits)
    buckets += _pass(step, BACKWARD, AGAIN, prefetch, waits)
    tasks: list[Task] = [
        replace(task, after=(*task.after, *waits[task.name])) if task.name in waits else task
        for task in problem.tasks
    ]
    free = [limit for limit in problem.limits if not isinstance(limit, PoolBytes)]
    issued = Problem(tasks, problem.costs, channels=problem.groups_of_channel, limits=free)
    try:
        timeline = evaluate(issued, Plan.of(buckets))
    except DeadlockError as error:
        raise NotApplicableError(f"{TITLE} would run a plan that never ends: {error}") from None
    for pool, most in problem.limited_pools.items():
        if timeline.pool_peak(pool) > most:
            raise NotApplicableError(
                f"{TITLE} does not wait for memory: {timeline.pool_peak(pool)} bytes of {pool!r} "
                f"would be alive at once, {most} may be"
            )
    ready = {launch.names: launch.ready_ns for launch in timeline.launches}
    return Plan(
        tuple(
            Bucket(tuple(names), ready[tuple(names)] if names[0] in waits else 0)
            for names in buckets
        )
    )


def _pass(
    step: ShardedStep,
    what: str,
    suffix: str,
    prefetch: Prefetch,
    waits: dict[str, tuple[str, ...]],
) -> list[list[str]]:
    """Return a pass's launches as the CPU issues them; note what each gather waits for."""
    computes = step.compute_names(what)
    begins = step.begins(what)
    issuers = prefetch.forward if what == FORWARD else prefetch.backward
    # The compute task, before or after it, the group's turn, own or prefetched, turn in the list.
    events: list[tuple[int, int, int, int, int, list[str]]] = []
    turn_of = {k: turn for turn, k in enumerate(step.order(what))}
    for turn, k in enumerate(prefetch.by_rank(step, what, suffix)):
        issuer = issuers[k]
        if issuer == -1:
            continue
        names = [f"{GATHER}{unit}{suffix}" for unit in step.groups[k].units]
        begin = begins[issuer]
        if begin:
            waits.update(dict.fromkeys(names, (computes[begin - 1],)))
        events.append((begin, 0, turn_of[issuer], issuer != k, turn, names))
    if what == BACKWARD:
        for k, (group, (_, last)) in enumerate(zip(step.groups, step.spans(what), strict=True)):
            names = [SCATTER + unit for unit in group.units]
            events.append((last, 1, turn_of[k], 0, 0, names))
    return [names for *_, names in sorted(events, key=lambda event: event[:5])]

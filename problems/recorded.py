"""What a reader gets out of a recording: the step, what was really launched, and a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commsched.models.collectives import Kind
from commsched.models.cost import CostCurve
from commsched.models.gradients import GradientProblem
from commsched.models.plan import Bucket, Plan
from commsched.models.problem import Costs, Problem
from commsched.models.step import Collective, Gradient, Task


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """A collective that really ran.

    Attributes
    ----------
    names
        The gradients or collectives in it, in recorded ready order.
    kind, group, dtype
        Its fusion key as recorded; ``group`` is the process group's name, ``dp`` if unknown.
    bytes
        Its size as recorded; where the recording has no size, that of its members.
    issued_ns
        When the processor issued it, in nanoseconds from the step's start. Negative where the
        processor ran ahead of a GPU that had not started the step yet.
    start_ns, end_ns
        When it ran, in nanoseconds from the step's start; None if that was not recorded. A
        collective's time includes waiting for the slowest rank.
    exact
        Whether the members' bytes add up to the launch's recorded bytes.
    """

    names: tuple[str, ...]
    kind: Kind
    group: str
    dtype: str
    bytes: int
    issued_ns: int
    start_ns: int | None
    end_ns: int | None
    exact: bool


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was checked on the way in.

    Attributes
    ----------
    text
        What was checked and what came out.
    passed
        Whether it holds.
    """

    text: str
    passed: bool


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What a reader read, kept, dropped and assumed.

    Attributes
    ----------
    source
        The file's name.
    events_read
        How many events the file held.
    kept
        How many of each thing were used.
    dropped
        How many were not used, by reason.
    assumptions
        Sentences on what the recording does not say and the reader took for granted.
    checks
        What was checked; a reader that can only partly trust its result says so here.
    findings
        Sentences on what the recording shows that the problem does not (who was late).
    """

    source: str
    events_read: int
    kept: Mapping[str, int]
    dropped: Mapping[str, int]
    assumptions: tuple[str, ...]
    checks: tuple[Check, ...]
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded training step.

    Attributes
    ----------
    name
        A title for people.
    gradients
        In recorded ready order.
    launches
        In the order in which they were issued.
    backward_end_ns
        When backward's own work ended, in nanoseconds from the step's start.
    step_name
        Which step of the recording this is.
    report
        What was read, kept, dropped and assumed.
    ranks
        Number of ranks that share the gradients; None if that was not recorded.
    origin_ns
        When the step's time zero was on the recording's own clock, in nanoseconds; None if it has
        no clock.
    """

    name: str
    gradients: tuple[Gradient, ...]
    launches: tuple[RecordedLaunch, ...]
    backward_end_ns: int
    step_name: str
    report: ImportReport
    ranks: int | None = None
    origin_ns: int | None = None

    def problem(self, cost: CostCurve) -> GradientProblem:
        """Return the problem of planning this step's all-reduces.

        Parameters
        ----------
        cost
            What an all-reduce costs.
        """
        last = max((gradient.ready_ns for gradient in self.gradients), default=0)
        return GradientProblem(
            self.gradients,
            cost,
            name=self.name,
            backward_end_ns=max(self.backward_end_ns, last),
        )

    @property
    def needs(self) -> Mapping[tuple[str, Kind], int | None]:
        """The group and kind whose cost the problem needs, with the number of ranks if known."""
        return {("dp", "allreduce"): self.ranks}

    def with_costs(self, costs: Costs) -> Problem:
        """Return the problem of planning this step.

        Parameters
        ----------
        costs
            A curve for each of :attr:`needs`.
        """
        return self.problem(costs["dp", "allreduce"])

    @property
    def plan(self) -> Plan | None:
        """The plan that really ran; None unless every gradient is in exactly one exact launch."""
        members = sorted(name for launch in self.launches for name in launch.names)
        if members != sorted(gradient.name for gradient in self.gradients):
            return None
        if not all(launch.exact and launch.names for launch in self.launches):
            return None
        return Plan(tuple(Bucket(launch.names) for launch in self.launches))


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """One recorded training step in general form: what ran, and what waited for what.

    Attributes
    ----------
    name
        A title for people.
    tasks
        Compute tasks, those of one stream in the order in which it ran them, and collectives.
    launches
        What was really launched, in order of issue; ``names`` are collectives of ``tasks``. Empty
        where the source says nothing of it (a workload that nobody ran).
    step_name
        Which step of the recording this is.
    report
        What was read, kept, dropped and assumed.
    channels
        Channel -> the groups that share it; a group that is not listed has one of its own.
    ranks
        Number of ranks of each group, where known.
    end_ns
        When the step ended as recorded, in nanoseconds from its start; None if not recorded.
    origin_ns
        When the step's time zero was on the recording's own clock, in nanoseconds; None if it has
        no clock.
    """

    name: str
    tasks: tuple[Task, ...]
    launches: tuple[RecordedLaunch, ...]
    step_name: str
    report: ImportReport
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    end_ns: int | None = None
    origin_ns: int | None = None

    @property
    def needs(self) -> Mapping[tuple[str, Kind], int | None]:
        """Each (group, kind) whose cost the problem needs, with the number of ranks if known."""
        return {
            (task.group, task.kind): self.ranks.get(task.group)
            for task in self.tasks
            if isinstance(task, Collective)
        }

    def with_costs(self, costs: Costs) -> Problem:
        """Return the problem of planning this step.

        Parameters
        ----------
        costs
            A curve for each of :attr:`needs`.
        """
        return Problem(self.tasks, costs, channels=self.channels, name=self.name)

    @property
    def plan(self) -> Plan | None:
        """The plan that really ran; None unless every collective is in exactly one launch."""
        members = sorted(name for launch in self.launches for name in launch.names)
        if members != sorted(task.name for task in self.tasks if isinstance(task, Collective)):
            return None
        return Plan(tuple(Bucket(launch.names) for launch in self.launches))


Recording = RecordedStep | RecordedGraph
"""What every reader returns."""

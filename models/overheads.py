"""Running a plan with what the framework itself takes: hooks, copies, waking up, the end of backward.

The model of :mod:`commsched.models.timeline` knows what launches cost on the network. A framework
adds to that. :class:`Overheads` has a term for each thing that was measured to matter under PyTorch's
DistributedDataParallel; in brackets what does it there (torch/csrc/distributed/c10d/reducer.cpp). A plan
is run with them by building a derived step, in which every term is a compute task, and giving that to
the one evaluator; the plan stays the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property

from commsched.models.admission import refuse_pools
from commsched.models.coverage import fit
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.exposure import merge_intervals
from commsched.models.plan import Plan
from commsched.models.problem import Problem
from commsched.models.reorder import reordered
from commsched.models.step import Collective, Compute, Task
from commsched.models.timeline import Timeline, evaluate, play
from commsched.models.units import NS_PER_US, Number, exact, exact_at_least_zero, shown

MAX_US = 10_000_000
"""No term may take longer than ten seconds."""
MIN_GB_S = Fraction(1, 1000)
TIMES = ("issue_us", "hook_us", "wake_us", "gradient_us", "finish_us")
RATES = ("fill_gb_s", "copy_gb_s")


@dataclass(frozen=True)
class Overheads:
    """What a framework adds to a step, beside the network. All terms are nothing by default.

    Parameters
    ----------
    issue_us
        From when a launch's last gradient is in its bucket until it is launched, in microseconds. It
        delays the launch alone (``mark_bucket_ready`` up to the call of the hook or the backend).
    hook_us
        How long a launch holds the stream up on which its last gradient was computed, in microseconds:
        all that comes behind it there is later (the same code; it runs in the thread of backward).
        Where the processor runs ahead of a GPU it is nothing.
    fill_gb_s
        The rate at which a gradient is copied into its bucket, in GB/s (``mark_variable_ready_dense``);
        None if nothing is copied. A launch waits for the copy of its last gradient.
    filled
        Whether the ready times were taken where gradients were copied, as in a step under DDP. The
        copies of earlier gradients are then in the later times. If not, each copy holds the stream up.
    wake_us
        From the end of a launch until what waits for it goes on, in microseconds (a thread or an
        event that has to be noticed). What ``measure_costs`` measures has it in the costs.
    copy_gb_s
        The rate at which gradients are copied out of their buckets, in GB/s, after their launch and,
        in a plain backward pass, after backward (``finalize_bucket_dense``); None if nothing is
        copied, as with ``gradient_as_bucket_view=True``.
    gradient_us
        What else is done for each gradient there, in microseconds (the same loop).
    finish_us
        Once at the very end, in microseconds (the rest of ``finalize_backward``).

    Raises
    ------
    InputError
        If a value is no number or out of range.

    Examples
    --------
    >>> Overheads(issue_us=20, fill_gb_s=6.9).delayed_ns([0, 10], [6900, 69])
    [1000, 1000]
    """

    issue_us: Number = 0
    hook_us: Number = 0
    fill_gb_s: Number | None = None
    filled: bool = True
    wake_us: Number = 0
    copy_gb_s: Number | None = None
    gradient_us: Number = 0
    finish_us: Number = 0

    def __post_init__(self) -> None:
        for name in TIMES:
            value = getattr(self, name)
            if exact_at_least_zero(value, f"overheads: {name}") > MAX_US:
                raise InputError(f"overheads: {name}: {shown(value)} must be at most {MAX_US} us")
        for name in RATES:
            value = getattr(self, name)
            if value is not None and exact(value, f"overheads: {name}") < MIN_GB_S:
                raise InputError(
                    f"overheads: {name}: {shown(value)} must be at least {float(MIN_GB_S)} GB/s"
                )
        if not isinstance(self.filled, bool):
            raise InputError(f"overheads: filled: {self.filled!r:.100} must be true or false")

    def _ns(self, name: str) -> int:
        return math.ceil(exact(getattr(self, name), name) * NS_PER_US)

    @cached_property
    def issue_ns(self) -> int:
        """``issue_us`` in nanoseconds, rounded up, as the next ones."""
        return self._ns("issue_us")

    @cached_property
    def hook_ns(self) -> int:
        """``hook_us`` in nanoseconds."""
        return self._ns("hook_us")

    @cached_property
    def wake_ns(self) -> int:
        """``wake_us`` in nanoseconds."""
        return self._ns("wake_us")

    @cached_property
    def finish_ns(self) -> int:
        """``finish_us`` in nanoseconds."""
        return self._ns("finish_us")

    @property
    def nothing(self) -> bool:
        """Whether no term takes any time."""
        return not any(getattr(self, name) for name in (*TIMES, *RATES))

    def fill_ns(self, size: int) -> int:
        """Return what copying so many bytes into buckets takes, rounded up to a nanosecond."""
        return 0 if self.fill_gb_s is None else math.ceil(size / exact(self.fill_gb_s, "fill_gb_s"))

    def out_ns(self, gradients: int, size: int) -> int:
        """Return what handing so many gradients of so many bytes back takes, rounded up."""
        ns = gradients * exact(self.gradient_us, "gradient_us") * NS_PER_US
        if self.copy_gb_s is not None:
            ns += size / exact(self.copy_gb_s, "copy_gb_s")
        return math.ceil(ns)

    def delayed_ns(self, ready_ns: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Return when each gradient, in ready order, and those before it are in their buckets."""
        found, latest, sent = [], 0, 0
        for ready, size in zip(ready_ns, sizes, strict=True):
            sent += size
            latest = max(latest, ready + self.fill_ns(size if self.filled else sent))
            found.append(latest)
        return found

    def as_row(self) -> dict[str, object]:
        """Return the terms that are not at their defaults, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


class OverheadTimeline(Timeline):
    """What a plan does to a step with a framework's overheads.

    Every attribute means what it means in :class:`~commsched.models.timeline.Timeline`:
    ``compute_ns`` is the step without any communication, which has no overheads either, so
    ``exposed_ns`` counts them. A launch's ``ready_ns`` is when it is issued.

    Attributes
    ----------
    overheads
        The terms.
    nominal
        The same plan without them.
    work_end_ns
        When the step's own streams had ended: its compute, and what holds it up.
    """

    def __init__(
        self, nominal: Timeline, run: Problem, derived: Timeline, overheads: Overheads
    ) -> None:
        own = {task.name: task.stream for task in run.tasks if isinstance(task, Compute)}
        ends = {span.name: span.end_ns for span in derived.tasks if span.name in own}
        super().__init__(nominal.problem, nominal.plan, derived.launches, ends, run)
        self.overheads, self.nominal = overheads, nominal
        self.makespan_ns = derived.makespan_ns
        streams = set(own.values())
        self.work_end_ns = max(
            (span.end_ns for span in derived.tasks if span.stream in streams), default=0
        )

    @property
    def waited_ns(self) -> int:
        """From the end of the step's own streams to the end of the step."""
        return self.makespan_ns - self.work_end_ns

    @cached_property
    def busy(self) -> list[tuple[int, int]]:
        """The disjoint intervals in which at least one stream does the step's own work."""
        return merge_intervals((span.start_ns, span.end_ns) for span in self.tasks)


def evaluate_overheads(problem: Problem, plan: Plan, overheads: Overheads) -> OverheadTimeline:
    """Run a plan on a problem with what a framework adds.

    Where nothing waits for a collective (a plain backward pass), gradients are handed back after
    backward, one launch after the other, as DDP does it. Elsewhere they are handed back right after
    their launch, and what waits for a collective waits for that.

    Parameters
    ----------
    problem
        The step.
    plan
        Covers every collective of the problem exactly once.
    overheads
        The terms.

    Raises
    ------
    PlanError, DeadlockError
        As for :func:`~commsched.models.timeline.evaluate`, whose warning is given, too.
    NotApplicableError
        If memory is limited, or the plan splits collectives into chunks.

    Examples
    --------
    The launch is issued at 10 + 3, takes 100, is noticed 2 later, and then DDP ends in 5:

    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 100, ready_ns=10)], AlphaBeta(0, 1))
    >>> terms = Overheads(issue_us=0.003, wake_us=0.002, finish_us=0.005)
    >>> timeline = evaluate_overheads(problem, Plan.of([["a"]]), terms)
    >>> timeline.exposed_ns, timeline.nominal.exposed_ns
    (110, 100)
    """
    timeline = play_overheads(problem, plan, overheads)
    if timeline.extrapolated is not None:
        evaluate(problem, plan)  # it has the words for that warning
    return timeline


def play_overheads(problem: Problem, plan: Plan, overheads: Overheads) -> OverheadTimeline:
    """Do what :func:`evaluate_overheads` does, without a warning: for candidates that nobody sees.

    Raises
    ------
    PlanError, DeadlockError, NotApplicableError
        As for :func:`evaluate_overheads`.
    """
    refuse_pools(problem, "overheads are")
    if plan.splits:
        raise NotApplicableError("overheads are not defined for collectives in chunks")
    nominal = play(problem, plan)  # refuses what does not fit, and what waits for ever
    run = reordered(problem, plan.orders) if plan.orders else problem
    derived = play(derived_step(run, plan, overheads), Plan(plan.buckets))
    return OverheadTimeline(nominal, run, derived, overheads)


def derived_step(run: Problem, plan: Plan, overheads: Overheads) -> Problem:
    """Return the step in which everything that the framework adds is a compute task.

    Collectives keep their names, so the plan fits it.
    """
    return _Derived(run, plan, overheads).problem()


class _Derived:
    """Builds the derived step; ``names`` gives each new task a name that the step does not use."""

    def __init__(self, run: Problem, plan: Plan, overheads: Overheads) -> None:
        self.run, self.overheads = run, overheads
        self.members = fit(run, plan)
        taken = {task.name for task in run.tasks}
        taken.update(task.stream for task in run.tasks if isinstance(task, Compute))
        self.mark = ":"
        while any(name.startswith(self.mark) for name in taken):
            self.mark += ":"
        self.launch_of = {
            run.names[k]: number
            for number, positions in enumerate(self.members.positions)
            for k in positions
        }

    def name(self, what: str, of: object = "") -> str:
        """Return a task's or stream's name."""
        return f"{self.mark}{what} {of}"

    def problem(self) -> Problem:
        """Return the step."""
        tasks: list[Task] = []
        fills, hooks = self._behind()
        for task in self.run.tasks:
            if isinstance(task, Compute):
                after = self._waits(task.after)
                tasks.append(Compute(task.name, task.duration_ns, task.stream, after))
                tasks += fills[task.name]
                tasks += hooks[task.name]
        held = [task.name for task in tasks]
        tasks += fills[""]
        for task in self.run.collectives:
            issued = self.name("issue", self.launch_of[task.name])
            tasks.append(
                Collective(
                    task.name, task.bytes, task.kind, task.group, task.dtype, (issued,),
                    task.device, task.sparse,
                )
            )  # fmt: skip
        tasks += self._launches(held)
        return Problem(
            tasks, self.run.costs, channels=self.run.groups_of_channel, name=self.run.name
        )

    def _waits(self, after: Sequence[str]) -> tuple[str, ...]:
        """Return for what a task waits: gradients are there once they have been handed back."""
        return tuple(
            dict.fromkeys(
                self.name("out", self.launch_of[name]) if name in self.launch_of else name
                for name in after
            )
        )

    def _trigger(self, names: Sequence[str]) -> str:
        """Return the compute task after which collectives are ready last; empty if there is none."""
        end_ns, place = self.run.nominal.end_ns, self._place
        last = [before for name in names for before in self.run.graph.pred[name] if before in place]
        return max(last, key=lambda name: (end_ns[name], place[name]), default="")

    @cached_property
    def _place(self) -> Mapping[str, int]:
        return {task.name: k for k, task in enumerate(self.run.tasks) if isinstance(task, Compute)}

    def _behind(self) -> tuple[Mapping[str, list[Compute]], Mapping[str, list[Compute]]]:
        """Return the copies into buckets, and the launches' holding up, behind each compute task."""
        run, overheads = self.run, self.overheads
        fills: dict[str, list[Compute]] = defaultdict(list)
        hooks: dict[str, list[Compute]] = defaultdict(list)
        # Rounded where they stand in the ready order, so that the sum does not depend on the cut.
        sent: dict[str, int] = defaultdict(int)
        for k in run.ready_order:
            task = run.collectives[k]
            trigger = self._trigger([task.name])
            stream = self.name("fill", task.name)
            took = overheads.fill_ns(task.bytes)
            if trigger and not overheads.filled:
                held = run.graph.nodes[trigger]["task"].stream
                before = sent[held]
                sent[held] += task.bytes
                took = overheads.fill_ns(sent[held]) - overheads.fill_ns(before)
                stream = held
            fill = Compute(self.name("fill", task.name), took, stream, self._waits(task.after))
            fills[trigger if stream != self.name("fill", task.name) else ""].append(fill)
        if overheads.hook_ns:
            for number, positions in enumerate(self.members.positions):
                trigger = self._trigger([run.names[k] for k in positions])
                if trigger:
                    stream = run.graph.nodes[trigger]["task"].stream
                    hooks[trigger].append(
                        Compute(self.name("hook", number), overheads.hook_ns, stream)
                    )
        return fills, hooks

    def _launches(self, held: Sequence[str]) -> list[Task]:
        """Return what is done for each launch before and after it, and the end of all.

        ``held`` are the tasks on the step's own streams.
        """
        run, overheads = self.run, self.overheads
        ends = held if run.settled else ()
        tasks: list[Task] = []
        gradients = sent = done = 0
        for number, (positions, size) in enumerate(zip(*self.members, strict=True)):
            names = [run.names[k] for k in positions]
            issue, wake = self.name("issue", number), self.name("wake", number)
            filled = tuple(self.name("fill", name) for name in names)
            tasks.append(Compute(issue, overheads.issue_ns, issue, filled))
            tasks.append(Compute(wake, overheads.wake_ns, wake, tuple(names)))
            gradients, sent = gradients + len(positions), sent + size
            total = overheads.out_ns(gradients, sent)
            out = self.name("out", number)
            # One launch after the other, so that only the first has to wait for backward.
            stream = self.name("outs") if run.settled else out
            after = (wake, *(ends if not number else ()))
            tasks.append(Compute(out, total - done, stream, after))
            done = total
        outs = [self.name("out", number) for number in range(len(self.members.positions))]
        last = (*held, *outs)
        tasks.append(Compute(self.name("finish"), overheads.finish_ns, self.name("finish"), last))
        return tasks

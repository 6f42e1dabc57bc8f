"""Plans to start a search from: every rule whose plans belong to the scope, with several settings.

Rules hold launches back for reasons of their own. Without limits a launch that may start earlier
never makes the step longer if all orders stay, so the holds are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from commsched.models import Compute, Plan, Problem, Task
from commsched.models.coverage import is_fifo
from commsched.models.errors import DeadlockError, NotApplicableError
from commsched.models.knob import Knob
from commsched.models.timeline import play
from commsched.optimizer.exact import exact_plan, why_not_exact
from commsched.optimizer.incumbent import Incumbent
from commsched.optimizer.registry import RULES, KnobOf
from commsched.optimizer.result import Scope
from commsched.optimizer.rules.byteps import PARTITION_BYTES
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.no_overlap import no_overlap
from commsched.optimizer.rules.one import one_bucket
from commsched.optimizer.rules.p3 import SLICE_ELEMENTS

SLICES = {"p3": 4 * SLICE_ELEMENTS, "byteps": PARTITION_BYTES}
"""Rules without a knob for it that split collectives above so many bytes, which no scope allows."""
SETTINGS = 12
"""How many values of a rule's knob are tried: all bytes, half of them, a quarter, ..."""


def in_scope(problem: Problem, plan: Plan, scope: Scope) -> bool:
    """Return whether a plan counts: it has no chunks, and its buckets and order are of the scope.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> problem = GradientProblem([Gradient("a", 1, 0), Gradient("b", 1, 1)], AlphaBeta(1, 1))
    >>> [in_scope(problem, Plan.of([["b"], ["a"]]), scope) for scope in ("in-order", "any")]
    [False, True]
    """
    if plan.splits:
        return False
    if scope == "any":
        return True
    if scope == "fifo":
        try:
            return is_fifo(play(problem, plan))
        except DeadlockError:
            return False
    sent = dict.fromkeys(problem.chains, 0)
    for bucket in plan.buckets:
        positions = {problem.index[name] for name in bucket.names}
        key = problem.keys[min(positions)]
        begin = sent[key]
        sent[key] = begin + len(positions)
        if set(problem.chains[key][begin : sent[key]]) != positions:
            return False
    return True


def start(
    incumbent: Incumbent, until: float, *, quick: bool = False, most: int | None = None
) -> None:
    """Offer the plans of the rules, quick ones first, until a moment of :func:`time.monotonic`.

    The first of them, one launch a collective in ready order, always runs and is always offered. So
    do all rules with their defaults unless ``quick``: no limit makes a search worse than a rule.

    Parameters
    ----------
    incumbent
        Whom to offer them to.
    until
        When to stop.
    quick
        Whether the rules of :data:`KNOWN` are enough.
    most
        How many plans are tried at most, if that is fewer than the time allows.
    """
    problem = incumbent.problem
    quickly = ((name, make, False) for name, make in KNOWN)
    for tried, (name, make, always) in enumerate(quickly if quick else _all_rules(problem)):
        over = time.monotonic() > until or (most is not None and tried >= most)
        if incumbent.plan is not None and ((over and not always) or incumbent.met):
            return
        try:
            plan = make(problem)
        except (NotApplicableError, DeadlockError):
            continue
        # A queue that is served first come, first served holds nothing back.
        held = problem.limits and incumbent.scope != "fifo"
        plan = plan if held else _without_holds(plan)
        if in_scope(problem, plan, incumbent.scope):
            incumbent.offer(plan, f"rule {name}")


def _all_rules(problem: Problem) -> Iterator[tuple[str, Callable[[Problem], Plan], bool]]:
    """Yield all rules with their defaults, which are always tried; then more settings of each."""
    largest = max(problem.bytes)
    for rule in RULES:
        if largest <= SLICES.get(rule.name, largest):
            yield rule.name, rule.make, True
    for rule in RULES:
        for knob in rule.knobs:
            if isinstance(knob, KnobOf) and not knob.cuts:
                for halvings in range(SETTINGS):
                    yield rule.name, _with_setting(knob, halvings), False


def _with_setting(knob: KnobOf, halvings: int) -> Callable[[Problem], Plan]:
    unit = min(knob.unit_bytes, 16)
    return lambda problem: knob.make(
        problem, Knob(max(1, sum(problem.bytes) // (unit * 2**halvings)))
    )


def _without_holds(plan: Plan) -> Plan:
    if not any(bucket.not_before_ns for bucket in plan.buckets):
        return plan
    return replace(plan, buckets=tuple(replace(b, not_before_ns=0) for b in plan.buckets))


def best_known(problem: Problem, scope: Scope = "in-order") -> tuple[str, Plan] | None:
    """Return the quick rule's name and plan with the least makespan, then fewest launches.

    Also tried is the plan that the recurrence would give if ready times were fixed. None if limits
    forbid all of these.
    """
    incumbent = Incumbent(problem, scope)
    start(incumbent, incumbent.until, quick=True)
    if incumbent.plan is None:
        return None
    return incumbent.method.removeprefix("rule "), incumbent.plan


def first_come(problem: Problem) -> Plan:
    """Return one launch a collective, on every channel the one that is ready first.

    The order is that of the ready times that it leads to: it is found by running the plan until
    the order of its launches and that of their ready times agree.

    Raises
    ------
    NotApplicableError
        If they never do.
    """
    plan = one_each(problem)
    for _ in range(len(problem.names) + 2):
        timeline = play(problem, plan)
        if is_fifo(timeline):
            return plan
        launches = sorted(timeline.launches, key=lambda launch: launch.ready_ns)
        plan = Plan.of(launch.names for launch in launches)
    raise NotApplicableError("no order in which launches are ready was found")


def _as_if_settled(problem: Problem) -> Plan:
    """Return the best in-order plan for the nominal ready times, which may move."""
    if problem.settled:
        if why_not_exact(problem, "in-order") is not None:
            raise NotApplicableError("no recurrence for this class")
        return exact_plan(problem).plan
    taken = {task.name for task in problem.tasks}
    tasks: list[Task] = []
    for position in problem.ready_order:
        gate = f"ready {position}"
        if gate in taken:
            raise NotApplicableError("names clash")
        tasks.append(Compute(gate, problem.ready_ns[position], stream=gate))
        tasks.append(replace(problem.collectives[position], after=(gate,), hold=None))
    relaxed = Problem(tasks, problem.costs, channels=problem.groups_of_channel)
    if why_not_exact(relaxed, "in-order") is not None:
        raise NotApplicableError("no recurrence for this class")
    return exact_plan(relaxed).plan


KNOWN: tuple[tuple[str, Callable[[Problem], Plan]], ...] = (
    ("one-each", one_each),
    ("ddp", ddp),
    ("one-bucket", one_bucket),
    ("no-overlap", no_overlap),
    ("fixed ready times", _as_if_settled),
    ("first come, first served", first_come),
)
"""What every search starts from: quick rules, each of scope in-order and without chunks."""

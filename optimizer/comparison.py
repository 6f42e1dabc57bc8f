"""Every rule on one step, beside the optimum and the lower bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from commsched.models import Plan, Problem, Timeline
from commsched.models.errors import DeadlockError, NotApplicableError
from commsched.models.timeline import play
from commsched.models.units import MIB, format_bytes, format_ns
from commsched.optimizer.result import Result
from commsched.optimizer.rules import RULES
from commsched.optimizer.solve import optimize
from commsched.optimizer.tuning import CapTuning, best_cap


@dataclass(frozen=True)
class Row:
    """What one rule does to the step.

    Attributes
    ----------
    name, title, setting
        The rule; ``name`` is fixed, the others are for people.
    plan, timeline
        Its plan and what that does.
    over_optimal_ns
        How much longer the step is than with the optimal plan. A rule can fall below the optimal
        plan by rounding (less than a nanosecond a launch); that counts as 0.
    """

    name: str
    title: str
    setting: str
    plan: Plan = field(repr=False)
    timeline: Timeline = field(repr=False)
    over_optimal_ns: int

    @property
    def launches(self) -> int:
        """How many launches the plan has."""
        return self.plan.launches


@dataclass(frozen=True)
class Comparison:
    """The outcome of :func:`compare`.

    Attributes
    ----------
    result
        The optimum (or the best known plan) with its bound and proof.
    rows
        The rules, best first.
    skipped
        Rules that do not apply, with the reason.
    cap
        All single caps for DDP's rule, or None where that does not apply.
    """

    result: Result
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...]
    cap: CapTuning | None

    @property
    def optimal(self) -> Row:
        """The best plan as a row."""
        plan = self.result.plan
        assert plan is not None
        title = f"optimum, scope {self.result.scope}"
        if self.result.status != "optimal":
            title = f"best known, scope {self.result.scope}"
        return Row("optimal", title, "", plan, self.result.timeline, 0)

    @property
    def lower_bound_ns(self) -> int:
        """No plan of the scope has a smaller makespan, in nanoseconds."""
        return self.result.lower_bound_ns

    def row(self, name: str) -> Row:
        """Return the row of a rule.

        Raises
        ------
        KeyError
            If the rule is not there.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


def compare(
    problem: Problem,
    *,
    scope: str = "in-order",
    time_limit_s: float = 60.0,
    result: Result | None = None,
) -> Comparison:
    """Evaluate every rule on a step and set it beside the optimum.

    Parameters
    ----------
    problem
        The step.
    scope, time_limit_s
        As for :func:`commsched.optimize`.
    result
        The optimum, if it is already known.

    Returns
    -------
    Comparison
        A plain object; rows are sorted by makespan, then launches.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> comparison = compare(GradientProblem(
    ...     [Gradient("b", 5000, ready_ns=10), Gradient("a", 5000, ready_ns=20)], AlphaBeta(3, 1)))
    >>> [(row.name, row.over_optimal_ns) for row in comparison.rows][0]
    ('ddp', 0)
    """
    if result is None:
        result = optimize(problem, scope=scope, time_limit_s=time_limit_s)
    best_ns = result.makespan_ns
    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []

    def add(name: str, title: str, setting: str, plan: Plan) -> None:
        timeline = play(problem, plan)
        over = max(0, timeline.makespan_ns - best_ns)
        rows.append(Row(name, title, setting, plan, timeline, over))

    for rule in RULES:
        try:
            add(rule.name, rule.title, rule.setting, rule.make(problem))
        except (NotApplicableError, DeadlockError) as error:
            skipped.append((rule.name, str(error)))
    cap: CapTuning | None = None
    try:
        cap = best_cap(problem)
        add(
            "ddp-best-cap",
            "PyTorch DDP best single cap",
            f"bucket_cap_mb={handy_cap_mib(cap.best.low_bytes, cap.best.high_bytes):g}",
            cap.plan,
        )
    except (NotApplicableError, DeadlockError) as error:
        skipped.append(("ddp-best-cap", str(error)))
    rows.sort(key=lambda row: (row.timeline.makespan_ns, row.launches, row.name))
    return Comparison(result, tuple(rows), tuple(skipped), cap)


def caps_text(low_bytes: int, high_bytes: int | None) -> str:
    """Return a range of caps for people.

    Examples
    --------
    >>> caps_text(2**20, 2**22), caps_text(1, 2**22), caps_text(2**20, None)
    ('from 1.00 MiB to 4.00 MiB', 'up to 4.00 MiB', '1.00 MiB or more')
    """
    if high_bytes is None:
        return f"{format_bytes(low_bytes)} or more" if low_bytes > 1 else "any"
    if low_bytes <= 1:
        return f"up to {format_bytes(high_bytes)}"
    return f"from {format_bytes(low_bytes)} to {format_bytes(high_bytes)}"


def handy_cap_mib(low_bytes: int, high_bytes: int | None) -> float:
    """Return the number with the fewest digits among the caps of a range, in MiB.

    Examples
    --------
    >>> handy_cap_mib(67108865, 100663296), handy_cap_mib(1048577, 1100000)
    (70.0, 1.01)
    """
    high_bytes = 2 * low_bytes + MIB if high_bytes is None else high_bytes
    for exponent in range(6, -7, -1):
        step = Fraction(10) ** exponent
        first = math.ceil(Fraction(low_bytes, MIB) / step) * step
        if first * MIB <= high_bytes and int(float(first) * MIB) >= low_bytes:
            return float(first)
    return high_bytes / MIB


def verdict(result: Result, today: Row | None) -> str:
    """Return in one sentence whether tuning is worth it.

    Parameters
    ----------
    result
        The optimum or best known plan.
    today
        What the framework does now, if a rule says so.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> comparison = compare(GradientProblem([Gradient("a", 5000, ready_ns=10)], AlphaBeta(3, 1)))
    >>> verdict(comparison.result, comparison.row("ddp"))
    'nothing to gain: PyTorch DDP default is already optimal; do not tune'
    """
    if today is None:
        return (
            f"the plan below exposes {format_ns(result.exposed_ns)}; "
            f"no plan can expose less than {format_ns(_least_exposed(result))}"
        )
    now_ns = today.timeline.makespan_ns
    most, gained = now_ns - result.lower_bound_ns, now_ns - result.makespan_ns
    name = today.title
    if most <= today.launches:
        verb = "are" if name.endswith("buckets") else "is"
        return f"nothing to gain: {name} {verb} already optimal; do not tune"
    share = percent(most, now_ns)
    if most * 1000 < now_ns:
        return (
            f"not worth it: at most {format_ns(most)} ({share}) of this step can be gained "
            f"over {name}; do not tune"
        )
    return (
        f"at most {format_ns(most)} ({share}) of this step can be gained over {name}; "
        f"the plan below gains {format_ns(gained)} of it"
    )


def _least_exposed(result: Result) -> int:
    return max(0, result.lower_bound_ns - result.timeline.compute_ns)


def percent(part: int, whole: int) -> str:
    """Return a share for people: one decimal, or two figures below one per cent.

    Examples
    --------
    >>> percent(123, 1000), percent(1, 3000)
    ('12.3%', '0.033%')
    """
    value = 100 * part / whole
    return f"{value:.1f}%" if value >= 1 else f"{value:.2g}%"

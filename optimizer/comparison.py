"""Every rule on one step, beside the optimum and the lower bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from commsched.models import Plan, Problem, Timeline
from commsched.models.errors import DeadlockError, MissingExtraError, NotApplicableError
from commsched.models.given import given, items_of
from commsched.models.knob import Setting
from commsched.models.timeline import play
from commsched.models.units import format_ns, us_from_ns
from commsched.optimizer.registry import RULES, BestSetting, KnobOf, Tunable, rule
from commsched.optimizer.result import Result
from commsched.optimizer.rules.rows import Decide, Decision
from commsched.optimizer.solve import TIME_LIMIT_S, optimize

Tell = Callable[[int, int, str], None]
"""Takes how many steps are done, of how many, and what is being done."""
TOLD_EVERY = 64
"""While a best setting is looked for, every so many plans are told."""


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
        plan by rounding (less than a nanosecond a launch); that counts as 0. It is negative for a
        plan that is better because it is outside of the scope: reordered, or split into chunks.
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

    @property
    def optimal_ns(self) -> int:
        """The optimal plan's makespan, what distances are shares of; at least a nanosecond."""
        return max(1, self.timeline.makespan_ns - self.over_optimal_ns)

    def record(self) -> dict[str, str | int | float]:
        """Return the row as plain data, times in microseconds."""
        makespan_ns = self.timeline.makespan_ns
        return {
            "name": self.name,
            "title": self.title,
            "setting": self.setting,
            "exposed_us": us_from_ns(self.timeline.exposed_ns),
            "makespan_us": us_from_ns(makespan_ns),
            "launches": self.launches,
            "peak_bytes": self.timeline.peak_bytes,
            "over_optimal_us": us_from_ns(self.over_optimal_ns),
            "over_optimal_percent": 100 * self.over_optimal_ns / self.optimal_ns,
        }


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
    best_settings
        By row name (``ddp-best``): the best setting of a rule over all values.
    """

    result: Result
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...]
    best_settings: Mapping[str, BestSetting]

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

    def records(self) -> list[dict[str, str | int | float | None]]:
        """Return the table as plain data: lower bound, optimum, then the rules, best first."""
        compute_ns = self.result.timeline.compute_ns
        bound: dict[str, str | int | float | None] = dict.fromkeys(self.optimal.record())
        bound |= {
            "name": "lower-bound",
            "title": f"lower bound, scope {self.result.scope}",
            "setting": "",
            "exposed_us": us_from_ns(max(0, self.lower_bound_ns - compute_ns)),
            "makespan_us": us_from_ns(self.lower_bound_ns),
        }
        records = [bound]
        for row in (self.optimal, *self.rows):
            records.append({**row.record()})
        return records

    def to_pandas(self) -> Any:  # noqa: ANN401
        """Return :meth:`records` as a ``pandas.DataFrame``.

        Raises
        ------
        MissingExtraError
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("to_pandas needs pandas: pip install pandas") from None
        return pd.DataFrame(self.records())

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
    time_limit_s: float = TIME_LIMIT_S,
    result: Result | None = None,
    rules: Collection[str] | None = None,
    best_settings: bool = True,
    progress: Tell | None = None,
) -> Comparison:
    """Evaluate every rule on a step, as it comes and with its best setting, beside the optimum.

    Parameters
    ----------
    problem
        The step.
    scope, time_limit_s
        As for :func:`commsched.optimize`.
    result
        The optimum, if it is already known.
    rules
        Names of the rules to look at; by default all.
    best_settings
        Whether to find the best settings, too; that takes seconds for a thousand gradients.
    progress
        Called with how many plans and settings were looked at, of how many, and what is being
        looked at: before each of them, on the way, and at the end.

    Returns
    -------
    Comparison
        A plain object without the rules whose plans break a limit; rows are sorted by makespan,
        then launches.

    Raises
    ------
    NotApplicableError
        If no plan of the step is known, so that there is nothing to compare with.

    Examples
    --------
    >>> from commsched.models import AlphaBeta, Gradient, GradientProblem
    >>> comparison = compare(GradientProblem(
    ...     [Gradient("b", 5000, ready_ns=10), Gradient("a", 5000, ready_ns=20)], AlphaBeta(3, 1)))
    >>> [(row.name, row.over_optimal_ns) for row in comparison.rows][0]
    ('ddp', 0)
    """
    given(problem, Problem, "problem")
    if result is not None:
        given(result, Result, "result")
    else:
        result = optimize(problem, scope=scope, time_limit_s=time_limit_s)
    if result.plan is None:
        raise NotApplicableError(f"no plan to compare with: {result.status}: {result.reason}")
    best_ns = result.makespan_ns
    rows: list[Row] = []
    skipped: list[tuple[str, str]] = []

    found_settings: dict[str, BestSetting] = {}

    def add(name: str, title: str, setting: str, plan: Plan) -> None:
        timeline = play(problem, plan)
        if timeline.broken:
            skipped.append((name, f"breaks a limit: {timeline.broken[0]}"))
            return
        over = timeline.makespan_ns - best_ns
        if -plan.launches <= over < 0:
            over = 0  # rounding
        rows.append(Row(name, title, setting, plan, timeline, over))

    chosen = RULES if rules is None else [rule(name) for name in items_of(rules, "rules", str)]
    looks = [
        (each, knob) for each in chosen for knob in (None, *(each.knobs if best_settings else ()))
    ]
    refused: set[str] = set()
    tell = progress or _nothing
    for done, (each, knob) in enumerate(looks):
        now = each.title if knob is None else f"{each.title}, best setting"
        tell(done, len(looks), now)
        if each.name in refused:
            continue
        name = each.name if knob is None else f"{each.name}-{knob.suffix}"
        try:
            if knob is None:
                add(name, each.title, each.setting, each.make(problem))
                continue
            counted = _counted(knob, partial(_tell_made, tell, (done, len(looks)), now))
            found = counted.best(problem)
        except (NotApplicableError, DeadlockError) as error:
            stuck = isinstance(error, DeadlockError)  # its path may name every collective
            skipped.append((name, "its launches wait for each other" if stuck else str(error)))
            if knob is None:
                refused.add(name)
            continue
        add(name, each.title, f"best: {found.setting}", found.plan)
        if rows and rows[-1].name == name:
            found_settings[name] = found
    tell(len(looks), len(looks), "")
    rows.sort(key=lambda row: (row.timeline.makespan_ns, row.launches, row.name))
    return Comparison(result, tuple(rows), tuple(skipped), found_settings)


def _nothing(*_: object) -> None:
    """Tell nobody."""


def _tell_made(tell: Tell, place: tuple[int, int], now: str, made: int) -> None:
    tell(*place, f"{now}, {made:,} plans")


def _counted(knob: Tunable, tell: Callable[[int], None]) -> Tunable:
    """Return a knob that tells now and then how many plans it has made."""
    if not isinstance(knob, KnobOf):
        return knob
    make, made = knob.make, 0

    def count(problem: Problem, setting: Setting) -> Plan:
        nonlocal made
        made += 1
        if made % TOLD_EVERY == 0:
            tell(made)
        return make(problem, setting)

    def decides(problem: Problem) -> Decide | None:
        decide = knob.decide(problem)
        if decide is None:
            return None

        def look(setting: Setting) -> Decision:
            nonlocal made
            made += 1
            if made % TOLD_EVERY == 0:
                tell(made)
            return decide(setting)

        return look

    return replace(knob, make=count, decide=decides)


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
    'nothing to gain: PyTorch DDP (1 MiB, then 25 MiB) is already optimal; do not tune'
    """
    if today is None:
        return (
            f"the best plan exposes {format_ns(result.exposed_ns)}; "
            f"no plan can expose less than {format_ns(_least_exposed(result))}"
        )
    now_ns = today.timeline.makespan_ns
    most, gained = now_ns - result.lower_bound_ns, now_ns - result.makespan_ns
    name = f"{today.title} ({today.setting})" if today.setting else today.title
    if most <= today.launches:
        verb = "are" if today.title.endswith("buckets") else "is"
        return f"nothing to gain: {name} {verb} already optimal; do not tune"
    share = percent(most, now_ns)
    if most * 1000 < now_ns:
        return (
            f"not worth it: at most {format_ns(most)} ({share}) of this step can be gained "
            f"over {name}; do not tune"
        )
    return (
        f"at most {format_ns(most)} ({share}) of this step can be gained over {name}; "
        f"the best plan gains {format_ns(gained)} of it"
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

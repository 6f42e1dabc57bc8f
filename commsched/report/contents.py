"""What a report shows: decided and computed here, drawn and written elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from commsched.cases import Case
from commsched.models.errors import ExtrapolationWarning, NotApplicableError
from commsched.optimizer import Comparison, Result, Row, Status, compare, conflict, rule, verdict
from commsched.optimizer.registry import KnobOf
from commsched.problems import Loaded, Network
from commsched.report.curve import (
    Curve,
    curve_of_tuning,
    has_curve,
    other_curves,
    sampled_curve,
)
from commsched.report.overheads import KnownOverheads, WithOverheads, with_overheads
from commsched.report.running import (
    Framework,
    best_setting_row,
    framework_of,
    sampled_row,
)
from commsched.report.safety import Safety, safety
from commsched.report.slowed import Slowed, slowed
from commsched.report.stability import Stability, stability
from commsched.report.what_if import WhatIf, what_if
from commsched.slowing import KnownSlowdown
from commsched.today import TODAY, today

MOST_COMPARED = 150
"""Up to so many collectives every rule's best setting is found, which takes some seconds."""
MOST_TUNED = 500
"""Up to so many, all caps of the framework are visited; beyond, a sample."""


@dataclass(frozen=True)
class Contents:
    """Everything that a report shows.

    Attributes
    ----------
    file
        What the user named.
    loaded
        The problem and where it comes from.
    result
        The optimum, the best known plan, or the proof that there is none.
    verdict
        In a sentence what is proved and whether tuning is worth it.
    today
        What runs today; it may break a limit.
    comparison, framework, what_if, stability, slowed, safety
        Beside a plan; None without one.
    overheads
        Likewise; None also where nobody says what the framework adds.
    curve
        What every cap of the framework's rule gives; None if no rule with a cap applies.
    other_curves
        What every cap of the other rules gives.
    notes
        What was left out of the comparison for lack of time.
    """

    file: str
    loaded: Loaded
    result: Result
    verdict: str
    today: Row | None
    comparison: Comparison | None = None
    framework: Framework | None = None
    curve: Curve | None = None
    other_curves: tuple[Curve, ...] = ()
    what_if: WhatIf | None = None
    stability: Stability | None = None
    slowed: Slowed | None = None
    overheads: WithOverheads | None = None
    safety: Safety | None = None
    notes: tuple[str, ...] = ()


def gather(
    file: str,
    loaded: Loaded,
    result: Result,
    *,
    framework: str | None = None,
    slowdown: KnownSlowdown | None = None,
    overheads: KnownOverheads | None = None,
    others: Sequence[Case] = (),
    network: Network | None = None,
    time_limit_s: float,
    workers: int,
    progress: Callable[[int, int, str], None] | None = None,
) -> Contents:
    """Compute everything that a report shows.

    Parameters
    ----------
    file
        What the user named.
    loaded, result
        The problem and what the optimizer says of it.
    framework
        A name in :data:`~commsched.export.EXPORTERS`; None takes the first that applies.
    slowdown
        How much communication slows compute; None shows some examples.
    overheads
        What the framework adds.
    others
        Other cases that a plan should be good for.
    network
        Where the costs come from, if they are not the problem's own.
    time_limit_s, workers
        For each search: under the slowdown, for the other cases, and for limits that exclude each
        other where there is no plan.
    progress
        Called with how many parts are done, of how many, and what comes next.
    """
    if result.plan is None:
        sentence = _no_plan(result, time_limit_s, workers)
        return Contents(file, loaded, result, sentence, today(loaded, 0))
    with warnings.catch_warnings():
        # The page lists among its doubts what the step as it is would warn of.
        warnings.simplefilter("ignore", ExtrapolationWarning)
        parts = _Parts(progress)
        found = _with_plan(file, loaded, result, framework, parts)
        assert found.framework is not None
        return replace(
            found,
            slowed=slowed(
                result,
                found.today,
                slowdown,
                time_limit_s=time_limit_s,
                tell=parts.next("slowdown"),
            ),
            overheads=_with_overheads(found, overheads, parts.next("overheads")),
            safety=safety(
                result,
                file,
                others,
                network,
                found.framework.name,
                time_limit_s=time_limit_s,
                tell=parts.next("other cases"),
            ),
        )


class _Parts:
    """Tells which of the page's parts is being computed."""

    COUNT = 7

    def __init__(self, progress: Callable[[int, int, str], None] | None) -> None:
        self._progress = progress
        self._done = -1

    def next(self, part: str) -> Callable[[str], None]:
        """Begin a part; return what is to be called with what is done within it."""
        self._done += 1
        done = self._done

        def tell(now: str) -> None:
            if self._progress is not None:
                self._progress(done, self.COUNT, f"{part}: {now}" if now else part)

        tell("")
        return tell


def _with_plan(
    file: str, loaded: Loaded, result: Result, framework: str | None, parts: _Parts
) -> Contents:
    now = today(loaded, result.makespan_ns)
    comparison, sample, notes = _comparison(result, framework, parts.next("rules"))
    used = framework_of(framework, result, comparison.rows)
    kept = [("the best plan", comparison.optimal)]
    if now is not None:
        kept.insert(0, (_titled(now), now))
    if used.row is not None and (now is None or used.row.plan != now.plan):
        kept.insert(-1, (_titled(used.row), used.row))
    kept = [(title, row) for title, row in kept if not row.timeline.broken]
    tell = parts.next("caps")
    curve = sample or _curve(comparison, used.name)
    curves = other_curves(comparison, curve, tell=tell)
    parts.next("what if")
    others = what_if(result, kept)
    tell = parts.next("how wrong the numbers may be")
    return Contents(
        file,
        loaded,
        result,
        verdict(result, None if now is None or now.timeline.broken else now),
        now,
        comparison,
        used,
        curve,
        curves,
        others,
        stability(result, tell),
        notes=notes,
    )


def _with_overheads(
    found: Contents, known: KnownOverheads | None, tell: Callable[[str], None]
) -> WithOverheads | None:
    """Return what today's plan, the framework's best and others do with overheads, if there are any."""
    assert found.framework is not None
    if known is None:
        return None
    rows = [row for row in (found.today, found.framework.row) if row is not None]
    if len(rows) > 1 and rows[0].plan == rows[1].plan:
        rows.pop()
    tell("planning with them")
    titled = [(_titled(row), row) for row in rows]
    return with_overheads(found.result, titled, known, found.framework.name)


def _titled(row: Row) -> str:
    return f"{row.title} ({row.setting})" if row.setting else row.title


def _no_plan(result: Result, time_limit_s: float, workers: int) -> str:
    """Say why there is no plan, and which limits exclude each other."""
    if result.status is Status.INFEASIBLE:
        found = conflict(
            result.problem, scope=result.scope, time_limit_s=time_limit_s, workers=workers
        )
        if found is not None:
            named = "; ".join(limit.label for limit in found)
            return f"no plan keeps {'' if len(found) == 1 else 'together '}{named}"
    return result.reason


def _comparison(
    result: Result, framework: str | None, tell: Callable[[str], None]
) -> tuple[Comparison, Curve | None, tuple[str, ...]]:
    """Return all rules, a curve where it is a sample, and what is missing.

    Beyond some size only the framework's best setting is among the rules, and beyond a larger one
    the best of a sample.
    """
    problem, count = result.problem, len(result.problem.names)
    every = count <= MOST_COMPARED
    comparison = compare(
        problem,
        result=result,
        best_settings=every,
        progress=lambda done, total, now: tell(now),
    )
    if every:
        return comparison, None, ()
    notes = [
        f"best settings of other rules: not searched beyond {MOST_COMPARED} collectives "
        "(commsched compare searches them)"
    ]
    names = (framework,) if framework else TODAY
    name = next((n for n in names if any(row.name == n for row in comparison.rows)), None)
    if name is None or not has_curve(name):
        return comparison, None, tuple(notes)
    sample, settings = None, {}
    try:
        if count > MOST_TUNED:
            notes.append(f"most caps of {rule(name).title}: a sample of them was tried")
            sample = sampled_curve(problem, name)
            row = sampled_row(problem, sample, result.makespan_ns)
        else:
            knob = next(knob for knob in rule(name).knobs if isinstance(knob, KnobOf))
            settings[f"{name}-best"] = found = knob.best(problem)
            row = best_setting_row(problem, name, found, result.makespan_ns)
    except NotApplicableError as error:
        return comparison, None, (*notes, str(error))
    if row.timeline.broken:
        return comparison, sample, tuple(notes)
    rows = sorted(
        [*comparison.rows, row], key=lambda r: (r.timeline.makespan_ns, r.launches, r.name)
    )
    comparison = replace(comparison, rows=tuple(rows), best_settings=settings)
    return comparison, sample, tuple(notes)


def _curve(comparison: Comparison, framework: str) -> Curve | None:
    """Return the framework's curve, or that of the first rule that has one; sampled if it must be."""
    names = (framework, *TODAY)
    for name in names:
        found = comparison.best_settings.get(f"{name}-best")
        if found is not None and found.tuning is not None and has_curve(name):
            return curve_of_tuning(comparison.result.problem, name, found.setting, found.tuning)
    for name in names:
        if any(row.name == name for row in comparison.rows) and has_curve(name):
            try:
                return sampled_curve(comparison.result.problem, name)
            except NotApplicableError:
                continue
    return None

"""Which plan the report shows beside today's and the optimum: the framework at its best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsched.export import EXPORTERS, Export, export
from commsched.models import Problem
from commsched.models.errors import CommschedError
from commsched.optimizer import RULES, BestSetting, Result, Row, rule
from commsched.report.curve import Curve
from commsched.today import TODAY, row_of


@dataclass(frozen=True)
class Framework:
    """What a framework makes of the step.

    Attributes
    ----------
    name, title
        As in :data:`~commsched.export.EXPORTERS`, and for people.
    row
        The best that its own settings give, if that is known: never better than the optimum unless
        it is outside of the scope.
    export
        The settings for the best plan, with what they lose; None if there are none.
    why_not
        Why there is no export, or none for the framework that most would think of first.
    """

    name: str
    title: str
    row: Row | None
    export: Export | None
    why_not: str


def framework_of(
    name: str | None,
    result: Result,
    rows: Sequence[Row],
) -> Framework:
    """Return what a framework makes of the best plan, and the best of its own settings.

    Parameters
    ----------
    name
        A name in :data:`~commsched.export.EXPORTERS`; None takes the first that can run the plan.
    result
        A result with a plan.
    rows
        The rules' rows.
    """
    problem, plan = result.problem, result.plan
    assert plan is not None
    chosen, found, why = "", None, ""
    for chosen in (name,) if name else (*TODAY, *(one for one in EXPORTERS if one not in TODAY)):
        try:
            found = export(problem, plan, chosen)
        except CommschedError as error:  # a framework that cannot run the plan is no failure
            why = why or str(error)
        else:
            break
    if found is None and name is None:
        chosen = TODAY[0]
    own = [row for row in rows if _rule_of(row.name) == chosen]
    if found is not None and found.projected is not None and not found.exact:
        setting, projected = "the settings to paste", found.projected
        own.append(row_of(problem, chosen, found.title, setting, projected, result.makespan_ns))
    best = min(own, key=lambda row: (row.timeline.makespan_ns, row.launches), default=None)
    return Framework(chosen, _title(chosen) if found is None else found.title, best, found, why)


def _title(framework: str) -> str:
    return next((known.title for known in RULES if known.name == framework), framework)


def _rule_of(row: str) -> str:
    """Return the rule of a row that may be its best setting."""
    return row.removesuffix("-pair").removesuffix("-best")


def best_setting_row(problem: Problem, name: str, found: BestSetting, best_ns: int) -> Row:
    """Return a rule's best setting as a row."""
    setting = f"best: {found.setting}"
    return row_of(problem, f"{name}-best", rule(name).title, setting, found.plan, best_ns)


def sampled_row(problem: Problem, curve: Curve, best_ns: int) -> Row:
    """Return the best of the caps that were tried as a row."""
    setting = f"best of {len(curve.ranges)} tried: {curve.setting}"
    return row_of(problem, f"{curve.name}-best", curve.title, setting, curve.plan, best_ns)

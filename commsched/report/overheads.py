"""The step with what the framework itself adds: figures with and without, and the plan made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from commsched.export import Export, export
from commsched.models import Plan, Problem
from commsched.models.errors import CommschedError, InputError, NotApplicableError
from commsched.models.overheads import Overheads, OverheadTimeline, play_overheads
from commsched.optimizer import Result, Row
from commsched.overheads_output import UnderOverheads, under_overheads


@dataclass(frozen=True)
class KnownOverheads:
    """Overheads, and where they come from.

    Attributes
    ----------
    overheads
        The terms.
    source
        The file.
    """

    overheads: Overheads
    source: str


@dataclass(frozen=True)
class WithOverheads:
    """What is known of the step with overheads.

    Attributes
    ----------
    known
        The overheads.
    rows
        Title, and plan with overheads, ending with the plan that is made for them.
    kept
        The plan that is best without them.
    found
        The plan for them, and what is proved; None if nothing can be said.
    settings
        The framework's settings for that plan where it is another one than the page's.
    why_not
        Why nothing can be said; else empty.
    """

    known: KnownOverheads
    rows: tuple[tuple[str, OverheadTimeline], ...] = field(default=(), repr=False)
    kept: OverheadTimeline | None = field(default=None, repr=False)
    found: UnderOverheads | None = field(default=None, repr=False)
    settings: Export | None = None
    why_not: str = ""

    @property
    def changes(self) -> bool:
        """Whether the plan for them is another one than the best without."""
        return self.found is not None and self.found.result.plan != self.found.nominal


def with_overheads(
    result: Result, rows: Sequence[tuple[str, Row]], known: KnownOverheads, framework: str
) -> WithOverheads:
    """Return what plans do with overheads, and the plan that is made for them.

    Parameters
    ----------
    result
        A result with a plan.
    rows
        Other plans to show, with their titles.
    known
        The overheads.
    framework
        Whose settings to give for the plan.
    """
    problem, terms = result.problem, known.overheads
    try:
        found = under_overheads(result, terms)
        kept = play_overheads(problem, found.nominal, terms)
    except NotApplicableError as error:
        return WithOverheads(known, why_not=str(error))
    shown = []
    for title, row in rows:
        if row.timeline.broken or row.plan == found.nominal:
            continue
        try:
            shown.append((title, play_overheads(problem, row.plan, terms)))
        except (InputError, NotApplicableError):  # the plan cannot run, or is one in chunks
            continue
    shown.append(("the best plan", kept))
    settings = None
    if found.result.plan is not None and found.result.plan != found.nominal:
        shown.append(("the plan made for them", found.timeline))
        settings = _settings(problem, found.result.plan, framework)
    return WithOverheads(known, tuple(shown), kept, found, settings)


def _settings(problem: Problem, plan: Plan, framework: str) -> Export | None:
    try:
        return export(problem, plan, framework)
    except CommschedError:  # a framework that cannot run the plan is no failure
        return None


def terms_text(overheads: Overheads) -> str:
    """Return the terms that are not at their defaults, for people.

    Examples
    --------
    >>> terms_text(Overheads(issue_us=12.5, filled=False)), terms_text(Overheads())
    ('issue_us 12.5, filled false', 'no term')
    """
    return ", ".join(f"{name} {_value(value)}" for name, value in overheads.as_row().items()) or (
        "no term"
    )


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{float(str(value)):g}"

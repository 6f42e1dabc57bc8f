"""What an exporter returns: settings, the plan that they really give, and what that loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from commsched.export.source import ExportSource
from commsched.models import Plan, Problem, evaluate
from commsched.models.errors import DeadlockError, NotApplicableError

NOT_SIMULATED = (
    "not simulated: without the problem nothing says what the framework makes of these settings"
)
Language = Literal["python", "json", "sh"]


@dataclass(frozen=True)
class Export:
    """A plan as a framework's settings.

    Attributes
    ----------
    framework, title
        The framework's short name and its name for people.
    exact
        Whether the framework forms exactly the plan's buckets and launches them in the plan's order,
        by simulation of its own rule on these settings. False if it could not be simulated.
    settings
        The settings as plain data.
    text, language
        The lines to paste, and what they are.
    projected
        The plan that the framework really runs; None if it could not be simulated.
    lost_ns
        By how much that makes the step longer than the plan does (negative: shorter); None as above.
    cannot
        What of the plan the framework cannot express.
    needs
        Versions and other preconditions without which something else happens.
    """

    framework: str
    title: str
    exact: bool
    settings: Mapping[str, Any]
    text: str
    language: Language
    projected: Plan | None
    lost_ns: int | None
    cannot: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """An export before its projection is compared with the plan."""

    title: str
    settings: Mapping[str, Any]
    text: str
    language: Language
    cannot: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    projected: Plan | None = None


def finished(source: ExportSource, framework: str, draft: Draft) -> Export:
    """Return a draft with what its projection loses.

    Raises
    ------
    NotApplicableError
        If what the framework would run breaks a limit of the problem or never ends, or the plan
        holds launches back in a way that is not the framework's own.
    """
    exact, lost_ns, needs = False, None, draft.needs
    if source.problem is None:
        needs = (NOT_SIMULATED, *needs)
    elif draft.projected is not None:
        exact = same_buckets(source.problem, source.plan, draft.projected)
        lost_ns = lost(source.problem, source.plan, draft.projected, draft.title)
    if not exact and any(bucket.not_before_ns for bucket in source.plan.buckets):
        raise NotApplicableError(
            f"{draft.title}: the plan holds launches back, and what runs would be another plan"
        )
    return Export(
        framework,
        draft.title,
        exact,
        draft.settings,
        draft.text,
        draft.language,
        None if source.problem is None else draft.projected,
        lost_ns,
        draft.cannot,
        needs,
    )


def lost(problem: Problem, plan: Plan, projected: Plan, who: str) -> int:
    """Return by how many nanoseconds a projection makes the step longer than the plan.

    Raises
    ------
    NotApplicableError
        If the projection breaks a limit or never ends.
    """
    try:
        after = evaluate(problem, projected)
    except DeadlockError as error:
        raise NotApplicableError(f"{who} would run a plan that never ends: {error}") from None
    if after.broken:
        raise NotApplicableError(f"{who} would run a plan that breaks a limit: {after.broken[0]}")
    return after.makespan_ns - evaluate(problem, plan).makespan_ns


def same_buckets(problem: Problem, plan: Plan, other: Plan) -> bool:
    """Return whether two plans launch the same buckets in the same order on every channel.

    Neither the order of names in a bucket matters nor until when launches are held back.
    """
    return _queues(problem, plan) == _queues(problem, other)


def _queues(problem: Problem, plan: Plan) -> Mapping[str, list[frozenset[str]]]:
    queues: dict[str, list[frozenset[str]]] = {}
    for bucket in plan.buckets:
        key = problem.keys[problem.index[bucket.names[0]]]
        queues.setdefault(problem.channel(key), []).append(frozenset(bucket.names))
    return queues


def difference(problem: Problem, plan: Plan, projected: Plan) -> tuple[str, ...]:
    """Return a sentence on how a projection differs from a plan; nothing where it does not."""
    if same_buckets(problem, plan, projected):
        return ()
    wanted = {frozenset(bucket.names) for bucket in plan.buckets}
    kept = sum(frozenset(bucket.names) in wanted for bucket in projected.buckets)
    if kept == len(wanted) == projected.launches:
        return ("the plan's order of launches: the same buckets are launched in another order",)
    return (
        f"the plan's buckets: of {plan.launches} planned ones {kept} are among the "
        f"{projected.launches} that are formed",
    )


def lines(*parts: str | Iterable[str]) -> str:
    """Return lines as one text without a line break at its end."""
    flat: list[str] = []
    for part in parts:
        flat += [part] if isinstance(part, str) else part
    return "\n".join(flat)

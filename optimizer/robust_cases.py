"""What a robust plan is judged by: the cases of a step, and the regret in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsched.models import Problem
from commsched.models.errors import InputError

MAX_CASES = 64


@dataclass(frozen=True, slots=True)
class CaseRegret:
    """What the two plans do in one case.

    Attributes
    ----------
    name
        The problem's name.
    best_ns
        The least makespan that is known for this case alone.
    bound_ns
        No plan of its scope has a smaller makespan in this case.
    makespan_ns, nominal_ns
        The makespans of the robust plan and of the nominal one; None if that cannot run in this
        case, or breaks one of its limits.
    """

    name: str
    best_ns: int
    bound_ns: int
    makespan_ns: int
    nominal_ns: int | None

    @property
    def regret_ns(self) -> int:
        """By how much the robust plan is longer than what is best in this case."""
        return self.makespan_ns - self.best_ns

    @property
    def nominal_regret_ns(self) -> int | None:
        """By how much the nominal plan is."""
        return None if self.nominal_ns is None else self.nominal_ns - self.best_ns


def check_cases(cases: Sequence[Problem]) -> None:
    """Check that there are some problems, and that all are cases of one step.

    Raises
    ------
    InputError
        If there are none or too many, or one differs from the first.
    """
    if not cases:
        raise InputError("robust: no problem is given")
    if len(cases) > MAX_CASES:
        raise InputError(f"robust: {len(cases)} problems are given, at most {MAX_CASES} can be")
    for number, case in enumerate(cases[1:], start=2):
        check_alike(cases[0], case, f"robust: problem {number} ({case.name or 'without a name'})")


def check_alike(first: Problem, case: Problem, what: str) -> None:
    """Check that two problems are cases of one step.

    Parameters
    ----------
    first, case
        The problems.
    what
        What the second one is called; messages begin with it.

    Raises
    ------
    InputError
        If they have other collectives, or groups that share channels in another way.
    """
    missing = next((name for name in first.names if name not in case.index), None)
    more = next((name for name in case.names if name not in first.index), None)
    if missing is not None or more is not None:
        which = f"lacks {missing!r}" if missing is not None else f"has {more!r}, too"
        raise InputError(f"{what} is not the first one's step: it {which}")
    for k, name in enumerate(first.names):
        other = case.index[name]
        if case.bytes[other] != first.bytes[k]:
            raise InputError(
                f"{what}: {name!r} has {case.bytes[other]} bytes, not {first.bytes[k]}"
            )
        if case.keys[other] != first.keys[k]:
            raise InputError(f"{what}: {name!r} is of another kind, group, dtype or device")
    if case.channels != first.channels:
        raise InputError(f"{what}: its groups share channels in another way")

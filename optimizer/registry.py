"""The registry of rules: what a comparison runs, with default settings and with the best ones.

A new rule is one file in ``optimizer/rules/`` and one entry in :data:`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from commsched.models import Plan, Problem
from commsched.models.errors import InputError
from commsched.models.knob import Setting
from commsched.optimizer.handy import bytes_range, handy_mib
from commsched.optimizer.rules import ddp, no_overlap, one_bucket, one_each
from commsched.optimizer.tuning import Tuning, tune
from commsched.optimizer.tuning_pair import tune_first_and_cap


@dataclass(frozen=True)
class BestSetting:
    """The best setting of a rule, over all values.

    Attributes
    ----------
    setting
        What to paste.
    plan
        What the rule makes of it.
    range_text
        Which values do equally well, and which lie within 1% of the step, for people.
    tuning
        Every plan that a value gives, where there is one scalar knob.
    """

    setting: str
    plan: Plan
    range_text: str
    tuning: Tuning | None = None


class Tunable(Protocol):
    """A way of setting a rule; ``suffix`` tells its row's name from others'."""

    @property
    def suffix(self) -> str:
        """Stands after the rule's name."""

    def best(self, problem: Problem) -> BestSetting:
        """Return the best setting; raise NotApplicableError where it cannot be found."""


@dataclass(frozen=True, slots=True)
class KnobOf:
    """The scalar knob of a rule.

    Attributes
    ----------
    make
        The rule with its knob. It may only compare the knob or ask it for pieces.
    text
        The setting to paste for a range of values: first and last (None: no end).
    range_text
        A range of values for people.
    unit_bytes
        The most bytes that one unit of the knob stands for.
    suffix
        Stands after the rule's name in a comparison.
    """

    make: Callable[[Problem, Setting], Plan]
    text: Callable[[int, int | None], str]
    range_text: Callable[[int, int | None], str] = bytes_range
    unit_bytes: int = 1
    suffix: str = "best"

    def best(self, problem: Problem) -> BestSetting:
        """Return the best value over all values.

        Raises
        ------
        NotApplicableError
            As for :func:`commsched.optimizer.tuning.tune`.
        """
        tuning = tune(problem, self.make, self.unit_bytes)
        low, high = tuning.best.low, tuning.best.high
        text = (
            f"equally good: {self.range_text(low, high)}; "
            f"within 1% of that step: {self.range_text(*tuning.flat)}"
        )
        return BestSetting(self.text(low, high), tuning.plan, text, tuning)


@dataclass(frozen=True, slots=True)
class FirstAndCap:
    """DDP's first cap and cap together."""

    suffix: str = "best-pair"

    def best(self, problem: Problem) -> BestSetting:
        """Return the best pair over all pairs.

        Raises
        ------
        NotApplicableError
            As for :func:`commsched.optimizer.tuning_pair.tune_first_and_cap`.
        """
        found = tune_first_and_cap(problem)
        first, cap = handy_mib(*found.first), handy_mib(*found.cap)
        text = f"first {bytes_range(*found.first)}; then {bytes_range(*found.cap)}"
        return BestSetting(f"bucket_cap_mb_list=[{first:g}, {cap:g}]", found.plan, text)


@dataclass(frozen=True, slots=True)
class Rule:
    """A way of making a plan without searching.

    Attributes
    ----------
    name
        Short and fixed; scripts compare by it.
    title
        What people read.
    setting
        The setting that the plan is made with.
    make
        The rule with that setting.
    knobs
        Its scalar knob, if it has one, and other ways of setting it.
    """

    name: str
    title: str
    setting: str
    make: Callable[[Problem], Plan]
    knobs: tuple[Tunable, ...] = ()


def _mib_setting(name: str) -> Callable[[int, int | None], str]:
    return lambda low, high: f"{name}={handy_mib(low, high):g}"


RULES: tuple[Rule, ...] = (
    Rule(
        "ddp",
        "PyTorch DDP",
        "1 MiB, then 25 MiB",
        ddp,
        (KnobOf(lambda p, cap: ddp(p, [cap]), _mib_setting("bucket_cap_mb")), FirstAndCap()),
    ),
    Rule("one-each", "one launch for each", "", one_each),
    Rule("one-bucket", "one bucket for all", "", one_bucket),
    Rule("no-overlap", "no overlap", "", no_overlap),
)


def rule(name: str) -> Rule:
    """Return the rule of a name.

    Raises
    ------
    InputError
        If there is none; the message lists the names.

    Examples
    --------
    >>> rule("ddp").title
    'PyTorch DDP'
    """
    for known in RULES:
        if known.name == name:
            return known
    raise InputError(f"rule: {name!r} is not one of {', '.join(known.name for known in RULES)}")

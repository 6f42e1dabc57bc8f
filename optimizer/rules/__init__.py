"""The frameworks' and papers' rules, one a file, and the registry that lists them.

A new rule is one file and one entry here. Every rule is a function ``(problem) -> Plan`` that raises
:class:`~commsched.models.errors.NotApplicableError` where it has nothing to say. A rule with a scalar
knob also says how its knob is set; then the best value is found over all values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commsched.models import Plan, Problem
from commsched.models.errors import InputError
from commsched.models.knob import Setting
from commsched.optimizer.handy import bytes_range, handy_mib
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.no_overlap import no_overlap
from commsched.optimizer.rules.one import one_bucket


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
    """

    make: Callable[[Problem, Setting], Plan]
    text: Callable[[int, int | None], str]
    range_text: Callable[[int, int | None], str] = bytes_range
    unit_bytes: int = 1


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
    knob
        Its scalar knob, or None.
    """

    name: str
    title: str
    setting: str
    make: Callable[[Problem], Plan]
    knob: KnobOf | None = None


RULES: tuple[Rule, ...] = (
    Rule(
        "ddp",
        "PyTorch DDP",
        "default: 1 MiB, then 25 MiB",
        ddp,
        KnobOf(
            lambda problem, cap: ddp(problem, [cap]),
            lambda low, high: f"bucket_cap_mb={handy_mib(low, high):g}",
        ),
    ),
    Rule("one-each", "one launch for each gradient", "", one_each),
    Rule("one-bucket", "one bucket for all", "", one_bucket),
    Rule("no-overlap", "no overlap", "after backward", no_overlap),
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


__all__ = ["RULES", "KnobOf", "Rule", "ddp", "no_overlap", "one_bucket", "one_each", "rule"]

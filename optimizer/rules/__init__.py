"""The frameworks' and papers' rules, one a file, and the registry that lists them.

A new rule is one file and one line here. Every rule is a function ``(problem) -> Plan`` that raises
:class:`~commsched.models.errors.NotApplicableError` where it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commsched.models import Plan, Problem
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.no_overlap import no_overlap
from commsched.optimizer.rules.one import one_bucket


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
        The rule itself.
    """

    name: str
    title: str
    setting: str
    make: Callable[[Problem], Plan]


RULES: tuple[Rule, ...] = (
    Rule("ddp", "PyTorch DDP default", "1 MiB, then 25 MiB", ddp),
    Rule("one-each", "one launch for each gradient", "", one_each),
    Rule("one-bucket", "one bucket for all", "", one_bucket),
    Rule("no-overlap", "no overlap", "after backward", no_overlap),
)

__all__ = ["RULES", "Rule", "ddp", "no_overlap", "one_bucket", "one_each"]

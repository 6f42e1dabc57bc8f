"""Exposed time where communication slows compute, and without: as stated, or for some factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from commsched.models import Plan
from commsched.models.errors import InputError, NotApplicableError
from commsched.models.slowdown import Slowdown, SlowedTimeline, play_slowed
from commsched.optimizer import Result, Row
from commsched.optimizer.exact import keys_of_channel, why_not_exact
from commsched.optimizer.slowed import SlowedResult, optimize_slowed
from commsched.slowing import KnownSlowdown

FACTORS = (1.05, 1.1, 1.2)
"""What is shown where nobody states a factor."""
MOST_SEARCHED = 200
"""Up to so many collectives the best plan for each of them is found, which takes seconds."""
MOST_PLAYED = 20_000
"""Up to so many tasks the plans are evaluated at all."""


@dataclass(frozen=True)
class SlowedRow:
    """A factor, and what plans do under it.

    Attributes
    ----------
    slowdown
        The factors of compute and of launches.
    today
        What runs today; None if that is not known or breaks a limit.
    kept
        The plan that is best without a slowdown.
    best
        The best plan under it; None if it was not looked for.
    """

    slowdown: Slowdown
    today: SlowedTimeline | None = field(repr=False)
    kept: SlowedTimeline = field(repr=False)
    best: SlowedResult | None = field(repr=False)

    @property
    def changes(self) -> bool | None:
        """Whether another plan is better by more than rounding; None if that is not known."""
        if self.best is None:
            return None
        if self.best.gain_ns > max(self.kept.plan.launches, self.best.plan.launches):
            return True
        return False if self.best.status == "optimal" else None


@dataclass(frozen=True)
class Slowed:
    """What is known of the step under a slowdown.

    Attributes
    ----------
    source
        Where the factor comes from; empty if the rows are examples.
    rows
        By factor.
    why_not
        Why there are no rows, or why the best plans under them are not known; else empty.
    """

    source: str
    rows: tuple[SlowedRow, ...]
    why_not: str

    @property
    def stated(self) -> bool:
        """Whether the factor is stated or fitted."""
        return bool(self.source)


def slowed(
    result: Result,
    today: Row | None,
    known: KnownSlowdown | None,
    *,
    time_limit_s: float,
    tell: Callable[[str], None] = lambda text: None,
) -> Slowed:
    """Return what today's and the best plan do under a slowdown, and the best plan for it.

    Without such a factor this depends on the step alone, never on the machine: then the best plan
    is found only where that is exact.

    Parameters
    ----------
    result
        A result with a plan.
    today
        What runs today.
    known
        The factor that is stated or fitted; None shows some as examples.
    time_limit_s
        Seconds for a search under that factor.
    tell
        Called with what is being done.
    """
    problem, plan = result.problem, result.plan
    assert plan is not None
    count = len(problem.names)
    source = "" if known is None else known.source
    if problem.limited_pools:
        return Slowed(source, (), "a pool of memory is limited, so launches wait for it")
    if known is None and count > MOST_PLAYED:
        return Slowed("", (), f"not computed beyond {MOST_PLAYED:,} collectives")
    why_not = ""
    if result.scope != "in-order":
        why_not = f"plans under a slowdown are of scope in-order, not {result.scope}"
    elif known is None and count > MOST_SEARCHED:
        why_not = f"the best plan is searched up to {MOST_SEARCHED} collectives"
    elif known is None and why_not_exact(problem, result.scope) is not None:
        why_not = f"a plan for it needs a search: {why_not_exact(problem, result.scope)}"
    elif known is None and len(keys_of_channel(problem)) > 1:
        why_not = "a plan for it needs a search: there are several channels"
    if why_not and known is None:
        why_not += "; --slowdown FACTOR searches one"
    rows = []
    try:
        for slowdown in [known.slowdown] if known is not None else map(Slowdown, FACTORS):
            tell(f"compute {float(slowdown.factors[0]):g}x as long beside communication")
            kept, now = play_slowed(problem, plan, slowdown), None
            if today is not None and not today.timeline.broken:
                now = _played(result, today.plan, slowdown)
            best = None
            if not why_not:
                best = optimize_slowed(problem, slowdown, nominal=result, time_limit_s=time_limit_s)
            rows.append(SlowedRow(slowdown, now, kept, best))
    except NotApplicableError as error:
        return Slowed(source, (), str(error))
    return Slowed(source, tuple(rows), why_not)


def _played(result: Result, plan: Plan, slowdown: Slowdown) -> SlowedTimeline | None:
    try:
        return play_slowed(result.problem, plan, slowdown)
    except InputError:  # the plan cannot run
        return None


def factor_text(slowdown: Slowdown) -> str:
    """Return a slowdown for people.

    Examples
    --------
    >>> factor_text(Slowdown(1.3))
    'compute 1.3x as long beside launches'
    >>> factor_text(Slowdown(1.3, 1.1))
    'compute 1.3x as long beside launches, launches 1.1x beside compute'
    """
    compute, launch = map(float, slowdown.factors)
    also = f", launches {launch:g}x beside compute" if launch != 1 else ""
    return f"compute {compute:g}x as long beside launches{also}"

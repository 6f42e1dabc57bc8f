"""The best of several forms of one step: numbers of chunks, chunk sizes, memory settings.

What changes the step itself (how many parts an expert's tokens are cut into, into which sizes a
tensor is split) is no decision inside one problem. Each form is a problem of its own; here the
forms compete, and one whose bound is no better than the best plan is not searched.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from commsched.models import Problem
from commsched.models.errors import InputError
from commsched.models.given import given, mapping_of
from commsched.models.units import exact
from commsched.optimizer.result import Bound, Result, Status
from commsched.optimizer.search import bound_of
from commsched.optimizer.solve import TIME_LIMIT_S, optimize

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Variants(Generic[K]):
    """What was found about several forms of one step.

    Attributes
    ----------
    best
        The form with the least makespan, then the fewest launches, then the first.
    results
        The results of the forms that were searched.
    skipped
        The forms that cannot be better than the best, with the bound that says so.
    status
        ``optimal`` if no plan of any form is better.
    lower_bound_ns
        No plan of any form has a smaller makespan.
    """

    best: K | None
    results: Mapping[K, Result]
    skipped: Mapping[K, Bound]
    status: Status
    lower_bound_ns: int

    @property
    def result(self) -> Result | None:
        """The best form's result."""
        return None if self.best is None else self.results[self.best]


def optimize_variants(
    problems: Mapping[K, Problem],
    *,
    time_limit_s: float = TIME_LIMIT_S,
    **options: Any,  # noqa: ANN401
) -> Variants[K]:
    """Find the best form of a step and its best plan.

    Forms are searched in the order of their bounds, so that the most promising comes first. Each may
    take an equal share of the time that is left.

    Parameters
    ----------
    problems
        The forms, by whatever tells them apart (a number of chunks).
    time_limit_s
        Seconds for all of them.
    options
        As for :func:`~commsched.optimizer.solve.optimize`.

    Raises
    ------
    InputError
        If there is no form.

    Examples
    --------
    >>> from commsched.models import AlphaBeta
    >>> from commsched.problems import ddp_step
    >>> from commsched.problems.steps.layers import Layer, LayerProfile
    >>> profile = LayerProfile((Layer("a", 100, 100, 8000), Layer("b", 100, 100, 40000)))
    >>> forms = {size: ddp_step(profile, AlphaBeta(0.001, 100), chunk_bytes=size)
    ...     for size in (40000, 10000)}
    >>> found = optimize_variants(forms, scope="any")
    >>> found.best, str(found.status), found.result.makespan_ns, found.results[40000].makespan_ns
    (10000, 'optimal', 683, 782)
    """
    for key, problem in mapping_of(problems, "variants").items():
        given(problem, Problem, f"variants: {key!r:.60}")
    if not problems:
        raise InputError("variants: there is no form of the step")
    deadline = time.monotonic() + float(exact(time_limit_s, "time_limit_s"))
    bounds = {key: bound_of(problem) for key, problem in problems.items()}
    order = sorted(problems, key=lambda key: bounds[key].ns)
    results: dict[K, Result] = {}
    skipped: dict[K, Bound] = {}
    best: K | None = None
    for place, key in enumerate(order):
        if best is not None and bounds[key].ns >= results[best].makespan_ns:
            skipped[key] = bounds[key]
            continue
        share = max(0.01, deadline - time.monotonic()) / (len(order) - place)
        found = results[key] = optimize(problems[key], time_limit_s=share, **options)
        if found.plan is not None and (best is None or _rank(found) < _rank(results[best])):
            best = key
    lower = [found.bound.ns for found in results.values() if found.status != Status.INFEASIBLE]
    lower += [bound.ns for bound in skipped.values()]
    if best is None:
        ended = all(found.status == Status.INFEASIBLE for found in results.values())
        status = Status.INFEASIBLE if ended else Status.UNKNOWN
        return Variants(None, results, skipped, status, min(lower, default=0))
    others = [
        found.bound.ns >= results[best].makespan_ns - results[best].slack_ns
        for found in results.values()
        if found.status != Status.INFEASIBLE
    ]
    optimal = results[best].status == Status.OPTIMAL and all(others)
    status = Status.OPTIMAL if optimal else Status.FEASIBLE
    return Variants(best, results, skipped, status, min(lower))


def _rank(result: Result) -> tuple[int, int]:
    assert result.plan is not None
    return result.makespan_ns, result.plan.launches

"""The best plan and the best bound so far, while a search runs, and who is told about them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from commsched.models import Plan, Problem, Timeline
from commsched.models.errors import DeadlockError
from commsched.models.timeline import play
from commsched.optimizer.result import Bound, Scope, Status, proved_status

Progress = Callable[[float, int | None, int], None]
"""Called with the seconds since the start, the best makespan (None without a plan) and the bound, in
nanoseconds, whenever one of the two has improved."""


class Incumbent:
    """What a search knows.

    Parameters
    ----------
    problem, scope
        What is searched.
    time_limit_s
        Seconds from now on; :attr:`until` is then.
    progress
        Who is told of improvements, if anybody.

    Attributes
    ----------
    plan, timeline
        The best plan and what it does; None without one.
    method
        What found it.
    bound
        The best proved bound.
    """

    def __init__(
        self,
        problem: Problem,
        scope: Scope,
        time_limit_s: float = math.inf,
        progress: Progress | None = None,
    ) -> None:
        self.problem, self.scope, self.progress = problem, scope, progress
        self.started = time.monotonic()
        self.until = self.started + time_limit_s
        self.plan: Plan | None = None
        self.timeline: Timeline | None = None
        self.method = ""
        self.bound = Bound(0, "")
        self._told: tuple[int | None, int] = (None, 0)

    @property
    def makespan_ns(self) -> int | None:
        """The best plan's makespan."""
        return None if self.timeline is None else self.timeline.makespan_ns

    @property
    def status(self) -> Status:
        """What is proved by now."""
        if self.timeline is None:
            return Status.UNKNOWN
        return proved_status(self.timeline, self.bound)

    @property
    def proved(self) -> bool:
        """Whether the best plan is optimal."""
        return self.status is Status.OPTIMAL

    @property
    def met(self) -> bool:
        """Whether the best plan is as early as the bound, without any rounding."""
        return self.timeline is not None and self.timeline.makespan_ns <= self.bound.ns

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.until - time.monotonic()

    def offer(self, plan: Plan, method: str) -> bool:
        """Take a plan if it runs, keeps the limits and is better: earlier, then fewer launches."""
        try:
            timeline = play(self.problem, plan)
        except DeadlockError:
            return False
        if timeline.broken:
            return False
        if self.plan is not None and self.timeline is not None:
            now = (self.timeline.makespan_ns, self.plan.launches)
            if (timeline.makespan_ns, plan.launches) >= now:
                return False
        self._take(plan, timeline, method)
        return True

    def replace(self, plan: Plan, method: str) -> None:
        """Take a plan whatever it does: who asks knows why."""
        self._take(plan, play(self.problem, plan), method)

    def _take(self, plan: Plan, timeline: Timeline, method: str) -> None:
        better = self.makespan_ns is None or timeline.makespan_ns < self.makespan_ns
        self.plan, self.timeline, self.method = plan, timeline, method
        if better:
            self.report()

    def raise_bound(self, bound: Bound) -> None:
        """Take a bound if it is better."""
        if bound.ns > self.bound.ns:
            self.bound = bound
            self.report()

    def report(self, makespan_ns: int | None = None, bound_ns: int = 0) -> None:
        """Tell who wants to know, if something is better than what was told before.

        Parameters
        ----------
        makespan_ns, bound_ns
            What a solver that is still running has found.
        """
        if self.progress is None:
            return
        last_ns, last_bound_ns = self._told
        found = [ns for ns in (makespan_ns, self.makespan_ns, last_ns) if ns is not None]
        told = min(found, default=None), max(bound_ns, self.bound.ns, last_bound_ns)
        if told != self._told:
            self._told = told
            self.progress(time.monotonic() - self.started, *told)

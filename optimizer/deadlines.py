"""The exact recurrence for collectives that later compute waits for, scope ``in-order``.

The class: no collective waits, directly or not, for a collective, so all ready times are fixed; but
compute may wait for collectives, as the next forward pass does. Only collectives of one channel
influence each other then. With ``tail_k`` the longest path of compute after collective k,

    makespan = max(compute alone, max over k of  end_k + tail_k),

because a path through the step meets at most one collective. A makespan M can be kept if and only if
each launch ends by the *deadline* ``M - tail_k`` of each of its members. Let ``F(p)`` be the least
time at which the prefix p (how many collectives of each key, in ready order) can have been sent in
time. The last launch ends the prefix of some key, so

    F(p) = min over keys k and q < p_k of  max(F(p with p_k = q), ready_k(p_k)) + cost_k(bytes q..p_k)

over the launches that end by their members' deadlines. An earlier end of what was sent before never
hurts what follows, so the least end of each prefix is all that a plan needs: M can be kept if and only
if everything has a finite F. The least M is found by bisection. A failed M also says the next one
that could succeed: below the least time by which a launch missed its deadline, nothing changes.

The fewest launches for the least M follow from ``D_r(p)``, the latest time at which the prefix p may be
done so that r more launches are enough.

Limits on single buckets only forbid launches (:mod:`commsched.optimizer.forbidden`), whatever
else a plan does, and change nothing in this. With a limit on the number of launches the least M is
found by bisection on the fewest launches of all channels together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commsched.models import Bucket, FusionKey, Plan, Problem
from commsched.models.limits import MostLaunches
from commsched.optimizer.bounds import paths_ns
from commsched.optimizer.deadline_channel import Channel
from commsched.optimizer.exact import keys_of_channel
from commsched.optimizer.forbidden import LIMITS
from commsched.optimizer.recurrence import AffineChain
from commsched.optimizer.result import Bound, Scope

MAX_WORK = 40_000_000
"""States times collectives, in one channel: seconds, not minutes."""
MAX_STATES = 20_000
_PROOF = "recurrence with deadlines"


@dataclass(frozen=True)
class DeadlinePlan:
    """What the recurrence found.

    Attributes
    ----------
    plan, bound
        As in :class:`~commsched.optimizer.result.Result`. Without a plan that keeps the limits it has no
        bucket.
    optimal
        Whether the plan's makespan is the bound; only a time limit can prevent it.
    fewest
        Whether no plan with this makespan has fewer launches.
    infeasible
        Whether no plan of scope in-order keeps the limits.
    """

    plan: Plan
    bound: Bound
    optimal: bool
    fewest: bool
    infeasible: bool = False


def why_no_deadlines(problem: Problem, scope: Scope) -> str | None:
    """Return why the recurrence with deadlines does not solve this problem, or None if it does."""
    if scope != "in-order":
        return f"the scope is {scope}"
    for limit in problem.limits:
        if not isinstance(limit, (*LIMITS, MostLaunches)):
            return f"plans are limited ({limit.label})"
    if problem.movable:
        return "compute tasks may move"
    if any(name in problem.waiting for name in problem.names):
        return "collectives wait for collectives"
    for channel, keys in keys_of_channel(problem).items():
        if too_many(problem, keys):
            return f"channel {channel!r} has too many collectives for the recurrence with deadlines"
    return None


def deadline_plan(
    problem: Problem, lower_ns: int = 0, until: float = math.inf, *, within: float = 0.0
) -> DeadlinePlan:
    """Return the best plan of a problem for which :func:`why_no_deadlines` returned None.

    Parameters
    ----------
    problem
        The step.
    lower_ns
        A proved lower bound on the makespan.
    until
        When to stop, on the clock of :func:`time.monotonic`; the plan is the best so far then.
    within
        By which share of the least makespan the plan may be longer if that saves launches.
    """
    _, tail = paths_ns(problem)
    keys = keys_of_channel(problem)
    searches = [Channel(problem, of_channel, tail) for of_channel in keys.values()]
    lower_ns = max(lower_ns, problem.compute_ns)
    for search in searches:
        # No channel needs to be better than the worst one.
        search.minimise(lower_ns, until)
        lower_ns = max(lower_ns, search.lower_ns)
    makespan_ns = max(problem.compute_ns, *(search.found_ns for search in searches))
    stuck = any(search.stuck for search in searches)
    counts = [limit.count for limit in problem.limits if isinstance(limit, MostLaunches)]
    if counts and not stuck:
        few = _FewLaunches(searches, min(counts), lower_ns, until)
        lower_ns, makespan_ns, stuck = few.run(makespan_ns)
    if stuck or makespan_ns < lower_ns:
        return DeadlinePlan(Plan(()), Bound(lower_ns, _PROOF), False, False, stuck)
    optimal = makespan_ns <= lower_ns
    allowed_ns = makespan_ns + int(makespan_ns * within)
    fewest = optimal
    buckets: list[Bucket] = []
    for search in searches:
        cuts = search.fewest_launches(makespan_ns, until) if optimal or counts else None
        if cuts is not None and within:
            fewer = search.fewest_launches(allowed_ns, until)
            cuts = fewer if fewer is not None and len(fewer) < len(cuts) else cuts
        fewest = fewest and cuts is not None
        for k, begin, end in search.buckets if cuts is None else cuts:
            names = [problem.names[p] for p in search.positions[k][begin:end]]
            buckets.append(Bucket(tuple(names)))
    return DeadlinePlan(Plan(tuple(buckets)), Bound(lower_ns, _PROOF), optimal, fewest)


def fewest_launches(problem: Problem, makespan_ns: int, until: float = math.inf) -> Plan | None:
    """Return the plan of scope in-order with the fewest launches that keeps a makespan.

    None if that takes too long. With a single affine fusion key that nothing waits for the O(n)
    recurrence answers; there, launches are fewest up to rounding.

    Parameters
    ----------
    problem
        A problem for which :func:`why_no_deadlines` returned None, or one that is settled.
    makespan_ns
        At least the optimum.
    until
        When to stop, on the clock of :func:`time.monotonic`.
    """
    _, tail = paths_ns(problem)
    buckets: list[Bucket] = []
    for keys in keys_of_channel(problem).values():
        chains = [problem.chains[key] for key in keys]
        piece = problem.cost(keys[0]).affine
        cuts: list[tuple[int, int, int]] | None
        if problem.settled and len(keys) == 1 and piece is not None:
            ready, sizes = (
                [values[k] for k in chains[0]] for values in (problem.ready_ns, problem.bytes)
            )
            chain = AffineChain(ready, sizes, piece)
            ends = chain.fewest_launches(makespan_ns * piece.scale)
            room = (makespan_ns - len(ends)) * piece.scale
            if chain.rounded_end_ns(ends) > makespan_ns and room >= chain.earliest_end():
                ends = chain.fewest_launches(room)
            cuts = [(0, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        elif too_many(problem, keys):
            return None
        else:
            cuts = Channel(problem, keys, tail).fewest_launches(makespan_ns, until)
        if cuts is None:
            return None
        buckets.extend(
            Bucket(tuple(problem.names[p] for p in chains[k][begin:end])) for k, begin, end in cuts
        )
    return Plan(tuple(buckets))


def too_many(problem: Problem, keys: Sequence[FusionKey]) -> bool:
    """Return whether a channel has too many collectives for the recurrence."""
    lengths = [len(problem.chains[key]) for key in keys]
    states = math.prod(length + 1 for length in lengths)
    return states > MAX_STATES or states * sum(lengths) > MAX_WORK


class _FewLaunches:
    """The least makespan with a limited number of launches on all channels together."""

    def __init__(self, searches: Sequence[Channel], most: int, lower_ns: int, until: float) -> None:
        self.searches, self.most, self.lower_ns, self.until = searches, most, lower_ns, until

    def run(self, makespan_ns: int) -> tuple[int, int, bool]:
        """Return a bound, the makespan of a plan (-1 without) and whether there is none.

        Parameters
        ----------
        makespan_ns
            That of a plan with any number of launches.
        """
        if self._keeps(makespan_ns):
            return self.lower_ns, makespan_ns, False
        never = max(search.never for search in self.searches)
        keeps = self._keeps(never)
        if not keeps:
            return self.lower_ns, -1, keeps is False
        found = self._makespan(never)
        while self.lower_ns < found:
            middle = (self.lower_ns + found) // 2
            keeps = self._keeps(middle)
            if keeps is None:
                break
            if keeps:
                found = self._makespan(middle)
            else:
                self.lower_ns = middle + 1
        return self.lower_ns, found, False

    def _keeps(self, makespan_ns: int) -> bool | None:
        """Return whether few enough launches keep a makespan; None if that takes too long."""
        left = self.most
        for search in self.searches:
            count = search.count(makespan_ns, left, self.until)
            if count is None:
                return None
            left -= count
            if left < 0:
                return False
        return True

    def _makespan(self, allowed_ns: int) -> int:
        """Return the makespan of the plan with the fewest launches that keeps a longer one."""
        found = self.lower_ns
        for search in self.searches:
            cuts = search.fewest_launches(allowed_ns, self.until)
            found = max(found, allowed_ns if cuts is None else search.makespan(cuts))
        return found

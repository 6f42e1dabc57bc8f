"""Among plans that are as good, one that loses least when a run is not quite as planned.

In a real run gradients come later than planned and launches take longer, now and then. A plan with the
fewest launches uses up all the time there is, so that every such delay shows; another one that ends at
the same time hides it. What a plan loses is looked at in a few cases: launches that take longer,
gradients that come later, a framework that adds nothing, and the steps as they were captured, if there
are any. Candidates are the
plans that are done earliest in a case, by number of launches, and those of single caps; the best one is
improved by moving, adding and removing cuts. That the plan is as good is exact; that none of these loses
less is not proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice, pairwise

from commsched.models.plan import close_at_or_above
from commsched.optimizer.overheads_chain import Cut, OverheadChain

STRETCHES = (Fraction(21, 20), Fraction(11, 10), Fraction(6, 5), Fraction(3, 2))
"""Cases: every launch takes so many times as long."""
LATE = (Fraction(1, 400), Fraction(1, 200), Fraction(1, 100))
"""Cases: every gradient but the last is ready later by so much of the backward pass."""
MORE_LAUNCHES = 64
"""Up to so many launches more than needed are tried in each case."""
MOST_CAPS = 100
MOST_LOOKS = 5_000
"""The most plans that are looked at in improving the best one."""
MOVES = (-8, -3, -1, 1, 3, 8)


def with_slack(
    chain: OverheadChain, cases: Sequence[OverheadChain], best: Cut, most_ns: int
) -> Cut:
    """Return the cut that is best on average over the cases and by itself ends by ``most_ns``.

    Parameters
    ----------
    chain
        The gradients as planned.
    cases
        The same gradients in other cases.
    best
        The best cut, where nothing comes in between.
    most_ns
        The latest end of the step as planned, at least that of the best cut.
    """
    return _Search(chain, (chain, *cases), most_ns).found(best)


class _Search:
    def __init__(self, chain: OverheadChain, cases: Sequence[OverheadChain], most_ns: int) -> None:
        self.chain, self.cases, self.most_ns = chain, cases, most_ns
        self.seen: dict[tuple[int, ...], tuple[int, int, tuple[int, ...]]] = {}

    def offer(self, ends: tuple[int, ...]) -> None:
        """Look at a cut that is good enough as planned: what it takes in all cases together."""
        if ends not in self.seen and self.chain.makespan_ns(ends) <= self.most_ns:
            total = sum(case.makespan_ns(ends) for case in self.cases)
            self.seen[ends] = (total, len(ends), ends)

    def found(self, best: Cut) -> Cut:
        """Return the best cut that was found."""
        self.offer(best.ends)
        for case in self.cases:
            for _, cut in islice(case.cuts(), len(best.ends) + MORE_LAUNCHES):
                self.offer(cut.ends)
        for ends in self._capped():
            self.offer(ends)
        ends, looks = min(self.seen.values())[2], 0
        while looks < MOST_LOOKS:
            for other in self._beside(ends):
                self.offer(other)
                looks += 1
            better = min(self.seen.values())[2]
            if better == ends:
                break
            ends = better
        return Cut(ends, self.chain.makespan_ns(ends))

    def _capped(self) -> Iterator[tuple[int, ...]]:
        """Yield what DDP's rule makes of caps from the smallest gradient to all of them."""
        sizes = self.chain.sizes
        least, most = max(1, min(sizes)), max(1, sum(sizes))
        for number in range(MOST_CAPS):
            cap = round(least * (most / least) ** (number / (MOST_CAPS - 1)))
            yield tuple(close_at_or_above(sizes, [cap]))

    def _beside(self, ends: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield the cuts with one boundary less, more, or elsewhere."""
        inner, count = ends[:-1], ends[-1]
        for number, at in enumerate(inner):
            yield (*inner[:number], *ends[number + 1 :])
            low = inner[number - 1] if number else 0
            for move in MOVES:
                if low < at + move < ends[number + 1]:
                    yield (*inner[:number], at + move, *ends[number + 1 :])
        for begin, end in pairwise((0, *ends)):
            if end - begin > 1:
                yield tuple(sorted((*inner, (begin + end) // 2, count)))

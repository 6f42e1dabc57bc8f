"""The best cut of a plain backward pass into launches where each launch has overheads of its own.

A launch holds backward up (:class:`~commsched.models.overheads.Overheads`), so ready times depend on how
many launches there were before: gradient k is ready at ``r_k + h l`` behind l launches. What the
launches so far mean for those that follow is therefore their number and when the last of them ended.

Let ``f_l(j)`` be the least time at which the first j gradients can have been sent in l launches. The
last of these carries gradients i to j and begins at the later of ``f_{l-1}(i)``, since the channel runs
one at a time, and ``r(i..j) + h (l - 1) + issue``, which no choice but l and i changes. Both are
non-decreasing in the time at which the first i were sent, so by induction an earliest prefix is never
worse, and

    f_l(j) = min over i < j of  max(f_{l-1}(i), r(i..j) + h (l - 1) + issue) + T(i..j)

is exact. With l launches backward ends at ``B + h l``, and the step no earlier than that and the last
launch. Gradients are handed back one launch after the other, from backward's end on: with ``C(i)`` for
handing back the first i, the step ends at

    max(B + h l + C(n),  max over launches i..j of  end + wake + C(n) - C(i)) + finish.

If handing back takes no time, the least ``f_l(n)`` decides. Else a step end D gives each launch a
deadline ``D - finish - wake - C(n) + C(i)`` that depends on nothing but its begin; for fixed D the same
recurrence over the transitions that meet theirs decides whether D can be met (an earliest prefix is
still never worse), and D is bisected. All times are the evaluator's whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from commsched.models import CostCurve
from commsched.models.overheads import Overheads
from commsched.optimizer.prefix import price

Array = NDArray[np.int64]
MAX_GRADIENTS = 1000
"""All pairs of gradients are priced, and looked at once for each number of launches."""
NEVER = 2**61


class Cut(NamedTuple):
    """Launches, as the end (exclusive index) of each, and when the step then ends."""

    ends: tuple[int, ...]
    makespan_ns: int


class OverheadChain:
    """The gradients of one channel and fusion key in ready order.

    Parameters
    ----------
    ready_ns, sizes
        Ready time and bytes of each gradient.
    cost
        What a launch costs.
    backward_end_ns
        When backward ends, if nothing holds it up.
    overheads
        The terms.
    stretch, late_ns
        For plans with room to spare: launches take so many times as long, and every gradient but the
        last is ready so much later.

    Examples
    --------
    Two launches end at 28, but the second is issued 4 later if the first holds backward up:

    >>> from commsched.models import AlphaBeta
    >>> chain = OverheadChain([10, 20], [5, 5], AlphaBeta(0.003, 1), 20, Overheads())
    >>> chain.best()
    Cut(ends=(1, 2), makespan_ns=28)
    >>> terms = Overheads(hook_us=0.006)
    >>> OverheadChain([10, 20], [5, 5], AlphaBeta(0.003, 1), 20, terms).best()
    Cut(ends=(2,), makespan_ns=33)
    """

    def __init__(
        self,
        ready_ns: Sequence[int],
        sizes: Sequence[int],
        cost: CostCurve,
        backward_end_ns: int,
        overheads: Overheads,
        *,
        stretch: Fraction = Fraction(1),
        late_ns: int = 0,
    ) -> None:
        self.count, self.overheads, self.sizes = len(sizes), overheads, list(sizes)
        sent = list(accumulate(sizes, initial=0))
        self.out = [overheads.out_ns(k, size) for k, size in enumerate(sent)]
        self.backward_end_ns = backward_end_ns
        if overheads.filled:
            filled = [r + overheads.fill_ns(size) for r, size in zip(ready_ns, sizes, strict=True)]
        else:
            filled = overheads.delayed_ns(ready_ns, sizes)
            self.backward_end_ns += overheads.fill_ns(sent[-1])
        ready = np.array(filled, dtype=np.int64) + overheads.issue_ns
        total = np.array(sent, dtype=np.int64)
        # By begin and end (the last gradient of a launch): when it is issued, and how long it takes.
        self.issued = np.zeros((self.count, self.count), dtype=np.int64)
        self.length = np.full((self.count, self.count), NEVER, dtype=np.int64)
        for begin in range(self.count):
            self.issued[begin, begin:] = np.maximum.accumulate(ready[begin:])
            self.length[begin, begin:] = price(cost, total[begin + 1 :] - total[begin])
        self.issued[:, :-1] += late_ns
        if stretch != 1:
            known = self.length < NEVER
            self.length[known] = -(-self.length[known] * stretch.numerator // stretch.denominator)
        last = int(self.issued[-1, -1] + self.length[-1, -1]) + overheads.wake_ns
        self.last_ns = last + self.out[-1] - self.out[-2]

    def least_ns(self, launches: int) -> int:
        """Return a bound on the end of steps with so many launches or more."""
        held = self.overheads.hook_ns * launches
        backward = self.backward_end_ns + held + self.out[-1]
        return max(backward, self.last_ns + held - self.overheads.hook_ns) + (
            self.overheads.finish_ns
        )

    def makespan_ns(self, ends: Sequence[int]) -> int:
        """Return when the step ends with these launches."""
        terms = self.overheads
        now = latest = 0
        for number, (begin, end) in enumerate(pairwise((0, *ends))):
            issued = int(self.issued[begin, end - 1]) + terms.hook_ns * number
            now = max(now, issued) + int(self.length[begin, end - 1])
            latest = max(latest, now + terms.wake_ns + self.out[-1] - self.out[begin])
        backward = self.backward_end_ns + terms.hook_ns * len(ends) + self.out[-1]
        return max(backward, latest) + terms.finish_ns

    def cuts(self, deadline_ns: int | None = None) -> Iterator[tuple[int, Cut]]:
        """Yield for each number of launches when the last can end at the earliest, and that cut.

        Parameters
        ----------
        deadline_ns
            Only cuts with which the step ends by then.
        """
        terms, count = self.overheads, self.count
        ends = np.full(count + 1, NEVER, dtype=np.int64)
        ends[0] = 0
        before: list[Array] = []
        limit = None
        if deadline_ns is not None:
            out = np.array(self.out, dtype=np.int64)
            limit = deadline_ns - terms.finish_ns - terms.wake_ns - out[-1] + out[:-1]
        for launches in range(1, count + 1):
            if deadline_ns is not None and self.least_ns(launches) > deadline_ns:
                return
            # The first launches - 1 gradients at least have been sent before.
            first = launches - 1
            here = self.issued[first:, first:] + terms.hook_ns * first
            np.maximum(here, ends[first:-1, None], out=here)
            here += self.length[first:, first:]
            if limit is not None:
                here[here > limit[first:, None]] = NEVER
            chosen = here.argmin(axis=0)
            ends = np.full(count + 1, NEVER, dtype=np.int64)
            ends[launches:] = np.minimum(here[chosen, np.arange(count - first)], NEVER)
            begins = np.zeros(count + 1, dtype=np.int64)
            begins[launches:] = chosen + first
            before.append(begins)
            if ends[-1] >= NEVER:
                continue
            cut, at = [count], count
            for begins in reversed(before):
                at = int(begins[at])
                cut.append(at)
            found = tuple(cut[-2::-1])
            yield int(ends[-1]), Cut(found, self.makespan_ns(found))

    def best(self) -> Cut:
        """Return the cut with the least step, of these one with the fewest launches.

        Of those the last launch ends as early as it can.
        """
        terms = self.overheads
        best: Cut | None = None
        least = NEVER
        for end, cut in self.cuts():
            launches = len(cut.ends)
            if best is None or cut.makespan_ns < best.makespan_ns:
                best = cut
            backward = self.backward_end_ns + terms.hook_ns * launches + self.out[-1]
            handed = end + terms.wake_ns + self.out[-1] - self.out[-2]
            least = min(least, max(backward, handed) + terms.finish_ns)
            if self.least_ns(launches + 1) >= min(best.makespan_ns, least):
                break
        assert best is not None
        high = best.makespan_ns
        while least < high:
            middle = (least + high) // 2
            found = next(self.cuts(middle), None)
            if found is None:
                least = middle + 1
            else:
                best, high = found[1], found[1].makespan_ns
        # Without deadlines a cut with fewer launches may have been passed over.
        return next(self.cuts(high))[1] if self.out[-1] else best

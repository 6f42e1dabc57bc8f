"""The exact recurrence for affine costs: one fusion key, one channel, fixed ready times, O(n).

Let ``f(j)`` be the least time at which the first j gradients (in ready order) can all have been
sent in contiguous buckets. Then ``f(j) = min over i < j of max(f(i), ready_j) + a + b * S(i, j)``,
since only the end of the earlier launches matters. With an affine cost it takes O(n) steps:
f does not decrease, so among the i with ``f(i) <= ready_j`` the last is best, and among the others a
monotone queue on ``f(i) - b * S(i)`` holds the minimum. docs/model.md has the proofs, also that no
non-contiguous or reordered plan is better.

Among the plans that end in time the one with the fewest launches, then the earliest starts, is
found by a second pass. Seen from the deadline M backwards, k launches after position i that carry
``S(i, n)`` bytes start at ``M - k a - b S(i, n)`` whatever their boundaries, so fewer launches also
leave more room. The positions after which m launches are enough therefore form a final segment, and
its first position follows from the segments for fewer launches by one bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from commsched.models.cost import Piece

LEVELS_WORTH_IT = 500
"""Bisection pays if there are at least so many gradients a launch."""


class _TooManyLaunches(Exception):  # noqa: N818
    """The bisection is not worth it."""


class AffineChain:
    """The gradients of one fusion key on a channel of its own, with an affine cost.

    Times are in units of ``1 / cost.scale`` nanoseconds here, so that nothing is rounded.

    Parameters
    ----------
    ready_ns
        Ready times in ascending order, in nanoseconds; at least one.
    sizes
        Bytes of each gradient in the same order.
    cost
        The affine cost; its intercept is at least 0.

    Examples
    --------
    >>> chain = AffineChain([10, 20], [5, 5], Piece(0, intercept=3, slope=1, scale=1))
    >>> chain.earliest_end(), chain.fewest_launches(28), chain.fewest_launches(33)
    (28, [1, 2], [2])
    """

    def __init__(self, ready_ns: Sequence[int], sizes: Sequence[int], cost: Piece) -> None:
        self.alpha, self.scale = cost.intercept, cost.scale
        beta = cost.slope
        self.ready_ns = ready_ns
        self.sent = list(accumulate([beta * size for size in sizes], initial=0))

    def earliest_end(self) -> int:
        """Return the least time at which all gradients can have been sent, unrounded."""
        return self._end_by_bisection() or self.end_by_recurrence()

    def end_by_recurrence(self) -> int:
        """Return :meth:`earliest_end` by the O(n) recurrence."""
        alpha, scale, sent = self.alpha, self.scale, self.sent
        ends = [0]
        # ends[late] is the first end after the current ready time, if there is one yet. The queue
        # holds the ends after it that can still be the minimum of f(i) - b S(i), and that value.
        late, before = 1, 0
        queue: deque[int] = deque()
        values: deque[int] = deque()
        for last, (ready, total) in enumerate(zip(self.ready_ns, sent[1:], strict=True)):
            ready *= scale
            if late <= last and ends[late] <= ready:
                late += 1
                while late <= last and ends[late] <= ready:
                    late += 1
                before = sent[late - 1]
                while queue and queue[0] <= ready:
                    queue.popleft()
                    values.popleft()
            value = ready - before
            if values and values[0] < value:
                value = values[0]
            value += alpha
            while values and values[-1] >= value:
                values.pop()
                queue.pop()
            values.append(value)
            end = value + total
            queue.append(end)
            ends.append(end)
        return ends[-1]

    def fewest_launches(self, deadline: int) -> list[int]:
        """Return the bucket ends of the plan with the fewest launches that ends by a deadline.

        Among the plans with the fewest launches it is one whose start times, in launch order, are
        lexicographically least.

        Parameters
        ----------
        deadline
            At least :meth:`earliest_end`, in the same unit.

        Returns
        -------
        list of int
            The end (exclusive index) of each bucket.

        Raises
        ------
        ValueError
            If the deadline lies before the earliest end.
        """
        levels = self._levels(deadline, len(self.ready_ns))
        if levels is None:
            raise ValueError("the deadline lies before the earliest end")
        return self._earliest_starts(levels[-2::-1])

    def _end_by_bisection(self) -> int | None:
        """Return :meth:`earliest_end`, or None where the recurrence is quicker.

        Whether a deadline can be met is decided in one bisection a launch, so with few launches
        in a long chain a bisection on the deadline beats a pass over all gradients.
        """
        most = len(self.ready_ns) // LEVELS_WORTH_IT
        if not most:
            return None
        ready, last_size = self.ready_ns[-1] * self.scale, self.sent[-1] - self.sent[-2]
        low, high = ready + self.alpha + last_size, ready + self.alpha + self.sent[-1]
        try:
            while low < high:
                middle = (low + high) // 2
                if self._levels(middle, most) is None:
                    low = middle + 1
                else:
                    high = middle
        except _TooManyLaunches:
            return None
        return high

    def _levels(self, deadline: int, most: int) -> list[int] | None:
        """Return from where on m launches are enough, for m = 0, 1, ..., or None if none are.

        The first launch of the rest after position i, up to some levels[q], starts at the deadline
        less q + 1 start-ups and the bytes after i; it may start once the gradient before levels[q]
        is ready.

        Raises
        ------
        _TooManyLaunches
            If more than ``most`` launches would have to be looked at.
        """
        sent, levels, need = self.sent, [len(self.ready_ns)], deadline
        while levels[-1]:
            if len(levels) > most:
                raise _TooManyLaunches
            ready = self.ready_ns[levels[-1] - 1] * self.scale
            need = min(need, ready + len(levels) * self.alpha)
            level = bisect_left(sent, need - deadline + sent[-1])
            if level >= levels[-1]:
                return None
            levels.append(level)
        return levels

    def rounded_end_ns(self, ends: Sequence[int]) -> int:
        """Return when the last bucket ends if each launch is rounded up, in nanoseconds."""
        now = begin = 0
        for end in ends:
            length = self.alpha + self.sent[end] - self.sent[begin]
            now = max(now, self.ready_ns[end - 1]) - (-length // self.scale)
            begin = end
        return now

    def _earliest_starts(self, ends: Sequence[int]) -> list[int]:
        """Move to each bucket what it can take without delaying the next one's start.

        ``ends`` are the least ends with which the plan is feasible, so each launch already has the
        least ready time; what moves forward shortens the launch that it leaves.
        """
        alpha, scale, sent, ready_ns = self.alpha, self.scale, self.sent, self.ready_ns
        result = []
        begin = start = 0
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            start = max(start, ready_ns[end - 1] * scale)
            if following is not None:
                # What this launch may carry so that the next can still start as early as it can.
                next_start = max(
                    start + alpha + sent[end] - sent[begin], ready_ns[following - 1] * scale
                )
                most = next_start - start - alpha + sent[begin]
                while (
                    end < following - 1 and ready_ns[end] * scale <= start and sent[end + 1] <= most
                ):
                    end += 1
            result.append(end)
            start += alpha + sent[end] - sent[begin]
            begin = end
        return result

"""The O(n) recurrence against every partition, on unrounded integers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY

from commsched.models.cost import Piece
from commsched.optimizer import recurrence
from commsched.optimizer.recurrence import AffineChain


def cuts(count: int) -> Iterator[list[int]]:
    """Yield every way to cut a sequence, as bucket ends."""
    for mask in range(2 ** (count - 1)):
        yield [i + 1 for i in range(count - 1) if mask >> i & 1] + [count]


def played(ready: Sequence[int], sizes: Sequence[int], cost: Piece, ends: Sequence[int]):
    """Return the end and the starts of a plan in units of 1 / scale."""
    now = begin = 0
    starts = []
    for end in ends:
        starts.append(max(now, ready[end - 1] * cost.scale))
        now = starts[-1] + cost.intercept + cost.slope * sum(sizes[begin:end])
        begin = end
    return now, starts


def random_chain(rng: random.Random, most: int) -> tuple[list[int], list[int], Piece]:
    """Return a small chain with many ties and zeros."""
    count = rng.randint(1, most)
    span = rng.choice([0, 3, 20, 60])
    ready = sorted(rng.randint(0, span) for _ in range(count))
    sizes = [rng.randint(0, 6) for _ in range(count)]
    return ready, sizes, Piece(0, rng.randint(0, 8), rng.randint(0, 3), rng.randint(1, 3))


@pytest.mark.parametrize("seed", range(8))
def test_earliest_end_fewest_launches_earliest_starts_equal_brute_force(seed):
    """End, launches and start times are lexicographically least among all partitions."""
    rng = random.Random(seed)
    for _ in range(600):
        ready, sizes, cost = random_chain(rng, 8)
        options = [(played(ready, sizes, cost, ends), ends) for ends in cuts(len(sizes))]
        best = min((end, len(ends), starts) for (end, starts), ends in options)
        chain = AffineChain(ready, sizes, cost)
        assert chain.earliest_end() == best[0]
        found = chain.fewest_launches(best[0])
        end, starts = played(ready, sizes, cost, found)
        assert (end, len(found), starts) == best


@pytest.mark.parametrize("seed", range(4))
def test_fewest_launches_by_a_later_deadline(seed):
    """With more room the launches are the fewest of all plans that end in time."""
    rng = random.Random(seed)
    for _ in range(300):
        ready, sizes, cost = random_chain(rng, 7)
        chain = AffineChain(ready, sizes, cost)
        deadline = chain.earliest_end() + rng.randint(0, 30)
        least = min(
            len(ends)
            for ends in cuts(len(sizes))
            if played(ready, sizes, cost, ends)[0] <= deadline
        )
        found = chain.fewest_launches(deadline)
        assert len(found) == least
        assert played(ready, sizes, cost, found)[0] <= deadline


def test_a_deadline_that_cannot_be_met_is_refused():
    """Asking for an end before the earliest one raises and does not loop."""
    chain = AffineChain([10, 20], [5, 5], Piece(0, 3, 1, 1))
    with pytest.raises(ValueError, match="deadline"):
        chain.fewest_launches(chain.earliest_end() - 1)


def test_rounded_end_rounds_each_launch_up():
    """Two launches of 1.5 ns end after 4 ns, one of 2.5 ns after 3."""
    chain = AffineChain([0, 0], [1, 1], Piece(0, 1, 2, 2))
    assert chain.rounded_end_ns([1, 2]) == 4
    assert chain.rounded_end_ns([2]) == 3


@PROPERTY
@given(st.randoms(use_true_random=False), st.integers(20, 120))
def test_long_chains_agree_with_the_quadratic_recurrence(rng, count):
    """On long chains the O(n) result is that of the plain O(n^2) recurrence."""
    ready = sorted(rng.randint(0, 40 * count) for _ in range(count))
    sizes = [rng.randint(0, 60) for _ in range(count)]
    cost = Piece(0, rng.randint(0, 90), rng.randint(0, 2), rng.randint(1, 2))
    ends = [0]
    for j in range(1, count + 1):
        ends.append(
            min(
                max(ends[i], ready[j - 1] * cost.scale)
                + cost.intercept
                + cost.slope * sum(sizes[i:j])
                for i in range(j)
            )
        )
    chain = AffineChain(ready, sizes, cost)
    assert chain.earliest_end() == chain.end_by_recurrence() == ends[-1]


@pytest.mark.parametrize("seed", range(4))
def test_bisection_equals_the_recurrence(seed, monkeypatch):
    """Where bisection answers at all it answers what the recurrence does."""
    monkeypatch.setattr(recurrence, "LEVELS_WORTH_IT", 2)
    rng = random.Random(seed)
    answered = 0
    for _ in range(400):
        ready, sizes, cost = random_chain(rng, 30)
        chain = AffineChain(ready, sizes, cost)
        found = chain._end_by_bisection()
        answered += found is not None
        assert found in (None, chain.end_by_recurrence())
    assert answered > 100

"""Putting the ranks of a job on one clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.models.units import MAX_NS
from commsched.problems.ranks.ranks_clock import align


def job(rng: random.Random, ranks: int, count: int, *, partial: bool = False):
    """Return spans on a true clock: every rank starts by itself, all end nearly together."""
    spans, now = [], 0
    for _ in range(count):
        who = range(ranks)
        if partial:
            who = sorted(rng.sample(range(ranks), rng.randint(2, ranks)))
        starts = {r: now + rng.randint(0, 5000) for r in who}
        end = max(starts.values()) + rng.randint(50, 500)
        spans.append({r: (start, end + rng.randint(0, 20)) for r, start in starts.items()})
        now = end
    return spans


def on_own_time(spans, zeros):
    """Return the spans as each rank sees them."""
    return [{r: (a - zeros[r], b - zeros[r]) for r, (a, b) in span.items()} for span in spans]


def overlap(spans, zeros):
    """Count the collectives that overlap, written apart from the module."""
    count = 0
    for span in spans:
        begin = [a + zeros[r] for r, (a, _) in span.items()]
        end = [b + zeros[r] for r, (_, b) in span.items()]
        count += all(a < b for a in begin for b in end)
    return count


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 8))
def test_clocks_that_can_be_right_are_kept(seed, ranks, count):
    """Even large differences of the step's starts are the recording's own."""
    rng = random.Random(seed)
    true = [rng.randint(0, 10**9) for _ in range(ranks)]
    own = on_own_time(job(rng, ranks, count), true)
    base = rng.randint(0, 2 * 10**18)
    clock = align([base + zero for zero in true], own, [10**9] * ranks)
    assert not clock.estimated
    assert clock.zeros_ns == tuple(zero - min(true) for zero in true)
    assert clock.overlapping == clock.collectives == count
    assert clock.scatter_ns <= 20


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 8), st.booleans())
def test_clocks_that_cannot_be_right_are_found_to_within_the_scatter_of_the_ends(
    seed, ranks, count, known
):
    """All ranks see the ends of a collective within 20 ns here, so offsets are that exact."""
    rng = random.Random(seed)
    true = [rng.randint(0, 10**6) for _ in range(ranks)]
    own = on_own_time(job(rng, ranks, count), true)
    wrong = [zero + 10**12 * k for k, zero in enumerate(true)] if known else [None] * ranks
    clock = align(wrong, own, [10**9] * ranks)
    assert clock.estimated
    assert clock.reason
    assert clock.overlapping == count == overlap(own, clock.zeros_ns)
    error = [zero - truth for zero, truth in zip(clock.zeros_ns, true, strict=True)]
    assert max(error) - min(error) <= 40


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 8), st.data())
def test_a_constant_on_one_ranks_clock_does_not_change_the_estimate(seed, ranks, count, data):
    """Times relative to another zero give the same places on the common clock."""
    rng = random.Random(seed)
    own = job(rng, ranks, count, partial=True)
    shifts = data.draw(st.lists(st.integers(-(10**9), 10**9), min_size=ranks, max_size=ranks))
    first = align([None] * ranks, own, [10**9] * ranks)
    second = align([None] * ranks, on_own_time(own, shifts), [10**9] * ranks)
    if first.unlinked:
        return  # Nothing but the step's own start places these.
    moved = [
        b - a - shift for a, b, shift in zip(first.zeros_ns, second.zeros_ns, shifts, strict=True)
    ]
    assert len(set(moved)) == 1


def test_medians_that_break_an_overlap_are_moved_as_little_as_needed():
    """Two of three ends say 0, but then the third collective would not overlap."""
    spans = [
        {0: (0, 100), 1: (0, 100)},
        {0: (200, 300), 1: (200, 300)},
        {0: (400, 410), 1: (450, 470)},
    ]
    clock = align([None, None], spans, [500, 500])
    assert clock.overlapping == 3
    assert clock.zeros_ns == (41, 0)
    assert overlap(spans, (40, 0)) == 2


def test_offsets_that_explain_nothing_better_leave_the_recorded_clock():
    """Two collectives that contradict each other are no matter of the clock."""
    spans = [{0: (0, 10), 1: (20, 30)}, {0: (60, 70), 1: (40, 50)}, {0: (80, 90), 1: (80, 90)}]
    clock = align([5, 5], spans, [100, 100])
    assert not clock.estimated
    assert (clock.overlapping, clock.collectives) == (1, 3)


def test_ranks_are_linked_through_others():
    """Rank 2 shares nothing with rank 0, but rank 1 shares with both; nobody shares with rank 3."""
    spans = [{0: (100, 200), 1: (50, 150)}, {1: (300, 400), 2: (0, 100)}]
    clock = align([None] * 4, spans, [500] * 4)
    assert clock.zeros_ns == (0, 50, 350, 0)
    assert clock.unlinked == (3,)


def test_without_collectives_the_steps_must_overlap():
    """Else one of the clocks is another one."""
    assert align([10, 30], [], [20, 20]).zeros_ns == (0, 20)
    clock = align([10, 31], [], [20, 20])
    assert clock.zeros_ns == (0, 0)
    assert clock.unlinked == (1,)
    assert "do not overlap" in clock.reason
    assert align([None, 5], [], [1, 1]).unlinked == (1,)


@pytest.mark.parametrize("far", [MAX_NS + 1, 2**70, -(2**200)])
def test_absurd_times_and_origins_do_not_overflow(far):
    """Such a run is as good as not recorded."""
    clock = align([0, far], [{0: (0, 10), 1: (far, far + 10)}, {0: (20, 30), 1: (21, 30)}], [9, 9])
    assert clock.estimated
    assert clock.collectives == 1
    assert clock.zeros_ns == (0, 0)


@pytest.mark.parametrize("ranks", [600, 4000])
def test_many_ranks_take_no_longer_than_a_moment(ranks):
    """Overlaps are enforced one by one only while that is cheap; the medians stand anyway."""
    rng = random.Random(1)
    spans = job(rng, ranks, 30)
    spans.append({r: (10**9 + 100 * (r == 3), 10**9 + 90 + 100 * (r == 3)) for r in range(ranks)})
    clock = align([None] * ranks, spans, [2 * 10**9] * ranks)
    assert clock.overlapping >= 30

"""Kinds, what a rank of a ring sends, and the all-to-all ledger."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import PROPERTY

from commsched.models import KINDS, InputError, all_to_all_ledger, bus_factor, sent_bytes


# nccl-tests, doc/PERFORMANCE.md: "busbw = algbw * factor".
@pytest.mark.parametrize(
    ("kind", "two", "four", "eight"),
    [
        ("allreduce", Fraction(1), Fraction(3, 2), Fraction(7, 4)),
        ("reduce_scatter", Fraction(1, 2), Fraction(3, 4), Fraction(7, 8)),
        ("all_gather", Fraction(1, 2), Fraction(3, 4), Fraction(7, 8)),
        ("all_to_all", Fraction(1, 2), Fraction(3, 4), Fraction(7, 8)),
        ("broadcast", Fraction(1), Fraction(1), Fraction(1)),
        ("send_recv", Fraction(1), Fraction(1), Fraction(1)),
    ],
)
def test_bus_factors(kind, two, four, eight):
    """The factors that nccl-tests documents."""
    assert [bus_factor(kind, ranks) for ranks in (2, 4, 8)] == [two, four, eight]
    assert sent_bytes(kind, 1024, 8) == 1024 * eight


def test_every_kind_is_known():
    """The design's six kinds and no other."""
    assert set(KINDS) == {
        "allreduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "broadcast",
        "send_recv",
    }


@PROPERTY
@given(st.integers(0, 2**60), st.integers(2, 2**24))
def test_an_allreduce_is_a_reduce_scatter_and_an_all_gather(size, ranks):
    """A ring all-reduce sends what its two halves send together, exactly."""
    whole = sent_bytes("allreduce", size, ranks)
    assert whole == sent_bytes("reduce_scatter", size, ranks) + sent_bytes(
        "all_gather", size, ranks
    )
    assert whole < 2 * size or size == 0


@PROPERTY
@given(st.integers(0, 50), st.integers(2, 9))
def test_a_ring_step_by_step(chunk, ranks):
    """A ring of n ranks sends n - 1 chunks to reduce and n - 1 to gather, each of size / n."""
    size = chunk * ranks
    steps = sum(chunk for _ in range(ranks - 1)) + sum(chunk for _ in range(ranks - 1))
    assert sent_bytes("allreduce", size, ranks) == steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allreduce", -1, 4), "size: -1"),
        (("allreduce", 1, 1), "ranks: 1"),
        (("allreduce", 1, 0), "ranks: 0"),
        (("allreduce", 1, -3), "ranks: -3"),
        (("all-reduce", 1, 4), "kind: 'all-reduce' is not one of allreduce"),
        (("allreduce", 1, 2.5), "ranks: 2.5"),
        (("allreduce", 1, True), "ranks"),
        (("allreduce", math.nan, 4), "size: nan"),
    ],
)
def test_bad_sizes_ranks_and_kinds_are_refused(arguments, message):
    """What cannot be sent is refused; the message names the value."""
    with pytest.raises(InputError, match=message):
        sent_bytes(*arguments)


@pytest.mark.parametrize("arguments", [("all-reduce", 4), ("allgather", 4), ("allreduce", 0)])
def test_bus_factor_refuses_what_it_does_not_know(arguments):
    """A kind that is misspelt has no factor; 1 would be a wrong price without a word."""
    with pytest.raises(InputError):
        bus_factor(*arguments)


matrices = st.integers(2, 5).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 20), min_size=n, max_size=n), min_size=n, max_size=n)
)


@PROPERTY
@given(matrices, st.integers(1, 5000))
def test_the_ledger_counts_token_by_token(tokens, bytes_per_token):
    """The ledger equals a count in which each token is handed over singly."""
    ranks = len(tokens)
    received, from_others = [0] * ranks, [0] * ranks
    for source in range(ranks):
        for target in range(ranks):
            for _ in range(tokens[source][target]):
                received[target] += 1
                if source != target:
                    from_others[target] += bytes_per_token
    ledger = all_to_all_ledger(tokens, bytes_per_token)
    assert list(ledger.received_tokens) == received
    assert list(ledger.received_bytes) == from_others
    assert ledger.remote_bytes == sum(from_others)
    assert ledger.busiest_rank == from_others.index(max(from_others))
    mean = Fraction(sum(received), ranks)
    assert ledger.max_to_mean == (max(received) / mean if mean else 1)


def test_no_token_at_all():
    """Nobody receives more than the mean where nothing is sent."""
    ledger = all_to_all_ledger([[0, 0], [0, 0]], 4)
    assert ledger.max_to_mean == 1
    assert ledger.remote_bytes == 0
    assert ledger.busiest_rank == 0


def test_local_tokens_cross_nothing():
    """Tokens that stay at their rank are received but not sent."""
    ledger = all_to_all_ledger([[5, 0], [0, 7]], 4)
    assert ledger.received_tokens == (5, 7)
    assert ledger.received_bytes == (0, 0)
    assert ledger.remote_bytes == 0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "0 rank"),
        ([[1]], "1 rank"),
        ([[1, 2], [3]], "row 1 has 1 columns, 2 needed"),
        ([[1, 2, 3], [3, 4, 5]], "row 0 has 3 columns, 2 needed"),
        ([[1, 2], [3, -4]], "row 1, column 1: -4"),
        ([[1, 2], [3, 0.5]], "row 1, column 1: 0.5"),
        ([[1, 2], [True, 0]], "row 1, column 0: True"),
        ([[1, "2"], [3, 0]], "row 0, column 1: '2'"),
        ([[1, math.nan], [3, 0]], "row 0, column 1: nan"),
        ([[1, math.inf], [3, 0]], "row 0, column 1: inf"),
        ([[1, None], [3, 0]], "row 0, column 1: None"),
    ],
)
def test_bad_matrices_are_refused(tokens, message):
    """A matrix that is not square or holds no whole numbers is refused; the place is named."""
    with pytest.raises(InputError, match=message):
        all_to_all_ledger(tokens, 4)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "4", None])
def test_bad_token_sizes_are_refused(bad):
    """A token has bytes, a finite number above 0."""
    with pytest.raises(InputError, match="bytes_per_token"):
        all_to_all_ledger([[1, 2], [3, 4]], bad)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.float64])
def test_numpy_matrices_do_not_overflow(dtype):
    """Counts from an array of any type give Python's exact numbers."""
    counts = [[100, 100], [100, 100]]
    size = 2**61
    ledger = all_to_all_ledger(np.array(counts, dtype=dtype), size)
    assert ledger == all_to_all_ledger(counts, size)
    assert ledger.received_bytes == (100 * size, 100 * size)
    assert all(type(count) is int for count in (*ledger.received_tokens, *ledger.received_bytes))


def test_whole_floats_count_as_whole_numbers():
    """A count of 1.0 is the count 1."""
    assert all_to_all_ledger([[0, 1.0], [2.0, 0]], 4) == all_to_all_ledger([[0, 1], [2, 0]], 4)

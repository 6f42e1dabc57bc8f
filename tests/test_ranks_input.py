"""Which rank a recording is of, and what several of them are called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks_maker import rank, step

from commsched.models import InputError
from commsched.problems.ranks.ranks_input import number_ranks, numbers_text, rank_in_name, title


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ddp_gloo_rank1.pt.trace.json.gz", 1),
        ("job.tar.gz: dlrm/worker3_step_12.1694128201557.pt.trace.json", 3),
        ("rank34_of300.pt.trace.json", 34),
        ("runs/rank_7/trace_3.json", 7),
        ("Rank-12.json", 12),
        ("trace_3.json", 3),
        ("kineto.5.json.gz", 5),
        ("0.json", 0),
        ("host_4711.1694128201557.pt.trace.json", None),
        ("trace.json", None),
        ("rank123456789.json", None),
        ("", None),
    ],
)
def test_numbers_in_names(name, number):
    """The word counts first, then a short number at the end; stamps of time do not."""
    assert rank_in_name(name) == number


def numbered(*sources, ranks=None):
    """Return the numbers that recordings get, in the order of the numbers, and the notes."""
    one = step([1], [4], [[0]], [None])
    given_ranks = ranks or [None] * len(sources)
    found, notes = number_ranks(
        [rank(r, one, source=source) for r, source in zip(given_ranks, sources, strict=True)]
    )
    return [(item.rank, item.source) for item in found], notes


def test_the_recording_itself_counts_most():
    """Then the name, then the position; each that is used is said."""
    assert numbered("rank1.json", "rank0.json", ranks=[0, 1]) == (
        [(0, "rank1.json"), (1, "rank0.json")],
        [],
    )
    assert numbered("rank1.json", "rank0.json")[0] == [(0, "rank0.json"), (1, "rank1.json")]
    assert "in the names" in numbered("rank1.json", "rank0.json")[1][0]
    found, notes = numbered("b.json", "a.json")
    assert found == [(0, "b.json"), (1, "a.json")]
    assert "by their position" in notes[0]


def test_a_number_at_the_end_counts_only_if_it_tells_ranks_apart():
    """It may be the step's."""
    assert numbered("b_3.json", "a_3.json")[0] == [(0, "b_3.json"), (1, "a_3.json")]
    assert numbered("b_4.json", "a_3.json")[0] == [(3, "a_3.json"), (4, "b_4.json")]
    found, _ = numbered("x.json", "y.json", "z.json", ranks=[1, None, 0])
    assert found == [(0, "z.json"), (1, "x.json"), (2, "y.json")]


def test_a_rank_twice_is_refused():
    """Both files are named."""
    with pytest.raises(InputError, match=r"b/rank0.json: rank 0 was already read from a/rank0"):
        numbered("a/rank0.json", "b/rank0.json")
    with pytest.raises(InputError, match="rank 3 was already read"):
        numbered("a.json", "b.json", ranks=[3, 3])


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(-2, 5)), st.text(max_size=12)), max_size=6)
)
def test_any_names_give_distinct_numbers_or_are_refused(entries):
    """Whatever the files are called."""
    one = step([1], [4], [[0]], [None])
    try:
        found, _ = number_ranks([rank(r, one, source=s or "x") for r, s in entries])
    except InputError:
        return
    numbers = [item.rank for item in found]
    assert numbers == sorted(set(numbers))
    assert title(found).startswith(f"{len(found)} ranks of ") if found else True


def test_titles_and_lists_are_short():
    """Runs of numbers and names that differ in a number are written once."""
    assert numbers_text([4, 0, 1]) == "ranks 0, 1, 4"
    assert numbers_text(list(range(0, 100, 2))).endswith(", ...")
    one = step([1], [4], [[0]], [None])
    assert title([rank(0, one, source="a/x.json"), rank(1, one, source="b/x.json")]) == (
        "2 ranks of x.json"
    )
    assert title([rank(0, one, source="a/x.json"), rank(1, one, source="b/y.json")]) == (
        "2 ranks of x.json and others"
    )

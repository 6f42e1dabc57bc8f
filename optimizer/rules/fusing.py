"""Horovod's ``FuseResponses``: which tensors of a queue share a launch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from commsched.models.errors import SolverError
from commsched.models.knob import Knob, Setting, exceeded
from commsched.optimizer.rules.rows import Row

FEW_ROWS = 8
"""So few keys in a queue are looked at one by one."""


def fuse_responses(
    sizes: Sequence[int], keys: Sequence[Hashable], threshold: Setting
) -> list[list[int]]:
    """Return how ``Controller::FuseResponses`` fuses a queue of tensors.

    The front is taken out; what follows is fused into it as long as keys are equal and the sum is at
    most the threshold, which is a true maximum (a larger tensor is sent by itself). Others are skipped
    while the bytes so far and all bytes skipped are at most the threshold together; the skipped ones
    go back to the front.

    So a launch takes tensors of its key one after the other, up to the first that does not fit, or
    up to the first of another key with which all bytes from the front on exceed the threshold.
    Finding these takes logarithmic time a launch, however many keys are skipped.

    Parameters
    ----------
    sizes
        Bytes of each tensor, in the order of the queue.
    keys
        What tensors must have in common to be fused, one a tensor.
    threshold
        The fusion threshold in bytes.

    Returns
    -------
    list of list of int
        Indices of the tensors of each launch, in launch order.

    Examples
    --------
    >>> fuse_responses([4, 3, 5, 1], ["f4", "f2", "f4", "f4"], 10)
    [[0, 2, 3], [1]]
    >>> fuse_responses([4, 7, 5, 1], ["f4", "f2", "f4", "f4"], 10)
    [[0], [1], [2, 3]]
    """
    members: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    totals = {key: [0, *accumulate(sizes[k] for k in own)] for key, own in members.items()}
    sent = dict.fromkeys(members, 0)
    left = _Left(sizes)
    launches: list[list[int]] = []
    while (front := left.next[0]) < len(sizes):
        own, begin = members[keys[front]], sent[keys[front]]
        bytes_of_own = totals[keys[front]]
        most = len(bytes_of_own)
        end = exceeded(bytes_of_own, begin + 2, most, bytes_of_own[begin], threshold) - 1
        stop = own[end] if end < len(own) else len(sizes)
        other = left.first_beyond(threshold)
        while other < stop and keys[other] == keys[front]:
            other = left.next[other + 1]
        end = bisect_left(own, min(stop, other), begin + 1)
        launches.append(own[begin:end])
        sent[keys[front]] = end
        for index in own[begin:end]:
            left.remove(index)
    return launches


def fused_rows(
    rows: Sequence[Row],
    row_at: Sequence[int],
    queue: tuple[int, int],
    sent: Sequence[int],
    threshold: Setting,
) -> Iterator[tuple[int, int]]:
    """Yield how a queue that is a piece of the ready order is fused, as :func:`fuse_responses` does.

    A launch is the next members of a row: the row's number and the end of these members.

    Parameters
    ----------
    rows, row_at
        All rows, and by place in ready order the number of the row.
    queue
        The first place, and the end.
    sent
        How many of each row were sent; the caller counts each launch in before it takes the next.
    threshold
        The fusion threshold in bytes.
    """
    begin, until = queue
    found = set(row_at[begin:until])
    if len(found) > FEW_ROWS:
        keys = row_at[begin:until]
        done = {k: sent[k] for k in found}
        taken = dict(done)
        sizes = []
        for k in keys:
            sizes.append(rows[k].totals[taken[k] + 1] - rows[k].totals[taken[k]])
            taken[k] += 1
        for launch in fuse_responses(sizes, keys, threshold):
            done[keys[launch[0]]] += len(launch)
            yield keys[launch[0]], done[keys[launch[0]]]
        return
    stops = {k: bisect_left(rows[k].places, until, sent[k]) for k in found}
    while stops:
        front = min(stops, key=lambda k: rows[k].places[sent[k]])
        row, first, end = rows[front], sent[front], stops[front]
        if len(stops) > 1:
            others = [(rows[k], sent[k]) for k in stops if k != front]
            needs = _Needs(row, first, others)
            if len(rows) == 2:
                end = _end_of_two(rows, front, sent, stops, threshold)
                # A knob remembers what decides: all before the end fit, and what is there does not.
                around = [needs[k] for k in (end - 1, end) if first < k < stops[front]]
                if exceeded(around, 0, len(around), 0, threshold) != (end > first + 1):
                    raise SolverError(f"a launch of two rows cannot end at member {end}")
            else:
                end = exceeded(needs, first + 1, end, 0, threshold)
        elif end > first + 1:
            end = exceeded(row.totals, first + 2, end + 1, row.totals[first], threshold) - 1
        yield front, end
        if end == stops[front]:
            del stops[front]


def _end_of_two(
    rows: Sequence[Row],
    front: int,
    sent: Sequence[int],
    stops: Mapping[int, int],
    threshold: Setting,
) -> int:
    """Return where a launch ends if there are only two rows, both of which are in the queue."""
    row, other = rows[front], rows[1 - front]
    first, behind = sent[front], sent[1 - front]
    cap = threshold.value if isinstance(threshold, Knob) else threshold
    end = stops[front]
    if end > first + 1:
        end = bisect_right(row.totals, cap + row.totals[first], first + 2, end + 1) - 1
    # All that is left up to a member of the other row: both rows' bytes less what was sent.
    gone = other.totals[behind] + row.totals[first]
    beyond = bisect_right(other.sums, cap + gone, behind, stops[1 - front])
    if beyond < stops[1 - front]:
        end = min(end, bisect_left(row.places, other.places[beyond], first + 1))
    return end


class _Needs(Sequence[int]):
    """The least threshold with which a launch of a row's next members includes each of them.

    All of them up to that one must fit together, and also all that is left up to the last of
    another key before it. It grows from each to the next.
    """

    def __init__(self, row: Row, first: int, others: Sequence[tuple[Row, int]]) -> None:
        self._row = row
        self._first = first
        self._others = others

    def __len__(self) -> int:
        return len(self._row.places)

    def __getitem__(self, member: Any) -> Any:  # noqa: ANN401
        places, totals, first = self._row.places, self._row.totals, self._first
        place = places[member]
        size = totals[member + 1] - totals[first]
        skipped, last = 0, -1
        for row, sent in self._others:
            end = bisect_left(row.places, place, sent)
            if end > sent:
                skipped += row.totals[end] - row.totals[sent]
                last = max(last, row.places[end - 1])
        if last < 0:
            return size
        before = totals[bisect_left(places, last, first, member)] - totals[first]
        return max(size, before + skipped)


class _Left:
    """What is left of a queue: its bytes in a tree of partial sums, and who follows whom.

    Attributes
    ----------
    next
        At 0 the first that is left, at ``k + 1`` the one after ``k`` (if that is left); the queue's
        length where there is none.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.next = list(range(len(sizes) + 1))
        self._before = [k - 1 for k in range(len(sizes) + 1)]
        self._tree = [0, *sizes]
        for k in range(1, len(sizes) + 1):
            above = k + (k & -k)
            if above <= len(sizes):
                self._tree[above] += self._tree[k]

    def first_beyond(self, threshold: Setting) -> int:
        """Return the first with which the bytes that are left exceed a threshold, or the length."""
        place = total = 0
        step = 1 << len(self._sizes).bit_length()
        while step := step // 2:
            after = place + step
            if after < len(self._tree) and total + self._tree[after] <= threshold:
                place, total = after, total + self._tree[after]
        return place

    def remove(self, index: int) -> None:
        """Take one out."""
        before, after = self._before[index], self.next[index + 1]
        self.next[before + 1] = after
        self._before[after] = before
        place = index + 1
        while place < len(self._tree):
            self._tree[place] -= self._sizes[index]
            place += place & -place

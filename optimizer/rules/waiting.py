"""What waits for a channel: the most urgent first, or the most urgent that fits into what is left."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

Urgency = tuple[int, ...]
"""The smallest goes first. No two pieces have the same."""
Piece = tuple[int, int]
"""A collective's position and the number of its piece."""


class MostUrgent:
    """Pieces of which the most urgent goes next as long as any credit is left.

    Examples
    --------
    >>> waiting = MostUrgent()
    >>> waiting.put((2,), (0, 0), load=9)
    >>> waiting.put((1,), (1, 0), load=9)
    >>> waiting.take(0), waiting.take(1), waiting.take(1), waiting.take(1)
    (None, (1, 0), (0, 0), None)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, Piece]] = []

    def put(self, urgency: Urgency, piece: Piece, load: int) -> None:
        """Add a piece that is ready."""
        heappush(self._heap, (urgency, piece))

    def take(self, credit: int) -> Piece | None:
        """Take out the piece that goes next, or None."""
        return heappop(self._heap)[1] if self._heap and credit > 0 else None


class MostUrgentFitting:
    """Pieces of which the most urgent goes next whose load is at most the credit.

    A tree over the pieces by urgency, each node with the least load below it: both operations take
    logarithmic time however many pieces have to be passed over.

    Parameters
    ----------
    urgencies
        Those of all pieces that will ever be put in.

    Examples
    --------
    >>> waiting = MostUrgentFitting([(1,), (2,)])
    >>> waiting.put((2,), (0, 0), load=3)
    >>> waiting.put((1,), (1, 0), load=9)
    >>> waiting.take(2), waiting.take(8), waiting.take(8), waiting.take(9)
    (None, (0, 0), None, (1, 0))
    """

    def __init__(self, urgencies: Iterable[Urgency]) -> None:
        self._place = {urgency: k for k, urgency in enumerate(sorted(urgencies))}
        self._leaves = 1 << len(self._place).bit_length()
        self._least: list[int | None] = [None] * (2 * self._leaves)  # None: no piece below
        self._pieces: dict[int, Piece] = {}

    def put(self, urgency: Urgency, piece: Piece, load: int) -> None:
        """Add a piece that is ready."""
        leaf = self._leaves + self._place[urgency]
        self._pieces[leaf] = piece
        self._set(leaf, load)

    def take(self, credit: int) -> Piece | None:
        """Take out the piece that goes next, or None."""
        if not self._fits(1, credit):
            return None
        node = 1
        while node < self._leaves:
            node *= 2
            if not self._fits(node, credit):
                node += 1
        self._set(node, None)
        return self._pieces.pop(node)

    def _fits(self, node: int, credit: int) -> bool:
        least = self._least[node]
        return least is not None and least <= credit

    def _set(self, node: int, load: int | None) -> None:
        self._least[node] = load
        while node > 1:
            node //= 2
            left, right = self._least[2 * node], self._least[2 * node + 1]
            if left is None or (right is not None and right < left):
                left = right
            self._least[node] = left

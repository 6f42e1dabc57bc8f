"""A plan: which collectives share a launch, and in what order each channel runs its launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from commsched.models.errors import InputError
from commsched.models.given import given, items_of, mapping_of
from commsched.models.knob import Setting, reached
from commsched.models.units import check_bytes, check_ns


def names_of(names: object) -> tuple[str, ...]:
    """Return names as a tuple; one text is refused, for it would fall apart into letters.

    Raises
    ------
    InputError
        If it is no list of names.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"{names!r:.100} must be a list of names")
    return tuple(names)


class Chunk(NamedTuple):
    """A part of a collective that is launched by itself: its bytes from ``begin`` up to ``end``.

    A rule that splits a tensor into m pieces makes m of these; the collective is done when all of
    them are.
    """

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Collectives, or chunks of them, fused into one launch.

    Attributes
    ----------
    names
        The members' names, at least one.
    not_before_ns
        The launch is held back until then, in nanoseconds, even if it is ready and the channel
        is free. Rules that wait for a clock tick or for the end of backward need it.
    chunks
        Empty where every member is whole; else one entry a member: its chunk, or None.

    Raises
    ------
    InputError
        If there is no member, one is no name, or a time or chunk is out of range.

    Examples
    --------
    >>> Bucket(("fc",), chunks=(Chunk(0, 4096),)).names
    ('fc',)
    """

    names: tuple[str, ...]
    not_before_ns: int = 0
    chunks: tuple[Chunk | None, ...] = ()

    def __post_init__(self) -> None:
        if type(self.names) is not tuple:
            object.__setattr__(self, "names", names_of(self.names))
        try:
            hash(self.names)  # quicker than a look at each; what else is no name fits no problem
        except TypeError:
            items_of(self.names, "bucket", str)
            raise
        if not self.names:
            raise InputError("a bucket needs at least one member")
        if self.not_before_ns != 0 or type(self.not_before_ns) is not int:
            what = f"bucket of {self.names[0]!r:.100}: not_before_ns"
            object.__setattr__(self, "not_before_ns", check_ns(self.not_before_ns, what))
        if type(self.chunks) is not tuple or self.chunks:
            object.__setattr__(self, "chunks", _checked_chunks(self.chunks, self.names))


def _checked_chunks(
    chunks: Sequence[Chunk | None], names: tuple[str, ...]
) -> tuple[Chunk | None, ...]:
    if not isinstance(chunks, list | tuple):
        raise InputError(f"bucket of {names[0]!r:.100}: chunks {chunks!r:.100} must be a list")
    if chunks and len(chunks) != len(names):
        raise InputError(
            f"bucket of {names[0]!r:.100}: {len(chunks)} chunks for {len(names)} members"
        )
    checked: list[Chunk | None] = []
    for name, chunk in zip(names, chunks, strict=False):
        if chunk is None:
            checked.append(None)
            continue
        if not isinstance(chunk, list | tuple) or len(chunk) != 2:
            raise InputError(f"chunk of {name!r:.100}: {chunk!r:.100} must be a begin and an end")
        begin = check_bytes(chunk[0], f"chunk of {name!r:.100}: begin")
        end = check_bytes(chunk[1], f"chunk of {name!r:.100}: end")
        if end < begin:
            raise InputError(f"chunk of {name!r:.100}: ends at {end}, before its begin {begin}")
        checked.append(Chunk(begin, end))
    return tuple(checked) if any(checked) else ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Buckets in launch order.

    A channel runs its launches in the order in which they stand here; launches of different
    channels do not wait for each other, unless they need memory of the same limited pool, which
    is given out in this order.

    Attributes
    ----------
    buckets
        The launches.
    orders
        For streams on which the plan moves movable tasks: all names of the stream's tasks in
        the order in which it runs them.

    Raises
    ------
    InputError
        If something else than buckets is among the buckets, or an order is no list of names.

    Examples
    --------
    >>> Plan.of([["L4", "L3"], ["L2"]]).buckets[1].names
    ('L2',)
    """

    buckets: tuple[Bucket, ...]
    orders: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if type(self.buckets) is not tuple or not {*map(type, self.buckets)} <= {Bucket}:
            object.__setattr__(self, "buckets", items_of(self.buckets, "plan: buckets", Bucket))
        if type(self.orders) is not dict or self.orders:
            orders = mapping_of(self.orders, "plan: orders")
            found = {
                given(stream, str, "plan: orders"): items_of(
                    names, f"plan: orders: {stream!r}", str
                )
                for stream, names in orders.items()
            }
            object.__setattr__(self, "orders", found)

    @classmethod
    def of(cls, buckets: Iterable[Iterable[str]], not_before_ns: int = 0) -> Plan:
        """Return the plan with these buckets of names, each held back until ``not_before_ns``."""
        rows = items_of(buckets, "plan: buckets", object)
        return cls(tuple(Bucket(names_of(names), not_before_ns) for names in rows))

    @property
    def splits(self) -> bool:
        """Whether some collective is launched in chunks."""
        return any(bucket.chunks for bucket in self.buckets)

    @property
    def launches(self) -> int:
        """How many launches the plan has."""
        return len(self.buckets)


def close_at_or_above(sizes: Sequence[int], caps: Sequence[Setting]) -> list[int]:
    """Cut a sequence the way PyTorch DDP cuts gradients into buckets.

    A bucket closes as soon as its size has reached its cap, tested *after* adding, so a cap is a
    threshold and no maximum. The k-th bucket uses the k-th cap; the last cap repeats.
    Source: torch/csrc/distributed/c10d/reducer.cpp, ``compute_bucket_assignment_by_size``.

    Parameters
    ----------
    sizes
        Sizes in any one unit, in the order in which they are added.
    caps
        At least one cap in the same unit.

    Returns
    -------
    list of int
        The end (exclusive index) of each bucket; a remainder forms the last bucket.

    Raises
    ------
    InputError
        If no cap is given.

    Examples
    --------
    >>> close_at_or_above([1, 60, 2, 46, 10, 2], [2, 50])  # pytorch#48880, in half MiB
    [2, 5, 6]
    """
    if not caps:
        raise InputError("caps: at least one is needed")
    ends: list[int] = []
    limits = iter(caps)
    cap = next(limits)
    totals = list(accumulate(sizes))
    before = begin = 0
    while begin < len(totals):
        begin = min(reached(totals, begin, before, cap) + 1, len(totals))
        ends.append(begin)
        before = totals[begin - 1]
        cap = next(limits, cap)
    return ends

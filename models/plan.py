"""A plan: which collectives share a launch, and in what order each channel runs its launches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from commsched.models.errors import InputError
from commsched.models.units import check_ns


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


@dataclass(frozen=True, slots=True)
class Bucket:
    """Collectives fused into one launch.

    Attributes
    ----------
    names
        The members' names, at least one.
    not_before_ns
        The launch is held back until then, in nanoseconds, even if it is ready and the channel
        is free. Rules that wait for a clock tick or for the end of backward need it.

    Raises
    ------
    InputError
        If there is no member or the time is out of range.
    """

    names: tuple[str, ...]
    not_before_ns: int = 0

    def __post_init__(self) -> None:
        if type(self.names) is not tuple:
            object.__setattr__(self, "names", names_of(self.names))
        if not self.names:
            raise InputError("a bucket needs at least one member")
        if self.not_before_ns != 0 or type(self.not_before_ns) is not int:
            what = f"bucket of {self.names[0]!r:.100}: not_before_ns"
            object.__setattr__(self, "not_before_ns", check_ns(self.not_before_ns, what))


@dataclass(frozen=True, slots=True)
class Plan:
    """Buckets in launch order.

    A channel runs its launches in the order in which they stand here; launches of different
    channels do not wait for each other.

    Examples
    --------
    >>> Plan.of([["L4", "L3"], ["L2"]]).buckets[1].names
    ('L2',)
    """

    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, buckets: Iterable[Iterable[str]], not_before_ns: int = 0) -> Plan:
        """Return the plan with these buckets of names, each held back until ``not_before_ns``."""
        return cls(tuple(Bucket(names_of(names), not_before_ns) for names in buckets))

    @property
    def launches(self) -> int:
        """How many launches the plan has."""
        return len(self.buckets)


def close_at_or_above(sizes: Sequence[int], caps: Sequence[int]) -> list[int]:
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
    before = 0
    for index, total in enumerate(accumulate(sizes)):
        if total - before >= cap:
            ends.append(index + 1)
            before = total
            cap = next(limits, cap)
    if len(sizes) and (not ends or ends[-1] != len(sizes)):
        ends.append(len(sizes))
    return ends

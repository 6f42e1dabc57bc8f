"""What a plan must respect beside the step's dependencies: one kind of limit a class.

A limit says of a timeline whether it is broken. Nothing else in the package knows what a limit
means, apart from the solvers, which plan within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from commsched.models.errors import InputError
from commsched.models.plan import names_of
from commsched.models.units import MAX_COUNT, check_bytes, format_bytes, shown

if TYPE_CHECKING:
    from commsched.models.timeline import Timeline


@dataclass(frozen=True, slots=True)
class MostBucketBytes:
    """No bucket holds more than ``bytes``."""

    bytes: int

    def __post_init__(self) -> None:
        check_bytes(self.bytes, f"{self.label}: bytes")

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return "most-bucket-bytes"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        worst = max(timeline.launches, key=lambda launch: launch.bytes)
        if worst.bytes <= self.bytes:
            return None
        return (
            f"the bucket of {worst.names[0]!r} has {worst.bytes} bytes, at most {self.bytes} "
            "are allowed"
        )


@dataclass(frozen=True, slots=True)
class LeastBucketBytes:
    """No bucket holds less than ``bytes``."""

    bytes: int

    def __post_init__(self) -> None:
        check_bytes(self.bytes, f"{self.label}: bytes")

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return "least-bucket-bytes"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        worst = min(timeline.launches, key=lambda launch: launch.bytes)
        if worst.bytes >= self.bytes:
            return None
        return (
            f"the bucket of {worst.names[0]!r} has {worst.bytes} bytes, at least {self.bytes} "
            "are needed"
        )


@dataclass(frozen=True, slots=True)
class MostLaunches:
    """The step has at most ``count`` launches."""

    count: int

    def __post_init__(self) -> None:
        _check_count(self.count, self.label)

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return "most-launches"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        if len(timeline.launches) <= self.count:
            return None
        return f"{len(timeline.launches)} launches, at most {self.count} are allowed"


@dataclass(frozen=True, slots=True)
class BytesInFlight:
    """At most ``bytes`` are in flight at once: in buckets that are ready and not yet sent."""

    bytes: int

    def __post_init__(self) -> None:
        check_bytes(self.bytes, f"{self.label}: bytes")

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return "bytes-in-flight"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        if timeline.peak_bytes <= self.bytes:
            return None
        return f"{timeline.peak_bytes} bytes are in flight at once, at most {self.bytes} may be"


@dataclass(frozen=True, slots=True)
class LaunchesInFlight:
    """At most ``count`` launches are in flight at once: ready and not yet ended."""

    count: int

    def __post_init__(self) -> None:
        _check_count(self.count, self.label)

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return "launches-in-flight"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        peak = peak_of((n.ready_ns, n.end_ns, 1) for n in timeline.launches)
        if peak <= self.count:
            return None
        return f"{peak} launches are in flight at once, at most {self.count} may be"


@dataclass(frozen=True, slots=True)
class PoolBytes:
    """At most ``bytes`` of a pool are alive at once (see :class:`~commsched.models.step.Hold`)."""

    pool: str
    bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.pool, str) or not self.pool:
            raise InputError(f"limit pool-bytes: the pool {self.pool!r:.100} must have a name")
        check_bytes(self.bytes, f"{self.label}: bytes")

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return f"pool-bytes {self.pool}"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        peak = timeline.pool_peak(self.pool)
        if peak <= self.bytes:
            return None
        return f"{format_bytes(peak)} of {self.pool} are alive at once, {self.bytes} bytes may be"


@dataclass(frozen=True, slots=True)
class Together:
    """These collectives share one bucket."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _checked_names(self.names, "together"))

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return f"together {_shown(self.names)}"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        wanted = set(self.names)
        for launch in timeline.launches:
            inside = wanted & set(launch.names)
            if inside and inside != wanted:
                missing = next(name for name in self.names if name not in inside)
                return f"{missing!r} is not in the bucket of {launch.names[0]!r}"
        return None


@dataclass(frozen=True, slots=True)
class Apart:
    """No two of these collectives share a bucket."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _checked_names(self.names, "apart"))

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return f"apart {_shown(self.names)}"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        kept_apart = set(self.names)
        for launch in timeline.launches:
            inside = [name for name in launch.names if name in kept_apart]
            if len(set(inside)) > 1:
                return f"{inside[0]!r} and {inside[1]!r} share a bucket"
        return None


@dataclass(frozen=True, slots=True)
class Alike:
    """Several rows of collectives are cut into buckets at the same places.

    A sharded layer's parameters are gathered for the forward pass, gathered again for the
    backward pass, and its gradients are scattered: a framework groups the layers once, for all
    three.

    Attributes
    ----------
    rows
        At least two rows of equal length; the k-th names of two rows belong to one layer, and two
        layers share a bucket in one row if and only if they do in every row.
    """

    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        rows = tuple(_checked_names(row, "alike", least=1) for row in self.rows)
        if len(rows) < 2 or len({len(row) for row in rows}) != 1:
            raise InputError("limit alike: needs at least two rows of equal length")
        if len(set(chain.from_iterable(rows))) != sum(map(len, rows)):
            raise InputError("limit alike: a name occurs in two rows")
        object.__setattr__(self, "rows", rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all rows."""
        return tuple(chain.from_iterable(self.rows))

    @property
    def label(self) -> str:
        """The limit's name for people."""
        return f"alike {_shown(tuple(row[0] for row in self.rows))}"

    def broken(self, timeline: Timeline) -> str | None:
        """Return in what way a timeline breaks the limit; None if it does not."""
        bucket_of = {
            name: number for number, launch in enumerate(timeline.launches) for name in launch.names
        }
        first, *others = self.rows
        for other in others:
            seen: dict[int, int] = {}
            back: dict[int, int] = {}
            for name, twin in zip(first, other, strict=True):
                mine, its = bucket_of[name], bucket_of[twin]
                if seen.setdefault(mine, its) != its or back.setdefault(its, mine) != mine:
                    return f"{name!r} and {twin!r} are grouped differently"
        return None


Limit = (
    MostBucketBytes
    | LeastBucketBytes
    | MostLaunches
    | BytesInFlight
    | LaunchesInFlight
    | PoolBytes
    | Together
    | Apart
    | Alike
)


def peak_of(held: Iterable[tuple[int, int, int]]) -> int:
    """Return the largest amount that is held at once.

    Parameters
    ----------
    held
        From, until, amount. What ends at an instant is gone before what begins at it, and what
        is held for no time counts nothing.

    Examples
    --------
    >>> peak_of([(0, 5, 3), (5, 9, 4), (6, 7, 1)])
    5
    """
    events = []
    for start, end, amount in held:
        if end > start:
            events += [(start, 1, amount), (end, 0, -amount)]
    peak = now = 0
    for _, _, change in sorted(events):
        now += change
        peak = max(peak, now)
    return peak


def _check_count(count: object, label: str) -> None:
    if type(count) is not int:
        raise InputError(f"limit {label}: {count!r:.100} must be a whole number from 1")
    if not 1 <= count <= MAX_COUNT:
        text = f"must be a whole number from 1 to {MAX_COUNT}"
        raise InputError(f"limit {label}: {shown(count)} {text}")


def _checked_names(names: object, what: str, least: int = 2) -> tuple[str, ...]:
    try:
        found = names_of(names)
    except InputError as error:
        raise InputError(f"limit {what}: {error}") from None
    if len(found) < least or not all(isinstance(name, str) for name in found):
        raise InputError(f"limit {what}: needs at least {least} names, {names!r:.100} is given")
    if len(set(found)) != len(found):
        raise InputError(f"limit {what}: a name is listed twice")
    return found


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

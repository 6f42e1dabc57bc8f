"""What a step consists of: compute tasks on streams, collectives in groups, gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from commsched.models.collectives import Kind, check_kind
from commsched.models.errors import InputError
from commsched.models.plan import names_of
from commsched.models.units import MAX_BYTES, MAX_NS, check_bytes, check_ns


class FusionKey(NamedTuple):
    """What collectives must have in common to share a bucket.

    Attributes
    ----------
    kind, group, dtype
        The kind, process group and element type.
    device
        The device, where a step uses several; else empty.
    alone
        The name of a collective that can share a bucket with no other (a sparse gradient); else
        empty.
    """

    kind: Kind
    group: str
    dtype: str
    device: str = ""
    alone: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Memory that a collective's tensors take up: its bytes, in a pool, for a while.

    Attributes
    ----------
    pool
        The pool's name, such as ``gathered``; a limit on it is a
        :class:`~commsched.models.limits.PoolBytes`.
    since
        ``"start"``: from when its launch starts, which therefore waits until there is room (the
        output of an all-gather). ``"ready"``: from when it is ready, which nothing can put off
        (the gradients that a reduce-scatter sends).
    until
        Names of the tasks that use the tensors: they are freed when all of these and the launch
        have ended.

    Raises
    ------
    InputError
        If the pool has no name or ``since`` is neither of the two.
    """

    pool: str
    since: Literal["start", "ready"] = "start"
    until: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.pool, "hold: pool")
        if self.since not in ("start", "ready"):
            raise InputError(f"hold: since {self.since!r:.100} is neither 'start' nor 'ready'")
        object.__setattr__(self, "until", _checked_after(self.until, f"hold in {self.pool}"))


@dataclass(frozen=True, slots=True)
class Compute:
    """A compute task.

    Attributes
    ----------
    name
        Unique among the step's tasks.
    duration_ns
        How long it runs, in nanoseconds, at least 0.
    stream
        A stream runs its tasks one at a time in the order in which the problem lists them.
    after
        Names of the tasks that must have ended before it starts.
    movable
        Whether a plan may run it at another place of its stream's order (a filler, such as the
        gradients of weights that nothing waits for yet).

    Raises
    ------
    InputError
        If the name is empty, the duration out of range or ``movable`` no bool.
    """

    name: str
    duration_ns: int
    stream: str = "gpu"
    after: tuple[str, ...] = ()
    movable: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name, "task")
        _check_name(self.stream, f"task {self.name!r}: stream")
        duration_ns = check_ns(self.duration_ns, f"task {self.name!r}: duration_ns")
        object.__setattr__(self, "duration_ns", duration_ns)
        object.__setattr__(self, "after", _checked_after(self.after, self.name))
        _check_flag(self.movable, f"task {self.name!r}: movable")


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective operation.

    Attributes
    ----------
    name
        Unique among the step's tasks.
    bytes
        The size that nccl-tests prints: the whole tensor of an all-reduce, the total over the
        ranks of an all-gather, reduce-scatter or all-to-all.
    kind, group, dtype
        What others must share with it to travel in one bucket with it.
    after
        Names of the tasks that must have ended before it is ready.
    device
        The device, where a step uses several.
    sparse
        Whether it must travel alone, as sparse gradients do.
    hold
        The memory that its tensors take up; None if nobody counts it.

    Raises
    ------
    InputError
        If the name is empty, the kind unknown, the size out of range, the device no text or
        ``sparse`` no bool.
    """

    name: str
    bytes: int
    kind: Kind = "allreduce"
    group: str = "dp"
    dtype: str = "float32"
    after: tuple[str, ...] = ()
    device: str = ""
    sparse: bool = False
    hold: Hold | None = None

    def __post_init__(self) -> None:
        _check_name(self.name, "task")
        object.__setattr__(self, "bytes", check_bytes(self.bytes, f"task {self.name!r}: bytes"))
        check_kind(self.kind, f"task {self.name!r}: kind")
        _check_name(self.group, f"task {self.name!r}: group")
        _check_name(self.dtype, f"task {self.name!r}: dtype")
        object.__setattr__(self, "after", _checked_after(self.after, self.name))
        _check_place(self.device, self.sparse, f"task {self.name!r}")
        if self.hold is not None and not isinstance(self.hold, Hold):
            raise InputError(f"task {self.name!r}: hold {self.hold!r:.100} must be a Hold")

    @property
    def key(self) -> FusionKey:
        """The fusion key."""
        alone = self.name if self.sparse else ""
        return FusionKey(self.kind, self.group, self.dtype, self.device, alone)


Task = Compute | Collective


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that backward produces at a known time and that must be all-reduced.

    Attributes
    ----------
    name
        Unique among the gradients.
    bytes
        Its size in bytes.
    ready_ns
        When backward has produced it, in nanoseconds from the step's start.
    dtype
        Only gradients of one dtype may share a bucket.
    device
        The device, where the model is spread over several; only gradients of one share a bucket.
    sparse
        Whether it must travel alone.

    Raises
    ------
    InputError
        If the name is empty, the size or the time out of range, the device no text or ``sparse`` no
        bool.

    Examples
    --------
    >>> Gradient("fc.weight", bytes=2048000, ready_ns=1_500_000).dtype
    'float32'
    """

    name: str
    bytes: int
    ready_ns: int
    dtype: str = "float32"
    device: str = ""
    sparse: bool = False

    def __post_init__(self) -> None:
        # The common case first: planners make these by the hundred thousand.
        if (
            type(self.bytes) is int
            and type(self.ready_ns) is int
            and 0 <= self.bytes <= MAX_BYTES
            and 0 <= self.ready_ns <= MAX_NS
            and type(self.name) is str
            and self.name
            and type(self.dtype) is str
            and self.dtype
            and type(self.device) is str
            and type(self.sparse) is bool
        ):
            return
        _check_name(self.name, "gradient")
        _check_name(self.dtype, f"gradient {self.name!r}: dtype")
        object.__setattr__(self, "bytes", check_bytes(self.bytes, f"gradient {self.name!r}: bytes"))
        object.__setattr__(
            self, "ready_ns", check_ns(self.ready_ns, f"gradient {self.name!r}: ready_ns")
        )
        _check_place(self.device, self.sparse, f"gradient {self.name!r}")


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not name:
        raise InputError(f"{what}: the name {name!r:.100} must be a non-empty text")


def _check_place(device: object, sparse: object, what: str) -> None:
    if not isinstance(device, str):
        raise InputError(f"{what}: device {device!r:.100} must be a text")
    _check_flag(sparse, f"{what}: sparse")


def _check_flag(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{what}: {value!r:.100} must be True or False")


def _checked_after(after: object, name: str) -> tuple[str, ...]:
    try:
        names = names_of(after)
    except InputError as error:
        raise InputError(f"task {name!r}: after: {error}") from None
    for before in names:
        _check_name(before, f"task {name!r}: after")
    return names

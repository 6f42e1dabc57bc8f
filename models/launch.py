"""What ran: launches on channels and compute tasks on streams."""

from __future__ import annotations

from dataclasses import dataclass

from commsched.models.plan import Bucket, Chunk
from commsched.models.step import FusionKey


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as it ran.

    Attributes
    ----------
    names, key, channel, bytes
        Members, fusion key, channel, and the sum of the members' bytes.
    ready_ns
        When everything had ended that its members wait for (not counting the channel).
    start_ns, end_ns
        When it ran, in nanoseconds.
    chunks
        Empty where every member is whole; else each member's chunk, or None.
    not_before_ns
        Until when the plan held it back, in nanoseconds.
    """

    names: tuple[str, ...]
    key: FusionKey
    channel: str
    bytes: int
    ready_ns: int
    start_ns: int
    end_ns: int
    chunks: tuple[Chunk | None, ...] = ()
    not_before_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """How long it ran, in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Span:
    """A compute task as it ran, in nanoseconds."""

    name: str
    stream: str
    start_ns: int
    end_ns: int


def launch_of(
    bucket: Bucket, key: FusionKey, channel: str, size: int, times: tuple[int, int, int]
) -> Launch:
    """Return the launch of a bucket; ``times`` are ready, start and end."""
    return Launch(bucket.names, key, channel, size, *times, bucket.chunks, bucket.not_before_ns)

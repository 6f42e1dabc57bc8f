"""Whether a plan fits a problem: every byte of every collective in exactly one launch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from commsched.models.errors import PlanError
from commsched.models.plan import Chunk, Plan
from commsched.models.problem import Problem
from commsched.models.step import FusionKey

if TYPE_CHECKING:
    from commsched.models.timeline import Timeline


def is_in_order(problem: Problem, plan: Plan) -> bool:
    """Return whether a plan is of scope ``in-order``.

    That is, whether within each fusion key its buckets are contiguous in ready order and stand in
    that order. The order of the names within a bucket does not matter. A plan that splits
    collectives into chunks is not in order.

    Raises
    ------
    PlanError
        If the plan does not fit the problem.
    """
    if plan.splits:
        return False
    rank = {k: place for place, k in enumerate(problem.ready_order)}
    launched: dict[FusionKey, list[int]] = {}
    for positions in fit(problem, plan).positions:
        key = problem.keys[positions[0]]
        launched.setdefault(key, []).extend(sorted(positions, key=rank.__getitem__))
    return launched == problem.chains


def is_fifo(timeline: Timeline) -> bool:
    """Return whether every channel ran its launches in the order in which they were ready."""
    latest: dict[str, int] = {}
    for launch in timeline.launches:
        if launch.ready_ns < latest.get(launch.channel, 0):
            return False
        latest[launch.channel] = launch.ready_ns
    return True


class Members(NamedTuple):
    """For each bucket the positions of its members in the problem, and its bytes."""

    positions: list[list[int]]
    sizes: list[int]


def fit(problem: Problem, plan: Plan) -> Members:
    """Return the members of each bucket, having checked that the plan fits the problem."""
    order = problem.ready_order
    names = problem.names
    if plan.splits:
        members = _in_chunks(problem, plan)
    else:
        if list(chain.from_iterable(b.names for b in plan.buckets)) == list(
            map(names.__getitem__, order)
        ):
            # Buckets contiguous in ready order: the whole check in one comparison.
            rest = iter(order)
            positions = [list(islice(rest, len(bucket.names))) for bucket in plan.buckets]
        else:
            positions = [[_position(problem, name) for name in b.names] for b in plan.buckets]
            _check_once(problem, chain.from_iterable(positions))
        bytes_of = problem.bytes.__getitem__
        members = Members(positions, [sum(map(bytes_of, found)) for found in positions])
    if len(problem.chains) > 1:
        for bucket, found in zip(plan.buckets, members.positions, strict=True):
            keys = {problem.keys[k] for k in found}
            if len(keys) > 1:
                first, second = sorted(keys)[:2]
                raise PlanError(
                    f"bucket of {bucket.names[0]!r}: fuses {_shown(first)} with "
                    f"{_shown(second)}; kind, group, dtype and device must agree"
                )
    return members


def _position(problem: Problem, name: str) -> int:
    position = problem.index.get(name)
    if position is None:
        raise PlanError(f"plan: {name!r} is no collective of the problem")
    return position


def _check_once(problem: Problem, positions: Iterable[int]) -> None:
    seen: set[int] = set()
    for position in positions:
        if position in seen:
            raise PlanError(f"plan: {problem.names[position]!r} is launched twice")
        seen.add(position)
    if len(seen) < len(problem.names):
        missing = next(name for k, name in enumerate(problem.names) if k not in seen)
        raise PlanError(f"plan: {missing!r} is not in any bucket")


def _in_chunks(problem: Problem, plan: Plan) -> Members:
    """Return the members of a plan that splits collectives: every byte is in exactly one launch."""
    parts: dict[int, list[Chunk]] = {}
    members = Members([], [])
    for bucket in plan.buckets:
        found = [_position(problem, name) for name in bucket.names]
        size = 0
        for position, chunk in zip(found, bucket.chunks or repeat(None), strict=False):
            part = Chunk(0, problem.bytes[position]) if chunk is None else chunk
            parts.setdefault(position, []).append(part)
            size += part.end - part.begin
        members.positions.append(found)
        members.sizes.append(size)
    for position, chunks in parts.items():
        _check_chunks(problem.names[position], problem.bytes[position], sorted(chunks))
    _check_once(problem, parts)
    return members


def _check_chunks(name: str, size: int, chunks: list[Chunk]) -> None:
    at = 0
    for begin, end in chunks:
        if end > size:
            raise PlanError(f"plan: a chunk of {name!r} ends at byte {end} of {size}")
        if begin == end and size:
            raise PlanError(f"plan: a chunk of {name!r} is empty: bytes {begin} to {end}")
        if begin < at:
            twice = f"bytes {begin} to {min(at, end)} of {name!r}"
            raise PlanError(f"plan: {twice} are launched twice")
        if begin > at:
            raise PlanError(f"plan: bytes {at} to {begin} of {name!r} are not in any bucket")
        at = end
    if at != size:
        raise PlanError(f"plan: bytes {at} to {size} of {name!r} are not in any bucket")
    if not size and len(chunks) > 1:
        raise PlanError(f"plan: {name!r} is launched twice")


def _shown(key: FusionKey) -> str:
    return "/".join(part for part in key if part)

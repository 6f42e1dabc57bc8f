"""Which gradients were in which all-reduce, worked out from sizes and from the order of events.

A trace does not name the members of a bucket. DDP launches a bucket inside the hook of the
gradient that completes it, so its members are the gradients since the bucket before, and their
bytes must add up to the launch's. Where they do not, a gradient of another bucket has become
ready in between: taking it out must make the sum right, or the launch is marked as not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from commsched.problems.profiler.trace_dtypes import TensorSize


@dataclass(frozen=True, slots=True)
class LaunchSize:
    """What is known about a launch.

    Attributes
    ----------
    started_gradients
        How many gradients' hooks had begun when it was issued.
    elements, dtype
        Its recorded size and type; None if not recorded.
    in_hook
        Whether it was issued inside a gradient's hook; that gradient then is a member.
    shape
        The dimensions of its only tensor; None if there are several or they were not recorded.
    """

    started_gradients: int
    elements: int | None
    dtype: str | None
    in_hook: bool = True
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """Who was in a launch.

    Attributes
    ----------
    members
        Positions of the gradients, rising.
    exact
        Whether their elements add up to the launch's.
    """

    members: tuple[int, ...]
    exact: bool


def find_members(
    sizes: Sequence[TensorSize], launches: Sequence[LaunchSize]
) -> tuple[list[Membership], list[int]]:
    """Return the members of each launch and the gradients that are in none.

    Parameters
    ----------
    sizes
        The gradients in ready order.
    launches
        In the order in which they were issued.
    """
    dtypes = {size.dtype for size in sizes}
    pending: list[int] = []
    started = 0
    found: list[Membership] = []
    for index, launch in enumerate(launches):
        pending.extend(range(started, launch.started_gradients))
        started = max(started, launch.started_gradients)
        others_follow = (
            index + 1 < len(launches)
            and launches[index + 1].started_gradients == launch.started_gradients
        )
        if launch.dtype in dtypes:
            pool = [k for k in pending if sizes[k].dtype == launch.dtype]
        else:
            # A communication hook may send another type than the gradients have.
            pool = list(pending)
        closes = launch.in_hook and not others_follow
        membership = _split(sizes, pool, launch, closes=closes)
        taken = set(membership.members)
        pending = [k for k in pending if k not in taken]
        found.append(membership)
    pending.extend(range(started, len(sizes)))
    return found, pending


def _split(
    sizes: Sequence[TensorSize], pool: Sequence[int], launch: LaunchSize, *, closes: bool
) -> Membership:
    if launch.elements is None:
        return Membership(tuple(pool), exact=False)
    elements = [sizes[k].elements for k in pool]
    excess = sum(elements) - launch.elements
    if excess == 0 and pool:
        return Membership(tuple(pool), exact=True)
    run = _run_to_leave_out(elements, excess, closes=closes) if excess > 0 else None
    if run is not None and len(run) < len(pool):
        members = tuple(k for at, k in enumerate(pool) if at not in run)
        return Membership(members, exact=True)
    if not launch.in_hook:
        return Membership((), exact=False)
    if not closes:
        # Another launch of the same hook follows: leave it what is nearest to its share.
        ends = [0, *accumulate(elements)]
        size = launch.elements
        cut = min(range(len(ends)), key=lambda k: abs(ends[k] - size))
        return Membership(tuple(pool[:cut]), exact=False)
    return Membership(tuple(pool), exact=False)


def _run_to_leave_out(elements: Sequence[int], excess: int, *, closes: bool) -> range | None:
    """Return neighbours with ``excess`` elements in all; None if there are none.

    The gradient whose hook made the launch is a member, so neighbours at the start are taken
    first, then the latest ones in the middle; in a hook with several launches those at the end.
    """
    sums = [0, *accumulate(elements)]
    total = sums[-1]
    first_at = {value: at for at, value in reversed(list(enumerate(sums)))}
    start = first_at.get(excess)
    end = first_at.get(total - excess)
    at_start = range(start) if start is not None else None
    at_end = range(end, len(elements)) if end is not None else None
    middle = None
    for stop in range(len(elements) - 1, 0, -1):
        begin = first_at.get(sums[stop] - excess)
        if begin is not None and 0 < begin < stop:
            middle = range(begin, stop)
            break
    order = (at_start, middle, at_end) if closes else (at_end, at_start, middle)
    return next((run for run in order if run is not None), None)


def wire_dtype(
    sizes: Sequence[TensorSize], launches: Sequence[LaunchSize], found: Sequence[Membership]
) -> str | None:
    """Return the type in which a communication hook sent the gradients; None without such a hook.

    A hook is taken for granted only if every launch has the gradients' elements exactly, in one
    type that is not theirs.
    """
    sent = {launch.dtype for launch in launches}
    own = {size.dtype for size in sizes}
    if len(sent) != 1 or not all(membership.exact for membership in found):
        return None
    dtype = sent.pop()
    return None if dtype in own or len(own) != 1 else dtype


def match_after_backward(
    sizes: Sequence[TensorSize], left: Sequence[int], launches: Sequence[LaunchSize]
) -> list[Membership] | None:
    """Return the members of all-reduces after backward that hold exactly the left-over gradients.

    Parameters
    ----------
    sizes
        The step's gradients.
    left
        The gradients that are in no launch of a hook.
    launches
        The all-reduces after backward. Those that hold no gradient, such as the average of a
        loss, get no members.

    Returns
    -------
    list of Membership or None
        None if the launches do not hold all left-over gradients.
    """
    pending = list(left)
    found = []
    for launch in launches:
        pool = [k for k in pending if launch.dtype in (None, sizes[k].dtype)]
        members: tuple[int, ...] = ()
        sums = list(accumulate(sizes[k].elements for k in pool))
        if launch.elements in sums:
            members = tuple(pool[: sums.index(launch.elements) + 1])
        else:
            same = [k for k in pool if sizes[k].elements == launch.elements]
            same.sort(key=lambda k: sizes[k].shape != launch.shape)
            members = tuple(same[:1])
        taken = set(members)
        found.append(Membership(members, exact=bool(members)))
        pending = [k for k in pending if k not in taken]
    return None if pending else found

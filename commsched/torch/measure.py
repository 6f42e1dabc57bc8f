"""What an all-reduce costs on a process group: timed at a few sizes, with a curve through them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from commsched.models.cost import CostCurve
from commsched.models.errors import InputError
from commsched.models.fit import Fit, fit_alpha_beta, fit_piecewise
from commsched.models.units import NS_PER_US, check_bytes
from commsched.torch.clocks import clock_of
from commsched.torch.ranks import gathered, world_size

SIZES = tuple(4096 * 4**k for k in range(8))
"""The sizes by default, from 4 KiB to 64 MiB."""

MAX_ERROR = 0.1
"""How far a curve may be from the points, relatively; times on a busy link scatter about so."""

MAX_REPEATS = 10_000
"""The most repetitions of a size."""

_WARMUP = 3


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What all-reduces of a few sizes took; on every rank the same.

    Attributes
    ----------
    points
        Pairs of bytes and microseconds in order of size.
    spread
        For each point the median absolute deviation of its repetitions, relative to the point.
    line
        The alpha-beta line through the points, and how far off it is.
    pieces
        The curve of the fewest straight pieces that is within 10 % of the points, likewise; where
        times fall with size they are raised first, and its notes say so.
    ranks
        Number of ranks.
    backend
        The process group's backend.
    """

    points: tuple[tuple[int, float], ...]
    spread: tuple[float, ...]
    line: Fit
    pieces: Fit
    ranks: int
    backend: str

    @property
    def curve(self) -> CostCurve:
        """The cost for a problem: the line where it is within 10 %, else the pieces."""
        best = self.line if self.line.max_error <= MAX_ERROR else self.pieces
        return best.curve


def measure_costs(
    sizes: Sequence[int] = SIZES,
    *,
    repeats: int = 10,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
) -> MeasuredCosts:
    """Time all-reduces on a process group; every rank of it must make this call.

    Each size is all-reduced three times for warm-up and then ``repeats`` times, each time alone and
    after a barrier, as float32 and in place, as DDP does it. A rank times from its own call to
    the end of the collective (on a GPU between events on the stream). Of a repetition the least
    time over the ranks counts: that is the rank that came last and waited for nobody. Of a size
    the median over the repetitions counts.

    Parameters
    ----------
    sizes
        Bytes, at least two different sizes, multiples of 4. Cover those of the buckets: beyond
        the largest a curve is a guess.
    repeats
        How often each size is timed, at least 1.
    group
        The process group; by default all ranks.
    device
        Where the data are; by default the current GPU if the backend is NCCL, else the
        processor.

    Raises
    ------
    InputError
        If nothing is distributed, there is one rank only, or a value is out of range.
    """
    wanted = sorted({check_bytes(size, "sizes") for size in sizes})
    for size in wanted:
        if size < 4 or size % 4:
            raise InputError(f"sizes: {size} must be a multiple of 4 bytes (one float32)")
    if len(wanted) < 2:
        raise InputError(f"sizes: {len(wanted)} different sizes, at least 2 needed")
    if type(repeats) is not int or not 1 <= repeats <= MAX_REPEATS:
        raise InputError(
            f"repeats: {repeats!r:.100} must be a whole number from 1 to {MAX_REPEATS}"
        )
    ranks = world_size(group)
    if ranks is None:
        raise InputError("torch.distributed is not initialised: there is nothing to measure")
    if ranks < 2:
        raise InputError("group: it has one rank, whose all-reduce moves nothing")
    backend = str(dist.get_backend(group))
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else "cpu"
    device = torch.device(device)
    own = {size: _timed(size, repeats, group, device) for size in wanted}
    points, spread = points_of(gathered(own, group))
    return MeasuredCosts(
        points=points,
        spread=spread,
        line=fit_alpha_beta(points),
        pieces=fit_piecewise(points, MAX_ERROR, repair=True),
        ranks=ranks,
        backend=backend,
    )


def points_of(
    times: Sequence[Mapping[int, Sequence[int]]],
) -> tuple[tuple[tuple[int, float], ...], tuple[float, ...]]:
    """Return the points and their spread from every rank's nanoseconds of each size.

    Parameters
    ----------
    times
        For each rank size -> the times of its repetitions.

    Examples
    --------
    >>> points_of([{8: [3000, 9000, 5000]}, {8: [4000, 4000, 7000]}])
    (((8, 4.0),), (0.25,))
    """
    points, spread = [], []
    for size in sorted(times[0]):
        least = [min(one) for one in zip(*(rank[size] for rank in times), strict=True)]
        middle = statistics.median(least)
        points.append((size, max(middle, 1) / NS_PER_US))
        spread.append(statistics.median(abs(ns - middle) for ns in least) / max(middle, 1))
    return tuple(points), tuple(spread)


def _timed(
    size: int, repeats: int, group: dist.ProcessGroup | None, device: torch.device
) -> list[int]:
    """Return this rank's nanoseconds of each repetition."""
    data = torch.zeros(size // 4, dtype=torch.float32, device=device)
    barrier = torch.zeros(1, device=device)
    clock = clock_of(device)
    times = []
    for number in range(_WARMUP + repeats):
        dist.all_reduce(barrier, group=group)
        clock.wait()
        start = clock.mark()
        work = dist.all_reduce(data, group=group, async_op=True)
        if work is not None:
            work.wait()
        end = clock.mark()
        if number >= _WARMUP:
            clock.wait()
            times.append(clock.ns(start, end))
    return times

"""What a step did on the GPU: when gradients were ready, when backward ended, when launches ran.

A kernel belongs to the step that launched it, whenever it ran: the GPU lags the processor, by
more than a step sometimes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

from commsched.problems.profiler.chrome_trace import Op
from commsched.problems.profiler.trace_kernels import Kernel


class StepKernels:
    """The kernels that were launched in a window of the processor's time.

    Parameters
    ----------
    kernels
        All kernels whose launch is known, rising by launch.
    start, end
        The window, in nanoseconds on the trace's clock; the end does not belong to it.
    """

    def __init__(self, kernels: Sequence[Kernel], start: int, end: int) -> None:
        first = bisect_left(kernels, start, key=lambda kernel: kernel.launched)
        last = bisect_left(kernels, end, key=lambda kernel: kernel.launched)
        self.kernels = kernels[first:last]
        self._compute: dict[str, list[Kernel]] = defaultdict(list)
        self._collective: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            lanes = self._collective if kernel.is_collective else self._compute
            lanes[kernel.tid].append(kernel)

    def origin(self) -> int | None:
        """Return when the step's first kernel started; None without any."""
        return min((kernel.start for kernel in self.kernels if kernel.is_kernel), default=None)

    def has_compute_of(self, threads: set[str]) -> bool:
        """Return whether one of these threads launched anything but collectives."""
        return any(tid in self._compute for tid in threads)

    def ready(self, hook: Op) -> int | None:
        """Return when the gradient was ready whose hook this is.

        That is the end of what its thread launched last before the hook began, collectives
        apart; None if the thread had launched nothing.
        """
        lane = self._compute.get(hook.tid, [])
        before = bisect_left(lane, hook.start, key=lambda kernel: kernel.launched)
        return lane[before - 1].end if before else None

    def backward_end(self, threads: set[str], first: int, last: int) -> int | None:
        """Return when the last work ended that backward launched; None without any.

        Parameters
        ----------
        threads
            The threads of backward.
        first, last
            From when to when autograd evaluated functions. What these threads launch later,
            such as DDP's copies out of the buckets, waits for communication and is not backward.
        """
        ends = [
            kernel.end
            for tid in threads
            for kernel in self._compute.get(tid, [])
            if first <= kernel.launched <= last
        ]
        return max(ends, default=None)

    def of_launch(self, launch: Op) -> list[Kernel]:
        """Return the kernels of a collective; none if they were not recorded."""
        lane = self._collective.get(launch.tid, [])
        first = bisect_left(lane, launch.start, key=lambda kernel: kernel.launched)
        last = bisect_right(lane, launch.end, key=lambda kernel: kernel.launched)
        return lane[first:last]

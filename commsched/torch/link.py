"""An emulated link: a DDP communication hook whose wire takes the model's time, in real time."""

# Annotations are read by DDP, which refuses the texts that ``annotations`` of __future__ gives.

import platform
import queue
import threading
import time
from collections import deque
from types import TracebackType
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commsched.models.cost import AlphaBeta
from commsched.models.errors import InputError
from commsched.torch.ranks import gathered, world_size

MAX_RECORDS = 100_000
"""So many launches are remembered, the last ones."""

_SPIN_NS = 150_000
"""A sleep may end so much late; for this last part the thread asks the clock again and again."""


class LinkLaunch(NamedTuple):
    """A launch that went over the link; times are ``time.perf_counter_ns()``.

    Attributes
    ----------
    bucket
        DDP's number of the bucket.
    bytes
        Its size.
    issued_ns
        When DDP called the hook; the latest of all ranks.
    start_ns, due_ns
        From when to when it occupies the link: it starts when it is issued and the launch before
        it is over, and lasts as long as its size costs.
    end_ns
        When its end was signalled: ``due_ns``, and what the clock, the threads and (with several
        ranks) a reduction slower than the link took longer.
    """

    bucket: int
    bytes: int
    issued_ns: int
    start_ns: int
    due_ns: int
    end_ns: int


class _Waiting(NamedTuple):
    """What the wire's thread is given for a launch."""

    bucket: int
    buffer: torch.Tensor
    issued_ns: int
    future: torch.futures.Future[torch.Tensor]
    times: torch.Tensor | None
    works: tuple[dist.Work, ...]


class EmulatedLink:
    """A link that carries one launch at a time, each for ``alpha + bytes / bandwidth``.

    DDP does everything else as always: autograd, hooks, buckets, their order, and waiting for the
    last one. So what a plan gains on a link that nobody has here can be measured on the processor.

    The gradients are averaged over the ranks of the group by gloo meanwhile; with one rank there
    is nothing to average. A launch starts when every rank has issued it, which takes ranks on one
    machine, whose processes share a clock. The link must be slower than gloo: where it is not, a
    launch ends when gloo has ended, later than it is due.

    Parameters
    ----------
    alpha_us
        Start-up of a launch in microseconds.
    bandwidth_gb_s
        Algorithm bandwidth in GB/s (1e9 bytes a second).
    group
        The ranks; by default all of them. Every rank must make its own link, at the same time.

    Raises
    ------
    InputError
        If a number is out of range, or the ranks are on several machines.

    Examples
    --------
    >>> link = EmulatedLink(alpha_us=100, bandwidth_gb_s=1)
    >>> link.cost.ns(1_000_000)
    1100000
    >>> link.close()

    ``link.attach(model)`` is ``model.register_comm_hook(None, link.hook)`` for a model in
    ``DistributedDataParallel``; :attr:`launches` is then what went over the link.
    """

    def __init__(
        self, alpha_us: float, bandwidth_gb_s: float, *, group: dist.ProcessGroup | None = None
    ) -> None:
        self.cost = AlphaBeta(alpha_us, bandwidth_gb_s)
        self._group = group
        self._ranks = world_size(group) or 1
        machines = gathered(platform.node(), group) if self._ranks > 1 else []
        for rank, machine in enumerate(machines):
            if machine != machines[0]:
                raise InputError(
                    f"group: rank {rank} is on machine {machine!r:.100}, rank 0 on "
                    f"{machines[0]!r:.100}; an emulated link needs one clock"
                )
        self._records: deque[LinkLaunch] = deque(maxlen=MAX_RECORDS)
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closed = False
        self._wire = threading.Thread(target=self._run, name="emulated link", daemon=True)
        self._wire.start()

    @property
    def launches(self) -> tuple[LinkLaunch, ...]:
        """What has gone over the link since :meth:`clear`, in order."""
        return tuple(self._records)

    def clear(self) -> None:
        """Forget the launches so far; call it between steps."""
        self._records.clear()

    def attach(self, model: DistributedDataParallel) -> None:
        """Let a model in DDP, which has no communication hook yet, use the link.

        Raises
        ------
        InputError
            If it is not in DDP.
        """
        if not isinstance(model, DistributedDataParallel):
            raise InputError(f"model: {type(model).__name__} is no DistributedDataParallel")
        model.register_comm_hook(None, self.hook)

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Launch a bucket; DDP calls this.

        Raises
        ------
        InputError
            If the bucket is sparse or not on the processor, or the link is closed.
        """
        del state  # what register_comm_hook was given
        issued_ns = time.perf_counter_ns()
        buffer = bucket.buffer()
        if buffer.device.type != "cpu" or buffer.layout != torch.strided:
            raise InputError(
                f"bucket {bucket.index()}: an emulated link carries dense gradients on the "
                f"processor, not {buffer.layout} on {buffer.device}"
            )
        if self._closed:
            raise InputError("the emulated link is closed")
        times, works = None, []
        if self._ranks > 1:
            # All ranks issue their buckets in the same order, so these meet in pairs.
            times = torch.tensor([issued_ns])
            works.append(
                dist.all_reduce(times, dist.ReduceOp.MAX, group=self._group, async_op=True)
            )
            works.append(dist.all_reduce(buffer, group=self._group, async_op=True))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._queue.put(_Waiting(bucket.index(), buffer, issued_ns, future, times, tuple(works)))
        return future

    def close(self) -> None:
        """End the link's thread, once what was launched is over."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._wire.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        """Carry one launch after the other."""
        free_ns = 0
        while (waiting := self._queue.get()) is not None:
            try:
                free_ns = self._carry(waiting, free_ns)
            except Exception as error:  # DDP raises it where it waits
                waiting.future.set_exception(error)

    def _carry(self, waiting: _Waiting, free_ns: int) -> int:
        """Carry a launch; return from when on the link is free."""
        issued_ns = waiting.issued_ns
        if waiting.times is not None:
            waiting.works[0].wait()
            issued_ns = int(waiting.times.item())
        size = waiting.buffer.numel() * waiting.buffer.element_size()
        start_ns = max(issued_ns, free_ns)
        due_ns = start_ns + self.cost.ns(size)
        for work in waiting.works:
            work.wait()
        if waiting.works:
            waiting.buffer.div_(self._ranks)  # here, where it holds backward up for nobody
        reduced_ns = time.perf_counter_ns()
        _sleep_until(due_ns)
        end_ns = time.perf_counter_ns()
        self._records.append(LinkLaunch(waiting.bucket, size, issued_ns, start_ns, due_ns, end_ns))
        waiting.future.set_result(waiting.buffer)
        # A late wake-up does not delay the launches after it; a late reduction does.
        return max(due_ns, reduced_ns)


def _sleep_until(due_ns: int) -> None:
    """Sleep until a time of ``time.perf_counter_ns()``; the last part in shortest sleeps."""
    while (left_ns := due_ns - time.perf_counter_ns()) > 0:
        # A sleep of 0 gives the interpreter and the processor to whoever waits for them.
        time.sleep(max(0, left_ns - _SPIN_NS) / 1e9)

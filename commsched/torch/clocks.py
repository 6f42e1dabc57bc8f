"""Clocks: the processor's for what runs on it, events on streams for what runs on a GPU."""

from __future__ import annotations

import math
import time
from typing import Protocol

import torch

from commsched.models.errors import InputError

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Tells how long after a mark another one was reached."""

    def mark(self) -> object:
        """Return a mark of now, without waiting for anything."""

    def ns(self, start: object, mark: object) -> int:
        """Return the nanoseconds from one mark to another; call :meth:`wait` first."""

    def wait(self) -> None:
        """Wait until every mark has been reached."""


class HostClock:
    """The processor's clock."""

    def mark(self) -> object:
        """Return the time."""
        return time.perf_counter_ns()

    def ns(self, start: object, mark: object) -> int:
        """Return the nanoseconds between two marks."""
        assert isinstance(start, int)
        assert isinstance(mark, int)
        return mark - start

    def wait(self) -> None:
        """Return: what the processor has done is done."""


class StreamClock:
    """A GPU's clock: a mark is an event on the stream that is current when it is made.

    Parameters
    ----------
    device
        The device.

    Raises
    ------
    InputError
        If PyTorch has no events with times for such a device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        try:
            self._module = torch.get_device_module(device)
        except RuntimeError:
            self._module = None
        for need in ("Event", "current_stream", "synchronize"):
            if not hasattr(self._module, need):
                raise InputError(f"device {device}: PyTorch has no events with times for it")

    def mark(self) -> object:
        """Return an event that the stream reaches when the work before it is done."""
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self._device))
        return event

    def ns(self, start: object, mark: object) -> int:
        """Return the nanoseconds between two events, rounded up."""
        elapsed_ms: float = start.elapsed_time(mark)  # type: ignore[attr-defined]
        return math.ceil(elapsed_ms * _NS_PER_MS)

    def wait(self) -> None:
        """Wait for the device."""
        self._module.synchronize(self._device)


def clock_of(device: torch.device) -> Clock:
    """Return the clock for work on a device.

    Raises
    ------
    InputError
        If work on it cannot be timed.
    """
    return HostClock() if device.type == "cpu" else StreamClock(device)

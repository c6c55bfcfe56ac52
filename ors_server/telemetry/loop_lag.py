"""The lag of an event loop: how late it runs a timer."""

from __future__ import annotations

import asyncio
import time

from ors_server.telemetry.counts import Histogram

__all__ = ["LoopLag"]

#: Seconds between two timers.
_INTERVAL = 0.25
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopLag:
    """The lag of the loop on which it was started."""

    def __init__(self) -> None:
        self.seconds = Histogram(_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin to measure the running loop, unless that has begun."""
        if self._timer is None:
            self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """End the measurement."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        # The clock of uvloop stands still during a turn of the loop.
        self._due = time.monotonic() + _INTERVAL
        self._timer = loop.call_later(_INTERVAL, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds.observe(max(0.0, time.monotonic() - self._due))
        self._schedule(loop)

"""Timers that many waits of an event loop share.

Each wait ends up to a sixteenth of its time early, and takes a place in a set. A timer of its own would take half a
KiB for as long as an event stream is open.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

__all__ = ["SharedTimers", "shared_timers", "wake"]

_STEPS = 16


class SharedTimers:
    """The timers of one event loop."""

    def __init__(self) -> None:
        #: The waiters of each timer, by its time on the loop's clock.
        self._waiters: dict[float, set[asyncio.Future[None]]] = {}

    def add(self, waiter: asyncio.Future[None], seconds: float) -> float:
        """Set the waiter's result once the time is over; return the timer, for ``remove``."""
        loop = asyncio.get_running_loop()
        step = seconds / _STEPS
        at = (loop.time() + seconds) // step * step if step else loop.time()
        waiters = self._waiters.get(at)
        if waiters is None:
            waiters = self._waiters[at] = set()
            loop.call_at(at, self._end, at)
        waiters.add(waiter)
        return at

    def remove(self, waiter: asyncio.Future[None], at: float) -> None:
        """Forget a waiter that waits no longer."""
        waiters = self._waiters.get(at)
        if waiters is not None:
            waiters.discard(waiter)

    def _end(self, at: float) -> None:
        for waiter in self._waiters.pop(at):
            wake(waiter)


def wake(waiter: asyncio.Future[None]) -> None:
    """Set the result of a waiter that has none yet."""
    if not waiter.done():
        waiter.set_result(None)


_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedTimers] = WeakKeyDictionary()


def shared_timers() -> SharedTimers:
    """Return those of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _timers.get(loop)
    if found is None:
        found = _timers[loop] = SharedTimers()
    return found

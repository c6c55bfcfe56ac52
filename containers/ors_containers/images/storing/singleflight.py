"""Single-flight: concurrent requests for the same work share one execution of it.

Invariant: cancelling one waiter does not cancel the work. Cancelling the last waiter does, and that waiter returns
after the work has cleaned up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight"]

T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class SingleFlight(Generic[T]):
    """Work in progress by its key. For one event loop at a time."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[T]] = {}

    async def do(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of ``work``, or join the work of that key in progress. Raises what the work raises."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(work()))
            self._flights[key] = flight
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.waiters == 1 and not flight.task.done():
                self._forget(key, flight)  # a later request starts the work again
                flight.task.cancel()
                await asyncio.wait([flight.task])
            raise
        finally:
            flight.waiters -= 1
            if flight.task.done():
                self._forget(key, flight)
                if not flight.task.cancelled():
                    flight.task.exception()  # retrieved: the waiters raise it, asyncio need not log it

    def _forget(self, key: Hashable, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

"""Work that is done once for all who ask for it at the same time.

Invariant: one who gives up does not end the work for the others; when the last one has given up it is cancelled, and he
is let go when it has been cleaned up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Flights"]

T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class Flights(Generic[T]):
    """Work by its key. For one event loop at a time."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[T]] = {}

    async def join(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``work``, or of the one of that key which is under way. Raises what it raises."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(work()))
            self._flights[key] = flight
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.waiting == 1 and not flight.task.done():
                self._forget(key, flight)  # whoever asks now begins anew
                flight.task.cancel()
                await asyncio.wait([flight.task])
            raise
        finally:
            flight.waiting -= 1
            if flight.task.done():
                self._forget(key, flight)
                if not flight.task.cancelled():
                    flight.task.exception()  # it is told to those who wait, and to nobody else

    def _forget(self, key: Hashable, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

"""Admission control: sandboxes start while the machine has memory and process ids for them, and queue otherwise.

The capacity is what is free now, less what sandboxes that have just started are expected to grow by; the number of
sandboxes is not limited. Processor pressure delays starts but never refuses one: while work waits for a processor
nearly all the time, at most as many sandboxes start at a time as there are processors.

Invariants: starts are admitted in the order of the requests. At most ``queue`` requests wait, none longer than
``timeout`` seconds. A refused request starts nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ors_containers.errors import Overloaded
from ors_containers.limits import MIB, Limits
from ors_containers.linux.cgroups import charged_memory
from ors_containers.scheduling.capacity import Capacity, CapacityReader

__all__ = ["Admission"]

#: Kept free for the rest of the machine: the larger of a share and an amount.
_FREE_SHARE = 0.05
_FREE_MEMORY = 256 * MIB
_FREE_PIDS = 256
#: Process ids a sandbox is expected to need at a time: its own three and those of a command.
_PIDS = 16
#: Seconds after which a sandbox's use shows in the measured figures.
_GROWTH_TIME = 10.0
_POLL_INTERVAL = 0.1
#: Seconds for which a reading is reused, so that a burst of starts does not read for each.
_READING_LIFETIME = 0.02


class Admission:
    """The queue of sandbox starts.

    ``queue`` and ``timeout`` (seconds) bound the waiting. ``reserve`` is the number of bytes a sandbox is expected to
    grow by at first, and ``pressure`` the percentage from which the number of simultaneous starts is limited.
    """

    def __init__(
        self,
        capacity: CapacityReader | None = None,
        *,
        queue: int = 256,
        timeout: float = 60.0,
        reserve: int = 16 * MIB,
        pressure: float = 95.0,
    ) -> None:
        self._reader = capacity or CapacityReader()
        self._queue = queue
        self._timeout = timeout
        self._reserve = reserve
        self._pressure = pressure
        self._processors = os.cpu_count() or 1
        self._waiters: deque[_Waiter] = deque()
        self._poller: asyncio.Task[None] | None = None
        #: The growth that sandboxes still have reserved, the oldest first.
        self._reservations: dict[_Reservation, None] = {}
        self._starting = 0
        self._reading: tuple[float, Capacity] | None = None
        #: Called whenever a request has to wait; frees memory that nothing needs, such as a warm sandbox.
        self.evict: Callable[[], object] = lambda: None

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._waiters)

    @property
    def starting(self) -> int:
        """The number of sandboxes that are being started."""
        return self._starting

    @asynccontextmanager
    async def starts(self, limits: Limits) -> AsyncGenerator[None]:
        """Wait for capacity, then run the block, which starts a sandbox. Raises ``Overloaded``."""
        if self._waiters or self._must_wait():
            reservation = await self._wait(limits)
        else:
            reservation = self._admit(limits)
        try:
            yield
        except BaseException:  # whatever it is: the sandbox did not start, and will not grow
            self._reservations.pop(reservation, None)
            raise
        finally:
            self._starting -= 1
            self._admit_waiters()

    def reserve_growth(self, limits: Limits) -> _Reservation:
        """Reserve the growth of a sandbox that starts or was handed out: it will use more than is measured now."""
        until = time.monotonic() + _GROWTH_TIME
        reservation = _Reservation(until, min(self._reserve, charged_memory(limits)))
        self._reservations[reservation] = None
        return reservation

    def has_spare(self) -> bool:
        """Return whether a sandbox may start without a request: nothing waits or starts, and twice as much is free."""
        return not (self._waiters or self._starting or self._shortage(2.0))

    @property
    def cpu_saturated(self) -> bool:
        """``True`` while work waits for a processor nearly all the time."""
        return self._capacity().pressure >= self._pressure

    async def close(self) -> None:
        """Refuse all waiting requests."""
        while self._waiters:
            admitted = self._waiters.popleft().admitted
            if not admitted.done():
                admitted.set_exception(Overloaded("The server is being stopped", "Ask another one."))
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])

    def _admit(self, limits: Limits) -> _Reservation:
        self._starting += 1
        return self.reserve_growth(limits)

    async def _wait(self, limits: Limits) -> _Reservation:
        if len(self._waiters) >= self._queue:
            raise self._overloaded(f"{len(self._waiters)} wait for it already (ORS_SANDBOX_QUEUE)")
        waiter = _Waiter(limits, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(self._timeout):
                return await waiter.admitted
        except BaseException as error:  # whatever it is: the next in the queue must not wait for this one
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                # Admitted in the same moment.
                self._starting -= 1
                self._reservations.pop(waiter.admitted.result(), None)
            self._admit_waiters()
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"{self._timeout:g} s were waited (ORS_SANDBOX_QUEUE_TIMEOUT)") from None
            raise

    async def _poll(self) -> None:
        """Check the capacity while requests wait: it grows when sandboxes of any server end."""
        try:
            while self._waiters:
                await asyncio.sleep(_POLL_INTERVAL)
                self._admit_waiters()
        finally:
            self._poller = None

    def _admit_waiters(self) -> None:
        while self._waiters and not self._must_wait():
            waiter = self._waiters.popleft()
            if not waiter.admitted.done():
                # Reserved now and not when the waiter wakes, or the next would get the same capacity.
                waiter.admitted.set_result(self._admit(waiter.limits))

    def _must_wait(self) -> bool:
        """Return whether the next request has to wait."""
        if self._shortage(1.0):
            self.evict()
            return True
        return self.cpu_saturated and self._starting >= self._processors

    def _capacity(self) -> Capacity:
        """Return the capacity as last measured; reservations made since are counted by ``_shortage``."""
        now = time.monotonic()
        if self._reading is None or now - self._reading[0] > _READING_LIFETIME:
            self._reading = (now, self._reader.read())
        return self._reading[1]

    def _shortage(self, margin: float) -> str:
        """Describe what is short; empty where nothing is. ``margin`` multiplies the amounts that are kept free."""
        free = self._capacity()
        reserved = self._reserved()
        kept = round(max(_FREE_MEMORY, free.memory_total * _FREE_SHARE) * margin)
        needed = kept + self._reserve + reserved
        if free.memory < needed:
            return (
                f"of memory, {free.memory // MIB} MiB are left and {math.ceil(needed / MIB)} MiB needed ({kept // MIB} "
                f"stay free, {reserved // MIB} are promised to sandboxes that have just started, "
                f"{self._reserve // MIB} are for this one: ORS_SANDBOX_RESERVE)"
            )
        wanted = round(max(_FREE_PIDS, free.pids_total * _FREE_SHARE) * margin) + _PIDS * (1 + len(self._reservations))
        if free.pids < wanted:
            return f"of process ids, {free.pids} are left and {wanted} needed (kernel.pid_max, or the group's pids.max)"
        return ""

    def _reserved(self) -> int:
        """Return the bytes that are reserved; a reservation shrinks as the sandbox's use shows in the figures."""
        now = time.monotonic()
        for reservation in list(self._reservations):
            if reservation.until > now:
                break
            del self._reservations[reservation]
        return round(sum(each.amount * (each.until - now) / _GROWTH_TIME for each in self._reservations))

    def _overloaded(self, what: str) -> Overloaded:
        reason = self._shortage(1.0)
        if not reason and self.cpu_saturated:
            reason = f"work waits for a processor {self._capacity().pressure:.0f} % of the time (ORS_SANDBOX_PRESSURE)"
        return Overloaded(
            f"The machine has no room for another sandbox: {reason or 'others were before it'}; {what}",
            "Wait until sandboxes have ended, or give the server a larger machine.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Reservation:
    """Bytes a sandbox may grow by, and the time until which that is expected."""

    until: float
    amount: int


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request in the queue."""

    limits: Limits
    admitted: asyncio.Future[_Reservation]

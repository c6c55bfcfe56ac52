"""Admission control: sandboxes start while the machine has memory, process ids and files for them, and queue otherwise.

The capacity is what is free now, less what sandboxes that have just started are expected to grow by; the number of
sandboxes is not limited. Processor pressure delays starts but never refuses one: while work waits for a processor
nearly all the time, at most as many sandboxes start at a time as there are processors. Servers that share a table of
reservations (``scheduling.reservations``) admit as one: each subtracts those of all, and the starts of all count.

Invariants: starts are admitted in the order of the requests, except that those which give way come after all others,
and take at most half of the queue. At most ``queue`` requests wait, none longer than ``timeout`` seconds. A refused
request starts nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field

from ors_containers.errors import Overloaded
from ors_containers.limits import MIB, Limits
from ors_containers.linux.limits.cgroups import charged_memory
from ors_containers.linux.limits.open_files import limit_files
from ors_containers.scheduling.capacity import Capacity, CapacityReader
from ors_containers.scheduling.reservations import Reservation, Reservations

__all__ = ["Admission"]

#: Kept free for the rest of the machine: the larger of a share and an amount.
_FREE_SHARE = 0.05
_FREE_MEMORY = 256 * MIB
_FREE_PIDS = 256
#: Process ids a sandbox is expected to need at a time: its own three and those of a command.
_PIDS = 16
_POLL_INTERVAL = 0.1
#: Seconds for which a reading is reused, so that a burst of starts does not read for each.
_READING_LIFETIME = 0.02


class Admission:
    """The queue of sandbox starts.

    ``queue`` and ``timeout`` (seconds) bound the waiting. ``reserve`` is the number of bytes a sandbox is expected to
    grow by at first, and ``pressure`` the percentage from which the number of simultaneous starts is limited.
    ``reservations`` are those that other servers of the machine know, too; by default there are no others.
    """

    def __init__(
        self,
        capacity: CapacityReader | None = None,
        *,
        queue: int = 256,
        timeout: float = 60.0,
        reserve: int = 16 * MIB,
        pressure: float = 95.0,
        reservations: Reservations | None = None,
    ) -> None:
        self._reservations = reservations or Reservations()
        self._reader = capacity or CapacityReader()
        self._queue = queue
        self._timeout = timeout
        self._reserve = reserve
        self._pressure = pressure
        self._processors = os.cpu_count() or 1
        self._waiters: deque[_Waiter] = deque()
        self._poller: asyncio.Task[None] | None = None
        self._reading: tuple[float, Capacity] | None = None
        #: Called whenever a request has to wait; frees memory that nothing needs, such as a warm sandbox, and returns
        #: whether there was any. If not, the other servers are asked to do it.
        self.evict: Callable[[], bool] = lambda: False

    @property
    def shared(self) -> bool:
        """True if other servers may share the reservations."""
        return self._reservations.shared

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._waiters)

    @property
    def starting(self) -> int:
        """The number of sandboxes that are being started, by all servers that share the reservations."""
        return self._reservations.totals().starting

    @asynccontextmanager
    async def starts(
        self, limits: Limits, *, container: bool = False, gives_way: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[None]:
        """Wait for capacity, then run the block, which starts a sandbox. Raises ``Overloaded``.

        ``gives_way`` is asked while it waits: whether others go before it.
        The files that the sandbox may open count during the block; its runtime counts them as long as it lives.
        """
        files = limit_files(limits.pids, container=container).total
        last = gives_way()
        must_wait = any(last or not waiter.gives_way() for waiter in self._waiters)
        reservation = None if must_wait else self._try_admit(limits, files, last)
        if reservation is None:
            reservation = await self._wait(_Waiter(limits, files, gives_way))
        try:
            yield
        except BaseException:  # whatever it is: the sandbox did not start, and will not grow
            self._reservations.withdraw(reservation)
            raise
        finally:
            self._end_start(files)
            self._admit_waiters()

    def _end_start(self, files: int) -> None:
        self._reservations.end_start()
        self._reservations.hold_files(-files)

    def reserve_growth(self, limits: Limits) -> Reservation:
        """Reserve the growth of a sandbox that starts or was handed out: it will use more than is measured now."""
        return self._reservations.add(min(self._reserve, charged_memory(limits)), _PIDS)

    def has_spare(self) -> bool:
        """Return whether a sandbox may start without a request: nothing waits or starts, and twice as much is free."""
        return not (
            self._waiters
            or self.starting
            or self.others_ask_for_room()
            or self._shortage(2.0, limit_files(Limits().pids).total)
        )

    def others_ask_for_room(self) -> bool:
        """Return whether requests of another server wait that shares the reservations."""
        return self._reservations.shared and self._reservations.others_ask_for_room()

    @property
    def cpu_saturated(self) -> bool:
        """``True`` while work waits for a processor nearly all the time."""
        return self.capacity().pressure >= self._pressure

    async def close(self) -> None:
        """Refuse all waiting requests."""
        while self._waiters:
            admitted = self._waiters.popleft().admitted
            if not admitted.done():
                admitted.set_exception(Overloaded("The server is being stopped", "Ask another one."))
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])

    def _try_admit(self, limits: Limits, files: int, gives_way: bool) -> Reservation | None:
        """Reserve capacity for a start and count it; None where the next request has to wait."""
        self.capacity()  # before the lock, which is held for the check of the reservations alone
        with self._reservations.exclusive() as checked:
            short = bool(self._shortage(1.0, files))
            if checked and not short and not self._starts_are_limited(gives_way):
                self._reservations.begin_start()
                self._reservations.hold_files(files)
                return self.reserve_growth(limits)
        if short and not self.evict():
            self._reservations.ask_for_room()
        return None

    async def _wait(self, waiter: _Waiter) -> Reservation:
        files = waiter.files
        if len(self._waiters) >= (self._queue // 2 if waiter.gives_way() else self._queue):
            raise self._overloaded(f"{len(self._waiters)} wait for it already (ORS_SANDBOX_QUEUE)", files)
        self._waiters.append(waiter)
        if self._poller is None:
            # In a context of its own: it outlives the request that starts it.
            self._poller = asyncio.create_task(self._poll(), context=Context())
        try:
            async with asyncio.timeout(self._timeout):
                return await waiter.admitted
        except BaseException as error:  # whatever it is: the next in the queue must not wait for this one
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                # Admitted in the same moment.
                self._end_start(files)
                self._reservations.withdraw(waiter.admitted.result())
            self._admit_waiters()
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"{self._timeout:g} s were waited (ORS_SANDBOX_QUEUE_TIMEOUT)", files) from None
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
        while self._waiters:
            waiter = next((waiter for waiter in self._waiters if not waiter.gives_way()), self._waiters[0])
            if not waiter.admitted.done():
                # Reserved now and not when the waiter wakes, or the next would get the same capacity.
                reservation = self._try_admit(waiter.limits, waiter.files, waiter.gives_way())
                if reservation is None:
                    return
                waiter.admitted.set_result(reservation)
            self._waiters.remove(waiter)

    def _starts_are_limited(self, gives_way: bool) -> bool:
        """Return whether a start has to wait for others to end.

        A server may have its share of the starts at any time: others may be stopped or slow, and hold theirs.
        """
        limit = self._processors
        # One that gives way waits here, where it can be overtaken, and not for the runtime.
        if not gives_way and not self.cpu_saturated:
            if not self._reservations.shared:
                return False  # the runtime's own limit is enough
            limit *= 2
        totals = self._reservations.totals()
        return totals.starting >= limit and totals.own_starting >= max(1, limit // totals.active)

    def capacity(self) -> Capacity:
        """Return the capacity as last measured; reservations made since are counted by ``_shortage``."""
        now = time.monotonic()
        if self._reading is None or now - self._reading[0] > _READING_LIFETIME:
            self._reading = (now, self._reader.read())
        return self._reading[1]

    def _shortage(self, margin: float, files: int) -> str:
        """Describe what is short; empty where nothing is. ``margin`` multiplies the amounts that are kept free."""
        free = self.capacity()
        reserved = self._reservations.totals()
        kept = round(max(_FREE_MEMORY, free.memory_total * _FREE_SHARE) * margin)
        needed = kept + self._reserve + reserved.memory
        if free.memory < needed:
            return (
                f"of memory, {free.memory // MIB} MiB are left and {math.ceil(needed / MIB)} MiB needed ({kept // MIB} "
                f"stay free, {reserved.memory // MIB} are reserved for sandboxes that have just started, "
                f"{self._reserve // MIB} are for this one: ORS_SANDBOX_RESERVE)"
            )
        wanted = round(max(_FREE_PIDS, free.pids_total * _FREE_SHARE) * margin) + _PIDS + reserved.pids
        if free.pids < wanted:
            return f"of process ids, {free.pids} are left and {wanted} needed (kernel.pid_max, or the group's pids.max)"
        if free.files < reserved.files + files:
            return (
                f"sandboxes may open {reserved.files} files and this one {files}, which is more than {free.files}, "
                "seven eighths of fs.file-max (as root: sysctl fs.file-max=9223372036854775807)"
            )
        return ""

    def _overloaded(self, what: str, files: int) -> Overloaded:
        reason = self._shortage(1.0, files)
        if not reason and self.cpu_saturated:
            reason = f"work waits for a processor {self.capacity().pressure:.0f} % of the time (ORS_SANDBOX_PRESSURE)"
        return Overloaded(
            f"The machine has no room for another sandbox: {reason or 'others were before it'}; {what}",
            "Wait until sandboxes have ended, or give the server a larger machine.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request in the queue."""

    limits: Limits
    files: int
    gives_way: Callable[[], bool]
    admitted: asyncio.Future[Reservation] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

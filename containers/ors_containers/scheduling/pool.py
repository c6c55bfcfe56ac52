"""A pool of warm sandboxes, started before they are requested.

Starting a sandbox takes tens of milliseconds, handing out a running one takes one. The pool keeps a few sandboxes of
each image in demand. It starts them in the background, while nothing else starts and the machine has memory to spare,
and stops them for any request that would have to wait, also one of another server that shares the reservations. An
image is in demand from its second request on.

Invariants: a warm sandbox is handed out once and never returned. A sandbox is handed out only after it has just run a
command. The pool stops the sandboxes that it did not hand out; the caller stops the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Literal

from ors_containers.errors import SandboxError
from ors_containers.image import Image
from ors_containers.limits import Limits
from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.scheduling.admission import Admission

__all__ = ["PoolCounts", "SandboxPool"]

logger = logging.getLogger("ors_containers.scheduling.pool")

#: Seconds between checks whether the machine has memory to spare, and between checks for stale sandboxes and for
#: requests of other servers.
_SPARE_INTERVAL = 0.05
_STALE_INTERVAL = 1.0
_OTHERS_INTERVAL = 0.2
#: Seconds to wait after handing out a sandbox before refilling the pool, so that its user gets the CPU first.
_QUIET_TIME = 0.1
#: Seconds to wait after a failed start before refilling that image.
_FAILURE_PAUSE = 30.0
#: Seconds without a request after which an image's warm sandboxes are stopped.
_IDLE_TIME = 300.0
#: The share of its wall time that a sandbox may have spent before it is handed out.
_WALL_SHARE = 0.05
#: Seconds in which a warm sandbox has to run a command before it is handed out.
_PROBE_TIMEOUT = 2.0
#: The number of images whose demand is remembered.
_MAX_REMEMBERED = 1024


@dataclass(slots=True)
class PoolCounts:
    """Counts since the pool was created."""

    #: Sandboxes handed out warm, and sandboxes started because none was warm.
    warm: int = 0
    cold: int = 0
    #: Warm sandboxes that were found dead.
    dead: int = 0
    #: Warm sandboxes stopped unused: for a waiting request, for another image, or without demand.
    unused: int = 0


@dataclass(slots=True)
class _Stock:
    """The warm sandboxes of one image under one set of limits, and the demand for them."""

    image: Image
    limits: Limits
    #: The number of requests, and the time of the last one.
    demand: int = 0
    last: float = 0.0
    #: The time before which it is not refilled.
    not_before: float = 0.0
    #: Warm sandboxes with the times they were started; the oldest is handed out first.
    warm: deque[tuple[Sandbox, float]] = field(default_factory=deque[tuple[Sandbox, float]])


class SandboxPool:
    """A pool of sandboxes of a runtime that has been started. Belongs to the runtime's event loop."""

    def __init__(
        self, runtime: Runtime, admission: Admission | None = None, *, warm: int = 2, warm_total: int = 16
    ) -> None:
        self._runtime = runtime
        self._warm = warm
        self._warm_total = warm_total
        self.admission = admission or Admission()
        self.admission.evict = self._evict_oldest
        self.counts = PoolCounts()
        #: Called with each sandbox that is handed out: how it was started, and the seconds that its caller waited.
        self.on_acquired: Callable[[Literal["warm", "cold"], float], None] = lambda start, seconds: None
        # By image and limits; the least recently requested comes first.
        self._stocks: OrderedDict[str, _Stock] = OrderedDict()
        self._refiller: asyncio.Task[None] | None = None
        self._requested = asyncio.Event()
        self._last_request = 0.0
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def warm(self) -> int:
        """The number of warm sandboxes."""
        return sum(len(stock.warm) for stock in self._stocks.values())

    async def acquire(
        self, image: Image, limits: Limits | None = None, *, gives_way: Callable[[], bool] = lambda: False
    ) -> Sandbox:
        """Return a started sandbox, which the caller stops. ``gives_way``: see ``Admission.starts``.

        Raises ``Overloaded`` and the errors of ``Runtime.sandbox`` and ``Sandbox.start``.
        """
        stock = self._count_request(image, limits or Limits())
        begun = time.monotonic()
        try:
            sandbox = await self._take_warm(stock)
            if sandbox is not None:
                self.counts.warm += 1
                self.on_acquired("warm", time.monotonic() - begun)
                return sandbox
            sandbox = self._runtime.sandbox(stock.image, stock.limits)
            async with self.admission.starts(stock.limits, gives_way=gives_way):
                await sandbox.start()
            self.counts.cold += 1
            self.on_acquired("cold", time.monotonic() - begun)
            return sandbox
        finally:
            self._start_refilling()

    async def close(self) -> None:
        """Stop the warm sandboxes; the callers stop those handed out. Raises nothing."""
        self._closed = True
        if self._refiller is not None:
            self._refiller.cancel()
            await asyncio.wait([self._refiller])
        await self.admission.close()
        while self._evict_oldest():
            pass
        while self._stopping:
            await asyncio.wait(self._stopping)

    # --- handing out -------------------------------------------------------------------------

    def _count_request(self, image: Image, limits: Limits) -> _Stock:
        key = repr((image, limits))
        stock = self._stocks.get(key)
        if stock is None:
            stock = self._stocks[key] = _Stock(image, limits)
        self._stocks.move_to_end(key)
        stock.demand += 1
        stock.last = time.monotonic()
        while len(self._stocks) > _MAX_REMEMBERED:
            _, oldest = self._stocks.popitem(last=False)
            self._evict_all(oldest)
        return stock

    async def _take_warm(self, stock: _Stock) -> Sandbox | None:
        """Return a warm sandbox that has just run a command; None where there is none."""
        while stock.warm:
            sandbox, started = stock.warm.popleft()
            if not _is_fresh(stock.limits, started):
                self._evict(sandbox)
                continue
            try:
                probe = await sandbox.run(":", timeout=_PROBE_TIMEOUT)
            except SandboxError as error:
                logger.warning("a warm sandbox was found dead", extra={"sandbox": sandbox.id, "reason": str(error)})
                alive = False
            except BaseException:  # a cancellation above all: the sandbox is in no list and must be stopped
                self._stop(sandbox)
                raise
            else:
                alive = probe.exit_status == 0 and not probe.shell_restarted
            if alive:
                self.admission.reserve_growth(stock.limits)
                return sandbox
            self.counts.dead += 1
            self._stop(sandbox)
        return None

    # --- evicting ----------------------------------------------------------------------------

    def _evict_oldest(self) -> bool:
        """Stop a warm sandbox of the least recently requested image; return whether there was one."""
        for stock in self._stocks.values():
            if stock.warm:
                self._evict(stock.warm.popleft()[0])
                return True
        return False

    def _evict_all(self, stock: _Stock) -> None:
        while stock.warm:
            self._evict(stock.warm.popleft()[0])

    def _evict(self, sandbox: Sandbox) -> None:
        self.counts.unused += 1
        self._stop(sandbox)

    def _stop(self, sandbox: Sandbox) -> None:
        """Stop a sandbox in the background."""
        task = asyncio.create_task(sandbox.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    # --- refilling ---------------------------------------------------------------------------

    def _start_refilling(self) -> None:
        self._last_request = time.monotonic()
        self._requested.set()
        if self._refiller is None and self._warm and self._warm_total and not self._closed:
            # In a context of its own: it outlives the request that starts it.
            self._refiller = asyncio.create_task(self._refill(), context=Context())

    async def _refill(self) -> None:
        """Start one sandbox at a time, of the most recently requested image first, while any image is in demand."""
        try:
            while any(stock.demand > 1 for stock in self._stocks.values()):
                self._requested.clear()
                self._evict_stale()
                if self.admission.others_ask_for_room():
                    self._evict_oldest()
                    await asyncio.sleep(_OTHERS_INTERVAL)  # one at a time: its memory may be enough
                    continue
                stock = self._next_to_refill()
                if stock is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_OTHERS_INTERVAL if self.admission.shared else _STALE_INTERVAL):
                            await self._requested.wait()
                elif self._is_quiet() and self.admission.has_spare():
                    await self._add(stock)
                else:
                    await asyncio.sleep(_SPARE_INTERVAL)
        finally:
            self._refiller = None

    def _is_quiet(self) -> bool:
        """Return whether the last request is long enough ago."""
        quiet = time.monotonic() - self._last_request
        # On a busy machine the pool refills more slowly, but does: a sandbox started now need not be started later.
        return quiet >= _QUIET_TIME and (quiet >= _STALE_INTERVAL or not self.admission.cpu_saturated)

    def _next_to_refill(self) -> _Stock | None:
        now = time.monotonic()
        for stock in reversed(self._stocks.values()):
            if stock.demand > 1 and len(stock.warm) < self._warm and now >= stock.not_before:
                if self.warm < self._warm_total:
                    return stock
                # The pool is full: this image may only replace one that was requested longer ago.
                oldest = next(other for other in self._stocks.values() if other.warm)
                return stock if oldest is not stock and oldest.last < stock.last else None
        return None

    async def _add(self, stock: _Stock) -> None:
        if self.warm >= self._warm_total:
            self._evict_oldest()
        try:
            sandbox = self._runtime.sandbox(stock.image, stock.limits)
            await sandbox.start()
        except SandboxError as error:
            # The next request for this image raises the error itself.
            logger.warning("no warm sandbox could be started", extra={"image": stock.image.name, "reason": str(error)})
            stock.not_before = time.monotonic() + _FAILURE_PAUSE
            return
        self.admission.reserve_growth(stock.limits)
        stock.warm.append((sandbox, time.monotonic()))

    def _evict_stale(self) -> None:
        now = time.monotonic()
        for stock in self._stocks.values():
            if now - stock.last > _IDLE_TIME:
                stock.demand = 0
                self._evict_all(stock)
            while stock.warm and not _is_fresh(stock.limits, stock.warm[0][1]):
                self._evict(stock.warm.popleft()[0])


def _is_fresh(limits: Limits, started: float) -> bool:
    """Return whether a warm sandbox has most of its wall time left."""
    return limits.wall is None or time.monotonic() - started < limits.wall * _WALL_SHARE

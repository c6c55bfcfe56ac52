"""Sandboxes started before they are asked for.

Starting one takes tens of milliseconds, handing out one that runs takes one. So for images in demand a few are kept
warm; they are filled in the background, when nothing else starts and the machine has room to spare, and given up for
anybody who would have to wait. An image asked for once is no reason to expect it again: it is in demand from the
second time on.

Invariants: a warm sandbox is handed out once and never comes back; none is handed out that has not just run a command;
one that was never handed out is stopped by the pool, one that was by whoever got it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ors_containers.errors import SandboxError
from ors_containers.image import Image
from ors_containers.limits import Limits
from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.scheduling.admission import Admission

__all__ = ["PoolCounts", "SandboxPool"]

logger = logging.getLogger("ors_containers.scheduling.pool")

#: Seconds between looks at whether there is room to fill, and at what is stale.
_PAUSE = 0.05
_LOOK = 1.0
#: Seconds since anything was handed out: whoever got it has the machine first.
_QUIET = 0.1
#: Seconds a failed start keeps an image from being filled again.
_SETBACK = 30.0
#: Seconds without demand after which an image's warm sandboxes are given up.
_IDLE = 300.0
#: The share of its wall time that a sandbox may have spent before it is handed out.
_WALL_SHARE = 0.05
_PROOF_PATIENCE = 2.0
#: Images whose demand is remembered.
_REMEMBERED = 1024


@dataclass(slots=True)
class PoolCounts:
    """What has happened since the pool was made."""

    #: Handed out warm, and started because there was none.
    warm: int = 0
    cold: int = 0
    #: Warm ones that were found dead.
    dead: int = 0
    #: Warm ones given up unused: for room, for another image, or out of demand.
    unused: int = 0


@dataclass(slots=True)
class _Kind:
    """Sandboxes of one image under one set of limits."""

    image: Image
    limits: Limits
    demand: int = 0
    last: float = 0.0
    #: Before this time it is not filled.
    not_before: float = 0.0
    #: Those that wait, with the time they were started; the oldest is handed out first.
    warm: deque[tuple[Sandbox, float]] = field(default_factory=deque[tuple[Sandbox, float]])


class SandboxPool:
    """Hands out sandboxes of a runtime that has been started; belongs to the runtime's event loop."""

    def __init__(
        self, runtime: Runtime, admission: Admission | None = None, *, warm: int = 2, warm_total: int = 16
    ) -> None:
        self._runtime = runtime
        self._warm = warm
        self._warm_total = warm_total
        self.admission = admission or Admission()
        self.admission.make_room = self._give_up_oldest
        self.counts = PoolCounts()
        # By image and limits; the one asked for the longest ago comes first.
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()
        self._filler: asyncio.Task[None] | None = None
        self._asked_for = asyncio.Event()
        self._last = 0.0
        self._ends: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def warm(self) -> int:
        """How many sandboxes wait to be handed out."""
        return sum(len(kind.warm) for kind in self._kinds.values())

    async def acquire(self, image: Image, limits: Limits | None = None) -> Sandbox:
        """A started sandbox, which the caller stops.

        Raises ``Overloaded`` and what ``Runtime.sandbox`` and ``Sandbox.start`` raise.
        """
        kind = self._asked(image, limits or Limits())
        try:
            sandbox = await self._take(kind)
            if sandbox is not None:
                self.counts.warm += 1
                return sandbox
            sandbox = self._runtime.sandbox(kind.image, kind.limits)
            async with self.admission.starts(kind.limits):
                await sandbox.start()
            self.counts.cold += 1
            return sandbox
        finally:
            self._fill()

    async def close(self) -> None:
        """Stop the warm sandboxes; those handed out are their holders'. Raises nothing."""
        self._closed = True
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
        await self.admission.close()
        while self._give_up_oldest():
            pass
        while self._ends:
            await asyncio.wait(self._ends)

    # --- handing out -------------------------------------------------------------------------

    def _asked(self, image: Image, limits: Limits) -> _Kind:
        key = repr((image, limits))
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(image, limits)
        self._kinds.move_to_end(key)
        kind.demand += 1
        kind.last = time.monotonic()
        while len(self._kinds) > _REMEMBERED:
            _, oldest = self._kinds.popitem(last=False)
            self._give_up_all(oldest)
        return kind

    async def _take(self, kind: _Kind) -> Sandbox | None:
        """A warm sandbox that has just proved to be alive."""
        while kind.warm:
            sandbox, started = kind.warm.popleft()
            if not _has_its_time(kind.limits, started):
                self._give_up(sandbox)
                continue
            try:
                proof = await sandbox.run(":", timeout=_PROOF_PATIENCE)
            except SandboxError as error:
                logger.warning("a warm sandbox was found dead", extra={"sandbox": sandbox.id, "reason": str(error)})
                alive = False
            except BaseException:  # a cancellation above all: nobody else knows of it any more
                self._end(sandbox)
                raise
            else:
                alive = proof.exit_status == 0 and not proof.shell_restarted
            if alive:
                self.admission.grows(kind.limits)
                return sandbox
            self.counts.dead += 1
            self._end(sandbox)
        return None

    # --- giving up ---------------------------------------------------------------------------

    def _give_up_oldest(self) -> bool:
        """Give up a warm sandbox of the image that was asked for the longest ago; whether there was one."""
        for kind in self._kinds.values():
            if kind.warm:
                self._give_up(kind.warm.popleft()[0])
                return True
        return False

    def _give_up_all(self, kind: _Kind) -> None:
        while kind.warm:
            self._give_up(kind.warm.popleft()[0])

    def _give_up(self, sandbox: Sandbox) -> None:
        self.counts.unused += 1
        self._end(sandbox)

    def _end(self, sandbox: Sandbox) -> None:
        end = asyncio.create_task(sandbox.stop())
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)

    # --- filling -----------------------------------------------------------------------------

    def _fill(self) -> None:
        self._last = time.monotonic()
        self._asked_for.set()
        if self._filler is None and self._warm and self._warm_total and not self._closed:
            self._filler = asyncio.create_task(self._keep_filled())

    async def _keep_filled(self) -> None:
        """Fills one at a time, the image asked for last first, while any image is in demand."""
        try:
            while any(kind.demand > 1 for kind in self._kinds.values()):
                self._asked_for.clear()
                self._give_up_stale()
                kind = self._next_to_fill()
                if kind is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await self._asked_for.wait()
                elif time.monotonic() - self._last >= self._quiet() and self.admission.has_spare():
                    await self._add(kind)
                else:
                    await asyncio.sleep(_PAUSE)
        finally:
            self._filler = None

    def _quiet(self) -> float:
        # On a busy machine more slowly, and not never: what is started now need not be started later.
        return _LOOK if self.admission.crowded else _QUIET

    def _next_to_fill(self) -> _Kind | None:
        now = time.monotonic()
        for kind in reversed(self._kinds.values()):
            if kind.demand > 1 and len(kind.warm) < self._warm and now >= kind.not_before:
                if self.warm < self._warm_total:
                    return kind
                # Full: it takes the place of one whose image was asked for longer ago, and of no other.
                oldest = next(other for other in self._kinds.values() if other.warm)
                return kind if oldest is not kind and oldest.last < kind.last else None
        return None

    async def _add(self, kind: _Kind) -> None:
        if self.warm >= self._warm_total:
            self._give_up_oldest()
        try:
            sandbox = self._runtime.sandbox(kind.image, kind.limits)
            await sandbox.start()
        except SandboxError as error:
            # Whoever asks for this image next gets the error itself.
            logger.warning("no warm sandbox could be started", extra={"image": kind.image.name, "reason": str(error)})
            kind.not_before = time.monotonic() + _SETBACK
            return
        self.admission.grows(kind.limits)
        kind.warm.append((sandbox, time.monotonic()))

    def _give_up_stale(self) -> None:
        now = time.monotonic()
        for kind in self._kinds.values():
            if now - kind.last > _IDLE:
                kind.demand = 0
                self._give_up_all(kind)
            while kind.warm and not _has_its_time(kind.limits, kind.warm[0][1]):
                self._give_up(kind.warm.popleft()[0])


def _has_its_time(limits: Limits, started: float) -> bool:
    return limits.wall is None or time.monotonic() - started < limits.wall * _WALL_SHARE

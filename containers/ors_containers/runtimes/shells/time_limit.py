"""A limit on the time of a sandbox's processes, by a clock that stands still while they wait for others.

``linux.processor_time`` defines that waiting, and why a sandbox cannot cause it. A limit of s seconds has one of three
ends: the work is done; it is not done after s seconds of the clock, which counts against the agent; or it is not done
after b seconds of wall time, and the clock has not reached s: ``MachineOverloaded``. The bound b is ``MOST`` times s,
and at least ``LEAST`` seconds. For that end, others must have used more than ``1 - s / b`` of all processors.

Invariants: work whose end has been reported is never past its limit, however late this process notices both. Nothing is
read in the first tenth of a limit, so work that is done by then costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ors_containers.errors import MachineOverloaded
from ors_containers.linux.limits.processor_time import WaitMeter

__all__ = ["LEAST", "MOST", "TimeLimit"]

#: Most wall time of a limit, as a multiple of it, and in seconds, whichever is more. Hundreds of sandboxes that share a
#: processor have ends that are close to each other, each hundreds of times as late as alone.
MOST, LEAST = 6.0, 300.0
#: Time between two looks at the counters: a part of the limit, and seconds; later a part of the time that has passed.
#: Hundreds of limits that are looked at every second would themselves keep a server from its work.
_STEP, _SHORTEST_STEP, _LONGEST_STEP, _LATER_STEP = 0.1, 0.01, 1.0, 0.2
#: Turns of the event loop in which it runs what can be read now: uvloop runs timers first.
_TURNS = 3
_REMEDY = "Let fewer sandboxes run on this machine at a time, or give it more processors."


class TimeLimit:
    """One limit, which begins now. ``new_meter`` returns None where waiting cannot be measured."""

    def __init__(self, what: str, seconds: float, new_meter: Callable[[], WaitMeter | None]) -> None:
        self._what = what
        self._seconds = seconds
        self._bound = max(MOST * seconds, LEAST)
        self._new_meter = new_meter
        self._meter: WaitMeter | None = None
        self._step = min(max(_STEP * seconds, _SHORTEST_STEP), _LONGEST_STEP)
        self._started = time.monotonic()
        self._next_look = self._started + self._step
        self._waited = 0.0

    def remaining(self) -> float:
        """Return the seconds after which this has to be called again; 0 once the limit has passed.

        After 0 or ``MachineOverloaded``, which this raises, the end of the work may be reported all the same, by what
        the event loop has not read yet: call ``catch_up`` and look.
        """
        now = time.monotonic()
        if now < self._next_look:
            return self._next_look - now
        self._look()
        now = time.monotonic()
        elapsed = now - self._started
        left = self._seconds - (elapsed - self._waited)
        if left <= 0:
            return 0.0
        most = self._bound - elapsed
        if most <= 0:
            raise self._overloaded(elapsed)
        pause = left
        if self._meter is not None:
            # Not shorter: of what is left, a part is waiting again.
            pause = max(min(left, most, max(self._step, _LATER_STEP * elapsed)), _SHORTEST_STEP)
        self._next_look = now + pause
        return pause

    async def wait(self, future: asyncio.Future[Any]) -> bool:
        """Wait for ``future``; return whether it was done within the limit. Raises ``MachineOverloaded``."""
        while not future.done():
            overloaded: MachineOverloaded | None = None
            try:
                remaining = self.remaining()
            except MachineOverloaded as error:
                overloaded, remaining = error, 0.0
            if remaining > 0:
                await asyncio.wait([future], timeout=remaining)
                continue
            await self.catch_up()
            if overloaded is not None and not future.done():
                raise overloaded
            return future.done()
        return True

    async def catch_up(self) -> None:
        """Let the event loop read what can be read now."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def require_processors(self) -> None:
        """Raise ``MachineOverloaded``, after work has failed, if others used as much as they must for the bound."""
        elapsed = time.monotonic() - self._started
        if self.waited() > (1 - self._seconds / self._bound) * elapsed:
            raise self._overloaded(elapsed)

    def waited(self) -> float:
        """Return the seconds in which the work has waited for others."""
        if self._meter is not None:
            self._look()
        return self._waited

    def _look(self) -> None:
        if self._meter is None:
            self._meter = self._new_meter()
            if self._meter is not None:
                # This process was late: it was not given a processor in time, and could not begin to measure.
                self._waited = time.monotonic() - self._next_look
        else:
            self._waited += self._meter.step()

    def _overloaded(self, elapsed: float) -> MachineOverloaded:
        used = 0.0 if self._meter is None else self._meter.used()
        return MachineOverloaded(
            f"{self._what} did not end within {self._seconds:g} s of its own time: in {elapsed:.1f} s it waited "
            f"{self._waited:.1f} s for processors that others used, and used {used:.2f} s of processor time",
            _REMEDY,
        )

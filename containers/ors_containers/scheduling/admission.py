"""Whether the machine has room for one more sandbox, by what it has left and not by a count.

Room is memory and process ids, of the machine and of every control group this process is in, less what sandboxes that
have just started are expected to grow by. Processor pressure never refuses: where work waits for a processor nearly
all the time, no more sandboxes start at a time than there are processors.

Invariants: whoever asks is served in the order of asking; at most ``queue`` wait, and none longer than ``patience``
seconds; nothing is started for one that is turned away.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ors_containers.errors import Overloaded
from ors_containers.limits import MIB, Limits

__all__ = ["Admission", "Machine", "Room"]

#: Left free for everything else on the machine: the larger of a share and an amount.
_FREE_SHARE = 0.05
_FREE_MEMORY = 256 * MIB
_FREE_PIDS = 256
#: Process ids a sandbox is expected to need at once: its own three and those of a command.
_PIDS = 16
#: Seconds after which a sandbox's use shows in what is measured.
_GROWING = 10.0
_POLL = 0.1
#: Seconds for which a reading is good: a burst of starts need not read for each.
_FRESH = 0.02
_UNLIMITED = 2**60  # version 1 says "no limit" with a number near 2**63


@dataclass(frozen=True, slots=True)
class Room:
    """What the machine has left."""

    #: Bytes of memory that can be used, and of how many.
    memory: int
    memory_total: int
    #: Process ids that can be used, and of how many.
    pids: int
    pids_total: int
    #: Percent of the last ten seconds in which work waited for a processor; 0 where the kernel does not tell.
    pressure: float = 0.0


class Machine:
    """The machine's figures. ``system`` is the root of its file system; tests give one of their own."""

    def __init__(self, system: Path = Path("/")) -> None:
        self._proc = system / "proc"
        self._memory_groups = list(_groups(system, "memory"))
        self._pids_groups = list(_groups(system, "pids"))

    def room(self) -> Room:
        """What is left now, the scarcest of the machine and of its control groups; takes a fraction of a millisecond.

        A figure that cannot be read does not limit.
        """
        memory, memory_total = self._machine_memory()
        for group in self._memory_groups:
            limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
            if limit < _UNLIMITED:
                used = _number(group / "memory.current", group / "memory.usage_in_bytes", default=0)
                left = limit - max(0, used - _reclaimable(group / "memory.stat"))
                if left < memory:
                    memory, memory_total = left, limit
        pids, pids_total = self._machine_pids()
        for group in self._pids_groups:
            limit = _number(group / "pids.max")
            if limit < _UNLIMITED:
                left = limit - _number(group / "pids.current", default=0)
                if left < pids:
                    pids, pids_total = left, limit
        return Room(memory, memory_total, pids, pids_total, self._pressure())

    def _machine_memory(self) -> tuple[int, int]:
        figures: dict[str, int] = {}
        for line in _lines(self._proc / "meminfo"):
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                figures[name] = int(value.split()[0]) * 1024
        total = figures.get("MemTotal", _UNLIMITED)
        return figures.get("MemAvailable", total), total

    def _machine_pids(self) -> tuple[int, int]:
        kernel = self._proc / "sys/kernel"
        total = min(_number(kernel / "pid_max"), _number(kernel / "threads-max"))
        words = " ".join(_lines(self._proc / "loadavg")).split()
        used = int(words[3].partition("/")[2]) if len(words) > 3 else 0
        return total - used, total

    def _pressure(self) -> float:
        for line in _lines(self._proc / "pressure/cpu"):
            if line.startswith("some"):
                return float(line.split()[1].partition("=")[2])
        return 0.0


class Admission:
    """Lets sandboxes start while there is room, and the others wait their turn.

    ``queue`` and ``patience`` bound the waiting, ``reserve`` is what a sandbox is expected to grow by at first, in
    bytes, and ``pressure`` the percentage from which on starts take turns.
    """

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        queue: int = 256,
        patience: float = 60.0,
        reserve: int = 16 * MIB,
        pressure: float = 95.0,
    ) -> None:
        self._machine = machine or Machine()
        self._queue = queue
        self._patience = patience
        self._reserve = reserve
        self._pressure = pressure
        self._turns = os.cpu_count() or 1
        self._waiting: deque[_Asker] = deque()
        self._usher: asyncio.Task[None] | None = None
        #: What sandboxes may still grow by, the oldest first.
        self._promises: dict[_Promise, None] = {}
        self._starting = 0
        self._seen: tuple[float, Room] | None = None
        #: Gives up something that is not needed, a warm sandbox; asked whenever somebody has to wait.
        self.make_room: Callable[[], object] = lambda: None

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    @property
    def starting(self) -> int:
        """How many are being started."""
        return self._starting

    @asynccontextmanager
    async def starts(self, limits: Limits) -> AsyncGenerator[None]:
        """Start a sandbox inside this: it is entered when there is room. Raises ``Overloaded``."""
        if self._waiting or self._lacking():
            promise = await self._wait(limits)
        else:
            promise = self._enter(limits)
        try:
            yield
        except BaseException:
            self._promises.pop(promise, None)  # it has not come up, and will not grow
            raise
        finally:
            self._starting -= 1
            self._admit()

    def grows(self, limits: Limits) -> _Promise:
        """A sandbox is about to use more than is measured now: it starts, or it has been handed out."""
        promise = _Promise(time.monotonic() + _GROWING, min(self._reserve, limits.charged_memory))
        self._promises[promise] = None
        return promise

    def has_spare(self) -> bool:
        """Whether there is room for something nobody waits for: nothing queues or starts, and twice as much is free."""
        return not (self._waiting or self._starting or self._short_of(self._room(), 2.0))

    @property
    def crowded(self) -> bool:
        """Whether work waits for a processor nearly all the time."""
        return self._room().pressure >= self._pressure

    async def close(self) -> None:
        """Turn away whoever waits."""
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_exception(Overloaded("The server is being stopped", "Ask another one."))
        if self._usher is not None:
            self._usher.cancel()
            await asyncio.wait([self._usher])

    def _enter(self, limits: Limits) -> _Promise:
        self._starting += 1
        return self.grows(limits)

    async def _wait(self, limits: Limits) -> _Promise:
        if len(self._waiting) >= self._queue:
            raise self._overloaded(f"{len(self._waiting)} wait for it already (ORS_SANDBOX_QUEUE)")
        asker = _Asker(limits, asyncio.get_running_loop().create_future())
        self._waiting.append(asker)
        if self._usher is None:
            self._usher = asyncio.create_task(self._let_in())
        try:
            async with asyncio.timeout(self._patience):
                return await asker.turn
        except BaseException as error:
            if asker in self._waiting:
                self._waiting.remove(asker)
            elif not asker.turn.cancelled() and asker.turn.exception() is None:
                # It was let in at the moment in which it gave up.
                self._starting -= 1
                self._promises.pop(asker.turn.result(), None)
            self._admit()
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"{self._patience:g} s were waited (ORS_SANDBOX_QUEUE_TIMEOUT)") from None
            raise

    async def _let_in(self) -> None:
        """Looks again while anybody waits: room comes from sandboxes that end, ours or others'."""
        try:
            while self._waiting:
                await asyncio.sleep(_POLL)
                self._admit()
        finally:
            self._usher = None

    def _admit(self) -> None:
        while self._waiting and not self._lacking():
            asker = self._waiting.popleft()
            if not asker.turn.done():
                # Counted here and not when it wakes, or the next would be let in on the same room.
                asker.turn.set_result(self._enter(asker.limits))

    def _lacking(self) -> bool:
        """Whether the next has to wait."""
        if self._short_of(self._room(), 1.0):
            self.make_room()
            return True
        # Pressure slows starts down and never stops them.
        return self.crowded and self._starting >= self._turns

    def _room(self) -> Room:
        """What is left, read anew when it is older than a moment; what was promised meanwhile is counted besides."""
        now = time.monotonic()
        if self._seen is None or now - self._seen[0] > _FRESH:
            self._seen = (now, self._machine.room())
        return self._seen[1]

    def _short_of(self, room: Room, margin: float) -> str:
        """What is short, in words; empty where there is room. ``margin`` multiplies what has to stay free."""
        promised = self._promised()
        kept = round(max(_FREE_MEMORY, room.memory_total * _FREE_SHARE) * margin)
        needed = kept + self._reserve + promised
        if room.memory < needed:
            return (
                f"of memory, {room.memory // MIB} MiB are left and {math.ceil(needed / MIB)} MiB needed ({kept // MIB} "
                f"stay free, {promised // MIB} are promised to sandboxes that have just started, "
                f"{self._reserve // MIB} are for this one: ORS_SANDBOX_RESERVE)"
            )
        wanted = round(max(_FREE_PIDS, room.pids_total * _FREE_SHARE) * margin) + _PIDS * (1 + len(self._promises))
        if room.pids < wanted:
            return f"of process ids, {room.pids} are left and {wanted} needed (kernel.pid_max, or the group's pids.max)"
        return ""

    def _promised(self) -> int:
        """Bytes sandboxes that have just started may still grow by: less and less, as their use begins to show."""
        now = time.monotonic()
        for promise in list(self._promises):
            if promise.until > now:
                break
            del self._promises[promise]
        return round(sum(promise.amount * (promise.until - now) / _GROWING for promise in self._promises))

    def _overloaded(self, what: str) -> Overloaded:
        reason = self._short_of(self._room(), 1.0)
        if not reason and self.crowded:
            reason = f"work waits for a processor {self._room().pressure:.0f} % of the time (ORS_SANDBOX_PRESSURE)"
        return Overloaded(
            f"The machine has no room for another sandbox: {reason or 'others were before it'}; {what}",
            "Wait until sandboxes have ended, or give the server a larger machine.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Promise:
    """Bytes a sandbox may grow by, and until when that is expected."""

    until: float
    amount: int


@dataclass(frozen=True, slots=True, eq=False)
class _Asker:
    """One that waits for its turn."""

    limits: Limits
    turn: asyncio.Future[_Promise]


# --- reading ---------------------------------------------------------------------------------


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _number(*files: Path, default: int = _UNLIMITED) -> int:
    """The number in the first of the files that can be read; ``max`` is no number."""
    for file in files:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            continue
    return default


def _reclaimable(file: Path) -> int:
    """Bytes of a group's memory that hold files the kernel drops when it needs room."""
    figures = dict(line.split()[:2] for line in _lines(file))
    return int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))


def _groups(system: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's groups of a controller, version 1 or 2, up to the root that can be seen."""
    memberships = {
        name: path
        for line in _lines(system / "proc/self/cgroup")
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    for line in _lines(system / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and controller in options.split(","):
            path = memberships.get(controller)
        elif kind == "cgroup2":
            path = memberships.get("")
        else:
            continue
        if path is None:
            continue
        mounted = system / point.lstrip("/")
        below = path if root == "/" else path.removeprefix(root)
        place = mounted / below.lstrip("/")
        if not place.is_dir():
            place = mounted
        while True:
            yield place
            if place == mounted:
                break
            place = place.parent

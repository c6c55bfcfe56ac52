"""Processor time of a sandbox, and how much of it other tenants of the machine took.

A sandbox *waits for others* in a step of h seconds for the least of these:

- *stalled*: seconds in which one of its processes could run and none of them did;
- *unused*: h minus the processor time that all of its processes used and minus the time in which its own limit
  (``cpu.max``) stopped them;
- *taken*: the part of the machine that others used, times h: their processor seconds divided by the processors.

So no process of a sandbox makes it wait for others by what it does: processes that wait for each other, or for the
limit of their sandbox, use its processor time or are stopped by it (*unused*); processes that all wait for one
processor on purpose, or begin to run at the same moment, do so on a machine that others leave to them (*taken*); and a
process that sleeps or waits for a file does not wait for a processor (*stalled*). An examination beside live services
of the agent is measured with them as one sandbox. A pod or service whose own quota is used up is measured as a machine
of that size.

Counters of the kernel:

=========  ==========================================  ================================================================
           version 1                                   version 2
=========  ==========================================  ================================================================
used       ``cpuacct.usage``                           ``usage_usec`` of ``cpu.stat``
stopped    ``throttled_time`` of ``cpu.stat``          ``throttled_usec`` of ``cpu.stat``
stalled    ``/proc/PID/schedstat`` and the state of    ``full`` of ``cpu.pressure``; where the kernel keeps none, as in
           each thread, at the steps                   version 1
taken      ``/proc/stat``, and the counters of groups  the same
           above with a quota
=========  ==========================================  ================================================================

Invariant: a counter that cannot be read counts as no waiting.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ors_containers.linux import kernel_files

__all__ = ["GroupAccount", "Machine", "Quota", "WaitMeter"]

#: Seconds for which a reading of the machine serves all of its sandboxes.
_SHARED_READING = 0.01
#: Waiting below this part of a step is not looked into further.
_NEGLIGIBLE = 0.02
#: Threads of a sandbox that are looked at in a step: the newest, those of the command that runs.
_MOST_THREADS = 16
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT, _FIRST_GUEST = 3, 4, 8


@dataclass(frozen=True, slots=True)
class GroupAccount:
    """The counters of one control group."""

    version: Literal[1, 2]
    #: Directory of the group where its use of processors is counted.
    usage: Path
    #: Directory of the group where its processor limit is.
    limit: Path

    def used(self) -> float:
        """Return the processor seconds that its processes have used. Raises ``OSError``."""
        if self.version == 1:
            return int(kernel_files.read(f"{self.usage}/cpuacct.usage")) / 1e9
        return _field(f"{self.usage}/cpu.stat", b"usage_usec") / 1e6

    def stopped(self) -> float:
        """Return the seconds for which its limit has stopped it, of all processors. Raises ``OSError``."""
        if self.version == 1:
            return _field(f"{self.limit}/cpu.stat", b"throttled_time") / 1e9
        return _field(f"{self.limit}/cpu.stat", b"throttled_usec") / 1e6

    def pressure(self) -> float | None:
        """Return the seconds in which processes could run and none did; None where the kernel does not count that."""
        if self.version == 1:
            return None
        try:
            lines = kernel_files.read(f"{self.usage}/cpu.pressure").splitlines()
        except OSError:
            return None
        for line in lines:
            if line.startswith(b"full "):
                return int(line.rpartition(b"total=")[2]) / 1e6
        return None

    def threads(self) -> list[int]:
        """Return the ids of its threads; none where it has ended."""
        try:
            return [int(word) for word in kernel_files.read(f"{self.usage}/{self._members}").split()]
        except OSError:
            return []

    @property
    def _members(self) -> str:
        return "tasks" if self.version == 1 else "cgroup.threads"


@dataclass(frozen=True, slots=True)
class Quota:
    """A control group above all sandboxes that has a limit of its own, in processors."""

    account: GroupAccount
    processors: float


class Machine:
    """The processors that this process and its sandboxes may use, and the quotas above them."""

    def __init__(self, quotas: Sequence[Quota] = (), system: Path = Path("/")) -> None:
        self._quotas = quotas
        self._stat = str(system / "proc/stat")
        self._names = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
        self._reading: list[tuple[float, float]] = []
        self._read_at = -_SHARED_READING

    def used(self) -> list[tuple[float, float]]:
        """Return the processor seconds used since boot, and the processors: of the machine, then of each quota.

        Raises ``OSError``.
        """
        now = time.monotonic()
        if now - self._read_at >= _SHARED_READING:
            self._reading = [
                (self._busy(), float(len(self._names))),
                *((quota.account.used(), quota.processors) for quota in self._quotas),
            ]
            self._read_at = now
        return self._reading

    def _busy(self) -> float:
        """Return the seconds in which the processors were not idle; a hypervisor's other guests keep them busy, too."""
        ticks = 0
        for line in kernel_files.read(self._stat).splitlines():
            name, *fields = line.split()
            if not name.startswith(b"cpu"):
                break
            if name in self._names:
                ticks += sum(map(int, fields[:_FIRST_GUEST])) - int(fields[_IDLE]) - int(fields[_IOWAIT])
        return ticks * _TICK


class WaitMeter:
    """The waiting of one control group of a sandbox, from step to step.

    ``beside`` are the sandbox's other groups. With ``starting`` the sandbox is taken to be stalled all the time: no
    process is in the group yet, and one of the server's own is on its way there.
    """

    def __init__(
        self, machine: Machine, group: GroupAccount, beside: Sequence[GroupAccount] = (), *, starting: bool = False
    ) -> None:
        self._machine = machine
        self._group = group
        self._groups = (group, *beside)
        self._starting = starting
        #: Seconds that each thread has waited, at the last step; None where that step did not look.
        self._delays: dict[int, float] | None = None
        #: Whether a thread was about to run at the last step.
        self._ready = False
        self._first = self._last = self._read()

    def step(self) -> float:
        """Return the seconds that the group has waited for others since the last step, or since the beginning."""
        before, now = self._last, self._read()
        if now is None or before is None:
            return 0.0
        self._last = now
        seconds = now.time - before.time
        if seconds <= 0:
            return 0.0
        used, stopped = now.used - before.used, now.stopped - before.stopped
        taken = max(
            (total - earlier - used) / processors
            for (total, processors), (earlier, _) in zip(now.machine, before.machine, strict=True)
        )
        most = min(seconds - used - stopped, taken)
        if most < _NEGLIGIBLE * seconds:
            self._delays, self._ready = None, False
            return 0.0
        return max(0.0, min(most, self._stalled(before, now)))

    def used(self) -> float:
        """Return the processor seconds that the sandbox has used from the beginning to the last step."""
        return 0.0 if self._first is None or self._last is None else self._last.used - self._first.used

    def _stalled(self, before: _Reading, now: _Reading) -> float:
        seconds = now.time - before.time
        if self._starting:
            return seconds
        if before.pressure is not None and now.pressure is not None:
            return now.pressure - before.pressure
        earlier, self._delays = self._delays, None
        ready, self._ready = self._ready, False
        now_delays: dict[int, float] = {}
        delays = 0.0
        for thread in reversed(self._group.threads()[-_MOST_THREADS:]):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
                # The kernel counts a delay when it is over, and those of threads that have ended are lost. In D, a
                # thread waits for a lock of the kernel, whose holder may wait for a processor.
                if kernel_files.read(f"/proc/{thread}/stat").rpartition(b")")[2][1:2] in b"RD":
                    self._ready = True
                    return seconds
                delay = int(kernel_files.read(f"/proc/{thread}/schedstat").split()[1]) / 1e9
                now_delays[thread] = delay
                if earlier is not None:
                    delays += delay - earlier.get(thread, 0.0)
        self._delays = now_delays
        return seconds if ready else delays

    def _read(self) -> _Reading | None:
        try:
            return _Reading(
                time=time.monotonic(),
                used=sum(group.used() for group in self._groups),
                stopped=sum(group.stopped() for group in self._groups),
                pressure=self._group.pressure(),
                machine=self._machine.used(),
            )
        except (OSError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class _Reading:
    """The counters at one moment, in seconds."""

    time: float
    used: float
    stopped: float
    pressure: float | None
    machine: list[tuple[float, float]]


def _field(file: str, name: bytes) -> int:
    """Return a number of a file with a name and a number in each line; 0 where it has no such line."""
    for line in kernel_files.read(file).splitlines():
        word, _, number = line.partition(b" ")
        if word == name:
            return int(number)
    return 0

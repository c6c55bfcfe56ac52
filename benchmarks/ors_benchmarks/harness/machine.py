"""The machine a run was made on, without its name or paths, and how busy other processes kept it."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path

from pydantic import BaseModel

from ors_benchmarks.harness.control_groups import NoControlGroups, ProcessorTime, processor_time
from ors_benchmarks.harness.processes import cores

__all__ = ["Machine", "Observer", "describe"]

#: Share of the machine that others may take before the figures are doubted.
_CALM = 0.05


class Machine(BaseModel):
    """The machine that the figures come from."""

    cpu: str
    #: Cores this process may use.
    cores: int
    memory_gib: float
    kernel: str
    python: str
    #: Whether server and load had a core each.
    pinned: bool
    #: Share of all cores' time that other processes took during the run (0 to 1), None before its end.
    others: float | None = None
    #: Share that the hypervisor gave to other machines.
    stolen: float | None = None

    @property
    def hardware(self) -> str:
        """Hardware and software in one line."""
        return f"{self.cpu}, {self.cores} cores, {self.memory_gib:g} GiB, {self.kernel}, Python {self.python}"

    @property
    def conditions(self) -> str:
        """The share of the machine that was not this run's."""
        return f"others used {self.others or 0:.0%} of the machine, {self.stolen or 0:.0%} was stolen by its host"

    def busy(self, *, others: bool = True) -> bool:
        """Return whether the figures are in doubt; without ``others`` only stolen time counts."""
        return (self.stolen or 0) + ((others and self.others) or 0) > _CALM


def describe() -> Machine:
    """Describe this machine."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        # The release without what a distribution or a provider appends to it.
        kernel=f"{platform.system()} {platform.release().split('-', 1)[0]}",
        python=platform.python_version(),
        pinned=cores().server is not None,
    )


class Observer(contextlib.AbstractContextManager["Observer"]):
    """Measure how much of the machine others used, from construction to ``finish``.

    Ours are this process and its descendants that it has waited for; in a ``with`` block of root, all descendants, by
    control group: no process waits for what a sandbox leaves running.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy, self._stolen = _machine_seconds()
        self._own = _own_seconds()
        #: CPU time of our own processes that this one does not wait for.
        self.unaccounted = 0.0
        #: Processor time of the block; None where this user has no control group that counts it.
        self.counted: ProcessorTime | None = None
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Observer:
        with contextlib.ExitStack() as stack, contextlib.suppress(NoControlGroups, OSError):
            counted = stack.enter_context(processor_time())
            stack.enter_context(counted.entered())
            self.counted, self._entered = counted, stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def finish(self, machine: Machine) -> Machine:
        """Return the machine with both shares. Call it after the servers ended: only then is their CPU time known."""
        busy, stolen = _machine_seconds()
        whole = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        waited_for = _own_seconds() - self._own + self.unaccounted
        own = waited_for if self.counted is None else self.counted.seconds(beside=False)
        return machine.model_copy(
            update={
                "others": round(min(1.0, max(0.0, (busy - self._busy - own) / whole)), 3),
                "stolen": round((stolen - self._stolen) / whole, 3),
            }
        )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _machine_seconds() -> tuple[float, float]:
    """CPU time of all processes, and time stolen, since the machine started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, interrupts, soft_interrupts, stolen = map(int, fields[:8])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft_interrupts) / tick, stolen / tick


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system

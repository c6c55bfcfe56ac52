"""The processes of one candidate: started, confined to cores, measured in two parts, and ended.

The front (a gateway or a proxy) and the workers share a core where there are only two: the other is the load's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from ors_benchmarks.harness.http11 import Address
from ors_benchmarks.harness.processes import (
    START_LIMIT,
    STOP_LIMIT,
    StartFailed,
    cpu_seconds,
    is_healthy,
    resident_bytes,
    without_settings,
)

__all__ = ["Cores", "Parts", "Servers"]


class Cores(NamedTuple):
    """The cores of a run; empty sets leave the choice to the system."""

    workers: frozenset[int]
    #: The workers' own where there is no third one.
    front: frozenset[int]
    load: frozenset[int]
    #: All that this process may use.
    allowed: frozenset[int]

    @classmethod
    def of_this_process(cls) -> Cores:
        """Divide the cores that this process may use."""
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) == 1:
            return cls(*[frozenset(allowed)] * 4)
        workers, load, front = allowed[0], allowed[1], allowed[2 if len(allowed) > 2 else 0]
        return cls(frozenset({workers}), frozenset({front}), frozenset({load}), frozenset(allowed))

    @property
    def front_alone(self) -> bool:
        """True where the front has a core of its own."""
        return not self.front & (self.workers | self.load)


class Parts(NamedTuple):
    """A figure of the front, and of all workers together."""

    front: float
    workers: float


class Servers:
    """The running processes of a candidate. ``slots`` returns its supervisor's rows."""

    def __init__(
        self, address: Address, folder: Path, cores: Cores, slots: Callable[[], list[dict[str, Any]]] = list
    ) -> None:
        self.address = address
        self.slots = slots
        self.cores = cores
        self._folder = folder
        self._front: Sequence[int] = ()
        self._workers: Sequence[int] = ()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._descriptors: list[int] = []

    # --- start and end -----------------------------------------------------------------------

    def start(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        *,
        ready: Address | None = None,
    ) -> int:
        """Run a command, which inherits the descriptors, and return its process id; its log goes to a file.

        With ``ready`` it waits until the command answers there. Raises ``StartFailed``.
        """
        with (self._folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**without_settings(), "ORS_DATA_DIR": str(self._folder / "data"), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
            )
        self._processes[name] = process
        if ready is not None:
            self.wait_until_ready(name, ready)
        return process.pid

    def keep_open(self, descriptor: int) -> None:
        """Close a descriptor at the end."""
        self._descriptors.append(descriptor)

    def wait_until_ready(self, name: str, address: Address) -> None:
        """Wait until a process answers at an address. Raises ``StartFailed``, and then ends all of them."""
        process = self._processes[name]
        deadline = time.monotonic() + START_LIMIT
        try:
            while time.monotonic() < deadline and process.poll() is None:
                if is_healthy(address):
                    return
                time.sleep(0.05)
            raise StartFailed(f"The server of {name} does not answer", "Run it by hand to see why.")
        except BaseException:  # Ctrl-C too: no server may be left behind
            self.stop()
            raise

    def having(self, *, workers: Sequence[int], front: Sequence[int] = ()) -> Self:
        """Take the process ids of the parts, and confine them to their cores."""
        self._front, self._workers = front, workers
        self.confine(self.cores.workers)
        for pid in front:
            _confine(pid, self.cores.front)
        return self

    def stop(self) -> None:
        """End all processes, the front first."""
        processes = list(reversed(self._processes.values()))
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._processes.clear()
        self._descriptors.clear()

    # --- figures -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id of the first worker."""
        return self._workers[0]

    @property
    def running(self) -> bool:
        """True while all started processes run."""
        return all(process.poll() is None for process in self._processes.values())

    def confine(self, cores: frozenset[int]) -> None:
        """Let the workers, with all threads that they have, run on these cores."""
        for pid in self._workers:
            _confine(pid, cores)

    def cpu(self) -> Parts:
        """CPU seconds so far."""
        return Parts(sum(map(cpu_seconds, self._front)), sum(map(cpu_seconds, self._workers)))

    def memory(self) -> Parts:
        """Bytes in RAM."""
        return Parts(sum(map(resident_bytes, self._front)), sum(map(resident_bytes, self._workers)))


def _confine(pid: int, cores: frozenset[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)

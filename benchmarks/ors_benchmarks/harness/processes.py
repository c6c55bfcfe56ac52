"""Server processes: started, pinned to a core, measured from outside and ended.

CPU time is the process's own, of all its threads, as the kernel accounts it: on a busy machine it is the figure that
other work disturbs least. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import time
import urllib.error
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from urllib.request import urlopen  # noqa: TID251 - reads a status, and no body

from ors_benchmarks.harness.http11 import Address
from ors_server.errors import OrsError

__all__ = [
    "HOST",
    "START_LIMIT",
    "STOP_LIMIT",
    "Cores",
    "Pause",
    "ServerProcess",
    "StartFailed",
    "bind",
    "cores",
    "cpu_seconds",
    "free_port",
    "is_healthy",
    "no_server_left",
    "on_core",
    "raise_file_limit",
    "resident_bytes",
    "without_settings",
]

HOST = "127.0.0.1"
#: Limits in seconds: from start to first answer, and from SIGTERM to end.
START_LIMIT = 60.0
STOP_LIMIT = 60.0
#: Servers of this process, those that have ended among them.
_started: list[subprocess.Popen[bytes]] = []


class StartFailed(OrsError):
    """A candidate's server does not start."""


class Cores(NamedTuple):
    """The server's core and the load's core; None where there is only one for both."""

    server: int | None
    load: int | None


def cores() -> Cores:
    """Return the first two cores this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[1]) if len(allowed) > 1 else Cores(None, None)


@contextlib.contextmanager
def on_core(core: int | None) -> Generator[None]:
    """Keep this process, and those it starts meanwhile, on a core; None leaves everything as it is."""
    allowed = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def without_settings() -> dict[str, str]:
    """Return the environment variables without settings of any candidate: each is measured with its defaults.

    The keys of the operator's own server are not those of a candidate.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ORS_", "OPENREWARD_"))}
    return {**kept, "ORS_KEYS_FILE": "/nonexistent/keys.json"}


def bind(process: int, cores: Sequence[int]) -> None:
    """Keep all threads of a process, and what it starts from now on, on some cores."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread.name), set(cores))


def raise_file_limit() -> None:
    """Let this process, and the servers it starts, open as many files as the machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process of this machine, those of its threads that have ended included.

    Raises ``OSError`` if there is no such process. ``/proc/PID/stat`` has the same figure in steps of 10 ms only.
    """
    # clock_getcpuclockid(3), which Python lacks: the complement of the id, and two bits for "scheduler's time".
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    """Bytes of a process that are in RAM. Raises ``OSError`` if there is no such process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


class Pause(NamedTuple):
    """A stop of the process by its garbage collector."""

    #: By ``time.monotonic``.
    started: float
    seconds: float
    generation: int


@contextlib.contextmanager
def no_server_left() -> Generator[None]:
    """End the servers that are left after the block, which SIGTERM ends as Ctrl-C does. For the main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        while _started:  # one that a thread was starting, too
            process = _started.pop()
            process.kill()
            process.wait()


@dataclass
class ServerProcess:
    """A running server."""

    address: Address
    _process: subprocess.Popen[bytes]
    _log: Path
    _pauses: Path
    #: When it first answered, by ``time.monotonic``.
    _ready: float = 0.0

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        folder: Path,
        core: int | None,
        *,
        name: str,
        variables: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        """Run a command and wait until it answers.

        Its last arguments are a port and a file for the collector's pauses. Its log goes to a file in ``folder``.
        ``variables`` are settings that it gets. Raises ``StartFailed``.
        """
        port = free_port()
        serial = sum(1 for _ in folder.glob("*.log"))
        log, pauses = folder / f"{name}-{serial}.log", folder / f"{name}-{serial}.json"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, str(port), str(pauses)],
                cwd=folder,
                env=without_settings() | dict(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        _started.append(process)
        server = cls(Address(HOST, port), process, log, pauses)
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            server._wait_until_ready(name)
            server._ready = time.monotonic()
        except BaseException:  # Ctrl-C too: no server may be left behind
            process.kill()
            process.wait()
            raise
        return server

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def forget_log(self) -> None:
        """Empty the log: some servers write a line per request."""
        os.truncate(self._log, 0)

    def stop(self) -> list[Pause] | None:
        """End the process; returns its pauses of at least 0.1 ms while it served.

        None if it does not report them or had to be killed.
        """
        stopped = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._pauses.exists():
            return None
        pauses = [Pause(*pause) for pause in json.loads(self._pauses.read_text())]
        return [pause for pause in pauses if self._ready <= pause.started < stopped]

    def _wait_until_ready(self, name: str) -> None:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            if not self.running:
                tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
                raise StartFailed(f"The server of {name} ended at once: {' '.join(tail)}", "Run it by hand to see why.")
            if is_healthy(self.address):
                return
            time.sleep(0.05)
        raise StartFailed(
            f"The server of {name} did not answer within {START_LIMIT:g} s", "Try again on a calm machine."
        )


def is_healthy(address: Address) -> bool:
    """Return whether ``/health`` answers with 200."""
    try:
        with urlopen(f"http://{address.host}:{address.port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port

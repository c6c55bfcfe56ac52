"""Servers in processes of their own: ``ors-server serve``, a module of the tests, or any command that listens."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.support.paths import ROOT
from tests.support.prepared_python import PreparedProgram

__all__ = [
    "WORKERS",
    "Running",
    "StartServer",
    "executable",
    "free_port",
    "launched",
    "running",
    "running_workers",
    "serve_sdk",
    "served",
    "starting",
]

#: With the variable ``ORS_TEST_WORKERS`` servers have so many workers, behind two gateways.
WORKERS = os.environ.get("ORS_TEST_WORKERS", "")
#: Seconds that a server may take to listen, and to end.
_PATIENCE = 120.0


@dataclass(frozen=True)
class Running:
    """A server that listens on the loopback device."""

    url: str
    process: subprocess.Popen[bytes]
    #: Standard output and standard error.
    output: Path
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def resident(self) -> int:
        """Memory in RAM, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def logged(self, text: str) -> str:
        """Wait until the log has ``text``; return the log."""
        return _wait(lambda: log if text in (log := self.log.read_text()) else None, self.process, self.log)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal, wait for the end and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=20)


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    folder: Path,
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    url: str | None = None,
    patience: float = _PATIENCE,
    stdout: int | None = None,
    stderr: int | None = None,
    new_session: bool = False,
    pass_fds: Sequence[int] = (),
) -> Generator[Running]:
    """Run a server's command during the block, with its output in the files ``output`` and ``log`` of ``folder``.

    ``variables`` are added to this process's environment, without its ``ORS_*`` variables. The server must end by
    itself on SIGTERM, and print its address. If the server prints none, or prints it before it listens, ``url`` is its
    address, and ``/health`` is polled. ``patience`` limits the start, in seconds. ``stdout`` and ``stderr`` replace the
    files. ``pass_fds`` are open descriptors for the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output, log = folder / "output", folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    is_path = (variables or {}).get("ORS_LISTEN", "").startswith("unix:")
    pattern = r"(unix:\S+)[;\s]" if is_path else r"(http://\S+:\d+)[;\s\"]"
    with output.open("wb") as out, log.open("wb") as errors:
        environment |= dict(variables or {})
        process = PreparedProgram(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out if stdout is None else stdout,
            stderr=errors if stderr is None else stderr,
            start_new_session=new_session,
            pass_fds=pass_fds,
        )
        try:

            def address() -> str | None:
                if url is not None:
                    return url if _is_healthy(url) else None
                found = re.search(pattern, output.read_text() + log.read_text())
                return found and found[1]

            yield Running(_wait(address, process, log, patience), process, output, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            finally:
                if process.stderr is not None:
                    process.stderr.close()


@contextlib.contextmanager
def served(folder: Path, *targets: str | Path, **variables: str) -> Generator[str]:
    """Run ``ors-server serve`` with these targets on a free port. Yield its URL.

    Its output and uploaded rollouts are kept in ``folder``.
    """
    command = [sys.executable, "-m", "ors_cli", "serve", *map(str, targets), "--port", "0"]
    with running(command, folder, variables={"ORS_DATA_DIR": str(folder / "data"), **variables}) as server:
        yield server.url
    status = server.process.returncode
    assert status in (0, -signal.SIGTERM), f"status {status}: {server.log.read_text()}"


@contextlib.contextmanager
def launched(
    module: str, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> Generator[Running]:
    """Run ``python -m tests.MODULE``, which serves on ``ORS_PORT`` and prints its address."""
    surroundings = {"ORS_PORT": "0", "ORS_LOG_LEVEL": "warning", **(variables or {})}
    command = [sys.executable, "-m", f"tests.{module}", *arguments]
    if WORKERS and not arguments:
        file = ROOT.joinpath("tests", *module.split(".")).with_suffix(".py")
        command = [sys.executable, "-m", "ors_cli", "serve", str(file), "--workers", WORKERS, "--gateways", "2"]
        surroundings["ORS_LOG_LEVEL"] = "info"
    with running(command, folder, cwd=ROOT, variables=surroundings) as server:
        yield server


@contextlib.contextmanager
def running_workers(
    folder: Path,
    *targets: str | Path,
    workers: int = 2,
    gateways: int = 2,
    host: str = "127.0.0.1",
    port: int = 0,
    **variables: str,
) -> Generator[Running]:
    """Run ``ors-server serve`` with several workers behind gateways."""
    command = [sys.executable, "-m", "ors_cli", "serve", *map(str, targets), "--host", host, "--port", str(port)]
    command += ["--workers", str(workers), "--gateways", str(gateways)]
    with running(command, folder, variables={"ORS_DATA_DIR": str(folder / "data"), **variables}) as server:
        yield server


class StartServer(Protocol):
    """Start ``ors-server serve`` on a free port, with the ``ORS_*`` variables of this process."""

    def __call__(self, *arguments: str | Path, cwd: Path | None = None) -> Running: ...


@contextlib.contextmanager
def starting(folder: Path) -> Generator[StartServer]:
    """Start as many servers as the block asks for; all of them end with it."""
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def start(*arguments: str | Path, cwd: Path | None = None) -> Running:
            command = [executable(), "serve", *map(str, arguments), "--port", "0"]
            settings = {name: value for name, value in os.environ.items() if name.startswith("ORS_")}
            own = folder / f"server-{next(numbers)}"
            return stack.enter_context(running(command, own, cwd=cwd, variables={"COLUMNS": "120"} | settings))

        yield start


def executable() -> str:
    """Return the path of the installed console script."""
    return str(Path(sys.executable).with_name("ors-server"))


def free_port() -> int:
    """Return an unused port of the loopback device, for a server that cannot choose one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_sdk(application: Any) -> None:
    """Serve an SDK's application as its own server does, but on a free port, and print the address."""
    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        # Both SDKs keep idle connections for 60 s.
        config = uvicorn.Config(application, log_level="critical", timeout_keep_alive=60)
        uvicorn.Server(config).run(sockets=[listening])


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _wait(
    look: Callable[[], str | None], process: subprocess.Popen[bytes], log: Path, patience: float = _PATIENCE
) -> str:
    """Return what ``look`` finds; fail if the process ends first or the time is over."""
    deadline = time.monotonic() + patience
    while (found := look()) is None:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        assert time.monotonic() < deadline, f"not within {patience:g} s: {log.read_text(errors='replace')[-4000:]}"
        time.sleep(0.02)
    return found

"""Servers in processes of their own: ``ors-server serve``, or a module of the tests that prints its address."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

__all__ = ["Running", "launched", "running", "served"]

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


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    folder: Path,
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    unread_log: bool = False,
) -> Generator[Running]:
    """Run a server's command during the block, with its output in files of ``folder``.

    ``variables`` are added to this process's environment, without its ``ORS_*`` variables. The server must print its
    address, and end by itself on SIGTERM. With ``unread_log`` its standard error is a pipe that is never read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output, log = folder / "output", folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    with output.open("wb") as out, log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE if unread_log else errors,
        )
        try:
            yield Running(_address(process, output, log), process, output, log)
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
    command = [sys.executable, "-m", "ors_server", "serve", *map(str, targets), "--port", "0"]
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
    with running(command, folder, cwd=ROOT, variables=surroundings) as server:
        yield server


def _address(process: subprocess.Popen[bytes], output: Path, log: Path) -> str:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if found := re.search(r"(http://\S+:\d+)[;\s]", output.read_text() + log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"no address within {_PATIENCE:g} s: {log.read_text()}")

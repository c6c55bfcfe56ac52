"""Servers in processes of their own, started by a script of this folder that prints their address."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Running", "launched"]

ROOT = Path(__file__).resolve().parents[2]
#: How long a server may take to listen and to end, in seconds.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Running:
    """A server that listens on the loopback device."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def resident(self) -> int:
        """Its memory in RAM, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def launched(
    module: str, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> Generator[Running]:
    """Run `python -m tests.MODULE` while the block runs; it has to end when it is asked to."""
    folder.mkdir(parents=True, exist_ok=True)
    address, log = folder / "address", folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    environment |= {"ORS_PORT": "0", "ORS_LOG_LEVEL": "warning", **(variables or {})}
    with address.open("wb") as output, log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.{module}", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        try:
            yield Running(_port(process, address, log), process, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _port(process: subprocess.Popen[bytes], address: Path, log: Path) -> int:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if (line := address.read_text()).endswith("\n"):
            return int(line.strip().rpartition(":")[2])
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"no address within {_PATIENCE:g} s: {log.read_text()}")

"""Our server in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .journal import VARIABLE, Journal

TESTS = Path(__file__).resolve().parents[1]

#: What a server writes about a fault of its own, as opposed to one of an environment.
FAULTS = re.compile(
    r".*(?:request failed|housekeeping failed|ending a session failed|session still busy|teardown timed out"
    r"|Exception in|never retrieved|never awaited|was destroyed but it is pending).*"
)


@dataclass(frozen=True)
class RunningServer:
    """A server that listens."""

    url: str
    journal: Journal
    log: Path
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def serving(hosted: Literal["all", "one"], folder: Path, **settings: str) -> Generator[RunningServer]:
    """Serve while the block runs, with settings as ORS_* variables; afterwards no fault may stand in the log."""
    folder.mkdir()
    address, log, journal = folder / "address", folder / "log", Journal(folder / "journal")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    command = [sys.executable, "-m", f"{__package__}.serve".rpartition("tests.")[2], hosted]
    with address.open("w") as output, log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=TESTS,
            env=clean | settings | {"ORS_PORT": "0", VARIABLE: str(journal.path)},
            stdout=output,
            stderr=errors,
        )
        try:
            yield RunningServer(_address(process, address, log), journal, log, process)
        finally:
            process.terminate()
            try:
                status = process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    text = log.read_text()
    assert status in (0, -signal.SIGTERM), f"status {status}: {text}"
    assert not FAULTS.findall(text), f"{FAULTS.findall(text)} in:\n{text}"


def _address(process: subprocess.Popen[bytes], address: Path, log: Path) -> str:
    """The one line that the process prints, once it is complete."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (line := address.read_text()).endswith("\n"):
            return line.strip()
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"no address within 60 s: {log.read_text()}")

"""Our server in a process of its own."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.paths import ROOT
from tests.support.servers import WORKERS, running

from .journal import VARIABLE, Journal
from .serve import hosted as hosted_environments

#: Log lines of a server's own faults, as opposed to an environment's.
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
    """Serve during the block, with settings as ORS_* variables. Afterwards fail if the log has a fault."""
    folder.mkdir()
    journal = Journal(folder / "journal")
    command = [sys.executable, "-m", "tests.compat.real_clients.serve", hosted]
    if WORKERS:
        package = "tests.compat.real_clients"
        targets = [
            f"{package}.{environment.__module__.rpartition('.')[2]}:{environment.__name__}"
            for environment in hosted_environments(hosted)
        ]
        command = [sys.executable, "-m", "ors_cli", "serve", *targets, "--workers", WORKERS, "--gateways", "2"]
    with running(
        command, folder, cwd=ROOT, variables=settings | {"ORS_PORT": "0", VARIABLE: str(journal.path)}
    ) as server:
        yield RunningServer(server.url, journal, server.log, server.process)
    text = server.log.read_text()
    assert server.process.returncode in (0, -signal.SIGTERM), f"status {server.process.returncode}: {text}"
    assert not FAULTS.findall(text), f"{FAULTS.findall(text)} in:\n{text}"

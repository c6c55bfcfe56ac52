"""The servers that are compared, and the virtual environments the foreign ones live in.

Each SDK has an environment of its own, with exactly its dependencies: ``openreward`` pins versions that would hold the
others back. They lie outside the clone, in ``${XDG_CACHE_HOME:-~/.cache}/ors-server/bench-<hash>``; the hash covers the
requirements and the Python, so a new requirement makes a new environment, and old ones may be deleted by hand.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_benchmarks.client import Client, FloorClient
from ors_server.errors import OrsError

__all__ = ["CANDIDATES", "FLOOR", "OURS", "Candidate", "PeerUnavailable"]

_SCRIPTS = Path(__file__).resolve().parent
#: uvicorn takes these where it finds them; without them the peers would be slower still.
_FAST = ("httptools", "uvloop")


class PeerUnavailable(OrsError):
    """The virtual environment of a foreign server cannot be made."""


@dataclass(frozen=True)
class Candidate:
    """A server to measure."""

    name: str
    #: How tables and charts call it.
    title: str
    #: The module that ``echo_server`` takes its SDK from; None for the floor.
    module: str | None
    #: What pip installs for it; nothing where it is already here.
    requirements: tuple[str, ...] = ()
    client: type[Client] = Client

    def prepare(self, without: str = "--candidates ours,floor") -> str:
        """The Python to run it with; its virtual environment is made if need be.

        Raises ``PeerUnavailable``, whose remedy names ``without``: the options that do without it.
        """
        return _environment(self.name, self.requirements, without) if self.requirements else sys.executable

    def prepared(self) -> str | None:
        """The Python to run it with, where there is one already."""
        if not self.requirements:
            return sys.executable
        folder = _folder(self.requirements)
        return str(folder / "bin" / "python") if (folder / "complete").exists() else None

    def command(self, python: str) -> list[str]:
        """What starts its server, less the port and the report's path."""
        if self.module is None:
            return [python, "-P", str(_SCRIPTS / "floor_server.py")]
        return [python, "-P", str(_SCRIPTS / "echo_server.py"), self.module]


OURS = Candidate("ours", "ors-server", "ors_server")
FLOOR = Candidate("floor", "bare uvicorn", None, client=FloorClient)
CANDIDATES: Sequence[Candidate] = (
    OURS,
    Candidate("ors-sdk", "ors-sdk", "ors", ("ors-sdk==0.1.0", *_FAST)),
    Candidate("openreward", "openreward", "openreward.environments", ("openreward==0.1.167", *_FAST)),
    FLOOR,
)


def packages(python: str) -> dict[str, str]:
    """Names and versions of the packages that a Python finds."""
    program = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    done = subprocess.run([python, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=_SCRIPTS.root)
    found: dict[str, str] = json.loads(done.stdout)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _folder(requirements: Sequence[str]) -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = "\n".join([version, sysconfig.get_platform(), *requirements])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ors-server"
    return cache / f"bench-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _environment(name: str, requirements: Sequence[str], without: str) -> str:
    folder = _folder(requirements)
    python = folder / "bin" / "python"
    complete = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two benchmarks at once the second waits, and finds it made
        if complete.exists() and python.exists():
            return str(python)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *requirements],
        ):
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "see above")
                raise PeerUnavailable(
                    f"The virtual environment of {name} cannot be made: {reason}",
                    f"pip needs a package index that has it; without one, measure with {without}.",
                )
        complete.write_text("\n".join(requirements))
    return str(python)

"""The servers that are compared, and the virtual environments of the foreign ones.

Each SDK has an environment of its own with exactly its dependencies: ``openreward`` pins versions that would hold the
others back. The environments lie outside the clone (``virtualenvs``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_benchmarks.harness.virtualenvs import cached_environment, location
from ors_server.errors import OrsError

__all__ = ["OURS", "SDKS", "Candidate", "NotHere", "PeerUnavailable", "packages"]

_SCRIPT = Path(__file__).resolve().with_name("script_server.py")
_CACHED = "bench"
#: uvicorn uses these if they are installed; without them the peers would be slower still.
_FAST = ("httptools", "uvloop")


class NotHere(Exception):
    """A candidate that cannot be measured on this machine; the text says why."""


class PeerUnavailable(OrsError):
    """The virtual environment of a foreign server cannot be made."""


@dataclass(frozen=True)
class Candidate:
    """A server to measure."""

    name: str
    #: For tables and charts.
    title: str
    #: The module that the script imports its SDK from; None for a script without one.
    module: str | None
    #: What pip installs for it; nothing for a server that is installed here.
    requirements: tuple[str, ...] = ()
    script: Path = _SCRIPT

    def prepare(self, without: str = "--candidates ours,floor") -> str:
        """Return the Python to run it with; its virtual environment is made if need be.

        Raises ``PeerUnavailable``, whose remedy names ``without``: the options of a run without this candidate.
        """
        return _environment(self.name, self.requirements, without) if self.requirements else sys.executable

    def prepared(self) -> str | None:
        """Return the Python to run it with, if that is already installed."""
        if not self.requirements:
            return sys.executable
        folder = location(_CACHED, self.requirements)
        return str(folder / "bin" / "python") if (folder / "complete").exists() else None

    def command(self, python: str, *arguments: str) -> list[str]:
        """Return the command of its server, less the port and the report's path; ``arguments`` are further ones."""
        return [python, "-P", str(self.script), *([self.module] if self.module else []), *arguments]


OURS = Candidate("ours", "ors-server", "ors_server")
#: The servers of the three SDKs.
SDKS: Sequence[Candidate] = (
    OURS,
    Candidate("ors-sdk", "ors-sdk", "ors", ("ors-sdk==0.1.0", *_FAST)),
    Candidate("openreward", "openreward", "openreward.environments", ("openreward==0.1.167", *_FAST)),
)


def packages(python: str) -> dict[str, str]:
    """Names and versions of the packages that a Python finds."""
    program = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    done = subprocess.run([python, "-P", "-c", program], capture_output=True, text=True, check=True, cwd="/")
    found: dict[str, str] = json.loads(done.stdout)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _environment(name: str, requirements: Sequence[str], without: str) -> str:
    def install(python: Path) -> None:
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *requirements]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    try:
        return str(cached_environment(_CACHED, requirements, install))
    except subprocess.CalledProcessError as error:
        output: str = error.stderr or ""
        reason = next((line for line in output.splitlines() if line.startswith("ERROR")), "see above")
        raise PeerUnavailable(
            f"The virtual environment of {name} cannot be made: {reason}",
            f"pip needs a package index that has it; without one, measure with {without}.",
        ) from None

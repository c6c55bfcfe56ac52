"""Virtual environments of published environments, each made once for one set of requirements and one Python.

The checkout's requirements are installed first and alone. Then the packages that ors-server itself needs are added,
with every version of the first step held fast: the environment runs with the packages that its author chose. The code
of ors-server is not installed, so a new version of it finds the same virtual environment.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import requires
from pathlib import Path

from ors_containers.distribution import DISTRIBUTION
from ors_containers.linux.file_locks import locked
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

import ors_server
from ors_server.checkouts.errors import HostError
from ors_server.checkouts.requirements import Requirements

__all__ = ["Progress", "own_requirements", "provide_virtualenv"]

#: Called with a line that says what is being done now.
Progress = Callable[[str], None]

#: Lines of an installer that show that it goes on.
_STEP = re.compile(r"(Collecting|Downloading|Building|Installing|Resolved|Prepared|Installed|Cloning)\b")
_OURS = "the packages of ors-server"
#: What uv says where there is no such package or version, and requirements do not exclude each other.
_MISSING = re.compile(r"was not found|no versions? of|\bonly \S+ (?:is|are) available")


def provide_virtualenv(name: str, requirements: Requirements, root: Path, progress: Progress) -> Path:
    """Return the Python that has a checkout's requirements; make its virtual environment in ``root`` if missing.

    Raises ``HostError``.
    """
    _check_python(name, requirements)
    ours = own_requirements()
    said = "\0".join((requirements.digest, platform.python_implementation(), platform.python_version(), *ours))
    folder = root / hashlib.sha256(said.encode()).hexdigest()[:16]
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists():
        return python
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f"{folder.name}.lock"):
            if complete.exists():  # another command has made it meanwhile
                return python
            shutil.rmtree(folder, ignore_errors=True)
            installer = _Installer(name, folder, root / f"{folder.name}.log", progress)
            installer.make()
            if requirements.arguments:
                installer.install(requirements.arguments, requirements.source, requirements.folder)
            constraints = folder / "constraints.txt"
            constraints.write_text(installer.installed())
            installer.install(["-c", str(constraints), *ours], None, folder)
            complete.touch()
    except OSError as error:
        raise HostError(
            f"The virtual environment of {name} cannot be made in {root}: {error.strerror or error}",
            "Choose another folder with --data-dir.",
        ) from None
    return python


def own_requirements() -> list[str]:
    """Return the requirements of ors-server itself, without its extras."""
    project = Path(ors_server.__file__).parent.parent / "pyproject.toml"
    if project.is_file():  # a checkout: what is installed of it may be the metadata of an earlier commit
        found = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
    else:
        found = requires(DISTRIBUTION) or []
    return sorted(text for text in found if "extra" not in str(Requirement(text).marker or ""))


def _check_python(name: str, requirements: Requirements) -> None:
    version = platform.python_version()
    try:
        fits = SpecifierSet(requirements.python).contains(version, prereleases=True)
    except InvalidSpecifier:
        return
    if not fits:
        raise HostError(
            f"{name} needs Python {requirements.python}, and ors-server runs on {version}",
            "Install ors-server in a virtual environment of that Python and host it from there.",
        )


class _Installer:
    """``uv`` where it is installed, else ``pip``; the log has its whole output."""

    def __init__(self, name: str, folder: Path, log: Path, progress: Progress) -> None:
        self._name = name
        self._python = folder / "bin" / "python"
        self._folder = folder
        self._log = log
        self._progress = progress
        self._uv = shutil.which("uv")

    def make(self) -> None:
        self._log.write_text("")
        self._progress(f"making the virtual environment {self._folder}")
        if self._uv is not None:
            command = [self._uv, "venv", "--quiet", "--python", sys.executable, str(self._folder)]
        else:
            command = [sys.executable, "-m", "venv", str(self._folder)]
        status, lines = self._run(command, self._folder.parent)
        if status != 0:
            raise HostError(
                f"The virtual environment of {self._name} cannot be made: {' '.join(lines[-3:])}",
                "Install uv, or Python's venv and ensurepip (python3-venv on Debian).",
            )

    def install(self, arguments: Sequence[str], source: Path | None, cwd: Path) -> None:
        """Install packages that ``source`` asks for; None for ors-server itself. Raises ``HostError``."""
        self._progress(f"installing {source or _OURS}")
        if self._uv is not None:
            command = [self._uv, "pip", "install", "--python", str(self._python), *arguments]
        else:
            options = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
            command = [str(self._python), "-m", "pip", "install", *options, *arguments]
        status, lines = self._run(command, cwd)
        if status != 0:
            raise self._failure(lines, source)

    def installed(self) -> str:
        """Return the installed versions as constraints."""
        if self._uv is not None:
            command = [self._uv, "pip", "freeze", "--python", str(self._python)]
        else:
            command = [str(self._python), "-m", "pip", "freeze", "--disable-pip-version-check"]
        frozen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # Paths and repositories are installed already, and constraints may not name them in every form.
        return "".join(f"{line}\n" for line in frozen.splitlines() if re.fullmatch(r"[\w.\-]+==\S+", line))

    def _run(self, command: Sequence[str], cwd: Path) -> tuple[int, list[str]]:
        # An installer that outlived this process would write into a folder that the next command makes again.
        ending = (sys.executable, "-m", "ors_containers.linux.bound_folder", "", "", *command)
        lines: list[str] = []
        with (
            self._log.open("a") as log,
            subprocess.Popen(
                ending, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                lines.append(line.strip())
                if _STEP.match(lines[-1]):
                    self._progress(lines[-1])
        return process.returncode, [line for line in lines if line]

    def _failure(self, lines: Sequence[str], source: Path | None) -> HostError:
        conflict = _conflict(lines)
        missing = _MISSING.search(conflict) is not None
        if source is None:
            return HostError(
                f"The requirements of {self._name} exclude {_OURS}{f': {conflict}' if conflict else ''}",
                f"The installer's messages are in {self._log}.",
            )
        if conflict and not missing:
            return HostError(
                f"The requirements of {self._name} exclude each other: {conflict}",
                f"Correct {source}. The installer's messages are in {self._log}.",
            )
        errors = [line for line in lines if line.lower().startswith(("error", "×", "╰"))] or list(lines[-1:])
        reason = conflict or (re.sub(r"^(ERROR|error): ", "", errors[0]) if errors else "the installer failed")
        return HostError(
            f"The requirements of {self._name} cannot be installed: {reason.rstrip('.')}",
            f"{source} asks for them. The installer's messages are in {self._log}.",
        )


def _conflict(lines: Sequence[str]) -> str:
    """Return why the requirements have no solution, in the words of pip or uv; empty where that is not the reason."""
    for number, line in enumerate(lines):
        if line.startswith("The conflict is caused by:"):
            causes: list[str] = []
            for cause in lines[number + 1 :]:
                if cause.startswith(("To fix this", "Additionally")):
                    break
                causes.append(cause)
            return "; ".join(causes[:6])
    resolution = " ".join(line.lstrip("╰─▶× ") for line in lines)
    found = re.search(r"Because (.+), we can conclude that your requirements are unsatisfiable", resolution)
    reasons = found.group(1) if found else ""
    return reasons.replace(", we can conclude that", ", so").replace(". And because", "; and")

"""Virtual environments for packages that are too large for the project's own, or conflict with it.

They lie outside the clone, in ``${XDG_CACHE_HOME:-~/.cache}/ors-server/<name>-<hash>``. The hash covers the contents of
an environment, the platform and the minor version of Python: a changed requirement makes another environment, and old
ones may be deleted by hand.

This module imports the standard library only: ``scripts/*-venv`` run it before anything is installed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["cached_environment", "location", "pip", "say", "script", "torch_script"]

#: Gets what pip prints. A descriptor: a test's stand-in for ``sys.stderr`` has none.
_STANDARD_ERROR = 2


def location(name: str, content: Sequence[str]) -> Path:
    """Return the folder of the environment made of ``content``, made or not."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = "\n".join([version, sysconfig.get_platform(), *content])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ors-server" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def cached_environment(
    name: str, content: Sequence[str], install: Callable[[Path], None], refresh: Callable[[Path], None] | None = None
) -> Path:
    """Return the Python of an environment, which is made if it is missing or incomplete.

    Args:
        name: The beginning of its folder's name.
        content: Its contents; another text makes another environment.
        install: Installs the contents, given the Python of the new, empty environment.
        refresh: Called with its Python every time, after it is made.

    Raises:
        subprocess.CalledProcessError: Python cannot make it; its output is on stderr.
        Exception: Whatever ``install`` or ``refresh`` raises.
    """
    folder = location(name, content)
    python = folder / "bin" / "python"
    complete = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits, and finds it complete
        if not (complete.exists() and python.exists()):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, stdout=_STANDARD_ERROR)
            install(python)
            complete.write_text("\n".join(content))
        if refresh is not None:
            refresh(python)
    return python


def pip(python: Path, *arguments: str) -> None:
    """Run an environment's pip, its output on stderr. Raises ``CalledProcessError``."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=_STANDARD_ERROR)


def _torch_constraint(python: Path) -> Path:
    """Write pip's constraints for an environment with PyTorch; returns the file.

    They pin the newest build for the CPU (versions that end in "+cpu") that pip can find through ``PIP_FIND_LINKS``,
    ``PIP_EXTRA_INDEX_URL`` or its configuration. Without one pip chooses, which on Linux brings gigabytes of CUDA.
    """
    constraints = python.parent.parent / "constraints.txt"
    build = _cpu_build_of_torch(python)
    if build is None:
        say("pip finds no PyTorch for the CPU: leaving the choice to pip")
        constraints.write_text("")
    else:
        say(f"taking torch {build}")
        constraints.write_text(f"torch=={build}\n")
    return constraints


def _cpu_build_of_torch(python: Path) -> str | None:
    """Return the newest version of PyTorch for the CPU that pip can find, such as 2.9.1+cpu; None without one."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "index", "versions", "torch"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        # `pip index` is marked experimental; without it the plain requirement still installs.
        return None
    available = re.search(r"^Available versions: (.*)$", listed.stdout, re.MULTILINE)  # newest first
    versions = available.group(1).split(", ") if available else []
    return next((version for version in versions if version.endswith("+cpu")), None)


def say(text: str) -> None:
    """Report progress on stderr: stdout is for the path."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {text}\n")


def torch_script(description: str | None, name: str, root: Path, requirements: str, extra: str = "") -> None:
    """Run a script whose environment has PyTorch, a file of requirements and this checkout with an extra.

    Args:
        description: The script's docstring, for ``--help``.
        name: The environment's name.
        root: The checkout.
        requirements: The file of requirements, in the checkout.
        extra: The extra of this project; "" for none.
    """
    file = root / requirements
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    content = [file.read_text(), *project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]

    def install(python: Path) -> None:
        wanted = ["--requirement", str(file), f"{root}[{extra}]" if extra else str(root)]
        pip(python, "install", "-qq", *wanted, "--constraint", str(_torch_constraint(python)))

    script(description, name, content, install)


def script(
    description: str | None,
    name: str,
    content: Sequence[str],
    install: Callable[[Path], None],
    refresh: Callable[[Path], None] | None = None,
) -> None:
    """Run one of ``scripts/*-venv``: print the path of the environment's Python, or the failure."""
    argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    folder = location(name, content)
    new, begun = not (folder / "complete").exists(), time.monotonic()
    if new:
        say(f"making {folder} takes some minutes")
    try:
        python = cached_environment(name, content, install, refresh)
        if new:
            say(f"made it in {time.monotonic() - begun:.0f} s")
        sys.stdout.write(f"{python}\n")
    except subprocess.CalledProcessError as error:
        say(f"could not make {folder}: {error}. Check the network and pip's index, then rerun.")
        sys.exit(1)

"""Virtual environments for what the project's own cannot hold: gigabytes, or versions that shut each other out.

They lie outside the clone, in ``${XDG_CACHE_HOME:-~/.cache}/ors-server/<name>-<hash>``. The hash covers what an
environment is made of, the platform and the minor version of the Python that makes it: a changed requirement makes a
new one, and old ones may be deleted by hand.

Of the standard library only: ``scripts/*-venv`` run it with a Python that has nothing else.
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
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["cached_environment", "location", "pip", "say", "script", "torch_constraint"]


def location(name: str, content: Sequence[str]) -> Path:
    """The folder of the environment made of ``content``, made or not."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = "\n".join([version, sysconfig.get_platform(), *content])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ors-server" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def cached_environment(
    name: str, content: Sequence[str], install: Callable[[Path], None], refresh: Callable[[Path], None] | None = None
) -> Path:
    """The Python of an environment; where it is missing, or was left half made, it is made.

    Args:
        name: What its folder's name begins with.
        content: What it is made of, in words that change when it should be another.
        install: Given the Python of the new, empty environment: installs all that ``content`` says.
        refresh: Called every time, once it is made, with its Python.

    Raises:
        subprocess.CalledProcessError: Python cannot make it; its words are on stderr.
        Exception: Whatever ``install`` or ``refresh`` raises.
    """
    folder = location(name, content)
    python = folder / "bin" / "python"
    complete = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two at once the second waits, and finds it made
        if not (complete.exists() and python.exists()):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, stdout=sys.stderr)
            install(python)
            complete.write_text("\n".join(content))
        if refresh is not None:
            refresh(python)
    return python


def pip(python: Path, *arguments: str) -> None:
    """Run an environment's pip, its words on stderr; raises ``CalledProcessError``."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


def torch_constraint(python: Path) -> Path:
    """Write pip's constraints of an environment that PyTorch goes into; the file.

    PyTorch's build for the CPU is taken where pip is offered one (versions that end in "+cpu"), the newest of them;
    else whatever pip finds, which on Linux brings gigabytes of CUDA. ``PIP_FIND_LINKS``, ``PIP_EXTRA_INDEX_URL`` or
    pip's configuration offer it.
    """
    constraints = python.parent.parent / "constraints.txt"
    build = _cpu_build_of_torch(python)
    if build is None:
        say("pip is offered no PyTorch for the CPU: taking what it finds")
        constraints.write_text("")
    else:
        say(f"taking torch {build}")
        constraints.write_text(f"torch=={build}\n")
    return constraints


def _cpu_build_of_torch(python: Path) -> str | None:
    """The newest version of PyTorch for the CPU that pip is offered, such as 2.9.1+cpu; None where there is none."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "index", "versions", "torch"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        # `pip index` is marked experimental; without it the plain requirement still installs.
        return None
    available = re.search(r"^Available versions: (.*)$", listed.stdout, re.MULTILINE)  # newest first
    versions = available.group(1).split(", ") if available else []
    return next((version for version in versions if version.endswith("+cpu")), None)


def say(text: str) -> None:
    """Report progress where it does not mix with the path on stdout."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {text}\n")


def script(
    description: str | None,
    name: str,
    content: Sequence[str],
    install: Callable[[Path], None],
    refresh: Callable[[Path], None] | None = None,
) -> None:
    """All that one of ``scripts/*-venv`` does: prints the path of the environment's Python, or says what failed."""
    argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    folder = location(name, content)
    if not (folder / "complete").exists():
        say(f"making {folder} takes some minutes")
    try:
        sys.stdout.write(f"{cached_environment(name, content, install, refresh)}\n")
    except subprocess.CalledProcessError as error:
        say(f"could not make {folder}: {error}. Check the network and pip's index, then rerun.")
        sys.exit(1)

"""The Python that trains: the first one at hand with TRL and what our clients need; it may be the server's.

TRL, vLLM and the server's environments may exclude each other, so the trainer is a process of its own. Nothing here
imports PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ors_clients
import ors_containers
from ors_clients.errors import ConfigurationError
from ors_containers.distribution import DISTRIBUTION

import ors_server

__all__ = ["package_path", "trainer_python"]

#: Versions of TRL that the tests train with; ``rollout_func`` is experimental in it.
_TRL = "1.16."
_NEEDED = ("torch", "transformers", "trl", "datasets", "accelerate", "pydantic", "httpx", "rich")
_LOOK = f"""
import importlib.util, json
from importlib.metadata import PackageNotFoundError, version
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({{name: found(name) for name in {(*_NEEDED, DISTRIBUTION)!r}}}))
"""


def trainer_python(named: Path | None) -> Path:
    """Return the Python of the trainer: the one that is named, or else the first at hand that has what it needs.

    Those at hand are that of ``ORS_TRAIN_PYTHON``, this one, and the one that ``scripts/trl-venv`` has made. Raises
    ``ConfigurationError`` with all that is missing, and the command that installs it.
    """
    given = named or (Path(os.environ["ORS_TRAIN_PYTHON"]) if os.environ.get("ORS_TRAIN_PYTHON") else None)
    candidates = [given] if given is not None else [Path(sys.executable), *_made()]
    problems = {python: _problem(python) for python in candidates}
    for python, problem in problems.items():
        if not problem:
            return python
    python, problem = next(iter(problems.items()))
    raise ConfigurationError(
        f"{python} cannot train: {problem}", f"{_install()} Another Python is named by --python or ORS_TRAIN_PYTHON."
    )


def _made() -> Iterator[Path]:
    """Yield the environments of ``scripts/trl-venv``, the newest first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ors-server"
    made = sorted(cache.glob("trl-*/complete"), key=lambda file: file.stat().st_mtime, reverse=True)
    yield from (file.parent / "bin" / "python" for file in made)


def _problem(python: Path) -> str:
    """Return why a Python cannot train; empty where it can."""
    try:
        looked = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({error})"
    if looked.returncode != 0:
        return f"it does not run ({looked.stderr.strip()[-200:]})"
    versions: dict[str, str | None] = json.loads(looked.stdout)
    missing = [name for name in _NEEDED if versions[name] is None]
    if not _checkout() and versions[DISTRIBUTION] is None:
        missing.append(DISTRIBUTION)
    if missing:
        return f"it lacks {', '.join(missing)}"
    trl = versions["trl"] or ""
    return "" if trl.startswith(_TRL) else f"it has TRL {trl}, and {_TRL}* is what the tests train with"


def _checkout() -> Path | None:
    """Return the checkout that runs; None for an installation."""
    root = Path(ors_server.__file__).resolve().parents[1]
    return root if (root / "scripts" / "trl-venv").is_file() else None


def _install() -> str:
    root = _checkout()
    if root is not None:
        return f"Install it beside the server, in an environment of its own: {root / 'scripts' / 'trl-venv'}"
    return "Install it beside ors-server: pip install 'trl>=1.16,<1.17' 'transformers>=5.2' torch"


def package_path() -> str:
    """Return the ``PYTHONPATH`` by which the trainer has the packages of this checkout; empty for an installation."""
    if _checkout() is None:
        return ""
    packages = (ors_server, ors_clients, ors_containers)
    return os.pathsep.join(str(Path(package.__file__ or "").resolve().parents[1]) for package in packages)

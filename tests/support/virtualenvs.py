"""The virtual environments that ``scripts/*-venv`` make, begun as a user begins: with a Python that has no packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

__all__ = ["SCRIPTS", "made_by", "run_bare"]

#: The scripts by their names.
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*-venv"))
#: The Python behind this virtual environment's link, without the packages of its own installation.
_BARE_PYTHON = (os.path.realpath(sys.executable), "-S")


def run_bare(script: str, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a script with a bare Python."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    command = [*_BARE_PYTHON, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=variables)


def made_by(script: str) -> Path:
    """Return the Python of the virtual environment that a script makes; the first run of a machine downloads it."""
    made = run_bare(script, timeout=3600.0)
    if made.returncode != 0:
        pytest.fail(made.stderr)
    return Path(made.stdout.strip())

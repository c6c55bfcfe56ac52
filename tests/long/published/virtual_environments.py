"""The virtual environment of a published environment: its ``requirements.txt``, and this project.

    python -m tests.long.published.virtual_environments FOLDER…

They lie outside of the clone (``ors_benchmarks.harness.virtualenvs``), one for each set of requirements, because those
of different environments exclude each other.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from ors_benchmarks.harness.virtualenvs import cached_environment, pip

from tests.support.paths import ROOT

__all__ = ["python_of"]


def python_of(folder: Path) -> Path:
    """Return the Python that runs the environment in ``folder``; create its virtual environment if missing.

    Raises ``subprocess.CalledProcessError`` where pip cannot install the requirements.
    """
    wanted = sorted(set((folder / "requirements.txt").read_text().split("\n")) - {""})
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    def install(python: Path) -> None:
        pip(python, "install", "-qq", "--no-compile", *wanted, str(ROOT))

    return cached_environment("published", [*wanted, *project], install)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(f"{name}\t{python_of(Path(name))}\n")
        sys.stdout.flush()

"""A Debian with git and pytest: the base of the images that hosted environments name."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_benchmarks.harness import debian

__all__ = ["debian_root"]


def debian_root(folder: Path) -> Path:
    """Return a folder with a root file system, made in ``folder`` where the machine has none. May skip the test."""
    try:
        return debian.debian_root(folder)
    except debian.NoDebian as error:
        pytest.skip(str(error))

"""The layer of what a verifier fetched: what is kept of it.

A run of the tests writes more than programs: their results, files of the task, temporary ones. Only what can be its
toolchain is kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_containers.layers.ownership import LayerOwners

__all__ = ["keep_toolchain"]

#: Folders whose content no later run needs.
_DROPPED = ("logs", "tests", "tmp", "var/tmp", "var/log", "run", "proc", "sys", "dev")
#: Names of a task's folder that hold programs, beside those that begin with a dot.
_PROGRAMS = ("node_modules", "venv")


async def keep_toolchain(owners: LayerOwners, layer: Path, work: str) -> None:
    """Remove from a layer of a run what is not its toolchain; ``work`` is the task's folder. Raises ``OSError``."""
    gone = [layer / path for path in _DROPPED]
    folder = layer / work.strip("/")
    if work.strip("/") and folder.is_dir() and not folder.is_symlink():
        names = os.listdir(folder)  # noqa: PTH208 - names that are not UTF-8 stay as they are
        gone += [folder / name for name in names if not name.startswith(".") and name not in _PROGRAMS]
    for path in gone:
        if path.is_dir() and not path.is_symlink():
            await owners.remove(path)
        else:
            path.unlink(missing_ok=True)

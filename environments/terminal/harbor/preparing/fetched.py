"""The layer of what a verifier fetched: what is kept of it, and what it keeps out of an agent's files.

A run of the tests writes more than programs: their results, files of the task, temporary ones. Only what can be its
toolchain is kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ors_containers import Image

from ..playing.agent_files import ALWAYS_KEPT_OUT
from ..record import KeptOut

if TYPE_CHECKING:
    from ors_containers.layers.ownership import LayerOwners

__all__ = ["keep_toolchain", "kept_out_by"]

#: Folders with programs and what they read at their start.
_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt"),
    *("/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt"),
)
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


def kept_out_by(layer: Path | None, image: Image, work: str) -> KeptOut:
    """Return what a verifier with this layer does not see of an agent's files."""
    made = [] if layer is None else _made(layer, "", image.layers, work.strip("/"))
    homes = [home for home in dict.fromkeys(("/root", image.home)) if home.strip("/")]
    return KeptOut((*ALWAYS_KEPT_OUT, *_SYSTEM, *made), tuple(homes), work if work.strip("/") else "")


def _made(layer: Path, path: str, below: Sequence[Path], work: str) -> list[str]:
    """Return the folders of a layer that the layers ``below`` lack."""
    from ors_containers.layers.tree import LayeredTree

    tree = LayeredTree(below)
    found: list[str] = []
    for entry in os.scandir(layer / path):
        inside = f"{path}/{entry.name}".strip("/")
        if not entry.is_dir(follow_symlinks=False) or f"/{inside}" in _SYSTEM:
            continue
        there = tree.find(inside)
        is_folder = there is not None and stat.S_ISDIR(there.status.st_mode)
        if is_folder or work == inside or work.startswith(f"{inside}/"):
            found += _made(layer, inside, below, work)
        else:
            found.append(f"/{inside}")
    return sorted(found)

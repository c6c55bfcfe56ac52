"""The folders of Harbor tasks below a folder: one task, a folder of tasks, and the cache of ``harbor``.

The cache of downloads, ``~/.cache/harbor/tasks``, has ``packages/ORGANISATION/NAME/DIGEST`` for packages and
``ID/NAME`` for tasks of a repository. Nothing else is searched: a checkout has thousands of folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .files import exists
from .folder import CONFIG

__all__ = ["FoundFolder", "find_harbor_folders", "is_harbor_folder"]

_PACKAGES = "packages"
#: The name of the cache's folder of tasks.
_TASKS = "tasks"
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: A short UUID, which stands for a repository, a commit and a path.
_ID = re.compile(r"[2-9A-HJ-NP-Za-km-z]{22}")


@dataclass(frozen=True)
class FoundFolder:
    """A task's folder, and the package's name that its place in the cache gives; empty elsewhere."""

    folder: Path
    package: str = ""


def is_harbor_folder(folder: Path) -> bool:
    """Return whether a folder is meant to be a Harbor task."""
    return folder.is_dir() and (exists(folder / CONFIG) or _misspelt(folder))


def find_harbor_folders(parent: Path) -> Iterator[FoundFolder]:
    """Yield the tasks' folders: the folder itself, those in it, and those of a cache in it; sorted by their names."""
    if is_harbor_folder(parent):
        yield FoundFolder(parent)
        return
    for folder in _folders(parent):
        if is_harbor_folder(folder):
            yield FoundFolder(folder)
        elif folder.name == _TASKS:
            yield from _cached(folder)
    yield from _cached(parent)


def _cached(tasks: Path) -> Iterator[FoundFolder]:
    """Yield the tasks of a cache's folder."""
    for folder in _folders(tasks):
        if _ID.fullmatch(folder.name) and not is_harbor_folder(folder):
            yield from (FoundFolder(task) for task in _folders(folder) if is_harbor_folder(task))
    for organisation in _folders(tasks / _PACKAGES):
        for package in _folders(organisation):
            for version in _folders(package):
                if _DIGEST.fullmatch(version.name) and is_harbor_folder(version):
                    yield FoundFolder(version, f"{organisation.name}/{package.name}")


def _folders(parent: Path) -> list[Path]:
    """Return the folders in a folder; none where it cannot be read."""
    try:
        return sorted(path for path in parent.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError:
        return []


def _misspelt(folder: Path) -> bool:
    """Return whether a folder has a file whose name differs from that of a task's settings only in case."""
    try:
        return any(path.name.casefold() == CONFIG for path in folder.iterdir())
    except OSError:
        return False

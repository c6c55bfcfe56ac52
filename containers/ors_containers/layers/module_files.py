"""Files of a layer that a Python would take for modules, or for a distribution's, if a folder were on its path.

A Python that runs with ``-m`` or ``-c`` looks for every module in its working folder first, also for its own: a file
``json.py`` there is imported by whatever imports ``json``. Names that nothing has, as of optional modules, are looked
for there as well, so the name does not tell which files matter.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ors_containers.errors import InvalidArchive
from ors_containers.layers.tree import LayeredTree, entries_of, status_of

__all__ = ["added_modules", "is_of_distribution"]

#: Ends of a module's name: its source, compiled, and a library.
_MODULES = (".py", ".pyc", ".so")
#: Ends of the names of a distribution's files, which may name modules that are imported at once (``pytest11``).
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".egg", ".egg-link")


def added_modules(layer: Path, folder: str, below: LayeredTree) -> Iterator[str]:
    """Yield the paths below ``folder`` of modules and distributions that ``layer`` has and the layers ``below`` lack.

    Paths are relative to the root. An added link that leads to a folder is one of them: it could be a package. Not
    looked at are places that no name of a module leads to, as those below ``my-data`` or ``.git``. Raises ``OSError``.
    """
    whole = below.under(layer)
    waiting = [folder.strip("/")]
    while waiting:
        above = waiting.pop()
        status = status_of(layer / above)
        if status is None or not stat.S_ISDIR(status.st_mode):
            continue
        for entry in entries_of(layer / above):
            path = f"{above}/{entry.name}".lstrip("/")
            is_distribution = is_of_distribution(entry.name)
            name, *rest = entry.name.split(".", 1)
            if not is_distribution and not name.isidentifier():
                continue
            is_module = is_distribution or entry.name.endswith(_MODULES)
            if entry.is_dir(follow_symlinks=False):
                if is_distribution and below.kind(path) != stat.S_IFDIR:
                    yield path
                elif not rest:
                    waiting.append(path)
            elif entry.is_symlink():
                is_code = is_module or (not rest and _leads_to_folder(whole, path))
                if is_code and below.kind(path) != stat.S_IFLNK:
                    yield path
            elif is_module and entry.is_file(follow_symlinks=False) and below.kind(path) != stat.S_IFREG:
                yield path


def is_of_distribution(path: str) -> bool:
    """Return whether a path is that of a distribution's folder or file, or of a file in one."""
    return any(name.lower().endswith(_DISTRIBUTIONS) for name in path.split("/"))


def _leads_to_folder(whole: LayeredTree, link: str) -> bool:
    try:
        return whole.kind(whole.resolve(link, last=True)) == stat.S_IFDIR
    except InvalidArchive:
        return False  # it leads nowhere

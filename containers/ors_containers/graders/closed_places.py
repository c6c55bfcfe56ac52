"""Places of a sandbox that its agent cannot have changed.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import closed_places``).
"""

from __future__ import annotations

import os
import time

__all__ = ["is_closed"]


def is_closed(path: str) -> bool:
    """Return whether an existing path, and every link and folder on the way to it, is not the agent's to change.

    Root can change every folder. Of its files, those are not the agent's that nothing has changed since the sandbox
    began: the kernel alone sets the time of a change.
    """
    real = os.path.realpath(path)
    if os.getuid() == 0:
        return _is_old(real)
    return _is_foreign(real) and all(_is_foreign(folder) for folder in _folders(path))


def _folders(path: str) -> set[str]:
    """Return the folders, without links, in which the parts of a path and the links among them lie."""
    found = set[str]()
    waiting = [path]
    for _ in range(200):
        if not waiting:
            return found
        place = "/"
        for part in waiting.pop().split("/"):
            if part in ("", "."):
                continue
            found.add(place)
            if part == "..":
                place = os.path.dirname(place)  # noqa: PTH120
                continue
            place = f"{place.rstrip('/')}/{part}"
            if os.path.islink(place):  # noqa: PTH114
                waiting.append(os.path.join(os.path.dirname(place), os.readlink(place)))  # noqa: PTH115, PTH118, PTH120
                place = os.path.realpath(place)
    return found | {""}  # too many links: the empty path is not foreign


def _is_foreign(path: str) -> bool:
    """Return whether a file or folder belongs to another user, and this user cannot write to it."""
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return True
        return os.stat(path).st_uid != os.getuid() and not os.access(path, os.W_OK)  # noqa: PTH116
    except OSError:
        return False


def _is_old(path: str) -> bool:
    try:
        with open("/proc/1/stat") as file:  # noqa: PTH123
            ticks = int(file.read().rpartition(")")[2].split()[19])
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
        return os.stat(path).st_ctime < started  # noqa: PTH116
    except (OSError, ValueError, IndexError):
        return False

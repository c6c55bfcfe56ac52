"""The files that an agent left, without those that a verifier would run or read as configuration.

An agent that was root may have replaced the verifier's programs, their libraries and what they read at their start. The
verifier has these from its image and from the prepared layer: the agent's versions are removed from a copy of what it
has written, with added files beside them and with its deletions of them.

Invariant: the task's own folder is the agent's, wherever it lies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path, PurePosixPath

from ..record import KeptOut

__all__ = ["ALWAYS_KEPT_OUT", "SHELL_STATE", "leave_out", "remove_shell_state"]

#: Folders of Harbor's own, of which a verifier sees nothing that an agent wrote.
ALWAYS_KEPT_OUT = ("/tests", "/solution", "/logs/verifier")
#: The file in which the tools' shell keeps its directory and variables from one command to the next.
SHELL_STATE = "/tmp/.shell-state"  # noqa: S108 - of the container
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


def remove_shell_state(changes: Path) -> None:
    """Remove the file of the tools' shell from a layer of an agent's files: the agent has not made it."""
    place = changes / SHELL_STATE.strip("/")
    if not place.parent.is_symlink():
        with contextlib.suppress(OSError):  # there is none, or the agent has put something else there
            place.unlink()


def leave_out(changes: Path, kept_out: KeptOut) -> None:
    """Remove from a layer of an agent's files what its verifier does not see. Raises ``OSError``."""
    work = kept_out.work.strip("/")
    for path in kept_out.paths:
        _remove(changes, path.strip("/"), work)
    for home in kept_out.homes:
        folder = _folder_at(changes, home.strip("/"))
        for entry in _names(folder) if folder is not None else ():
            if entry.startswith("."):
                _remove(changes, f"{home.strip('/')}/{entry}".strip("/"), work)
    if kept_out.paths:
        # What begins at the root of the tests' path, as a pytest.ini, is read from there.
        for entry in _names(changes):
            if not stat.S_ISDIR((changes / entry).lstat().st_mode):
                _remove(changes, entry, work)


def _remove(changes: Path, path: str, work: str) -> None:
    """Remove ``path`` with all below it, except for the folder ``work``."""
    folder = _folder_at(changes, str(PurePosixPath(path).parent))
    place = None if folder is None else folder / PurePosixPath(path).name
    if place is None or not os.path.lexists(place):
        return
    if not stat.S_ISDIR(place.lstat().st_mode):
        place.unlink()
    elif work and (work == path or work.startswith(f"{path}/")):
        _clear_opaque(place)
        for entry in _names(place) if work != path else ():
            _remove(changes, f"{path}/{entry}", work)
    else:
        shutil.rmtree(place)


def _folder_at(changes: Path, path: str) -> Path | None:
    """Return the folder of a layer at a path, if the layer has one.

    What is on the way to it and is not a folder is removed, and no folder on the way hides what lies below the layer.
    """
    place = changes
    for part in PurePosixPath(path).parts if path != "." else ():
        place /= part
        if not os.path.lexists(place):
            return None
        if not stat.S_ISDIR(place.lstat().st_mode):
            place.unlink()
            return None
        _clear_opaque(place)
    return place


def _clear_opaque(folder: Path) -> None:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):  # it has none
            os.removexattr(folder, name)


def _names(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - names that are not UTF-8 stay as they are

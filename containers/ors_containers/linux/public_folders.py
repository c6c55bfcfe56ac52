"""Folders that the processes of sandboxes have to reach."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["make_folder"]


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Create a folder that has at least this mode, whatever the server's umask is, and that no other user can write.

    One of this user's that is there gets the bits that it lacks: a server with a closed umask may have made it. Those
    above it that are missing are made as the umask has it. Raises ``OSError``.
    """
    if not path.is_dir():
        for folder in reversed(path.parents):
            folder.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=mode, exist_ok=True)
    found = path.lstat()  # not what a link leads to: in /tmp, another user may have made it
    if stat.S_ISDIR(found.st_mode) and found.st_mode & mode != mode and found.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(found.st_mode) | mode)

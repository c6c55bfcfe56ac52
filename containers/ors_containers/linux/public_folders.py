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
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=mode if folder == path else 0o755, exist_ok=True)
    found = path.stat()
    if found.st_mode & mode != mode and found.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(found.st_mode) | mode)

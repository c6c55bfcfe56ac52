"""The folder in which a server keeps results until they are fetched.

A server that stops removes its folder. The folder of a server that was killed is removed by the next server that
creates one: the lock on the folder tells that its server is dead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from ors_containers.linux.file_locks import try_lock, try_locked

__all__ = ["ResultFolder"]

_PREFIX = "ors-server-results-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ResultFolder:
    """A new folder of this process alone. Raises ``OSError`` where it cannot be created."""

    def __init__(self) -> None:
        _remove_folders_of_dead_servers()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = os.open(self.path, _FOLDER)
            except FileNotFoundError:
                continue  # a server that started at the same time took it for a dead server's, and removed it
            try:
                is_ours = try_lock(self._lock)
            except OSError:
                return  # a file system without locks: no other server can lock the folder, so none removes it
            with contextlib.suppress(FileNotFoundError):
                if is_ours and os.path.samestat(self.path.stat(), os.fstat(self._lock)):
                    return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder and everything in it. Call it once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_folders_of_dead_servers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), try_locked(folder, _FOLDER) as is_dead:  # another user's, or just removed
            if is_dead:
                shutil.rmtree(folder, ignore_errors=True)

"""The folder in which a server keeps results that nobody has fetched, and its end.

A server that ends removes its folder; that of one that was killed is removed by the next server that makes one. Whether
its server lives is told by a lock on the folder, which the kernel releases when the process ends, however it ends. A
process id would not do: containers may share the folder for temporary files and not their process ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["ResultFolder"]

_PREFIX = "ors-server-results-"


class ResultFolder:
    """A new folder of this process alone. Raises ``OSError`` where it cannot be made."""

    def __init__(self) -> None:
        _remove_those_of_dead_servers()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = _open(self.path)
            except FileNotFoundError:
                continue  # another server came between, and took it for a dead one's
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                continue  # another server looks at it
            except OSError:
                return  # a file system without locks: nobody else can lock it either, and nobody removes it
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self.path.stat(), os.fstat(self._lock)):
                    return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove it with all that is in it. To be called once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_those_of_dead_servers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or removed meanwhile
            lock = _open(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)

"""The folder and the files in which a server keeps results until they are fetched.

A server that stops removes its folder. The folder of a server that was killed is removed by the next server that
creates one: the kernel has released the lock on the folder. A process id would not do: containers may share the folder
for temporary files and not their process ids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ors_containers.linux.file_locks import try_lock, try_locked

__all__ = ["ResultFile", "ResultFolder", "StoredResult"]

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


class ResultFile:
    """A batch of results on disk; the file is removed with the last of them."""

    __slots__ = ("_left", "path")

    def __init__(self, path: Path, contents: Sequence[bytes]) -> None:
        """Write the results in one go: a file each would wait for the interpreter each time. Raises ``OSError``."""
        self.path = path
        self._left = len(contents)
        rest = [memoryview(content) for content in contents]
        try:
            with path.open("xb", buffering=0) as file:
                while rest:
                    written = os.writev(file.fileno(), rest)
                    while rest and written >= len(rest[0]):
                        written -= len(rest.pop(0))
                    if rest:
                        rest[0] = rest[0][written:]
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def retain(self, times: int = 1) -> None:
        """Keep the file until ``release`` was called so many times more."""
        self._left += times

    def release(self, times: int = 1) -> None:
        """Drop one of the results, or end a ``retain``."""
        self._left -= times
        if not self._left:
            with contextlib.suppress(OSError):
                self.path.unlink()


class StoredResult(NamedTuple):
    """A result's position in a file, in bytes."""

    file: ResultFile
    offset: int
    size: int

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """Return the result, or at most ``size`` bytes of it from ``start``. Raises ``OSError``."""
        size = min(self.size - start, self.size if size is None else size)
        with self.file.path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), size, self.offset + start)
        if len(content) != size:
            raise OSError(f"{self.file.path} has become shorter")
        return content

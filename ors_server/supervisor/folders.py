"""The folder of a server's sockets, and the removal of those that killed servers have left.

A supervisor holds its folder's lock while it lives, and a worker that of a file beside its socket. Workers go on where
their supervisor is killed: a folder is left only once all of these locks are free.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from ors_containers.linux.file_locks import try_lock, try_locked

__all__ = ["own_folder"]

_PREFIX = "ors-server-run-"
#: Seconds for which a new folder may be without a lock.
_NEW = 60.0


@contextlib.contextmanager
def own_folder() -> Generator[Path]:
    """Make a folder that exists while the block runs. Raises ``OSError``."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed by another server meanwhile
            _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try_lock(descriptor)
            yield Path(name)
        finally:
            os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    status = folder.lstat()
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _NEW:
        return
    with contextlib.ExitStack() as stack:
        flags = os.O_RDONLY | os.O_NOFOLLOW
        if not stack.enter_context(try_locked(folder, flags | os.O_DIRECTORY)):
            return
        if all(stack.enter_context(try_locked(lock, flags)) for lock in folder.glob("*.lock")):
            shutil.rmtree(folder)

"""The folder of a server's sockets, and the removal of those that killed servers have left.

A supervisor holds its folder's lock while it lives, and a worker that of a file beside its socket, which is below that
folder. Workers go on where their supervisor is killed: a folder is left only once all of these locks are free. Ages say
nothing: a clock may jump.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from ors_containers.linux.file_locks import try_lock, try_locked

__all__ = ["own_folder"]

_PREFIX = "ors-server-run-"


@contextlib.contextmanager
def own_folder() -> Generator[Path]:
    """Make a folder that exists while the block runs. Raises ``OSError``."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed by another server meanwhile
            _remove_if_left(left)
    path, descriptor = _make_folder()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _make_folder() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # A server that starts at the same time may take the folder for a left one until it is locked, and remove it.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                is_ours = try_lock(descriptor)
            except OSError:
                return path, descriptor  # a file system without locks: no other server can lock it, so none removes it
            with contextlib.suppress(FileNotFoundError):
                if is_ours and os.path.samestat(path.stat(), os.fstat(descriptor)):
                    return path, descriptor
            os.close(descriptor)


def _remove_if_left(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    with contextlib.ExitStack() as stack:
        flags = os.O_RDONLY | os.O_NOFOLLOW
        if not stack.enter_context(try_locked(folder, flags | os.O_DIRECTORY)):
            return
        if all(stack.enter_context(try_locked(lock, flags)) for lock in folder.rglob("*.lock")):
            shutil.rmtree(folder)

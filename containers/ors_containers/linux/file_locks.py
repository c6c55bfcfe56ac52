"""Advisory file locks (``flock``), which the kernel releases when their holder ends, however it ends.

A lock therefore tells whether the process that took it still lives. A process id would not: containers may share a
folder without sharing process ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

__all__ = ["create_lock", "locked", "try_lock", "try_locked"]


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file or folder unless it is held; return whether it was free.

    Raises ``OSError`` on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def create_lock(path: Path) -> int | None:
    """Create a lock file and lock it; the descriptor holds the lock until it is closed.

    Returns None where another process holds the lock, or removed the file before it was locked. Raises ``OSError``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The lock of a removed file protects nothing: the next process creates a new file.
        if try_lock(descriptor) and os.fstat(descriptor).st_nlink:
            return descriptor
    except BaseException:  # the descriptor must not leak, whatever it is
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


@contextlib.contextmanager
def try_locked(path: Path, flags: int = os.O_RDWR) -> Generator[bool]:
    """Hold the exclusive lock of an existing file or folder in this block unless it is held; yield whether it was free.

    ``flags`` open it: NFS locks only files that are open for writing. Raises ``OSError`` where it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Generator[None]:
    """Wait for the lock of a file, which is created where it is missing, and hold it in this block."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

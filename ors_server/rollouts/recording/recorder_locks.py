"""Locks of the processes that record sessions: those with the same data directory know at once which have died.

Each process holds a lock on a file with its recorder's name, which the kernel releases when the process ends, however
it ends. Without a lock the others know only that it is silent (``record_rows``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["dead_recorders", "forget_recorders", "hold"]

_FOLDER = "recorders"
#: How the name of a file begins until its process has the lock.
_NEW = ".new-"


def hold(folder: Path, recorder: str) -> int | None:
    """Lock the file of a recorder below a data directory; return its descriptor, None where that is impossible."""
    descriptor = None
    new = folder / _FOLDER / f"{_NEW}{recorder}"
    try:
        new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(new.with_name(recorder))
    except (OSError, ValueError):
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def dead_recorders(folder: Path) -> list[str]:
    """Return the recorders whose locks are free: their processes have died."""
    try:
        files = list((folder / _FOLDER).iterdir())
    except OSError:
        return []
    return [file.name for file in files if not file.name.startswith(_NEW) and _is_free(file)]


def forget_recorders(folder: Path, recorders: Iterable[str]) -> None:
    """Remove the files of recorders: their sessions are marked, or they have ended in order."""
    for recorder in recorders:
        with contextlib.suppress(OSError):
            (folder / _FOLDER / recorder).unlink()


def _is_free(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True

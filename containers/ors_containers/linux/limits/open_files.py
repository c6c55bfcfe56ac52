"""Open files of sandboxes: their sum fits ``fs.file-max``, the kernel's bound for the whole machine.

Where that bound is reached, every process without ``CAP_SYS_ADMIN`` gets ENFILE, graders of other sandboxes among them.
A control group counts no open files, but the memory that each of them costs the kernel. So there are two ways:

- a server that is root, with control groups of memory, raises the bound to the largest number, as systemd does at boot:
  then the memory of each sandbox bounds its files;
- elsewhere a sandbox reserves what its processes may open together, and admission (``scheduling``) keeps the sum within
  the bound. Each process may then open fewer files, so that more than a few sandboxes fit.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ors_containers.linux import kernel_files

__all__ = ["OPEN_FILES", "FileLimit", "files_for_sandboxes", "limit_files", "raise_file_max", "share_of_sandboxes"]

#: Open files of each process, where the machine has enough.
OPEN_FILES = 4096
CONTAINER_OPEN_FILES = 65536
_FILE_MAX = Path("/proc/sys/fs/file-max")
#: Above this number the bound is none: no machine has memory for as many files.
_PLENTY = 1 << 40
_LARGEST = (1 << 63) - 1
#: Sandboxes that fit at least, where their processes can do with ``_FEW`` files each.
_AT_ONCE = 16
_FEW = 256
#: A shell needs some.
_LEAST = 16


def raise_file_max(file: Path = _FILE_MAX) -> bool:
    """Raise the bound where this process is root and may; return whether it is as good as none now."""
    if _read(file) < _PLENTY and os.geteuid() == 0:
        try:
            file.write_text(str(_LARGEST))
        except OSError:
            return False  # a container whose /proc/sys is read-only
        _available_in.cache_clear()
    return _read(file) >= _PLENTY


def files_for_sandboxes(file: Path = _FILE_MAX) -> int:
    """Return how many files all sandboxes may have open together; an eighth is left to the rest of the machine."""
    return share_of_sandboxes(_read(file))


def share_of_sandboxes(bound: int) -> int:
    """Return how many of the machine's open files are for sandboxes."""
    return bound // 8 * 7


@lru_cache(maxsize=1)
def _available_in(second: int) -> int:
    """Return what ``files_for_sandboxes`` does, read once a second: each start of a sandbox asks three times."""
    return files_for_sandboxes()


class FileLimit(NamedTuple):
    """The number of files that one sandbox may open."""

    #: Of each process.
    each: int
    #: Of all of them, those of an examination included.
    total: int


def limit_files(pids: int, *, container: bool = False, available: int | None = None) -> FileLimit:
    """Return the limit for a sandbox of at most ``pids`` processes.

    ``available`` is that of ``files_for_sandboxes``.
    """
    available = _available_in(int(time.monotonic())) if available is None else available
    # An examination has its own limit of processes; a container has none, and its sidecars share its limit.
    most, processes = (CONTAINER_OPEN_FILES, pids) if container else (OPEN_FILES, 2 * pids)
    each = most
    if available < _PLENTY // 8 * 7:
        each = max(_LEAST, min(most, max(available // _AT_ONCE // processes, min(_FEW, available // processes))))
    return FileLimit(each, each * processes)


def _read(file: Path) -> int:
    try:
        return int(kernel_files.read(str(file)))
    except (OSError, ValueError):
        return _LARGEST

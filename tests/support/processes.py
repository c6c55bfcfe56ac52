"""Processes of this machine, as tests look for them, and the open descriptors of this one.

A process can end between any two looks at its files, so each function takes one that has ended for what it is and
raises nothing. `scripts/check-timings` refuses tests that read these files themselves.
"""

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["children", "command_line", "is_alive", "open_descriptors", "parent", "processes"]


def processes(are_meant: Callable[[bytes], object], file: str = "cmdline") -> list[int]:
    """Return the processes, in order, whose arguments (or ``environ``) a condition accepts."""
    found = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return sorted(process for process in found if are_meant(_read(process, file)))


def children(process: int) -> list[int]:
    """Return the children of all threads of a process; none of one that has ended."""
    lists = (_read(process, f"task/{thread}/children") for thread in _threads(process))
    return sorted(int(child) for found in lists for child in found.split())


def command_line(process: int | str) -> bytes:
    """Return a process's arguments, each ended by a zero byte; nothing for a zombie or one that has ended."""
    return _read(process, "cmdline")


def is_alive(process: int | str) -> bool:
    """Return whether a process runs: one that has ended and was not waited for yet does not."""
    return _fields(process)[0] not in {b"", b"Z"}


def open_descriptors() -> set[str]:
    """Return the numbers of this process's open descriptors, that of the listing itself among them."""
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are wanted, no paths


def parent(process: int | str) -> int:
    """Return a process's parent, or 0 for one that has ended."""
    return int(_fields(process)[1])


def _threads(process: int) -> list[str]:
    try:
        return [folder.name for folder in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []


def _fields(process: int | str) -> list[bytes]:
    return _read(process, "stat").rpartition(b")")[2].split() or [b"", b"0"]


def _read(process: int | str, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""

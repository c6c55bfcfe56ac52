"""End the processes that programs of an examination have left running.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import
stray_processes``).

``adopt`` makes this process the subreaper of its descendants, so that orphans become its children. ``end`` kills them.
A process that forks and exits at once can escape a list of processes read one by one. But each of its predecessors
stays as a zombie of this process, which reaps none: if two looks in a row find no living descendant and the same
zombies, none is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection

__all__ = ["adopt", "end"]

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds in which processes that were killed must have ended.
_PATIENCE = 10.0
#: Looks after which every process is stopped in one system call, which no fork can outrun.
_LOOKS = 5


def adopt() -> None:
    """Become the parent of every descendant whose own parent ends. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def end(kept: Collection[int] = ()) -> None:
    """Kill every descendant of this process and wait until they have ended. Raises ``TimeoutError``.

    ``kept``: halves (``process_isolation.ProcessIsolation``) whose programs go on, with their descendants.
    """
    deadline = time.monotonic() + _PATIENCE
    kill = ctypes.CDLL(None).kill  # without `os.kill`'s audit event, which a test's program would see
    looks, before = 0, None
    while True:
        alive, dead = _look(kept)
        if alive == 0 and dead == before:
            return
        before, looks = dead, looks + 1
        if looks > _LOOKS:
            kill(-1, int(signal.SIGSTOP))
            try:
                _look(kept)
            finally:
                kill(-1, int(signal.SIGCONT))
        if alive:
            time.sleep(0.001)
        if time.monotonic() > deadline:
            raise TimeoutError("programs that were started do not end")


def _look(kept: Collection[int]) -> tuple[int, frozenset[int]]:
    """Kill the descendants; return how many were alive, and which are zombies."""
    parents: dict[int, int] = {}
    states: dict[int, bool] = {}
    places: dict[int, int] = {}
    try:
        for name in os.listdir("/proc"):  # noqa: PTH208 - names are enough
            if name.isdigit():
                try:
                    # Through its folder: the id may be another process's by the time of the signal.
                    place = os.open(f"/proc/{name}", os.O_RDONLY | os.O_DIRECTORY)
                except OSError:
                    continue
                places[int(name)] = place
                try:
                    parents[int(name)], states[int(name)] = _status(place)
                except OSError:
                    continue
        alive, dead = 0, set[int]()
        for process in parents:
            if process == os.getpid() or not _descends(process, parents):
                continue
            if not states[process]:
                dead.add(process)
            elif not (kept and _half(places[process]) in kept):
                alive += 1
                try:
                    signal.pidfd_send_signal(places[process], signal.SIGKILL)
                except OSError:
                    continue
        return alive, frozenset(dead)
    finally:
        for place in places.values():
            os.close(place)


def _status(place: int) -> tuple[int, bool]:
    """Return the parent of a process, and whether it is alive, which a process in state Z with more threads is."""
    fields = _read(place, "stat").rpartition(")")[2].split()
    return int(fields[1]), fields[0] not in "ZX" or int(fields[17]) > 1


def _descends(process: int, parents: dict[int, int]) -> bool:
    own = os.getpid()
    while process in parents and process != own:
        process = parents[process]
    return process == own


def _half(place: int) -> int:
    try:
        lines = _read(place, "status").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:")), 0)


def _read(place: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY, dir_fd=place)
    with os.fdopen(descriptor, errors="replace") as file:
        return file.read()

"""Leases: records of the processes and control groups of a server, from which another server can free them.

A server is an *owner*: a directory with a lock that the kernel releases when the process ends. A sandbox is a *lease*:
a file in that directory, written before anything of the sandbox exists and removed after everything of it is gone.
``sweep`` tries the lock of every owner. Where the lock is free, the server is dead, and ``sweep`` kills and removes
what its leases name. Processes, mounts and network namespaces of a sandbox end with its process 1, which ends with the
launcher, which ends with the server. Control groups and files outlive them, and ``sweep`` checks for all of these.

Invariants: ``sweep`` touches only what a lease of a dead owner names. A process is signalled only when its start time
and boot are the recorded ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import stat
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ors_containers.errors import RuntimeUnavailable
from ors_containers.linux import kernel_files
from ors_containers.linux.file_locks import create_lock, try_locked
from ors_containers.linux.limits.cgroups import remove_group
from ors_containers.linux.limits.proc_stat import process_status
from ors_containers.linux.public_folders import make_folder

__all__ = ["Owner", "make_state", "state_directory", "sweep"]

_LOCK = "lock"
_OWNER = "owner.json"
_SUFFIX = ".lease"
#: Seconds after which an owner's directory without a lock file counts as left by a server killed while creating it.
_UNFINISHED = 60.0


def state_directory() -> Path:
    """Return the directory of the owners: one for all servers of a user, emptied when the machine boots.

    Raises ``RuntimeUnavailable`` where another user owns it or can write to it.
    """
    user = os.geteuid()
    if user == 0:
        directory = Path("/run/ors-containers")
    elif (runtime := os.environ.get("XDG_RUNTIME_DIR")) and os.access(runtime, os.W_OK):
        directory = Path(runtime, "ors-containers")
    else:
        directory = Path(f"/tmp/ors-containers-{user}")  # noqa: S108 - its owner is checked below
    try:
        make_folder(directory)
    except OSError as error:
        raise RuntimeUnavailable(f"{directory} cannot be made: {error.strerror}") from error
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise RuntimeUnavailable(
            f"{directory} is not this user's alone", f"Remove it, or as its owner: chmod 755 {directory}"
        )
    return directory


def make_state(directory: Path) -> None:
    """Create the directories that all servers with this state ``directory`` share."""
    for folder in (directory, *(directory / name for name in ("owners", "stage", "images"))):
        make_folder(folder)


class Owner:
    """The server's directory of leases, and the lock on it."""

    def __init__(self, state: Path) -> None:
        while True:
            self.id = secrets.token_hex(4)
            self._directory = state / "owners" / self.id
            self._path = str(self._directory)  # of each sandbox's lease: Path takes longer
            self._directory.mkdir(mode=0o700)
            # Another server's sweep may find the directory before it is locked, and remove it.
            with contextlib.suppress(FileNotFoundError):
                lock = create_lock(self._directory / _LOCK)
                if lock is not None:
                    self._lock = lock
                    break

    def describe(self, processes: Iterable[int], groups: Iterable[str]) -> None:
        """Record what belongs to the server itself rather than to a sandbox."""
        # Atomic: a reader sees the old content or the new.
        new = f"{self._path}/{_OWNER}.new"
        kernel_files.write(new, _record(processes, groups))
        os.replace(new, f"{self._path}/{_OWNER}")

    def lease(self, sandbox: str, processes: Iterable[int], groups: Iterable[str]) -> None:
        """Record what a sandbox holds or is about to hold."""
        # The last whole line counts: to replace a file takes a disk ten times as long as to add to it.
        kernel_files.append(f"{self._path}/{sandbox}{_SUFFIX}", f"\n{_record(processes, groups)}\n")

    def release(self, sandbox: str) -> None:
        """Remove the lease of a sandbox of which nothing is left."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._path}/{sandbox}{_SUFFIX}")

    def leases(self) -> list[str]:
        """Return the sandboxes that have a lease."""
        return [path.name.removesuffix(_SUFFIX) for path in _leases(self._directory)]

    def close(self) -> None:
        """Remove the directory and release its lock; a directory that still holds leases is left to the next sweep."""
        if not self.leases():
            for name in (_OWNER, _LOCK):
                (self._directory / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._directory.rmdir()
        os.close(self._lock)


def _record(processes: Iterable[int], groups: Iterable[str]) -> str:
    content = {
        "boot": _boot(),
        "processes": [[process, _start_time(process)] for process in processes],
        "groups": list(groups),
    }
    return json.dumps(content)


async def sweep(state: Path) -> list[str]:
    """Free what dead servers held; return the ids of their sandboxes."""
    freed: list[str] = []
    for directory in sorted((state / "owners").glob("*")):
        with contextlib.ExitStack() as held:
            try:
                is_dead = held.enter_context(try_locked(directory / _LOCK))
            except OSError:
                with contextlib.suppress(OSError):
                    if time.time() - directory.stat().st_mtime > _UNFINISHED:
                        directory.rmdir()
                continue
            if is_dead:
                freed += await _free_owner(directory)
    return freed


async def _free_owner(directory: Path) -> list[str]:
    owner = _read(directory / _OWNER)
    leases = {path: _read(path) for path in _leases(directory)}
    for lease in (owner, *leases.values()):
        _kill(lease.get("processes", []), lease.get("boot", ""))
    freed: list[str] = []
    for path, lease in leases.items():
        if await remove_group(lease.get("groups", [])):
            path.unlink(missing_ok=True)
            freed.append(path.name.removesuffix(_SUFFIX))
        await asyncio.sleep(0)
    if not _leases(directory) and await remove_group(owner.get("groups", [])):
        _remove(directory)
    return freed


def _leases(directory: Path) -> list[Path]:
    return list(directory.glob(f"*{_SUFFIX}"))


def _remove(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


def _kill(processes: Sequence[Sequence[int]], boot: str) -> None:
    if boot != _boot():
        return
    for process, started in processes:
        try:
            descriptor = os.pidfd_open(process)
        except OSError:
            continue
        try:
            if started and _start_time(process) == started:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    """Return the last whole line of a record; nothing where there is none."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError):
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            return json.loads(line)
    return {}


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_time(process: int) -> int:
    """Return the start time in clock ticks since boot; 0 for a process that has ended."""
    try:
        return process_status(process).started
    except OSError:
        return 0

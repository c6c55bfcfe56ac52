"""Bounds on the kernel's objects that no control group counts.

The kernel counts inotify instances, queued signals and POSIX message queues by user, terminals and AIO contexts for the
whole machine: without a bound, one sandbox leaves none for the others. What System V IPC holds outlives the processes
that made it and stays charged to the sandbox's memory, so no kill would free it: it gets a bound, and room beside the
sandbox's memory (``LASTING_MEMORY``). AIO contexts cannot be made at all (``seccomp``).

Invariant: each bound is set before the first program of the sandbox runs, from where no program of it can undo it.
"""

from __future__ import annotations

import contextlib
import errno
import os

from ors_containers.linux import kernel_files

__all__ = [
    "LASTING_MEMORY",
    "RESOURCES",
    "TERMINAL_OPTIONS",
    "limit_ipc",
    "limit_watches",
]

#: Of each process, but counted for all of a sandbox's: signals that wait, and bytes of POSIX message queues.
RESOURCES = {"SIGPENDING": 1024, "MSGQUEUE": 256 * 1024}
#: Of the file system at /dev/pts, whose terminals would otherwise be bounded by the machine's alone.
TERMINAL_OPTIONS = "newinstance,ptmxmode=0666,mode=620,max=64"

#: Bytes for what ``_IPC`` lets System V shared memory and messages hold, the kernel's own about each included.
LASTING_MEMORY = 48 * 2**20
_SHARED_MEMORY = 32 * 2**20
_WATCHES = {"max_inotify_instances": "32", "max_inotify_watches": "16384"}
#: Below /proc/sys/kernel, of an IPC namespace. Semaphores: a set, all, operations, sets.
_IPC = {
    "shmmax": f"{_SHARED_MEMORY}",
    "shmall": f"{_SHARED_MEMORY // os.sysconf('SC_PAGE_SIZE')}",
    "shmmni": "256",
    "msgmnb": "8192",
    "msgmni": "16",
    "sem": "250 3200 100 128",
}


def limit_watches() -> None:
    """Bound inotify in the user namespace this process has just become root of."""
    for name, value in _WATCHES.items():
        with contextlib.suppress(FileNotFoundError):  # a kernel without inotify
            kernel_files.write(f"/proc/sys/user/{name}", value)


def limit_ipc(directory: int) -> bool:
    """Bound System V IPC in this process's IPC namespace, as its root; whether the kernel lets one (Linux 6.9).

    ``directory`` is /proc/sys/kernel of a /proc that can be written, which a sandbox's cannot.
    """
    try:
        for name, value in _IPC.items():
            descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
            return False
        raise
    return True

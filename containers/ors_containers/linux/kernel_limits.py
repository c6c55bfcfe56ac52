"""Bounds on the kernel's objects that no control group counts, and masks over paths of /proc.

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
from collections.abc import Iterator
from pathlib import Path

from ors_containers.linux import syscalls as system

__all__ = [
    "LASTING_MEMORY",
    "OPEN_FILES",
    "RESOURCES",
    "TERMINAL_OPTIONS",
    "hide",
    "limit_ipc",
    "limit_watches",
    "make_nothing",
    "replacements",
]

#: Open files of each process.
OPEN_FILES = 4096
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

#: Paths of /proc that describe the machine and not the sandbox; container runtimes mask similar ones.
_HIDDEN = ("cmdline", "interrupts", "keys", "sched_debug", "acpi", "asound", "pressure", "scsi")
_NOTHING = "/.sandbox-nothing"
_BOOT_IDENTIFIER = "sys/kernel/random/boot_id"


def _identifier() -> str:
    text = os.urandom(16).hex()
    return "-".join((text[:8], text[8:12], f"4{text[13:16]}", f"a{text[17:20]}", text[20:])) + "\n"


def limit_watches() -> None:
    """Bound inotify in the user namespace this process has just become root of."""
    for name, value in _WATCHES.items():
        with contextlib.suppress(FileNotFoundError):  # a kernel without inotify
            Path("/proc/sys/user", name).write_text(value)


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


def replacements(nothing: str, directory: Path, *, everything: bool = True) -> Iterator[tuple[str, str]]:
    """Files and directories to mount, and what in /proc each is to hide.

    ``nothing`` is an empty directory where they will be mounted from; files are made in ``directory``. Without
    ``everything`` only what ``hide`` cannot replace.
    """
    identifier = directory / "boot_id"
    identifier.write_text(_identifier())  # programs want one
    identifier.chmod(0o444)
    yield str(identifier), f"/proc/{_BOOT_IDENTIFIER}"
    if everything:
        empty = directory / "empty"
        empty.touch(0o444)
        for place in _hidden_places():
            yield (nothing if place.is_dir() else str(empty)), str(place)


def make_nothing(root: Path) -> None:
    """Make the empty file that ``hide`` mounts and removes, below the root of a sandbox that is not up yet.

    Raises ``OSError`` where the image has something of that name, which may be a link to anywhere.
    """
    os.close(os.open(root / _NOTHING[1:], os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))


def hide(nothing: str) -> None:
    """Mount nothing over the rest in this process's mount namespace, as its root.

    For bubblewrap, which reads the mount table again for each mount: sandboxes that start together wait for one another
    there. ``nothing`` is an empty directory of the namespace.
    """
    flags = system.MS_BIND | system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC | system.MS_RDONLY
    for place in _hidden_places():
        system.mount(nothing if place.is_dir() else _NOTHING, str(place), "", system.MS_BIND)
        system.mount("", str(place), "", system.MS_REMOUNT | flags)
    Path(_NOTHING).unlink()


def _hidden_places() -> list[Path]:
    return [place for place in (Path("/proc", name) for name in _HIDDEN) if place.exists()]

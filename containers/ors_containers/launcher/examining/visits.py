"""Forks of a warm Python whose copies are in a sandbox from their first instruction.

A process that joins a pid namespace is not in it, its children are: so an examination that is started from outside
takes two copies. The host's root can join the pid, network and mount namespaces of a sandbox and return, and the copy
that is made meanwhile stays there. What any process may read of another in /proc, its mounts and its network, is then
the sandbox's for it.

Invariant: while it is in a sandbox, this process follows no path of it and executes nothing.
"""

from __future__ import annotations

import errno
import os

from ors_containers.launcher.examining.examiners import show_processes
from ors_containers.linux import syscalls as system

__all__ = ["Visits"]

_JOINED = {"pid": system.CLONE_NEWPID, "net": system.CLONE_NEWNET, "mnt": system.CLONE_NEWNS}


class Visits:
    """Namespaces to which this process, the host's root without other threads, returns."""

    def __init__(self) -> None:
        """Open what it returns through. Raises ``OSError``."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._own = [(os.open(f"/proc/self/ns/{name}", flags), flag) for name, flag in _JOINED.items()]
        self._processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def fork(self, process_1: int) -> int:
        """Fork a copy into the sandbox of ``process_1``, a pidfd; as ``os.fork``. Raises ``OSError``."""
        self._join(process_1)
        child = -1
        try:
            child = os.fork()
        finally:
            if child != 0:
                self._return()
        return child

    def show_processes(self, process_1: int) -> None:
        """Undo ``examiners.hide_processes`` in a sandbox. Raises ``OSError``."""
        self._join(process_1)
        try:
            show_processes()
        finally:
            self._return()

    def own_id(self) -> int:
        """Return the id of this process, a copy, outside of the sandbox."""
        return int(os.readlink("self", dir_fd=self._processes))

    def _join(self, process_1: int) -> None:
        system.setns(process_1, sum(_JOINED.values()))
        own, joined = (os.stat(f"self/ns/{name}", dir_fd=self._processes) for name in ("pid", "pid_for_children"))
        if os.path.samestat(own, joined):
            self._return()
            raise OSError(errno.EPERM, "the sandbox's process ids were not joined")

    def _return(self) -> None:
        try:
            for namespace, flag in self._own:
                system.setns(namespace, flag)
        except OSError as error:
            # Its next copies would be in this sandbox.
            os.write(2, f"No Python can be kept warm: {error}\n".encode())
            os._exit(70)

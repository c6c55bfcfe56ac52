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

from ors_containers.linux import syscalls as system

__all__ = ["Visits", "visits"]

_JOINED = {"pid": system.CLONE_NEWPID, "net": system.CLONE_NEWNET, "mnt": system.CLONE_NEWNS}


class Visits:
    """Namespaces to which this process, the host's root without other threads, returns."""

    def __init__(self) -> None:
        """Open what it returns through. Raises ``OSError`` where it could not return."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._own = [(os.open(f"/proc/self/ns/{name}", flags), flag) for name, flag in _JOINED.items()]
        self._processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._join_own()

    def fork(self, process_1: int) -> int:
        """Fork a copy into the sandbox of ``process_1``, a pidfd; as ``os.fork``. Raises ``OSError``."""
        system.setns(process_1, sum(_JOINED.values()))
        child = -1
        try:
            own, joined = (os.stat(f"self/ns/{name}", dir_fd=self._processes) for name in ("pid", "pid_for_children"))
            if os.path.samestat(own, joined):
                raise OSError(errno.EPERM, "the sandbox's process ids were not joined")
            child = os.fork()
        finally:
            if child != 0:
                self._return()
        return child

    def own_id(self) -> int:
        """Return the id of this process, a copy, outside of the sandbox."""
        return int(os.readlink("self", dir_fd=self._processes))

    def _return(self) -> None:
        try:
            self._join_own()
        except OSError as error:
            # Its next copies would be in this sandbox.
            os.write(2, f"A warm Python cannot leave a sandbox: {error}\n".encode())
            os._exit(70)

    def _join_own(self) -> None:
        for namespace, flag in self._own:
            system.setns(namespace, flag)


def visits() -> Visits | None:
    """Return what this process can visit sandboxes with, if it can: a module that it imported may have a thread."""
    try:
        return Visits()
    except OSError:
        return None

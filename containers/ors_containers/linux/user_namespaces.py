"""User namespaces with ids mapped as ``prerequisites.IdMapping`` says; used before a sandbox or a layer is touched.

The kernel counts what a namespace's processes hold by user, for the one who made the namespace as well: inotify
instances, queued signals, bytes of message queues. So root makes one as the first id of its range, and no sandbox
takes from root or from another.

Invariant: what runs in such a namespace is root there and, on the host, a range of ids that are nobody's, this user's
range of /etc/subuid, or this user; never another user.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ors_containers.linux import syscalls as system
from ors_containers.linux.fd_passing import receive

__all__ = ["helped_mapping", "join_mapped_namespace", "map_one_id", "mapped_namespace"]


def mapped_namespace(mapping: dict[str, Any]) -> int:
    """A user namespace whose ids 0 … ``count`` - 1 are the host's from ``base`` on; as the host's root.

    With ``own_account`` it is made by ``base``, and counted as its: a root without CAP_SYS_PTRACE could not enter it.
    """
    base, count = mapping["base"], mapping["count"]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            if mapping["own_account"]:
                system.keep_capabilities()
                os.seteuid(base)
            system.unshare(system.CLONE_NEWUSER)
            # By itself: to others, a process that has changed its user is closed.
            namespace = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            socket.send_fds(theirs, [b"1"], [namespace])
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    try:
        _, descriptors = receive(ours, 1, 1)
        if not descriptors:
            raise OSError(errno.EPERM, "user namespaces cannot be made here")
        Path(f"/proc/{child}/uid_map").write_text(f"0 {base} {count}")
        Path(f"/proc/{child}/gid_map").write_text(f"0 {base} {count}")
        return descriptors[0]
    finally:
        ours.close()
        os.waitpid(child, 0)


def helped_mapping(mapping: dict[str, Any]) -> Callable[[], None]:
    """Start a child that stays in the host's namespace and maps this process's ids with newuidmap and newgidmap."""
    go, release = os.pipe()
    process = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(release)
        if not os.read(go, 1):
            os._exit(0)
        for program, own, first in (
            (mapping["newuidmap"], os.getuid(), mapping["users"]),
            (mapping["newgidmap"], os.getgid(), mapping["groups"]),
        ):
            arguments = [program, str(process), "0", str(own), "1", "1", str(first), str(mapping["count"])]
            helper = os.posix_spawn(program, arguments, {})
            if os.waitpid(helper, 0)[1] != 0:
                os._exit(1)
        os._exit(0)
    os.close(go)

    def finish() -> None:
        os.write(release, b"1")
        os.close(release)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError(errno.EPERM, "newuidmap or newgidmap refused the ranges of /etc/subuid and /etc/subgid")

    return finish


def map_one_id(inside_user: int, outside_user: int, inside_group: int, outside_group: int) -> None:
    """Map one user and one group into the namespace this process has just made."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside_user} {outside_user} 1")
    Path("/proc/self/gid_map").write_text(f"{inside_group} {outside_group} 1")


def join_mapped_namespace(mapping: dict[str, Any], flags: int) -> None:
    """As an ordinary user: become root of a new user namespace, with the namespaces of ``flags`` new as well."""
    user, group = os.getuid(), os.getgid()
    finish = helped_mapping(mapping) if mapping["by"] == "helper" else None
    system.unshare(system.CLONE_NEWUSER | flags)
    if finish is not None:
        finish()
        system.become(0, 0)
    else:
        map_one_id(0, user, 0, group)

"""User namespaces whose ids are mapped as an ``IdMap`` says; made before a sandbox or a layer is touched.

The kernel counts inotify instances, queued signals and bytes of message queues by user, and counts those of a
namespace's processes as its creator's, too. So root creates each namespace as the first id of its range: no sandbox
uses up what the kernel grants to root or to another sandbox.

Invariant: a process in such a namespace is root there. On the host its ids are a range that belongs to no user, this
user's range of /etc/subuid, or this user; never another user.
"""

# Annotations of ``IdMap`` are evaluated: ``launcher.records`` reads them.

import contextlib
import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from ors_containers.linux import kernel_files
from ors_containers.linux import syscalls as system
from ors_containers.linux.programs.machine_code_children import waiting_child

__all__ = ["IdMap", "join_mapped_namespace", "map_one_id", "mapped_namespace"]


class IdMap(NamedTuple):
    """The ids of one sandbox. A field that ``by`` does not need is 0, False or empty."""

    #: ``root``: ``size`` ids from ``base`` on. ``user``: this user alone. ``helper``: this user, and ``size`` ids from
    #: ``users`` and ``groups`` on, set by newuidmap and newgidmap.
    by: str
    base: int = 0
    size: int = 0
    #: As root: the kernel counts by ``base`` what the sandbox uses, and not by root.
    own_account: bool = False
    #: As root: the kernel can mount a layer with mapped owners and put an overlay on it.
    idmapped: bool = False
    users: int = 0
    groups: int = 0
    newuidmap: str = ""
    newgidmap: str = ""


def mapped_namespace(mapping: IdMap) -> int:
    """Make a user namespace whose ids 0 … ``size`` - 1 are the host's from ``base`` on; as the host's root.

    With ``own_account`` the process that creates it is ``base``: a root without CAP_SYS_PTRACE could not enter it.
    """
    reading, writing = os.pipe()
    child = -1
    try:
        with system.acting_as(mapping.base) if mapping.own_account else contextlib.nullcontext():
            try:
                child = waiting_child(system.CLONE_NEWUSER, reading, writing)
            except OSError as error:
                raise OSError(error.errno, f"user namespaces cannot be made here: {error.strerror}") from error
        for table in ("uid_map", "gid_map"):
            kernel_files.write(f"/proc/{child}/{table}", f"0 {mapping.base} {mapping.size}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reading)
        os.close(writing)
        if child != -1:
            os.waitpid(child, 0)


def _start_id_helper(mapping: IdMap) -> Callable[[], None]:
    """Fork a child that stays in the host's namespace and maps this process's ids when the result is called."""
    go, release = os.pipe()
    process = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(release)
        if not os.read(go, 1):
            os._exit(0)
        for program, own, first in (
            (mapping.newuidmap, os.getuid(), mapping.users),
            (mapping.newgidmap, os.getgid(), mapping.groups),
        ):
            arguments = [program, str(process), "0", str(own), "1", "1", str(first), str(mapping.size)]
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
    """Map one user and one group into the namespace that this process has just made."""
    kernel_files.write("/proc/self/setgroups", "deny")
    kernel_files.write("/proc/self/uid_map", f"{inside_user} {outside_user} 1")
    kernel_files.write("/proc/self/gid_map", f"{inside_group} {outside_group} 1")


def join_mapped_namespace(mapping: IdMap, flags: int) -> None:
    """Become root of a new user namespace, with new namespaces of ``flags``; as an ordinary user."""
    user, group = os.getuid(), os.getgid()
    finish = _start_id_helper(mapping) if mapping.by == "helper" else None
    system.unshare(system.CLONE_NEWUSER | flags)
    if finish is not None:
        finish()
        system.become(0, 0)
    else:
        map_one_id(0, user, 0, group)

"""The group of an examination's processes, which no process of the agent is in.

The agent's processes have the same user as an examination's. Capabilities keep an examination's memory and descriptors
from them (``syscalls.SHIELD``). The group keeps from them what capabilities do not: the arguments of programs, which
any process may read in /proc, and files, which the kernel opens for their owner. While a live examination runs, /proc
shows every process to this group, and to other processes only those that they may inspect. Only the group can access
the examination's folder. The kernel checks the group at each look-up, so a descriptor of the folder that is passed on
is of no use outside the group.

Invariant: no process of the agent gets into the group: it has no capability to change its groups, and no program with
the set-group-id bit is executed with the bit's rights (``no_new_privs``).
"""

from __future__ import annotations

import os

from ors_containers.launcher.messages import User
from ors_containers.linux import syscalls as system

__all__ = ["examiners", "hide_processes", "show_processes"]

#: ``nogroup``, so that programs of the tests find a name for it; another where it is the image's user's.
_CANDIDATES = (65534, 65533, 65531)
_PROC_FLAGS = system.MS_REMOUNT | system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC


def examiners(user: User) -> int | None:
    """Return the id, that of a group and of a user without processes; None where a sandbox has a single id."""
    if user.one_id:
        return None
    return next(number for number in _CANDIDATES if number not in (user.id, user.group))


def hide_processes(group: int) -> None:
    """Show processes in the /proc of this process's sandbox only to ``group`` and to processes that may inspect them.

    Call it in a new mount namespace: the mount's flags change only there, its options in the whole sandbox.
    """
    system.mount("", "/proc", "", _PROC_FLAGS, f"hidepid=2,gid={group}")


def show_processes() -> None:
    """Undo ``hide_processes``; the flags of the mount stay as they are.

    Who has only the rights of a sandbox's root does not see a copy of a process of the host while they are hidden.
    """
    flags = os.statvfs("/proc").f_flag & (system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC)
    system.mount("", "/proc", "", system.MS_REMOUNT | flags, "hidepid=0,gid=0")

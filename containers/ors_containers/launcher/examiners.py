"""The group that the processes of an examination are in, and no process of the agent's.

The agent's processes have the user of an examination's. Capabilities keep its memory and descriptors from them
(``syscalls.SHIELD``), and a group what capabilities do not: the arguments of programs, which everybody may read in
/proc, and files, which the kernel gives to whoever has their user. While a live examination runs, /proc shows processes
to this group, and to others those alone that they may inspect. The examination's folder is the group's and nobody's
otherwise. The kernel asks for the group at each look-up, so a descriptor that is handed on is worth nothing outside it.

Invariant: no process of the agent's gets into the group, as it has no capability to change its groups and no program
with the group's bit is executed with its rights (``no_new_privs``).
"""

from __future__ import annotations

from typing import Any

from ors_containers.linux import syscalls as system

__all__ = ["examiners", "hide_processes", "show_processes"]

#: ``nogroup``, so that programs of the tests find a name for it; another where it is the image's user's.
_CANDIDATES = (65534, 65533, 65531)
_PROC_FLAGS = system.MS_REMOUNT | system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC


def examiners(message: dict[str, Any]) -> int | None:
    """The id, of a group and of a user without processes; none where a sandbox has a single id."""
    if message["one_id"]:
        return None
    return next(number for number in _CANDIDATES if number not in (message["user"], message["group"]))


def hide_processes(group: int) -> None:
    """Show processes in the /proc of this process's sandbox to ``group`` and to who may inspect them.

    To be called in a mount namespace of the caller's own: the mount's flags change there alone, the options everywhere.
    """
    system.mount("", "/proc", "", _PROC_FLAGS, f"hidepid=2,gid={group}")


def show_processes() -> None:
    """Undo ``hide_processes``."""
    system.mount("", "/proc", "", _PROC_FLAGS, "hidepid=0,gid=0")

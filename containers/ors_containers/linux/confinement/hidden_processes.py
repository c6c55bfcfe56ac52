"""Processes of a sandbox that its /proc shows to a group, and to what may inspect them.

The option is one of the whole sandbox, whichever mount of its /proc is mounted again with it.
"""

from __future__ import annotations

import os

from ors_containers.linux import syscalls as system

__all__ = ["hide_processes", "show_processes"]

_FLAGS = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC


def hide_processes(group: int) -> None:
    """Show processes in this process's /proc only to ``group`` and to processes that may inspect them."""
    _mount_again(f"hidepid=2,gid={group}")


def show_processes() -> None:
    """Undo ``hide_processes``.

    Until then, who has only the rights of a sandbox's root does not see a copy of a process of the host.
    """
    _mount_again("hidepid=0,gid=0")


def _mount_again(options: str) -> None:
    flags = os.statvfs("/proc").f_flag & _FLAGS  # of the mount, which stay as they are
    system.mount("", "/proc", "", system.MS_REMOUNT | flags, options)

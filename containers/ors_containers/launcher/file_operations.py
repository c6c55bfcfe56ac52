"""File operations of the launcher's children inside a sandbox: open a file, describe a path, rename a file.

Each child joins the sandbox's mounts through a pidfd of its process 1 and then acts like any process inside: a path is
resolved there, with its user's rights. Before it joins, a child forbids the sandbox's processes to inspect it, and
after that it imports no module.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ors_containers.launcher.messages import Done, FileFound, Opened, OpenFile, RenameFile, StatFile, User
from ors_containers.launcher.privileges import become_container_user
from ors_containers.linux import syscalls as system

__all__ = ["open_file", "rename_file", "stat_file"]


def _join_files(process_1: int, user: User, directory: str) -> None:
    """Join the sandbox's mounts, as its user and without any capability; as a container's user with that user's."""
    system.refuse_inspection()
    system.setns(process_1, system.CLONE_NEWUSER | system.CLONE_NEWNS)
    if user.capabilities:
        become_container_user(user)
    else:
        system.drop_bounding_set()
        if not user.one_id:
            system.become(user.id, user.group)
        system.drop_capabilities()
    os.umask(0o022)
    os.chdir(directory)


def open_file(message: OpenFile, descriptors: list[int]) -> Opened:
    """Open a regular file."""
    _join_files(descriptors[0], message.user, message.directory)
    flags = message.flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if message.parents:
        Path(message.path).parent.mkdir(parents=True, exist_ok=True)
    # O_TRUNC only once it is known to be a regular file.
    descriptor = os.open(message.path, flags & ~os.O_TRUNC, message.mode)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EISDIR, f"{_kind(found.st_mode)}, not a regular file")
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
        if not message.keep_mode:
            os.fchmod(descriptor, message.mode)
    return Opened(descriptor, found.st_size)


def stat_file(message: StatFile, descriptors: list[int]) -> FileFound:
    """Describe a path."""
    _join_files(descriptors[0], message.user, message.directory)
    path = Path(message.path)
    found = path.stat() if message.follow else path.lstat()
    return FileFound(
        kind=_kind(found.st_mode),
        size=found.st_size,
        mode=stat.S_IMODE(found.st_mode),
        user=found.st_uid,
        group=found.st_gid,
        modified=found.st_mtime,
        link=str(path.readlink()) if stat.S_ISLNK(found.st_mode) else None,
    )


def rename_file(message: RenameFile, descriptors: list[int]) -> Done:
    """Rename a file over another."""
    _join_files(descriptors[0], message.user, message.directory)
    Path(message.path).rename(message.target)
    return Done()


_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "unknown")

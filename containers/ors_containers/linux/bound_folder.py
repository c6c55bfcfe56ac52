"""A program that starts another with one folder of the host at a path of its own.

    python -m ors_containers.linux.bound_folder SOURCE TARGET COMMAND…

The command has a mount namespace of its own, in which ``SOURCE`` lies at ``TARGET``; nothing on the host changes. As
an ordinary user it is also in a user namespace in which it is the same user. The host need not have ``TARGET``, but it
is directly below the root. Without a ``SOURCE`` (an empty argument) the command is started as it is. It ends with the
process that started this program.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.user_namespaces import map_one_id

__all__ = ["REFUSED", "bind_folder", "main"]

#: Exit status where the kernel or a policy of the host refuses the namespace or a mount.
REFUSED = 78


def main(arguments: list[str]) -> None:
    """Replace this process by the command."""
    source, target, *command = arguments
    if source:
        try:
            _bind(source, target)
        except OSError as error:
            sys.stderr.write(f"{source} cannot be mounted on {target}: {error.strerror or error}\n")
            sys.exit(REFUSED)
    system.end_with_parent()
    os.execvp(command[0], command)  # noqa: S606 - the program's purpose


def _bind(source: str, target: str) -> None:
    here = Path.cwd()
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        system.unshare(system.CLONE_NEWNS)
    else:
        system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWNS)
        map_one_id(user, user, group, group)
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    bind_folder(source, target)
    os.chdir(here)


def bind_folder(source: str, target: str) -> None:
    """Mount a folder at ``target``, which this process's root need not have, in a mount namespace of its own."""
    if not Path(target).is_dir():
        _copy_root(target)
    system.mount(source, target, "", system.MS_BIND | system.MS_REC)


def _copy_root(target: str) -> None:
    """Move to a root in memory that has everything of the old root, and an empty folder ``target``."""
    root = Path(tempfile.mkdtemp(prefix="ors-root-"))
    system.mount("tmpfs", str(root), "tmpfs", 0, "mode=755,size=64k")
    for entry in os.scandir("/"):
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(Path(entry.path).readlink())
            continue
        if entry.is_dir():
            place.mkdir()
        else:
            place.touch()
        system.mount(entry.path, str(place), "", system.MS_BIND | system.MS_REC)
    system.unmount(f"{root}{root}")  # the new root within itself, as part of its folder's parent
    (root / target.lstrip("/")).mkdir()
    system.pivot(str(root))
    root.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Overlays that give a sandbox inodes of its own, instead of the host's.

The kernel keeps locks and watches with an inode. Those of a tree that is bound into a sandbox are the host's and every
other sandbox's: one sandbox could be told who opens them, lock them, and with many thousand locks make each opening of
a program slow for the whole machine. An overlay has inodes of its own, whatever lies below it. So a sandbox gets an
overlay instead of each bind, which costs no more than the bind, and devices that were made for it alone.

Invariant: what is ``hidden`` of a tree is in no mount of it, an overlay or not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from ors_containers.linux import syscalls as system

__all__ = ["mount_overlay", "overlay_own", "without"]

#: Seconds until an overlay that has ended is no longer mounted.
_PATIENCE = 30.0


def mount_overlay(name: str, flags: int, options: str) -> None:
    """Mount an overlay at ``name``, whose layers a build may just have written.

    The kernel refuses a layer into which another overlay writes, and takes down a build's a moment after its end.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            system.mount("overlay", name, "overlay", flags, options)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def overlay_own(name: str, hidden: Sequence[str]) -> bool:
    """Mount an overlay of the tree at ``name`` over it, without what is ``hidden``; whether that could be done.

    The kernel refuses it for an ordinary user if something of the host is mounted below the tree, for a tree that is
    two overlays deep already, and for a few file systems. The tree itself remains then, and what is hidden is covered.
    """
    lower = without(name, hidden) if hidden else [name, "disk/nothing"]
    flags = system.MS_RDONLY | system.MS_NOSUID | system.MS_NODEV
    try:
        system.mount("overlay", name, "overlay", flags, f"lowerdir={':'.join(lower)},userxattr")
    except OSError:
        for path in hidden:
            place = Path(name, path)
            if place.is_dir():
                system.mount("disk/nothing", str(place), "", system.MS_BIND)
            elif place.exists():
                Path("disk/no-file").touch(0o444)
                system.mount("disk/no-file", str(place), "", system.MS_BIND)
        return False
    return True


def without(name: str, hidden: Sequence[str]) -> list[str]:
    """Return the layers of an overlay of the tree at ``name`` without the ``hidden`` paths, relative to it."""
    found = [path for path in hidden if os.path.lexists(f"{name}/{path}")]
    if not found:
        return [name]
    cover = Path(f"disk/without-{name}")
    cover.mkdir()
    _copy_mode(Path(name), cover)
    for path in sorted(found):  # a folder before what is in it
        parts = Path(path).parts
        for depth in range(1, len(parts)):
            above = Path(*parts[:depth])
            if not os.path.lexists(cover / above):
                (cover / above).mkdir()
                _copy_mode(name / above, cover / above)
            elif not (cover / above).is_dir():
                break  # hidden itself
        else:
            os.mknod(cover / path, stat.S_IFCHR, os.makedev(0, 0))
    return [str(cover), name]


def _copy_mode(source: Path, target: Path) -> None:
    status = source.stat()
    target.chmod(stat.S_IMODE(status.st_mode))
    with contextlib.suppress(OSError):  # an owner that the namespace does not map: then it is root's
        os.chown(target, status.st_uid, status.st_gid)

"""Layers on disk: stacked directories in the format of overlayfs.

A removed file is a whiteout, a character device 0/0, which any user may create. A directory that hides the layers below
it has an extended attribute. The owner of a file on disk is that inside a sandbox: the same id for a server that is
root, the id it is mapped to in a mapped namespace, and the server's own id where a sandbox has a single id.

Invariant: links are followed as inside a sandbox. No file of a layer is setuid, setgid or a device.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ors_containers.errors import InvalidArchive

__all__ = [
    "OPAQUE",
    "Found",
    "LayeredTree",
    "clean_layer",
    "entries_of",
    "exclusive_bytes",
    "inner_owner",
    "measure_layer",
    "remove_layer",
    "status_of",
]

#: The extended attribute of a directory that hides the layers below it.
OPAQUE = "user.overlay.opaque"
_OVERLAY = "user.overlay."
_MOST_LINKS = 40
#: The number of ids in a sandbox; a file of an archive with a higher id belongs to the account ``nobody``.
_IDS, _NOBODY = 65536, 65534


class Found(NamedTuple):
    """A file in a stack of layers: its path on disk and its status."""

    path: Path
    status: os.stat_result


class LayeredTree:
    """A stack of layers, the top one first, read by the rules of overlayfs."""

    def __init__(self, layers: Iterable[Path]) -> None:
        self._layers = list(layers)

    def find(self, path: str) -> Found | None:
        """Return the file at ``path``, no link followed; None where there is none."""
        active = self._layers
        found: Found | None = None
        parts = [part for part in path.split("/") if part and part != "."]
        if not parts:
            return Found(active[0], active[0].lstat()) if active else None
        relative = ""
        for part in parts:
            if found is not None and not stat.S_ISDIR(found.status.st_mode):
                return None
            relative = f"{relative}/{part}" if relative else part
            found, active = self._step(active, relative)
            if found is None:
                return None
        return found

    def kind(self, path: str) -> int:
        """Return the kind of the file at ``path``, as ``stat.S_IFMT`` does, no link followed; 0 where there is none."""
        found = self.find(path)
        return 0 if found is None else stat.S_IFMT(found.status.st_mode)

    def under(self, layer: Path) -> LayeredTree:
        """Return the stack with ``layer`` above it."""
        return LayeredTree([layer, *self._layers])

    def layers_at(self, path: str) -> list[Path]:
        """Return the layers whose folders at ``path`` are merged there, the top one first; none for another file."""
        active = self._layers
        relative = ""
        for part in [part for part in path.split("/") if part and part != "."]:
            relative = f"{relative}/{part}" if relative else part
            found, active = self._step(active, relative)
            if found is None or not stat.S_ISDIR(found.status.st_mode):
                return []
        return list(active)

    @staticmethod
    def _step(active: Sequence[Path], relative: str) -> tuple[Found | None, list[Path]]:
        found: Found | None = None
        deeper: list[Path] = []
        for layer in active:
            place = layer / relative
            status = status_of(place)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                if found is None and not _is_whiteout(status):
                    found = Found(place, status)
                break
            found = found or Found(place, status)
            deeper.append(layer)
            if _is_opaque(place):
                break
        return found, deeper

    def names(self, path: str) -> list[str]:
        """Return the names in the directory at ``path``, sorted, no link followed; none where it is not a directory."""
        active = self._layers
        found: Found | None = self.find("")
        relative = ""
        for part in [part for part in path.split("/") if part and part != "."]:
            relative = f"{relative}/{part}" if relative else part
            found, active = self._step(active, relative)
        if found is None or not stat.S_ISDIR(found.status.st_mode):
            return []
        names = {entry.name for layer in active for entry in os.scandir(layer / relative)}
        return sorted(name for name in names if self._step(active, f"{relative}/{name}".lstrip("/"))[0] is not None)

    def resolve(self, path: str, *, last: bool = False) -> str:
        """Return ``path`` without links, relative to the root, as a process inside would resolve it.

        With ``last``, the last component is followed as well. Components that do not exist stay as they are. Raises
        ``InvalidArchive`` for links in a loop.
        """
        waiting = [part for part in path.split("/") if part]
        done: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop(0)
            if part == ".":
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = "/".join([*done, part])
            found = self.find(here) if waiting or last else None
            if found is None or not stat.S_ISLNK(found.status.st_mode):
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise InvalidArchive(f"The links of /{path.lstrip('/')} lead round in circles")
            target = str(found.path.readlink())
            if target.startswith("/"):
                done = []
            waiting = [piece for piece in target.split("/") if piece] + waiting
        return "/".join(done)

    def read(self, path: str, *, most: int = 1 << 20) -> bytes | None:
        """Return the content of a regular file of at most ``most`` bytes, links followed; None where there is none."""
        found = self.find(self.resolve(path, last=True))
        if found is None or not stat.S_ISREG(found.status.st_mode) or found.status.st_size > most:
            return None
        try:
            return found.path.read_bytes()
        except OSError:
            return None  # this process may not read it


def clean_layer(folder: Path, *, shift: int = 0) -> int:
    """Turn the upper directory of a build into a layer; return its size in bytes.

    Subtracts ``shift`` from owners, which a build as root maps to that range. Removes overlayfs's marks except for that
    of opaque directories, setuid and setgid bits, file capabilities, sockets and devices.
    """
    size = 0
    seen: set[int] = set()
    for place, status in _walk(folder):
        kind = stat.S_IFMT(status.st_mode)
        if kind in (stat.S_IFSOCK, stat.S_IFBLK) or (kind == stat.S_IFCHR and not _is_whiteout(status)):
            place.unlink()
            continue
        if status.st_ino in seen:
            continue
        if status.st_nlink > 1 and kind != stat.S_IFDIR:
            seen.add(status.st_ino)
        if shift:
            user, group = status.st_uid - shift, status.st_gid - shift
            os.chown(place, *inner_owner(user, group), follow_symlinks=False)
        if kind == stat.S_IFREG:
            size += status.st_size
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            _strip(place, status, kind)
    return size


def _strip(place: Path, status: os.stat_result, kind: int) -> None:
    mode = stat.S_IMODE(status.st_mode)
    with contextlib.suppress(PermissionError):  # a file without read permission has no marks that matter
        for name in os.listxattr(place, follow_symlinks=False):
            if (name.startswith(_OVERLAY) and name != OPAQUE) or name == "security.capability":
                os.removexattr(place, name, follow_symlinks=False)
    # After the owner was set, because chown clears mode bits of executables.
    wanted = mode & 0o1777 if kind == stat.S_IFREG else mode & 0o3777
    if stat.S_IMODE(place.lstat().st_mode) != wanted:
        place.chmod(wanted)


def measure_layer(folder: Path) -> int:
    """Return the bytes of the regular files in a layer; a hard-linked file counts once."""
    files = {status.st_ino: status.st_size for _, status in _walk(folder) if stat.S_ISREG(status.st_mode)}
    return sum(files.values())


def exclusive_bytes(folder: Path) -> int:
    """Return the bytes on the disk of what lies in a folder, without the files that have another name elsewhere."""
    names: dict[tuple[int, int], int] = {}
    size = 0
    for place, status in _walk(folder):
        inode = (status.st_dev, status.st_ino)
        names[inode] = names.get(inode, 0) + 1
        if place != folder and (stat.S_ISDIR(status.st_mode) or names[inode] == status.st_nlink):
            size += 512 * status.st_blocks
    return size


def remove_layer(folder: Path) -> None:
    """Remove a tree, including directories without permissions. Raises ``OSError`` for files of another user."""
    import shutil

    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except PermissionError:
        for place, status in _walk(folder):
            if stat.S_ISDIR(status.st_mode):
                place.chmod(0o700)
        shutil.rmtree(folder)


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a layer's directory, which an agent may have closed to this process."""
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        folder.chmod(mode | stat.S_IRWXU)
    return list(os.scandir(folder))


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a tree and everything in it, a directory before its content; follows no link."""
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        status = status_of(place)
        if status is None:
            continue
        yield place, status
        if stat.S_ISDIR(status.st_mode):
            try:
                waiting += [Path(inner.path) for inner in os.scandir(place)]
            except PermissionError:
                continue
            except FileNotFoundError:
                continue  # a build that still runs has removed it


def inner_owner(user: int, group: int) -> tuple[int, int]:
    """Return the ids of a file that an archive gives to ``user`` and ``group``; unknown ids become ``nobody``'s."""
    return (user if 0 <= user < _IDS else _NOBODY), (group if 0 <= group < _IDS else _NOBODY)


def status_of(place: Path) -> os.stat_result | None:
    """Return the status of ``place``, no link followed; None where it is missing or hidden by permissions."""
    try:
        return place.lstat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return None
        raise


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(place: Path) -> bool:
    try:
        return os.getxattr(place, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False

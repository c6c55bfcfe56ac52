"""Files of an image that an ordinary user's sandbox gets as copies, so that hard links to them work.

The kernel copies a file of the image when it is first linked or written, and an overlay that was mounted in a user
namespace cannot find the original of a copy again: a new link and the old name then have different inodes. A file that
is in the upper layer from the start has one inode. So a layer that is small is copied as the sandbox starts, and of a
larger layer the object stores of git repositories: a clone links each object and compares.

Invariants: what the sandbox sees is the same with and without the copies, inodes excepted. Together they are at most
half of what it may write. No link of a layer is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ors_containers.layers.tree import LayeredTree

__all__ = ["SMALL_LAYER_FILES", "SMALL_LAYER_SIZE", "copy_files"]

#: The most bytes, and files and folders, of a small layer.
SMALL_LAYER_SIZE = 8 * 2**20
SMALL_LAYER_FILES = 1000

#: The share of the sandbox's bytes and files that copies may take.
_SHARE = 2
_OVERLAY = "user.overlay."


def copy_files(upper: str, layers: Sequence[str], object_stores: Iterable[str], size: int, files: int) -> None:
    """Copy the files of small layers, and ``object_stores`` of larger ones, into the folder ``upper``.

    ``object_stores`` are folders relative to the root of the image. The sandbox may write ``size`` bytes and ``files``
    files.
    """
    room = _Room(size // _SHARE, files // _SHARE)
    copies = _Copies(upper, layers)
    large: list[str] = []
    for layer in layers:
        found = room.take(layer, "", SMALL_LAYER_SIZE, SMALL_LAYER_FILES)
        if found is None:
            large.append(layer)
        else:
            copies.add(layer, found)
    for layer in large:
        for store in object_stores:
            copies.add(layer, room.take(layer, store, size, files) or {})
    copies.finish()


class _Room:
    """The bytes and the files of a sandbox that copies may still take."""

    def __init__(self, size: int, files: int) -> None:
        self._size, self._files = size, files

    def take(self, layer: str, folder: str, size: int, files: int) -> dict[str, list[os.DirEntry[str]]] | None:
        """Return the regular files below a folder of a layer, by the folder of each, and take their room.

        Returns None, and takes nothing, where they are more than there is room for, than ``size`` bytes, or than
        ``files``. Folders and links are not copied, and count as well: looking at them takes time.
        """
        size, files = min(size, self._size), min(files, self._files)
        left_size, left_files = size, files
        found: dict[str, list[os.DirEntry[str]]] = {}
        for inner, entry in _entries(layer, folder):
            left_files -= 1
            if entry.is_file(follow_symlinks=False):
                left_size -= entry.stat(follow_symlinks=False).st_size
                found.setdefault(inner, []).append(entry)
            if left_size < 0 or left_files < 0:
                return None
        self._size -= size - left_size
        self._files -= files - left_files
        return found


def _entries(layer: str, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what is below a folder of a layer, with the folder of each relative to the layer."""
    waiting = [folder] if _is_folder(layer, folder) else []
    while waiting:
        inner = waiting.pop()
        with contextlib.suppress(PermissionError), os.scandir(f"{layer}/{inner}") as entries:
            for entry in entries:
                yield inner, entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{inner}/{entry.name}" if inner else entry.name)


def _is_folder(layer: str, folder: str) -> bool:
    parts = Path(folder).parts
    places = (Path(layer, *parts[:depth]) for depth in range(len(parts) + 1))
    return all(place.is_dir() and (not place.is_symlink() or place == Path(layer)) for place in places)


class _Copies:
    """Copies in the folder ``upper`` of what a stack of layers, the top one first, makes visible."""

    def __init__(self, upper: str, layers: Sequence[str]) -> None:
        self._upper = upper
        self._tree = LayeredTree(map(Path, layers))
        #: The folders made here, whose times change with each copy.
        self._made: dict[str, os.stat_result] = {}
        #: A copy by device and inode of the original.
        self._names: dict[tuple[int, int], str] = {}

    def add(self, layer: str, found: dict[str, list[os.DirEntry[str]]]) -> None:
        """Copy files of a layer, except for those that a layer above hides or replaces."""
        for folder, entries in found.items():
            merged = [str(part) for part in self._tree.layers_at(folder)]
            if layer not in merged or not self._make_folder(folder):
                continue
            above = merged[: merged.index(layer)]
            target = f"{self._upper}/{folder}" if folder else self._upper
            for entry in entries:
                if not any(os.path.lexists(f"{part}/{folder}/{entry.name}") for part in above):
                    self._copy(entry, f"{target}/{entry.name}")

    def finish(self) -> None:
        """Give the new folders the times of the originals."""
        for place, status in reversed(self._made.items()):
            os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _make_folder(self, folder: str) -> bool:
        """Make a folder like the image's, and those above it; whether that could be done."""
        place = self._upper
        parts = Path(folder).parts
        for depth, part in enumerate(parts, 1):
            place = f"{place}/{part}"
            if os.path.lexists(place):
                continue
            original = self._tree.find("/".join(parts[:depth]))
            if original is None:
                return False
            Path(place).mkdir()
            new = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _copy_attributes(str(original.path), original.status, new)
            except OSError:  # as in ``_copy``
                Path(place).rmdir()
                return False
            finally:
                os.close(new)
            self._made[place] = original.status
        return True

    def _copy(self, entry: os.DirEntry[str], target: str) -> None:
        status = entry.stat(follow_symlinks=False)
        known = self._names.get((status.st_dev, status.st_ino))
        if known is not None:
            os.link(known, target)
            return
        try:
            source = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    while os.sendfile(copy, source, None, 1 << 30):
                        pass
                    _copy_attributes(source, status, copy)
                finally:
                    os.close(copy)
            finally:
                os.close(source)
        except OSError:  # one that this user may not read, or owned by an id that the namespace lacks: it stays below
            Path(target).unlink(missing_ok=True)
            return
        if status.st_nlink > 1:
            self._names[status.st_dev, status.st_ino] = target


def _copy_attributes(source: int | str, status: os.stat_result, target: int) -> None:
    if (status.st_uid, status.st_gid) != (0, 0):
        os.fchown(target, status.st_uid, status.st_gid)
    for name in os.listxattr(source):
        if not name.startswith((_OVERLAY, "security.")) or name == "security.capability":
            os.setxattr(target, name, os.getxattr(source, name))
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

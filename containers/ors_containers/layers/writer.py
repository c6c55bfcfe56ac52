"""Writer of a layer, entry by entry, over the layers below it.

Invariant: no file is written outside of the folder, whatever a path or a link contains: every component is checked, and
links are followed as inside a sandbox.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from ors_containers.errors import ImageTooLarge, InvalidArchive
from ors_containers.layers.tree import OPAQUE, LayeredTree, inner_owner, remove_layer, status_of

__all__ = ["Entry", "LayerWriter", "Readable", "too_large", "write_layer"]

_CHUNK = 1 << 20


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        ...


# A named tuple: importing dataclasses takes as long as all the rest of a build process.
class Entry(NamedTuple):
    """A file, directory or link of a layer. The kind ``copy`` copies a regular file of the host."""

    path: str
    kind: Literal["file", "directory", "link", "copy"]
    content: bytes = b""
    #: The target of a link, or the file to copy.
    source: str = ""
    #: Permission bits; None for those of the copied file, or 755 for a directory.
    mode: int | None = None
    user: int = 0
    group: int = 0


class LayerWriter:
    """A new layer over others. ``owners`` is False where all files belong to the same user.

    Raises ``ImageTooLarge`` once more than ``limit`` bytes have been written (0 for no limit), and ``OSError`` as the
    file system does.
    """

    def __init__(
        self,
        folder: Path,
        below: Sequence[Path] = (),
        *,
        owners: bool,
        limit: int = 0,
        defaults: Mapping[str, tuple[int, int, int]] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.size = 0
        self._folder = folder
        self._tree = LayeredTree([folder, *below])
        self._below = LayeredTree(below)
        self._owners = owners
        self._limit = limit
        #: Mode, user and group of parents that no entry lists, by relative path.
        self._defaults = defaults or {}
        self._progress = progress
        #: Modes and times, set last and deepest first, so that read-only directories can be filled.
        self._directories: dict[Path, tuple[int, float | None]] = {}
        self._parents: dict[str, Path] = {"": folder}
        self._whited_out: set[Path] = set()

    def directory(self, path: str, mode: int, user: int, group: int, modified: float | None = None) -> None:
        """Add a directory; an existing one keeps its content."""
        place = self._target(path)
        if place == self._folder:
            self._own(place, user, group)
            # A folder made by mktemp is private; every user can read the root of an image.
            self._directories[place] = (mode | 0o555, modified)
            return
        status = status_of(place)
        if status is None or not stat.S_ISDIR(status.st_mode):
            self._clear(place)
            place.mkdir(mode=0o700)
            if place in self._whited_out:
                self.opaque(path)
        self._own(place, user, group)
        self._directories[place] = (mode, modified)

    def provide(self, path: str, mode: int, user: int, group: int) -> None:
        """Add a directory unless the layers have a file of that name."""
        if self._tree.find(self._tree.resolve(path, last=True)) is None:
            self.directory(path, mode, user, group)

    def file(
        self, path: str, content: Readable, mode: int, user: int, group: int, modified: float | None = None
    ) -> None:
        """Add a regular file with the bytes of ``content`` up to its end."""
        place = self._target(path)
        self._clear(place)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while chunk := content.read(_CHUNK):
                self._count(len(chunk))
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            if self._owners:
                os.fchown(descriptor, *inner_owner(user, group))
            os.fchmod(descriptor, mode & 0o1777)
        finally:
            os.close(descriptor)
        if modified is not None:
            os.utime(place, (modified, modified))

    def link(self, path: str, target: str, user: int, group: int) -> None:
        """Add a symbolic link."""
        place = self._target(path)
        self._clear(place)
        place.symlink_to(target)
        self._own(place, user, group)

    def hard_link(self, path: str, target: str) -> None:
        """Add a hard link, or a copy of a file in a layer below. Raises ``InvalidArchive`` for a missing target."""
        parent, _, name = target.strip("/").rpartition("/")
        found = self._tree.find(f"{self._tree.resolve(f'{parent}/-')[:-1]}{name}")
        if found is None or stat.S_ISDIR(found.status.st_mode):
            raise InvalidArchive(f"/{path} is a second name of /{target}, which is not there")
        place = self._target(path)
        if place == found.path:
            return
        self._clear(place)
        if found.path.is_relative_to(self._folder):
            os.link(found.path, place, follow_symlinks=False)
        elif stat.S_ISREG(found.status.st_mode):
            with found.path.open("rb") as content:
                status = found.status
                self.file(path, content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime)
        elif stat.S_ISLNK(found.status.st_mode):
            self.link(path, str(found.path.readlink()), found.status.st_uid, found.status.st_gid)

    def pipe(self, path: str, mode: int, user: int, group: int) -> None:
        """Add a named pipe."""
        place = self._target(path)
        self._clear(place)
        os.mkfifo(place, 0o600)
        place.chmod(mode & 0o777)
        self._own(place, user, group)

    def remove(self, path: str) -> None:
        """Remove a file of the layers below; a file of this layer is kept."""
        place = self._target(path)
        status = status_of(place)
        if status is not None:
            if stat.S_ISDIR(status.st_mode):
                self.opaque(path)
            return
        self._whited_out.add(place)
        if self._below.find(str(place.relative_to(self._folder))) is not None:
            os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))

    def opaque(self, path: str) -> None:
        """Add a directory that hides the layers below. Raises ``OSError`` where the mark cannot be set."""
        place = self._target(path)
        status = status_of(place)
        if status is None or not stat.S_ISDIR(status.st_mode):
            self._clear(place)
            place.mkdir(mode=0o700)
            self._directories[place] = (0o755, None)
        if place == self._folder:
            raise InvalidArchive("The archive removes everything below it, which the root of an image cannot")
        os.setxattr(place, OPAQUE, b"y")

    def copy(self, path: str, source: Path, mode: int | None, user: int, group: int) -> None:
        """Add a copy of a regular file of the host. Raises ``OSError`` for a link and for any other kind of file."""
        # O_NONBLOCK: opening a pipe would wait for a writer.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as content:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(source))
            permissions = stat.S_IMODE(status.st_mode) if mode is None else mode
            self.file(path, content, permissions, user, group, status.st_mtime)

    def finish(self) -> None:
        """Set the modes and times of the directories; nothing may be added afterwards."""
        for place in sorted(self._directories, key=lambda place: len(place.parts), reverse=True):
            mode, modified = self._directories[place]
            place.chmod(mode & 0o1777)
            if modified is not None:
                os.utime(place, (modified, modified))

    def _target(self, path: str) -> Path:
        """Return the path in the folder, after creating its parents; links in them are followed as inside."""
        parent, _, name = path.strip("/").rpartition("/")
        if not name:
            return self._folder
        folder = self._parents.get(parent)
        if folder is None or not folder.is_dir() or folder.is_symlink():
            folder = self._make_parents(self._tree.resolve(f"{parent}/-").rpartition("/")[0])
            self._parents[parent] = folder
        return folder / name

    def _make_parents(self, resolved: str) -> Path:
        place = self._folder
        relative = ""
        for part in resolved.split("/") if resolved else []:
            relative = f"{relative}/{part}" if relative else part
            place = place / part
            status = status_of(place)
            if status is not None and stat.S_ISDIR(status.st_mode):
                continue
            self._clear(place)
            below = self._below.find(relative) if place not in self._whited_out else None
            place.mkdir(mode=0o700)
            if below is not None and stat.S_ISDIR(below.status.st_mode):
                mode, user, group = stat.S_IMODE(below.status.st_mode), below.status.st_uid, below.status.st_gid
            else:
                mode, user, group = self._defaults.get(relative, (0o755, 0, 0))
                if place in self._whited_out:
                    os.setxattr(place, OPAQUE, b"y")
            self._own(place, user, group)
            self._directories[place] = (mode, None)
        return place

    def _clear(self, place: Path) -> None:
        status = status_of(place)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            remove_layer(place)
            # A link may replace the directory: remembered paths below it must not be used again.
            self._parents = {"": self._folder}
            gone = [known for known in self._directories if known.is_relative_to(place)]
            for known in gone:
                del self._directories[known]
        else:
            place.unlink()

    def _own(self, place: Path, user: int, group: int) -> None:
        if self._owners:
            os.chown(place, *inner_owner(user, group), follow_symlinks=False)

    def _count(self, size: int) -> None:
        self.size += size
        if self._limit and self.size > self._limit:
            raise too_large(self._limit)
        if self._progress is not None:
            self._progress(self.size)


def too_large(limit: int) -> ImageTooLarge:
    """Return the error for an image of more than ``limit`` bytes."""
    return ImageTooLarge(
        f"The image has more than {limit / 2**20:,.0f} MiB", "Raise the limit (--max-size), or make the image smaller"
    )


def write_layer(
    folder: Path,
    entries: Iterable[Entry],
    below: Sequence[Path],
    *,
    owners: bool,
    limit: int = 0,
    defaults: Mapping[str, tuple[int, int, int]] | None = None,
) -> int:
    """Write entries into a layer over others; return the bytes written. ``folder`` exists and is the caller's."""
    writer = LayerWriter(folder, below, owners=owners, limit=limit, defaults=defaults)
    for entry in entries:
        match entry.kind:
            case "file":
                writer.file(entry.path, _Content(entry.content), entry.mode or 0, entry.user, entry.group)
            case "directory":
                mode = 0o755 if entry.mode is None else entry.mode
                writer.directory(entry.path, mode, entry.user, entry.group)
            case "link":
                writer.link(entry.path, entry.source, entry.user, entry.group)
            case "copy":
                writer.copy(entry.path, Path(entry.source), entry.mode, entry.user, entry.group)
    writer.finish()
    return writer.size


class _Content:
    """A stream of one chunk; ``io.BytesIO`` would copy the bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int, /) -> bytes:
        content, self._content = self._content, b""
        return content

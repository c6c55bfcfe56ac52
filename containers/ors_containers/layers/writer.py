"""Writing a layer, entry by entry, over those below it.

Invariant: nothing is written outside of the folder, whatever a path or a link says: every component is looked at, and
links are followed as they would be inside.
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

_PIECE = 1 << 20


class Readable(Protocol):
    """Something to read to its end."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        ...


# Tuples, no dataclasses: importing those takes as long as all the rest of a build's process.
class Entry(NamedTuple):
    """One thing to put into a layer. ``copy`` copies a regular file of the host."""

    path: str
    kind: Literal["file", "directory", "link", "copy"]
    content: bytes = b""
    #: Where a link leads, or what is copied.
    source: str = ""
    #: Permission bits; None for those of what is copied, and for 755.
    mode: int | None = None
    user: int = 0
    group: int = 0


class LayerWriter:
    """Fills a new layer over others. ``owners`` is False where one user owns everything.

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
        #: Mode, user and group of directories that are made because something lies in them, by relative path.
        self._defaults = defaults or {}
        self._progress = progress
        #: Set last, deepest first: a directory that may not be written to must still be filled.
        self._directories: dict[Path, tuple[int, float | None]] = {}
        self._parents: dict[str, Path] = {"": folder}
        self._whited_out: set[Path] = set()

    def directory(self, path: str, mode: int, user: int, group: int, modified: float | None = None) -> None:
        """A directory; one that is there keeps what is in it."""
        place = self._place(path)
        if place == self._folder:
            self._own(place, user, group)
            # A folder made by mktemp is its owner's alone; the root of an image is everybody's.
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
        """A directory, unless the layers have something of that name."""
        if self._tree.find(self._tree.resolve(path, last=True)) is None:
            self.directory(path, mode, user, group)

    def file(
        self, path: str, content: Readable, mode: int, user: int, group: int, modified: float | None = None
    ) -> None:
        """A regular file with what ``content`` yields until its end."""
        place = self._place(path)
        self._clear(place)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while piece := content.read(_PIECE):
                self._count(len(piece))
                rest = memoryview(piece)
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
        """A symbolic link."""
        place = self._place(path)
        self._clear(place)
        place.symlink_to(target)
        self._own(place, user, group)

    def hard_link(self, path: str, target: str) -> None:
        """A second name of a file; of one in a layer below, a copy. Raises ``InvalidArchive`` where there is none."""
        parent, _, name = target.strip("/").rpartition("/")
        found = self._tree.find(f"{self._tree.resolve(f'{parent}/-')[:-1]}{name}")
        if found is None or stat.S_ISDIR(found.status.st_mode):
            raise InvalidArchive(f"/{path} is a second name of /{target}, which is not there")
        place = self._place(path)
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
        """A named pipe."""
        place = self._place(path)
        self._clear(place)
        os.mkfifo(place, 0o600)
        place.chmod(mode & 0o777)
        self._own(place, user, group)

    def remove(self, path: str) -> None:
        """What layers below have of this name is gone; what this layer has stays."""
        place = self._place(path)
        status = status_of(place)
        if status is not None:
            if stat.S_ISDIR(status.st_mode):
                self.opaque(path)
            return
        self._whited_out.add(place)
        if self._below.find(str(place.relative_to(self._folder))) is not None:
            os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))

    def opaque(self, path: str) -> None:
        """A directory, of which only what this layer has is there. Raises ``OSError`` where that cannot be marked."""
        place = self._place(path)
        status = status_of(place)
        if status is None or not stat.S_ISDIR(status.st_mode):
            self._clear(place)
            place.mkdir(mode=0o700)
            self._directories[place] = (0o755, None)
        if place == self._folder:
            raise InvalidArchive("The archive removes everything below it, which the root of an image cannot")
        os.setxattr(place, OPAQUE, b"y")

    def copy(self, path: str, source: Path, mode: int | None, user: int, group: int) -> None:
        """A regular file of the host. Raises ``OSError`` for a link, and for anything else but a file."""
        # Not waiting: a pipe in its place would never be opened.
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as content:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", str(source))
            permissions = stat.S_IMODE(status.st_mode) if mode is None else mode
            self.file(path, content, permissions, user, group, status.st_mtime)

    def finish(self) -> None:
        """Set the modes and times of the directories; nothing may be added afterwards."""
        for place in sorted(self._directories, key=lambda place: len(place.parts), reverse=True):
            mode, modified = self._directories[place]
            place.chmod(mode & 0o1777)
            if modified is not None:
                os.utime(place, (modified, modified))

    def _place(self, path: str) -> Path:
        """Where ``path`` lies in the folder, with the directories above it, links in them followed inside."""
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
            # What is forgotten here must not be found again behind a link that takes its place.
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
    """The error for an image of more than ``limit`` bytes."""
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
    """Put files into a layer over others; the bytes written. ``folder`` exists and belongs to the caller."""
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
    """Bytes in one piece; ``io.BytesIO`` would copy them."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int, /) -> bytes:
        content, self._content = self._content, b""
        return content

"""Equal files of layers on one disk: each is a hard link to a file of the store's pool.

What test scripts fetch is mostly the same for many tasks. A file's name in the pool is a digest of its content, owner,
mode and time. Files that were written in the run that made a layer get one time for all, or no two were equal; compiled
Python modules name the time of their source and follow it.

Invariants: a file that was one inode in a layer is one inode afterwards, and two files of a layer never become one: a
container that writes one of them would write both. A file of the pool that no layer has may be removed at any time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ors_containers.layers.tree import OPAQUE

__all__ = ["STAMP", "remove_unshared", "share_layer", "source_of"]

#: The time of files that were written after ``since``: 2000-01-01.
STAMP = 946684800
#: A compiled module: magic number, flags (0: it is valid for a source of that time and size), time, size.
_COMPILED = struct.Struct("<4sIII")


def share_layer(layer: Path, pool: Path, since: float) -> str:
    """Link the files of ``layer`` to equal ones of ``pool``, or into it; return the digest of the layer's content.

    Files that were changed after ``since``, in seconds since 1970, get the time ``STAMP``. The digest is over names,
    kinds, modes, owners and contents. Raises ``OSError``.
    """
    entries = sorted(_entries(layer, ""))
    _stamp(layer, dict(entries), since)
    digest = hashlib.sha256()
    names: dict[int, list[str]] = {}
    contents: dict[int, str] = {}
    for path, status in entries:
        digest.update(f"{path}\0{status.st_mode}\0{status.st_uid}\0{status.st_gid}\0".encode(errors="surrogateescape"))
        if stat.S_ISREG(status.st_mode):
            others = names.setdefault(status.st_ino, [])
            if not others:
                contents[status.st_ino] = _digest(layer / path)
            others.append(path)
            digest.update(f"{others[0]}\0{contents[status.st_ino]}".encode(errors="surrogateescape"))
        elif stat.S_ISLNK(status.st_mode):
            digest.update(os.fsencode((layer / path).readlink()))
        elif stat.S_ISDIR(status.st_mode):
            digest.update(b"opaque" * _is_opaque(layer / path))
        digest.update(b"\0")
    seen: Counter[str] = Counter()
    for number, paths in names.items():
        status = (layer / paths[0]).lstat()
        if not status.st_size or os.listxattr(layer / paths[0], follow_symlinks=False):
            continue
        kind = (contents[number], status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        name = hashlib.sha256(repr(kind).encode()).hexdigest()
        seen[name] += 1
        _share(layer, paths, pool / name[:2] / f"{name}-{seen[name]}")
    return digest.hexdigest()


def remove_unshared(pool: Path) -> int:
    """Remove the files of the pool that no layer has; return their bytes on the disk."""
    freed = 0
    for place in pool.glob("*/*"):
        with contextlib.suppress(OSError):
            status = place.lstat()
            if status.st_nlink == 1:
                place.unlink()
                freed += 512 * status.st_blocks
    return freed


def _share(layer: Path, paths: list[str], shared: Path) -> None:
    """Make the file with these names a link of ``shared``, or ``shared`` one of it."""
    shared.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        os.link(layer / paths[0], shared, follow_symlinks=False)
    except FileExistsError:
        for path in paths:
            partial = layer / PurePosixPath(path).parent / f".shared-{secrets.token_hex(8)}"
            try:
                os.link(shared, partial, follow_symlinks=False)
            except FileNotFoundError:
                return  # it was removed meanwhile: this layer has a file of its own
            except OSError as error:
                if error.errno == errno.EMLINK:
                    return  # as many links as the file system has
                raise
            status = (layer / path).parent.lstat()
            partial.rename(layer / path)
            os.utime((layer / path).parent, ns=(status.st_atime_ns, status.st_mtime_ns))


def _stamp(layer: Path, entries: dict[str, os.stat_result], since: float) -> None:
    """Set the time of files that were changed after ``since``, and name it in the compiled modules of such files."""
    changed = {path for path, status in entries.items() if stat.S_ISREG(status.st_mode) and status.st_mtime > since}
    for path in changed:
        source = source_of(path)
        if source in changed:
            _restamp(layer / path, int(entries[source].st_mtime))
    for path in changed:
        os.utime(layer / path, (STAMP, STAMP), follow_symlinks=False)


def source_of(path: str) -> str:
    """Return the path of a compiled module's source; empty for another file, and for a module without a source."""
    place = PurePosixPath(path)
    if place.suffix != ".pyc" or place.parent.name != "__pycache__":
        return ""
    return str(place.parent.parent / f"{place.name.partition('.')[0]}.py")


def _restamp(place: Path, time: int) -> None:
    """Let a compiled module that is valid for a source of that time be valid for one of the time ``STAMP``."""
    with place.open("rb") as stream:
        head = stream.read(_COMPILED.size)
    if len(head) < _COMPILED.size:
        return
    magic, flags, named, size = _COMPILED.unpack(head)
    if flags == 0 and named == time & 0xFFFFFFFF:
        mode = stat.S_IMODE(place.lstat().st_mode)
        place.chmod(mode | stat.S_IWUSR)
        with place.open("r+b") as stream:
            stream.write(_COMPILED.pack(magic, flags, STAMP, size))
        place.chmod(mode)


def _entries(layer: Path, path: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.scandir(layer / path):
        inside = f"{path}/{entry.name}".lstrip("/")
        yield inside, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(layer, inside)


def _digest(place: Path) -> str:
    with place.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_opaque(place: Path) -> bool:
    try:
        return os.getxattr(place, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False

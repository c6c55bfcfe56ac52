"""Reading of a task's folder that the operator did not write: texts with a limit, and no way out of the folder.

Invariant: only regular files inside the folder are opened, and no more than ``MOST_TEXT`` bytes of a file are read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ..task import FolderProblem

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "MOST_TEXT", "check_place", "check_tree", "exists", "has_name", "read_text"]

#: Bytes of a text: settings, an instruction, a script.
MOST_TEXT = 1 << 20
#: Bytes of all files of a tree that is copied into a sandbox.
MOST_BYTES = 1 << 30
#: Files, folders and links of such a tree.
MOST_ENTRIES = 50_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KINDS = {
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def has_name(folder: Path) -> bool:
    """Return whether a folder's own name is UTF-8 without control characters, so that it can name a task."""
    return _is_sendable(folder.name)


def exists(file: Path) -> bool:
    """Return whether a path is there, also as a link that leads nowhere."""
    return os.path.lexists(file)


def read_text(file: Path, folder: Path) -> str:
    """Read a UTF-8 text of a task's folder. Raises ``FolderProblem``."""
    inside = check_place(file, folder)
    try:
        # Without O_NONBLOCK, a pipe that takes the file's place would be waited for.
        descriptor = os.open(inside, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise FolderProblem(file, f"it is {_kind(mode)}, not a file")
            content = opened.read(MOST_TEXT + 1)
    except FileNotFoundError as error:
        raise FolderProblem(file, _missing(file)) from error
    except OSError as error:
        raise FolderProblem(file, f"it cannot be read: {error.strerror}") from error
    if len(content) > MOST_TEXT:
        raise FolderProblem(file, f"it is larger than {MOST_TEXT >> 20} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FolderProblem(file, "it is not UTF-8 text", line) from error


def check_place(file: Path, folder: Path) -> Path:
    """Return a path of a task's folder with its links followed. Raises ``FolderProblem`` if they lead out of it."""
    try:
        inside = file.resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise FolderProblem(file, "its links form a circle") from error
    if not inside.is_relative_to(folder.resolve()):
        raise FolderProblem(file, "its link leads out of the task's folder")
    if os.path.lexists(file) and inside.is_symlink():
        raise FolderProblem(file, "its links form a circle")
    return inside


def check_tree(tree: Path, folder: Path) -> None:
    """Check a folder that is copied into a sandbox: ``tests``, ``solution``. Raises ``FolderProblem``.

    Links stay inside the task's folder and form no circle; there are no devices, pipes and sockets, and no names that
    are not UTF-8; ``MOST_ENTRIES`` and ``MOST_BYTES`` are kept.
    """
    if not exists(tree):
        return
    if not check_place(tree, folder).is_dir():
        raise FolderProblem(tree, "it is not a folder")
    size = 0
    for entries, (path, mode, length) in enumerate(_walk(tree, folder, frozenset()), 1):
        size += length
        if not _is_sendable(path.name):
            raise FolderProblem(
                tree, f"the name {os.fsencode(path.name)!r} in it is not UTF-8, or has a control character"
            )
        if stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise FolderProblem(path, f"it is {_kind(mode)}")
        if entries > MOST_ENTRIES:
            raise FolderProblem(tree, f"it has more than {MOST_ENTRIES:,} entries")
        if size > MOST_BYTES:
            raise FolderProblem(tree, f"its files are larger than {MOST_BYTES >> 20} MiB")


def _walk(tree: Path, folder: Path, above: frozenset[Path]) -> Iterator[tuple[Path, int, int]]:
    """Yield paths with their mode and size; a link to a folder is walked as if it were one."""
    inside = check_place(tree, folder)
    if inside in above:
        raise FolderProblem(tree, "its links form a circle")
    try:
        names = sorted(os.listdir(inside))  # noqa: PTH208 - names that are not UTF-8 stay as they are
    except OSError as error:
        raise FolderProblem(tree, f"it cannot be read: {error.strerror}") from error
    for name in names:
        path = tree / name
        target = check_place(path, folder)
        try:
            status = target.lstat()
        except OSError:  # a link to a file that is missing is copied as it is
            yield path, stat.S_IFLNK, 0
            continue
        yield path, status.st_mode, status.st_size if stat.S_ISREG(status.st_mode) else 0
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, folder, above | {inside})


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a special file")


def _missing(file: Path) -> str:
    """Say that a file is missing, and which name that differs only in case is there."""
    try:
        names = [path.name for path in file.parent.iterdir() if path.name.casefold() == file.name.casefold()]
    except OSError:
        names = []
    return f"the file is missing; {names[0]} is there, and case counts" if names else "the file is missing"


def _is_sendable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return _CONTROL.search(name) is None

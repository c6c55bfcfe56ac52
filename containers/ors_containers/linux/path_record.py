"""The paths that the processes of a command have used, by kind: as they were named, and as they are without links."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence

from ors_containers.linux.interpreters import interpretation

__all__ = ["KINDS", "MOST_PATHS", "PathRecord"]

#: The kinds of recorded paths, as ``sandbox.RecordedPaths`` has them.
KINDS = ("executed", "opened", "listed", "missing", "scripts", "searched")
#: Paths that are recorded; a command with more is not.
MOST_PATHS = 500_000
_LONGEST, _LONGEST_NAME = 4096, 255
_MOST_LINKS, _MOST_INTERPRETERS = 40, 4
#: Last components of a path that are not the name of a file in the folder before them.
_NO_NAMES = ("", ".", "..")


class PathRecord:
    """The recorded paths of a root, given as an open directory; every path is absolute and inside of it."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.paths: dict[str, set[str]] = {kind: set() for kind in KINDS}
        #: Directories without links, by the paths that led to them.
        self._folders: dict[str, str] = {"/": "/"}

    @property
    def is_full(self) -> bool:
        """Return whether there are more paths than one command may have."""
        return sum(map(len, self.paths.values())) > MOST_PATHS

    def exists(self, path: str) -> bool:
        """Return whether there is something at a path, no link followed."""
        return self._status(path) is not None

    def execute(self, path: str, depth: int = 0) -> None:
        """Record a program, and the interpreter that the kernel starts for it."""
        found, status = self._find(path)
        if status is None:
            self._miss(found)
        elif stat.S_ISREG(status.st_mode):
            known = found in self.paths["executed"]
            self.paths["executed"].update((_normal(path), found))
            if not known and depth < _MOST_INTERPRETERS and (interpreter := self._interpreter(found)):
                self.execute(interpreter, depth + 1)
                self.interpret(interpreter, [interpreter, found], "/", None)

    def interpret(self, program: str, arguments: Sequence[str], folder: str, search_path: str | None) -> None:
        """Record the script that an interpreter is given, and where a Python looks for modules first.

        ``folder`` is its working folder, and ``search_path`` its ``PYTHONPATH``. Another program has neither.
        """
        told = interpretation(program, arguments)
        if told is None:
            return
        script = ""
        for candidate in told.candidates:
            path = f"{folder}/{candidate}" if not candidate.startswith("/") else candidate
            found, status = self._find(path)
            if status is not None and (stat.S_ISREG(status.st_mode) or told.is_python):
                if stat.S_ISREG(status.st_mode):
                    self.paths["scripts"].update((_normal(path), found))
                    found = os.path.dirname(found)
                script = found
                break
        places = [script or folder] * told.looks_here
        if told.is_python and search_path is not None:
            places += [os.path.join(folder, place) for place in search_path.split(":")]
        self.paths["searched"].update(filter(_can_exist, (self._find(place)[0] for place in places)))

    def open(self, path: str, flags: int) -> None:
        """Record a file that is opened for reading, or a directory; a new file is not one."""
        if flags & os.O_ACCMODE == os.O_WRONLY:
            return
        found, status = self._find(path)
        if status is None:
            if not flags & os.O_CREAT:
                self._miss(found)
        elif stat.S_ISREG(status.st_mode):
            self.paths["opened"].update((_normal(path), found))
        elif stat.S_ISDIR(status.st_mode):
            self.paths["listed"].add(found)

    def look(self, path: str) -> None:
        """Record a path that is looked for in vain."""
        found, status = self._find(path)
        if status is None:
            self._miss(found)

    def _miss(self, path: str) -> None:
        if _can_exist(path):
            self.paths["missing"].add(path)

    def _find(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return a path without links, and the status of what is there; links on the way are recorded as opened."""
        folder, _, name = path.rpartition("/")
        waiting = [*reversed([part for part in path.split("/") if part])]
        done = "/"
        if name not in _NO_NAMES and (known := self._folders.get(folder or "/")) is not None:
            done, waiting = known, [name]
        status: os.stat_result | None = self._status("/") if not waiting else None
        links = 0
        while waiting:
            part = waiting.pop()
            if part in (".", ".."):
                done = done if part == "." else os.path.dirname(done)
                status = self._status(done)
                continue
            here = f"{done.rstrip('/')}/{part}"
            status = self._status(here)
            if status is None:
                return "/".join([here, *reversed(waiting)]), None
            if stat.S_ISLNK(status.st_mode):
                links += 1
                self.paths["opened"].add(here)
                target = self._link(here)
                if links > _MOST_LINKS or target is None:
                    return here, None
                if target.startswith("/"):
                    done = "/"
                waiting += [*reversed([piece for piece in target.split("/") if piece])]
                status = self._status(done)
                continue
            done = here
        above = os.path.dirname(done)
        if links == 0 and name not in _NO_NAMES and not self._folders.keys() >= {folder or "/"}:
            self._folders[folder or "/"] = above
        return done, status

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(path.lstrip("/") or ".", dir_fd=self._root, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(path.lstrip("/"), dir_fd=self._root)
        except OSError:
            return None

    def _interpreter(self, path: str) -> str:
        """Return the interpreter of a script, or the loader of an ELF program; empty for neither."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path.lstrip("/"), flags, dir_fd=self._root)
        except OSError:
            return ""
        try:
            head = os.pread(descriptor, 256, 0)
            if head.startswith(b"#!"):
                words = head[2:].partition(b"\n")[0].split()
                return os.fsdecode(words[0]) if words and words[0].startswith(b"/") else ""
            return _loader(descriptor, head)
        except (OSError, struct.error):
            return ""
        finally:
            os.close(descriptor)


def _loader(descriptor: int, head: bytes) -> str:
    """Return the path of the program that loads a 64-bit ELF file; empty for another file."""
    if head[:6] != b"\x7fELF\x02\x01":
        return ""
    at, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<H", head, 54), head[56]
    for number in range(count):
        header = os.pread(descriptor, 56, at + number * size)
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", header)
        if kind == 3 and length <= _LONGEST:  # PT_INTERP
            return os.fsdecode(os.pread(descriptor, length, offset).partition(b"\0")[0])
    return ""


def _can_exist(path: str) -> bool:
    """Return whether a file can have this path: a browser looks for its whole command line, which none can have."""
    return all(len(os.fsencode(name)) <= _LONGEST_NAME for name in path.split("/"))


def _normal(path: str) -> str:
    return os.path.normpath(path)

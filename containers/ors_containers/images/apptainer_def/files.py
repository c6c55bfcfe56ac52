"""Files that a definition copies from the machine that builds it: the sources of ``%files``.

A definition may come from a stranger, and every user of a sandbox of the image can read the files it copies.

Invariant: without ``host_files``, nothing outside of the definition's folder is read, all links followed. Anything but
a regular file or a directory raises ``InvalidDefinition`` with the line; it is neither opened nor skipped.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ors_containers.images.apptainer_def.parser import Definition
from ors_containers.layers.writer import too_large

__all__ = ["FoundFile", "Source", "SourceFinder", "lies_inside"]

_MAX_FILES = 200_000
_MAX_SHOWN = 200
_REMEDY = "Put the file itself there, or, for a definition of your own: ors-server image build --host-files"


@dataclass(frozen=True, slots=True)
class Source:
    """A line of ``%files``, and the paths that its pattern matches."""

    line: int
    pattern: str
    target: str
    found: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file or directory that is copied."""

    #: Its path below the source, with a leading slash; empty for the source itself.
    relative: str
    #: Its path without links.
    real: Path
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        """``True`` for a directory, ``False`` for a regular file."""
        return stat.S_ISDIR(self.status.st_mode)


def lies_inside(path: Path, folder: Path) -> bool:
    """Return whether ``path``, links followed, lies in ``folder``; it may be missing. Raises ``OSError``."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


class SourceFinder:
    """The files that ``%files`` of a definition copies, by their paths; no file is read.

    ``host_files`` allows any file of this machine. ``limit`` is the most bytes of all files together. The methods raise
    ``InvalidDefinition`` with the line, and ``ImageTooLarge``.
    """

    def __init__(self, definition: Definition, *, host_files: bool = False, limit: int = 0) -> None:
        self._definition = definition
        self._host_files = host_files
        self._limit = limit
        self._folder = definition.path.parent
        self._files = 0
        self._size = 0

    def sources(self) -> list[Source]:
        """Return the lines of ``%files``."""
        sources: list[Source] = []
        for line, pattern, target in self._definition.files():
            parts = pattern.split("/")
            if not self._host_files and (pattern.startswith("/") or ".." in parts):
                raise self._definition.error(
                    line, f"%files names {_shown(pattern)}, which is outside of the definition's folder", _REMEDY
                )
            whole = pattern if pattern.startswith("/") else f"{glob.escape(str(self._folder))}/{pattern}"
            found = tuple(sorted(Path(name) for name in glob.glob(whole)))  # noqa: PTH207 - patterns may be absolute
            if not found:
                raise self._definition.error(line, f"%files names {_shown(pattern)}, which is not there")
            sources.append(Source(line, pattern, target, found))
        return sources

    def tree(self, line: int, path: Path) -> Iterator[FoundFile]:
        """Yield a source and everything in it, a directory before its content."""
        pending: list[tuple[str, Path, tuple[Path, ...]]] = [("", path, ())]
        while pending:
            relative, place, above = pending.pop()
            try:
                real = self._follow(line, place, first=not above)
                status = real.lstat()
                inner = sorted(real.iterdir(), reverse=True) if stat.S_ISDIR(status.st_mode) else []
            except OSError as error:
                raise self._definition.error(
                    line, f"%files copies {_shown(place)}, which cannot be read: {error.strerror}"
                ) from error
            if stat.S_ISDIR(status.st_mode):
                if real in above:
                    raise self._definition.error(
                        line, f"%files copies {_shown(place)}, which leads back to a directory that it lies in"
                    )
                pending += [(f"{relative}/{entry.name}", entry, (*above, real)) for entry in inner]
            elif not stat.S_ISREG(status.st_mode):
                raise self._definition.error(
                    line, f"%files copies {_shown(place)}, which is neither a regular file nor a directory"
                )
            self._count(line, status)
            yield FoundFile(relative, real, status)

    def _follow(self, line: int, place: Path, *, first: bool) -> Path:
        """Return ``place`` without links. Within a directory only the last part of a path can be a link."""
        if not first and not stat.S_ISLNK(place.lstat().st_mode):
            return place
        real = Path(os.path.realpath(place, strict=True))
        if not self._host_files and not lies_inside(real, self._folder):
            raise self._definition.error(
                line, f"%files copies {_shown(place)}, a link that leads out of the definition's folder", _REMEDY
            )
        return real

    def _count(self, line: int, status: os.stat_result) -> None:
        self._files += 1
        if self._files > _MAX_FILES:
            raise self._definition.error(line, f"%files copies more than {_MAX_FILES:,} files", "Pack them: files.tar")
        if stat.S_ISREG(status.st_mode):
            self._size += status.st_size
            if self._limit and self._size > self._limit:
                raise too_large(self._limit)


def _shown(path: Path | str) -> str:
    text = str(path)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"

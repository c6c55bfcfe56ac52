"""Folders so deep that no path names them: removed from the files of an ended container.

The kernel lets a process nest folders without end, and refuses paths of more than 4,096 bytes. Every program that takes
a tree by its paths fails on such a one, ours and the ``cp`` of the machine. A failure that an agent can cause is a lost
episode in the place of a 0, so nothing sees such folders: no verifier could have named them.

Invariants: one descriptor is open, whatever the depth; no link is followed. Nothing else may change the tree.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["DEEPEST", "LONGEST", "remove_deep_folders"]

#: Folders within each other that stay: functions that call themselves for each one have room.
DEEPEST = 200
#: Bytes of a folder's path below the root that stay. A name in it, and the layer's own folder, fit into the rest.
LONGEST = 3000


def remove_deep_folders(root: str | os.PathLike[str]) -> None:
    """Remove the folders below ``root`` that are too deep, or have too long a path. Raises ``OSError``."""
    _Walk(root).run()


@dataclass
class _Level:
    """A folder on the way down."""

    name: bytes
    #: Bytes of its path.
    length: int
    #: It lies in a folder that is removed, or is one.
    removed: bool
    #: Names of its folders that were not entered yet.
    waiting: list[bytes]


class _Walk:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._levels = [_Level(b"", 0, removed=False, waiting=[])]

    def run(self) -> None:
        try:
            self._read()
            while self._levels[-1].waiting or len(self._levels) > 1:
                if self._levels[-1].waiting:
                    self._enter(self._levels[-1].waiting.pop())
                else:
                    self._leave()
        finally:
            os.close(self._here)

    def _enter(self, name: bytes) -> None:
        above = self._levels[-1]
        length = above.length + 1 + len(name)
        too_deep = len(self._levels) > DEEPEST or length > LONGEST
        self._move(name)
        self._levels.append(_Level(name, length, removed=above.removed or too_deep, waiting=[]))
        self._read()

    def _leave(self) -> None:
        left = self._levels.pop()
        self._move(b"..")
        if left.removed:
            os.rmdir(left.name, dir_fd=self._here)

    def _move(self, name: bytes) -> None:
        there = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._here)
        os.close(self._here)
        self._here = there

    def _read(self) -> None:
        """Note the folders that are here; where this one is removed, remove everything else."""
        level = self._levels[-1]
        for entry in os.scandir(self._here):
            name = os.fsencode(entry.name)
            if entry.is_dir(follow_symlinks=False):
                level.waiting.append(name)
            elif level.removed:
                os.unlink(name, dir_fd=self._here)

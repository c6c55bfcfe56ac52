"""The layers that living processes use: each process records its own in a locked file.

The kernel unlocks the file when the process ends, and the next process removes it. Invariant: a layer is recorded
before it is used; the caller sees to it that none is removed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ors_containers.linux.file_locks import create_lock, try_locked

__all__ = ["MARK_INTERVAL", "LayerLeases"]

#: Seconds after which the use of a layer is recorded again.
MARK_INTERVAL = 3600.0


class LayerLeases:
    """The leases of one folder, this process's among them. Every method raises ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: When this process last recorded its use of a layer.
        self._marked: dict[str, float] = {}
        self._lease: int | None = None
        self._path: Path | None = None

    @property
    def is_open(self) -> bool:
        """True where this process has its file."""
        return self._lease is not None

    def open(self) -> int:
        """Create this process's file, which is locked as long as it lives; return its descriptor."""
        while self._lease is None:  # another process may just be looking for files of dead processes
            self._path = self._folder / secrets.token_hex(8)
            self._lease = create_lock(self._path)
        return self._lease

    def unmarked(self, keys: Iterable[str]) -> list[str]:
        """Return those of the layers whose use is to be recorded, for the first time or again."""
        now = time.time()
        return [key for key in keys if now - self._marked.get(key, 0.0) > MARK_INTERVAL]

    def mark(self, keys: Sequence[str]) -> None:
        """Record that this process uses these layers for as long as it lives."""
        os.write(self.open(), "".join(f"{key}\n" for key in keys if key not in self._marked).encode())
        self._marked.update(dict.fromkeys(keys, time.time()))

    def release(self, keys: Iterable[str]) -> None:
        """End this process's use of layers, which others may remove from then on."""
        known = [key for key in keys if self._marked.pop(key, None) is not None]
        if known and self._lease is not None:
            os.ftruncate(self._lease, 0)
            os.lseek(self._lease, 0, os.SEEK_SET)
            os.write(self._lease, "".join(f"{key}\n" for key in self._marked).encode())

    def in_use(self) -> set[str]:
        """Return the layers that living processes use, this one included. Removes the files of dead ones."""
        used = set(self._marked)  # this process's own file cannot be locked by itself
        for path in self._folder.glob("*"):
            with contextlib.suppress(FileNotFoundError), try_locked(path) as is_dead:
                if is_dead:
                    path.unlink(missing_ok=True)
                else:
                    used.update(path.read_text().split())
        return used

    def close(self) -> None:
        """Release every layer and remove this process's file."""
        if self._lease is not None:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
            os.close(self._lease)
            self._lease = None
        self._marked.clear()

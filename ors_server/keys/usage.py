"""The use that keys make of their limits, counted over all workers of a server on one machine.

Each process counts in a file of its own in the folder that the workers share, and the sum over all files is what
counts; a process without such a folder counts in its memory. Only keys with a limit are counted.

The sum never exceeds a limit: a process first adds its use, then looks at the sum, and takes back what is too much. Two
that do so together may both be refused, and their clients retry. A process locks its file while it lives, and the files
of processes that ended do not count. Each number is one aligned machine word: a reader sees its old or its new value.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from enum import IntEnum
from pathlib import Path

from ors_containers.linux.file_locks import try_lock, try_locked

from ors_server.keys.errors import KeyBusy
from ors_server.keys.key import Key

__all__ = ["Kind", "Usage"]

#: Rows of a file, one a key: keys above that number are not limited. Words of a row: the key, its counts.
_ROWS, _ROW, _WORD = 4096, 4, 8
_COUNTS = "usage-{}"
_RATES = "usage-rates"
#: Units of the time in a file of rates, in a second: a word holds an integer.
_TICKS = 1e9


class Kind(IntEnum):
    """A thing that is counted, by its word in a row."""

    SESSIONS = 1
    CALLS = 2


class _Table:
    """A file of rows, each found by the digest of its key."""

    def __init__(self, path: Path | None, *, own: bool = True) -> None:
        size = _ROWS * _ROW * _WORD
        if path is None:
            memory = mmap.mmap(-1, size)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if own:
                    try_lock(descriptor)
                    os.ftruncate(descriptor, 0)  # of an earlier process
                os.ftruncate(descriptor, size)
                memory = mmap.mmap(descriptor, size)  # has a duplicate, which also holds the lock
            finally:
                os.close(descriptor)
        self.words = memoryview(memory).cast("Q")

    def row(self, key: Key, *, make: bool) -> int | None:
        """Return the first word of a key's row; None where it has none."""
        wanted = int.from_bytes(key.digest[:_WORD], "little") or 1
        first = wanted % _ROWS
        for number in range(first, first + _ROWS):
            at = number % _ROWS * _ROW
            if self.words[at] == wanted:
                return at
            if not self.words[at]:
                if make:
                    self.words[at] = wanted
                    return at
                return None
        return None


class Usage:
    """The counts of one process. ``folder`` is that of its server, in which it has this ``slot``."""

    def __init__(self, folder: Path | None = None, slot: int = 0) -> None:
        self._folder = folder
        self._path = None if folder is None else folder / _COUNTS.format(slot)
        self._own: _Table | None = None
        self._rates: _Table | None = None
        self._others: dict[Path, _Table] = {}

    def begin(self, key: Key, kind: Kind) -> None:
        """Count a session or a call of a key. Raises ``KeyBusy`` above its limit."""
        limit = _limit(key, kind)
        if limit is None:
            return
        if self._own is None:
            self._own = _Table(self._path)
        at = self._own.row(key, make=True)
        if at is None:
            return
        self._own.words[at + kind] += 1
        if self._sum(key, kind) > limit and (self._forget_ended() or self._sum(key, kind) > limit):
            self._own.words[at + kind] -= 1
            raise KeyBusy(key.name, f"{limit} {kind.name.lower()} at once")

    def end(self, key: Key, kind: Kind) -> None:
        """Count it no longer."""
        at = None if self._own is None or _limit(key, kind) is None else self._own.row(key, make=False)
        if self._own is not None and at is not None:
            self._own.words[at + kind] -= 1

    def take_turn(self, key: Key) -> None:
        """Count a request. A client may save up those of a second. Raises ``KeyBusy`` above the key's rate."""
        rate = key.limits.rate
        if rate is None:
            return
        if self._rates is None:
            self._rates = _Table(None if self._folder is None else self._folder / _RATES, own=False)
        at = self._rates.row(key, make=True)
        if at is None:
            return
        # The time at which the key has used up its turns. Two processes may overwrite each other: both let one in.
        now = time.monotonic()
        used_up = max(self._rates.words[at + 1] / _TICKS, now - max(1.0, 1 / rate)) + 1 / rate
        if used_up > now:
            raise KeyBusy(key.name, f"{rate:g} requests a second", used_up - now)
        self._rates.words[at + 1] = int(used_up * _TICKS)

    def _sum(self, key: Key, kind: Kind) -> int:
        assert self._own is not None
        total = 0
        for table in (self._own, *self._tables_of_others()):
            at = table.row(key, make=False)
            total += 0 if at is None else table.words[at + kind]
        return total

    def _tables_of_others(self) -> list[_Table]:
        if self._folder is None:
            return []
        for path in self._folder.glob(_COUNTS.format("[0-9]*")):
            if path != self._path and path not in self._others:
                with contextlib.suppress(OSError):
                    self._others[path] = _Table(path, own=False)
        return list(self._others.values())

    def _forget_ended(self) -> bool:
        """Remove the files of processes that ended; return whether all of the others live."""
        ended = False
        for path in list(self._others):
            with contextlib.suppress(OSError), try_locked(path) as free:
                if free:
                    del self._others[path]
                    path.unlink(missing_ok=True)
                    ended = True
        return not ended


def _limit(key: Key, kind: Kind) -> int | None:
    return key.limits.sessions if kind is Kind.SESSIONS else key.limits.calls

"""Reservations: memory and process ids that sandboxes are expected to use soon, their open files, and starts under way.

The reservations of one process are in its memory. Several processes of a node, such as the workers of a server, share a
file: a table with a row for each process, which every process maps. Each subtracts the reservations of all rows from
what it measures, so that they do not admit the same capacity twice.

The table is right after a crash at any point, for these reasons:

- A process writes its own row only. A row counts while its process holds the row's lock (``fcntl``), which the kernel
  releases when the process ends, however it ends. So the reservations of a killed process are free at once, and a row
  that it had half written does not count either. A process id would not do: workers may have process ids of their own.
- A process checks and reserves under the lock of the table, which the kernel releases in the same way. So two processes
  do not find the same capacity free. The lock is held for some microseconds and across no ``await``. A process that is
  stopped while it holds the lock delays the others for ``_PATIENCE`` at each check, and they then queue.
- A reservation shrinks by the clock, which all processes share, and not by a further write. So a process that is
  stopped or hangs keeps nothing for longer than ``lifetime``.
- Each number is one aligned machine word, which is written at once: a reader sees its old or its new value.

A process ends its starts and withdraws reservations without the lock of the table: this only makes the sums smaller.

A process whose requests wait for room, and that has no warm sandbox to stop for them, marks its row for a moment.
The others then stop warm sandboxes of theirs (``pool``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from ors_containers.errors import RuntimeUnavailable

__all__ = ["Reservation", "Reservations", "Totals", "reservations_of_node"]

#: Seconds over which a reservation shrinks to nothing, as the sandbox's use shows in the measured figures.
_LIFETIME = 10.0
#: Seconds to wait for the lock of the table, and between two tries.
_PATIENCE = 0.005
_PAUSE = 0.0002
_OPENING_PATIENCE = 1.0
#: A reservation belongs to the tenth of a lifetime in which it was made. Eleven tenths count at a time.
_PARTS = 10
_BUCKETS = 12
#: Words of a row: the starts under way, then each bucket's number, memory and process ids.
_STARTING = 0
_FIRST_BUCKET = 1
#: Word of a row: the time until which the process asks the others for room, in milliseconds of ``time.monotonic``.
_ASKING = _FIRST_BUCKET + 3 * _BUCKETS
#: Word of a row: the files that its sandboxes may open, for as long as they live.
_FILES = _ASKING + 1
_ROW = 64
#: Seconds for which one ``ask_for_room`` holds.
_ASKED_FOR = 0.5
#: Rows of a file. The first is the table's own: its first word is the number of rows that were ever used, itself among
#: them, and its first byte is locked by the process that makes a reservation.
_ROWS = 1024
_WORD = 8
#: ``struct flock`` of 64-bit Linux: type, origin of the offset, start, length, process.
_FLOCK = "hhqqi0q"


class Reservation(NamedTuple):
    """Memory in bytes and process ids that were reserved in one part of the clock."""

    bucket: int
    memory: int
    pids: int


class Totals(NamedTuple):
    """Sums over the living processes."""

    memory: int
    pids: int
    #: Starts under way, and those of them that are this process's.
    starting: int
    own_starting: int
    #: Processes that start a sandbox, this one among them in any case.
    active: int
    #: Files that the sandboxes may open.
    files: int = 0


class Reservations:
    """The reservations of this process, or with a ``path``, of all processes with that file.

    A process has one object a file (``reservations_of_node``), because ``fcntl`` locks are those of a process.
    ``lifetime`` is in seconds and the same in all processes. Safe to use from several threads.
    """

    def __init__(self, path: Path | None = None, *, lifetime: float = _LIFETIME) -> None:
        self._part = lifetime / _PARTS
        self._guard = threading.RLock()
        self._file: int | None = None
        self._words = memoryview(bytearray(2 * _ROW * _WORD)).cast("q")
        self._row = 1
        self._words[0] = 2
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise RuntimeUnavailable(
                    f"The table of reservations {path} cannot be used: {error.strerror}",
                    "ORS_NODE_TABLE must name a file that this user can write, on a local file system with room.",
                ) from error

    @property
    def shared(self) -> bool:
        """True if other processes may have reservations, too."""
        return self._file is not None

    @contextlib.contextmanager
    def exclusive(self, patience: float = _PATIENCE) -> Generator[bool]:
        """Let no other process check and reserve while the block runs, which must not wait for anything.

        Yields False where another process holds the lock for longer than ``patience`` (seconds).
        """
        with self._guard:
            end = time.monotonic() + patience
            while not (locked := self._lock(0)) and time.monotonic() < end:
                time.sleep(_PAUSE)
            try:
                yield locked
            finally:
                if locked:
                    self._unlock(0)

    def add(self, memory: int, pids: int) -> Reservation:
        """Reserve bytes of memory and process ids, which shrink to nothing."""
        number = int(self._now())
        with self._guard:
            place = self._place(number)
            if self._words[place] != number:
                self._words[place + 1] = self._words[place + 2] = 0
                self._words[place] = number
            self._words[place + 1] += memory
            self._words[place + 2] += pids
        return Reservation(number, memory, pids)

    def withdraw(self, reservation: Reservation) -> None:
        """Take a reservation back; nothing is left of one that is older than the lifetime."""
        with self._guard:
            place = self._place(reservation.bucket)
            if self._words[place] == reservation.bucket:
                self._words[place + 1] -= reservation.memory
                self._words[place + 2] -= reservation.pids

    def begin_start(self) -> None:
        """Count a start."""
        with self._guard:
            self._words[self._row * _ROW + _STARTING] += 1

    def end_start(self) -> None:
        """Count a start no longer."""
        with self._guard:
            self._words[self._row * _ROW + _STARTING] -= 1

    def hold_files(self, count: int) -> None:
        """Count files that a sandbox may open, until the same number is taken back: they do not shrink by the clock."""
        with self._guard:
            self._words[self._row * _ROW + _FILES] += count

    def totals(self) -> Totals:
        """Return the sums of all living processes; takes some microseconds for each."""
        now = self._now()
        memory, pids, starting, own_starting, active, files = 0.0, 0, 0, 0, 1, 0
        for row in range(1, self._words[0]):
            words = self._words[row * _ROW : (row + 1) * _ROW].tolist()
            if not any(words) or (row != self._row and not self._is_locked(row)):
                continue
            starting += words[_STARTING]
            files += words[_FILES]
            if row == self._row:
                own_starting = words[_STARTING]
            elif words[_STARTING]:
                active += 1
            for place in range(_FIRST_BUCKET, _FIRST_BUCKET + 3 * _BUCKETS, 3):
                left = (words[place] + 1 + _PARTS - now) / _PARTS
                if left > 0:
                    memory += words[place + 1] * min(1.0, left)
                    pids += words[place + 2]
        return Totals(round(memory), pids, starting, own_starting, active, files)

    def ask_for_room(self) -> None:
        """Ask the other processes for a moment to stop what they can do without."""
        with self._guard:
            self._words[self._row * _ROW + _ASKING] = round((time.monotonic() + _ASKED_FOR) * 1000)

    def others_ask_for_room(self) -> bool:
        """Return whether another living process asks for room."""
        now = time.monotonic() * 1000
        return any(
            row != self._row and self._words[row * _ROW + _ASKING] > now and self._is_locked(row)
            for row in range(1, self._words[0])
        )

    # --- details -----------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() / self._part

    def _place(self, number: int) -> int:
        return self._row * _ROW + _FIRST_BUCKET + 3 * (number % _BUCKETS)

    def _open(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # All processes make it the same size. A page without a place on a full disk would end the process at a write.
        os.posix_fallocate(self._file, 0, _ROWS * _ROW * _WORD)
        self._words = memoryview(mmap.mmap(self._file, 0)).cast("q")
        with self.exclusive(_OPENING_PATIENCE) as locked:
            if not locked:
                raise OSError(errno.EAGAIN, "another process keeps it locked")
            row = next((row for row in range(1, _ROWS) if self._lock(row)), None)
            if row is None:
                raise OSError(errno.ENOSPC, "all of its rows are in use")
            for word in range(row * _ROW, (row + 1) * _ROW):
                self._words[word] = 0
            self._words[0] = max(self._words[0], row + 1)
            self._row = row

    def _lock(self, row: int) -> bool:
        """Lock a row, or the table, unless another process has; return whether it was free."""
        if self._file is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row * _ROW * _WORD)
        except (BlockingIOError, PermissionError):  # what POSIX allows for a lock that is held
            return False
        return True

    def _unlock(self, row: int) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, row * _ROW * _WORD)

    def _is_locked(self, row: int) -> bool:
        """Return whether another process holds a row."""
        assert self._file is not None
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, row * _ROW * _WORD, 1, 0)
        return struct.unpack(_FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK


_opened: dict[Path, Reservations] = {}
_opening = threading.Lock()


def reservations_of_node(path: Path) -> Reservations:
    """Return this process's object for a file. Raises ``RuntimeUnavailable``."""
    with _opening:
        key = path.resolve()
        if key not in _opened:
            _opened[key] = Reservations(key)
        return _opened[key]

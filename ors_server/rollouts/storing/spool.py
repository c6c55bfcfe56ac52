"""Uploads and records that wait on the disk while a PostgreSQL database cannot be reached.

They lie in a small SQLite file of the data directory, in their order, until they are stored. All processes with this
data directory share it: any of them stores what a killed one left. A process that ends between storing a portion and
removing it makes another store it again, which changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ors_server.rollouts.location import make_folder, make_private

if TYPE_CHECKING:
    from ors_server.rollouts.recording.batches import Batches

__all__ = ["Portion", "Spool"]

_FILE = "rollouts-waiting.sqlite3"
_PATIENCE = 10.0
_TABLE = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,  -- "upload" or "records"
    owner TEXT,
    body BLOB NOT NULL
)
"""


class Portion(NamedTuple):
    """The oldest things that wait."""

    #: Number, owner and body of each upload.
    uploads: list[tuple[int, str | None, bytes]]
    records: list[Batches]
    #: The number of the last of them.
    last: int


class Spool:
    """Things that wait in a data directory. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _FILE
        self._connection: sqlite3.Connection | None = None

    @property
    def exists(self) -> bool:
        """True where something has ever waited here."""
        return self._path.exists()

    @property
    def empty(self) -> bool:
        """True where nothing waits."""
        if not self.exists:
            return True
        try:
            return self._open().execute("SELECT 1 FROM waiting LIMIT 1").fetchone() is None
        except sqlite3.Error:
            return True  # it cannot be read now; what waits in it is stored when it can be

    def add(self, uploads: Sequence[tuple[str | None, bytes]], records: Sequence[Batches]) -> None:
        """Add to the end, on the disk when this returns. Raises ``sqlite3.Error`` and ``OSError``."""
        rows = [
            *(("upload", owner, body) for owner, body in uploads),
            *(("records", None, some.to_json()) for some in records),
        ]
        if rows:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                connection.executemany("INSERT INTO waiting (kind, owner, body) VALUES (?, ?, ?)", rows)

    @contextlib.contextmanager
    def draining(self) -> Generator[bool]:
        """Take the right to store and remove what waits; False where another process has it."""
        descriptor = os.open(self._folder / f"{_FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def oldest(self, limit: int) -> Portion | None:
        """Return the oldest things, of about ``limit`` bytes; None where nothing waits."""
        from ors_server.rollouts.recording.batches import Batches

        portion = Portion([], [], 0)
        size = 0
        for number, kind, owner, body in self._open().execute(
            "SELECT number, kind, owner, body FROM waiting ORDER BY number"
        ):
            if portion.last and (size > limit or (kind == "upload" and portion.records)):
                break  # an upload after records is stored after them
            portion = portion._replace(last=number)
            size += len(body)
            if kind == "upload":
                portion.uploads.append((number, owner, body))
            else:
                portion.records.append(Batches.from_json(body))
        return portion if portion.last else None

    def remove(self, last: int) -> None:
        """Remove everything up to a number: it is stored."""
        self._open().execute("DELETE FROM waiting WHERE number <= ?", (last,))

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            make_folder(self._folder, self._path)
            make_private(self._path)
            connection = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(_TABLE)
            self._connection = connection
        return self._connection

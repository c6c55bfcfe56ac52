"""The file that holds the rollouts: one SQLite database, its tables, and how events get into them.

Invariant: what is stored depends on which events came, not on their order or how often. An event's id is unique and the
first one with it stays; a message makes its rollout's row where it comes first; what a rollout's row says of its
messages is counted again, from them, whenever one is added; updates are put together when they are read, by their
timestamps. No key of an event is dropped: unknown keys are in the column ``other``.

Any number of processes may have the file open (WAL): the server writes while commands read, and two servers may share
one.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ors_server.encoding import encode
from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.events import Event, MessageEvent, RolloutEvent

__all__ = ["FILE_NAME", "Additions", "data_directory", "explained", "open_to_read", "open_to_write", "run_id"]

FILE_NAME = "rollouts.sqlite3"
#: Seconds to wait for another process that is writing.
PATIENCE = 10.0
_VERSION = 1
#: Makes a run's id from its name: the same in every file.
_RUNS = uuid.UUID("6f7b3a52-2f0b-5d0c-9d1e-0f4b8d7c1a90")

_SCHEMA = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) WITHOUT ROWID;

-- Times are milliseconds since 1970, by the clients' clocks. What is an object in an event is JSON.
CREATE TABLE rollouts (
    id TEXT PRIMARY KEY,
    run_id TEXT REFERENCES runs (id),  -- none until the rollout's own event has come
    name TEXT,
    environment TEXT,
    variant TEXT,
    split TEXT,
    step INTEGER,
    started_at INTEGER,
    first_message_at INTEGER,
    last_message_at INTEGER,
    num_messages INTEGER NOT NULL DEFAULT 0,
    max_reward REAL,
    finished INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER GENERATED ALWAYS AS (coalesce(started_at, first_message_at)) VIRTUAL,
    task_spec TEXT,
    metadata TEXT,
    run_info TEXT,
    environment_id TEXT,
    variant_id TEXT,
    other TEXT
);
CREATE INDEX rollouts_by_run ON rollouts (run_id, created_at);
CREATE INDEX rollouts_by_time ON rollouts (created_at);

CREATE TABLE messages (
    id TEXT PRIMARY KEY,
    rollout_id TEXT NOT NULL,
    position INTEGER NOT NULL,
    sent_at INTEGER NOT NULL,
    reward REAL,
    finished INTEGER NOT NULL,
    type TEXT NOT NULL,
    name TEXT,
    call_id TEXT,
    summary TEXT,
    content_reference TEXT,
    environment_id TEXT,
    metadata TEXT,
    other TEXT,
    content TEXT
);
-- All that a rollout's row says of its messages, so that counting does not read what they say.
CREATE INDEX messages_by_rollout ON messages (rollout_id, position, sent_at, reward, finished);

CREATE TABLE updates (
    rollout_id TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    rollout_info TEXT NOT NULL,
    PRIMARY KEY (rollout_id, sent_at, rollout_info)
) WITHOUT ROWID;
"""

_ADD_RUN = "INSERT INTO runs (id, name) VALUES (?, ?) ON CONFLICT DO NOTHING"
_ADD_ROLLOUT = """
INSERT INTO rollouts (id, run_id, name, environment, variant, split, step, started_at, task_spec, metadata, run_info,
    environment_id, variant_id, other)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    run_id = excluded.run_id, name = excluded.name, environment = excluded.environment, variant = excluded.variant,
    split = excluded.split, step = excluded.step, started_at = excluded.started_at, task_spec = excluded.task_spec,
    metadata = excluded.metadata, run_info = excluded.run_info, environment_id = excluded.environment_id,
    variant_id = excluded.variant_id, other = excluded.other
WHERE rollouts.run_id IS NULL
"""
_ADD_MESSAGE = """
INSERT INTO messages (id, rollout_id, position, sent_at, reward, finished, type, name, call_id, summary,
    content_reference, environment_id, metadata, other, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_COUNT_MESSAGES = """
INSERT INTO rollouts (id, num_messages, max_reward, finished, first_message_at, last_message_at)
SELECT rollout_id, count(*), max(reward), max(finished), min(sent_at), max(sent_at) FROM messages WHERE rollout_id = ?
GROUP BY rollout_id
ON CONFLICT (id) DO UPDATE SET
    num_messages = excluded.num_messages, max_reward = excluded.max_reward, finished = excluded.finished,
    first_message_at = excluded.first_message_at, last_message_at = excluded.last_message_at
"""
_ADD_UPDATE = "INSERT INTO updates (rollout_id, sent_at, rollout_info) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


def run_id(name: str) -> str:
    """Return the id of a run, which clients know by its name alone."""
    return str(uuid.uuid5(_RUNS, name))


def data_directory(configured: Path) -> Path:
    """Return the directory that a setting names; without a home directory ``~`` stays, and is refused on use."""
    try:
        return configured.expanduser()
    except RuntimeError:
        return configured


def open_to_write(folder: Path) -> sqlite3.Connection:
    """Open the file of a data directory; create both if they are missing.

    Raises ``sqlite3.Error``, ``OSError`` and ``StoreUnavailable``.
    """
    if folder.parts[:1] == ("~",):
        raise StoreUnavailable(
            "This server's user has no home directory to keep rollouts in", "Set ORS_DATA_DIR on the server"
        )
    # Uploads may hold anything, secrets among it.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _open_to_write(folder / FILE_NAME)
        except sqlite3.OperationalError as error:
            # SQLite waits for most locks by itself, but not for that of another process that makes the file just now.
            if not _is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.002, 0.02))  # noqa: S311 - so that two do not keep in step


def _open_to_write(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "rwc")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # What was answered is on the disk: it outlives the process and a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:
            for statement in _statements(_SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
        _check_version(connection)
    except BaseException:  # any error: no other code has the connection
        connection.close()
        raise
    return connection


def open_to_read(folder: Path) -> sqlite3.Connection | None:
    """Open the file of a data directory; None if no rollout was ever stored. Raises ``sqlite3.Error``, ``OSError``."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    # SQLite needs a writable directory for its WAL and lock files. Where there is none and no writer, the file is
    # opened with ``immutable=1``.
    settled = not os.access(folder, os.W_OK) and not path.with_name(f"{FILE_NAME}-wal").exists()
    connection = _connect(path, "ro&immutable=1" if settled else "ro")
    try:
        if _version(connection) == 0:  # A server is creating it at this moment.
            connection.close()
            return None
        _check_version(connection)
    except BaseException:  # any error: no other code has the connection
        connection.close()
        raise
    connection.row_factory = sqlite3.Row
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=PATIENCE, isolation_level=None)


def _is_busy(error: sqlite3.Error) -> bool:
    name = error.sqlite_errorname if hasattr(error, "sqlite_errorname") else ""
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _statements(script: str) -> Iterable[str]:
    """Yield the statements of a script one by one: ``executescript`` would end the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _check_version(connection: sqlite3.Connection) -> None:
    found = _version(connection)
    if found != _VERSION:
        raise StoreUnavailable(
            f"{FILE_NAME} is of version {found}, and this ors-server knows version {_VERSION}",
            "Use the ors-server that wrote it, or another data directory (ORS_DATA_DIR)",
        )


class Additions:
    """Events on their way into the file, as rows of its tables."""

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.rollouts: list[tuple[Any, ...]] = []
        self.messages: list[tuple[Any, ...]] = []
        self.updates: list[tuple[str, int, str]] = []

    def add(self, event: Event) -> None:
        """Take one more."""
        if isinstance(event, MessageEvent):
            self.messages.append(_message_row(event))
            return
        if isinstance(event, RolloutEvent):
            run = self.runs.setdefault(event.run_name, run_id(event.run_name))
            self.rollouts.append(_rollout_row(event, run))
        if event.rollout_info:
            self.updates.append((event.event_id, event.timestamp, encode(event.rollout_info).decode()))

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to store."""
        return not (self.rollouts or self.messages or self.updates)

    def write(self, connection: sqlite3.Connection) -> None:
        """Store them in one transaction; those that are stored already change nothing.

        Raises ``sqlite3.Error``; then none of them is stored.
        """
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(_ADD_RUN, [(run, name) for name, run in self.runs.items()])
            connection.executemany(_ADD_ROLLOUT, self.rollouts)
            connection.executemany(_ADD_MESSAGE, self.messages)
            connection.executemany(_COUNT_MESSAGES, {(message[1],) for message in self.messages})
            connection.executemany(_ADD_UPDATE, self.updates)
            connection.execute("COMMIT")
        except BaseException:  # whatever it is: an open transaction would take in the next uploads
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _rollout_row(event: RolloutEvent, run: str) -> tuple[Any, ...]:
    return (
        event.event_id,
        run,
        event.rollout_name,
        event.environment,
        event.variant,
        event.split,
        event.step,
        event.timestamp,
        _json(event.task_spec),
        _json(event.metadata),
        _json(event.run_info),
        event.environment_id,
        event.variant_id,
        _json(event.model_extra or None),
    )


def _message_row(event: MessageEvent) -> tuple[Any, ...]:
    return (
        event.event_id,
        event.rollout_event_id,
        event.index,
        event.timestamp,
        event.reward,
        1 if event.is_finished else 0,
        event.type,
        event.name,
        event.call_id,
        event.summary,
        event.content_reference,
        event.environment_id,
        _json(event.metadata),
        _json(event.model_extra or None),
        event.content,
    )


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else encode(value).decode()


def explained(error: sqlite3.Error | OSError, where: str) -> StoreUnavailable:
    """Explain an error of the file: the cause and the remedy. ``where`` names the data directory."""
    if isinstance(error, OSError):
        return StoreUnavailable(
            f"The data directory {where} cannot be used: {error.strerror or error}",
            "Make it writable for the user of the server, or set ORS_DATA_DIR to another",
        )
    name = error.sqlite_errorname if hasattr(error, "sqlite_errorname") else ""
    if name.startswith("SQLITE_FULL"):
        cause, remedy = "the disk is full", "Free space there, or set ORS_DATA_DIR to another disk"
    elif name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        cause, remedy = "it cannot be opened for that", "Make it and its directory writable for the user of the server"
    elif _is_busy(error):
        cause, remedy = f"another process has held it for {PATIENCE:.0f} seconds", "End that process, or wait for it"
    elif name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        cause, remedy = "it is damaged or no SQLite file", "Move it away, and a new one is made; or repair it"
    else:
        cause, remedy = str(error), "Look after the disk it is on"
    return StoreUnavailable(f"The file of rollouts in {where} cannot be used: {cause}", remedy)

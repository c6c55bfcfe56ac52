"""Connections to the rollouts' database, and its errors in plain words.

Any number of processes may have a SQLite file open (WAL): the server writes while commands read, and two servers may
share one. A transaction for writing takes the file's lock at its beginning, so none fails half-way.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.location import Location, make_folder, make_private
from ors_server.rollouts.storing.migrating import check_version, make_current, version_of

__all__ = ["FAULTS", "explained", "is_away", "open_to_read", "open_to_write", "reading_engine"]

#: Seconds to wait for another process that is writing.
PATIENCE = 10.0
#: The advisory lock of PostgreSQL that a writing transaction holds.
_LOCK = 0x6F72735F
#: All that a database may raise.
FAULTS = (SQLAlchemyError, sqlite3.Error, OSError)
#: Options of libpq: a machine that is gone is noticed within a quarter of a minute.
_POSTGRESQL = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "ors-server",
}


def open_to_write(location: Location) -> Connection:
    """Open the database, made or brought to this version where it has to be.

    Raises ``SQLAlchemyError``, ``OSError`` and ``StoreUnavailable``.
    """
    if location.url is not None:
        engine = _postgresql(location.url)
        # One process writes at a time, as in SQLite: it counts messages that no other adds to meanwhile.
        _beginning_with(engine, f"SELECT pg_advisory_xact_lock({_LOCK})")
        return _open(engine)
    if location.folder.parts[:1] == ("~",):
        raise StoreUnavailable(
            "This server's user has no home directory to keep rollouts in", "Set ORS_DATA_DIR on the server"
        )
    # Uploads may hold anything, secrets among it.
    make_folder(location.folder, location.file)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _open(_sqlite(lambda: _connect_to_write(location.file), "BEGIN IMMEDIATE"))
        except OperationalError as error:
            # SQLite waits for most locks by itself, but not for that of another process that makes the file just now.
            if not _is_busy(error.orig) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.002, 0.02))  # noqa: S311 - so that two do not keep in step


def _open(engine: Engine) -> Connection:
    connection = engine.connect()
    try:
        make_current(connection)
    except BaseException:  # any error: no other code has the connection
        connection.close()
        raise
    return connection


def reading_engine(location: Location) -> Engine:
    """Return the source of connections that only read. It opens none by itself."""
    if location.url is not None:
        # One snapshot for all queries of a transaction, as SQLite has it. The level belongs to the engine: PostgreSQL
        # takes none once a transaction has begun.
        return _postgresql(location.url).execution_options(isolation_level="REPEATABLE READ")
    return _sqlite(lambda: _connect_to_read(location.file), "BEGIN")


def open_to_read(location: Location, engine: Engine) -> Connection | None:
    """Open the database with an engine of ``reading_engine``; None if no rollout was ever stored.

    A database of an earlier version is brought to this version first. Raises what ``open_to_write`` raises.
    """
    if location.url is None and not location.file.exists():
        return None
    connection = engine.connect()
    try:
        version = version_of(connection)
        connection.rollback()
        if version == 0:  # A server is creating it at this moment.
            connection.close()
            return None
        if check_version(connection, version):
            return connection
    except BaseException:  # any error: no other code has the connection
        connection.close()
        raise
    connection.close()
    open_to_write(location).close()
    return engine.connect()


# --- SQLite --------------------------------------------------------------------------------------


def _sqlite(connect: Callable[[], sqlite3.Connection], begin: str) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    _beginning_with(engine, begin)
    return engine


def _beginning_with(engine: Engine, statement: str) -> None:
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    event.listen(engine, "begin", on_begin)


def _connect_to_write(path: Path) -> sqlite3.Connection:
    make_private(path)
    connection = _connect(path, "rw")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # What was answered is on the disk: it outlives the process and a power cut.
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:  # any error: no other code has the connection
        connection.close()
        raise
    return connection


def _connect_to_read(path: Path) -> sqlite3.Connection:
    # SQLite needs a writable directory for its WAL and lock files. Where there is none and no writer, the file is
    # opened with ``immutable=1``.
    settled = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    return _connect(path, "ro&immutable=1" if settled else "ro")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=PATIENCE, isolation_level=None)


# --- PostgreSQL ----------------------------------------------------------------------------------


def _postgresql(url: str) -> Engine:
    # Not the driver that SQLAlchemy would choose, and "postgres", as libpq also accepts it.
    named = make_url(url).set(drivername="postgresql+psycopg")
    given = {name: value for name, value in _POSTGRESQL.items() if name not in named.query}
    return create_engine(named, poolclass=NullPool, connect_args=given)


# --- errors --------------------------------------------------------------------------------------


def is_away(error: BaseException) -> bool:
    """Return whether an error says that a database server cannot be reached now, and not that it refuses something."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    # Without a state no server has answered. 08: connection, 57P0: shut down or starting, 53300: too many connections,
    # 25006: a standby that has not taken over yet.
    return isinstance(error, OperationalError) and (
        state is None or state.startswith(("08", "57P0")) or state in ("53300", "25006")
    )


def explained(error: BaseException, location: Location, where: str) -> StoreUnavailable:
    """Explain an error of the database: the cause and the remedy. ``where`` names the place."""
    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(
            f"The data directory {where} cannot be used: {error.strerror or error}",
            "Make it writable for the user of the server, or set ORS_DATA_DIR to another",
        )
    original = error.orig if isinstance(error, DBAPIError) else error
    if location.url is not None:
        cause, remedy = _of_postgresql(error, original)
        return StoreUnavailable(f"The database of rollouts in {where} cannot be used: {cause}", remedy)
    return _of_sqlite(getattr(original, "sqlite_errorname", None) or "", original, where)


def _of_sqlite(name: str, original: BaseException | None, where: str) -> StoreUnavailable:
    if name.startswith("SQLITE_FULL"):
        cause, remedy = "the disk is full", "Free space there, or set ORS_DATA_DIR to another disk"
    elif name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        cause, remedy = "it cannot be opened for that", "Make it and its directory writable for the user of the server"
    elif _is_busy(original):
        cause, remedy = f"another process has held it for {PATIENCE:.0f} seconds", "End that process, or wait for it"
    elif name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        cause, remedy = "it is damaged or no SQLite file", "Move it away, and a new one is made; or repair it"
    else:
        cause, remedy = str(original), "Look after the disk it is on"
    return StoreUnavailable(f"The file of rollouts in {where} cannot be used: {cause}", remedy)


def _of_postgresql(error: BaseException, original: BaseException | None) -> tuple[str, str]:
    state = str(getattr(original, "sqlstate", None) or "")
    if state.startswith("28") or "authentication failed" in str(original):
        return "it refuses this user or password", "Correct the URL on the server, or its ~/.pgpass"
    if state.startswith("3D") or "does not exist" in str(original):
        return "it does not exist", "Create it (createdb), or correct the URL on the server"
    if state.startswith("53100"):
        return "its disk is full", "Free space there"
    if state.startswith("42501"):
        return "this user may not use its tables", "Grant the user CREATE on its schema"
    if is_away(error):
        return "it cannot be reached", "Start it, or correct the URL on the server"
    return f"{type(original).__name__} {state}".strip(), "The log of the database has the details"


def _is_busy(error: BaseException | None) -> bool:
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

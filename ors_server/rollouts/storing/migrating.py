"""Versions of the rollouts' database: a new one is made, an earlier one is migrated (Alembic), a later one refused.

A SQLite file also has its version in ``user_version``, which earlier ors-servers read: they refuse a migrated file with
a clear error. Invariant: a migration is one transaction of ``database.open_to_write``, so of several processes one does
it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, text

from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.tables import METADATA, VERSION

__all__ = ["check_version", "make_current", "migrate", "revision", "version_of"]

logger = logging.getLogger("ors_server.rollouts")


def revision(version: int) -> str:
    """Return the name of the migration that leads to a version."""
    return f"{version:04}"


def version_of(connection: Connection) -> int:
    """Return the version of the tables; 0 where there are none."""
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return 0
    found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return int(found) if found and found.isdecimal() else 0


def check_version(connection: Connection, version: int) -> bool:
    """Return whether a version is this one; False for an earlier one. Raises ``StoreUnavailable`` for a later one."""
    if version > VERSION:
        place = "rollouts.sqlite3" if connection.dialect.name == "sqlite" else "The database of rollouts"
        raise StoreUnavailable(
            f"{place} is of version {version}, and this ors-server knows version {VERSION}",
            "Use the ors-server that wrote it, or another data directory (ORS_DATA_DIR)"
            if connection.dialect.name == "sqlite"
            else "Use the ors-server that wrote it, or another database (ORS_ROLLOUTS)",
        )
    return version == VERSION


def make_current(connection: Connection) -> None:
    """Make the tables, or migrate those of an earlier version.

    Raises ``SQLAlchemyError`` and, for a later version, ``StoreUnavailable``.
    """
    with connection.begin():
        version = version_of(connection)
        if check_version(connection, version):
            return
        if version == 0:
            METADATA.create_all(connection)
            _stamp(connection)
        else:
            logger.info("migrating the rollouts", extra={"version": version, "to": VERSION})
            migrate(connection, version, VERSION)


def migrate(connection: Connection, version: int, target: int) -> None:
    """Run the migrations from a version to another within the connection's transaction."""
    # Loaded here: few processes ever migrate.
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    if version == 1:
        command.stamp(config, revision(1))  # version 1 had no Alembic
    command.upgrade(config, revision(target))
    _set_user_version(connection, target)


def _stamp(connection: Connection) -> None:
    # As Alembic makes it, which takes a tenth of a second to load.
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:found)"), {"found": revision(VERSION)})
    _set_user_version(connection, VERSION)


def _set_user_version(connection: Connection, version: int) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {version:d}")

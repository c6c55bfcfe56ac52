"""The rollouts' database, for reading: opened at the first use.

SQLAlchemy is imported then, and not before: a server whose rollouts are not read does not load it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from ors_server.rollouts.location import Location

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = ["RolloutStore"]


class RolloutStore:
    """The database at a place. Any thread may use it."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, where: str | None = None) -> Generator[Connection | None]:
        """Open a connection that reads; None where nothing was stored yet. ``where`` names the place in errors.

        Raises ``StoreUnavailable``, also for what the block raises of the database's own.
        """
        from sqlalchemy.exc import SQLAlchemyError

        from ors_server.rollouts.storing.database import FAULTS, explained, open_to_read, reading_engine

        named = where or self.location.setting
        try:
            with self._lock:
                if self._engine is None:
                    self._engine = reading_engine(self.location)
            connection = open_to_read(self.location, self._engine)
        except FAULTS as error:
            raise explained(error, self.location, named) from error
        if connection is None:
            yield None
            return
        with closing(connection):
            try:
                yield connection
            except SQLAlchemyError as error:
                raise explained(error, self.location, named) from error

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

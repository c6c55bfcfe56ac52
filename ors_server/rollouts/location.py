"""The place of the rollouts: a SQLite file in the data directory, or a PostgreSQL database at a URL.

Nothing here imports SQLAlchemy, so that a server which stores nothing does not load it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ors_server.errors import DefinitionError
from ors_server.settings import Settings

__all__ = ["FILE_NAME", "Location", "data_directory", "location_of", "make_private"]

FILE_NAME = "rollouts.sqlite3"


def data_directory(configured: Path) -> Path:
    """Return the directory that a setting names; without a home directory ``~`` stays, and is refused on use."""
    try:
        return configured.expanduser()
    except RuntimeError:
        return configured


@dataclass(frozen=True, slots=True)
class Location:
    """A database of rollouts."""

    #: The data directory, which has the SQLite file, and what waits for a PostgreSQL that cannot be reached.
    folder: Path
    #: A PostgreSQL database; it may have a password in it.
    url: str | None = field(default=None, repr=False)

    @property
    def file(self) -> Path:
        """The SQLite file, where there is no URL."""
        return self.folder / FILE_NAME

    @property
    def shown(self) -> str:
        """The place without a password, for the operator."""
        if self.url is None:
            return str(self.folder)
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{parts.hostname or ''}{port}{parts.path}"

    @property
    def setting(self) -> str:
        """The variable that names the place, for clients: they do not learn the place itself."""
        return "ORS_DATA_DIR" if self.url is None else "ORS_ROLLOUTS"


def location_of(settings: Settings) -> Location:
    """Return the place that the settings name. Raises ``DefinitionError`` where its driver is not installed."""
    url = settings.rollouts
    if url is not None and importlib.util.find_spec("psycopg") is None:
        raise DefinitionError(
            "ORS_ROLLOUTS names a PostgreSQL database, and psycopg is not installed",
            "Install it: pip install '/path/to/ors-server[postgresql]'.",
        )
    return Location(data_directory(settings.data_dir), None if url is None else url.get_secret_value())


def make_private(file: Path) -> None:
    """Create a SQLite file, if there is none, that only its owner may read; SQLite gives its WAL the same mode.

    Raises ``OSError``.
    """
    # An existing file must not be opened here: closing it would end the locks that this process has on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

"""The place of the rollouts: a SQLite file in the data directory, or a PostgreSQL database at a URL.

Nothing here imports SQLAlchemy, so that a server which stores nothing does not load it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ors_containers.distribution import install_command

from ors_server.errors import DefinitionError
from ors_server.settings import Settings

__all__ = ["FILE_NAME", "Location", "data_directory", "location_of", "make_folder", "make_private"]

logger = logging.getLogger("ors_server.rollouts.location")

FILE_NAME = "rollouts.sqlite3"
#: Paths that the log has named.
_reported: set[Path] = set()


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
            f"Install it: {install_command('postgresql')}.",
        )
    return Location(data_directory(settings.data_dir), None if url is None else url.get_secret_value())


def make_folder(folder: Path, *files: Path) -> None:
    """Create the data directory for its owner alone. Raises ``OSError``.

    One that exists keeps its mode, because a group may share it on purpose; the log says where every user of the
    machine may read it, or one of ``files`` in it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (folder, *files):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o007 and path not in _reported:
                _reported.add(path)
                logger.warning(
                    "other users of this machine may reach stored rollouts and keys",
                    extra={"path": str(path), "mode": f"{mode:03o}", "remedy": f"chmod o-rwx {path}"},
                )


def make_private(file: Path) -> None:
    """Create a SQLite file, if there is none, that only its owner may read; SQLite gives its WAL the same mode.

    Raises ``OSError``.
    """
    # An existing file must not be opened here: closing it would end the locks that this process has on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

"""Routes of uploaded rollouts: the upload, and the listings that openreward's ``orwd`` command requests.

An upload is on the hot path, like a call: it passes the bytes to the writer, whose thread does the rest. Listings read
the file on threads, each over a connection of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ors_server.encoding import encode
from ors_server.errors import OrsError
from ors_server.http.exchange import Exchange
from ors_server.http.routes.table import routes_of
from ors_server.rollouts.errors import UnknownRun
from ors_server.rollouts.file import explained, open_to_read
from ors_server.rollouts.queries import find_run, list_rollouts, list_runs
from ors_server.rollouts.writer import RolloutWriter

__all__ = ["Limit", "Offset", "RolloutRoutes", "platform_error", "reading", "runs_router"]

_DATA_DIR = "ORS_DATA_DIR"


def platform_error(error: OrsError) -> bytes:
    """Encode an error under ``/v1``, where ``orwd`` reads ``message`` and other clients read ``detail``."""
    return encode({"detail": error.detail, "message": error.text})


class RolloutRoutes:
    """Handler of the upload."""

    def __init__(self, writer: RolloutWriter, max_body: int) -> None:
        self._writer = writer
        self._max_body = max_body
        self.table = routes_of(self, "rollouts")

    async def rollouts(self, exchange: Exchange) -> None:
        """Store events of rollouts, in any order, and answer when they are on the disk.

        Events with known ids change nothing. Events that do not fit are named in a 422, and the other events of the
        upload are stored.
        """
        try:
            stored = await self._writer.store(await exchange.body(self._max_body))
        except OrsError as error:
            await exchange.json(platform_error(error), error.status, error.headers)
        else:
            await exchange.json(b'{"stored":%d}' % stored)


Limit = Annotated[int, Query(ge=0, le=1000)]
Offset = Annotated[int, Query(ge=0, le=2**31)]


def runs_router(folder: Path) -> APIRouter:
    """Make the router of ``/v1/runs`` with its subpaths, over the file of a data directory."""
    unusable: dict[int | str, dict[str, Any]] = {503: {"description": "The file cannot be read now"}}
    unknown: dict[int | str, dict[str, Any]] = {404: {"description": "Unknown run"}, **unusable}
    router = APIRouter(prefix="/v1/runs", tags=["rollouts"])

    # Not async: FastAPI runs them on threads.
    @router.get("", responses=unusable)
    def runs(search: str = "", limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List the runs of the uploaded rollouts, the newest first."""
        with reading(folder) as connection:
            if connection is None:
                return {"runs": [], "total": 0}
            page = list_runs(connection, search=search, limit=limit, offset=offset)
            return {"runs": page.rows, "total": page.total}

    # A run may be given by its name, and names may have slashes in them.
    @router.get("/{run:path}/rollouts", responses=unknown)
    def rollouts(run: str, limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List the rollouts of a run, the newest first."""
        with reading(folder) as connection:
            if connection is None:
                raise UnknownRun(run)
            page = list_rollouts(connection, run=run, limit=limit, offset=offset)
            return {"rollouts": [{**row, "rolloutName": row["rollout_name"]} for row in page.rows], "total": page.total}

    @router.get("/{run:path}", responses=unknown)
    def run(run: str) -> dict[str, Any]:
        """Return one run, by its id or its name."""
        with reading(folder) as connection:
            if connection is None:
                raise UnknownRun(run)
            return find_run(connection, run)

    return router


@contextmanager
def reading(folder: Path) -> Generator[sqlite3.Connection | None]:
    """Open the file of a data directory; None where nothing was stored yet. Raises ``StoreUnavailable``."""
    try:
        connection = open_to_read(folder)
        if connection is None:
            yield None
            return
        with closing(connection):
            yield connection
    except (sqlite3.Error, OSError) as error:
        raise explained(error, _DATA_DIR) from error
